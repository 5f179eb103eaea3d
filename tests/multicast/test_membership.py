"""Views of a group, changes of them, and what is counted by which view."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast.membership import (
    Change,
    Founding,
    GroupIs,
    Membership,
    ViewIs,
    Views,
    change_of,
    change_payload,
    founding_of,
    founding_payload,
    payload_of,
)
from multicast.types import VIEW_BITS, AppMessage, Ballot, ProcessId, Topology


def _ballot(view: int) -> Ballot:
    return Ballot((view << VIEW_BITS) + 1, 0)


def _views(*changes: int) -> Views:
    """Of a group of 0, 1, 2; n adds process n, -n removes it. Each view has begun."""
    views = Views((0, 1, 2))
    for process in changes:
        assert views.change(Change(views.latest, process > 0, abs(process)))
        views.begin(views.latest)
    return views


def test_a_change_names_the_view_that_it_changes() -> None:
    views = Views((0, 1, 2))
    assert not views.change(Change(1, True, 3))
    assert views.change(Change(0, True, 3)) and views.of == {0: (0, 1, 2), 1: (0, 1, 2, 3)}
    assert not views.change(Change(0, False, 1))


@pytest.mark.parametrize("change", [Change(2, True, 2), Change(2, True, 0), Change(2, False, 7), Change(2, False, 2)])
def test_ids_are_not_used_again_and_only_members_go(change: Change) -> None:
    views = _views(5, -2)
    assert not views.change(change)


def test_a_ballot_tells_its_view_unless_that_is_the_first() -> None:
    assert [Ballot(3, 2).text, _ballot(0).text, _ballot(5).text] == ["3/2", "1/0", "5:1/0"]


def test_who_is_gone_and_since_when() -> None:
    membership = Membership(Topology({0: (0, 1, 2), 1: (3, 4, 5)}))
    views = membership.views[0]
    views.change(Change(0, False, 1))
    assert membership.gone() == {}, "until the view without it has begun it counts"
    views.begin(1)
    views.change(Change(1, True, 7))
    views.begin(2)
    membership.views[1].learn(ViewIs(4, (3, 4, 8), {}))
    assert (membership.gone(), membership.leaving()) == ({1: 1}, [5])


def test_who_was_removed_by_the_latest_view_is_left_to_the_leader_which_may_be_the_only_one_that_knows_it() -> None:
    """Told by another, it ends; and if those who know die, most of the view before are needed, it among them."""
    membership = Membership(Topology({0: (0, 1, 2, 3)}))
    views = membership.views[0]
    views.change(Change(0, False, 3))
    assert (membership.gone(), membership.leaving()) == ({}, [])
    views.begin(1)
    assert (membership.gone(), membership.leaving()) == ({}, [3])
    views.change(Change(1, False, 2))
    assert (membership.gone(), membership.leaving()) == ({}, [3]), "another view may begin, or not"
    views.begin(2)
    assert (membership.gone(), membership.leaving()) == ({3: 1}, [2])


def test_an_earlier_view_that_is_heard_of_late_changes_nothing() -> None:
    views = Views((3, 4, 5))
    assert views.learn(ViewIs(2, (3, 4, 8), {})) and views.learn(ViewIs(1, (3, 4), {}))
    assert views.latest == 2 and views.counting == ((3, 4, 8),) and views.everybody == (3, 4, 8)


def test_groups_that_are_founded_are_known_from_then_on_and_those_unknown_have_nobody() -> None:
    membership = Membership(Topology({0: (0, 1, 2)}))
    assert membership.groups[5] == () and not membership.has_quorum(5, _ballot(0), (8,))
    assert membership.add_group(GroupIs(5, (8, 9), {9: b"there"})) and not membership.add_group(GroupIs(5, (7,), {}))
    assert membership.groups == {0: (0, 1, 2), 5: (8, 9)} and membership.founded == [5]
    assert membership.note_of(9) == b"there" and membership.told(5) == GroupIs(5, (8, 9), {9: b"there"})


def test_a_founding_is_told_from_all_else_and_carries_what_is_the_applications() -> None:
    founding = Founding(GroupIs(5, (8, 9), {}), b"empty")
    message = AppMessage(bytes(16), (0,), founding_payload(founding), 1)
    assert founding_of(message) == founding and payload_of(message) == b"empty" and change_of(message) is None
    assert founding_of(AppMessage(bytes(16), (0, 1), founding_payload(founding), 1)) is None
    assert founding_of(AppMessage(bytes(16), (0,), change_payload(Change(0, True, 3)), 1)) is None


def test_the_last_member_stays() -> None:
    views = Views((4,))
    assert not views.change(Change(0, False, 4))


def test_until_a_view_has_begun_the_one_before_it_counts_too() -> None:
    views = Views((0, 1, 2, 3))
    views.change(Change(0, False, 3))
    assert views.can_elect({0, 1, 3}) and not views.can_elect({0, 1})
    assert views.can_begin(_ballot(1), {0, 1, 3}) and not views.can_begin(_ballot(1), {0, 1})
    assert views.begin(1) and not views.begin(1)
    assert views.can_elect({0, 1}) and views.can_begin(_ballot(1), {0, 1})


def test_who_is_added_elects_nobody_before_its_view_has_begun() -> None:
    views = Views((0,))
    views.change(Change(0, True, 1))
    assert views.can_elect({0}) and not views.can_elect({1})
    assert not views.can_begin(_ballot(1), {0})


def test_acknowledgements_are_counted_by_the_view_of_their_ballot() -> None:
    views = _views(3, 4)
    assert views.has_quorum(_ballot(0), {0, 1}) and not views.has_quorum(_ballot(2), {0, 1})
    assert views.has_quorum(_ballot(2), {2, 3, 4}) and not views.has_quorum(_ballot(0), {2, 3, 4})
    assert not views.has_quorum(_ballot(3), {0, 1, 2, 3, 4}), "nobody knows that view"


@given(st.lists(st.integers(3, 8), unique=True, max_size=4))
def test_majorities_of_neighbours_meet(added: list[ProcessId]) -> None:
    views = _views(*added, *(-p for p in added[:2]))
    for number in range(views.latest):
        some, others = (views.of[number], views.of[number + 1])
        for one in combinations(some, len(some) // 2 + 1):
            assert all(set(one) & set(other) for other in combinations(others, len(others) // 2 + 1))


@pytest.mark.parametrize("begun", [False, True])
def test_views_are_the_same_after_a_restart(begun: bool) -> None:
    views = _views(3)
    views.change(Change(1, True, 9, note=b"there"), 7)
    if begun:
        views.begin(2)
    again = Views((0, 1, 2))
    again.restore({number: views.encode(number) for number in (1, 2)}, 2 if begun else 1)
    assert (again.of, again.counting, again.latest) == (views.of, views.counting, 2)
    assert again.notes == views.notes == {3: b"", 9: b"there"}
    assert again.given(7) == [1, 2] and again.given(6) == [1]


def test_only_marked_messages_to_one_group_are_changes() -> None:
    change = Change(3, True, 9)
    assert change_of(AppMessage(bytes(16), (1,), change_payload(change), 0)) == change
    assert change_of(AppMessage(bytes(16), (1, 2), change_payload(change), 0)) is None
    assert change_of(AppMessage(bytes(16), (1,), b"put", 0)) is None
    assert change_of(AppMessage(bytes(16), (1,), change_payload(change)[:-1], 0)) is None


def test_a_topology_follows_its_views() -> None:
    known = Membership(Topology({0: (0, 1, 2), 1: (3,)}, {0: (4,)}))
    known.views[0].change(Change(0, True, 4))
    known.follow(0)
    assert known.groups[0] == (0, 1, 2, 4) and known.processes == (0, 1, 2, 4, 3) and known.group_of[4] == 0
    known.views[1].learn(ViewIs(2, (5, 6), {6: b"there"}))
    known.follow(1)
    assert known.members((1,)) == (5, 6) and known.group_of[5] == 1
    assert known.views[1].notes == {6: b"there"}
