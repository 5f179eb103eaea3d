"""Overwritten rows, kept for a while beside the data: the state as it was at any version of the last minutes.

Theory of operation. What a commit overwrites in DATA goes into *blocks* of PAST: for each row that was overwritten or
deleted at version `until`, its key, `until`, and the row that was there before, in the order of keys and versions. So
what stood at version v under a key is in the oldest commit that has a row of it with until > v: the first such row; or
else it is in DATA; and if that is of a version greater than v itself, nothing stood there yet. Whoever creates a key
therefore leaves nothing in PAST. In the store's layers (`kvstore.storage.store`), which are newer than both, each write
has its version.

A block is called by the last version that its commit covers, and the last key in it; all rows of a key and a commit
are in one. So a commit writes where PAST ends, page after page, whatever the keys are, which is what keeps an overwrite
cheap; who reads pays for that, with a look at each commit since the version. The oldest blocks are taken away, so many
per commit: those that no version of the window needs, and what exceeds `bytes_max`. The *floor* tells the first version
at which everything can still be read; what a replica answers below it is "compacted". By time it is a function of the
log alone; by bytes, and after a snapshot, it is each replica's own, and then another one may still know.

The notes of CHANGES, called by the last version that their commit covers and a number, tell which keys were written at
which versions, oldest first; those of the layers are in their logs. So those who watch are told what came after a
version, each key as it stood then (`changed_after`). Rows that come or go with a move are no changes. What is known of
changes begins at a floor of their own, which no move raises.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, takewhile
from operator import itemgetter
from typing import NamedTuple, Protocol

import msgspec

from kvstore.api.model import KEY_BYTES_MAX, RANGE_BYTES_MAX, KeyValue, between
from kvstore.core.rows import decode_row, version_bytes
from kvstore.core.state import Changed
from kvstore.storage.backend import CHANGES, DATA, META, PAST, Backend, Tables, View
from multicast.types import Timestamp

FLOOR, NOTED, USED = b"floor", b"noted", b"past-bytes"
"""Keys of META: see the module; after which version all changes are noted; and how many bytes PAST and CHANGES take."""

HISTORY_US = 600_000_000
HISTORY_BYTES_MAX = 256 * 1024 * 1024

LOOKED_MAX = 256
"""Keys of each source that one `Past.look` looks at, and rows of each commit, but for the rest of a block."""
LOOKED_BYTES = RANGE_BYTES_MAX
"""About so many bytes of rows one look reads, and of blocks of each commit: a look holds up the replica."""
BLOCK_BYTES = 3_600
"""A block is complete when its keys and rows have so many: then it fits a page of LMDB."""
_NOTED_MAX = 1000
"""How many changes one note of CHANGES tells of."""
_DROPPED_MIN = 64
"""A commit drops up to twice as many blocks and notes as it adds, and so many more, if they are old."""
_FIRST_ROWS = 4
PORTION_CHANGES, PORTION_BYTES = 1000, 256 * 1024
"""One `changed_after` looks at so many changes, and ends when it has found so much; with a whole transaction."""
_VERSION_BYTES = 16
_AFTER_ALL = b"\xff" * (KEY_BYTES_MAX + 1)
"""Greater than any key."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode
_until = itemgetter(0)
_NONE = b"", b"", ""

Writes = list[tuple[bytes, bytes]]
"""What was written to one key and overwritten, one after the other: until which version it stood, and the row; empty
for a deletion."""


def anew(floor: Timestamp) -> dict[bytes, bytes]:
    """The rows of META where nothing is known that was overwritten before `floor`, and PAST is empty."""
    return {FLOOR: floor.encode(), NOTED: floor.encode(), USED: bytes(8)}


class Kept(NamedTuple):
    """What a commit writes into DATA, and adds to PAST and CHANGES. data, since, past, log: of the layer, see
    `Written`; without `since` nothing is kept. upto: the last version that it covers. floor, noted: at least; before:
    what no version from there on needs may go. bytes_max: so may what exceeds that."""

    data: Mapping[bytes, bytes]
    since: Mapping[bytes, bytes]
    past: Mapping[bytes, Writes]
    log: Sequence[tuple[bytes, bytes]]
    upto: bytes
    floor: bytes
    noted: bytes
    before: bytes
    bytes_max: int


