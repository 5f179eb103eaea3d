"""Clients that hold leases, renew them in time or too late, and look whether one has gone that may not have.

A lease lives for its time to live after its last renewal was sent, at least: who is told that his has gone, and was
answered to a renewal that he sent less than that ago, has found what is wrong. So has who finds a key that is attached
to a lease that has gone.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

from client_sdk import AsyncClient, KvError, TransactionFailed

TTL_SECONDS = (1.0, 2.0, 4.0)
LATEST = 1.3
"""A renewal comes after so much of a time to live, at most."""
RENEWALS_MAX = 20


class Holders:
    """The clients. wrong: sentences."""

    name = "leases"

    def __init__(self, store: AsyncClient, seed: int):
        self.counts: Counter[str] = Counter(ok=0, failed=0, unknown=0)
        self.wrong: list[str] = []
        self._store = store
        self._seed = seed

    async def client(self, number: int, stop: asyncio.Event) -> None:
        """One lease after the other, until `stop`."""
        rng = random.Random(f"holder {self._seed} {number}")
        key = f"{self.name}/{number}"
        while not stop.is_set():
            try:
                await self._hold(key, rng, stop)
            except KvError:
                self.counts["failed"] += 1

    async def _hold(self, key: str, rng: random.Random, stop: asyncio.Event) -> None:
        ttl = rng.choice(TTL_SECONDS)
        sent = time.monotonic()
        lease = (await self._store.grant_lease(ttl)).id
        self.counts["ok"] += 1
        try:
            await self._store.put(key, "held", lease=lease)
        except TransactionFailed:
            await self._gone(key, lease, ttl, sent)
            return
        for _ in range(rng.randint(1, RENEWALS_MAX)):
            if stop.is_set():
                return
            await asyncio.sleep(rng.uniform(0.0, LATEST * ttl))
            asked = time.monotonic()
            try:
                renewed = await self._store.renew_lease(lease)
            except KvError:  # it may have been renewed: then it lives for longer
                self.counts["unknown"] += 1
                continue
            if renewed is None:
                await self._gone(key, lease, ttl, sent)
                return
            sent = asked
            self.counts["ok"] += 1

    async def _gone(self, key: str, lease: bytes, ttl: float, sent: float) -> None:
        lived = time.monotonic() - sent
        if lived < ttl:
            self.wrong.append(f"a lease of {ttl:g} s has gone {lived:.3f} s after its last renewal was sent")
        found = await self._store.get(key)
        if found is not None and found.lease == lease:
            self.wrong.append(f"{key} is attached to a lease that has gone")
