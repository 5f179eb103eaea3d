"""Reads at the leader of a shard: what is asked of the protocol, what is read when, and what is ordered after all."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.api.model import Get, Transaction
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Answered
from tests.kvstore.one_replica import Bench, key, write


def read(*keys: bytes) -> Transaction:
    return Transaction(success=tuple(Get(k) for k in keys))


def leader(**options: Any) -> Bench:
    return Bench(leader_reads=True, **options)


def asked(bench: Bench) -> list[int]:
    """What the replica asks the protocol at the end of a batch."""
    bench.tick()
    found, bench.out.reads = bench.out.reads, []
    return found


def readable(bench: Bench, token: int, position: int | None) -> list[Answered]:
    """The protocol's answer, and what clients get."""
    bench.replica.on_readable(token, position, bench.now, bench.out)
    return [answer for answer in bench.answers() if isinstance(answer, Answered)]


def test_a_read_is_answered_from_the_store_and_ordered_nowhere() -> None:
    bench = leader()
    written = bench.deliver(write(key(0)))
    bench.request(read(key(0)), NO_ID)
    (token,) = asked(bench)
    (answer,) = readable(bench, token, 1)
    assert (answer.shard, answer.position, answer.result.version.time) == (0, 1, written.timestamp.time)
    found = answer.result.results[0].found
    assert found is not None and (found.key, found.value) == (key(0), b"v")
    assert bench.multicast() == []


def test_a_read_waits_until_all_that_it_must_see_is_complete() -> None:
    bench = leader()
    bench.request(read(key(0)), NO_ID)
    (token,) = asked(bench)
    across = bench.deliver(write(key(0), key(1)))
    assert readable(bench, token, 1) == []
    bench.part(1, across)
    (answer,) = bench.answers()
    assert isinstance(answer, Answered) and answer.position == 1
    assert answer.result.results[0].found is not None


def test_reads_of_one_batch_are_one_question() -> None:
    bench = leader()
    for _ in range(3):
        bench.request(read(key(0)), NO_ID)
    (token,) = asked(bench)
    assert len(readable(bench, token, 0)) == 3
    assert asked(bench) == []


def test_where_the_protocol_does_not_know_the_read_is_ordered() -> None:
    bench = leader()
    bench.request(read(key(0)), NO_ID)
    (token,) = asked(bench)
    assert readable(bench, token, None) == []
    bench.tick()
    (message,) = bench.multicast()
    bench.order(message)
    (answer,) = bench.answers()
    assert isinstance(answer, Answered) and (answer.shard, answer.position) == (0, 0)


def test_after_a_restart_what_the_store_holds_counts_as_complete() -> None:
    bench = leader()
    bench.deliver(write(key(0)))
    assert bench.store.freeze(1)
    bench.store.commit()
    bench.store.thawed()
    bench.restart_replica()
    bench.request(read(key(0)), NO_ID)
    (token,) = asked(bench)
    (answer,) = readable(bench, token, 1)
    assert answer.position == 1


@pytest.mark.parametrize(
    ("transaction", "self_id", "options"),
    [
        pytest.param(read(key(1)), 0, {"leader_reads": True}, id="of another shard"),
        pytest.param(read(key(0), key(1)), 0, {"leader_reads": True}, id="of two shards"),
        pytest.param(read(key(0)), 1, {"leader_reads": True}, id="at a follower"),
        pytest.param(read(key(0)), 0, {"leader_reads": False}, id="with another protocol"),
        pytest.param(read(key(0)), 0, {"leader_reads": True, "signals": "off"}, id="without signals"),
    ],
)
def test_other_reads_are_ordered_at_once(transaction: Transaction, self_id: int, options: dict[str, Any]) -> None:
    bench = Bench(self_id, **options)
    bench.request(transaction, NO_ID)
    assert asked(bench) == []
    assert len(bench.multicast()) == 1


def test_what_has_an_id_is_ordered_even_if_it_only_reads() -> None:
    bench = leader()
    bench.request(read(key(0)))
    assert asked(bench) == []
    assert len(bench.multicast()) == 1
