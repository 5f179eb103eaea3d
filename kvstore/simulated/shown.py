"""The rows that a simulated cluster shows and keeps: what stands under a key at a version is what was written there,
with its value, its lease, and the version that created the key. It never changes, however it was read, wherever it has
moved since, and in a backup as in the store. (What is told of ordered transactions is a matter of `serial`.)"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from kvstore.api.model import NO_LEASE, Get, KeyValue, Operation, OperationResult, Range
from kvstore.core.rows import decode_row
from kvstore.core.state import ATTACHED, State
from kvstore.simulated import remembered
from kvstore.simulated.clients import Operated
from kvstore.simulated.cluster import Kept, SimulatedCluster
from kvstore.simulated.past import AskedAt
from kvstore.simulated.serial import Written
from multicast.types import ProcessId

_AT_ONCE = 1000


class _Shown(NamedTuple):
    """where: to whom, or by whom; bare: without its value."""

    where: str
    row: KeyValue
    bare: bool = False


def check(
    written: Written, operations: Iterable[Operated], asked: Iterable[AskedAt], kept: Iterable[Kept],
    stores: Mapping[ProcessId, State],
) -> list[str]:
    """Rows that nobody has written. stores: what replicas hold in the end."""
    shown = [*_told(operations), *_told_at(asked), *_kept(kept), *_held(stores)]
    violations = [text for one in shown if (text := _judge(written, one))]
    return violations + [text for pid, store in stores.items() for text in _attached(pid, store)]


def held(cluster: SimulatedCluster, logs: remembered.Logs) -> dict[ProcessId, State]:
    """What those replicas hold that have completed everything."""
    return {pid: store for shard in logs for pid, store in remembered.complete(cluster, logs, shard).items()}


def all_of(store: State) -> list[KeyValue]:
    """All rows of a store."""
    found, more = store.scan(b"", b"", _AT_ONCE)
    while more:
        some, more = store.scan(found[-1].key + b"\0", b"", _AT_ONCE)
        found += some
    return found


def _judge(written: Written, shown: _Shown) -> str:
    row = shown.row
    if written.upto is not None and row.version >= written.upto:
        return ""
    right = written.rows.get((row.key, row.version))
    if right is not None and shown.bare:
        right = replace(right, value=b"")
    return "" if row == right else f"{shown.where} has {row}, and {right} was written"


def _told(operations: Iterable[Operated]) -> Iterator[_Shown]:
    for operation in operations:
        if operation.result is not None and operation.unordered:
            for one, found in zip(operation.transaction.success, operation.result.results, strict=False):
                yield from _of_result(f"{operation.id.hex()} ({operation.f})", one, found)


def _told_at(asked: Iterable[AskedAt]) -> Iterator[_Shown]:
    for one in asked:
        if one.result is not None:
            yield from _of_result(f"{one.operation} at {one.version}", one.operation, one.result)


def _of_result(where: str, operation: Operation, result: OperationResult) -> Iterator[_Shown]:
    if isinstance(operation, Get) and result.found is not None:
        yield _Shown(where, result.found)
    elif isinstance(operation, Range):
        bare = operation.keys_only or bool(operation.lease)
        yield from [_Shown(where, row, bare) for row in result.entries]


def _kept(kept: Iterable[Kept]) -> Iterator[_Shown]:
    for one in kept:
        for key, row in one.cut.rows(b""):
            yield _Shown(f"the cut at {one.version} of shard {one.shard}", decode_row(key, row))


def _held(stores: Mapping[ProcessId, State]) -> Iterator[_Shown]:
    for pid, store in stores.items():
        yield from [_Shown(f"replica {pid}", row) for row in all_of(store)]


def _attached(pid: ProcessId, store: State) -> Iterator[str]:
    """What it has noted of keys that are attached to leases is what their rows say."""
    noted = {name[len(ATTACHED) :] for name, _ in store.notes(ATTACHED)}
    rows = {row.lease + row.key for row in all_of(store) if row.lease != NO_LEASE}
    if noted != rows:
        yield f"replica {pid} has noted as attached {sorted(noted - rows)}, and not {sorted(rows - noted)}"
