"""Reads of one shard: what is asked of the protocol or the leader, what is read when, and what is ordered after all."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.api.model import Get, Transaction
from kvstore.api.shard_map import PlacedRun, slot_of
from kvstore.core import reads
from kvstore.core.bundles import EMPTY, NO_ID, last_version
from kvstore.core.messages import (
    Answered,
    PositionRequest,
    PositionTold,
    ReadNow,
    ReadNowTold,
    Refused,
    ShardState,
)
from kvstore.core.positions import LEADER_US, WAIT_US_MAX
from multicast.types import Timestamp
from tests.kvstore.one_replica import NOW, Bench, key, write

ALONE = {"shared_reads": False}


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


def test_a_reads_version_is_that_of_the_last_transaction_that_it_sees() -> None:
    """Who goes on from it, to read or to watch, would else see a part of the bundle anew, or not at all."""
    bench = leader()
    bench.deliver_bundle(*[(bench.new_id(), write(key(0, number))) for number in range(3)])
    bench.request(read(*[key(0, number) for number in range(3)]), NO_ID)
    (token,) = asked(bench)
    (answer,) = readable(bench, token, 1)
    found = [one.found.version for one in answer.result.results if one.found is not None]
    assert len(found) == 3 and answer.result.version == max(found)


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


def test_a_read_that_must_see_what_does_not_complete_is_refused_at_last() -> None:
    bench = leader()
    bench.request(read(key(0)), NO_ID)
    (token,) = asked(bench)
    across = bench.deliver(write(key(0), key(1)))
    assert readable(bench, token, 1) == []
    bench.tick(WAIT_US_MAX)
    (refused,) = bench.answers()
    assert isinstance(refused, Refused) and (refused.code, refused.outcome) == ("timeout", "not_applied")
    assert len(bench.replica.reads) == 0
    bench.part(1, across)
    assert bench.answers() == [], "it was answered"


def test_reads_of_one_batch_are_one_question() -> None:
    bench = leader()
    for _ in range(3):
        bench.request(read(key(0)), NO_ID)
    (token,) = asked(bench)
    assert len(readable(bench, token, 0)) == 3
    assert asked(bench) == []


def test_what_is_due_at_once_is_read_in_turns_and_what_nobody_waits_for_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of clients, and of other replicas."""
    monkeypatch.setattr(reads, "TURN_BYTES", 2 * len(key(0) + b"v"))
    bench = leader()
    bench.deliver(write(key(0)))
    for _ in range(6):
        bench.request(read(key(0)), NO_ID)
    (token,) = asked(bench)
    assert len(readable(bench, token, 1)) == 2
    for _ in range(2):  # asked again, and answered once
        bench.hear(1, ReadNow(7, read(key(0)), None))
    assert bench.tick() == bench.now, "the turn is over, and the next one is to come at once"
    bench.replica.forget(bench.tokens)
    for answered, told, left in ((2, 0, 2), (1, 1, 0)):
        assert bench.tick() == (bench.now if left else None)
        assert (len(bench.answers()), len(bench.sent(ReadNowTold)), len(bench.replica.reads)) == (answered, told, left)


def test_where_the_protocol_does_not_know_a_barrier_does() -> None:
    bench = leader()
    bench.deliver(write(key(0)))
    bench.request(read(key(0)), NO_ID)
    (token,) = asked(bench)
    assert readable(bench, token, None) == []
    (barrier,) = bench.multicast()
    assert (barrier.destinations, barrier.payload) == ((0,), EMPTY)
    bench.order(barrier)
    (answer,) = bench.answers()
    assert isinstance(answer, Answered) and (answer.shard, answer.position) == (0, 2)


def test_it_is_ordered_where_barriers_are_not_wanted() -> None:
    bench = leader(shared_reads=False)
    bench.request(read(key(0)), NO_ID)
    (token,) = asked(bench)
    assert readable(bench, token, None) == []
    bench.tick()
    (message,) = bench.multicast()
    bench.order(message)
    (answer,) = bench.answers()
    assert isinstance(answer, Answered) and (answer.shard, answer.position) == (0, 0)


def test_one_barrier_is_for_all_that_wait_and_what_comes_later_waits_for_the_next() -> None:
    bench = Bench()
    for _ in range(3):
        bench.request(read(key(0)), NO_ID)
    (first,) = bench.multicast()
    bench.request(read(key(0)), NO_ID)
    assert bench.multicast() == []
    bench.order(first)
    assert len(bench.answers()) == 3
    (second,) = bench.multicast()
    bench.order(second)
    assert len(bench.answers()) == 1
    assert bench.multicast() == []


