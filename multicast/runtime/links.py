"""TCP links: one connection per ordered pair of processes, dialled by the sender.

Theory of operation. A connection opens with a greeting each way: `Hello`, then `Welcome`. After that frames go one way
and acknowledgements the other; `multicast.session` says which, and everything that outlives a connection is in its two
classes. `greeting` has the bytes, `outgoing` and `incoming` the two ends; here they are kept together.

Frames are collected and leave with one write per link when the host says `flush`, at the end of each of its turns; or
a little later, with others, if nobody waits for them. An acknowledgement leaves when enough frames have been flushed to
disk, or a little later. What a slow peer does not take waits in its own bounded queue (`session.Sender`) and holds up
nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from multicast.runtime.fence import Fence
from multicast.runtime.greeting import Identity
from multicast.runtime.incoming import Incoming, Listener
from multicast.runtime.outgoing import Outgoing
from multicast.runtime.tls import Tls
from multicast.runtime.trouble import Troubles
from multicast.types import ProcessId
from multicast.wire import FRAME_BYTES_MAX

ACK_FRAMES = 256
ACK_DELAY_S = 0.1
RIDE_S = 0.01
"""How long a frame for which nobody waits may wait for another one to the same peer."""
CLOSE_TIMEOUT_S = 2.0


class Links:
    """All links of one process.

    addresses: of this process, where it listens, and of those to which there are links from the beginning. alike: see
    `multicast.protocol.Options`.
    receive(peer, payload): a new frame, in order; may raise PeerError. reset(peer): the link lost its memory.
    connected(peer, up): there is a connection to this peer, or none. tls: of every link; None: without.
    fail(error): our own bug, or a peer knows that this disk is not the one it was.
    """

    def __init__(
        self,
        *,
        self_id: ProcessId,
        addresses: Mapping[ProcessId, tuple[str, int]],
        cluster: bytes,
        incarnation: int,
        fence: Fence,
        receive: Callable[[ProcessId, Any], None],
        reset: Callable[[ProcessId], None],
        connected: Callable[[ProcessId, bool], None],
        fail: Callable[[BaseException], None],
        tls: Tls | None = None,
        alike: Mapping[str, str] = MappingProxyType({}),
    ):
        self._self_id = self_id
        self._fence = fence
        self._fail = fail
        self._troubles = Troubles()
        self._dirty: list[Outgoing] = []
        self.outgoing: dict[ProcessId, Outgoing] = {}
        self.incoming: dict[ProcessId, Incoming] = {}
        self.gone: dict[ProcessId, int] = {}
        identity = Identity(self_id, cluster, alike, incarnation, self.incoming.keys(), self.gone, fence)
        self._new_outgoing = partial(
            Outgoing, identity=identity, dirty=self._dirty, reset=reset, connected=connected, fail=fail,
            troubles=self._troubles, tls=tls,
        )  # fmt: skip
        self.listener = Listener(
            identity, addresses[self_id], self.incoming,
            receive=receive, reset=reset, heard=self._heard, fail=fail, troubles=self._troubles, tls=tls,
        )  # fmt: skip
        self._dials = False
        self._dialling: dict[ProcessId, asyncio.Task[None]] = {}
        self._ack_timer: asyncio.TimerHandle | None = None
        self._ride_timer: asyncio.TimerHandle | None = None
        self.add(addresses)

    def add(self, addresses: Mapping[ProcessId, tuple[str, int]]) -> None:
        """Have links to those to which there is none."""
        for peer, address in addresses.items():
            if peer != self._self_id and peer not in self.outgoing:
                self.incoming[peer] = Incoming(peer)
                self.outgoing[peer] = self._new_outgoing(peer, address)
                if self._dials:
                    self._dial(peer)

    def part(self, gone: Mapping[ProcessId, int]) -> None:
        """These were removed, each in this view, and nobody needs them any more: there are no links to them, what waits
        for them goes, and who comes all the same is told."""
        self.gone.update(gone)
        for peer in self.outgoing.keys() & gone.keys():
            out, link = self.outgoing.pop(peer), self.incoming.pop(peer)
            if peer in self._dialling:
                self._dialling.pop(peer).cancel()
            out.abort("it was removed")
            if link.connection is not None:
                link.connection.abort()

    def _dial(self, peer: ProcessId) -> None:
        dialling = asyncio.get_running_loop().create_task(self.outgoing[peer].run(), name=f"link to {peer}")
        dialling.add_done_callback(self._dialled)
        self._dialling[peer] = dialling

    def _dialled(self, dialling: asyncio.Task[None]) -> None:
        """It ends by cancellation, or it is a bug of ours: nobody would ever dial again."""
        error = None if dialling.cancelled() else dialling.exception()
        if error is not None:
            self._fail(error)

    def _heard(self, peer: ProcessId) -> None:
        """The peer is up, so our own link to it need not wait any longer."""
        self.outgoing[peer].wake.set()

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve the port, which `listener.bind` has taken, and dial every peer in the background."""
        await self.listener.start()
        self._dials = True
        for peer in self.outgoing:
            self._dial(peer)

    async def stop(self) -> None:
        """Send what is staged and close everything. Idempotent."""
        self._troubles.closing = True
        for timer in filter(None, (self._ack_timer, self._ride_timer)):
            timer.cancel()
        self._acknowledge()
        for out in self.outgoing.values():
            out.close()
        self.listener.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLOSE_TIMEOUT_S
        while loop.time() < deadline and self._any_connected():
            await asyncio.sleep(0.005)
        self.abort()
        await asyncio.gather(*self._dialling.values(), return_exceptions=True)
        await asyncio.sleep(0)  # let aborted transports report that they are gone
        await self.listener.closed()

    def _any_connected(self) -> bool:
        return bool(self.listener.connections) or any(out.connected for out in self.outgoing.values())

    def abort(self) -> None:
        """Drop every connection at once; nothing more leaves."""
        self._troubles.closing = True
        for out in self.outgoing.values():
            out.abort("closed")
        self.listener.abort()
        for task in self._dialling.values():
            task.cancel()

    def move(self, peer: ProcessId, address: tuple[str, int], since: int) -> None:
        """Another machine takes the place of this peer, there, with a journal that is not older: nothing that the one
        before sends is read any more. Or there was none."""
        self._fence.since[peer] = since
        if peer not in self.outgoing:
            self.add({peer: address})
            return
        connection = self.incoming[peer].connection
        if connection is not None:
            connection.abort()
        self.outgoing[peer].move(address)

    # -- the host's side ----------------------------------------------------------------------------------------------

    def send(self, sends: Sequence[tuple[tuple[ProcessId, ...], bytes]]) -> None:
        """Queue these messages; `flush` or `flush_soon` sends them off. Nothing is sent to whom there is no link."""
        outgoing = self.outgoing
        for peers, data in sends:
            if len(data) > FRAME_BYTES_MAX:
                raise AssertionError(f"a message of {len(data)} bytes; the limit is {FRAME_BYTES_MAX}")
            for peer in peers:
                if peer in outgoing:
                    outgoing[peer].send(data)

    def flush(self) -> None:
        """One write per link that has something to send."""
        for out in self._dirty:
            out.flush()
        self._dirty.clear()

    def flush_soon(self) -> None:
        """The same a little later, unless it is done before."""
        if self._dirty and self._ride_timer is None and not self._troubles.closing:
            self._ride_timer = asyncio.get_running_loop().call_later(RIDE_S, self._end_of_ride)

    def _end_of_ride(self) -> None:
        self._ride_timer = None
        self.flush()

    def processed(self, batch: int) -> None:
        """Everything received so far is part of this batch, or of one before it."""
        for link in self.incoming.values():
            link.processed(batch)

    def flushed(self, batch: int) -> None:
        """The batches up to this one are on disk: what they processed may be acknowledged."""
        waiting = False
        for link in self.incoming.values():
            count = link.flushed(batch)
            if count >= ACK_FRAMES:
                link.acknowledge(self._fence.length())
            elif count:
                waiting = True
        if waiting and self._ack_timer is None and not self._troubles.closing:
            self._ack_timer = asyncio.get_running_loop().call_later(ACK_DELAY_S, self._acknowledge)

    def _acknowledge(self) -> None:
        self._ack_timer = None
        length = self._fence.length()
        for link in self.incoming.values():
            link.acknowledge(length)

    def close_faulty(self, peer: ProcessId, reason: str) -> None:
        """Close the link from a peer that broke the protocol. It will dial again, with a back-off."""
        link = self.incoming.get(peer)
        if link is not None and link.connection is not None:
            self.listener.fault(link.connection, link, reason)

    def both_ways(self) -> set[ProcessId]:
        """To whom there are connections in both directions."""
        return {p for p, out in self.outgoing.items() if out.ready and self.incoming[p].connection is not None}

    def status(self, leaving: Collection[ProcessId] = ()) -> dict[str, Any]:
        """Per peer that is none of these: whether both directions are up, and how many frames wait for an
        acknowledgement."""
        there, told = self.both_ways(), {p: out for p, out in self.outgoing.items() if p not in leaving}
        return {str(p): {"connected": p in there, "queued": out.sender.queued} for p, out in told.items()}
