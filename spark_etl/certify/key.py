"""What was read against what was written: the *key* kernel, for one shard, whose keys nobody else has."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_etl.certify.arrays import halves, names, numbers, same, together, trust
from spark_etl.certify.arrays import in_order as rows_in_order

READS = ("key", "gts", "version")
WRITES = ("key", "gts", "deleted")
PLACED = ("key", "place", "version")
"""Of reads at a position of the log: what was told, and the greatest version there may be at that position."""

NO_READS, NO_PLACES = (
    pa.schema([("key", pa.binary()), (place, pa.binary(16)), ("version", pa.binary(16))]).empty_table()
    for place in ("gts", "place")
)
"""READS and PLACED without rows."""

_READ, _WRITE, _PLACED = 0, 1, 2


class Ordered(NamedTuple):
    """Reads, writes and reads at positions by key, and then by version; a reader stands before its own write. row: of
    the three tables, one behind the other. gts, version: pairs of numbers, the row's own version and what was read; an
    absent key has zeros. last: the place of the last write to the key up to here; -1: there is none. expected: the
    version that a read should have returned."""

    row: np.ndarray
    key: np.ndarray
    gts: np.ndarray
    version: np.ndarray
    wrote: np.ndarray
    deleted: np.ndarray
    last: np.ndarray
    expected: np.ndarray

    def other(self) -> np.ndarray:
        """Whether it is a read of another version than the expected one."""
        return ~self.wrote & ~same(self.version, self.expected)

    def writes_left(self) -> np.ndarray:
        """Of each key that is there in the end, the row of its last write."""
        last = self.last[np.flatnonzero(np.append(self.key[1:] != self.key[:-1], len(self.key) > 0))]
        last = last[last >= 0]
        return self.row[last[~self.deleted[last]]]

    def saw_none(self) -> np.ndarray:
        """Whether it is a read of an absent key."""
        return ~self.wrote & ~np.any(self.version, axis=1)


def in_order(reads: pa.Table, writes: pa.Table, placed: pa.Table) -> Ordered:
    """READS, WRITES and PLACED side by side. Suspect for what is null, or written twice at one version."""
    sides = ((reads, READS), (writes, WRITES), (placed, PLACED))
    trust(not any(table[name].null_count for table, columns in sides for name in columns), "a null")
    parts = (reads, writes, placed)
    at = np.concatenate([halves(reads["gts"]), halves(writes["gts"]), halves(placed["place"])])
    none = np.zeros((writes.num_rows, 2), np.uint64)
    seen = np.concatenate([halves(reads["version"]), none, halves(placed["version"])])
    turn = np.repeat(np.array([_READ, _WRITE, _PLACED], np.int8), [t.num_rows for t in parts])
    key = np.concatenate(names(*(t["key"] for t in parts)))
    deleted = np.concatenate([np.zeros(reads.num_rows, bool), numbers(writes["deleted"]),
                              np.zeros(placed.num_rows, bool)])  # fmt: skip
    order = rows_in_order(turn, at[:, 1], at[:, 0])
    order = order[together(key[order])]
    key, gts, turn, deleted = (column.take(order, axis=0) for column in (key, at, turn, deleted))
    wrote = turn == _WRITE
    twice = (key[1:] == key[:-1]) & wrote[1:] & wrote[:-1] & same(gts[1:], gts[:-1])
    trust(~twice, "two writes of one version")
    last = np.maximum.accumulate(np.where(wrote, np.arange(len(key)), -1))
    last = np.where((last >= 0) & (key[last] == key), last, -1)
    there = (last >= 0) & ~deleted[last]
    expected = gts.take(last, axis=0, mode="wrap") * there[:, None]
    return Ordered(order, key, gts, seen.take(order, axis=0), wrote, deleted, last, expected)


def holds(found: Ordered) -> bool:
    """Every read returned the last version of its key before the reader, and what a leader answered is the last version
    at its place."""
    return not found.other().any()


def certify(reads: pa.Table, writes: pa.Table, placed: pa.Table) -> None:
    """`holds`, of READS, WRITES and PLACED. Suspect."""
    trust(holds(in_order(reads, writes, placed)), OTHER)


OTHER = "a read of another version than the order says"
