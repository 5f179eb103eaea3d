"""Real files: the `Disk` of a live journal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

SMALL_BYTES_MAX = 16
OPEN_MAX = 4
"""How many files stay open for writing: a journal writes one segment after the other, and a mark beside them."""


class DirectoryInUse(OSError):
    """Another process has this directory open."""


def make_directory(path: str) -> None:
    """Create what is missing of `path`, durably: each new name is in the directory above it. If nothing is missing, as
    far as that can be done: who made it may not have come to its sync."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for made in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process makes its own beside
            os.mkdir(made)
        sync_directory(os.path.dirname(made))
    if not missing:
        with contextlib.suppress(OSError):  # what is above it may be nobody's to read
            sync_directory(os.path.dirname(path))


def sync_directory(path: str) -> None:
    """Return when the names in it are on disk as they are."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FileDisk:
    """The files of one directory, which is created if need be and belongs to this object until `close`.

    Threads may write to different files at the same time. DirectoryInUse if it belongs to another one. The lock goes
    with the process, however it ends.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = os.path.abspath(path)
        make_directory(self.path)
        self._directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        self._open: dict[str, int] = {}
        self._opening = threading.Lock()
        self._in_use: list[str] = []
        self._unsynced: set[str] = set()
        self._unsynced_names: set[str] = set()
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fsync(self._directory)  # what an earlier life has renamed is on disk before this one goes by it
        except OSError as error:
            os.close(self._directory)
            if isinstance(error, BlockingIOError):
                raise DirectoryInUse(f"{self.path} is in use by another process") from None
            raise

    @contextmanager
    def _writing(self, name: str) -> Iterator[int]:
        """The file, opened for writing, and created if there is none; it stays open meanwhile."""
        with self._opening:
            descriptor = self._open.get(name)
            if descriptor is None:
                self._make_room()
                descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644, dir_fd=self._directory)
                self._open[name] = descriptor
                self._unsynced_names.add(name)  # even if it exists: the life that made it may not have come to its sync
            self._in_use.append(name)
        try:
            yield descriptor
        finally:
            self._in_use.remove(name)

    def _make_room(self) -> None:
        """For another file: one is closed that was not used lately and has nothing to sync. (A sync reports an error
        only to those who had the file open when it happened.) None that another thread has in use: the next file that
        is opened gets its number."""
        if len(self._open) >= OPEN_MAX:
            kept = {*self._unsynced, *self._in_use}
            self._close(next((name for name in self._open if name not in kept), ""))

    def list(self) -> list[str]:
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._directory)
        try:  # threads that list one descriptor read on from where the other is
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self) -> int:
        """How much room is left where these files are."""
        found = os.fstatvfs(self._directory)
        return found.f_bavail * found.f_frsize

    def size(self, name: str) -> int:
        return os.stat(name, dir_fd=self._directory).st_size

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)
        try:
            wanted = max(0, os.fstat(descriptor).st_size - start)
            if length is not None:
                wanted = min(wanted, length)
            pieces = []
            while wanted:
                piece = os.pread(descriptor, wanted, start)
                if not piece:
                    break
                pieces.append(piece)
                start += len(piece)
                wanted -= len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        finally:
            os.close(descriptor)

    def append(self, name: str, data: bytes) -> None:
        with self._writing(name) as descriptor:
            self._unsynced.add(name)
            os.lseek(descriptor, 0, os.SEEK_END)
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]

    def sync(self, name: str) -> None:
        with self._writing(name) as descriptor:
            os.fdatasync(descriptor)
        self._unsynced.discard(name)
        if name in self._unsynced_names:
            os.fsync(self._directory)
            self._unsynced_names.discard(name)

    def truncate(self, name: str, size: int) -> None:
        with self._writing(name) as descriptor:
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)

    def write_small(self, name: str, data: bytes) -> None:
        if len(data) > SMALL_BYTES_MAX:
            raise ValueError(f"{name}: at most {SMALL_BYTES_MAX} bytes, not {len(data)}")
        with self._writing(name) as descriptor:
            os.pwrite(descriptor, data, 0)

    def replace(self, name: str, pieces: Iterable[bytes]) -> None:
        beside = f"{name}.new"
        try:
            self._write_beside(beside, pieces)
        except OSError:
            with contextlib.suppress(OSError):  # it would take the room that there is
                os.unlink(beside, dir_fd=self._directory)
            raise
        os.rename(beside, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        os.fsync(self._directory)

    def _write_beside(self, name: str, pieces: Iterable[bytes]) -> None:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644, dir_fd=self._directory)
        try:
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> None:
        os.unlink(name, dir_fd=self._directory)
        with self._opening:
            self._unsynced.discard(name)
            self._close(name)

    def _close(self, name: str) -> None:
        descriptor = self._open.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1
