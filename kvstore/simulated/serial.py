"""The transactions of a finished run once more, one after the other, on plain values: a second opinion on execution.

Versions are unique and rise along every shard's log, so their order is one that all shards agree with. Executed in that
order, each transaction must take the branch, fail, and write as the journals say, and its ranges must be what its
client was told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from operator import eq, gt, lt, ne
from typing import Any

from kvstore.api.model import (
    INT64_MAX,
    INT64_MIN,
    VALUE_BYTES_MAX,
    Add,
    Append,
    Compare,
    Delete,
    DeleteRange,
    KeyValue,
    Operation,
    OperationResult,
    Put,
    Range,
    Result,
    move_of,
)
from kvstore.core.audit import APPLIED, FAILED, Write
from kvstore.simulated.cluster import Executed
from multicast.types import ZERO, Timestamp

Values = dict[bytes, tuple[bytes, Timestamp, Timestamp]]
"""Value, version, create version."""

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
        writes, ranges = _run(transaction.success if succeeded else transaction.failure, values, version)
        if any(outcome.succeeded != succeeded for outcome in outcomes):
            violations.append(f"{name} took the other branch than its comparisons say at {version}")
        if any((outcome.status == FAILED) != (writes is None) for outcome in outcomes):
            violations.append(f"{name} at {version} is {'im' if writes is None else ''}possible, the journals differ")
        journaled = {write.key: write for outcome in outcomes for write in outcome.writes}
        if not _same(journaled, writes or {}):
            violations.append(f"{name} wrote something else than it says at {version}")
        for place, right in ranges.items() if version in told and writes is not None else ():
            if (result := told[version].results[place]) != right:
                violations.append(f"{name} was told of a range at {version} {result}, not {right}")
        for key, value in (writes or {}).items():
            created = values.pop(key, (b"", ZERO, version))[2]
            if value is not None:
                values[key] = (value, version, created)
    return violations


def _holds(compare: Compare, values: Values) -> bool:
    found = values.get(compare.key)
    compares = _OPERATORS[compare.op]
    if compare.target == "exists":
        return bool(compares(found is not None, compare.operand))
    if compare.target in ("version", "create_version"):
        place = 1 if compare.target == "version" else 2
        return bool(compares(found[place] if found else ZERO, compare.operand))
    return bool(compares(found[0], compare.operand)) if found else compare.op == "!="


def _run(
    branch: Iterable[Operation], values: Values, version: Timestamp
) -> tuple[dict[bytes, bytes | None] | None, dict[int, OperationResult]]:
    """What it writes, None if it is impossible, and what its ranges find, by their places."""
    writes: dict[bytes, bytes | None] = {}
    ranges: dict[int, OperationResult] = {}
    for place, operation in enumerate(branch):
        if isinstance(operation, Range | DeleteRange):
            ranges[place] = _range(operation, values, writes, version)
        if not isinstance(operation, Put | Delete | Add | Append):
            continue
        key = operation.key
        before: Any = writes[key] if key in writes else values.get(key, (None,))[0]
        if isinstance(operation, Put | Delete):
            writes[key] = operation.value if isinstance(operation, Put) else None
        elif isinstance(operation, Append):
            writes[key] = (before or b"") + operation.value
            if len(writes[key] or b"") > VALUE_BYTES_MAX:
                return None, ranges
        else:
            if before is not None and not re.fullmatch(rb"-?[0-9]{1,20}", before):
                return None, ranges
            numbers = int(before or 0), int(before or 0) + operation.delta
            if not all(INT64_MIN <= number <= INT64_MAX for number in numbers):
                return None, ranges
            writes[key] = b"%d" % numbers[1]
    return writes, ranges


def _range(
    operation: Range | DeleteRange, values: Values, writes: dict[bytes, bytes | None], version: Timestamp
) -> OperationResult:
    """What it finds; the keys of one that deletes are added to `writes`."""
    prefix, start, end = operation.prefix, operation.start, operation.end
    written = {key: value for key, value in writes.items() if value is not None}
    now = values | {key: (v, version, values.get(key, (b"", ZERO, version))[2]) for key, v in written.items()}
    found = [key for key in sorted(now) if key.startswith(prefix) and start <= key and (not end or key < end)]
    found = [key for key in found if key not in writes or writes[key] is not None]
    if isinstance(operation, DeleteRange):
        writes |= dict.fromkeys(found)
        return OperationResult(value=len(found))
    if operation.after:
        found = [key for key in found if key > operation.after]
    if operation.count_only:
        return OperationResult(value=len(found))
    if operation.reverse:
        found.reverse()
    told = [KeyValue(key, b"" if operation.keys_only else now[key][0], *now[key][1:]) for key in found]
    return OperationResult(entries=tuple(told[: operation.limit]), more=len(told) > operation.limit)


def _same(journaled: dict[bytes, Write], writes: dict[bytes, bytes | None]) -> bool:
    for key, write in journaled.items():
        value = writes.get(key)
        if write.digest and value is not None:
            value = blake2b(value, digest_size=16).digest()
        if write.value != value:
            return False
    return journaled.keys() == writes.keys()
