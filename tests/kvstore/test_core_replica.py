"""One replica alone: when a bundle completes, what its transactions do, and what is replayed."""

from __future__ import annotations

import msgspec
import pytest

from kvstore.api.model import (
    APPENDED_BYTES_MAX,
    RANGE_KEYS_MAX,
    VALUE_BYTES_MAX,
    Add,
    Append,
    Compare,
    DeleteRange,
    Get,
    KeyValue,
    Put,
    Transaction,
)
from kvstore.core.audit import APPLIED, FAILED, decode_outcomes
from kvstore.core.bundles import (
    BUNDLE_TRANSACTIONS_MAX,
    BUNDLE_VERSION,
    LIMITED_VERSION,
    EnvelopeError,
    encode_bundle,
    encode_transaction,
    version_of,
)
from kvstore.core.messages import Answered, Parts, Vote
from multicast.types import AppMessage, Timestamp
from tests.kvstore.one_replica import Bench, key, write


def test_a_single_shard_transaction_completes_at_delivery():
    bench = Bench()
    message_id = bench.request(write(key(0)))
    (message,) = bench.multicast()
    assert (message.destinations, message.origin) == ((0,), 0) and message.id != message_id
    bench.order(message)
    (answer,) = bench.answers()
    assert answer == Answered(answer.result) and answer.result.succeeded
    assert bench.store.get(key(0)) == KeyValue(key(0), b"v", answer.result.version, answer.result.version)
    (outcome,) = bench.outcomes()
    assert (outcome.id, outcome.status) == (message_id, APPLIED)
    assert decode_outcomes(bench.out.completions[0][1]).state_digest == bench.store.state_digest()


def test_a_multi_shard_transaction_waits_for_the_parts_of_all_others():
    bench = Bench()
    bench.request(write(key(0), key(1), key(2)))
    (message,) = bench.multicast()
    delivery = bench.order(message)
    bench.part(1, delivery)
    assert bench.store.get(key(0)) is None and bench.answers() == []
    assert bench.replica.status()["head_waiting_for"] == [2]
    bench.part(2, delivery)
    assert bench.store.get(key(0)) is not None and len(bench.answers()) == 1


def test_what_comes_later_waits_behind_it():
    bench = Bench()
    delivery = bench.deliver(write(key(0), key(1)))
    bench.deliver(write(key(0, 1)))
    assert bench.outcomes() == []
    bench.part(1, delivery)
    assert [p for p, _ in bench.out.completions] == [1, 2]


def test_without_signals_only_votes_are_waited_for():
    bench = Bench(signals="off")
    delivery = bench.deliver(write(key(0), key(1)))
    assert len(bench.outcomes()) == 1
    conditional = Transaction((Compare(key(1), "exists", "==", False),), (Put(key(0), b"v"),))
    waits = bench.deliver(conditional)
    assert len(bench.outcomes()) == 1
    bench.part(1, waits, Vote(holds=False))
    assert bench.store.get(key(0)).version == version_of(delivery.timestamp, 0)


# -- bundles ----------------------------------------------------------------------------------------------------------


def test_transactions_of_a_bundle_take_effect_one_after_the_other_each_at_its_own_version():
    bench = Bench()
    ids = [bench.new_id() for _ in range(3)]
    read_and_add = Transaction(success=(Get(key(0)), Add(key(0), 1)))
    delivery = bench.deliver_bundle(*[(i, read_and_add) for i in ids])
    versions = [version_of(delivery.timestamp, index) for index in range(3)]
    assert versions == sorted(set(versions))
    assert bench.store.get(key(0)) == KeyValue(key(0), b"3", versions[2], versions[0])
    outcomes = bench.outcomes()
    assert [outcome.id for outcome in outcomes] == ids
    assert [outcome.reads[0].version for outcome in outcomes] == [Timestamp(0, 0), *versions[:2]]
    record = decode_outcomes(bench.out.completions[0][1])
    assert [record.version_at(index) for index in range(3)] == versions


