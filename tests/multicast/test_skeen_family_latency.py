"""How long a message takes in Skeen's protocol and those that play it by consensus, alone and in the worst convoy.

The shape of the worst case: group 1's clock is ahead; m is multicast by group 0's leader; m' likewise, just before
group 0's clock moves past m's global timestamp. Every instant just before a full δ (1 ms) is tried.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from multicast.application import Application
from multicast.protocol import MulticastProtocol
from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.skeen import Skeen
from multicast.records import Delivered
from multicast.simulation.checkers import Checker, attach
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.network import Conditions
from multicast.simulation.scene import Node
from multicast.simulation.world import World
from multicast.types import AppMessage, MessageId, ProcessId, Topology, new_message_id

DELTA = 1_000


class Clocked(Checker):
    """When each process delivered what."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[tuple[MessageId, ProcessId], int] = {}

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        self.at[delivery.message.id, node.pid] = node.world.now


def run(protocol: type[MulticastProtocol], options: dict[str, Any], follow_after: int | None) -> list[int]:
    """After how many µs each process delivers m. follow_after: when m' is multicast, if it is."""
    groups = Topology.grid(2, 5 if protocol.specification.fault_tolerant else 1)
    (leader, *_), (other_leader, *_) = groups.groups.values()

    def make(pid: ProcessId, rng: random.Random, disk: SimulatedDisk) -> tuple[MulticastProtocol, Application]:
        return protocol(pid, groups, protocol.specification.options(**options), rng), Application()

    world, clocked = World(groups, make, 0, Conditions.exact(DELTA)), Clocked()
    attach(world, clocked)
    world.start()
    world.run_for(3 * 1_000_000 + 500)
    number = 0

    def send(sender: ProcessId, *destinations: int) -> MessageId:
        nonlocal number
        number += 1
        message = AppMessage(new_message_id(world.now, number), destinations, b"", sender)
        assert world.submit(sender, message)
        return message.id

    for _ in range(20):
        send(other_leader, 1)
    world.run_for(50 * DELTA)
    start, m = world.now, send(leader, 0, 1)
    if follow_after is not None:
        world.run_for(follow_after)
        send(leader, 0, 1)
    world.run_for(20 * DELTA)
    return [clocked.at[m, p] - start for p in groups.processes]


@pytest.mark.parametrize(
    ("protocol", "options", "alone", "followers", "convoy"),
    [
        (Skeen, {}, 2, 2, 4),
        (FtSkeen, {}, 6, 7, 12),
        (FtSkeen, {"early_clock": True}, 6, 6, 10),
        (FastCast, {}, 4, 5, 8),
        (FastCast, {"early_clock": True}, 4, 4, 6),
    ],
)
def test_the_published_latencies(
    protocol: type[MulticastProtocol], options: dict[str, Any], alone: int, followers: int, convoy: int
) -> None:
    single = run(protocol, options, None)
    assert single[0] == alone * DELTA
    assert max(single) == followers * DELTA
    worst = max(run(protocol, options, deltas * DELTA - 1)[0] for deltas in range(1, 9))
    assert worst == convoy * DELTA - 1


def test_a_coordinator_costs_the_others_one_delay() -> None:
    assert run(Skeen, {"coordinator": True}, None) == [2 * DELTA, 3 * DELTA]
