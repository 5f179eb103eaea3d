"""The simulated network: one FIFO link per ordered pair of processes, with the sessions of the live links.

A link is what a TCP connection with a session on top is: frames of one connection arrive in order; when it breaks, an
unknown suffix of what was under way is lost, the sender dials again (`Hello`, `Welcome`) and the session resends.
Loss of memory (a restart, a full queue) is reported to the protocols as the live host does it.

Faults: `block` stops everything from a to b (one-sided; block both ways for a partition); a blocked direction loses its
connection, and dialling needs both. `reset` breaks one connection. `slow` adds to every delay of a link.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from multicast.journal import READ_BYTES
from multicast.protocol import PeerError, Stranger
from multicast.session import QUEUE_FRAMES_MAX
from multicast.simulation.scene import FOREVER, Link, Node, Scene
from multicast.types import ProcessId
from multicast.wire import FRAME_BYTES_MAX, HOST

Script = Callable[[ProcessId, ProcessId, Any], int | None]


class Cpu(msgspec.Struct, kw_only=True, frozen=True):
    """What computing costs, in microseconds: a batch as such, each input of it, each message that it sends to another
    process. One process has one processor; what it sends leaves when the batch is done."""

    batch_us: float
    input_us: float
    send_us: float


class Conditions(msgspec.Struct, kw_only=True, frozen=True):
    """What network, disk and host are like without faults. Ranges are (least, most), drawn evenly; microseconds.

    delay_us: of a message. late_probability, late_us: some are that much later. fsync_us: how long a sync takes.
    batch_us: how long inputs wait to be joined into one batch (0: those of one instant are). reconnect_us: pause before
    dialling again. acknowledge_frames: so many frames are acknowledged at once. queue_frames_max: frames that
    may wait for acknowledgement on a link, at least 4; one more drops them all. catch_up_bytes: about how
    much of a journal is read for a peer at once. soon_us: what can wait (`multicast.protocol.Handler`) waits so
    long for company. cpu: None: computing takes no time.
    """

    delay_us: tuple[int, int] = (300, 1_500)
    late_probability: float = 0.01
    late_us: tuple[int, int] = (5_000, 20_000)
    fsync_us: tuple[int, int] = (100, 400)
    batch_us: tuple[int, int] = (0, 0)
    reconnect_us: tuple[int, int] = (20_000, 100_000)
    acknowledge_frames: int = 64
    queue_frames_max: int = QUEUE_FRAMES_MAX
    catch_up_bytes: int = READ_BYTES
    soon_us: int = 0
    cpu: Cpu | None = None

    def __post_init__(self) -> None:
        if self.queue_frames_max < 4:
            raise ValueError(f"queue_frames_max is at least 4, not {self.queue_frames_max}")

    @property
    def acknowledge_every(self) -> int:
        """Frames. A queue must never fill because what arrived is not acknowledged."""
        return min(self.acknowledge_frames, self.queue_frames_max // 4)

    def benign(self) -> Conditions:
        """The same, but nothing takes much longer than usual: what a healed world is like."""
        return msgspec.structs.replace(
            self, delay_us=(min(100, self.delay_us[0]), min(2_000, self.delay_us[1])), late_probability=0.0,
            fsync_us=(min(100, self.fsync_us[0]), min(1_000, self.fsync_us[1])),
        )  # fmt: skip

    @classmethod
    def exact(cls, delay_us: int) -> Conditions:
        """Every message takes `delay_us`, the disk nothing: the papers' latency model."""
        return cls(delay_us=(delay_us, delay_us), late_probability=0.0, fsync_us=(0, 0))


class TooManyFrames(Exception):
    """Far more was sent than there is to say."""


