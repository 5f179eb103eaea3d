"""What a host reads and writes beside its loop, in other threads: what peers ask for, snapshots, checkpoints; and old
segments of the journal, which go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from multicast import wire
from multicast.batch import Batch
from multicast.checkpoint import Checkpoint, Checkpoints
from multicast.disk import NO_ROOM
from multicast.engine import Engine
from multicast.journal import Gone, Journal
from multicast.logs import structlog
from multicast.records import Delivered
from multicast.retention import Retention
from multicast.snapshot import Keeper
from multicast.types import ProcessId

_T = TypeVar("_T")

PAUSE_SECONDS = 0.0005
"""A thread that goes through much of the journal pauses for so long every few hundred records, so that the loop goes
on."""
CHECKPOINT_AGAIN_BYTES = 1024 * 1024
"""A checkpoint for which there was no room is tried again when the journal has grown by so much."""
RETAIN_BYTES = 1024 * 1024
"""Whenever the journal has grown by so much, it is looked at what may be dropped."""

log = structlog.get_logger("multicast.runtime")


def pause() -> None:
    """For `Checkpoints` and `Retention`."""
    time.sleep(PAUSE_SECONDS)


class Aside:
    """Beside the host of `engine`. keeper, on_snapshot, retention: see `Host`. schedule(): something waits in the
    engine. running(): whether the host is. fail(error): the journal or the application's storage cannot be used."""

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        keeper: Keeper | None,
        on_snapshot: Callable[[wire.SnapshotChunk], None] | None,
        retention: Retention | None,
        schedule: Callable[[], None],
        running: Callable[[], bool],
        fail: Callable[[BaseException], None],
    ):
        self._engine = engine
        self._journal = journal
        self._keeper = keeper
        self._on_snapshot = on_snapshot
        self._schedule, self._running, self._fail = schedule, running, fail
        self._working: dict[object, asyncio.Future[None]] = {}
        self._retention = retention
        self._held = self._covered = 0
        self._checkpoint_at = self._retain_at = 0
        self._checkpoints: Checkpoints | None = None
        self._trouble = ""

    def carry_out(self, batch: Batch) -> None:
        """Do what this batch asks for. A peer that asks again before it has its answer is not answered twice."""
        for peer, position in batch.reads:
            self._read(peer, position)
        for peer, request in batch.rows:
            self._read_rows(peer, request)
        for chunk in batch.staging:
            self._stage(chunk)

    async def finish(self) -> None:
        """Wait for the work that is under way; nothing follows from it."""
        if self._retention is not None:
            self._retention.ending = True
        await asyncio.gather(*self._working.values(), return_exceptions=True)
        if self._retention is not None:
            self._retention.close()

    def _read(self, peer: ProcessId, position: int) -> None:
        """Read deliveries for a peer that is behind. It asks again if it needs more."""

        def read() -> tuple[list[tuple[Delivered, bytes | None]], bool] | Gone:
            try:
                return self._journal.read_deliveries(position)
            except Gone as gone:
                return gone

        def feed(found: tuple[list[tuple[Delivered, bytes | None]], bool] | Gone) -> None:
            self._engine.found(peer, wire.Gone(found.floor) if isinstance(found, Gone) else wire.CatchUpReply(*found))
            self._schedule()

        self._work(peer, read, feed)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def _read_rows(self, peer: ProcessId, request: wire.SnapshotRequest) -> None:
        """A chunk for a peer."""
        assert self._keeper is not None

        def tell(chunk: wire.SnapshotChunk | None) -> None:
            if chunk is not None:
                self._engine.found(peer, chunk)
                self._schedule()

        self._work(("rows", peer), partial(self._keeper.read, peer, request), tell)

    def _stage(self, chunk: wire.SnapshotChunk) -> None:
        """A chunk for this process."""
        assert self._keeper is not None

        def staged(kept: bool) -> None:
            self._engine.staged(chunk, kept)
            self._schedule()
            if kept and not chunk.next and self._engine.completed < chunk.position and self._on_snapshot is not None:
                self._on_snapshot(chunk)

        self._work("stage", partial(self._keeper.stage, chunk), staged)

    # -- checkpoints, and what may go ---------------------------------------------------------------------------------

    def latest_checkpoint(self) -> Checkpoint:
        """The checkpoint from which this life begins."""
        checkpoint = Checkpoints(self._journal).latest()
        if checkpoint.offset:  # the life before may have ended between writing and syncing it
            self._journal.disk.sync(checkpoint.file)
        self._made(checkpoint)
        return checkpoint

    def release(self, position: int) -> None:
        """See `Host`."""
        self._held = position

    def flushed(self) -> None:
        """The journal has grown; perhaps enough since the last checkpoint, or since something was let go."""
        if self._journal.synced >= self._checkpoint_at:
            self._checkpoints = self._checkpoints or Checkpoints(self._journal, pause)
            self._work("checkpoint", partial(_unless_full, self._checkpoints.advance), self._made)
        if self._journal.synced >= self._retain_at:
            self.retain()

    def retain(self) -> None:
        """See `Host`."""
        if self._retention is not None:
            needless = self._held if self._keeper is None else self._keeper.lowest(self._held)
            advance = partial(self._retention.advance, needless, self._covered)
            self._work("retention", partial(_unless_full, advance), self._retained)

    def _made(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            self._checkpoint_at = self._journal.end + CHECKPOINT_AGAIN_BYTES
        else:
            self._checkpoint_at, self._covered = checkpoint.next_offset, checkpoint.offset
            self._checkpoints = None  # what it remembers takes room

    def _retained(self, _: None) -> None:
        assert self._retention is not None
        self._retain_at = self._journal.synced + RETAIN_BYTES
        if self._retention.trouble != self._trouble:
            self._trouble = self._retention.trouble
            if self._trouble:
                log.warning("the journal cannot be archived, and is kept until it can", error=self._trouble)
            else:
                log.info("the journal can be archived again")

    def status(self) -> dict[str, Any]:
        """How much of the journal is where. Bytes; floor: a position."""
        journal, retention = self._journal, self._retention
        status: dict[str, Any] = {"journal_held_bytes": journal.end - journal.begin, "journal_floor": journal.floor}
        if retention is not None and retention.archives:
            status |= {"archived_bytes": retention.archived, "archive_trouble": retention.trouble}
        return status

    # -- threads ------------------------------------------------------------------------------------------------------

    def _work(self, key: object, work: Callable[[], _T], then: Callable[[_T], None]) -> None:
        """Do `work` in another thread and then `then` on the loop, unless something under the same key is under way."""
        if key in self._working or not self._running():
            return
        working = asyncio.get_running_loop().run_in_executor(None, work)
        self._working[key] = working  # type: ignore[assignment]

        def done(future: asyncio.Future[_T]) -> None:
            del self._working[key]
            error = None if future.cancelled() else future.exception()  # asked for, or asyncio tells it by itself
            if future.cancelled() or not self._running():
                return
            if error is not None:  # what was promised may be gone
                self._fail(error)
                return
            try:
                then(future.result())
            except Exception as bug:
                self._fail(bug)

        working.add_done_callback(done)


def _unless_full(work: Callable[[], _T]) -> _T | None:
    """What the work returns; None if there was no room on the disk for it: then nothing has changed."""
    try:
        return work()
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        return None
