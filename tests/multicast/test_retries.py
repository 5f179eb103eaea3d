"""Retries and submissions: what waits is asked about in time, but never much at once."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast.parts import replicated
from multicast.parts.delivered import Known
from multicast.parts.retries import IDS_MAX, RESENT_BYTES, WINDOW_MAX, WINDOW_MIN, Retries, in_questions, resendable
from multicast.parts.submissions import Asked, Copies, Lacked, Submissions
from multicast.protocol import Outbox, PeerError
from multicast.protocols import white_box
from multicast.types import AppMessage, Ballot, Timestamp, Topology
from multicast.wire import PROTOCOL, Codec

PERIOD = 1_000
PAUSE_MAX = 5 * PERIOD
"""Four periods, and a quarter of that drawn."""


def retries() -> Retries[int]:
    return Retries(PERIOD, random.Random(1))


def message(number: int, payload: bytes = b"") -> AppMessage:
    return AppMessage(number.to_bytes(16, "big"), (0, 1), payload, 0)


def test_what_waits_alone_is_due_after_one_period_and_then_ever_more_rarely() -> None:
    waiting = retries()
    assert waiting.add(7, 100)
    assert not waiting.add(7, 200)
    assert waiting.wake(100) == 100 + PERIOD
    assert waiting.due(99 + PERIOD) == []
    now, pauses = 100 + PERIOD, []
    for _ in range(5):
        assert waiting.due(now) == [7]
        pauses.append(waiting.wake(now) - now)
        now += pauses[-1]
    assert all(n <= pause / PERIOD <= 1.25 * n for n, pause in zip((1, 2, 4, 4, 4), pauses, strict=True))
    waiting.discard(7)
    assert waiting.due(now) == [] and not waiting


def test_of_many_that_wait_no_more_than_the_window_are_asked_about_in_a_period() -> None:
    waiting = retries()
    for key in range(10_000):
        waiting.add(key, 0)
    asked = [key for now in range(PERIOD, 2 * PERIOD, 10) for key in waiting.due(now)]
    assert asked == list(range(WINDOW_MIN))
    asked += [key for now in range(2 * PERIOD, 3 * PERIOD, 10) for key in waiting.due(now)]
    assert asked == list(range(2 * WINDOW_MIN))


def test_answers_make_room_at_once_and_the_window_wider() -> None:
    waiting = retries()
    for key in range(10_000):
        waiting.add(key, 0)
    now, rounds = PERIOD, 0
    while waiting:
        for key in waiting.due(now):
            waiting.discard(key)
        now = max(now, waiting.wake(now))
        rounds += 1
    assert waiting.congestion_window == WINDOW_MAX
    assert rounds < 10_000 / WINDOW_MIN / 3


def test_nobody_is_asked_about_sooner_than_others_took_lately() -> None:
    waiting = retries()
    for key in range(100):
        waiting.add(key, 100 * key)
        if key >= 15:
            waiting.discard(key - 15)  # each comes after one period and a half
    waiting.add(1_000, 10_000)
    due = [now for now in range(10_000, 14_000, 10) if 1_000 in waiting.due(now)]
    assert 2 * PERIOD < due[0] - 10_000 <= 3 * PERIOD + PERIOD // 8


def test_an_idle_process_forgets_how_long_others_took() -> None:
    waiting = retries()
    waiting.add(1, 0)
    waiting.due(40 * PERIOD)
    waiting.discard(1)
    waiting.add(2, 50 * PERIOD)
    assert waiting.due(51 * PERIOD) == [2]


def test_when_it_is_somebody_else_who_knows_all_are_due_the_oldest_first() -> None:
    waiting = retries()
    for now, key in enumerate((3, 1, 2)):
        waiting.add(key, now)
    assert waiting.due(PERIOD) == [3]
    waiting.hurry()
    assert waiting.due(PERIOD) == [3, 1, 2]


def test_whoever_was_asked_in_vain_leaves_room_for_the_questions_to_another_one() -> None:
    waiting = retries()
    for key in range(WINDOW_MIN):
        waiting.add(key, 0)
    assert len(waiting.due(PERIOD)) == WINDOW_MIN
    waiting.hurry()
    assert waiting.due(PERIOD) == list(range(WINDOW_MIN))


class Naive:
    """What must hold of `Retries`, whatever it does: when each key was added, and last asked about."""

    def __init__(self) -> None:
        self.since: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.asked: list[tuple[int, int]] = []


@given(st.lists(st.tuples(st.sampled_from("aadth"), st.integers(0, 30), st.integers(0, 700)), max_size=150))
def test_each_key_is_asked_about_in_time_and_not_too_often(steps: list[tuple[str, int, int]]) -> None:
    """With few keys the window is never full: each is due between one pause and the longest, never sooner."""
    waiting, naive, now = retries(), Naive(), 0
    for kind, key, passed in steps:
        if kind == "a":
            assert waiting.add(key, now) == (key not in naive.since)
            naive.since.setdefault(key, now)
        elif kind == "d":
            waiting.discard(key)
            naive.since.pop(key, None)
            naive.last.pop(key, None)
        elif kind == "h":
            waiting.hurry()
            naive.last = dict.fromkeys(naive.since, -PERIOD)
        else:
            now += passed
            due = waiting.due(now)
            assert len(due) == len(set(due)) and set(due) <= set(naive.since)
            for found in due:
                assert now - naive.last.get(found, naive.since[found]) >= PERIOD
                naive.last[found] = now
        assert len(waiting) == len(naive.since)
    for _ in range(200):  # nobody comes any more: all are asked about, again and again
        now = max(now + 1, waiting.wake(now))
        for found in waiting.due(now):
            assert now - naive.last.get(found, naive.since[found]) <= PAUSE_MAX + PERIOD
            naive.last[found] = now
    assert set(naive.last) == set(naive.since)


def test_questions_and_answers_have_a_limited_size() -> None:
    assert [len(some) for some in in_questions(range(2 * IDS_MAX + 1))] == [IDS_MAX, IDS_MAX, 1]
    assert len(resendable(message(n) for n in range(2 * IDS_MAX))) == IDS_MAX
    large = [message(n, bytes(RESENT_BYTES)) for n in range(3)]
    assert resendable(large) == large[:1]
    assert resendable([]) == []


def test_a_sender_asks_where_it_had_sent_and_then_everybody_and_repeats_only_what_is_lacked() -> None:
    topology = Topology.grid(2, 3)
    submissions = Submissions(
        topology, lambda m: (0, 3), PERIOD, random.Random(1),
        delivered_at=lambda i: None, lacks=lambda i: False, take=lambda *args: None, on_known=lambda *args: None,
    )  # fmt: skip
    first, second = message(1), message(2)
    for sent in (first, second):
        submissions.add(sent, 0)
    out = Outbox()
    submissions.tick(PERIOD, out)
    assert out.sends == [((0, 3), Asked([first.id, second.id]), False)]
    out = Outbox()
    submissions.handlers[Lacked].call(3, Lacked([second.id, bytes(16)]), PERIOD, out)
    assert out.sends == [((3,), Copies([second]), False)]
    submissions.remove(second.id)
    out = Outbox()
    submissions.tick(3 * PERIOD, out)
    assert out.sends == [(topology.processes, Asked([first.id]), False)]


def test_who_is_asked_tells_what_it_has_delivered_and_what_it_lacks() -> None:
    """In one answer, however much that is."""
    delivered, pending, lacked, out = message(1), message(2), message(3), Outbox()
    taken: list[tuple[int, Any]] = []
    submissions = Submissions(
        Topology.grid(2, 3), lambda m: (0, 3), PERIOD, random.Random(1),
        delivered_at=lambda i: Timestamp(7, 1) if i == delivered.id else None,
        lacks=lambda i: i == lacked.id,
        take=lambda sender, copy, now, out: taken.append((sender, copy)),
        on_known=lambda sender, known, now, out: taken.append((sender, known)),
        payload=lambda i: pending if i == pending.id else None,
        refers=lambda sender, out: sender == 5,
    )  # fmt: skip
    asked, lack, copies = (submissions.handlers[kind].call for kind in (Asked, Lacked, Copies))
    asked(0, Asked([delivered.id, pending.id, lacked.id]), 0, out)
    asked(5, Asked([delivered.id]), 0, out)
    known = Known(delivered.id, Timestamp(7, 1))
    lack(4, Lacked([lacked.id, pending.id], [known, known]), 0, out)
    assert out.sends == [((0,), Lacked([lacked.id], [known]), False), ((4,), Copies([pending]), False)]
    assert taken == [(4, known), (4, known)]
    asked(0, Asked([delivered.id]), 0, out)
    assert out.sends[2:] == [((0,), Lacked([], [known]), False)]
    copies(0, Copies([lacked]), 0, out)
    assert taken[2:] == [(0, lacked)]


def lists_of(count: int) -> list[Any]:
    """Every message with a list that its receiver goes through, with so many in it."""
    ids, stamps = [bytes(16)] * count, [(bytes(16), Timestamp(1, 1))] * count
    known = [Known(bytes(16), Timestamp(1, 1))] * count
    asking = [Asked(ids), Lacked(ids), Lacked([], known), Copies([message(1)] * count)]
    return [*asking, white_box.Stamps(0, Ballot(1, 0), stamps, True), replicated.Stamps(Ballot(1, 0), stamps, True)]


@pytest.mark.parametrize(("most", "more"), list(zip(lists_of(IDS_MAX), lists_of(IDS_MAX + 1), strict=True)))
def test_a_longer_list_than_anybody_sends_is_refused_before_it_is_looked_at(most: Any, more: Any) -> None:
    codec = Codec((type(most),))
    assert codec.decode(codec.encode(PROTOCOL, most)) == (PROTOCOL, most)
    with pytest.raises(PeerError, match=f"length <= {IDS_MAX}"):
        codec.decode(codec.encode(PROTOCOL, more))
