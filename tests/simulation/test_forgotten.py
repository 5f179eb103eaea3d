"""Faults that end with something forgotten: drawn runs find by themselves what was once staged."""

from __future__ import annotations

import random

import pytest

from multicast import registry
from multicast.protocols.white_box import WhiteBox
from multicast.simulation import forgotten, invariants
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.runner import Run, run_seed
from multicast.simulation.watermarks import Watermarks
from multicast.types import Topology
from tests.planted import SEEDS_MAX, SMALL, Planted
from tests.planted.white_box import MarksToldAlone

TOPOLOGY = Topology.grid(2, 3)


@pytest.mark.parametrize(("protocol", "first", "kind"), [(MarksToldAlone, 27, "handed_down")])
def test_a_drawn_fault_finds_what_is_forgotten(
    protocol: type[WhiteBox], first: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protocol without the bug is not accused, and without these faults the same seed does not find it. first: a
    seed that found it when that was last looked for. The check that looks at watermarks themselves is left out."""
    left = tuple(kind for kind in invariants.CHECKERS["white_box"] if kind is not Watermarks)
    monkeypatch.setitem(invariants.CHECKERS, "white_box", left)
    seed = next(
        seed
        for seed in (first, *range(SEEDS_MAX))
        if _draws_only(kind, protocol, seed) and Planted(protocol).run(seed).violations
    )
    assert not run_seed(WhiteBox, seed, SMALL).violations
    monkeypatch.setattr(forgotten, "draw", lambda *arguments: ([], False))
    assert not Planted(protocol).run(seed).violations


def _draws_only(kind: str, protocol: type[WhiteBox], seed: int) -> bool:
    return {fault.kind for fault in Run(protocol, seed, SMALL).draw_faults()} == {kind}


def test_a_minority_of_a_large_group_loses_its_disks_at_a_time() -> None:
    """More than one; no other group does, and nobody who does not survive that."""
    for name, replicas, most in (("white_box", 5, 2), ("quasi_genuine", 7, 3), ("white_box", 4, 0), ("toto", 5, 0)):
        specification, topology = registry.load(name).specification, Topology.grid(2, replicas)
        drawn = [forgotten.draw_losses(random.Random(n), topology, 4_000_000, specification) for n in range(20)]
        victims = [fault.processes for faults in drawn for fault in faults]
        assert {len(some) for some in victims} == ({most} if most else set())
        assert all(len({topology.group_of[p] for p in some}) == 1 for some in victims)
        assert not most or any(not faults for faults in drawn)


def test_only_who_survives_a_lost_disk_hands_losses_down() -> None:
    three = {*forgotten.KINDS} - {"both_lost"}
    for name, kinds in (("white_box", three), ("toto", {"unsynced", "rival"}), ("skeen", {"unsynced"})):
        specification = registry.load(name).specification
        topology = TOPOLOGY if specification.fault_tolerant else Topology.grid(3, 1)
        drawn = {
            fault.kind
            for seed in range(60)
            for fault in forgotten.draw(random.Random(seed), topology, 4_000_000, specification)[0]
        }
        assert drawn == kinds


def test_power_can_take_everything_that_was_not_synced() -> None:
    for seed in range(10):
        disk = SimulatedDisk()
        disk.append("a", b"12")
        disk.sync("a")
        disk.append("a", b"34")
        disk.crash(random.Random(seed), power=True, keeps=False)
        assert disk.read("a") == b"12"
