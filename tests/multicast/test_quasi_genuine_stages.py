"""The options of the quasi-genuine draft's Section 3: optimistic delivery, parallel consensus, direct learners."""

from __future__ import annotations

import random
from typing import Any

import pytest

from multicast.application import Application
from multicast.protocol import MulticastProtocol
from multicast.protocols.quasi_genuine import QuasiGenuine, QuasiGenuineOptions
from multicast.records import Delivered
from multicast.simulation.checkers import Checker, attach
from multicast.simulation.network import Conditions
from multicast.simulation.scene import Node
from multicast.simulation.world import World
from multicast.types import FINAL, OPTIMISTIC, AppMessage, MessageId, ProcessId, Topology, new_message_id
from tests.multicast.lockstep import Lockstep

SECOND = 1_000_000
DELTA = 1_000


class Stages(Checker):
    """When each process delivers, after the first submission, in delays: early and finally; in what order."""

    def __init__(self) -> None:
        super().__init__()
        self.start = 0
        self.times: dict[int, dict[tuple[ProcessId, MessageId], float]] = {OPTIMISTIC: {}, FINAL: {}}
        self.orders: dict[int, dict[ProcessId, list[MessageId]]] = {OPTIMISTIC: {}, FINAL: {}}

    def on_submit(self, node: Node, message: AppMessage) -> None:
        self.start = self.start or node.world.now

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        self.times[delivery.stage][node.pid, delivery.message.id] = (node.world.now - self.start) / DELTA
        self.orders[delivery.stage].setdefault(node.pid, []).append(delivery.message.id)


def timed(groups: int, conditions: Conditions | None = None, **options: Any) -> tuple[World, Stages]:
    topology = Topology.grid(groups, 3)

    def make(pid: ProcessId, rng: random.Random, disk: object) -> tuple[MulticastProtocol, Application]:
        return QuasiGenuine(pid, topology, QuasiGenuineOptions(**options), rng), Application()

    world = World(topology, make, 1, conditions or Conditions.exact(DELTA))
    stages = Stages()
    attach(world, stages)
    world.start()
    world.run_for(3_000_500)
    return world, stages


def send(world: World, pid: ProcessId, *groups: int) -> None:
    world.submit(pid, AppMessage(new_message_id(world.now, pid), groups, b"", pid))


@pytest.mark.parametrize(
    ("options", "early", "final"),
    [
        ({}, set(), 7),
        ({"direct_learners": True}, set(), 5),
        ({"optimistic": True, "wait_us": DELTA}, {1}, 4),
        ({"optimistic": True, "wait_us": DELTA, "parallel_consensus": True}, {1}, 4),
        ({"optimistic": True, "wait_us": 3 * DELTA, "parallel_consensus": True}, {3}, 6),
        ({"optimistic": True, "wait_us": DELTA, "direct_learners": True}, {1}, 3),
    ],
)
@pytest.mark.parametrize("sender", [1, 4, 10])
def test_each_option_takes_the_delays_that_the_draft_says(
    options: dict[str, Any], early: set[float], final: float, sender: ProcessId
) -> None:
    world, stages = timed(4, **options)
    send(world, sender, 0, 1)
    world.run_for(30 * DELTA)
    assert len(stages.times[FINAL]) == 6
    assert max(stages.times[FINAL].values()) == final
    assert set(stages.times[OPTIMISTIC].values()) == early


def test_an_instance_under_way_delays_what_is_early_by_one_consensus_unless_they_are_parallel() -> None:
    for parallel, final in ((False, 6.0), (True, 4.0)):
        world, stages = timed(3, optimistic=True, wait_us=DELTA, parallel_consensus=parallel)
        for group in range(3):
            send(world, 3 * group, group)
        world.run_for(1)
        start = world.now
        world.submit(1, last := AppMessage(new_message_id(world.now, 7), (0, 1), b"", 1))
        world.run_for(30 * DELTA)
        worst = max(t for (_, i), t in stages.times[FINAL].items() if i == last.id)
        assert worst - (start - stages.start) / DELTA == pytest.approx(final, abs=0.002)


@pytest.mark.parametrize("parallel", [False, True])
def test_while_nothing_takes_longer_than_w_the_early_order_is_the_final_one(parallel: bool) -> None:
    conditions = Conditions(delay_us=(100, 20_000), late_probability=0.0, late_us=(0, 0), fsync_us=(50, 300))
    world, stages = timed(3, conditions, optimistic=True, wait_us=25_000, parallel_consensus=parallel)
    rng = random.Random(1)
    for _ in range(150):
        send(world, rng.randrange(9), *sorted(rng.sample(range(3), rng.randint(1, 3))))
        world.run_for(rng.randrange(1, 5_000))
    world.run_for(SECOND)
    assert stages.orders[FINAL] == stages.orders[OPTIMISTIC]
    described = [node.engine.protocol.describe() for node in world.nodes.values()]
    assert all(d["early"] > 50 and d["mistakes"] == 0 for d in described)
    assert all(stages.times[OPTIMISTIC][key] < stages.times[FINAL][key] for key in stages.times[FINAL])


def test_mistakes_of_the_early_order_are_counted_where_w_is_too_short() -> None:
    conditions = Conditions(delay_us=(100, 20_000), late_probability=0.0, late_us=(0, 0), fsync_us=(50, 300))
    world, stages = timed(3, conditions, optimistic=True, wait_us=2_000)
    rng = random.Random(1)
    for _ in range(100):
        send(world, rng.randrange(9), 0, 1, 2)
        world.run_for(rng.randrange(1, 3_000))
    world.run_for(2 * SECOND)
    finals = list(stages.orders[FINAL].values())
    assert len(finals) == 9 and all(len(order) == 100 and order == finals[0] for order in finals)
    for pid, node in world.nodes.items():
        same = stages.orders[OPTIMISTIC][pid] == stages.orders[FINAL][pid]
        assert (node.engine.protocol.describe()["mistakes"] == 0) == same
    assert any(node.engine.protocol.describe()["mistakes"] for node in world.nodes.values())


def settled(groups: int = 2) -> Lockstep:
    """With direct learners."""
    world = Lockstep(Topology.grid(groups, 3), QuasiGenuine, direct_learners=True)
    world.settle()
    return world


def test_what_direct_learners_missed_is_asked_for() -> None:
    world = settled(groups=3)
    world.cut = {(a, b) for a in (0, 1, 2) for b in (3, 4, 5)}
    m = world.submit(0, 0, 1)
    world.settle()
    for link in world.cut:
        world.links.pop(link, None)
    world.cut = set()
    assert world.delivered(3) == []
    world.advance(3 * SECOND)
    assert [world.delivered(p) for p in range(6)] == [[m]] * 6


def test_a_leaders_word_without_acceptors_is_not_learned() -> None:
    world = settled()
    world.cut = {(0, 1), (0, 2)}
    world.submit(0, 0, 1)
    world.settle()
    assert [world.delivered(p) for p in range(6)] == [[]] * 6
    assert len(world.protocol(3).learners[0]._told) == 1
    assert world.protocol(3).channels.of[0].received == 0
