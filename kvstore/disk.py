"""What a replica keeps in its directory: its journal, and its data in LMDB."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from kvstore.config import ClusterConfig, ReplicaConfig
from kvstore.storage.backend import Backend
from kvstore.storage.failing import FailingBackend
from kvstore.storage.lmdb_backend import LmdbBackend
from multicast.journal import Journal
from multicast.runtime.disk import FileDisk
from multicast.runtime.failpoints import FailingDisk, Failpoints

_JOURNAL, _DATA = "journal", "data"


def open_disk(
    config: ClusterConfig, replica: ReplicaConfig, home: Path, opened: ExitStack, failpoints: Failpoints | None = None
) -> tuple[FileDisk | FailingDisk, Journal, Backend]:
    """The files of the journal, the journal, and the data; made if need be, and given back by `opened`.

    DirectoryInUse, JournalError, StorageError.
    """
    files = FileDisk(home / _JOURNAL)
    opened.callback(files.close)
    disk = FailingDisk(files, failpoints) if failpoints else files
    journal = Journal(disk, config.cluster, replica.shard, replica.id, config.limits.segment_bytes_max)
    backend = LmdbBackend(home / _DATA, durability=config.durability)
    opened.callback(backend.close)
    return disk, journal, FailingBackend(backend, failpoints) if failpoints else backend


def free_bytes(disk: FileDisk | FailingDisk, home: Path) -> int:
    """So much room is left for the journal, or for the data, which may lie on another volume, if that is less."""
    there = os.statvfs(home / _DATA)
    return min(disk.free_bytes(), there.f_bavail * there.f_frsize)
