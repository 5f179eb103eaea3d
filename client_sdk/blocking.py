"""What runs an `AsyncClient` for blocking code, and what it hands out: transactions, sessions, elections.

A thread does not survive `fork`, so in a child process the client begins anew, with connections and a thread of its
own. What it had before the fork is the parent's, and is left as it is: the two share sockets and what watches them.

What runs in the thread itself cannot wait for it: a program's `on_done` is refused, and an iterator or block that the
garbage collector ends there, where it happens to run, is ended without waiting.

The thread does not know the client. So one that nobody closed, and nobody can use any more, is found by the garbage
collector, and its thread and its connections end: with a ResourceWarning, as Python's own files have it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any, TypeVar

from client_sdk import sessions
from client_sdk.async_client import AsyncClient
from client_sdk.errors import ClosedClient, ForeignLoop
from client_sdk.interactive import InteractiveTransaction
from kvstore.api.model import KeyValue
from multicast.types import Timestamp

T = TypeVar("T")

_threads: weakref.WeakSet[LoopThread] = weakref.WeakSet()
_of_parents: list[object] = []


async def _entered(block: AbstractAsyncContextManager[T]) -> T:
    return await block.__aenter__()


async def _left(block: AbstractAsyncContextManager[Any]) -> None:
    await block.__aexit__(None, None, None)


async def _closed(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


async def _rest_cancelled() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


async def _close(client: AsyncClient) -> None:
    """Once what was interrupted has given back what it had: a place before a lock."""
    ending = [task for task in asyncio.all_tasks() if task.cancelling()]
    if ending:
        await asyncio.wait(ending, timeout=client.attempts.timeout)
    await client.close()


async def _forgotten(client: AsyncClient) -> None:
    await _close(client)
    await _rest_cancelled()
    asyncio.get_running_loop().stop()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _forget(client: AsyncClient, loop: asyncio.AbstractEventLoop) -> None:
    """Whoever had this client is no more."""
    asyncio.run_coroutine_threadsafe(_forgotten(client), loop)
    warnings.warn("a Client was not closed: use it with `with`, or call close()", ResourceWarning, stacklevel=2)


class LoopThread:
    """A thread that runs an AsyncClient, of this process. make(): makes one."""

    def __init__(self, make: Callable[[], AsyncClient]):
        self._make = make
        self._closed = False
        self._begin()
        _threads.add(self)

    def _begin(self) -> None:
        """Without a thread, until the first request."""
        self.client = self._make()
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None
        self._unclosed: weakref.finalize[..., LoopThread] | None = None
        self._lock = threading.RLock()  # of one thread twice, where the garbage collector ends an iterator inside
        self._waiting: set[Future[Any]] = set()
        self._ending: set[asyncio.Task[None]] = set()

    def begin_in_child(self) -> None:
        """Begin anew. The parent's client is kept for ever: at its end it would close what the parent still uses."""
        self._detach()
        _of_parents.append((self.client, self._running))
        self._begin()

    def close(self) -> None:
        """See `Client.close`."""
        self._check_elsewhere()
        with self._lock:
            self._closed = True
            running, self._running = self._running, None
            self._detach()
        if running is not None:
            loop, thread = running
            asyncio.run_coroutine_threadsafe(_close(self.client), loop).result()
            wait(list(self._waiting))
            asyncio.run_coroutine_threadsafe(_rest_cancelled(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _detach(self) -> None:
        if self._unclosed is not None:
            self._unclosed.detach()

    def _own_loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop of the calling thread, if that is this one."""
        running = self._running
        return running[0] if running is not None and running[1] is threading.current_thread() else None

    def _check_elsewhere(self) -> None:
        if self._own_loop() is not None:
            raise ForeignLoop("a Client cannot be used by its own thread, in which on_done runs: use another one")

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this in the thread and return what it returns. ForeignLoop: the calling thread would wait for itself."""
        try:
            self._check_elsewhere()
        except ForeignLoop:
            work.close()
            raise
        with self._lock:
            if self._closed:
                work.close()
                raise ClosedClient("the client was closed")
            if self._running is None:
                loop = asyncio.new_event_loop()
                self._running = loop, threading.Thread(target=_run, args=(loop,), name="kvstore-client", daemon=True)
                self._unclosed = weakref.finalize(self, _forget, self.client, loop)
                self._unclosed.atexit = False
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

    def end(self, work: Coroutine[Any, Any, None]) -> None:
        """The same for a coroutine that ends something."""
        loop = self._own_loop()
        if loop is None:
            self.wait_for(work)
        else:
            task = loop.create_task(work)
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items of an asynchronous iterator."""

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
                    self.end(_closed(items))

    @contextmanager
    def within(self, block: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """An asynchronous block, for blocking code."""
        entered = self.wait_for(_entered(block))
        try:
            yield entered
        finally:
            self.end(_left(block))


class Transaction:
    """`InteractiveTransaction` for blocking code."""

    def __init__(self, thread: LoopThread, inner: InteractiveTransaction):
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

    def put(self, key: bytes | str, value: bytes | str, *, lease: bytes | None = None) -> None:
        """See `InteractiveTransaction.put`."""
        self._inner.put(key, value, lease=lease)

    def delete(self, key: bytes | str) -> None:
        """See `InteractiveTransaction.delete`."""
        self._inner.delete(key)


class Session:
    """`sessions.Session` for blocking code."""

    def __init__(self, thread: LoopThread, inner: sessions.Session):
        self._thread = thread
        self._inner = inner
        self.lease = inner.lease
        self.ttl = inner.ttl

    @property
    def lost(self) -> bool:
        """See `sessions.Session.lost`."""
        return self._inner.lost

    def check(self) -> None:
        """See `sessions.Session.check`."""
        self._inner.check()

    def renew(self) -> None:
        """See `sessions.Session.renew`."""
        self._thread.wait_for(self._inner.renew())


class Election:
    """`sessions.Election` for blocking code."""

    def __init__(self, thread: LoopThread, inner: sessions.Election):
        self._thread = thread
        self._inner = inner

    @property
    def lost(self) -> bool:
        """See `sessions.Election.lost`."""
        return self._inner.lost

    def campaign(self, value: bytes | str, timeout: float | None = None) -> Timestamp:
        """See `sessions.Election.campaign`."""
        return self._thread.wait_for(self._inner.campaign(value, timeout))

    def proclaim(self, value: bytes | str, *, timeout: float | None = None) -> None:
        """See `sessions.Election.proclaim`."""
        self._thread.wait_for(self._inner.proclaim(value, timeout=timeout))

    def leader(self, *, timeout: float | None = None) -> KeyValue | None:
        """See `sessions.Election.leader`."""
        return self._thread.wait_for(self._inner.leader(timeout=timeout))

    def resign(self, *, timeout: float | None = None) -> None:
        """See `sessions.Election.resign`."""
        self._thread.wait_for(self._inner.resign(timeout=timeout))

    def observe(self, *, timeout: float | None = None) -> Iterator[KeyValue]:
        """See `sessions.Election.observe`."""
        return self._thread.iterate(self._inner.observe(timeout=timeout))


def _in_child() -> None:
    for thread in list(_threads):
        thread.begin_in_child()


os.register_at_fork(after_in_child=_in_child)
