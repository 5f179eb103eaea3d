"""The transactions of a finished run once more, one after the other, on plain values: a second opinion on execution.

Versions are unique and rise along every shard's log, so their order is one that all shards agree with. Executed in that
order, each transaction must take the branch, fail, and write as the journals say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from operator import eq, gt, lt, ne
from typing import Any

from kvstore.api.model import INT64_MAX, INT64_MIN, VALUE_BYTES_MAX, Add, Append, Compare, Delete, Operation, Put
from kvstore.core.audit import APPLIED, FAILED, Write
from kvstore.simulated.cluster import Executed
from multicast.types import ZERO, Timestamp

Values = dict[bytes, tuple[bytes, Timestamp]]

_OPERATORS = {"==": eq, "!=": ne, "<": lt, ">": gt}


def serial_execution(logs: Iterable[list[Executed]]) -> list[str]:
    """Sentences about what differs, from the first that does to the first that is not complete."""
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
        transaction, name = places[version][0].transaction, places[version][0].id.hex()
        succeeded = all(_holds(compare, values) for compare in transaction.compare)
        writes = _run(transaction.success if succeeded else transaction.failure, values)
        if any(outcome.succeeded != succeeded for outcome in outcomes):
            violations.append(f"{name} took the other branch than its comparisons say at {version}")
        if any((outcome.status == FAILED) != (writes is None) for outcome in outcomes):
            violations.append(f"{name} at {version} is {'im' if writes is None else ''}possible, the journals differ")
        journaled = {write.key: write for outcome in outcomes for write in outcome.writes}
        if not _same(journaled, writes or {}):
            violations.append(f"{name} wrote something else than it says at {version}")
        for key, value in (writes or {}).items():
            values.pop(key, None)
            if value is not None:
                values[key] = (value, version)
    return violations


def _holds(compare: Compare, values: Values) -> bool:
    found = values.get(compare.key)
    compares = _OPERATORS[compare.op]
    if compare.target == "exists":
        return bool(compares(found is not None, compare.operand))
    if compare.target == "version":
        return bool(compares(found[1] if found else ZERO, compare.operand))
    return bool(compares(found[0], compare.operand)) if found else compare.op == "!="


def _run(branch: Iterable[Operation], values: Values) -> dict[bytes, bytes | None] | None:
    """What it writes; None: it is impossible."""
    writes: dict[bytes, bytes | None] = {}
    for operation in branch:
        if not isinstance(operation, Put | Delete | Add | Append):
            continue
        key = operation.key
        before: Any = writes[key] if key in writes else values.get(key, (None,))[0]
        if isinstance(operation, Put | Delete):
            writes[key] = operation.value if isinstance(operation, Put) else None
        elif isinstance(operation, Append):
            writes[key] = (before or b"") + operation.value
            if len(writes[key] or b"") > VALUE_BYTES_MAX:
                return None
        else:
            if before is not None and not re.fullmatch(rb"-?[0-9]{1,20}", before):
                return None
            numbers = int(before or 0), int(before or 0) + operation.delta
            if not all(INT64_MIN <= number <= INT64_MAX for number in numbers):
                return None
            writes[key] = b"%d" % numbers[1]
    return writes


def _same(journaled: dict[bytes, Write], writes: dict[bytes, bytes | None]) -> bool:
    for key, write in journaled.items():
        value = writes.get(key)
        if write.digest and value is not None:
            value = blake2b(value, digest_size=16).digest()
        if write.value != value:
            return False
    return journaled.keys() == writes.keys()
