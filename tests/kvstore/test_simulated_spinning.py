"""Who is woken again and again, and does nothing."""

from __future__ import annotations

from kvstore.simulated.spinning import BATCHES_MAX, Spinning
from multicast.batch import Batch

NOW = 1_000


def batch(wake_at: int | None, answered: bool = False) -> Batch:
    made = Batch(1)
    made.wake_at = wake_at
    made.answers = [(1, "")] if answered else []
    return made


def test_who_is_woken_for_nothing_is_told_of_once_and_whatever_else_it_does_meanwhile() -> None:
    spinning = Spinning()
    some = [spinning.after_batch(1, batch(NOW, answered=not number % 2), NOW) for number in range(2 * BATCHES_MAX)]
    assert some.index(True) == 2 * BATCHES_MAX - 1 and some.count(True) == 1
    assert not any([spinning.after_batch(1, batch(NOW), NOW) for _ in range(2 * BATCHES_MAX)])


def test_who_waits_for_something_in_between_is_woken_for_that() -> None:
    spinning = Spinning()
    for wake_at in (NOW + 1, None):
        for _ in range(3):
            assert not any([spinning.after_batch(1, batch(NOW), NOW) for _ in range(BATCHES_MAX - 1)])
            assert not spinning.after_batch(2, batch(NOW), NOW)
            assert not spinning.after_batch(1, batch(wake_at), NOW)
