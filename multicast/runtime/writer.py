"""Writing the journal: one append and one sync for all batches that wait (group commit).

Theory of operation. Batches are put, and wait until somebody needs them on disk: a message that waits for one of them,
a vote or an acknowledgement. What only records what has happened, deliveries and their outcomes, vouches for nothing;
the next vote takes it along, or it is written LAZY_SECONDS later. All that waits is written as one: at once, on the
loop's own thread, if the loop has nothing else to do, which saves two changes of thread; else by the writer's thread,
while the loop computes the next batches. A disk that was slow the last time gets no chance to hold up the loop. One
that was quick, and hangs in the next sync, does: this process is silent as long as it hangs, and its peers elect as if
it had stopped. That is less harm than two changes of thread in each answer to a lone client.

A disk may hang while the thread writes, too: what this process vouches for does not leave, but the loop goes on, and
its pulses would reassure everybody. So it is told when a write takes too long (`hangs`), and when it has returned.

Where no room is left on the disk nothing is written, and so nothing vouched for, until there is: an append that found
no room was taken back, and is tried again. An append only: after a sync that failed nobody knows what is on the disk.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any

from multicast.disk import HANGS_US, DiskFull
from multicast.journal import Journal

LAZY_SECONDS = 0.02
"""A batch that nobody needs is on disk after about so long."""
QUICK_US = 2_000
"""The loop does not wait for a disk that took longer than this for the last sync."""
QUICK_BYTES = 64 * 1024
"""Nor for more than this."""
FULL_SECONDS = 0.1
"""So long between two tries on a full disk."""
LOOK_SECONDS = 0.1
"""While the thread writes, so often is looked whether its disk hangs."""
SYNC_BOUNDS_US = (
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
)  # fmt: skip
"""Of the histogram of syncs."""
SYNC_TIMES_MAX = 4096
"""So many of the latest syncs are remembered for the percentiles."""


class Writer:
    """Appends and syncs batches in the order of `put`. All its methods are the loop's.

    full: there was no room for the last append. hangs: the thread's write has been under way for more than HANGS_US.
    to_disk: False: no sync, appended is good enough (durability "os"); and nothing is put off.
    on_flushed(number): every batch up to `number` is durable. on_failed(error): what was not reported as flushed may or
    may not be on disk, and nothing more will be written. on_hangs(): `hangs` has changed.
    """

    def __init__(
        self,
        journal: Journal,
        to_disk: bool,
        on_flushed: Callable[[int], None],
        on_failed: Callable[[BaseException], None],
        on_hangs: Callable[[], None],
    ):
        self._journal = journal
        self._to_disk = to_disk
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._on_hangs = on_hangs
        self._number = 0
        self._waiting: list[bytes] = []
        self._under_way = 0
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._sync_us: deque[int] = deque(maxlen=SYNC_TIMES_MAX)
        self._sync_counts, self._sync_us_in_all = [0] * (len(SYNC_BOUNDS_US) + 1), 0
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._lazy_seconds = LAZY_SECONDS if to_disk else 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        self._thread = threading.Thread(target=self._work, name="journal-writer", daemon=True)
        self._hurry = threading.Event()
        self.pending_bytes = 0
        self.syncs = 0
        self.full = self.hangs = False
        self._begun: float | None = None
        self._looking: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """On the event loop that shall hear of flushes."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._thread.start()

    def put(self, number: int, data: bytes) -> None:
        """Write this batch after those before it: with the next `flush`, or LAZY_SECONDS later."""
        self.pending_bytes += len(data)
        self._number = number
        assert self._loop is not None
        if not self._waiting:
            self._since = self._loop.time()
        self._waiting.append(data)
        if self._timer is None:
            self._timer = self._loop.call_later(self._lazy_seconds, self._on_timer)

    def _on_timer(self) -> None:
        """One timer for all batches, armed no later than the first of those that wait needs it: it may be too early."""
        assert self._loop is not None
        self._timer = None
        if not self._waiting:
            return
        left = self._since + self._lazy_seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._on_timer)
        else:
            self.flush(not self._to_disk)

    def flush(self, idle: bool) -> None:
        """Write all that was put. idle: the loop has nothing else to do."""
        if not self._waiting:
            return
        data = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        self._waiting.clear()
        self._under_way += 1
        quick = bool(self._sync_us) and self._sync_us[-1] < QUICK_US and len(data) < QUICK_BYTES
        if self._under_way > 1 or not (idle and quick):
            self._hand_over(data)
            return
        try:
            self._write(data)
        except DiskFull:
            self._hand_over(data)  # the loop does not wait for room
        except Exception as error:
            self._on_failed(error)
        else:
            self._flushed(self._number, len(data), 1)

    def _hand_over(self, data: bytes) -> None:
        """To the thread."""
        self._queue.put((self._number, data))
        if self._looking is None:
            self._look()

    def _look(self) -> None:
        assert self._loop is not None
        begun = self._begun
        hangs = begun is not None and time.monotonic() - begun > HANGS_US / 1_000_000
        self._looking = self._loop.call_later(LOOK_SECONDS, self._look) if self._under_way else None
        if hangs != self.hangs:
            self.hangs = hangs
            self._on_hangs()

    def no_more_waiting(self) -> None:
        """From now on a full disk is an error like any other."""
        self._hurry.set()

    async def close(self) -> None:
        """Return when everything that was put is written (or failed) and the thread has ended. Idempotent."""
        if self._ended is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._ended.done():
            self.flush(False)
            self._queue.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()
        if self._looking is not None:
            self._looking.cancel()

    def sync_percentiles_us(self) -> dict[str, int] | None:
        """p50 and p99 of the latest syncs, microseconds; None before the first."""
        times = sorted(self._sync_us)
        if not times or not self._to_disk:
            return None
        return {"p50": times[len(times) // 2], "p99": times[len(times) * 99 // 100]}

    def sync_histogram_us(self) -> dict[str, Any] | None:
        """Of all syncs of this life: how many took up to each bound, and longer than the last, and all together."""
        if not self._to_disk:
            return None
        return {"bounds": SYNC_BOUNDS_US, "counts": list(self._sync_counts), "sum": self._sync_us_in_all}

    def _write(self, data: bytes) -> None:
        self._journal.append(data)
        started = time.perf_counter_ns()
        self._journal.sync(self._to_disk)
        us = (time.perf_counter_ns() - started) // 1000
        self._sync_us.append(us)
        self._sync_counts[bisect_left(SYNC_BOUNDS_US, us)] += 1
        self._sync_us_in_all += us

    def _flushed(self, number: int, size: int, flushes: int) -> None:
        self._under_way -= flushes
        self.pending_bytes -= size
        self.syncs += 1
        self._on_flushed(number)

    def _write_when_there_is_room(self, data: bytes) -> None:
        while True:
            self._begun = time.monotonic()
            try:
                self._write(data)
                self.full, self._begun = False, None
                return
            except DiskFull:
                self.full, self._begun = True, None
                if self._hurry.wait(FULL_SECONDS):
                    raise

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        assert self._loop is not None and self._ended is not None
        failure: BaseException | None = None
        try:
            while self._write_waiting():
                pass
        except BaseException as error:
            failure = error
        self._loop.call_soon_threadsafe(self._end, failure)

    def _write_waiting(self) -> bool:
        """Wait for flushes and write them as one. False: told to end."""
        item = self._queue.get()
        number, pieces, going_on = 0, [], True
        while True:
            if item is None:
                going_on = False
                break
            number = item[0]
            pieces.append(item[1])
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
        if pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._write_when_there_is_room(data)
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._flushed, number, len(data), len(pieces))
        return going_on

    def _end(self, failure: BaseException | None) -> None:
        assert self._ended is not None
        if not self._ended.done():
            self._ended.set_result(None)
        if failure is not None:
            self._on_failed(failure)
