"""One id, several bundles: the first that is delivered takes effect, in all shards alike (`kvstore.core.clients`)."""

from __future__ import annotations

import pytest

from kvstore.api.model import Add, Compare, Get, Put, Transaction, Txn
from kvstore.core.audit import APPLIED, EXPIRED, MISMATCH, REPEATED
from kvstore.core.bundles import encode_bundle, encode_transaction, request_digest, version_of
from kvstore.core.messages import Answered, Parts, ShardResults, Vote
from kvstore.core.requests import REMEMBERED_WINDOWS
from multicast.types import AppMessage, Timestamp, new_message_id
from tests.kvstore.one_replica import NOW, WINDOW, Bench, key, result_of, write

ADD = Transaction(success=(Add(key(0), 5),))
BOTH = write(key(0), key(1))
OTHER = write(key(0), key(1), value=b"other")

# -- before anything is ordered ---------------------------------------------------------------------------------------


def test_a_repetition_gets_the_first_result():
    bench = Bench()
    message_id = bench.new_id()
    bench.deliver(ADD, message_id)
    bench.request(ADD, message_id)
    (answer,) = bench.answers()
    assert answer.repeated and answer.result.results[0].value == 5
    assert bench.multicast() == []


def test_requests_with_one_id_share_one_transaction():
    bench = Bench()
    message_id = bench.request(ADD)
    bench.request(ADD, message_id)
    (message,) = bench.multicast()
    bench.order(message)
    first, second = bench.answers()
    assert first == second and bench.store.get(key(0)).value == b"5"


def test_the_same_id_with_another_body_is_refused():
    bench = Bench()
    done, delivered = bench.new_id(), bench.new_id()
    bench.deliver(write(key(0)), done)
    bench.deliver(BOTH, delivered)
    under_way = bench.request(write(key(1)))
    bench.multicast()
    bench.request(write(key(0), value=b"other"), done)
    bench.request(OTHER, delivered)
    bench.request(write(key(2)), under_way)
    assert [a.code for a in bench.answers()] == ["id_reused"] * 3
    assert bench.multicast() == []


def test_what_is_delivered_and_not_complete_is_not_multicast_again():
    bench = Bench()
    message_id = bench.new_id()
    delivery = bench.deliver(BOTH, message_id, origin=4)
    bench.request(BOTH, message_id)
    assert bench.multicast() == []
    bench.part(1, delivery)
    assert len(bench.answers()) == 1


def test_an_old_id_that_is_remembered_is_answered():
    bench = Bench()
    message_id = bench.new_id()
    bench.deliver(write(key(0)), message_id)
    bench.now += WINDOW + 1_000_000
    bench.request(write(key(0)), message_id)
    assert bench.answers()[0].repeated


# -- in another bundle ------------------------------------------------------------------------------------------------


def test_a_repetition_in_another_bundle_has_no_effect_and_gets_the_first_result():
    bench = Bench()
    message_id = bench.request(ADD)
    (message,) = bench.multicast()
    first = bench.deliver_bundle((bench.new_id(), write(key(0, 1))), (message_id, ADD), origin=1)
    bench.order(message)
    assert bench.statuses() == [APPLIED, APPLIED, REPEATED]
    assert bench.store.get(key(0)).version == version_of(first.timestamp, 1)
    (answer,) = bench.answers()
    assert answer.result.version == version_of(first.timestamp, 1) and answer.result.results[0].value == 5


def test_a_repetition_that_is_delivered_while_the_first_waits_has_no_effect():
    bench = Bench()
    message_id = bench.new_id()
    first = bench.deliver(BOTH, message_id)
    second = bench.deliver_bundle((bench.new_id(), BOTH), (message_id, BOTH))
    for delivery in (first, second):
        bench.part(1, delivery)
    assert bench.statuses() == [APPLIED, APPLIED, REPEATED]


def test_one_id_twice_in_one_bundle_takes_effect_once():
    bench = Bench()
    message_id = bench.new_id()
    delivery = bench.deliver_bundle((message_id, ADD), (message_id, ADD))
    assert bench.statuses() == [APPLIED, REPEATED]
    bench.request(ADD, message_id)
    assert bench.answers()[0].result.version == version_of(delivery.timestamp, 0)


def test_ids_are_remembered_over_a_restart():
    bench = Bench()
    complete, waiting = bench.new_id(), bench.new_id()
    bench.deliver(ADD, complete)
    first = bench.deliver(BOTH, waiting)
    bench.restart_replica()
    bench.deliver(ADD, complete)
    second = bench.deliver(BOTH, waiting)
    for delivery in (first, second):
        bench.part(1, delivery)
    assert bench.statuses() == [APPLIED, REPEATED, REPEATED]


