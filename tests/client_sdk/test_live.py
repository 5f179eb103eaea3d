"""The client against real replicas that are killed under it: what was acknowledged stays, nothing happens twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_sdk import Add, AsyncClient, Compare, Get, OutcomeUnknown, Put, Range, TransactionFailed
from multicast.types import new_message_id
from tests.client_sdk.test_async_client import ODD_KEYS
from tests.kvstore.live import running_cluster
from tests.ports import free_base_port

pytestmark = pytest.mark.timeout(600)

PAUSE_S = 0.05
"""Of each client between two transactions: enough is under way when a leader dies, and the machine is not full."""


def kvstore(*arguments: str, most: int = 0) -> str:
    """most: an exit status up to this one will do."""
    done = subprocess.run([sys.executable, "-m", "kvstore", *arguments], capture_output=True, text=True, timeout=90)
    assert done.returncode <= most, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running cluster of 2 shards of 3 replicas."""
    path = tmp_path_factory.mktemp("live") / "cluster"
    kvstore("cluster", "init", str(path), "--shards", "2", "--replicas", "3", "--base-port", str(free_base_port(6)))
    try:
        kvstore("cluster", "up", str(path), "--detach")
        yield path
    finally:
        kvstore("cluster", "down", str(path))


def status(directory: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(kvstore("cluster", "status", str(directory), "-o", "json", most=1))
    return found


def leader(directory: Path, shard: int) -> dict[str, Any]:
    """As soon as somebody leads: on a busy machine that may have just changed."""
    deadline = time.monotonic() + 60
    while True:
        for replica in status(directory):
            if replica["shard"] == shard and replica["role"] == "leader":
                return replica
        assert time.monotonic() < deadline


def kill(replica: dict[str, Any]) -> None:
    os.kill(replica["pid"], signal.SIGKILL)


async def test_keys_and_values_are_any_bytes(directory: Path) -> None:
    async with AsyncClient(directory, timeout=60.0) as store:
        for key in ODD_KEYS:
            version = await store.put(key, key[::-1] * 3)
            found = await store.get(key)
            assert found is not None
            assert (found.value, found.version) == (key[::-1] * 3, version)
        assert sorted(ODD_KEYS) == [entry.key async for entry in store.scan(page_size=4)]
        falling = [entry.key async for entry in store.scan(page_size=4, reverse=True, keys_only=True)]
        assert falling == sorted(ODD_KEYS, reverse=True) and await store.count() == len(ODD_KEYS)
        first, *middle, last = sorted(ODD_KEYS)
        assert await store.delete_range(start=first + b"\0", end=last) == len(middle)
        for key in (first, last):
            assert await store.delete(key)
        assert [entry async for entry in store.scan()] == []


async def test_transactions_over_both_shards(directory: Path) -> None:
    async with AsyncClient(directory, timeout=60.0) as store:
        result = await store.txn(
            [Compare(b"t/a", "exists", "==", False)],
            [Put(b"t/a", b"\xff"), Add(b"t/b", 3), Add(b"t/c", -3), Get(b"t/c"), Range(b"t/", 10)],
            [Get(b"t/a")],
        )
        assert result.succeeded
        assert result.results[1].value == 3
        assert result.results[3].found is not None
        assert result.results[3].found.version == result.version
        assert [entry.key for entry in result.results[4].entries] == [b"t/a", b"t/b", b"t/c"]
        with pytest.raises(TransactionFailed):
            await store.txn(success=[Add(b"t/b", 1), Add(b"t/a", 1)])
        found = await store.get("t/b")
        assert found is not None
        assert found.value == b"3", "a failed transaction has no effect at any shard"
        old = new_message_id((time.time_ns() // 1000) - 3600 * 1_000_000, 1)
        with pytest.raises(OutcomeUnknown) as caught:
            await store.put("t/old", "x", message_id=old)
        assert caught.value.code == "id_expired", "it may have been applied an hour ago"


async def test_interactive_transactions_count_right(directory: Path) -> None:
    async with AsyncClient(directory, timeout=60.0) as store:

        async def increment(t) -> None:
            for key in ("i/1", "i/2", "i/3"):
                t.put(key, str(int(await t.get(key) or b"0") + 1))

        await asyncio.gather(*[store.transact(increment) for _ in range(6)])
        values = await store.txn(success=[Get(b"i/1"), Get(b"i/2"), Get(b"i/3")])
        assert [one.found.value for one in values.results if one.found] == [b"6"] * 3


async def test_nothing_is_lost_and_nothing_done_twice_when_leaders_are_killed(directory: Path) -> None:
    """One leader is killed and brought back, then another of the same shard: each time while clients add."""
    stop = asyncio.Event()
    acknowledged: dict[str, int] = {}

    async def adder(store: AsyncClient, number: int) -> None:
        mine, other = f"k/{number}", f"k/{number}/other"
        while not stop.is_set():
            result = await store.txn(success=[Add(mine.encode(), 1), Add(other.encode(), -1)])
            acknowledged[mine] = acknowledged.get(mine, 0) + 1
            assert result.results[0].value == acknowledged[mine], "applied twice, or lost"
            await asyncio.sleep(PAUSE_S)

    async with AsyncClient(directory, timeout=60.0) as store:
        adders = [asyncio.create_task(adder(store, i)) for i in range(3)]
        try:
            for _ in range(2):
                before = sum(acknowledged.values())
                replicas = await asyncio.to_thread(status, directory)
                victim = await asyncio.to_thread(leader, directory, 0)
                kill(victim)
                await _until(lambda count=before: sum(acknowledged.values()) > count + 100, adders)
                await asyncio.to_thread(kvstore, "cluster", "up", str(directory), "--detach")
                await _caught_up(store, victim["url"], [r["url"] for r in replicas if r["shard"] == 0])
        finally:
            stop.set()
            await asyncio.gather(*adders)
        for key, count in acknowledged.items():
            pair = await store.txn(success=[Get(key.encode()), Get(f"{key}/other".encode())])
            assert [one.found.value for one in pair.results if one.found] == [b"%d" % count, b"%d" % -count]


async def _until(condition, tasks: list[asyncio.Task[None]]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0.05)


async def _caught_up(store: AsyncClient, url: str, others: list[str]) -> None:
    deadline = time.monotonic() + 100
    goal = max([(await store.cluster(other))["replica"]["completed"] for other in others])
    while (await store.cluster(url))["replica"]["completed"] < goal:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_a_scan_in_a_transaction_needs_no_history(tmp_path: Path) -> None:
    """A shard that stands still has completed less than the other has written."""
    with running_cluster(tmp_path, 2, 1, "white_box", history_ms=0) as replicas:
        urls = [f"http://{replica.host}:{replica.port}" for replica in replicas]
        async with AsyncClient(urls, timeout=60.0) as store:
            for number in range(10):
                await store.put(f"x/{number}", "1")
                async with store.transaction() as transaction:
                    assert len(await transaction.scan("x/")) == number + 1
                    transaction.put("seen", str(number))
