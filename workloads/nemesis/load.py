"""The clients of a run: a bank, a ring, registers of each shard, lists, watches and leases. They think between
operations: what is to be found is wrong answers, not limits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from client_sdk import AsyncClient
from kvstore.api.shard_map import ShardMap
from kvstore.core.audit import HistoryEvent
from multicast.types import GroupId
from workloads.bank import Bank
from workloads.history import HistoryWriter
from workloads.holders import Holders
from workloads.invariants import Cycle
from workloads.registers import Lists, Registers
from workloads.watchers import Watchers

CLIENTS = 2
"""Of each workload."""
PAUSE_SECONDS = 0.02
TIMEOUT_SECONDS = 10.0
LAST_SECONDS = 30.0
OUTCOMES = {"ok": "ok", "fail": "failed", "info": "unknown"}


class Load:
    """All workloads on one cluster. `open`, then `run` until `stop` is set, then `close`."""

    def __init__(self, directory: Path, seed: int, on_answer: Callable[[GroupId], None]):
        self._directory = directory
        self._seed = seed
        self._on_answer = on_answer
        self._store = AsyncClient(directory, timeout=TIMEOUT_SECONDS)
        self._histories: dict[str, list[HistoryWriter]] = {}
        self._workloads: list[Bank | Cycle | Registers | Lists] = []
        self._others: list[Watchers | Holders] = []

    async def open(self) -> None:
        """KvError if what has to be there at the beginning cannot be written."""
        described = await self._store.cluster(timeout=LAST_SECONDS)
        shard_map = ShardMap.from_json(described["shard_map"])
        self._workloads = [
            Bank(self._store, self._history("bank"), seed=self._seed),
            Cycle(self._store, self._history("cycle"), self._seed),
            Lists(self._store, self._history("lists"), self._seed),
        ]
        for shard in shard_map.shards:
            history = self._history("registers")
            told = self._told(shard)
            self._workloads.append(Registers(self._store, history, shard_map, shard, told, self._seed))
        for workload in self._workloads:
            workload.pause_seconds = PAUSE_SECONDS
            await workload.open(LAST_SECONDS)
        together = self._histories["bank"][0]  # so that what began when is known
        self._others = [Watchers(self._store, together, self._seed), Holders(self._store, self._seed)]

    def _told(self, shard: GroupId) -> Callable[[], None]:
        return lambda: self._on_answer(shard)

    def _history(self, name: str) -> HistoryWriter:
        history = HistoryWriter.create(self._directory, name)
        self._histories.setdefault(name, []).append(history)
        return history

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. What a client raises, this raises."""
        async with asyncio.TaskGroup() as group:
            for workload in (*self._workloads, *self._others):
                for number in range(CLIENTS):
                    group.create_task(workload.client(number, stop))

    async def last_reads(self) -> list[str]:
        """Read everything once more; what is wrong with that, and with watches and leases, in sentences."""
        wrong = [f"{one.name}: {sentence}" for one in self._others for sentence in one.wrong]
        for workload in self._workloads:
            if isinstance(workload, Bank):
                balances = await workload.read_all(timeout=LAST_SECONDS)
                if workload.totals.wrong_totals or sum(balances.values()) != workload.total:
                    wrong.append(f"bank: {sum(balances.values())} in {len(balances)} accounts, not {workload.total}")
            elif not await workload.close(LAST_SECONDS):
                wrong.append(f"{workload.name}: the last read of everything was not answered")
        return wrong

    async def close(self) -> None:
        for histories in self._histories.values():
            for history in histories:
                history.close()
        await self._store.close()

    def outcomes(self) -> dict[str, Counter[str]]:
        """Workload -> how many operations were ok, failed (certainly without effect), of unknown outcome."""
        decode = msgspec.json.Decoder(HistoryEvent).decode
        found: dict[str, Counter[str]] = {}
        for name, histories in self._histories.items():
            counts = found[name] = Counter(dict.fromkeys(OUTCOMES.values(), 0))
            for history in histories:
                with open(history.path, "rb") as lines:
                    counts.update(OUTCOMES[kind] for line in lines if (kind := decode(line).type) in OUTCOMES)
        return found | {one.name: one.counts for one in self._others}
