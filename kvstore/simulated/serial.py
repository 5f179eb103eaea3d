"""The transactions of a finished run once more, one after the other, on plain values: a second opinion on execution.

Versions are unique and rise along every shard's log, so their order is one that all shards agree with. Executed in that
order, each transaction must take the branch, fail, and write as the journals say, and what it has found and done must
be what its client was told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import zip_longest
from operator import eq, gt, lt, ne

from msgspec.structs import replace

from kvstore.api.leases import decode_lease
from kvstore.api.model import (
    INT64_MAX,
    INT64_MIN,
    NO_LEASE,
    VALUE_BYTES_MAX,
    Add,
    Append,
    Compare,
    Delete,
    DeleteRange,
    Get,
    KeyValue,
    LeasedPut,
    Max,
    Min,
    NoneNewer,
    Operation,
    OperationResult,
    Put,
    Range,
    Result,
    Revoke,
    Transaction,
    Txn,
    TxnResult,
    between,
    bounds,
    lease_key,
    move_of,
)
from kvstore.api.shard_map import slot_of
from kvstore.core.audit import APPLIED, FAILED, NestedOutcome, Outcome, Write
from kvstore.core.rights import DENIED
from kvstore.simulated.cluster import Executed
from kvstore.simulated.narrow import reads_all
from kvstore.simulated.ruling import Ruled
from multicast.types import ZERO, Timestamp

Values = dict[bytes, KeyValue]
Writes = dict[bytes, KeyValue | None]

_OPERATORS = {"==": eq, "!=": ne, "<": lt, ">": gt}


class Written:
    """rows: all that was ever written, by key and version. upto: what is less is all that there was; None: so is
    everything."""

    def __init__(self) -> None:
        self.rows: dict[tuple[bytes, Timestamp], KeyValue] = {}
        self.upto: Timestamp | None = None


def serial_execution(
    logs: Iterable[list[Executed]], told: Mapping[Timestamp, Result], written: Written | None = None
) -> list[str]:
    """Sentences about what differs, from the first that does to the first that is not complete. told: to clients, by
    version. written: gets what the transactions write."""
    places: dict[Timestamp, list[Executed]] = {}
    for log in logs:
        for executed in log:
            places.setdefault(executed.version, []).append(executed)
    violations: list[str] = []
    values: Values = {}
    ruled = Ruled()
    written = written or Written()
    for version in sorted(places):
        outcomes = [executed.outcome for executed in places[version] if executed.outcome is not None]
        if len(outcomes) < len(places[version]):
            written.upto = version
            break
        if not {outcome.status for outcome in outcomes} <= {APPLIED, FAILED}:
            continue
        if move_of(places[version][0].transaction) is not None:
            continue
        transaction, name = places[version][0].transaction, places[version][0].id.hex()
        succeeded = all(_holds(compare, values) for compare in transaction.compare)
        truths = bytes(_truths(transaction, values))
        chosen = list(_chosen(transaction, values))
        writes, results = _run(chosen, values, version)
        if denied := ruled.denies(transaction):
            writes, succeeded, truths = None, False, b""
        if any((outcome.succeeded, _truths_of(outcome)) != (succeeded, truths) for outcome in outcomes):
            violations.append(f"{name} took the other branch than its comparisons say at {version}")
        if any((outcome.status == FAILED) != (writes is None) for outcome in outcomes):
            violations.append(f"{name} at {version} is {'im' if writes is None else ''}possible, the journals differ")
        journaled = {write.key: write for outcome in outcomes for write in outcome.writes}
        if not _same(journaled, writes or {}):
            violations.append(f"{name} wrote something else than it says at {version}")
        if version in told and writes is None and not _explains(told[version], chosen, denied):
            violations.append(f"{name} at {version} is told as impossible for another reason: {told[version]}")
        if version in told and writes is not None:
            for operation, result, right in zip_longest(chosen, _each(told[version].results), results):
                if not _is_told(operation, result, right):
                    violations.append(f"{name} was told of {operation} at {version} {result}, not {right}")
        for key, row in (writes or {}).items():
            values.pop(key, None)
            if row is not None:
                values[key] = written.rows[key, version] = row
    return violations


def _explains(told: Result, chosen: Iterable[Operation], denied: bool) -> bool:
    """Whether the reason is that of an operation that was to run. denied: it is that the client has no right."""
    if denied or told.failure.startswith(DENIED):
        return denied and told.failure.startswith(DENIED)
    why, key = told.failure.partition(":")[0], told.failure_key
    for operation in chosen:
        name = type(operation).__name__.lower()
        if isinstance(operation, NoneNewer):
            if why == "none_newer" and between(key, *bounds(operation)):
                return True
        elif isinstance(operation, LeasedPut):
            if why == "put" and key in (b"", operation.key):
                return True
        elif isinstance(operation, Add | Min | Max | Append) and (why, key) == (name, operation.key):
            return True
    return False


def _chosen(transaction: Transaction | Txn, values: Values) -> Iterator[Operation]:
    """The operations that run: every comparison is of what was there before."""
    holds = all(_holds(compare, values) for compare in transaction.compare)
    for operation in transaction.success if holds else transaction.failure:
        yield from _chosen(operation, values) if isinstance(operation, Txn) else (operation,)


def _truths(transaction: Transaction | Txn, values: Values) -> Iterator[bool]:
    """Of what is nested in it, as outcomes say them."""
    for operation in (*transaction.success, *transaction.failure):
        if isinstance(operation, Txn):
            yield all(_holds(compare, values) for compare in operation.compare)
            yield from _truths(operation, values)


def _truths_of(outcome: Outcome) -> bytes:
    return outcome.truths if isinstance(outcome, NestedOutcome) else b""


def _each(results: Iterable[OperationResult]) -> Iterator[OperationResult]:
    """Of the operations that ran."""
    for result in results:
        yield from _each(result.results) if isinstance(result, TxnResult) else (result,)


def _holds(compare: Compare, values: Values) -> bool:
    found = values.get(compare.key)
    compares = _OPERATORS[compare.op]
    if compare.target == "exists":
        return bool(compares(found is not None, compare.operand))
    if compare.target == "version":
        return bool(compares(found.version if found else ZERO, compare.operand))
    if compare.target == "create_version":
        return bool(compares(found.create_version if found else ZERO, compare.operand))
    return bool(compares(found.value, compare.operand)) if found else compare.op == "!="


def _run(
    branch: Iterable[Operation], values: Values, version: Timestamp
) -> tuple[Writes | None, list[OperationResult]]:
    """What it writes, None if it is impossible, and what its operations find and do."""
    writes: Writes = {}
    results: list[OperationResult] = []

    def put(key: bytes, value: bytes, lease: bytes = NO_LEASE) -> None:
        created = values[key].create_version if key in values else version
        writes[key] = KeyValue(key, value, version, created, lease)

    for operation in branch:
        now = {key: row for key, row in (values | writes).items() if row is not None}
        result = OperationResult()
        if isinstance(operation, NoneNewer):
            first, end = bounds(operation)
            if any(row.version > operation.version for key, row in values.items() if between(key, first, end)):
                return None, results
        elif isinstance(operation, Range | DeleteRange):
            result = _range(operation, now, writes)
        elif isinstance(operation, Get):
            result = OperationResult(found=now.get(operation.key))
        elif isinstance(operation, Revoke):
            writes |= dict.fromkeys([k for k, row in now.items() if row.lease == operation.lease])
            writes[lease_key(operation.lease)] = None
        elif isinstance(operation, LeasedPut):
            row = now.get(lease_key(operation.lease))
            if row is None:
                return None, results
            lease, slot = decode_lease(row.value), slot_of(operation.key)
            if slot not in lease.slots:
                put(row.key, lease.with_slot(slot).encode())
            put(operation.key, operation.value, operation.lease)
        elif isinstance(operation, Put):
            put(operation.key, operation.value)
        elif isinstance(operation, Delete):
            result = OperationResult(deleted=operation.key in now)
            writes[operation.key] = None
        elif isinstance(operation, Add | Min | Max | Append):
            row = now.get(operation.key)
            value = _changed(operation, None if row is None else row.value)
            if value is None:
                return None, results
            put(operation.key, value, NO_LEASE if row is None else row.lease)
            appends = isinstance(operation, Append)
            result = OperationResult(length=len(value)) if appends else OperationResult(value=int(value))
        results.append(result)
    return writes, results


def _changed(operation: Add | Min | Max | Append, before: bytes | None) -> bytes | None:
    """None: it is impossible."""
    if isinstance(operation, Append):
        value = (before or b"") + operation.value
        return value if len(value) <= VALUE_BYTES_MAX else None
    if before is not None and not re.fullmatch(rb"-?[0-9]{1,20}", before):
        return None
    if isinstance(operation, Min | Max):
        both = sorted([operation.value, operation.value if before is None else int(before)])
        numbers = int(before or 0), both[isinstance(operation, Max)]
    else:
        numbers = int(before or 0), int(before or 0) + operation.delta
    return b"%d" % numbers[1] if all(INT64_MIN <= number <= INT64_MAX for number in numbers) else None


def _range(operation: Range | DeleteRange, now: Values, writes: Writes) -> OperationResult:
    """What it finds; the keys of one that deletes are added to `writes`."""
    prefix, start, end = operation.prefix, operation.start, operation.end
    found = [key for key in sorted(now) if key.startswith(prefix) and start <= key and (not end or key < end)]
    if isinstance(operation, DeleteRange):
        writes |= dict.fromkeys(found)
        return OperationResult(value=len(found))
    if operation.after:
        found = [key for key in found if key > operation.after]
    if operation.lease:
        found = [key for key in found if now[key].lease == operation.lease]
    if operation.count_only:
        return OperationResult(value=len(found))
    if operation.reverse:
        found.reverse()
    bare = operation.keys_only or operation.lease
    told = [replace(now[key], value=b"") if bare else now[key] for key in found]
    return OperationResult(entries=tuple(told[: operation.limit]), more=len(told) > operation.limit)


def _is_told(operation: Operation | None, told: OperationResult | None, right: OperationResult | None) -> bool:
    """Whether this is what it has found: of a range, where there is much, the first that there is."""
    if isinstance(operation, Range) and told is not None and right is not None and told.more and not reads_all():
        rest = len(right.entries) > len(told.entries) or right.more
        return bool(told.entries) and rest and told.entries == right.entries[: len(told.entries)]
    return told == right


def _same(journaled: dict[bytes, Write], writes: Writes) -> bool:
    for key, write in journaled.items():
        row = writes.get(key)
        value = None if row is None else row.value
        if write.digest and value is not None:
            value = blake2b(value, digest_size=16).digest()
        if write.value != value:
            return False
    return journaled.keys() == writes.keys()
