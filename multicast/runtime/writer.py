"""The thread that writes the journal: one append and one sync for all batches that wait (group commit).

Most batches hold what a message waits for: a vote, an acknowledgement. What only records what has happened, deliveries
and their outcomes, vouches for nothing, and the next vote takes it along.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

from multicast.journal import Journal

LAZY_SECONDS = 0.02
"""A batch for which no message waits is on disk after so long at the latest; mostly it goes with a later one."""

SYNC_TIMES_MAX = 4096
"""So many of the latest syncs are remembered for the percentiles."""


class Writer:
    """Appends and syncs batches in the order of `put`, outside the event loop.

    to_disk: False: no sync, appended is good enough (durability "os").
    on_flushed(number): on the loop: every batch up to `number` is durable. on_failed(error): on the loop, once: what
    was not reported as flushed may or may not be on disk, and nothing more will be written.
    """

    def __init__(
        self,
        journal: Journal,
        to_disk: bool,
        on_flushed: Callable[[int], None],
        on_failed: Callable[[BaseException], None],
    ):
        self._journal = journal
        self._to_disk = to_disk
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._queue: queue.SimpleQueue[tuple[int, bytes, bool] | None] = queue.SimpleQueue()
        self._sync_us: deque[int] = deque(maxlen=SYNC_TIMES_MAX)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        self._thread = threading.Thread(target=self._work, name="journal-writer", daemon=True)
        self.pending_bytes = 0
        self.syncs = 0

    def start(self) -> None:
        """On the event loop that shall hear of flushes."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._thread.start()

    def put(self, number: int, data: bytes, urgent: bool = True) -> None:
        """Write this batch after those before it. urgent: somebody waits for that; else it may wait LAZY_SECONDS for
        what comes next."""
        self.pending_bytes += len(data)
        self._queue.put((number, data, urgent or not self._to_disk))

    async def close(self) -> None:
        """Return when everything that was put is written (or failed) and the thread has ended. Idempotent."""
        if self._ended is None:
            return
        if not self._ended.done():
            self._queue.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()

    def sync_percentiles_us(self) -> dict[str, int] | None:
        """p50 and p99 of the latest syncs, microseconds; None before the first."""
        times = sorted(self._sync_us)
        if not times or not self._to_disk:
            return None
        return {"p50": times[len(times) // 2], "p99": times[len(times) * 99 // 100]}

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
        """Wait for batches and write them as one. False: told to end."""
        pieces: list[bytes] = []
        number, due = 0, 0.0
        going_on, urgent = True, False
        while True:
            try:
                if urgent or not going_on:
                    item = self._queue.get_nowait()
                elif pieces:
                    item = self._queue.get(timeout=max(0.0, due - time.monotonic()))
                else:
                    item = self._queue.get()
                    due = time.monotonic() + LAZY_SECONDS
            except queue.Empty:
                break
            if item is None:
                going_on = False
            else:
                number = item[0]
                pieces.append(item[1])
                urgent = urgent or item[2]
        if pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if data:
                self._journal.append(data)
            started = time.perf_counter_ns()
            self._journal.sync(self._to_disk)
            self._sync_us.append((time.perf_counter_ns() - started) // 1000)
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._flushed, number, len(data))
        return going_on

    def _flushed(self, number: int, size: int) -> None:
        self.pending_bytes -= size
        self.syncs += 1
        self._on_flushed(number)

    def _end(self, failure: BaseException | None) -> None:
        assert self._ended is not None
        if not self._ended.done():
            self._ended.set_result(None)
        if failure is not None:
            self._on_failed(failure)
