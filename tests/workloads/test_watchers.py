"""Clients that watch and that hold leases: what they note of a store that is right, and what they say of one that is
not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from client_sdk import AsyncClient, Compacted, Event, KeyValue, Lease
from client_sdk.testing import MemoryStore
from kvstore.api.events import CHANGE, PROGRESS
from kvstore.core.audit import HistoryEvent
from multicast.types import Timestamp
from workloads import holders, watchers
from workloads.history import HistoryWriter
from workloads.holders import Holders
from workloads.watchers import Watchers

LEASE = b"l" * 16


async def test_what_was_told_is_noted_until_the_last_write(tmp_path: Path) -> None:
    with HistoryWriter.create(tmp_path, "watches") as history:
        with MemoryStore() as memory:
            store = AsyncClient(memory)
            clients, stop = Watchers(store, history, 1), asyncio.Event()
            watching = [asyncio.create_task(clients.client(number, stop)) for number in range(2)]
            while clients.counts["ok"] < 5:
                await store.put("account/1", str(clients.counts["ok"]))
                await asyncio.sleep(0)
            stop.set()
            await asyncio.gather(*watching)
            await store.close()
        assert clients.wrong == []
        lines = [msgspec.json.decode(line, type=HistoryEvent) for line in history.path.read_bytes().splitlines()]
    assert {line.type for line in lines} == {"watch"}
    assert {line.f for line in lines} >= {"begin", "change", "progress"}
    first = [line for line in lines if line.id == lines[0].id]
    assert first[0].asked and first[0].asked.success[0][0] == "watch"
    told = [Timestamp.parse(line.version) for line in first[1:] if line.version]
    assert told == sorted(told) and any(line.told == [{"account/1": "=0"}] for line in lines)


class Wrong:
    """Stands for a store that is."""

    def __init__(self, events: list[Event | Exception], held: KeyValue | None = None):
        self.events = events
        self.held = held
        self.version = Timestamp(9, 0)

    async def watch(self, prefix: bytes, **how: Any) -> AsyncIterator[Event]:
        await asyncio.sleep(0)
        for event in self.events:
            if isinstance(event, Exception):
                raise event
            yield event

    async def put(self, key: str, value: str, **how: Any) -> Timestamp:
        return self.version

    async def get(self, key: str) -> KeyValue | None:
        return self.held

    async def grant_lease(self, ttl: float) -> Lease:
        return Lease(LEASE, ttl, self.version, ttl)

    async def renew_lease(self, lease: bytes) -> None:
        return None


@pytest.mark.parametrize("events, says", [
    ([Event(PROGRESS, Timestamp(1, 0)), Event(CHANGE, Timestamp(8, 0))], "not told of the last write"),
    ([Compacted("gone")], "was told: gone"),
])  # fmt: skip
async def test_who_is_not_told_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[Event | Exception], says: str
) -> None:
    monkeypatch.setattr(watchers, "LAST_SECONDS", 0.0)
    with HistoryWriter.create(tmp_path, "watches") as history:
        store: Any = Wrong(events)
        clients, stop = Watchers(store, history, 1), asyncio.Event()
        watching = asyncio.create_task(clients.client(0, stop))
        while not clients.wrong:
            await asyncio.sleep(0)
            stop.set()
        await watching
    assert says in clients.wrong[0]


@pytest.mark.parametrize("held, says", [
    (None, "has gone "), (KeyValue(b"leases/0", b"held", Timestamp(9, 0), Timestamp(9, 0), LEASE), "is attached to"),
])  # fmt: skip
async def test_a_lease_that_goes_too_soon_and_a_key_that_stays_are_told(
    monkeypatch: pytest.MonkeyPatch, held: KeyValue | None, says: str
) -> None:
    monkeypatch.setattr(holders, "LATEST", 0.0)
    monkeypatch.setattr(holders, "TTL_SECONDS", (1000.0,))
    store: Any = Wrong([], held)
    clients, stop = Holders(store, 1), asyncio.Event()
    holding = asyncio.create_task(clients.client(0, stop))
    while not clients.wrong:
        await asyncio.sleep(0)
    stop.set()
    await holding
    assert any(says in sentence for sentence in clients.wrong)
