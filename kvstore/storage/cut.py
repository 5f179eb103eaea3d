"""The rows of a shard at one position of its order, for a backup, while the replica goes on.

Theory of operation. A backup begins with a *cut*: a transaction of all shards that does nothing (`kvstore.api.model`).
It is ordered as all are, so it has one timestamp, and in every shard one position, and what is complete before it is a
consistent state of the whole store: of a transaction below the timestamp all is in it, of a later one nothing, at each
shard. To execute the cut is to keep the rows as they are when its delivery is complete. That is a function of the log,
so every replica of a shard that executes it keeps the same ones, and whoever fetches them may go on at another replica
where the first one has died.

A replica completes one delivery after the other, in one thread, and what it has completed is what its store shows: the
active layer of the write buffer over the frozen one over the backend. A view of the backend stays as it is; a frozen
layer is never written; the active one is copied. A commit that ends before the view is made leaves the rows of the
frozen layer in both, which changes nothing. So neither the disk nor anybody else is waited for.

A view holds what was overwritten before the cut, too (`kvstore.storage.history`), and so do the layers. So who has the
rows of a cut has those of each version before it that the history knew when the cut was made, for as long as it reads
them: the same ones at every replica, since they are those of a version. What a replica's history had let go by then it
refuses (`Compacted`), and another one may know.

What is kept is in memory, and goes when nobody has read it for a while (`Cuts.sweep`), or with the process: then a
backup begins anew, with another cut.
"""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cached_property

import msgspec

from kvstore.storage.backend import DATA, META, StorageError, View, ViewGone
from kvstore.storage.history import FLOOR, LOOKED_MAX, Past
from kvstore.storage.layers import Layer
from multicast.snapshot import portion
from multicast.types import Timestamp

CUTS_MAX = 4
"""How many cuts are kept at once; another one replaces the oldest."""
PORTION_BYTES = 1024 * 1024
"""About how much is fetched at a time."""


class CutRows(msgspec.Struct, array_like=True):
    """Some rows of a cut, in the order of their keys: key -> row (`kvstore.core.rows`). next: the key after which
    more follow; empty: these are the last. position, timestamp: of the delivery that is the last one in it; digest: of
    all rows (`Store.state_digest`); empty for those of an earlier version. places: which slots the shard had given and
    taken by then (`encode_places`)."""

    position: int
    timestamp: Timestamp
    digest: bytes
    rows: list[tuple[bytes, bytes]]
    next: bytes
    places: bytes = b""


encode_cut_rows = msgspec.msgpack.Encoder().encode
decode_cut_rows = msgspec.msgpack.Decoder(CutRows).decode


class Compacted(Exception):
    """What is asked for is not kept any more. oldest: the first version of which everything is."""

    def __init__(self, oldest: Timestamp):
        super().__init__(str(oldest))
        self.oldest = oldest


class Cut:
    """Of a store. floor: see `kvstore.storage.history`. layers: what lies over the view, the newest first; an empty row
    is a deletion. on_damage(error): in the thread that reads: a row is not as it was written."""

    def __init__(
        self, position: int, timestamp: Timestamp, digest: bytes, places: bytes, floor: Timestamp, view: View,
        layers: Sequence[Layer],
    ):  # fmt: skip
        self.position = position
        self.timestamp = timestamp
        self.digest = digest
        self.places = places
        self._floor = floor
        self._view = view
        self._layers = [layer.copy() for layer in layers]
        self.on_damage: Callable[[StorageError], object] = lambda error: None
        self._sorting = threading.Lock()
        """Who asks again may do so while the first answer is still made; a layer sorts its keys when they are read."""

    @cached_property
    def _over(self) -> dict[bytes, bytes]:
        return {key: row for layer in reversed(self._layers) for key, row in layer.data.items()}

    @cached_property
    def _keys(self) -> list[bytes]:
        """Sorted when somebody reads, in his thread."""
        return sorted(self._over)

    def rows(self, after: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        """The rows with keys greater than `after`, rising. In any one thread at a time. ViewGone."""
        committed = self._view.scan(DATA, after + b"\0")
        over = ((key, self._over[key]) for key in self._keys[bisect_left(self._keys, after + b"\0") :])
        try:
            for key, row in heapq.merge(over, ((k, v) for k, v in committed if k not in self._over)):
                if row:
                    yield key, row
        finally:
            committed.close()

    def rows_at(self, version: Timestamp, after: bytes, looked_max: int = LOOKED_MAX) -> Iterator[tuple[bytes, bytes]]:
        """As `rows`, as they were at this version, which is not after the cut. Compacted."""
        oldest = max(self._floor, Timestamp.decode(self._view.get(META, FLOOR) or self._floor.encode()))
        if version < oldest:
            raise Compacted(oldest)
        return Past(self._view, self._layers, version, looked_max).rows(after + b"\0")

    def read(self, after: bytes, at: Timestamp | None = None) -> CutRows:
        """A portion of the rows. at: the version as of which; None: the cut's. StorageError."""
        try:
            return self._read(after, at)
        except ViewGone:
            raise
        except StorageError as error:
            self.on_damage(error)
            raise

    def _read(self, after: bytes, at: Timestamp | None) -> CutRows:
        if at is not None:
            with self._sorting:
                found, more = portion(self.rows_at(at, after), PORTION_BYTES)
            return CutRows(self.position, self.timestamp, b"", found, more, self.places)
        rows = self.rows(after)
        try:
            found, more = portion(rows, PORTION_BYTES)
        finally:
            rows.close()
        return CutRows(self.position, self.timestamp, self.digest, found, more, self.places)

    def close(self) -> None:
        """The cut is not read any more."""
        self._view.close()


class Cuts:
    """The cuts that one replica keeps, by their versions."""

    def __init__(self) -> None:
        self._kept: dict[Timestamp, Cut] = {}
        self._unread: set[Timestamp] = set()

    def keep(self, version: Timestamp, cut: Cut) -> None:
        """Keep a cut as long as it is read."""
        self._kept[version] = cut
        if len(self._kept) > CUTS_MAX:
            self._drop(next(iter(self._kept)))

    def find(self, version: Timestamp) -> Cut | None:
        """The cut of this version, which is about to be read; None: it is not kept here, or no longer."""
        self._unread.discard(version)
        return self._kept.get(version)

    def sweep(self) -> None:
        """Drop the cuts that were not read since this was called last."""
        for version in self._unread & self._kept.keys():
            self._drop(version)
        self._unread = set(self._kept)

    def _drop(self, version: Timestamp) -> None:
        self._kept.pop(version).close()
