"""What the processes of a simulated world share, the processes, and the links between them: all that has a state.

What happens to them is in `network` and `world`.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from multicast.application import Application
from multicast.checkpoint import Checkpoints
from multicast.engine import Engine
from multicast.journal import Journal
from multicast.membership import Membership
from multicast.protocol import MulticastProtocol
from multicast.records import SEGMENT_BYTES_MAX
from multicast.session import Receiver, Sender
from multicast.simulation.disk import SimulatedDisk
from multicast.snapshot import Keeper
from multicast.types import GroupId, ProcessId, Topology

EPOCH_US = 1_700_000_000_000_000
FOREVER = 1 << 62


class Scene:
    """Time and what is going to happen, who there is, and what went wrong.

    led: (group, number) of the views after the first in which somebody has led.
    now: microseconds since 1970. cluster, segment_bytes_max: of the journals. violations: (checker, text) of everything
    that went wrong so far, in order.
    """

    def __init__(self, topology: Topology, cluster: bytes, segment_bytes_max: int = SEGMENT_BYTES_MAX):
        self.topology = Membership(topology)
        self.cluster = cluster
        self.segment_bytes_max = segment_bytes_max
        self.now = EPOCH_US
        self.led: set[tuple[GroupId, int]] = set()
        self.violations: list[tuple[str, str]] = []
        self._heap: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._sequence = 0
        self._ending: list[tuple[Callable[[Node], None], Node]] = []
        self.nodes = {pid: Node(self, pid) for pid in topology.group_of}

    def node(self, pid: ProcessId) -> Node:
        return self.nodes[pid]

    def belongs(self, pid: ProcessId) -> bool:
        """Whether this process is a member of its group: who is removed is one until the view without it is led."""
        group = self.topology.group_of[pid]
        views = self.topology.views[group]
        return pid in (views.of[views.latest] if (group, views.latest) in self.led else self.topology.groups[group])

    def dump_journals(self, directory: Path | str) -> None:
        """Write every journal as a live cluster has it: DIR/replicas/<pid>/journal/<file>."""
        for node in self.nodes.values():
            node.dump_journal(directory)

    def report(self, checker: str, text: str) -> None:
        """Something that must not happen has."""
        self.violations.append((checker, text))

    # -- time ---------------------------------------------------------------------------------------------------------

    def schedule(self, time: int, callback: Callable[..., object], *args: Any) -> None:
        """Call back at this instant of the world's time, after everything already planned for it."""
        if time < self.now:
            raise ValueError(f"instant {time} is over, it is {self.now}")
        self._sequence += 1
        heappush(self._heap, (time, self._sequence, callback, args))

    def at_end(self, callback: Callable[[Node], None], node: Node) -> None:
        """Call back when nothing else happens at this instant any more."""
        self._ending.append((callback, node))

    def end_instant(self) -> None:
        """Nothing else happens at this instant."""
        while self._ending:
            ending, self._ending = self._ending, []
            for callback, node in ending:
                callback(node)

    def at(self, time: int, callback: Callable[[], None]) -> None:
        """Call back at this instant."""
        self.schedule(time, callback)

    def after(self, us: int, callback: Callable[[], None]) -> None:
        """Call back in so many microseconds."""
        self.schedule(self.now + us, callback)

    def run_until(self, time: int) -> None:
        """Let everything up to and including this instant happen."""
        heap = self._heap
        self.end_instant()
        while heap and heap[0][0] <= time:
            instant, _, callback, args = heappop(heap)
            self.now = instant
            callback(*args)
            if self._ending and (not heap or heap[0][0] > instant):
                self.end_instant()
        self.now = max(self.now, time)

    def run_for(self, us: int) -> None:
        self.run_until(self.now + us)

    def run_while(self, condition: Callable[[], bool], limit_us: int, step_us: int = 50_000) -> bool:
        """Run in steps until the condition is false; whether it became so within the limit."""
        end = self.now + limit_us
        while condition():
            if self.now >= end:
                return False
            self.run_until(min(end, self.now + step_us))
        return True


