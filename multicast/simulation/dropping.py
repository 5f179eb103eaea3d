"""Old segments of journals go while a world runs, as in the live host (`multicast.retention`).

In a share of the runs, at some flushes: the application has durably taken in what was synced, a checkpoint is made, and
what nobody needs any longer goes; to an archive first, in some. Nothing of this is timed, so a run is the same with and
without it but for what later lives read. What the slowest member of the group holds counts, or what is gone for whoever
asks (`Node.floor`); and where nobody can be brought up to date but by deliveries, no disk is lost once something has
gone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from multicast.journal import Journal
from multicast.retention import Retention
from multicast.segments import FLOOR
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.scene import Node
from multicast.types import ProcessId

SHARE = 0.4
"""Of runs in which segments go."""


class Dropping:
    """Of one world. held(pid): so many deliveries this process's application durably holds; None: there is none that
    holds anything, and this is drawn. archives: whether there is one; None: drawn.

    archives: what went there, by the disk that it was on. dropped: how many bytes have gone."""

    def __init__(
        self, seed: int | str, held: Callable[[ProcessId], int] | None = None, archives: bool | None = None
    ):
        self._rng = rng = random.Random(f"{seed}/dropping")
        self.active = rng.random() < SHARE
        self.archives: dict[SimulatedDisk, SimulatedDisk] = {}
        self.dropped = 0
        self._held = held or self._taken_in
        self._taken: dict[ProcessId, int] = {}
        self._takes, self._covers, self._goes = (rng.choice((0.02, 0.1, 0.5)) for _ in range(3))
        self._keep_bytes = rng.choice((0, 0, 1_000, 10_000))
        self._archives = rng.random() < 0.5 if archives is None else archives

    def _taken_in(self, pid: ProcessId) -> int:
        return self._taken.get(pid, 0)

    def held(self, pid: ProcessId) -> int:
        """So many deliveries the application of this process holds when a life begins."""
        return self._held(pid)

    def at_flush(self, node: Node) -> None:
        """What this process has written so far is synced."""
        if not self.active:
            return
        rng, pid = self._rng, node.pid
        if rng.random() < self._takes:
            told = node.engine._durable_told  # to a process that comes back, what its application holds is durable
            self._taken[pid] = max(self._taken.get(pid, 0), min(node.flushed_position, told))
        with suppress(OSError):  # it dies of the disk soon
            if rng.random() < self._covers:
                node.checkpoints.advance()
            if rng.random() < self._goes:
                self._drop(node)

    def whole(self, node: Node, disk: SimulatedDisk) -> Journal:
        """The journal of this process that is on this disk as if nothing had gone: with what is archived."""
        archive, disk = self.archives.get(disk), disk.copy()
        journal = node.open_journal(disk)
        if not journal.begin:
            return journal
        assert archive is not None
        disk.remove(FLOOR)
        for name in archive.list():
            disk.replace(name, (archive.read(name),))
        return node.open_journal(disk)

    def _drop(self, node: Node) -> None:
        members = node.world.topology.groups[node.world.topology.group_of[node.pid]]
        position = max(node.floor, min(map(self._held, {node.pid, *members})))  # who is removed is no member
        archive = self.archives.setdefault(node.disk, SimulatedDisk()) if self._archives else None
        retention = Retention(node.journal, self._keep_bytes, (lambda: archive) if archive else None)
        begin = node.journal.begin
        retention.advance(position, node.checkpoints.latest().offset)
        self.dropped += node.journal.begin - begin

    def dump(self, node: Node, directory: Path) -> None:
        """Write what was archived of its present disk as a live cluster has it."""
        archive = self.archives.get(node.disk)
        if archive is None or not archive.list():
            return
        life = node.open_journal(node.disk.copy()).life()
        folder = directory / "archive" / "replicas" / str(node.pid) / f"journal-{life}"
        folder.mkdir(parents=True, exist_ok=True)
        for name in archive.list():
            (folder / name).write_bytes(archive.read(name))

    def lost_disk(self, node: Node) -> None:
        """This process has lost its disk, and what its application held."""
        self._taken.pop(node.pid, None)
