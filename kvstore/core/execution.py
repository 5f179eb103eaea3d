"""Deterministic execution of one transaction on one shard. Pure.

`vote` tells what the shard knows that decides the transaction's fate everywhere; `Execution` runs the course that was
chosen, on an overlay, and says what was read and what is to be written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import gt, lt
from typing import Any

from kvstore.api.leases import decode_lease
from kvstore.api.model import (
    APPENDED_BYTES_MAX,
    FALLIBLE,
    INT64_MAX,
    INT64_MIN,
    KEY_BYTES_MAX,
    LEASE_KEYS_MAX,
    NO_LEASE,
    NOTED_BYTES_MAX,
    NUMBERS,
    RANGE_KEYS_MAX,
    RANGES,
    RESULT_BYTES_MAX,
    VALUE_BYTES_MAX,
    Append,
    Compare,
    Cut,
    Delete,
    DeleteRange,
    Get,
    KeyValue,
    LeasedPut,
    NoneNewer,
    Number,
    Operation,
    OperationResult,
    Put,
    Range,
    Rule,
    between,
    bounds,
    counted,
)
from kvstore.api.nesting import FAILS, HOLDS, ways
from kvstore.core.messages import NestedVote, Vote
from kvstore.core.plans import Attach, Indexed, LocalPlan, Release
from kvstore.core.rights import Rights
from kvstore.core.state import State
from multicast.types import ZERO, Timestamp

_INTEGER = re.compile(rb"-?[0-9]{1,20}")
_FALLIBLE = frozenset((*FALLIBLE, Attach))
_READING = (Get, Range, Cut)
_PUT_RESULT = OperationResult()


class Impossible(Exception):
    """An operation cannot be carried out, so the whole transaction has no effect."""

    def __init__(self, reason: str, key: bytes):
        super().__init__(reason)
        self.reason = reason
        self.key = key


class Execution:
    """What executing a branch on one shard amounts to. limited: see `LocalPlan`.

    compared: key -> version of what the vote has compared, so that it need not be compared again. writes: key -> final
    value, None for deleted. leases: key -> lease, of keys that are attached to one. read_bytes: of the keys and values
    that belong in `results`; beyond RESULT_BYTES_MAX neither results nor rows are kept, and what is needed again is
    read again (see `told`). failure, failure_key: why nothing has an effect; then `writes` and `results` are empty.
    """

    __slots__ = (
        "_appendable", "_before_of", "_deleted", "_kept_bytes", "_rows", "_seen", "_state", "_timestamp", "compared",
        "failure", "failure_key", "leases", "read_bytes", "results", "writes",
    )  # fmt: skip

    def __init__(self, state: State, timestamp: Timestamp, limited: bool = False):
        self._state = state
        self._appendable = APPENDED_BYTES_MAX if limited else INT64_MAX
        self._timestamp = timestamp
        self.compared: dict[bytes, Timestamp] = {}
        self._rows: dict[bytes, KeyValue | None] = {}
        self._seen: dict[bytes, Timestamp] = {}  # without their values
        self._deleted = self._kept_bytes = 0
        self.writes: dict[bytes, bytes | None] = {}
        self.leases: dict[bytes, bytes] = {}
        self._before_of: dict[bytes, dict[bytes, None]] = {}  # lease -> the keys that were attached to it, rising
        self.results: list[tuple[int, OperationResult]] = []
        self.read_bytes = 0
        self.failure = ""
        self.failure_key = b""

    @property
    def told(self) -> list[tuple[int, OperationResult]] | None:
        """`results`; None if they are more than one shard reads for one transaction."""
        return None if self.read_bytes > RESULT_BYTES_MAX else self.results

    @property
    def reads(self) -> list[tuple[bytes, Timestamp]]:
        """(key, version before the transaction), of up to NOTED_BYTES_MAX of keys; last those of which no values were
        asked for."""
        rows: dict[bytes, Any] = self._rows
        found = [(key, ZERO if row is None else row.version) for key, row in rows.items()]
        if compared := self.compared:
            found = [*compared.items(), *[one for one in found if one[0] not in compared]]
            rows = {**compared, **rows}
        if not self._seen:
            return found
        found += [(key, version) for key, version in self._seen.items() if key not in rows]
        return found if len(found) * KEY_BYTES_MAX <= NOTED_BYTES_MAX else _up_to(found)

    def compare(self, compares: Sequence[Compare]) -> bool:
        """Whether all hold. All are read, so that what is read does not depend on their order."""
        return all([_holds(compare, self._before(compare.key)) for compare in compares])

    def judge(self, plan: LocalPlan) -> tuple[bool, bytes]:
        """Whether the outermost comparisons hold here, and the truths of nested transactions. All comparisons are made,
        whatever runs then."""
        holds = not plan.compares or self.compare(plan.compares)
        if not plan.nested:
            return holds, b""
        return holds, b"".join([HOLDS if self.compare(inner) else FAILS for inner in plan.inner_compares()])

    def run(self, branch: Indexed) -> None:
        """Carry out the operations; afterwards `failure` says whether one was impossible."""
        results, writes, leases = self.results, self.writes, self.leases
        try:
            for index, operation in branch:
                if type(operation) is Put:
                    writes[operation.key] = operation.value
                    if leases:
                        leases.pop(operation.key, None)
                    results.append((index, _PUT_RESULT))
                elif type(operation) is Attach:
                    self._attach(operation)
                else:
                    results.append((index, _RUN[type(operation)](self, operation)))
        except Impossible as error:
            self.fail(error.reason, error.key)

    def fail(self, reason: str, key: bytes) -> None:
        """End without an effect."""
        self.failure, self.failure_key = reason, key
        self.writes = {}
        self.results = []

    def _before(self, key: bytes) -> KeyValue | None:
        if key in self._rows:
            return self._rows[key]
        row = self._state.get(key)
        self._keep(key, row)
        return row

    def _keep(self, key: bytes, row: KeyValue | None) -> None:
        """This row was read."""
        if row is None:
            self._rows[key] = None
        elif self._kept_bytes > RESULT_BYTES_MAX:
            self._seen[key] = row.version
        else:
            self._kept_bytes += len(row.value)
            self._rows[key] = row

    def _current(self, key: bytes) -> KeyValue | None:
        if key in self.writes:
            value = self.writes[key]
            return None if value is None else self._written(key, value)
        return self._before(key)

    def _written(self, key: bytes, value: bytes) -> KeyValue:
        """The row that this transaction has written itself. (To everybody else a key that it deletes and writes was
        never absent.) Whether the key was there before is no read of its version."""
        before = self._rows[key] if key in self._rows else self._state.get(key)
        created = self._timestamp if before is None else before.create_version
        return KeyValue(key, value, self._timestamp, created, self.leases.get(key, NO_LEASE))

    def _get(self, operation: Get) -> OperationResult:
        row = self._current(operation.key)
        if row is None:
            return OperationResult()
        self.read_bytes += len(row.key) + len(row.value)
        return OperationResult(found=row if self.read_bytes <= RESULT_BYTES_MAX else None)

    def _delete(self, operation: Delete) -> OperationResult:
        existed = self._current(operation.key) is not None
        self.writes[operation.key] = None
        return OperationResult(deleted=existed)

    def _count(self, operation: Number) -> OperationResult:
        row, name = self._current(operation.key), type(operation).__name__.lower()
        before = None
        if row is not None:
            if not _INTEGER.fullmatch(row.value):
                raise Impossible(f"{name}: the value is not a decimal integer", operation.key)
            before = int(row.value)
            if not INT64_MIN <= before <= INT64_MAX:
                raise Impossible(f"{name}: the value is not a signed 64-bit integer", operation.key)
        value = counted(operation, before)
        if not INT64_MIN <= value <= INT64_MAX:
            raise Impossible(f"{name}: the sum does not fit a signed 64-bit integer", operation.key)
        self._change(operation.key, b"%d" % value, row)
        return OperationResult(value=value)

    def _append(self, operation: Append) -> OperationResult:
        row = self._current(operation.key)
        value = operation.value if row is None else row.value + operation.value
        if len(value) > VALUE_BYTES_MAX:
            raise Impossible(f"append: the value would have more than {VALUE_BYTES_MAX} bytes", operation.key)
        self._appendable -= len(operation.value if operation.key in self.writes else value)
        if self._appendable < 0:
            why = f"append: the values would have more than {APPENDED_BYTES_MAX} bytes in a shard"
            raise Impossible(why, operation.key)
        self._change(operation.key, value, row)
        return OperationResult(length=len(value))

    def _change(self, key: bytes, value: bytes, row: KeyValue | None) -> None:
        """Write a key that stays attached to its lease, if it was there and has one."""
        self.writes[key] = value
        if row is not None and row.lease:
            self.leases[key] = row.lease
        else:
            self.leases.pop(key, None)

    def _range(self, operation: Range) -> OperationResult:
        if operation.count_only:
            found, more = self._find(operation, RANGE_KEYS_MAX, True)
            return OperationResult(value=len(found), more=more)
        if operation.lease:
            found, more = self._find_attached(operation)
        else:
            found, more = self._find(operation, operation.limit, operation.keys_only, operation.reverse)
        for entry in found:
            self.read_bytes += len(entry.key) + len(entry.value)
        return OperationResult(entries=tuple(found) if self.read_bytes <= RESULT_BYTES_MAX else (), more=more)

    def _delete_range(self, operation: DeleteRange) -> OperationResult:
        found, more = self._find(operation, RANGE_KEYS_MAX - self._deleted, True)
        if more:
            raise Impossible(f"delete_range: more than {RANGE_KEYS_MAX} keys in a shard", bounds(operation)[0])
        self._deleted += len(found)
        for entry in found:
            self.writes[entry.key] = None
        return OperationResult(value=len(found))

    def _none_newer(self, operation: NoneNewer) -> OperationResult:
        first, end = bounds(operation)
        found, more = self._state.scan(first, end, RANGE_KEYS_MAX, False, True)
        for entry in found:
            self._seen[entry.key] = entry.version
            if entry.version > operation.version:
                raise Impossible(f"none_newer: a key was written at {entry.version}", entry.key)
        if more:
            raise Impossible(f"none_newer: more than {RANGE_KEYS_MAX} keys in a shard", first)
        return OperationResult()

    def _find(
        self, operation: Range | DeleteRange, limit: int, keys_only: bool, reverse: bool = False
    ) -> tuple[list[KeyValue], bool]:
        """The first `limit` entries, own writes among them, and whether there are more; see `State.scan`."""
        (first, end), writes, scan = bounds(operation), self.writes, self._state.scan
        # Own writes hide at most len(writes) of the stored entries, so this many suffice, unless they are large.
        stored, more = scan(first, end, limit + len(writes), reverse, keys_only)
        while more and all(entry.key in writes for entry in stored):
            last = stored[-1].key
            rest = (first, last) if reverse else (last + b"\0", end)
            further, more = scan(*rest, limit + len(writes), reverse, keys_only)
            stored += further
        if more:  # beyond what is known own writes are of no use
            last = stored[-1].key
            first, end = (last, end) if reverse else (first, last + b"\0")
        found = [entry for entry in stored if entry.key not in writes]
        if writes:
            for key, value in writes.items():
                if value is not None and between(key, first, end):
                    found.append(self._written(key, b"" if keys_only else value))
            found.sort(key=_key_of, reverse=reverse)
        more = more or len(found) > limit
        del found[limit:]
        for entry in found:
            if entry.key not in writes:
                if keys_only:
                    self._seen[entry.key] = entry.version
                elif entry.key not in self._rows:
                    self._keep(entry.key, entry)
        return found, more

    def _find_attached(self, operation: Range) -> tuple[list[KeyValue], bool]:
        first, end = bounds(operation)
        keys = sorted([key for key in self._attached(operation.lease) if between(key, first, end)])
        rows = [self._current(key) for key in keys[: operation.limit]]
        found = [KeyValue(r.key, b"", r.version, r.create_version, r.lease) for r in rows if r is not None]
        return found, len(keys) > operation.limit

    def _attach(self, operation: Attach) -> None:
        row = self._current(operation.key)
        if row is None:
            raise Impossible("put: there is no such lease, or no longer", b"")
        lease = decode_lease(row.value)
        if operation.slot not in lease.slots:
            self.writes[operation.key] = lease.with_slot(operation.slot).encode()

    def _leased_put(self, operation: LeasedPut) -> OperationResult:
        key, lease = operation.key, operation.lease
        if not self._is_attached(key, lease) and self._is_full(lease):
            raise Impossible(f"put: more than {LEASE_KEYS_MAX} keys in a shard would be attached to the lease", key)
        self.writes[key] = operation.value
        self.leases[key] = lease
        return _PUT_RESULT

    def _is_attached(self, key: bytes, lease: bytes) -> bool:
        if key in self.writes:
            return self.writes[key] is not None and self.leases.get(key) == lease
        return key in self._attached_before(lease)

    def _is_full(self, lease: bytes) -> bool:
        """Whether it has as many keys as it may have. They are seldom so many that they have to be counted."""
        if len(self._attached_before(lease)) + len(self.leases) < LEASE_KEYS_MAX:
            return False
        return len(self._attached(lease)) >= LEASE_KEYS_MAX

    def _attached_before(self, lease: bytes) -> dict[bytes, None]:
        if lease not in self._before_of:
            self._before_of[lease] = dict.fromkeys(self._state.attached(lease))
        return self._before_of[lease]

    def _attached(self, lease: bytes) -> list[bytes]:
        writes, leases = self.writes, self.leases
        found = [key for key in self._attached_before(lease) if key not in writes]
        return found + [k for k, own in leases.items() if own == lease and writes[k] is not None]

    def _release(self, operation: Release) -> OperationResult:
        for key in self._attached(operation.lease):
            if key not in self.writes:
                self._before(key)
            self.writes[key] = None
        if operation.key:
            self._before(operation.key)
            self.writes[operation.key] = None
        return _PUT_RESULT

    def _cut(self, operation: Cut) -> OperationResult:
        self._state.cut(self._timestamp)
        return OperationResult()

    def _rule(self, operation: Rule) -> OperationResult:
        Rights(self._state).change(operation)
        return OperationResult()


def _up_to(reads: list[tuple[bytes, Timestamp]]) -> list[tuple[bytes, Timestamp]]:
    bytes_read = accumulate([len(key) for key, _ in reads])
    return [read for read, size in zip(reads, bytes_read, strict=True) if size <= NOTED_BYTES_MAX]


def _key_of(found: KeyValue) -> bytes:
    return found.key


_RUN: dict[type, Callable[[Execution, Any], OperationResult]] = {
    Get: Execution._get,
    Delete: Execution._delete,
    **dict.fromkeys(NUMBERS, Execution._count),
    Append: Execution._append,
    Range: Execution._range,
    DeleteRange: Execution._delete_range,
    NoneNewer: Execution._none_newer,
    Cut: Execution._cut,
    LeasedPut: Execution._leased_put,
    Release: Execution._release,
    Rule: Execution._rule,
}


def _holds(compare: Compare, row: KeyValue | None) -> bool:
    operand: Any = compare.operand
    op = compare.op
    if compare.target == "exists":
        return bool(((row is not None) == operand) == (op == "=="))
    found: Any
    if compare.target == "version":
        found = ZERO if row is None else row.version
    elif compare.target == "create_version":
        found = ZERO if row is None else row.create_version
    elif row is None:
        return op == "!="
    else:
        found = row.value
    if op == "==":
        return bool(found == operand)
    if op == "!=":
        return bool(found != operand)
    return bool((lt if op == "<" else gt)(found, operand))


def _trial(branch: Indexed, state: State, limited: bool) -> tuple[str, bytes]:
    """Why this branch cannot run on `state`, ("", b"") if it can. limited: of its plan."""
    if not branch or not any([type(op) in _FALLIBLE for _, op in branch]):
        return "", b""
    trial = Execution(state, ZERO, limited)
    trial.run([(i, op) for i, op in branch if type(op) not in _READING])
    return trial.failure, trial.failure_key


def vote(plan: LocalPlan, state: State) -> tuple[Vote, dict[bytes, Timestamp]]:
    """The shard's vote, and key -> version of what was compared for it. A function of the values of
    `plan.condition_keys()` alone, unless it reaches others."""
    judging = Execution(state, ZERO)
    return _voted(plan, state, *judging.judge(plan)), dict(judging.reads)


def _voted(plan: LocalPlan, state: State, holds: bool, truths: bytes) -> Vote:
    if not plan.nested:
        course, limited = plan.course, plan.limited
        return Vote(holds, *_trial(course(True), state, limited), *_trial(course(False), state, limited))
    impossible: list[tuple[tuple[bool, bytes], str, bytes]] = []
    if any([type(op) in _FALLIBLE for _, op in plan.every_operation()]):
        tried = [(way, *_trial(plan.course(*way), state, plan.limited)) for way in ways(plan.transaction)]
        impossible = [(way, why, key) for way, why, key in tried if why]
    if holds and FAILS not in truths and not impossible:
        return Vote()
    return Vote(holds, nested=NestedVote(truths, impossible))


def merge_results(
    branch: Sequence[Operation], shards: list[list[tuple[int, OperationResult]]]
) -> tuple[OperationResult, ...]:
    """One result per operation from what each shard reports; a Range's entries come from all of them."""
    if len(shards) == 1 and len(shards[0]) == len(branch):
        return tuple([result for _, result in shards[0]])
    merged: list[OperationResult] = [_PUT_RESULT] * len(branch)
    ranges: dict[int, list[OperationResult]] = {}
    for results in shards:
        for index, result in results:
            if isinstance(branch[index], RANGES):
                ranges.setdefault(index, []).append(result)
            else:
                merged[index] = result
    for index, pieces in ranges.items():
        merged[index] = _merge_range(branch[index], pieces)
    return tuple(merged)


def _merge_range(operation: Operation, pieces: list[OperationResult]) -> OperationResult:
    if not isinstance(operation, Range) or operation.count_only:
        return OperationResult(value=sum([p.value for p in pieces]), more=any([p.more for p in pieces]))
    reverse = operation.reverse
    ends = [piece.entries[-1].key for piece in pieces if piece.more and piece.entries]
    entries = [e for piece in pieces for e in piece.entries]
    if ends:  # beyond it that shard may have keys that it did not report
        end = max(ends) if reverse else min(ends)
        entries = [e for e in entries if (e.key >= end if reverse else e.key <= end)]
    entries.sort(key=_key_of, reverse=reverse)
    return OperationResult(entries=tuple(entries[: operation.limit]), more=bool(ends) or len(entries) > operation.limit)


def result_bytes(results: list[tuple[int, OperationResult]]) -> int:
    """How many bytes of keys and values were read."""
    size = 0
    for _, result in results:
        if result.found is not None:
            size += len(result.found.key) + len(result.found.value)
        for entry in result.entries:
            size += len(entry.key) + len(entry.value)
    return size
