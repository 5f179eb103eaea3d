"""What is asked for. Keys are there before a measurement begins, so that reads find something and comparisons hold.

    put       100 bytes (`value_bytes`) to a random key
    get       a linearizable read of a random key
    txn1      two comparisons and two puts, on keys of one shard
    txn       the same, on keys of two shards
    ycsb-load, ycsb-a ... ycsb-f: see `workloads.bench.ycsb`
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from workloads.bench.load import Operation
from workloads.bench.store import Store
from workloads.bench.ycsb import DISTRIBUTIONS, MIXES, Ycsb

KINDS = ("put", "get", "txn1", "txn")
YCSB = tuple(f"ycsb-{letter}" for letter in MIXES)
ALL_KINDS = (*KINDS, *YCSB)
VALUE_BYTES = 100
RECORDS = 10_000


def title(kind: str) -> str:
    """For tables."""
    return {"txn1": "txn, one shard", "txn": "txn, two shards"}.get(kind, kind)


def chosen(text: str) -> tuple[str, ...]:
    """The kinds of `put,txn`; `ycsb` stands for all of its. ValueError names one that is unknown."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    return tuple(dict.fromkeys(kind for name in names for kind in (YCSB if name == "ycsb" else (name,))))


def check_kinds(kinds: Sequence[str], value_bytes: int, records: int, distribution: str) -> None:
    """ValueError that names the option and its limits."""
    if unknown := [kind for kind in kinds if kind not in ALL_KINDS]:
        raise ValueError(f"kinds: {', '.join(ALL_KINDS)} (ycsb: all of those), not {unknown[0]!r}")
    if not kinds:
        raise ValueError(f"kinds: at least one of {', '.join(ALL_KINDS)}")
    if not 1 <= value_bytes <= 65536 or not 100 <= records <= 1_000_000:
        raise ValueError("value_bytes: from 1 to 65536; records: from 100 to 1000000")
    if distribution and distribution not in DISTRIBUTIONS:
        raise ValueError(f"distribution: {', '.join(DISTRIBUTIONS)}, not {distribution!r}")


class Uniform:
    """Operations of one of KINDS on keys that are all equally likely."""

    def __init__(self, kind: str, store: Store, rng: random.Random, value: str, records: int):
        self._kind, self._store, self._rng, self.value = kind, store, rng, value
        self._keys = [f"bench/{i}" for i in range(records)]
        self._of_shard: list[list[str]] = [[] for _ in store.servers]
        for key in self._keys:
            self._of_shard[store.shard_of(key)].append(key)
        make: dict[str, Callable[[str], Operation]] = {
            "get": lambda key: Operation("get", (store.get(key),)),
            "put": lambda key: Operation("put", (store.put(key, value),)),
            "txn1": self._transaction,
            "txn": self._transaction,
        }
        self._make = make[kind]

    def load_keys(self) -> list[str]:
        """Those that must be there."""
        return self._keys

    def __call__(self) -> Operation:
        """The next operation."""
        return self._make(self._keys[int(self._rng.random() * len(self._keys))])

    def _transaction(self, key: str) -> Operation:
        own = self._store.shard_of(key)
        others = [shard for shard in range(len(self._of_shard)) if (shard != own) == (self._kind == "txn")]
        other = key
        while other == key:
            other = self._rng.choice(self._of_shard[self._rng.choice(others)])
        return Operation(self._kind, (self._store.transaction((key, other), self.value),))


Workload = Uniform | Ycsb
"""Called for the next operation. value: what is written."""


def workload(kind: str, store: Store, value_bytes: int, records: int, distribution: str, seed: int) -> Workload:
    """Makes the operations of a kind, alike for every store with one seed."""
    rng = random.Random(seed)
    value = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=value_bytes))
    if kind in KINDS:
        return Uniform(kind, store, rng, value, records)
    return Ycsb(kind.removeprefix("ycsb-"), store, rng, value, records, distribution)
