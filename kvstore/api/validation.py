"""The limits of a transaction: what is checked of one before anything is ordered. Pure; shared by server and SDK."""

from __future__ import annotations

from math import prod
from typing import Any

from kvstore.api import nesting
from kvstore.api.model import (
    FALLIBLE,
    INT64_MAX,
    INT64_MIN,
    KEY_BYTES_MAX,
    LEASE_ID_BYTES,
    LEASED,
    NESTING_MAX,
    NUMBERS,
    OPERATIONS_MAX,
    OPERATORS,
    RANGE_KEYS_MAX,
    RANGES,
    REVOKED_KEYS,
    SCAN_LIMIT_MAX,
    SCANNED_KEYS_MAX,
    SLOTS,
    TARGETS,
    TRIED_KEYS_MAX,
    TRIED_MAX,
    VALUE_BYTES_MAX,
    WAYS_MAX,
    Add,
    Append,
    Compare,
    Cut,
    DeleteRange,
    InvalidTransaction,
    LeasedPut,
    Move,
    NoneNewer,
    Operation,
    Put,
    Range,
    Revoke,
    Rule,
    Simple,
    Transaction,
    Txn,
    compares_of,
    each,
    has_nested,
    nested_in,
    operations_of,
)
from multicast.types import Timestamp

_SEEING = frozenset((*RANGES, Revoke, Txn))


def _check_key(key: bytes) -> None:
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise InvalidTransaction("key", f"a key has 1 to {KEY_BYTES_MAX} bytes, this one {len(key)}")


def _check_value(value: bytes) -> None:
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidTransaction("value", f"a value has at most {VALUE_BYTES_MAX} bytes, this one {len(value)}")


def _check_operation(operation: Simple) -> None:
    if type(operation) is Put or type(operation) is Append:  # nearly always, hence first
        _check_key(operation.key)
        _check_value(operation.value)
        return
    if isinstance(operation, RANGES):
        _check_range(operation)
        return
    if isinstance(operation, Cut):
        raise InvalidTransaction("op", "a cut stands alone in its transaction")
    if isinstance(operation, Move):
        raise InvalidTransaction("op", "a move stands alone in its transaction")
    if isinstance(operation, Rule):
        raise InvalidTransaction("op", "a rule stands alone in its transaction")
    if isinstance(operation, LEASED) and len(operation.lease) != LEASE_ID_BYTES:
        raise InvalidTransaction("lease", "an id has 16 bytes")
    if isinstance(operation, Revoke):
        return
    _check_key(operation.key)
    if isinstance(operation, LeasedPut):
        _check_value(operation.value)
    elif isinstance(operation, NUMBERS):
        name = "delta" if isinstance(operation, Add) else "value"
        if not INT64_MIN <= getattr(operation, name) <= INT64_MAX:
            raise InvalidTransaction(name, "not a signed 64-bit integer")


def _check_range(operation: Range | DeleteRange | NoneNewer) -> None:
    for name in ("prefix", "start", "end", "after"):
        if len(getattr(operation, name, b"")) > KEY_BYTES_MAX:
            raise InvalidTransaction(name, f"at most {KEY_BYTES_MAX} bytes")
    if isinstance(operation, Range):
        if not 1 <= operation.limit <= SCAN_LIMIT_MAX:
            raise InvalidTransaction("limit", f"from 1 to {SCAN_LIMIT_MAX}, not {operation.limit}")
        if operation.keys_only and operation.count_only:
            raise InvalidTransaction("count_only", "give keys_only or count_only, not both")


def _scanned(branch: tuple[Operation, ...], deleted: int = 0, again: int = 0) -> int:
    """How many keys its ranges and Revokes may look at, in one shard. deleted: so many may a DeleteRange before a range
    have left for that to pass; again: so many were by what precedes the branch."""
    seen = 0
    for op in branch:
        if isinstance(op, Txn):
            seen += max(_scanned(op.success, deleted, again), _scanned(op.failure, deleted, again))
        elif type(op) in _SEEING:
            seen += _keys(op) + (again if isinstance(op, Range | DeleteRange) else 0)
        if deleted and isinstance(op, DeleteRange | Txn) and _deletes(op):
            again = deleted
    return seen


def _deletes(op: DeleteRange | Txn) -> bool:
    return isinstance(op, DeleteRange) or any([isinstance(one, DeleteRange) for one in operations_of(op)])


def _keys(op: Operation) -> int:
    if isinstance(op, Revoke):
        return REVOKED_KEYS
    return op.limit if isinstance(op, Range) and not op.count_only else RANGE_KEYS_MAX


def noted(transaction: Transaction) -> int:
    """Of how many keys that it does not name a shard's journal may tell. What is deleted is seen, too."""
    success, failure = transaction.success, transaction.failure
    if _SEEING.isdisjoint(map(type, success)) and _SEEING.isdisjoint(map(type, failure)):  # nearly always
        return 0
    seen = max(_scanned(success), _scanned(failure))
    deletes = any([isinstance(op, DeleteRange) for op in operations_of(transaction)])
    return seen + RANGE_KEYS_MAX if deletes else seen


