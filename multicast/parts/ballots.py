"""What a process may be in a ballot, and what the members of a group tell each other of ballots. See parts.leadership.

Subclasses of `Vote`, `State`, `Joined` and `Heartbeat` say more: what their protocol's paper says.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from multicast.parts.portions import Portion
from multicast.protocol import PeerError
from multicast.types import Ballot, GroupId, ProcessId, Topology

REJOINING, PROMISED, CANDIDATE, ELECT = "rejoining", "promised", "candidate", "elect"
JOINED, FOLLOWER, LEADER, REMOVED = "joined", "follower", "leader", "removed"

_MEMBERS = (PROMISED, CANDIDATE, ELECT, JOINED, FOLLOWER, LEADER)

TRANSITIONS: dict[str, dict[str, str]] = {
    "lose the disk": {PROMISED: REJOINING},
    "leave": dict.fromkeys((*_MEMBERS, REJOINING), REMOVED),
    "promise": {**dict.fromkeys(_MEMBERS, PROMISED), REJOINING: REJOINING},
    "campaign": dict.fromkeys(_MEMBERS, CANDIDATE),
    "choose": {CANDIDATE: ELECT},
    "lead": {CANDIDATE: LEADER},
    "return": {REJOINING: PROMISED},
    "join": {PROMISED: JOINED},
    "confirm": {ELECT: LEADER, JOINED: FOLLOWER},
    "step down": {LEADER: PROMISED},
}
"""What happens -> state before -> state after; nothing else may happen. PROMISED: waits for the state of its promised
ballot; every life begins so. CANDIDATE: collects votes for its own. ELECT and JOINED: has taken over the ballot's
state, as its leader and as another member, but does not know yet that it has begun. REJOINING: promises only if it is
new (parts.rejoin). REMOVED: belongs to the group no more (multicast.membership), and does nothing."""

FIRST_NUMBER = 1


NOBODY = -1
"""Leads a group that is not known (multicast.membership): what is sent to it goes nowhere."""


class KnownLeaders(dict[GroupId, Ballot]):
    """group -> the latest ballot heard of, whose leader is asked about what waits for that group. Of a group of which
    nothing was heard yet: its first ballot."""

    def __init__(self, topology: Topology):
        super().__init__({g: Ballot(FIRST_NUMBER, members[0]) for g, members in topology.groups.items()})
        self._acting = dict(self)
        self._topology = topology

    def __missing__(self, group: GroupId) -> Ballot:
        members = self._topology.groups[group]
        return Ballot(FIRST_NUMBER, members[0]) if members else Ballot(0, NOBODY)

    def whom(self, group: GroupId) -> ProcessId:
        """To whom that goes which its leader should get. If who led it last, as far as is known here, was removed,
        somebody else answers who does."""
        leader, members = self[group].leader, self._topology.groups[group]
        return leader if leader in members or not members else members[0]

    def learn(self, group: GroupId, ballot: Ballot, by: ProcessId | None = None) -> bool:
        """Somebody says that this ballot's leader leads that group. Whether it may now answer what it did not before:
        the ballot is new, or this is the first time that its leader says so itself (`by`)."""
        if self._topology.group_of.get(ballot.leader) != group:
            raise PeerError(f"process {ballot.leader} does not belong to group {group}")
        if ballot < self[group]:
            return False
        before = self[group]
        new = ballot > before
        self[group] = ballot
        if by == ballot.leader and ballot > self._acting.setdefault(group, before):
            self._acting[group] = ballot
            return True
        return new


class Vote(Portion, array_like=True, gc=False):
    """I promise `ballot`; this is my state. joined: the ballot in which it was formed. position: my last delivery."""

    ballot: Ballot
    joined: Ballot
    position: int
    entries: list[Any]


class State(Portion, array_like=True, gc=False):
    """The state in which the ballot begins, or, for one who comes late, the leader's present one. reach: it leaves out
    what was delivered up to this position."""

    ballot: Ballot
    reach: int
    entries: list[Any]


class NewLeader(msgspec.Struct, array_like=True, tag=120, gc=False):
    """Promise me this ballot. position: what I have of the group's history."""

    ballot: Ballot
    position: int


class Nack(msgspec.Struct, array_like=True, tag=121, gc=False):
    """I have promised this higher ballot."""

    ballot: Ballot


class Joined(msgspec.Struct, array_like=True, tag=122, gc=False):
    """I have taken over the state of this ballot."""

    ballot: Ballot


class Heartbeat(msgspec.Struct, array_like=True, tag=123, gc=False):
    """The leader lives, and has deliveries up to `position`. resigning: its clock is off, or it does not reach
    the leader of another group; another one that can should lead."""

    ballot: Ballot
    position: int
    resigning: bool


class Pulse(msgspec.Struct, array_like=True, tag=115, gc=False):
    """The leader of this ballot lives. obeyed: a quorum has answered it lately; if not, members miss it as if it were
    silent."""

    overtakes: ClassVar[bool] = True
    ballot: Ballot
    obeyed: bool


class Echo(msgspec.Struct, array_like=True, tag=119, gc=False):
    """I have promised no ballot above this one, and hear its leader."""

    overtakes: ClassVar[bool] = True
    ballot: Ballot


class Doubt(msgspec.Struct, array_like=True, tag=110, gc=False):
    """I miss the leader of `ballot`, the highest that I have promised. Do you miss yours? question: a number for the
    answers."""

    overtakes: ClassVar[bool] = True
    ballot: Ballot
    question: int


class Agreed(msgspec.Struct, array_like=True, tag=114, gc=False):
    """I miss mine, too. ballot: the highest that I know of. question: of the Doubt."""

    overtakes: ClassVar[bool] = True
    ballot: Ballot
    question: int


class LeaderIs(msgspec.Struct, array_like=True, tag=99, gc=False):
    """The leader of this ballot leads my group. From that leader itself: it acts as the leader from now on."""

    ballot: Ballot
