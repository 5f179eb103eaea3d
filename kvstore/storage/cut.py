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

What is kept is in memory, and goes when nobody has read it for a while (`Cuts.sweep`), or with the process: then a
backup begins anew, with another cut.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Generator, Iterable, Mapping
from functools import cached_property

import msgspec

from kvstore.storage.backend import DATA, View
from multicast.snapshot import portion
from multicast.types import Timestamp

CUTS_MAX = 4
"""So many are kept at once; another one replaces the oldest."""
PORTION_BYTES = 1024 * 1024
"""About so much is fetched at a time."""


class CutRows(msgspec.Struct, array_like=True):
    """Some rows of a cut, in the order of their keys: key -> row (`kvstore.core.rows`). next: the key after which
    more follow; empty: these are the last. position, timestamp: of the delivery that is the last one in it; digest: of
    all rows (`Store.state_digest`). places: which slots the shard had given and taken by then (`encode_places`)."""

    position: int
    timestamp: Timestamp
    digest: bytes
    rows: list[tuple[bytes, bytes]]
    next: bytes
    places: bytes = b""


encode_cut_rows = msgspec.msgpack.Encoder().encode
decode_cut_rows = msgspec.msgpack.Decoder(CutRows).decode


class Cut:
    """Of a store. layers: what lies over the view, the newest last; an empty row is a deletion."""

    def __init__(
        self, position: int, timestamp: Timestamp, digest: bytes, places: bytes, view: View,
        layers: Iterable[Mapping[bytes, bytes]],
    ):  # fmt: skip
        self.position = position
        self.timestamp = timestamp
        self.digest = digest
        self.places = places
        self._view = view
        self._over: dict[bytes, bytes] = {}
        for layer in layers:
            self._over.update(layer)

    @cached_property
    def _keys(self) -> list[bytes]:
        """Sorted when somebody reads, in his thread."""
        return sorted(self._over)

    def rows(self, after: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        """With keys greater than `after`, rising. In any one thread at a time. ViewGone."""
        committed = self._view.scan(DATA, after + b"\0")
        over = ((key, self._over[key]) for key in self._keys[bisect_left(self._keys, after + b"\0") :])
        try:
            for key, row in heapq.merge(over, ((k, v) for k, v in committed if k not in self._over)):
                if row:
                    yield key, row
        finally:
            committed.close()

    def read(self, after: bytes) -> CutRows:
        """A portion of them."""
        rows = self.rows(after)
        try:
            found, more = portion(rows, PORTION_BYTES)
        finally:
            rows.close()
        return CutRows(self.position, self.timestamp, self.digest, found, more, self.places)

    def close(self) -> None:
        """It is read no more."""
        self._view.close()


class Cuts:
    """Those that one replica keeps, by their versions."""

    def __init__(self) -> None:
        self._kept: dict[Timestamp, Cut] = {}
        self._unread: set[Timestamp] = set()

    def keep(self, version: Timestamp, cut: Cut) -> None:
        """Until it is not read any longer."""
        self._kept[version] = cut
        if len(self._kept) > CUTS_MAX:
            self._drop(next(iter(self._kept)))

    def find(self, version: Timestamp) -> Cut | None:
        """It is about to be read. None: it is not kept here, or no longer."""
        self._unread.discard(version)
        return self._kept.get(version)

    def sweep(self) -> None:
        """Those go that were not read since this was called last."""
        for version in self._unread & self._kept.keys():
            self._drop(version)
        self._unread = set(self._kept)

    def _drop(self, version: Timestamp) -> None:
        self._kept.pop(version).close()
