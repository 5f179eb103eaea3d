"""The receiving end of a link: what outlives a connection, and one accepted connection."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from multicast.protocol import PeerError
from multicast.runtime.greeting import ACK, FRAME, GREETING_TIMEOUT_S, decode_greeting, encode_greeting, set_options
from multicast.session import Receiver
from multicast.types import ProcessId
from multicast.wire import FRAME_BYTES_MAX, WIRE_VERSION, Hello, Welcome

if TYPE_CHECKING:
    from multicast.runtime.links import Links


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
        """What has arrived is part of this batch."""
        if self.receiver.seen > self._noted:
            self._noted = self.receiver.seen
            self._awaiting.append((batch, self._noted))

    def settled(self, batch: int) -> int:
        """The batches up to this one are flushed: how many frames can be acknowledged."""
        while self._awaiting and self._awaiting[0][0] <= batch:
            self.receiver.flushed = self._awaiting.popleft()[1]
        return self.receiver.flushed - self.acknowledged

    def acknowledge(self) -> None:
        """Tell the peer what is flushed, if it is connected."""
        if self.connection is not None and self.receiver.flushed > self.acknowledged:
            self.acknowledged = self.receiver.flushed
            self.connection.write(ACK.pack(self.acknowledged))


class Connection(asyncio.Protocol):
    """One accepted connection: a stranger until it has greeted, then the one connection of an `Incoming`."""

    def __init__(self, links: Links):
        self._links = links
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
        self._links.connections.add(self)
        if not self._links.admit(self):
            self.abort()
            return
        asyncio.get_running_loop().call_later(GREETING_TIMEOUT_S, self._check_greeted)

    def _check_greeted(self) -> None:
        if self._link is None and not self._closing:
            self._links.tell_once(f"{self.address} connected and did not greet", "")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._links.connections.discard(self)
        self._links.strangers.discard(self)
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

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        try:
            link = self._link
            if link is None:
                self._buffer += data
                greeted = self._greet()
                if greeted is None:
                    return
                link, data = greeted
            self._frames(link, data)
        except PeerError as error:
            self._links.fault(self, self._link, str(error))
        except Exception as error:  # our own bug: the host must not go on
            self._links.fail(error)

    def _greet(self) -> tuple[Incoming, bytes] | None:
        """Read the Hello and answer it: whose link this is, and what follows. None: the Hello is not all there."""
        read = decode_greeting(self._buffer, Hello)
        if read is None:
            return None
        hello, used = read
        rest = bytes(self._buffer[used:])
        self._buffer = bytearray()
        refusal = self._links.refusal(hello)
        if refusal:
            raise PeerError(refusal)
        link = self._links.incoming[hello.sender]
        if link.connection is not None:
            link.connection.abort()
        self._link = link
        link.connection = self
        received, lost = link.greet(hello)
        self._links.strangers.discard(self)
        self.write(encode_greeting(Welcome(WIRE_VERSION, self._links.incarnation, received)))
        self._links.greeted(link, lost)
        return link, rest

    def _frames(self, link: Incoming, data: bytes | bytearray) -> None:
        """Hand every whole frame to the host; keep the rest."""
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return
            data, self._buffer = self._buffer, bytearray()
        view = memoryview(data)
        at, size, header, needed = 0, len(view), FRAME.size, FRAME.size
        peer, accept, receive = link.peer, link.receiver.accept, self._links.receive
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
        if at:
            self._links.wake()
