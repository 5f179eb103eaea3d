"""Reads that stand in no journal, in a simulated cluster: where they belong in the order, by what they say, and whether
they are as fresh as they must be."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right

import msgspec

from kvstore.api.model import Consistency, Get, Operation, Range, Transaction
from kvstore.api.shard_map import slot_of
from kvstore.core.audit import APPLIED, Outcome, Read
from kvstore.simulated.clients import Client, History, Operated, Workload, reads_of
from kvstore.simulated.cluster import Executed, Moved, SimulatedCluster
from kvstore.simulated.past import AskedAt
from multicast.types import ZERO, GroupId, MessageId, ProcessId, Timestamp

ONLOOKERS, ONLOOKERS_PAUSE_US = 5, 5_000
"""So many clients that read in every way are added where that is asked for."""
_CONSISTENCIES: tuple[Consistency, ...] = ("linearizable", "linearizable", "snapshot", "stale")
_AGES_US = (1_000, 20_000, 200_000, 1_000_000)

Logs = dict[GroupId, list[Executed]]


class Onlooker(Client):
    """A client that reads without ids, here and there, of one shard or several, as fresh as may be asked."""

    def go_on(self, last: Operated | None) -> None:
        if self._world.now >= self._workload.stop_at:
            self._workload.running -= 1
        else:
            self._world.after(self._rng.randint(0, ONLOOKERS_PAUSE_US), self._choose)

    def _choose(self) -> None:
        rng, keys, accounts = self._rng, self._workload.keys, self._workload.accounts
        consistency: Consistency = rng.choice(_CONSISTENCIES)
        age_us = rng.choice(_AGES_US) if consistency == "stale" else 0
        f, reading = rng.choice((
            ("get", self._get()), ("read_pair", self._read_pair()), ("read_all", self._read_all()),
            ("read_pair", Transaction(success=tuple(Get(key) for key in rng.sample(accounts, 2)))),
            ("range", Transaction(success=(Range(b"key/", rng.randint(1, 6), reverse=rng.random() < 0.5),))),
            ("range", Transaction(success=(Range(b"account/", 100), Get(rng.choice(keys))))),
        ))  # fmt: skip
        if f == "read_all" and consistency == "stale":
            f = "read_some"  # each shard's by itself
        self.operate(f, reading, self.go_on, unnamed=True, consistency=consistency, age_us=age_us)

    def entry(self, operation: Operated, attempt: int) -> ProcessId:
        node, groups = self._world.node, self._world.topology.groups
        operation.delivered = {
            shard: max([node(pid).engine.position for pid in some if node(pid).up], default=0)
            for shard, some in groups.items()
        }
        return self._rng.choice(self._world.topology.processes)


def start(workload: Workload, seed: str) -> None:
    """Let them loose."""
    for number in range(ONLOOKERS):
        workload.running += 1
        Onlooker(workload, random.Random(f"{seed}/onlooker {number}")).go_on(None)


def at_versions(history: History) -> list[AskedAt]:
    """What was read at one version of all its shards."""
    found = []
    for operation in history.operations.values():
        result = operation.result
        if result is None or operation.seen == ZERO or not operation.unordered or operation.results_omitted:
            continue
        for asked, one in zip(operation.transaction.success, result.results, strict=True):
            if isinstance(asked, Get | Range):
                found.append(AskedAt(operation.seen, asked, one))
    return found


def as_told(operation: Operated) -> Transaction:
    """What it has read: of a range that goes on after what was told, no more than that."""
    result, asked = operation.result, operation.transaction
    if result is None or not result.succeeded:
        return asked
    told: list[Operation] = []
    for one, found in zip(asked.success, result.results, strict=False):
        if isinstance(one, Range) and found.more and found.entries:
            last = found.entries[-1].key
            if one.reverse:
                one = msgspec.structs.replace(one, start=max(one.start, last))
            else:
                one = msgspec.structs.replace(one, end=last + b"\0")
        told.append(one)
    return Transaction(success=(*told, *asked.success[len(told) :]))


class Unordered:
    """Those of a finished run. moved: as `checks.moves` has it."""

    def __init__(self, cluster: SimulatedCluster, logs: Logs, history: History, moved: dict[Timestamp, Moved]):
        self._first_owners = cluster.shard_map.slots
        self._moved = sorted(moved.items(), key=lambda item: item[0])
        self._history = history
        self._versions = {shard: [executed.version for executed in log] for shard, log in logs.items()}
        self._positions = {shard: [executed.position for executed in log] for shard, log in logs.items()}
        self._ordered: dict[MessageId | Timestamp, dict[GroupId, int]] = {}
        for shard, log in logs.items():
            for executed in log:
                if executed.outcome is not None and executed.outcome.status == APPLIED:
                    for name in (executed.id, executed.version):
                        self._ordered.setdefault(name, {})[shard] = executed.position
        self._places: list[tuple[Operated, dict[GroupId, int]]] = []
        for operation in history.operations.values():
            if operation.unordered:
                self._places.append((operation, operation.places or self._placed(operation.seen)))

    def _placed(self, version: Timestamp) -> dict[GroupId, int]:
        """Shard -> how many deliveries are of no later version."""
        return {shard: self._position_at(shard, version) for shard in self._versions}

    def _position_at(self, shard: GroupId, version: Timestamp) -> int:
        index = bisect_right(self._versions[shard], version)
        return self._positions[shard][index - 1] if index else 0

    def insert(self, logs: Logs, strict: bool) -> None:
        """Put them where they were read, as if they had been ordered there; strict: only the linearizable ones."""
        for operation, places in self._places:
            if strict and operation.consistency != "linearizable":
                continue
            shards, transaction = tuple(sorted(places)), as_told(operation)
            by_shard = self._reads(operation, places)
            for shard, position in places.items():
                outcome = Outcome(operation.id, APPLIED, True, tuple(by_shard[shard]))
                at_version = ZERO if operation.places else operation.seen
                read = Executed(position, at_version, False, operation.id, shards, transaction, outcome)
                log = logs[shard]
                log.insert(bisect_right(log, position, key=lambda executed: executed.position), read)

    def _reads(self, operation: Operated, places: dict[GroupId, int]) -> dict[GroupId, list[Read]]:
        """What it read of each shard; a key that is several shards' by their own places may be of any of them: that can
        be so of a stale read, while a slot moves."""
        found: dict[GroupId, list[Read]] = {shard: [] for shard in places}
        for key, version in reads_of(operation).items():
            owners = list(places) if len(places) == 1 else []
            for shard, position in places.items() if not owners else ():
                at = bisect_right(self._positions[shard], position)
                upto = operation.seen if not operation.places else self._versions[shard][at - 1] if at else ZERO
                if self.owner(key, upto) == shard:
                    owners.append(shard)
            if len(owners) == 1:
                found[owners[0]].append(Read(key, version))
        return found

    def owner(self, key: bytes, version: Timestamp) -> GroupId:
        """See `checks.Owner`."""
        slot = slot_of(key)
        owner = self._first_owners[slot]
        for at, move in self._moved:
            if at <= version and slot in move.slots:
                owner = move.target
        return owner

    def ages(self) -> list[str]:
        """What did not see something that was answered so long before it was asked; or, if it is to see all that was,
        what had been delivered anywhere."""
        violations: list[str] = []
        answered = self._answered()
        for operation, places in self._places:
            if operation.consistency == "snapshot":
                continue
            for shard, position in operation.places.items() if operation.consistency == "linearizable" else ():
                if position < operation.delivered.get(shard, 0):
                    violations.append(
                        f"{operation.id.hex()} saw {position} deliveries of shard {shard}, some replica of which had"
                        f" {operation.delivered[shard]} when it was asked"
                    )
            deadline = operation.invoked_us - operation.age_us
            for shard, position in places.items():
                earlier = bisect_left(answered[shard], (deadline, 0))
                needed = max([known for _, known in answered[shard][:earlier]], default=0)
                if needed > position:
                    violations.append(
                        f"{operation.id.hex()}, {operation.consistency}, saw {position} deliveries of shard {shard}; "
                        f"number {needed} was answered more than {operation.age_us} us before it was asked"
                    )
        return violations

    def versions(self) -> list[str]:
        """What was told a version, and has not seen all below it; of one shard, what was told where it stands, and has
        not seen all up to there: a watch that begins at that version would miss it."""
        violations: list[str] = []
        for operation, places in self._places:
            result = operation.result
            if result is None or not operation.places:
                continue
            told = operation.seen if len(places) == 1 else result.version
            for shard, position in places.items():
                at = bisect_right(self._positions[shard], position)
                last = self._versions[shard][at - 1] if at else ZERO
                if len(places) == 1 and result.version not in (last, ZERO) and operation.unnamed == shard:
                    violations.append(
                        f"{operation.id.hex()} saw {position} deliveries of shard {shard}, the last one at {last},"
                        f" and is told {result.version}"
                    )
                following = self._versions[shard][at] if at < len(self._versions[shard]) else None
                if following is not None and (following < told or (following == told and len(places) == 1)):
                    violations.append(
                        f"{operation.id.hex()} saw {position} deliveries of shard {shard}, not the next one, at "
                        f"{following}, and is told {told}"
                    )
        return violations

    def _answered(self) -> dict[GroupId, list[tuple[int, int]]]:
        """Of each shard, when what was delivered at which position was answered, in the order of time."""
        answered: dict[GroupId, list[tuple[int, int]]] = {shard: [] for shard in self._positions}
        for operation in self._history.operations.values():
            if operation.result is None or operation.completed_us is None or operation.unordered:
                continue
            name = operation.id if operation.unnamed is None else operation.result.version
            for shard, position in self._ordered.get(name, {}).items():
                answered[shard].append((operation.completed_us, position))
        return {shard: sorted(found) for shard, found in answered.items()}
