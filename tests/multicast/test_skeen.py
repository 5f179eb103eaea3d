"""Skeen's protocol, Fig. 1 of the White-Box paper."""

from __future__ import annotations

import pytest

from multicast.types import Topology
from tests.multicast.lockstep import Lockstep


def test_all_destinations_deliver_in_one_order() -> None:
    world = Lockstep(Topology.grid(3, 1), "skeen")
    ids = [world.submit(p % 3, p % 3, (p + 1) % 3) for p in range(12)]
    world.settle()
    for a in range(3):
        for b in range(3):
            common = set(world.delivered(a)) & set(world.delivered(b))
            assert [i for i in world.delivered(a) if i in common] == [i for i in world.delivered(b) if i in common]
    assert set(ids) == {i for p in range(3) for i in world.delivered(p)}


def test_the_convoy_effect_a_committed_message_waits_for_a_lower_stamp() -> None:
    world = Lockstep(Topology.grid(2, 1), "skeen")
    world.cut = {(0, 1)}
    blocked = world.submit(0, 0, 1)
    world.settle()
    local = world.submit(0, 0)
    world.settle()
    assert world.delivered(0) == []
    world.cut = set()
    world.settle()
    assert set(world.delivered(0)) == {blocked, local}


def test_entries_go_once_every_destination_has_delivered() -> None:
    world = Lockstep(Topology.grid(2, 1), "skeen")
    for _ in range(20):
        world.submit(0, 0, 1)
    world.advance(1_000_000)
    assert len(world.delivered(1)) == 20
    assert [len(world.protocol(p)._entries) for p in range(2)] == [0, 0]


def test_groups_of_several_processes_are_refused() -> None:
    with pytest.raises(ValueError, match="groups of one process"):
        Lockstep(Topology.grid(1, 3), "skeen")
