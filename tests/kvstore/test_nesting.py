"""Nested transactions: what runs, what it is judged by, and what is told of it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvstore.api.model import (
    NESTING_MAX,
    NO_LEASE,
    OPERATIONS_MAX,
    WAYS_MAX,
    Add,
    Append,
    Compare,
    Cut,
    Delete,
    DeleteRange,
    Get,
    InvalidTransaction,
    KeyValue,
    NoneNewer,
    Operation,
    OperationResult,
    Put,
    Range,
    Transaction,
    Txn,
    TxnResult,
    has_nested,
    nested_in,
)
from kvstore.api.nesting import all_hold, course, in_their_places, is_way, ran, ways
from kvstore.api.validation import validate
from kvstore.core.audit import APPLIED, FAILED, NESTED_VERSION, NestedOutcome, decode_outcomes
from kvstore.core.bundles import encode_bundle, encode_transaction
from kvstore.core.execution import Execution, merge_results, vote
from kvstore.core.fates import Fate
from kvstore.core.messages import Decided, Decisions, NestedVote, Vote, decode_remembered
from kvstore.core.plans import LocalPlan
from kvstore.storage.backend import MemoryBackend
from kvstore.storage.store import Store
from multicast.types import ZERO, Timestamp
from tests.amounts import examples
from tests.kvstore.one_replica import Bench, key

OLD, NOW = Timestamp(5, 1), Timestamp(9, 2)
KEYS = [b"a", b"b", b"c", b"d"]

keys = st.sampled_from(KEYS)
values = st.sampled_from([b"1", b"2", b"x"])
compares = st.builds(Compare, keys, st.just("value"), st.sampled_from(["==", "!=", "<"]), values)
simple = (
    st.builds(Get, keys) | st.builds(Put, keys, values) | st.builds(Delete, keys) | st.builds(Add, keys, st.just(1))
    | st.builds(Append, keys, values) | st.builds(Range, st.just(b""), st.integers(1, 4))
    | st.builds(DeleteRange, st.just(b""), keys)
)  # fmt: skip
few = st.lists(compares, max_size=2).map(tuple)


def branches(inner: st.SearchStrategy[Operation]) -> st.SearchStrategy[tuple[Operation, ...]]:
    return st.lists(inner, max_size=3).map(tuple)


operations = st.recursive(simple, lambda inner: st.builds(Txn, few, branches(inner), branches(inner)), max_leaves=8)
transactions = st.builds(Transaction, few, branches(operations), branches(operations))


class Naive:
    """A transaction on a dictionary, as etcd's documentation has it."""

    def __init__(self, before: dict[bytes, bytes]):
        self.before = before
        self.rows = dict(before)
        self.possible = True

    def run(self, transaction: Transaction | Txn) -> tuple[bool, list[object]]:
        holds = all([self.holds(compare) for compare in transaction.compare])
        return holds, [self.one(op) for op in (transaction.success if holds else transaction.failure)]

    def holds(self, compare: Compare) -> bool:
        found = self.before.get(compare.key)
        if found is None:
            return compare.op == "!="
        return {"==": found == compare.operand, "!=": found != compare.operand, "<": found < compare.operand}[
            compare.op
        ]

    def one(self, op: Operation) -> object:
        rows = self.rows
        if isinstance(op, Txn):
            return self.run(op)
        if isinstance(op, Get):
            return rows.get(op.key)
        if isinstance(op, Put):
            rows[op.key] = op.value
        elif isinstance(op, Delete):
            return rows.pop(op.key, None) is not None
        elif isinstance(op, Append):
            rows[op.key] = rows.get(op.key, b"") + op.value
            return len(rows[op.key])
        elif isinstance(op, Add):
            if not rows.get(op.key, b"0").isdigit():
                self.possible = False
                return None
            rows[op.key] = b"%d" % (int(rows.get(op.key, b"0")) + 1)
            return int(rows[op.key])
        elif isinstance(op, Range):
            return sorted(rows.items())[: op.limit]
        elif isinstance(op, DeleteRange):
            gone = [k for k in rows if k >= op.start]
            for k in gone:
                del rows[k]
            return len(gone)
        return None


def told(op: Operation, result: OperationResult) -> object:
    if isinstance(op, Txn):
        assert isinstance(result, TxnResult)
        branch = op.success if result.succeeded else op.failure
        return result.succeeded, [told(*each) for each in zip(branch, result.results, strict=True)]
    if isinstance(op, Get):
        return None if result.found is None else result.found.value
    if isinstance(op, Range):
        return [(entry.key, entry.value) for entry in result.entries]
    return {Delete: result.deleted, Append: result.length, Add: result.value, DeleteRange: result.value}.get(type(op))


def with_ways(transaction: Transaction) -> Transaction:
    try:
        validate(transaction)
    except InvalidTransaction:
        assume(False)
    return transaction


