"""Reads at a version, at one replica: whom it asks, when its shard has come far enough, and what moves it on."""

from __future__ import annotations

from unittest.mock import patch

import pytest

import kvstore.core.versions
from kvstore.api.model import Delete, Get, KeyValue, Move, OperationResult, Put, Range, Transaction
from kvstore.api.shard_map import PlacedRun, slot_of
from kvstore.core.bundles import NO_ID, decode_bundle, decode_transaction, last_version
from kvstore.core.messages import Answered, Execute, ReadAt, ReadAtTold, Refused, ShardState
from kvstore.core.versions import ASKED_AT_ONCE, IN_VAIN, LOOKS_MAX, PACE_US, RETRY_US, WAIT_US_MAX, Versions
from kvstore.storage.history import Past
from kvstore.storage.store import Store
from multicast.protocol import PeerError
from multicast.types import ZERO, Timestamp
from tests.kvstore.one_replica import NOW, Bench, key, write

A, B = key(0), key(1)


def read(bench: Bench, version: Timestamp, *operations: Get | Range | Put) -> None:
    bench.tokens += 1
    request = Execute(NO_ID, Transaction(success=operations), version)
    bench.replica.on_request(bench.tokens, request, bench.now, bench.out)


def found(bench: Bench) -> list[KeyValue | None]:
    """What the answers since this was asked last found."""
    answers = bench.answers()
    assert all(isinstance(answer, Answered) for answer in answers), answers
    return [answer.result.results[0].found for answer in answers if isinstance(answer, Answered)]


def version(bench: Bench) -> Timestamp:
    """Of the last delivery."""
    return last_version(bench.delivered[-1][0].timestamp)


def test_it_tells_what_stood_there_at_once_where_everything_up_to_then_is_complete() -> None:
    bench = Bench()
    versions = []
    for transaction in (write(A, value=b"1"), write(A, value=b"2"), Transaction(success=(Delete(A),))):
        bench.deliver(transaction)
        versions.append(version(bench))
    for at in versions:
        read(bench, at, Get(A))
    assert [one and one.value for one in found(bench)] == [b"1", b"2", None]
    assert bench.multicast() == [] and bench.out.completions[3:] == []


def test_a_shard_that_has_not_come_so_far_is_waited_for_and_moved_on_once() -> None:
    bench = Bench()
    bench.deliver(write(A))
    later = Timestamp(bench.now + 50_000, 0)
    for _ in range(3):
        read(bench, later, Get(A))
    [empty] = bench.multicast()
    assert empty.destinations == (0,) and decode_transaction(decode_bundle(empty)[0]) == Transaction()
    bench.tick(PACE_US)
    assert bench.multicast() == [] and bench.answers() == []
    bench.order(empty, at=later.time + 1)
    assert len(found(bench)) == 3 and bench.multicast() == []


def test_an_empty_transaction_that_is_too_early_or_lost_is_followed_by_another_one() -> None:
    bench = Bench()
    read(bench, Timestamp(bench.now + 50_000, 0), Get(A))
    [empty] = bench.multicast()
    bench.order(empty)
    assert bench.multicast() == []
    bench.tick(PACE_US)
    assert len(bench.multicast()) == 1
    bench.tick(RETRY_US - 1)
    assert bench.multicast() == []
    bench.tick(1)
    assert len(bench.multicast()) == 1


def test_a_shard_whose_clock_stays_behind_is_moved_on_with_all_others() -> None:
    """Its timestamps rise by no more than one each: only what goes to whoever is ahead has a later one."""
    bench = Bench()
    bench.deliver(write(A))
    later = Timestamp(bench.now + 5_000_000, 0)
    read(bench, later, Get(A))
    for _ in range(IN_VAIN):
        [empty] = bench.multicast()
        assert empty.destinations == (0,)
        bench.order(empty)
        bench.tick(PACE_US)
    [wide] = bench.multicast()
    assert wide.destinations == (0, 1, 2)
    delivery = bench.order(wide, at=later.time + 1)
    for shard in (1, 2):
        bench.part(shard, delivery)
    assert len(found(bench)) == 1 and bench.multicast() == []


