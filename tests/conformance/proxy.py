"""The network between the processes of a conformance run: a proxy per ordered pair that can cut, slow and break it.

A link from a to b is one TCP connection, dialled by a, with frames one way and acknowledgements the other. Every
process is told the address of a proxy instead of its peer's. What one process sends another then passes `Network`,
whichever of the two has dialled: while that direction is cut nothing of it arrives, and nothing is lost, as when the
packets of a connection are dropped and sent again; while it is slow every piece waits so long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

from multicast.types import ProcessId

_PIECE_BYTES = 64 * 1024
Direction = tuple[ProcessId, ProcessId]


class Network:
    """All proxies of one run; listens on `ports[(a, b)]` for what a dials to reach b, who listens on `targets[b]`."""

    def __init__(self, ports: Mapping[Direction, int], targets: Mapping[ProcessId, int]):
        self._ports = dict(ports)
        self._targets = dict(targets)
        self._open = {direction: asyncio.Event() for direction in ports}
        self._delay_s = dict.fromkeys(ports, 0.0)
        self._servers: list[asyncio.Server] = []
        self._links: dict[asyncio.Task[None], Direction] = {}
        self.heal()

    def addresses(self, process: ProcessId) -> dict[ProcessId, int]:
        """The ports that this process is to be told: its own, and a proxy for every peer."""
        proxies = {b: port for (a, b), port in self._ports.items() if a == process}
        return {**proxies, process: self._targets[process]}

    async def start(self) -> None:
        for (a, b), port in self._ports.items():
            self._servers.append(await asyncio.start_server(self._accepted(a, b), "127.0.0.1", port))

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        links = list(self._links)
        for task in links:
            task.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    # -- faults -------------------------------------------------------------------------------------------------------

    def cut(self, directions: Iterable[Direction]) -> None:
        """From now on nothing arrives in these directions."""
        for direction in directions:
            self._open[direction].clear()

    def isolate(self, process: ProcessId) -> None:
        """Cut this process off, both ways."""
        self.cut([d for d in self._ports if process in d])

    def slow(self, process: ProcessId, delay_s: float) -> None:
        """Whatever this process sends or is sent arrives so much later."""
        for direction in self._ports:
            if process in direction:
                self._delay_s[direction] = delay_s

    async def reset(self) -> None:
        """Break every connection."""
        links = list(self._links)
        for task in links:
            task.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    def heal(self) -> None:
        """No cut and no delay any more."""
        for event in self._open.values():
            event.set()
        self._delay_s = dict.fromkeys(self._delay_s, 0.0)

    # -- connections --------------------------------------------------------------------------------------------------

    def _accepted(self, a: ProcessId, b: ProcessId):  # type: ignore[no-untyped-def]
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._links[task] = (a, b)
            try:
                await self._connection(a, b, reader, writer)
            except (OSError, asyncio.CancelledError):
                pass  # an end has gone, or the connection was broken on purpose
            finally:
                del self._links[task]
                writer.transport.abort()

        return accepted

    async def _connection(
        self, a: ProcessId, b: ProcessId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Until one end closes."""
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._targets[b])
        ways = [
            asyncio.create_task(self._pump((a, b), reader, far_writer)),
            asyncio.create_task(self._pump((b, a), far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            far_writer.transport.abort()

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE_BYTES):
                if self._delay_s[direction]:
                    await asyncio.sleep(self._delay_s[direction])
                await self._open[direction].wait()
                writer.write(data)
                await writer.drain()
