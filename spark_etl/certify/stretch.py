"""Near the suspect reads of a long run: only a stretch of it is looked at whole (`near`).

What `runs` proved window by window is that e, the latest invocation among a transaction and all that precedes it
(`precedence`), and then the version, order all transactions as the logs do, and as real time and sessions want. Along a
log e does not fall. So what lies in that order between the ends of a dependency that runs back has its place, in each
log, in windows that e passed through from the window of the one end to that of the other: a stretch of all logs. Cycles
lie there, and nowhere else.

Besides, whoever touched the key of such a read is kept, and whom these read from, wherever they are. They are found by
their versions, and where they stand matters to nobody: what is outside lies on no cycle.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_etl.certify import client, id, key, log, near, windows
from spark_etl.certify.arrays import NOTHING, halves, index_in, mixed, numbers, trust, whole
from spark_etl.certify.proof import Reached
from spark_etl.certify.source import Source

SHARE_MAX = 0.5
"""Of all windows; of a longer stretch the whole run is looked at."""
_FIRST = bytes(16)


class Stretch(msgspec.Struct):
    """Some windows: what is behind the end of one (before; None: the beginning), as far as the end of another one."""

    before: Reached | None
    end: Reached

    @property
    def low(self) -> bytes:
        """Versions are behind this one, ..."""
        return self.before.upto if self.before else _FIRST

    def positions(self, log: int) -> tuple[int, int]:
        """Of a log: the last one before it, and the last one."""
        return (self.before.positions[log] if self.before else 0), self.end.positions[log]

    def latest(self) -> np.ndarray:
        """e of each log where it begins."""
        return np.array(self.before.latest if self.before else [NOTHING] * len(self.end.latest), np.int64)


def stretch(reached: Sequence[Reached], suspects: near.Suspects, shards: Sequence[int]) -> Stretch | None:
    """Where all that matters of the suspects lies. reached: of each window; shards: of the logs. None: it is much, or
    not known."""
    if not reached or suspects.values or suspects.places:
        return None
    nothing = Reached(_FIRST, [0] * len(shards), [NOTHING] * len(shards))
    ends, begins = [one.upto for one in reached[:-1]], [nothing, *reached[:-1]]
    low, high, at = -NOTHING, NOTHING, list[int]()
    for doubts in suspects.reads:
        mine = list(shards).index(doubts.shard)
        for window in (bisect_left(ends, version) for edge in doubts.edges for version in edge[:2]):
            low = min(low, begins[window].latest[mine])
            high = max(high, reached[window].latest[mine])
            at.append(window)
    if not at:
        return None
    first, last = min(at), max(at)
    within = [
        number for number, (begin, end) in enumerate(zip(begins, reached, strict=True))
        if any(
            p < q and (e > low or number >= first) and (d < high or number <= last)  # of equal e by version
            for p, q, d, e in zip(begin.positions, end.positions, begin.latest, end.latest, strict=True)
        )
    ]  # fmt: skip
    if not within or within[-1] - within[0] + 1 > SHARE_MAX * len(reached):
        return None
    return Stretch(begins[within[0]] if within[0] else None, reached[within[-1]])


class Part(NamedTuple):
    """What is to be cut out. versions: of the transactions, 16 bytes each; lines: of the histories, all columns;
    circling: as `near.Around`."""

    versions: bytes
    lines: pa.Table
    circling: int


def around(
    source: Source, logs: dict[int, log.ShardLog], where: Stretch, suspects: near.Suspects
) -> Part:
    """`near.around`. Suspect if that cannot be told."""
    touching = _versions(b"".join(one.touching for one in suspects.reads))
    with ThreadPoolExecutor(1) as aside:  # much of this is outside of Python's lock
        told = aside.submit(_read_from, source, logs, touching)
        agreed = [_log(source, shard, one, where.positions(n)) for n, (shard, one) in enumerate(sorted(logs.items()))]
        more = pc.unique(pa.concat_arrays([touching, told.result()]))
        lines = aside.submit(_lines, source, where, more)
        messages = id.messages(agreed)
        found = id.transactions(agreed, messages)
        keyed = {
            one.shard: _keyed(source, logs[one.shard].longest[1], where, where.positions(n))
            for n, one in enumerate(agreed)
        }
        history = lines.result()
    ops = client.operations(history.select([one for one in client.HISTORY if one in history.column_names]))
    trust(ops.ok & ~ops.at_position, "an operation that did not end well")
    at = client.placed(ops, found)
    of_others = key.NO_READS.select(["gts", "version"])  # `more` has them
    agreed_on = near.Agreed(found, agreed, of_others, lambda log: keyed[log.shard])
    kept = near.around(agreed_on, (ops, at), suspects, where.latest())
    mine = found.gts[kept.nodes[: len(found.ids)]].astype(">u8").tobytes()
    versions = pc.unique(pa.concat_arrays([_versions(mine), more]))
    every = sum(source.size("outcomes", [one.longest[1]]) for one in logs.values() if one.longest[1] >= 0)
    trust(len(versions) <= near.SHARE_MAX * every, "much is to be cut out")
    extra = index_in(ops.version, halves(more)) >= 0
    rows = np.concatenate([ops.begin[kept.lines | extra], ops.end[kept.lines | extra]])
    return Part(b"".join(versions.to_pylist()), history.take(pa.array(np.sort(rows))), kept.circling)


def _log(source: Source, shard: int, found: log.ShardLog, positions: tuple[int, int]) -> id.AgreedLog:
    """These positions of a log, counted from the first one."""
    delivered, account = found.longest
    deliveries = source.within("deliveries", ("replica", "position", "stage", *id.ENTRIES), delivered, positions)
    outcomes = source.within("outcomes", ("replica", *id.OUTCOMES), account, positions)
    entries, outcomes = (windows.counted_from(positions[0], rows) for rows in (log.entries(deliveries), outcomes))
    top = max((top.gts for top in found.tops), default=bytes(16))
    return id.AgreedLog(shard, entries, log.by_replica_and(outcomes, "position", "index"), top)


def _keyed(source: Source, account: int, where: Stretch, positions: tuple[int, int]) -> tuple[pa.Table, pa.Table]:
    """The reads and writes at these positions, and of other writes those without which reads would seem wrong, or
    surer than they are: what was read and is older, and whatever deleted a key that was found absent."""
    reads = source.within("reads", key.READS, account, positions)
    writes = source.within("writes", key.WRITES, account, positions)
    none = pc.equal(reads["version"], _version(_FIRST))
    older = reads.filter(pc.and_(pc.invert(none), pc.less_equal(reads["version"], _version(where.low))))
    older = older.group_by(["key", "version"]).aggregate([]).rename_columns(["key", "gts"])
    parts = [writes, older.append_column("deleted", pa.array(np.zeros(older.num_rows, bool)))]
    if pc.any(none).as_py():
        absent = pc.unique(reads["key"].filter(none))
        gone = source.some("writes", key.WRITES, account, ("key", absent))
        outside = pc.or_(
            pc.less_equal(gone["gts"], _version(where.low)), pc.greater(gone["gts"], _version(where.end.upto))
        )
        parts.append(gone.filter(pc.and_(gone["deleted"], outside)))
    return reads, pa.concat_tables(parts, promote_options="default")


def _read_from(source: Source, logs: dict[int, log.ShardLog], touching: pa.Array) -> pa.Array:
    """The versions that these transactions read."""
    rows = [
        source.some("reads", ("gts", "version"), one.longest[1], ("gts", touching))
        for one in logs.values() if one.longest[1] >= 0
    ]  # fmt: skip
    found = pc.unique(pa.concat_arrays([touching[:0], *(whole(table["version"]) for table in rows)]))
    return found.filter(pc.not_equal(found, _version(_FIRST)))


def _lines(source: Source, where: Stretch, more: pa.Array) -> pa.Table:
    """The lines of operations that were told versions of the stretch, or these. Ends are found by their versions, and
    then, from the last line to the first, the beginnings of those whose ends have been seen."""
    ids, told = list[np.ndarray](), list[np.ndarray]()
    for rows in source.batches("history", ("id", "version")):
        version = rows["version"]
        inside = pc.and_(
            pc.greater(version, _version(where.low)), pc.less_equal(version, _version(where.end.upto))
        )
        ids.append(mixed(halves(rows["id"])))
        told.append(numbers(pc.fill_null(pc.or_(inside, pc.is_in(version, value_set=more)), False)).astype(bool))
    ended = np.zeros(0, np.uint64)
    for mine, wanted in zip(reversed(ids), reversed(told), strict=True):
        ended = np.unique(np.concatenate([ended, mine[wanted]]))
        begins = _among(ended, mine) & ~wanted
        ended = ended[~_among(np.sort(mine[begins]), ended)]
        wanted |= begins
    trust(not len(ended), "an end without a beginning")
    return source.rows("history", np.flatnonzero(np.concatenate(told)), threads=True)


def _among(known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Which values are known; these rise."""
    if not len(known):
        return np.zeros(len(values), bool)
    return known[np.minimum(np.searchsorted(known, values), len(known) - 1)] == values


def _version(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.binary(16))


def _versions(data: bytes) -> pa.Array:
    return pc.unique(pa.Array.from_buffers(pa.binary(16), len(data) // 16, [None, pa.py_buffer(data)]))
