"""When a replica's write buffer goes to LMDB, and what happens while it is too full.

Theory of operation. The store's write buffer has an active and a frozen layer (`kvstore.storage.store`). The active one
is frozen between two batches, when it is large enough or a commit is due by time, together with the position that the
replica has completed. It is committed, as one transaction of LMDB in a thread, once the journal has flushed every batch
up to the freeze: were LMDB ahead of the journal, a loss of power could leave effects of deliveries that the protocol
has forgotten. When the commit has returned, the journal may let go of what precedes it (`Host.release`).

While the buffer is full, clients are refused (503; `LiveReplica.overload`). If it fills up all the same, because peers
go on sending, the host is held: it takes nothing from peers until a commit has made room.

A commit that finds no room on the disk changes nothing and is tried again. Any other error ends the replica, since
after an error of the device nobody knows what LMDB holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from kvstore.limits import Limits
from kvstore.storage.backend import NoSpace
from kvstore.storage.store import Store
from multicast.batch import Batch
from multicast.disk import NO_ROOM
from multicast.logs import structlog
from multicast.runtime.host import Host

NO_SPACE_SECONDS = 1.0
"""Between two attempts at what there is no room for."""
COMMIT_POSITIONS = 10_000
"""After so many deliveries the position is committed though nothing else has changed: a restart replays from there."""

_log = structlog.get_logger("kvstore.host")
_T = TypeVar("_T")


class Committer:
    """Commits what one life of a replica writes into its store.

    stopping(): the replica is about to end, so nothing is tried again. on_ended(task): called with each commit when it
    is done; it may have failed.

    flushed: the number of the last batch that the journal has flushed; 0 before the first. held: the host is, because
    the buffer is too full.
    """

    def __init__(
        self, store: Store, limits: Limits, stopping: Callable[[], bool],
        on_ended: Callable[[asyncio.Task[None]], None],
    ):  # fmt: skip
        self._store, self._limits, self._stopping, self._on_ended = store, limits, stopping, on_ended
        self._host: Host | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.flushed = 0
        self._written = 0  # the last batch that has something for the journal
        self._committed = store.position  # what LMDB holds, or will when the present commit is done
        self._frozen, self._frozen_at = False, 0  # whether a layer is frozen, and the last batch in it
        self._commit: asyncio.Task[None] | None = None
        self.held = False

    # -- the life that it serves --------------------------------------------------------------------------------------

    def follow(self, host: Host) -> None:
        """Commit what this host completes."""
        self._host = host
        host.release(self._committed)

    def unfollow(self) -> None:
        """The host is about to stop, and another life will begin: freeze nothing more."""
        self._host = None

    def wait_for_next(self) -> None:
        """Have the buffer committed after the usual interval, and so on."""
        self._timer = asyncio.get_running_loop().call_later(self._limits.commit_interval_ms / 1000, self._on_timer)

    def cancel_timer(self) -> None:
        """No more commits by time."""
        if self._timer is not None:
            self._timer.cancel()

    async def finish(self) -> None:
        """Wait for the commit that is under way."""
        if self._commit is not None:
            await asyncio.wait([self._commit])

    async def commit_rest(self) -> None:
        """After the host has stopped, when everything is flushed: commit what is left, within `stop_deadline_ms`."""
        self.on_flushed(self._written)
        if self._commit is not None:
            await asyncio.wait([self._commit], timeout=self._limits.stop_deadline_ms / 1000)
        self._freeze()
        self.on_flushed(self._written)
        if (commit := self._commit) is not None:
            _, late = await asyncio.wait([commit], timeout=self._limits.stop_deadline_ms / 1000)
            if late or commit.cancelled():
                commit.cancel()
                _log.warning("stopped without the last commit to LMDB; the journal has everything")

    # -- batches ------------------------------------------------------------------------------------------------------

    def on_batch(self, batch: Batch) -> None:
        """The host has processed a batch; it may not be flushed yet."""
        if batch.journal:
            self._written = batch.number
        if self._store.pending_bytes >= self._limits.commit_bytes:
            self._freeze()
        self._hold_if_full()

    def on_flushed(self, number: int) -> None:
        """The journal durably has all batches up to this one."""
        self.flushed = number
        if self._frozen and self._commit is None and number >= self._frozen_at:
            self._commit = asyncio.get_running_loop().create_task(self._commit_frozen())
            self._commit.add_done_callback(self._on_ended)

    def _on_timer(self) -> None:
        self._freeze()
        self.wait_for_next()

    def _hold_if_full(self) -> None:
        """Between batches: while the buffer is too full nothing comes in, so nothing more is delivered."""
        full = self._store.pending_bytes > self._limits.held_bytes
        if full != self.held and self._host is not None:
            self.held = full
            self._host.hold(full)

    # -- commits ------------------------------------------------------------------------------------------------------

    def _freeze(self) -> None:
        """Between batches: what is in the buffer goes to LMDB as soon as the journal has all of it."""
        if self._frozen or self._host is None:
            return
        completed = self._host.engine.completed
        if not self._store.pending_bytes and completed < self._committed + COMMIT_POSITIONS:
            return
        if self._store.freeze(completed):
            self._frozen, self._frozen_at, self._committed = True, self._written, completed
            self.on_flushed(self.flushed)

    async def _commit_frozen(self) -> None:
        await when_there_is_room(self._store.commit, self._stopping)
        self._store.thawed()
        if self._host is not None:
            self._host.release(self._committed)
        self._frozen, self._commit = False, None
        if self.held:
            self._freeze()
            self._hold_if_full()


async def when_there_is_room(work: Callable[[], _T], stopping: Callable[[], bool]) -> _T:
    """Do this in a thread, again and again as long as there is no room on the disk. CancelledError once the replica is
    stopping."""
    while True:
        try:
            return await asyncio.to_thread(work)
        except (NoSpace, OSError) as error:
            if isinstance(error, OSError) and error.errno not in NO_ROOM:
                raise
            _log.warning("no room on the disk; waiting", error=str(error))
        if stopping():
            raise asyncio.CancelledError
        await asyncio.sleep(NO_SPACE_SECONDS)
