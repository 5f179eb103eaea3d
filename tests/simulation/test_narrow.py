from __future__ import annotations

import random
from typing import Any

import pytest

from kvstore.core import bundler, clients, execution
from kvstore.core import replica as core_replica
from kvstore.simulated import narrow as store_narrow
from kvstore.simulated.settings import DRAWN, Settings
from multicast.parts import retries, submissions
from multicast.simulation import narrow
from multicast.simulation.drawing import LARGE

USUAL = retries.IDS_MAX, retries.WINDOW_MIN, submissions.IDS_MAX, clients.RESULT_BYTES_KEPT, bundler.FULL_BYTES


def now() -> tuple[int, ...]:
    return retries.IDS_MAX, retries.WINDOW_MIN, submissions.IDS_MAX, clients.RESULT_BYTES_KEPT, bundler.FULL_BYTES


@pytest.mark.parametrize("limits", [narrow._LIMITS, store_narrow._LIMITS])
def test_limits_are_at_their_least_within_a_run_and_as_before_after_it(limits: Any) -> None:
    seen = set()
    for seed in range(8):
        with narrow.narrowed(limits, random.Random(seed)):
            seen.add(now())
            assert retries.IDS_MAX == submissions.IDS_MAX
            assert clients.RESULT_BYTES_KEPT == core_replica.RESULT_BYTES_KEPT
            assert all(new <= usual for new, usual in zip(now(), USUAL, strict=True))
    assert now() == USUAL and len(seen) > 2


def test_an_error_leaves_no_limit_changed() -> None:
    with pytest.raises(ZeroDivisionError), narrow.narrowed(narrow._LIMITS, random.Random(1)):
        raise ZeroDivisionError
    assert now() == USUAL


def test_some_small_worlds_with_faults_are_narrow_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[int] = []
    monkeypatch.setattr(narrow, "narrowed", lambda limits, lot: entered.append(1))
    for seed in range(300):
        narrow.of_seed("skeen", seed, "faults", "small")
    assert 5 <= len(entered) <= 40
    for seed in range(300):
        narrow.of_seed("skeen", seed, "calm", "small")
        narrow.of_seed("skeen", seed, "faults", "large")
    assert 5 <= len(entered) <= 40 and LARGE.frames_max > 0


def test_the_store_is_narrow_where_that_is_drawn() -> None:
    drawn = [Settings(protocol="skeen", **dict.fromkeys(DRAWN)).drawn(seed).narrow for seed in range(100)]
    assert 8 <= sum(map(bool, drawn)) <= 40
    assert not any(Settings(protocol="skeen").drawn(seed).narrow for seed in range(100))


def test_less_is_told_and_read_only_where_limits_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert store_narrow.tells_all() and store_narrow.reads_all()
    monkeypatch.setattr(execution, "RESULT_BYTES_MAX", 30)
    assert not store_narrow.tells_all() and store_narrow.reads_all()
