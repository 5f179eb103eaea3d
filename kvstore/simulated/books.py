"""What a replica keeps twice agrees: what its log says of the last writers, of what must come before what, of open ids
and of the last deletion, with what it has executed and the entries in it; what its bundler counts, with the bundles
under way; the leases that it measures, with those that there are, and with how long they live; what it has given in a
move, with what it has by now, but for what it knows to be given again. And no bundle for several shards has in it what
must wait for another one.

A wrong entry lets one vote too early, or one bundle too late, or a lease live for ever, and does harm in a rare
schedule only. Judged now and then. (Variables of replicas are known by name only.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kvstore.api import leases
from kvstore.api.model import lease_key
from kvstore.api.shard_map import slot_of
from kvstore.core.audit import Given
from kvstore.core.bundles import decode_bundle, decode_transaction
from kvstore.core.leases import RETRY_US
from kvstore.core.messages import decode_remembered
from kvstore.core.moves import DIRTY, DIRTY_ID, _touches
from kvstore.core.plans import LocalPlan
from kvstore.core.replica import Replica
from kvstore.simulated.shown import all_of
from multicast.simulation.checkers import Checker
from multicast.types import ZERO, AppMessage, ProcessId

if TYPE_CHECKING:
    from multicast.simulation.scene import Node

Sends = list[tuple[tuple[ProcessId, ...], Any, bool]]

_LOOK_EVERY = 4
"""Batches."""


class Books(Checker):
    """Of every replica. deleted_at: see `SimulatedCluster`."""

    watches_protocol = True
    watches_idle = True

    def __init__(self, replicas: Mapping[ProcessId, Replica], deleted_at: Mapping[ProcessId, int]):
        super().__init__()
        self._replicas = replicas
        self._deleted_at = deleted_at
        self._measured: dict[ProcessId, tuple[int, set[tuple[bytes, Any]]]] = {}
        """When each was looked at last, and the leases that it has been seen to measure in this life, with versions."""
        self._given: dict[ProcessId, _GivenSoFar] = {}

    def on_life(self, node: Node) -> None:
        self._measured.pop(node.pid, None)
        self._given.pop(node.pid, None)

    def on_submit(self, node: Node, message: AppMessage) -> None:
        """A bundle leaves."""
        if len(message.destinations) > 1:
            for text in _of_bundle(message):
                self.report("books", f"replica {node.pid}: {text}")

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        if handler != "end_batch" or node.engine._batch.number % _LOOK_EVERY:
            return
        replica = self._replicas.get(node.pid)
        if replica is not None and replica is node.application:
            given = self._given.get(node.pid)
            if given is None or given.moves is not replica.moves:
                given = self._given[node.pid] = _GivenSoFar(replica.moves)
            found = *_of_log(replica.log), *_of_bundler(replica.clients.bundler), *given.stale()
            now, before = node.clock(), self._measured.get(node.pid)
            known = before[1] if before is not None else set()
            for text in (*found, *_of_leases(replica.leases, now), *_of_new_leases(replica.leases, before)):
                self.report("books", f"replica {node.pid}: {text}")
            measured: Any = replica.leases
            self._measured[node.pid] = now, known | set((measured._versions or {}).items())
            if replica.log.deleted_at < self._deleted_at.get(node.pid, 0) <= replica.log.completed:
                text = f"replica {node.pid} does not know that it has deleted at position {self._deleted_at[node.pid]}"
                self.report("books", text)


def _of_log(log: Any) -> Iterator[str]:
    writers: dict[bytes, int] = {}
    shards: dict[tuple[int, ...], int] = {}
    ids: set[bytes] = set()
    for entry in log.entries:
        writers |= dict.fromkeys(entry.written_keys, entry.position)
        shards[entry.message.destinations] = entry.position
        ids.add(entry.message.id)
    if writers != log._last_writer:
        yield f"the last writers are {writers}, not {log._last_writer}"
    if shards != log._last_of_shards:
        yield f"the last of shards are {shards}, not {log._last_of_shards}"
    if not log.by_id.keys() <= ids:
        yield f"{min(log.by_id.keys() - ids).hex()} is complete, and found by its id"
    open_ids = {item.id for entry in log.entries for item in entry.items if item.id}
    if not log.items.keys() <= open_ids:
        yield f"{min(log.items.keys() - open_ids).hex()} is complete, and called open"
    open_items = [item for entry in log.entries for item in entry.items if _is_open(item)]
    for item in [item for item in open_items if item not in _chain(log, item)][:1]:
        yield f"a copy of {item.id.hex()} at position {item.position} is open, and the next one would not hear of it"
    for blocker, blocked in log._blocked.items():
        if blocker <= log.completed:
            yield f"position {blocked[0].position} waits for position {blocker}, which is complete"


def _is_open(item: Any) -> bool:
    """Whether what the next copy of its id is called depends on it."""
    return bool(item.id) and not item.expired and (item.after > 0 or item.earlier is None)


def _chain(log: Any, item: Any) -> list[Any]:
    """The open copies of its id, as the log links them."""
    found, one = [], log.items.get(item.id)
    while one is not None:
        found.append(one)
        one = one.later
    return found


def _of_bundler(bundler: Any) -> Iterator[str]:
    for shards, flow in bundler._flows.items():
        flights = [flight for flight in bundler._flights.values() if flight.destinations == shards]
        if flow.under_way != len(flights):
            yield f"{len(flights)} bundles for {shards} are under way, it counts {flow.under_way}"
        if flow.travelling != (many := sum(flight.open for flight in flights)):
            yield f"{many} requests to {shards} travel, it counts {flow.travelling}"
        if flow.bytes != (much := sum(len(waiting.body) for waiting in flow.queue)):
            yield f"{much} bytes for {shards} wait, it counts {flow.bytes}"
        if flow.queue and shards not in bundler._ready and not flights:
            yield f"{len(flow.queue)} requests to {shards} wait for nothing"


def _of_bundle(message: AppMessage) -> Iterator[str]:
    """For several shards: what is written before its vote is read."""
    written: set[bytes] = set()
    deleted = False
    for bundled in decode_bundle(message):
        plan = LocalPlan(decode_transaction(bundled))
        conditions, reaches = plan.condition_keys(), plan.reaches_unnamed()
        if not written.isdisjoint(conditions) or (deleted and conditions) or (reaches and (deleted or written)):
            yield f"{bundled.id.hex()} stands behind what it depends on in bundle {message.id.hex()}"
            return
        written |= plan.written_keys()
        deleted |= reaches


def _of_leases(measured: Any, now: int) -> Iterator[str]:
    if measured._versions is None or measured._moved or measured._at is not None:
        return
    rows = [row for row in all_of(measured._store) if row.key.startswith(leases.ROWS)]
    there = {leases.id_of(row.key): row.version for row in rows}
    if there != measured._versions:
        yield f"the leases here are {there}, it measures {measured._versions}"
    due = {(one.lease, one.version) for one in measured._due}
    for lease, version in sorted(measured._versions.items() - due)[:1]:
        yield f"lease {lease.hex()} at {version} is measured, and is never due"
    lives_us = {leases.id_of(row.key): 1000 * leases.decode_lease(row.value).ttl_ms for row in rows}
    late = [one for one in measured._due if one.at > now + max(lives_us.get(one.lease, 0), RETRY_US)]
    for one in [one for one in late if measured._versions.get(one.lease) == one.version][:1]:
        yield f"lease {one.lease.hex()} lives {lives_us[one.lease]} us, and is due in {one.at - now}"


class _GivenSoFar:
    """What the source of a move has given since this was made: key -> version, and id -> what it remembered then."""

    def __init__(self, moves: Any):
        self.moves = moves
        self._versions: dict[bytes, Any] = {}
        self._records: dict[bytes, bytes | None] = {}
        self._gave = moves._gave
        moves._gave = self._note

    def _note(self, move: Any, given: Given, at: Any) -> None:
        if given.first:
            self._versions, self._records = {}, {}
        self._versions |= {row.key: row.version for row in given.rows}
        self._records |= {id_: self.moves._store.remembered(id_) for id_, _ in given.ids}
        self._gave(move, given, at)

    def stale(self) -> Iterator[str]:
        """What has changed since, and is not to be given again."""
        moves, store = self.moves, self.moves._store
        if moves.leaving is None:
            self._versions, self._records = {}, {}
        for key, version in self._versions.items():
            if slot_of(key) not in moves._leaving_slots or store.note(DIRTY + key) is not None:
                continue
            by_now = ZERO if (row := store.get(key)) is None else row.version
            if by_now != version:
                yield f"{key!r} was given at {version}, is at {by_now}, and is not given again"
        for id_, record in self._records.items():
            now = store.remembered(id_) if id_ >= moves._kept(store.complete_to) else None
            if now is None or now == record or store.note(DIRTY_ID + id_) is not None:
                continue
            if _touches(decode_remembered(now), moves._leaving_slots):
                yield f"what it remembers of {id_.hex()} is not what it gave, and is not given again"


def _of_new_leases(measured: Any, before: tuple[int, set[tuple[bytes, Any]]] | None) -> Iterator[str]:
    """What was not measured yet when this replica was looked at before has lived since then at most. (What was, and
    comes back with its slot as it had gone, has lived for longer.)"""
    if before is None or measured._versions is None:
        return
    since, known = before
    for one in measured._due:
        if measured._versions.get(one.lease) == one.version and (one.lease, one.version) not in known:
            row = measured._store.get(lease_key(one.lease))
            lives_us = 1000 * leases.decode_lease(row.value).ttl_ms if row and row.version == one.version else 0
            if one.at < since + lives_us:
                yield f"lease {one.lease.hex()} lives {lives_us} us, and is due {one.at - since} after it was not there"
