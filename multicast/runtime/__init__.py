"""The live host: asyncio, TCP links, a journal on real files. `Host` is its face; `local_host` the short way in.

    host        one process: the engine on the loop, its inputs, and where its effects go
    aside       what it reads and writes in other threads: for peers, snapshots, checkpoints, what may go
    writer      appends to the journal and syncs, on the loop or in a thread: group commit
    disk        real files under the journal
    failpoints  faults on demand: disk, clock, death at a named point
    clock       the steady clock for timers, and the wall clock
    links       TCP links: one connection per ordered pair of processes
    outgoing    the sending end of a link
    names       where a peer is that is called by a name
    incoming    the receiving end of a link, and the port
    fence       what peers have vouched for: an old copy of a disk is refused
    greeting    how a connection opens, and frames
    tls         mutual TLS: a peer proves by its certificate which process it is
    trouble     what is worth a line in the log about links
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from multicast import registry
from multicast.application import Application, ApplicationOutbox
from multicast.journal import Journal
from multicast.records import Delivered
from multicast.retention import Retention
from multicast.runtime.aside import pause
from multicast.runtime.disk import DirectoryInUse, FileDisk
from multicast.runtime.host import Host, HostStopped
from multicast.types import FINAL, AppMessage, ProcessId, Timestamp, Topology

__all__ = ["DirectoryInUse", "FileDisk", "Host", "HostStopped", "local_host"]


class _Listener(Application):
    """Hands final deliveries to a function."""

    def __init__(self, on_deliver: Callable[[int, AppMessage, Timestamp], object], position: int):
        self._on_deliver = on_deliver
        self.position = position

    def on_deliver(self, delivery: Delivered, outcome: bytes | None, now: int, out: ApplicationOutbox) -> None:
        if delivery.stage == FINAL and not delivery.expired:
            self._on_deliver(delivery.position, delivery.message, delivery.timestamp)


@asynccontextmanager
async def local_host(
    protocol: str,
    topology: Topology,
    process: ProcessId,
    directory: str | os.PathLike[str],
    addresses: Mapping[ProcessId, tuple[str, int]],
    *,
    on_deliver: Callable[[int, AppMessage, Timestamp], object],
    position: int = 0,
    keep_bytes: int | None = None,
    cluster: bytes = bytes(16),
    durability: str = "fsync",
    **options: Any,
) -> AsyncIterator[Host]:
    """Run one process until the block ends, with its journal in `directory`.

    on_deliver(position, message, timestamp): every final delivery after number `position`, on the loop. position: of so
    many the caller durably keeps what came of them. By default none: then a restart tells all of them again, and takes
    the longer the more there are. keep_bytes: so much of the end of the journal stays; what is before goes, once
    `Host.release` was told that the caller holds what came of it, and whoever lacks it cannot be helped. None: all
    stays. options: the protocol's. Raises what `registry.load`, the protocol's options, `Journal`, `FileDisk` and
    `Host.start` raise.
    """
    cls = registry.load(protocol)
    instance = cls(process, topology, cls.specification.options(**options), random.Random())
    disk = FileDisk(directory)
    try:
        journal = Journal(disk, cluster, instance.group, process)
        host = Host(
            protocol=instance,
            application=_Listener(on_deliver, position),
            journal=journal,
            addresses=addresses,
            cluster=cluster,
            durability=durability,
            retention=None if keep_bytes is None else Retention(journal, keep_bytes, pause=pause),
        )
    except BaseException:
        disk.close()
        raise
    await host.start()
    try:
        yield host
    finally:
        await host.stop()
