"""TCP links: one connection per ordered pair of processes, dialled by the sender.

Theory of operation. A connection opens with a greeting each way: `Hello`, then `Welcome`. After that frames go one way
and acknowledgements the other; `multicast.session` says which, and everything that outlives a connection is in its two
classes. `greeting` has the bytes, `outgoing` and `incoming` the two ends; here they are kept together.

Frames are collected and leave with one write per link when the host says `flush`, at the end of each of its turns. An
acknowledgement leaves when enough frames have been flushed to disk, or a little later. What a slow peer does not take
waits in its own bounded queue (`session.Sender`) and holds up nobody else.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from multicast.runtime.greeting import encode_greeting
from multicast.runtime.incoming import Connection, Incoming
from multicast.runtime.outgoing import Outgoing
from multicast.session import Sender
from multicast.types import ProcessId
from multicast.wire import FRAME_BYTES_MAX, WIRE_VERSION, Hello, Welcome

ACK_FRAMES = 256
ACK_DELAY_S = 0.02
STRANGERS_MAX = 64
"""Connections that have not greeted yet."""
CLOSE_TIMEOUT_S = 2.0
_TOLD_MAX = 1000

log = structlog.get_logger("multicast.runtime.links")


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
            raise self._cannot_listen(error) from None

    async def start(self) -> None:
        """Serve the port, and dial every peer in the background."""
        assert self._server is not None
        try:
            await self._server.start_serving()
        except OSError as error:
            raise self._cannot_listen(error) from None
        loop = asyncio.get_running_loop()
        self._dialling = [loop.create_task(out.run(), name=f"link to {p}") for p, out in self.outgoing.items()]

    def _cannot_listen(self, error: OSError) -> OSError:
        host, port = self.addresses[self.self_id]
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        return OSError(error.errno, f"process {self.self_id} cannot listen on {host}:{port}: {why}")

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
