"""One replica alone: what clients ask and are answered, and the results that replicas tell one another."""

from __future__ import annotations

import msgspec
import pytest

import kvstore.core.replica
from kvstore.api.model import (
    RESULT_BYTES_MAX,
    Add,
    Compare,
    DeleteRange,
    Get,
    KeyValue,
    OperationResult,
    Put,
    Range,
    Transaction,
)
from kvstore.api.shard_map import PlacedRun, own_slot, slot_of
from kvstore.core.audit import APPLIED, EXPIRED, REPEATED
from kvstore.core.bundles import NO_ID, encode_bundle, encode_transaction, unnamed_id, version_of
from kvstore.core.clients import READS_KEPT, RESULT_BYTES_KEPT, _told_bytes
from kvstore.core.messages import (
    Refused,
    ResultRequest,
    ShardResult,
    ShardResults,
    ShardState,
    Vote,
    decode_remembered,
    in_messages,
)
from kvstore.core.requests import REMEMBERED_WINDOWS, RESULT_RETRY_US, WAIT_US_MAX
from multicast.types import AppMessage, Timestamp, Topology, new_message_id
from multicast.wire import FRAME_BYTES_MAX
from tests.kvstore.one_replica import NOW, WINDOW, Bench, key, result_of, write

# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset_us", "code", "outcome"),
    [
        (-WINDOW - 1_000_000, "id_expired", "unknown"),
        (15_000_000, "id_in_future", "unknown"),
        (25_000_000, "id_in_future", "not_applied"),
    ],
)
def test_ids_outside_the_window_are_refused_with_the_clock(offset_us, code, outcome):
    bench = Bench()
    bench.request(write(key(0)), new_message_id(NOW + offset_us, 1))
    (refused,) = bench.answers()
    assert (refused.code, refused.outcome) == (code, outcome)
    assert "1700000000.000 s since 1970" in refused.message and bench.multicast() == []


@pytest.mark.parametrize("offset_us", [-WINDOW - 1_000_000, 15_000_000, 25_000_000])
def test_by_its_own_clock_alone_a_replica_judges_no_id_for_good(offset_us):
    """It may be its clock that is wrong: it has just begun, and has heard too few others."""
    known = [0]
    bench = Bench(real_clock=lambda now: known[0] and now)
    bench.request(write(key(0)), new_message_id(NOW + offset_us, 1))
    (refused,) = bench.answers()
    assert (refused.code, refused.retryable, refused.outcome) == ("not_ready", True, "not_applied")
    assert bench.multicast() == []
    bench.request(write(key(0)), new_message_id(NOW, 1))
    assert len(bench.multicast()) == 1, "what fits both clocks is taken"
    known[0] = 1
    bench.request(write(key(0)), new_message_id(NOW + offset_us, 1))
    assert [refused.retryable for refused in bench.answers()] == [False]


@pytest.mark.parametrize(
    ("message_id", "transaction", "text"),
    [
        (bytes(16), write(b"k"), "UUIDv7"),
        (None, write(b""), "success[0].key"),
        (None, Transaction(), "no operation"),
        (NO_ID, write(key(0)), "only reads"),
        (NO_ID, Transaction(success=(Get(key(0)), Put(key(1), b""))), "only reads"),
        (NO_ID, Transaction((Compare(key(0), "exists", "==", True),), (Get(key(0)),)), "only reads"),
    ],
)
def test_invalid_requests_are_refused_before_anything_is_ordered(message_id, transaction, text):
    bench = Bench()
    bench.request(transaction, message_id)
    (refused,) = bench.answers()
    assert (refused.code, refused.outcome) == ("invalid", "not_applied")
    assert text in refused.message and bench.multicast() == []


def test_nobody_waits_for_ever():
    bench = Bench()
    bench.request(write(key(1)))
    bench.tick(WAIT_US_MAX + RESULT_RETRY_US + 1)
    (refused,) = bench.answers()
    assert (refused.code, refused.outcome) == ("timeout", "unknown") and bench.replica.status()["requests_waiting"] == 0


# -- reads that nobody can repeat -------------------------------------------------------------------------------------

GET = Transaction(success=(Get(key(0)),))