class Network:
    """All links of a world. frames_max: so many may be sent, or waited with, in all; then `send` raises TooManyFrames,
    since who repeats itself without end would never let the run end. frame_bytes_max: of a protocol's messages; who
    sends a longer one has a bug, of which a live host dies.

    calm_at: when all that was under way at the last `heal` has arrived.

    arrived(node, link, frame): a new frame, in order; may raise PeerError. lost_memory(node, peer): the link to or from
    `peer` has. connected(node, peer, up): the node notices that there is a connection to `peer`, or none.
    """

    def __init__(
        self,
        scene: Scene,
        conditions: Conditions,
        rng: random.Random,
        script: Script | None,
        arrived: Callable[[Node, Link, bytes], None],
        lost_memory: Callable[[Node, ProcessId], None],
        connected: Callable[[Node, ProcessId, bool], None],
    ):
        self._scene = scene
        self._arrived = arrived
        self._lost_memory = lost_memory
        self._connected = connected
        self.conditions = conditions
        self._acknowledge_every = conditions.acknowledge_every
        self.script = script
        self.frames_sent = 0
        self.frames_max = FOREVER
        self.frame_bytes_max = FRAME_BYTES_MAX
        self.calm_at = self._arriving_until = 0
        self._frames = 0
        self._random = rng.random
        self._rng = rng
        self._links: dict[tuple[ProcessId, ProcessId], Link] = {}

    def connect_all(self, nodes: Iterable[Node]) -> None:
        """Before the first start: every link exists and is connected, in no time."""
        nodes = list(nodes)
        for a in nodes:
            for b in nodes:
                if a is not b:
                    link = self._links[a.pid, b.pid] = Link(a, b, self.conditions.queue_frames_max)
                    link.session_in.greet(1, 0, 1)
                    link.session_out.resume(1, 0)
                    link.dial = link.accepted = 1
                    link.open = True
            a.links = {b.pid: self._links[a.pid, b.pid] for b in nodes if a is not b}

    def link(self, a: ProcessId, b: ProcessId) -> Link:
        return self._links[a, b]

    def have_room(self) -> None:
        """Let as many frames wait between those who are up as `conditions` say now, and elsewhere as before. With the
        conditions that the world began with, that is what it was."""
        for link in self._links.values():
            up = link.sender.up and link.receiver.up
            link.session_out.frames_max = self.conditions.queue_frames_max if up else link.queue_frames_max

    # -- traffic ------------------------------------------------------------------------------------------------------

    def send(self, link: Link, frame: bytes) -> None:
        """A message leaves."""
        self._frames += 1
        if self._frames > self.frames_max:
            raise TooManyFrames(f"{self._frames} frames sent")
        if len(frame) > self.frame_bytes_max:
            self._judge_length(link, frame)
        sequence = link.session_out.push(frame)
        if sequence is None:
            self._break(link)
            if link.session_out.losses == 1:
                self._lost_memory(link.sender, link.receiver.pid)
        elif sequence and link.open:
            self._transmit(link, sequence, frame)

    def _judge_length(self, link: Link, frame: bytes) -> None:
        """A message that has a limit of its own may have that, and the host's repairs are cut by their own measure."""
        kind = type(link.sender.decode(frame))
        most = max(self.frame_bytes_max, getattr(kind, "bytes_max", 0))
        if len(frame) > (FRAME_BYTES_MAX if frame[0] == HOST else most):
            text = f"process {link.sender.pid} sends a {kind.__name__} of {len(frame)} bytes; the limit is {most}"
            self._scene.report("frame", text)

    def _transmit(self, link: Link, sequence: int, frame: bytes) -> None:
        self.frames_sent += 1
        delay = None
        if self.script is not None:
            message = link.sender.decode(frame)
            delay = self.script(link.sender.pid, link.receiver.pid, message)
        leaves = self._scene.now if self.conditions.cpu is None else max(self._scene.now, int(link.sender.busy_until))
        arrival = leaves + (self.delay(link) if delay is None else delay)
        if arrival < link.last_arrival:
            arrival = link.last_arrival
        link.last_arrival = arrival
        self._scene.schedule(arrival, self._arrive, link, link.dial, sequence, frame)

    def delay(self, link: Link) -> int:
        """How long the next message of this link is under way."""
        conditions = self.conditions
        least, most = conditions.delay_us
        value = least + link.extra_us
        if link.deviation:
            value = max(least, int(self._rng.gauss(value, link.deviation * value)))
        if most > least:
            value += int(self._random() * (most - least + 1))
        if conditions.late_probability and self._random() < conditions.late_probability:
            value += self._rng.randint(*conditions.late_us)
        if self._scene.now + value > self._arriving_until:
            self._arriving_until = self._scene.now + value
        return value

    def _arrive(self, link: Link, dial: int, sequence: int, frame: bytes) -> None:
        node = link.receiver
        if node.paused:
            node.backlog.append((self._arrive, (link, dial, sequence, frame)))
            return
        if link.accepted != dial or self._scene.now > link.cut_at or not node.up:
            return
        try:
            if not link.session_in.accept(sequence):
                return
            self._arrived(node, link, frame)
        except PeerError as error:
            refusal = f"process {node.pid} refused a frame of process {link.sender.pid}: {error}"
            self._scene.report("peer error", refusal)
            self._break(link)

    def flushed(self, link: Link, incarnation: int | None, epoch: int, seen: int) -> None:
        """The batch that processed frame `seen` is on the receiver's disk. incarnation, epoch: whose numbering that
        was."""
        session = link.session_in
        if session.epoch != epoch or session.incarnation != incarnation:
            return
        session.flushed = seen
        if seen - link.told >= self._acknowledge_every:
            link.told = seen
            back = self._links[link.receiver.pid, link.sender.pid]
            if not back.blocked:
                self._scene.schedule(self._scene.now + self.delay(back), self._acknowledged, link, link.accepted, seen)

    def _acknowledged(self, link: Link, dial: int, seen: int) -> None:
        if link.open and link.dial == dial and link.sender.up:
            for sequence, frame in link.session_out.acknowledged(seen):
                self._transmit(link, sequence, frame)

    # -- connections --------------------------------------------------------------------------------------------------

    def _break(self, link: Link) -> None:
        """The connection is gone; what is under way arrives up to a random instant. The sender dials again later."""
        link.open = False
        link.dial += 1
        self._lost(link)
        most = self.conditions.delay_us[1]
        link.cut_at = min(link.cut_at, self._scene.now + self._rng.randint(0, most))
        self._dial_later(link)

    def _lost(self, link: Link) -> None:
        """The sender notices that there is no connection."""
        if link.sender.up:
            self._connected(link.sender, link.receiver.pid, False)

    def _dial_later(self, link: Link) -> None:
        pause = self._rng.randint(*self.conditions.reconnect_us)
        self._scene.schedule(self._scene.now + pause, self._dial, link, link.dial)

    def _dial(self, link: Link, dial: int) -> None:
        sender = link.sender
        if link.dial != dial or link.open or not sender.up:
            return
        if sender.paused:
            sender.backlog.append((self._dial, (link, dial)))
            return
        link.dial += 1
        if link.blocked or not link.receiver.up or not (sender.knows(link.receiver) and link.receiver.admits(sender)):
            self._lost(link)
            self._dial_later(link)
            return
        arrival = self._scene.now + self.delay(link)
        self._scene.schedule(
            arrival, self._hello, link, link.dial, sender.life, link.session_out.epoch, link.session_out.first
        )

    def _hello(self, link: Link, dial: int, incarnation: int, epoch: int, first: int) -> None:
        node = link.receiver
        if node.paused:
            node.backlog.append((self._hello, (link, dial, incarnation, epoch, first)))
            return
        if link.dial != dial:
            return
        back = self._links[node.pid, link.sender.pid]
        if not node.up or link.blocked or back.blocked:
            self._dial_later(link)
            return
        received, lost = link.session_in.greet(incarnation, epoch, first)
        if not node.knows(link.sender):
            node.meet(link.sender)
        link.accepted = dial
        link.cut_at = FOREVER
        link.last_arrival = 0
        link.told = received
        if lost:
            self._lost_memory(node, link.sender.pid)
        self._scene.schedule(self._scene.now + self.delay(back), self._welcome, link, dial, node.life, received)

    def _welcome(self, link: Link, dial: int, incarnation: int, received: int) -> None:
        sender = link.sender
        if sender.paused:
            sender.backlog.append((self._welcome, (link, dial, incarnation, received)))
            return
        if link.dial != dial or not sender.up:
            return
        frames, reset = link.session_out.resume(incarnation, received)
        link.open = True
        self._connected(sender, link.receiver.pid, True)
        if reset:
            self._lost_memory(sender, link.receiver.pid)
        for sequence, frame in frames:
            self._transmit(link, sequence, frame)

    # -- lives --------------------------------------------------------------------------------------------------------

    def died(self, node: Node) -> None:
        """Both ends of this process's links are gone with it."""
        for peer, link in node.links.items():
            self._break(link)
            back = self._links[peer, node.pid]
            self._break(back)
            back.accepted = 0

    def born(self, node: Node) -> None:
        """New ends for a restarted process; it dials everybody, and everybody it once they notice."""
        for peer, link in node.links.items():
            link.new_sender()
            link.dial += 1
            self._scene.schedule(self._scene.now, self._dial, link, link.dial)
            back = self._links[peer, node.pid]
            back.new_receiver()
            back.accepted = 0

    # -- faults -------------------------------------------------------------------------------------------------------

    def refuse(self, node: Node, peer: ProcessId, error: PeerError) -> None:
        """The process closes the link from this peer."""
        if isinstance(error, Stranger):
            self._break(self._links[peer, node.pid])
            self._lost_memory(node, peer)
        else:
            self._scene.report("peer error", f"process {node.pid} calls process {peer} faulty: {error}")

    def reset(self, a: ProcessId, b: ProcessId) -> None:
        """Break the connection from a to b."""
        if self._links[a, b].open:
            self._break(self._links[a, b])

    def is_open(self, a: ProcessId, b: ProcessId) -> bool:
        """Whether there is a connection from a to b."""
        return self._links[a, b].open

    def block(self, pairs: Iterable[tuple[ProcessId, ProcessId]]) -> None:
        """Nothing gets from a to b, for every (a, b)."""
        for pair in pairs:
            link = self._links[pair]
            link.blocked = True
            if link.open:
                self._break(link)

    def unblock(self, pairs: Iterable[tuple[ProcessId, ProcessId]]) -> None:
        for pair in pairs:
            self._links[pair].blocked = False

    def slow(self, a: ProcessId, b: ProcessId, extra_us: int, deviation: float = 0.0) -> None:
        """Every message from a to b takes so much longer; 0 ends it. deviation: standard deviation of the whole delay,
        as a share of it."""
        self._links[a, b].extra_us = extra_us
        self._links[a, b].deviation = deviation

    def heal(self) -> None:
        """No fault is left on any link; but what is late already, or was sent while it was slow, stays so, and what
        is sent behind it on that link waits for it (`calm_at`)."""
        self.calm_at = self._arriving_until
        for link in self._links.values():
            link.blocked = False
            link.extra_us = 0
            link.deviation = 0.0
