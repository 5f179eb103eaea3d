"""Transactions on one shard: comparisons, operations, votes."""

from __future__ import annotations

import pytest

from kvstore.api.model import (
    INT64_MAX,
    VALUE_BYTES_MAX,
    Add,
    Append,
    Compare,
    Delete,
    Get,
    KeyValue,
    OperationResult,
    Put,
    Range,
    Transaction,
)
from kvstore.core.bundles import NO_ID, decode_bundle, decode_transaction, encode_bundle, encode_transaction
from kvstore.core.execution import Execution, LocalPlan, merge_results, vote
from kvstore.storage.backend import MemoryBackend
from kvstore.storage.store import Store
from multicast.types import ZERO, AppMessage, Timestamp

NOW = Timestamp(100, 1)
OLD = Timestamp(5, 0)


def state(**rows: bytes) -> Store:
    store = Store.open(MemoryBackend())
    for key, value in rows.items():
        store.write(key.encode(), value, OLD)
    return store


def run(store: Store, *operations) -> Execution:
    execution = Execution(store, NOW)
    execution.run(list(enumerate(operations)))
    return execution


@pytest.mark.parametrize(
    ("compare", "holds"),
    [
        (Compare(b"a", "value", "==", b"5"), True),
        (Compare(b"a", "value", "!=", b"5"), False),
        (Compare(b"a", "value", "<", b"6"), True),
        (Compare(b"a", "value", ">", b"5"), False),
        (Compare(b"x", "value", "==", b""), False),
        (Compare(b"x", "value", "<", b"9"), False),
        (Compare(b"x", "value", "!=", b"5"), True),
        (Compare(b"a", "version", "==", OLD), True),
        (Compare(b"a", "version", "<", OLD), False),
        (Compare(b"x", "version", "==", ZERO), True),
        (Compare(b"x", "version", "<", OLD), True),
        (Compare(b"a", "exists", "==", True), True),
        (Compare(b"a", "exists", "!=", True), False),
        (Compare(b"x", "exists", "==", False), True),
        (Compare(b"x", "exists", "!=", False), False),
    ],
)
def test_comparisons(compare, holds):
    assert Execution(state(a=b"5"), NOW).compare((compare,)) is holds


def test_a_comparison_with_a_version_survives_its_way():
    transaction = Transaction((Compare(b"a", "version", "==", OLD), Compare(b"a", "value", "<", b"5")), (Get(b"a"),))
    message = AppMessage(bytes(16), (0,), encode_bundle([(NO_ID, encode_transaction(transaction))]), 0)
    assert [decode_transaction(bundled) for bundled in decode_bundle(message)] == [transaction]


def test_operations_see_the_effects_of_earlier_ones_of_their_branch():
    done = run(state(a=b"5"), Add(b"a", 2), Get(b"a"), Append(b"a", b"!"), Delete(b"a"), Get(b"a"), Add(b"a", -1))
    assert [result for _, result in done.results] == [
        OperationResult(value=7),
        OperationResult(found=KeyValue(b"a", b"7", NOW)),
        OperationResult(length=2),
        OperationResult(deleted=True),
        OperationResult(),
        OperationResult(value=-1),
    ]
    assert done.writes == {b"a": b"-1"}
    assert dict(done.reads) == {b"a": OLD}


def test_a_read_of_an_own_write_is_no_read_of_the_state():
    done = run(state(a=b"5"), Put(b"a", b"6"), Get(b"a"), Delete(b"b"))
    assert dict(done.reads) == {b"b": ZERO}
    assert done.writes == {b"a": b"6", b"b": None}


@pytest.mark.parametrize(
    ("rows", "operation", "reason"),
    [
        ({"a": b"five"}, Add(b"a", 1), "not a decimal integer"),
        ({"a": b" 5"}, Add(b"a", 1), "not a decimal integer"),
        ({"a": b"5_0"}, Add(b"a", 1), "not a decimal integer"),
        ({"a": b""}, Add(b"a", 1), "not a decimal integer"),
        ({"a": b"99999999999999999999"}, Add(b"a", -1), "not a signed 64-bit"),
        ({"a": b"%d" % INT64_MAX}, Add(b"a", 1), "does not fit"),
        ({"a": bytes(VALUE_BYTES_MAX)}, Append(b"a", b"x"), "more than"),
    ],
)
def test_an_impossible_operation_leaves_nothing(rows, operation, reason):
    done = run(state(**rows), Put(b"b", b"1"), operation)
    assert reason in done.failure and done.failure_key == b"a"
    assert done.writes == {} and done.results == []


def test_a_range_sees_state_and_own_writes():
    store = state(k1=b"1", k2=b"2", k3=b"3", z=b"")
    done = run(store, Delete(b"k1"), Put(b"k2", b"two"), Put(b"k25", b"new"), Range(b"k", 2), Range(b"k", 9, b"k2"))
    first, second = done.results[3][1], done.results[4][1]
    assert [(e.key, e.value) for e in first.entries] == [(b"k2", b"two"), (b"k25", b"new")] and first.more
    assert [e.key for e in second.entries] == [b"k25", b"k3"] and not second.more
    assert dict(done.reads) == {b"k1": OLD, b"k3": OLD}


def test_a_vote_tells_comparisons_and_what_is_impossible_in_either_branch():
    transaction = Transaction(
        (Compare(b"a", "value", "==", b"5"),), (Add(b"b", 1),), (Append(b"b", b"x"), Add(b"b", 1))
    )
    said = vote(LocalPlan(transaction), state(a=b"5", b=b"7"))
    assert said.holds and not said.success_failure
    assert "not a decimal" in said.failure_failure and said.failure_key == b"b"
    assert vote(LocalPlan(transaction, lambda key: key == b"b"), state(b=b"x")).holds


def test_condition_and_written_keys():
    plan = LocalPlan(
        Transaction((Compare(b"c", "exists", "==", True),), (Add(b"a", 1), Get(b"g"), Put(b"p", b"")), (Delete(b"d"),))
    )
    assert plan.condition_keys() == {b"c", b"a"}
    assert plan.written_keys() == {b"a", b"p", b"d"}


def test_results_of_shards_merge_into_one_per_operation():
    branch = (Put(b"a", b""), Range(b"k", 2), Get(b"b"))
    entry = [KeyValue(b"k%d" % i, b"", OLD) for i in range(4)]
    one = [(0, OperationResult()), (1, OperationResult(entries=(entry[0], entry[3])))]
    two = [(1, OperationResult(entries=(entry[1],))), (2, OperationResult(found=KeyValue(b"b", b"v", OLD)))]
    merged = merge_results(branch, [one, two])
    assert merged[1] == OperationResult(entries=(entry[0], entry[1]), more=True)
    assert merged[2].found == KeyValue(b"b", b"v", OLD)
