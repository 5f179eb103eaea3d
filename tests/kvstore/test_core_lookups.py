"""What became of a transaction, asked by its id."""

from __future__ import annotations

from kvstore.api.model import Add, Put, Transaction
from kvstore.api.shard_map import PlacedRun, slot_of
from kvstore.core.audit import FAILED, MISMATCH, MOVED
from kvstore.core.lookups import LOOKUP_US
from kvstore.core.messages import Answered, Lookup, Refused, ResultRequest, ShardResults, Vote
from kvstore.core.requests import RESULT_RETRY_US
from multicast.types import Timestamp
from tests.kvstore.one_replica import NOW, Bench, key, result_of, write

OTHERS = tuple(range(1, 9))


def look_up(bench: Bench, message_id: bytes) -> list[Answered | Refused]:
    bench.tokens += 1
    bench.replica.on_request(bench.tokens, Lookup(message_id), bench.now, bench.out)
    return bench.answers()


def codes(answers: list[Answered | Refused]) -> list[str]:
    return [answer.code if isinstance(answer, Refused) else "answered" for answer in answers]


def test_what_is_remembered_here_is_told_at_once():
    bench = Bench()
    bench.store.write(key(0), b"text", Timestamp(1, 0))
    applied, failed = bench.new_id(), bench.new_id()
    bench.deliver(write(key(0, 1)), applied)
    bench.deliver(Transaction(success=(Add(key(0), 1),)), failed)
    (told,) = look_up(bench, applied)
    assert isinstance(told, Answered) and told.result.succeeded and not told.result.failure
    assert told.result.version == bench.store.get(key(0, 1)).version
    (told,) = look_up(bench, failed)
    assert isinstance(told, Answered) and "not a decimal integer" in told.result.failure


def test_one_that_another_replica_remembers_is_told_to_all_who_asked():
    bench = Bench()
    message_id = bench.new_id()
    assert look_up(bench, message_id) == [] and look_up(bench, message_id) == []
    assert bench.sent(ResultRequest) == [(OTHERS, ResultRequest([message_id], True))]
    bench.hear(1, ShardResults(0, [], [message_id]))
    bench.hear(4, ShardResults(1, [result_of(write(key(1)), message_id, Timestamp(NOW, 3), None, FAILED)]))
    assert [answer.result.version for answer in bench.answers()] == [Timestamp(NOW, 3)] * 2
    assert len(bench.replica.clients.lookups) == 0


def test_nobody_remembers_it_when_all_have_said_so():
    bench = Bench()
    message_id = bench.new_id()
    look_up(bench, message_id)
    for pid in OTHERS:
        assert bench.answers() == []
        bench.hear(pid, ShardResults(pid // 3, [], [message_id]))
    assert codes(bench.answers()) == ["unknown_or_forgotten"]


def test_who_is_silent_is_asked_again_for_all_of_it_in_one_message():
    bench = Bench()
    first, second = bench.new_id(), bench.new_id()
    look_up(bench, first)
    look_up(bench, second)
    bench.hear(4, ShardResults(1, [], [first]))
    bench.sent(ResultRequest)
    bench.tick(RESULT_RETRY_US)
    asked = [((pid,), ResultRequest([second] if pid == 4 else [first, second], True)) for pid in OTHERS]
    assert bench.sent(ResultRequest) == asked and bench.answers() == []


def test_one_of_each_shard_is_enough_after_a_while_and_none_is_not():
    bench = Bench()
    first, second = bench.new_id(), bench.new_id()
    look_up(bench, first)
    look_up(bench, second)
    for message_id, heard in ((first, (3, 8)), (second, (3,))):
        for pid in heard:
            bench.hear(pid, ShardResults(pid // 3, [], [message_id]))
    bench.tick(LOOKUP_US - 1)
    assert bench.answers() == []
    bench.tick(1)
    assert codes(bench.answers()) == ["unknown_or_forgotten", "no_majority"]


def test_who_is_asked_says_what_it_knows_and_what_not():
    bench = Bench()
    known, unknown = bench.new_id(), bench.new_id()
    bench.deliver(Transaction(success=(Put(key(0), b"v"),)), known)
    bench.hear(5, ResultRequest([known, unknown]))
    assert [[r.id for r in m.results] + m.unknown for _, m in bench.sent(ShardResults)] == [[known]]
    bench.hear(5, ResultRequest([known, unknown], True))
    told = [m for to, m in bench.sent(ShardResults) if to == (5,)]
    assert [r.id for m in told for r in m.results] == [known] and [i for m in told for i in m.unknown] == [unknown]


def test_that_it_was_moved_here_says_nothing_about_it():
    bench = Bench()
    message_id, slot = bench.new_id(), slot_of(key(1))
    delivery = bench.deliver(write(key(0), key(1)), message_id)
    bench.part(1, delivery, Vote(places=[PlacedRun(slot, slot, 2, Timestamp(NOW + 9, 0))]))
    assert bench.statuses() == [MOVED] and look_up(bench, message_id) == []
    ((to, _),) = bench.sent(ResultRequest)
    assert to == OTHERS


def test_who_has_refused_another_request_under_an_id_does_not_tell_what_became_of_it():
    """This shard and shard 2 have refused one for both; that for shard 1 alone had come before it."""
    bench = Bench()
    message_id, first, refused = bench.new_id(), write(key(1)), write(key(0), key(1), key(2))
    delivery = bench.deliver(refused, message_id, origin=4)
    bench.part(1, delivery, Vote(reused=True))
    bench.part(2, delivery)
    assert bench.statuses() == [MISMATCH] and look_up(bench, message_id) == []
    bench.hear(7, ShardResults(2, [result_of(refused, message_id, delivery.timestamp, None, MISMATCH)]))
    assert bench.answers() == []
    bench.hear(4, ShardResults(1, [result_of(first, message_id, Timestamp(NOW, 3), None)]))
    (told,) = bench.answers()
    assert isinstance(told, Answered) and told.result.version == Timestamp(NOW, 3)
    look_up(bench, message_id)
    for pid in OTHERS:
        bench.hear(pid, ShardResults(pid // 3, [result_of(refused, message_id, delivery.timestamp, None, MISMATCH)]))
    assert codes(bench.answers()) == ["unknown_or_forgotten"]
