"""The asynchronous client."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import copy
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack

from tenacity import AsyncRetrying

from client_sdk import requests, sessions
from client_sdk.attempts import Attempts
from client_sdk.codecs import Codec
from client_sdk.connections import Transport
from client_sdk.interactive import Conflicts, InteractiveTransaction, conflict_policy
from client_sdk.keyspace import ALL_KEYS, Keyspace
from client_sdk.observing import Observed, OnDone
from client_sdk.operations import of_type
from client_sdk.requests import Lease, Request, documented_by
from client_sdk.routing import Router, find_place
from client_sdk.sessions import Election, Lock, Session
from client_sdk.typed import Entry, Reading, Scanning, Update, Values, Watching, Writing
from kvstore.api.answers import Page
from kvstore.api.events import Event
from kvstore.api.model import SCAN_LIMIT_MAX, Consistency, KeyValue
from multicast.types import Timestamp

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

TIMEOUT_SECONDS = 10.0
ATTEMPT_TIMEOUT_SECONDS = 2.0
REFRESH_SECONDS = 2.0
TTL_SECONDS = 10.0


Method = Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, T]]


def _method(make: Callable[P, Request[T]]) -> Method[P, T]:
    """The method that makes this request, sends it, and returns what its answer says."""

    @documented_by(make)
    async def method(self: AsyncClient, /, *args: P.args, **named: P.kwargs) -> T:
        return await self.run(make(*args, **named))

    return method


def _of_keys(make: Callable[Concatenate[Keyspace, P], Request[T]]) -> Method[P, T]:
    """The same for a request about the client's keys."""

    @documented_by(make)
    async def method(self: AsyncClient, /, *args: P.args, **named: P.kwargs) -> T:
        return await self.run(make(self.keys, *args, **named))

    return method


def _entries(
    pages: Callable[Concatenate[AsyncClient, P], AsyncIterator[Page]],
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[KeyValue]]:
    """`scan`, given `scan_pages`: it takes the same arguments."""

    @documented_by(pages, returns="AsyncIterator[KeyValue]")
    async def scan(self: AsyncClient, /, *args: P.args, **named: P.kwargs) -> AsyncIterator[KeyValue]:
        """The entries of `scan_pages`, one by one."""
        async for page in pages(self, *args, **named):
            for entry in page.entries:
                yield entry

    scan.__name__ = "scan"
    return scan


