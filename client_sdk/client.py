"""The synchronous client: the asynchronous one, run by a thread of its own.

A thread does not survive `fork`, so in a child process the client begins anew, with connections and a thread of its
own. What it had before the fork is the parent's, and is left as it is: the two share sockets and what watches them.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import threading
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack

from tenacity import Retrying

from client_sdk import requests, sessions
from client_sdk.async_client import (
    ATTEMPT_TIMEOUT_SECONDS,
    REFRESH_SECONDS,
    TIMEOUT_SECONDS,
    TTL_SECONDS,
    AsyncClient,
)
from client_sdk.codecs import Codec
from client_sdk.connections import Transport
from client_sdk.errors import ClosedClient
from client_sdk.interactive import InteractiveTransaction, conflict_policy
from client_sdk.keyspace import ALL_KEYS, Keyspace
from client_sdk.observing import Observed, OnDone
from client_sdk.requests import Lease, Request, documented_by
from client_sdk.routing import find_authority, find_urls
from client_sdk.sessions import Lock, Session
from client_sdk.typed import Entry, Reading, Scanning, Update, Values, Watching, Writing
from kvstore.api.answers import Page
from kvstore.api.events import Event
from kvstore.api.model import Consistency, KeyValue
from multicast.types import Timestamp

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

_threads: weakref.WeakSet[_Thread] = weakref.WeakSet()
_of_parents: list[object] = []


def _method(make: Callable[P, Request[T]]) -> Callable[Concatenate[Client, P], T]:
    """The method that makes this request and blocks until it is answered."""

    @documented_by(make)
    def method(self: Client, /, *args: P.args, **named: P.kwargs) -> T:
        return self.run(make(*args, **named))

    return method


def _of_keys(make: Callable[Concatenate[Keyspace, P], Request[T]]) -> Callable[Concatenate[Client, P], T]:
    """The same for a request about the client's keys."""

    @documented_by(make)
    def method(self: Client, /, *args: P.args, **named: P.kwargs) -> T:
        return self.run(make(self._keys, *args, **named))

    return method


class Transaction:
    """`InteractiveTransaction` for blocking code."""

    def __init__(self, thread: _Thread, inner: InteractiveTransaction):
        self._thread = thread
        self._inner = inner

    @property
    def version(self) -> Timestamp | None:
        """The commit's version, once it has committed."""
        return self._inner.version

    def get(self, key: bytes | str) -> bytes | None:
        """See `InteractiveTransaction.get`."""
        return self._thread.wait_for(self._inner.get(key))

    def scan(
        self, prefix: bytes | str = b"", *, start: bytes | str = b"", end: bytes | str = b""
    ) -> dict[bytes, bytes]:
        """See `InteractiveTransaction.scan`."""
        return self._thread.wait_for(self._inner.scan(prefix, start=start, end=end))

    def put(self, key: bytes | str, value: bytes | str) -> None:
        """See `InteractiveTransaction.put`."""
        self._inner.put(key, value)

    def delete(self, key: bytes | str) -> None:
        """See `InteractiveTransaction.delete`."""
        self._inner.delete(key)


class Election:
    """`sessions.Election` for blocking code."""

    def __init__(self, thread: _Thread, inner: sessions.Election):
        self._thread = thread
        self._inner = inner

    @property
    def lost(self) -> bool:
        """See `sessions.Election.lost`."""
        return self._inner.lost

    def campaign(self, value: bytes | str, timeout: float | None = None) -> Timestamp:
        """See `sessions.Election.campaign`."""
        return self._thread.wait_for(self._inner.campaign(value, timeout))

    def proclaim(self, value: bytes | str) -> None:
        """See `sessions.Election.proclaim`."""
        self._thread.wait_for(self._inner.proclaim(value))

    def leader(self) -> KeyValue | None:
        """See `sessions.Election.leader`."""
        return self._thread.wait_for(self._inner.leader())

    def resign(self) -> None:
        """See `sessions.Election.resign`."""
        self._thread.wait_for(self._inner.resign())

    def observe(self) -> Iterator[KeyValue]:
        """See `sessions.Election.observe`."""
        return self._thread.iterate(self._inner.observe())


async def _entered(block: AbstractAsyncContextManager[T]) -> T:
    return await block.__aenter__()


async def _left(block: AbstractAsyncContextManager[Any]) -> None:
    await block.__aexit__(None, None, None)