def test_a_read_that_nobody_can_repeat_leaves_nothing_in_the_store():
    bench = Bench(shared_reads=False)
    bench.deliver(write(key(0)))
    before = bench.store.pending_bytes
    bench.request(GET, NO_ID)
    (message,) = bench.multicast()
    bench.order(message)
    (answer,) = bench.answers()
    assert answer.result.results[0].found.value == b"v" and not answer.repeated
    assert bench.store.pending_bytes == before
    assert bench.outcomes()[-1].reads and bench.outcomes()[-1].id == NO_ID  # the audit sees it as any other


def test_two_of_them_in_one_bundle_are_two():
    bench = Bench(shared_reads=False)
    bench.deliver(write(key(0)))
    for transaction in (GET, Transaction(success=(Get(key(0, 1)),))):
        bench.request(transaction, NO_ID)
    (message,) = bench.multicast()
    bench.order(message)
    first, second = bench.answers()
    assert first.result.results[0].found.value == b"v" and second.result.results[0].found is None
    assert first.result.version < second.result.version


def finds_nothing_everywhere(bench, message, read):
    """The bundle of this one read is complete in all shards; nobody answers before each of the others has told."""
    delivery = bench.order(message)
    for shard in (1, 2):
        bench.part(shard, delivery)
        theirs = result_of(read, unnamed_id(message.id, 0), version_of(delivery.timestamp, 0), [])
        theirs.digest = b""
        assert bench.answers() == []
        bench.hear(3 * shard, ShardResults(shard, [theirs]))


def test_such_a_read_may_ask_several_shards():
    bench = Bench(shared_reads=False)
    everything = Transaction(success=(Range(b"k", 9),))
    bench.request(everything, NO_ID)
    (message,) = bench.multicast()
    finds_nothing_everywhere(bench, message, everything)
    (answer,) = bench.answers()
    assert answer.result.results[0].entries == ()


def test_where_nobody_remembers_what_it_found_it_is_read_again():
    bench = Bench(shared_reads=False)
    everything = Transaction(success=(Range(b"k", 9),))
    bench.request(everything, NO_ID)
    (first,) = bench.multicast()
    delivery = bench.order(first)
    for shard in (1, 2):
        bench.part(shard, delivery)
    bench.tick(RESULT_RETRY_US)
    assert [asked.ids for _, asked in bench.sent(ResultRequest)] == [[unnamed_id(first.id, 0)]] * 2
    bench.tick(RESULT_RETRY_US)
    (second,) = bench.multicast()
    assert (second.destinations, second.payload) == (first.destinations, first.payload) and second.id != first.id
    finds_nothing_everywhere(bench, second, everything)
    assert [answer.result.results[0].entries for answer in bench.answers()] == [()]


def test_it_is_not_read_again_for_longer_than_anything_is_waited_for():
    bench = Bench(shared_reads=False)
    bench.request(Transaction(success=(Range(b"k", 9),)), NO_ID)
    begun, answers = bench.now, []
    while not answers and bench.now < begun + 2 * WAIT_US_MAX:
        for message in bench.multicast():
            delivery = bench.order(message)
            for shard in (1, 2):
                bench.part(shard, delivery)
        bench.tick(RESULT_RETRY_US)
        answers = bench.answers()
    assert [answer.code for answer in answers] == ["timeout"] and bench.now <= begun + WAIT_US_MAX + 3 * RESULT_RETRY_US


def test_its_result_is_told_again_if_it_was_lost_on_its_way():
    bench = Bench(shared_reads=False)
    delivery = bench.deliver(GET, NO_ID, origin=4)
    ((to, first),) = bench.sent(ShardResults)
    bench.hear(4, ResultRequest([unnamed_id(delivery.message.id, 0)]))
    assert to == (4,) and bench.sent(ShardResults) == [((4,), first)]


def test_of_such_results_only_the_last_are_kept():
    bench = Bench(shared_reads=False)
    delivered = [bench.deliver(GET, NO_ID, origin=4) for _ in range(READS_KEPT + 1)]
    bench.sent(ShardResults)
    ids = [unnamed_id(delivery.message.id, 0) for delivery in delivered[:2]]
    bench.hear(4, ResultRequest(ids))
    ((_, results),) = bench.sent(ShardResults)
    assert [r.id for r in results.results] == ids[1:]


# -- results ----------------------------------------------------------------------------------------------------------


