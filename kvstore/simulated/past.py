"""Reads at versions in a simulated cluster, of anything that clients have been told, through any replica; and what they
should have seen: the state that the journals' transactions up to that version left."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from kvstore.api.model import Get, KeyValue, OperationResult, Range, Transaction, between, bounds
from kvstore.core.audit import APPLIED, Write
from kvstore.core.bundles import NO_ID, last_version, timestamp_of
from kvstore.core.messages import Answered, Execute, Refused
from kvstore.simulated.clients import TIMEOUT_US, Workload
from kvstore.simulated.cluster import Executed, SimulatedCluster
from kvstore.simulated.narrow import reads_all
from kvstore.storage.history import HISTORY_US
from kvstore.storage.store import Store
from multicast.types import ZERO, Timestamp, quorum_of

SHARE = 0.4
"""Of the runs: so many have readers of the past."""
READERS_MAX = 3
PAUSE_US_MAX = 40_000
_LATER_US = (0, 0, 0, 0, 1, 30_000, 300_000)
"""Besides versions that somebody was told, later ones are asked for, that may not be complete."""
_PREFIXES = (b"", b"account/", b"key/")
_LIMITS = (1, 3, 5, 100)


class AskedAt(msgspec.Struct):
    """One read. result: None unless it was answered; refused: the code, if it was that."""

    version: Timestamp
    operation: Get | Range
    result: OperationResult | None = None
    refused: str = ""


class Asker:
    """One read after the other until the clients stop. pause_us: between two, at most."""

    def __init__(self, workload: Workload, rng: random.Random, pause_us: int):
        self._workload = workload
        self._world = workload.world
        self._rng = rng
        self._pause_us = pause_us
        workload.running += 1

    def go_on(self) -> None:
        """The next one, after a pause."""
        if self._world.now >= self._workload.stop_at:
            self._workload.running -= 1
        else:
            self._world.after(self._rng.randint(0, self._pause_us), self._choose)

    def _choose(self) -> None:
        """Ask; and go on when it is answered."""
        raise NotImplementedError


class PastReader(Asker):
    """Of a range all pages."""

    def __init__(self, workload: Workload, rng: random.Random, asked: list[AskedAt]):
        super().__init__(workload, rng, PAUSE_US_MAX)
        self._asked = asked

    def _choose(self) -> None:
        rng = self._rng
        told = [op.result.version for op in self._workload.history.operations.values() if op.result is not None]
        if not told:
            self.go_on()
            return
        version = rng.choice(told[-5:] if rng.random() < 0.5 else told)
        version = Timestamp(version.time + rng.choice(_LATER_US), version.tiebreak)
        if rng.random() < 0.5:
            self._ask(version, Get(rng.choice([*self._workload.accounts, *self._workload.keys])))
        else:
            scan = Range(rng.choice(_PREFIXES), rng.choice(_LIMITS), reverse=rng.random() < 0.3)
            scan.count_only = rng.random() < 0.1
            scan.keys_only = not scan.count_only and rng.random() < 0.3
            self._ask(version, scan)

    def _ask(self, version: Timestamp, operation: Get | Range) -> None:
        asked, cluster = AskedAt(version, operation), self._workload.cluster
        self._asked.append(asked)
        open_ = [True]

        def answered(answer: Any) -> None:
            if not open_[0]:
                return
            open_[0] = False
            if isinstance(answer, Answered) and not answer.results_omitted:
                asked.result = result = answer.result.results[0]
                if isinstance(operation, Range) and result.more:
                    last = result.entries[-1].key
                    rest = {"end": last} if operation.reverse else {"after": last}
                    self._ask(version, msgspec.structs.replace(operation, **rest))
                    return
            elif isinstance(answer, Refused):
                asked.refused = answer.code
                if answer.code == "compacted" and not is_forgotten(cluster, version, lambda store: store.floor):
                    self._world.report("reads at versions", f"{operation} at {version} is called compacted too early")
            self.go_on()

        replica = self._rng.choice(self._world.topology.processes)
        self._world.request(replica, Execute(NO_ID, Transaction(success=(operation,)), version), answered)
        self._world.after(TIMEOUT_US, lambda: answered(None))


def is_forgotten(cluster: SimulatedCluster, version: Timestamp, oldest: Callable[[Store], Timestamp]) -> bool:
    """Whether most replicas of some shard do not know this version, or are not that far, as who has just been added and
    has nothing. oldest: that one knows."""
    for members in cluster.world.topology.groups.values():
        stores = [cluster.stores[pid] for pid in members if pid in cluster.stores]
        knowing = [store for store in stores if oldest(store) <= version <= store.complete_to > ZERO]
        if len(members) - len(knowing) >= quorum_of(len(members)):
            return True
    return False


def start(workload: Workload, seed: str, wanted: bool | None) -> list[AskedAt]:
    """Draw readers for a run. wanted: None: whether there are any is drawn, too. Returns what they will have asked."""
    rng = random.Random(f"{seed}/past")
    asked: list[AskedAt] = []
    if rng.random() < SHARE if wanted is None else wanted:
        for _ in range(rng.randint(1, READERS_MAX)):
            PastReader(workload, rng, asked).go_on()
    return asked


def check(logs: Iterable[list[Executed]], asked: Sequence[AskedAt], known_after: Timestamp | None) -> list[str]:
    """What was read differently from what stood there. known_after: of what is later than its instant nothing can have
    been compacted but by time; None: anything can."""
    known_after = known_after and last_version(timestamp_of(known_after))
    places = sorted([executed for log in logs for executed in log], key=lambda executed: executed.version)
    newest = places[-1].version.time if places else 0
    violations: list[str] = []
    state: dict[bytes, tuple[Timestamp, Write]] = {}
    place, complete = 0, True
    for one in sorted(asked, key=lambda one: one.version):
        while complete and place < len(places) and places[place].version <= one.version:
            complete = places[place].outcome is not None
            _apply(places[place], state)
            place += 1
        known = known_after is not None and one.version > known_after and newest - one.version.time < HISTORY_US
        if one.refused == "compacted" and known:
            violations.append(f"{one.operation} at {one.version} was called compacted, and nothing was dropped")
        if complete and one.result is not None and not _saw(one.operation, one.result, state):
            violations.append(f"{one.operation} at {one.version} found {one.result}, which is not what stood there")
    return violations


def _apply(executed: Executed, state: dict[bytes, tuple[Timestamp, Write]]) -> None:
    outcome = executed.outcome
    if outcome is None or outcome.status != APPLIED:
        return
    for write in outcome.writes:
        state.pop(write.key, None)
        if write.value is not None:
            state[write.key] = executed.version, write


def _saw(operation: Get | Range, result: OperationResult, state: dict[bytes, tuple[Timestamp, Write]]) -> bool:
    if isinstance(operation, Get):
        found, limit = [result.found] if result.found else [], 1
        keys = [operation.key] if operation.key in state else []
    else:
        first, end = bounds(operation)
        keys = sorted([key for key in state if between(key, first, end)], reverse=operation.reverse)
        if operation.count_only:
            return (result.value, result.more) == (len(keys), False)
        found, limit = list(result.entries), operation.limit
    without_values = isinstance(operation, Range) and operation.keys_only
    if result.more and not reads_all():
        limit = min(limit, max(1, len(found)))
    if [entry.key for entry in found] != keys[:limit] or result.more != (len(keys) > limit):
        return False
    return all([_same(entry, *state[entry.key], without_values) for entry in found])


def _same(found: KeyValue, version: Timestamp, write: Write, without_value: bool) -> bool:
    value = blake2b(found.value, digest_size=16).digest() if write.digest else found.value
    return found.version == version and (found.value == b"" if without_value else value == write.value)
