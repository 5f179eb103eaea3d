"""Processes that know one another only from some moment on: a link takes both ends, as in a live host."""

from __future__ import annotations

import random

import pytest

from multicast import registry
from multicast.application import Application
from multicast.membership import Change, Founding, GroupIs, ViewIs, Views, change_payload, founding_payload, view_key
from multicast.parts.ballots import REMOVED
from multicast.parts.delivered import Watermark
from multicast.parts.submissions import Asked
from multicast.protocol import MulticastProtocol, Outbox, PeerError, Saved
from multicast.protocols.primcast import PrimCast
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.growing import topology_of
from multicast.simulation.network import Conditions
from multicast.simulation.world import World
from multicast.types import ZERO, AppMessage, GroupId, MessageId, ProcessId, Topology, new_message_id

DELTA = 1_000
SECOND = 1_000_000
PROTOCOLS = [n for n in registry.names() if registry.load(n).specification.changes_members]
NEW, FOUNDED, LATER = 6, (7, 8, 9), 10


class Growing:
    """Two groups; process 6 may be added to the first one, and 7 to 9 may found a third one."""

    def __init__(self, name: str):
        protocol = registry.load(name)
        self.topology = Topology({0: (0, 1, 2), 1: (3, 4, 5)}, {0: (NEW,), 1: (LATER,), 2: FOUNDED})
        settings = protocol.specification.options()

        def make(pid: ProcessId, rng: random.Random, disk: SimulatedDisk) -> tuple[MulticastProtocol, Application]:
            return protocol(pid, topology_of(self.topology, pid), settings, rng), Application()

        self.world = World(self.topology, make, 0, Conditions.exact(DELTA))
        self.number = 0
        self.world.start()
        self.world.run_for(3 * SECOND)

    def multicast(self, origin: ProcessId, groups: tuple[GroupId, ...], payload: bytes = b"") -> MessageId:
        self.number += 1
        m = AppMessage(new_message_id(self.world.now, self.number), groups, payload, origin)
        assert self.world.submit(origin, m)
        self.world.run_for(5 * SECOND)
        return m.id

    def add(self, process: ProcessId, group: GroupId) -> None:
        self.world.restart(process)
        self.multicast(self.topology.groups[group][1], (group,), change_payload(Change(0, True, process)))

    def found(self, group: GroupId, members: tuple[ProcessId, ...]) -> None:
        founded = GroupIs(group, members, {})
        for process in members:
            self.world.restart(process)
        self.multicast(0, (0,), founding_payload(Founding(founded)))

    def restart(self, process: ProcessId) -> None:
        self.world.crash(process)
        self.world.run_for(5 * SECOND)
        self.world.restart(process)
        self.world.run_for(5 * SECOND)

    def lead(self, process: ProcessId) -> None:
        """Its group gets no other leader."""
        for _ in range(20):
            protocol = self.world.node(process).protocol
            leader = protocol.leader_of(protocol.group)
            if leader == process:
                return
            assert leader is not None
            self.restart(leader)
        raise AssertionError(f"process {process} does not lead")


