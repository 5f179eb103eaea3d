"""Clients of a simulated cluster that read and delete ranges, and others that bound numbers and compare ranges with
what they were told. What must come of that is a matter of `serial`."""

from __future__ import annotations

import random

from kvstore.api.model import (
    Add,
    Compare,
    DeleteRange,
    Max,
    Min,
    NoneNewer,
    Operation,
    Put,
    Range,
    Transaction,
)
from kvstore.simulated.clients import Client, Workload
from multicast.types import ZERO

RANGERS, BOUNDERS = 2, 2


class Ranger(Client):
    """A client of ranges: of all keys, a few, one, or none; read in every way, and deleted."""

    def _choose(self) -> None:
        rng, keys = self._rng, self._workload.keys
        start, end = sorted([rng.choice((b"", *keys, b"key/2x")), rng.choice((*keys, b"key/3x", b"l"))])
        prefix = rng.choice((b"", b"key/", b"key/", rng.choice(keys)))
        if rng.random() < 0.25:
            within = prefix or b"key/"  # the accounts are not to be deleted
            deleting = DeleteRange(within, start, end)
            others: tuple[Operation, ...] = (Put(rng.choice(keys), b"5"),) if rng.random() < 0.5 else ()
            after: tuple[Operation, ...] = (Add(rng.choice(keys), 1),) if rng.random() < 0.3 else ()
            compare = (Compare(rng.choice(keys), "exists", "==", True),) if rng.random() < 0.3 else ()
            self.operate("delete_range", Transaction(compare, (*others, deleting, *after)), self.go_on)
            return
        keys_only, count_only = rng.choice(((False, False), (True, False), (False, True)))
        reading = Range(prefix, rng.randint(1, 6), b"", start, end, rng.random() < 0.5, keys_only, count_only)
        self.operate("range", Transaction(success=(reading,)), self.go_on)


class Bounder(Client):
    """A client that bounds numbers, and writes if nothing in a range is newer than what somebody was told of."""

    def _choose(self) -> None:
        self.operate(*self._rng.choice((self._bound, self._unchanged))(), self.go_on)

    def _bound(self) -> tuple[str, Transaction]:
        """Impossible where a value is no number."""
        rng, keys = self._rng, self._workload.keys
        branch: list[Operation] = [
            rng.choice((Min, Max))(key, rng.randint(-5, 30)) for key in rng.sample(keys, rng.randint(1, 2))
        ]
        first = [Put(rng.choice(keys), b"%d" % rng.randint(0, 9))] if rng.random() < 0.5 else []
        return "bound", Transaction(success=(*first, *branch))

    def _unchanged(self) -> tuple[str, Transaction]:
        rng, keys = self._rng, self._workload.keys
        told = [op.result.version for op in self._workload.history.operations.values() if op.result is not None]
        version = rng.choice(told[-10:]) if told else ZERO
        start, end = sorted([rng.choice((b"", *keys)), rng.choice((*keys, b"l"))])
        unchanged = NoneNewer(rng.choice((b"key/", b"key/", b"account/")), version, start, end)
        return "unchanged", Transaction(success=(unchanged, Put(rng.choice(keys), b"3")))


def start(workload: Workload, seed: int | str) -> None:
    """Some of them."""
    for number in range(RANGERS):
        workload.running += 1
        Ranger(workload, random.Random(f"{seed}/ranger {number}")).go_on(None)


def start_bounds(workload: Workload, seed: int | str) -> None:
    """Some of the others."""
    for number in range(BOUNDERS):
        workload.running += 1
        Bounder(workload, random.Random(f"{seed}/bounder {number}")).go_on(None)
