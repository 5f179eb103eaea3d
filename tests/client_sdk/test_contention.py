"""Interactive transactions that read and write one key, many at once: how often each is run, in simulated time.

An attempt takes 10 ms or so: it reads, its commit is ordered 2 to 6 ms later, and that is known after 6 ms more. It
succeeds if nobody else's commit succeeded between.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter
from typing import Any

import pytest

from client_sdk import AsyncClient, Conflict, Done, InteractiveTransaction
from client_sdk.interactive import pause
from client_sdk.requests import Request
from client_sdk.testing import MemoryStore

ATTEMPT = 0.01


def run(writers: int, commits: int, seed: int) -> tuple[Counter[int], float]:
    """`writers` commit so often each, one after the other: how many attempts each has made, and how many seconds all of
    it took."""
    rng = random.Random(seed)
    events: list[tuple[float, int, int | None]] = [(rng.uniform(0.0, ATTEMPT), i, None) for i in range(writers)]
    heapq.heapify(events)
    made: Counter[int] = Counter()
    left = dict.fromkeys(range(writers), commits)
    conflicts: Counter[int] = Counter()
    version, now = 0, 0.0
    while events:
        now, writer, seen = heapq.heappop(events)
        if seen is None:
            made[writer] += 1
            heapq.heappush(events, (now + ATTEMPT * rng.uniform(0.2, 0.6), writer, version))
            continue
        wait = 0.0
        if seen == version:
            version += 1
            conflicts[writer] = 0
            left[writer] -= 1
        else:
            conflicts[writer] += 1
            wait = pause(conflicts[writer], ATTEMPT, rng.random())
        if left[writer]:
            heapq.heappush(events, (now + 0.6 * ATTEMPT + wait, writer, None))
    assert version == writers * commits
    return made, now


def test_fifty_writers_of_one_key_need_at_most_three_attempts_per_commit() -> None:
    for commits in (1, 5):
        made = sum(run(50, commits, seed)[0].total() for seed in range(10))
        assert made <= 3 * 10 * 50 * commits


def test_no_writer_starves() -> None:
    for seed in range(10):
        for commits in (1, 5):
            made, _ = run(50, commits, seed)
            assert max(made.values()) <= 10 * commits


def test_two_writers_are_not_much_slower_than_one_after_the_other() -> None:
    seconds = sum(run(2, 20, seed)[1] for seed in range(10))
    assert seconds <= 2 * 10 * 2 * 20 * ATTEMPT


async def test_fifty_writers_of_a_store_do_as_those_of_the_simulation() -> None:
    """Through the client's own attempts."""
    attempts: list[int] = []

    def count(done: Done) -> None:
        if done.operation == "transact":
            attempts.append(done.attempts)

    async def add(t: InteractiveTransaction) -> None:
        t.put("n", str(1 + int(await t.get("n") or b"0")))

    with MemoryStore() as memory:
        async with AsyncClient(memory, timeout=60, on_done=count) as store:
            await asyncio.gather(*[store.transact(add) for _ in range(50)])
            found = await store.get("n")
    assert found is not None and found.value == b"50"
    assert len(attempts) == 50 and sum(attempts) <= 4 * 50  # by real clocks: with room beyond the simulated three


async def test_tasks_of_a_transaction_that_read_one_key_at_once_have_read_the_same(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one would go on with a value that the commit does not compare."""
    with MemoryStore() as memory:
        async with AsyncClient(memory) as store, AsyncClient(memory) as other:
            await store.put("k", "1")
            run, asked = store.attempts.run, 0

            async def with_a_write_between(request: Request[Any]) -> Any:
                nonlocal asked
                asked += 1
                if asked == 2:
                    await other.put("k", "2")
                return await run(request)

            monkeypatch.setattr(store.attempts, "run", with_a_write_between)
            with pytest.raises(Conflict):
                async with store.transaction() as transaction:
                    read = await asyncio.gather(transaction.get("k"), transaction.get("k"))
                    transaction.put("k", b"%d" % (int(read[0] or b"") + 10))
            assert read == [b"1", b"1"]
