"""Clients of a simulated cluster whose transactions have others nested in them. What must come of that is a matter of
`serial`."""

from __future__ import annotations

import random
from collections.abc import Sequence

from kvstore.api import leases
from kvstore.api.model import (
    Add,
    Append,
    Compare,
    Delete,
    DeleteRange,
    Get,
    LeasedPut,
    Min,
    NoneNewer,
    Operation,
    Put,
    Range,
    Transaction,
    Txn,
)
from kvstore.simulated.clients import Client, Workload
from multicast.types import ZERO

NESTERS = 3
GRANTED = 0.1
TTLS_MS = (200, 1000)
_IN_A_BRANCH = (0, 1, 2, 3)
_NESTED_IN_A_BRANCH = ((0, 1, 1, 2), (0, 0, 1), (0,))
"""By depth."""


class Nester(Client):
    """tokens: of those in whose name it asks, now and then. It attaches keys to a lease, which it never renews: what
    does so after its time is impossible."""

    def __init__(self, workload: Workload, rng: random.Random, tokens: Sequence[str]):
        super().__init__(workload, rng)
        self._tokens = tokens
        self._lease = b""

    def _choose(self) -> None:
        if self._rng.random() >= GRANTED:
            super()._choose()
            return
        self._lease = self._workload.new_id()
        self.operate("grant", leases.grant(self._lease, self._rng.choice(TTLS_MS)), self.go_on)

    def drawn(self) -> tuple[str, Transaction]:
        if self._rng.random() < 0.2:
            return super().drawn()
        by = self._rng.choice(("", *self._tokens))
        branches = self._branch(0), self._branch(0)
        return "nested", Transaction(self._compares(), *branches, by)

    def _compares(self) -> tuple[Compare, ...]:
        return tuple([self._compare() for _ in range(self._rng.choice((0, 1, 1, 2)))])

    def _compare(self) -> Compare:
        rng, workload = self._rng, self._workload
        key = rng.choice((*workload.keys, workload.accounts[0]))
        kind = rng.random()
        if kind < 0.3:
            return Compare(key, "exists", "==", rng.random() < 0.7)
        if kind < 0.4:
            return Compare(key, "version", rng.choice(("==", "!=", ">")), ZERO)
        return Compare(key, "value", rng.choice(("<", ">", "!=", "==")), b"%d" % rng.randint(0, 9))

    def _branch(self, depth: int) -> tuple[Operation, ...]:
        rng = self._rng
        branch: list[Operation] = [self._simple() for _ in range(rng.choice(_IN_A_BRANCH))]
        for _ in range(rng.choice(_NESTED_IN_A_BRANCH[depth])):
            nested = Txn(self._compares(), self._branch(depth + 1), self._branch(depth + 1))
            branch.insert(rng.randint(0, len(branch)), nested)
        return tuple(branch) if branch or depth else (Get(rng.choice(self._workload.keys)),)

    def _simple(self) -> Operation:
        rng, key = self._rng, self._rng.choice(self._workload.keys)
        number = rng.randint(0, 9)
        told = [op.result.version for op in self._workload.history.operations.values() if op.result is not None]
        draws: tuple[tuple[int, Operation], ...] = (
            (2, NoneNewer(rng.choice((key, key, b"key/")), rng.choice(told[-10:]) if told else ZERO)),
            (2, LeasedPut(key, b"%d" % number, self._lease) if self._lease else Put(key, b"free")),
            (8, Put(key, b"%d" % number)), (4, Get(key)), (3, Add(key, number)), (2, Delete(key)),
            (1, Append(key, b"x")), (1, Min(key, number)), (2, Range(b"key/", 4)), (1, DeleteRange(key)),
        )  # fmt: skip
        return rng.choices([operation for _, operation in draws], [weight for weight, _ in draws])[0]


def start(workload: Workload, seed: str, tokens: Sequence[str]) -> None:
    """Some of them; they begin at once."""
    for number in range(NESTERS):
        workload.running += 1
        Nester(workload, random.Random(f"{seed}/nested {number}"), tokens).go_on(None)
