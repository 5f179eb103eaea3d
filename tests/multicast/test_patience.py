"""Elections take longer than the usual patience where what votes and states hold is large, or disks are slow. Then who
waits for a leader waits longer each time, until one leads."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from multicast.parts.ballots import CANDIDATE, FOLLOWER, LEADER, PROMISED, Joined, NewLeader, Pulse, State, Vote
from multicast.types import Ballot, ProcessId
from tests.multicast.test_leadership import OPTIONS, Group, Member, isolate

TIMEOUT_US = OPTIONS.election_timeout_us


class Slow(Group):
    """What of `kinds` is sent takes `us`."""

    def __init__(self, kinds: tuple[type, ...], us: int, to_all: bool):
        super().__init__(to_all)
        self.arrives: list[tuple[int, ProcessId, ProcessId, Any]] = []
        self._kinds, self._us = kinds, us
        for pid, member in self.members.items():
            for kind in kinds:
                handler = member.handlers[kind]
                member.handlers[kind] = handler._replace(call=self._later(pid, handler.call))

    def _later(self, to: ProcessId, call: Any) -> Any:
        def held_up(sender: ProcessId, message: Any, now: int, out: Any) -> None:
            self.arrives.append((now + self._us, to, call, (sender, message)))

        return held_up

    def live(self, us: int) -> None:
        end = self.now + us
        while self.now < end:
            super().live(OPTIONS.heartbeat_us // 4)
            due = [one for one in self.arrives if one[0] <= self.now]
            self.arrives = [one for one in self.arrives if one[0] > self.now]
            for _, to, call, what in due:
                call(*what, self.now, self.members[to].out)
                self.settle()


@pytest.mark.parametrize("to_all", [False, True])
@pytest.mark.parametrize("kinds", [(Vote,), (State,), (Joined,), (Vote, State, Joined)])
def test_somebody_leads_though_each_step_of_an_election_takes_longer_than_patience(
    kinds: tuple[type, ...], to_all: bool
) -> None:
    group = Slow(kinds, 5 * TIMEOUT_US // 2, to_all)
    group.live(TIMEOUT_US)
    group.cut = isolate(0)
    group.live(200 * TIMEOUT_US)
    assert sorted(group.states()[1:]) == [FOLLOWER, LEADER]
    ballot = group.election(1).promised
    group.live(20 * TIMEOUT_US)
    assert group.election(1).promised == group.election(2).promised == ballot, "and goes on to"


def test_who_has_promised_many_ballots_in_vain_waits_longer_until_one_begins() -> None:
    member, now, patience = Member(1), 0, []
    timer = member.leadership.election.detector._timer
    for number in range(2, 12):
        member.handlers[NewLeader].call(2, NewLeader(Ballot(number, 2), 0), now, member.out)
        patience.append((timer.deadline - now) // TIMEOUT_US)
        now += 1
    assert set(patience[:4]) == {1} and all(a <= b or b >= 8 for a, b in pairwise(patience)) and 8 <= patience[-1] < 16
    member.handlers[State].call(2, State(Ballot(11, 2), 0, []), now, member.out)
    assert member.leadership.election.state == FOLLOWER
    assert timer.deadline - now >= 8 * TIMEOUT_US, "that it has joined the ballot does not mean that it has begun"
    member.handlers[Pulse].call(2, Pulse(Ballot(11, 2), True), now, member.out)
    assert timer.deadline - now < 2 * TIMEOUT_US, "if this leader dies, it is missed as soon as any other one"
    member.handlers[NewLeader].call(2, NewLeader(Ballot(12, 2), 0), now, member.out)
    assert timer.deadline - now < 2 * TIMEOUT_US


def test_whoever_only_promises_has_the_usual_patience_with_a_leader_that_leads() -> None:
    """With consensus a follower is never more than that."""
    member = Member(1)
    timer = member.leadership.election.detector._timer
    for number in range(2, 12):
        member.handlers[NewLeader].call(2, NewLeader(Ballot(number, 2), 0), 0, member.out)
        member.handlers[Pulse].call(2, Pulse(Ballot(number, 2), True), 1, member.out)
    assert member.leadership.election.state == PROMISED and timer.deadline < 2 * TIMEOUT_US


def test_as_long_as_portions_come_nobody_is_missed() -> None:
    candidate, voter = Member(1), Member(2)
    candidate.leadership.election.campaign(0, candidate.out)
    ballot = candidate.leadership.election.promised
    voter.handlers[NewLeader].call(1, NewLeader(ballot, 0), 0, voter.out)
    for number in range(9):
        now = number * TIMEOUT_US
        vote = Vote(ballot, Ballot(1, 0), 0, [], number=number, count=10)
        candidate.handlers[Vote].call(2, vote, now, candidate.out)
        voter.handlers[State].call(1, State(ballot, 0, [], number=number, count=10), now, voter.out)
        assert min(p.leadership.election.detector._timer.deadline for p in (candidate, voter)) >= now + TIMEOUT_US
    assert (candidate.leadership.election.state, voter.leadership.election.state) == (CANDIDATE, PROMISED)
