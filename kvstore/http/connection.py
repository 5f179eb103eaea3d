"""The connections of clients: bytes to requests, answers to bytes, in the order of the requests.

Theory of operation. Whatever has come goes to the connection's `RequestReader`; `_advance` begins every request that
may begin and then writes all that is ready, once. A request begins when all before it on this connection are answered,
since it may rely on their effects (RFC 9112, Section 9.3.2), unless the one before it said `X-Concurrent: 1`: then what
follows it does not. Answers leave in order all the same. What a client sends while it cannot be served stays in its
socket: it is not read while its answers pile up, while a body waits for room, or while too much is unread already.

A connection ends when its client or an answer says so, after a breach of the protocol, after `IDLE_SECONDS` without a
request, or in which nothing was taken of an answer, or `HEAD_SECONDS` with the beginning of a request; and when there
are too many and nobody waits for an answer on it: then that which is unused for longest is closed for a new one; if all
are used, one that has sent nothing more of an unfinished body for `STARVED_SECONDS`: of that nothing was ordered. If
more may be on its way, our side is closed first and what comes is dropped for a moment: a socket closed over unread
bytes is reset, and the client would lose the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import cast

from kvstore.api.http1 import BodyTooLarge, Fields, Head, Malformed, RequestReader
from kvstore.http.answers import CONTINUE, Date, Response, encoded, stream_head
from kvstore.http.app import HttpApi
from kvstore.http.calls import OWN_BYTES, UNSENT_BYTES_MAX, Call, Stream
from kvstore.http.errors import Problem, too_large
from multicast.logs import structlog

CONCURRENT_MAX = 64
"""How many requests of one connection may be under way at once, where it allows that at all."""
IDLE_SECONDS = 75.0
STALLED_SECONDS = 10.0
"""So soon a connection ends on which nothing is taken of an answer, while very much is unsent on all of them."""
HEAD_SECONDS = 10.0
"""From the first byte of a request to the end of its head."""
STARVED_SECONDS = 1.0
"""After so long without more of a body its connection may be closed for a new one."""
SWEEP_SECONDS = 5.0
LINGER_SECONDS = 1.0
"""How long input that nobody wants is still read, so that its sender gets to the answer."""
READ_BYTES = 64 * 1024
SUM_SECONDS = 0.01
"""For so long it counts how much was found to be unsent."""

_log = structlog.get_logger("kvstore.http")
_NO_HEAD = Head("", "/", 1, Fields(b""))
_GONE = Response(499, b"")
"""In place of an answer for which nobody waits any longer: nothing goes on for it."""
_NO_TRANSPORT = asyncio.Transport()
"""Of a connection that is over. Its own refers to it, with TLS: the two would stay, and buffers as large as all that
was unsent, until garbage is collected, which is rare."""


class Connection(asyncio.BufferedProtocol):
    """The connection of one client."""

    def __init__(self, server: ApiServer):
        self._server = server
        self._api = server.api
        self._reader = RequestReader()
        self._transport: asyncio.Transport
        self._address = ""
        self._calls: deque[Call] = deque()
        """Begun, and not all of them answered, in order."""
        self._reading: Call | None = None
        """The last of them, while its body has not been read."""
        self._out: list[bytes] = []
        self._last = False
        """No further request begins."""
        self._advancing = self._clogged = self._paused = False
        self._at_eof = self._broken = self._lingering = self._lost = False
        self._streaming: Stream | None = None
        """What makes the answer to the first of `_calls`, which is the last."""
        self._linger: asyncio.TimerHandle | None = None
        self.used_at = time.monotonic()
        self._head_since = 0.0
        """When the head began of which only the beginning is there; 0: there is none."""
        self._unsent = 0
        self._taken_at = 0.0
        """So much of answers was unsent when that was looked at last, and since when it is."""

    # -- the transport's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._server.lost(self)
        if self._linger is not None:
            self._linger.cancel()
        calls, self._calls = self._calls, deque()
        for call in calls:
            if call.stream is not None:
                call.stream.gone()
            if not call.token:
                call.leave()
                call.response = call.response or _GONE
        self._address, self._transport = self.address, _NO_TRANSPORT

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self._lingering:
            self._reader.feed(bytes(self._server.buffer[:nbytes]))
            self._advance()

    def eof_received(self) -> bool:
        """The client sends no more, and may wait for answers."""
        self._at_eof = True
        self._advance()
        reading = self._reading
        if self._lingering or (reading and not reading.undecided):  # nobody waits, or a body that never ends
            self._close()
        return self._transport.can_write_eof()  # with TLS there is no half of a connection

    def pause_writing(self) -> None:
        self._clogged = True
        if self._streaming is None:
            self._server.clogged.add(self)
        self._advance()

    def resume_writing(self) -> None:
        self._clogged = False
        self._server.clogged.discard(self)
        self._advance()
        if self._streaming is not None:
            self._streaming.ready()

    # -- what the calls say -------------------------------------------------------------------------------------------

    def answered(self, call: Call) -> None:
        """See `Caller`; so the next seven."""
        calls = self._calls
        while calls and (response := calls[0].response) is not None and self._streaming is None:
            if response.streams:
                self._begin_stream(calls[0], response)
            else:
                self._send(calls.popleft())
        self._advance()

    def push(self, data: bytes, last: bool) -> None:
        self._out.append(data)
        if last:
            self._streaming = None
            self._calls.popleft()
        self._advance()

    @property
    def clogged(self) -> bool:
        return self._clogged

    def abort(self) -> None:
        """End it, whatever is on its way."""
        if not self._lost:
            self._transport.abort()

    @property
    def address(self) -> str:
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if peer else self._address

    def _begin_stream(self, call: Call, response: Response) -> None:
        """No other answer follows on this connection."""
        self._last = True
        self._out.append(stream_head(response, call.head.minor, self._server.date.line(time.monotonic())))
        self._streaming = call.stream
        if call.stream is not None:
            call.stream.ready()

    def go_on(self) -> None:
        self._advance()

    def send_continue(self, call: Call) -> None:
        if self._calls[0] is call:
            self._out.append(CONTINUE)

    def _send(self, call: Call) -> None:
        head, response = call.head, call.response
        assert response is not None
        self.used_at = now = time.monotonic()
        if call.closes or self._api.calls.stopping or not head.keep_alive:
            self._last = True
        keeps = not self._last or bool(self._calls)
        self._out.append(encoded(response, head.minor, keeps, self._server.date.line(now), head.method == "HEAD"))

    # -- going on -----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Begin what can begin, then send what is ready."""
        if self._advancing or self._lost:
            return
        self._advancing = True
        try:
            while not self._clogged and (self._begin() if self._reading is None else self._read_body(self._reading)):
                pass
            self._flush()
        except Malformed as error:
            self._refuse(Problem(400, "invalid", str(error)))
            self._flush()
        except Exception:  # ours, and in the replica's own turn: it must cost this connection and no more
            _log.exception("our own error")
            self._transport.abort()
        finally:
            self._advancing = False

    def _begin(self) -> bool:
        """Begin the next request; returns whether there was one."""
        calls = self._calls
        if self._last or (calls and (not calls[-1].concurrent or len(calls) >= CONCURRENT_MAX)):
            return False
        head = self._reader.head()
        if head is None:
            self._last = self._at_eof
            if self._reader.unread_bytes:
                self._head_since = self._head_since or time.monotonic()
            return False
        self._head_since = 0.0
        call = Call(self._api.calls, self, head)
        calls.append(call)
        self._last = not head.keep_alive
        call.step(self._api.begin)
        if self._reader.inside_body or call.then is not None or call.undecided:
            self._reading = call
        return True

    def _read_body(self, call: Call) -> bool:
        """Go on with the body of the last request; returns whether its end was reached."""
        if call.undecided or call.waits_for_room:
            return False
        if call.then is None:
            return self._skip_body(call)
        try:
            body = self._reader.body(call.body_bytes_max)
        except BodyTooLarge:
            call.fail(too_large(call.what, call.body_bytes_max))
            return False
        if body is None:
            self.used_at = time.monotonic()
            call.body_grew(self._reader.body_bytes)
            return False
        self._reading = None
        call.body_read(body)
        return True

    def _skip_body(self, call: Call) -> bool:
        """Read a body that nobody wants. (A client that waited to be told to go on may send it or not: nobody
        knows.)"""
        self._last |= call.head.expects_continue
        if self._last or not self._reader.skip():
            if call.response is not None and self._linger is None:
                self._linger = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._close)
            return False
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self._reading = None
        return True

    def _refuse(self, problem: Problem) -> None:
        """What has come cannot be understood, nor what follows."""
        self._last = self._broken = True
        call, self._reading = self._reading, None
        if call is None:
            call = Call(self._api.calls, self, _NO_HEAD)
            self._calls.append(call)
        call.fail(problem)

    def _flush(self) -> None:
        if self._out:
            self._transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
            self._out.clear()
        if self._last and not self._calls:
            self._end()
            return
        reading = self._reading
        pause = self._reader.unread_bytes > OWN_BYTES or (reading is not None and reading.waits_for_room)
        if pause != self._paused:
            self._paused = pause
            (self._transport.pause_reading if pause else self._transport.resume_reading)()

    def _end(self) -> None:
        """All answers are on their way, and there will be no more."""
        if self._lingering:
            return
        if not (self._broken or self._reader.inside_body or self._reader.unread_bytes):
            self._close()
            return
        self._lingering = True
        if self._transport.can_write_eof():
            try:
                self._transport.write_eof()
            except OSError:  # its client has reset it
                self._transport.abort()
                return
        self._transport.resume_reading()
        if self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._close)

    def _close(self) -> None:
        """Once: closed twice, a transport of TLS fails at whatever it is asked until the connection is lost
        (`asyncio.sslproto`)."""
        if not self._transport.is_closing():
            self._transport.close()

    # -- the server's side --------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nobody waits for an answer."""
        return not self._calls

    def starved(self, now: float) -> bool:
        """Whether the rest of a body has been waited for, for long."""
        reading = self._reading
        waits = reading is not None and reading.then is not None and not reading.waits_for_room
        return waits and len(self._calls) == 1 and self.used_at <= now - STARVED_SECONDS

    @property
    def unsent_bytes(self) -> int:
        """Of its answers, what the client has not taken."""
        return self._transport.get_write_buffer_size()

    def close_if_idle(self, now: float, stalled_seconds: float) -> None:
        """Close it if it has no open call, and has been unused for too long, or has not sent all of a head in time; or
        if nothing was taken of what is unsent for so many seconds."""
        unsent = self.unsent_bytes
        if not unsent or unsent != self._unsent:
            self._unsent, self._taken_at = unsent, now
        if unsent:
            if self._taken_at <= now - stalled_seconds:
                self._transport.abort()
            return
        late = self._head_since and self._head_since <= now - HEAD_SECONDS
        if not self._calls and (late or self.used_at <= now - IDLE_SECONDS):
            self._close()

    def finish(self) -> None:
        """Take no further request."""
        self._last = True
        if not self._lost:
            self._flush()


