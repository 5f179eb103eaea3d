"""What a process knows of a message's stamps and of who has accepted them (White-Box, Fig. 4, lines 10-17 and 32-34).

The leader of each destination group stamps m in a ballot (ACCEPT). Who has the stamps of all groups accepts them, and
acknowledges them by the *vector* of their ballots. m is committed, at the highest of these stamps, once a quorum of
every group has acknowledged one vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from multicast.parts.inspection import DELIVERED, seen
from multicast.types import AppMessage, Ballot, GroupId, MessageId, ProcessId, Timestamp, Topology

START, PROPOSED, ACCEPTED, COMMITTED = range(4)

Vector = tuple[Ballot, ...]
"""Ballots of a message's destination groups, in the order of its destinations."""


class EntryState(msgspec.Struct, array_like=True, gc=False):
    """A message in a process's state, as votes and states tell it; also its saved form. phase: ACCEPTED or COMMITTED.
    final: None unless COMMITTED."""

    message: AppMessage
    phase: int
    local: Timestamp
    final: Timestamp | None


_encode = msgspec.msgpack.Encoder().encode
decode_entry = msgspec.msgpack.Decoder(EntryState).decode


class Entry:
    """A message that is not settled.

    local: its own group's stamp. accepts: group -> (ballot, stamp) of the latest ACCEPT. acks: vector -> processes that
    acknowledged it (leader). sent: whether DELIVER was sent in the present ballot. position: of its delivery here, 0
    before.
    """

    __slots__ = ("accepts", "acks", "final", "id", "local", "message", "phase", "position", "seen_at", "sent")

    def __init__(self, message_id: MessageId, now: int):
        self.id = message_id
        self.message: AppMessage | None = None
        self.phase = START
        self.local: Timestamp | None = None
        self.final: Timestamp | None = None
        self.accepts: dict[GroupId, tuple[Ballot, Timestamp]] = {}
        self.acks: dict[Vector, set[ProcessId]] = {}
        self.position = 0
        self.sent = False
        self.seen_at = now

    def state(self) -> EntryState:
        """Of a message that was accepted."""
        assert self.message is not None and self.local is not None
        return EntryState(self.message, self.phase, self.local, self.final)

    def encode(self) -> bytes:
        """Its saved form."""
        return _encode(self.state())

    def take(self, state: EntryState) -> None:
        """Have the stamps and the phase that a new leader's state, or the own disk, says."""
        self.message, self.phase = state.message, state.phase
        self.local, self.final = state.local, state.final
        self.position = 0

    def begin_anew(self) -> None:
        """Another ballot begins. Line 44 must also clear `Delivered` (`sent`): what was sent in the ballot before is
        not known to have arrived in this one."""
        self.sent = False
        self.acks.clear()

    def hold(self, group: GroupId, ballot: Ballot, local: Timestamp) -> bool:
        """Line 10: keep an ACCEPT. Returns False if a later ballot of this group has stamped the message, too."""
        held = self.accepts.get(group)
        if held is not None and ballot < held[0]:
            return False
        self.accepts[group] = (ballot, local)
        return True

    def seen(self, blocked_by: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """See `MulticastProtocol.inspect`. stamps: of the ACCEPTs held. acks: who has acknowledged the vector that most
        have."""
        phase = DELIVERED if self.position else ("start", "proposed", "accepted", "committed")[self.phase]
        stamps = {group: stamp for group, (_, stamp) in self.accepts.items()}
        acks = max((sorted(processes) for processes in self.acks.values()), key=len, default=[])
        return seen(phase, self.local, self.final, blocked_by, stamps, acks=acks)

    @property
    def vector(self) -> Vector | None:
        """The ballots of the ACCEPTs held; None if some are missing."""
        message, accepts = self.message, self.accepts
        if message is None or len(accepts) < len(message.destinations):
            return None
        return tuple(accepts[g][0] for g in message.destinations)

    @property
    def highest(self) -> Timestamp:
        """The highest stamp held."""
        return max(stamp for _, stamp in self.accepts.values())


class Quorums:
    """Line 17, at a leader: when a message is committed. leaders: whether the leaders of the other destination groups
    must be among those who acknowledge."""

    def __init__(self, self_id: ProcessId, topology: Topology, leaders: bool):
        self.leaders = leaders
        self._self_id = self_id
        self._group = topology.group_of[self_id]
        self._topology = topology

    def acknowledge(self, entry: Entry, sender: ProcessId, vector: Vector) -> bool:
        """A process accepts the stamps of this vector. Returns whether the message is committed now."""
        acknowledged = entry.acks.setdefault(vector, set())
        acknowledged.add(sender)
        return self._is_committed(entry, vector, acknowledged)

    def _is_committed(self, entry: Entry, vector: Vector, acknowledged: set[ProcessId]) -> bool:
        """A quorum of each destination group, this leader among them, and the ACCEPTs of these ballots."""
        message = entry.message
        if message is None or self._self_id not in acknowledged:
            return False
        of = zip(message.destinations, vector, strict=True)
        if not all(self._has_quorum(group, ballot, acknowledged) for group, ballot in of):
            return False
        for group, ballot in zip(message.destinations, vector, strict=True):
            held = entry.accepts.get(group)
            if held is None or held[0] != ballot:
                return False
            if self.leaders and ballot.leader not in acknowledged:
                return False
        return True

    def lacks_one(self, entry: Entry, vector: Vector) -> bool:
        """Whether a single further acknowledgement may commit the message."""
        groups = entry.message.destinations if entry.message is not None else ()
        needed = sum([self._topology.quorum_in(*of) for of in zip(groups, vector, strict=False)])
        return len(entry.acks.get(vector, ())) + 1 >= needed

    def _has_quorum(self, group: GroupId, ballot: Ballot, acknowledged: set[ProcessId]) -> bool:
        return self._topology.has_quorum(group, ballot, acknowledged)

    def silent(self, entry: Entry, leader: Callable[[GroupId], ProcessId], again: bool) -> tuple[ProcessId, ...]:
        """The processes whose acknowledgements this leader lacks, and the `leader` of each other group as far as is
        known. again: of a group from which nothing has come, all processes, since another one may lead."""
        message, vector = entry.message, entry.vector
        assert message is not None
        acknowledged = entry.acks.get(vector, set()) if vector is not None else set()
        silent: set[ProcessId] = set()
        for group in message.destinations:
            members, held = self._topology.groups[group], entry.accepts.get(group)
            if group != self._group:
                silent.add(leader(group))
            if (again or held is not None) and not (held and self._has_quorum(group, held[0], acknowledged)):
                silent.update(p for p in members if p not in acknowledged)
            if again and self.leaders and held is not None and held[0].leader not in acknowledged:
                silent.update(members)  # another one may lead, who has nothing to ask for
        if self._self_id not in acknowledged:
            silent.add(self._self_id)
        return tuple(sorted(silent))
