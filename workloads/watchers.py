"""Clients that watch, and note every event, for the audit: was each change told once, in order, and nothing else?

The first one is there from the beginning to the end, whatever happens to the replicas: each of its watches goes on
where the one before it ended, so together they tell of everything. The others begin again and again, over other keys:
now, where they were, or at a version that they were told before.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

from client_sdk import AsyncClient, Compacted, KvError, Unavailable
from kvstore.api.events import CHANGE
from kvstore.api.model import FIRST_KEY, Range, bounds
from multicast.types import MessageId, Timestamp, new_message_id
from workloads.history import HistoryWriter

PREFIXES = (b"", b"account/", b"lists/", b"registers/", b"leases/")
WATCH_SECONDS = (0.5, 5.0)
STAY_SECONDS = (5.0, 60.0)
LAST_SECONDS = 60.0
"""So soon after the last write it has been told."""
TOLD_MAX = 100
"""So many of the versions that it was told a client remembers."""


class Watchers:
    """The clients. wrong: sentences."""

    name = "watches"

    def __init__(self, store: AsyncClient, history: HistoryWriter, seed: int):
        self.counts: Counter[str] = Counter(ok=0, failed=0, unknown=0)
        self.wrong: list[str] = []
        self._store = store
        self._history = history
        self._seed = seed
        self._ids = random.Random(f"watchers {seed} {time.time_ns()}")

    async def client(self, number: int, stop: asyncio.Event) -> None:
        """Watch until `stop`; the first until it was told of what is written then."""
        rng = random.Random(f"watcher {self._seed} {number}")
        if number == 0:
            await self._stay(rng, stop)
            return
        told: list[Timestamp] = []
        while not stop.is_set():
            after = rng.choice([None, told[-1], rng.choice(told)]) if told else None
            await self._watch(rng.choice(PREFIXES), after, rng.uniform(*WATCH_SECONDS), told)
            del told[:-TOLD_MAX]

    async def _stay(self, rng: random.Random, stop: asyncio.Event) -> None:
        told: list[Timestamp] = []
        while not stop.is_set():
            await self._watch(b"", told[-1] if told else None, rng.uniform(*STAY_SECONDS), told, stop)
            del told[:-1]
        try:
            last = await self._store.put(f"{self.name}/end", "", timeout=LAST_SECONDS)
        except KvError as error:
            self.wrong.append(f"the last write was not answered: {error}")
            return
        deadline = time.monotonic() + LAST_SECONDS
        while not told or told[-1] < last:
            if time.monotonic() > deadline:
                self.wrong.append(f"a watch was not told of the last write {LAST_SECONDS:g} s after it")
                return
            await self._watch(b"", told[-1] if told else None, 1.0, told)

    async def _watch(
        self, prefix: bytes, after: Timestamp | None, seconds: float, told: list[Timestamp],
        stop: asyncio.Event | None = None,
    ) -> None:  # fmt: skip
        """One watch. stop: it ends with the first event after that. told: the versions are added."""
        watch: MessageId = new_message_id(time.time_ns() // 1000, self._ids.getrandbits(62))
        self._history.begin_watch(watch, *bounds(Range(prefix, 1, start=FIRST_KEY)), after)
        try:
            async with asyncio.timeout(seconds):
                async for event in self._store.watch(prefix, after=after, progress=True):
                    if event.kind == CHANGE:
                        self._history.changed(watch, event.version, event.changes)
                        self.counts["ok"] += 1
                    else:
                        self._history.progressed(watch, event.version)
                    told.append(event.version)
                    if stop is not None and stop.is_set():
                        break
        except TimeoutError:
            self._history.end_watch(watch, "it was left")
        except Unavailable as error:
            self.counts["failed"] += 1
            self._history.end_watch(watch, str(error))
        except Compacted as error:
            self.wrong.append(f"a watch from {after} on was told: {error}")
            self._history.end_watch(watch, str(error))
            told.clear()