def test_the_entry_replica_waits_for_what_other_shards_read():
    bench = Bench()
    transaction = Transaction(success=(Get(key(0)), Get(key(1))))
    message_id = bench.request(transaction)
    (message,) = bench.multicast()
    delivery = bench.order(message)
    bench.part(1, delivery)
    assert len(bench.outcomes()) == 1 and bench.answers() == []
    version = version_of(delivery.timestamp, 0)
    bench.hear(3, ShardResults(1, [result_of(transaction, message_id, version, [(1, OperationResult(value=7))])]))
    (answer,) = bench.answers()
    assert [r.value for r in answer.result.results] == [0, 7]


def test_the_pusher_returns_what_its_shard_read_to_the_entry_replica():
    bench = Bench()
    transaction = Transaction(success=(Get(key(0)), Put(key(1), b"v")))
    bench.part(1, bench.deliver(transaction, origin=4))
    ((to, results),) = bench.sent(ShardResults)
    assert to == (4,) and results.results[0].results == [(0, OperationResult())]
    bench.deliver(write(key(0)), origin=8)
    ((to, _),) = bench.sent(ShardResults)
    assert to == (8,)


def test_results_of_one_bundle_leave_in_one_message():
    bench = Bench()
    ids = [bench.new_id() for _ in range(3)]
    bench.deliver_bundle(*[(i, write(key(0, number))) for number, i in enumerate(ids)], origin=8)
    ((_, results),) = bench.sent(ShardResults)
    assert [result.id for result in results.results] == ids


def test_puts_alone_need_no_results_of_other_shards():
    bench = Bench()
    bench.part(1, bench.deliver(write(key(0), key(1)), origin=4))
    assert bench.sent(ShardResults) == []


def test_results_are_asked_for_after_a_while_from_one_replica_after_the_other():
    bench = Bench()
    transaction = write(key(1))
    message_id = bench.request(transaction)
    wake = bench.tick()
    assert wake == NOW + RESULT_RETRY_US and bench.sent(ResultRequest) == []
    asked = []
    for _ in range(4):
        bench.tick(RESULT_RETRY_US)
        asked += [to for to, _ in bench.sent(ResultRequest)]
    assert asked == [(3,), (4,), (5,), (3,)]
    bench.hear(4, ShardResults(1, [result_of(transaction, message_id, Timestamp(NOW, 1), [])]))
    assert bench.answers()[0].result.version == Timestamp(NOW, 1)
    assert bench.tick(RESULT_RETRY_US) is None


def test_what_many_requests_lack_is_asked_for_in_one_message_to_each_replica():
    """Where all is late a message for each, twice a second, makes it later."""
    bench = Bench()
    wanted = [bench.request(Transaction(success=(Get(key(0)), Get(key(1))))) for _ in range(50)]
    bench.multicast()
    bench.tick(RESULT_RETRY_US)
    asked = bench.sent(ResultRequest)
    assert sorted(to for to, _ in asked) == [(1,), (3,)]
    assert [sorted(question.ids) for _, question in asked] == [sorted(wanted)] * 2


def test_a_replica_tells_the_result_that_it_remembers():
    bench = Bench()
    message_id = bench.new_id()
    bench.deliver(write(key(0)), message_id)
    bench.hear(7, ResultRequest([message_id, bench.new_id()]))
    ((to, results),) = bench.sent(ShardResults)
    assert to == (7,) and [r.id for r in results.results] == [message_id]


def test_a_shard_that_was_added_leaves_it_to_the_others_what_became_of_a_scan_of_before_its_time():
    bench = Bench(9, Topology.grid(4, 3))
    message_id, everything = bench.new_id(), Transaction(success=(DeleteRange(b""),))
    payload = encode_bundle([(message_id, encode_transaction(everything))])
    late = AppMessage(bench.new_id(), (0, 1, 2, 3), payload, 0)
    delivery = bench.order(late, at=NOW + 2 * WINDOW)
    for shard in (0, 1, 2):
        bench.part(shard, delivery, None)
    bench.hear(0, ResultRequest([message_id]))
    ((_, results),) = bench.sent(ShardResults)
    assert bench.statuses() == [EXPIRED] and [r.status for r in results.results] == [REPEATED]


