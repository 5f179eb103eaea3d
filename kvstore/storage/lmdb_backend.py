"""The backend on disk: one LMDB environment, one named database per table.

Behind every value stands the CRC-32 of its key and of it, in four bytes, and whoever reads a row checks it; where a key
is not found its neighbours are checked, for one of them may be it, changed. LMDB itself trusts its file, and what it
notices is told like a damaged row. So the size that the file had after the last commit stands in the file `owner`, like
a journal's mark, and a shorter one is refused before it is mapped.

Reads use one long-lived read transaction, a snapshot that stays valid while a commit runs in another thread and is
renewed by `refresh`; a view is another one. A full map is grown and the commit repeated; growing moves the mapping, so
reads and other commits are kept out by locks meanwhile, and views end (lmdb.h, `mdb_env_set_mapsize`: no transaction
may be active).

What is staged lies in a second set of named databases. Which of the two sets counts, META says: so what was staged
takes the other's place with one row, in the transaction that empties that.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import threading
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import lmdb

from kvstore.storage.backend import (
    BESIDE,
    DATA,
    FORGET_MAX,
    FORMAT,
    IDS,
    META,
    NOTES,
    PARTS,
    PROTOCOL,
    SEALED,
    UNCHECKED_FORMAT_MAX,
    Changes,
    NoSpace,
    StorageError,
    View,
    ViewGone,
)
from kvstore.storage.history import FLOOR, NOTED, USED
from multicast.disk import NO_ROOM
from multicast.runtime.disk import make_directory, sync_directory

MAP_BYTES = 1 << 30
MAP_BYTES_MAX = 1 << 44

_SUM_BYTES = 4
_FORMAT_BYTES = 2
_FILE = "data.mdb"
_SET = b"set"
"""The key in `META` that says which set of databases counts."""
_SETS = (
    {DATA: b"data", IDS: b"ids", PARTS: b"parts", NOTES: b"notes"},
    {DATA: b"data-1", IDS: b"ids-1", PARTS: b"parts-1", NOTES: b"notes-1"},
)
_STAGED_ONLY = {META: b"staged-meta", PROTOCOL: b"staged-protocol"}
_RETIRED = (b"past", b"past-order")
"""Where formats 5 and 6 kept what was overwritten."""
_DATABASES_MAX = 15
_READERS_MAX = 32
_PROBE_BYTES = 1 << 20
_LARGE_BYTES, _TRUSTED, _TRUSTED_MAX = 4096, 255, 10_000
"""Of rows beside absent keys: whose check takes time; how often one is trusted after it; how many are."""


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
        self._write_lock = threading.Lock()
        self._views_lock = threading.Lock()
        self._views: list[_View] = []
        with ExitStack() as opened:
            try:
                make_directory(os.path.abspath(path))
                self._owner = os.open(os.path.join(path, "owner"), os.O_CREAT | os.O_RDWR, 0o644)
            except OSError as error:
                raise StorageError(f"{path}: cannot be used as a data directory: {error.strerror}") from None
            opened.callback(lambda: os.close(self._owner))
            try:
                fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StorageError(f"{path}: in use by another process; stop that one first") from None
            self._check_size()
            try:
                sync = durability == "fsync"
                self._env = lmdb.open(
                    str(path), map_size=map_size, max_dbs=_DATABASES_MAX, sync=sync, max_readers=_READERS_MAX
                )
                opened.callback(lambda: self._env.close())
                self._open_databases()
                sync_directory(self.name)  # LMDB syncs what is in its file, not that there is one
                self._read_anew()
                raw = self._reader.get(FORMAT, db=self._tables[META])
            except OSError as error:
                raise StorageError(f"{path}: cannot be used as a data directory: {error.strerror}") from None
            except lmdb.Error as error:
                raise StorageError(f"{path}: LMDB cannot open it: {error}; {self._remedy}") from None
            opened.pop_all()
        self._unchecked = raw is not None and len(raw) == _FORMAT_BYTES

    def _open_databases(self) -> None:
        meta = self._env.open_db(META.encode())
        with self._env.begin(meta) as transaction:
            second = transaction.get(_SET) is not None
        sets = [{table: self._env.open_db(name) for table, name in names.items()} for names in _SETS]
        beside = {table: self._env.open_db(table.encode()) for table in BESIDE}
        self._tables = {**sets[second], META: meta, **beside}
        only = {table: self._env.open_db(name) for table, name in _STAGED_ONLY.items()}
        self._staged = {**sets[not second], **only}
        self._second = second

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
            raise StorageError(f"{file}: cut short, it has {size} bytes and had {wanted}; {self._remedy}")

    def _mark_size(self) -> None:
        size = os.path.getsize(os.path.join(self.name, _FILE)).to_bytes(8, "big")
        try:
            os.pwrite(self._owner, size + _sum(b"", size), 0)
        except OSError as error:
            if error.errno not in NO_ROOM:  # else it says too little until the next commit
                raise StorageError(f"{self.name}: its size cannot be noted: {error.strerror}") from None

    def checked(self, table: str, key: bytes, stored: bytes) -> bytes:
        """The value in this row, if its checksum is right."""
        if self._unchecked:
            return stored
        value = stored[:-_SUM_BYTES]
        if stored[-_SUM_BYTES:] != _sum(key, value):
            raise StorageError(
                f"{self.name}: damaged: a row of {table} is not as it was written (hexadecimal key {key[:40].hex()});"
                f" {self._remedy}"
            )
        return value

    def _damaged(self, error: lmdb.Error) -> StorageError:
        """A read has found that a page is not what it should be."""
        return StorageError(f"{self.name}/{_FILE}: damaged: LMDB cannot read it: {error}; {self._remedy}")

    def get(self, table: str, key: bytes) -> bytes | None:
        with self._map_lock:
            return self.get_by(self._reader, table, key, self._trusted)

    def get_by(self, transaction: Any, table: str, key: bytes, trusted: dict[tuple[str, bytes], int]) -> bytes | None:
        """As this transaction sees it. trusted: rows of it that were checked lately -> how often they need not be."""
        try:
            stored = transaction.get(key, db=self._tables[table])
            if stored is not None:
                return self.checked(table, key, stored)
            with transaction.cursor(self._tables[table]) as cursor:
                if found := cursor.set_range(key):
                    self._check_neighbour(table, cursor, trusted)
                if cursor.prev() if found else cursor.last():
                    self._check_neighbour(table, cursor, trusted)
        except lmdb.Error as error:
            raise self._damaged(error) from None
        return None

    def _check_neighbour(self, table: str, cursor: Any, trusted: dict[tuple[str, bytes], int]) -> None:
        left = trusted.pop(place := (table, cursor.key()), 0)
        if not left:
            self.checked(table, place[1], stored := cursor.value())
            left = _TRUSTED + 1 if len(stored) > _LARGE_BYTES else 0
        if left > 1 and len(trusted) < _TRUSTED_MAX:
            trusted[place] = left - 1

    def scan(self, table: str, start: bytes, reverse: bool = False) -> Generator[tuple[bytes, bytes], None, None]:
        with self._map_lock:
            yield from self.scan_by(self._reader, table, start, reverse)

    def scan_by(
        self, transaction: Any, table: str, start: bytes, reverse: bool = False
    ) -> Generator[tuple[bytes, bytes], None, None]:
        """As this transaction sees it."""
        try:
            with transaction.cursor(self._tables[table]) as cursor:
                if _place(cursor, start, reverse):
                    for key, stored in cursor.iterprev() if reverse else cursor:
                        yield key, self.checked(table, key, stored)
        except lmdb.Error as error:
            raise self._damaged(error) from None

    def keys(self, table: str, start: bytes, reverse: bool = False) -> Generator[bytes, None, None]:
        with self._map_lock:
            yield from self.keys_by(self._reader, table, start, reverse)

    def keys_by(
        self, transaction: Any, table: str, start: bytes, reverse: bool = False
    ) -> Generator[bytes, None, None]:
        """As this transaction sees it."""
        try:
            with transaction.cursor(self._tables[table]) as cursor:
                if _place(cursor, start, reverse):
                    yield from cursor.iterprev(values=False) if reverse else cursor.iternext(values=False)
        except lmdb.Error as error:
            raise self._damaged(error) from None

    def count_by(self, transaction: Any, table: str) -> int:
        """How many rows this transaction sees."""
        return int(transaction.stat(self._tables[table])["entries"])

    def last(self, table: str) -> bytes | None:
        with closing(self.scan(table, b"", reverse=True)) as rows:
            return next((bytes(key) for key, _ in rows), None)

    def apply(self, changes: Changes) -> None:
        self._commit(lambda: self._apply(changes))

    def _commit(self, write: Callable[[], None]) -> None:
        """One transaction, again in a larger map if this one is full. NoSpace may come of a sync, too, and may be tried
        again all the same: that writes each page anew, and before its own sync nothing refers to them. (If LMDB could
        not write the page that does, it takes no further transaction.)"""
        with self._write_lock:
            while True:
                try:
                    write()
                    return self._mark_size()
                except lmdb.MapFullError:
                    self._grow()
                except (lmdb.CorruptedError, lmdb.PageNotFoundError) as error:
                    raise self._damaged(error) from None
                except lmdb.Error as error:
                    failed = f"{self.name}: the commit failed, nothing was changed: {error}"
                    if self._is_full(error):
                        raise NoSpace(f"{failed}: no room is left on the disk") from None
                    raise StorageError(failed) from None

    def _is_full(self, error: lmdb.Error) -> bool:
        """Whether a commit has failed for want of room. Where a part of what it writes at once still fits, LMDB takes
        that for an error of the device (mdb.c, `mdb_page_flush`: a short write); then no room is left for anything."""
        if os.strerror(errno.EIO) not in str(error):
            return isinstance(error, lmdb.DiskError) or os.strerror(errno.EDQUOT) in str(error)
        try:
            with tempfile.TemporaryFile(dir=self.name) as probe:
                os.posix_fallocate(probe.fileno(), 0, _PROBE_BYTES)
        except OSError as problem:
            return problem.errno in NO_ROOM
        return False

    def _apply(self, changes: Changes) -> None:
        with self._env.begin(write=True) as transaction:
            if changes.write is not None:
                changes.write(_Commit(self, transaction, self._tables))
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

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def view(self) -> View:
        with self._views_lock:
            view = _View(self, self._env.begin())
            self._views.append(view)
        return view

    @contextmanager
    def reading(self, view: _View) -> Iterator[Any]:
        """The view's transaction, which does not end meanwhile. ViewGone."""
        with self._views_lock:
            if view not in self._views:
                raise ViewGone(f"{self.name}: the view was closed")
            yield view.transaction

    def close_view(self, view: _View) -> None:
        """It is not read any more."""
        with self._views_lock:
            if view in self._views:
                self._views.remove(view)
                view.transaction.abort()

    def stage(self, tables: dict[str, dict[bytes, bytes]], anew: bool) -> None:
        self._commit(lambda: self._stage(tables, anew))

    def _stage(self, tables: dict[str, dict[bytes, bytes]], anew: bool) -> None:
        with self._env.begin(write=True) as transaction:
            for database in self._staged.values() if anew else ():
                transaction.drop(database, delete=False)
            for table, rows in tables.items():
                for key, value in rows.items():
                    transaction.put(key, value + _sum(key, value), db=self._staged[table])

    def unstage(self) -> None:
        with self._env.begin() as transaction:
            entries = [transaction.stat(database)["entries"] for database in self._staged.values()]
        if any(entries):
            self.stage({}, anew=True)

    def staged(self, table: str) -> list[tuple[bytes, bytes]]:
        try:
            with self._env.begin() as transaction, transaction.cursor(self._staged[table]) as cursor:
                return [(bytes(key), self.checked(table, key, stored)) for key, stored in cursor]
        except lmdb.Error as error:
            raise self._damaged(error) from None

    def seal(self, note: bytes) -> None:
        self._commit(lambda: self._put_meta({SEALED: note}))

    def _put_meta(self, meta: dict[bytes, bytes]) -> None:
        with self._env.begin(self._tables[META], write=True) as transaction:
            for key, value in meta.items():
                transaction.put(key, value + _sum(key, value))

    def swap(self, meta: dict[bytes, bytes]) -> None:
        self._commit(lambda: self._swap(meta))
        self._open_databases()
        self.refresh()

    def _swap(self, meta: dict[bytes, bytes]) -> None:
        with self._env.begin(self._tables[META], write=True) as transaction:
            for key, value in meta.items():
                transaction.put(key, value + _sum(key, value))
            transaction.delete(SEALED)
            if self._second:
                transaction.delete(_SET)
            else:
                transaction.put(_SET, b"1" + _sum(_SET, b"1"))
            for table in (*_SETS[0], *BESIDE):
                transaction.drop(self._tables[table], delete=False)
            for table in _STAGED_ONLY:
                transaction.drop(self._staged[table], delete=False)

    # -- formats, size ------------------------------------------------------------------------------------------------

    def upgrade(self) -> None:
        if self._unchecked:
            self._commit(self._add_checksums)
            self._unchecked = False
        self._commit(self._drop_retired)
        self.refresh()

    def _add_checksums(self) -> None:
        with self._env.begin(write=True) as transaction:
            for database in self._tables.values():
                with transaction.cursor(database) as cursor:
                    for key, value in cursor:
                        cursor.put(key, value + _sum(key, value))
            format_ = (UNCHECKED_FORMAT_MAX + 1).to_bytes(_FORMAT_BYTES, "big")
            transaction.put(FORMAT, format_ + _sum(FORMAT, format_), db=self._tables[META])

    def _drop_retired(self) -> None:
        with self._env.begin() as transaction:
            names = [name for name in _RETIRED if transaction.get(name) is not None]
        retired = [self._env.open_db(name) for name in names]
        with self._env.begin(write=True) as transaction:
            for database in retired:
                transaction.drop(database)
            for key in (FLOOR, NOTED, USED):
                transaction.delete(key, db=self._tables[META])

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
        with self._map_lock, self._views_lock:
            self._reader.abort()
            self._end_views()
            try:
                self._env.set_mapsize(size)
            except lmdb.Error as error:
                raise StorageError(f"{self.name}: the map cannot grow to {size} bytes: {error}") from None
            finally:
                self._read_anew()

    def refresh(self) -> None:
        with self._map_lock:
            self._reader.abort()
            self._read_anew()

    def _read_anew(self) -> None:
        self._reader = self._env.begin()
        self._trusted: dict[tuple[str, bytes], int] = {}

    def _end_views(self) -> None:
        for view in self._views:
            view.transaction.abort()
        self._views.clear()

    def close(self) -> None:
        """After a commit that is under way in another thread: it would write where no environment is any more."""
        with self._write_lock, self._map_lock, self._views_lock:
            self._reader.abort()
            self._end_views()
            self._env.close()
            os.close(self._owner)


