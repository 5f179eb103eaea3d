"""What was read against what was written: the *key* kernel, for one shard, whose keys nobody else has."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_etl.certify.arrays import halves, names, numbers, ranks, trust, valid
from spark_etl.certify.arrays import in_order as rows_in_order

READS = ("key", "gts", "version")
WRITES = ("key", "gts", "deleted")
PLACED = ("key", "place", "version")
"""Of reads at a position of the log: what was told, and the greatest version there may be at that position."""

_READ, _WRITE, _PLACED = 0, 1, 2


class Ordered(NamedTuple):
    """Reads, writes and reads at positions by key, and then by version; a reader stands before its own write. row: of
    the three tables, one behind the other. gts, version: ranks, of the row's own version and of what was read, absent
    being that of an absent key. last: the place of the last write to the key up to here; -1: there is none. expected:
    the version that a read should have returned."""

    row: np.ndarray
    key: np.ndarray
    gts: np.ndarray
    version: np.ndarray
    absent: int
    wrote: np.ndarray
    deleted: np.ndarray
    last: np.ndarray
    expected: np.ndarray


def in_order(reads: pa.Table, writes: pa.Table, placed: pa.Table) -> Ordered:
    """READS, WRITES and PLACED side by side. Suspect for what is null, or written twice at one version."""
    trust(all(valid(t[name]).all() for t, names_ in ((reads, READS), (writes, WRITES), (placed, PLACED))
              for name in names_), "a null")  # fmt: skip
    parts = (reads, writes, placed)
    at = (halves(reads["gts"]), halves(writes["gts"]), halves(placed["place"]))
    seen = (halves(reads["version"]), np.zeros_like(at[1]), halves(placed["version"]))
    turn = np.repeat([_READ, _WRITE, _PLACED], [t.num_rows for t in parts])
    key = np.concatenate(names(*(t["key"] for t in parts)))
    everything = ranks(*at, *seen, np.zeros((1, 2), np.uint64))
    gts, version, absent = np.concatenate(everything[:3]), np.concatenate(everything[3:6]), int(everything[6][0])
    deleted = np.concatenate([np.zeros(reads.num_rows, bool), numbers(writes["deleted"]),
                              np.zeros(placed.num_rows, bool)])  # fmt: skip
    order = rows_in_order(turn, gts, key)
    key, gts, version, turn, deleted = (column[order] for column in (key, gts, version, turn, deleted))
    wrote = turn == _WRITE
    twice = (key[1:] == key[:-1]) & (gts[1:] == gts[:-1]) & wrote[1:] & wrote[:-1]
    trust(~twice, "two writes of one version")
    last = np.maximum.accumulate(np.where(wrote, np.arange(len(key)), -1))
    last = np.where((last >= 0) & (key[last] == key), last, -1)
    expected = np.where((last >= 0) & ~deleted[last], gts[last], absent)
    return Ordered(order, key, gts, version, absent, wrote, deleted, last, expected)


def holds(found: Ordered) -> bool:
    """Every read returned the last version of its key before the reader, and what a leader answered is the last version
    at its place."""
    return bool(np.all(found.wrote | (found.version == found.expected)))


def certify(reads: pa.Table, writes: pa.Table, placed: pa.Table) -> None:
    """`holds`, of READS, WRITES and PLACED. Suspect."""
    trust(holds(in_order(reads, writes, placed)), OTHER)


OTHER = "a read of another version than the order says"
