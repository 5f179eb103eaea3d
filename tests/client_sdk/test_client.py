"""The blocking client: the same answers and exceptions, from any thread."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from typing import TypeVar

import pytest

from client_sdk import (
    Add,
    AsyncClient,
    Client,
    ClosedClient,
    Compare,
    ConditionFailed,
    Conflict,
    ForeignLoop,
    Get,
    OutcomeUnknown,
    Transaction,
    codecs,
    requests,
    transactional,
)
from client_sdk.keyspace import Keyspace
from tests.client_sdk.fake import FakeCluster
from tests.kvstore.live import wait_until

T = TypeVar("T")


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """A fake cluster on a loop and thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> FakeCluster:
        return await FakeCluster().__aenter__()

    fake = asyncio.run_coroutine_threadsafe(start(), loop).result()
    yield fake

    async def end() -> None:
        await fake.__aexit__()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(end(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_every_method_answers_as_the_asynchronous_one(cluster: FakeCluster) -> None:
    with Client(cluster.urls, timeout=60.0) as store:
        version = store.put("a", "1")
        found = store.get(b"a")
        assert found is not None
        assert (found.value, found.version) == (b"1", version)
        assert store.txn([Compare(b"a", "value", "==", b"1")], [Add(b"a", 1), Get(b"a")]).results[0].value == 2
        for i in range(5):
            store.put(f"s{i}", b"")
        assert [entry.key for entry in store.scan("s", page_size=2)] == [b"s%d" % i for i in range(5)]
        assert len(list(store.scan_pages("s", page_size=2))) == 3
        assert store.delete("a")
        assert store.get("a") is None
        assert store.cluster()["protocol"] == "fake"


@pytest.mark.usefixtures("few_attempts")
def test_exceptions_come_through(cluster: FakeCluster) -> None:
    with Client(cluster.urls, timeout=60.0) as store:
        store.put("a", "1")
        with pytest.raises(ConditionFailed):
            store.put("a", "2", if_absent=True)
        for replica in cluster.replicas:
            replica.always = "reset_after"
        with pytest.raises(OutcomeUnknown):
            store.put("a", "2")


def test_interactive_transactions(cluster: FakeCluster) -> None:
    with Client(cluster.urls, timeout=60.0) as store:
        with store.transaction() as t:
            assert t.get("n") is None
            t.put("n", "0")
        assert t.version is not None
        with pytest.raises(Conflict), store.transaction() as t:
            t.get("n")
            store.put("n", "0")
            t.delete("n")

        def increment(transaction) -> int:
            value = int(transaction.get("n")) + 1
            transaction.put("n", str(value))
            return value

        with ThreadPoolExecutor(4) as pool:
            values = list(pool.map(lambda _: store.transact(increment), range(8)))
        assert sorted(values) == list(range(1, 9))


def threads() -> set[threading.Thread]:
    """Those of clients that run."""
    return {thread for thread in threading.enumerate() if thread.name == "kvstore-client"}


def test_closing_ends_the_thread_and_may_be_repeated(cluster: FakeCluster) -> None:
    before = threads()
    store = Client(cluster.urls, timeout=60.0)
    store.put("a", "1")
    (mine,) = threads() - before
    store.close()
    store.close()
    assert not mine.is_alive()


def test_a_closed_client_says_so(cluster: FakeCluster) -> None:
    store = Client(cluster.urls)
    with pytest.raises(ClosedClient), store.transaction() as unfinished:
        unfinished.get("a")
        store.close()
        for request in (lambda: store.get("a"), lambda: store.put("a", "1"), lambda: next(store.scan())):
            with pytest.raises(ClosedClient):
                request()
        unfinished.put("a", "1")
    assert cluster.rows == {}


def test_closing_ends_what_other_threads_wait_for(cluster: FakeCluster) -> None:
    store = Client(cluster.urls, timeout=60.0, attempt_timeout=50.0)
    store.get("warm")
    for replica in cluster.replicas:
        replica.always = "hang"
    with ThreadPoolExecutor(2) as pool:
        read, write = pool.submit(store.get, "r"), pool.submit(store.put, "w", "1")
        wait_until(lambda: cluster.paths >= {"/v1/kv/r", "/v1/kv/w"})
        store.close()
        assert isinstance(read.exception(60), ClosedClient)
        assert isinstance(write.exception(60), OutcomeUnknown)


def in_child(work: Callable[[], object]) -> None:
    """Do it in a forked process, and fail if it fails there, or takes more than a minute."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_client_made_before_a_fork_serves_parent_and_child(cluster: FakeCluster) -> None:
    made, other = (Client(cluster.urls, timeout=60.0) for _ in range(2))
    with made as store, other as unused, store.transaction() as begun:
        store.put("a", "parent's")
        app = store.namespace("app/")
        app.put("k", "parent's")

        @transactional
        def noted(t: Transaction, key: str) -> bytes | None:
            t.put("noted", "")
            return t.get(key)

        def child() -> None:
            assert store.get("a").value == b"parent's"
            store.put("a", "child's")
            unused.delete("b")
            with pytest.raises(ForeignLoop):
                begun.get("a")
            in_child(lambda: store.put("b", "grandchild's"))
            assert app.with_codec(codecs.TEXT).get("k").value == "parent's"
            assert noted(app, "k") == b"parent's"
            assert store.get("b").value == b"grandchild's"
            store.close()
            with pytest.raises(ClosedClient):
                store.get("a")

        in_child(child)
        in_child(store.close)
        assert store.get("a").value == b"child's"
        assert unused.get("b").value == b"grandchild's"


def test_a_client_closed_before_a_fork_is_closed_in_the_child(cluster: FakeCluster) -> None:
    store = Client(cluster.urls)
    store.close()

    def child() -> None:
        with pytest.raises(ClosedClient):
            store.get("a")

    in_child(child)
    assert cluster.replicas[0].seen == []


def test_a_wrong_target_is_one_clear_line(tmp_path) -> None:
    before = threads()
    for target, words in (
        (str(tmp_path), "neither a URL, nor host:port, nor the directory of a cluster"),
        ("ftp://127.0.0.1", "not an http:// or https:// URL"),
    ):
        with pytest.raises(ValueError, match=words):
            Client(target)
    (tmp_path / "cluster.json").write_text('{"replicas": 1}')
    with pytest.raises(ValueError, match=r"cluster\.json"):
        Client(tmp_path)
    assert threads() == before


@pytest.mark.parametrize("name", ["get", "put", "delete", "txn", "cluster"])
def test_help_shows_what_the_methods_of_both_clients_take(name: str) -> None:
    blocking, waiting = getattr(Client, name), getattr(AsyncClient, name)
    made = getattr(requests if name == "cluster" else Keyspace, name)
    assert blocking.__doc__ == waiting.__doc__ == made.__doc__
    assert list(signature(blocking).parameters)[1:] == [own for own in signature(made).parameters if own != "self"]
    assert signature(blocking).parameters == signature(waiting).parameters
