"""A message that comes again when all but one have forgotten it: drawn, and found by that alone."""

from __future__ import annotations

import random

import pytest

from multicast import registry
from multicast.simulation import stragglers
from multicast.simulation.runner import Run, Settings
from multicast.types import Topology
from tests.planted.strangers import PLANTED_IN_STORE

BUG = next(bug for bug in PLANTED_IN_STORE if bug.name == "later_stamp_of_first")


def test_it_finds_what_nothing_else_in_the_run_finds_under_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    assert BUG.run(BUG.first_seed).violations
    monkeypatch.setattr(stragglers, "draw", lambda *arguments, **options: None)
    assert not BUG.run(BUG.first_seed).violations


def test_it_takes_place_where_windows_pass_in_a_run() -> None:
    run = Run(registry.load("white_box"), 57, Settings(profile="faults", size="small"))
    assert not run.execute().violations
    assert run.faults["straggler"] == 1


def test_nobody_may_be_there_through_whom_it_could_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss of power of all at that moment is a fault like others."""
    monkeypatch.setattr(stragglers.Stragglers, "_there", lambda self: [])
    assert not Run(registry.load("white_box"), 57, Settings(profile="faults", size="small")).execute().violations


@pytest.mark.parametrize(
    ("window_us", "groups", "name"), [(0, 3, "white_box"), (400_000, 3, "white_box"), (100_000, 1, "white_box")]
)
def test_it_needs_windows_that_pass_and_a_group_that_goes_on_without_one(
    window_us: int, groups: int, name: str
) -> None:
    specification = registry.load(name).specification
    options = specification.options(clock="hybrid", dedup_window_us=window_us)
    for seed in range(20):
        assert stragglers.draw(random.Random(seed), Topology.grid(2, groups), options, 1_000_000, specification) is None
