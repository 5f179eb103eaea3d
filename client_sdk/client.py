"""The synchronous client: the asynchronous one, run by a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from tenacity import Retrying

from client_sdk import requests
from client_sdk.async_client import AsyncClient
from client_sdk.interactive import InteractiveTransaction, conflict_policy
from client_sdk.requests import Request, documented_by
from kvstore.api.codec import Page
from kvstore.api.model import KeyValue
from multicast.types import Timestamp

P = ParamSpec("P")
T = TypeVar("T")


def _method(make: Callable[P, Request[T]]) -> Callable[Concatenate[Client, P], T]:
    """The method that makes this request and blocks until it is answered."""

    @documented_by(make)
    def method(self: Client, /, *args: P.args, **named: P.kwargs) -> T:
        return self._wait_for(self._client.attempts.run(make(*args, **named)))

    return method


class Transaction:
    """`InteractiveTransaction` for blocking code."""

    def __init__(self, client: Client, inner: InteractiveTransaction):
        self._client = client
        self._inner = inner

    @property
    def version(self) -> Timestamp | None:
        """The commit's version, once it has committed."""
        return self._inner.version

    def get(self, key: bytes | str) -> bytes | None:
        """See `InteractiveTransaction.get`."""
        return self._client._wait_for(self._inner.get(key))

    def put(self, key: bytes | str, value: bytes | str) -> None:
        """See `InteractiveTransaction.put`."""
        self._inner.put(key, value)

    def delete(self, key: bytes | str) -> None:
        """See `InteractiveTransaction.delete`."""
        self._inner.delete(key)


class Client:
    """`AsyncClient` for blocking code: the same methods, arguments and exceptions. Any number of threads may use it.

    Use it with `with`, or call `close()` at the end.
    """

    def __init__(self, target: str | Path | Sequence[str], **options: Any):
        self._client = AsyncClient(target, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kvstore-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection and end the thread. Idempotent."""
        if not self._loop.is_closed():
            self._wait_for(self._client.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # An interrupted caller must not leave its request running.
            future.cancel()
            raise

    def _iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        async def step() -> tuple[T] | None:
            async for item in items:
                return (item,)
            return None

        while (item := self._wait_for(step())) is not None:
            yield item[0]

    get = _method(requests.get)
    put = _method(requests.put)
    delete = _method(requests.delete)
    txn = _method(requests.txn)
    cluster = _method(requests.cluster)

    def scan_pages(
        self, prefix: bytes | str = b"", *, page_size: int = 100, timeout: float | None = None
    ) -> Iterator[Page]:
        """See `AsyncClient.scan_pages`."""
        return self._iterate(self._client.scan_pages(prefix, page_size=page_size, timeout=timeout))

    def scan(
        self, prefix: bytes | str = b"", *, page_size: int = 100, timeout: float | None = None
    ) -> Iterator[KeyValue]:
        """See `AsyncClient.scan`."""
        for page in self.scan_pages(prefix, page_size=page_size, timeout=timeout):
            yield from page.entries

    @contextmanager
    def transaction(self, *, timeout: float | None = None) -> Iterator[Transaction]:
        """See `AsyncClient.transaction`."""
        inner = InteractiveTransaction(self._client.attempts, timeout)
        yield Transaction(self, inner)
        self._wait_for(inner.commit())

    def transact(self, function: Callable[[Transaction], T], *, timeout: float | None = None) -> T:
        """See `AsyncClient.transact`. `function` runs in the caller's thread."""
        deadline = time.monotonic() + (self._client.attempts.timeout if timeout is None else timeout)
        for attempt in Retrying(**conflict_policy(deadline)):
            with attempt, self.transaction(timeout=deadline - time.monotonic()) as transaction:
                result = function(transaction)
        return result
