"""A leader stands still under open load: every fault-tolerant protocol recovers, without a storm of repetitions."""

from __future__ import annotations

from math import inf

import pytest

from multicast.simulation.experiments.calibrate import RECORDED
from multicast.simulation.experiments.load import Variant
from multicast.simulation.experiments.overload import (
    PAUSES_MAX,
    STORM_MAX,
    Overload,
    overload,
    slow,
)

SECOND = 1_000_000
SATURATION = {"white_box": 77, "primcast": 316, "ft_skeen": 185, "fastcast": 59, "quasi_genuine": 200, "toto": 500}
"""Multicasts per second on processors 1,000 times slower than the recorded ones, as `overload` measures them; less
where that is much."""
BY_DEFAULT = ("white_box", "quasi_genuine", "primcast")
"""One that takes its stamps from followers' receipts, one over consensus, one in which everybody answers who asks."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in BY_DEFAULT else pytest.mark.full) for name in sorted(SATURATION)],
)
def test_a_group_recovers_when_its_leader_has_stood_still_under_load(name: str) -> None:
    """The median run of three does so in time: single ones are a tenth apart."""
    plans = [
        Overload(
            variant=Variant(title=name, protocol=name), saturation=SATURATION[name], share=0.4, pause_us=2 * SECOND,
            group=0, cpu=slow(RECORDED, 1_000), seed=seed,
        )
        for seed in (1, 2, 3)
    ]  # fmt: skip
    outcomes = [overload(plan) for plan in plans]
    pauses = sorted(inf if outcome.pauses is None else outcome.pauses for outcome in outcomes)
    assert pauses[1] <= PAUSES_MAX, pauses
    assert max(outcome.storm for outcome in outcomes) <= STORM_MAX
