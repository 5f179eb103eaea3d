"""Skeen's protocol, Fig. 1 of the White-Box paper."""

from __future__ import annotations

import random
from typing import Any

import pytest

from multicast.application import Application
from multicast.parts.delivered import Known
from multicast.protocol import MulticastProtocol, Outbox
from multicast.protocols.skeen import Final, Skeen, SkeenOptions
from multicast.simulation.checkers import Properties, attach
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.network import Conditions
from multicast.simulation.world import World
from multicast.types import AppMessage, ProcessId, Timestamp, Topology, new_message_id
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


def test_what_another_process_has_delivered_is_not_dropped_before_it_is_delivered_here() -> None:
    world = Lockstep(Topology.grid(2, 1), "skeen")
    world.cut = {(1, 0)}
    waiting = world.submit(0, 0, 1)
    world.settle()
    world.protocol(0).on_message(1, Known(waiting, Timestamp(1, 1)), world.now, Outbox())
    world.cut = set()
    world.settle()
    assert world.delivered(0) == world.delivered(1) == [waiting]


def test_of_a_copy_that_was_delivered_long_ago_nothing_is_left() -> None:
    world, out = Lockstep(Topology.grid(2, 1), "skeen"), Outbox()
    world.cut = {(1, 0)}
    copy = world.submit(0, 0, 1)
    world.settle()
    member = world.protocol(0)
    member.on_message(1, Known(copy, member._log.timestamp), world.now, out)
    assert not member._entries and not len(member._queue)
    assert any(key.endswith(copy) and value is None for key, value, _ in out.changes)


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


class Counting(Skeen):
    """Counts what it sends, to itself included."""

    sent = 0

    def end_batch(self, now: int, out: Outbox) -> None:
        super().end_batch(now, out)
        self.sent += sum(len(to) for to, m, _ in out.sends if type(m) not in self.specification.housekeeping)


@pytest.mark.parametrize(("coordinator", "expected"), [(False, 4 + 16), (True, 3 * 4)])
@pytest.mark.parametrize("sender", [1, 4])
def test_a_coordinator_saves_messages(coordinator: bool, expected: int, sender: int) -> None:
    world = Lockstep(Topology.grid(5, 1), Counting, coordinator=coordinator)
    m = world.submit(sender, 0, 1, 2, 3)
    world.settle()
    assert [world.delivered(p) for p in range(5)] == [[m]] * 4 + [[]]
    assert sum(world.protocol(p).sent for p in range(5)) == expected


def test_destinations_deliver_in_one_order_with_different_coordinators() -> None:
    world = Lockstep(Topology.grid(3, 1), "skeen", coordinator=True)
    ids = [world.submit(p % 3, 0, 1, 2) for p in range(9)]
    world.settle()
    assert sorted(world.delivered(0)) == sorted(ids)
    assert world.delivered(1) == world.delivered(2) == world.delivered(0)


def test_destinations_find_the_maximum_by_themselves_if_the_coordinators_word_is_lost() -> None:
    world = Lockstep(Topology.grid(3, 1), "skeen", coordinator=True)
    m = world.submit(1, 0, 1, 2)
    assert world.step(1, 0) and world.step(1, 2)
    world.cut = {(1, 0), (1, 2)}
    world.settle()
    assert [world.delivered(p) for p in range(3)] == [[], [m], []]
    for link in world.cut:
        world.links[link].clear()
    world.cut = set()
    world.advance(2_000_000)
    assert [world.delivered(p) for p in range(3)] == [[m]] * 3


def test_a_sender_that_is_no_destination_asks_what_became_of_its_message() -> None:
    world = Lockstep(Topology.grid(3, 1), "skeen")
    world.cut = {(2, 0), (2, 1)}
    ids = [world.submit(2, 0, 1) for _ in range(20)]
    for link in world.cut:
        world.links[link].clear()
    world.cut = set()
    world.advance(3_000_000)
    assert sorted(world.delivered(0)) == sorted(world.delivered(1)) == sorted(ids)
    assert len(world.protocol(2)._submissions) == 0


def test_two_final_timestamps_of_one_message_are_a_bug() -> None:
    world = Lockstep(Topology.grid(2, 1), "skeen", coordinator=True)
    world.cut = {(1, 0)}
    m = world.submit(1, 0, 1)
    world.cut = set()
    world.step(1, 0)
    member = world.protocol(0)
    local = member._entries[m].stamps[0]
    member._on_final(0, Final(m, local._replace(time=5)), 0, Outbox())
    member._entries[m].delivered = False
    with pytest.raises(AssertionError, match="has final timestamps"):
        member._on_final(0, Final(m, local._replace(time=6)), 0, Outbox())


class DeliversBeforeItsClockIsOnDisk(Skeen):
    """As printed, where processes never fail."""

    def _commit_if_complete(self, message_id: bytes, entry: Any) -> None:
        self._clock_on_disk = 1 << 62
        super()._commit_if_complete(message_id, entry)


@pytest.mark.parametrize(("protocol", "right"), [(Skeen, True), (DeliversBeforeItsClockIsOnDisk, False)])
def test_what_was_delivered_comes_first_after_a_loss_of_power_too(
    protocol: type[MulticastProtocol], right: bool
) -> None:
    """Process 1's clock is ahead, so m's final timestamp is above the one on process 0's disk when 0 learns it and its
    power fails. Back again, cut off from 1, it stamps another message."""
    topology = Topology.grid(2, 1)

    def make(pid: ProcessId, rng: random.Random, _: SimulatedDisk) -> tuple[MulticastProtocol, Application]:
        return protocol(pid, topology, SkeenOptions(), rng), Application()

    conditions = Conditions(delay_us=(100, 100), late_probability=0.0, fsync_us=(1_000, 1_000))
    world = World(topology, make, 1, conditions)
    properties = Properties(topology)
    attach(world, properties)
    world.start()

    def submit(process: ProcessId, *groups: int) -> None:
        identity = new_message_id(world.now, world.now)
        world.submit(process, AppMessage(identity, groups, b"", process))
        world.run_for(1)

    for _ in range(5):
        submit(1, 1)
    world.run_for(50_000)
    submit(0, 0, 1)
    engine = world.node(0).engine
    before = engine.position
    learned = world.run_while(lambda: engine.protocol.describe()["clock"] < 6, 1_000_000, step_us=50)
    assert learned and (engine.position > before) is not right
    world.crash(0)
    world.network.block([(0, 1), (1, 0)])
    world.restart(0)
    submit(0, 0)
    world.run_for(100_000)
    world.heal()
    world.run_while(properties.unfinished, 10_000_000)
    assert (world.violations == []) is right
    assert right or {"order", "agreement"} <= {checker for checker, _ in world.violations}
