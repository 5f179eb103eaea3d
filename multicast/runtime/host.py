"""The live host of one process: an engine on an asyncio loop, its journal, its links over TCP.

Theory of operation. Whatever arrives (frames, requests, timers, flushes) becomes an input of the engine and schedules
one run at the loop's next turn; all inputs that are there by then make one batch. What has time (a message that can
wait, see `multicast.protocol.Handler`; the news of what is durable) waits for such a run, SOON_US at most. After the
run: journal bytes go to the writer, and messages that may leave go to their links, which write once each. If one of the
messages waits for the disk, the writer flushes at the loop's next turn, itself or by its thread; then that message
leaves, and frames of peers are acknowledged up to there. While its thread flushes, the loop computes further batches.

A failure of the disk or a bug of ours stops the host: `failed` is set, nothing that waited is released, and the owner
ends the process. A failure of a peer costs that peer its link.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from multicast.application import Application
from multicast.batch import Batch
from multicast.engine import Engine
from multicast.journal import Journal
from multicast.logs import structlog
from multicast.protocol import MulticastProtocol, Overloaded
from multicast.retention import Retention
from multicast.runtime.aside import Aside
from multicast.runtime.clock import Clock, wall_us
from multicast.runtime.fence import NONE_TAKEN, Fence, Places
from multicast.runtime.links import Links
from multicast.runtime.tls import Tls
from multicast.runtime.writer import Writer
from multicast.snapshot import Keeper
from multicast.types import AppMessage, ProcessId
from multicast.wire import SnapshotChunk

REQUESTS_MAX = 20_000
"""Requests that wait for an answer."""
SOON_US = 20_000
"""What has time is processed after so long if nothing else happens before."""
UNWRITTEN_BYTES_MAX = 32 * 1024 * 1024
"""Journal bytes that wait for the disk; beyond, nothing is read from peers. Requests are refused beyond half of them,
so that it hardly comes to that: a leader that does not read hears nobody who obeys it."""

log = structlog.get_logger("multicast.runtime")


class HostStopped(Exception):
    """The host stopped before it answered: whether the request has an effect is unknown."""


class Host:
    """One process of a group.

    addresses: of all processes, this one's being where it listens. address_of(process, note): of one that was added
    (`multicast.membership.Change`). on_members(): after a run in which the members of groups have changed.
    cluster: 16 bytes that all processes share. incarnation: differs in every life; by default the time. durability:
    "fsync", or "os": survives the death of the process, not of the machine. on_batch(batch): after every run, on the
    loop. on_flushed(number): that batch and all before it are on disk.
    lost: the disk that this process had before is gone (`Saved.lost`). keeper: gives and takes snapshots, if anything
    does; on_snapshot(its last chunk): all of one is staged, and is further than this process: seal it and begin a new
    life. wall(): the wall clock, microseconds since 1970. retention: of the journal; None: all of it stays.
    places: of machines; the fence keeps them. tls: of the links; None: without.
    """

    def __init__(
        self,
        *,
        protocol: MulticastProtocol,
        application: Application,
        journal: Journal,
        addresses: Mapping[ProcessId, tuple[str, int]],
        address_of: Callable[[ProcessId, bytes], tuple[str, int]] | None = None,
        on_members: Callable[[], None] | None = None,
        cluster: bytes,
        incarnation: int | None = None,
        durability: str = "fsync",
        on_batch: Callable[[Batch], None] | None = None,
        on_flushed: Callable[[int], None] | None = None,
        lost: bool = False,
        keeper: Keeper | None = None,
        on_snapshot: Callable[[SnapshotChunk], None] | None = None,
        wall: Callable[[], int] = wall_us,
        retention: Retention | None = None,
        places: Places = NONE_TAKEN,
        tls: Tls | None = None,
    ):
        if durability not in ("fsync", "os"):
            raise ValueError(f"durability is 'fsync' or 'os', not {durability!r}")
        missing = [p for p in protocol.topology.processes if p not in addresses]
        if missing:
            raise ValueError(f"no address for processes {missing}")
        self._clock = Clock(wall)
        self._clock_off = False
        self.now: Callable[[], int] = self._clock.now
        self.journal = journal
        self.engine = Engine(
            protocol, application, self.now() if incarnation is None else incarnation, durability=durability
        )
        self.failed: asyncio.Future[None]
        self._on_batch = on_batch
        self._on_flushed = on_flushed
        self._lost = lost
        self.engine.snapshots.enabled = keeper is not None
        self._aside = Aside(
            self.engine, journal, keeper, on_snapshot, retention, self._schedule, lambda: self._state == "running",
            self._fail,
        )  # fmt: skip
        self._writer = Writer(journal, durability == "fsync", self._flushed, self._fail, self._tell_disk)
        self._links = Links(
            self_id=protocol.self_id,
            addresses={protocol.self_id: addresses[protocol.self_id]},
            cluster=cluster, alike=protocol.options.told_alike(), incarnation=self.engine.incarnation,
            fence=Fence(journal.life() or self.engine.incarnation, lambda: journal.synced, places),
            receive=self._receive,
            reset=self._reset,
            connected=self._connected,
            fail=self._fail,
            tls=tls,
        )  # fmt: skip
        self._addresses = addresses
        self._address_of = address_of
        self._on_members = on_members
        self._known: tuple[ProcessId, ...] = ()
        self._loop: asyncio.AbstractEventLoop
        self._state = "new"
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._wake_at: int | None = None
        self._token = 0
        self._answers: dict[int, Callable[[Any], None]] = {}
        self._unflushed: deque[int] = deque()
        self._flushing = self._held = self._suspended = False
        self._batches = 0
        self._stopping: asyncio.Task[None] | None = None
        self._progress: asyncio.Future[None] | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind, recover, serve; links come up in the background.

        OSError: the port is taken (the text names it). JournalError: see `Journal`. Then the host is stopped.
        """
        if self._state != "new":
            raise RuntimeError("a host is started once")
        self._loop = asyncio.get_running_loop()
        self.failed = self._loop.create_future()
        try:
            await self._links.listener.bind()
            self._writer.start()
            self._state = "running"
            written = self._aside.latest_checkpoint().recovery(self.journal, self.engine.application.position)
            self.engine.recorder.reach = self.journal.segment_bytes_max
            self._carry_out(self.engine.recover(written, self.now(), self._lost, self.now))
            await self._links.start()
        except BaseException:
            self._state = "failed"
            await self.stop()
            raise
        log.info(
            "started",
            process=self.engine.self_id,
            position=self.engine.position,
            cut_bytes=self.journal.cut_bytes,
            incarnation=self.engine.incarnation,
        )

    async def stop(self) -> None:
        """End this life in good order: what was taken is written, then everything is closed. Idempotent.

        Requests without an answer get HostStopped. Nothing is written after a failure.
        """
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(), name="host stop")
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        self._writer.no_more_waiting()
        if self._state == "running":
            self._state = "stopping"
            self._run()
            await self._written()
            self._run()
            if self._state == "stopping":
                self._carry_out(self.engine.stop(self.now()))
        if self._state != "failed":
            self._state = "closing"
        if self._timer is not None:
            self._timer.cancel()
        await self._writer.close()
        await self._aside.finish()
        await self._links.stop()
        self._drop_requests()
        self.journal.close()
        if self._state == "closing":
            self._state = "stopped"
            log.info("stopped", process=self.engine.self_id, position=self.engine.position)

    async def _written(self) -> None:
        """Wait until all that has been computed so far is on disk, so that what vouches for it can leave."""
        number = self._batches
        self._writer.flush(False)
        while self._state == "stopping" and self._unflushed and self._unflushed[0] <= number:
            self._progress = self._loop.create_future()
            await self._progress

    def _fail(self, error: BaseException) -> None:
        """The end: nothing more is computed, written or sent."""
        if self._state in ("failed", "stopped"):
            return
        self._state = "failed"
        self._links.abort()
        if self._timer is not None:
            self._timer.cancel()
        self._drop_requests()
        self._told_of_progress()
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()  # seen, even if nobody awaits it
        log.critical("host failed", process=self.engine.self_id, error=repr(error), exc_info=error)

    def _told_of_progress(self) -> None:
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    def _drop_requests(self) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer(HostStopped("this replica stopped; whether the request has an effect is unknown"))

    # -- inputs -------------------------------------------------------------------------------------------------------

    def submit(self, message: AppMessage) -> None:
        """multicast(m). A refusal reaches `Application.on_refused`. HostStopped; Overloaded if the disk is behind."""
        self._check_open()
        self.engine.submit(message)
        self._schedule()

    def request(self, request: Any, answer: Callable[[Any], None]) -> int:
        """Calls `answer`, which must not raise, with what `Application.on_request` answers to this; or with
        HostStopped, and then it is unknown whether the request has an effect. Returns what `forget` takes. Overloaded
        or HostStopped: nothing was done."""
        self._check_open()
        if len(self._answers) >= REQUESTS_MAX:
            raise Overloaded(f"{REQUESTS_MAX} requests are waiting")
        self._token = token = self._token + 1
        self._answers[token] = answer
        self.engine.request(token, request)
        self._schedule()
        return token

    def forget(self, token: int) -> None:
        """Nobody waits for this answer any longer. The request may have its effect all the same."""
        self._answers.pop(token, None)

    def hold(self, held: bool) -> None:
        """The application can take no more, or can again: meanwhile nothing is read from peers."""
        self._held = held
        self._pause()

    def suspend(self, suspended: bool) -> None:
        """Do nothing but finish what was begun, as if the process stood still, or go on."""
        self._suspended = suspended
        self._pause()
        self._schedule()

    def move(self, peer: ProcessId, address: tuple[str, int], since: int) -> None:
        """See `Links.move`."""
        self._links.move(peer, address, since)

    def release(self, position: int) -> None:
        """The application durably holds what the first `position` deliveries have led to: the journal need not."""
        self._aside.release(position)

    def retain(self) -> None:
        """Look what of the journal may go by now: there may be an archive again."""
        self._aside.retain()

    @property
    def disk_is_full(self) -> bool:
        """Whether something waits to be written for which there is no room."""
        return self._writer.full

    @property
    def disk_hangs(self) -> bool:
        """Whether a write to the journal takes longer than slow disks take."""
        return self._writer.hangs

    def _pause(self) -> None:
        """Read from peers, or not; in between, as before."""
        pending = self._writer.pending_bytes
        if self._held or self._suspended or pending > UNWRITTEN_BYTES_MAX:
            self._links.listener.pause(True)
        elif pending < UNWRITTEN_BYTES_MAX // 2:
            self._links.listener.pause(False)

    def _check_open(self) -> None:
        if self._state != "running":
            raise HostStopped("this replica is not running; nothing was done")
        if self._suspended:
            raise Overloaded("this replica stands still")
        if self._writer.pending_bytes > UNWRITTEN_BYTES_MAX // 2:
            raise Overloaded("the disk does not keep up")

    def _receive(self, peer: ProcessId, data: bytes) -> None:
        if self.engine.receive(peer, data):
            self._schedule()
        else:
            self._run_soon()

    def _reset(self, peer: ProcessId) -> None:
        if self._state == "running":
            self.engine.peer_reset(peer)
            self._schedule()

    def _connected(self, peer: ProcessId, up: bool) -> None:
        if self._state == "running" and self.engine.connected(peer, up):
            self._schedule()

    # -- batches ------------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._scheduled and self._state == "running":
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _run_soon(self) -> None:
        soon = self.now() + SOON_US
        if self._state == "running" and (self._wake_at is None or soon < self._wake_at):
            self._wake_at = soon
            self._set_timer()

    def _turn(self) -> None:
        if self._scheduled:
            self._run()

    def _run(self) -> None:
        """Whatever waits, now."""
        self._scheduled = False
        if self._state not in ("running", "stopping") or (self._suspended and self._state == "running"):
            return
        try:
            self._carry_out(self.engine.run(self.now(), self._clock.wall()))
        except Exception as error:  # our own bug, or the application's: going on could break a promise
            self._fail(error)

    def _follow(self, processes: tuple[ProcessId, ...]) -> None:
        """These belong to the groups: some may be new. Who is removed is linked as long as its leader may tell it."""
        self._known = processes
        topology, found = self.engine.protocol.topology, {}
        self._links.part(gone := topology.gone())
        for process in dict.fromkeys((*processes, *topology.leaving(), *self._addresses)).keys() - gone.keys():
            if process in self._addresses:
                found[process] = self._addresses[process]
            elif self._address_of is not None:
                found[process] = self._address_of(process, topology.note_of(process))
        self._links.add(found)
        if self._on_members is not None:
            self._on_members()

    def _carry_out(self, batch: Batch) -> None:
        links = self._links
        if self.engine.protocol.topology.processes is not self._known:
            self._follow(self.engine.protocol.topology.processes)
        self._batches = batch.number
        links.processed(batch.number)
        if batch.journal:
            self._unflushed.append(batch.number)
            self._writer.put(batch.number, batch.journal)
            self._pause()
        elif not self._unflushed:
            links.flushed(batch.number)
        links.send(batch.sends)
        if batch.urgent:  # else its messages only tell what has happened, and clients come first
            links.flush()
        for token, result in batch.answers:
            answer = self._answers.pop(token, None)
            if answer is not None:
                answer(result)
        if batch.hurried:
            links.flush()
        else:
            links.flush_soon()
        self._aside.carry_out(batch)
        for peer, error in batch.faulty:
            links.close_faulty(peer, str(error))
        self._wake_at = batch.wake_at
        self._set_timer()
        if self.engine.protocol.clock_off != self._clock_off:
            self._tell_clock()
        if self._on_batch is not None:
            self._on_batch(batch)
        if batch.urgent and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """At the loop's next turn, when what came out of the batch has left: by then it shows whether more came in."""
        self._flushing = False
        if self._state != "failed":
            self._writer.flush(idle=not self._scheduled)

    def _flushed(self, number: int) -> None:
        """The writer has written every batch up to this one."""
        if self._state not in ("running", "stopping", "closing"):
            return
        try:
            unflushed = self._unflushed
            while unflushed and unflushed[0] <= number:
                unflushed.popleft()
            hurried = self.engine.flushed(number)
            self._links.send(self.engine.released().sends)
            self._links.flush()
            self._links.flushed(unflushed[0] - 1 if unflushed else self._batches)
            self._pause()
            self._aside.flushed()
            if self._on_flushed is not None:
                self._on_flushed(number)
        except Exception as error:
            self._fail(error)
            return
        self._told_of_progress()
        run = self._schedule if hurried else self._run_soon  # for the protocol has to hear what is durable
        run()

    def _tell_clock(self) -> None:
        """In the log: the wall clock is off, or no longer."""
        engine, self._clock_off = self.engine, self.engine.protocol.clock_off
        assert engine.discipline is not None
        ahead_ms, role = (engine.discipline.status()["ahead_us"] or 0) // 1000, engine.protocol.role()
        if self._clock_off:
            what = "the wall clock is off from what most replicas show: not used, and this replica should not lead"
            log.warning(what, process=engine.self_id, ahead_ms=ahead_ms, role=role)
        else:
            log.info("the wall clock is right again", process=engine.self_id, ahead_ms=ahead_ms, role=role)

    def _tell_disk(self) -> None:
        """The engine and the log: the disk hangs, or no longer."""
        engine = self.engine
        engine.disk_hangs = self._writer.hangs
        self._schedule()
        what = "the disk hangs: this replica should not lead" if engine.disk_hangs else "the disk hangs no longer"
        log.warning(what, process=engine.self_id, role=engine.protocol.role())

    def real_time(self) -> int:
        """The best guess of the time, microseconds since 1970: the wall clock's, unless most others show another."""
        return self.engine.protocol.real_clock(self.now()) or self._clock.wall()

    # -- timer --------------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """One timer, armed no later than `_wake_at`. An earlier one stays: it looks again when it fires."""
        if self._wake_at is None or (self._timer is not None and self._timer_at <= self._wake_at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._wake_at
        self._timer = self._loop.call_later(max(0, self._wake_at - self.now()) / 1_000_000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._wake_at is not None and self._state == "running":
            if self._wake_at <= self.now():
                self._schedule()
            else:
                self._set_timer()

    # -- for people ---------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Numbers for status pages and metrics, JSON-ready. Times in microseconds."""
        engine = self.engine
        protocol = engine.protocol
        return {
            "state": self._state,
            "protocol": protocol.specification.name,
            "durability": engine.durability,
            "incarnation": engine.incarnation,
            "role": protocol.role(),
            "leader": protocol.leader_of(protocol.group),
            "position": engine.position,
            "completed": engine.completed,
            "batches": self._batches,
            "syncs": self._writer.syncs,
            "journal_bytes": engine.recorder.offset,
            **self._aside.status(),
            "unwritten_bytes": self._writer.pending_bytes,
            "disk_hangs": self._writer.hangs,
            "requests": len(self._answers),
            "clock": engine.discipline.status() if engine.discipline else None,
            "snapshot": engine.snapshots.status(),
            "peers": self._links.status(protocol.topology.leaving()),
            "fdatasync_us": self._writer.sync_percentiles_us(),
            "syncs_us": self._writer.sync_histogram_us(),
            "details": protocol.describe(),
        }
