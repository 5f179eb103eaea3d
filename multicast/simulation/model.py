"""A small run as a model: one state of it, what may happen next, and what would be wrong with it. The real code runs.

A state is what all processes hold and what is under way on each link. An action multicasts one of the messages, lets
the oldest message of a link arrive, or lets a process crash, restart, or its timer expire. Disks are instantaneous, so
a batch is on disk before its messages leave; the clock moves only when a timer expires. A state is known by a hash of
everything that its processes hold (not by what they choose to tell), up to the order within sets and dictionaries.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from multicast import wire
from multicast.application import Application, ApplicationOutbox
from multicast.batch import Batch
from multicast.engine import Engine
from multicast.journal import Journal
from multicast.protocol import MulticastProtocol, Options
from multicast.records import Delivered
from multicast.simulation.disk import SimulatedDisk
from multicast.types import FINAL, AppMessage, GroupId, MessageId, ProcessId, Timestamp, Topology, new_message_id

START_US = 1_700_000_000_000_000
_CLUSTER = b"exploration only"


class Action(NamedTuple):
    """kind: "multicast" (of message number `a`), "arrive" (from process a at b), "crash", "restart" or "timer" (of
    process a)."""

    kind: str
    a: int
    b: int = -1


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What is explored. destinations: of each message, in order; senders: the processes that multicast them.
    crashes, timeouts: how many of each may happen. states_max: where to stop."""

    destinations: tuple[tuple[GroupId, ...], ...]
    senders: tuple[ProcessId, ...]
    crashes: int = 0
    timeouts: int = 0
    states_max: int = 1_000_000


class _MiddleRandom(random.Random):
    """No randomness: every draw is the middle. Timers are actions here, so jitter means nothing."""

    def random(self) -> float:
        return 0.5

    def getrandbits(self, k: int, /) -> int:
        return 1 << k - 1 if k else 0


class _Log(Application):
    """What one process has delivered, over all its lives."""

    def __init__(self, log: list[tuple[MessageId, Timestamp]]):
        self.log = log

    def on_deliver(self, delivery: Delivered, outcome: bytes | None, now: int, out: ApplicationOutbox) -> None:
        if delivery.stage != FINAL:
            return
        del self.log[delivery.position - 1 :]
        self.log.append((delivery.message.id, delivery.timestamp))


