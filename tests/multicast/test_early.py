"""Optimistic deliveries and direct learners: the parts (quasi-genuine draft, Sections 3.2 and 3.4)."""

from __future__ import annotations

import random

from multicast.parts.early import EarlyDeliveries
from multicast.parts.learner import RemoteLearner
from multicast.protocol import Outbox, Saved
from multicast.protocols.quasi_genuine import Early, QuasiGenuine, QuasiGenuineOptions
from multicast.types import OPTIMISTIC, AppMessage, Ballot, Topology, new_message_id

NOW, DAY_US = 1_700_000_000_000_000, 86_400_000_000


def message(number: int) -> AppMessage:
    return AppMessage(bytes([number]) * 16, (0,), b"", 0)


def due(early: EarlyDeliveries, now: int) -> list[int]:
    return [m.id[0] for _, m in early.due(now, now)]


def test_messages_are_due_in_the_order_of_their_stamps_once_w_has_passed() -> None:
    early = EarlyDeliveries(10, 100, 0)
    for stamp, number in ((7, 1), (5, 2), (9, 3)):
        early.expect((stamp, 0, number, 1, 1), message(number), 0)
    assert early.wake_at == 15
    assert due(early, 14) == []
    assert due(early, 17) == [2, 1]
    assert due(early, 99) == [3]
    assert early.wake_at is None


def test_each_final_delivery_out_of_the_early_order_is_one_mistake() -> None:
    early = EarlyDeliveries(0, 100, 0)
    for number in (1, 2, 3, 4):
        early.expect((number, 0, 0, 1, number), message(number), 0)
    assert due(early, 9) == [1, 2, 3, 4]
    for number in (2, 1, 3, 4):
        early.final(message(number).id)
    assert (early.early, early.mistakes, early.missed) == (4, 1, 0)


def test_what_is_delivered_finally_first_is_not_delivered_early_any_more() -> None:
    early = EarlyDeliveries(10, 100, 0)
    early.expect((5, 0, 0, 1, 1), message(1), 0)
    early.final(message(1).id)
    assert due(early, 99) == []
    assert (early.mistakes, early.missed) == (0, 1)


def test_a_message_that_is_never_delivered_finally_is_forgotten() -> None:
    early = EarlyDeliveries(0, 100, 0)
    for number in (1, 2):
        early.expect((number, 0, 0, 1, number), message(number), 0)
    assert due(early, 1) == [1]
    assert due(early, 50) == [2]
    early.forget(20)
    early.final(message(2).id)
    assert early.mistakes == 0


def test_a_clock_that_is_set_right_makes_nobody_forget_what_was_delivered_early() -> None:
    """What was a day late is in time again, and a copy is none the newer for that."""
    process = QuasiGenuine(0, Topology.grid(1, 3), QuasiGenuineOptions(optimistic=True, wait_us=0), random.Random(0))
    copy, out = Early(1, 1, NOW - 2 * DAY_US, message(1), []), Outbox()
    process.clock_correction = -DAY_US
    process.on_start(Saved({}, 0, True), NOW, out)
    for now in range(NOW, NOW + 3 * process.options.retry_us, process.options.retry_us):
        process.on_message(1, copy, now, out)
        process.on_tick(now, out)
        process.clock_correction = 0
    assert [stage for _, _, stage, _ in out.deliveries] == [OPTIMISTIC]


def test_no_more_wait_than_the_limit_and_none_twice() -> None:
    early = EarlyDeliveries(0, 2, 0)
    for number in (1, 1, 2, 3):
        early.expect((number, 0, 0, 1, number), message(number), 0)
    assert due(early, 9) == [1, 2]


def test_what_will_be_expired_is_not_delivered_early() -> None:
    """By its own stamp, or as its final one comes after the last final delivery."""
    created, window = 1_700_000_000_000_000, 60_000
    for rtc, final, number in ((created + window + 1, 0, 0), (1, created + window + 1, 0), (1, created + window, 1)):
        early = EarlyDeliveries(10, 100, window)
        early.expect((rtc, 0, 0, 1, 1), AppMessage(new_message_id(created, 1), (0,), b"", 0), final)
        assert len(list(early.due(created + 2 * window, 1))) == number


BALLOT = Ballot(1, 0)


def test_an_instance_is_learned_from_a_quorum_of_acceptors() -> None:
    learner: RemoteLearner[str] = RemoteLearner(2)
    assert learner.tell(BALLOT, 1, 0, "a") == []
    assert learner.accepted(0, BALLOT, [1]) == []
    assert learner.accepted(0, BALLOT, [1]) == []
    assert learner.accepted(2, BALLOT, [1]) == ["a"]
    assert learner.accepted(1, BALLOT, [1]) == []


def test_votes_may_come_before_the_leaders_word() -> None:
    learner: RemoteLearner[str] = RemoteLearner(2)
    for voter in (0, 1):
        assert learner.accepted(voter, BALLOT, [4]) == []
    assert learner.tell(BALLOT, 4, 3, "d") == ["d"]


def test_an_instance_waits_for_those_before_it() -> None:
    learner: RemoteLearner[str] = RemoteLearner(2)
    learner.tell(BALLOT, 1, 0, "a")
    learner.tell(BALLOT, 3, 0, "c")
    for voter in (0, 1):
        assert learner.accepted(voter, BALLOT, [3]) == []
    learner.accepted(0, BALLOT, [1, 2])
    assert learner.accepted(1, BALLOT, [1]) == ["a"]
    assert learner.accepted(1, BALLOT, [2]) == ["c"]


def test_what_the_leader_knows_to_be_decided_needs_no_votes() -> None:
    learner: RemoteLearner[str] = RemoteLearner(2)
    learner.tell(BALLOT, 1, 0, "a")
    assert learner.tell(BALLOT, 3, 2, "c") == ["a"]


def test_votes_of_different_ballots_do_not_count_together() -> None:
    learner: RemoteLearner[str] = RemoteLearner(2)
    higher = Ballot(2, 1)
    learner.tell(BALLOT, 1, 0, "a")
    learner.accepted(0, BALLOT, [1])
    assert learner.accepted(1, higher, [1]) == []
    assert learner.accepted(2, BALLOT, [1]) == []
    assert learner.tell(higher, 1, 0, "b") == []
    assert learner.accepted(2, higher, [1]) == ["b"]


def test_what_was_chosen_in_one_ballot_is_proposed_anew_in_the_next() -> None:
    learner: RemoteLearner[str] = RemoteLearner(2)
    higher = Ballot(2, 1)
    learner.tell(BALLOT, 1, 0, "a")
    for voter in (0, 1):
        learner.accepted(voter, BALLOT, [1, 3])
    assert learner.tell(higher, 1, 0, "a") == []
    learner.tell(higher, 2, 0, "b")
    learner.tell(higher, 3, 0, "c")
    learner.accepted(0, higher, [1, 2])
    assert learner.accepted(1, higher, [1, 2]) == ["a", "b"]


def test_votes_that_nobody_explains_are_not_kept_for_ever() -> None:
    learner: RemoteLearner[str] = RemoteLearner(2)
    for instance in range(2, 10_000):
        for voter in (0, 1) if instance % 2 else (0,):
            learner.accepted(voter, BALLOT, [instance])
    assert len(learner._votes) + len(learner._chosen) <= 1_001
    assert learner.tell(BALLOT, 10_000, 9_999, "z") == []
    learner.accepted(0, BALLOT, [10_000])
    assert learner.accepted(2, BALLOT, [10_000]) == ["z"]
