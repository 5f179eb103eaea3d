"""A live world: the explorer's model with time, links that can be cut, disks that can be lost, and a trace.

Theory of operation. A message leaves with the instant at which it is due; links are FIFO. When somebody lets it arrive
before or after others, the world's time becomes the later of its own and the message's: what a user does by hand is
some asynchronous run, and `earliest` is the run in which every message takes exactly its delay. Timers fire at the
instants that processes asked for. What reaches a paused process waits there, and is one batch when it resumes.
What a process that dies has sent is lost; what was sent to it, before or after, waits for its next life, as the links'
sessions have it. Disks take no time, or as much as the setup says; then a crash loses what was not
synced. What happens is told by `Trace`, the tracer of random runs.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from multicast import wire
from multicast.batch import Batch
from multicast.simulation import model
from multicast.simulation.model import Bounds, Model
from multicast.simulation.observe import watch
from multicast.simulation.scene import EPOCH_US, Node, Scene
from multicast.types import AppMessage, ProcessId, new_message_id
from multicast.visual.lines import KeptTrace, Line
from multicast.visual.setup import Action, Drawn, Fixed, Problem, Setup, plain

QUEUE_MAX = 64
"""So much waits for a process that is down; with one more a link loses all of it."""


class Frame(bytes):
    """An encoded message under way. due: when it arrives, in the world's time. leave: the number of the line that told
    that it left."""

    due: int
    leave: int


class LiveTrace(KeptTrace):
    """arriving: (receiver, sender) -> the `leave`s of what the receiver has got and not handled yet."""

    def __init__(self, setup: Setup):
        super().__init__(setup.protocol, setup.seed, setup, "")
        self.arriving: dict[tuple[ProcessId | None, ProcessId], deque[int]] = {}

    def _event(self, event: str, process: ProcessId | None, **more: Any) -> None:
        if event == "arrival" and more["from"] != process:
            more["of"] = self.arriving[process, more["from"]].popleft()
        super()._event(event, process, **more)

    def tell(self, event: str, process: ProcessId | None = None, **more: Any) -> None:
        """A line about what only live worlds have."""
        self._event(event, process, **more)

    def tell_violations(self) -> None:
        """Those that no line has told yet."""
        self._tell_violations()


class LiveWorld(Model):
    """See the module. `act` does one action. lines: the trace so far; the first is the header.

    nodes: what the trace knows of processes. cut: links on which nothing arrives. broken: a protocol has failed, and
    nothing more can be done. started: a process as it was at first, for what all have in common.
    """

    def __init__(self, setup: Setup):
        self.setup = setup
        topology = setup.topology()
        protocol = setup.kind()
        self.scene = Scene(topology, b"live")
        self.nodes: dict[ProcessId, Node] = self.scene.nodes
        for process, offset in setup.clock_offsets_us.items():
            if process in self.nodes:
                self.nodes[process].offset_us = offset
        self.cut: set[tuple[ProcessId, ProcessId]] = set()
        self.broken = False
        self._trace = LiveTrace(setup)
        self.lines = self._trace.kept
        self._delays = random.Random(f"{setup.seed}/delays")
        self._writing: dict[ProcessId, deque[tuple[int, Batch]]] = {p: deque() for p in topology.processes}
        self._starting = True
        options = setup.made_options(protocol)
        try:
            super().__init__(protocol, topology, options, Bounds(destinations=(), senders=()))
        except ValueError as error:
            raise Problem(f"This setup cannot run: {error}.") from None
        self._starting = False
        self.started = next(iter(self.engines.values())).protocol

    # -- lives --------------------------------------------------------------------------------------------------------

    def _begin_life(self, process: ProcessId) -> None:
        node = self.nodes[process]
        self._lives[process] += 1
        node.life, node.begun_us = self._lives[process], node.offset_us
        node.up = node.replaying = True
        rng = random.Random(f"{self.setup.seed}/{process}/{node.life}")
        engine = self.engines[process] = node.engine = self._new_engine(process, rng)
        node.protocol, node.application = engine.protocol, engine.application
        watch(node, [self._trace], lambda: None)
        self._trace.on_life(node)
        self._carry_out(process, self._recover(process, node.clock(), node.lost))

    def _run(self, process: ProcessId) -> None:
        node = self.nodes[process]
        if not node.paused:
            self._carry_out(process, self.engines[process].run(node.clock(), node.wall()))

    def _write(self, process: ProcessId, batch: Batch) -> None:
        if self.setup.fsync_us and not self._starting:
            self._writing[process].append((self.now + self.setup.fsync_us, batch))
        else:
            self._trace.tell("flush", process)
            super()._write(process, batch)

    def _sync(self, process: ProcessId) -> None:
        due, batch = self._writing[process].popleft()
        self._pass_to(due)
        self._trace.tell("flush", process)
        super()._write(process, batch)
        self._run(process)

    def _send(self, process: ProcessId, to: tuple[ProcessId, ...], data: bytes) -> None:
        leave = self._trace.lines
        self._trace.on_frame(process, to, data)
        for peer in to:
            queue = self.links.setdefault((process, peer), deque())
            if peer not in self.engines and len(queue) >= QUEUE_MAX:
                queue.clear()
            frame = Frame(data)
            frame.leave = leave
            frame.due = max(self.now + self._delay(process, peer), _due(queue[-1]) if queue else 0)
            queue.append(frame)

    def _delay(self, sender: ProcessId, receiver: ProcessId) -> int:
        delays = self.setup.delays
        if self._starting:
            return 0
        if isinstance(delays, Fixed):
            return delays.us
        if isinstance(delays, Drawn):
            return self._delays.randint(delays.low_us, max(delays.low_us, delays.high_us))
        return next((us for a, b, us in delays.links if (a, b) == (sender, receiver)), delays.us)

    # -- actions ------------------------------------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        """One action, and its lines. Problem if it is not possible now; an exception of the protocol is a violation."""
        if why := self.impossible(action):
            raise Problem(why)
        begin = len(self.lines)
        try:
            _DOING[action[0]](self, *action[1:])
        except Exception as error:
            self.broken = True
            self.scene.report("exception", f"{type(error).__name__}: {error}")
        if (wrong := self.wrong()) and all(text != wrong for _, text in self._told()):
            self.scene.report(wrong.partition(": ")[0], wrong)
        self._trace.tell_violations()
        if len(self.lines) == begin:
            self._trace.tell("quiet", action[2] if action[0] == "arrive" else action[1])
        self.lines[begin]["action"] = list(action)

    def _told(self) -> list[tuple[str, str]]:
        return self.scene.violations

    def impossible(self, action: Action) -> str:
        """Why this action cannot be done now, in a sentence; empty if it can."""
        if self.broken:
            return "A process has failed, and this run is over; step back to try something else."
        kind, a = action[0], action[1]
        if kind == "wait":
            return ""
        up = a in self.engines
        if kind == "arrive":
            return self._no_arrival(a, action[2])
        if kind in ("cut", "mend"):
            is_cut = (a, action[2]) in self.cut
            if is_cut == (kind == "cut"):
                return f"The link from process {a} to process {action[2]} is {'already' if is_cut else 'not'} cut."
            return ""
        if kind == "restart":
            return f"Process {a} is up." if up else ""
        if not up:
            return f"Process {a} is down; restart it first."
        if kind == "resume":
            return "" if self.nodes[a].paused else f"Process {a} is not paused."
        if self.nodes[a].paused and kind not in ("crash", "lose_disk"):
            return f"Process {a} is paused; resume it first."
        if kind == "lose_disk" and not self.nodes[a].protocol.specification.survives_lost_disk:
            return f"With {self.setup.protocol} a process must come back with its disk; crash it instead."
        if kind == "lose_disk" and (other := self._readmitting(a)) is not None:
            return f"Process {other} lost its disk and is no member again yet; a group survives one loss at a time."
        if kind == "timer" and self._wakes[a] is None:
            return f"Process {a} waits for no timer."
        if kind == "sync" and not self._writing[a]:
            return f"Process {a} writes nothing."
        return ""

    def _readmitting(self, process: ProcessId) -> ProcessId | None:
        """Who of its group lost its disk, and is not readmitted yet."""
        for peer in self.topology.groups[self.topology.group_of[process]]:
            if self.nodes[peer].lost and (peer not in self.engines or not self.engines[peer].protocol.is_member()):
                return peer
        return None

    def _no_arrival(self, a: ProcessId, b: ProcessId) -> str:
        if not self.links.get((a, b)):
            return f"Nothing is under way from process {a} to process {b}."
        if (a, b) in self.cut:
            return f"The link from process {a} to process {b} is cut; mend it first."
        return f"Process {b} is down." if b not in self.engines else ""

    def _pass_to(self, instant: int) -> None:
        self.now = self.scene.now = max(self.now, instant)

    def _arrive(self, a: ProcessId, b: ProcessId) -> None:
        frame = self.links[a, b][0]
        assert isinstance(frame, Frame)
        self._pass_to(frame.due)
        self._trace.arriving.setdefault((b, a), deque()).append(frame.leave)
        channel, message = self.engines[b].codec.decode(frame)
        if channel != wire.PROTOCOL:
            self._trace.tell("arrival", b, **{"from": a}, message={"type": type(message).__name__}, channel="host")
        elif self.nodes[b].paused:
            self._trace.tell("waiting", b, **{"from": a}, type=type(message).__name__, of=frame.leave)
        self.do(model.Action("arrive", a, b))

    def _settle(self) -> None:
        while links := [link for link, queue in self.links.items() if queue]:
            for sender, receiver in links:
                self._arrive(sender, receiver)

    def _multicast(self, process: ProcessId, groups: list[int]) -> None:
        number = len(self.messages)
        message_id = new_message_id(self.nodes[process].wall(), number + 1)
        self.messages.append(AppMessage(message_id, tuple(groups), b"", process))
        self.multicast.append(False)
        self.do(model.Action("multicast", number))

    def _timer(self, process: ProcessId) -> None:
        self._pass_to(self._wake(process))
        self.do(model.Action("timer", process))

    def _wake(self, process: ProcessId) -> int:
        """When its timer expires, in the world's time."""
        wake = self._wakes[process]
        return 1 << 62 if wake is None else wake - self.nodes[process].begun_us

    def _wait(self, us: int) -> None:
        self._pass_to(self.now + us)
        self._trace.tell("wait", None, us=us)

    def _crash(self, process: ProcessId) -> None:
        for link in [link for link in self._trace.arriving if link[0] == process]:
            del self._trace.arriving[link]
        self._writing[process].clear()
        self.nodes[process].up = self.nodes[process].paused = False
        kept = {link: queue.copy() for link, queue in self.links.items() if link[1] == process}
        self.do(model.Action("crash", process))
        self.links.update(kept)
        self._trace.on_crash(self.nodes[process])
        self._connected(process, False)

    def _lose_disk(self, process: ProcessId) -> None:
        self._crash(process)
        self._journals[process].clear()
        self.nodes[process].lost = True

    def _restart(self, process: ProcessId) -> None:
        self.do(model.Action("restart", process))
        self._connected(process, True)
        for peer in self.topology.processes:
            if peer not in self.engines:
                self.engines[process].connected(peer, False)

    def _connected(self, process: ProcessId, up: bool) -> None:
        """The others notice that there are connections to this process, or none."""
        for peer, engine in self.engines.items():
            if peer != process and engine.connected(process, up):
                self._run(peer)

    def _pause(self, process: ProcessId) -> None:
        self.nodes[process].paused = True
        self._trace.tell("pause", process)

    def _resume(self, process: ProcessId) -> None:
        self.nodes[process].paused = False
        self._trace.tell("resume", process)
        self._run(process)

    def _cut(self, a: ProcessId, b: ProcessId) -> None:
        self.cut.add((a, b))
        self._trace.tell("cut", None, **{"from": a, "to": b})

    def _mend(self, a: ProcessId, b: ProcessId) -> None:
        self.cut.discard((a, b))
        self._trace.tell("mend", None, **{"from": a, "to": b})

    # -- what may happen ----------------------------------------------------------------------------------------------

    def coming(self) -> Iterator[tuple[int, Action]]:
        """What happens by itself, with its instant in the world's time: heads of links, timers, and disks."""
        if self.broken:
            return
        for (a, b), queue in self.links.items():
            if queue and not self._no_arrival(a, b):
                yield max(self.now, _due(queue[0])), ("arrive", a, b)
        for process in self.engines:
            if not self.nodes[process].paused and self._wakes[process] is not None:
                yield max(self.now, self._wake(process)), ("timer", process)
            if not self.nodes[process].paused and self._writing[process]:
                yield max(self.now, self._writing[process][0][0]), ("sync", process)

    def earliest(self) -> Action | None:
        """What comes next if every message takes its delay: arrivals before timers."""
        following = min(self.coming(), key=lambda one: (one[0], one[1][0], one[1][1:]), default=None)
        return None if following is None else following[1]

    def at_rest(self) -> bool:
        """Whether nothing but housekeeping is under way and whoever is up has delivered what is for it."""
        quiet = self.started.specification.housekeeping
        if any(self._writing.values()):
            return False
        for (a, b), queue in self.links.items():
            if (a, b) not in self.cut and b in self.engines:
                for frame in queue:
                    channel, message = self.engines[b].codec.decode(frame)
                    if channel == wire.PROTOCOL and not isinstance(message, quiet):
                        return False
        return all(
            process not in self.engines or any(message.id == i for i, _ in self.logs[process])
            for message in self.messages
            for process in self.topology.members(message.destinations)
        )

    def sentence(self, action: Action) -> str:
        """The action, for people; it must be possible."""
        kind = action[0]
        if kind == "arrive":
            return self.describe(model.Action("arrive", action[1], action[2]))
        if kind == "timer":
            return f"process {action[1]}: a timer expires"
        if kind == "sync":
            return f"process {action[1]}: what it wrote is on its disk"
        return f"process {action[1]} restarts"

    def under_way(self) -> list[dict[str, Any]]:
        """Links that are cut or have something on them, oldest first."""
        links = sorted(self.cut | {link for link, queue in self.links.items() if queue})
        return [
            {"from": a, "to": b, "cut": (a, b) in self.cut, "queue": [*map(self._frame, self.links.get((a, b), ()))]}
            for a, b in links
        ]

    def _frame(self, frame: bytes) -> dict[str, Any]:
        assert isinstance(frame, Frame)
        leave = self.lines[frame.leave]
        about = leave.get("about", [])
        return {"n": frame.leave, "type": leave["type"], "about": about, "due_us": frame.due - EPOCH_US}

    def header(self) -> Line:
        """The trace's first line, with what the page wants to know beside it."""
        return {**self.lines[0], "settings": plain(self.setup)}


_DOING: dict[str, Callable[..., None]] = {
    "multicast": LiveWorld._multicast, "arrive": LiveWorld._arrive, "timer": LiveWorld._timer,
    "crash": LiveWorld._crash, "restart": LiveWorld._restart, "lose_disk": LiveWorld._lose_disk,
    "sync": LiveWorld._sync, "wait": LiveWorld._wait, "pause": LiveWorld._pause, "resume": LiveWorld._resume,
    "cut": LiveWorld._cut, "mend": LiveWorld._mend,
}  # fmt: skip


def _due(frame: bytes) -> int:
    assert isinstance(frame, Frame)
    return frame.due

