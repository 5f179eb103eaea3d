"""Faults of disks: who gets them, and what is never done to a group."""

from __future__ import annotations

import random
from typing import Any

import pytest

from multicast import registry
from multicast.application import Application
from multicast.membership import Membership
from multicast.protocol import MulticastProtocol
from multicast.simulation import faults, growing, joins
from multicast.simulation.casualties import Casualties
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.fault import Fault
from multicast.simulation.injector import Injector
from multicast.simulation.world import World
from multicast.types import AppMessage, ProcessId, Topology, new_message_id
from tests.simulation.sequencer import Sequencer

TOPOLOGY = Topology.grid(2, 3)


class Forgetful(Sequencer):
    """A process whose disk was lost is a member again when the test says so."""

    readmitted = False
    lost = False

    def on_start(self, saved: Any, now: int, out: Any) -> None:
        super().on_start(saved, now, out)
        self.lost = saved.lost

    def is_member(self) -> bool:
        return not self.lost or self.readmitted


def _world() -> World:
    def make_process(
        pid: ProcessId, rng: random.Random, disk: SimulatedDisk
    ) -> tuple[MulticastProtocol, Application]:
        return Forgetful(pid, TOPOLOGY, Forgetful.specification.options(), rng), Application()

    world = World(TOPOLOGY, make_process, 1)
    world.start()
    return world


def _inject(world: World, *planned: tuple[str, int, int]) -> Casualties:
    """(kind, when, victim), each of them for 100 ms."""
    return Injector(world, [Fault(kind, at, 100_000, (victim,)) for kind, at, victim in planned]).casualties


def test_nobody_is_cut_off_from_itself() -> None:
    """Also who is added to a group that is itself added: it is among the peers of others of that."""
    specification, topology = registry.load("white_box").specification, Topology({0: (0, 1, 2)}, {0: [3], 1: [4, 5, 6]})
    for seed in range(300):
        rng = random.Random(seed)
        planned = faults.draw(rng, topology, 1_000_000)
        planned += growing.strike(rng, topology, topology.spares[1], 1_000_000, specification)
        for fault in joins.strike(rng, topology, planned):
            if fault.kind not in ("swizzle", "clocks"):
                assert set(fault.processes).isdisjoint(fault.peers), fault


def test_only_who_survives_a_lost_disk_loses_one() -> None:
    for survives in (False, True):
        kinds = {
            fault.kind
            for seed in range(50)
            for fault in faults.draw_disk(random.Random(seed), TOPOLOGY, 1_000_000, survives)
        }
        assert {"torn_tail", "failing_fsync"} <= kinds
        assert ("lost_disk" in kinds) == survives


def test_a_group_has_one_process_without_memory_and_nobody_is_down_with_it() -> None:
    world = _world()
    casualties = _inject(
        world, ("lost_disk", 0, 1), ("lost_disk", 200_000, 2), ("power", 300_000, 0), ("lost_disk", 400_000, 4)
    )
    world.run_for(1_000_000)
    assert casualties.counts == {"lost_disk": 2}, "the second one of the group and the crash beside it do not happen"
    assert [pid for pid, node in world.nodes.items() if node.lost] == [1, 4]


def test_only_a_minority_of_the_clocks_is_far_off() -> None:
    world = _world()
    jumps = [Fault("clocks", at, lasts, who, (), 10_000) for at, lasts, who in ((0, 500, (1, 4)), (10, 0, (0,)))]
    jumping = [*jumps, Fault("clock", 600, 0, (0,), (), -10_000)]
    casualties = Injector(world, jumping, clock_off_us_max=500).casualties
    world.run_for(100)
    assert {pid: node.offset_us for pid, node in world.nodes.items() if node.offset_us} == {1: 10_000, 4: 10_000}
    world.run_for(1_000)
    assert {pid: node.offset_us for pid, node in world.nodes.items() if node.offset_us} == {0: -10_000}
    assert casualties.counts == {"clocks": 1, "clock": 1}


def test_who_has_not_heard_of_a_group_that_was_added_has_most_clocks_right_without_it() -> None:
    """Two of six would do, one of three does not: process 5 knows of its own group only."""
    world = _world()
    world.nodes[5].protocol.topology = Membership(Topology({1: TOPOLOGY.groups[1]}))
    far = [Fault("clocks", 0, 0, (3, 4), (), 10_000), Fault("clocks", 10, 0, (0, 4), (), 10_000)]
    Injector(world, far, clock_off_us_max=500)
    world.run_for(100)
    assert {pid for pid, node in world.nodes.items() if node.offset_us} == {0, 4}


def test_clocks_that_are_aimed_are_those_of_the_leaders() -> None:
    world = _world()
    Injector(world, [Fault("clocks", 0, 0, (1, 5), (), 10_000, aimed=True)])
    world.run_for(100)
    assert [pid for pid, node in world.nodes.items() if node.offset_us] == [0, 3]


def test_a_process_that_is_readmitted_counts_again_when_that_is_on_disk() -> None:
    world = _world()
    casualties = _inject(world, ("lost_disk", 0, 1), ("lost_disk", 1_000_000, 2), ("lost_disk", 4_000_000, 2))
    world.run_for(500_000)
    protocol = world.node(1).protocol
    assert isinstance(protocol, Forgetful)
    protocol.readmitted = True
    world.slow_disk(1, 2_000_000)
    world.submit(0, AppMessage(new_message_id(world.now, 1), (0,), b"", 0))
    world.run_for(1_000_000)
    assert casualties.counts == {"lost_disk": 1}, "what it did as a member is not on its disk"
    world.run_for(4_000_000)
    assert casualties.counts == {"lost_disk": 2}


@pytest.mark.parametrize("kind", ["torn_tail", "failing_fsync"])
def test_a_faulty_disk_kills_a_process_that_comes_back(kind: str) -> None:
    world = _world()
    casualties = _inject(world, *((kind, number * 300_000, 1) for number in range(3)))
    for number in range(60):
        message = AppMessage(new_message_id(world.now, number), (0,), bytes(50), 0)
        world.schedule(world.now + number * 20_000, world.submit, 0, message)
    world.run_for(2_000_000)
    casualties.stop()
    world.heal()
    world.run_for(1_000_000)
    assert world.node(1).up
    assert casualties.counts[kind] >= 1
    assert world.node(1).life == 1 + casualties.counts[kind]
    assert world.violations == []
