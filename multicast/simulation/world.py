"""A simulated world: real engines, sessions and journals on a simulated network, disk and clock.

Theory of operation. Time is an integer count of microseconds that starts at `EPOCH_US`. One heap holds everything that
is going to happen, ordered by (time, sequence); nothing else decides an order, so a seed fixes a run. Every process is
a `scene.Node`: an `Engine` (protocol and application), a production `Journal` on a `SimulatedDisk`, and the ends of its
links (`multicast.session`). Inputs of one instant (or of a drawn stretch of `Conditions.batch_us`) become one batch, as
in the live host. A batch's journal bytes are appended at once and synced after a drawn time; batches that arrive
meanwhile are merged into the next sync. What the engine holds back leaves after that. A crash drops everything but the
disk, and on the disk it drops what was not synced (`SimulatedDisk.crash`). Timers come from `Batch.wake_at`: nothing
polls.

Use:

    def make_process(pid, rng, disk):              # at every start of a life; all state of the old one is gone
        return protocol, application

    world = World(topology, make_process, seed)    # Conditions(...) for other networks and disks
    world.start()                                  # every process, links connected
    world.submit(pid, AppMessage(...))             # multicast(m)
    world.request(pid, request, callback)          # Application.on_request; callback(answer), or callback(None) when
                                                   # the process is down or dies first: outcome unknown
    world.at(time_us, callback), world.after(us, callback)
    world.run_for(us), world.run_until(time_us), world.run_while(condition, limit_us) -> bool
    world.crash(pid), world.restart(pid), world.crash_in_sync(pid, then), world.pause(pid, us),
    world.jump_clock(pid, us), world.slow_disk(pid, us or 0), world.fail_sync(pid, then)
    world.lose_disk(pid)                           # a crash; at the restart the disk is a new one, and so must be
                                                   # whatever else the process keeps: World(..., on_lost_disk=f)
    world.network.block([(a, b), ...]), .unblock([...]), .reset(a, b), .slow(a, b, extra_us)
    world.heal()                                   # no faults any more, everybody up (but whom it names)
    world.node(pid).engine, .up, .clock()
    world.dump_journals(directory)                 # DIR/replicas/<pid>/journal/<segments>, as a live cluster has them
    world.digest()                                 # of everything that happened so far

Scripted mode: `World(..., script=f)` with `f(sender, receiver, message) -> delay in us, or None for the usual one`,
asked for every message between two processes, decoded (protocol, application and host messages alike). FIFO per link
stays: a message never arrives before an earlier one of the same link.

`observers` (see `Observer`) hear of every life, submission, delivery and frame; checkers are observers.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable, Collection
from math import ceil
from typing import Any

from multicast import wire
from multicast.application import Application
from multicast.batch import Batch
from multicast.checkpoint import Checkpoints
from multicast.engine import Engine
from multicast.parts.ballots import NOBODY
from multicast.protocol import MulticastProtocol
from multicast.records import SEGMENT_BYTES_MAX
from multicast.simulation import catching_up, hanging
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.network import Conditions, Network, Script
from multicast.simulation.observe import Observer, watch
from multicast.simulation.recovery import RecoveryCheck
from multicast.simulation.scene import FOREVER, Link, Node, Scene
from multicast.types import AppMessage, ProcessId, Topology

MakeProcess = Callable[[ProcessId, random.Random, SimulatedDisk], tuple[MulticastProtocol, Application]]
Trap = Callable[[ProcessId, tuple[ProcessId, ...]], None]

_DYING_US = 1_000
"""So long a process may go on after a sync has failed."""

_ARRIVAL = struct.Struct(">QII")


class World(Scene):
    """See the module. `run_*` let an exception of a protocol or application through: it is a bug there.

    name: tells worlds apart that have the same seed. cluster: the id in the journals, of name, seed and topology.
    traps: (process, whether it sends, tag of a protocol message) -> what to call when it next does, or is about to
        receive one: with the process and the peers, before its batch is written. It is called once.
    events: protocol messages that arrived, multicasts and final deliveries.
    recovery: asks at flushes whether the process would come back.
    """

    def __init__(
        self,
        topology: Topology,
        make_process: MakeProcess,
        seed: int | str,
        conditions: Conditions | None = None,
        observers: list[Observer] | None = None,
        script: Script | None = None,
        on_batch: Callable[[Node, Batch], None] | None = None,
        on_flushed: Callable[[Node, int], None] | None = None,
        on_lost_disk: Callable[[Node], None] | None = None,
        installer: catching_up.Installer | None = None,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        name: str = "",
    ):
        cluster = hashlib.blake2b(f"{name}/{seed}/{topology.groups}".encode(), digest_size=16).digest()
        super().__init__(topology, cluster, segment_bytes_max)
        self.seed = seed
        self.conditions = conditions or Conditions()
        self.observers = list(observers or [])
        self.recovery: RecoveryCheck | None = None
        self.traps: dict[tuple[ProcessId, bool, int], Trap] = {}
        self.events = 0
        self.on_batch = on_batch
        self.on_flushed = on_flushed
        self.on_lost_disk = on_lost_disk
        self.installer = installer
        self._make_process = make_process
        self._rng = random.Random(f"{seed}/world")
        self._token = 0
        self._digest = hashlib.blake2b(digest_size=16)
        network_rng = random.Random(f"{seed}/network")
        self.network = Network(
            self, self.conditions, network_rng, script, self._arrived, self._lost_memory, self._connected
        )
        self.network.connect_all(self.nodes.values())

    def digest(self) -> str:
        """Of every arrival and fault so far, in order."""
        return self._digest.copy().hexdigest()

    # -- lives --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The first life of every process, but for spares: their first `restart` begins that."""
        for node in self.nodes.values():
            if self.belongs(node.pid):
                self._begin(node)
        for node in self.nodes.values():
            if not node.life:
                self.network.died(node)
        self.end_instant()

    def _begin(self, node: Node) -> None:
        node.life += 1
        node.up = node.replaying = True
        node.begun_us = node.offset_us
        node.journal = node.open_journal(node.disk)
        if self.installer is not None:
            self.installer.before_life(node)
        rng = random.Random(f"{self.seed}/process {node.pid}/{node.life}")
        node.protocol, node.application = self._make_process(node.pid, rng, node.disk)
        node.meet_named(self.topology.processes)
        watch(node, self.observers, self._count_event)
        node.engine = Engine(node.protocol, node.application, node.life, copy_to_self=True)
        node.engine.snapshots.enabled = node.keeper is not None
        for observer in self.observers:
            observer.on_life(node)
        node.checkpoints = Checkpoints(node.journal)
        written = node.checkpoints.latest().recovery(node.journal, node.application.position)
        node.engine.recorder.reach = node.journal.segment_bytes_max
        batch = node.engine.recover(written, node.clock(), node.lost)
        if node.engine.position < node.flushed_position:
            self.report(
                "durability",
                f"process {node.pid} came back with {node.engine.position} deliveries;"
                f" {node.flushed_position} were synced",
            )
        self._carry_out(node, batch, {})
        if not node.engine.idle:
            self._due(node)

    def crash(self, pid: ProcessId, power: bool = True, torn: bool = False, keeps: bool = True) -> None:
        """The process dies; with `power` its machine does, and what was not synced may be lost. torn: a part of it is,
        and a part is not; without `keeps`, all of it is."""
        node = self.nodes[pid]
        if not node.up:
            return
        self._trace(f"crash {pid} {power}")
        node.up = False
        node.disk.crash(self._rng, power, torn, keeps)
        abandoned = list(node.tokens.values())
        node.forget()
        self.network.died(node)
        for observer in self.observers:
            observer.on_crash(node)
        for callback in abandoned:
            self.schedule(self.now, callback, None)

    def lose_disk(self, pid: ProcessId) -> None:
        """The process dies, and its next life finds an empty disk."""
        node = self.nodes[pid]
        if not node.up:
            return
        self.crash(pid)
        self._trace(f"lost disk {pid}")
        node.lose_disk()
        if self.on_lost_disk is not None:
            self.on_lost_disk(node)

    def restart(self, pid: ProcessId) -> None:
        """A new life, from what is on the disk."""
        node = self.nodes[pid]
        if not node.up:
            self._trace(f"restart {pid}")
            self.network.born(node)
            self._begin(node)

    def stop(self) -> None:
        """End every life in good order: `Stopped` is journaled and synced. The world is over."""
        for node in self.nodes.values():
            if node.up:
                batch = node.engine.stop(node.clock())
                node.journal.append(b"".join(item[2] for item in node.queue) + batch.journal)
                node.journal.sync()
                node.up = False
        self._heap.clear()

    # -- inputs -------------------------------------------------------------------------------------------------------

    def submit(self, pid: ProcessId, message: AppMessage) -> bool:
        """multicast(m) by this process. False if it is down."""
        node = self.nodes[pid]
        if not node.up:
            return False
        node.engine.submit(message)
        node.inputs += 1
        self._due(node)
        return True

    def request(self, pid: ProcessId, request: Any, callback: Callable[[Any], None]) -> None:
        """A client's request; `callback` gets the answer, or None when the outcome will never be known."""
        node = self.nodes[pid]
        if not node.up:
            self.schedule(self.now, callback, None)
            return
        self._token += 1
        node.tokens[self._token] = callback
        node.engine.request(self._token, request)
        node.inputs += 1
        self._due(node)

    def _arrived(self, node: Node, link: Link, frame: bytes) -> None:
        """A new frame, in order. PeerError if it cannot be decoded."""
        sender, session = link.sender.pid, link.session_in
        self._digest.update(_ARRIVAL.pack(self.now, node.pid, sender))
        self._digest.update(frame)
        node.touched[sender] = (link, session.incarnation, session.epoch, session.seen)
        waits_us = 0 if node.engine.receive(sender, frame) else self.conditions.soon_us
        node.inputs += 1
        if frame[0] == wire.PROTOCOL:
            self.events += 1
            if self.traps:
                self._spring(node.pid, False, (sender,), frame)
        if not node.due:
            self.schedule(self.now + waits_us, self._due, node) if waits_us else self._due(node)

    def _lost_memory(self, node: Node, peer: ProcessId) -> None:
        """The link to or from `peer` has."""
        node.engine.peer_reset(peer)
        self._due(node)

    def _connected(self, node: Node, peer: ProcessId, up: bool) -> None:
        """The process notices that there is a connection to `peer`, or none."""
        if node.engine.connected(peer, up):
            self._due(node)

    # -- batches ------------------------------------------------------------------------------------------------------

    def _due(self, node: Node) -> None:
        """This process has something to do: soon, unless it has died since what it is to do arrived."""
        if node.due or not node.up:
            return
        node.due = True
        least, most = self.conditions.batch_us
        if node.busy_until > self.now:
            self.schedule(ceil(node.busy_until), self._run_due, node, node.life)
        elif most:
            self.schedule(self.now + self._rng.randint(least, most), self._run_due, node, node.life)
        else:
            self.at_end(self._run_if_due, node)

    def _run_due(self, node: Node, life: int) -> None:
        if node.life == life and node.up and not node.paused:
            self._run(node)

    def _run_if_due(self, node: Node) -> None:
        if node.up and node.due and not node.paused:
            self._run(node)

    def _run(self, node: Node) -> None:
        """One batch; more of them while flushes that take no time bring back messages to oneself."""
        engine, cpu = node.engine, self.conditions.cpu
        while True:
            if cpu is not None:
                node.busy_until = max(self.now, node.busy_until) + cpu.batch_us + node.inputs * cpu.input_us
                node.inputs = 0
            touched = node.touched
            if touched:
                node.touched = {}
            batch = engine.run(node.clock(), node.wall())
            self._carry_out(node, batch, touched)
            if engine.idle:
                break
        node.due = False

    def _carry_out(self, node: Node, batch: Batch, touched: dict[ProcessId, Any]) -> None:
        if batch.sends:
            self._send(node, batch.sends)
        for token, answer in batch.answers:
            callback = node.tokens.pop(token, None)
            if callback is not None:
                self.schedule(self.now, callback, answer)
        if self.on_batch is not None:
            self.on_batch(node, batch)
        node.ran = batch.number
        if batch.journal or node.writing:
            node.queue.append((batch.number, node.engine.position, batch.journal, list(touched.values())))
            if not node.writing:
                self._write(node)
        else:
            node.flushed = batch.number
            for taken in touched.values():
                self.network.flushed(*taken)
        if (whole := catching_up.carry_out(node, batch, self.conditions.catch_up_bytes)) is not None:
            self.schedule(self.now, self._install, node, node.life, whole)
        for peer, error in batch.faulty:
            self.network.refuse(node, peer, error)
        wake_at = node.wake_at = batch.wake_at
        if wake_at is not None and wake_at - node.begun_us < node.timer_at:
            self._set_timer(node)

    def _install(self, node: Node, life: int, chunk: wire.SnapshotChunk) -> None:
        """A snapshot, in a new life."""
        if node.life == life and node.up and node.engine.completed < chunk.position and self.installer:
            self.installer.seal(node, chunk)
            self.crash(node.pid, power=False)
            self.restart(node.pid)

    def _send(self, node: Node, sends: list[tuple[tuple[ProcessId, ...], bytes]]) -> None:
        links, send, cpu = node.links, self.network.send, self.conditions.cpu
        listeners = [o.on_frame for o in self.observers if o.hears_frames]
        for to, frame in sends:
            if cpu is not None:
                node.busy_until = max(self.now, node.busy_until) + len(to) * cpu.send_us
            if self.traps and frame[0] == wire.PROTOCOL:
                self._spring(node.pid, True, to, frame)
            for on_frame in listeners:
                on_frame(node.pid, to, frame)
            for peer in to:
                if peer != NOBODY:
                    send(links[peer], frame)

    def _spring(self, pid: ProcessId, sends: bool, peers: tuple[ProcessId, ...], frame: bytes) -> None:
        """Call the trap that waits for this frame, if any does."""
        trap = self.traps.pop((pid, sends, frame[2]), None)
        if trap is not None:
            trap(pid, peers)

    def _write(self, node: Node) -> None:
        """Append every batch that waits, and sync them as one."""
        batches, node.queue = node.queue, []
        data = b"".join(item[2] for item in batches)
        node.writing = True
        if data:
            try:
                node.journal.append(data)
            except OSError:
                self._sync_failed(node)
                return
        least, most = self.conditions.fsync_us
        duration = node.fsync_extra_us + (self._rng.randint(least, most) if most > least else most)
        if node.in_sync is not None:
            then, node.in_sync = node.in_sync, None
            self.schedule(self.now + self._rng.randint(0, duration), then)
        hanging.watch(self, node, duration, self._due)
        if duration:
            self.schedule(self.now + duration, self._synced, node, node.life, batches)
        else:
            self._synced(node, node.life, batches)

    def _synced(self, node: Node, life: int, batches: list[Any]) -> None:
        if node.life != life or not node.up:
            return
        if node.paused:
            node.backlog.append((self._synced, (node, life, batches)))
            return
        if self.recovery is not None:
            self.recovery.at_flush(node)
        try:
            node.journal.sync()
        except OSError:
            self._sync_failed(node)
            return
        node.writing = False
        number, node.flushed_position = batches[-1][0], batches[-1][1]
        node.flushed = number
        node.engine.flushed(number)
        for _, _, _, acknowledge in batches:
            for taken in acknowledge:
                self.network.flushed(*taken)
        if self.on_flushed is not None:
            self.on_flushed(node, number)
        if node.queue:
            self._write(node)
        elif self.recovery is not None and node.engine.recorder.empty:
            self.recovery.at_rest(node)
        if not node.engine.idle:
            self._due(node)

    def _sync_failed(self, node: Node) -> None:
        """As in the live host: nothing more is written, and what waits for the disk never leaves; soon it is dead."""
        self.schedule(self.now + self._rng.randint(0, _DYING_US), self._die_of_disk, node, node.life)

    def _die_of_disk(self, node: Node, life: int) -> None:
        if node.life == life and node.up:
            self.crash(node.pid)
            then, node.failed_sync = node.failed_sync, None
            if then is not None:
                then()

    def _set_timer(self, node: Node) -> None:
        """Wake the process at `wake_at` of its own time; at most one timer per process is pending."""
        wake_at = node.wake_at
        if wake_at is None:
            return
        time = max(self.now + 1, wake_at - node.begun_us)
        if time < node.timer_at:
            node.timer_at = time
            self.schedule(time, self._timer, node, node.life, time)

    def _timer(self, node: Node, life: int, time: int) -> None:
        if node.life != life or not node.up or time != node.timer_at:
            return
        node.timer_at = FOREVER
        if node.wake_at is None:
            return
        if node.clock() >= node.wake_at:
            self._due(node)
        else:
            self._set_timer(node)

    # -- faults -------------------------------------------------------------------------------------------------------

    def pause(self, pid: ProcessId, us: int) -> None:
        """The process does nothing for so long; what arrives waits."""
        node = self.nodes[pid]
        if node.up and not node.paused:
            self._trace(f"pause {pid} {us}")
            node.paused = True
            self.schedule(self.now + us, self._resume, node, node.life)

    def _resume(self, node: Node, life: int) -> None:
        if node.life != life or not node.up or not node.paused:
            return
        node.paused = False
        backlog, node.backlog = node.backlog, []
        for callback, args in backlog:
            callback(*args)
        node.due = False
        self._due(node)

    def jump_clock(self, pid: ProcessId, us: int) -> None:
        """The process's wall clock is set, by so much; it notices when it next does something."""
        self._trace(f"clock {pid} {us}")
        self.nodes[pid].offset_us += us

    def slow_disk(self, pid: ProcessId, extra_us: int) -> None:
        """Every sync of this process takes so much longer; 0 ends it."""
        self.nodes[pid].fsync_extra_us = extra_us

    def crash_in_sync(self, pid: ProcessId, then: Callable[[], None]) -> None:
        """Call `then` at a random instant while this process's next sync is under way."""
        self.nodes[pid].in_sync = then

    def fail_sync(self, pid: ProcessId, then: Callable[[], None]) -> None:
        """This process's next sync fails, and it dies of that; what was not synced is as after a loss of power. `then`
        is called when it is dead."""
        node = self.nodes[pid]
        if node.up:
            node.disk.failing = True
            node.failed_sync = then

    def heal(self, dead: Collection[ProcessId] = ()) -> None:
        """Everybody is up and running, but for `dead`; every link works and is as fast as usual. Clocks stay as they
        are."""
        self._trace("heal")
        for observer in self.observers:
            observer.on_heal()
        self.conditions = self.network.conditions = self.conditions.benign()
        self.network.heal()
        for node in self.nodes.values():
            node.fsync_extra_us = 0
            node.in_sync = None
            node.disk.failing = False
            if node.paused:
                self._resume(node, node.life)
            elif not node.up and node.life and node.pid not in dead:
                self.restart(node.pid)
        self.end_instant()

    def _count_event(self) -> None:
        self.events += 1

    def _trace(self, text: str) -> None:
        self._digest.update(f"{self.now} {text}\n".encode())
