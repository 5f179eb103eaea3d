"""Bugs planted in replicas and stores are found by the checks that are there for them."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from kvstore.simulated.runner import run_seed
from tests.planted.store import PLANTED_IN_STORE, SEEDS_MAX, Planted

CHECKS = {
    "agreement",
    "exactly once",
    "reads",
    "answers",
    "strict serializability",
    "conservation",
    "liveness",
    "exception",
}


def found_by(bug: Planted, seeds: Iterable[int]) -> tuple[int, str] | None:
    """How many seeds it took until the bug's own check had something to say, and what."""
    for count, seed in enumerate(seeds, 1):
        outcome = run_seed(bug.settings, seed, replica=bug.replica, store=bug.store)
        for violation in outcome.violations:
            if violation.startswith(f"{bug.checker}: "):
                return count, violation
    return None


@pytest.mark.parametrize("bug", PLANTED_IN_STORE, ids=lambda bug: f"{bug.name}-{bug.checker.replace(' ', '_')}")
def test_a_planted_bug_is_found_by_its_check(bug: Planted) -> None:
    assert found_by(bug, [bug.first_seed, *range(20)]), f"{bug.name} is not found by {bug.checker}"


def test_every_check_has_a_bug() -> None:
    assert {bug.checker for bug in PLANTED_IN_STORE} == CHECKS


def test_without_a_bug_nothing_is_found() -> None:
    for settings, seed in {str(bug.settings): (bug.settings, bug.first_seed) for bug in PLANTED_IN_STORE}.values():
        assert run_seed(settings, seed).violations == [], (settings, seed)


if __name__ == "__main__":
    for bug in PLANTED_IN_STORE:
        begun = time.process_time()
        found = found_by(bug, range(SEEDS_MAX))
        text = f"after {found[0]} seeds" if found else f"NOT FOUND in {SEEDS_MAX} seeds"
        print(f"{bug.name:32} {bug.checker:24} {text:16} {time.process_time() - begun:6.1f} s", flush=True)
