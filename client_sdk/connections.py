"""Connections to replicas, kept open: many requests are under way on few of them.

Theory of operation. A request goes out on a connection that is free, else on a new one as long as there are fewer than
`CONNECTIONS_MAX` to its replica, else behind others on the one with the fewest. Each says `X-Concurrent: 1`, so that
the replica works on all of them at once; answers come in their order. What is sent in one turn of the loop leaves in
one write. An answer that does not come in time holds up those behind it: its connection gets no further request, and is
closed when nobody waits for it any longer.
"""

from __future__ import annotations

import asyncio
import math
import os
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from kvstore.api.http1 import BodyTooLarge, Malformed, ResponseHead, ResponseReader

CONNECTIONS_MAX = 8
"""To one replica."""
CLOSED = "the connection was closed"
CONNECT_TIMEOUT_SECONDS = 1.0
ADDRESS_SECONDS = 0.2
"""Where a name has several addresses the next one is tried, too, if one has not answered for so long."""
CERTIFICATE_EXPIRED = 10
"""X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL."""
ANSWER_BYTES_MAX = 256 * 1024 * 1024


class NotConnected(OSError):
    """There is no connection, and the request was not sent."""


class Untrusted(NotConnected):
    """What listens there has no certificate that is trusted for this name, or none at all."""


class Broken(OSError):
    """The connection ended before the answer, or what came was no answer; the request may have been received."""


class Received(NamedTuple):
    """An answer. fields: by name in lower case."""

    status: int
    fields: dict[str, str]
    body: bytes


class Transport:
    """How clients get their connections: over TCP. A subclass that does it otherwise (`client_sdk.testing`) can be
    given as a client's target. urls: base URLs."""

    urls: tuple[str, ...] = ()

    async def connect(
        self, protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: ssl.SSLContext | None
    ) -> None:
        """Connect what `protocol` makes, in the running loop. OSError. Cancellable."""
        is_address = ":" in host or host.replace(".", "").isdigit()  # of which there is one
        delay, loop = None if is_address else ADDRESS_SECONDS, asyncio.get_running_loop()
        try:
            await loop.create_connection(protocol, host, port, ssl=tls, happy_eyeballs_delay=delay)
        except UnicodeError as error:
            raise OSError(f"{host!r} is no name of a host: {error}") from error


class _Exchange(NamedTuple):
    """A request under way. answer: done with it, with one of the errors above, or with TimeoutError."""

    answer: asyncio.Future[Received]
    deadline: float


