"""What seeds draw: worlds of every kind, and every option of every protocol."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from multicast import registry
from multicast.protocol import MulticastProtocol
from multicast.simulation import batches, drawing
from multicast.simulation.drawing import LARGE, SMALL
from multicast.simulation.network import Conditions
from multicast.simulation.runner import Run, Settings, run_seed
from multicast.types import Topology

GRID = Topology.grid(2, 3)


def _options(protocol: type[MulticastProtocol], seed: int) -> dict[str, str]:
    topology = GRID if protocol.specification.fault_tolerant else Topology.grid(2, 1)
    return drawing.options(random.Random(seed), SMALL, protocol, topology, 1_000_000, {})


@pytest.mark.parametrize("name", registry.names())
def test_every_option_is_drawn(name: str) -> None:
    protocol = registry.load(name)
    drawn = [drawing.protocol_options(protocol, _options(protocol, seed)) for seed in range(300)]
    for field in msgspec.structs.fields(protocol.specification.options):
        assert len({getattr(options, field.name) for options in drawn}) > 1, f"{field.name} is never drawn"


def test_what_is_given_is_not_drawn_and_what_contradicts_it_neither() -> None:
    protocol = registry.load("white_box")
    for seed in range(40):
        given = {"heartbeat_us": "400000", "clock": "logical"}
        drawn = drawing.options(random.Random(seed), SMALL, protocol, GRID, 1_000_000, given)
        options = drawing.protocol_options(protocol, drawn)
        assert (options.heartbeat_us, options.clock, options.dedup_window_us) == (400_000, "logical", 0)


def test_most_seeds_are_small_and_the_size_can_be_fixed() -> None:
    sizes = Counter(drawing.size("skeen", seed, None) is SMALL for seed in range(1_000))
    assert 900 < sizes[True] < 1_000
    assert drawing.size("skeen", 1, "large") is LARGE
    seed = next(s for s in range(1_000) if drawing.size("skeen", s, None) is SMALL)
    drawn, fixed = (Run(registry.load("skeen"), seed, Settings(size=size)) for size in (None, "small"))
    assert (drawn.topology.groups, drawn.options) == (fixed.topology.groups, fixed.options)
    assert drawn.span_us == fixed.span_us


def test_in_a_part_of_the_tight_worlds_groups_have_different_sizes() -> None:
    """In no small one; nor where the user says how large they are, or groups are of one process."""
    protocol = registry.load("quasi_genuine")
    tight = [Run(protocol, seed, Settings(size="tight")).topology.groups for seed in range(60)]
    sizes = [{len(members) for members in groups.values()} for groups in tight]
    assert 5 < sum(len(some) > 1 for some in sizes) < 30
    assert all([p for some in groups.values() for p in some] == [*range(sum(map(len, groups.values())))]
               for groups in tight)  # fmt: skip
    fixed = [Run(protocol, seed, Settings(size="tight", groups=2, replicas=3)).topology.groups for seed in range(20)]
    assert all(groups == GRID.groups for groups in fixed)
    for name, size in (("quasi_genuine", "small"), ("skeen", "tight")):
        runs = [Run(registry.load(name), seed, Settings(size=size)).topology.groups for seed in range(20)]
        assert all(len({len(members) for members in groups.values()}) == 1 for groups in runs)


def test_in_tight_worlds_groups_change_and_limits_are_met() -> None:
    """In the others seldom; and it is drawn only when it is asked for."""
    protocol = registry.load("primcast")
    tight, small = ([Run(protocol, seed, Settings(size=size)) for seed in range(40)] for size in ("tight", "small"))
    assert all(run._changes for run in tight) and sum(bool(run._changes) for run in small) < 20
    assert sum(run.options.portion_bytes <= 1_000 for run in tight) > 20
    assert sum(run.options.dedup_window_us > 0 for run in tight) > sum(run.options.dedup_window_us > 0 for run in small)
    assert {drawing.size("primcast", seed, None) for seed in range(200)} == {SMALL, LARGE}


def test_small_worlds_have_few_processes_and_every_number_of_replicas() -> None:
    protocol = registry.load("ft_skeen")
    grids = [drawing.topology(random.Random(seed), SMALL, protocol, None, None) for seed in range(400)]
    assert {len(grid.groups[0]) for grid in grids} == {1, 3, 4, 5, 7}
    assert {len(grid.groups) for grid in grids} == {1, 2, 3}
    usual = sum(len(grid.groups) == 2 and len(grid.groups[0]) == 3 for grid in grids)
    assert usual > 100


def test_limits_are_often_small() -> None:
    options = registry.load("skeen").specification.options()
    worlds = [drawing.conditions(random.Random(seed), SMALL, options) for seed in range(200)]
    for name in ("queue_frames_max", "catch_up_bytes"):
        small = sum(getattr(world, name) < getattr(Conditions(), name) for world in worlds)
        assert small > 60, name


def test_payloads_are_mostly_small_and_up_to_100_kb() -> None:
    rng = random.Random(1)
    sizes = sorted(drawing.payload_bytes(rng) for _ in range(5_000))
    assert sizes[0] == 0
    assert sizes[2_500] < 100
    assert 90_000 < sizes[-1] <= 100_000


def test_copies_come_about_one_and_two_windows_after_their_message() -> None:
    protocol = registry.load("skeen")
    found: Counter[int] = Counter()
    for seed in range(15):
        settings = Settings(size="small", options={"clock": "hybrid", "dedup_window_us": "300000"})
        run = Run(protocol, seed, settings)
        begun: dict[bytes, int] = {}
        submit = run.world.submit

        def watched(pid: int, message: object, run: Run = run, begun: dict[bytes, int] = begun, submit=submit) -> bool:  # type: ignore[no-untyped-def]
            age = run.world.now - begun.setdefault(message.id, run.world.now)  # type: ignore[attr-defined]
            found.update(window for window in (1, 2) if abs(age - window * 300_000) <= 50_000)
            return bool(submit(pid, message))

        run.world.submit = watched  # type: ignore[method-assign]
        run.execute()
    assert found[1] > 5 and found[2] > 5


def test_several_processes_show_what_one_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_CHUNK", 2)
    protocol, settings, seeds = registry.load("skeen"), Settings(size="small"), range(6)
    alone, together = (
        [(o.seed, o.digest) for o in batches.outcomes(protocol, seeds, settings, jobs)] for jobs in (1, 2)
    )
    assert alone == together == [(s, run_seed(protocol, s, settings).digest) for s in seeds]
