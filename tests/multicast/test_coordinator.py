"""Changes of views at their coordinator, and what may happen to a process in a view."""

from __future__ import annotations

import pytest

from multicast.parts.coordinator import FLUSHING, PROPOSED, WATCHING, Alive, Coordinator, Flush
from multicast.parts.views import Cast, Flushed, NewView, ViewRecord
from multicast.protocol import Outbox
from multicast.types import Topology

TIMEOUT = 100
ALL = (0, 1, 2, 3, 4, 5)


class Rig:
    """The coordinator of process 0, of two groups of three."""

    def __init__(self) -> None:
        self.proposed: list[NewView] = []
        self.record = ViewRecord(1, list(ALL), 0, False, True, 0)
        self.coordinator = Coordinator(
            0, Topology.grid(2, 3), TIMEOUT, 200, may_propose=lambda: True, propose=self.proposed.append,
            ask=lambda holder, spans, now, out: None,
        )  # fmt: skip
        self.coordinator.lead(ALL, 0)

    def beat(self, now: int, *heard: int, deaf: tuple[int, ...] = ()) -> list[int]:
        """Who is asked to flush."""
        for p in heard:
            self.coordinator.hear(p, Alive(1, False), now)
            if p not in deaf:
                self.coordinator.reach(p, now)
        out = Outbox()
        self.coordinator.coordinate(self.record, now, out)
        return [p for to, message, _ in out.sends if isinstance(message, Flush) for p in to]

    def answer(self, now: int, *senders: int) -> None:
        for p in senders:
            self.coordinator.answer(p, Flushed(1, [0] * 6, [0] * 6, True), now, Outbox())


def test_while_all_members_live_nothing_happens():
    rig = Rig()
    assert rig.beat(TIMEOUT, *ALL) == []
    assert rig.coordinator.state == WATCHING


def test_a_silent_member_leaves_once_all_who_live_have_answered():
    rig = Rig()
    assert rig.beat(TIMEOUT, 1, 2, 3, 4) == list(ALL)
    assert rig.coordinator.state == FLUSHING
    rig.answer(TIMEOUT, 0, 1, 3, 4)
    assert rig.proposed == []
    rig.answer(TIMEOUT, 2)
    assert [new.members for new in rig.proposed] == [[0, 1, 2, 3, 4]]
    assert rig.coordinator.state == PROPOSED
    assert rig.beat(TIMEOUT + 1, 1, 2, 3, 4) == []


def test_the_silent_are_asked_again_and_everybody_while_those_who_answered_are_too_few():
    rig = Rig()
    rig.beat(TIMEOUT, 1, 2, 3, 4)
    rig.answer(TIMEOUT, 0, 1, 3)
    rig.coordinator.answer(4, Flushed(1, [0] * 6, [0] * 6, False), TIMEOUT, Outbox())
    assert rig.beat(TIMEOUT + 1, 1, 2, 3, 4) == list(ALL), "4 may have caught up"
    rig.answer(TIMEOUT + 1, 4)
    assert rig.beat(TIMEOUT + 2, 1, 2, 3, 4) == [2, 5]


def test_no_view_begins_without_a_quorum_of_every_group():
    rig = Rig()
    assert rig.beat(TIMEOUT, 1, 2, 3) == []


def test_in_a_new_ballot_nothing_of_an_earlier_one_counts():
    rig = Rig()
    rig.beat(TIMEOUT, 1, 2, 3, 4)
    rig.answer(TIMEOUT, 0, 1, 2, 3)
    rig.coordinator.lead(ALL, TIMEOUT)
    rig.answer(TIMEOUT, 4)
    assert rig.proposed == []
    assert rig.coordinator.state == WATCHING


def test_a_new_ballot_proposes_although_an_earlier_one_has():
    rig = Rig()
    rig.beat(TIMEOUT, 1, 2, 3, 4)
    rig.answer(TIMEOUT, 0, 1, 2, 3, 4)
    assert rig.coordinator.state == PROPOSED
    rig.coordinator.lead(ALL, TIMEOUT)
    rig.beat(2 * TIMEOUT, 1, 2, 3, 4)
    rig.answer(2 * TIMEOUT, 0, 1, 2, 3, 4)
    assert len(rig.proposed) == 2