def test_a_large_result_is_given_once_and_then_marked_as_omitted():
    bench = Bench()
    bench.deliver(write(key(0), value=bytes(RESULT_BYTES_KEPT)))
    message_id = bench.request(GET)
    (message,) = bench.multicast()
    bench.order(message)
    bench.request(GET, message_id)
    first, again = bench.answers()
    assert len(first.result.results[0].found.value) == RESULT_BYTES_KEPT
    assert again.results_omitted and again.result.results == () and again.result.version == first.result.version


def test_what_reads_more_than_an_answer_may_have_is_answered_without_it():
    bench = Bench()
    bench.deliver(write(key(0), value=bytes(RESULT_BYTES_MAX // 16)))
    for reads in (15, 17):
        bench.request(Transaction(success=(Put(key(0, 1), b""), *[Get(key(0))] * reads)))
        bench.order(*bench.multicast())
    whole, omitted = bench.answers()
    assert not whole.results_omitted and len(whole.result.results) == 16
    assert omitted.results_omitted and omitted.result.results == ()


def test_many_small_entries_travel_in_as_many_messages_as_they_take():
    """What stands around a key is more than it."""
    at = Timestamp(NOW, 2**40)
    read = OperationResult(entries=tuple([KeyValue(b"%d" % number, b"", at, at) for number in range(20_000)]))
    result = ShardResult(b"i" * 16, b"", at, APPLIED, True, "", b"", [(0, read)])
    encoded = [msgspec.msgpack.encode(ShardResults(0, some)) for some in in_messages([result] * 70, _told_bytes)]
    assert max(map(len, encoded)) <= RESULT_BYTES_MAX
    assert sum(map(len, encoded)) > FRAME_BYTES_MAX


def test_what_is_ordered_together_reads_no_more_than_a_replica_has_room_for(monkeypatch: pytest.MonkeyPatch):
    """Else that is as often the most that one may read as there are transactions in a bundle."""
    monkeypatch.setattr(kvstore.core.replica, "BUNDLE_RESULT_BYTES_MAX", 5 * RESULT_BYTES_KEPT)
    bench = Bench()
    bench.deliver(write(key(0), value=bytes(2 * RESULT_BYTES_KEPT)))
    for reads in (key(0), key(0), key(0), key(0, 1)):
        bench.request(Transaction(success=(Put(key(0, 1), b"v"), Get(reads))))
    (message,) = bench.multicast()
    bench.order(message)
    assert [answer.results_omitted for answer in bench.answers()] == [False, False, True, False]


def test_a_result_without_its_operations_does_not_replace_one_with_them():
    bench = Bench()
    transaction = Transaction(success=(Get(key(0)), Get(key(1))))
    message_id = bench.request(transaction)
    (message,) = bench.multicast()
    version = version_of(Timestamp(NOW + 1, 0), 0)
    bench.hear(3, ShardResults(1, [result_of(transaction, message_id, version, [(1, OperationResult(value=7))])]))
    bench.hear(4, ShardResults(1, [result_of(transaction, message_id, version, None)]))
    bench.part(1, bench.order(message))
    (answer,) = bench.answers()
    assert not answer.results_omitted and [r.value for r in answer.result.results] == [0, 7]


def test_a_repetition_that_completes_here_asks_the_others_at_once():
    """They have told, or will tell, the replica that asked first."""
    bench = Bench()
    transaction = Transaction(success=(Get(key(0)), Get(key(1))))
    message_id = bench.request(transaction)
    bench.part(1, bench.deliver(transaction, message_id, origin=4))
    assert [to for to, _ in bench.sent(ResultRequest)] == [(3,)]


def test_however_many_repetitions_complete_here_at_once_the_others_are_asked_once():
    bench = Bench()
    transaction = Transaction(success=(Get(key(0)), Get(key(1))))
    message_id = bench.request(transaction)
    first, again = (bench.deliver(transaction, message_id, origin=origin) for origin in (4, 5))
    bench.part(1, first)
    bench.part(1, again)
    assert bench.sent(ResultRequest) == [((3,), ResultRequest([message_id]))]
    bench.now += 1
    bench.part(1, bench.deliver(transaction, message_id, origin=2))
    assert bench.sent(ResultRequest) == [((4,), ResultRequest([message_id]))]


def test_a_bundle_that_the_protocol_refuses_has_no_effect_for_all_in_it():
    bench = Bench()
    ids = [bench.request(write(key(0, number))) for number in range(2)]
    (message,) = bench.multicast()
    bench.replica.on_refused(message, "too much", bench.now, bench.out)
    assert bench.answers() == [Refused("overloaded", "too much", True, "not_applied")] * 2
    bench.request(write(key(0)), ids[0])
    assert len(bench.multicast()) == 1


def test_a_repetition_of_what_is_complete_here_asks_the_others_at_once():
    bench = Bench()
    transaction = Transaction(success=(Get(key(0)), Get(key(1))))
    message_id = bench.new_id()
    bench.part(1, bench.deliver(transaction, message_id, origin=4))
    bench.request(transaction, message_id)
    assert bench.answers() == [] and [to for to, _ in bench.sent(ResultRequest)] == [(3,)]


def test_results_of_reads_without_ids_are_asked_for_after_a_while_too():
    bench = Bench(shared_reads=False)
    bench.request(Transaction(success=(Get(key(0)), Get(key(1)))), NO_ID)
    (message,) = bench.multicast()
    bench.part(1, bench.order(message))
    bench.tick(RESULT_RETRY_US)
    assert [(to, asked.ids) for to, asked in bench.sent(ResultRequest)] == [((3,), [unnamed_id(message.id, 0)])]


# -- repetitions of what is complete here -----------------------------------------------------------------------------

BOTH = Transaction(success=(Get(key(0)), Get(key(1))))


def _repeated() -> tuple[Bench, bytes, Timestamp]:
    """A repetition of a read of shards 0 and 1, which is complete in shard 0."""
    bench = Bench()
    delivery = bench.deliver(BOTH, origin=4)
    bench.part(1, delivery)
    (message_id,) = [i for i, _ in bench.store.remembered_after(b"", 9)]
    bench.sent(ResultRequest)
    bench.request(BOTH, message_id)
    assert bench.sent(ResultRequest) == [((3,), ResultRequest([message_id]))] and bench.answers() == []
    return bench, message_id, version_of(delivery.timestamp, 0)


def test_what_was_served_where_the_keys_are_now_is_asked_for_there():
    """By the map that the entry replica knew when it was asked it was served by another shard."""
    bench, message_id, version = _repeated()
    slot = slot_of(key(1))
    bench.hear(6, ShardState(2, False, [], [PlacedRun(slot, slot, 2, Timestamp(NOW - 9, 0))]))
    bench.tick(RESULT_RETRY_US)
    asked = {to for to, _ in bench.sent(ResultRequest)}
    assert {pid // 3 for to in asked for pid in to} == {1, 2}
    bench.hear(6, ShardResults(2, [result_of(BOTH, message_id, version, [(1, OperationResult(value=7))])]))
    (answer,) = bench.answers()
    assert [r.value for r in answer.result.results] == [0, 7] and answer.repeated


def test_what_most_replicas_of_a_shard_have_forgotten_is_not_waited_for():
    bench, message_id, version = _repeated()
    bench.hear(3, ShardResults(1, [], []))
    bench.tick(RESULT_RETRY_US)
    assert bench.sent(ResultRequest) == [((3, 4, 5), ResultRequest([message_id], True))]
    for pid in (3, 5):
        assert bench.answers() == []
        bench.hear(pid, ShardResults(1, [], [message_id]))
    (answer,) = bench.answers()
    assert (answer.result.version, answer.results_omitted, answer.repeated) == (version, True, True)


def test_who_is_behind_has_not_forgotten_what_is_asked_for():
    """He has not come to it: of what he is asked later he may tell all."""
    bench, message_id, version = _repeated()
    bench.tick(RESULT_RETRY_US)
    bench.tick(RESULT_RETRY_US)
    for pid in (3, 4, 5):
        bench.hear(pid, ShardResults(1, [], [message_id], [], Timestamp(version.time - 1, 0)))
    assert bench.answers() == []
    bench.hear(4, ShardResults(1, [result_of(BOTH, message_id, version, [(1, OperationResult(value=7))])]))
    (answer,) = bench.answers()
    assert [r.value for r in answer.result.results] == [0, 7] and not answer.results_omitted


def test_what_nobody_remembers_the_first_time_of_is_unknown():
    """A shard that was asked too late, and remembers that, does not know what became of it."""
    bench = Bench()
    delivery = bench.deliver(BOTH, origin=4)
    bench.part(1, delivery, Vote(repeated=True))
    (message_id,) = [i for i, _ in bench.store.remembered_after(b"", 9)]
    bench.request(BOTH, message_id)
    bench.tick(RESULT_RETRY_US)
    for pid in (3, 5):
        bench.hear(pid, ShardResults(1, [], [message_id]))
    (refused,) = bench.answers()
    assert (refused.code, refused.outcome) == ("unknown_or_forgotten", "unknown")


def test_of_what_is_so_old_that_nobody_may_know_it_the_asker_is_told_that():
    """Else it would ask in vain: a copy that comes so late leaves nothing."""
    bench = Bench()
    young, old = new_message_id(NOW, 1), new_message_id(NOW - REMEMBERED_WINDOWS * WINDOW - 10_000, 2)
    bench.deliver(write(key(0)))
    bench.hear(4, ResultRequest([young, old]))
    assert bench.sent(ShardResults) == [((4,), ShardResults(0, [], [], [old], bench.store.complete_to))]
    bench.hear(4, ResultRequest([young, old], True))
    assert bench.sent(ShardResults) == [((4,), ShardResults(0, [], [young, old], [], bench.store.complete_to))]


@pytest.mark.parametrize("operation", [Add(key(2), 1), Range(b"k", 9)])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_a_late_copy_of_which_a_shard_has_nothing_any_more_is_not_waited_for(operation, known, last):
    """Nor is its client told of a range what only the other shard had in it. last: that one tells it last."""
    bench = Bench()
    both = Transaction(success=(operation, Put(key(1), b"v")))
    message_id = bench.request(both)
    version = Timestamp(NOW - WINDOW, 1)
    found = [result_of(both, message_id, version, [(0, OperationResult())] if type(operation) is Range else [])]
    told = [(3, ShardResults(1, found) if known else ShardResults(1, [], [], [message_id]))]
    told[not last : not last] = [(3 * shard, ShardResults(shard, [], [], [message_id])) for shard in (0, 2)]
    for sender, message in told:
        assert bench.answers() == []
        bench.hear(sender, message)
    bench.tick(RESULT_RETRY_US)
    (answer,) = bench.answers()
    if known:
        assert answer.results_omitted and answer.result.version == version
    else:
        assert (answer.code, answer.outcome) == ("unknown_or_forgotten", "unknown")


def test_a_range_that_a_shard_has_forgotten_is_not_told_without_it():
    bench = Bench()
    everything = Transaction(success=(Range(b"k", 9), Put(key(0), b"v")))
    delivery = bench.deliver(everything, origin=4)
    for shard in (1, 2):
        bench.part(shard, delivery)
    (message_id,) = [i for i, _ in bench.store.remembered_after(b"", 9)]
    bench.request(everything, message_id)
    version = version_of(delivery.timestamp, 0)
    bench.hear(6, ShardResults(2, [result_of(everything, message_id, version, [(0, OperationResult())])]))
    bench.tick(RESULT_RETRY_US)
    for pid in (3, 4):
        bench.hear(pid, ShardResults(1, [], [message_id]))
    (answer,) = bench.answers()
    assert answer.results_omitted and answer.result.results == ()


def test_where_one_shard_has_forgotten_and_the_last_one_has_nothing_nobody_is_waited_for():
    bench = Bench()
    everything = Transaction(success=(Range(b"k", 9), Put(key(0), b"v")))
    delivery = bench.deliver(everything, origin=4)
    for shard in (1, 2):
        bench.part(shard, delivery)
    (message_id,) = [i for i, _ in bench.store.remembered_after(b"", 9)]
    bench.request(everything, message_id)
    bench.tick(RESULT_RETRY_US)
    for pid in (3, 4):
        bench.hear(pid, ShardResults(1, [], [message_id]))
    version = version_of(delivery.timestamp, 0)
    bench.hear(6, ShardResults(2, [result_of(everything, message_id, version, None, REPEATED)]))
    bench.tick(RESULT_RETRY_US)
    (answer,) = bench.answers()
    assert answer.results_omitted and answer.result.version == version


def test_who_is_sent_elsewhere_waits_there_for_all_again() -> None:
    """What a shard has said of the copy before, that it has nothing of it, says nothing of this one."""
    bench = Bench(topology=Topology.grid(4, 3))
    ranged, places = Transaction(success=(Range(b"k", 9),)), [PlacedRun(own_slot(3), own_slot(3), 3, Timestamp(1, 0))]
    message_id = bench.request(ranged)
    delivery = bench.order(bench.multicast()[0])
    bench.hear(3, ShardResults(1, [result_of(ranged, message_id, delivery.timestamp, [], REPEATED)]))
    bench.part(1, delivery, Vote(places=places))
    bench.part(2, delivery)
    bench.hear(3, ShardState(1, False, [], places))
    (again,) = bench.multicast()
    assert again.destinations == (0, 1, 2, 3)
    delivery = bench.order(again)
    for shard in (1, 2, 3):
        bench.part(shard, delivery)
    row = KeyValue(key(1), b"v", Timestamp(2, 0))
    found = [(2, ()), (3, ()), (1, (row,))]
    for shard, entries in found:
        assert bench.answers() == []
        results = [(0, OperationResult(entries=entries))]
        result = result_of(ranged, message_id, version_of(delivery.timestamp, 0), results)
        bench.hear(3 * shard, ShardResults(shard, [result]))
    (answer,) = bench.answers()
    assert answer.result.results[0].entries == (row,)


# -- copies that other replicas sent to more shards -------------------------------------------------------------------

SCAN = Transaction(success=(Put(key(0), b"v"), Range(b"k", 9)))
FOUR = Topology.grid(4, 3)
"""Shard 3 was added: the map of the replica does not have it yet."""


def _found(shard: int, message_id: bytes, stamp: Timestamp) -> ShardResults:
    """What a shard has found: a row under its number, if it is not the first."""
    row = KeyValue(b"k%d" % shard, b"", stamp, stamp)
    result = result_of(SCAN, message_id, stamp, [(1, OperationResult(entries=(row,)))])
    return ShardResults(shard, [msgspec.structs.replace(result, shards=(0, 1, 2, 3))])


@pytest.mark.parametrize("begun_again", [False, True], ids=["before", "when it is complete, in another life"])
def test_who_asks_waits_for_all_shards_to_which_a_copy_went_that_another_replica_sent(begun_again: bool) -> None:
    """That had heard of one more shard. What the others have found is not all there is."""
    bench = Bench(0, FOUR)
    message_id = bench.new_id()
    if not begun_again:
        bench.request(SCAN, message_id)
        (own,) = bench.multicast()
        assert own.destinations == (0, 1, 2)
    payload = encode_bundle([(message_id, encode_transaction(SCAN))])
    delivery = bench.order(AppMessage(bench.new_id(), (0, 1, 2, 3), payload, 4))
    for shard in (1, 2, 3):
        bench.part(shard, delivery)
    assert bench.statuses() == [APPLIED]
    if begun_again:
        bench.restart_replica()
        bench.request(SCAN, message_id)
    stamp = version_of(delivery.timestamp, 0)
    for shard in (1, 2):
        assert bench.answers() == []
        bench.hear(3 * shard, _found(shard, message_id, stamp))
    assert bench.answers() == []
    bench.tick(RESULT_RETRY_US)
    assert any([not {9, 10, 11}.isdisjoint(to) for to, _ in bench.sent(ResultRequest)])
    bench.hear(9, _found(3, message_id, stamp))
    (answer,) = bench.answers()
    assert [row.key for row in answer.result.results[1].entries] == [key(0), b"k1", b"k2", b"k3"]


def test_what_went_to_the_first_shards_is_remembered_as_before() -> None:
    for shards, remembered in (((0, 1, 2), b"\x97"), ((0, 1, 2, 3), b"\x9a")):
        bench = Bench(0, FOUR)
        message_id = bench.new_id()
        payload = encode_bundle([(message_id, encode_transaction(SCAN))])
        delivery = bench.order(AppMessage(bench.new_id(), shards, payload, 4))
        for shard in shards[1:]:
            bench.part(shard, delivery)
        record = bench.store.remembered(message_id)
        assert record[:1] == remembered and decode_remembered(record).encoded() == record
        assert decode_remembered(record).result(message_id).shards == (shards if len(shards) > 3 else ())
