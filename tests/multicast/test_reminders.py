"""A process whose disk was lost has again what it had told others, before it is a member again."""

from __future__ import annotations

import random

import pytest

from multicast.application import Application
from multicast.parts.reminders import Forgot, Reminder, Reminders
from multicast.protocol import MulticastProtocol, Outbox
from multicast.protocols.quasi_genuine import QuasiGenuine, QuasiGenuineOptions
from multicast.simulation.checkers import Properties, attach
from multicast.simulation.network import Conditions
from multicast.simulation.world import World
from multicast.types import ZERO, AppMessage, ProcessId, Timestamp, Topology, new_message_id
from tests.multicast.lockstep import Lockstep

SECOND = 1_000_000


def asking() -> tuple[Reminders, int, Outbox]:
    part, out = Reminders(0, Topology.grid(2, 3), 100), Outbox()
    part.begin(1_000, random.Random(1))
    assert part.tick(1_000, out)
    ((_, forgot, _),) = out.sends
    assert isinstance(forgot, Forgot)
    return part, forgot.question, out


def test_everybody_else_is_asked_and_who_is_silent_is_asked_again() -> None:
    part, question, out = asking()
    assert out.sends[0][0] == (1, 2, 3, 4, 5)
    part.add(4, Reminder(question, 0, ZERO))
    assert not part.tick(part.wake_at - 1, out)
    assert part.tick(part.wake_at, out)
    assert out.sends[1][0] == (1, 2, 3, 5)


def test_a_quorum_of_every_group_has_to_answer_and_the_highest_counts() -> None:
    part, question, _ = asking()
    for pid, number, time in ((1, 0, 7), (2, 0, 5), (3, 4, 9)):
        part.add(pid, Reminder(question, number, Timestamp(time, 0)))
        assert not part.complete
    part.add(5, Reminder(question, 3, ZERO))
    assert part.complete
    assert (part.numbers, part.watermark) == ({0: 0, 1: 4}, Timestamp(9, 0))


def test_an_answer_to_an_earlier_life_does_not_count() -> None:
    part, question, _ = asking()
    for pid in range(1, 6):
        part.add(pid, Reminder(question - 1, 9, ZERO))
    assert not part.complete
    assert part.numbers == {0: 0, 1: 0}
    part.begin(2_000, random.Random(1))
    for pid in range(1, 6):
        part.add(pid, Reminder(question, 9, ZERO))
    assert not part.complete


@pytest.mark.parametrize("name", ["ft_skeen", "fastcast", "quasi_genuine"])
def test_who_does_not_remember_what_a_member_of_its_group_told_reminds_it_of_what_it_has_itself(name: str) -> None:
    """Since it restarted it has heard nothing of that one. Others of the group may have counted on it."""
    world = Lockstep(Topology.grid(2, 3), name)
    world.settle()
    world.submit(0, 0, 1)
    world.advance(SECOND)
    reminded = []
    for pid in (1, 4):
        own, out = world.protocol(pid), Outbox()
        own.log.forget_watermark(2)
        own.handlers[Forgot].call(2, Forgot(7), world.now, out)
        reminded += [reminder.watermark for _, reminder, _ in out.sends]
    assert reminded == [world.protocol(1).log.watermark, ZERO] and reminded[0] > ZERO


def simulated(**options: bool) -> tuple[World, Properties]:
    topology = Topology.grid(2, 3)

    def make(pid: ProcessId, rng: random.Random, disk: object) -> tuple[MulticastProtocol, Application]:
        return QuasiGenuine(pid, topology, QuasiGenuineOptions(**options), rng), Application()

    world = World(topology, make, 1, Conditions.exact(1_000))
    properties = Properties(topology)
    attach(world, properties)
    world.start()
    world.run_for(SECOND)
    return world, properties


def send(world: World, pid: ProcessId, count: int) -> None:
    for number in range(count):
        world.submit(pid, AppMessage(new_message_id(world.now, pid << 20 | number), (0, 1), b"", pid))
        world.run_for(10_000)


@pytest.mark.parametrize("direct", [False, True])
def test_what_only_a_process_without_memory_and_one_other_had_survives_the_other(direct: bool) -> None:
    world, properties = simulated(direct_learners=direct)
    late = [(p, 5) for p in (0, 1, 2, 3, 4)]
    world.network.block(late)
    send(world, 0, 20)
    world.run_for(3 * SECOND)
    assert world.nodes[0].engine.protocol.describe()["outgoing"] == 0
    world.lose_disk(3)
    world.restart(3)
    assert not world.nodes[3].engine.protocol.is_member()
    world.network.unblock(late)
    world.network.block([(p, 5) for p in (0, 1, 2)])
    assert world.run_while(lambda: not world.nodes[3].engine.protocol.is_member(), 60 * SECOND, SECOND)
    world.crash(4)
    world.network.unblock([(p, 5) for p in (0, 1, 2)])
    send(world, 1, 5)
    world.run_for(20 * SECOND)
    assert [world.nodes[p].engine.position for p in (0, 1, 2, 3, 5)] == [25] * 5
    assert world.violations == [] and len(properties.logs[1]) == 25


@pytest.mark.parametrize("pid", [0, 1])
def test_a_sender_without_memory_goes_on_after_its_last_message(pid: ProcessId) -> None:
    world, properties = simulated()
    send(world, pid, 5)
    world.run_for(SECOND)
    world.lose_disk(pid)
    world.restart(pid)
    send(world, pid, 5)
    world.run_for(20 * SECOND)
    assert world.nodes[pid].engine.protocol.is_member()
    assert {len(log) for log in properties.logs.values()} == {10}
    assert world.violations == []


def test_it_stays_without_memory_while_one_of_its_group_is_silent_and_through_a_restart() -> None:
    world, _ = simulated()
    send(world, 0, 5)
    world.lose_disk(4)
    world.crash(5)
    world.restart(4)
    world.run_for(5 * SECOND)
    world.crash(4)
    world.restart(4)
    world.run_for(5 * SECOND)
    assert not world.nodes[4].engine.protocol.is_member()
    assert world.nodes[4].engine.protocol.role() == "recovering"
    world.restart(5)
    world.run_for(20 * SECOND)
    assert world.nodes[4].engine.protocol.is_member()
    send(world, 4, 1)
    world.run_for(SECOND)
    assert all(node.engine.position == 6 for node in world.nodes.values())
