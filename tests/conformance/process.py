"""One process of a conformance run: `python -m tests.conformance.process SPEC`, driven over standard input and output.

In, one JSON object a line: a `Command`. Out, likewise: an `Event`. The end of standard input stops the process in good
order, so that none outlives whoever started it. What it logs goes to standard error.
"""

from __future__ import annotations

import asyncio
import random
import sys

import msgspec

from multicast import registry
from multicast.application import Application, ApplicationOutbox
from multicast.journal import Journal
from multicast.logs import structlog
from multicast.protocol import Overloaded
from multicast.records import Delivered
from multicast.runtime import FileDisk, Host
from multicast.runtime.clock import wall_us
from multicast.types import FINAL, AppMessage, GroupId, MessageId, ProcessId, Topology

CLUSTER = b"conformance-run."


class Spec(msgspec.Struct, frozen=True):
    """What a process has to know. options: the protocol's, as text or numbers."""

    protocol: str
    options: dict[str, str | int]
    groups: dict[GroupId, tuple[ProcessId, ...]]
    process: ProcessId
    directory: str
    ports: dict[ProcessId, int]


class Command(msgspec.Struct, omit_defaults=True):
    """submit: multicast this. ahead_us: from now on the wall clock is so far ahead. Without either: tell the status."""

    submit: AppMessage | None = None
    ahead_us: int | None = None


class Event(msgspec.Struct, omit_defaults=True):
    """One of: a delivery (id, position), a refused submission (refused), or a status (leader, connected)."""

    id: MessageId = b""
    position: int = 0
    refused: MessageId = b""
    status: bool = False
    leader: ProcessId | None = None
    connected: int = 0


def tell(event: Event) -> None:
    """Write one line."""
    sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
    sys.stdout.buffer.flush()


class Teller(Application):
    """Tells of every final delivery, after a restart of all again."""

    def on_deliver(self, delivery: Delivered, outcome: bytes | None, now: int, out: ApplicationOutbox) -> None:
        if delivery.stage == FINAL:
            tell(Event(id=delivery.message.id, position=delivery.position))

    def on_refused(self, message: AppMessage, reason: str, now: int, out: ApplicationOutbox) -> None:
        tell(Event(refused=message.id))


async def submit(host: Host, message: AppMessage) -> None:
    """As soon as the disk keeps up."""
    while True:
        try:
            host.submit(message)
            return
        except Overloaded:
            await asyncio.sleep(0.01)


async def run(spec: Spec) -> int:
    """Until standard input ends; the exit status."""
    topology = Topology(spec.groups)
    cls = registry.load(spec.protocol)
    options = msgspec.convert(spec.options, cls.specification.options, strict=False)
    protocol = cls(spec.process, topology, options, random.Random())
    ahead_us = 0
    host = Host(
        protocol=protocol,
        application=Teller(),
        journal=Journal(FileDisk(spec.directory), CLUSTER, protocol.group, spec.process),
        addresses={process: ("127.0.0.1", port) for process, port in spec.ports.items()},
        cluster=CLUSTER,
        wall=lambda: wall_us() + ahead_us,
    )
    lines = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await host.start()
    host.failed.add_done_callback(lambda _: lines.feed_eof())
    while line := await lines.readline():
        command = msgspec.json.decode(line, type=Command)
        if command.submit is not None:
            await submit(host, command.submit)
        elif command.ahead_us is not None:
            ahead_us = command.ahead_us
        else:
            status = host.status()
            connected = sum(peer["connected"] for peer in status["peers"].values())
            tell(Event(status=True, leader=status["leader"], connected=connected))
    await host.stop()
    return 1 if host.failed.done() else 0


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    sys.exit(asyncio.run(run(msgspec.json.decode(sys.argv[1], type=Spec))))
