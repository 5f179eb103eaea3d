"""Whether a process reaches the other groups, as who leads one must.

A leader speaks with other groups for its own: it hears of messages, and says what its group has decided. White-Box and
Skeen over consensus need a connection between any two leaders, the others one to a majority of each group. Where some
links are broken for good, and all others work, two groups would wait for each other without end, and everybody with
them whose messages are ordered behind.

So a leader that has long been without such a connection asks to be relieved, as one whose clock is off does
(`MulticastProtocol.on_clock`). Only members that have all of them, by what they know, heed that: if there are none,
because the other group is down, or all of it away, nothing changes, and who does not hear the leader deposes nobody for
that. Of two leaders the process with the lower id asks first, the other after twice the time: as a rule one of them
goes.

Nor need it be a leader that lacks them: what a process multicasts to groups from which it is cut off is passed on by
others (parts.submissions).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from multicast.types import Ballot, GroupId, ProcessId, Topology

L = TypeVar("L", bound=Mapping[GroupId, Ballot])

_TIMEOUTS = 4
"""So many election time-outs is long: a group whose leader has died has another one by then, and it is known."""


class Reach:
    """lost: to whom there is no connection -> since when. parted: by the last `look`, this process should not lead."""

    def __init__(self, self_id: ProcessId, election_timeout_us: int):
        self.lost: dict[ProcessId, int] = {}
        self.parted = False
        self._self_id = self_id
        self._patience_us = _TIMEOUTS * election_timeout_us
        self._topology: Topology | None = None
        self._leaders: Mapping[GroupId, Ballot] = {}

    def need_quorums(self, topology: Topology) -> None:
        """Who leads needs a connection to a quorum of every other group."""
        self._topology = topology

    def need_leaders(self, topology: Topology, leaders: L) -> L:
        """It needs one to its leader, too. leaders: as they are known, which may change; returned."""
        self._topology, self._leaders = topology, leaders
        return leaders

    def connected(self, peer: ProcessId, up: bool, now: int) -> None:
        """There is a connection to this peer again, or none any more, which it is told once."""
        if up:
            self.lost.pop(peer, None)
        else:
            self.lost[peer] = now

    def look(self, now: int) -> None:
        """To be called by a leader from time to time."""
        self.parted = any(now >= since + self._patience(peer) for peer, since in self._missing())

    def is_whole(self) -> bool:
        """Whether all connections are there that a leader needs."""
        return not any(self._missing())

    def is_cut_off(self, groups: Iterable[GroupId], now: int) -> bool:
        """Whether nothing has long had a way from here to any of these groups: there is no connection to their leaders,
        or, where leaders do not matter (`need_quorums`), to any member."""
        if not self.lost or self._topology is None:
            return False
        for group in groups:
            members, leader = self._topology.groups[group], None
            if group in self._leaders:
                leader = self._leaders[group].leader
            if not all(self.is_long_lost(p, now) for p in ((leader,) if leader in members else members)):
                return False
        return True

    def is_long_lost(self, peer: ProcessId, now: int) -> bool:
        """Whether there has been no connection to this peer for long."""
        return now >= self.lost.get(peer, now) + self._patience_us

    def reached(self, groups: Sequence[GroupId]) -> list[ProcessId]:
        """The members of these groups, other than this process, to whom there is a connection; if there is none, those
        of its own group."""
        if self._topology is None:
            return []
        own = self._topology.groups[self._topology.group_of[self._self_id]]
        for some in (self._topology.members(groups), own):
            if able := [p for p in some if p != self._self_id and p not in self.lost]:
                return able
        return []

    def _missing(self) -> Iterator[tuple[ProcessId, int]]:
        """Of each group that is not reached: one of those to whom there is no connection, and since when."""
        if not self.lost or self._topology is None:
            return
        for group, members in self._topology.groups.items():
            if self._self_id in members:
                continue
            leader = self._leaders[group].leader if group in self._leaders else None
            if leader in members and leader in self.lost:
                yield leader, self.lost[leader]
                continue
            away = sorted((self.lost[p], p) for p in members if p in self.lost)
            spare = len(members) - self._topology.quorum(group)
            if len(away) > spare:
                yield away[spare][1], away[spare][0]

    def _patience(self, peer: ProcessId) -> int:
        return self._patience_us * (1 if self._self_id < peer else 2)