def test_what_is_delivered_and_not_complete_is_waited_for_without_more() -> None:
    bench = Bench()
    both = bench.deliver(write(A, B))
    read(bench, last_version(both.timestamp), Get(A))
    assert bench.multicast() == [] and bench.answers() == []
    bench.part(1, both)
    assert [one and one.value for one in found(bench)] == [b"v"]


def test_nobody_waits_for_ever_and_for_nobody_is_a_shard_moved_on() -> None:
    bench = Bench()
    read(bench, Timestamp(bench.now + 50_000, 0), Get(A))
    bench.multicast()
    bench.tick(WAIT_US_MAX)
    [refused] = bench.answers()
    assert isinstance(refused, Refused) and (refused.code, refused.retryable) == ("timeout", True)
    bench.multicast()
    bench.tick(WAIT_US_MAX)
    assert bench.multicast() == [] and bench.tick() is None


def test_other_shards_are_asked_one_replica_after_the_other() -> None:
    bench = Bench()
    at = Timestamp(NOW - 5, 0)
    read(bench, at, Get(B))
    [(first, asked)] = bench.sent(ReadAt)
    assert first == (3,) and (asked.version, asked.operation) == (at, Get(B))
    bench.tick(RETRY_US)
    [(second, again)] = bench.sent(ReadAt)
    assert second == (4,) and again == asked
    entry = KeyValue(B, b"1", Timestamp(5, 0), Timestamp(5, 0))
    bench.hear(4, ReadAtTold(1, asked.number, OperationResult(found=entry), ZERO))
    assert found(bench) == [entry]
    bench.hear(3, ReadAtTold(1, asked.number, OperationResult(), ZERO))
    assert bench.answers() == []


def test_not_too_many_operations_are_asked_for_at_once() -> None:
    bench = Bench()
    bench.deliver(write(A, value=b"here"))
    at = version(bench)
    read(bench, at, *[Get(B), Get(A)] * 20)
    told: list[int] = []
    while asked := bench.sent(ReadAt):
        assert len(asked) <= ASKED_AT_ONCE
        for _, message in asked:
            told.append(message.number)
            bench.hear(3, ReadAtTold(1, message.number, OperationResult(), ZERO))
    [answer] = bench.answers()
    assert len(told) == len(set(told)) == 20 and isinstance(answer, Answered)
    assert [one.found and one.found.value for one in answer.result.results] == [None, b"here"] * 20


def test_who_waits_for_what_is_not_complete_here_is_asked_for_the_rest_later() -> None:
    bench = Bench()
    later = Timestamp(bench.now + 50_000, 0)
    read(bench, later, *[Get(A)] * (2 * ASKED_AT_ONCE))
    [empty] = bench.multicast()
    bench.order(empty, at=later.time + 1)
    [answer] = bench.answers()
    assert isinstance(answer, Answered) and len(answer.result.results) == 2 * ASKED_AT_ONCE


def test_more_than_one_shard_may_read_for_one_transaction_is_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvstore.core.versions, "RESULT_BYTES_MAX", 10 * len(A) + 50)
    bench = Bench()
    bench.deliver(write(A, value=bytes(10)))
    for reads, omitted in ((5, False), (40, True)):
        read(bench, version(bench), *[Get(A)] * reads)
        [answer] = bench.answers()
        assert isinstance(answer, Answered) and answer.results_omitted is omitted
        assert len(answer.result.results) == (0 if omitted else reads)
    assert bench.tick(RETRY_US) is None and bench.answers() == []


