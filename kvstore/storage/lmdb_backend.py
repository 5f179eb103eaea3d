"""The backend on disk: one LMDB environment, one named database per table.

Behind every value stands the CRC-32 of its key and of it, in four bytes, and whoever reads a row checks it; where a key
is not found its neighbours are checked, for one of them may be it, changed. LMDB itself trusts its file: so the size
that the file had after the last commit stands in the file `owner`, like a journal's mark, and a shorter one is refused
before it is mapped.

Reads use one long-lived read transaction, a snapshot that stays valid while a commit runs in another thread and is
renewed by `refresh`. A full map is grown and the commit repeated; growing moves the mapping, so reads are kept out by a
lock meanwhile (lmdb.h, `mdb_env_set_mapsize`: no transaction may be active).
"""

from __future__ import annotations

import fcntl
import os
import threading
import zlib
from collections.abc import Callable, Generator
from pathlib import Path

import lmdb

from kvstore.storage.backend import (
    FORGET_MAX,
    FORMAT,
    IDS,
    META,
    TABLES,
    UNCHECKED_FORMAT_MAX,
    Changes,
    NoSpace,
    StorageError,
)

MAP_BYTES = 1 << 30
MAP_BYTES_MAX = 1 << 44

_SUM_BYTES = 4
_FORMAT_BYTES = 2
_FILE = "data.mdb"