# -- with another body ------------------------------------------------------------------------------------------------


def test_another_body_under_the_same_id_has_no_effect():
    bench = Bench()
    message_id = bench.new_id()
    bench.deliver(ADD, message_id)
    bench.deliver(write(key(0)), message_id)
    assert bench.statuses() == [APPLIED, MISMATCH] and bench.store.get(key(0)).value == b"5"
    bench.request(ADD, message_id)
    assert bench.answers()[0].result.results[0].value == 5


def test_another_body_that_is_delivered_under_the_id_of_a_request_that_waits_here_is_told_from_it():
    bench = Bench()
    message_id = bench.request(write(key(0), value=b"waits"))
    bench.deliver(write(key(0), value=b"came first"), message_id, origin=1)
    (answer,) = bench.answers()
    assert answer.code == "id_reused"
    assert bench.store.get(key(0)).value == b"came first"


def test_a_shard_that_knows_the_id_with_another_body_votes_so():
    bench = Bench()
    message_id = bench.new_id()
    bench.deliver(write(key(0)), message_id)
    bench.deliver_bundle((bench.new_id(), BOTH), (message_id, BOTH))
    ((_, parts),) = bench.sent(Parts)
    assert parts.parts[0].votes == [None, Vote(reused=True)]


def test_who_asks_too_late_with_another_body_is_told_what_the_id_belongs_to():
    """What came of that says nothing of the course of this one, whose entry replica is of another shard."""
    bench = Bench()
    message_id = bench.new_id()
    first = Transaction(success=(Txn((), (Put(key(0), b"v"),)),))
    bench.deliver(first, message_id)
    late = Transaction(success=(Txn((), (Txn((), (Get(key(0)), Put(key(1), b"v"))),)),))
    payload = encode_bundle([(message_id, encode_transaction(late))])
    bench.order(AppMessage(bench.new_id(), (0, 1), payload, bench.topology.groups[1][0]), at=NOW + 2 * WINDOW)
    assert bench.statuses() == [APPLIED, EXPIRED]
    ((receivers, told),) = bench.sent(ShardResults)
    assert receivers == (bench.topology.groups[1][0],) and told.results[0].status == APPLIED
    assert told.results[0].digest == request_digest(encode_transaction(first), (0,))


def test_what_another_shard_knows_with_another_body_has_no_effect_here():
    bench = Bench()
    message_id = bench.request(BOTH)
    bench.request(write(key(0, 1), key(1, 1)))
    (message,) = bench.multicast()
    delivery = bench.order(message)
    bench.part(1, delivery, Vote(reused=True), None)
    assert bench.statuses() == [MISMATCH, APPLIED] and bench.store.get(key(0)) is None
    refused, answered = bench.answers()
    assert (refused.code, refused.outcome) == ("id_reused", "not_applied") and isinstance(answered, Answered)
    bench.request(BOTH, message_id)
    assert bench.answers()[0].code == "id_reused"


@pytest.mark.parametrize("complete", [True, False])
def test_a_repetition_of_what_had_no_effect_since_another_shard_knew_its_id_has_none(complete):
    """The other shard says again what it said of the first."""
    bench = Bench()
    message_id = bench.new_id()
    first = bench.deliver(BOTH, message_id)
    if complete:
        bench.part(1, first, Vote(reused=True))
    second = bench.deliver(BOTH, message_id)
    if not complete:
        bench.part(1, first, Vote(reused=True))
    bench.part(1, second, Vote(reused=True))
    assert bench.statuses() == [MISMATCH, MISMATCH] and bench.store.get(key(0)) is None


ELSEWHERE = write(key(1))


def test_what_was_refused_here_says_nothing_of_the_first_request_under_its_id_in_another_shard():
    """BOTH is refused, for ELSEWHERE has come before it, which this shard has nothing to do with."""
    bench = Bench()
    message_id = bench.request(ELSEWHERE)
    bench.multicast()
    refused = bench.deliver(BOTH, message_id, origin=4)
    bench.part(1, refused, Vote(reused=True))
    assert bench.statuses() == [MISMATCH] and bench.answers() == []
    bench.hear(3, ShardResults(1, [result_of(ELSEWHERE, message_id, Timestamp(NOW, 3), [])]))
    (answer,) = bench.answers()
    assert isinstance(answer, Answered) and answer.result.version == Timestamp(NOW, 3)
    bench.request(ELSEWHERE, message_id)
    assert bench.answers() == [] and [message.destinations for message in bench.multicast()] == [(1,)]