def write(kept: Kept, tables: Tables) -> None:
    """The part of a commit that concerns DATA: keep what it overwrites, and drop what is old."""
    blocks, size = _write(kept, tables)
    notes = range(0, len(kept.log), _NOTED_MAX)
    for number, begin in enumerate(notes):
        changes = [at + key for at, key in kept.log[begin : begin + _NOTED_MAX]]
        size += _put(CHANGES, kept.upto + number.to_bytes(4, "big"), changes, tables)
    used = int.from_bytes(tables.get(META, USED) or b"", "big") + size
    floor, noted = max(tables.get(META, FLOOR) or b"", kept.floor), max(tables.get(META, NOTED) or b"", kept.noted)
    for _ in range(2 * (blocks + len(notes)) + _DROPPED_MIN):
        name, value, table = min([(*oldest, t) for t in (PAST, CHANGES) if (oldest := tables.first(t))], default=_NONE)
        if not name or (name[:_VERSION_BYTES] > kept.before and used <= kept.bytes_max):
            break
        tables.delete(table, name)
        used -= len(name) + len(value)
        floor, noted = max(floor, name[:_VERSION_BYTES]), max(noted, name[:_VERSION_BYTES])
    tables.put(META, FLOOR, floor)
    tables.put(META, NOTED, noted)
    tables.put(META, USED, used.to_bytes(8, "big"))


def _write(kept: Kept, tables: Tables) -> tuple[int, int]:
    """Put the rows, and keep what each of them overwrites. Returns how many blocks that took, and their bytes."""
    data, since, past, replace = kept.data, kept.since, kept.past, tables.replace
    block: list[bytes] = []
    blocks = size = in_all = 0
    for key in sorted(data):
        row = data[key]
        before = replace(DATA, key, row)
        if not since:
            continue
        at = since[key]
        for until, next_row in past.get(key, ()):
            if before:
                block += (key, at, before)
                size += len(key) + len(before) + _VERSION_BYTES
            before, at = next_row, until
        if before:
            block += (key, at, before)
            size += len(key) + len(before) + _VERSION_BYTES
        if size >= BLOCK_BYTES:
            in_all += _put(PAST, kept.upto + key, block, tables)
            blocks += 1
            block, size = [], 0
    if block:
        in_all += _put(PAST, kept.upto + block[-3], block, tables)
        blocks += 1
    return blocks, in_all


def _put(table: str, name: bytes, some: list[bytes], tables: Tables) -> int:
    """Returns its bytes."""
    value = _encode(some)
    tables.put(table, name, value)
    return len(name) + len(value)


