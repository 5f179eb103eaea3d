"""Overwritten rows, kept for a while beside the data: the state as it was at any version of the last minutes.

Theory of operation. PAST has a row (key, until) for each row that was overwritten or deleted at version `until`: what
was there before. So what stood at version v under a key is its first row of PAST with until > v, or else that of DATA;
and if that is of a version greater than v itself, nothing stood there yet. Whoever creates a key therefore leaves
nothing in PAST, and an overwrite costs one row. In the store's layers (`kvstore.storage.store`), which are newer than
both, each write has its version.

Rows of PAST go in the order in which they came, without looking for them: a commit notes in ORDER which it has added,
under the last version that it covers, and the oldest notes are taken away with their rows, so many per commit. Those
that no version of the window needs go, and those beyond `bytes_max`. The *floor* tells the first version at which
everything can still be read; what a replica answers below it is "compacted". By time it is a function of the log alone;
by bytes, and after a snapshot, it is each replica's own, and then another one may still know.

The notes of ORDER tell the *changes*, too, which keys were written at which versions, oldest first, those of the layers
being in their logs: so those who watch are told what came after a version, each key as it stood then
(`changed_after`). Rows that come or go with a move are no changes. What is known of changes begins at a floor of their
own, which no move raises.

Keys of PAST sort as (key, until): the key goes in groups of eight bytes, each with how many are left behind it, at most
9 (the "memcomparable" form of MyRocks and TiDB).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, takewhile
from operator import itemgetter
from typing import NamedTuple, Protocol

import msgspec

from kvstore.api.model import between
from kvstore.core.state import Row
from kvstore.storage.backend import DATA, META, ORDER, PAST, Backend, Tables
from multicast.types import Timestamp

FLOOR, NOTED, USED = b"floor", b"noted", b"past-bytes"
"""Keys of META: see the module; after which version all changes are noted; and how many bytes PAST takes."""

HISTORY_US = 600_000_000
HISTORY_BYTES_MAX = 256 * 1024 * 1024

LOOKED_MAX = 256
"""Keys of each source that one `Past.look` looks at."""
_NOTED_MAX = 1000
"""Rows that one note of ORDER tells of, and changes."""
PORTION_CHANGES, PORTION_BYTES = 1000, 256 * 1024
"""One `changed_after` looks at so many changes, and ends when it has found so much; with a whole transaction."""
_GROUP = 8
_VERSION_BYTES = 16
_AFTER_ALL = b"\xff" * (_VERSION_BYTES + 1)


class _Note(msgspec.Struct, array_like=True, gc=False):
    """Of ORDER. size: of all of it. past: names of rows. changes: version and key of each."""

    size: int
    past: list[bytes]
    changes: list[bytes] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Note).decode
_until = itemgetter(0)

Writes = list[tuple[bytes, bytes]]
"""What was written to one key and overwritten, one after the other: until which version it stood, and the row; empty
for a deletion."""

Transactions = list[tuple[Timestamp, list[tuple[bytes, bytes | None]]]]
"""What transactions have changed, in their order: version, and each key with its value, None if it was deleted."""


def anew(floor: Timestamp) -> dict[bytes, bytes]:
    """The rows of META where nothing is known that was overwritten before `floor`, and PAST is empty."""
    return {FLOOR: floor.encode(), NOTED: floor.encode(), USED: bytes(8)}


def past_prefix(key: bytes) -> bytes:
    """That of all rows of PAST of this key."""
    size = len(key)
    if size <= _GROUP:
        return key.ljust(_GROUP, b"\0") + bytes((size,))
    groups = []
    for at in range(0, size, _GROUP):
        left = size - at
        groups.append(key[at : at + _GROUP].ljust(_GROUP, b"\0") + bytes((min(left, _GROUP + 1),)))
    return b"".join(groups)


def key_of_past(name: bytes) -> bytes:
    """The key whose row of PAST this is."""
    groups = name[:-_VERSION_BYTES]
    ends = range(_GROUP, len(groups), _GROUP + 1)
    padded = b"".join([groups[end - _GROUP : end] for end in ends])
    return padded[: len(padded) - _GROUP + groups[-1]]


class Kept(NamedTuple):
    """What a commit adds. since, past, data, log: of the layer, see `Written`. upto: the last version that it covers.
    floor, noted: at least; before: what no version from there on needs may go. bytes_max: so may what exceeds that."""

    since: Mapping[bytes, bytes]
    past: Mapping[bytes, Writes]
    data: Mapping[bytes, bytes]
    log: Sequence[tuple[bytes, bytes]]
    upto: bytes
    floor: bytes
    noted: bytes
    before: bytes
    bytes_max: int


def keep(kept: Kept, tables: Tables) -> None:
    """Before a commit writes into DATA: keep what it overwrites, and let go of what is old."""
    used = int.from_bytes(tables.get(META, USED) or b"", "big")
    added = _add(kept, tables)
    for number, begin in enumerate(range(0, max(len(added), len(kept.log)), _NOTED_MAX)):
        some = added[begin : begin + _NOTED_MAX]
        changes = [at + key for at, key in kept.log[begin : begin + _NOTED_MAX]]
        size = sum([size for _, size in some]) + sum([len(change) for change in changes])
        note = _Note(size, [name for name, _ in some], changes)
        tables.put(ORDER, kept.upto + number.to_bytes(4, "big"), _encode(note))
        used += size
    floor, budget = max(tables.get(META, FLOOR) or b"", kept.floor), 2 * len(added) + _NOTED_MAX
    noted = max(tables.get(META, NOTED) or b"", kept.noted)
    while budget > 0 and (oldest := tables.first(ORDER)) is not None:
        name, note = oldest[0], _decode(oldest[1])
        if name[:_VERSION_BYTES] > kept.before and used <= kept.bytes_max:
            break
        for past in note.past:
            tables.delete(PAST, past)
        tables.delete(ORDER, name)
        used -= note.size
        budget -= len(note.past) + 1
        floor, noted = max(floor, name[:_VERSION_BYTES]), max(noted, name[:_VERSION_BYTES])
    tables.put(META, FLOOR, floor)
    tables.put(META, NOTED, noted)
    tables.put(META, USED, used.to_bytes(8, "big"))


def _add(kept: Kept, tables: Tables) -> list[tuple[bytes, int]]:
    """Keep what every write overwrites. Returns the names of the rows of PAST, and their bytes."""
    added: list[tuple[bytes, int]] = []
    since, data, get, put = kept.since, kept.data, tables.get, tables.put
    for key in sorted(since):
        before, at, prefix = get(DATA, key) or b"", since[key], b""
        for row, until in [*((row, until) for until, row in kept.past.get(key, ())), (data[key], b"")]:
            if before or (row and row[:_VERSION_BYTES] != at):
                prefix = prefix or past_prefix(key)
                put(PAST, prefix + at, before)
                added.append((prefix + at, len(prefix) + _VERSION_BYTES + len(before)))
            before, at = row, until
    return added


class Keys(Protocol):
    """Of a layer."""

    def begin(self, start: bytes, reverse: bool = False) -> Iterator[bytes]:
        """As `Backend.scan`."""


class Written(Protocol):
    """A layer. since: key -> the version of its first write there. past: key -> (until, row) of what was written there
    and overwritten there. data: key -> its last row. log: (version, key) of every change there, in order."""

    since: dict[bytes, bytes]
    past: dict[bytes, Writes]
    data: dict[bytes, bytes]
    log: list[tuple[bytes, bytes]]

    @property
    def keys(self) -> Keys: ...


class Past:
    """The state at `version`, which must be complete here and not below the floor whenever this is read.

    layers: the newest first. looked_max: see LOOKED_MAX."""

    def __init__(self, backend: Backend, layers: Sequence[Written], version: Timestamp, looked_max: int):
        self._looked_max = looked_max
        self._backend = backend
        self._layers = layers
        self._version = version.encode()

    def get(self, key: bytes) -> Row | None:
        """As `State.get`."""
        row = self._row(key)
        return (row[_VERSION_BYTES:], Timestamp.decode(row[:_VERSION_BYTES])) if row else None

    def look(
        self, first: bytes, end: bytes, reverse: bool
    ) -> tuple[list[tuple[bytes, bytes, Timestamp]], tuple[bytes, bytes] | None]:
        """(key, value, version) with first <= key < end (b"": no end), rising, or falling, as far as one look goes; and
        the bounds of the rest, None if there is nothing."""
        found: list[tuple[bytes, bytes, Timestamp]] = []
        keys, last = self._keys(first, end, reverse)
        for key in keys:
            row = self._row(key)
            if row:
                found.append((key, row[_VERSION_BYTES:], Timestamp.decode(row[:_VERSION_BYTES])))
        if last is None:
            return found, None
        return found, (first, last) if reverse else (last + b"\0", end)

    def _row(self, key: bytes) -> bytes:
        """Empty if there was none."""
        version = self._version
        for layer in self._layers:
            since = layer.since.get(key)
            if since is not None and since <= version:
                overwritten = layer.past.get(key, ())
                at = bisect_right(overwritten, version, key=_until)
                return overwritten[at][1] if at < len(overwritten) else layer.data[key]
        prefix = past_prefix(key)
        name, row = self._one(prefix + version + b"\0", reverse=False)
        if not name.startswith(prefix):
            row = self._backend.get(DATA, key) or b""
        return row if row[:_VERSION_BYTES] <= version else b""

    def _one(self, start: bytes, reverse: bool) -> tuple[bytes, bytes]:
        """The first row of PAST, as `Backend.scan` has them."""
        rows = self._backend.scan(PAST, start, reverse)
        found = next(rows, (b"", b""))
        rows.close()
        return found

    def _keys(self, first: bytes, end: bytes, reverse: bool) -> tuple[list[bytes], bytes | None]:
        """Keys under which anything stands or stood, in this order, and the last one if there are more."""
        start = end if reverse else first

        def some(keys: Iterator[bytes]) -> list[bytes]:
            return list(islice(takewhile(lambda key: between(key, first, end), keys), self._looked_max))

        rows = self._backend.scan(DATA, start, reverse)
        sources = [some(key for key, _ in rows)]
        rows.close()
        sources.append(some(self._past_keys(start, reverse)))
        sources += [some(layer.keys.begin(start, reverse)) for layer in self._layers]
        lasts = [keys[-1] for keys in sources if len(keys) == self._looked_max]
        keys = sorted({key for keys in sources for key in keys}, reverse=reverse)
        if not lasts:
            return keys, None
        last = max(lasts) if reverse else min(lasts)
        return keys[: keys.index(last) + 1], last

    def _past_keys(self, start: bytes, reverse: bool) -> Iterator[bytes]:
        place = past_prefix(start) if start else b""
        while name := self._one(place, reverse)[0]:
            key = key_of_past(name)
            yield key
            place = past_prefix(key) + (b"" if reverse else _AFTER_ALL)


def changed_after(
    backend: Backend, layers: Sequence[Written], after: Timestamp, first: bytes, end: bytes, portion: int
) -> tuple[Transactions, Timestamp | None]:
    """What transactions after this version have changed with first <= key < end (b"": no end), oldest first; and up to
    which version that is all, None: up to the last one. layers: the newest first. portion: see PORTION_CHANGES."""
    changes, whole = _some_changes(backend, layers, after.encode(), portion)
    found: Transactions = []
    size, upto = 0, after.encode()
    for at, key in changes:
        if at != upto:
            if size >= PORTION_BYTES:
                return found, Timestamp.decode(upto)
            upto = at
        if between(key, first, end):
            version = Timestamp.decode(at)
            row = Past(backend, layers, version, LOOKED_MAX).get(key)
            value = row[0] if row is not None and row[1] == version else None
            if not found or found[-1][0] != version:
                found.append((version, []))
            found[-1][1].append((key, value))
            size += len(key) + len(value or b"")
    return found, None if whole else Timestamp.decode(upto)


def _some_changes(
    backend: Backend, layers: Sequence[Written], after: bytes, portion: int
) -> tuple[list[tuple[bytes, bytes]], bool]:
    """(version, key) of the first changes, of whole transactions; whether there are no more."""
    found: list[tuple[bytes, bytes]] = []
    notes = backend.scan(ORDER, after)
    for _, note in notes:
        changes = [(change[:_VERSION_BYTES], change[_VERSION_BYTES:]) for change in _decode(note).changes]
        found += changes[bisect_right(changes, after, key=_until) :]
        if _end(found, portion):
            break
    notes.close()
    for layer in reversed(layers):
        if not _end(found, portion):
            log = layer.log
            begin = bisect_right(log, found[-1][0] if found else after, key=_until)
            stop = begin + portion + 1
            while stop < len(log) and log[stop][0] == log[stop - 1][0]:
                stop += 1
            found += log[begin : stop + 1]
    end = _end(found, portion)
    return (found[:end], False) if end else (found, True)


def _end(changes: list[tuple[bytes, bytes]], portion: int) -> int:
    """How many of these are a portion; 0: it may have more."""
    for index in range(portion, len(changes)):
        if changes[index][0] != changes[index - 1][0]:
            return index
    return 0