def test_where_nothing_is_delivered_the_read_is_refused_at_last() -> None:
    bench = Bench()
    bench.request(read(key(0)), NO_ID)
    assert len(bench.multicast()) == 1
    bench.tick(WAIT_US_MAX)
    bench.tick()
    (refused,) = bench.answers()
    assert isinstance(refused, Refused) and (refused.code, refused.outcome) == ("timeout", "not_applied")


def test_a_follower_asks_its_leader_once_for_all_and_waits_until_it_has_come_there() -> None:
    bench = Bench(1, leader_reads=True)
    for _ in range(2):
        bench.request(read(key(0)), NO_ID)
    ((to, question),) = bench.sent(PositionRequest)
    assert to == (0,)
    bench.hear(0, PositionTold(question.number, 1))
    assert bench.answers() == []
    bench.deliver(write(key(0)))
    assert len(bench.answers()) == 2 and bench.multicast() == []


def test_what_was_answered_to_an_earlier_life_answers_no_question_of_this_one() -> None:
    bench = Bench(1, leader_reads=True)
    bench.request(read(key(0)), NO_ID)
    ((_, first),) = bench.sent(PositionRequest)
    bench.deliver(write(key(0)))
    bench.restart_replica()
    bench.request(read(key(0)), NO_ID)
    ((_, second),) = bench.sent(PositionRequest)
    assert second.number != first.number
    bench.hear(0, PositionTold(first.number, 0))
    assert bench.answers() == []
    bench.hear(0, PositionTold(second.number, 0))
    assert len(bench.answers()) == 1


@pytest.mark.parametrize("told", [True, False])
def test_where_the_leader_does_not_know_or_is_silent_there_is_a_barrier(told: bool) -> None:
    bench = Bench(1, leader_reads=True)
    bench.request(read(key(0)), NO_ID)
    ((_, question),) = bench.sent(PositionRequest)
    if told:
        bench.hear(0, PositionTold(question.number, None))
    else:
        bench.tick(LEADER_US)
    (barrier,) = bench.multicast()
    bench.hear(0, PositionTold(question.number, 0))  # late
    assert bench.answers() == []
    bench.order(barrier)
    assert len(bench.answers()) == 1


def test_the_leader_tells_the_position_before_it_has_come_there_itself() -> None:
    bench = leader()
    bench.hear(1, PositionRequest(7))
    (token,) = asked(bench)
    bench.replica.on_readable(token, 5, bench.now, bench.out)
    assert bench.sent(PositionTold) == [((1,), PositionTold(7, 5))]


def test_who_does_not_lead_knows_nothing_for_others() -> None:
    bench = Bench(1, leader_reads=True)
    bench.hear(2, PositionRequest(7))
    assert bench.sent(PositionTold) == [((2,), PositionTold(7, None))]


def test_a_snapshot_is_what_is_complete_here() -> None:
    bench = Bench(1)
    written = bench.deliver(write(key(0)))
    bench.request(read(key(0)), NO_ID, consistency="snapshot")
    (answer,) = bench.answers()
    assert isinstance(answer, Answered) and answer.seen == last_version(written.timestamp)
    assert bench.multicast() == [] and bench.sent(PositionRequest) == []


def test_what_has_come_to_the_shard_is_not_read_before_it_is_here() -> None:
    """Another shard has told where the slot is now, and this replica's log is not there yet: there is nothing."""
    bench, slot = Bench(1), slot_of(key(1))
    bench.deliver(write(key(0)))
    bench.hear(3, ShardState(1, False, [], [PlacedRun(slot, slot, 0, Timestamp(NOW + 1_000, 0))]))
    assert bench.replica.reads.is_here(read(key(1)))
    bench.request(read(key(0), key(1)), NO_ID, consistency="snapshot")
    assert bench.answers() == [] and len(bench.multicast()) == 1
    bench.request(read(key(0)), NO_ID, consistency="snapshot")
    assert len(bench.answers()) == 1


def test_a_stale_read_asks_nobody_while_the_last_question_is_young_enough() -> None:
    bench = Bench()
    bench.request(read(key(0)), NO_ID, consistency="stale", age_us=1_000)
    (barrier,) = bench.multicast()
    bench.tick(600)
    bench.order(barrier)
    assert len(bench.answers()) == 1
    for late, answered in ((399, 1), (1, 0)):  # the age counts from the question on
        bench.tick(late)
        bench.request(read(key(0)), NO_ID, consistency="stale", age_us=1_000)
        assert len(bench.answers()) == answered
    assert len(bench.multicast()) == 1


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
        pytest.param(read(key(1)), 0, {"leader_reads": True, **ALONE}, id="of another shard"),
        pytest.param(read(key(0), key(1)), 0, {"leader_reads": True, **ALONE}, id="of two shards"),
        pytest.param(read(key(0)), 1, {"leader_reads": True, **ALONE}, id="at a follower"),
        pytest.param(read(key(0)), 0, {"leader_reads": False, **ALONE}, id="with another protocol"),
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