def test_a_range_is_what_all_shards_have_said() -> None:
    bench = Bench()
    bench.deliver(write(key(0), key(0, 1)))
    read(bench, version(bench), Range(b"", 2))
    asked = {message.number: to for to, message in bench.sent(ReadAt)}
    assert sorted(asked.values()) == [(3,), (6,)] or len(asked) == 1
    [number] = asked
    bench.hear(3, ReadAtTold(1, number, OperationResult(entries=(KeyValue(B, b"b", Timestamp(1, 1)),)), ZERO))
    assert bench.answers() == []
    bench.hear(6, ReadAtTold(2, number, OperationResult(), ZERO))
    [answer] = bench.answers()
    assert isinstance(answer, Answered) and answer.result.version == version(bench)
    page = answer.result.results[0]
    assert [entry.key for entry in page.entries] == sorted([key(0), key(0, 1), B])[:2] and page.more


def test_most_replicas_of_a_shard_must_have_compacted_it() -> None:
    bench = Bench()
    read(bench, Timestamp(NOW - 5, 0), Get(B))
    [(_, asked)] = bench.sent(ReadAt)
    bench.hear(3, ReadAtTold(1, asked.number, None, Timestamp(NOW + 70, 1)))
    assert [to for to, _ in bench.sent(ReadAt)] == [(4,)] and bench.answers() == []
    bench.hear(3, ReadAtTold(1, asked.number, None, Timestamp(NOW + 70, 1)))
    assert bench.answers() == []
    bench.hear(5, ReadAtTold(1, asked.number, None, Timestamp(NOW + 60, 1)))
    [refused] = bench.answers()
    assert isinstance(refused, Refused) and refused.code == "compacted"
    assert str(Timestamp(NOW + 60, 1)) in refused.message


def test_who_does_not_know_it_any_more_asks_others_of_its_shard() -> None:
    bench = Bench()
    bench.store = Store.open(bench.store._backend, history_us=1_000)
    bench.restart_replica()
    bench.deliver(write(A))
    old = version(bench)
    bench.deliver(write(A))
    bench.now += 1_000_000
    bench.deliver(write(A))
    read(bench, old, Get(A))
    assert [to for to, _ in bench.sent(ReadAt)] == [(1,)] and bench.answers() == []


def test_answers_to_an_earlier_life_are_not_taken_for_answers_to_this_one() -> None:
    bench = Bench()
    numbers = set()
    for _ in range(3):
        read(bench, Timestamp(NOW - 5, 0), Get(B))
        [(_, asked)] = bench.sent(ReadAt)
        numbers.add(asked.number)
        bench.completed += 1
        bench.restart_replica()
    assert len(numbers) == 3


def test_others_are_told_what_stood_there_and_only_their_own_shard_speaks_for_itself() -> None:
    bench = Bench()
    bench.deliver(write(A))
    bench.hear(4, ReadAt(9, version(bench), Get(A)))
    [(to, told)] = bench.sent(ReadAtTold)
    assert to == (4,) and (told.shard, told.number) == (0, 9)
    assert told.result is not None and told.result.found is not None and told.result.found.value == b"v"
    with pytest.raises(PeerError):
        bench.hear(4, ReadAtTold(2, 1, OperationResult(), ZERO))


def test_several_operations_are_read_at_one_version() -> None:
    bench = Bench()
    bench.deliver(write(A, value=b"1"))
    at = version(bench)
    bench.deliver(write(A, value=b"2"))
    read(bench, at, Get(A), Get(key(0, 1)), Range(A, 9, keys_only=True))
    for (replica,), asked in bench.sent(ReadAt):  # the range is of all shards
        bench.hear(replica, ReadAtTold(bench.topology.group_of[replica], asked.number, OperationResult(), ZERO))
    [answer] = bench.answers()
    assert isinstance(answer, Answered) and answer.result.version == at
    first, second, third = answer.result.results
    assert first.found is not None and first.found.value == b"1"
    assert second.found is None and [entry.key for entry in third.entries] == [A]


@pytest.mark.parametrize("operations", [(), (Put(A, b"1"),), (Get(A), Put(A, b"1"))])
def test_only_reads_are_made_at_a_version(operations: tuple[Get | Put, ...]) -> None:
    bench = Bench()
    bench.deliver(write(A))
    read(bench, version(bench), *operations)
    [refused] = bench.answers()
    assert isinstance(refused, Refused) and refused.code == "invalid"