def positions(world: World, processes: tuple[ProcessId, ...]) -> list[int]:
    return [world.node(p).engine.position for p in processes]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_group_that_is_founded_hears_of_a_leader_that_was_added_before(
    name: str,
) -> None:
    growing = Growing(name)
    growing.add(NEW, 0)
    growing.lead(NEW)
    growing.found(2, FOUNDED)
    before = positions(growing.world, FOUNDED)
    growing.multicast(0, (0, 2))
    assert positions(growing.world, FOUNDED) == [position + 1 for position in before]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_who_was_down_when_a_replica_was_added_hears_of_it_when_that_leads(
    name: str,
) -> None:
    """All who told it the view have died since."""
    growing = Growing(name)
    others = growing.topology.groups[1]
    for process in others[1:]:
        growing.world.crash(process)
    growing.add(NEW, 0)
    growing.lead(NEW)
    for process in others[1:]:
        growing.world.restart(process)
    growing.world.run_for(5 * SECOND)
    before = positions(growing.world, others)
    growing.multicast(1, (0, 1))
    assert positions(growing.world, others) == [position + 1 for position in before]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_who_was_away_while_all_of_another_group_were_replaced_hears_of_who_there_is(name: str) -> None:
    """Nobody whom it knows there is left to tell: its own group does."""
    growing = Growing(name)
    away, others = growing.topology.groups[1][0], growing.topology.groups[1][1:]
    growing.world.crash(away)
    growing.add(NEW, 0)
    for view, gone in enumerate(growing.topology.groups[0], 1):
        growing.lead(NEW)
        growing.multicast(NEW, (0,), change_payload(Change(view, False, gone)))
        assert growing.world.node(gone).protocol.role() == REMOVED
        growing.world.crash(gone)
    growing.world.restart(away)
    growing.add(LATER, 1)
    assert growing.world.node(LATER).protocol.topology.groups[0] == (NEW,), "who is new knows the file of long ago"
    assert growing.world.node(away).protocol.topology.groups[0] == (NEW,)
    before = positions(growing.world, (NEW, away, *others))
    growing.multicast(away, (0, 1))
    assert positions(growing.world, (NEW, away, *others)) == [position + 1 for position in before]


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_who_was_cut_off_while_all_others_of_its_group_were_replaced_is_one_of_it_or_told_that_it_is_not(
    name: str, removed: bool
) -> None:
    """It knows nobody who is left, and those who were added greet it. The group may need it to go on."""
    growing = Growing(name)
    world, (away, *others) = growing.world, growing.topology.groups[1]
    cut = [pair for p in world.nodes if p != away for pair in ((p, away), (away, p))]
    world.network.block(cut)
    world.run_for(5 * SECOND)
    if removed:
        growing.multicast(others[0], (1,), change_payload(Change(0, False, away)))
    world.restart(LATER)
    growing.multicast(others[0], (1,), change_payload(Change(int(removed), True, LATER)))
    for view, gone in enumerate(others, 1 + removed):
        growing.lead(LATER)
        growing.multicast(LATER, (1,), change_payload(Change(view, False, gone)))
        world.crash(gone)
    world.network.unblock(cut)
    world.run_for(5 * SECOND)
    assert world.node(away).protocol.role() == (REMOVED if removed else "follower")
    there = (LATER,) if removed else (LATER, away)
    before = positions(world, there)
    growing.multicast(0, (0, 1))
    assert positions(world, there) == [position + 1 for position in before]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_group_that_was_cut_off_while_all_of_another_one_were_replaced_hears_of_it_from_who_is_new(name: str) -> None:
    """Nobody whom it knows there is left, nor anybody else who could tell."""
    growing = Growing(name)
    world, others = growing.world, growing.topology.groups[1]
    cut = [pair for p in (0, 1, 2, NEW) for q in others for pair in ((p, q), (q, p))]
    world.network.block(cut)
    growing.add(NEW, 0)
    for view, gone in enumerate(growing.topology.groups[0], 1):
        growing.lead(NEW)
        growing.multicast(NEW, (0,), change_payload(Change(view, False, gone)))
        world.crash(gone)
    world.network.unblock(cut)
    world.run_for(5 * SECOND)
    before = positions(world, (NEW, *others))
    growing.multicast(others[1], (0, 1))
    assert positions(world, (NEW, *others)) == [position + 1 for position in before]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_founded_group_is_told_again_by_who_restarts_before_its_word_has_arrived(name: str) -> None:
    """All of the first group lose their power, and what they had to send with it."""
    growing = Growing(name)
    world, (first, second) = growing.world, [growing.topology.groups[g] for g in (0, 1)]
    cut = [pair for p in first for q in second for pair in ((p, q), (q, p))]
    world.network.block(cut)
    growing.found(2, FOUNDED)
    for process in (*first, *FOUNDED):
        world.crash(process)
    world.network.unblock(cut)
    for process in (*first, *FOUNDED):
        world.restart(process)
    world.run_for(5 * SECOND)
    assert [world.node(p).protocol.topology.groups[2] for p in second] == [FOUNDED] * 3


@pytest.mark.parametrize("name", PROTOCOLS)
def test_who_restarts_knows_the_views_of_a_founded_group_by_itself(name: str) -> None:
    """Perhaps nobody is there to tell it again."""
    growing = Growing(name)
    world, process = growing.world, growing.topology.groups[1][0]
    growing.found(2, FOUNDED)
    growing.multicast(FOUNDED[0], (2,), change_payload(Change(0, False, FOUNDED[2])))
    assert world.node(process).protocol.topology.groups[2] == FOUNDED[:2]
    world.crash(process)
    world.network.block([pair for p in world.nodes if p != process for pair in ((p, process), (process, p))])
    world.restart(process)
    world.run_for(SECOND)
    assert world.node(process).protocol.topology.groups[2] == FOUNDED[:2]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_what_comes_from_a_group_before_anybody_has_told_of_it_is_refused_and_ends_nobody(name: str) -> None:
    """As at a process that has lost its disk, and is linked to all that its file names."""
    protocol = registry.load(name)
    options, topology = protocol.specification.options(), Topology({0: (0, 1, 2)}, {1: FOUNDED})
    process = protocol(0, topology_of(topology, 0), options, random.Random(1))
    process.on_start(Saved({}), 1, Outbox())
    process.on_peer_reset(FOUNDED[0], 1, greeting := Outbox())
    assert not greeting.sends
    with pytest.raises(PeerError, match="Watermark from group None"):
        process.on_message(FOUNDED[0], Watermark(ZERO), 1, Outbox())
    process.on_message(FOUNDED[0], GroupIs(1, FOUNDED, {}), 1, Outbox())
    process.on_message(FOUNDED[0], Watermark(ZERO), 1, Outbox())


@pytest.mark.parametrize(("sender", "told"), [(1, 1), (FOUNDED[0], 0)])
def test_who_was_removed_answers_whom_it_knows(sender: ProcessId, told: int) -> None:
    topology, views = Topology({0: (0, 1, 2)}, {1: FOUNDED}), Views((0, 1, 2))
    assert views.change(Change(0, False, 0), 1)
    process = PrimCast(0, topology_of(topology, 0), PrimCast.specification.options(), random.Random(1))
    begun = (1).to_bytes(4, "big")
    process.on_start(Saved({view_key(0, 1): views.encode(1), b"B": begun, b"X": b""}), 1, Outbox())
    assert process.role() == REMOVED
    process.on_message(sender, Asked([new_message_id(1, 1)]), 1, out := Outbox())
    assert [type(message) for _, message, *_ in out.sends] == [ViewIs] * told
