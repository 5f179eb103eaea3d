"""The files of a replica on a disk that fails, or dies, at one operation; and what such a death leaves of them.

`Crashing` stands between the replica and the operating system: for the modules that touch files it takes the place of
`os`. It counts what they do in `root`, one operation after the other, whatever thread it is in, and what befalls one of
them is drawn (`Fault`). It knows what was synced: a file's bytes, and each directory's names. So it can tell what is
left after a loss of power: at least that, and of the rest anything.

LMDB goes to the system by itself. One commit of it counts as one operation: it is there or not.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import pytest

from kvstore import config
from kvstore.storage import lmdb_backend
from multicast.runtime import disk

KILLED, TORN, POWER, ERROR, FULL, HALF, SHORT = FATES = (
    "killed", "torn", "power", "error", "full", "half", "short",
)  # fmt: skip
"""The process dies before it; in the midst of a write; the machine does. The device says that it cannot; that there is
no room; that there is none after half of it. A write takes half, and says so."""
LEAST, MOST, DRAWN = KEEPS = ("least", "most", "drawn")
"""What a loss of power leaves: what was synced; all; of the rest something."""


class Fault(NamedTuple):
    """`fate` befalls operation number `at`; -1: none of them."""

    at: int = -1
    fate: str = KILLED
    keeps: str = LEAST


_WRITES = ("write", "pwrite")
_ROOM = ("create", "mkdir", "rename", "sync", "commit", *_WRITES)
"""What may find no room."""
_MEMORY = "lock.mdb"
"""Nothing of it outlives a process."""


class Died(OSError):
    """The process is dead: nothing that it still tries happens."""

    def __init__(self, *_: object) -> None:
        super().__init__(errno.EIO, "it is dead")


def sensible(kind: str, fate: str) -> bool:
    """Whether this can happen to such an operation."""
    if fate in (TORN, HALF, SHORT):
        return kind in _WRITES
    return fate != FULL or kind in _ROOM


class Crashing:
    """dead: the process has died of the fault. log: (kind, name) of each operation since the fault was told."""

    def __init__(self, root: Path, seed: int = 0):
        self.root = root
        self.log: list[tuple[str, str]] = []
        self.dead = False
        self._fault = Fault()
        self._rng = random.Random(seed)
        self._lock = threading.RLock()
        self._fails_next: int | None = None
        self._paths: dict[int, Path] = {}
        self._synced: dict[int, bytes] = {}
        self._lost: dict[int, set[int]] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._kept: dict[int, int] = {}
        self.settle()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def befall(self, fault: Fault) -> None:
        """From now on; whoever was dead lives again."""
        self.log, self._fault, self.dead, self._fails_next = [], fault, False, None

    # -- what is on disk ----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """All that is there is on disk."""
        for path in (self.root, *self.root.rglob("*")):
            if path.is_dir():
                self._names[path.stat().st_ino] = self._list(path)
            else:
                self._synced[path.stat().st_ino] = path.read_bytes()

    def _list(self, path: Path) -> dict[str, int]:
        return {name: (path / name).stat().st_ino for name in os.listdir(path) if name != _MEMORY}

    def _sync(self, path: Path, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            self._names[found.st_ino] = self._list(path)
            return
        data = bytearray(os.pread(descriptor, found.st_size, 0))
        for at in self._lost.get(found.st_ino, ()):
            if at < len(data):
                data[at] = 0
        self._synced[found.st_ino] = bytes(data)

    def _lose(self, descriptor: int) -> None:
        """A sync has failed: what it was to save is lost, and a later one does not save it."""
        found = os.fstat(descriptor)
        if not stat.S_ISDIR(found.st_mode):
            data, before = os.pread(descriptor, found.st_size, 0), self._synced.get(found.st_ino, b"")
            lost = {at for at in range(len(data)) if at >= len(before) or data[at] != before[at]}
            self._lost.setdefault(found.st_ino, set()).update(lost)

    def left(self, keeps: str) -> Path:
        """What is left of the root after a loss of power, beside it."""
        target = self.root.with_name(f"{self.root.name}-")
        target.mkdir()
        self._leave(self.root, self.root.stat().st_ino, target, keeps)
        return target

    def after(self) -> Crashing:
        """Of what is left after this death, with what is known to be on disk."""
        if self._fault.fate != POWER:
            return self
        self.end()
        return Crashing(self.root.with_name(f"{self.root.name}-"), self._rng.getrandbits(32))

    def _leave(self, path: Path, number: int, target: Path, keeps: str) -> None:
        before, now = self._names.get(number, {}), self._list(path) if path.is_dir() else {}
        for name in sorted({*before, *now}):
            inode = {LEAST: before, MOST: now, DRAWN: self._rng.choice((before, now))}[keeps].get(name)
            if inode is None:
                continue
            if inode in self._names or (path / name).is_dir():
                (target / name).mkdir()
                self._leave(path / name, inode, target / name, keeps)
            else:
                (target / name).write_bytes(self._bytes(path / name, inode, now.get(name) == inode, keeps))

    def _bytes(self, path: Path, inode: int, is_there: bool, keeps: str) -> bytes:
        before = self._synced.get(inode, b"")
        descriptor = self._kept.get(inode)
        if is_there:
            now = path.read_bytes()
        else:
            now = before if descriptor is None else os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        if keeps != DRAWN or before == now:
            return before if keeps == LEAST else now
        if not now.startswith(before) or not before:
            return self._rng.choice((before, now))
        kept = self._rng.randrange(len(before), len(now) + 1)
        zeros = self._rng.choice((0, len(now) - kept))
        return now[:kept] + bytes(zeros)

    # -- operations ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _operation(self, kind: str, path: Path) -> Iterator[str]:
        """One operation, and nothing beside it. Yields how it goes otherwise than well: SHORT, HALF, TORN, or empty."""
        with self._lock:
            if not path.is_relative_to(self.root):
                yield ""
                return
            if self.dead:
                raise Died
            number = len(self.log)
            self.log.append((kind, str(path.relative_to(self.root))))
            fate = self._fault.fate if number == self._fault.at and sensible(kind, self._fault.fate) else ""
            if self._fails_next is not None:
                code, self._fails_next = self._fails_next, None
                raise OSError(code, os.strerror(code), str(path))
            if fate in (KILLED, POWER):
                self._die()
            if fate in (ERROR, FULL):
                code = errno.EIO if fate == ERROR else errno.ENOSPC
                raise OSError(code, os.strerror(code), str(path))
            yield fate
            if fate == TORN:
                self._die()
            if fate == HALF:
                self._fails_next = errno.ENOSPC

    def _die(self) -> None:
        self.dead = True
        if self._fault.fate == POWER:
            self.left(self._fault.keeps)
        raise Died

    def _path(self, name: Any, dir_fd: int | None) -> Path:
        return Path(os.fspath(name)) if dir_fd is None else self._paths[dir_fd] / name

    def open(self, name: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        path = self._path(name, dir_fd)
        if not flags & os.O_CREAT:
            descriptor = os.open(name, flags, mode, dir_fd=dir_fd)
        else:
            with self._operation("open" if path.exists() else "create", path):
                readable = flags & ~os.O_WRONLY | os.O_RDWR  # for `_sync`
                descriptor = os.open(name, readable, mode, dir_fd=dir_fd)
        self._paths[descriptor] = path
        return descriptor

    def file(self, path: Path, mode: str = "r", *others: Any, **named: Any) -> Any:
        """In the place of `open`."""
        if mode != "wb":
            return builtins.open(path, mode, *others, **named)
        return _File(self, path)

    def close(self, descriptor: int) -> None:
        self._paths.pop(descriptor, None)
        os.close(descriptor)

    def write(self, descriptor: int, data: Any) -> int:
        with self._operation("write", self._paths[descriptor]) as fate:
            at = os.lseek(descriptor, 0, os.SEEK_CUR)
            size = os.write(descriptor, data[: (len(data) + 1) // 2] if fate else data)
            self._found(descriptor, at, size)
            return size

    def pwrite(self, descriptor: int, data: bytes, at: int) -> int:
        with self._operation("pwrite", self._paths[descriptor]) as fate:
            size = os.pwrite(descriptor, data[: (len(data) + 1) // 2] if fate else data, at)
            self._found(descriptor, at, size)
            return size

    def _found(self, descriptor: int, at: int, size: int) -> None:
        """These bytes were written anew."""
        self._lost.get(os.fstat(descriptor).st_ino, set()).difference_update(range(at, at + size))

    def fsync(self, descriptor: int) -> None:
        path = self._paths[descriptor]
        try:
            with self._operation("sync", path):
                self._sync(path, descriptor)
        except OSError as error:
            if not isinstance(error, Died):
                self._lose(descriptor)
            raise

    fdatasync = fsync

    def ftruncate(self, descriptor: int, size: int) -> None:
        with self._operation("truncate", self._paths[descriptor]):
            os.ftruncate(descriptor, size)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        with self._operation("mkdir", Path(path)):
            os.mkdir(path, mode)

    def rename(self, old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        path = self._path(new, dst_dir_fd)
        with self._operation("rename", path):
            self._keep(path)
            os.rename(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    replace = rename

    def unlink(self, name: Any, *, dir_fd: int | None = None) -> None:
        path = self._path(name, dir_fd)
        with self._operation("unlink", path):
            self._keep(path)
            os.unlink(name, dir_fd=dir_fd)

    def _keep(self, path: Path) -> None:
        """Its inode stays, and its number with it: after a loss of power the file may be back."""
        if path.is_file():
            self._kept.setdefault(path.stat().st_ino, os.open(path, os.O_RDONLY))

    def commit(self, backend: Any, write: Callable[[], None]) -> None:
        """What stands for `LmdbBackend._commit`."""
        file = Path(backend.name) / "data.mdb"

        def written() -> None:
            try:
                with self._operation("commit", file):
                    write()
                    self._commit_synced(file)
            except Died as error:
                raise lmdb.Error(str(error)) from None
            except OSError as error:
                kind = lmdb.DiskError if error.errno == errno.ENOSPC else lmdb.Error
                raise kind(error.strerror) from None

        _commit(backend, written)

    def _commit_synced(self, file: Path) -> None:
        self._synced[file.stat().st_ino] = file.read_bytes()

    def opened(self, backend: Any) -> None:
        """What stands for `LmdbBackend._open_databases`: LMDB makes them in transactions."""
        if self.dead and Path(backend.name).is_relative_to(self.root):
            raise lmdb.Error("it is dead")
        _open_databases(backend)
        self._commit_synced(Path(backend.name) / "data.mdb")

    def end(self) -> None:
        """Nobody looks at these files any more."""
        for descriptor in self._kept.values():
            os.close(descriptor)
        self._kept.clear()


class _File(io.FileIO):
    def __init__(self, crashing: Crashing, path: Path):
        with crashing._operation("create", path):
            super().__init__(path, "wb+")
        self._crashing = crashing
        crashing._paths[self.fileno()] = path

    def write(self, data: Any) -> int:
        view = memoryview(data)
        while view:
            view = view[self._crashing.write(self.fileno(), view) :]
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._crashing._paths.pop(self.fileno(), None)
        super().close()


_commit, _open_databases = lmdb_backend.LmdbBackend._commit, lmdb_backend.LmdbBackend._open_databases
_open_lmdb = lmdb.open


class _Lmdb:
    """`lmdb` without syncs: `Crashing` knows what they would do."""

    def __getattr__(self, name: str) -> Any:
        return getattr(lmdb, name)

    def open(self, path: str, sync: bool, **options: Any) -> Any:
        return _open_lmdb(path, sync=False, **options)


def plant(monkeypatch: pytest.MonkeyPatch, crashing: Crashing) -> None:
    """Have all that touches files go through it."""
    for module in (disk, config, lmdb_backend):
        monkeypatch.setattr(module, "os", crashing)
    monkeypatch.setattr(config, "open", crashing.file, raising=False)
    monkeypatch.setattr(lmdb_backend, "lmdb", _Lmdb())
    monkeypatch.setattr(lmdb_backend.LmdbBackend, "_commit", lambda backend, write: crashing.commit(backend, write))
    monkeypatch.setattr(lmdb_backend.LmdbBackend, "_open_databases", lambda backend: crashing.opened(backend))
