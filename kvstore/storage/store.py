"""The materialised state of a replica: a write buffer of two layers over a backend."""

from __future__ import annotations

from collections.abc import Iterable

from kvstore.core.state import Row
from multicast.engine import Checkpoint
from multicast.types import MessageId, Timestamp


class Store:
    """See `kvstore.core.state.State` for what the replica uses of it; the rest is for the host.

    Open: `Store.open(LmdbBackend(path, map_size=..., durability="fsync"), cluster=16 bytes, replica=id)`.
    StorageError, in one sentence, for a newer format, another cluster's or replica's directory, or a full disk.
    """

    pending_bytes: int

    @classmethod
    def open(cls, backend: object, cluster: bytes = bytes(16), replica: int = 0) -> Store:
        raise NotImplementedError

    def checkpoint(self) -> Checkpoint | None:
        """What the backend holds, for `Engine.recover`. None if nothing was ever committed."""
        raise NotImplementedError

    def change(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Puts and deletes of the protocol: `Batch.changes`."""
        raise NotImplementedError

    def freeze(self, position: int, offset: int) -> bool:
        """Between batches: the active layer, complete up to `position`, becomes the frozen one. False if one is frozen."""
        raise NotImplementedError

    def commit(self) -> None:
        """Write the frozen layer in one transaction. Blocking; may run in another thread while the loop reads and writes.
        StorageError leaves everything as it was: `commit` may be called again."""
        raise NotImplementedError

    def thawed(self) -> None:
        """On the loop, after `commit` returned: the backend has it, the frozen layer goes."""
        raise NotImplementedError

    def close(self) -> None:
        """Does not commit."""

    def get(self, key: bytes) -> Row | None:
        raise NotImplementedError

    def scan(self, prefix: bytes, after: bytes, limit: int) -> tuple[list[tuple[bytes, bytes, Timestamp]], bool]:
        raise NotImplementedError

    def remembered(self, message_id: MessageId) -> bytes | None:
        raise NotImplementedError
