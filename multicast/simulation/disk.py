"""A disk in memory that tells what was synced from what was only written.

A crash of the process alone keeps what was written: the operating system still has it, but a later loss of power may
take it all the same. A loss of power keeps what was synced and, of the bytes after that, a random prefix: none, some (a
torn batch, sometimes with zeros where the rest should be) or all (the crash came between the sync and its return).
Files written by `write_small` are not durable: power may bring back an older content, and a file that was removed. A
sync may fail; then what it should have saved is as good as after a loss of power.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterable


class _File:
    __slots__ = ("data", "older", "small", "synced")

    def __init__(self, small: bool = False):
        self.data = bytearray()
        self.synced = 0
        self.small = small
        self.older = b""


class SimulatedDisk:
    """The flat directory of one process (`multicast.journal.Disk`). Outlives the process.

    failing: every sync raises OSError, until the process has died of it.
    """

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._removed: dict[str, _File] = {}
        self.failing = False

    def list(self) -> list[str]:
        return sorted(self._files)

    def size(self, name: str) -> int:
        return len(self._file(name).data)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        data = self._file(name).data
        end = len(data) if length is None else min(len(data), start + length)
        return bytes(memoryview(data)[start:end])

    def append(self, name: str, data: bytes) -> None:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = _File()
        file.data += data

    def sync(self, name: str) -> None:
        file = self._file(name)
        if self.failing:
            raise OSError(errno.EIO, "the disk fails", name)
        file.synced = len(file.data)

    def truncate(self, name: str, size: int) -> None:
        file = self._file(name)
        del file.data[size:]
        file.synced = len(file.data)

    def write_small(self, name: str, data: bytes) -> None:
        if len(data) > 16:
            raise ValueError(f"write_small takes at most 16 bytes, not {len(data)}")
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = _File(small=True)
        file.older = bytes(file.data)
        file.data = bytearray(data)

    def replace(self, name: str, pieces: Iterable[bytes]) -> None:
        if self.failing:
            raise OSError(errno.EIO, "the disk fails", name)
        self._removed.clear()  # the directory is synced
        file = self._files[name] = _File()
        file.data += b"".join(pieces)
        file.synced = len(file.data)

    def remove(self, name: str) -> None:
        self._removed[name] = self._file(name)
        del self._files[name]

    def close(self) -> None:
        """Nothing to give back."""

    @property
    def unsynced(self) -> int:
        """Bytes that a loss of power may take."""
        return sum(len(f.data) - f.synced for f in self._files.values() if not f.small)

    def crash(self, rng: random.Random, power: bool, torn: bool = False, keeps: bool = True) -> None:
        """The process died; with `power`, the machine did, and what is left now is durable. torn: some, but not all, of
        what was written and not synced is left; without `keeps`, nothing is."""
        self.failing = False
        if not power:
            return
        for name in sorted(self._removed):
            if rng.random() < 0.5:
                self._files.setdefault(name, self._removed[name])
        self._removed.clear()
        for name in sorted(self._files):
            file = self._files[name]
            self._lose(name, file, rng, torn, keeps)
            file.synced = len(file.data)

    def copy(self) -> SimulatedDisk:
        """Another disk with the same content; of it, the same is synced."""
        other = SimulatedDisk()
        for name, file in self._files.items():
            twin = other._files[name] = _File(file.small)
            twin.data, twin.synced, twin.older = bytearray(file.data), file.synced, file.older
        other._removed = dict(self._removed)
        return other

    def _lose(self, name: str, file: _File, rng: random.Random, torn: bool, keeps: bool) -> None:
        if file.small:
            if rng.random() < 0.5:
                file.data = bytearray(file.older)
            if not file.data:
                del self._files[name]
            return
        loose = len(file.data) - file.synced
        if loose:
            kept, zeros = 0, 0
            if not torn and keeps:
                kept = rng.choice((0, loose, rng.randrange(loose + 1)))
            elif torn and loose > 1:
                kept = rng.randrange(1, loose)
                zeros = rng.randrange(loose - kept + 1) if rng.random() < 0.3 else 0
            del file.data[file.synced + kept :]
            file.data += bytes(zeros)
            if not file.data and file.synced == 0 and rng.random() < 0.5:
                del self._files[name]

    def _file(self, name: str) -> _File:
        file = self._files.get(name)
        if file is None:
            raise FileNotFoundError(name)
        return file
