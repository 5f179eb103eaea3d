"""A shard without a majority, in a simulated cluster: it is refused where requests enter, and holds up nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.api.model import Put, Transaction
from kvstore.core.messages import Answered, Execute, Refused
from kvstore.simulated.cluster import SimulatedCluster
from multicast.types import ProcessId, new_message_id

SECOND = 1_000_000
SEED = 4


def keys(cluster: SimulatedCluster) -> tuple[bytes, bytes]:
    """One of each shard."""
    names = [b"k%d" % i for i in range(50)]
    first, second = (next(k for k in names if cluster.shard_map.shard_of(k) == shard) for shard in (0, 1))
    return first, second


def ask(cluster: SimulatedCluster, replica: ProcessId, *written: bytes) -> list[Any]:
    """Where the answer will be."""
    answers: list[Any] = []
    identity = new_message_id(cluster.world.now, cluster.world.events)
    transaction = Transaction(success=tuple(Put(key, b"v") for key in written))
    cluster.world.request(replica, Execute(identity, transaction), answers.append)
    return answers


def answered(cluster: SimulatedCluster, replica: ProcessId, *written: bytes) -> Answered | Refused:
    answers = ask(cluster, replica, *written)
    cluster.world.run_while(lambda: not answers, 5 * SECOND)
    (answer,) = answers
    assert isinstance(answer, Answered | Refused)
    return answer


@pytest.mark.parametrize("protocol", ["white_box", "primcast", "ft_skeen"])
def test_a_dead_shard_is_refused_before_anything_is_multicast_and_named(protocol: str) -> None:
    cluster = SimulatedCluster(protocol, 2, 3, SEED)
    world = cluster.world
    world.start()
    world.run_for(SECOND)
    mine, theirs = keys(cluster)
    for dead in (4, 5):
        world.crash(dead)
    world.run_for(5 * SECOND)
    assert not cluster.world.node(3).protocol.has_majority()
    position = world.node(0).engine.position
    refusal = answered(cluster, 0, mine, theirs)
    assert isinstance(refusal, Refused) and (refusal.code, refusal.outcome) == ("no_majority", "not_applied")
    assert refusal.message.startswith("shard 1 has no majority, or cannot be reached: its leader was not ")
    assert isinstance(answered(cluster, 0, mine), Answered)
    assert world.node(0).engine.position == position + 1, "nothing else was multicast"
    for back in (4, 5):
        world.restart(back)
    world.run_for(5 * SECOND)
    assert isinstance(answered(cluster, 0, mine, theirs), Answered)


def test_where_every_delivery_needs_the_word_of_every_shard_a_dead_one_stops_all_before_anything_is_multicast() -> None:
    cluster = SimulatedCluster("quasi_genuine", 2, 3, SEED)
    world = cluster.world
    world.start()
    world.run_for(SECOND)
    mine, _ = keys(cluster)
    for dead in (4, 5):
        world.crash(dead)
    world.run_for(5 * SECOND)
    refusal = answered(cluster, 0, mine)
    assert isinstance(refusal, Refused) and (refusal.code, refusal.outcome) == ("no_majority", "not_applied")
    assert refusal.message == "shard 0 waits for shard 1, which has no leader with a majority"
    for back in (4, 5):
        world.restart(back)
    world.run_for(5 * SECOND)
    assert isinstance(answered(cluster, 0, mine), Answered)


@pytest.mark.parametrize(
    ("protocol", "replicas"), [("white_box", 3), ("primcast", 3), ("ft_skeen", 3), ("quasi_genuine", 3), ("skeen", 1)]
)
def test_who_is_held_up_by_what_was_on_its_way_says_for_whom_it_waits(protocol: str, replicas: int) -> None:
    cluster = SimulatedCluster(protocol, 2, replicas, SEED)
    world = cluster.world
    world.start()
    world.run_for(SECOND)
    mine, theirs = keys(cluster)
    most = world.topology.groups[1][replicas // 2 :]
    for dead in most:
        world.crash(dead)
    held_up = ask(cluster, 0, mine, theirs)
    world.run_for(6 * SECOND)
    assert not held_up
    *_, last = world.topology.groups[0]
    refusal = answered(cluster, last, mine)
    assert isinstance(refusal, Refused) and (refusal.code, refusal.outcome) == ("no_majority", "not_applied")
    assert refusal.message == "shard 0 waits for shard 1, which has no leader with a majority"
    assert cluster.replicas[last].trouble(0) == refusal.message
    for back in most:
        world.restart(back)
    world.run_for(8 * SECOND)
    assert isinstance(held_up[0], Answered)
    assert isinstance(answered(cluster, last, mine), Answered)
