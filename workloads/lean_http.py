"""Just enough of an HTTP/1.1 client for a load generator that shares its processors with what it measures.

One request at a time per kept connection (RFC 9112), answers with Content-Length only, callbacks instead of tasks: some
15 µs per request where a full client takes some 300.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

LOST = 0
"""The status of a request whose connection broke."""


class Connection(asyncio.Protocol):
    """One connection. `done(status)` is called once per request, with LOST if the connection broke first."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._done: Callable[[int], None] | None = None
        self._received = b""
        self._missing = -1

    @classmethod
    async def open(cls, url: str) -> Connection:
        """Connect to `http://host:port`. OSError as usual."""
        parts = urlsplit(url)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, parts.hostname or "127.0.0.1", parts.port or 80)
        return connection

    @property
    def usable(self) -> bool:
        """Connected, and no request under way."""
        return self._transport is not None and not self._transport.is_closing() and self._done is None

    def request(self, data: bytes, done: Callable[[int], None]) -> None:
        """Send a whole request. AssertionError unless `usable`."""
        assert self._transport is not None and self._done is None
        self._done = done
        self._transport.write(data)

    def close(self) -> None:
        """Drop the connection; a request under way is LOST."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._finish(LOST)

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        end = received.find(b"\r\n\r\n")
        if end < 0:
            self._received = received
            return
        if self._missing < 0:
            self._missing = end + 4 + content_length(received[:end])
        if len(received) < self._missing:
            self._received = received
            return
        self._received, self._missing = b"", -1
        self._finish(int(received[9:12]))

    def _finish(self, status: int) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(status)


def content_length(head: bytes) -> int:
    """Of an answer's head; 0 without one."""
    start = head.find(b"Content-Length:")
    if start < 0:
        start = head.lower().find(b"content-length:")
        if start < 0:
            return 0
    end = head.find(b"\r\n", start)
    return int(head[start + 15 : end if end >= 0 else len(head)])


def request_bytes(method: str, path: str, headers: str, body: bytes = b"") -> bytes:
    """A request as it goes over the wire; `headers`: whole lines, each ended by CRLF."""
    head = f"{method} {path} HTTP/1.1\r\nHost: bench\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
