"""The Yahoo! Cloud Serving Benchmark (Cooper, Silberstein, Tam, Ramakrishnan, Sears: "Benchmarking Cloud Serving
Systems with YCSB", SoCC 2010): its core workloads A to F (Table 2 there; F as in its published code) and how they
choose keys. A record is one value here, not ten fields.

    load                       100 % insert                         in order
    a      update heavy        50 % read, 50 % update               zipfian
    b      read mostly         95 % read, 5 % update                zipfian
    c      read only           100 % read                           zipfian
    d      read latest         95 % read, 5 % insert                latest
    e      short ranges        95 % scan, 5 % insert                zipfian; 1 to 100 records, uniform
    f      read-modify-write   50 % read, 50 % read-modify-write    zipfian
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

from workloads.bench.load import Operation
from workloads.bench.store import Store

ZIPFIAN_CONSTANT = 0.99
SCAN_RECORDS_MAX = 100
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
_MASK = (1 << 64) - 1


class Mix(NamedTuple):
    """shares: operation -> probability. distribution: of the keys, unless told otherwise."""

    shares: dict[str, float]
    distribution: str


LOAD = "load"
MIXES = {
    LOAD: Mix({"insert": 1.0}, "uniform"),
    "a": Mix({"read": 0.5, "update": 0.5}, "zipfian"),
    "b": Mix({"read": 0.95, "update": 0.05}, "zipfian"),
    "c": Mix({"read": 1.0}, "zipfian"),
    "d": Mix({"read": 0.95, "insert": 0.05}, "latest"),
    "e": Mix({"scan": 0.95, "insert": 0.05}, "zipfian"),
    "f": Mix({"read": 0.5, "read-modify-write": 0.5}, "zipfian"),
}
DISTRIBUTIONS = ("zipfian", "latest", "uniform")


class Zipfian:
    """Ranks 0, 1, 2, ...: rank r is drawn with a probability in proportion to 1 / (r + 1) ** ZIPFIAN_CONSTANT.

    Gray et al., "Quickly Generating Billion-Record Synthetic Databases", SIGMOD 1994, Section 3.
    """

    def __init__(self, rng: random.Random, count: int):
        self._rng = rng
        self._count = 0
        self._zeta = 0.0
        self._zeta_2 = 1.0 + 0.5**ZIPFIAN_CONSTANT
        self._grow(count)

    def _grow(self, count: int) -> None:
        for rank in range(self._count, count):
            self._zeta += 1.0 / (rank + 1) ** ZIPFIAN_CONSTANT
        self._count = count
        self._eta = (1.0 - (2.0 / count) ** (1.0 - ZIPFIAN_CONSTANT)) / (1.0 - self._zeta_2 / self._zeta)

    def draw(self, count: int) -> int:
        """A rank below `count`, which never shrinks and is at least 3."""
        if count > self._count:
            self._grow(count)
        uniform = self._rng.random()
        scaled = uniform * self._zeta
        if scaled < 1.0:
            return 0
        if scaled < self._zeta_2:
            return 1
        rank = int(self._count * (self._eta * uniform - self._eta + 1.0) ** (1.0 / (1.0 - ZIPFIAN_CONSTANT)))
        return min(rank, self._count - 1)


def scatter(rank: int) -> int:
    """FNV-1a of the rank's eight bytes: popular records lie anywhere among the keys."""
    value = _FNV_OFFSET
    for _ in range(8):
        value = ((value ^ (rank & 0xFF)) * _FNV_PRIME) & _MASK
        rank >>= 8
    return value


def chooser(distribution: str, rng: random.Random, records: int) -> Callable[[int], int]:
    """Draws a record, given how many there are now. "zipfian" is scrambled; its popularities are those of the `records`
    at the begin."""
    if distribution == "uniform":
        return rng.randrange
    zipfian = Zipfian(rng, records)
    if distribution == "latest":
        return lambda count: count - 1 - zipfian.draw(count)
    return lambda count: scatter(zipfian.draw(records)) % count


class Ycsb:
    """One workload against one store. Records are 0, 1, 2, ...; what is being inserted is not read before it is there.
    """

    def __init__(
        self, workload: str, store: Store, rng: random.Random, value: str, records: int, distribution: str = ""
    ):
        mix = MIXES[workload]
        self._store, self._rng, self.value = store, rng, value
        self._records = self._next = 0 if workload == LOAD else records
        self._inserted: set[int] = set()
        self._choose = chooser(distribution or mix.distribution, rng, records)
        self._makers = [getattr(self, f"_{name.replace('-', '_')}") for name in mix.shares]
        self._weights = list(accumulate(mix.shares.values()))

    def load_keys(self) -> list[str]:
        """Of the load phase, unless that is what is measured."""
        return [key_of(record) for record in range(self._records)]

    def __call__(self) -> Operation:
        """The next operation."""
        made: Operation = self._rng.choices(self._makers, cum_weights=self._weights)[0]()
        return made

    def _key(self) -> str:
        return key_of(self._choose(self._records))

    def _read(self) -> Operation:
        return Operation("read", (self._store.get(self._key()),))

    def _update(self) -> Operation:
        return Operation("update", (self._store.put(self._key(), self.value),))

    def _read_modify_write(self) -> Operation:
        key = self._key()
        return Operation("read-modify-write", (self._store.get(key), self._store.put(key, self.value)))

    def _scan(self) -> Operation:
        limit = self._rng.randint(1, SCAN_RECORDS_MAX)
        return Operation("scan", (self._store.scan(self._key(), limit),))

    def _insert(self) -> Operation:
        record = self._next
        self._next += 1
        request = self._store.put(key_of(record), self.value)
        return Operation("insert", (request,), lambda: self._acknowledge(record))

    def _acknowledge(self, record: int) -> None:
        """Records up to here are there, so that they can be read."""
        self._inserted.add(record)
        while self._records in self._inserted:
            self._inserted.remove(self._records)
            self._records += 1


def key_of(record: int) -> str:
    """Keys in the order of a hash, as YCSB inserts them by default."""
    return f"ycsb/user{scatter(record):020d}"
