"""Snapshots of a replica's state, given and taken (`multicast.snapshot.Keeper`), and what becomes of one that is whole.

What is given is read from a view of the backend, so it is of one position; a view that nobody has read for a while is
closed (`sweep`), since what it shows takes room. What is taken is staged in the backend. Once all of it is there, its
rows are those of which the giver's digest was made, and it is sealed; the next start installs it (`Snapshots.install`).

What was overwritten (`kvstore.storage.history`) is not part of it: it may be larger than the data by far, and the other
replicas of the shard still have it. So who was given a snapshot knows nothing older than that, and says so.

A row's key begins with a byte for its table, in the order in which they are sent.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator

import msgspec

from kvstore.core.bundles import last_version
from kvstore.storage.backend import (
    DATA,
    IDS,
    META,
    NOTES,
    PARTS,
    PROTOCOL,
    SEALED,
    Backend,
    NoSpace,
    View,
    ViewGone,
)
from kvstore.storage.history import anew
from kvstore.storage.store import DIGEST, FORGOTTEN, POSITION, TIMESTAMP, meta_of, row_digest
from multicast.install import install
from multicast.journal import Journal
from multicast.protocol import MulticastProtocol
from multicast.records import Installed
from multicast.snapshot import CHUNK_BYTES, OF_PROTOCOL, portion
from multicast.types import ProcessId, Timestamp
from multicast.wire import SnapshotChunk, SnapshotRequest

_TABLES = (DATA, IDS, PARTS, META, NOTES)
_TABLE_OF = {**{bytes([number]): table for number, table in enumerate(_TABLES)}, OF_PROTOCOL: PROTOCOL}
_GIVEN_META = (DIGEST, FORGOTTEN)
_DIGEST_MASK = (1 << 128) - 1
_KEY_BYTES_MAX = 1 + 511
"""LMDB's limit, and the table."""


class Sealed(msgspec.Struct, array_like=True):
    """A staged snapshot that is to be installed."""

    position: int
    timestamp: Timestamp
    digest: bytes
    peer: ProcessId


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Sealed).decode


class Snapshots:
    """The snapshots of the replica with this backend. chunk_bytes: about how much one chunk carries."""

    def __init__(self, backend: Backend, chunk_bytes: int = CHUNK_BYTES):
        self._backend = backend
        self._chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self._views: dict[ProcessId, View] = {}
        self._positions: dict[ProcessId, int] = {}
        self._unread: set[ProcessId] = set()
        self._digest = 0

    # -- giving -------------------------------------------------------------------------------------------------------

    def read(self, peer: ProcessId, request: SnapshotRequest) -> SnapshotChunk | None:
        """See `Keeper`. None also if the data is of a format without timestamps."""
        with self._lock:
            try:
                view, after = self._views.get(peer), request.after
                if view is None or not after or _position(view) != request.position:
                    view, after = self._open(peer), b""
                self._unread.discard(peer)
                timestamp = view.get(META, TIMESTAMP)
                if not timestamp:
                    return None
                total = sum(view.count(table) for table in _TABLES)
                rows = _rows(view, after)
                found, more = portion(rows, self._chunk_bytes)
                rows.close()
                at = Timestamp.decode(timestamp)
                return SnapshotChunk(_position(view), at, after, found, more or OF_PROTOCOL, total)
            except ViewGone:
                self._drop(peer)
                return None  # it is asked for again

    def _drop(self, peer: ProcessId) -> None:
        view = self._views.pop(peer, None)
        self._positions.pop(peer, None)
        self._unread.discard(peer)
        if view is not None:
            view.close()

    def _open(self, peer: ProcessId) -> View:
        self._drop(peer)
        view = self._views[peer] = self._backend.view()
        self._positions[peer] = _position(view)
        return view

    def lowest(self, position: int) -> int:
        """See `Keeper`."""
        return min([position, *self._positions.values()])

    def sweep(self) -> None:
        """Close the views that were not read since this was called last. By the loop: while one is read, perhaps from a
        slow disk, it does nothing."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            for peer in list(self._unread):
                self._drop(peer)
            self._unread = set(self._views)
        finally:
            self._lock.release()

    # -- taking -------------------------------------------------------------------------------------------------------

    def stage(self, chunk: SnapshotChunk) -> bool:
        """See `Keeper`."""
        tables: dict[str, dict[bytes, bytes]] = {}
        digest = self._digest if chunk.after else 0
        for key, value in chunk.rows:
            table = _TABLE_OF.get(key[:1])
            if table is None or not 1 < len(key) <= _KEY_BYTES_MAX or (table == META and key[1:] not in _GIVEN_META):
                return False
            tables.setdefault(table, {})[key[1:]] = value
            if table == DATA:
                digest = (digest + row_digest(key[1:], value)) & _DIGEST_MASK
        try:
            self._backend.stage(tables, anew=not chunk.after)
        except NoSpace:
            return False
        self._digest = digest
        return True

    def seal(self, peer: ProcessId, position: int, timestamp: Timestamp) -> bool:
        """All of a snapshot of this position is staged. Returns whether it is what its digest says; then the next start
        will install it."""
        digest = dict(self._backend.staged(META)).get(DIGEST, b"")
        if digest != self._digest.to_bytes(16, "big"):
            return False
        self._backend.seal(_encode(Sealed(position, timestamp, digest, peer)))
        return True

    def sealed(self) -> Sealed | None:
        """The snapshot that waits to be installed."""
        note = self._backend.get(META, SEALED)
        return _decode(note) if note is not None else None

    def install(
        self, journal: Journal, protocol: MulticastProtocol, owner: bytes, life: tuple[int, str], at: int
    ) -> Sealed | None:
        """Before a life begins, and before anybody reads the state: install what is sealed, if anything is. What is
        staged and not sealed goes: each life begins to fetch anew, if it has to. protocol: one that never ran. owner:
        see `owner_of`. life: incarnation and durability, for the journal."""
        sealed = self.sealed()
        if sealed is None:
            with contextlib.suppress(NoSpace):
                self._backend.unstage()
            return None
        installed = Installed(sealed.position, sealed.timestamp, sealed.digest, sealed.peer, at)
        install(journal, protocol, installed, self._backend.staged(PROTOCOL), *life)
        self._take_over(sealed, owner)
        return sealed

    def _take_over(self, sealed: Sealed, owner: bytes) -> None:
        staged = dict(self._backend.staged(META))
        timestamp = sealed.timestamp.encode()
        meta = meta_of(owner, sealed.position, timestamp, sealed.digest, staged.get(FORGOTTEN, b""))
        self._backend.swap(meta | anew(last_version(sealed.timestamp)))


def _position(view: View) -> int:
    return int.from_bytes(view.get(META, POSITION) or b"", "big")


def _rows(view: View, after: bytes) -> Generator[tuple[bytes, bytes], None, None]:
    """All rows that follow this one."""
    for number, table in enumerate(_TABLES):
        tag = bytes([number])
        if after[:1] > tag:
            continue
        for key, value in view.scan(table, after[1:] + b"\0" if after[:1] == tag else b""):
            if table != META or key in _GIVEN_META:
                yield tag + key, value