def test_a_transaction_that_fails_leaves_the_others_of_its_bundle_alone():
    bench = Bench()
    bench.deliver_bundle(
        (bench.new_id(), write(key(0), value=b"text")),
        (bench.new_id(), Transaction(success=(Add(key(0), 1),))),
        (bench.new_id(), write(key(0, 1))),
    )
    assert bench.statuses() == [APPLIED, FAILED, APPLIED]
    assert bench.store.get(key(0)).value == b"text" and bench.store.get(key(0, 1)) is not None


def test_a_bundle_that_is_delivered_again_after_a_restart_gets_the_same_versions():
    bench = Bench()
    both = write(key(0), key(1))
    delivery = bench.deliver_bundle((bench.new_id(), both), (bench.new_id(), write(key(0, 1), key(1))))
    bench.restart_replica()
    bench.part(1, delivery)
    assert bench.store.get(key(0)).version == version_of(delivery.timestamp, 0)
    assert bench.store.get(key(0, 1)).version == version_of(delivery.timestamp, 1)


# -- votes ------------------------------------------------------------------------------------------------------------


def test_votes_of_all_shards_choose_the_branch():
    bench = Bench()
    transaction = Transaction(
        (Compare(key(0), "exists", "==", False), Compare(key(1), "exists", "==", True)),
        (Put(key(0), b"yes"),),
        (Put(key(0), b"no"),),
    )
    delivery = bench.deliver(transaction)
    bench.part(1, delivery, Vote(holds=False))
    assert bench.store.get(key(0)).value == b"no" and not bench.outcomes()[0].succeeded


def test_each_transaction_of_a_bundle_has_its_own_votes():
    bench = Bench()

    def choosing(number: int) -> Transaction:
        condition = Compare(key(1, number), "exists", "==", True)
        return Transaction((condition,), (Put(key(0, number), b"yes"),), (Put(key(0, number), b"no"),))

    delivery = bench.deliver_bundle(*[(bench.new_id(), choosing(number)) for number in range(3)])
    bench.part(1, delivery, None, Vote(holds=False), None)
    assert [bench.store.get(key(0, number)).value for number in range(3)] == [b"yes", b"no", b"yes"]


def test_an_impossible_operation_in_another_shard_fails_everything():
    bench = Bench()
    bench.request(Transaction(success=(Put(key(0), b"v"), Add(key(1), 1))))
    (message,) = bench.multicast()
    bench.part(1, bench.order(message), Vote(success_failure="add: no", success_key=key(1)))
    (answer,) = bench.answers()
    assert (answer.result.failure, answer.result.failure_key) == ("add: no", key(1))
    assert bench.store.get(key(0)) is None and bench.statuses() == [FAILED]


def test_the_own_vote_says_what_is_impossible_here():
    bench = Bench()
    bench.deliver(write(key(0), value=b"text"))
    possible = Transaction(success=(Add(key(0, 1), 1), Put(key(1), b"")))
    impossible = Transaction(success=(Add(key(0), 1), Put(key(1), b"")))
    bench.deliver_bundle((bench.new_id(), possible), (bench.new_id(), impossible))
    ((_, parts),) = bench.sent(Parts)
    no_objection, objection = parts.parts[0].votes
    assert no_objection is None and "not a decimal integer" in objection.success_failure


# -- replays ----------------------------------------------------------------------------------------------------------


def test_a_range_is_deleted_in_all_shards_or_in_none():
    bench = Bench()
    bench.store.write(key(0), b"v", Timestamp(1, 0))
    for refused in (True, False):
        delivery = bench.deliver(Transaction(success=(DeleteRange(b""),)))
        no = Vote(True, f"more than {RANGE_KEYS_MAX} keys", b"") if refused else Vote()
        bench.part(1, delivery, no)
        bench.part(2, delivery, Vote())
        assert (bench.store.get(key(0)) is None) is not refused
    assert [outcome.status for outcome in bench.outcomes()] == [FAILED, APPLIED]


