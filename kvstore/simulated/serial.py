"""The transactions of a finished run once more, one after the other, on plain values: a second opinion on execution.

Versions are unique and rise along every shard's log, so their order is one that all shards agree with. Executed in that
order, each transaction must take the branch, fail, and write as the journals say, and its ranges must be what its
client was told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
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
from kvstore.simulated.cluster import Executed
from kvstore.simulated.ruling import Ruled
from multicast.types import ZERO, Timestamp

Values = dict[bytes, KeyValue]
Writes = dict[bytes, KeyValue | None]

_OPERATORS = {"==": eq, "!=": ne, "<": lt, ">": gt}


def serial_execution(logs: Iterable[list[Executed]], told: Mapping[Timestamp, Result]) -> list[str]:
    """Sentences about what differs, from the first that does to the first that is not complete. told: to clients, by
    version."""
    places: dict[Timestamp, list[Executed]] = {}
    for log in logs:
        for executed in log:
            places.setdefault(executed.version, []).append(executed)
    violations: list[str] = []
    values: Values = {}
    ruled = Ruled()
    for version in sorted(places):
        outcomes = [executed.outcome for executed in places[version] if executed.outcome is not None]
        if len(outcomes) < len(places[version]):
            break
        if not {outcome.status for outcome in outcomes} <= {APPLIED, FAILED}:
            continue
        if move_of(places[version][0].transaction) is not None:
            continue
        transaction, name = places[version][0].transaction, places[version][0].id.hex()
        succeeded = all(_holds(compare, values) for compare in transaction.compare)
        truths = bytes(_truths(transaction, values))
        writes, ranges = _run(_chosen(transaction, values), values, version)
        if ruled.denies(transaction):
            writes, succeeded, truths = None, False, b""
        if any((outcome.succeeded, _truths_of(outcome)) != (succeeded, truths) for outcome in outcomes):
            violations.append(f"{name} took the other branch than its comparisons say at {version}")
        if any((outcome.status == FAILED) != (writes is None) for outcome in outcomes):
            violations.append(f"{name} at {version} is {'im' if writes is None else ''}possible, the journals differ")
        journaled = {write.key: write for outcome in outcomes for write in outcome.writes}
        if not _same(journaled, writes or {}):
            violations.append(f"{name} wrote something else than it says at {version}")
        if version in told and writes is not None:
            results = list(_each(told[version].results))
            for place, right in ranges.items():
                if (result := results[place]) != right:
                    violations.append(f"{name} was told of a range at {version} {result}, not {right}")
        for key, row in (writes or {}).items():
            values.pop(key, None)
            if row is not None:
                values[key] = row
    return violations


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
) -> tuple[Writes | None, dict[int, OperationResult]]:
    """What it writes, None if it is impossible, and what its ranges find, by their places."""
    writes: Writes = {}
    ranges: dict[int, OperationResult] = {}

    def put(key: bytes, value: bytes, lease: bytes = NO_LEASE) -> None:
        created = values[key].create_version if key in values else version
        writes[key] = KeyValue(key, value, version, created, lease)

    for place, operation in enumerate(branch):
        now = {key: row for key, row in (values | writes).items() if row is not None}
        if isinstance(operation, NoneNewer):
            first, end = bounds(operation)
            if any(row.version > operation.version for key, row in values.items() if between(key, first, end)):
                return None, ranges
        elif isinstance(operation, Range | DeleteRange):
            ranges[place] = _range(operation, now, writes)
        elif isinstance(operation, Revoke):
            writes |= dict.fromkeys([k for k, row in now.items() if row.lease == operation.lease])
            writes[lease_key(operation.lease)] = None
        elif isinstance(operation, LeasedPut):
            row = now.get(lease_key(operation.lease))
            if row is None:
                return None, ranges
            lease, slot = decode_lease(row.value), slot_of(operation.key)
            if slot not in lease.slots:
                put(row.key, lease.with_slot(slot).encode())
            put(operation.key, operation.value, operation.lease)
        elif isinstance(operation, Put):
            put(operation.key, operation.value)
        elif isinstance(operation, Delete):
            writes[operation.key] = None
        elif isinstance(operation, Add | Min | Max | Append):
            row = now.get(operation.key)
            value = _changed(operation, None if row is None else row.value)
            if value is None:
                return None, ranges
            put(operation.key, value, NO_LEASE if row is None else row.lease)
    return writes, ranges


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
    if operation.count_only:
        return OperationResult(value=len(found))
    if operation.reverse:
        found.reverse()
    told = [replace(now[key], value=b"") if operation.keys_only else now[key] for key in found]
    return OperationResult(entries=tuple(told[: operation.limit]), more=len(told) > operation.limit)


def _same(journaled: dict[bytes, Write], writes: Writes) -> bool:
    for key, write in journaled.items():
        row = writes.get(key)
        value = None if row is None else row.value
        if write.digest and value is not None:
            value = blake2b(value, digest_size=16).digest()
        if write.value != value:
            return False
    return journaled.keys() == writes.keys()
