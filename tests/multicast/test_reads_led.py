"""Reads at the leaders of other protocols than White-Box (parts.reign_reads, parts.epoch_reads), and Skeen's."""

from __future__ import annotations

import random
from typing import Any

import pytest

from multicast import registry
from multicast.protocol import MulticastProtocol, Outbox, Saved
from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.skeen import Multicast, Propose, Skeen
from multicast.types import AppMessage, Ballot, Timestamp, Topology, new_message_id
from tests.multicast.lockstep import START_US, Lockstep
from tests.planted.reads_led import (
    FastCastAsksNobody,
    FastCastOwnPosition,
    FastCastTakesOverUnseen,
    FtSkeenAsksNobody,
    PrimCastAsksNobody,
    PrimCastOwnPosition,
    SkeenForgetsDeliveries,
)

SECOND = 1_000_000
LED: list[tuple[str, dict[str, Any]]] = [
    ("primcast", {}),
    ("fastcast", {}),
    ("fastcast", {"early_clock": True}),
    ("ft_skeen", {}),
    ("ft_skeen", {"early_clock": True}),
]


def cluster(protocol: str | type[MulticastProtocol], groups: int = 1, **options: Any) -> Lockstep:
    world = Lockstep(Topology.grid(groups, 3), protocol, **options)
    world.settle()
    return world


@pytest.mark.parametrize(("protocol", "options"), LED)
def test_a_leader_answers_once_a_quorum_confirms_it_and_writes_nothing(protocol: str, options: dict[str, Any]) -> None:
    world = cluster(protocol, **options)
    world.submit(0, 0)
    world.submit(1, 0)
    world.settle()
    before = [engine.recorder.offset for engine in world.engines.values()]
    world.read(0)
    assert world.fresh(0) == []
    world.settle()
    assert world.fresh(0) == [2]
    assert [engine.recorder.offset for engine in world.engines.values()] == before


def test_what_t_lacks_by_now_is_waited_for_though_the_backlog_is_delivered() -> None:
    world, out = cluster("primcast"), Outbox()
    process = world.protocol(0)
    process.on_read(7, world.now, out)
    process.end_batch(world.now, out)
    [asked] = process._reads._rounds
    asked.position, asked.members, process.t.reach = None, {0, 1}, 1
    process._reads.end_batch(world.now, out)
    assert out.readable == []
    process.t.reach = 0
    process._reads.end_batch(world.now, out)
    assert out.readable == [(7, 0)]


def test_what_was_asked_in_an_earlier_ballot_is_given_up_by_who_leads_another_one() -> None:
    world, out = cluster("primcast"), Outbox()
    process = world.protocol(0)
    process.on_read(7, world.now, out)
    process.end_batch(world.now, out)
    process._reads._rounds[0].ballot = Ballot(0, 0)
    process._reads.end_batch(world.now, out)
    assert out.readable == [(7, None)]


@pytest.mark.parametrize(("protocol", "options"), LED)
def test_who_does_not_lead_does_not_know(protocol: str, options: dict[str, Any]) -> None:
    world = cluster(protocol, **options)
    world.read(1)
    assert world.fresh(1) == [None]


def asked_of_a_deposed_leader(protocol: type[MulticastProtocol]) -> list[int | None]:
    """Process 0 does not know yet that 1 and 2 have gone on without it, and hears only 1 again."""
    world = cluster(protocol)
    world.cut = {(0, 2), (2, 0), (0, 1), (1, 0)}
    world.advance(10 * SECOND)
    leader = next(p for p in (1, 2) if world.protocol(p).role() == "leader")
    world.submit(leader, 0)
    world.settle()
    assert [len(world.delivered(p)) for p in range(3)] == [0, 1, 1]
    for link in ((0, 1), (1, 0)):
        world.links.pop(link, None)
    world.cut -= {(0, 1), (1, 0)}
    assert world.protocol(0).role() == "leader"
    world.read(0)
    world.step(0, 1)
    world.step(1, 0)
    return world.fresh(0)


@pytest.mark.parametrize(
    ("protocol", "without"),
    [(PrimCast, PrimCastAsksNobody), (FastCast, FastCastAsksNobody), (FtSkeen, FtSkeenAsksNobody)],
)
def test_a_deposed_leader_has_no_quorum(protocol: type[MulticastProtocol], without: type[MulticastProtocol]) -> None:
    assert asked_of_a_deposed_leader(protocol) in ([], [None])
    assert asked_of_a_deposed_leader(without) == [0]


