"""The receiving ends of links: what outlives a connection, one accepted connection, and the port where they come in."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from multicast.protocol import PeerError
from multicast.runtime.fence import Vouched
from multicast.runtime.greeting import (
    ACK,
    FRAME,
    GREETING_TIMEOUT_S,
    Fenced,
    Identity,
    decode_greeting,
    encode_greeting,
    set_options,
)
from multicast.runtime.tls import Handshakes, Tls
from multicast.runtime.trouble import Troubles, log
from multicast.session import Receiver
from multicast.types import ProcessId
from multicast.wire import FRAME_BYTES_MAX, Hello

STRANGERS_MAX = 64
"""How many connections may be open that have not greeted yet."""
HANDSHAKES_MAX = 128
"""With TLS, how many may be open that have not even shaken hands."""
READ_BYTES = 256 * 1024
"""The size of the one buffer for all reads. A new buffer for each read, as asyncio's other protocols have it, cuts the
heap into pieces: what is kept of a message pins a place in the midst of each."""


class Incoming:
    """The receiving end of the link from one peer, over all its connections."""

    __slots__ = ("_awaiting", "_noted", "acknowledged", "connection", "peer", "receiver")

    def __init__(self, peer: ProcessId):
        self.peer = peer
        self.receiver = Receiver()
        self.connection: Connection | None = None
        self.acknowledged = 0
        self._awaiting: deque[tuple[int, int]] = deque()
        self._noted = 0

    def greet(self, hello: Hello) -> tuple[int, bool]:
        """What to answer as received, and whether the link has lost its memory."""
        receiver = self.receiver
        known = (receiver.incarnation, receiver.epoch) == (hello.incarnation, hello.epoch)
        received, lost = receiver.greet(hello.incarnation, hello.epoch, hello.first)
        if not known:  # another numbering: what still waits for a flush is of the old one
            self._awaiting.clear()
            self._noted = receiver.seen
        self.acknowledged = received
        return received, lost

    def processed(self, batch: int) -> None:
        """Everything that has arrived is part of this batch."""
        if self.receiver.seen > self._noted:
            self._noted = self.receiver.seen
            self._awaiting.append((batch, self._noted))

    def flushed(self, batch: int) -> int:
        """The batches up to this one are flushed. Returns how many frames can be acknowledged."""
        while self._awaiting and self._awaiting[0][0] <= batch:
            self.receiver.flushed = self._awaiting.popleft()[1]
        return self.receiver.flushed - self.acknowledged

    def acknowledge(self, length: int) -> None:
        """Tell the peer what is flushed, if it is connected. length: of our journal."""
        if self.connection is not None and self.receiver.flushed > self.acknowledged:
            self.acknowledged = self.receiver.flushed
            self.connection.write(ACK.pack(self.acknowledged, length))


class Connection(asyncio.BufferedProtocol):
    """One accepted connection: a stranger until it has greeted, then the one connection of an `Incoming`. What is read
    lies in the listener's buffer until the next read, of whichever connection."""

    def __init__(self, listener: Listener):
        self._listener = listener
        self._link: Incoming | None = None
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._needed = 0
        self._closing = False
        self.address = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.address = str((transport.get_extra_info("peername") or ("?",))[0])
        set_options(transport)
        self._listener.connections.add(self)
        if not self._listener.admit(self):
            self.abort()
            return
        asyncio.get_running_loop().call_later(GREETING_TIMEOUT_S, self._check_greeted)

    def _check_greeted(self) -> None:
        if self._link is None and not self._closing:
            self._listener.troubles.tell(f"{self.address} connected and did not greet", "")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._listener.connections.discard(self)
        self._listener.strangers.discard(self)
        if self._link is not None and self._link.connection is self:
            self._link.connection = None

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._closing:
            self._transport.write(data)

    def close(self) -> None:
        """Close after what was written has left; read nothing more."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def pause(self, paused: bool) -> None:
        """Stop or go on reading."""
        if self._transport is None or self._closing:
            return
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._listener.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        try:
            link, data = self._link, self._listener.buffer[:nbytes]
            if link is None:
                self._buffer += data
                greeted = self._greet()
                if greeted is None:
                    return
                link, rest = greeted
                self._frames(link, rest)
            else:
                self._frames(link, data)
        except PeerError as error:
            self._listener.fault(self, self._link, str(error), fenced=isinstance(error, Fenced))
        except Exception as error:  # our own bug: the host must not go on
            self._listener.fail(error)

    def _greet(self) -> tuple[Incoming, bytes] | None:
        """Read the Hello and answer it. Returns the link that it is for, and the bytes that follow; None: the Hello is
        not all there."""
        read = decode_greeting(self._buffer, Hello)
        if read is None:
            return None
        hello, used = read
        rest = bytes(self._buffer[used:])
        self._buffer = bytearray()
        identity = self._listener.identity
        if farewell := identity.farewell(hello):
            raise Fenced(farewell)
        refusal = identity.refusal(hello)
        if refusal:
            raise PeerError(refusal)
        tls = self._listener.tls
        if tls is not None and self._transport is not None:
            refusal = tls.refusal(self._transport.get_extra_info("peercert"), hello.sender)
            if refusal:
                raise PeerError(refusal)
        if not identity.knows(hello):
            raise PeerError(f"process {hello.sender} is not a member of this cluster")
        said = Vouched(hello.incarnation, hello.life, hello.length)
        refusal = identity.fence.refusal(hello.sender, said)
        if refusal:
            raise Fenced(refusal)
        if hello.place:
            identity.fence.places.told(hello.sender, hello.place)
        link = self._listener.incoming[hello.sender]
        if link.connection is not None:
            link.connection.abort()
        self._link = link
        link.connection = self
        received, lost = link.greet(hello)
        self._listener.strangers.discard(self)
        self.write(encode_greeting(self._listener.identity.welcome(received)))
        self._listener.greeted(link, lost)
        return link, rest

    def _frames(self, link: Incoming, data: bytes | bytearray | memoryview) -> None:
        """Hand every whole frame to the host; keep the rest."""
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return
            data, self._buffer = self._buffer, bytearray()
        view = memoryview(data)
        at, size, header, needed = 0, len(view), FRAME.size, FRAME.size
        peer, accept, receive = link.peer, link.receiver.accept, self._listener.receive
        while size - at >= header:
            length, sequence = FRAME.unpack_from(view, at)
            if not 0 < length <= FRAME_BYTES_MAX:
                raise PeerError(f"a frame of {length} bytes; the limit is {FRAME_BYTES_MAX}")
            end = at + header + length
            if end > size:
                needed = end - at
                break
            if accept(sequence):
                receive(peer, view[at + header : end])
            at = end
        if at < size:
            self._buffer = bytearray(view[at:])
            self._needed = needed


class Listener:
    """The port of this process, and the connections that come in there. incoming: peer -> its link.

    receive(peer, payload): a new frame, in order, not to be kept; may raise PeerError. reset(peer): the link lost its
    memory. heard(peer): it has dialled this process. fail(error): our own bug. tls: for all connections; None: without.
    paused: nothing is read.
    """

    def __init__(
        self,
        identity: Identity,
        address: tuple[str, int],
        incoming: Mapping[ProcessId, Incoming],
        *,
        receive: Callable[[ProcessId, Any], None],
        reset: Callable[[ProcessId], None],
        heard: Callable[[ProcessId], None],
        fail: Callable[[BaseException], None],
        troubles: Troubles,
        tls: Tls | None = None,
    ):
        self.identity = identity
        self.tls = tls
        self.incoming = incoming
        self.receive = receive
        self.fail = fail
        self.troubles = troubles
        self.connections: set[Connection] = set()
        self.strangers: set[Connection] = set()
        self.paused = False
        self.buffer = memoryview(bytearray(READ_BYTES))
        self._address = address
        self._reset = reset
        self._heard = heard
        self._server: asyncio.Server | None = None
        self._handshakes = None if tls is None else Handshakes(lambda: tls.accepting, HANDSHAKES_MAX)

    async def bind(self) -> None:
        """Take the port, without serving it yet. OSError that names it."""
        loop = asyncio.get_running_loop()
        connection: Callable[[], asyncio.BaseProtocol] = partial(Connection, self)
        if self._handshakes is not None:
            connection = self._handshakes.before(connection)
        try:
            self._server = await loop.create_server(connection, *self._address, start_serving=False)
        except OSError as error:
            raise self._cannot_listen(error) from None

    async def start(self) -> None:
        """Serve the port. OSError that names it."""
        assert self._server is not None
        try:
            await self._server.start_serving()
        except OSError as error:
            raise self._cannot_listen(error) from None

    def _cannot_listen(self, error: OSError) -> OSError:
        host, port = self._address
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        return OSError(error.errno, f"process {self.identity.process} cannot listen on {host}:{port}: {why}")

    def close(self) -> None:
        """Take no more connections, and close those there are. (The server is closed later: before Python 3.13 it loses
        a connection that it is just accepting.)"""
        loop = asyncio.get_running_loop()
        for listening in self._server.sockets if self._server is not None else ():
            loop.remove_reader(listening.fileno())
        for connection in list(self.connections):
            connection.close()

    def abort(self) -> None:
        """Drop every connection at once."""
        for connection in list(self.connections):
            connection.abort()

    async def closed(self) -> None:
        """After `close` and `abort`: return when nothing is left."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def pause(self, paused: bool) -> None:
        """Stop or go on reading from all peers: their messages then wait at their end."""
        if paused != self.paused:
            self.paused = paused
            for link in self.incoming.values():
                if link.connection is not None:
                    link.connection.pause(paused)

    def admit(self, connection: Connection) -> bool:
        """Whether one more stranger may stay."""
        if self._handshakes is not None:
            self._handshakes.over(connection)
        if self.troubles.closing or len(self.strangers) >= STRANGERS_MAX:
            return False
        self.strangers.add(connection)
        return True

    def greeted(self, link: Incoming, lost: bool) -> None:
        """A peer dialled this process."""
        if lost:
            self._reset(link.peer)
        if self.paused and link.connection is not None:
            link.connection.pause(True)
        self._heard(link.peer)

    def fault(self, connection: Connection, link: Incoming | None, reason: str, fenced: bool = False) -> None:
        """What came over this connection is refused: say so once and close it."""
        if link is None:
            self.troubles.tell(f"refused a connection from {connection.address}", reason)
            connection.write(encode_greeting(self.identity.welcome(0, reason, fenced)))
            connection.close()
        else:
            log.warning("a peer broke the protocol: its link is closed", peer=link.peer, reason=reason)
            connection.abort()
            self._reset(link.peer)
