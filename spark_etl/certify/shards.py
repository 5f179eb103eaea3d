"""The logs and keys of one long shard, window by window of positions: what `log` and `key` say of the whole.

A window of a log is a log that begins at its first position. Carried on are the last timestamp, how far each replica
goes, and of each key the last write. It is for logs that nobody has early, or by a snapshot; what is not proved here is
left to the kernels that look at all at once, and may be proved by these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from multicast.types import FINAL
from spark_etl.certify import key, log, windows
from spark_etl.certify.arrays import halves, numbers, rise, trust
from spark_etl.certify.source import Source
from spark_etl.certify.windows import LastWrites, Rows
from spark_etl.ingest.inputs import NOTHING_LIVE, Top


def is_long(source: Source, replicas: list[int]) -> bool:
    """Whether it is worth while."""
    return any(source.size("deliveries", [one]) > windows.POSITIONS for one in replicas)


def certify(
    source: Source,
    shard: int,
    replicas: list[int],
    stops: Mapping[int, tuple[int, int, bool]],
) -> log.ShardLog:
    """`log.certify`. Suspect."""
    logs = {one: Rows(source, "deliveries", (*log.DELIVERIES, "shard"), one) for one in replicas}
    accounts = {one: Rows(source, "outcomes", (*log.OUTCOMES, "shard"), one) for one in replicas}
    told: dict[int, Rows] = {}
    tops: dict[int, Top] = {}
    last = np.zeros((1, 2), np.uint64)
    found = log.ShardLog([], (-1, -1), [], (0, 0, 0))
    base = 0
    while not all(rows.over for rows in (*logs.values(), *accounts.values())):
        end = base + windows.POSITIONS

        def window(rows: Rows, base: int = base, end: int = end) -> pa.Table:
            return windows.counted_from(base, rows.upto(end))

        def details(replica: int, base: int = base, end: int = end) -> pa.Table:
            rows = told.setdefault(replica, Rows(source, "outcomes", log.DETAILS, replica))
            rows.upto(base)
            return windows.counted_from(base, rows.upto(end))

        deliveries, outcomes = (pa.concat_tables([window(one) for one in of.values()]) for of in (logs, accounts))
        for table in (deliveries, outcomes):
            trust(numbers(table["shard"]) == shard, "a replica of two shards")
        trust(numbers(deliveries["stage"], FINAL - 1) == FINAL, "early deliveries")
        part = log.certify(shard, deliveries, outcomes, {}, {}, [], details)
        gts = _agreed(deliveries, part)
        trust(rise(np.concatenate([last, gts[:1]])), "timestamps do not rise")
        last = gts[-1:]
        found.marks += [row.astype(">u8").tobytes() for row in gts[windows.marked() - 1 :: windows.marked()]]
        _add(found, part, tops, base)
        base = end
    found.tops = [tops[one] for one in sorted(tops)]
    log.as_stopped(found.tops, stops)
    found.longest = (_furthest(tops, "delivered"), _furthest(tops, "completed"))
    return found


def _agreed(deliveries: pa.Table, part: log.ShardLog) -> np.ndarray:
    """The timestamps of what was delivered."""
    longest = deliveries.select(["gts"]).filter(pc.equal(deliveries["replica"], part.longest[0]))
    trust(longest.num_rows > 0, "an outcome without a delivery")
    return halves(longest["gts"])


def _add(found: log.ShardLog, part: log.ShardLog, tops: dict[int, Top], base: int) -> None:
    """What is proved of a window of positions from `base` on."""
    if not base:
        found.renewed = part.renewed
    for top in part.tops:
        before = tops.get(top.replica, Top(top.replica, top.shard, 0, 0))
        trust(before.delivered == base, "positions are not 1, 2, 3, ...")
        trust(not top.completed or before.completed == base, "positions are not 1, 2, 3, ...")
        top.delivered += base
        top.completed = top.completed + base if top.completed else before.completed
        if top.gts == NOTHING_LIVE:  # all that it delivered in this window came too late
            top.gts, top.version = before.gts, before.version
        tops[top.replica] = top


def _furthest(tops: Mapping[int, Top], what: str) -> int:
    """As `log` says whose journal stands for all."""
    there = [one for one in tops if getattr(tops[one], what)]
    return max(there, key=lambda one: (getattr(tops[one], what), -one), default=-1)


def other_keys(source: Source, replica: int) -> list[bytes]:
    """The keys of which a read returned another version than the order of its reads and writes says (`key.holds`).
    Suspect."""
    wrong: set[bytes] = set()
    reads = Rows(source, "reads", key.READS, replica, ["key"])
    writes = Rows(source, "writes", key.WRITES, replica, ["key"])
    known, none = LastWrites(), _plain(source.read("writes", key.WRITES, []))
    last, end = np.zeros((1, 2), np.uint64), 0
    while not (reads.over and writes.over):
        end += windows.POSITIONS
        read, wrote = (rows.upto(end).combine_chunks() for rows in (reads, writes))
        gts = np.concatenate([halves(table["gts"]) for table in (read, wrote)])
        if not len(gts):
            continue
        trust(rise(np.concatenate([last, _end(gts, np.min)])), "versions do not rise")
        last = _end(gts, np.max)
        before = pa.concat_tables([none, *known.take(pa.concat_arrays([_names(read), _names(wrote)]))])
        before = before.set_column(0, "key", before["key"].combine_chunks().dictionary_encode())
        both = pa.concat_tables([before, wrote], promote_options="default")
        ordered = key.in_order(read, both, key.NO_PLACES)
        if not key.holds(ordered):
            wrong.update(read["key"].take(pa.array(ordered.row[ordered.other()])).cast(pa.binary()).to_pylist())
        rows = pa.array(ordered.writes_left() - read.num_rows)
        known.put(_plain(both.take(rows)))
    return sorted(wrong)


def _plain(writes: pa.Table) -> pa.Table:
    """With keys as bytes."""
    return writes.set_column(0, "key", writes["key"].cast(pa.binary())).cast(_WRITES)


_WRITES = pa.schema([("key", pa.binary()), ("gts", pa.binary(16)), ("deleted", pa.bool_())])


def _names(table: pa.Table) -> pa.Array:
    """The keys, and maybe others."""
    return pa.concat_arrays([_NO_KEY, *(chunk.dictionary.cast(pa.binary()) for chunk in table["key"].chunks)])


_NO_KEY = pa.array([], pa.binary())


def _end(gts: np.ndarray, which: Callable[[np.ndarray], np.uint64]) -> np.ndarray:
    """The least or the greatest."""
    high = which(gts[:, 0])
    return np.array([[high, which(gts[gts[:, 0] == high, 1])]], np.uint64)
