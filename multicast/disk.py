"""What a journal needs of the disk that it is on."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Protocol

HANGS_US = 1_000_000
"""A disk hangs if a write to the journal takes longer than this. A slow one takes 300 ms for a sync."""


class Disk(Protocol):
    """A flat directory of files. Every method may raise OSError; then nobody knows what was written."""

    def list(self) -> list[str]:
        """The names of all files, in any order."""

    def size(self, name: str) -> int:
        """Bytes. FileNotFoundError if there is no such file."""

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Up to `length` bytes (None: all) from byte `start` on; fewer at the end. FileNotFoundError."""

    def append(self, name: str, data: bytes) -> None:
        """Add to the end of a file, creating it. Durable only after `sync`."""

    def sync(self, name: str) -> None:
        """Return when everything appended to this file, and the file's existence, is on disk."""

    def truncate(self, name: str, size: int) -> None:
        """Cut a file to `size` bytes. Durable on return."""

    def write_small(self, name: str, data: bytes) -> None:
        """Make at most 16 bytes the whole content of a file, at once and not durably; its length never changes."""

    def replace(self, name: str, pieces: Iterable[bytes]) -> None:
        """Make this the whole content of a file, new or not: all of it or, after an error or a crash, nothing. Durable
        on return."""

    def remove(self, name: str) -> None:
        """FileNotFoundError if there is no such file. Not durable: after a loss of power it may be back."""

    def close(self) -> None:
        """Give the directory back. Nothing else may be called afterwards."""


NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""What the system says where no room is left, on the disk or for this user."""


class DiskFull(OSError):
    """There is no room for an append. It was taken back: nothing is lost, and it may be tried again."""