class _Thread:
    """Runs an AsyncClient, of this process. make: one."""

    def __init__(self, make: Callable[[], AsyncClient]):
        self._make = make
        self._closed = False
        self._begin()
        _threads.add(self)

    def _begin(self) -> None:
        """Nothing runs, until the first request."""
        self.client = self._make()
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None
        self._lock = threading.Lock()
        self._waiting: set[Future[Any]] = set()

    def begin_in_child(self) -> None:
        """What was the parent's is kept for good: at its end it would close what the parent still uses."""
        _of_parents.append((self.client, self._running))
        self._begin()

    def close(self) -> None:
        """See `Client.close`."""
        with self._lock:
            self._closed = True
            running, self._running = self._running, None
        if running is not None:
            loop, thread = running
            asyncio.run_coroutine_threadsafe(self.client.close(), loop).result()
            wait(list(self._waiting))
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of it."""
        with self._lock:
            if self._closed:
                work.close()
                raise ClosedClient("the client was closed")
            if self._running is None:
                loop = asyncio.new_event_loop()
                self._running = loop, threading.Thread(target=loop.run_forever, name="kvstore-client", daemon=True)
                self._running[1].start()
            future = asyncio.run_coroutine_threadsafe(work, self._running[0])
            self._waiting.add(future)
        try:
            return future.result()
        except BaseException:
            # An interrupted caller must not leave its request running.
            future.cancel()
            raise
        finally:
            self._waiting.discard(future)

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The same items."""

        async def step() -> tuple[T] | None:
            async for item in items:
                return (item,)
            return None

        try:
            while (item := self.wait_for(step())) is not None:
                yield item[0]
        finally:
            if isinstance(items, AsyncGenerator) and not self._closed:
                with suppress(RuntimeError):  # who was interrupted has cancelled it
                    self.wait_for(items.aclose())

    @contextmanager
    def within(self, block: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """The same block for blocking code."""
        entered = self.wait_for(_entered(block))
        try:
            yield entered
        finally:
            self.wait_for(_left(block))


class Client:
    """`AsyncClient` for blocking code: the same methods, arguments and exceptions. Any number of threads may use it,
    and so may processes forked from this one.

    Use it with `with`, or call `close()` at the end.
    """

    def __init__(
        self,
        target: str | Path | Sequence[str] | Transport,
        *,
        timeout: float = TIMEOUT_SECONDS,
        attempt_timeout: float = ATTEMPT_TIMEOUT_SECONDS,
        refresh: float = REFRESH_SECONDS,
        rng: random.Random | None = None,
        ca: str | Path | None = None,
        token: str | None = None,
        on_done: OnDone | None = None,
    ):
        if not isinstance(target, Transport):  # what a directory says is read once
            target, ca = find_urls(target), find_authority(target) if ca is None else ca
        make = partial(
            AsyncClient, target, timeout=timeout, attempt_timeout=attempt_timeout, refresh=refresh, rng=rng, ca=ca,
            token=token, on_done=on_done,
        )  # fmt: skip
        self._thread = _Thread(make)
        self._keys = ALL_KEYS

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection and end the thread. Idempotent; the client is of no use afterwards, which those who
        wait in other threads are told."""
        self._thread.close()

    @property
    def _client(self) -> AsyncClient:
        """That of this process, for these keys."""
        return self._thread.client.namespace(self._keys.prefix)

    def run(self, request: Request[T]) -> T:
        """See `AsyncClient.run`."""
        return self._thread.wait_for(self._thread.client.run(request))

    def namespace(self, prefix: bytes | str) -> Client:
        """See `AsyncClient.namespace`."""
        view = copy(self)
        view._keys = self._keys.within(prefix)
        return view

    def with_codec(self, codec: Codec[V]) -> Typed[V]:
        """See `AsyncClient.with_codec`."""
        return Typed(self, codec)

    get = _of_keys(Keyspace.get)
    put = _of_keys(Keyspace.put)
    delete = _of_keys(Keyspace.delete)
    delete_range = _of_keys(Keyspace.delete_range)
    count = _of_keys(Keyspace.count)
    txn = _of_keys(Keyspace.txn)
    grant_lease = _method(requests.grant_lease)
    lease = _of_keys(Keyspace.lease)
    renew_lease = _method(requests.renew_lease)
    revoke_lease = _method(requests.revoke_lease)
    outcome = _method(requests.outcome)
    cluster = _method(requests.cluster)

    def leases(self, *, timeout: float | None = None) -> Iterator[Lease]:
        """See `AsyncClient.leases`."""
        return self._thread.iterate(self._client.leases(timeout=timeout))

    def scan_pages(
        self,
        prefix: bytes | str = b"",
        *,
        start: bytes | str = b"",
        end: bytes | str = b"",
        reverse: bool = False,
        keys_only: bool = False,
        page_size: int = 100,
        version: Timestamp | None = None,
        consistency: Consistency = "linearizable",
        max_age: float | None = None,
        timeout: float | None = None,
    ) -> Iterator[Page]:
        """See `AsyncClient.scan_pages`."""
        return self._thread.iterate(
            self._client.scan_pages(
                prefix, start=start, end=end, reverse=reverse, keys_only=keys_only, page_size=page_size,
                version=version, consistency=consistency, max_age=max_age, timeout=timeout,
            )
        )  # fmt: skip

    def scan(
        self,
        prefix: bytes | str = b"",
        *,
        start: bytes | str = b"",
        end: bytes | str = b"",
        reverse: bool = False,
        keys_only: bool = False,
        page_size: int = 100,
        version: Timestamp | None = None,
        consistency: Consistency = "linearizable",
        max_age: float | None = None,
        timeout: float | None = None,
    ) -> Iterator[KeyValue]:
        """See `AsyncClient.scan`."""
        pages = self.scan_pages(
            prefix, start=start, end=end, reverse=reverse, keys_only=keys_only, page_size=page_size, version=version,
            consistency=consistency, max_age=max_age, timeout=timeout,
        )  # fmt: skip
        for page in pages:
            yield from page.entries

    def watch(
        self,
        prefix: bytes | str = b"",
        *,
        start: bytes | str = b"",
        end: bytes | str = b"",
        after: Timestamp | None = None,
        progress: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Event]:
        """See `AsyncClient.watch`."""
        return self._thread.iterate(
            self._client.watch(prefix, start=start, end=end, after=after, progress=progress, timeout=timeout)
        )

    def session(self, *, ttl: float = TTL_SECONDS, timeout: float | None = None) -> AbstractContextManager[Session]:
        """See `AsyncClient.session`."""
        return self._thread.within(self._client.session(ttl=ttl, timeout=timeout))

    def lock(
        self, name: str, *, ttl: float = TTL_SECONDS, timeout: float | None = None
    ) -> AbstractContextManager[Lock]:
        """See `AsyncClient.lock`."""
        return self._thread.within(self._client.lock(name, ttl=ttl, timeout=timeout))

    @contextmanager
    def election(self, name: str, *, ttl: float = TTL_SECONDS) -> Iterator[Election]:
        """See `AsyncClient.election`."""
        with self._thread.within(self._client.election(name, ttl=ttl)) as inner:
            yield Election(self._thread, inner)

    @contextmanager
    def transaction(self, *, timeout: float | None = None) -> Iterator[Transaction]:
        """See `AsyncClient.transaction`."""
        inner = InteractiveTransaction(self._thread.client.attempts, self._keys, timeout)
        yield Transaction(self._thread, inner)
        self._thread.wait_for(inner.commit())

    def transact(self, function: Callable[[Transaction], T], *, timeout: float | None = None) -> T:
        """See `AsyncClient.transact`. `function` runs in the caller's thread."""
        attempts = self._thread.client.attempts
        with Observed(attempts.on_done, "transact") as seen:
            deadline = seen.began + (attempts.timeout if timeout is None else timeout)
            for attempt in Retrying(**conflict_policy(deadline)):
                with attempt:
                    seen.attempts += 1
                    with self.transaction(timeout=deadline - time.monotonic()) as transaction:
                        result = function(transaction)
                        if inspect.iscoroutine(result):
                            result.close()
                            raise TypeError("function: an async function is for an AsyncClient")
        return result


class Typed(Values[V]):
    """`AsyncTyped` for blocking code."""

    def __init__(self, client: Client, codec: Codec[V]):
        super().__init__(codec)
        self._client = client

    def get(self, key: bytes | str, **how: Unpack[Reading]) -> Entry[V] | None:
        """See `AsyncClient.get`."""
        found = self._client.get(key, **how)
        return None if found is None else self.entry(found)

    def put(self, key: bytes | str, value: V, **how: Unpack[Writing]) -> Timestamp:
        """See `AsyncClient.put`."""
        return self._client.put(key, self.codec.encode(value), **how)

    def scan(self, prefix: bytes | str = b"", **how: Unpack[Scanning]) -> Iterator[Entry[V]]:
        """See `AsyncClient.scan`."""
        return map(self.entry, self._client.scan(prefix, **how))

    def watch(self, prefix: bytes | str = b"", **how: Unpack[Watching]) -> Iterator[Update[V]]:
        """See `AsyncTyped.watch`."""
        for event in self._client.watch(prefix, **how):
            yield from self.updates(event)

    def transact(self, function: Callable[[TypedTransaction[V]], T], *, timeout: float | None = None) -> T:
        """See `AsyncClient.transact`."""
        codec = self.codec
        return self._client.transact(lambda t: function(TypedTransaction(t, codec)), timeout=timeout)


class TypedTransaction(Generic[V]):
    """`Transaction` for these values."""

    def __init__(self, inner: Transaction, codec: Codec[V]):
        self._inner = inner
        self._codec = codec

    def get(self, key: bytes | str) -> V | None:
        """See `InteractiveTransaction.get`."""
        data = self._inner.get(key)
        return None if data is None else self._codec.read(key.encode() if isinstance(key, str) else key, data)

    def scan(self, prefix: bytes | str = b"", *, start: bytes | str = b"", end: bytes | str = b"") -> dict[bytes, V]:
        """See `InteractiveTransaction.scan`."""
        found = self._inner.scan(prefix, start=start, end=end)
        return {key: self._codec.read(key, data) for key, data in found.items()}

    def put(self, key: bytes | str, value: V) -> None:
        """See `InteractiveTransaction.put`."""
        self._inner.put(key, self._codec.encode(value))

    def delete(self, key: bytes | str) -> None:
        """See `InteractiveTransaction.delete`."""
        self._inner.delete(key)


def _in_child() -> None:
    for thread in list(_threads):
        thread.begin_in_child()


os.register_at_fork(after_in_child=_in_child)
