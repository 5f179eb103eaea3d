"""Locks and elections end in their time, whoever falls silent."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from client_sdk import AsyncClient, Client, Done, Election, InvalidRequest, KvError, Lost, sessions
from client_sdk.requests import Request
from client_sdk.testing import MemoryStore


async def test_a_lock_ends_in_its_time_when_replicas_fall_silent_after_the_grant() -> None:
    with MemoryStore() as memory:

        def fall_silent(done: Done) -> None:
            memory._silent = done.operation == "POST /v1/leases"

        async with AsyncClient(memory, timeout=600, on_done=fall_silent) as store, asyncio.timeout(20):
            with pytest.raises(KvError):
                async with store.lock("x", ttl=60, timeout=0.1):
                    raise AssertionError("nobody has said that it is held")
            memory._silent = False


async def test_a_lock_that_others_hold_is_a_timeout_and_leaves_no_place_behind(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless its time was over before the store had answered."""
    monkeypatch.setattr(sessions, "END_SECONDS", 60.0)
    with MemoryStore() as memory:
        async with AsyncClient(memory, timeout=600) as store, asyncio.timeout(100), store.lock("x", ttl=600):
            for timeout in (0.001, 0.05, 1.0, 20.0):
                with pytest.raises((TimeoutError, KvError)) as error:
                    async with store.lock("x", ttl=600, timeout=timeout):
                        raise AssertionError("both have it")
                if timeout > 0.01 and isinstance(error.value, TimeoutError):
                    break
            assert isinstance(error.value, TimeoutError)
            assert await store.count("locks/") == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda election: election.leader(timeout=0.05),
        lambda election: election.proclaim("more", timeout=0.05),
        lambda election: election.campaign("more", timeout=0.05),
        lambda election: election.resign(timeout=0.05),
        lambda election: anext(election.observe(timeout=0.05)),
    ],
    ids=["leader", "proclaim", "campaign", "resign", "observe"],
)
async def test_an_election_is_asked_for_as_long_as_one_says(ask: Callable[[Election], Awaitable[object]]) -> None:
    with MemoryStore() as memory:
        async with (
            AsyncClient(memory, timeout=600) as store,
            asyncio.timeout(20),
            store.election("e", ttl=60) as election,
        ):
            await election.campaign("me")
            with memory.silent(), pytest.raises(KvError):
                await ask(election)


async def test_who_has_no_lease_any_more_has_lost_and_cannot_lead() -> None:
    with MemoryStore() as memory:
        async with AsyncClient(memory) as store, store.election("e", ttl=60) as election:
            await store.revoke_lease(election._session.lease)
            with pytest.raises(Lost, match="lease has expired, or was revoked"):
                await election.campaign("me")
            assert await election.leader() is None


async def test_who_leads_and_is_not_answered_leads_as_before() -> None:
    with MemoryStore() as memory:
        async with AsyncClient(memory, timeout=600) as store, store.election("e", ttl=60) as election:
            token = await election.campaign("me")
            with memory.silent(), pytest.raises(KvError):
                await election.campaign("more", timeout=0.05)
            assert await election.campaign("me") == token


def test_who_is_interrupted_before_a_lock_leaves_no_place_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sessions, "END_SECONDS", 60.0)
    with MemoryStore() as memory, Client(memory, timeout=60) as store, store.lock("x", ttl=600):

        def interrupt() -> None:
            while store.count("locks/") < 2:
                pass
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        waiting = threading.Thread(target=interrupt)
        with pytest.raises(KeyboardInterrupt), Client(memory, timeout=60) as other:
            waiting.start()
            with other.lock("x", ttl=600):
                raise AssertionError("both have it")
        waiting.join()
        assert store.count("locks/") == 1
    assert not caplog.records


def test_a_client_that_is_closed_under_a_lock_leaves_no_task(caplog: pytest.LogCaptureFixture) -> None:
    with MemoryStore() as memory, pytest.raises(KvError), Client(memory) as store, store.lock("x", ttl=600):
        store.close()
    gc.collect()
    assert not caplog.records


@pytest.mark.parametrize("name", ["n" * 360, "é" * 60], ids=["long", "encoded"])
async def test_a_name_that_makes_no_key_is_called_so(name: str) -> None:
    with MemoryStore() as memory:
        async with AsyncClient(memory) as store:
            with pytest.raises(InvalidRequest, match=r"^name: percent-encoded it is [0-9]+ bytes too long"):
                async with store.lock(name):
                    pass
            async with store.lock("é" * 59 + "n" * 5):
                assert [len(one.key) async for one in store.scan()] == [400]


async def test_who_campaigns_again_with_much_to_say_keeps_its_token_though_answers_are_lost() -> None:
    """Of what was asked before, the store does not tell large results again."""
    with MemoryStore() as memory:
        async with AsyncClient(memory) as store, store.election("e", ttl=60) as election:
            token = await election.campaign("x" * 100_000)
            run = store.attempts.run

            async def twice(request: Request[Any]) -> Any:
                if request.path == "/v1/txn":
                    await run(request)
                return await run(request)

            election._queue._attempts = SimpleNamespace(run=twice, timeout=store.attempts.timeout)  # type: ignore[assignment]
            assert await election.campaign("y" * 100_000) == token
            found = await election.leader()
            assert found is not None and found.value == b"y" * 100_000 and found.create_version == token
