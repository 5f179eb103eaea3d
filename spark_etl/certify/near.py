"""The surroundings of a read that is suspect: all that a check of reads, cycles, sessions and keys can say of it.

Let an order of the transactions be given that the logs and real time follow: that of their versions if none runs
against real time, else that of `precedence`. Dependencies run forward in it, but for those of reads that returned
something else than the order says; so every cycle lies between the ends of such edges that run back, or of several that
overlap. Sessions and single keys go wrong only where such a read is: in its key, and in sessions whose operations those
who touched that key have read from. So these transactions are cut out of the tables, with the writes before and behind
theirs, so that each dependency is the one that it was; what is cut away had nothing to do with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_etl.certify import precedence, time
from spark_etl.certify.arrays import NOTHING, greatest_before, halves, numbers, ranks, trust, whole
from spark_etl.certify.client import Operations, Placed
from spark_etl.certify.id import AgreedLog, Transactions
from spark_etl.certify.key import PLACED, READS, WRITES, in_order
from spark_etl.certify.source import Source
from spark_etl.ingest.tables import place

DOUBTS_MAX = 1_000
_NONE = pa.table({name: pa.array([], pa.binary()) for name in PLACED})
SHARE_MAX = 0.5
"""Of all transactions; of more the whole run is looked at."""


class Doubts(msgspec.Struct):
    """Of a shard. edges: versions of two transactions, of which the first must precede the second by a read that is
    suspect. touching: versions of all that read or wrote such a key, 16 bytes each."""

    edges: list[tuple[bytes, bytes]] = []
    touching: bytes = b""


def doubts(reads: pa.Table, writes: pa.Table) -> Doubts:
    """The reads that returned something else than the order says (`key.READS`, `key.WRITES`). Suspect if there are too
    many."""
    found = in_order(reads, writes, _NONE)
    wrong = np.flatnonzero(~found.wrote & (found.version != found.expected))
    trust(len(wrong) <= DOUBTS_MAX, "many reads of other versions")
    versions = pa.concat_arrays([whole(reads["gts"]), whole(writes["gts"])]).take(pa.array(found.row))
    edges = []
    for one in wrong.tolist():
        low, high = np.searchsorted(found.key, [found.key[one], found.key[one] + 1])
        mine = low + np.flatnonzero(found.wrote[low:high])
        absent = found.version[one] == found.absent
        if absent:
            gone = mine[found.deleted[mine] & (mine < one)]
            source, following = None, mine[mine > gone[-1]] if len(gone) else mine
        else:
            there = mine[found.gts[mine] == found.version[one]]
            if not len(there):
                continue
            source, following = int(there[0]), mine[mine > there[0]]
        if source is not None:
            edges.append((source, one))
        if len(following):
            edges.append((one, int(following[0])))
    touched = versions.filter(pa.array(np.isin(found.key, found.key[wrong])))
    pairs = [(versions[a].as_py(), versions[b].as_py()) for a, b in edges]
    return Doubts([pair for pair in pairs if pair[0] != pair[1]], b"".join(pc.unique(touched).to_pylist()))


def around(
    found: Transactions, logs: Sequence[AgreedLog], clients: tuple[Operations, Placed] | None, reads: pa.Table,
    doubted: Sequence[Doubts],
) -> np.ndarray:  # fmt: skip
    """Which transactions are to be cut out. reads: gts and version, of all shards. Suspect if that cannot be told."""
    order = _in_order(found, logs, clients)
    ends = [halves(pa.array([e[n] for one in doubted for e in one.edges], pa.binary(16))) for n in (0, 1)]
    touching = np.frombuffer(b"".join(one.touching for one in doubted), ">u8").astype(np.uint64).reshape(-1, 2)
    source, target, touches = (_rows(found, values) for values in (*ends, touching))
    source, target = (side[(source >= 0) & (target >= 0)] for side in (source, target))
    back = order[source] > order[target]
    depth = np.zeros(len(order) + 1, np.int64)
    np.add.at(depth, order[target[back]], 1)
    np.add.at(depth, order[source[back]] + 1, -1)
    wanted = (np.cumsum(depth)[:-1][order] > 0) & (found.applied != 0)
    wanted[touches[touches >= 0]] = True
    at, seen = (_rows(found, halves(reads[name])) for name in ("gts", "version"))
    mine = np.isin(at, touches[touches >= 0]) & (seen >= 0)
    wanted[seen[mine]] = True
    trust(wanted.sum() <= SHARE_MAX * len(wanted), "much is to be cut out")
    return wanted


def _rows(found: Transactions, versions: np.ndarray) -> np.ndarray:
    """The transactions with these versions, or -1."""
    known, asked = ranks(found.gts, versions)
    table = np.full(int(max(known.max(initial=-1), asked.max(initial=-1))) + 1, -1, np.int64)
    table[known] = np.arange(len(known))
    return table[asked]


def _in_order(
    found: Transactions, logs: Sequence[AgreedLog], clients: tuple[Operations, Placed] | None
) -> np.ndarray:
    """A transaction's place in an order that logs, real time and sessions follow. Suspect if there is none."""
    gts = ranks(found.gts)[0]
    if clients is None:
        return gts
    ops, at = clients
    course = time.steps(ops, at, found, logs)
    order = gts
    if time.against_real_time(ops, course):
        latest = precedence.certify(ops, at, found, course, logs)[: len(gts)]
        order = np.empty(len(gts), np.int64)
        order[np.lexsort((gts, latest))] = np.arange(len(gts))
    mine = order[at.row[course.op]]
    process = time.processes(ops)[course.op]
    before = greatest_before(process, ops.line[course.op], np.where(ops.ok[course.op], mine, NOTHING))
    trust(before < mine, "a session against the order")
    return order


