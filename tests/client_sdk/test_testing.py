"""The store in memory: what it can do that no cluster can."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from client_sdk import Add, AsyncClient, Client, Compacted, InvalidRequest, OutcomeUnknown, Put, Unavailable
from client_sdk.testing import MemoryStore
from tests.client_sdk.test_client import in_child


def test_clients_of_all_threads_and_loops_see_one_store() -> None:
    async def add(memory: MemoryStore) -> None:
        async with AsyncClient(memory, timeout=60) as store:
            await asyncio.gather(*[store.txn(success=[Add("n", 1)]) for _ in range(20)])

    with MemoryStore() as memory, Client(memory) as store, ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(asyncio.run, add(memory)) for _ in range(3)]:
            done.result()
        found = store.get("n")
        assert found is not None and found.value == b"60"
        large = b"x" * 1_000_000
        store.put("large", large)
        assert [entry.value for entry in store.scan("large")] == [large]


def test_a_transaction_reads_no_more_than_it_can_compare() -> None:
    with MemoryStore() as memory, Client(memory) as store:
        for first in (0, 1000):
            store.txn(success=[Put(f"k/{first + number:04}", "") for number in range(1000)])
        with pytest.raises(InvalidRequest, match="reads at most"), store.transaction() as t:
            t.scan("k/")
        with store.transaction() as t:
            assert len(t.scan("k/1")) == 1000
            t.put("seen", "")


def test_time_passes_when_a_test_says_so() -> None:
    with MemoryStore() as memory, Client(memory) as store:
        old, lease = store.put("k", "1"), store.grant_lease(ttl=3600)
        store.put("k", "2", lease=lease.id)
        memory.advance(3000)
        assert store.get("k") is not None
        with pytest.raises(Compacted):
            store.get("k", version=old)
        memory.advance(601)
        assert store.get("k") is None


@pytest.mark.usefixtures("few_attempts")
def test_requests_fail_as_a_test_wants_it() -> None:
    with MemoryStore() as memory, Client(memory, timeout=60) as store:
        version = store.put("k", "1")
        watch = store.watch("k", after=version)
        with memory.silent(), pytest.raises(OutcomeUnknown) as unknown:
            store.put("k", "2", timeout=0.2)
        assert unknown.value.message_id is not None
        outcome = store.outcome(unknown.value.message_id)
        assert outcome is not None and outcome.outcome == "applied"
        assert str(next(watch).version) == outcome.version
        with memory.down(), pytest.raises(Unavailable):
            store.put("k", "3")
        later = store.put("k", "4")
        assert next(watch).version == later, "it goes on by itself"
        with store.lock("l", ttl=600) as lock:
            memory.advance(601)
            with store.lock("l", ttl=600, timeout=60) as other:
                assert other.token > lock.token


async def test_a_watch_whose_events_are_taken_slowly_goes_on_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time runs from where the stream ends: what its owner did meanwhile was no silence of replicas."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    with MemoryStore() as memory:
        async with AsyncClient(memory, timeout=60) as store:
            version = await store.put("k", "1")
            watch = store.watch("k", after=version, timeout=60)
            second = await store.put("k", "2")
            assert (await anext(watch)).version == second
            monkeypatch.setattr(loop, "time", lambda: clock() + 3600)
            with memory.down():
                pass
            third = await store.put("k", "3")
            assert (await anext(watch)).version == third
            with memory.down(), pytest.raises(Unavailable, match="nobody serves the watch"):
                await anext(store.watch("k", timeout=0.1))


def test_a_light_installation_is_told_what_to_install() -> None:
    program = "import sys; sys.modules['structlog'] = None; import client_sdk.testing"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "needs structlog, which pip install '.[server]' installs" in ran.stderr


def test_nobody_answers_in_a_forked_process_or_after_the_end() -> None:
    memory = MemoryStore()
    with memory, Client(memory, timeout=60) as store:
        store.put("k", "1")

        def child() -> None:
            with pytest.raises(Unavailable):
                store.get("k", timeout=0.2)

        in_child(child)
        assert store.get("k") is not None
    memory.close()
    with Client(memory, timeout=0.2) as store, pytest.raises(Unavailable):
        store.get("k")
