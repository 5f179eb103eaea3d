"""What a group has decided is the same at all of its members, and so is what it amounts to.

Consensus: in one ballot one value is proposed for an instance; it is decided with the same values everywhere. What a
log of instances amounts to is a function of it, however a process came to know it: from the decisions, from its disk,
from a peer's state. `ReplicatedLogs` keeps that of the Skeen family once more, as plainly as it can be said, and
compares; `Streams` compares the members of a quasi-genuine group with each other, and what they have numbered for
another group with what is received there.

So a state that lacks something, or a number that stands for two messages, is found when it is there; not only when it
has made a delivery wrong. Like in `invariants`, variables of protocols are known by name only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from multicast.parts.barriers import stamp_of
from multicast.parts.group_log import Advance, Assign, _decode_command
from multicast.records import Delivered
from multicast.simulation.checkers import Checker
from multicast.types import FINAL, Ballot, GroupId, ProcessId, Topology, is_majority

if TYPE_CHECKING:
    from multicast.simulation.scene import Node

Sends = list[tuple[tuple[ProcessId, ...], Any, bool]]


class Decisions(Checker):
    """See the module. paxos_of(protocol): its part in a consensus, which `members` share."""

    watches_protocol = True

    def __init__(self, topology: Topology):
        super().__init__()
        self.topology = topology
        self._values: dict[tuple[ProcessId, ...], dict[int, list[bytes]]] = {}
        self._looked: dict[ProcessId, int] = {}
        self._acceptors: dict[tuple[ProcessId, ...], dict[int, dict[Ballot, set[ProcessId]]]] = {}
        self._proposed: dict[tuple[ProcessId, ...], dict[tuple[Ballot, int], list[bytes]]] = {}
        self._vouched: dict[ProcessId, dict[int, Ballot]] = {}
        self._low: dict[ProcessId, int] = {}

    def on_life(self, node: Node) -> None:
        self._looked[node.pid] = 0
        self._vouched[node.pid] = {}
        self._low[node.pid] = 0

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        protocol: Any = node.protocol
        paxos = protocol.member.paxos if hasattr(protocol, "member") else protocol.paxos
        instances, looked = paxos.instances, self._looked[node.pid]
        known = self._values.setdefault(paxos.members, {})
        acceptors = self._acceptors.setdefault(paxos.members, {})
        for _, message, _ in sends:
            if type(message).__name__ == "Accept":
                place = message.ballot, message.instance
                values = self._proposed.setdefault(paxos.members, {}).setdefault(place, message.values)
                if values != message.values:
                    text = f"proposes two values for instance {message.instance} in ballot {message.ballot.text}"
                    self.report("consensus", f"process {node.pid} {text}")
            if type(message).__name__ == "Accepted":
                for instance in message.instances:
                    acceptors.setdefault(instance, {}).setdefault(message.ballot, set()).add(node.pid)
                    self._vouched[node.pid][instance] = message.ballot
        if instances.low != self._low[node.pid]:
            self._low[node.pid] = instances.low
            self._check_kept(node, instances)
        if handler == "on_message" and type(args[1]).__name__ == "Accept" and args[1].instance <= looked:
            held = instances.accepted.get(args[1].instance)
            if held is not None and held[1] != known.get(args[1].instance, held[1]):
                self.report("consensus", f"process {node.pid} takes instance {args[1].instance} back")
        if instances.decided <= looked:
            return
        self._looked[node.pid] = instances.decided
        for instance in range(max(looked + 1, instances.low), instances.decided + 1):
            values = instances.accepted[instance][1]
            if instance not in known and not self.is_chosen(paxos.members, instance):
                text = f"which no majority has accepted in one ballot: {acceptors.get(instance)}"
                self.report("consensus", f"process {node.pid} decides instance {instance}, {text}")
            if known.setdefault(instance, values) != values:
                self.report("consensus", f"process {node.pid} decides instance {instance} with other values")
            self.decided(node, instance, values)

    def is_chosen(self, members: tuple[ProcessId, ...], instance: int) -> bool:
        """Whether a majority of these has accepted it in one ballot."""
        acceptors = self._acceptors.get(members, {}).get(instance, {})
        return any(is_majority(members, some) for some in acceptors.values())

    def _check_kept(self, node: Node, instances: Any) -> None:
        """What is dropped is what was to be, and nothing after it for which this process has vouched in this life."""
        vouched = self._vouched[node.pid] = {k: b for k, b in self._vouched[node.pid].items() if k >= instances.low}
        for instance, ballot in vouched.items():
            held = instances.accepted.get(instance)
            if held is None or (held[0] < ballot and instance > instances.decided):
                self.report("consensus", f"process {node.pid} has lost what it accepted in instance {instance}")

    def decided(self, node: Node, instance: int, values: list[bytes]) -> None:
        """The process has this instance among those that are decided; perhaps not for the first time."""


class _Reference:
    """What the log of a group amounts to after each instance, as parts.group_log says in its docstring.

    after: (clock, highest ballot), from instance 0 on. assigned: local timestamp -> (instance, message id). finals:
    local timestamp -> (instance, certain global timestamp)."""

    def __init__(self) -> None:
        self.after: list[tuple[int, Ballot]] = [(0, Ballot(0, 0))]
        self.assigned: dict[Any, tuple[int, bytes]] = {}
        self.finals: dict[Any, tuple[int, Any]] = {}

    def take(self, instance: int, values: Iterable[bytes]) -> None:
        """The next one; others are known, or come again."""
        if instance != len(self.after):
            return
        clock, seen = self.after[-1]
        for command in map(_decode_command, values):
            if command.ballot < seen:
                continue
            seen = command.ballot
            if type(command) is Assign:
                self.assigned.setdefault(command.local, (instance, command.message.id))
                clock = max(clock, command.local.time)
            elif type(command) is Advance:
                clock = max(clock, command.final.time)
                if command.certain:
                    self.finals.setdefault(command.local, (instance, command.final))
        self.after.append((clock, seen))


class ReplicatedLogs(Decisions):
    """The logs of fault-tolerant Skeen and FastCast."""

    def __init__(self, topology: Topology):
        super().__init__(topology)
        self._references = {group: _Reference() for group in topology.groups}
        self._compared: dict[ProcessId, int] = {}
        self._applied: dict[ProcessId, int] = dict.fromkeys(topology.processes, 0)
        self._positions: dict[tuple[GroupId, bytes], int] = {}

    def on_life(self, node: Node) -> None:
        super().on_life(node)
        self._compared[node.pid] = -1

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        if delivery.stage == FINAL:
            group = self.topology.group_of[node.pid]
            self._positions[group, delivery.note] = delivery.position
            clock, _ = self._references[group].after[-1]
            if delivery.timestamp.time > clock:
                self._wrong(node, f"it delivers at {delivery.timestamp}; the clock of its group's log is {clock}")

    def decided(self, node: Node, instance: int, values: list[bytes]) -> None:
        self._references[self.topology.group_of[node.pid]].take(instance, values)

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        low = self._low[node.pid]
        super().on_handled(node, handler, args, sends)
        member: Any = node.protocol.member  # type: ignore[attr-defined]
        log, before = member.log, self._compared[node.pid]
        for _, message, _ in sends:
            if type(message).__name__ == "Applied":
                self._applied[node.pid] = max(self._applied[node.pid], message.instance)
        if low != self._low[node.pid] and handler == "on_message" and type(args[1]).__name__ == "Applied":
            self._check_dropped(node, member.members, self._low[node.pid] - 1)
        if log.instance == before:
            return
        self._compared[node.pid] = log.instance
        reference = self._references[self.topology.group_of[node.pid]]
        if log.instance >= len(reference.after):
            return
        clock, seen = reference.after[log.instance]
        if (log.clock, log.seen) != (clock, seen):
            self._wrong(node, f"the clock is {clock} and the ballot {seen}, not {log.clock} and {log.seen}")
        if log.instance > before + 1:  # from its disk, or a peer's state
            self._compare_entries(node, log, member.deliveries, reference)
        if member.reign.acting and log.seen > member.reign.ballot:
            self._wrong(node, f"it acts as the leader of {member.reign.ballot}, but {log.seen} has begun")

    def _check_dropped(self, node: Node, members: tuple[ProcessId, ...], last: int) -> None:
        """What is dropped, a quorum has said to have applied."""
        said = [p for p in members if self._applied[p] >= last]
        if not is_majority(members, said):
            self._wrong(node, f"it has dropped instances up to {last}, which only {said} have applied")

    def _compare_entries(self, node: Node, log: Any, deliveries: Any, reference: _Reference) -> None:
        for local, entry in log.entries.items():
            instance, _ = reference.assigned.get(local, (log.instance + 1, b""))
            if entry.logged != (instance <= log.instance):
                self._wrong(node, f"{local} is logged: {entry.logged}; it is in instance {instance}")
        group = self.topology.group_of[node.pid]
        for local, (instance, message_id) in reference.assigned.items():
            if instance > log.instance or local in log.entries:
                continue
            position = self._positions.get((group, local.encode()))
            if position is None or position > deliveries.position:
                self._wrong(node, f"it lacks {message_id.hex()} at {local} from instance {instance}")
        if node.protocol.options.dedup_window_us:
            return
        for local, (instance, final) in reference.finals.items():
            held = log.entries.get(local)
            if instance <= log.instance and held is not None and held.final != final:
                self._wrong(node, f"it has {local} at {held.final}, not {final}")

    def _wrong(self, node: Node, text: str) -> None:
        log: Any = node.protocol.member.log  # type: ignore[attr-defined]
        self.report("log", f"process {node.pid} after instance {log.instance}: {text}")


class Streams(Decisions):
    """The logs of quasi-genuine groups, and the channels between them."""

    def __init__(self, topology: Topology):
        super().__init__(topology)
        self._bases: dict[tuple[GroupId, int], tuple[Any, ...]] = {}
        self._numbered: dict[tuple[GroupId, GroupId], dict[int, tuple[Any, bytes]]] = {}
        self._seen: dict[ProcessId, tuple[int, int, dict[GroupId, tuple[int, Any]]]] = {}
        self._said: dict[ProcessId, dict[GroupId, int]] = {p: {} for p in topology.processes}
        self._learned: dict[ProcessId, dict[GroupId, int]] = {}
        self._delivered: dict[ProcessId, set[bytes]] = {}
        self._announced: dict[ProcessId, tuple[Ballot, int]] = {}

    def on_life(self, node: Node) -> None:
        super().on_life(node)
        self._delivered[node.pid] = set()
        self._announced.pop(node.pid, None)
        self._seen[node.pid] = (-1, -1, {})
        self._learned[node.pid] = {}

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        super().on_handled(node, handler, args, sends)
        for to, message, _ in sends:
            if type(message).__name__ == "Ack":
                said, source = self._said[node.pid], self.topology.group_of[to[0]]
                said[source] = max(said.get(source, 0), message.number)
        self._check_announced(node, sends)
        self._check_learned(node)
        stream: Any = node.protocol.stream  # type: ignore[attr-defined]
        channels: Any = node.protocol.channels  # type: ignore[attr-defined]
        instance, kept, received = self._seen[node.pid]
        if stream.base.instance != instance:
            self._check_base(node, stream)
        if stream.kept.instance != kept:
            self._check_dropped(node, stream)
        for group, channel in channels.of.items():
            now = (channel.received, channel.barrier)
            if group != stream.group and received.get(group) != now:
                self._check_received(node, group, channel, channels.waiting.items, received.get(group, (0, None))[0])
                received[group] = now
        self._seen[node.pid] = (stream.base.instance, stream.kept.instance, received)

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        """All groups that may send here have promised to decide nothing earlier. Nothing is delivered early that was
        delivered finally, unless that may be forgotten."""
        self._check_early(node, delivery)
        if replay or delivery.stage != FINAL or delivery.installed_from is not None:
            return
        stamp = stamp_of(delivery.timestamp)
        for group, channel in node.protocol.channels.of.items():  # type: ignore[attr-defined]
            if stamp > channel.barrier:
                self._wrong(node, f"it delivers at {stamp}, and group {group} has promised {channel.barrier} only")

    def _check_early(self, node: Node, delivery: Delivered) -> None:
        name, known = delivery.message.id, self._delivered[node.pid]
        if delivery.stage == FINAL:
            known.add(name)
        elif name in known and not node.protocol.options.dedup_window_us:
            self._wrong(node, f"it delivers {name.hex()} early, which it has delivered finally")

    def _check_announced(self, node: Node, sends: Sends) -> None:
        """Who tells other groups up to where it knows all to be decided as it announced it knows nothing else."""
        members = node.protocol.paxos.members  # type: ignore[attr-defined]
        proposed, values = self._proposed.get(members, {}), self._values.get(members, {})
        for _, message, _ in sends:
            if type(message).__name__ != "Proposed":
                continue
            ballot, upto = self._announced.get(node.pid, (message.ballot, 0))
            first = upto + 1 if ballot == message.ballot else 1
            self._announced[node.pid] = message.ballot, max(message.decided, first - 1)
            for instance in range(first, message.decided + 1):
                announced = proposed.get((message.ballot, instance))
                if announced is not None and values.get(instance, announced) != announced:
                    self._wrong(node, f"it calls instance {instance} decided as it proposed it, in {ballot.text}")

    def _check_learned(self, node: Node) -> None:
        """What is taken for decided in another group is so."""
        for group, learner in node.protocol.learners.items():  # type: ignore[attr-defined]
            before = self._learned[node.pid].get(group, 0)
            if learner.known == before:
                continue
            self._learned[node.pid][group] = learner.known
            if learner.known and not self.is_chosen(self.topology.groups[group], learner.known):
                self._wrong(node, f"it has learned instance {learner.known} of group {group}, which is not chosen")

    def _check_base(self, node: Node, stream: Any) -> None:
        """What it amounts to, and what was numbered for the others."""
        base, group = stream.base, stream.group
        amounts = (base.last, dict(base.numbers), dict(base.casts))
        if self._bases.setdefault((group, base.instance), amounts) != amounts:
            self._wrong(node, f"its log amounts to {amounts} after instance {base.instance}; not so for others")
        first = stream._records[0][0].instance if stream._records else base.instance + 1
        if first != stream.kept.instance + 1:
            self._wrong(node, f"it keeps instances from {first} on, and has dropped up to {stream.kept.instance}")
        for receiver, items in stream._outgoing.items():
            numbered = self._numbered.setdefault((group, receiver), {})
            low = stream.number(receiver) - len(items) + 1
            for number, item in enumerate(items, low):
                new = (item.stamp, item.message.id)
                if number not in numbered:
                    numbered[number] = new
                    if numbered.get(number - 1, new)[0] > item.stamp:
                        self._wrong(node, f"number {number} for group {receiver} is stamped below the one before")
                    self._check_promised(group, receiver, number, item.stamp)
                elif numbered[number] != new:
                    self._wrong(node, f"number {number} for group {receiver} is another message for others")

    def _check_dropped(self, node: Node, stream: Any) -> None:
        """What is dropped, quorums have said to have."""
        kept = stream.kept
        for group in (stream.group, *stream._receivers):
            needed = kept.instance if group == stream.group else kept.numbers.get(group, 0)
            said = sum(self._said[p].get(stream.group, 0) >= needed for p in self.topology.groups[group])
            if said < self.topology.quorum(group):
                self._wrong(node, f"it has dropped what {said} of group {group} have: {needed}")
        own, waiting = stream.group, node.protocol.channels.waiting.items.values()  # type: ignore[attr-defined]
        if lost := [p.number for p in waiting if p.source == own and p.number <= kept.numbers.get(own, 0)]:
            self._wrong(node, f"it has dropped number {min(lost)} of its own group, which it has not delivered")

    def _check_received(self, node: Node, source: GroupId, channel: Any, waiting: Any, before: int) -> None:
        numbered = self._numbered.get((source, self.topology.group_of[node.pid]), {})
        for timestamp, pending in waiting.items():
            if pending.source == source and pending.number > before and pending.number in numbered:
                stamp, message_id = numbered[pending.number]
                if (timestamp.time, message_id) != (stamp[0], pending.message.id):
                    self._wrong(node, f"number {pending.number} of group {source} is another message there")
        after = numbered.get(channel.received + 1)
        if after is not None and after[0] <= channel.barrier:
            self._wrong(node, f"its barrier of group {source} is {channel.barrier}, but it lacks what is at {after[0]}")

    def _check_promised(self, source: GroupId, receiver: GroupId, number: int, stamp: Any) -> None:
        """No barrier that is in force has promised that this would not come."""
        if self.world is None:
            return
        for pid in self.topology.groups[receiver]:
            node = self.world.nodes[pid]
            channel = node.protocol.channels.of.get(source) if node.up else None  # type: ignore[attr-defined]
            if channel is not None and channel.received < number and channel.barrier >= stamp:
                self._wrong(node, f"its barrier of group {source} is {channel.barrier}; then comes {stamp}")

    def _wrong(self, node: Node, text: str) -> None:
        self.report("stream", f"process {node.pid}: {text}")
