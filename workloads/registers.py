"""Workloads without an invariant of their own: what the audit knows of every version and value judges them.

registers   keys of one shard are read (by transactions, and at the leader), written, and compared and set, one at a
            time; every written value is unique
lists       after Elle's list-append: transactions append unique elements to lists and read some, on all shards
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from itertools import count, islice

from client_sdk import AsyncClient, KvError, Result, requests
from kvstore.api.model import Append, Compare, Get, Put, Transaction
from kvstore.api.shard_map import ShardMap
from kvstore.core import audit
from multicast.types import ZERO, GroupId, new_message_id
from workloads.history import HistoryWriter
from workloads.invariants import Workload

KEYS = 4
"""Per shard, of the registers."""
LISTS = 6


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
            return await self._read_at_the_leader(process, key)
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

    async def _read_at_the_leader(self, process: int, key: bytes) -> Result | KvError | None:
        """Without an id: it stands in no journal if a leader answers it, and then says where it was read."""
        assert self.history is not None
        message_id = new_message_id(time.time_ns() // 1000, self._ids.getrandbits(62))
        get = Get(key)
        self.history.invoke(process, message_id, "register_get", asked=audit.asked((), [get]))
        request, places = requests.transaction(Transaction(success=(get,))), []
        parse = request.parse

        def parse_both(answer: requests.Answer) -> Result:
            places.append(answer.read_at)
            return parse(answer)

        request.parse = parse_both
        try:
            result = await self.store.run(request)
        except KvError as error:  # a read has no effect
            self.counts["failed"] += 1
            self.history.fail(process, message_id, "register_get", str(error))
            return error
        found = result.results[0].found
        shard, position, _ = places[-1].split("/") if places[-1] else ("-1", "0", "")
        self.history.ok(
            process, message_id, "register_get", result.version, succeeded=True,
            reads={key.decode(): found.version if found else ZERO}, told=audit.told([get], result.results),
            shard=int(shard), position=int(position),
        )  # fmt: skip
        self._on_answer()
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
        operations: Sequence[Get | Append] = [
            Get(key) if rng.random() < 0.3 else Append(key, b"%d," % next(self._numbers))
            for key in rng.sample(self._keys, rng.randint(1, 3))
        ]
        return await self.operate(process, "lists", success=operations)

    async def read(self, process: int, timeout: float | None = None) -> Result | KvError | None:
        return await self.operate(process, "lists", success=[Get(k) for k in self._keys], timeout=timeout)
