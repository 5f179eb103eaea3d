"""What a process may conclude from the clocks of its group, and who waits since when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multicast.membership import Change, Views
from multicast.parts.group_clocks import GroupClocks
from multicast.types import VIEW_BITS, Ballot

FIRST, SECOND = Ballot(1, 0), Ballot(2, 1)


def clocks(replicas: int = 3) -> GroupClocks:
    return GroupClocks(Views(range(replicas)), FIRST)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 50)), max_size=40))
def test_the_quorum_clock_is_what_a_quorum_of_clocks_has_reached(reports: list[tuple[int, int]]) -> None:
    known, told = clocks(5), dict.fromkeys(range(5), 0)
    for process, clock in reports:
        known.report(process, FIRST, clock, 0)
        told[process] = max(told[process], clock)
    assert known.quorum_clock == max(c for c in (0, *told.values()) if sum(t >= c for t in told.values()) >= 3)


def test_a_report_of_a_later_epoch_counts_once_that_epoch_is_joined() -> None:
    known = clocks()
    known.report(0, FIRST, 3, 0)
    known.report(1, SECOND, 9, 0)
    known.report(2, SECOND, 7, 0)
    assert (known.quorum_clock, known.horizon) == (0, 0)
    known.begin(SECOND, 0, 0)
    assert (known.quorum_clock, known.leader_clock) == (7, 9)


def test_of_two_reports_of_a_later_epoch_the_second_one_counts() -> None:
    known = clocks()
    for clock in (5, 9):
        known.report(1, SECOND, clock, 0)
        known.report(2, SECOND, clock, 0)
    known.begin(SECOND, 0, 0)
    assert (known.quorum_clock, known.leader_clock) == (9, 9)


def test_a_report_of_a_later_epoch_counts_though_one_of_a_still_later_one_has_come() -> None:
    known = clocks()
    for sender in (1, 2):
        known.report(sender, SECOND, 9, 0)
        known.report(sender, Ballot(SECOND.number + 1, 2), 12, 0)
    known.begin(SECOND, 0, 0)
    assert known.quorum_clock == 9


def test_in_a_smaller_view_fewer_clocks_are_a_quorum_though_none_of_them_rises() -> None:
    views = Views(range(2))
    known = GroupClocks(views, FIRST)
    known.report(0, FIRST, 9, 0)
    known.report(1, FIRST, 7, 0)
    assert known.quorum_clock == 7
    views.change(Change(0, False, 1))
    known.begin(Ballot((1 << VIEW_BITS) + 2, 0), 0, 0)
    known.report(0, FIRST, 9, 0)
    assert known.quorum_clock == 9


def test_a_leaders_clock_counts_once_its_proposals_are_here() -> None:
    known = clocks()
    known.report(0, FIRST, 9, 2)
    known.extend(1, 4)
    assert known.leader_clock == 4
    known.extend(2, 5)
    assert known.leader_clock == 9


def test_of_a_leaders_clocks_that_wait_for_its_proposals_the_highest_counts() -> None:
    known = clocks()
    known.report(0, FIRST, 9, 1)
    known.report(0, FIRST, 12, 2)
    known.extend(2, 5)
    assert known.leader_clock == 12


def test_what_a_member_told_before_it_lost_its_disk_does_not_count_with_what_others_tell_afterwards() -> None:
    known = clocks()
    known.report(1, FIRST, 5, 0)
    known.report(2, FIRST, 100, 0)
    known.report(2, SECOND, 200, 0)
    assert known.quorum_clock == 5
    known.forget(2)
    known.begin(SECOND, 0, 0)
    known.report(1, SECOND, 80, 0)
    assert known.quorum_clock == 5
    known.report(2, SECOND, 60, 0)
    assert known.quorum_clock == 60


def test_the_clock_of_an_earlier_leader_is_not_that_of_the_present_one() -> None:
    known = clocks()
    known.report(0, FIRST, 9, 0)
    known.begin(SECOND, 0, 3)
    assert known.leader_clock == 3
    known.report(0, FIRST, 20, 0)
    known.report(0, SECOND, 20, 0)
    assert known.leader_clock == 3
