"""Live hosts on loopback for tests, and a bare peer that speaks the wire format byte by byte."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

from multicast import registry
from multicast.batch import Batch
from multicast.journal import Journal
from multicast.protocol import MulticastProtocol
from multicast.runtime import FileDisk, Host
from multicast.runtime.greeting import decode_greeting, encode_greeting
from multicast.runtime.host import HostStopped
from multicast.types import AppMessage, GroupId, ProcessId, Topology, new_message_id
from multicast.wire import WIRE_VERSION, Hello, Welcome
from tests.multicast.scripted import Keeper, Scripted
from tests.ports import free_ports

CLUSTER = b"c" * 16
DEADLINE_S = 60.0


async def eventually(condition: Callable[[], object], what: str = "") -> None:
    """Wait until this is true. AssertionError after the deadline."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"did not happen within {DEADLINE_S} s: {what or condition}") from None


async def soon(awaitable: Awaitable[Any]) -> Any:
    """Its result. TimeoutError after the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        return await awaitable


class Cluster:
    """Hosts of one topology, started and stopped one by one; every start opens the process's directory again."""

    def __init__(self, path: Path, topology: Topology, protocol: str | None = None, **options: Any):
        self.path = path
        self.topology = topology
        self.protocol = protocol
        self.options = options
        self.addresses = {
            p: ("127.0.0.1", port)
            for p, port in zip(topology.processes, free_ports(len(topology.processes)), strict=True)
        }
        self.hosts: dict[ProcessId, Host] = {}
        self.keepers: dict[ProcessId, Keeper] = {}
        self.batches: dict[ProcessId, list[Batch]] = {}
        self.flushed: dict[ProcessId, list[int]] = {}
        self.random = random.Random(1)

    async def start(self, *processes: ProcessId, disk: FileDisk | None = None, **arguments: Any) -> None:
        """Start these processes, by default all; `arguments` go to `Host`."""
        for process in processes or self.topology.processes:
            instance: MulticastProtocol
            if self.protocol is None:
                instance = Scripted(process, self.topology)
            else:
                cls = registry.load(self.protocol)
                options = cls.specification.options(**self.options)
                instance = cls(process, self.topology, options, random.Random(process))
            keeper = self.keepers[process] = Keeper()
            batches: list[Batch] = []
            flushed: list[int] = []
            self.batches[process], self.flushed[process] = batches, flushed
            journal = Journal(disk or FileDisk(self.path / str(process)), CLUSTER, instance.group, process)
            host = Host(
                protocol=instance,
                application=keeper,
                journal=journal,
                addresses=self.addresses,
                cluster=CLUSTER,
                on_batch=batches.append,
                on_flushed=flushed.append,
                **arguments,
            )
            await host.start()
            self.hosts[process] = host

    async def connected(self) -> None:
        """Wait until every running process is linked with every other running one, both ways."""
        pairs = [(p, q) for p in self.hosts for q in self.hosts if p != q]
        await eventually(
            lambda: all(self.hosts[p].status()["peers"][str(q)]["connected"] for p, q in pairs), "all links up"
        )

    async def stop(self, *processes: ProcessId) -> None:
        for process in processes or tuple(self.hosts):
            await soon(self.hosts.pop(process).stop())

    def message(self, origin: ProcessId, payload: bytes, *groups: GroupId) -> AppMessage:
        now = self.hosts[origin].now()
        return AppMessage(new_message_id(now, self.random.getrandbits(62)), groups or (0,), payload, origin)

    async def multicast(self, origin: ProcessId, payload: bytes, *groups: GroupId) -> int:
        """Multicast and wait until this process delivers it; returns the position."""
        return int(await soon(self.request(origin, self.message(origin, payload, *groups))))

    async def request(self, process: ProcessId, request: Any) -> Any:
        """What this process answers; what `Host.request` raises, and HostStopped if it stops before."""
        host, answer = self.hosts[process], asyncio.get_running_loop().create_future()
        token = host.request(request, answer.set_result)
        try:
            result = await answer
        finally:
            host.forget(token)
        if isinstance(result, HostStopped):
            raise result
        return result

    def scripted(self, process: ProcessId) -> Scripted:
        protocol = self.hosts[process].engine.protocol
        assert isinstance(protocol, Scripted)
        return protocol

    def payloads(self, process: ProcessId) -> list[bytes]:
        return [payload for _, payload, _ in self.keepers[process].delivered]


class BarePeer:
    """Plays process `me` towards one host: greets, sends frames, reads acknowledgements. connected: those that nobody
    has closed yet."""

    connected: ClassVar[set[BarePeer]] = set()

    def __init__(self, address: tuple[str, int]):
        self.address = address
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def connect(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(*self.address)
        self.connected.add(self)

    async def greet(self, hello: Hello) -> Welcome:
        await self.connect()
        self.writer.write(encode_greeting(hello))
        data = b""
        while True:
            piece = await soon(self.reader.read(1000))
            data += piece
            read = decode_greeting(data, Welcome)
            if read is not None:
                return read[0]
            if not piece:
                raise ConnectionError("closed without an answer")

    def send(self, sequence: int, payload: bytes) -> None:
        self.writer.write(struct.pack(">IQ", len(payload), sequence) + payload)

    async def acknowledgement(self) -> int:
        return int.from_bytes(await soon(self.reader.readexactly(8)), "big")

    async def closed(self) -> bool:
        """Whether the other end closes the connection, now or soon."""
        try:
            return not await soon(self.reader.read())
        except ConnectionError:
            return True

    async def close(self) -> None:
        self.connected.discard(self)
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


def hello(sender: int, receiver: int = 0, incarnation: int = 1, epoch: int = 0, first: int = 1) -> Hello:
    return Hello(WIRE_VERSION, CLUSTER, sender, receiver, incarnation, epoch, first)