class ApiServer:
    """Protocol factory for `loop.create_server`: all connections of one server, `Limits.connections_max` at most."""

    def __init__(self, api: HttpApi):
        self.api = api
        self.connections: set[Connection] = set()
        self.clogged: set[Connection] = set()
        """Those of whose answers much is unsent, but for watches: these hold one answer each, and have a limit."""
        self.buffer = memoryview(bytearray(READ_BYTES))
        """Where the loop puts what it reads; taken from there before anything else is read."""
        self.date = Date()
        self.shaken: Callable[[Connection], None] | None = None
        """Is told of each connection that is open."""
        self._empty = asyncio.Event()
        self._unsent, self._summed_at = 0, 0.0
        api.calls.unsent_bytes = self._unsent_bytes
        self._sweeping: asyncio.TimerHandle | None = None

    def __call__(self) -> Connection:
        if self._sweeping is None:
            self._sweep()
        return Connection(self)

    def made(self, connection: Connection) -> None:
        """A connection is open. If there are too many, close the one that is unused for longest; this one, if all are
        used."""
        if self.shaken is not None:
            self.shaken(connection)
        if len(self.connections) >= self.api.limits.connections_max:
            now = time.monotonic()
            spare = [c for c in self.connections if c.idle] or [c for c in self.connections if c.starved(now)]
            unused = min(spare, key=lambda c: c.used_at, default=connection)
            self.connections.discard(unused)
            unused.abort()
            if unused is connection:
                return
        self.connections.add(connection)

    def lost(self, connection: Connection) -> None:
        """It is closed."""
        self.connections.discard(connection)
        self.clogged.discard(connection)
        if not self.connections:
            self._empty.set()

    def _unsent_bytes(self, now: float) -> int:
        """Of all answers; about."""
        if self.clogged and now >= self._summed_at + SUM_SECONDS:
            self._unsent, self._summed_at = sum([one.unsent_bytes for one in self.clogged]), now
        return self._unsent if self.clogged else 0

    def _sweep(self) -> None:
        now = time.monotonic()
        much = self._unsent_bytes(now) > UNSENT_BYTES_MAX // 2
        for connection in list(self.connections):
            connection.close_if_idle(now, STALLED_SECONDS if much else IDLE_SECONDS)
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    async def close(self, seconds: float) -> None:
        """Close every connection, those with answers on their way after at most so long."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self.connections):
            connection.finish()
        await self._all_closed(seconds)
        for connection in list(self.connections):
            connection.abort()
        await self._all_closed(seconds)

    async def _all_closed(self, seconds: float) -> None:
        if self.connections:
            self._empty.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), seconds)