class LmdbBackend:
    """path: a directory, made if missing. map_size: bytes of address space to begin with; it doubles when full.

    durability: "fsync": a commit is on disk when `apply` returns; "os": it survives the process, not the machine.
    StorageError if the directory cannot be used, for example because another process has it open.
    """

    def __init__(self, path: str | Path, map_size: int = MAP_BYTES, durability: str = "fsync"):
        if durability not in ("fsync", "os"):
            raise ValueError(f"durability is 'fsync' or 'os', not {durability!r}")
        self.name = str(path)
        self._map_lock = threading.Lock()
        try:
            os.makedirs(path, exist_ok=True)
            self._owner = os.open(os.path.join(path, "owner"), os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as error:
            raise StorageError(f"{path}: cannot be used as a data directory: {error.strerror}") from None
        try:
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._owner)
            raise StorageError(f"{path}: in use by another process; stop that one first") from None
        sync = durability == "fsync"
        self._check_size()
        try:
            self._env = lmdb.open(str(path), map_size=map_size, max_dbs=len(TABLES), sync=sync, max_readers=8)
            self._tables = {table: self._env.open_db(table.encode()) for table in TABLES}
            self._reader = self._env.begin()
        except lmdb.Error as error:
            os.close(self._owner)
            raise StorageError(f"{path}: LMDB cannot open it: {error}; {self._remedy}") from None
        with self._env.begin(self._tables[META]) as transaction:
            raw = transaction.get(FORMAT)
        self._unchecked = raw is not None and len(raw) == _FORMAT_BYTES

    @property
    def _remedy(self) -> str:
        return f"move {self.name} away and start again: it is made anew from the journal"

    def _check_size(self) -> None:
        """StorageError if the file has become shorter: LMDB would map what is not there."""
        mark = os.pread(self._owner, 12, 0)
        wanted = int.from_bytes(mark[:8], "big") if _sum(b"", mark[:8]) == mark[8:] else 0
        file = os.path.join(self.name, _FILE)
        size = os.path.getsize(file) if os.path.exists(file) else 0
        if size < wanted:
            os.close(self._owner)
            raise StorageError(f"{file}: cut short, it has {size} bytes and had {wanted}; {self._remedy}")

    def _mark_size(self) -> None:
        size = os.path.getsize(os.path.join(self.name, _FILE)).to_bytes(8, "big")
        os.pwrite(self._owner, size + _sum(b"", size), 0)

    def _checked(self, table: str, key: bytes, stored: bytes) -> bytes:
        """The value in this row."""
        if self._unchecked:
            return stored
        value = stored[:-_SUM_BYTES]
        if stored[-_SUM_BYTES:] != _sum(key, value):
            raise StorageError(
                f"{self.name}: damaged: a row of {table} is not as it was written (hexadecimal key {key[:40].hex()});"
                f" {self._remedy}"
            )
        return value

    def get(self, table: str, key: bytes) -> bytes | None:
        with self._map_lock:
            stored = self._reader.get(key, db=self._tables[table])
            if stored is not None:
                return self._checked(table, key, stored)
            with self._reader.cursor(self._tables[table]) as cursor:
                found = cursor.set_range(key)
                if found:
                    self._checked(table, *cursor.item())
                if cursor.prev() if found else cursor.last():
                    self._checked(table, *cursor.item())
            return None

    def scan(self, table: str, start: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        with self._map_lock, self._reader.cursor(self._tables[table]) as cursor:
            if cursor.set_range(start):
                for key, stored in cursor:
                    yield key, self._checked(table, key, stored)

    def last(self, table: str) -> bytes | None:
        with self._map_lock, self._reader.cursor(self._tables[table]) as cursor:
            if not cursor.last():
                return None
            self._checked(table, *cursor.item())
            return bytes(cursor.key())

    def apply(self, changes: Changes) -> None:
        self._commit(lambda: self._apply(changes))

    def _commit(self, write: Callable[[], None]) -> None:
        """One transaction, again in a larger map if this one is full."""
        while True:
            try:
                write()
                return self._mark_size()
            except lmdb.MapFullError:
                self._grow()
            except lmdb.Error as error:
                kind = NoSpace if isinstance(error, lmdb.DiskError) else StorageError
                raise kind(f"{self.name}: the commit failed, nothing was changed: {error}") from None

    def _apply(self, changes: Changes) -> None:
        with self._env.begin(write=True) as transaction:
            for table, items in changes.tables.items():
                database = self._tables[table]
                for key in sorted(items):
                    value = items[key]
                    if value is None:
                        transaction.delete(key, db=database)
                    else:
                        transaction.put(key, value + _sum(key, value), db=database)
            if changes.forget:
                self._forget(transaction, changes.forget)

    def upgrade(self) -> None:
        if self._unchecked:
            self._commit(self._add_checksums)
            self._unchecked = False
            self.refresh()

    def _add_checksums(self) -> None:
        with self._env.begin(write=True) as transaction:
            for database in self._tables.values():
                with transaction.cursor(database) as cursor:
                    for key, value in cursor:
                        cursor.put(key, value + _sum(key, value))
            format_ = (UNCHECKED_FORMAT_MAX + 1).to_bytes(_FORMAT_BYTES, "big")
            transaction.put(FORMAT, format_ + _sum(FORMAT, format_), db=self._tables[META])

    def _forget(self, transaction: lmdb.Transaction, before: bytes) -> None:
        with transaction.cursor(self._tables[IDS]) as cursor:
            left = FORGET_MAX
            found = cursor.first()
            while found and left and bytes(cursor.key()) < before:
                found = cursor.delete()
                left -= 1

    def _grow(self) -> None:
        size = self._env.info()["map_size"] * 2
        if size > MAP_BYTES_MAX:
            raise StorageError(f"{self.name}: the data is larger than {MAP_BYTES_MAX >> 40} TiB")
        with self._map_lock:
            self._reader.abort()
            try:
                self._env.set_mapsize(size)
            except lmdb.Error as error:
                raise StorageError(f"{self.name}: the map cannot grow to {size} bytes: {error}") from None
            finally:
                self._reader = self._env.begin()

    def refresh(self) -> None:
        with self._map_lock:
            self._reader.abort()
            self._reader = self._env.begin()

    def close(self) -> None:
        with self._map_lock:
            self._reader.abort()
            self._env.close()
            os.close(self._owner)


def _sum(key: bytes, value: bytes) -> bytes:
    return zlib.crc32(value, zlib.crc32(key)).to_bytes(_SUM_BYTES, "big")
