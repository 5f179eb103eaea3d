"""The synchronous client: the asynchronous one, run by a thread of its own (`client_sdk.blocking`)."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from functools import partial
from pathlib import Path
from typing import Concatenate, Generic, ParamSpec, TypeVar, Unpack

from tenacity import Retrying

from client_sdk import requests
from client_sdk.async_client import (
    ATTEMPT_TIMEOUT_SECONDS,
    REFRESH_SECONDS,
    TIMEOUT_SECONDS,
    TTL_SECONDS,
    AsyncClient,
)
from client_sdk.blocking import Election, LoopThread, Session, Transaction
from client_sdk.codecs import Codec
from client_sdk.connections import Transport
from client_sdk.interactive import Conflicts, InteractiveTransaction, conflict_policy
from client_sdk.keyspace import ALL_KEYS, Keyspace
from client_sdk.observing import Observed, OnDone
from client_sdk.requests import Request, documented_by
from client_sdk.routing import find_place
from client_sdk.sessions import Lock
from client_sdk.typed import Entry, Reading, Scanning, Update, Values, Watching, Writing
from kvstore.api.answers import Page
from kvstore.api.model import KeyValue
from multicast.types import Timestamp

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")


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


def _iterating(
    method: Callable[Concatenate[AsyncClient, P], AsyncIterator[T]],
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    """This method, for blocking code."""
    returns = str(inspect.signature(method).return_annotation).removeprefix("Async")

    @documented_by(method, returns=returns)
    def iterating(self: Client, /, *args: P.args, **named: P.kwargs) -> Iterator[T]:
        return self._thread.iterate(method(self._client, *args, **named))

    return iterating


def _entries(
    pages: Callable[Concatenate[AsyncClient, P], AsyncIterator[Page]],
) -> Callable[Concatenate[Client, P], Iterator[KeyValue]]:
    """`scan`, given `scan_pages`. It asks the other thread once per page, not once per entry."""

    @documented_by(pages, returns="Iterator[KeyValue]")
    def scan(self: Client, /, *args: P.args, **named: P.kwargs) -> Iterator[KeyValue]:
        """See `AsyncClient.scan`."""
        told = self._thread.iterate(pages(self._client, *args, **named))
        return (entry for page in told for entry in page.entries)

    scan.__name__ = "scan"
    return scan


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
        cluster_id: str | None = None,
        on_done: OnDone | None = None,
    ):
        if not isinstance(target, Transport):  # what a directory says is read once
            place = find_place(target)
            target, ca = place.urls, place.authority if ca is None else ca
            cluster_id = place.cluster_id if cluster_id is None else cluster_id
        make = partial(
            AsyncClient, target, timeout=timeout, attempt_timeout=attempt_timeout, refresh=refresh, rng=rng, ca=ca,
            token=token, cluster_id=cluster_id, on_done=on_done,
        )  # fmt: skip
        self._thread = LoopThread(make)
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

    leases = _iterating(AsyncClient.leases)
    scan_pages = _iterating(AsyncClient.scan_pages)
    scan = _entries(AsyncClient.scan_pages)
    watch = _iterating(AsyncClient.watch)

    @contextmanager
    def session(self, *, ttl: float = TTL_SECONDS, timeout: float | None = None) -> Iterator[Session]:
        """See `AsyncClient.session`."""
        with self._thread.within(self._client.session(ttl=ttl, timeout=timeout)) as inner:
            yield Session(self._thread, inner)

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
            seconds = attempts.timeout if timeout is None else timeout
            deadline = seen.began + requests.positive_seconds("timeout", seconds)
            conflicts = Conflicts(attempts.attempt_timeout)
            for attempt in Retrying(**conflict_policy(deadline)):
                with attempt, conflicts.attempt():
                    seen.attempts += 1
                    left = max(deadline - time.monotonic(), 0.001)
                    with self.transaction(timeout=left) as transaction:
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

    def put(self, key: bytes | str, value: V, *, lease: bytes | None = None) -> None:
        """See `InteractiveTransaction.put`."""
        self._inner.put(key, self._codec.encode(value), lease=lease)

    def delete(self, key: bytes | str) -> None:
        """See `InteractiveTransaction.delete`."""
        self._inner.delete(key)