class Keys(Protocol):
    """The keys of a layer."""

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

    layers: over the backend, or a view of one; the newest first. looked_max: see LOOKED_MAX."""

    def __init__(self, backend: Backend | View, layers: Sequence[Written], version: Timestamp, looked_max: int):
        self._looked_max = looked_max
        self._backend = backend
        self._layers = layers
        self._version = version.encode()

    def get(self, key: bytes) -> KeyValue | None:
        """The row of a key, as `State.get`."""
        row = self._row(key, None)
        return decode_row(key, row) if row else None

    def look(
        self, first: bytes, end: bytes, reverse: bool
    ) -> tuple[list[KeyValue], tuple[bytes, bytes] | None]:
        """The rows with first <= key < end (b"": no end), rising, or falling, as far as one look goes; and
        the bounds of the rest, None if there is nothing."""
        found: list[KeyValue] = []
        kept, last_kept = self._kept(first, end, reverse)
        keys, last = self._keys(first, end, reverse, kept, last_kept)
        size, before = 0, first
        for key in keys:
            if size >= LOOKED_BYTES:
                return found, (first, before) if reverse else (before + b"\0", end)
            row, before = self._row(key, kept), key
            if row:
                found.append(decode_row(key, row))
                size += len(row)
        if last is None:
            return found, None
        return found, (first, last) if reverse else (last + b"\0", end)

    def rows(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All that stood under keys from this one on, rising, as it is stored. Nothing is open between two of them."""
        last: bytes | None = first
        while last is not None:
            kept, last_kept = self._kept(first, b"", reverse=False)
            keys, last = self._keys(first, b"", False, kept, last_kept)
            for key in keys:
                row = self._row(key, kept)
                if row:
                    yield key, row
            first = (last or b"") + b"\0"

    def _row(self, key: bytes, kept: Mapping[bytes, bytes] | None) -> bytes:
        """The row that stood under a key; empty if there was none. kept: what PAST has of keys around this one; None:
        nobody has looked."""
        row = self.newest(key)
        if row is None:
            if kept is None:
                kept = self._kept(key, key + b"\0", reverse=False)[0]
            row = kept.get(key, b"")
        return row if version_bytes(row) <= self._version else b""

    def newest(self, key: bytes) -> bytes | None:
        """The row that stood under a key, if it was not overwritten since, or in one of the layers; None: if there was
        any, it is in PAST."""
        version = self._version
        for layer in self._layers:
            since = layer.since.get(key)
            if since is not None and since <= version:
                overwritten = layer.past.get(key, ())
                at = bisect_right(overwritten, version, key=_until)
                return overwritten[at][1] if at < len(overwritten) else layer.data[key]
        row = self._backend.get(DATA, key) or b""
        return row if row and version_bytes(row) <= version else None

    def _keys(
        self, first: bytes, end: bytes, reverse: bool, kept: Mapping[bytes, bytes], last_kept: bytes | None
    ) -> tuple[list[bytes], bytes | None]:
        """Keys under which anything stands or stood, in this order, and up to which key, if there are more."""
        start = end if reverse else first

        def some(keys: Iterator[bytes]) -> list[bytes]:
            return list(islice(takewhile(lambda key: between(key, first, end), keys), self._looked_max))

        stored = self._backend.keys(DATA, start, reverse)
        sources = [some(stored)]
        stored.close()
        sources += [some(layer.keys.begin(start, reverse)) for layer in self._layers]
        lasts = [keys[-1] for keys in sources if len(keys) == self._looked_max]
        if last_kept is not None:
            lasts.append(last_kept)
        keys = sorted({*kept, *(key for keys in sources for key in keys)}, reverse=reverse)
        if not lasts:
            return keys, None
        last = max(lasts) if reverse else min(lasts)
        return [key for key in keys if (key >= last if reverse else key <= last)], last

    def _kept(self, first: bytes, end: bytes, reverse: bool) -> tuple[dict[bytes, bytes], bytes | None]:
        """Of the keys that were overwritten since, what stood there, as far as PAST knows; empty for nothing. And up to
        which key that was looked at, None if it was all."""
        found: dict[bytes, bytes] = {}
        last, alone = None, end == first + b"\0"
        for commit in self._commits():
            rows, edge = self._rows_of(commit, first, end, reverse)
            for at in range(0, len(rows), 3):
                key, until, row = rows[at : at + 3]
                if until > self._version and between(key, first, end):
                    found.setdefault(key, row)
            if edge is not None and between(edge, first, end):  # later commits need not look further
                last = edge
                first, end = (edge, end) if reverse else (first, edge + b"\0")
            if alone and found:
                break
        return {key: row for key, row in found.items() if between(key, first, end)}, last

    def _commits(self) -> Iterator[bytes]:
        """The last versions of the commits that have overwritten anything since, rising."""
        place = self._version
        while name := _block(self._backend, place + _AFTER_ALL)[0]:
            place = name[:_VERSION_BYTES]
            yield place

    def _rows_of(self, commit: bytes, first: bytes, end: bytes, reverse: bool) -> tuple[list[bytes], bytes | None]:
        """What the blocks of a commit have between these keys, as in a block; rows of other keys, too. And up to which
        key, if it was not all."""
        rows: list[bytes] = []
        place = commit + ((end or _AFTER_ALL) if reverse else first)
        if reverse and end:  # the block that ends there or beyond
            name, value = _block(self._backend, place)
            if name.startswith(commit):
                rows = _decode(value)
        edge, size = None, 0
        blocks = self._backend.scan(PAST, place, reverse)
        for name, value in blocks:
            if not name.startswith(commit) or (reverse and name[_VERSION_BYTES:] < first):
                break
            block = _decode(value)
            rows += block
            size += len(value)
            if not reverse and end and name[_VERSION_BYTES:] >= end:
                break
            if len(rows) >= 3 * self._looked_max or size >= LOOKED_BYTES:
                edge = block[0] if reverse else block[-3]
                break
        blocks.close()
        return rows, edge