# -- too late ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("late_us", "status"), [(0, APPLIED), (1, EXPIRED)])
@pytest.mark.parametrize("clock_us", [NOW, NOW + 2 * WINDOW])
def test_the_timestamp_of_the_delivery_alone_decides_what_is_too_late(clock_us, late_us, status):
    """For each transaction of a bundle, and whatever the clock of this replica says."""
    bench = Bench()
    ids = new_message_id(NOW, 1), new_message_id(NOW + 1_000, 1)
    payload = encode_bundle([(i, encode_transaction(ADD)) for i in ids])
    bench.now = clock_us
    bench.order(AppMessage(bench.new_id(), (0,), payload, 0), at=NOW + WINDOW + late_us)
    assert bench.statuses() == [status, APPLIED]


def test_a_bundle_of_which_all_is_too_late_waits_for_nobody():
    bench = Bench()
    ids = [bench.request(write(key(0, number), key(1))) for number in range(2)]
    (message,) = bench.multicast()
    bench.now += WINDOW + 1_000_000
    bench.order(message)
    assert bench.statuses() == [EXPIRED, EXPIRED] and [outcome.id for outcome in bench.outcomes()] == ids
    assert [(a.code, a.outcome) for a in bench.answers()] == [("expired", "not_applied")] * 2
    assert bench.store.get(key(0)) is None and bench.sent(Parts) == []


def test_a_message_that_the_protocol_calls_too_late_has_no_effect():
    bench = Bench()
    bench.request(ADD)
    (message,) = bench.multicast()
    bench.order(message, expired=True)
    assert bench.statuses() == [EXPIRED] and bench.answers()[0].code == "expired"


def test_a_repetition_that_is_too_late_changes_nothing_while_the_first_waits():
    bench = Bench()
    message_id = bench.new_id()
    first = bench.deliver(BOTH, message_id)
    bench.now += WINDOW + 1_000_000
    bench.deliver(BOTH, message_id)
    assert bench.outcomes() == []
    bench.part(1, first)
    assert bench.statuses() == [APPLIED, EXPIRED]
    bench.request(BOTH, message_id)
    assert isinstance(bench.answers()[0], Answered)


def test_results_are_kept_for_those_who_ask_late():
    bench = Bench()
    old = bench.new_id()
    bench.deliver(write(key(0)), old)
    bench.now += REMEMBERED_WINDOWS * WINDOW - 1_000_000
    bench.deliver(write(key(0)))
    assert bench.store.remembered(old) is not None
    bench.now += 3_000_000
    young = bench.new_id()
    bench.deliver(write(key(0)), young)
    assert bench.store.remembered(old) is None and bench.store.remembered(young) is not None


def test_a_copy_so_late_that_the_first_result_may_be_forgotten_is_not_called_without_effect():
    bench = Bench()
    message_id = bench.request(write(key(0)))  # through a replica whose clock is far behind
    (message,) = bench.multicast()
    bench.now += REMEMBERED_WINDOWS * WINDOW + 3_000_000
    bench.order(message)
    (refused,) = bench.answers()
    assert (refused.code, refused.outcome, refused.retryable) == ("id_expired", "unknown", False)
    assert bench.store.remembered(message_id) is None


def test_a_copy_beyond_all_memory_leaves_nothing():
    """Of an id that some replica of the shard may have forgotten all remember the same, whenever each forgets."""
    bench = Bench()
    message_id = bench.new_id()
    forgotten_at = NOW + REMEMBERED_WINDOWS * WINDOW
    for number, time in enumerate((forgotten_at - 100_000, forgotten_at + 500_000)):  # it forgets once a second
        bundled = write(key(0, 1)) if not number else ADD
        payload = encode_bundle([(message_id if number else bench.new_id(), encode_transaction(bundled))])
        bench.order(AppMessage(new_message_id(time, number), (0,), payload, 0), at=time)
    assert bench.statuses() == [EXPIRED, EXPIRED] and bench.store.remembered(message_id) is None


def test_one_shard_that_knows_the_id_is_enough_whatever_the_others_vote():
    bench = Bench()
    condition = Compare(key(0), "exists", "==", True)
    bench.part(1, bench.deliver(Transaction((condition,), (Put(key(1), b"v"),))), Vote(repeated=True))
    assert bench.statuses() == [REPEATED]
