"""After a restart every replica delivers as soon as before: by itself, not by catching up."""

from __future__ import annotations

import random
from typing import Any

import pytest

from multicast import registry
from multicast.application import Application
from multicast.protocol import MulticastProtocol
from multicast.records import Delivered
from multicast.simulation.checkers import Checker, attach
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.network import Conditions
from multicast.simulation.scene import Node
from multicast.simulation.world import World
from multicast.types import AppMessage, MessageId, ProcessId, Topology, new_message_id

DELTA = 1_000
SECOND = 1_000_000
PROTOCOLS = [n for n in registry.names() if registry.load(n).specification.fault_tolerant]
CASES = [(n, lost) for n in PROTOCOLS for lost in (False, True)
         if not lost or registry.load(n).specification.survives_lost_disk]  # fmt: skip
"""lost: its disk, too, not only its memory."""


class Clocked(Checker):
    """When each process delivered what."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[tuple[MessageId, ProcessId], int] = {}

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        if delivery.position:  # a final one
            self.at.setdefault((delivery.message.id, node.pid), node.world.now)


class Quiet:
    """A world in which nothing happens but what a test does, and messages take DELTA."""

    def __init__(self, protocol: type[MulticastProtocol], **options: Any):
        self.topology = Topology.grid(2, 3)
        settings = protocol.specification.options(**options)

        def make(
            pid: ProcessId, rng: random.Random, disk: SimulatedDisk
        ) -> tuple[MulticastProtocol, Application]:
            return protocol(pid, self.topology, settings, rng), Application()

        self.world, self.clocked = World(self.topology, make, 0, Conditions.exact(DELTA)), Clocked()
        attach(self.world, self.clocked)
        self.number = 0
        self.world.start()
        self.world.run_for(3 * SECOND)

    def leader(self, group: int = 0) -> ProcessId:
        first = self.topology.groups[group][0]
        leader = self.world.node(first).protocol.leader_of(group)
        assert leader is not None
        return leader

    def latencies(self) -> list[list[int]]:
        """After how many µs each process of each group delivers a message of group 0's leader, in rising order."""
        self.number += 1
        leader = self.leader()
        start, m = self.world.now, AppMessage(new_message_id(self.world.now, self.number), (0, 1), b"", leader)
        assert self.world.submit(leader, m)
        self.world.run_for(SECOND)
        return [sorted(self.clocked.at[m.id, p] - start for p in ps) for ps in self.topology.groups.values()]

    def restart(self, victim: ProcessId, down_us: int = 10 * DELTA, lost: bool = False) -> None:
        """It crashes, and comes back."""
        (self.world.lose_disk if lost else self.world.crash)(victim)
        self.world.run_for(down_us)
        self.world.restart(victim)
        self.world.run_for(5 * SECOND)

    def change_leader(self) -> None:
        before = self.leader(0)
        self.restart(before, 5 * SECOND)


@pytest.mark.parametrize("epoch", [1, 2, 3])
@pytest.mark.parametrize(("name", "lost"), CASES)
def test_after_a_restart_everybody_delivers_as_soon_as_before(name: str, epoch: int, lost: bool) -> None:
    """At a follower, then at the leader, in the first epoch (ballot, view) and in later ones."""
    protocol = registry.load(name)
    quiet = Quiet(protocol)
    usual = quiet.latencies()
    for _ in range(1, epoch):
        quiet.change_leader()
    for leads in (False, True):
        leader = quiet.leader()
        quiet.restart(leader if leads else next(p for p in (1, 2, 0) if p != leader), lost=lost)
        assert quiet.latencies() == usual


def test_a_leader_whose_clock_is_slow_promises_when_its_clock_is_there_not_when_it_is_asked_again() -> None:
    """Quasi-genuine, optimistic: the request comes before the decision, 100 ms ahead of the leader's clock."""
    quiet = Quiet(registry.load("quasi_genuine"), clock="hybrid", optimistic=True, wait_us=2 * DELTA, retry_us=SECOND,
                  stamp_ahead_us_max=5 * DELTA, clock_probe_us=60 * SECOND)  # fmt: skip
    world = quiet.world
    for p in (1, 2, 3, 4, 5):
        world.jump_clock(p, 100 * DELTA)
    start, m = world.now, AppMessage(new_message_id(world.now, 1), (0,), b"", 5)
    assert world.submit(5, m)
    world.run_for(2 * SECOND)
    assert max(quiet.clocked.at[m.id, p] - start for p in (0, 1, 2)) < 150 * DELTA
