"""Views and what is held in one: cuts, safe casts, gaps."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from multicast.parts.causal_view import CausalView
from multicast.parts.views import MISSING_MAX, Cast, Flushed, Gathering
from multicast.types import AppMessage, Topology

TWO = Topology.grid(2, 3)
MESSAGE = AppMessage(b"m" * 16, (0,), b"", 0)


def cast(author: int, number: int, n: int = 6) -> Cast:
    return Cast(7, author, number, [0] * n, 0, [])


def gathering(
    held: dict[int, list[int]],
    incomplete: tuple[int, ...] = (),
    members: tuple[int, ...] = TWO.processes,
    base: dict[int, list[int]] | None = None,
) -> Gathering:
    one = Gathering(7, members, TWO)
    for p, vector in held.items():
        one.add(p, Flushed(7, vector, (base or {}).get(p, [0] * len(vector)), p not in incomplete))
    return one


def test_a_flush_needs_a_complete_quorum_of_every_group() -> None:
    same = [1] * 6
    assert not gathering({p: same for p in (0, 1, 2, 3)}).suffices
    assert gathering({p: same for p in (0, 1, 3, 4)}).suffices
    assert not gathering({p: same for p in (0, 1, 3, 4)}, incomplete=(4,)).suffices
    assert gathering({p: same for p in (0, 1, 3, 4, 5)}, incomplete=(4,)).suffices


def test_who_has_caught_up_since_it_answered_counts() -> None:
    same = [1] * 6
    one = gathering({p: same for p in (0, 1, 3, 4)}, incomplete=(4,))
    one.add(4, Flushed(7, same, [0] * 6, True))
    assert one.suffices


def test_answers_about_another_view_or_other_members_do_not_count() -> None:
    one = Gathering(7, (0, 1, 3, 4), TWO)
    one.add(0, Flushed(6, [0] * 4, [0] * 4, True))
    one.add(1, Flushed(7, [0] * 3, [0] * 3, True))
    assert one.replies == {}


def test_who_is_suspected_does_not_count_and_what_it_alone_held_is_not_in_the_cut() -> None:
    zero, alone = [0] * 6, [0, 0, 2, 0, 0, 0]
    one = gathering({0: zero, 1: zero, 2: alone, 3: zero, 4: zero})
    assert one.suffices and one.lacking() == {2: [(2, 1, 2)]}
    rest = one.among([0, 1, 3, 4])
    assert rest.suffices and rest.lacking() == {} and rest.cut() == zero
    assert not one.among([0, 2, 3]).suffices
    assert one.among([0, 2, 3, 4]).cut() == alone  # it counts again when it is heard again


def test_who_is_outside_the_view_counts_while_the_casts_that_it_lacks_are_kept() -> None:
    """2 is outside; 3 has dropped two of the casts of 0, 4 one of them."""
    members, held = (0, 1, 3, 4), [4, 0, 0, 0]
    base = {0: [2, 0, 0, 0], 3: [2, 0, 0, 0], 4: [1, 0, 0, 0]}
    for known, counts in (([0, 0, 0, 0], False), ([1, 0, 0, 0], True), ([3, 0, 0, 0], True)):
        one = gathering({0: held, 2: known, 3: held, 4: held}, members=members, base=base).among(range(6))
        assert one.suffices is counts
        assert (2 in one.replies) is counts
    assert one.lacking() == {0: [(0, 4, 4)]}
    low = gathering({0: held, 2: [1, 0, 0, 0], 3: held, 4: held}, members=members, base=base).among(range(6))
    assert low.lacking() == {4: [(0, 2, 4)]}  # nobody else has all of it


def test_the_cut_is_what_somebody_holds_and_the_rest_travels_along() -> None:
    one = gathering({0: [2, 0, 0, 1, 0, 0], 1: [1, 0, 0, 3, 0, 0], 3: [2, 0, 0, 3, 0, 0], 4: [2, 0, 0, 1, 0, 0]})
    assert one.cut() == [2, 0, 0, 3, 0, 0]
    assert one.held_by_all() == [1, 0, 0, 1, 0, 0]
    assert one.lacking() == {0: [(0, 2, 2)], 1: [(3, 2, 3)]}
    one.keep([cast(0, 2), cast(3, 2)])
    assert one.lacking() == {1: [(3, 3, 3)]}
    one.keep([cast(3, 3)])
    assert one.lacking() == {}
    new = one.result([0, 1, 3], {}, 10_000)
    assert (new.number, new.members, new.cut) == (8, [0, 1, 3], [2, 0, 0, 3, 0, 0])
    assert [(c.author, c.number) for c in new.casts] == [(0, 2), (3, 2), (3, 3)]


def test_what_is_too_much_for_one_message_is_handed_out_before() -> None:
    one = gathering({0: [5, 0, 0, 0, 0, 0], 1: [0] * 6, 3: [0] * 6, 4: [0] * 6})
    one.keep([cast(0, number) for number in range(1, 6)])
    handed: set[tuple[int, int]] = set()
    given = []
    while not (new := one.result([0, 1, 3, 4], handed, 200)).members:
        assert new.number == 8
        given.append([c.number for c in new.casts])
        handed |= {(0, number) for number in given[-1]}
    assert given == [[1, 2], [3, 4]]
    assert (new.members, new.cut) == ([0, 1, 3, 4], [5, 0, 0, 0, 0, 0])
    assert [c.number for c in new.casts] == [5]


def test_who_lacks_very_much_is_not_waited_for_if_the_group_can_spare_it() -> None:
    much = [MISSING_MAX + 10, 0, 0, 0, 0, 0]
    held = {p: much for p in (0, 1, 3, 4)}
    assert gathering({**held, 2: [0] * 6}).held_by_all() == much
    assert gathering({0: much, 3: much, 4: much, 1: [0] * 6}).held_by_all() == [0] * 6
    assert gathering({**held, 2: [0] * 6}, incomplete=(1,)).held_by_all() == [0] * 6, "0 alone could finish the view"
    assert gathering({**held, 2: [9, 0, 0, 0, 0, 0]}).held_by_all() == much
    assert gathering({**held, 2: [10, 0, 0, 0, 0, 0]}).held_by_all()[0] == 10, "who lacks less is waited for"


def test_a_cast_is_accepted_after_its_past() -> None:
    view = CausalView(1, (0, 1, 2), 0, 2)
    first, second = Cast(1, 1, 1, [0, 0, 0], 0, [MESSAGE]), Cast(1, 2, 1, [0, 1, 0], 0, [])
    view.learn_from(second)
    assert view.arrive(second) == []
    assert view.gaps() == [(1, 1, 1)]
    assert view.holders((1, 1, 1)) == [2]
    assert view.arrive(first) == [first, second]
    assert view.gaps() == []
    assert view.arrive(first) == []
    assert view.silent_about()
    own = view.next_cast(5, [])
    assert own.past == [0, 1, 1]
    assert not view.silent_about()


def test_safe_is_what_a_majority_of_all_processes_holds() -> None:
    view = CausalView(1, (0, 1, 3, 4), 0, 4)
    for k in range(3):
        assert not view.learn(k, [2, 1, 0, 0])
    assert view.learn(3, [1, 1, 1, 0])
    assert view.safe == [1, 1, 0, 0]
    assert view.held_by_all() == [1, 1, 0, 0]
    assert view.wanted == [2, 1, 1, 0]


def test_nothing_is_safe_where_members_are_too_few() -> None:
    view = CausalView(1, (0, 1), 0, 2)
    view.learn(0, [1, 0])
    assert view.safe == [0, 0]


@given(seed=st.integers(0, 2**32), n=st.integers(1, 5))
def test_what_is_safe_is_closed_under_causality(seed: int, n: int) -> None:
    """Members cast and hear of each other at random; receipts come late; all see safe parts of one history."""
    rng = random.Random(seed)
    views = [CausalView(1, range(n), p, n // 2 + 1) for p in range(n)]
    links: dict[tuple[int, int], list[Cast]] = {(a, b): [] for a in range(n) for b in range(n) if a != b}
    casts: dict[tuple[int, int], Cast] = {}
    for _ in range(60):
        p, q = rng.randrange(n), rng.randrange(n)
        if p == q:
            new = views[p].next_cast(0, [MESSAGE] if rng.random() < 0.5 else [])
            views[p].learn_from(new)
            casts[p, new.number] = new
            for other in range(n):
                if other != p:
                    links[p, other].append(new)
        elif links[p, q] and rng.random() < 0.8:
            got = links[p, q].pop(0 if rng.random() < 0.8 else rng.randrange(len(links[p, q])))
            views[q].learn_from(got)
            views[q].arrive(got)
        else:
            views[q].learn(p, views[p].held)
    for view in views:
        for k, number in enumerate(view.safe):
            if number:
                assert all(map(int.__le__, casts[k, number].past, view.safe))
        for author, first, last in view.gaps():
            assert view.held[author] < first <= last <= view.wanted[author]
        assert sum(view.held) == len(view.everything())
