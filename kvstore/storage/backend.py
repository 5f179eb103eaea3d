"""Where a store's committed state lies: the interface, and the one in memory for tests and simulation."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Generator
from typing import Protocol

DATA, IDS, PARTS, META, NOTES = TABLES = ("data", "ids", "parts", "meta", "notes")
"""data: key -> row, see `kvstore.core.rows`. ids: message id -> result. parts: message id -> this shard's part.
meta: format, owner, position, timestamp, state digest, forgotten ids. notes: of moves, and of keys
that are attached to leases (`kvstore.core.state`).
"""
PAST, CHANGES = BESIDE = ("overwritten", "changes")
"""Beside the sets of tables: see `kvstore.storage.history`."""
PROTOCOL = "protocol"
"""A table that is only staged: what a snapshot holds of the protocol's state."""
SEALED = b"sealed"
"""The key in `META` of the note on a staged snapshot that is to be installed."""

FORGET_MAX = 100_000
"""How many ids are forgotten per commit; the rest follow with the next one, so that no commit takes seconds."""


FORMAT = b"format"
"""The key in `META` under which the data's format stands, in two bytes."""
UNCHECKED_FORMAT_MAX = 2
"""Up to this format rows on disk had no checksums."""


class StorageError(Exception):
    """The directory cannot be used or written; the text says why and what to do."""


class ViewGone(StorageError):
    """A view was closed; it cannot be read any more."""


class NoSpace(StorageError):
    """There is no room on the disk for a commit; nothing was changed, and it may be tried again."""


class Tables(Protocol):
    """The tables of a backend, inside a commit."""

    def get(self, table: str, key: bytes) -> bytes | None: ...

    def put(self, table: str, key: bytes, value: bytes) -> None: ...

    def delete(self, table: str, key: bytes) -> None: ...

    def replace(self, table: str, key: bytes, value: bytes) -> bytes:
        """Put a value, and return the one that was there; empty: nothing is to be there, or nothing was."""

    def first(self, table: str) -> tuple[bytes, bytes] | None:
        """The row with the least key."""


class Changes:
    """What one commit writes. tables: table -> key -> value, None to delete. forget: ids less than this are deleted.
    write: called first, with the backend's tables."""

    __slots__ = ("forget", "tables", "write")

    def __init__(
        self,
        tables: dict[str, dict[bytes, bytes | None]],
        forget: bytes,
        write: Callable[[Tables], None] | None = None,
    ):
        self.tables = tables
        self.forget = forget
        self.write = write


class View(Protocol):
    """What was committed when the view was made. Reads may come from any one thread at a time. ViewGone if it was
    closed, by its user or, because it had to, by the backend."""

    def get(self, table: str, key: bytes) -> bytes | None: ...

    def scan(self, table: str, start: bytes, reverse: bool = False) -> Generator[tuple[bytes, bytes], None, None]:
        """As `Backend.scan`."""

    def keys(self, table: str, start: bytes, reverse: bool = False) -> Generator[bytes, None, None]:
        """As `Backend.keys`."""

    def count(self, table: str) -> int:
        """How many rows it has."""

    def close(self) -> None: ...


class Backend(Protocol):
    """Reads come from one thread; `apply` and `stage` may run in others at the same time. Reads raise StorageError, and
    return nothing of it, if a row is not as it was written.

    Beside its tables it has room for those of a snapshot, which nobody reads before `swap`.
    """

    name: str

    def get(self, table: str, key: bytes) -> bytes | None: ...

    def scan(self, table: str, start: bytes, reverse: bool = False) -> Generator[tuple[bytes, bytes], None, None]:
        """Rising from the first key not less than `start`; reverse: falling from the last one less than `start`, which
        if empty is greater than all. To be consumed or closed before any other call."""

    def keys(self, table: str, start: bytes, reverse: bool = False) -> Generator[bytes, None, None]:
        """The keys alone, as `scan` has them; their rows are neither read nor checked."""

    def last(self, table: str) -> bytes | None:
        """The greatest key, None if there is none."""

    def apply(self, changes: Changes) -> None:
        """Commit all of these changes durably; or StorageError, and none of them. Reads may see them from `refresh` on
        only."""

    def refresh(self) -> None:
        """Called by the reading thread: from now on reads see everything applied."""

    def view(self) -> View:
        """A view of what is committed now."""

    def stage(self, tables: dict[str, dict[bytes, bytes]], anew: bool) -> None:
        """Add rows to the staged tables, META among them, as `apply` does; anew: all that was there goes."""

    def unstage(self) -> None:
        """What is staged goes, if anything is, as `apply` does."""

    def staged(self, table: str) -> list[tuple[bytes, bytes]]:
        """The rows of a staged table, rising."""

    def seal(self, note: bytes) -> None:
        """Put this under SEALED in `META`, as `apply` does: what is staged is whole."""

    def swap(self, meta: dict[bytes, bytes]) -> None:
        """All at once, as `apply` does: the staged DATA, IDS, PARTS and NOTES replace those here, PAST and CHANGES are
        emptied, these rows of `META` are put, and nothing is staged or sealed any more. While nobody reads."""

    def upgrade(self) -> None:
        """Before anything is applied to data of an older format: bring its rows into the present one, all at once. What
        was overwritten is not kept."""

    def close(self) -> None: ...


