"""Copies of a message that come after its id was forgotten: they are delivered again, expired."""

from __future__ import annotations

import pytest

from multicast import registry
from multicast.parts.accepts import ACCEPTED
from multicast.parts.delivered import Known
from multicast.protocols.white_box import Accept, Deliver
from multicast.types import Timestamp, Topology
from tests.multicast.lockstep import Lockstep

SECOND = 1_000_000
REPLICATED = [n for n in registry.names() if registry.load(n).specification.fault_tolerant]


@pytest.mark.parametrize("missed", [1, 2])
@pytest.mark.parametrize("name", REPLICATED)
def test_a_replica_catches_up_over_a_journal_that_holds_one_id_twice(name: str, missed: int) -> None:
    """missed: how many of the two deliveries it gets from a peer's journal."""
    world = Lockstep(Topology.grid(1, 3), name, clock="hybrid", dedup_window_us=SECOND)
    world.advance(SECOND)
    m, behind = world.message(0), 2
    cut = {(p, behind) for p in (0, 1)} | {(behind, p) for p in (0, 1)}
    world.cut = cut if missed == 2 else set()
    world.engines[0].submit(m)
    world._run(0)
    world.advance(SECOND)
    world.cut = cut
    for _ in range(8):
        world.submit(0, 0)
        world.advance(SECOND)
    world.engines[1].submit(m)
    world._run(1)
    world.advance(3 * SECOND)
    assert world.delivered(0).count(m.id) == world.delivered(1).count(m.id) == 2, "the second time it is expired"
    for p in (0, 1):
        world.lose_link(behind, p)
        world.lose_link(p, behind)
    world.cut = set()
    world.submit(0, 0)
    world.advance(10 * SECOND)
    assert world.delivered(behind) == world.delivered(0) == world.delivered(1)
    assert len(world.delivered(0)) == 11


def test_white_box_drops_a_copy_again_that_an_earlier_leader_dropped_when_the_group_has_delivered_beyond() -> None:
    """Leader 0 drops a late copy on another group's word, its followers keep it as accepted, and the group delivers a
    later message. The next leader has the copy from a follower, and it is committed at its old place."""
    world = Lockstep(Topology.grid(2, 3), "white_box", clock="hybrid", dedup_window_us=SECOND)
    copy = world.message(0, 1)
    world.advance(3 * SECOND)
    first = world.submit(0, 0)
    world.settle()
    world.cut = {(p, 0) for p in (3, 4, 5)} | {(p, 3) for p in (0, 1, 2)}
    for p in (0, 3):
        world.engines[p].submit(copy)
        world._run(p)
    world.settle()
    engine = world.engines[0]
    engine.receive(3, engine.codec.encode(0, Known(copy.id, Timestamp(world.now - SECOND, 1))))
    world._run(0)
    world.advance(SECOND // 2)
    later = world.submit(0, 0)
    world.settle()
    assert [world.delivered(p) for p in range(3)] == [[first, later]] * 3
    assert [copy.id in world.protocol(p).entries for p in range(3)] == [False, True, True]
    world.crash(0)
    world.cut = set()
    world.advance(5 * SECOND)
    last = world.submit(1, 0)
    world.advance(5 * SECOND)
    assert world.delivered(1) == world.delivered(2) == [first, later, last]


def test_white_box_keeps_nothing_of_a_delivery_that_it_has_forgotten() -> None:
    """2 has delivered and forgotten m, and hears of it again: from the other group, and a leader's DELIVER anew. Then
    a late copy comes, with another stamp."""
    world = Lockstep(Topology.grid(2, 3), "white_box", clock="hybrid", dedup_window_us=SECOND)
    m = world.message(0, 1)
    world.engines[0].submit(m)
    world._run(0)
    world.settle()
    old = world.protocol(2).log.known(m.id)[0]
    for _ in range(8):
        world.submit(0, 0, 1)
        world.advance(SECOND)
    engine, leaders = world.engines[2], world.protocol(2).leadership.leaders
    engine.receive(3, engine.codec.encode(0, Accept(m.id, 1, leaders[1], old, None)))
    engine.receive(0, engine.codec.encode(0, Deliver(m.id, leaders[0], old, old, 1)))
    world._run(2)
    assert m.id not in world.protocol(2).entries
    world.engines[0].submit(m)
    world._run(0)
    world.advance(5 * SECOND)
    assert [world.delivered(p).count(m.id) for p in range(6)] == [2] * 6


def test_white_box_does_not_take_a_low_stamp_for_an_old_message() -> None:
    """0 has stamped m before it knew the time, group 1 has delivered it, at another stamp; 0 has delivered what comes
    before that, and dies."""
    world = Lockstep(Topology.grid(2, 3), "white_box", clock="hybrid", dedup_window_us=SECOND)
    world.cut = {(0, 3)}
    m = world.submit(0, 0, 1)
    assert world.protocol(0).entries[m].local == Timestamp(1, 0)
    world.advance(SECOND)
    before = world.submit(0, 0)
    world.submit(0, 0, 1)  # 3 never hears of it, and m waits for it
    world.advance(SECOND // 10)
    world.cut = set()
    while m not in world.protocol(3).entries or world.protocol(3).entries[m].phase != ACCEPTED:
        assert world.step(0, 3)
    world.cut = {(0, 3)}
    world.settle()
    assert [world.delivered(p) for p in (0, 1, 3)] == [[before], [before], [m]]
    world.crash(0)
    world.cut = set()
    world.advance(10 * SECOND)
    assert [world.delivered(p) for p in (1, 2)] == [[before, m]] * 2
    assert len({world.protocol(p).log.known(m)[0] for p in range(1, 6)}) == 1