def _block(backend: Backend | View, start: bytes) -> tuple[bytes, bytes]:
    """The first block from there on; empty if there is none."""
    blocks = backend.scan(PAST, start)
    found = next(blocks, (b"", b""))
    blocks.close()
    return found


def changed_after(
    backend: Backend, layers: Sequence[Written], after: Timestamp, first: bytes, end: bytes, portion: int
) -> tuple[list[Changed], Timestamp | None]:
    """What transactions after this version have changed with first <= key < end (b"": no end), oldest first; and up to
    which version that is all, None: up to the last one. layers: the newest first. portion: see PORTION_CHANGES."""
    changes, whole = _some_changes(backend, layers, after.encode(), portion)
    wanted = [(at, key) for at, key in changes if between(key, first, end)]
    found: list[Changed] = []
    rows: dict[tuple[bytes, bytes], bytes] = {}
    size, many, upto = 0, 0, after.encode()
    for at, key in changes:
        if at != upto:
            if size >= PORTION_BYTES:
                return found, Timestamp.decode(upto)
            upto = at
        if between(key, first, end):
            if (at, key) not in rows:  # of as many as will fill the portion, if these are as large as the first ones
                some = 1 + PORTION_BYTES * many // size if size else _FIRST_ROWS
                rows = _rows_at(backend, layers, wanted[many : many + some])
            many += 1
            row = rows[at, key]
            version = Timestamp.decode(at)
            value = decode_row(key, row).value if row and version_bytes(row) == at else None
            if not found or found[-1][0] != version:
                found.append((version, []))
            found[-1][1].append((key, value))
            size += len(key) + len(value or b"")
    return found, None if whole else Timestamp.decode(upto)


def _rows_at(
    backend: Backend, layers: Sequence[Written], wanted: Sequence[tuple[bytes, bytes]]
) -> dict[tuple[bytes, bytes], bytes]:
    """What stood at these versions under these keys, as `Past._row` has it; of fewer of them, the first, if they are
    large. PAST is gone through once for all of them: what was overwritten long after costs a look at each commit in
    between."""
    rows: dict[tuple[bytes, bytes], bytes] = {}
    sought: dict[bytes, list[bytes]] = {}
    size = 0
    for at, key in wanted:
        if size >= PORTION_BYTES:
            break
        row = Past(backend, layers, Timestamp.decode(at), 0).newest(key)
        if row is None:
            sought.setdefault(key, []).append(at)
        rows[at, key] = row or b""
        size += len(rows[at, key])
    keys = sorted(sought)
    place = min([at for at, _ in wanted], default=b"")
    while keys and (commit := _block(backend, place + _AFTER_ALL)[0][:_VERSION_BYTES]):
        place, index, many = commit, 0, len(sought)
        while index < len(keys):
            name, value = _block(backend, commit + keys[index])
            if not name.startswith(commit):
                break
            block = _decode(value)
            for n in range(0, len(block), 3):
                key, until, row = block[n : n + 3]
                if key in sought:
                    rows |= {(at, key): row for at in sought[key] if at < until}
                    sought[key] = [at for at in sought[key] if at >= until]
                    if not sought[key]:
                        del sought[key]
            index = bisect_right(keys, name[_VERSION_BYTES:], lo=index)
        if len(sought) < many:
            keys = [key for key in keys if key in sought]
    return rows


def _some_changes(
    backend: Backend, layers: Sequence[Written], after: bytes, portion: int
) -> tuple[list[tuple[bytes, bytes]], bool]:
    """(version, key) of the first changes, of whole transactions; whether there are no more."""
    found: list[tuple[bytes, bytes]] = []
    notes = backend.scan(CHANGES, after)
    for _, note in notes:
        changes = [(change[:_VERSION_BYTES], change[_VERSION_BYTES:]) for change in _decode(note)]
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
    """How many of these changes are a portion; 0: it may have more."""
    for index in range(portion, len(changes)):
        if changes[index][0] != changes[index - 1][0]:
            return index
    return 0