def cut_clients(ops: Operations, at: Placed, wanted: np.ndarray, source: Source, into: Path) -> dict[str, int]:
    """The lines of these transactions' operations, as a table. Returns its file, with the number of its rows."""
    mine = at.of(wanted, False).astype(bool)
    rows = np.concatenate([ops.begin[mine], ops.end[mine & (ops.end >= 0)]])
    lines = source.read("history", source.columns("history")).take(pa.array(np.sort(rows)))
    return _write(lines, "history", "h0", into)


def cut_shard(
    source: Source, shard: int, replicas: Sequence[int], fullest: int, wanted: pa.Array, into: Path
) -> dict[str, int]:
    """The rows of a shard's journals that are about these versions, or stand before or behind what they read and wrote.
    fullest: whose accounts stand for all."""
    reads, writes = source.read("reads", READS, [fullest]), source.read("writes", WRITES, [fullest])
    found = in_order(reads, writes, _NONE)
    versions = pa.concat_arrays([whole(reads["gts"]), whole(writes["gts"])]).take(pa.array(found.row))
    mine = numbers(pc.is_in(versions, value_set=wanted)).astype(bool)
    every = np.arange(len(mine))
    following = np.minimum.accumulate(np.where(found.wrote, every, len(mine))[::-1])[::-1]
    behind = np.concatenate([following[1:], [len(mine)]])[mine]
    before = np.concatenate([[-1], found.last[:-1]])[mine]
    saw_none = np.unique(found.key[mine & ~found.wrote & (found.version == found.absent)])
    deletions = every[found.deleted & np.isin(found.key, saw_none)]
    beside = np.unique(np.concatenate([behind[behind < len(mine)], before[before >= 0], deletions]))
    kept = pc.unique(pa.concat_arrays([wanted, versions.take(pa.array(beside))]))
    outcomes = source.read("outcomes", ("gts", "position"), [fullest])
    positions = pc.unique(outcomes.filter(pc.is_in(outcomes["gts"], value_set=kept))["position"])
    limits = {"deliveries": ("position", positions), "outcomes": ("position", positions), "writes": ("gts", kept),
              "reads": ("gts", wanted)}  # fmt: skip
    files: dict[str, int] = {}
    for table, (column, values) in limits.items():
        rows = source.read(table, source.columns(table), replicas)
        files |= _write(rows.filter(pc.is_in(rows[column], value_set=values)), table, f"s{shard}", into)
    return files


def _write(rows: pa.Table, table: str, stem: str, into: Path) -> dict[str, int]:
    name = f"{place(table)}/{stem}.parquet"
    (into / name).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, into / name)
    return {name: rows.num_rows}
