"""The sending end of a link: dials, greets, resends, and never waits for a slow peer."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
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
from multicast.runtime.names import Lookup
from multicast.runtime.tls import Tls
from multicast.runtime.trouble import Troubles, log
from multicast.session import Sender
from multicast.types import ProcessId
from multicast.wire import Welcome

CONNECT_TIMEOUT_S = 5.0
BACKOFF_MIN_S = 0.05
BACKOFF_MAX_S = 1.0
STEADY_S = 2.0
"""A connection that lived so long was a good one: the next attempt does not wait longer than the first."""
MISSING_S = 2.0
"""A peer that cannot be reached for so long is worth a line in the log."""
WRITE_BYTES = 256 * 1024
READ_BYTES = 4096
"""At once. Only acknowledgements come; for why not into a new buffer, see `multicast.runtime.incoming`."""
_REFUSAL_MAX = 500
"""So much of what a peer says is told."""


class Outgoing(asyncio.BufferedProtocol):
    """The sending end of the link to one peer, over all its connections.

    dirty: where it puts itself when it has something for the next `flush`. reset(peer): the link lost its memory.
    connected(peer, up): there is a connection, or there is none. fail(error): this process must not go on. tls: of all
    connections; None: without.
    """

    def __init__(
        self,
        peer: ProcessId,
        address: tuple[str, int],
        identity: Identity,
        dirty: list[Outgoing],
        reset: Callable[[ProcessId], None],
        connected: Callable[[ProcessId, bool], None],
        fail: Callable[[BaseException], None],
        troubles: Troubles,
        tls: Tls | None = None,
    ):
        self.peer = peer
        self._tls = tls
        self.sender = Sender()
        self.ready = False
        self.wake = asyncio.Event()
        self._address = address
        self._lookup = Lookup()
        self._identity = identity
        self._all_dirty = dirty
        self._reset = reset
        self._connected = connected
        self._fail = fail
        self._troubles = troubles
        self._transport: asyncio.Transport | None = None
        self._lost: asyncio.Future[None] | None = None
        self._buffer = b""
        self._read = memoryview(bytearray(READ_BYTES))
        self._pending: deque[tuple[int, bytes]] = deque()
        self._dirty = False
        self._paused = False

    def send(self, frame: bytes) -> None:
        """Queue a frame; it leaves with the next `flush` if the link is up, otherwise when it comes up."""
        sequence = self.sender.push(frame)
        if sequence is None:
            log.warning("queue overflow: everything for this peer is dropped", peer=self.peer)
            self.abort("queue overflow")
            if self.sender.losses == 1:
                self._reset(self.peer)
        elif sequence and self.ready:
            self._pending.append((sequence, frame))
            if not self._dirty:
                self._dirty = True
                self._all_dirty.append(self)

    def flush(self) -> None:
        """Write what is staged, as far as the connection takes it: nothing is done for what must wait."""
        self._dirty = False
        transport, pending, pack = self._transport, self._pending, FRAME.pack
        while pending and transport is not None and not self._paused:
            some: list[bytes] = []
            size = 0
            while pending and size < WRITE_BYTES:
                sequence, frame = pending.popleft()
                some += (pack(len(frame), sequence), frame)
                size += len(frame)
            transport.write(b"".join(some))

    def move(self, address: tuple[str, int]) -> None:
        """The peer is elsewhere from now on."""
        self._address = address
        self.abort("it is elsewhere now")
        self.wake.set()

    # -- connecting ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Dial, greet, and again when the connection is lost. Ends by cancellation."""
        loop = asyncio.get_running_loop()
        jitter = random.Random()
        delay = BACKOFF_MIN_S
        missing_since = loop.time()
        while True:
            began = loop.time()
            self._lost = loop.create_future()
            host, port = self._address
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await self._connect(host, port)
                await self._lost
                missing_since = loop.time()
            except (OSError, TimeoutError, ValueError) as error:  # ValueError: it is no address; perhaps it `move`s
                if self._transport is not None:  # it was made as its time was over: its loss is not the next one's
                    self.abort(str(error))
                    await asyncio.wait([self._lost], timeout=CONNECT_TIMEOUT_S)
                self._connected(self.peer, False)
                if loop.time() - missing_since >= MISSING_S:
                    self._troubles.tell(f"cannot reach process {self.peer} at {host}:{port}", str(error))
            if loop.time() - began >= STEADY_S:
                delay = BACKOFF_MIN_S
            self.wake.clear()
            await asyncio.sleep(BACKOFF_MIN_S)
            try:
                async with asyncio.timeout(delay * jitter.uniform(0.5, 1.0)):
                    await self.wake.wait()
            except TimeoutError:
                delay = min(2 * delay, BACKOFF_MAX_S)

    async def _connect(self, host: str, port: int) -> None:
        """To the first address of this name that answers."""
        loop, tls = asyncio.get_running_loop(), self._tls  # whose certificates are others every now and then
        secured: dict[str, Any] = {} if tls is None else {"ssl": tls.dialling, "server_hostname": tls.name(self.peer)}
        *others, last = await self._lookup.addresses(host)
        for address in others:
            with suppress(OSError):
                await loop.create_connection(lambda: self, address, port, **secured)
                return
        await loop.create_connection(lambda: self, last, port, **secured)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._buffer = b""
        self._paused = False
        set_options(transport)
        transport.set_write_buffer_limits(high=4 * WRITE_BYTES)
        transport.write(encode_greeting(self._identity.hello(self.peer, self.sender)))
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
        if self.ready and not self._troubles.closing:
            log.info("link down", peer=self.peer, reason=reason)
            self._connected(self.peer, False)
        self.ready = False
        self._transport = None
        self._pending.clear()

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

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport is None:
            return
        try:
            data = self._buffer + self._read[:nbytes]
            if not self.ready:
                data = self._welcome(data)
            if self.ready and len(data) >= ACK.size:
                whole = len(data) - len(data) % ACK.size
                acknowledged, length = ACK.unpack_from(data, whole - ACK.size)
                self._identity.fence.vouched(self.peer, length)
                self._pending += self.sender.acknowledged(acknowledged)
                self.flush()
                data = data[whole:]
            self._buffer = data
        except PeerError as error:
            self._troubles.tell(f"process {self.peer} closed off", str(error))
            self.abort(str(error))

    def _welcome(self, data: bytes) -> bytes:
        """Read the Welcome and resend what the peer lacks; returns what follows it."""
        read = decode_greeting(data, Welcome)
        if read is None:
            return data
        welcome, used = read
        if welcome.fenced:
            self._fail(Fenced(f"process {self.peer} refuses this one: {welcome.refusal[:_REFUSAL_MAX]}"))
            return b""
        if welcome.refusal:
            raise PeerError(f"refuses this process: {welcome.refusal[:_REFUSAL_MAX]}")
        said = Vouched(welcome.incarnation, welcome.life, welcome.length)
        refusal = self._identity.fence.refusal(self.peer, said)
        if refusal:
            raise Fenced(refusal)
        frames, reset = self.sender.resume(welcome.incarnation, welcome.received)
        self.ready = True
        self._connected(self.peer, True)
        self._troubles.over(f"cannot reach process {self.peer}")
        log.info("link up", peer=self.peer, resent=len(frames), lost_memory=reset)
        self._pending += frames
        if reset:
            self._reset(self.peer)
        self.flush()
        return data[used:]

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.flush()
