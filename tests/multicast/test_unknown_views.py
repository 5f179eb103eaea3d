"""What a member hears of a ballot in a view that it does not know."""

from __future__ import annotations

from multicast.parts.ballots import LEADER, Agreed
from multicast.parts.rejoin import Returned
from multicast.types import VIEW_BITS, Ballot
from tests.multicast.test_detector import FIRST, Member
from tests.multicast.test_leadership import Group

UNKNOWN = Ballot((1 << VIEW_BITS) + 5, 2)


def test_a_leader_does_not_stand_in_a_view_that_it_does_not_know_for_who_has_lost_its_disk() -> None:
    group = Group()
    leader, promised = group.members[0], group.election(0).promised
    leader.handlers[Returned].call(2, Returned(7, UNKNOWN), group.now, leader.out)
    assert leader.out.catch_ups == [2] and (group.election(0).state, group.election(0).promised) == (LEADER, promised)
    group.campaign(0)
    assert group.election(0).promised.view == 0


def test_a_member_does_not_stand_in_a_view_that_it_does_not_know_because_another_one_agrees() -> None:
    member = Member(1)
    member.election.knows_view = lambda sender, ballot, out: ballot.view == 0
    member.detector.wait(0)
    [doubt] = member.pass_time(200)
    member.hear(2, Agreed(UNKNOWN, doubt.question), 201)
    assert member.campaigns == [] and member.election.highest == FIRST