class Connection(asyncio.Protocol):
    """One connection, from before it is made. closed: done once it is over."""

    def __init__(self, replica: _Replica):
        self._replica = replica
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = ResponseReader()
        self._head: ResponseHead | None = None
        self._waiting: deque[_Exchange] = deque()
        self._out: list[bytes] = []
        self._flushing = self._retired = False
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._connecting = self._loop.create_task(self._connect())
        self._connecting.add_done_callback(self._connected)

    @property
    def made(self) -> bool:
        """Whether it is, or has been: until then nothing is sent over it."""
        return self._transport is not None

    @property
    def under_way(self) -> int:
        return len(self._waiting)

    async def _connect(self) -> None:
        replica = self._replica
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                await replica.connect(lambda: self)
        except ssl.SSLCertVerificationError as error:
            hint = "" if error.verify_code == CERTIFICATE_EXPIRED else "; see `ca`"
            self.end(Untrusted(f"its certificate is not trusted: {error.verify_message}{hint}"))
        except ssl.SSLError as error:
            plain = error.reason == "WRONG_VERSION_NUMBER"
            self.end(Untrusted("it does not speak TLS: is it http:// there?") if plain else NotConnected(str(error)))
        except (OSError, TimeoutError) as error:
            self.end(NotConnected(str(error) or "not connected in time"))

    def _connected(self, connecting: asyncio.Task[None]) -> None:
        if self._transport is None:
            self.closed.set_result(None)

    def send(self, data: bytes, exchange: _Exchange) -> None:
        """Send a request with all others of this turn."""
        self._waiting.append(exchange)
        self._out.append(data)
        if not self._flushing and self._transport is not None:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._out and self._transport is not None:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(Broken(str(exc or CLOSED)))
        self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while not self.closed.done() and self._take_answer():
                pass
        except (Malformed, BodyTooLarge) as error:
            self.end(Broken(str(error) or "an answer that is too large"))

    def _take_answer(self) -> bool:
        """Hand over the next answer; returns whether all of it was there."""
        head = self._head = self._head or self._reader.head()
        body = None if head is None else self._reader.body(ANSWER_BYTES_MAX)
        if head is None or body is None:
            return False
        self._head = None
        if not self._waiting:
            raise Malformed("an answer that nobody asked for")
        answer = self._waiting.popleft().answer
        if not answer.done():
            answer.set_result(Received(head.status, head.fields.values, body))
        if not head.keep_alive:
            self.end(Broken("the server closed the connection"))
        elif self._retired and not self._awaited:
            self.end(_unwanted())
            return False
        return bool(self._reader.unread_bytes)

    def time_up(self, now: float) -> float:
        """Tell the requests whose time is up; returns the next deadline."""
        late = [e for e in self._waiting if e.deadline <= now and not e.answer.done()]
        if late and self._transport is None:
            self.end(NotConnected("not connected in time"))  # and nothing is sent for those who are told this
            return math.inf
        for exchange in late:
            exchange.answer.set_exception(TimeoutError("no answer in time"))
        if late:
            self.retire()
        return min((e.deadline for e in self._waiting if not e.answer.done()), default=math.inf)

    def retire(self) -> None:
        """An answer is late, or nobody waits for it any longer: send no further request here, which might wait for
        nothing."""
        self._retired = True
        self._replica.retire(self)
        if not self._awaited:
            self.end(_unwanted())

    @property
    def _awaited(self) -> bool:
        return not all(e.answer.done() for e in self._waiting)

    def end(self, error: OSError) -> None:
        """Close it; those who wait get `error`. Idempotent."""
        if self.made and isinstance(error, NotConnected):  # too late: what waited was sent when it was made
            error = Broken(str(error))
        self._replica.retire(self)
        self._out.clear()  # it may be connected in this very moment
        if self._transport is None:
            self._connecting.cancel()
        else:
            self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for exchange in waiting:
            if not exchange.answer.done():
                exchange.answer.set_exception(error)


def _unwanted() -> Broken:
    return Broken("nobody waits for an answer")


Begun = Callable[[asyncio.Future[Received], Connection], None]


class _Replica:
    """Where a base URL leads. in_use: connections that get requests; retired: those that are about to be closed."""

    def __init__(self, url: str, transport: Transport, tls: Callable[[], ssl.SSLContext]):
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if secure else 80)
        self._transport = transport
        self._tls = tls if secure else None
        self.line_end = f" HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        self.in_use: list[Connection] = []
        self.retired: list[Connection] = []

    async def connect(self, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """One more connection, for what `protocol` makes. OSError. Cancellable."""
        tls = None if self._tls is None else self._tls()
        await self._transport.connect(protocol, self._host, self._port, tls)

    def connection(self) -> Connection:
        """The best one for the next request."""
        fewest = min(self.in_use, key=lambda c: c.under_way, default=None)
        if fewest is not None and (not fewest.under_way or len(self.in_use) == CONNECTIONS_MAX):
            return fewest
        self.in_use.append(Connection(self))
        return self.in_use[-1]

    def retire(self, connection: Connection) -> None:
        """No further request for it. Idempotent."""
        if connection in self.in_use:
            self.in_use.remove(connection)
            self.retired = [c for c in self.retired if not c.closed.done()]
            self.retired.append(connection)

    @property
    def connections(self) -> list[Connection]:
        return [*self.in_use, *self.retired]


class _Authority:
    """Whose certificates are trusted, a PEM file, which may change: an authority is followed by another one while
    programs run. ValueError: it cannot be used."""

    def __init__(self, path: Path):
        self._path = path
        self._read: tuple[int, int, int] | None = None
        self._trusting = self._reading()

    def _reading(self) -> ssl.SSLContext:
        try:
            now = os.stat(self._path)
            context = ssl.create_default_context(cafile=self._path)
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"ca: {self._path}: {error}") from None
        self._read = now.st_ino, now.st_mtime_ns, now.st_size
        return context

    def context(self) -> ssl.SSLContext:
        """For a connection that is made now. While the file is of no use, as one that is half written, what it said
        before counts."""
        with suppress(OSError, ValueError):
            now = os.stat(self._path)
            if self._read != (now.st_ino, now.st_mtime_ns, now.st_size):
                self._trusting = self._reading()
        return self._trusting


