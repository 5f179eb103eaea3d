"""Deadlines against a naive model, and the words of their contract."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multicast.parts.deadlines import Deadlines, earliest
from multicast.protocol import Outbox

NAMES = ("a", "b", "c")
STEPS = st.lists(
    st.tuples(st.sampled_from(("by", "restart", "stop", "run")), st.sampled_from(NAMES), st.integers(1, 30)),
    max_size=60,
)


@given(STEPS, st.integers(0, 9))
def test_timers_act_when_the_earliest_request_is_due_and_never_before(steps, period):
    acted: list[tuple[str, int]] = []

    def timer(name):
        def act(now, out):
            acted.append((name, now))
            return now + period if name == "a" and period else None

        return act

    deadlines, naive, expected, now = Deadlines({n: timer(n) for n in NAMES}), {}, [], 0
    for what, name, delay in steps:
        if what == "by":
            deadlines.by(name, now + delay)
            naive[name] = min(naive.get(name, now + delay), now + delay)
        elif what == "restart":
            deadlines.restart(name, now + delay)
            naive[name] = now + delay
        elif what == "stop":
            deadlines.stop(name)
            naive.pop(name, None)
        else:
            now += delay
            for due in [n for n in NAMES if naive.get(n, now + 1) <= now]:
                expected.append((due, now))
                del naive[due]
                if due == "a" and period:
                    naive[due] = now + period
            upcoming = deadlines.run(now, Outbox())
            assert acted == expected
            assert upcoming == deadlines.wake_at
        assert {n for n in NAMES if deadlines.is_set(n)} == naive.keys()
        wake = deadlines.wake_at
        assert not naive or (wake is not None and wake <= min(naive.values()))
        assert deadlines.due(now) or all(at > now for at in naive.values())


def test_what_a_timer_asks_for_while_it_acts_counts():
    deadlines = Deadlines({"a": lambda now, out: deadlines.by("a", now + 5), "b": lambda now, out: None})
    deadlines.by("a", 1)
    assert deadlines.run(1, Outbox()) == 6


def test_a_timer_that_was_asked_for_late_acts_in_the_same_run_if_its_turn_is_still_to_come():
    acted: list[str] = []
    deadlines = Deadlines({"a": lambda now, out: deadlines.by("b", now), "b": lambda now, out: acted.append("b")})
    deadlines.by("a", 1)
    assert deadlines.run(1, Outbox()) is None
    assert acted == ["b"]


def test_the_earliest_instant_is_that_of_those_that_are_known():
    assert earliest(None, 3, None, 2) == 2
    assert earliest(None) is None
