"""Learning what another group decides from its acceptors, without waiting for a member to tell (quasi-genuine draft,
Section 3.4).

A group's acceptors send `paxos.Accepted` to processes of other groups too. Its leader tells them, together with each
Accept, what the instance means for them if it is decided in this ballot (`tell`). That is so once

- a quorum has accepted the instance in this ballot, and
- all instances before it, from those that the leader knew as decided on, are decided in this ballot, too: what an
  instance means (its stamps, its numbers) depends on those before it.

With a proposal the leader says up to where it knows all instances to be decided as it proposed them, so earlier ones
need no more votes. Votes of a lower ballot are dropped: what they decided is proposed again, or is known to the new
leader, who says so by other means. So are votes beyond `_INSTANCES_MAX`. What is lost is lost here, not in the group.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from multicast.types import Ballot, ProcessId

_INSTANCES_MAX = 1_000

T = TypeVar("T")


class RemoteLearner(Generic[T]):
    """What one process learns of one other group's decisions. quorum: of that group.

    ballot: the highest one heard of. known: all instances up to here are decided as they were proposed in it.
    """

    __slots__ = ("_chosen", "_last", "_told", "_votes", "ballot", "known", "quorum")

    def __init__(self, quorum: int):
        self.quorum = quorum
        self.ballot = Ballot(0, 0)
        self.known = 0
        self._last = 0
        self._votes: dict[int, set[ProcessId]] = {}
        self._chosen: set[int] = set()
        self._told: deque[tuple[int, T]] = deque()

    def _follow(self, ballot: Ballot) -> bool:
        if ballot > self.ballot:
            self.ballot = ballot
            self.known = self._last = 0
            self._votes.clear()
            self._chosen.clear()
            self._told.clear()
        return ballot == self.ballot

    def tell(self, ballot: Ballot, instance: int, decided: int, meaning: T) -> list[T]:
        """The leader of `ballot` proposes an instance, and knows all up to `decided`. Returns what is decided by that,
        in order."""
        if not self._follow(ballot):
            return []
        if instance > self._last:
            self._last = instance
            self._told.append((instance, meaning))
        self.known = max(self.known, decided)
        return self._take()

    def accepted(self, sender: ProcessId, ballot: Ballot, instances: list[int]) -> list[T]:
        """A member of the group accepted these instances. Returns as `tell`."""
        if not self._follow(ballot):
            return []
        for instance in instances:
            if instance <= self.known or instance in self._chosen:
                continue
            voters = self._votes.setdefault(instance, set())
            voters.add(sender)
            if len(voters) >= self.quorum:
                del self._votes[instance]
                self._chosen.add(instance)
        return self._take()

    def _take(self) -> list[T]:
        while self.known + 1 in self._chosen:
            self.known += 1
            self._chosen.discard(self.known)
        learned = []
        while self._told and self._told[0][0] <= self.known:
            learned.append(self._told.popleft()[1])
        if len(self._votes) + len(self._chosen) > _INSTANCES_MAX:
            self._prune()
        return learned

    def _prune(self) -> None:
        """Drop what is too far back: nothing was proposed to this process for long, or a vote was lost. The next
        proposal says anew up to where all is decided."""
        highest = max(max(self._votes, default=0), max(self._chosen, default=0))
        limit = max(self.known, highest - _INSTANCES_MAX // 2)
        self._votes = {k: v for k, v in self._votes.items() if k > limit}
        self._chosen = {k for k in self._chosen if k > limit}