def _check_compare(compare: Compare) -> None:
    _check_key(compare.key)
    if compare.target not in TARGETS:
        raise InvalidTransaction("target", f"one of {', '.join(TARGETS)}, not {compare.target!r}")
    if compare.op not in OPERATORS:
        raise InvalidTransaction("op", f"one of {' '.join(OPERATORS)}, not {compare.op!r}")
    operand: Any = compare.operand
    if compare.target == "exists":
        if type(operand) is not bool:
            raise InvalidTransaction("value", "true or false")
        if compare.op not in ("==", "!="):
            raise InvalidTransaction("op", "existence is compared with == or !=")
    elif compare.target in ("version", "create_version"):
        if not isinstance(operand, Timestamp):
            raise InvalidTransaction("value", "a version")
    else:
        if type(operand) is not bytes:
            raise InvalidTransaction("value", "a value")
        _check_value(operand)


def _check_move(move: Move) -> None:
    if move.source == move.target:
        raise InvalidTransaction("target", "slots are moved from one shard to another one")
    after = -1
    for first, last in move.slots:
        if not after < first <= last < SLOTS:
            raise InvalidTransaction("slots", f"rising ranges from 0 to {SLOTS - 1}, not {first}-{last}")
        after = last


def validate(transaction: Transaction) -> None:
    """Check every limit, before anything is ordered. InvalidTransaction names the first field that breaks one."""
    count = len(transaction.compare) + len(transaction.success) + len(transaction.failure)
    nested = has_nested(transaction)
    if nested:
        _check_depth(transaction, 0)
        count += sum([len(txn.compare) + len(txn.success) + len(txn.failure) for txn in nested_in(transaction)])
    if count > OPERATIONS_MAX:
        raise InvalidTransaction("transaction", f"at most {OPERATIONS_MAX} comparisons and operations, not {count}")
    if count == 0 or (nested and not compares_of(transaction) and not operations_of(transaction)):
        raise InvalidTransaction("transaction", "it has no comparison and no operation")
    if count == 1 and transaction.success:
        operation = transaction.success[0]
        if isinstance(operation, Move):
            _check_move(operation)
        elif not isinstance(operation, (Cut, Rule)):  # and no range alone sees more than SCANNED_KEYS_MAX
            _check_parts(transaction)
        return
    _check_parts(transaction)
    if nested and any([isinstance(op, FALLIBLE) for op in operations_of(transaction)]):
        ways = _ways(transaction)
        if ways > WAYS_MAX:
            told = f"with operations that can fail it may end in at most {WAYS_MAX} ways, not {ways}"
            raise InvalidTransaction("transaction", told)
        if ways * count > TRIED_MAX:
            told = f"its {ways} ways to end times its {count} comparisons and operations are more than {TRIED_MAX}"
            raise InvalidTransaction("transaction", told)
        if _tried_keys(transaction) > TRIED_KEYS_MAX:
            told = f"in its {ways} ways to end its ranges that can fail may see more than {TRIED_KEYS_MAX} keys"
            raise InvalidTransaction("transaction", told)
    for name, branch in (("success", transaction.success), ("failure", transaction.failure)):
        if not nested and 2 * len(branch) <= SCANNED_KEYS_MAX // RANGE_KEYS_MAX:  # nearly always
            continue
        if _scanned(branch, RANGE_KEYS_MAX) > SCANNED_KEYS_MAX:
            raise InvalidTransaction(name, f"its ranges may see more than {SCANNED_KEYS_MAX} keys")


def _tried_keys(transaction: Transaction) -> int:
    """How many keys a shard may look at to find out which of its ways to end are possible."""
    looking = (DeleteRange, NoneNewer)
    if not any([isinstance(op, looking) for op in operations_of(transaction)]):
        return 0
    courses = [nesting.course(transaction, *way) for way in nesting.ways(transaction)]
    return sum([_scanned(tuple([op for op in one if isinstance(op, looking)]), RANGE_KEYS_MAX) for one in courses])


def _check_depth(transaction: Transaction | Txn, depth: int) -> None:
    def check(operation: Operation) -> None:
        if isinstance(operation, Txn):
            if depth == NESTING_MAX:
                raise InvalidTransaction("op", f"transactions nest at most {NESTING_MAX} deep")
            _check_depth(operation, depth + 1)

    each("success", check, transaction.success)
    each("failure", check, transaction.failure)


def _check_parts(transaction: Transaction | Txn) -> None:
    if transaction.compare:
        each("compare", _check_compare, transaction.compare)
    if transaction.success:
        each("success", _check_part, transaction.success)
    if transaction.failure:
        each("failure", _check_part, transaction.failure)


def _check_part(operation: Operation) -> None:
    if isinstance(operation, Txn):
        _check_parts(operation)
    else:
        _check_operation(operation)


def _ways(transaction: Transaction | Txn) -> int:
    """In how many ways it can end, without effect not counted."""
    branches = transaction.success, transaction.failure
    return sum([prod([_ways(op) for op in branch if isinstance(op, Txn)]) for branch in branches])
