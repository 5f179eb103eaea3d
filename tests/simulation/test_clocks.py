"""What clocks that jump do: multicast/simulation/clocks.py, and the planted bugs of tests/planted/clocks.py by name."""

from __future__ import annotations

import random

import pytest

from multicast import registry
from multicast.protocol import Application, MulticastProtocol
from multicast.simulation.checkers import attach
from multicast.simulation.clocks import measure
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.network import Conditions
from multicast.simulation.true_time import TrueTime
from multicast.simulation.world import World
from multicast.types import AppMessage, ProcessId, Topology, new_message_id

SECOND = 1_000_000
LEADING = ("white_box", "primcast", "ft_skeen", "fastcast", "quasi_genuine")


@pytest.mark.parametrize("protocol", [*LEADING, "toto"])
def test_a_leader_of_each_group_five_minutes_ahead_expires_nothing_and_hands_over(protocol: str) -> None:
    effect = measure(registry.load(protocol), "leaders", 300 * SECOND, True)
    assert (effect.expired, effect.missing) == (0, 0)
    assert effect.ahead_us <= 500_000
    assert effect.handed_over == (2 if protocol in LEADING else 1)  # ToTo has one leader for all


@pytest.mark.parametrize("jump_us", [SECOND, -SECOND, -300 * SECOND, 86_400 * SECOND, -86_400 * SECOND])
@pytest.mark.parametrize("where", ["one", "minority"])
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
