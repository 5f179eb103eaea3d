"""TCP links: one connection per ordered pair of processes, dialled by the sender.

Theory of operation. A connection opens with a greeting each way: `Hello`, then `Welcome`. After that frames go one way
and acknowledgements the other; `multicast.session` says which, and everything that outlives a connection is in its two
classes. On the wire, big-endian:

    greeting         magic 4 | wire version u16 | length u16 | msgpack Hello or Welcome
    frame            length u32 | sequence number u64 | payload
    acknowledgement  sequence number u64, cumulative

Frames are collected and leave with one write per link when the host says `flush`, at the end of each of its turns. An
acknowledgement leaves when enough frames have been flushed to disk, or a little later. What a slow peer does not take
waits in its own bounded queue (`session.Sender`) and holds up nobody else.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import structlog

from multicast.protocol import PeerError
from multicast.session import Receiver, Sender
from multicast.types import ProcessId
from multicast.wire import FRAME_BYTES_MAX, WIRE_VERSION, Hello, Welcome

ACK_FRAMES = 256
ACK_DELAY_S = 0.02
CONNECT_TIMEOUT_S = 5.0
GREETING_TIMEOUT_S = 5.0
BACKOFF_MIN_S = 0.05
BACKOFF_MAX_S = 1.0
STEADY_S = 2.0
"""A connection that lived so long was a good one: the next attempt does not wait longer than the first."""
MISSING_S = 2.0
"""A peer that cannot be reached for so long is worth a line in the log."""
STRANGERS_MAX = 64
"""Connections that have not greeted yet."""
UNACKNOWLEDGED_TIMEOUT_MS = 20_000
"""After this long without an answer of its machine, a peer counts as gone (TCP_USER_TIMEOUT)."""
WRITE_BYTES = 256 * 1024
CLOSE_TIMEOUT_S = 2.0
_TOLD_MAX = 1000

_MAGIC = b"AMCL"
_GREETING = struct.Struct(">4sHH")
_FRAME = struct.Struct(">IQ")
_ACK = struct.Struct(">Q")

log = structlog.get_logger("multicast.runtime.links")

_T = TypeVar("_T", Hello, Welcome)


class NewerVersion(PeerError):
    """The peer speaks a later version of the wire format."""


def encode_greeting(greeting: Hello | Welcome) -> bytes:
    body = msgspec.msgpack.encode(greeting)
    return _GREETING.pack(_MAGIC, greeting.version, len(body)) + body


def decode_greeting(data: bytes | bytearray, kind: type[_T]) -> tuple[_T, int] | None:
    """(greeting, bytes used), or None if more bytes are needed. PeerError; NewerVersion before the rest is read."""
    if not _MAGIC.startswith(data[:4]) and not data.startswith(_MAGIC):
        raise PeerError("does not speak this protocol")
    if len(data) < _GREETING.size:
        return None
    _, version, length = _GREETING.unpack_from(data)
    if version > WIRE_VERSION:
        raise NewerVersion(f"wire version {version} is newer than this program's {WIRE_VERSION}; use a newer release")
    if len(data) < _GREETING.size + length:
        return None
    try:
        body = msgspec.msgpack.decode(data[_GREETING.size : _GREETING.size + length], type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise PeerError(f"malformed greeting: {error}") from None
    return body, _GREETING.size + length


def _set_options(transport: asyncio.BaseTransport) -> None:
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_TIMEOUT_MS)


class Outgoing(asyncio.Protocol):
    """The sending end of the link to one peer, over all its connections."""

    def __init__(self, links: Links, peer: ProcessId):
        self.peer = peer
        self.sender = Sender()
        self.ready = False
        self.wake = asyncio.Event()
        self._links = links
        self._transport: asyncio.Transport | None = None
        self._lost: asyncio.Future[None] | None = None
        self._buffer = b""
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._dirty = False
        self._paused = False

    def send(self, frame: bytes) -> None:
        """Queue a frame; it leaves with the next `flush` if the link is up, otherwise when it comes up."""
        sequence = self.sender.push(frame)
        if sequence is None:
            log.warning("queue overflow: everything for this peer is dropped", peer=self.peer)
            self.abort("queue overflow")
            self._links.reset(self.peer)
        elif self.ready:
            self._stage(sequence, frame)

    def _stage(self, sequence: int, frame: bytes) -> None:
        self._pending.append(_FRAME.pack(len(frame), sequence))
        self._pending.append(frame)
        self._pending_bytes += _FRAME.size + len(frame)
        if not self._dirty:
            self._dirty = True
            self._links.dirty.append(self)

    def flush(self) -> None:
        """Write what is staged, as far as the connection takes it."""
        self._dirty = False
        transport, pending = self._transport, self._pending
        while pending and transport is not None and not self._paused:
            if self._pending_bytes <= WRITE_BYTES:
                data = b"".join(pending)
                pending.clear()
            else:
                some: list[bytes] = []
                size = 0
                while size < WRITE_BYTES:
                    size += len(pending[0])
                    some.append(pending.popleft())
                data = b"".join(some)
            self._pending_bytes -= len(data)
            transport.write(data)

    # -- connecting ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Dial, greet, and again when the connection is lost. Ends by cancellation."""
        loop = asyncio.get_running_loop()
        jitter = random.Random()
        delay = BACKOFF_MIN_S
        host, port = self._links.addresses[self.peer]
        missing_since = loop.time()
        while True:
            began = loop.time()
            self._lost = loop.create_future()
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await loop.create_connection(lambda: self, host, port)
                await self._lost
                missing_since = loop.time()
            except (OSError, TimeoutError) as error:
                if loop.time() - missing_since >= MISSING_S:
                    self._links.tell_once(f"cannot reach process {self.peer} at {host}:{port}", str(error))
            if loop.time() - began >= STEADY_S:
                delay = BACKOFF_MIN_S
            self.wake.clear()
            await asyncio.sleep(BACKOFF_MIN_S)
            try:
                async with asyncio.timeout(delay * jitter.uniform(0.5, 1.0)):
                    await self.wake.wait()
            except TimeoutError:
                delay = min(2 * delay, BACKOFF_MAX_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._buffer = b""
        self._paused = False
        _set_options(transport)
        transport.set_write_buffer_limits(high=4 * WRITE_BYTES)
        transport.write(encode_greeting(self._links.hello(self.peer, self.sender)))
        loop = asyncio.get_running_loop()
        loop.call_later(GREETING_TIMEOUT_S, self._check_greeted, transport)

    def _check_greeted(self, transport: asyncio.Transport) -> None:
        if transport is self._transport and not self.ready:
            self.abort("no greeting in time")

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget(str(exc or "closed by the peer"))
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)

    def _forget(self, reason: str) -> None:
        if self.ready and not self._links.closing:
            log.info("link down", peer=self.peer, reason=reason)
        self.ready = False
        self._transport = None
        self._pending.clear()
        self._pending_bytes = 0

    def abort(self, reason: str) -> None:
        """Drop the connection at once; `run` dials again."""
        if self._transport is not None:
            transport = self._transport
            self._forget(reason)
            transport.abort()

    def close(self) -> None:
        """Write what is staged, then close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    @property
    def connected(self) -> bool:
        """Whether there is a connection, greeted or not."""
        return self._transport is not None

    # -- what the peer answers ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        try:
            data = self._buffer + data
            if not self.ready:
                data = self._welcome(data)
            if self.ready and len(data) >= _ACK.size:
                whole = len(data) - len(data) % _ACK.size
                self.sender.acknowledged(_ACK.unpack_from(data, whole - _ACK.size)[0])
                data = data[whole:]
            self._buffer = data
        except PeerError as error:
            self._links.tell_once(f"process {self.peer} closed off", str(error))
            self.abort(str(error))

    def _welcome(self, data: bytes) -> bytes:
        """Read the Welcome and resend what the peer lacks; returns what follows it."""
        read = decode_greeting(data, Welcome)
        if read is None:
            return data
        welcome, used = read
        if welcome.refusal:
            raise PeerError(f"refuses this process: {welcome.refusal[:200]}")
        frames, restarted = self.sender.resume(welcome.incarnation, welcome.received)
        self.ready = True
        self._links.forget_told(f"cannot reach process {self.peer}")
        log.info("link up", peer=self.peer, resent=len(frames), peer_restarted=restarted)
        for sequence, frame in frames:
            self._stage(sequence, frame)
        if restarted:
            self._links.reset(self.peer)
        self.flush()
        return data[used:]

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.flush()


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
            self.connection.write(_ACK.pack(self.acknowledged))


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
        _set_options(transport)
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
        at, size, header, needed = 0, len(view), _FRAME.size, _FRAME.size
        peer, accept, receive = link.peer, link.receiver.accept, self._links.receive
        while size - at >= header:
            length, sequence = _FRAME.unpack_from(view, at)
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


class Links:
    """All links of one process.

    receive(peer, payload): a new frame, in order; may raise PeerError. reset(peer): the link lost its memory.
    wake(): there are inputs to process. fail(error): our own bug.
    """

    def __init__(
        self,
        *,
        self_id: ProcessId,
        addresses: Mapping[ProcessId, tuple[str, int]],
        cluster: bytes,
        incarnation: int,
        receive: Callable[[ProcessId, Any], None],
        reset: Callable[[ProcessId], None],
        wake: Callable[[], None],
        fail: Callable[[BaseException], None],
    ):
        self.self_id = self_id
        self.addresses = dict(addresses)
        self.cluster = cluster
        self.incarnation = incarnation
        self.receive = receive
        self.reset = reset
        self.wake = wake
        self.fail = fail
        peers = [p for p in self.addresses if p != self_id]
        self.outgoing = {p: Outgoing(self, p) for p in peers}
        self.incoming = {p: Incoming(p) for p in peers}
        self.dirty: list[Outgoing] = []
        self.connections: set[Connection] = set()
        self.strangers: set[Connection] = set()
        self.closing = False
        self._server: asyncio.Server | None = None
        self._dialling: list[asyncio.Task[None]] = []
        self._ack_timer: asyncio.TimerHandle | None = None
        self._told: set[tuple[str, str]] = set()
        self._paused = False

    # -- life ---------------------------------------------------------------------------------------------------------

    async def bind(self) -> None:
        """Take this process's port, without serving it yet. OSError that names it."""
        host, port = self.addresses[self.self_id]
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: Connection(self), host, port, start_serving=False)
        except OSError as error:
            why = error.strerror or str(error)
            raise OSError(error.errno, f"process {self.self_id} cannot listen on {host}:{port}: {why}") from None

    async def start(self) -> None:
        """Serve the port, and dial every peer in the background."""
        assert self._server is not None
        try:
            await self._server.start_serving()
        except OSError as error:
            host, port = self.addresses[self.self_id]
            why = error.strerror or str(error)
            raise OSError(error.errno, f"process {self.self_id} cannot listen on {host}:{port}: {why}") from None
        loop = asyncio.get_running_loop()
        self._dialling = [loop.create_task(out.run(), name=f"link to {p}") for p, out in self.outgoing.items()]

    async def stop(self) -> None:
        """Send what is staged and close everything. Idempotent."""
        self.closing = True
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        for link in self.incoming.values():
            link.acknowledge()
        if self._server is not None:
            self._server.close()
        for out in self.outgoing.values():
            out.close()
        for connection in list(self.connections):
            connection.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLOSE_TIMEOUT_S
        while loop.time() < deadline and (self.connections or any(o.connected for o in self.outgoing.values())):
            await asyncio.sleep(0.005)
        self.abort()
        for task in self._dialling:
            task.cancel()
        await asyncio.gather(*self._dialling, return_exceptions=True)
        await asyncio.sleep(0)  # let aborted transports report that they are gone
        if self._server is not None:
            await self._server.wait_closed()

    def abort(self) -> None:
        """Drop every connection at once; nothing more leaves."""
        self.closing = True
        for out in self.outgoing.values():
            out.abort("closed")
        for connection in list(self.connections):
            connection.abort()
        for task in self._dialling:
            task.cancel()

    # -- the host's side ----------------------------------------------------------------------------------------------

    def send(self, sends: Sequence[tuple[tuple[ProcessId, ...], bytes]]) -> None:
        """Queue these messages; `flush` sends them off."""
        outgoing = self.outgoing
        for peers, data in sends:
            if len(data) > FRAME_BYTES_MAX:
                raise AssertionError(f"a message of {len(data)} bytes; the limit is {FRAME_BYTES_MAX}")
            for peer in peers:
                outgoing[peer].send(data)

    def flush(self) -> None:
        """One write per link that has something to send."""
        dirty, self.dirty = self.dirty, []
        for out in dirty:
            out.flush()

    def processed(self, batch: int) -> None:
        """Everything received so far is part of this batch, or of one before it."""
        for link in self.incoming.values():
            link.processed(batch)

    def settled(self, batch: int) -> None:
        """The batches up to this one are on disk: what they processed may be acknowledged."""
        waiting = False
        for link in self.incoming.values():
            count = link.settled(batch)
            if count >= ACK_FRAMES:
                link.acknowledge()
            elif count:
                waiting = True
        if waiting and self._ack_timer is None and not self.closing:
            self._ack_timer = asyncio.get_running_loop().call_later(ACK_DELAY_S, self._acknowledge)

    def _acknowledge(self) -> None:
        self._ack_timer = None
        for link in self.incoming.values():
            link.acknowledge()

    def pause(self, paused: bool) -> None:
        """Stop or go on reading from all peers: their messages then wait at their end."""
        if paused != self._paused:
            self._paused = paused
            for link in self.incoming.values():
                if link.connection is not None:
                    link.connection.pause(paused)

    def close_faulty(self, peer: ProcessId, reason: str) -> None:
        """Close the link from a peer that broke the protocol. It will dial again, with a back-off."""
        link = self.incoming.get(peer)
        if link is not None and link.connection is not None:
            self.fault(link.connection, link, reason)

    def status(self) -> dict[str, Any]:
        """Per peer: whether both directions are up, and how many frames wait for an acknowledgement."""
        return {
            str(p): {
                "connected": out.ready and self.incoming[p].connection is not None,
                "queued": out.sender.queued,
            }
            for p, out in self.outgoing.items()
        }

    # -- the connections' side ----------------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        """Whether one more stranger may stay."""
        if self.closing or len(self.strangers) >= STRANGERS_MAX:
            return False
        self.strangers.add(connection)
        return True

    def refusal(self, hello: Hello) -> str:
        """Why this greeting is refused; empty if it is not."""
        if hello.cluster != self.cluster:
            return f"this process is of cluster {self.cluster.hex()}, not of {hello.cluster.hex()[:64]}"
        if hello.receiver != self.self_id:
            return f"this is process {self.self_id}, not {hello.receiver}"
        if hello.sender not in self.incoming:
            return f"process {hello.sender} is not a member of this cluster"
        if min(hello.incarnation, hello.epoch) < 0 or hello.first < 1:
            return "impossible numbers in the greeting"
        return ""

    def greeted(self, link: Incoming, lost: bool) -> None:
        """A peer dialled this process: so it is up, and our own link to it need not wait any longer."""
        if lost:
            self.reset(link.peer)
        if self._paused and link.connection is not None:
            link.connection.pause(True)
        self.outgoing[link.peer].wake.set()

    def fault(self, connection: Connection, link: Incoming | None, reason: str) -> None:
        """What came over this connection is refused: say so once and close it."""
        if link is None:
            self.tell_once(f"refused a connection from {connection.address}", reason)
            connection.write(encode_greeting(Welcome(WIRE_VERSION, self.incarnation, 0, reason)))
            connection.close()
        else:
            log.warning("a peer broke the protocol: its link is closed", peer=link.peer, reason=reason)
            connection.abort()
            self.reset(link.peer)

    def hello(self, peer: ProcessId, sender: Sender) -> Hello:
        return Hello(WIRE_VERSION, self.cluster, self.self_id, peer, self.incarnation, sender.epoch, sender.first)

    def tell_once(self, what: str, why: str) -> None:
        """Log this, unless it was just the same before."""
        if (what, why) not in self._told and not self.closing:
            if len(self._told) >= _TOLD_MAX:
                self._told.clear()
            self._told.add((what, why))
            log.warning(what, reason=why) if why else log.warning(what)

    def forget_told(self, prefix: str) -> None:
        """The next such trouble is news again."""
        self._told = {t for t in self._told if not t[0].startswith(prefix)}
