"""Reads at the leader, with the protocol and everything: in a simulated cluster."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.api.model import Get, KeyValue, OperationResult, Put, Range, Result, Transaction, between, bounds
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Answered, Execute
from kvstore.simulated.clients import Operated
from kvstore.simulated.cluster import SimulatedCluster
from kvstore.simulated.reading import as_told
from kvstore.simulated.runner import run_seed
from kvstore.simulated.settings import Settings
from multicast.protocol import Outbox
from multicast.protocols.white_box import AcceptAck, Deliver, WhiteBox
from multicast.types import ZERO, ProcessId, new_message_id

READ = Transaction(success=(Get(b"a"),))
KEYS = [b"k%d" % number for number in range(100)]


def asked(cluster: SimulatedCluster, replica: ProcessId, request: Execute) -> Answered:
    answers: list[Any] = []
    cluster.world.request(replica, request, answers.append)
    cluster.world.run_while(lambda: not answers, 5_000_000)
    (answer,) = answers
    assert isinstance(answer, Answered)
    return answer


def written(protocol: str) -> SimulatedCluster:
    """One shard of three, in which "a" was written once."""
    cluster = SimulatedCluster(protocol, 1, 3, 1)
    cluster.world.start()
    cluster.world.run_for(1_000_000)
    put = Execute(new_message_id(cluster.world.now, 1), Transaction(success=(Put(b"a", b"v"),)))
    asked(cluster, 0, put)
    return cluster


@pytest.mark.parametrize(
    ("protocol", "replica", "position", "ordered"),
    [
        pytest.param("white_box", 0, 1, 0, id="at the leader"),
        pytest.param("white_box", 1, 0, 1, id="at a follower"),
        pytest.param("primcast", 0, 1, 0, id="at a primary"),
        pytest.param("ft_skeen", 0, 1, 0, id="at the leader of a group that acts by consensus"),
        pytest.param("toto", 0, 0, 1, id="with a protocol that has none"),
    ],
)
def test_only_what_is_not_read_at_a_leader_is_ordered(
    protocol: str, replica: ProcessId, position: int, ordered: int
) -> None:
    cluster = written(protocol)
    answer = asked(cluster, replica, Execute(NO_ID, READ))
    found = answer.result.results[0].found
    assert found is not None and found.value == b"v"
    assert (answer.shard, answer.position) == (0, position)
    assert len(cluster.log(replica)) == 1 + ordered


def test_a_leader_that_has_died_has_not_answered_and_the_next_one_does() -> None:
    cluster = written("white_box")
    cluster.world.crash(0)
    cluster.world.run_for(10_000_000)
    leader = next(pid for pid in (1, 2) if cluster.world.node(pid).protocol.role() == "leader")
    assert asked(cluster, leader, Execute(NO_ID, READ)).position >= 1


class Watched(WhiteBox):
    """It tells of messages that can wait, and of those of which something came all the same for which others wait."""

    waited: dict[type, int]
    harmful: list[str]

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        told = sender != self.self_id or type(message) in self.specification.vouching  # the rest to itself is at once
        waits = told and self.can_wait(message)
        before = effects(out)
        super().on_message(sender, message, now, out)
        if waits:
            self.waited[type(message)] = self.waited.get(type(message), 0) + 1
            if effects(out) != before:
                self.harmful.append(type(message).__name__)


class Careless(Watched):
    def _changes_nothing(self, ack: AcceptAck) -> bool:
        return True


def effects(out: Outbox) -> list[int]:
    return [len(out.sends), len(out.readable)]


@pytest.mark.parametrize(("protocol", "harmless"), [(Watched, True), (Careless, False)])
def test_nothing_comes_of_a_message_that_can_wait(protocol: type[Watched], harmless: bool) -> None:
    protocol.waited, protocol.harmful = {}, []
    for seed in range(2):
        run_seed(Settings(protocol="white_box", size="small", seconds=1.0), seed, protocol=protocol)
    assert {AcceptAck, Deliver} <= protocol.waited.keys()
    assert (not protocol.harmful) == harmless


@pytest.mark.parametrize("protocol", ["white_box", "ft_skeen", "toto"])
def test_reads_through_any_replica_of_any_shard_see_what_was_answered_and_are_in_no_journal(protocol: str) -> None:
    cluster = SimulatedCluster(protocol, 2, 3, 1, shared_reads=True)
    cluster.world.start()
    cluster.world.run_for(1_000_000)
    keys = [b"a", next(key for key in KEYS if cluster.shard_map.shard_of(key) != cluster.shard_map.shard_of(b"a"))]
    both = Transaction(success=tuple(Put(key, b"v") for key in keys))
    asked(cluster, 0, Execute(new_message_id(cluster.world.now, 1), both))
    for reading in (READ, Transaction(success=tuple(Get(key) for key in keys)), Transaction(success=(Range(b"", 9),))):
        for replica in cluster.topology.processes:
            answer = asked(cluster, replica, Execute(NO_ID, reading))
            found = answer.result.results
            assert all(one.found is not None or len(one.entries) == 2 for one in found)
    cluster.world.run_for(1_000_000)
    for replica in cluster.topology.processes:
        ordered = [executed.transaction for logged in cluster.log(replica) for executed in logged.transactions]
        assert [transaction for transaction in ordered if transaction != Transaction()] == [both]


@pytest.mark.parametrize(("protocol", "barriers"), [("white_box", False), ("ft_skeen", False), ("toto", True)])
def test_reads_leave_no_byte_in_any_journal_but_for_barriers(protocol: str, barriers: bool) -> None:
    cluster = SimulatedCluster(protocol, 1, 3, 1, shared_reads=True)
    cluster.world.start()
    cluster.world.run_for(500_000)
    nodes = [cluster.world.node(pid) for pid in cluster.topology.processes]
    before = [node.journal.end for node in nodes]
    cluster.world.run_for(500_000)
    quiet = [node.journal.end for node in nodes]  # what housekeeping writes in this time
    answers: list[Any] = []
    for _ in range(50):
        for pid in cluster.topology.processes:
            cluster.world.request(pid, Execute(NO_ID, READ), answers.append)
    cluster.world.run_for(500_000)
    assert len(answers) == 150 and all(isinstance(answer, Answered) for answer in answers)
    assert [r.reads.positions.barriers for r in cluster.replicas.values()] == [int(barriers)] * 3
    grown = [node.journal.end - end for node, end in zip(nodes, quiet, strict=True)]
    idle = [end - start for end, start in zip(quiet, before, strict=True)]
    assert (grown == idle) == (not barriers)


@pytest.mark.parametrize(
    ("reverse", "more", "told", "read"),
    [
        (False, True, (b"k1", b"k3"), [b"k1", b"k2", b"k3"]),
        (True, True, (b"k4", b"k3"), [b"k3", b"k4"]),
        (False, False, (b"k1", b"k3"), [b"k1", b"k2", b"k3", b"k4"]),
    ],
)
def test_a_range_that_goes_on_has_read_up_to_the_last_key_that_was_told(
    reverse: bool, more: bool, told: tuple[bytes, ...], read: list[bytes]
) -> None:
    entries = tuple([KeyValue(key, b"v", ZERO) for key in told])
    asking = Transaction(success=(Range(b"k", 2, reverse=reverse),))
    result = Result(True, ZERO, (OperationResult(entries=entries, more=more),))
    (range_read,) = as_told(Operated(new_message_id(1, 1), "range", asking, 1, result=result)).success
    assert isinstance(range_read, Range)
    assert [key for key in (b"k1", b"k2", b"k3", b"k4") if between(key, *bounds(range_read))] == read