def test_a_version_that_no_clock_shows_yet_is_refused() -> None:
    bench = Bench()
    read(bench, Timestamp(NOW + 3_600_000_000, 0), Get(A))
    [refused] = bench.answers()
    assert isinstance(refused, Refused) and refused.code == "future" and bench.multicast() == []


def test_a_range_is_not_read_at_a_version_for_who_does_not_know_where_slots_have_gone() -> None:
    bench = Bench()
    slot = slot_of(A)
    bench.part(1, bench.deliver(Transaction(success=(Move(0, 1, ((slot, slot),)),))))
    bench.deliver(write(key(0, 1)))
    for number, shards in enumerate(((0, 2), (0, 1, 2))):
        bench.hear(4, ReadAt(number, version(bench), Range(b"", 9), shards))
    assert [told.result is None for _, told in bench.sent(ReadAtTold)] == [True, False]


def test_who_knows_the_version_and_not_the_slot_has_compacted_nothing() -> None:
    """The slot went on before that version, and where to is not known here yet."""
    bench = Bench()
    at = Timestamp(NOW - 5, 0)
    read(bench, at, Get(B))
    [(_, asked)] = bench.sent(ReadAt)
    for replica in (3, 4, 5):
        bench.hear(replica, ReadAtTold(1, asked.number, None, at))
    assert bench.answers() == [] and bench.sent(ReadAt) == []
    slot = slot_of(B)
    bench.hear(3, ShardState(1, False, [], [PlacedRun(slot, slot, 2, Timestamp(NOW - 9, 0))]))
    bench.tick(RETRY_US)
    [(to, again)] = bench.sent(ReadAt)
    assert to == (6,) and again.version == at
    bench.hear(6, ReadAtTold(2, again.number, OperationResult(), ZERO))
    assert found(bench) == [None]


def test_what_waits_for_a_version_is_looked_at_when_something_has_completed_and_not_at_each_message() -> None:
    bench = Bench()
    bench.deliver(write(A))
    later = Timestamp(bench.now + 50_000, 0)
    for _ in range(100):
        read(bench, later, Get(A))
    looks = []
    wait = Versions._wait
    with patch.object(Versions, "_wait", lambda self, *arguments: looks.append(wait(self, *arguments))):
        for number in range(50):
            bench.hear(4, ReadAt(number, version(bench), Get(A), (0,)))
            bench.tick()
        assert len(looks) == 50
        [empty] = bench.multicast()
        bench.order(empty, at=later.time + 1)
    assert len(looks) == 150 and len(found(bench)) == 100


def test_of_many_ranges_a_few_are_looked_on_for_in_one_batch() -> None:
    bench, many, looks = Bench(), 50, []
    bench.store.looked_max = 2
    for number in range(9):
        bench.deliver(write(key(0, number)))
    look = Past.look
    with patch.object(Past, "look", lambda self, *arguments: looks.append(1) or look(self, *arguments)):
        for number in range(many):
            bench.hear(4, ReadAt(number, version(bench), Range(b"", 9), (0,)))
        assert len(looks) == many  # each its first one
        told = bench.sent(ReadAtTold)
        while len(told) < many:
            looks.clear()
            wake = bench.tick()
            assert 0 < len(looks) <= LOOKS_MAX
            told += bench.sent(ReadAtTold)
            assert wake == bench.now or len(told) == many
    assert {len(one.result.entries) for _, one in told if one.result is not None} == {9}
    assert bench.tick() is None or bench.tick() != bench.now


def test_a_version_that_is_complete_here_is_told_though_it_is_ahead_of_the_clock() -> None:
    """Most clocks were wrong when it was written, and are right by now."""
    bench = Bench()
    bench.now += 3_600_000_000
    bench.deliver(write(A, value=b"1"))
    bench.now -= 3_600_000_000
    read(bench, version(bench), Get(A))
    assert [one and one.value for one in found(bench)] == [b"1"]