class _View:
    """See `kvstore.storage.backend.View`. A read keeps the map where it is, and readers of other views out."""

    def __init__(self, backend: LmdbBackend, transaction: Any):
        self._backend = backend
        self.transaction = transaction

    def get(self, table: str, key: bytes) -> bytes | None:
        with self._backend.reading(self) as transaction:
            return self._backend.get_by(transaction, table, key, {})

    def scan(self, table: str, start: bytes, reverse: bool = False) -> Generator[tuple[bytes, bytes], None, None]:
        with self._backend.reading(self) as transaction:
            yield from self._backend.scan_by(transaction, table, start, reverse)

    def keys(self, table: str, start: bytes, reverse: bool = False) -> Generator[bytes, None, None]:
        with self._backend.reading(self) as transaction:
            yield from self._backend.keys_by(transaction, table, start, reverse)

    def count(self, table: str) -> int:
        with self._backend.reading(self) as transaction:
            return self._backend.count_by(transaction, table)

    def close(self) -> None:
        self._backend.close_view(self)


class _Commit:
    """See `kvstore.storage.backend.Tables`. Where a key is not found nobody looks whether its row was changed."""

    def __init__(self, backend: LmdbBackend, transaction: Any, databases: dict[str, Any]):
        self._backend = backend
        self._transaction = transaction
        self._databases = databases

    def get(self, table: str, key: bytes) -> bytes | None:
        stored = self._transaction.get(key, db=self._databases[table])
        return None if stored is None else self._backend.checked(table, key, stored)

    def put(self, table: str, key: bytes, value: bytes) -> None:
        self._transaction.put(key, value + _sum(key, value), db=self._databases[table])

    def delete(self, table: str, key: bytes) -> None:
        self._transaction.delete(key, db=self._databases[table])

    def replace(self, table: str, key: bytes, value: bytes) -> bytes:
        database = self._databases[table]
        if value:
            stored = self._transaction.replace(key, value + _sum(key, value), db=database)
        else:
            stored = self._transaction.pop(key, db=database)
        return b"" if stored is None else self._backend.checked(table, key, stored)

    def first(self, table: str) -> tuple[bytes, bytes] | None:
        with closing(self._backend.scan_by(self._transaction, table, b"\0")) as rows:
            return next(rows, None)


def _place(cursor: Any, start: bytes, reverse: bool) -> bool:
    """Put the cursor where a scan begins. Returns whether there is anything."""
    if not reverse:
        return bool(cursor.set_range(start))
    if start and cursor.set_range(start):
        return bool(cursor.prev())
    return bool(cursor.last())


def _sum(key: bytes, value: bytes) -> bytes:
    return zlib.crc32(value, zlib.crc32(key)).to_bytes(_SUM_BYTES, "big")
