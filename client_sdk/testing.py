"""A store for tests of programs that use one: in memory, without sockets, processes or files, gone when it is closed.

    from client_sdk import Client
    from client_sdk.testing import MemoryStore

    with MemoryStore() as memory, Client(memory) as store:
        store.put("greeting", "hello")

Requests take the way that they take to a cluster, through the client's and the server's own code, from HTTP to the
execution of transactions (`kvstore.memory`); only what several replicas are for is missing. Any number of clients of
both kinds may use one `MemoryStore`, in any threads and event loops of the process that made it; in a forked process
nobody answers. It needs what `pip install '.[server]'` installs.

A test can let time pass (`advance`) and make requests fail (`down`, `silent`), without waiting for anything.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from client_sdk.connections import Transport

try:
    from kvstore.http.app import HttpApi
    from kvstore.http.connection import ApiServer
    from kvstore.http.metrics import Metrics
    from kvstore.limits import Limits
    from kvstore.memory import MemoryNode
except ModuleNotFoundError as error:
    text = f"client_sdk.testing needs {error.name}, which pip install '.[server]' installs, in a checkout"
    raise ModuleNotFoundError(text, name=error.name) from error

T = TypeVar("T")

URL = "http://memory"
_CLOSE_SECONDS = 0.1


class MemoryStore(Transport):
    """See the module. Stands in the place of a client's target. Use it with `with`, or call `close()` at the end."""

    urls = (URL,)

    def __init__(self) -> None:
        self._process = os.getpid()
        self._down = self._silent = False
        self._ends: set[_End] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="memory-store", daemon=True)
        self._thread.start()
        self._node, self._server = self._do(self._begin())

    async def _begin(self) -> tuple[MemoryNode, ApiServer]:
        node = MemoryNode(URL)
        return node, ApiServer(HttpApi(node, Limits(), Metrics(node.status)))

    def __enter__(self) -> MemoryStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Everything that was stored goes. Idempotent."""
        if self._thread.is_alive():
            self._do(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        self._node.close()
        await self._server.close(_CLOSE_SECONDS)

    def advance(self, seconds: float) -> None:
        """Let the store's clock go forward: leases that nobody renewed meanwhile expire, and what was overwritten more
        than ten minutes ago is forgotten. A day at most in all. Clients' clocks do not follow."""

        async def advance() -> None:
            self._node.advance(seconds)

        self._do(advance())

    @contextmanager
    def down(self) -> Iterator[None]:
        """While the block runs nothing listens: requests are not taken, and watches and whatever is under way end."""

        async def leave() -> None:
            for end in list(self._ends):
                end.abort()

        self._down = True
        self._do(leave())
        try:
            yield
        finally:
            self._down = False

    @contextmanager
    def silent(self) -> Iterator[None]:
        """While the block runs requests are served, and no answer comes: clients cannot know what became of a write."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # -- connections --------------------------------------------------------------------------------------------------

    async def connect(
        self, protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: ssl.SSLContext | None
    ) -> None:
        """See `Transport.connect`."""
        if self._down or os.getpid() != self._process or not self._thread.is_alive():
            raise ConnectionRefusedError("the store in memory is not there")
        client = _End(asyncio.get_running_loop(), protocol())
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._accept(client), self._loop))
        client.begin()

    async def _accept(self, client: _End) -> None:
        server = _End(self._loop, self._server(), self._is_heard, self._ends.discard)
        client.other, server.other = server, client
        self._ends.add(server)
        server.begin()

    def _is_heard(self) -> bool:
        return not self._silent


class _End(asyncio.Transport):
    """One end of a connection: what is written here reaches the protocol of the `other` end, in that one's loop."""

    other: _End

    def __init__(
        self, loop: asyncio.AbstractEventLoop, protocol: asyncio.BaseProtocol,
        is_heard: Callable[[], bool] = lambda: True, gone: Callable[[_End], None] = lambda end: None,
    ):  # fmt: skip
        super().__init__()
        self._loop = loop
        self._protocol: Any = protocol
        self._is_heard = is_heard
        self._gone = gone
        self._came: list[bytes] = []
        self._reads = True
        self._closed = False

    def begin(self) -> None:
        """Both ends are there."""
        self._protocol.connection_made(self)

    def _later(self, what: Callable[..., object], *arguments: Any) -> None:
        with suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(what, *arguments)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closed and self._is_heard():
            self.other._later(self.other._take, bytes(data))

    def _take(self, data: bytes) -> None:
        if self._closed:
            return
        if not self._reads:
            self._came.append(data)
        elif isinstance(self._protocol, asyncio.BufferedProtocol):
            while data:
                room = memoryview(self._protocol.get_buffer(-1))
                size = min(len(room), len(data))
                room[:size] = data[:size]
                data = data[size:]
                self._protocol.buffer_updated(size)
        else:
            self._protocol.data_received(data)

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        came, self._came = self._came, []
        for data in came:
            self._later(self._take, data)

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closed

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        if not self._closed:
            self.other._later(self.other._over)
            self._over()

    abort = close

    def _over(self) -> None:
        if not self._closed:
            self._closed = True
            self._gone(self)
            self._later(self._protocol.connection_lost, None)