class Model:
    """One state, and how to go on from it."""

    def __init__(self, protocol: type[MulticastProtocol], topology: Topology, options: Options, bounds: Bounds):
        self.topology = topology
        self.bounds = bounds
        self.now = START_US
        self.messages = [
            AppMessage(new_message_id(START_US, i + 1), groups, b"", sender)
            for i, (groups, sender) in enumerate(zip(bounds.destinations, bounds.senders, strict=True))
        ]
        self.links: dict[tuple[ProcessId, ProcessId], deque[bytes]] = {}
        self.engines: dict[ProcessId, Engine] = {}
        self.logs: dict[ProcessId, list[tuple[MessageId, Timestamp]]] = {p: [] for p in topology.processes}
        self.multicast: list[bool] = [False] * len(self.messages)
        self.crashes = self.timeouts = 0
        self._protocol, self._options = protocol, options
        self._journals: dict[ProcessId, list[bytes]] = {p: [] for p in topology.processes}
        self._lives = dict.fromkeys(topology.processes, 0)
        self._wakes: dict[ProcessId, int | None] = {}
        self._beginning = True
        for process in topology.processes:
            self._begin_life(process)
        self._beginning = False
        self._settle()

    # -- actions ------------------------------------------------------------------------------------------------------

    def enabled(self) -> Iterator[Action]:
        """What may happen next, in a fixed order."""
        for number, message in enumerate(self.messages):
            if not self.multicast[number] and message.origin in self.engines:
                yield Action("multicast", number)
        for (sender, receiver), queue in self.links.items():
            if queue:
                yield Action("arrive", sender, receiver)
        for process in self.topology.processes:
            if process not in self.engines:
                yield Action("restart", process)
            elif self.timeouts < self.bounds.timeouts and self._wakes[process] is not None:
                yield Action("timer", process)
        if self.crashes < self.bounds.crashes:
            for process in self.engines:
                if self._may_crash(process):
                    yield Action("crash", process)

    def _may_crash(self, process: ProcessId) -> bool:
        group = self.topology.group_of[process]
        members = self.topology.groups[group]
        up = sum(p in self.engines for p in members)
        return len(members) == 1 or up > self.topology.quorum(group)

    def place(self, action: Action) -> ProcessId | None:
        """The one process that an action concerns; None: it commutes with nothing."""
        if action.kind == "arrive":
            return action.b
        return self.messages[action.a].origin if action.kind == "multicast" else None

    def do(self, action: Action) -> None:
        """An exception of the protocol goes through: it is a counterexample."""
        kind, a, b = action
        if kind == "arrive":
            self.engines[b].receive(a, self.links[a, b].popleft())
            self._run(b)
        elif kind == "multicast":
            self.multicast[a] = True
            self.engines[self.messages[a].origin].submit(self.messages[a])
            self._run(self.messages[a].origin)
        elif kind == "timer":
            self.timeouts += 1
            wake = self._wakes[a]
            self.now = max(self.now, wake or 0)
            self._run(a)
        elif kind == "crash":
            self.crashes += 1
            del self.engines[a]
            for link, queue in self.links.items():
                if a in link:
                    queue.clear()
        else:
            self._begin_life(a)
            for peer in [p for p in self.engines if p != a]:
                self.engines[peer].peer_reset(a)
                self._run(peer)

    def _begin_life(self, process: ProcessId) -> None:
        self._lives[process] += 1
        self.engines[process] = self._new_engine(process, _MiddleRandom())
        self._carry_out(process, self._recover(process, self.now))

    def _new_engine(self, process: ProcessId, rng: random.Random) -> Engine:
        protocol = self._protocol(process, self.topology, self._options, rng)
        return Engine(protocol, _Log(self.logs[process]), self._lives[process], copy_to_self=True)

    def _recover(self, process: ProcessId, now: int, lost: bool = False) -> Batch:
        tail = self._journal(process).tail(0) if self._journals[process] else ()
        return self.engines[process].recover(tail, now, lost)

    def _journal(self, process: ProcessId) -> Journal:
        journal = Journal(SimulatedDisk(), _CLUSTER, self.topology.group_of[process], process)
        for data in self._journals[process]:
            journal.append(data)
        journal.sync()
        return journal

    def _settle(self) -> None:
        """Let everything arrive that is under way from the start."""
        while links := [link for link, queue in self.links.items() if queue]:
            for sender, receiver in links:
                self.do(Action("arrive", sender, receiver))

    def _run(self, process: ProcessId) -> None:
        self._carry_out(process, self.engines[process].run(self.now))

    def _carry_out(self, process: ProcessId, batch: Batch) -> None:
        engine = self.engines[process]
        if batch.faulty:
            peer, fault = batch.faulty[0]
            raise AssertionError(f"process {process} finds a fault in process {peer}: {fault}")
        self._wakes[process] = batch.wake_at
        if batch.journal:
            self._write(process, batch)
        for peer, position in batch.reads:
            engine.found(peer, wire.CatchUpReply(*self._journal(process).read_deliveries(position)))
        for to, data in batch.sends:
            self._send(process, to, data)
        if not engine.idle:
            self._run(process)

    def _write(self, process: ProcessId, batch: Batch) -> None:
        self._journals[process].append(batch.journal)
        self.engines[process].flushed(batch.number)

    def _send(self, process: ProcessId, to: tuple[ProcessId, ...], data: bytes) -> None:
        for peer in to:
            if peer in self.engines or self._beginning:
                self.links.setdefault((process, peer), deque()).append(data)

    # -- what is seen -------------------------------------------------------------------------------------------------

    def fingerprint(self) -> bytes:
        """Equal for states that nobody could tell apart by what happens next."""
        words: list[str] = [str(self.now), str(self.multicast), str(self.crashes), str(self.timeouts)]
        for process in self.topology.processes:
            engine = self.engines.get(process)
            words.append("down" if engine is None else str(self._wakes[process]))
            if engine is not None:
                canonical(engine.protocol, words)
            words.append(str(self.logs[process]))
        for link in sorted(self.links):
            if self.links[link]:
                words.append(f"{link}{list(self.links[link])}")
        return hashlib.blake2b("\x00".join(words).encode(), digest_size=16).digest()

    def wrong(self) -> str:
        """What is wrong with the deliveries so far; empty: nothing."""
        return _integrity(self) or _agreement(self) or _order(self)

    def unfinished(self) -> str:
        """What should have been delivered by now, if nothing more can happen. Only without crashes and timeouts can
        one demand it: a protocol may need a timer to go on."""
        if self.bounds.crashes or self.bounds.timeouts:
            return ""
        for number, message in enumerate(self.messages):
            for process in self.topology.members(message.destinations):
                if all(message.id != i for i, _ in self.logs[process]):
                    return f"nothing more happens, and process {process} has not delivered m{number + 1}"
        return ""

    def name(self, message_id: MessageId) -> str:
        """m1, m2, ..."""
        return next((f"m{n + 1}" for n, m in enumerate(self.messages) if m.id == message_id), message_id.hex())

    def describe(self, action: Action) -> str:
        """The action that is about to be done, for people."""
        if action.kind == "arrive":
            channel, message = self.engines[action.b].codec.decode(self.links[action.a, action.b][0])
            kind = "" if channel == wire.PROTOCOL else " (catch-up)"
            return f"process {action.b} receives from process {action.a}: {self._text(message)}{kind}"
        if action.kind == "multicast":
            message = self.messages[action.a]
            groups = ", ".join(map(str, message.destinations))
            return f"process {message.origin} multicasts m{action.a + 1} to groups {groups}"
        if action.kind == "timer":
            return f"process {action.a}: a timer expires"
        return f"process {action.a} {action.kind}{'e' * (action.kind == 'crash')}s"

    def _text(self, message: Any) -> str:
        text = repr(message)
        for number, known in enumerate(self.messages):
            text = text.replace(repr(known), f"m{number + 1}").replace(repr(known.id), f"m{number + 1}")
        return text

    def delivered(self) -> dict[ProcessId, list[str]]:
        """Who has delivered what."""
        return {p: [f"{self.name(i)} at {t}" for i, t in log] for p, log in self.logs.items()}


