"""Whether a process has the connections that a leader needs, and what comes of it where it leads."""

from __future__ import annotations

import pytest

from multicast.parts.ballots import FOLLOWER, Agreed, Doubt
from multicast.parts.reach import Reach
from multicast.types import Ballot, Topology
from tests.multicast.test_detector import FIRST, Member

TOPOLOGY = Topology({0: (0, 1, 2), 1: (3, 4, 5)})
LEADERS = {0: Ballot(1, 0), 1: Ballot(1, 3)}
LONG = 400
"""Of an election time-out of 100."""


def reach(pid: int, leaders: bool) -> Reach:
    made = Reach(pid, 100)
    if leaders:
        assert made.need_leaders(TOPOLOGY, LEADERS) is LEADERS
    else:
        made.need_quorums(TOPOLOGY)
    return made


def parted(made: Reach, now: int) -> bool:
    made.look(now)
    return made.parted


def test_who_has_long_not_reached_another_leader_is_parted_until_it_does() -> None:
    made = reach(0, leaders=True)
    made.connected(3, False, 10)
    assert not made.is_whole() and not parted(made, LONG + 9) and parted(made, LONG + 10)
    made.connected(3, True, LONG + 11)
    assert made.is_whole() and not parted(made, LONG + 12)


def test_of_two_leaders_that_do_not_reach_one_another_the_higher_is_more_patient() -> None:
    low, high = reach(0, leaders=True), reach(3, leaders=True)
    low.connected(3, False, 0)
    high.connected(0, False, 0)
    assert parted(low, LONG) and not parted(high, LONG)
    assert not parted(high, 2 * LONG - 1) and parted(high, 2 * LONG)


def test_who_leads_now_is_who_must_be_reached() -> None:
    made = Reach(0, 100)
    leaders = made.need_leaders(TOPOLOGY, dict(LEADERS))
    made.connected(3, False, 0)
    leaders[1] = Ballot(2, 4)
    assert made.is_whole() and not parted(made, LONG)


@pytest.mark.parametrize("leaders", [True, False])
def test_who_reaches_no_quorum_of_another_group_is_parted_once_that_has_lasted(leaders: bool) -> None:
    made = reach(0, leaders)
    made.connected(5, False, 0)
    assert made.is_whole() and not parted(made, LONG)
    made.connected(4, False, 100)
    assert not made.is_whole() and not parted(made, LONG + 99) and parted(made, LONG + 100)
    made.connected(5, True, LONG + 101)
    assert made.is_whole() and not parted(made, LONG + 102)


def test_other_protocols_do_without_the_leader_of_another_group() -> None:
    made = reach(0, leaders=False)
    made.connected(3, False, 0)
    assert made.is_whole() and not parted(made, LONG)


def test_a_leader_that_was_removed_is_nobody_to_be_reached() -> None:
    made = Reach(0, 100)
    made.need_leaders(TOPOLOGY, {**LEADERS, 1: Ballot(1, 9)})
    made.connected(9, False, 0)
    assert made.is_whole() and not parted(made, LONG)


def test_the_own_group_and_a_protocol_that_needs_nothing_are_left_out() -> None:
    own, nothing = reach(0, leaders=True), Reach(0, 100)
    for pid in (1, 2):
        own.connected(pid, False, 0)
    for pid in (3, 4, 5):
        nothing.connected(pid, False, 0)
    assert own.is_whole() and nothing.is_whole() and not parted(own, LONG) and not parted(nothing, LONG)


def test_a_leader_that_is_parted_asks_to_be_relieved_and_is_missed_by_who_asks() -> None:
    leader = Member(0)
    leader.detector.begin(has_majority=True)
    leader.detector.reach.need_leaders(TOPOLOGY, LEADERS)
    leader.detector.on_connected(3, False, 0)
    leader.detector.pulse(LONG - 1, leader.out)
    assert not leader.detector.resigning
    leader.detector.pulse(LONG, leader.out)
    assert leader.detector.resigning


def test_only_who_has_all_connections_takes_over_from_who_asks_to_be_relieved() -> None:
    fit, unfit = Member(1), Member(2)
    for member in (fit, unfit):
        member.detector.reach.need_leaders(TOPOLOGY, LEADERS)
        member.detector.begin(has_majority=False)
        member.detector.wait(0)
        assert member.election.state is FOLLOWER
    unfit.detector.on_connected(3, False, 0)
    for now in range(10, 170, 10):  # it is heard so often that nobody loses patience otherwise
        for member in (fit, unfit):
            member.detector.heard(now, resigning=True)
            member.pass_time(now)
    assert unfit.detector._question == 0 and fit.detector._question > 0  # it has asked, as soon as it might
    assert fit.campaigns == [] and fit.election.promised == FIRST


def test_where_nobody_can_do_better_who_does_not_hear_the_leader_is_not_agreed_with() -> None:
    """All of another shard is down, and one link of the own one is broken: its two ends would depose one another."""
    fit, unfit = Member(1), Member(1)
    for member in (fit, unfit):
        member.detector.reach.need_leaders(TOPOLOGY, LEADERS)
        member.detector.wait(0)
        if member is unfit:
            member.detector.on_connected(3, False, 5)
        member.detector.heard(10, resigning=True)
    assert fit.hear(2, Doubt(FIRST, 7), 11) == [Agreed(FIRST, 7)]
    assert unfit.hear(2, Doubt(FIRST, 7), 11) == []
