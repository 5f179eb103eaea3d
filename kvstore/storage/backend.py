"""Where a store's committed state lies: the interface, and the one in memory for tests and simulation."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Generator
from typing import Protocol

DATA, IDS, PARTS, META = TABLES = ("data", "ids", "parts", "meta")
"""data: key -> version (16 bytes) and value. ids: message id -> result. parts: message id -> this shard's part.
meta: format, owner, position, state digest, forgotten ids.
"""

FORGET_MAX = 100_000
"""Ids forgotten per commit; the rest follow with the next one, so that no commit takes seconds."""


FORMAT = b"format"
"""The key in `META` under which the data's format stands, in two bytes."""
UNCHECKED_FORMAT_MAX = 2
"""Up to this format rows on disk had no checksums."""


class StorageError(Exception):
    """The directory cannot be used or written; the text says why and what to do."""


class NoSpace(StorageError):
    """There is no room on the disk for a commit; nothing was changed, and it may be tried again."""


class Changes:
    """What one commit writes. tables: table -> key -> value, None to delete. forget: ids less than this are deleted."""

    __slots__ = ("forget", "tables")

    def __init__(self, tables: dict[str, dict[bytes, bytes | None]], forget: bytes):
        self.tables = tables
        self.forget = forget


class Backend(Protocol):
    """Reads come from one thread; `apply` may run in another at the same time. Reads raise StorageError, and return
    nothing of it, if a row is not as it was written."""

    name: str

    def get(self, table: str, key: bytes) -> bytes | None: ...

    def scan(self, table: str, start: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        """Rising from the first key not less than `start`. To be consumed or closed before any other call."""

    def last(self, table: str) -> bytes | None:
        """The greatest key, None if there is none."""

    def apply(self, changes: Changes) -> None:
        """All of it durably, or StorageError and nothing of it. Reads may see it from `refresh` on only."""

    def refresh(self) -> None:
        """From the reading thread: reads see everything applied."""

    def upgrade(self) -> None:
        """Before anything is applied to data of an older format: bring its rows into the present one, all at once."""

    def close(self) -> None: ...


class MemoryBackend:
    """Keeps what was applied for as long as the object lives: in a simulation it survives the crash of its process."""

    name = "memory"

    def __init__(self) -> None:
        self._rows: dict[str, dict[bytes, bytes]] = {table: {} for table in TABLES}
        self._keys: dict[str, list[bytes]] = {DATA: [], IDS: []}

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._rows[table].get(key)

    def scan(self, table: str, start: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        rows = self._rows[table]
        keys = self._keys.get(table) or sorted(rows)
        for i in range(bisect_left(keys, start), len(keys)):
            yield keys[i], rows[keys[i]]

    def last(self, table: str) -> bytes | None:
        return max(self._rows[table], default=None)

    def apply(self, changes: Changes) -> None:
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

    def refresh(self) -> None:
        """Reads go to the rows themselves."""

    def upgrade(self) -> None:
        """Nothing of an older format lies in memory."""

    def close(self) -> None:
        """Nothing to release."""
