"""What clocks that jump do: multicast/simulation/clocks.py, and the planted bugs of tests/planted/clocks.py by name."""

from __future__ import annotations

import random

import pytest

from multicast import registry
from multicast.application import Application
from multicast.protocol import MulticastProtocol
from multicast.records import Delivered
from multicast.simulation.checkers import attach
from multicast.simulation.clocks import measure
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.network import Conditions
from multicast.simulation.observe import Observer
from multicast.simulation.scene import Node
from multicast.simulation.true_time import TrueTime
from multicast.simulation.world import World
from multicast.types import FINAL, AppMessage, ProcessId, Topology, new_message_id

SECOND = 1_000_000
LEADING = ("white_box", "primcast", "ft_skeen", "fastcast", "quasi_genuine")


@pytest.mark.parametrize("protocol", [*LEADING, "toto"])
def test_a_leader_of_each_group_five_minutes_ahead_expires_nothing_and_hands_over(protocol: str) -> None:
    effect = measure(registry.load(protocol), "leaders", 300 * SECOND, True)
    assert (effect.expired, effect.missing) == (0, 0)
    assert effect.ahead_us <= 500_000
    assert effect.handed_over == (2 if protocol in LEADING else 1)  # ToTo has one leader for all


@pytest.mark.parametrize(
    ("where", "jump_us"),
    [
        ("one", -SECOND),
        ("minority", SECOND),
        ("minority", 86_400 * SECOND),
        ("minority", -86_400 * SECOND),
        *(pytest.param("one", jump * SECOND, marks=pytest.mark.full) for jump in (1, -300, 86_400, -86_400)),
        *(pytest.param("minority", jump * SECOND, marks=pytest.mark.full) for jump in (-1, -300)),
    ],
)
def test_no_minority_moves_time(where: str, jump_us: int) -> None:
    effect = measure(registry.load("white_box"), where, jump_us, True)
    assert (effect.expired, effect.missing, effect.handed_over) == (0, 0, 0)
    assert effect.ahead_us <= 500_000


def test_a_leader_that_is_believed_makes_everything_expire() -> None:
    effect = measure(registry.load("white_box"), "leaders", 300 * SECOND, False)
    assert effect.expired > effect.messages // 2 and effect.ahead_us > 290 * SECOND


def test_who_has_last_heard_two_minorities_that_were_wrong_one_after_the_other_may_follow_them() -> None:
    protocol, topology = registry.load("white_box"), Topology.grid(1, 3)
    options = protocol.specification.options(clock="hybrid", dedup_window_us=120 * SECOND)

    def make(pid: ProcessId, rng: random.Random, disk: SimulatedDisk) -> tuple[MulticastProtocol, Application]:
        return protocol(pid, topology, options, rng), Application()

    world = World(topology, make, 1, Conditions.exact(1_000))
    attach(world, TrueTime(options))
    world.start()
    world.run_for(SECOND)
    world.jump_clock(1, 10 * SECOND)
    world.run_for(2 * options.clock_probe_us)  # the leader, process 0, has heard of it
    world.network.slow(1, 0, 200_000)
    world.jump_clock(1, -10 * SECOND)
    world.jump_clock(2, 10 * SECOND)
    leader = world.node(0)
    assert world.run_while(lambda: not leader.protocol.clock_off, 2 * options.clock_probe_us, 1_000)
    world.submit(0, AppMessage(new_message_id(world.now, 1), (0,), b"", 0))
    world.run_for(SECOND)
    assert leader.protocol.log.timestamp.time > world.now + 5 * SECOND
    assert world.violations == []


def test_without_a_majority_of_all_processes_restarted_ones_agree_on_no_time_until_one_more_is_back() -> None:
    """Of two shards of three one is down, the other restarts: it orders and delivers, but its stamps only count, and
    nothing expires. Who runs on keeps the time."""
    protocol, topology = registry.load("white_box"), Topology.grid(2, 3)
    options = protocol.specification.options(clock="hybrid", dedup_window_us=120 * SECOND)
    timestamps: list[int] = []

    class Stamps(Observer):
        def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
            if node.pid == 1 and delivery.stage == FINAL and not replay:
                timestamps.append(delivery.timestamp.time)

    def make(pid: ProcessId, rng: random.Random, disk: SimulatedDisk) -> tuple[MulticastProtocol, Application]:
        return protocol(pid, topology, options, rng), Application()

    world = World(topology, make, 1, Conditions.exact(1_000), observers=[Stamps()])

    def deliver() -> int:
        before = len(timestamps)
        world.submit(0, AppMessage(new_message_id(world.now, before), (0,), b"", 0))
        assert world.run_while(lambda: len(timestamps) == before, 20 * SECOND)
        return timestamps[-1]

    def agreed() -> list[bool]:
        clocks = [world.node(p).engine.discipline for p in (0, 1, 2)]
        return [clock is not None and clock.status()["ahead_us"] is not None for clock in clocks]

    world.start()
    world.run_for(3 * SECOND)
    assert abs(deliver() - world.now) < SECOND
    for pid in (3, 4, 5):
        world.crash(pid)
    world.run_for(10 * SECOND)
    assert agreed() == [True] * 3 and abs(deliver() - world.now) < SECOND  # what was heard still counts
    for pid in (0, 1, 2):
        world.crash(pid)
        world.restart(pid)
    world.run_for(10 * SECOND)
    assert agreed() == [False] * 3
    first = deliver()
    world.run_for(30 * SECOND)
    assert 0 < deliver() - first < 1_000
    world.restart(4)
    world.run_for(3 * SECOND)
    assert agreed() == [True] * 3 and abs(deliver() - world.now) < SECOND