@examples(100, 300)
@given(
    transactions, st.dictionaries(keys, values), st.dictionaries(keys, st.integers(0, 1)), st.integers(1, 2)
)
def test_it_does_what_etcd_says_on_any_number_of_shards(transaction, before, homes, shards):
    with_ways(transaction)
    oracle = Naive(before)
    expected = oracle.run(transaction)
    stores = [Store.open(MemoryBackend()) for _ in range(shards)]
    home = {k: homes.get(k, 0) % shards for k in KEYS}
    for k, value in before.items():
        stores[home[k]].write(k, value, OLD)
    plans = [LocalPlan(transaction, lambda k, s=shard: home[k] == s) for shard in range(shards)]
    votes = [vote(plan, store)[0] for plan, store in zip(plans, stores, strict=True)]
    succeeded = all([v.holds for v in votes])
    if has_nested(transaction):
        fate = Fate.nested(transaction, succeeded, votes)
        failed, truths = fate.status == FAILED, fate.truths
    else:
        failed, truths = any([v.success_failure if succeeded else v.failure_failure for v in votes]), b""
    assert failed == (not oracle.possible)
    if failed:
        return
    executions = [Execution(store, NOW) for store in stores]
    for plan, execution in zip(plans, executions, strict=True):
        assert execution.judge(plan)[0] or not succeeded
        execution.run(plan.course(succeeded, truths))
        assert not execution.failure
    whole = course(transaction, succeeded, truths)
    results = in_their_places(transaction, succeeded, truths, merge_results(whole, [e.results for e in executions]))
    branch = transaction.success if succeeded else transaction.failure
    assert (succeeded, [told(*each) for each in zip(branch, results, strict=True)]) == expected
    assert [op for op, _ in ran(transaction, succeeded, results)] == list(whole)
    rows = before | {k: v for execution in executions for k, v in execution.writes.items()}
    assert {k: v for k, v in rows.items() if v is not None} == oracle.rows


@examples(60, 200)
@given(transactions, st.data())
def test_it_ends_in_exactly_one_of_its_ways(transaction, data):
    with_ways(transaction)
    every = list(ways(transaction))
    count = sum(1 for _ in nested_in(transaction))
    truths = bytes(data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)))
    for succeeded in (True, False):
        (way,) = [way for way in every if is_way(way, succeeded, truths)]
        assert course(transaction, *way) == course(transaction, succeeded, truths) or not truths


def deep(levels: int) -> Transaction:
    inner: tuple[Operation, ...] = (Get(b"k"),)
    for _ in range(levels):
        inner = (Txn((), inner),)
    return Transaction((), inner)


BRANCHING = Txn((), (Get(b"k"),), (Put(b"k", b"v"),))


@pytest.mark.parametrize(
    ("transaction", "field", "problem"),
    [
        (deep(NESTING_MAX + 1), "success[0]." * NESTING_MAX + "success[0].op", "at most 8 deep"),
        (Transaction((), (), (Txn((), (Get(b"k"), Put(b"", b"")),),)), "failure[0].success[1].key", "1 to 400"),
        (Transaction((), (Txn((Compare(b"k", "age", "==", b""),)),)), "success[0].compare[0].target", "one of"),
        (Transaction((), (Txn((), (Cut(),)),)), "success[0].success[0].op", "stands alone"),
        (Transaction((), (Txn((), (Get(b"k"),) * OPERATIONS_MAX),)), "transaction", "not 1025"),
        (Transaction((), (Txn(),)), "transaction", "no comparison and no operation"),
        (Transaction((), (), (Txn((), (Txn(), Txn())),)), "transaction", "no comparison and no operation"),
        (Transaction((), (BRANCHING,) * 6 + (Add(b"k", 1),)), "transaction", f"at most {WAYS_MAX} ways, not 65"),
        (
            Transaction((), (*(BRANCHING,) * 5, *(Add(b"k", 1),) * 240)), "transaction",
            "33 ways to end times its 255 comparisons and operations",
        ),
        (
            Transaction((), (*(BRANCHING,) * 5, *(NoneNewer(b"k", ZERO),) * 4)), "transaction",
            "in its 33 ways to end its ranges that can fail may see more than 1024000 keys",
        ),
        (
            Transaction((), (Txn((), (Range(b"", 1, count_only=True),) * 52),)), "success", "more than 512000 keys",
        ),
    ],
)  # fmt: skip
def test_what_breaks_a_limit_is_refused_and_its_place_named(transaction, field, problem):
    with pytest.raises(InvalidTransaction, match=problem) as told:
        validate(transaction)
    assert told.value.field == field


def test_up_to_the_limits_all_is_well():
    """Where nothing can fail there may be any number of ways."""
    most = Transaction((), (BRANCHING,) * 5 + (Add(b"k", 1),)), Transaction((), (BRANCHING,) * 300), deep(NESTING_MAX)
    ranges = Transaction((), (*(BRANCHING,) * 5, *(NoneNewer(b"k", ZERO),) * 3))
    assert [validate(transaction) for transaction in (*most, ranges)] == [None] * 4