def asked_behind_a_member(protocol: type[MulticastProtocol], **options: Any) -> list[int | None]:
    """Process 1 has delivered a message; what would make the leader deliver it is still on its way to that, but for
    what process 2 says of its question."""
    world = cluster(protocol, **options)
    world.cut = {(1, 0), (2, 0)}
    world.submit(0, 0)
    world.settle()
    assert [len(world.delivered(p)) for p in range(2)] == [0, 1]
    kept = world.links.pop((2, 0))
    world.cut.remove((2, 0))
    world.read(0)
    world.step(0, 2)
    while world.step(2, 0):
        pass
    early = list(world.fresh(0))
    world.links[2, 0].extend(kept)
    world.cut.clear()
    world.settle()
    assert len(world.delivered(0)) == 1
    return early if early else world.fresh(0)


@pytest.mark.parametrize(
    ("protocol", "without", "options"),
    [
        (PrimCast, PrimCastOwnPosition, {}),
        (FastCast, FastCastOwnPosition, {"early_clock": True}),
    ],
)
def test_a_leader_waits_for_what_members_may_have_delivered_by_themselves(
    protocol: type[MulticastProtocol], without: type[MulticastProtocol], options: dict[str, Any]
) -> None:
    assert asked_behind_a_member(protocol, **options) == [1]
    assert asked_behind_a_member(without, **options) == [0]


def asked_of_a_new_leader(protocol: type[MulticastProtocol]) -> list[int | None]:
    """The old leader of group 0 has delivered a message, and died; the new one has it in its log, and does not hear the
    other group."""
    world = cluster(protocol, groups=2)
    world.submit(0, 0, 1)
    others = (3, 4, 5)
    world.cut = {(a, b) for a in (1, 2) for b in others} | {(b, a) for a in (1, 2) for b in others}
    while not world.delivered(0) and any(world.step(a, b) for a, b in list(world.links)):
        pass
    assert [len(world.delivered(p)) for p in range(3)] == [1, 0, 0]
    world.crash(0)
    world.advance(10 * SECOND)
    leader = next(p for p in (1, 2) if world.protocol(p).role() == "leader")
    world.read(leader)
    world.settle()
    return world.fresh(leader)


def test_a_new_leader_must_have_delivered_all_that_it_took_over() -> None:
    assert asked_of_a_new_leader(FastCast) == [None]
    assert asked_of_a_new_leader(FastCastTakesOverUnseen) == [0]


def test_a_process_alone_in_its_group_knows_at_once() -> None:
    world = Lockstep(Topology.grid(2, 1), registry.load("skeen"))
    world.settle()
    world.submit(0, 0)
    world.settle()
    world.read(0)
    assert world.fresh(0) == [1]
    assert not any(world.links.values())


def asked_in_a_later_life(protocol: type[Skeen]) -> list[tuple[int, int | None]]:
    """It may have delivered the message before its power failed: the stamp was on disk by then, the delivery not."""
    topology, options = Topology.grid(2, 1), protocol.specification.options()
    out, message = Outbox(), AppMessage(new_message_id(START_US, 1), (0, 1), b"x", 0)
    first = protocol(0, topology, options, random.Random(1))
    first.on_start(Saved({}), START_US, out)
    first.on_message(0, Multicast(message), START_US, out)
    values = {key: value for key, value, _ in out.changes if value is not None}
    later, out = protocol(0, topology, options, random.Random(1)), Outbox()
    later.on_start(Saved(values, 0, False), START_US, out)
    later.on_read(1, START_US, out)
    later.on_message(0, Propose(message, Timestamp(1, 0)), START_US, out)
    later.on_message(1, Propose(message, Timestamp(1, 1)), START_US, out)
    later.on_read(2, START_US, out)
    return out.readable


def test_in_a_later_life_a_process_knows_when_it_has_delivered_what_it_began_with() -> None:
    assert asked_in_a_later_life(Skeen) == [(1, None), (2, 1)]
    assert asked_in_a_later_life(SkeenForgetsDeliveries) == [(1, 0), (2, 1)]