def test_a_replayed_outcome_needs_no_parts_and_remembers_the_same():
    first, second = Bench(), Bench()
    transaction = Transaction((Compare(key(1), "exists", "==", True),), (Add(key(0), 1),), (Add(key(0), 10),))
    plain = write(key(0, 1), key(1, 1))
    ids = first.new_id(), first.new_id()
    delivery = first.deliver_bundle((ids[0], transaction), (ids[1], plain))
    first.part(1, delivery, Vote(holds=False), None)
    ((_, record),) = first.out.completions
    second.order(delivery.message, outcome=record)
    assert second.out.completions == [(1, record)]
    for message_id in ids:
        assert second.store.remembered(message_id) == first.store.remembered(message_id) is not None
    assert second.store.state_digest() == first.store.state_digest()
    assert second.store.part(delivery.message.id) == first.store.part(delivery.message.id) is not None


@pytest.mark.parametrize(("format", "created"), [(1, 1), (2, 1), (3, 1), (4, 0)])
def test_what_bundles_of_older_releases_overwrite_is_created_anew_as_those_releases_have_it(format, created):
    bench = Bench()
    versions = []
    for _ in range(2):
        body = msgspec.Raw(encode_transaction(write(key(0))))
        payload = [format, body if format == 1 else [[bench.new_id(), body]]]
        delivery = bench.order(AppMessage(bench.new_id(), (0,), msgspec.msgpack.encode(payload), 0))
        versions.append(delivery.timestamp if format == 1 else version_of(delivery.timestamp, 0))
    assert bench.store.get(key(0)) == KeyValue(key(0), b"v", versions[1], versions[created])


def test_a_replay_that_gives_another_state_stops_the_replica():
    first, second = Bench(), Bench()
    delivery = first.deliver(Transaction(success=(Add(key(0), 1),)))
    ((_, record),) = first.out.completions
    second.store.write(key(0), b"41", Timestamp(1, 0))
    with pytest.raises(AssertionError, match="state after delivery 1"):
        second.order(delivery.message, outcome=record)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (
            msgspec.msgpack.encode([7, [[], [], []]]),
            "format 7 was ordered and this program knows 6; use a newer release",
        ),
        (msgspec.msgpack.encode([7, {"new": 1}]), "format 7 was ordered"),
        (msgspec.msgpack.encode([2, {"new": 1}]), "not a bundle"),
        (msgspec.msgpack.encode([2, [[bytes(16), {"new": 1}]]]), "not a bundle"),
        (b"\xc1", "not a bundle"),
        (encode_bundle([]), "0 transactions"),
        (encode_bundle([(b"", encode_transaction(write(b"k")))] * (BUNDLE_TRANSACTIONS_MAX + 1)), "1025 transactions"),
    ],
)
def test_an_ordered_message_of_another_program_is_named(payload, text):
    bench = Bench()
    with pytest.raises(EnvelopeError, match=text):
        bench.order(AppMessage(bench.new_id(), (0,), payload, 0))


@pytest.mark.parametrize(("version", "status"), [(LIMITED_VERSION, FAILED), (BUNDLE_VERSION, APPLIED)])
def test_what_appends_too_much_fails_unless_it_was_ordered_when_there_was_no_limit(version, status):
    bench = Bench()
    names = [key(0, number) for number in range(APPENDED_BYTES_MAX // VALUE_BYTES_MAX + 1)]
    for name in names:
        bench.deliver(Transaction((), (Put(name, bytes(VALUE_BYTES_MAX - 1)),)))
    transaction = Transaction((), tuple(Append(name, b"!") for name in names))
    payload = encode_bundle([(bench.new_id(), encode_transaction(transaction))], version)
    bench.order(AppMessage(bench.new_id(), (0,), payload, 0))
    assert decode_outcomes(bench.out.completions[-1][1]).outcomes[0].status == status
    assert len(bench.store.get(names[0]).value) == VALUE_BYTES_MAX - (status == FAILED)
