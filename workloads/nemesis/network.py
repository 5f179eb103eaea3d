"""The network between processes on this machine: a proxy per ordered pair that can cut, slow and break it.

A link from a to b is one TCP connection, dialled by a, with frames one way and acknowledgements the other. Every
process is told the address of a proxy instead of its peer's. What one process sends another then passes `Network`,
whichever of the two has dialled: while that direction is cut nothing of it arrives, and nothing is lost, as when the
packets of a connection are dropped and sent again; while it is slow every piece waits so long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from multicast.types import ProcessId

_PIECE_BYTES = 64 * 1024
_TURNS = 5
"""Of the loop, until a connection that it was just accepting is there."""
Direction = tuple[ProcessId, ProcessId]


class Network:
    """All proxies of one run, on ports of their own from `start` on: for what a dials to reach b, who listens on
    `targets[b]`, on loopback. Faults add up; `heal` takes those of one process or all."""

    def __init__(self, targets: Mapping[ProcessId, int]):
        self._targets = dict(targets)
        self._ports: dict[Direction, int] = {}
        self._open = {(a, b): asyncio.Event() for a in targets for b in targets if a != b}
        self._deaf: set[ProcessId] = set()
        self._mute: set[ProcessId] = set()
        self._severed: set[frozenset[ProcessId]] = set()
        self._delay_s = dict.fromkeys(targets, 0.0)
        self._servers: list[asyncio.Server] = []
        self._links: dict[asyncio.Task[None], Direction] = {}
        self.heal()

    def addresses(self, process: ProcessId) -> dict[ProcessId, int]:
        """The ports that this process is to be told: its own, and a proxy for every peer."""
        proxies = {b: port for (a, b), port in self._ports.items() if a == process}
        return {**proxies, process: self._targets[process]}

    async def start(self) -> None:
        for a, b in self._open:
            server = await asyncio.start_server(self._accepted(a, b), "127.0.0.1", 0)
            self._servers.append(server)
            self._ports[a, b] = server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        loop = asyncio.get_running_loop()
        for listening in [socket for server in self._servers for socket in server.sockets]:
            loop.remove_reader(listening.fileno())
        for _ in range(_TURNS):  # before Python 3.13 a server that is closed loses a connection that it just accepts
            await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        await self.reset()

    # -- faults -------------------------------------------------------------------------------------------------------

    def isolate(self, process: ProcessId) -> None:
        """Cut it off, both ways."""
        self.deafen(process)
        self.mute(process)

    def deafen(self, process: ProcessId) -> None:
        """From now on it hears nobody."""
        self._deaf.add(process)
        self._open_or_shut()

    def mute(self, process: ProcessId) -> None:
        """From now on nobody hears it."""
        self._mute.add(process)
        self._open_or_shut()

    def _open_or_shut(self) -> None:
        for (a, b), event in self._open.items():
            (event.clear if a in self._mute or b in self._deaf else event.set)()

    def slow(self, process: ProcessId, delay_s: float) -> None:
        """Whatever it sends or is sent arrives so much later."""
        self._delay_s[process] = delay_s

    async def sever(self, a: ProcessId, b: ProcessId) -> None:
        """From now on there is no connection between these two, and both notice it."""
        self._severed.add(frozenset((a, b)))
        await self._break([task for task, direction in self._links.items() if {a, b} == set(direction)])

    async def reset(self, process: ProcessId | None = None) -> None:
        """Break every connection of this process; None: of all."""
        await self._break([task for task, ends in self._links.items() if process is None or process in ends])

    async def _break(self, links: list[asyncio.Task[None]]) -> None:
        for task in links:
            task.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    def heal(self, process: ProcessId | None = None) -> None:
        """Nothing is wrong with it any more; None: with anybody."""
        for one in self._targets if process is None else (process,):
            self._deaf.discard(one)
            self._mute.discard(one)
            self._severed = {pair for pair in self._severed if one not in pair}
            self._delay_s[one] = 0.0
        self._open_or_shut()

    # -- connections --------------------------------------------------------------------------------------------------

    def _accepted(self, a: ProcessId, b: ProcessId) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._connection(a, b, reader, writer))
            self._links[task] = (a, b)

            def over(_: asyncio.Task[None]) -> None:  # it may have been broken before it began
                del self._links[task]
                writer.transport.abort()

            task.add_done_callback(over)

        return accepted

    async def _connection(
        self, a: ProcessId, b: ProcessId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Until one end closes."""
        if frozenset((a, b)) in self._severed:
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._targets[b])
        except OSError:
            return  # nobody is there
        ways = [
            asyncio.create_task(self._pump((a, b), reader, far_writer)),
            asyncio.create_task(self._pump((b, a), far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            far_writer.transport.abort()  # first, for this task may be cancelled once more
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE_BYTES):
                if delay_s := max(map(self._delay_s.__getitem__, direction)):
                    await asyncio.sleep(delay_s)
                await self._open[direction].wait()
                writer.write(data)
                await writer.drain()