class Node:
    """One process and its host, over all its lives.

    life: 1 for the first, also the incarnation. lost: its first disk is gone. offset_us: its wall clock against the
    world's; begun_us: what that was when this life began. touched: frames taken since the last batch, sender -> (link,
    incarnation and epoch that number them, the last one's number). wake_at: the instant, of its own time, at which it
    wants to run. floor: up to this delivery its journal is read to nobody, as if it was dropped. keeper: what gives and
    takes snapshots, if anything does. lost_disks: in order. busy_until: when its processor is done with what it has
    begun; inputs: taken since the last batch (`Cpu`). met: who belonged to groups when it first began, as its
    configuration says.
    """

    __slots__ = (
        "application", "backlog", "begun_us", "busy_until", "checkpoints", "disk", "due", "engine", "failed_sync",
        "floor", "flushed", "flushed_position", "fsync_extra_us", "greeted", "in_sync", "inputs", "journal", "keeper",
        "life", "links", "lost", "lost_disks", "met", "offset_us", "paused", "pid", "protocol", "queue", "ran",
        "replaying", "timer_at", "tokens", "touched", "up", "wake_at", "world", "writing",
    )  # fmt: skip

    def __init__(self, world: Scene, pid: ProcessId):
        self.world = world
        self.pid = pid
        self.disk = SimulatedDisk()
        self.lost_disks: list[SimulatedDisk] = []
        self.keeper: Keeper | None = None
        self.floor = 0
        self.life = 0
        self.up = self.paused = self.due = self.writing = self.replaying = self.lost = False
        self.offset_us = self.begun_us = 0
        self.fsync_extra_us = 0
        self.in_sync: Callable[[], None] | None = None
        self.failed_sync: Callable[[], None] | None = None
        self.flushed_position = 0
        self.links: dict[ProcessId, Link] = {}
        self.met: tuple[ProcessId, ...] = ()
        self.greeted: set[ProcessId] = set()
        self.engine: Engine
        self.journal: Journal
        self.checkpoints: Checkpoints
        self.protocol: MulticastProtocol
        self.application: Application
        self.forget()

    def lose_disk(self) -> None:
        """The next life finds an empty disk."""
        self.lost_disks.append(self.disk)
        self.disk = SimulatedDisk()
        self.lost = True
        self.flushed_position = self.floor = 0

    def forget(self) -> None:
        """What a process loses when it dies."""
        self.backlog: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.queue: list[tuple[int, int, bytes, list[Any]]] = []
        self.tokens: dict[int, Callable[[Any], None]] = {}
        self.touched: dict[ProcessId, tuple[Link, int | None, int, int]] = {}
        self.due = self.writing = self.paused = False
        self.wake_at: int | None = None
        self.timer_at = FOREVER
        self.busy_until = 0.0
        self.inputs = 0
        self.ran = self.flushed = 0

    def clock(self) -> int:
        """The `now` of this process, steady in a life: microseconds since 1970, if its wall clock was right when this
        life began."""
        return self.world.now + self.begun_us

    def wall(self) -> int:
        """What its wall clock shows."""
        return self.world.now + self.offset_us

    def knows(self, other: Node) -> bool:
        """Whether it would link to this one: it, or its group, may have been added, unheard of here."""
        views = self.protocol.topology.views[self.world.topology.group_of[other.pid]]
        met = other.pid in self.met or other.pid in self.greeted
        return met or any(other.pid in members for members in views.of.values())

    def admits(self, other: Node) -> bool:
        """Whether it takes the greeting of this one: one that was added to a group known here says where it is."""
        topology = self.world.topology
        group = topology.group_of[other.pid]
        known = group in self.protocol.topology.groups
        return self.knows(other) or (known and other.pid in topology.spares.get(group, ()))

    def meet(self, other: Node) -> None:
        """It greets, and is not known."""
        self.greeted.add(other.pid)
        self._met(other.pid)

    def meet_named(self, everybody: tuple[ProcessId, ...]) -> None:
        """A life begins: those whom its file names as added to a group known here were there when it was written.
        everybody: who is there now, and named in the file of a first life."""
        self.met, self.greeted = self.met or everybody, set()
        for group, spares in self.world.topology.spares.items():
            for pid in spares:
                if pid in self.met and pid != self.pid and group in self.protocol.topology.groups:
                    self._met(pid)

    def _met(self, pid: ProcessId) -> None:
        if isinstance(topology := self.protocol.topology, Membership):
            topology.meet(pid, self.world.topology.group_of[pid])

    def decode(self, frame: bytes) -> Any:
        """The message in an encoded frame."""
        return self.engine.codec.decode(frame)[1]

    def open_journal(self, disk: SimulatedDisk) -> Journal:
        """Its journal on this disk: its own, or a copy."""
        world = self.world
        return Journal(disk, world.cluster, world.topology.group_of[self.pid], self.pid, world.segment_bytes_max)

    def dump_journal(self, directory: Path | str) -> None:
        """Write its journal as a live cluster has it: DIR/replicas/<pid>/journal/<file>."""
        folder = Path(directory) / "replicas" / str(self.pid) / "journal"
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.disk.list():
            (folder / name).write_bytes(self.disk.read(name))


class Link:
    """From one process to one other. Owned by the network; its ends die with their processes.

    dial: the newest connection that the sender has begun. accepted: the one whose frames the receiver takes, and until
    when (`cut_at`). Both rise, so whatever belongs to an older connection is recognised.
    """

    __slots__ = (
        "accepted", "blocked", "cut_at", "deviation", "dial", "extra_us", "last_arrival", "open", "queue_frames_max",
        "receiver", "sender", "session_in", "session_out", "told",
    )  # fmt: skip

    def __init__(self, sender: Node, receiver: Node, queue_frames_max: int):
        self.sender = sender
        self.receiver = receiver
        self.queue_frames_max = queue_frames_max
        self.new_sender()
        self.new_receiver()
        self.dial = 0
        self.accepted = 0
        self.cut_at = FOREVER
        self.open = False
        self.blocked = False
        self.extra_us = 0
        self.deviation = 0.0
        self.last_arrival = 0
        self.told = 0

    def new_sender(self) -> None:
        """The sender begins a life."""
        self.session_out = Sender(self.queue_frames_max)

    def new_receiver(self) -> None:
        """The receiver begins a life."""
        self.session_in = Receiver()
