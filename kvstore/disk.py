"""What a replica keeps in its directory: its journal, and its data in LMDB."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from kvstore.config import ClusterConfig, ReplicaConfig
from kvstore.storage.backend import Backend
from kvstore.storage.failing import FailingBackend
from kvstore.storage.lmdb_backend import LmdbBackend
from multicast.journal import Journal
from multicast.runtime.disk import FileDisk
from multicast.runtime.failpoints import FailingDisk, Failpoints


def open_disk(
    config: ClusterConfig, replica: ReplicaConfig, home: Path, opened: ExitStack, failpoints: Failpoints | None = None
) -> tuple[FileDisk | FailingDisk, Journal, Backend]:
    """The files of the journal, the journal, and the data; made if need be, and given back by `opened`.

    DirectoryInUse, JournalError, StorageError.
    """
    files = FileDisk(home / "journal")
    opened.callback(files.close)
    disk = FailingDisk(files, failpoints) if failpoints else files
    journal = Journal(disk, config.cluster, replica.shard, replica.id, config.limits.segment_bytes_max)
    backend = LmdbBackend(home / "data", durability=config.durability)
    opened.callback(backend.close)
    return disk, journal, FailingBackend(backend, failpoints) if failpoints else backend
