"""Clients of a simulated cluster that read with tokens whose rights change, in every way that stands in no journal:
now, at versions, and as watches. What they must not be told is judged as it is promised.

- Who asks a replica for what it denies until the answer, or is answered by one that has come to deny it at an earlier
  instant, is told nothing: with a change of rights a replica judges by it. (What other replicas of its shard, or other
  shards, find for it they judge themselves.)
- A linearizable read sees each change of rights that was answered before it was asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from kvstore.api.model import Consistency, Get, Range, Rule, Transaction, bounds
from kvstore.core.audit import APPLIED
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Answered, Execute, Follow, Followed
from kvstore.simulated.clients import TIMEOUT_US, Operated, Workload
from kvstore.simulated.cluster import Executed
from kvstore.simulated.past import Asker
from kvstore.simulated.ruling import TOKENS, Ruled
from multicast.types import ProcessId, Timestamp

PEEKERS, PAUSE_US_MAX = 3, 10_000
_CONSISTENCIES: tuple[Consistency, ...] = ("linearizable", "linearizable", "snapshot", "stale")
_AGE_US = 20_000
_LATER_US = (0, 0, 1, 30_000)
"""Besides versions that somebody was told, later ones are asked for."""
AT_ONCE = 6


class Peeked(msgspec.Struct):
    """A linearizable read that was answered."""

    transaction: Transaction
    asked_us: int
    answered_us: int


class Peeker(Asker):
    """In every way."""

    def __init__(self, workload: Workload, rng: random.Random, peeked: list[Peeked]):
        super().__init__(workload, rng, PAUSE_US_MAX)
        self._peeked = peeked

    def _choose(self) -> None:
        rng, workload = self._rng, self._workload
        token, keys = rng.choice(TOKENS), [*workload.accounts, *workload.keys]
        way = rng.random()
        if way < 0.25:
            self._follow(token)
            return
        some = rng.sample(keys, rng.choice((1, 1, 2)))
        wanted = (Range(rng.choice((b"", b"key/")), 3),) if rng.random() < 0.2 else tuple(map(Get, some))
        asked = Execute(NO_ID, Transaction(success=wanted, by=token))
        told = [op.result.version for op in workload.history.operations.values() if op.result is not None]
        if way < 0.5 and told:
            version = rng.choice(told[-5:])
            asked.at = Timestamp(version.time + rng.choice(_LATER_US), version.tiebreak)
        else:
            asked.consistency = rng.choice(_CONSISTENCIES)
            asked.age_us = _AGE_US if asked.consistency == "stale" else 0
        self._ask(asked, rng.choice(self._world.topology.processes), self.go_on)

    def _follow(self, token: str) -> None:
        first, end = self._rng.choice((bounds(Range(b"account/", 1)), bounds(Range(b"key/", 1)), (b"", b"")))
        self._ask(
            Follow(None, first, end, False, token), self._rng.choice(self._world.topology.processes), self.go_on
        )

    def at_once(self) -> None:
        """Rights have changed, and all who ask from now on know that: also at replicas that are behind."""
        rng = self._rng
        for replica in rng.sample(self._world.topology.processes, min(AT_ONCE, len(self._world.topology.processes))):
            wanted = tuple(map(Get, rng.sample(self._workload.accounts, 2)))
            self._ask(Execute(NO_ID, Transaction(success=wanted, by=rng.choice(TOKENS))), replica, lambda: None)

    def _ask(self, asked: Execute | Follow, replica: ProcessId, then: Callable[[], None]) -> None:
        world, since = self._world, self._world.now
        denied = self._denies(replica, asked)
        open_ = [True]

        def answered(answer: Any) -> None:
            if open_[0]:
                open_[0] = False
                if isinstance(answer, Followed) or (isinstance(answer, Answered) and not answer.result.failure):
                    if denied and self._workload.cluster.ruled_us.get(replica, 0) < since:  # it has, all the while
                        world.report("rights", f"replica {replica} denies {asked}, and answers {answer}")
                    self._judge(replica, asked, answer, since)
                then()

        world.request(replica, asked, answered)
        world.after(TIMEOUT_US, lambda: answered(None))

    def _judge(self, replica: ProcessId, asked: Execute | Follow, answer: Answered | Followed, since: int) -> None:
        world, cluster = self._world, self._workload.cluster
        here = world.topology.group_of[replica]
        own = isinstance(answer, Answered) and answer.shard == here and bool(answer.position)
        at = isinstance(asked, Execute) and asked.at is not None
        decides = own or at or isinstance(asked, Follow)  # its own rights, when it answers
        if decides and cluster.ruled_us.get(replica, 0) < world.now and self._denies(replica, asked):
            world.report("rights", f"replica {replica} has come to deny {asked}, and answers {answer}")
        if isinstance(asked, Execute) and not at and asked.consistency == "linearizable":
            self._peeked.append(Peeked(asked.transaction, since, world.now))

    def _denies(self, replica: ProcessId, asked: Execute | Follow) -> bool:
        """Whether this replica does, as it is."""
        cluster = self._workload.cluster
        if not self._world.node(replica).up:
            return False
        rights = Ruled.at(cluster.stores[replica])
        if isinstance(asked, Follow):
            return rights.forbids_range(asked.by, asked.first, asked.end)
        return rights.forbids(asked.transaction)


def start(workload: Workload, seed: str) -> list[Peeked]:
    """They begin at once. Returns what they will have been told."""
    peeked: list[Peeked] = []
    for number in range(PEEKERS):
        peeker = Peeker(workload, random.Random(f"{seed}/peeker {number}"), peeked)
        peeker.go_on()
    workload.when_ruled.append(peeker.at_once)
    return peeked


def check(logs: Iterable[list[Executed]], peeked: Iterable[Peeked], operations: Iterable[Operated]) -> list[str]:
    """What was read though no rights that could count allow it: those that were answered before it was asked count,
    and those that were asked for before it was answered may."""
    asked = {operation.id: operation for operation in operations}
    rules: dict[Timestamp, Executed] = {}
    for executed in [executed for log in logs for executed in log]:
        applied = executed.outcome is not None and executed.outcome.status == APPLIED
        if applied and any(isinstance(operation, Rule) for operation in executed.transaction.success):
            rules[executed.version] = executed
    changes = [executed for _, executed in sorted(rules.items())]
    times = [(one.invoked_us, one.completed_us) for one in [asked[executed.id] for executed in changes]]
    violations: list[str] = []
    for read in peeked:
        least = max([n + 1 for n, (_, us) in enumerate(times) if us is not None and us <= read.asked_us], default=0)
        most = max([n + 1 for n, (us, _) in enumerate(times) if us <= read.answered_us], default=0)
        ruled, allowed = Ruled(), False
        for number in range(max(least, most) + 1):
            allowed |= number >= least and not ruled.denies(read.transaction)
            if number < len(changes):
                ruled.denies(changes[number].transaction)
        if not allowed:
            violations.append(f"{read.transaction.success} was read at {read.answered_us} by {read.transaction.by}")
    return violations
