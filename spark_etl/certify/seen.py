"""What clients were told that they read against the reads of the journals: the *seen* kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_etl.certify.arrays import halves, in_order, index_in, names, numbers, ranks, same, trust, valid, whole

READS = ("id", "key", "version")
WRITES = ("key", "gts")

_READS_COMPARED = 16
"""Reads of one transaction that are compared with one another."""


def as_read(
    ids: np.ndarray, gts: np.ndarray, mine: np.ndarray, key: pa.Array, version: pa.Array, reads: pa.Table,
    written: Callable[[], pa.Table] | None = None,
) -> None:  # fmt: skip
    """Every read that a client was told of stands in the journals, but for what its transaction wrote itself. ids, gts:
    of transactions; mine: of each read that was told the place of its transaction among these. reads: READS, of all
    shards; written(): WRITES, asked for if anybody was told of his own; None: they are not known. Suspect."""
    trust(valid(version), "a read without a version")
    said = halves(version)
    foreign = ~same(said, gts.take(mine, axis=0))
    if not foreign.all():
        trust(written is not None, "a read of its own version")
        _as_written(key.filter(pa.array(~foreign)), said.compress(~foreign, axis=0), written() if written else reads)
    if not foreign.any():
        return
    trust(reads.num_rows > 0, "a read that no journal has")
    whose = _by_runs(halves(reads["id"]), ids)
    foreign &= ~_side_by_side(key, said, mine, reads, whose, len(ids))
    if not foreign.any():
        return
    left = np.zeros(len(ids) + 1, bool)
    left[mine[foreign]] = True
    left = left[whose]
    reads, whose = reads.filter(pa.array(left)), whose[left]
    trust(reads.num_rows > 0, "a read that no journal has")
    key, mine, said = key.filter(pa.array(foreign)), mine[foreign], said.compress(foreign, axis=0)
    key_told, key_read = names(key, reads["key"])
    base = int(max(key_told.max(initial=0), key_read.max(initial=0))) + 1
    logged, had = whose * base + key_read, halves(reads["version"])
    order = np.argsort(logged)
    if np.any(logged[order][1:] == logged[order][:-1]):  # the greatest version of a key counts
        order = in_order(ranks(had)[0], logged)
        order = order[np.append(logged[order][1:] != logged[order][:-1], True)]
    wanted = mine * base + key_told
    turn = np.argsort(wanted)
    where = np.minimum(np.searchsorted(logged[order], wanted[turn]), len(order) - 1)
    trust(logged[order[where]] == wanted[turn], "a read that no journal has")
    trust(same(had.take(order[where], axis=0), said.take(turn, axis=0)), "another read")


def _as_written(key: pa.Array, version: np.ndarray, writes: pa.Table) -> None:
    told, wrote = names(key, writes["key"])
    seen, made = ranks(version, halves(writes["gts"]))
    both, there = ranks(np.column_stack([told, seen]).astype(np.int64), np.column_stack([wrote, made]).astype(np.int64))
    trust(np.isin(both, there), "its own version of what it did not write")


def _by_runs(rows: np.ndarray, known: np.ndarray) -> np.ndarray:
    """`index_in`, of rows most of which equal the one before."""
    starts = np.flatnonzero(np.concatenate(([True], ~same(rows[1:], rows[:-1]))))
    return np.repeat(index_in(rows.take(starts, axis=0), known), np.diff(np.append(starts, len(rows))))


def _side_by_side(
    key: pa.Array, said: np.ndarray, mine: np.ndarray, reads: pa.Table, whose: np.ndarray, count: int
) -> np.ndarray:
    """Which of the reads that clients were told of (key and version said, by the transactions `mine`) stand in the
    journals in the same place among their transaction's. Of transactions whose reads stand in several places, or that
    read a key twice, none. whose: of `reads` the transaction, or -1, which are `count`."""
    another = whose[1:] != whose[:-1]
    starts = np.flatnonzero(np.concatenate(([True], another)))
    plain = np.bincount(whose[starts] + 1, minlength=count + 1)[1:] == 1
    first = np.zeros(count, np.int64)
    first[whose[starts]] = starts  # of those of -1 it says nothing
    name = whole(reads["key"].cast(pa.binary()))
    for distance in range(1, int(np.diff(np.append(starts, len(whose))).max())):
        if distance > _READS_COMPARED:
            return np.zeros(len(mine), bool)
        equal = _equal(name.slice(distance), name.slice(0, len(name) - distance))
        again = (whose[distance:] == whose[:-distance]) & equal
        plain[whose[distance:][again]] = False
    begins = np.concatenate(([True], mine[1:] != mine[:-1]))
    turn = np.arange(len(mine)) - np.maximum.accumulate(np.where(begins, np.arange(len(mine)), 0))
    at = np.minimum(first[mine] + turn, len(whose) - 1)
    there = plain[mine] & (whose[at] == mine) & same(halves(reads["version"]).take(at, axis=0), said)
    return there & _equal(name.take(pa.array(at)), key.cast(pa.binary()))


def _equal(some: pa.Array, others: pa.Array) -> np.ndarray:
    """Which of them are; null is not."""
    return numbers(pc.equal(some, others), 0).astype(bool)
