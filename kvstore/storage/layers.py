"""The layers of a store's write buffer: what was written and is not yet in the backend."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from itertools import islice

from kvstore.storage.backend import places
from kvstore.storage.history import Writes
from multicast.types import MessageId

_INSORT_MAX = 32


class SortedKeys:
    """The keys of a dict that loses none, in order, sorted when somebody looks."""

    __slots__ = ("_keys", "_of")

    def __init__(self, of: dict[bytes, bytes] | dict[bytes, bytes | None]) -> None:
        self._of = of
        self._keys: list[bytes] = []

    def begin(self, start: bytes, reverse: bool = False) -> Iterator[bytes]:
        """As `Backend.scan`."""
        keys, of = self._keys, self._of
        if len(keys) < len(of):
            new = list(islice(reversed(of), len(of) - len(keys)))
            if len(new) <= _INSORT_MAX:
                for key in new:
                    insort(keys, key)
            else:
                keys += new
                keys.sort()
        for i in places(keys, start, reverse):
            yield keys[i]


class Layer:
    """Changes since the layer below. data: key -> version and value, `_DELETED` for a deleted key. since: key -> the
    version of its first change here. past: key -> (until, row) of what was written here and overwritten here. log:
    (version, key) of the changes that those who watch are told. keys, noted: of data and of notes."""

    __slots__ = ("bytes", "data", "ids", "keys", "log", "noted", "notes", "parts", "past", "since")

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self.since: dict[bytes, bytes] = {}
        self.past: dict[bytes, Writes] = {}
        self.log: list[tuple[bytes, bytes]] = []
        self.keys = SortedKeys(self.data)
        self.ids: dict[MessageId, bytes] = {}
        self.parts: dict[MessageId, bytes | None] = {}
        self.notes: dict[bytes, bytes | None] = {}
        self.noted = SortedKeys(self.notes)
        self.bytes = 0

    def copy(self) -> Layer:
        """A copy of what was written here so far, for another thread. What is overwritten later is overwritten at a
        later version, so both can share the lists of `past`."""
        copied = Layer()
        copied.data.update(self.data)
        copied.since, copied.past = dict(self.since), dict(self.past)
        return copied

    def rows(self, start: bytes, rank: int, reverse: bool) -> Iterator[tuple[bytes, int, bytes]]:
        data = self.data
        for key in self.keys.begin(start, reverse):
            yield key, rank, data[key]

    def noted_from(self, start: bytes, rank: int) -> Iterator[tuple[bytes, int, bytes | None]]:
        notes = self.notes
        for key in self.noted.begin(start):
            yield key, rank, notes[key]
