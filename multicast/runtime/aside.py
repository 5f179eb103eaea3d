"""What a host reads and writes beside its loop, in other threads: what peers ask for, snapshots, checkpoints."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from multicast import wire
from multicast.batch import Batch
from multicast.checkpoint import Checkpoint, Checkpoints
from multicast.engine import Engine
from multicast.journal import Gone, Journal
from multicast.records import Delivered
from multicast.snapshot import Keeper
from multicast.types import ProcessId

_T = TypeVar("_T")

CHECKPOINT_PAUSE_SECONDS = 0.0005
"""A checkpoint is made in another thread, which lets the loop go on every few hundred records."""
CHECKPOINT_AGAIN_BYTES = 1024 * 1024
"""So much later in the journal one is tried again for which there was no room."""


class Aside:
    """Of the host of `engine`. keeper, on_snapshot: see `Host`. schedule(): something waits in the engine. running():
    whether the host is. fail(error): the journal or the application's storage cannot be used."""

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        keeper: Keeper | None,
        on_snapshot: Callable[[wire.SnapshotChunk], None] | None,
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
        self._checkpoint_at = 0

    def carry_out(self, batch: Batch) -> None:
        """What this batch asks for. Who asks again before he has his answer is not answered twice."""
        for peer, position in batch.reads:
            self._read(peer, position)
        for peer, request in batch.rows:
            self._read_rows(peer, request)
        for chunk in batch.staging:
            self._stage(chunk)

    async def finish(self) -> None:
        """Wait for what is under way; nothing comes of it."""
        await asyncio.gather(*self._working.values(), return_exceptions=True)

    def _read(self, peer: ProcessId, position: int) -> None:
        """Deliveries for a peer that is behind; it asks again."""

        def read() -> tuple[list[tuple[Delivered, bytes | None]], bool] | Gone:
            try:
                return self._journal.read_deliveries(position)
            except Gone as gone:
                return gone

        def feed(found: tuple[list[tuple[Delivered, bytes | None]], bool] | Gone) -> None:
            if isinstance(found, Gone):
                self._engine.tell(peer, wire.Gone(found.floor))
            else:
                self._engine.feed(peer, *found)
            self._schedule()

        self._work(peer, read, feed)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def _read_rows(self, peer: ProcessId, request: wire.SnapshotRequest) -> None:
        """A chunk for a peer."""
        assert self._keeper is not None

        def tell(chunk: wire.SnapshotChunk | None) -> None:
            if chunk is not None:
                self._engine.tell(peer, chunk)
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

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def latest_checkpoint(self) -> Checkpoint:
        """From which this life begins."""
        checkpoint = Checkpoints(self._journal).latest()
        self._checkpoint_at = checkpoint.next_offset
        return checkpoint

    def checkpoint_if_due(self) -> None:
        """Make one if the journal has grown enough since the last one."""
        if self._journal.synced < self._checkpoint_at:
            return
        checkpoints = Checkpoints(self._journal, partial(time.sleep, CHECKPOINT_PAUSE_SECONDS))

        def advance() -> Checkpoint | None:
            try:
                return checkpoints.advance()
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                return None  # the one before still counts

        def made(checkpoint: Checkpoint | None) -> None:
            self._checkpoint_at = checkpoint.next_offset if checkpoint else self._journal.end + CHECKPOINT_AGAIN_BYTES

        self._work("checkpoint", advance, made)

    def _work(self, key: object, work: Callable[[], _T], then: Callable[[_T], None]) -> None:
        """Do this in another thread and then that on the loop, unless something under the same key is under way."""
        if key in self._working or not self._running():
            return
        working = asyncio.get_running_loop().run_in_executor(None, work)
        self._working[key] = working  # type: ignore[assignment]

        def done(future: asyncio.Future[_T]) -> None:
            del self._working[key]
            if not self._running() or future.cancelled():
                return
            try:
                then(future.result())
            except Exception as error:  # what was promised may be gone
                self._fail(error)

        working.add_done_callback(done)