def test_a_member_that_has_stopped_ends_the_view_though_all_live():
    rig = Rig()
    rig.coordinator.hear(4, Alive(1, True), 1)
    assert rig.beat(2, *ALL) == list(ALL)


def test_who_was_outside_takes_the_place_of_who_has_died():
    rig = Rig()
    rig.coordinator.enter(ALL, (0, 1, 2, 3, 4), 1)
    rig.record = ViewRecord(2, [0, 1, 2, 3, 4], 1, False, True, 0)
    assert rig.beat(1 + TIMEOUT, 1, 2, 3, 5) == [0, 1, 2, 3, 4, 5]


def test_a_quorum_of_every_group_must_still_be_heard_when_all_have_answered():
    rig = Rig()
    rig.beat(TIMEOUT, 1, 2, 3, 4)
    rig.answer(TIMEOUT, 0, 1, 3, 4)
    rig.answer(2 * TIMEOUT, 2)
    assert rig.proposed == []


def test_who_has_left_must_be_heard_before_it_comes_again():
    rig = Rig()
    rig.beat(1, *ALL)
    rig.coordinator.enter(ALL, (0, 1, 2, 3, 4), 2)
    rig.record = ViewRecord(2, [0, 1, 2, 3, 4], 1, False, True, 0)
    assert rig.beat(3) == []
    rig.coordinator.hear(5, Alive(2, False), 4)
    assert rig.beat(4) == list(ALL)


def test_who_is_heard_but_not_reached_is_not_waited_for():
    rig = Rig()
    assert rig.beat(TIMEOUT // 2, 1, 2, 3, 4, 5, deaf=(5,)) == []
    assert rig.beat(TIMEOUT, 1, 2, 3, 4, 5, deaf=(5,)) == list(ALL)
    rig.answer(TIMEOUT, 0, 1, 2, 3, 4)
    assert [new.members for new in rig.proposed] == [[0, 1, 2, 3, 4]]


def test_a_portion_that_is_handed_out_is_followed_by_the_next_and_the_view_comes_last():
    rig = Rig()
    rig.coordinator.hand_out([Cast(1, 0, 1, [0] * 6, 0, [])])  # by a coordinator before this one
    rig.beat(TIMEOUT, 1, 2, 3, 4)
    for p in (0, 1, 3, 4):
        rig.answer(TIMEOUT, p)
    rig.coordinator.keep([Cast(1, 0, number, [0] * 6, 0, []) for number in range(2, 6)], TIMEOUT, Outbox())
    rig.coordinator.answer(2, Flushed(1, [5, 0, 0, 0, 0, 0], [0] * 6, True), TIMEOUT, Outbox())
    assert rig.coordinator.state == FLUSHING
    rig.coordinator.hand_out(rig.proposed[-1].casts)
    rig.coordinator.propose_if_ready(TIMEOUT, Outbox())
    assert [[cast.number for cast in new.casts] for new in rig.proposed] == [[2, 3], [4, 5]]
    assert [new.members for new in rig.proposed] == [[], [0, 1, 2, 3, 4]]
    assert rig.coordinator.state == PROPOSED
    rig.coordinator.enter(ALL, (0, 1, 2, 3, 4), TIMEOUT)
    assert not rig.coordinator.handed


def record(stopped: bool, complete: bool) -> ViewRecord:
    return ViewRecord(1, [0], 0, stopped, complete, 0)


@pytest.mark.parametrize(("what", "before", "after"), [
    ("stop", (False, True), (True, True)),
    ("stop", (False, False), (True, False)),
    ("catch up", (False, False), (False, True)),
    ("catch up", (True, False), (True, True)),
])  # fmt: skip
def test_what_happens_to_a_process_in_a_view(what, before, after):
    one = record(*before)
    one.move(what)
    assert (one.stopped, one.complete) == after


@pytest.mark.parametrize(("what", "before"), [("stop", (True, True)), ("catch up", (False, True))])
def test_what_cannot_happen_is_a_bug(what, before):
    with pytest.raises(AssertionError):
        record(*before).move(what)
