"""The thread of a blocking client, which must not wait for itself; and what is given to blocking code."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from client_sdk import Client, Done, ForeignLoop, Lost
from client_sdk.testing import MemoryStore


@pytest.fixture
def memory() -> Iterator[MemoryStore]:
    with MemoryStore() as made:
        yield made


def test_who_counts_requests_cannot_make_some_and_what_he_raises_is_nobody_elses(
    memory: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[ForeignLoop] = []

    def on_done(_: Done) -> None:
        for use in (lambda: store.get("k"), lambda: next(store.scan()), store.close):
            with pytest.raises(ForeignLoop, match="its own thread") as told:
                use()
            refused.append(told.value)
        raise RuntimeError("a mistake in here")

    with caplog.at_level(logging.ERROR), Client(memory, on_done=on_done) as store:
        assert store.put("k", "v") is not None
    assert [error.outcome for error in refused] == ["not_applied"] * 3
    assert "a mistake in here" in caplog.text


@pytest.mark.parametrize("kind", ["scan", "watch", "session"])
def test_what_was_not_ended_may_be_collected_in_the_clients_own_thread(memory: MemoryStore, kind: str) -> None:
    with Client(memory) as store:
        after = store.put("k/1", "v")
        store.put("k/2", "v")
        unfinished: dict[str, Any] = {}
        if kind == "session":
            block: AbstractContextManager[Any] = store.session(ttl=60)
            block.__enter__()
            unfinished["it"] = block
        else:
            unfinished["it"] = store.scan("k/", page_size=1) if kind == "scan" else store.watch("k/", after=after)
            next(unfinished["it"])
        unfinished["itself"] = unfinished
        running = store._thread._running
        assert running is not None

        async def collect() -> None:
            gc.collect()

        del unfinished
        if kind == "session":
            del block
        asyncio.run_coroutine_threadsafe(collect(), running[0]).result(10)
        assert store.get("k/1") is not None


def test_a_session_of_blocking_code_blocks(memory: MemoryStore) -> None:
    with Client(memory) as store, store.session(ttl=60) as session:
        assert session.renew() is None and not session.lost and session.ttl == 60  # type: ignore[func-returns-value]
        session.check()
        lease = store.lease(session.lease)
        assert lease is not None
        store.revoke_lease(session.lease)
        with pytest.raises(Lost):
            session.renew()
        assert session.lost
        with pytest.raises(Lost):
            session.check()


def test_a_client_that_nobody_closed_ends_its_thread_once_nobody_can_use_it() -> None:
    memory = MemoryStore()
    store = Client(memory)
    store.put("k", "v")
    view, thread = store.namespace("k"), the_thread_of(store)
    del store
    gc.collect()
    assert view.get("") is not None and thread.is_alive(), "a view is the client, too"
    itself = [view]
    itself.append(itself)  # type: ignore[arg-type]
    del view, itself
    with pytest.warns(ResourceWarning, match="a Client was not closed"):
        gc.collect()
    thread.join(5)
    assert not thread.is_alive()


def test_whoever_is_forked_leaves_his_parents_client_alone() -> None:
    with MemoryStore() as memory, Client(memory) as store:
        store.put("k", "v")
        thread = the_thread_of(store)
        child = os.fork()
        if child == 0:
            os._exit(ended_quietly(store))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.get("k") is not None and the_thread_of(store) is thread


def ended_quietly(store: Client) -> int:
    """In the child: 0 if nothing is said of a client that the parent uses."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        unused = store._thread._running is None
        store._thread = None  # type: ignore[assignment]
        gc.collect()
    return 0 if unused and not said else 1


def the_thread_of(store: Client) -> threading.Thread:
    running = store._thread._running
    assert running is not None
    return running[1]