class Connections:
    """The connections of one client, for one event loop. authority: whose certificates are trusted, a PEM file; None:
    those whom the system trusts. ValueError: the file cannot be used."""

    def __init__(self, authority: Path | None = None, transport: Transport | None = None) -> None:
        self._authority = None if authority is None else _Authority(authority)
        self._system: ssl.SSLContext | None = None
        self._transport = transport or Transport()
        self._streams: set[asyncio.WriteTransport] = set()
        self._replicas: dict[str, _Replica] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self._closed = False

    async def exchange(
        self, url: str, method: str, path: str, fields: str, body: bytes | None, seconds: float,
        begun: Begun | None = None,
    ) -> Received:  # fmt: skip
        """Send one request to the replica at this base URL and wait for the answer. fields: lines, each with its CRLF.
        begun(answer, connection): it is sent as soon as that connection is made; whoever has the answer from elsewhere
        may give it, and then calls `connection.retire`.

        NotConnected, Broken, or TimeoutError after so many seconds. Cancellable; then it may have been received."""
        replica, fields = self._replica(url), f"X-Concurrent: 1\r\n{fields}"
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        data = f"{method} {path}{replica.line_end}{fields}{length}\r\n".encode() + (body or b"")
        loop = asyncio.get_running_loop()
        exchange = _Exchange(loop.create_future(), loop.time() + seconds)
        connection = replica.connection()
        connection.send(data, exchange)
        if begun is not None:
            begun(exchange.answer, connection)
        if exchange.deadline < self._alarm_at:
            self._set_alarm(exchange.deadline)
        try:
            return await exchange.answer
        except asyncio.CancelledError:
            connection.retire()
            raise

    @asynccontextmanager
    async def stream(self, url: str, path: str, fields: str) -> AsyncIterator[asyncio.StreamReader]:
        """What the replica at this base URL answers to a GET, on a connection of its own, readable from its first byte
        on. OSError or TimeoutError if there is no answer."""
        replica, reader = self._replica(url), asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader, lambda _, writer: made.append(writer))
        made: list[asyncio.StreamWriter] = []
        async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
            await replica.connect(lambda: protocol)
        transport = made[0].transport
        self._streams.add(transport)
        try:
            if self._closed:
                raise Broken("the client was closed")
            transport.write(f"GET {path}{replica.line_end}{fields}\r\n".encode())
            yield reader
        finally:
            self._streams.discard(transport)
            transport.abort()

    def _replica(self, url: str) -> _Replica:
        replica = self._replicas.get(url)
        if replica is None:
            replica = self._replicas[url] = _Replica(url, self._transport, self._context)
        return replica

    def _context(self) -> ssl.SSLContext:
        """For the next connection; what the system trusts is read when it is needed."""
        if self._authority is not None:
            return self._authority.context()
        self._system = self._system or ssl.create_default_context()
        return self._system

    def _set_alarm(self, at: float) -> None:
        """One timer for all, armed no later than the first deadline. An earlier one stays: it looks again."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = asyncio.get_running_loop().call_at(at, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm, self._alarm_at = None, math.inf
        now = asyncio.get_running_loop().time()
        nearest = min((c.time_up(now) for r in self._replicas.values() for c in r.connections), default=math.inf)
        if nearest < math.inf:
            self._set_alarm(nearest)

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        for transport in list(self._streams):
            transport.abort()
        connections = [c for r in self._replicas.values() for c in r.connections]
        for connection in connections:
            connection.end(Broken("the client was closed"))
        await asyncio.gather(*(c.closed for c in connections))