def test_what_is_not_nested_is_ordered_and_remembered_as_before():
    transaction = Transaction((), (Put(b"k", b"v"),))
    assert encode_bundle([(b"", encode_transaction(transaction))])[:2] == b"\x92\x04"
    bench = Bench()
    delivery = bench.deliver(Transaction((), (Put(key(0), b"v"),)))
    (_, record), *_ = bench.out.completions
    assert decode_outcomes(record).version == 2 and bench.store.remembered(_id(bench, delivery))[:1] == b"\x97"


def _id(bench: Bench, delivery) -> bytes:
    return msgspec.msgpack.decode(delivery.message.payload)[1][0][0]


HERE, THERE = key(0), key(1)
ASKED = Transaction(
    (Compare(HERE, "exists", "==", False),),
    (
        Put(HERE, b"outer"),
        Txn((Compare(HERE, "exists", "==", False), Compare(THERE, "value", "==", b"1")), (Get(HERE),), (Add(HERE, 1),)),
        Txn((Compare(THERE, "exists", "==", True),), (Put(HERE, b"inner"), Get(HERE)), (Get(THERE),)),
    ),
)
"""It compares what was there before its own Put. In two shards."""


def test_every_shard_decides_and_the_journal_and_the_memory_say_what_was_decided():
    bench = Bench()
    delivery = bench.deliver(ASKED)
    assert bench.store.get(HERE) is None
    bench.part(1, delivery, Vote(nested=NestedVote(b"\1\0")))
    assert bench.store.get(HERE).value == b"outer"
    (_, record), = bench.out.completions
    outcomes = decode_outcomes(record)
    assert outcomes.version == NESTED_VERSION
    assert outcomes.outcomes[0].truths == b"\1\0" and outcomes.outcomes[0].status == APPLIED
    remembered = decode_remembered(bench.store.remembered(_id(bench, delivery)))
    assert (remembered.succeeded, remembered.truths) == (True, b"\1\0")
    again = Bench()
    again.order(delivery.message, outcome=record)
    assert again.store.get(HERE) == bench.store.get(HERE) and again.out.completions[0][1] == record


def test_a_shard_says_of_each_way_whether_it_is_possible():
    """The Add behind a Put of a text is, in the way in which the first inner one fails."""
    bench = Bench()
    (said,) = bench.deliver(ASKED) and bench.replica.log.entries[0].own_part.votes
    assert said.holds and said.nested.truths == b"\1\1" and len(said.nested.impossible) == 2
    assert {why for _, why, _ in said.nested.impossible} == {"add: the value is not a decimal integer"}
    bench.part(1, bench.delivered[0][0], Vote(nested=NestedVote(b"\0\1")))
    outcome = decode_outcomes(bench.out.completions[0][1]).outcomes[0]
    assert (outcome.status, outcome.reason_key, outcome.writes) == (FAILED, HERE, ())
    assert isinstance(outcome, NestedOutcome) and outcome.truths == b"\0\1"


def test_who_is_behind_hears_what_was_decided():
    bench = Bench()
    delivery = bench.deliver(ASKED)
    digest = bench.replica.log.entries[0].items[0].digest
    bench.hear(3, Decisions(1, delivery.message.id, [Decided(APPLIED, True, "", b"", digest, b"\1\1")]))
    bench.tick()
    assert bench.store.get(HERE).value == b"inner"


def test_without_an_objection_all_hold():
    assert all_hold(ASKED) == b"\1\1" and all_hold(Transaction((), (Get(b"k"),))) == b""
    store = Store.open(MemoryBackend())
    store.write(THERE, b"1", OLD)
    assert vote(LocalPlan(ASKED, lambda k: k == THERE), store)[0] == Vote()


def test_votes_wait_for_what_writes_any_key_that_is_compared_or_counted_within():
    plan = LocalPlan(ASKED)
    assert plan.condition_keys() == {HERE, THERE} and plan.written_keys() == {HERE}
    assert LocalPlan(ASKED, lambda k: k == THERE).condition_keys() == {THERE}
    assert LocalPlan(Transaction((), (Txn((), (), (DeleteRange(b""),)),))).reaches_unnamed()


def test_what_is_compared_is_a_read_of_what_was_there_before():
    store = Store.open(MemoryBackend())
    store.write(HERE, b"1", OLD)
    execution = Execution(store, NOW)
    plan = LocalPlan(Transaction((), (Put(HERE, b"2"), Txn((Compare(HERE, "value", "==", b"1"),), (Get(HERE),)))))
    holds, truths = execution.judge(plan)
    execution.run(plan.course(holds, truths))
    assert truths == b"\1" and execution.reads == [(HERE, OLD)]
    assert execution.results[1][1].found == KeyValue(HERE, b"2", NOW, OLD, NO_LEASE) and ZERO not in (OLD, NOW)
