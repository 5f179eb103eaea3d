"""The backend on disk: one LMDB environment, one named database per table.

Reads use one long-lived read transaction, a snapshot that stays valid while a commit runs in another thread and is
renewed by `refresh`. A full map is grown and the commit repeated; growing moves the mapping, so reads are kept out by a
lock meanwhile (lmdb.h, `mdb_env_set_mapsize`: no transaction may be active).
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Generator
from pathlib import Path

import lmdb

from kvstore.storage.backend import FORGET_MAX, IDS, TABLES, Changes, StorageError

MAP_BYTES = 1 << 30
MAP_BYTES_MAX = 1 << 44


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
        try:
            self._env = lmdb.open(str(path), map_size=map_size, max_dbs=len(TABLES), sync=sync, max_readers=8)
            self._tables = {table: self._env.open_db(table.encode()) for table in TABLES}
            self._reader = self._env.begin()
        except lmdb.Error as error:
            os.close(self._owner)
            raise StorageError(f"{path}: LMDB cannot open it: {error}") from None

    def get(self, table: str, key: bytes) -> bytes | None:
        with self._map_lock:
            return self._reader.get(key, db=self._tables[table])

    def scan(self, table: str, start: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        with self._map_lock, self._reader.cursor(self._tables[table]) as cursor:
            if cursor.set_range(start):
                yield from cursor

    def last(self, table: str) -> bytes | None:
        with self._map_lock, self._reader.cursor(self._tables[table]) as cursor:
            return bytes(cursor.key()) if cursor.last() else None

    def apply(self, changes: Changes) -> None:
        while True:
            try:
                return self._apply(changes)
            except lmdb.MapFullError:
                self._grow()
            except lmdb.Error as error:
                raise StorageError(f"{self.name}: the commit failed, nothing was changed: {error}") from None

    def _apply(self, changes: Changes) -> None:
        with self._env.begin(write=True) as transaction:
            for table, items in changes.tables.items():
                database = self._tables[table]
                for key in sorted(items):
                    value = items[key]
                    if value is None:
                        transaction.delete(key, db=database)
                    else:
                        transaction.put(key, value, db=database)
            if changes.forget:
                self._forget(transaction, changes.forget)

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