class AsyncClient:
    """A client of one cluster, for one event loop. Use it with `async with`, or `await close()` at the end.

    target: a base URL, several with commas or as a list, the directory of a local cluster, or, in tests, a store in
        memory (`client_sdk.testing`).
    timeout: seconds within which a request, with all its retries, is decided one way or the other; every method takes
        its own. Keep it well below the cluster's deduplication window (2 minutes by default).
    attempt_timeout: seconds after which an attempt that was not answered is repeated elsewhere. It is also what the
        server is told in `X-Timeout-Ms`.
    refresh: seconds after which the view of the cluster (shard map, leaders) is renewed in the background; failures
        renew it at once.
    ca: the file (PEM) with the certificate authority that replicas' certificates must be of; by default that of the
        cluster in the directory, else what the environment has in KVSTORE_CA, else what the system trusts. It is
        read again when it has changed.
    token: who the client is, where the cluster wants to know; by default what the environment has in KVSTORE_TOKEN.
    cluster_id: of the cluster that is meant: replicas of another one are asked for nothing. By default that of the
        cluster in the directory; of a URL that of whoever answers.
    on_done: called with a `Done` after each request, and each `transact`, for metrics, by whoever runs the client: it
        must be quick, and not use a blocking client itself. What it raises is logged, and changes nothing.
    ValueError if `target` is no URL and no cluster, `ca` cannot be read, or `token` or `cluster_id` is none.
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
        transport = target if isinstance(target, Transport) else None
        place = find_place(target.urls if isinstance(target, Transport) else target)
        router = Router(place.urls, rng or random.Random(), place.cluster_id if cluster_id is None else cluster_id)
        authority = place.authority if ca is None else Path(ca)
        self.attempts = Attempts(router, timeout, attempt_timeout, refresh, authority, token, transport, on_done)
        self.keys = ALL_KEYS

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. Idempotent; the client is of no use afterwards."""
        await self.attempts.close()

    async def run(self, request: Request[T]) -> T:
        """Send a request of `client_sdk.requests` and return what its answer says. All methods do this."""
        return await self.attempts.run(request)

    def namespace(self, prefix: bytes | str) -> AsyncClient:
        """This client for the keys that begin with `prefix`. It adds the prefix to all keys that it sends and takes it
        off those that it gets: of keys, scans, watches, transactions, and the names of locks and elections. ValueError
        if the prefix has an empty `{}` in it. It shares the connections: closing one closes both."""
        view = copy(self)
        view.keys = self.keys.within(prefix)
        return view

    def with_codec(self, codec: Codec[V]) -> AsyncTyped[V]:
        """This client for values that the codec makes into bytes; see `client_sdk.codecs`."""
        return AsyncTyped(self, codec)

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

    async def leases(self, *, timeout: float | None = None) -> AsyncIterator[Lease]:
        """All leases, in the order of their grants, page by page: each page is of one instant. Where there are tokens,
        only for those who may "admin". `timeout` is for each page."""
        more, after = True, b""
        while more:
            found, more = await self.run(requests.leases_after(after, SCAN_LIMIT_MAX, timeout=timeout))
            for lease in found:
                yield lease
                after = lease.id

    async def scan_pages(
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
    ) -> AsyncIterator[Page]:
        """The keys that begin with `prefix`, are not less than `start` and less than `end`, in order, or with `reverse`
        from the last to the first; page by page; with `keys_only` without their values. All are as they were at
        one point of the order, that of the first page, or `version`; `consistency` and `max_age` of the first page are
        as in `get`. Compacted if that is too long ago for the next page; in a cluster that keeps no history each page
        is of another version. `timeout` is for each page."""
        token: str | None = None
        while True:
            page = await self.run(
                self.keys.page(
                    prefix, start=start, end=end, reverse=reverse, keys_only=keys_only, page_size=page_size,
                    token=token, version=version, consistency=consistency, max_age=max_age, timeout=timeout,
                )
            )  # fmt: skip
            yield page
            token = page.next_page_token
            if token is None:
                return

    scan = _entries(scan_pages)

    async def watch(
        self,
        prefix: bytes | str = b"",
        *,
        key: bytes | str | None = None,
        start: bytes | str = b"",
        end: bytes | str = b"",
        after: Timestamp | None = None,
        progress: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[Event]:
        """Every transaction that changes keys which begin with `prefix`, are not less than `start` and less than `end`,
        or one `key`, from now on, or `after` a version: of all shards in the order of versions, once each; `changes`
        has what it changed there. Nothing is asked before the first event is: "now" is then, so that whoever must miss
        nothing that is written after this call names a version. It goes on at another replica when one fails, and ends
        with Compacted if what follows is no longer known, or with Unavailable when nobody has served it for `timeout`
        seconds while an event was waited for. progress: events of that `kind`, too, without changes: everything up to
        their version was told."""
        query = self.keys.watched(key, prefix, start, end)
        if after is not None:
            of_type("after", after, Timestamp)
        async for event in self.attempts.watch(query, after, progress, timeout):
            yield self.keys.event(event)

    def session(
        self, *, ttl: float = TTL_SECONDS, timeout: float | None = None
    ) -> AbstractAsyncContextManager[Session]:
        """A lease that is renewed until the block ends, and then revoked. `timeout` is for its grant."""
        return sessions.session(self.attempts, ttl, timeout)

    def lock(
        self, name: str, *, ttl: float = TTL_SECONDS, timeout: float | None = None
    ) -> AbstractAsyncContextManager[Lock]:
        """Hold the lock of this name while the block runs; nobody else who asks for it holds it then. `timeout`:
        TimeoutError if others have it for so many seconds, Unavailable or OutcomeUnknown if nobody answers in that
        time; None: wait. The lock is lost (see `Lock`) if it cannot be renewed for `ttl` seconds; for so long others
        wait if this process dies."""
        return sessions.lock(self.attempts, self.keys, name, ttl, timeout)

    @asynccontextmanager
    async def election(self, name: str, *, ttl: float = TTL_SECONDS) -> AsyncIterator[Election]:
        """Take part in the election of this name, or only observe it. At the end of the block this session resigns."""
        async with self.session(ttl=ttl) as own:
            yield Election(self.attempts, self.keys, name, own)

    @asynccontextmanager
    async def transaction(self, *, timeout: float | None = None) -> AsyncIterator[InteractiveTransaction]:
        """One attempt at an interactive transaction; commits where the block ends, unless it raised.

        Conflict if something that was read has changed since. See `interactive.InteractiveTransaction`.
        """
        transaction = InteractiveTransaction(self.attempts, self.keys, timeout)
        yield transaction
        await transaction.commit()

    async def transact(
        self, function: Callable[[InteractiveTransaction], Awaitable[T]], *, timeout: float | None = None
    ) -> T:
        """Run `function` in an interactive transaction, again after each Conflict, until it commits; returns what it
        returned.

        `function` must be fit to run several times. After `timeout` seconds the last Conflict is raised. An
        OutcomeUnknown is raised at once: running again could do the work twice.
        """
        with Observed(self.attempts.on_done, "transact") as seen:
            seconds = self.attempts.timeout if timeout is None else timeout
            deadline = seen.began + requests.positive_seconds("timeout", seconds)
            conflicts = Conflicts(self.attempts.attempt_timeout)
            async for attempt in AsyncRetrying(**conflict_policy(deadline)):
                with attempt, conflicts.attempt():
                    seen.attempts += 1
                    left = max(deadline - time.monotonic(), 0.001)
                    async with self.transaction(timeout=left) as transaction:
                        result = await function(transaction)
        return result


class AsyncTyped(Values[V]):
    """An `AsyncClient` for values that a codec makes into bytes: it has what concerns values, with the arguments of the
    methods of these names there; all else is asked of the client itself. Undecodable names a key that holds no such
    value. Made by `with_codec`."""

    def __init__(self, client: AsyncClient, codec: Codec[V]):
        super().__init__(codec)
        self._client = client

    async def get(self, key: bytes | str, **how: Unpack[Reading]) -> Entry[V] | None:
        """See `AsyncClient.get`."""
        found = await self._client.get(key, **how)
        return None if found is None else self.entry(found)

    async def put(self, key: bytes | str, value: V, **how: Unpack[Writing]) -> Timestamp:
        """See `AsyncClient.put`."""
        return await self._client.put(key, self.codec.encode(value), **how)

    async def scan(self, prefix: bytes | str = b"", **how: Unpack[Scanning]) -> AsyncIterator[Entry[V]]:
        """See `AsyncClient.scan`."""
        async for found in self._client.scan(prefix, **how):
            yield self.entry(found)

    async def watch(self, prefix: bytes | str = b"", **how: Unpack[Watching]) -> AsyncIterator[Update[V]]:
        """See `AsyncClient.watch`; the keys of one transaction follow one another, at its version."""
        async for event in self._client.watch(prefix, **how):
            for update in self.updates(event):
                yield update

    async def transact(
        self, function: Callable[[AsyncTypedTransaction[V]], Awaitable[T]], *, timeout: float | None = None
    ) -> T:
        """See `AsyncClient.transact`."""
        codec = self.codec
        return await self._client.transact(lambda t: function(AsyncTypedTransaction(t, codec)), timeout=timeout)


class AsyncTypedTransaction(Generic[V]):
    """`InteractiveTransaction` for these values."""

    def __init__(self, inner: InteractiveTransaction, codec: Codec[V]):
        self._inner = inner
        self._codec = codec

    async def get(self, key: bytes | str) -> V | None:
        """See `InteractiveTransaction.get`."""
        data = await self._inner.get(key)
        return None if data is None else self._codec.read(key.encode() if isinstance(key, str) else key, data)

    async def scan(
        self, prefix: bytes | str = b"", *, start: bytes | str = b"", end: bytes | str = b""
    ) -> dict[bytes, V]:
        """See `InteractiveTransaction.scan`."""
        found = await self._inner.scan(prefix, start=start, end=end)
        return {key: self._codec.read(key, data) for key, data in found.items()}

    def put(self, key: bytes | str, value: V, *, lease: bytes | None = None) -> None:
        """See `InteractiveTransaction.put`."""
        self._inner.put(key, self._codec.encode(value), lease=lease)

    def delete(self, key: bytes | str) -> None:
        """See `InteractiveTransaction.delete`."""
        self._inner.delete(key)