def places(keys: list[bytes], start: bytes, reverse: bool) -> range:
    """The indexes of the sorted keys that `Backend.scan` returns, in its order."""
    if reverse:
        return range((bisect_left(keys, start) if start else len(keys)) - 1, -1, -1)
    return range(bisect_left(keys, start), len(keys))


_SORTED = (DATA, IDS, *BESIDE)
"""The tables that are scanned, for the backend in memory."""


class MemoryBackend:
    """Keeps what was applied for as long as the object lives: in a simulation it survives the crash of its process."""

    name = "memory"

    def __init__(self) -> None:
        self._rows: dict[str, dict[bytes, bytes]] = {table: {} for table in (*TABLES, *BESIDE)}
        self._keys: dict[str, list[bytes]] = {table: [] for table in _SORTED}
        self._staged: dict[str, dict[bytes, bytes]] = {}

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._rows[table].get(key)

    def scan(self, table: str, start: bytes, reverse: bool = False) -> Generator[tuple[bytes, bytes], None, None]:
        rows = self._rows[table]
        keys = self._keys.get(table) or sorted(rows)
        for i in places(keys, start, reverse):
            yield keys[i], rows[keys[i]]

    def keys(self, table: str, start: bytes, reverse: bool = False) -> Generator[bytes, None, None]:
        for key, _ in self.scan(table, start, reverse):
            yield key

    def last(self, table: str) -> bytes | None:
        return max(self._rows[table], default=None)

    def apply(self, changes: Changes) -> None:
        if changes.write is not None:
            changes.write(self)
        for table, items in changes.tables.items():
            for key, value in items.items():
                self._set(table, key, value)
        for key in self._keys[IDS][: bisect_left(self._keys[IDS], changes.forget)][:FORGET_MAX]:
            self._set(IDS, key, None)

    def _set(self, table: str, key: bytes, value: bytes | None) -> None:
        rows, keys = self._rows[table], self._keys.get(table)
        if value is None:
            if rows.pop(key, None) is not None and keys is not None:
                del keys[bisect_left(keys, key)]
            return
        if keys is not None and key not in rows:
            insort(keys, key)
        rows[key] = value

    # -- `Tables` ------------------------------------------------------------------------------------------------------

    def put(self, table: str, key: bytes, value: bytes) -> None:
        self._set(table, key, value)

    def delete(self, table: str, key: bytes) -> None:
        self._set(table, key, None)

    def replace(self, table: str, key: bytes, value: bytes) -> bytes:
        before = self._rows[table].get(key, b"")
        self._set(table, key, value or None)
        return before

    def first(self, table: str) -> tuple[bytes, bytes] | None:
        keys = self._keys[table]
        return (keys[0], self._rows[table][keys[0]]) if keys else None

    # -- the rest ------------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Reads go to the rows themselves."""

    def view(self) -> View:
        copy = MemoryBackend()
        copy._rows = {table: dict(rows) for table, rows in self._rows.items()}
        copy._keys = {table: list(keys) for table, keys in self._keys.items()}
        return copy

    def count(self, table: str) -> int:
        return len(self._rows[table])

    def stage(self, tables: dict[str, dict[bytes, bytes]], anew: bool) -> None:
        if anew:
            self._staged = {}
        for table, rows in tables.items():
            self._staged.setdefault(table, {}).update(rows)

    def unstage(self) -> None:
        self._staged = {}

    def staged(self, table: str) -> list[tuple[bytes, bytes]]:
        return sorted(self._staged.get(table, {}).items())

    def seal(self, note: bytes) -> None:
        self._rows[META][SEALED] = note

    def swap(self, meta: dict[bytes, bytes]) -> None:
        for table in (DATA, IDS, PARTS, NOTES):
            self._rows[table] = self._staged.get(table, {})
        for table in BESIDE:
            self._rows[table] = {}
        self._keys = {table: sorted(self._rows[table]) for table in _SORTED}
        self._rows[META].update(meta)
        self._rows[META].pop(SEALED, None)
        self._staged = {}

    def upgrade(self) -> None:
        """Nothing of an older format lies in memory."""

    def close(self) -> None:
        """Nothing to release."""
