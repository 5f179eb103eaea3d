"""What every atomic multicast owes, checked while a simulated world runs.

`Properties` checks, at each delivery: *validity* (only what was multicast, where it was addressed), *integrity* (at
most once; an expired delivery counts as none), *agreement* (all processes of a group, dead or alive, deliver one
sequence without gaps: prefix order with equal positions), *order* (timestamps rise within a group, differ between
messages, agree between groups). An expired delivery has no effect, and may happen in some destination groups only, or
at another timestamp in each: only inside a group it must be alike. At the end of a run: agreement across groups,
liveness, and the *global order* once more as a graph of the delivery sequences alone, whatever the timestamps say.

`Fifo` checks the promise of `Specification.fifo` for messages that one process alone has multicast, in one life.

`Genuineness` looks at the frames on the wire, without knowledge of the protocol. A message that orders something is
about one multicast m, and its sender and receiver take part in m (submitted it, or are of its destinations). So
1. a frame that contains the id of a message passes only between processes that take part in that message;
2. a frame between two groups, whatever it contains, passes only if some message so far has both ends as participants.
Who takes part, and has heard that it has no connection to some destination, may make a member of its group take part,
too, by asking it to pass the message on (parts.submissions).
Exempt from 2 are links inside a group, what tells who leads or belongs to one, and the questions of who has lost its
disk. Of a protocol that is not genuine only what orders something counts (not `Specification.housekeeping`).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from multicast.parts.submissions import Asked, Relay
from multicast.protocol import Specification
from multicast.records import Delivered
from multicast.simulation.observe import Observer
from multicast.types import FINAL, AppMessage, GroupId, MessageId, ProcessId, Timestamp, Topology
from multicast.wire import PROTOCOL

if TYPE_CHECKING:
    from multicast.simulation.scene import Node
    from multicast.simulation.world import World

_REPORTS_MAX = 20
_REMEMBERED_RETRIES = 10
"""For so long, at least, a process remembers what it has delivered early and not finally."""
_ID_IN_FRAME = re.compile(b"\xc4\x10(.{16})", re.DOTALL)
_OF_GROUPS = ("LeaderIs", "ViewAsk", "ViewIs", "GroupIs", "Forgot", "Reminder")
"""Messages to everybody, of which no multicast is the reason."""


class Checker(Observer):
    """Reports to its world, each kind of violation a bounded number of times."""

    def __init__(self) -> None:
        self.world: World | None = None
        self._reports: dict[str, int] = {}

    def report(self, checker: str, text: str) -> None:
        count = self._reports[checker] = self._reports.get(checker, 0) + 1
        if self.world is not None and count <= _REPORTS_MAX:
            self.world.report(checker, text)


class Properties(Checker):
    """See the module. Needs `attach` before the world starts.

    logs: group -> what its processes deliver, in order: (id, timestamp, expired).
    submitters: id -> the (process, life) that multicast it. missing: id -> destination groups that lack it.
    What a process delivers early in one life, it delivers so once, as long as it must remember, and not after its final
    delivery.
    """

    def __init__(self, topology: Topology):
        super().__init__()
        self.topology = topology
        self.logs: dict[GroupId, list[tuple[MessageId, Timestamp, bool]]] = {g: [] for g in topology.groups}
        self.messages: dict[MessageId, AppMessage] = {}
        self.submitters: dict[MessageId, list[tuple[ProcessId, int]]] = {}
        self.missing: dict[MessageId, list[GroupId]] = {}
        self.deliveries = 0
        self._in_group: dict[GroupId, set[MessageId]] = {g: set() for g in topology.groups}
        self._stamps: dict[MessageId, Timestamp] = {}
        self._expired: set[MessageId] = set()
        self._stamped: dict[Timestamp, MessageId] = {}
        self._position: dict[ProcessId, int | None] = {}
        self._shown: dict[ProcessId, dict[MessageId, int | None]] = {}

    # -- while it runs ------------------------------------------------------------------------------------------------

    def on_life(self, node: Node) -> None:
        self._position[node.pid] = node.application.position or None
        self._shown[node.pid] = {}

    def on_submit(self, node: Node, message: AppMessage) -> None:
        if message.id not in self.messages:
            self.messages[message.id] = message
            self.missing[message.id] = list(message.destinations)
            self.submitters[message.id] = []
        self.submitters[message.id].append((node.pid, node.life))

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        position, group = delivery.position, self.topology.group_of[node.pid]
        self._check_validity(node, group, delivery.message)
        if delivery.stage != FINAL:
            self._check_early(node, delivery.message.id)
            return
        self._shown[node.pid][delivery.message.id] = None
        self.deliveries += 1
        before = self._position[node.pid]
        if before is None and replay:
            before = position - 1
        if position != (before or 0) + 1:
            self.report("integrity", f"process {node.pid} delivers number {position} after number {before or 0}")
        self._position[node.pid] = position
        log = self.logs[group]
        entry = (delivery.message.id, delivery.timestamp, delivery.expired)
        if position <= len(log):
            if log[position - 1] != entry:
                known = log[position - 1]
                self.report(
                    "agreement",
                    f"delivery {position} of group {group} is {known[0].hex()} at {known[1]} for others,"
                    f" {delivery.message.id.hex()} at {delivery.timestamp} for process {node.pid}",
                )
        elif position == len(log) + 1:
            self._extend(group, log, entry)
        else:
            self.report("prefix order", f"process {node.pid} delivers number {position}; its group has {len(log)}")

    def _check_validity(self, node: Node, group: GroupId, message: AppMessage) -> None:
        known = self.messages.get(message.id)
        if known is None:
            self.report("validity", f"process {node.pid} delivers {message.id.hex()}, which nobody multicast")
        elif message.payload != known.payload or message.destinations != known.destinations:
            self.report("validity", f"process {node.pid} delivers {message.id.hex()} with other contents")
        elif group not in message.destinations:
            self.report(
                "validity", f"process {node.pid} delivers {message.id.hex()}, which is not for its group {group}"
            )

    def _check_early(self, node: Node, message_id: MessageId) -> None:
        shown, now = self._shown[node.pid], node.world.now
        if message_id in shown:
            at = shown[message_id]
            if at is None:
                self.report("integrity", f"process {node.pid} delivers {message_id.hex()} finally and then early")
            elif now - at < _REMEMBERED_RETRIES * node.protocol.options.retry_us:
                self.report("integrity", f"process {node.pid} delivers {message_id.hex()} early twice")
        shown[message_id] = now

    def _extend(
        self, group: GroupId, log: list[tuple[MessageId, Timestamp, bool]], entry: tuple[MessageId, Timestamp, bool]
    ) -> None:
        message_id, timestamp, expired = entry
        if log and timestamp <= log[-1][1]:
            self.report("order", f"group {group} delivers {message_id.hex()} at {timestamp} after {log[-1][1]}")
        log.append(entry)
        if expired:
            self._expired.add(message_id)
            return
        owner = self._stamped.setdefault(timestamp, message_id)
        if owner != message_id:
            self.report("order", f"{owner.hex()} and {message_id.hex()} both have timestamp {timestamp}")
        missing = self.missing.get(message_id)
        if missing is not None and group in missing:
            missing.remove(group)
            if not missing:
                del self.missing[message_id]
        if message_id in self._in_group[group]:
            self.report("integrity", f"group {group} delivers {message_id.hex()} twice")
        self._in_group[group].add(message_id)
        stamp = self._stamps.setdefault(message_id, timestamp)
        if stamp != timestamp:
            self.report("agreement", f"{message_id.hex()} is at {stamp} in one group, at {timestamp} in group {group}")

    # -- at the end ---------------------------------------------------------------------------------------------------

    def required(self, message_id: MessageId) -> bool:
        """Whether it must be delivered: it was delivered with effect somewhere, or multicast by a process that did not
        die since (and not too late to have an effect)."""
        if self.world is None:
            raise AssertionError("attach the checker to a world first")
        if len(self.missing[message_id]) < len(self.messages[message_id].destinations):
            return True
        nodes = self.world.nodes
        return message_id not in self._expired and any(
            nodes[pid].up and nodes[pid].life == life for pid, life in self.submitters[message_id]
        )

    def unfinished(self, dead: Collection[ProcessId] = ()) -> bool:
        """Whether something that must be delivered is still missing somewhere, but at the dead."""
        if self.world is None:
            raise AssertionError("attach the checker to a world first")
        for pid, node in self.world.nodes.items():
            if pid in dead or not self.world.belongs(pid):
                continue
            if not node.up or node.engine.position < len(self.logs[self.topology.group_of[pid]]):
                return True
            if not node.protocol.is_member():
                return True
        return any(self.required(message_id) for message_id in self.missing)

    def finish(self, dead: Collection[ProcessId] = ()) -> None:
        """Liveness, agreement across groups and the graph. Call it when the healed world has had its time; dead: who
        need not have finished."""
        if self.world is None:
            raise AssertionError("attach the checker to a world first")
        for pid, node in self.world.nodes.items():
            if pid in dead or not self.world.belongs(pid):
                continue
            expected = len(self.logs[self.topology.group_of[pid]])
            position = node.engine.position if node.up else 0
            if position < expected:
                self.report("liveness", f"process {pid} has {position} deliveries; its group has {expected}")
            if node.up and not node.protocol.is_member():
                self.report("liveness", f"process {pid}, whose disk was lost, was not readmitted")
        for message_id, groups in self.missing.items():
            if self.required(message_id):
                partly = len(groups) < len(self.messages[message_id].destinations)
                why = "though other groups have it" if partly else "though its sender lives"
                self.report(
                    "agreement" if partly else "liveness",
                    f"{message_id.hex()} was not delivered in groups {groups}, {why}",
                )
        self._check_graph()

    def _check_graph(self) -> None:
        """The union of the groups' sequences has no cycle (Kahn's algorithm)."""
        after: dict[MessageId, list[MessageId]] = {}
        waits: dict[MessageId, int] = {}
        for log in self.logs.values():
            previous = None
            for message_id, _, expired in log:
                if expired:
                    continue
                waits.setdefault(message_id, 0)
                if previous is not None:
                    after.setdefault(previous, []).append(message_id)
                    waits[message_id] += 1
                previous = message_id
        free = [node for node, count in waits.items() if not count]
        done = 0
        while free:
            done += 1
            for node in after.get(free.pop(), ()):
                waits[node] -= 1
                if not waits[node]:
                    free.append(node)
        if done < len(waits):
            stuck = sorted(node.hex() for node, count in waits.items() if count)[:4]
            self.report("global order", f"the groups' delivery orders form a cycle around {', '.join(stuck)}")


class Fifo(Checker):
    """See the module. A message that another process multicast, too (a retry), or the same one in another life, says
    nothing about its sender's order; nor does one that was delivered too late to have an effect."""

    def __init__(self, properties: Properties):
        super().__init__()
        self._properties = properties

    def finish(self) -> None:
        """Call it at the end of a run."""
        senders: dict[tuple[ProcessId, int], list[MessageId]] = {}
        for message_id, submitters in self._properties.submitters.items():
            if len(set(submitters)) == 1:
                senders.setdefault(submitters[0], []).append(message_id)
        for group, log in self._properties.logs.items():
            late = {message_id for message_id, _, expired in log if expired}
            places = {message_id: place for place, (message_id, _, _) in enumerate(log)}
            for (pid, _), sent in senders.items():
                here = [m for m in sent if m not in late and group in self._properties.messages[m].destinations]
                self._check(group, pid, here, places)

    def _check(self, group: GroupId, pid: ProcessId, sent: list[MessageId], places: dict[MessageId, int]) -> None:
        """Whoever is delivered here comes after all that were sent before it."""
        before = None
        for message_id in reversed(sent):
            place = places.get(message_id)
            if before is not None and (place is None or place > places[before]):
                what = "does not deliver" if place is None else "delivers later"
                self.report(
                    "fifo",
                    f"group {group} {what} {message_id.hex()}, which process {pid} multicast before {before.hex()}",
                )
            if place is not None:
                before = message_id


