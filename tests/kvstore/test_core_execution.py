"""Transactions on one shard: comparisons, operations, votes."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import kvstore.core.execution
from kvstore.api.model import (
    APPENDED_BYTES_MAX,
    BODY_BYTES_MAX,
    INT64_MAX,
    KEY_BYTES_MAX,
    LEASE_KEYS_MAX,
    NOTED_BYTES_MAX,
    NOTED_KEYS_MAX,
    RANGE_KEYS_MAX,
    REVOKED_KEYS,
    SCANNED_KEYS_MAX,
    VALUE_BYTES_MAX,
    Add,
    Append,
    Compare,
    Delete,
    DeleteRange,
    Get,
    InvalidTransaction,
    KeyValue,
    Max,
    Min,
    Move,
    OperationResult,
    Put,
    Range,
    Transaction,
    Txn,
    appends_in,
)
from kvstore.api.validation import validate
from kvstore.core.audit import APPLIED, AUDIT_VERSION, Outcome, Outcomes, Read, encode_outcomes
from kvstore.core.bundles import (
    BUNDLE_VERSION,
    LIMITED_VERSION,
    NESTED_VERSION,
    NO_ID,
    decode_bundle,
    decode_transaction,
    encode_bundle,
    encode_transaction,
    format_for,
)
from kvstore.core.execution import Execution, merge_results, result_bytes, vote
from kvstore.core.plans import LocalPlan
from kvstore.storage.backend import MemoryBackend
from kvstore.storage.store import Store
from multicast.journal import READ_BYTES
from multicast.records import RECORD_BYTES_MAX
from multicast.types import ZERO, AppMessage, Timestamp
from multicast.wire import FRAME_BYTES_MAX

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


def test_what_is_read_beyond_the_limit_is_not_kept_and_what_it_counts_for_is() -> None:
    names = [f"k{number}" for number in range(9)]
    store = state(**dict.fromkeys(names, bytes(10)), n=b"5")
    asked = [*[Get(name.encode()) for name in names], Range(b"k", 100), Get(b"n"), Add(b"n", 1), Get(b"n")]
    with patch.object(kvstore.core.execution, "RESULT_BYTES_MAX", 30):
        execution = run(store, *asked)
        assert execution.compare([Compare(b"k8", "value", "==", bytes(10)), Compare(b"none", "exists", "==", False)])
        assert execution.told is None and run(store, *asked[:2]).told is not None
    assert sum(len(row.value) for row in execution._rows.values() if row is not None) <= 40
    assert result_bytes(execution.results) <= 30
    assert dict(execution.reads) == {**{name.encode(): OLD for name in names}, b"n": OLD, b"none": ZERO}
    assert execution.writes == {b"n": b"6"}


def test_of_what_is_only_counted_no_more_is_noted_than_a_record_of_the_journal_has_room_for() -> None:
    store = state(**{f"k{number}": b"" for number in range(9)}, n=b"5")
    count = Range(b"k", 100, count_only=True)
    with patch.object(kvstore.core.execution, "NOTED_BYTES_MAX", 7):
        execution = run(store, count, Get(b"n"), Add(b"n", 1))
    assert execution.results[0][1].value == 9 and execution.writes == {b"n": b"6"}
    with patch.object(kvstore.core.execution, "NOTED_BYTES_MAX", 7):
        assert execution.reads == [(b"n", OLD), *[(f"k{number}".encode(), OLD) for number in range(3)]]
    assert len(execution.reads) == 10


@pytest.mark.parametrize("revokes", [0, SCANNED_KEYS_MAX // REVOKED_KEYS])
def test_the_longest_account_fits_a_record_and_an_answer_to_who_catches_up(revokes: int) -> None:
    room = min(RECORD_BYTES_MAX, FRAME_BYTES_MAX) - 2 * BODY_BYTES_MAX - 4 * READ_BYTES
    longest = [Read(bytes(KEY_BYTES_MAX), Timestamp(2**63, 2**63))] * 1000
    one = len(encode_outcomes(Outcomes(AUDIT_VERSION, NOW, [Outcome(NO_ID, APPLIED, True, tuple(longest))]))) // 1000
    assert NOTED_KEYS_MAX * one < room, "of a bundle of several transactions"
    written = revokes * LEASE_KEYS_MAX
    seen = SCANNED_KEYS_MAX - revokes * REVOKED_KEYS + written
    assert NOTED_BYTES_MAX + (one - KEY_BYTES_MAX) * seen + one * (written + RANGE_KEYS_MAX) < room, "of one alone"


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
        (Compare(b"a", "create_version", "==", OLD), True),
        (Compare(b"a", "create_version", ">", OLD), False),
        (Compare(b"x", "create_version", "==", ZERO), True),
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
        OperationResult(found=KeyValue(b"a", b"7", NOW, OLD)),
        OperationResult(length=2),
        OperationResult(deleted=True),
        OperationResult(),
        OperationResult(value=-1),
    ]
    assert done.writes == {b"a": b"-1"}
    assert dict(done.reads) == {b"a": OLD}


@pytest.mark.parametrize(
    ("before", "operation", "after"),
    [
        (b"5", Min(b"a", 3), 3), (b"5", Min(b"a", 7), 5), (b"5", Max(b"a", 3), 5), (b"-5", Max(b"a", -4), -4),
        (None, Min(b"a", 3), 3), (None, Max(b"a", -3), -3), (b"007", Min(b"a", 9), 7), (None, Add(b"a", -3), -3),
    ],
)  # fmt: skip
def test_the_lesser_or_greater_integer_stays(before, operation, after):
    done = run(state(a=before) if before else state(), operation, Get(b"a"))
    assert done.results[0] == (0, OperationResult(value=after)) and done.writes == {b"a": b"%d" % after}
    assert dict(done.reads) == {b"a": OLD if before else ZERO}


def test_a_read_of_an_own_write_is_no_read_of_the_state():
    done = run(state(a=b"5"), Put(b"a", b"6"), Get(b"a"), Delete(b"b"))
    assert dict(done.reads) == {b"b": ZERO}
    assert done.writes == {b"a": b"6", b"b": None}


@pytest.mark.parametrize(
    ("rows", "operation", "reason"),
    [
        ({"a": b"five"}, Add(b"a", 1), "not a decimal integer"),
        ({"a": b" 5"}, Add(b"a", 1), "not a decimal integer"),
        ({"a": b"5_0"}, Min(b"a", 1), "min: the value is not a decimal integer"),
        ({"a": b"99999999999999999999"}, Max(b"a", 1), "max: the value is not a signed 64-bit"),
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


@pytest.mark.parametrize(
    ("operations", "written"),
    [
        ([Append(b"a", b"12345")], 9),
        ([Append(b"a", b"1"), Append(b"a", b"2345")], 9),
        ([Append(b"new", b"123"), Append(b"a", b"12")], 9),
        ([Put(b"a", bytes(100)), Append(b"a", bytes(9))], 9),
        ([Delete(b"a"), Append(b"a", bytes(9))], 9),
        ([Append(b"a", b"123"), Append(b"a", b"456")], 10),
        ([Append(b"b", b""), Append(b"a", b"12")], 10),
    ],
)
def test_what_appends_write_of_a_shard_has_a_limit_with_what_the_values_were(operations, written):
    """Each value counts once."""
    store, plan = state(a=b"aaaa", b=b"bbbb"), LocalPlan(Transaction((), tuple(operations)), limited=True)
    with patch.object(kvstore.core.execution, "APPENDED_BYTES_MAX", 9):
        (voted, _), limited = vote(plan, store), Execution(store, NOW, limited=True)
        limited.run(plan.course(True))
        assert (voted.success_failure, voted.success_key) == (limited.failure, limited.failure_key)
        assert limited.failure == ("append: the values would have more than 9 bytes in a shard" if written > 9 else "")
        assert bool(limited.writes) == (written <= 9)
        assert run(store, *operations).writes, "what an older release has ordered has no limit"
        assert not vote(LocalPlan(plan.transaction), store)[0].success_failure


def test_a_transaction_that_may_append_so_much_says_so_where_it_is_ordered():
    appends = tuple(Append(b"k%d" % number, b"") for number in range(APPENDED_BYTES_MAX // VALUE_BYTES_MAX + 1))
    most, beyond = Transaction((), appends[1:], (Put(b"k", b""),)), Transaction((), appends[1:], appends[:1])
    inside = Transaction((), (Txn((), appends[1:]), *appends[:1]))
    assert [format_for([one]) for one in (most, beyond, inside)] == [BUNDLE_VERSION, LIMITED_VERSION, LIMITED_VERSION]
    alone, single = Transaction((), (Txn((), appends),)), Transaction((), appends[:1])
    assert [appends_in(one) for one in (most, alone, single)] == [len(appends) - 1, len(appends), 1]
    assert format_for([Transaction((), (Txn(),))]) == NESTED_VERSION
    assert format_for([Transaction((), (Move(0, 1, ((1, 3),)),))]) == LIMITED_VERSION, "older ones give other rows"
    assert format_for([Transaction((), (Txn(),)), beyond, most]) == LIMITED_VERSION


def test_a_range_sees_state_and_own_writes():
    store = state(k1=b"1", k2=b"2", k3=b"3", z=b"")
    done = run(store, Delete(b"k1"), Put(b"k2", b"two"), Put(b"k25", b"new"), Range(b"k", 2), Range(b"k", 9, b"k2"))
    first, second = done.results[3][1], done.results[4][1]
    assert [(e.key, e.value) for e in first.entries] == [(b"k2", b"two"), (b"k25", b"new")] and first.more
    assert [e.key for e in second.entries] == [b"k25", b"k3"] and not second.more
    assert dict(done.reads) == {b"k1": OLD, b"k3": OLD}


def test_all_that_is_read_is_counted():
    store = state(k1=b"1", k2=bytes(100))
    done = run(store, Get(b"k2"), Get(b"x"), Range(b"k", 9), Range(b"k", 9, keys_only=True), Put(b"k3", b"3"))
    assert done.read_bytes == result_bytes(done.results) == 102 + 105 + 4


operands = st.binary(max_size=2).map(lambda b: bytes([x % 4 for x in b])) | st.sampled_from([b"\xff", b"\xff\xff"])
bound = st.sampled_from([b""] * 4 + [b"\0", b"\1", b"\2\1", b"\3", b"\xff"])
ranges = st.builds(
    Range, bound, st.integers(1, 4), bound, bound, bound, st.booleans(), st.booleans()
) | st.builds(Range, bound, st.just(1), bound, bound, bound, count_only=st.just(True))
deletions = st.builds(DeleteRange, bound, bound, bound)
keys = operands.filter(len)


def naive(operation: Range | DeleteRange, rows: dict[bytes, KeyValue]) -> list[bytes]:
    after = getattr(operation, "after", b"")
    return [
        k for k in sorted(rows)
        if k.startswith(operation.prefix) and k >= operation.start and (not after or k > after)
        and (not operation.end or k < operation.end)
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(keys, st.booleans(), max_size=12),
    st.lists(ranges | deletions | st.builds(Put, keys, st.just(b"new")) | st.builds(Delete, keys), max_size=8),
)
def test_ranges_find_what_is_there_on_any_number_of_shards(stored, operations):
    """stored: key -> in which of two shards it is."""
    shards = [state(), state()]
    rows = {}
    for k, second in stored.items():
        shards[second].write(k, b"old", OLD)
        rows[k] = KeyValue(k, b"old", OLD, OLD)
    told, alone = [], Execution(state(), NOW)
    for shard, store in enumerate(shards):
        plan = LocalPlan(Transaction(success=tuple(operations)), lambda k, s=shard: stored.get(k, False) == s)
        execution = Execution(store, NOW)
        execution.run(plan.course(True))
        told.append(execution.results)
        alone.writes |= execution.writes
    for operation, result in zip(operations, merge_results(tuple(operations), told), strict=True):
        if isinstance(operation, Put):
            created = OLD if operation.key in stored else NOW
            rows[operation.key] = KeyValue(operation.key, b"new", NOW, created)
        elif isinstance(operation, Delete):
            rows.pop(operation.key, None)
        elif isinstance(operation, DeleteRange):
            gone = naive(operation, rows)
            assert result == OperationResult(value=len(gone))
            for k in gone:
                del rows[k]
        elif operation.count_only:
            assert result == OperationResult(value=len(naive(operation, rows)))
        else:
            found = naive(operation, rows)[:: -1 if operation.reverse else 1]
            entries = [replace(rows[k], value=b"") if operation.keys_only else rows[k] for k in found]
            more = len(found) > operation.limit
            assert result == OperationResult(entries=tuple(entries[: operation.limit]), more=more)
    assert {k for k, v in alone.writes.items() if v is not None} == {k for k, row in rows.items() if row.version == NOW}


def test_what_a_range_shows_was_read_and_what_it_deletes_was_there():
    store = state(k1=b"1", k2=b"2", k3=b"3")
    done = run(store, Range(b"k", 1, keys_only=True, reverse=True), DeleteRange(b"k", end=b"k2"), Get(b"k3"))
    assert dict(done.reads) == {b"k3": OLD, b"k1": OLD}
    assert done.writes == {b"k1": None} and done.results[2][1].found == KeyValue(b"k3", b"3", OLD, OLD)


@patch("kvstore.core.execution.RANGE_KEYS_MAX", 3)
def test_more_than_a_shard_may_delete_at_once_is_impossible_and_its_vote_says_so():
    store = state(k0=b"", k1=b"", k2=b"", k3=b"")
    whole, part = DeleteRange(b""), DeleteRange(b"", b"k1")
    assert run(store, part).results[0][1].value == 3
    assert run(store, Range(b"", 1, count_only=True)).results[0][1] == OperationResult(value=3, more=True)
    for operations in ((whole,), (part, DeleteRange(b""))):
        assert "more than" in run(store, *operations).failure and not run(store, *operations).writes
        assert "more than" in vote(LocalPlan(Transaction(failure=operations)), store)[0].failure_failure


def test_a_vote_tells_comparisons_and_what_is_impossible_in_either_branch():
    transaction = Transaction(
        (Compare(b"a", "value", "==", b"5"),), (Add(b"b", 1),), (Append(b"b", b"x"), Add(b"b", 1))
    )
    said, _ = vote(LocalPlan(transaction), state(a=b"5", b=b"7"))
    assert said.holds and not said.success_failure
    assert "not a decimal" in said.failure_failure and said.failure_key == b"b"
    assert vote(LocalPlan(transaction, lambda key: key == b"b"), state(b=b"x"))[0].holds


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


@pytest.mark.parametrize(
    ("reverse", "short", "whole", "told"), [(False, b"b", b"ad", b"ab"), (True, b"c", b"da", b"dc")]
)
def test_of_a_range_that_a_shard_cuts_short_nothing_is_told_beyond_it(reverse, short, whole, told):
    """There may be keys that it has not reported."""
    asked = Range(b"", 9, reverse=reverse)
    pieces = [
        [(0, OperationResult(entries=tuple([KeyValue(bytes([key]), b"v", OLD) for key in keys]), more=keys is short))]
        for keys in (short, whole)
    ]
    (merged,) = merge_results((asked,), pieces)
    assert b"".join([entry.key for entry in merged.entries]) == told and merged.more


@pytest.mark.parametrize(("reverse", "pieces", "told"), [(False, (b"ab", b"cd"), b"ab"), (True, (b"dc", b"ba"), b"dc")])
def test_of_a_range_that_two_shards_cut_short_nothing_is_told_beyond_the_first_end(reverse, pieces, told):
    found = [tuple([KeyValue(bytes([key]), b"v", OLD) for key in keys]) for keys in pieces]
    cut = [OperationResult(entries=entries, more=True) for entries in found]
    (merged,) = merge_results((Range(b"", 9, reverse=reverse),), [[(0, piece)] for piece in cut])
    assert b"".join([entry.key for entry in merged.entries]) == told and merged.more


def test_own_writes_hide_what_is_large_and_show_nothing_beyond_what_is_known():
    """A scan ends early where rows are large: here after each."""
    with patch("kvstore.storage.store.RANGE_BYTES_MAX", 1):
        store = state(a=b"1", b=b"2", c=b"3")
        hidden = Execution(store, NOW)
        hidden.run([(0, Delete(b"a")), (1, Delete(b"b")), (2, Range(b"", 9))])
        assert [entry.key for entry in hidden.results[2][1].entries] == [b"c"]
        falling = Execution(store, NOW)
        falling.run([(0, Delete(b"c")), (1, Delete(b"b")), (2, Range(b"", 9, reverse=True))])
        assert [entry.key for entry in falling.results[2][1].entries] == [b"a"]
        beyond = Execution(store, NOW)
        beyond.run([(0, Put(b"z", b"own")), (1, Range(b"", 9))])
        (_, found) = beyond.results[1]
        assert [entry.key for entry in found.entries] == [b"a"] and found.more


def test_ranges_after_what_was_deleted_in_one_have_a_limit_as_they_pass_that_again():
    """Four hundred of them after ten thousand keys took five seconds at each replica of the shard."""
    page = Range(b"k", 1000)
    for branch in ((DeleteRange(b"k"), *[page] * 45), (*[page] * 500, DeleteRange(b"k"))):
        validate(Transaction(success=branch))
    for branch in ((DeleteRange(b"k"), *[page] * 46), (Txn((), (), (DeleteRange(b"k"),)), Txn((), (page,) * 46))):
        for transaction in (Transaction(success=branch), Transaction((), (), branch)):
            with pytest.raises(InvalidTransaction, match="may see more than"):
                validate(transaction)


def test_all_that_a_transaction_deletes_in_ranges_has_a_limit():
    with patch("kvstore.core.execution.RANGE_KEYS_MAX", 3):
        few, many = Execution(state(a1=b"", a2=b"", b1=b""), NOW), Execution(state(a1=b"", a2=b"", b1=b"", b2=b""), NOW)
        for execution in (few, many):
            execution.run([(0, DeleteRange(b"a")), (1, DeleteRange(b"b"))])
    assert (len(few.writes), few.failure) == (3, "") and "more than 3 keys" in many.failure
