"""Invariants of single protocols, checked on top of what every atomic multicast owes.

A protocol's invariants speak of its messages and variables; here they are known by name only, read off the objects of
the running processes. `CHECKERS` says which checkers watch which protocol.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from multicast.records import Delivered
from multicast.simulation.books import Books
from multicast.simulation.bounds import Bounds, Repetitions
from multicast.simulation.checkers import Checker
from multicast.simulation.horizons import Horizons
from multicast.simulation.logs import ReplicatedLogs, Streams
from multicast.simulation.reigns import BarrierReigns, PrimCastReigns, Reigns, ReplicatedReigns, WhiteBoxReigns
from multicast.simulation.remembered import Remembered
from multicast.simulation.timers import Patience, Portions, Timers
from multicast.simulation.transfers import Transfers
from multicast.simulation.views import Finishes, Flushes, Orders, Reveals, SafeCasts, Views
from multicast.simulation.watermarks import GroupWatermarks, Watermarks
from multicast.types import FINAL, AppMessage, GroupId, MessageId, ProcessId, Timestamp, Topology, created_us

if TYPE_CHECKING:
    from multicast.simulation.scene import Node

Vector = tuple[Any, ...]
_START, _COMMITTED = 0, 3
_STATES = ("NewLeaderAck", "NewState", "Joined")
"""Messages at which a process may change any stamp; otherwise a message gets its stamp with an ACCEPT or a delivery."""
_ACCEPTED_MAX = 1_000
"""So many of a group's latest accepted messages are checked when a process joins a ballot."""


class _Locals:
    """LocalTS of one process in one life, at any moment of it. O(1) per change, where a copy for each message that is
    accepted would cost as much as there are messages under way."""

    __slots__ = ("_changes", "now")

    def __init__(self) -> None:
        self.now = 0
        self._changes: dict[MessageId, list[tuple[int, Timestamp]]] = {}

    def change(self, message_id: MessageId, local: Timestamp) -> None:
        changes = self._changes.setdefault(message_id, [])
        if not changes or changes[-1][1] != local:
            self.now += 1
            changes.append((self.now, local))

    def at(self, moment: int, message_id: MessageId) -> Timestamp | None:
        """What it was when `now` was `moment`."""
        for changed, local in reversed(self._changes.get(message_id, ())):
            if changed <= moment:
                return local
        return None


class _Before:
    """The state of a leader when it acknowledged. position: how many deliveries it had."""

    __slots__ = ("locals", "moment", "position")

    def __init__(self, known: _Locals, position: int):
        self.locals = known
        self.moment = known.now
        self.position = position


class _Accepted:
    """m was acknowledged with ballots `vector` by a quorum of one group. before: for LocalTS of Invariant 5, if its
    leader is among them."""

    __slots__ = ("ballot", "before", "final", "id", "local")

    def __init__(self, message_id: MessageId, ballot: Any, local: Timestamp, final: Timestamp, before: _Before | None):
        self.id = message_id
        self.ballot = ballot
        self.local = local
        self.final = final
        self.before = before


