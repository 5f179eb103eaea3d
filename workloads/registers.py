"""Workloads without an invariant of their own: what the audit knows of every version and value judges them.

registers   keys of one shard are read (by transactions, and without being ordered), written, and compared and set, one
            at a time; every written value is unique
lists       after Elle's list-append: transactions append unique elements to lists and read some, on all shards; others
            read some of one shard or several without being ordered, by their keys or by a range
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count, islice

from client_sdk import AsyncClient, KvError, Result, requests
from client_sdk.keyspace import ALL_KEYS
from kvstore.api.model import Append, Compare, Consistency, Get, Put, Range, Transaction
from kvstore.api.shard_map import ShardMap
from kvstore.core import audit
from multicast.types import ZERO, GroupId, Timestamp
from workloads.history import HistoryWriter, read_where
from workloads.invariants import Workload

KEYS = 4
"""Per shard, of the registers."""
LISTS = 6
WAYS: Sequence[tuple[Consistency, int]] = (
    ("linearizable", 0), ("linearizable", 0), ("snapshot", 0), ("stale", 10_000), ("stale", 500_000),
)  # fmt: skip
"""In which reads without an id are asked for, with the age of the stale ones, microseconds."""


async def read_without_id(
    workload: Workload, process: int, f: str, reading: Sequence[Get | Range], consistency: Consistency, age_us: int
) -> Result | KvError:
    """It stands in no journal if it need not be ordered, and its answer then says where it was read."""
    history = workload.history
    assert history is not None
    message_id = workload.new_id()
    history.invoke(process, message_id, f, None, audit.asked((), reading), consistency, age_us)
    max_age = age_us / 1e6 if consistency == "stale" else None
    request = ALL_KEYS.transaction(Transaction(success=tuple(reading)), consistency=consistency, max_age=max_age)
    places, parse = [""], request.parse

    def parse_both(answer: requests.Answer) -> Result:
        places.append(answer.read_at)
        return parse(answer)

    request.parse = parse_both
    try:
        result = await workload.store.run(request)
    except KvError as error:  # a read has no effect
        workload.counts["failed"] += 1
        history.fail(process, message_id, f, str(error))
        return error
    reads: dict[str, Timestamp] = {}
    for asked, one in zip(reading, result.results, strict=True):
        if isinstance(asked, Get):
            reads[asked.key.decode()] = one.found.version if one.found else ZERO
        reads |= {entry.key.decode(): entry.version for entry in one.entries}
    history.ok(
        process, message_id, f, result.version, succeeded=True, told=audit.told(reading, result.results), reads=reads,
        where=read_where(places[-1], consistency, result.version),
    )  # fmt: skip
    return result


class Registers(Workload):
    """Of one shard: how long it answers nothing is how long the shard stands still."""

    name = "registers"
    reader = ""

    def __init__(
        self,
        store: AsyncClient,
        history: HistoryWriter | None,
        shard_map: ShardMap,
        shard: GroupId,
        on_answer: Callable[[], None],
        seed: int = 1,
    ):
        super().__init__(store, history, seed)
        self._on_answer = on_answer
        self._numbers = count()
        names = (f"{self.prefix}/{number}".encode() for number in count())
        self._keys = list(islice((name for name in names if shard_map.shard_of(name) == shard), KEYS))
        self._seen: dict[bytes, bytes] = {}

    async def step(self, rng: random.Random, process: int) -> Result | KvError | None:
        key, draw = rng.choice(self._keys), rng.random()
        value = b"%d" % next(self._numbers)
        if draw < 0.25:
            read = await read_without_id(self, process, "register_get", [Get(key)], *rng.choice(WAYS))
            if isinstance(read, Result):
                self._on_answer()
            return read
        if draw < 0.5:
            result = await self.operate(process, "register_read", success=[Get(key)])
        elif draw < 0.8 or key not in self._seen:
            result = await self.operate(process, "register_write", success=[Put(key, value)])
        else:
            unchanged = Compare(key, "value", "==", self._seen[key])
            result = await self.operate(process, "register_cas", compare=[unchanged], success=[Put(key, value)])
        if isinstance(result, Result):
            self._on_answer()
            if draw < 0.5 and result.results[0].found:
                self._seen[key] = result.results[0].found.value
            elif draw >= 0.5 and result.succeeded:
                self._seen[key] = value
        return result

    async def read(self, process: int, timeout: float | None = None) -> Result | KvError | None:
        return await self.operate(process, "register_read", success=[Get(k) for k in self._keys], timeout=timeout)


class Lists(Workload):
    """Every list grows with the run, by a few bytes an operation."""

    name = "lists"
    reader = ""

    def __init__(self, store: AsyncClient, history: HistoryWriter | None, seed: int = 1):
        super().__init__(store, history, seed)
        self._keys = [f"{self.prefix}/{i}".encode() for i in range(LISTS)]
        self._numbers = count()

    async def step(self, rng: random.Random, process: int) -> Result | KvError | None:
        if self.history and rng.random() < 0.3:
            if rng.random() < 0.4:
                scan = Range(f"{self.prefix}/".encode(), rng.randint(1, LISTS + 1), reverse=rng.random() < 0.5)
                return await read_without_id(self, process, "lists_scan", [scan], *rng.choice(WAYS))
            gets = [Get(key) for key in rng.sample(self._keys, rng.randint(1, LISTS))]
            return await read_without_id(self, process, "lists_get", gets, *rng.choice(WAYS))
        operations: Sequence[Get | Append] = [
            Get(key) if rng.random() < 0.3 else Append(key, b"%d," % next(self._numbers))
            for key in rng.sample(self._keys, rng.randint(1, 3))
        ]
        return await self.operate(process, "lists", success=operations)

    async def read(self, process: int, timeout: float | None = None) -> Result | KvError | None:
        return await self.operate(process, "lists", success=[Get(k) for k in self._keys], timeout=timeout)
