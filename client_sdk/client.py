"""The synchronous client: the asynchronous one, run by a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tenacity import Retrying

from client_sdk.async_client import TIMEOUT_SECONDS, AsyncClient, conflict_policy
from client_sdk.codec import Page
from client_sdk.interactive import InteractiveTransaction
from kvstore.api.model import Compare, Found, Operation, Result
from multicast.types import MessageId, Timestamp

T = TypeVar("T")


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

    def __init__(self, target: str | Path | Sequence[str], *, timeout: float = TIMEOUT_SECONDS, **options: Any):
        self._client = AsyncClient(target, timeout=timeout, **options)
        self._timeout = timeout
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

    def get(self, key: bytes | str, *, timeout: float | None = None) -> Found | None:
        """See `AsyncClient.get`."""
        return self._wait_for(self._client.get(key, timeout=timeout))

    def put(
        self,
        key: bytes | str,
        value: bytes | str,
        *,
        if_version: Timestamp | None = None,
        if_absent: bool = False,
        message_id: MessageId | None = None,
        timeout: float | None = None,
    ) -> Timestamp:
        """See `AsyncClient.put`."""
        return self._wait_for(
            self._client.put(
                key, value, if_version=if_version, if_absent=if_absent, message_id=message_id, timeout=timeout
            )
        )

    def delete(
        self,
        key: bytes | str,
        *,
        if_version: Timestamp | None = None,
        message_id: MessageId | None = None,
        timeout: float | None = None,
    ) -> bool:
        """See `AsyncClient.delete`."""
        return self._wait_for(self._client.delete(key, if_version=if_version, message_id=message_id, timeout=timeout))

    def txn(
        self,
        compare: Sequence[Compare] = (),
        success: Sequence[Operation] = (),
        failure: Sequence[Operation] = (),
        *,
        message_id: MessageId | None = None,
        timeout: float | None = None,
    ) -> Result:
        """See `AsyncClient.txn`."""
        return self._wait_for(self._client.txn(compare, success, failure, message_id=message_id, timeout=timeout))

    def scan_pages(
        self, prefix: bytes | str = b"", *, page_size: int = 100, timeout: float | None = None
    ) -> Iterator[Page]:
        """See `AsyncClient.scan_pages`."""
        return self._iterate(self._client.scan_pages(prefix, page_size=page_size, timeout=timeout))

    def scan(self, prefix: bytes | str = b"", *, page_size: int = 100, timeout: float | None = None) -> Iterator[Found]:
        """See `AsyncClient.scan`."""
        for page in self.scan_pages(prefix, page_size=page_size, timeout=timeout):
            yield from page.entries

    def cluster(self, url: str | None = None, *, timeout: float | None = None) -> dict[str, Any]:
        """See `AsyncClient.cluster`."""
        return self._wait_for(self._client.cluster(url, timeout=timeout))

    @contextmanager
    def transaction(self, *, timeout: float | None = None) -> Iterator[Transaction]:
        """See `AsyncClient.transaction`."""
        inner = InteractiveTransaction(self._client, timeout)
        yield Transaction(self, inner)
        self._wait_for(inner.commit())

    def transact(self, function: Callable[[Transaction], T], *, timeout: float | None = None) -> T:
        """See `AsyncClient.transact`. `function` runs in the caller's thread."""
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        for attempt in Retrying(**conflict_policy(deadline)):
            with attempt, self.transaction(timeout=deadline - time.monotonic()) as transaction:
                result = function(transaction)
        return result