class WhiteBoxInvariants(Checker):
    """White-Box, Fig. 6, Invariants 1-5, with the garbage collection in mind: a process that delivered m may have
    dropped the rest of what it knew of it, and one that installed m from a peer's journal never knew its local
    timestamp.

    Invariants 2 and 5 are about every process whose cballot is higher; they are checked when a process gets its
    cballot, and when the quorum becomes complete later than that.
    """

    watches_protocol = True

    def __init__(self, topology: Topology):
        super().__init__()
        self.topology = topology
        self._stamps: dict[tuple[MessageId, GroupId, Any], Timestamp] = {}
        self._destinations: dict[MessageId, tuple[GroupId, ...]] = {}
        self._acks: dict[tuple[MessageId, Vector, GroupId], set[ProcessId]] = {}
        self._before: dict[tuple[MessageId, Vector, GroupId], _Before] = {}
        self._known: dict[ProcessId, _Locals] = {}
        self._accepted: dict[GroupId, deque[_Accepted]] = {g: deque(maxlen=_ACCEPTED_MAX) for g in topology.groups}
        self._locals: dict[tuple[GroupId, MessageId], Timestamp] = {}
        self._finals: dict[MessageId, Timestamp] = {}
        self._owners: dict[Timestamp, MessageId] = {}
        self._positions: dict[tuple[GroupId, MessageId], int] = {}
        self._joined: dict[ProcessId, Any] = {}
        self._held: dict[tuple[ProcessId, int, MessageId, Vector], set[ProcessId]] = {}
        self._uncommitted: dict[tuple[ProcessId, int, MessageId], Any] = {}

    @property
    def _topology_now(self) -> Topology:
        return self.world.topology if self.world is not None else self.topology

    # -- what is seen -------------------------------------------------------------------------------------------------

    def on_life(self, node: Node) -> None:
        self._joined.pop(node.pid, None)
        self._known[node.pid] = _Locals()

    def on_submit(self, node: Node, message: AppMessage) -> None:
        self._destinations[message.id] = message.destinations

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        if delivery.stage == FINAL:
            self._positions.setdefault((self.topology.group_of[node.pid], delivery.message.id), delivery.position)
            self._note(node, delivery.message.id)

    def on_handled(
        self, node: Node, handler: str, args: tuple[Any, ...], sends: list[tuple[tuple[ProcessId, ...], Any, bool]]
    ) -> None:
        received = type(args[1]).__name__ if handler == "on_message" else ""
        joined = node.protocol.leadership.joined  # type: ignore[attr-defined]
        newly = self._joined.get(node.pid) != joined
        if newly or received in _STATES:
            self._on_joined(node, joined)
        if received == "Accept" or handler == "on_install":
            self._note(node, args[1].id)
        if sends:
            self._on_sends(node, sends)
        if received == "AcceptAck":
            self._on_ack_received(args[0], args[1])
            self._check_commits(node, args[0], args[1])
        if newly:
            for accepted in self._accepted[self.topology.group_of[node.pid]]:
                self._check(node, accepted)

    def _on_joined(self, node: Node, joined: Any) -> None:
        self._joined[node.pid] = joined
        for message_id in node.protocol.entries:  # type: ignore[attr-defined]
            self._note(node, message_id)

    def _note(self, node: Node, message_id: MessageId) -> None:
        """This message's stamp may have changed."""
        entry = node.protocol.entries.get(message_id)  # type: ignore[attr-defined]
        if entry is not None and entry.phase != _START and entry.local is not None:
            self._known[node.pid].change(message_id, entry.local)

    def _on_sends(self, node: Node, sends: list[tuple[tuple[ProcessId, ...], Any, bool]]) -> None:
        acks = []
        for _, message, _ in sends:
            kind = type(message).__name__
            if kind == "Accept":
                self._on_accept(node, message)
            elif kind == "AcceptAck":
                acks.append(message)
            elif kind == "Deliver":
                self._on_deliver_sent(node, message)
        for ack in acks:
            self._on_ack_sent(node, ack)

    @staticmethod
    def _is_late(node: Node, message_id: MessageId, timestamp: Timestamp) -> bool:
        """Whether the message comes too late for the deduplication window: it has no effect, and may come again."""
        window: int = node.protocol.options.dedup_window_us
        return window > 0 and timestamp.time > created_us(message_id) + window

    def _on_accept(self, node: Node, accept: Any) -> None:
        """Invariant 1."""
        if accept.group == self.topology.group_of[node.pid] and accept.ballot.leader == node.pid:
            self._known[node.pid].change(accept.id, accept.local)
        if self._is_late(node, accept.id, accept.local):
            return
        known = self._stamps.setdefault((accept.id, accept.group, accept.ballot), accept.local)
        if known != accept.local:
            self.report(
                "invariant 1", f"{accept.id.hex()} is stamped {known} and {accept.local} in ballot {accept.ballot}"
            )

    def _final(self, message_id: MessageId, vector: Vector) -> Timestamp | None:
        """The global timestamp that these ballots' stamps give; None if a stamp was never seen."""
        stamps = [
            self._stamps.get((message_id, b_group, b))
            for b_group, b in zip(self._groups(message_id), vector, strict=False)
        ]
        known = [s for s in stamps if s is not None]
        return max(known) if known and len(known) == len(stamps) else None

    def _groups(self, message_id: MessageId) -> tuple[GroupId, ...]:
        return self._destinations.get(message_id, ())

    def _on_ack_sent(self, node: Node, ack: Any) -> None:
        """Remember LocalTS of Invariant 5 where the sender leads its group's ballot."""
        if not any(ballot.leader == node.pid for ballot in ack.ballots):
            return
        before = _Before(self._known[node.pid], node.protocol.log.position)  # type: ignore[attr-defined]
        group = self.topology.group_of[node.pid]
        for message_id in ack.ids:
            if self._final(message_id, ack.ballots) is not None:
                self._before[message_id, ack.ballots, group] = before

    def _on_ack_received(self, sender: ProcessId, ack: Any) -> None:
        group = self.topology.group_of[sender]
        for message_id in ack.ids:
            key = (message_id, ack.ballots, group)
            acks = self._acks.setdefault(key, set())
            if sender in acks:
                continue
            acks.add(sender)
            self._on_quorum(key, sender)

    def _check_commits(self, node: Node, sender: ProcessId, ack: Any) -> None:
        """Line 17: what is committed by this acknowledgement has those of majorities, each by its ballot's view."""
        protocol: Any = node.protocol
        for message_id in ack.ids:
            entry = protocol.entries.get(message_id)
            held = self._held.setdefault((node.pid, node.life, message_id, ack.ballots), set())
            held.add(sender)
            if entry is None:
                continue
            key = (node.pid, node.life, message_id)
            before, self._uncommitted[key] = self._uncommitted.get(key), protocol.leadership.joined
            if entry.phase != _COMMITTED:
                continue
            del self._uncommitted[key]
            if before != protocol.leadership.joined or entry.position:
                continue
            for group, ballot in zip(self._groups(message_id), ack.ballots, strict=False):
                if not self._topology_now.has_quorum(group, ballot, held):
                    text = f"{message_id.hex()} is committed at process {node.pid} by {sorted(held)} in {ballot}"
                    self.report("invariant 2", f"{text}, no majority of group {group}")

    def _on_quorum(self, key: tuple[MessageId, Vector, GroupId], last: ProcessId) -> None:
        message_id, vector, group = key
        groups = self._groups(message_id)
        final = self._final(message_id, vector)
        if final is None or group not in groups:
            return
        ballot = vector[groups.index(group)]
        acks, has_quorum = self._acks[key], self._topology_now.has_quorum
        if not has_quorum(group, ballot, acks) or (ballot.leader != last and has_quorum(group, ballot, acks - {last})):
            return
        before = self._before.get(key) if ballot.leader in acks else None
        accepted = _Accepted(message_id, ballot, self._stamps[message_id, group, ballot], final, before)
        self._accepted[group].append(accepted)
        if self.world is not None:
            for pid in self._topology_now.groups[group]:
                if self.world.nodes[pid].up and pid in self._joined:
                    self._check(self.world.nodes[pid], accepted)

    def _on_deliver_sent(self, node: Node, deliver: Any) -> None:
        """Invariants 3 and 4."""
        if self._is_late(node, deliver.id, deliver.final):
            return
        group = self.topology.group_of[node.pid]
        if deliver.local is not None:
            local = self._locals.setdefault((group, deliver.id), deliver.local)
            if local != deliver.local:
                self.report(
                    "invariant 3a",
                    f"{deliver.id.hex()} has local timestamps {local} and {deliver.local} in group {group}",
                )
        final = self._finals.setdefault(deliver.id, deliver.final)
        if final != deliver.final:
            self.report("invariant 3b", f"{deliver.id.hex()} has global timestamps {final} and {deliver.final}")
        owner = self._owners.setdefault(deliver.final, deliver.id)
        if owner != deliver.id:
            self.report(
                "invariant 4", f"{owner.hex()} and {deliver.id.hex()} both have global timestamp {deliver.final}"
            )

    # -- what must hold -----------------------------------------------------------------------------------------------

    def _check(self, node: Node, accepted: _Accepted) -> None:
        """Invariants 2 and 5 at one process."""
        protocol: Any = node.protocol
        if protocol.leadership.joined <= accepted.ballot:
            return
        entry = protocol.entries.get(accepted.id)
        if entry is not None and entry.phase > 1:
            if entry.local not in (None, accepted.local) and not self._is_late(node, entry.id, entry.local):
                self._at(node, accepted, "2b", f"has local timestamp {entry.local}, not {accepted.local}")
        elif not self._delivered(protocol, accepted) and not self._behind(node, accepted):
            self._at(node, accepted, "2a", "is not known")
        if protocol.clock.value < accepted.final.time:
            self._at(node, accepted, "2c", f"needs clock {accepted.final.time}, it is {protocol.clock.value}")
        if accepted.before is not None:
            self._check_5(node, accepted, accepted.before)

    def _at(self, node: Node, accepted: _Accepted, invariant: str, text: str) -> None:
        protocol: Any = node.protocol
        self.report(
            f"invariant {invariant}",
            f"at process {node.pid} in ballot {tuple(protocol.leadership.joined)}: {accepted.id.hex()},"
            f" accepted in {tuple(accepted.ballot)}, {text}",
        )

    @staticmethod
    def _delivered(protocol: Any, accepted: _Accepted) -> bool:
        """Whether the process has delivered m, as far as it can still know."""
        if protocol.log.known(accepted.id) is not None:
            return True
        return bool(protocol.options.dedup_window_us > 0 and protocol.log.timestamp >= accepted.final)

    def _behind(self, node: Node, accepted: _Accepted) -> bool:
        """Whether a follower lacks m because it has yet to catch up with deliveries up to m's, which others may have
        dropped. (A leader catches up before it leads.)"""
        protocol: Any = node.protocol
        position = self._positions.get((self.topology.group_of[node.pid], accepted.id))
        if position is None or protocol.leadership.joined.leader == node.pid:
            return False
        return bool(protocol.log.position < position)

    def _check_5(self, node: Node, accepted: _Accepted, before: _Before) -> None:
        protocol: Any = node.protocol
        group = self.topology.group_of[node.pid]
        for entry in protocol.entries.values():
            if entry.phase == _START or entry.local is None or entry.local >= accepted.final:
                continue
            local = before.locals.at(before.moment, entry.id)
            if local == entry.local or self._is_late(node, entry.id, entry.local):
                continue  # a late copy, perhaps, of what that leader knew
            if local is not None and self._is_late(node, entry.id, local):
                local = None  # that leader had a late copy of what this process still knows
            was_below = local is not None and local < accepted.final
            position = self._positions.get((group, entry.id))
            if was_below or position is None or position > before.position:
                self._at(
                    node,
                    accepted,
                    "5",
                    f"has timestamp {accepted.final}, but {entry.id.hex()} has now local timestamp {entry.local},"
                    f" which the leader of that ballot knew as {local}",
                )


_OF_EACH = (Remembered, Timers, Patience, Books, Bounds, Repetitions)
CHECKERS: dict[str, tuple[type[Any], ...]] = {
    "skeen": (GroupWatermarks, *_OF_EACH),
    "white_box": (WhiteBoxInvariants, WhiteBoxReigns, Watermarks, GroupWatermarks, *_OF_EACH),
    "primcast": (PrimCastReigns, Horizons, Watermarks, GroupWatermarks, *_OF_EACH),
    "toto": (Views, Flushes, Finishes, Orders, Reveals, SafeCasts, Reigns, Transfers, Portions, *_OF_EACH),
    "ft_skeen": (ReplicatedLogs, ReplicatedReigns, GroupWatermarks, Transfers, Portions, *_OF_EACH),
    "fastcast": (ReplicatedLogs, ReplicatedReigns, GroupWatermarks, Transfers, Portions, *_OF_EACH),
    "quasi_genuine": (Streams, BarrierReigns, GroupWatermarks, Transfers, Portions, *_OF_EACH),
}  # fmt: skip


def invariant_checkers(protocol: str, topology: Topology) -> list[Checker]:
    """The checkers for this protocol's own invariants."""
    return [checker(topology) for checker in CHECKERS.get(protocol, ())]