def canonical(value: Any, words: list[str], seen: dict[int, int] | None = None) -> None:
    """Append text that is equal for equal contents. Left out: what never changes, and randomness (there is none)."""
    seen = {} if seen is None else seen
    kind = type(value)
    if value is None or kind in (int, str, bytes, bool, float, Timestamp):
        words.append(repr(value))
        return
    if id(value) in seen:
        words.append(f"@{seen[id(value)]}")
        return
    if kind is dict:
        words.append(f"{{{len(value)}")
        for key in sorted(value, key=repr):
            words.append(repr(key))
            canonical(value[key], words, seen)
    elif isinstance(value, set | frozenset):
        words.append(f"{{{sorted(value, key=repr)!r}")
    elif isinstance(value, tuple | list | deque | array):
        words.append(f"[{len(value)}")
        for item in value:
            canonical(item, words, seen)
    elif isinstance(value, dict):
        words.append(f"<{len(value)}")
        for key, item in value.items():
            words.append(repr(key))
            canonical(item, words, seen)
    elif isinstance(value, (Topology, Options, random.Random, type)) or callable(value):
        return
    else:
        seen[id(value)] = len(seen)
        words.append(kind.__name__)
        for name in _fields(kind, value):
            if (item := getattr(value, name, _ABSENT)) is not _ABSENT:
                words.append(name)
                canonical(item, words, seen)


_ABSENT = object()
_SLOTS: dict[type, tuple[str, ...]] = {}


def _fields(kind: type, value: Any) -> Iterable[str]:
    slots = _SLOTS.get(kind)
    if slots is None:
        fields = getattr(kind, "__struct_fields__", None)
        if fields is None:
            fields = [s for c in kind.__mro__ for s in getattr(c, "__slots__", ()) if not s.startswith("__")]
        slots = _SLOTS[kind] = tuple(sorted(fields))
    return (*slots, *sorted(getattr(value, "__dict__", ())))


# -- properties -------------------------------------------------------------------------------------------------------


def _integrity(model: Model) -> str:
    for process, log in model.logs.items():
        ids = [i for i, _ in log]
        if len(set(ids)) < len(ids):
            return f"integrity: process {process} delivers a message twice"
        for number, message in enumerate(model.messages):
            if message.id in ids:
                if not model.multicast[number]:
                    return f"validity: process {process} delivers m{number + 1}, which nobody multicast"
                if model.topology.group_of[process] not in message.destinations:
                    return f"validity: process {process} delivers m{number + 1}, which is not for it"
    return ""


def _agreement(model: Model) -> str:
    stamps: dict[MessageId, Timestamp] = {}
    for process, log in model.logs.items():
        for (first, at), (second, later) in pairwise(log):
            if at >= later:
                names = f"{model.name(second)} at {later} after {model.name(first)} at {at}"
                return f"order: process {process} delivers {names}"
        for message_id, timestamp in log:
            if stamps.setdefault(message_id, timestamp) != timestamp:
                return f"agreement: {model.name(message_id)} is delivered at {timestamp} and at {stamps[message_id]}"
    if len(set(stamps.values())) < len(stamps):
        return "order: two messages are delivered at one timestamp"
    return ""


def _order(model: Model) -> str:
    """Prefix order in each group, one order over all."""
    for members in model.topology.groups.values():
        longest = max((model.logs[p] for p in members), key=len)
        for process in members:
            if model.logs[process] != longest[: len(model.logs[process])]:
                names = ", ".join(model.name(i) for i, _ in longest)
                mine = ", ".join(model.name(i) for i, _ in model.logs[process])
                return f"prefix order: process {process} delivers {mine}; another of its group delivers {names}"
    after: dict[MessageId, set[MessageId]] = {}
    for log in model.logs.values():
        for (first, _), (second, _) in pairwise(log):
            after.setdefault(first, set()).add(second)
    for start in after:
        reached, todo = set(), [start]
        while todo:
            for successor in after.get(todo.pop(), ()):
                if successor == start:
                    return f"global order: {model.name(start)} is delivered before itself, by way of other groups"
                if successor not in reached:
                    reached.add(successor)
                    todo.append(successor)
    return ""
