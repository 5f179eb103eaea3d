"""The return of a member without its disk, step by step."""

from __future__ import annotations

import random
from typing import Any

from multicast.membership import Change, Views
from multicast.parts.rejoin import MARKER_KEY, Highest, Rejoin, Returned, can_return
from multicast.protocol import Outbox, Saved
from multicast.types import VIEW_BITS, Ballot, ProcessId
from tests.multicast.test_leadership import Group

PERIOD = 100


class Members:
    """Members of one group; each answers at once with its ballot and its history."""

    def __init__(self, size: int, lost: set[ProcessId]):
        self.members = range(size)
        self.ballots = {p: Ballot(10 + p, p) for p in self.members}
        self.now = 1000
        self.waiting: list[tuple[ProcessId, ProcessId, Ballot]] = []
        self.parts: dict[ProcessId, Rejoin] = {}
        for p in self.members:
            self.start(p, Saved({}, lost=p in lost))

    def start(self, process: ProcessId, saved: Saved) -> Outbox:
        out = Outbox()
        self.parts[process] = Rejoin(Views(self.members), process, PERIOD, random.Random(process))
        self.parts[process].restore(saved, self.now, out)
        return out

    def run(self, silent: set[ProcessId] = frozenset()) -> None:  # type: ignore[assignment]
        """One period: everybody's tick, everything that follows from it."""
        self.now += PERIOD
        for p in self.members:
            part = self.parts[p]
            if p not in silent and (part.bound is None or p >= part.reach):
                out = Outbox()
                part.tick(self.now, out)
                self.carry_out(p, out, silent)

    def carry_out(self, sender: ProcessId, out: Outbox, silent: set[ProcessId]) -> None:
        for to, message, _ in out.sends:
            for peer in to:
                if peer not in silent:
                    self.receive(sender, peer, message, silent)

    def receive(self, sender: ProcessId, peer: ProcessId, message: Any, silent: set[ProcessId]) -> None:
        out = Outbox()
        if type(message) is Returned:
            bound = self.parts[peer].on_returned(sender, message, self.ballots[peer], peer, out)
            if bound is not None:
                self.waiting.append((sender, peer, bound))
        else:
            assert type(message) is Highest
            self.parts[peer].on_highest(sender, message, self.now)
        self.carry_out(peer, out, silent)


def test_a_member_with_its_disk_does_nothing() -> None:
    world = Members(3, set())
    assert not any(part.amnesiac for part in world.parts.values())
    assert world.parts[0].tick(0, Outbox()) is None and world.parts[0].may_join(Ballot(1, 1))


def test_it_waits_for_all_others_and_takes_the_maximum() -> None:
    world = Members(3, {1})
    world.run(silent={2})
    assert world.parts[1].bound is None and not world.parts[1].may_join(Ballot(99, 0))
    world.run()
    part = world.parts[1]
    assert part.bound == Ballot(12, 2) and part.reach == 2
    assert not part.may_join(Ballot(12, 2)) and part.may_join(Ballot(13, 0))


def test_it_asks_for_a_new_ballot_once_it_knows_the_bound() -> None:
    world = Members(3, {1})
    world.run()
    assert world.waiting == []
    out = Outbox()
    world.parts[1].tick(world.now + PERIOD, out)
    world.carry_out(1, out, set())
    assert world.waiting == [(1, 0, Ballot(12, 2)), (1, 2, Ballot(12, 2))]


def test_the_marker_lasts_until_it_is_finished() -> None:
    world = Members(3, set())
    out = world.start(1, Saved({}, lost=True))
    assert out.changes == [(MARKER_KEY, b"", ())]
    world.start(1, Saved({MARKER_KEY: b""}, position=7, first=False))
    assert world.parts[1].amnesiac
    world.run()
    out = Outbox()
    world.parts[1].finish(out)
    assert out.changes == [(MARKER_KEY, None, ())] and not world.parts[1].amnesiac


def test_answers_to_an_earlier_life_do_not_count() -> None:
    world = Members(3, {1})
    world.run(silent={2})
    out = Outbox()
    world.now += PERIOD
    world.parts[1].tick(world.now, out)
    ((_, question, _),) = out.sends
    world.start(1, Saved({}, lost=True))
    for p in (0, 2):
        assert not world.parts[1].on_highest(p, Highest(question.question, Ballot(5, 0), 0, 0), world.now)
    assert world.parts[1].bound is None


def test_two_of_five_come_back_but_three_do_not() -> None:
    world = Members(5, {1, 3})
    for _ in range(3):
        world.run()
    assert world.parts[1].bound == world.parts[3].bound == Ballot(14, 4)
    world = Members(5, {1, 2, 3})
    for _ in range(10):
        world.run()
    assert all(world.parts[p].bound is None for p in (1, 2, 3))


def test_an_amnesiac_among_the_answers_means_a_second_question() -> None:
    """An answer given before another member lost its disk says nothing of ballots that it began between."""
    world = Members(5, {1})
    world.run(silent={3, 4})
    world.ballots[0] = Ballot(50, 3)
    world.start(3, Saved({}, lost=True))
    world.run()
    assert world.parts[1].bound is None
    world.run()
    assert world.parts[1].bound == Ballot(50, 3)


def test_answers_to_the_first_question_do_not_count_as_answers_to_the_second() -> None:
    world = Members(5, {1})
    world.run(silent={3, 4})
    part, out = world.parts[1], Outbox()
    world.now += PERIOD
    part.tick(world.now, out)
    ((silent, question, _),) = out.sends
    assert silent == (3, 4)
    world.start(3, Saved({}, lost=True))
    world.run()
    for p in (0, 2, 3, 4):
        assert not part.on_highest(p, Highest(question.question, Ballot(5, 0), 0, 0), world.now)
    assert part.bound is None


def test_which_groups_can_take_a_member_back() -> None:
    assert [n for n in range(1, 8) if can_return(n)] == [3, 4, 5, 6, 7]


def test_who_was_added_joins_no_ballot_of_a_view_to_which_it_does_not_belong() -> None:
    """Of one that it does not know it may belong to the view."""
    views = Views((0, 1, 2))
    assert views.change(Change(0, True, 3))
    part = Rejoin(views, 3, PERIOD, random.Random(3))
    part.restore(Saved({}), 1, Outbox())
    part.bound = Ballot(0, 0)
    assert part.amnesiac
    assert [part.may_join(Ballot((view << VIEW_BITS) + 1, 0)) for view in range(3)] == [False, True, True]


def test_who_is_told_a_bound_that_it_has_passed_stands_above_all_that_it_has_promised() -> None:
    """One without memory repeats its bound, and the others go on meanwhile."""
    group = Group()
    group.campaign(2)
    assert group.election(1).promised == Ballot(2, 2)
    group.election(1).on_returned(0, Returned(7, Ballot(1, 0)), group.now, group.members[1].out)
    group.campaign(1)
    assert group.election(1).promised == Ballot(3, 1)
