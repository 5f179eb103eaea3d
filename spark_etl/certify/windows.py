"""Tables of a long run bit by bit, each in the order in which it stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from heapq import heappop, heappush
from typing import TypeVar

import numpy as np
import pyarrow as pa

from spark_etl.certify.arrays import NOTHING, Array, halves, index_in, mixed, numbers, rise, same, trust
from spark_etl.certify.source import Source

POSITIONS = 1 << 16
"""Positions of a log that are looked at together."""
MARKS = 8
"""In so many places of a window its timestamp is marked."""
TOGETHER = 2
"""A window of all logs is as long as so many of a single one."""
AHEAD = 4
"""Who has multicast what is looked for as far ahead as so many windows of one log are long."""
SENT = ("id", "at", "destinations")
_FIRST = NOTHING
T = TypeVar("T")


def marked() -> int:
    """How many positions there are from one mark to the next."""
    return max(POSITIONS // MARKS, 1)


def cuts(marks: Iterable[bytes]) -> list[bytes]:
    """The last timestamp of each window but the last one."""
    return sorted({*marks})[:: TOGETHER * POSITIONS // marked()][1:]


def counted_from(base: int, rows: pa.Table) -> pa.Table:
    """The positions counted from here."""
    at = rows.schema.get_field_index("position")
    return rows.set_column(at, rows.schema.field(at), pa.array(numbers(rows["position"]) - base, rows.schema.types[at]))


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same, none of which is None. A thread makes the next one while one is in use: what takes long, in NumPy or
    Arrow, takes place outside of Python's lock."""
    with ThreadPoolExecutor(1) as aside:
        coming = aside.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = aside.submit(next, items, None)
            yield item


class Rows:
    """The rows of a replica, by their positions, or their timestamps. Suspect if they do not stand in that order, or a
    journal's offset falls behind what was taken before. Each row is given once."""

    def __init__(
        self, source: Source, table: str, columns: Sequence[str], replica: int, coded: Sequence[str] = (),
        by: str = "position",
    ):  # fmt: skip
        self._columns, self._by = list(columns), by
        wanted = list(dict.fromkeys([*columns, by, "offset"]))
        self._batches = source.batches(table, wanted, replica, coded)
        self._ahead: list[tuple[np.ndarray, pa.Table]] = []
        self._reached, self._offset = np.zeros((1, 2), np.uint64), -1
        self._none = source.read(table, columns, [], coded)

    def upto(self, bound: int | tuple[int, int]) -> pa.Table:
        """Those that are not behind this position, or this timestamp (a pair of numbers)."""
        high, low = (0, bound) if isinstance(bound, int) else bound
        taken = [self._none]
        while self._read_on():
            places, first = self._ahead.pop()
            count = int(np.sum((places[:, 0] < high) | ((places[:, 0] == high) & (places[:, 1] <= low))))
            if count:
                mine = first.slice(0, count)
                offsets = numbers(mine["offset"])
                trust(offsets.min() >= self._offset, "offsets out of order")
                self._offset = int(offsets.max())
                taken.append(mine.select(self._columns))
            if count < first.num_rows:
                self._ahead.append((places[count:], first.slice(count)))
                break
        return pa.concat_tables(taken, promote_options="default")

    def _read_on(self) -> bool:
        """Whether there is more."""
        while not self._ahead and (batch := next(self._batches, None)) is not None:
            if batch.num_rows:
                column = batch[self._by]
                places = _pairs(numbers(column)) if pa.types.is_integer(column.type) else halves(column)
                each = np.concatenate([self._reached, places])
                trust(rise(each) | same(each[1:], each[:-1]), "rows out of order")
                self._reached = places[-1:]
                self._ahead.append((places, batch))
        return bool(self._ahead)

    @property
    def over(self) -> bool:
        """Whether there is none left."""
        return not self._read_on()


def _pairs(found: np.ndarray) -> np.ndarray:
    trust(found >= 0, "a negative position")
    return np.column_stack([np.zeros(len(found), np.uint64), found.astype(np.uint64)])