class Genuineness(Checker):
    """See the module.

    frames: protocol messages sent to other processes, by type. foreign: how often a process took part in a message that
    it neither sent nor was addressed by; a violation for a genuine protocol, a number for the others.
    """

    watches_protocol = watches_sends = True

    def __init__(self, topology: Topology, specification: Specification):
        super().__init__()
        self.topology = topology
        self.genuine = specification.genuine
        self.foreign = 0
        self.counts: dict[int, int] = {}
        self.names = {t.__struct_config__.tag: t.__name__ for t in specification.messages}  # type: ignore[attr-defined]
        tags = {name: tag for tag, name in self.names.items()}
        self._of_groups = {tags[name] for name in _OF_GROUPS if name in tags}
        self._exempt = set() if self.genuine else {tags[t.__name__] for t in specification.housekeeping}
        self._participants: dict[MessageId, set[ProcessId]] = {}
        self._pairs: set[tuple[ProcessId, ProcessId]] = set()
        self._seen: set[tuple[ProcessId, tuple[GroupId, ...]]] = set()
        self._lost: dict[ProcessId, set[ProcessId]] = {}

    def on_life(self, node: Node) -> None:
        lost = self._lost[node.pid] = set()
        heed = node.protocol.on_connected

        def on_connected(peer: ProcessId, up: bool, now: int) -> None:
            (lost.discard if up else lost.add)(peer)
            heed(peer, up, now)

        setattr(node.protocol, "on_connected", on_connected)  # noqa: B010 - a method of this one object

    def on_submit(self, node: Node, message: AppMessage) -> None:
        participants = self._participants.get(message.id)
        if participants is None:
            participants = {p for p, g in self.topology.group_of.items() if g in message.destinations}
            self._participants[message.id] = participants
        if (node.pid, message.destinations) not in self._seen:
            self._seen.add((node.pid, message.destinations))
            self._join(node.pid, participants)
        participants.add(node.pid)

    def _join(self, pid: ProcessId, participants: set[ProcessId]) -> None:
        participants.add(pid)
        self._pairs.update((a, b) for a in participants for b in participants)

    def on_frame(self, sender: ProcessId, to: tuple[ProcessId, ...], frame: bytes) -> None:
        if frame[0] != PROTOCOL:
            return
        tag = frame[2]
        self.counts[tag] = self.counts.get(tag, 0) + len(to)
        if tag in self._exempt:
            return
        for found in _ID_IN_FRAME.finditer(frame):
            participants = self._participants.get(found[1])
            if participants is not None:
                for peer in to:
                    if peer not in participants or sender not in participants:
                        self._foreign(sender, peer, tag, f"about {found[1].hex()}")
        if tag in self._of_groups:
            return
        group_of, pairs = self.topology.group_of, self._pairs
        for peer in to:
            if (sender, peer) not in pairs and group_of[peer] != group_of[sender]:
                self._foreign(sender, peer, tag, "though no message involves both")

    def on_handled(
        self, node: Node, handler: str, args: tuple[Any, ...], sends: list[tuple[tuple[ProcessId, ...], Any, bool]]
    ) -> None:
        for to, message, _ in sends:
            if isinstance(message, Relay):
                self._relayed(node.pid, to, [one.id for one in message.messages])
            elif isinstance(message, Asked):
                self._relayed(node.pid, to, message.ids)

    def _relayed(self, sender: ProcessId, to: tuple[ProcessId, ...], ids: list[MessageId]) -> None:
        """These are asked to pass messages on; they may be, or the frame is foreign."""
        group_of, lost = self.topology.group_of, self._lost[sender]
        for message_id in ids:
            participants = self._participants.get(message_id, set())
            for peer in to:
                asks_its_own = group_of[peer] == group_of[sender] and sender in participants
                if peer not in participants and asks_its_own and not lost.isdisjoint(participants):
                    self._join(peer, participants)

    def _foreign(self, sender: ProcessId, receiver: ProcessId, tag: int, why: str) -> None:
        self.foreign += 1
        if self.genuine:
            name = self.names.get(tag, str(tag))
            self.report("genuineness", f"process {sender} sends {name} to process {receiver}, {why}")


def attach(world: World, *checkers: Checker) -> None:
    """Let these checkers watch the world, which has not started."""
    for checker in checkers:
        checker.world = world
        world.observers.append(checker)