class Sent:
    """Who has multicast what: id, at and destinations, read as far as is asked for, and some way ahead for what may be
    lost; what is found only later, `rest` sees. Rows are given once."""

    def __init__(self, source: Source):
        self._pool = source.read("submitted", SENT, [])
        files = sorted(source.files["submitted"])
        self._streams = [(_FIRST, n, source.batches("submitted", SENT, one)) for n, one in enumerate(files)]

    def of(self, ids: np.ndarray) -> tuple[pa.Table, np.ndarray]:
        """Those of messages, as pairs of numbers that differ, as far as there are any; and of each the place of its
        message."""
        while self._pool.num_rows < len(ids) and (more := self._more()) is not None:
            self._pool = pa.concat_tables([self._pool, more])
        found, places, missing = [], [np.zeros(0, np.int64)], np.ones(len(ids), bool)
        rows: pa.Table | None = self._pool
        kept = []
        while rows is not None:
            place = index_in(halves(rows["id"]), ids)
            found.append(rows.filter(pa.array(place >= 0)))
            places.append(place[place >= 0])
            kept.append(rows.filter(pa.array(place < 0)))
            missing[places[-1]] = False
            ahead = sum(table.num_rows for table in kept)
            rows = self._more() if missing.any() and ahead < AHEAD * POSITIONS else None
        self._pool = pa.concat_tables(kept).combine_chunks()
        return pa.concat_tables(found), np.concatenate(places)

    def _more(self) -> pa.Table | None:
        """From whoever is behind the others."""
        while self._streams:
            _, number, batches = heappop(self._streams)
            if (batch := next(batches, None)) is None:
                continue
            last = int(numbers(batch["at"])[-1]) if batch.num_rows else _FIRST
            heappush(self._streams, (last, number, batches))
            return batch
        return None

    def rest(self, ids: Iterable[np.ndarray]) -> None:
        """Suspect if what is left, when all are asked for, is of one of these messages."""
        while (rows := self._more()) is not None:
            self._pool = pa.concat_tables([self._pool, rows])
        if self._pool.num_rows:
            left = halves(self._pool["id"])
            trust(all((index_in(part, left) < 0).all() for part in ids), "a message that was multicast again, later")


class LastWrites:
    """Rows with a key each, of which there is one per key: taken out by their keys, and put back. They stand in levels,
    each more than twice as long as the next one, by the hashes of their keys: so each is moved a few times only, and
    nobody goes through those that are not asked for."""

    def __init__(self) -> None:
        self._levels: list[_Level] = []

    def take(self, keys: pa.Array) -> list[pa.Table]:
        """Those of these keys, and maybe others."""
        wanted = np.sort(_hashes(keys))
        wanted = wanted[np.append(True, wanted[1:] != wanted[:-1])] if len(wanted) else wanted
        return [level.take(wanted) for level in self._levels]

    def put(self, rows: pa.Table) -> None:
        """Of keys that are not there."""
        parts, hashes = [rows], [_hashes(rows["key"])]
        count = rows.num_rows
        while self._levels and self._levels[-1].count <= 2 * count:
            level = self._levels.pop()
            parts.append(level.rows.filter(pa.array(level.there)))
            hashes.append(level.hashes[level.there])
            count += level.count
        each = np.concatenate(hashes)
        order = np.argsort(each)
        self._levels.append(_Level(pa.concat_tables(parts).take(pa.array(order)).combine_chunks(), each[order]))


class _Level:
    """Rows in the order of their hashes. there: those that were not taken."""

    def __init__(self, rows: pa.Table, hashes: np.ndarray):
        self.rows, self.hashes, self.there = rows, hashes, np.ones(len(hashes), bool)

    @property
    def count(self) -> int:
        return int(self.there.sum())

    def take(self, wanted: np.ndarray) -> pa.Table:
        first, end = (np.searchsorted(self.hashes, wanted, side) for side in ("left", "right"))
        many = end - first
        at = np.repeat(first - np.cumsum(many) + many, many) + np.arange(many.sum())
        at = at[self.there[at]]
        self.there[at] = False
        return self.rows.take(pa.array(at))


def _hashes(keys: Array) -> np.ndarray:
    return np.fromiter(map(hash, keys.to_pylist()), np.int64, len(keys))


class Differ:
    """Whether ids that come bit by bit differ from one another: 8 bytes are kept of each."""

    def __init__(self) -> None:
        self._parts: list[np.ndarray] = []

    def add(self, ids: np.ndarray) -> None:
        """Pairs of numbers."""
        self._parts.append(mixed(ids))

    def certify(self) -> None:
        """Suspect unless they all differ, or if two look alike; what was added is forgotten."""
        every, end = np.empty(sum(map(len, self._parts)), np.uint64), 0
        while self._parts:
            part = self._parts.pop()
            every[end : end + len(part)] = part
            end += len(part)
        every.sort()
        trust(every[1:] != every[:-1], "the same id twice")
