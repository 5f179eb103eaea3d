"""The surroundings of what is suspect: all that a check of reads, values, places, cycles, sessions and keys can say of
it.

Let an order of the transactions be given that the logs follow: that of their versions, or of `precedence` if real time
follows that. Dependencies run forward in it, but for those of reads that returned something else than the order says,
of sessions against it, and of operations that were answered before something was invoked that precedes them. So every
cycle lies between the ends of such edges that run back, or of several that overlap. Sessions and single keys go wrong
only there, and where such a read is: in its key, and in sessions whose operations those who touched that key have read
from. So these transactions are cut out of the tables, with the writes before and behind theirs, so that each dependency
is the one that it was; what is cut away had nothing to do with it. A read at a position is a transaction of its own: it
comes with the places around it, and with the answer that says how late it may have been.

What lies between the ends of a stale read, and did not touch its key, matters for cycles only; if that is much, no more
is kept of it than the cycles that are shown (`circles`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_etl.blackbox.intervals import NEVER, Interval
from spark_etl.certify import circles, precedence, time
from spark_etl.certify.arrays import (
    NOTHING,
    Suspect,
    greatest_before,
    halves,
    numbers,
    ranks,
    trust,
    who_is_greatest_before,
    whole,
)
from spark_etl.certify.client import Operations, Placed
from spark_etl.certify.id import AgreedLog, Transactions
from spark_etl.certify.key import NO_PLACES, NO_READS, PLACED, READS, WRITES, Ordered, in_order
from spark_etl.certify.source import Source
from spark_etl.ingest import parquet
from spark_etl.ingest.tables import place

DOUBTS_MAX = 1_000
SHARE_MAX = 0.5
"""Of all transactions; of more the whole run is looked at."""


class Doubts(msgspec.Struct):
    """Of a shard, by its number. edges: versions of two transactions, of which the first must precede the second by a
    read that is suspect, and whether that is since the second overwrote what the first had read. touching: versions
    of all that read or wrote such a key, 16 bytes each. keys: these."""

    shard: int = -1
    edges: list[tuple[bytes, bytes, bool]] = []
    touching: bytes = b""
    keys: list[bytes] = []


class Suspects(msgspec.Struct):
    """reads: by shard. values: rows of operations that came out otherwise, with the keys that they are about. places:
    operations that were told positions behind known ones, and those who knew them."""

    reads: list[Doubts] = []
    values: list[tuple[int, list[bytes]]] = []
    places: list[int] = []


def doubts(shard: int, reads: pa.Table, writes: pa.Table) -> Doubts:
    """The reads that returned something else than the order says (`key.READS`, `key.WRITES`). Suspect if there are too
    many."""
    found = in_order(reads, writes, NO_PLACES)
    edges, wrong = _other_edges(found)
    versions = pa.concat_arrays([whole(reads["gts"]), whole(writes["gts"])])
    mine = found.row[np.isin(found.key, found.key[wrong])]
    touched = versions.take(pa.array(mine))
    pairs = [
        (versions[int(found.row[a])].as_py(), versions[int(found.row[b])].as_py(), not found.wrote[a]) for a, b in edges
    ]
    names = pa.concat_arrays([whole(reads["key"]), whole(writes["key"])]).take(pa.array(found.row[wrong]))
    return Doubts(
        shard, [pair for pair in pairs if pair[0] != pair[1]], b"".join(pc.unique(touched).to_pylist()),
        pc.unique(names).to_pylist(),
    )  # fmt: skip


def _other_edges(found: Ordered) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Dependencies of the reads of other versions, as places in `found`, and these reads."""
    wrong, saw_none = np.flatnonzero(found.other()), found.saw_none()
    trust(len(wrong) <= DOUBTS_MAX, "many reads of other versions")
    edges = []
    for one in wrong.tolist():
        low, high = np.searchsorted(found.key, [found.key[one], found.key[one] + 1])
        mine = low + np.flatnonzero(found.wrote[low:high])
        if saw_none[one]:
            gone = mine[found.deleted[mine] & (mine < one)]
            source, following = (int(gone[-1]), mine[mine > gone[-1]]) if len(gone) else (None, mine)
        else:
            there = mine[np.all(found.gts[mine] == found.version[one], axis=1)]
            if not len(there):
                continue
            source, following = int(there[0]), mine[mine > there[0]]
        if source is not None:
            edges.append((source, one))
        if len(following):
            edges.append((one, int(following[0])))
    return edges, wrong


class Around(NamedTuple):
    """What is to be cut out. nodes: of every transaction, and then of every operation, whether it is; placed: of the
    reads at positions among them, by shard, `key.PLACED`; positions: by shard, of what is to be kept besides; lines: of
    every operation, whether its lines are. circling: how many are on cycles, if not all of them are kept."""

    nodes: np.ndarray
    placed: dict[int, pa.Table]
    positions: dict[int, list[int]]
    lines: np.ndarray
    circling: int


class Agreed(NamedTuple):
    """What is agreed upon. reads: gts and version, of all shards. keyed: of each log `key.READS` and `key.WRITES`."""

    found: Transactions
    logs: Sequence[AgreedLog]
    reads: pa.Table
    keyed: Callable[[AgreedLog], tuple[pa.Table, pa.Table]]


def around(
    agreed: Agreed, clients: tuple[Operations, Placed] | None, suspects: Suspects, latest: np.ndarray | None = None
) -> Around:
    """What is to be cut out. latest: these are only a stretch of the logs, and it is known that real time and sessions
    follow an order of `precedence`: of each log the greatest e before it. Suspect if that cannot be told."""
    found, reads = agreed.found, agreed.reads
    edges = [edge for one in suspects.reads for edge in one.edges]
    ends = [halves(pa.array([edge[n] for edge in edges], pa.binary(16))) for n in (0, 1)]
    stale = np.array([edge[2] for edge in edges], bool)
    touched = np.frombuffer(b"".join(one.touching for one in suspects.reads), ">u8").astype(np.uint64).reshape(-1, 2)
    source, target, touches = (_rows(found, values) for values in (*ends, touched))
    order, back, course = _in_order(found, agreed.logs, clients, latest)
    placed: dict[int, pa.Table] = {}
    if clients is not None:
        placed = {log.shard: time.placed_reads(clients[0], log) for log in agreed.logs}
        pairs, old, more = _of_places(agreed, placed, {key for one in suspects.reads for key in one.keys})
        source, target, stale, touches = (
            np.concatenate([a, b])
            for a, b in zip((source, target, stale, touches), (*pairs.T, old, more), strict=True)
        )
    both = (source >= 0) & (target >= 0)
    pairs, stale = np.column_stack([order[source[both]], order[target[both]]]), stale[both]
    there = np.ones(len(order), bool)
    there[: len(found.ids)] = found.applied != 0
    there &= order >= 0
    wanted = there & _between(order, np.concatenate([back, pairs[~stale]]))
    between = there & _between(order, pairs[stale])
    touches = touches[touches >= 0]
    wanted[touches] = True
    seen = _rows(found, halves(reads["version"].filter(pc.is_in(reads["gts"], value_set=_versions(found, touches)))))
    wanted[seen[seen >= 0]] = True
    for table in placed.values():
        mine = np.isin(len(found.ids) + numbers(table["op"]), touches)
        said = _rows(found, halves(table["version"].filter(pa.array(mine))))
        wanted[said[said >= 0]] = True
    circling = 0
    lines = np.zeros(0, bool)
    if between.sum() <= circles.MANY:
        wanted |= between
        if clients is not None:
            lines = _of_operations(clients, found, agreed.logs, suspects, wanted)
    else:
        graph = _Cycles(agreed, clients, course, placed, between | wanted, source[both][stale])
        while True:
            if clients is not None:
                lines = _of_operations(clients, found, agreed.logs, suspects, wanted)
            kept, circling = graph.enough(wanted)
            if np.array_equal(kept, wanted):
                break
            wanted = kept
    trust(latest is not None or wanted.sum() <= SHARE_MAX * np.sum(order >= 0), "much is to be cut out")
    count = len(found.ids)
    mine_of = {shard: table.filter(pa.array(wanted[count + numbers(table["op"])])) for shard, table in placed.items()}
    positions: dict[int, list[int]] = {}
    if clients is not None:
        shard, position = time.where(clients[0], np.flatnonzero(lines & clients[0].at_position))
        for one in np.unique(shard).tolist():
            there = position[shard == one]
            positions[one] = np.unique(np.concatenate([there, there + 1])).tolist()
    return Around(wanted, mine_of, positions, lines, circling)


def _between(order: np.ndarray, back: np.ndarray) -> np.ndarray:
    """Which nodes lie between the places of a pair that runs back, or at one of them."""
    runs_back = back[:, 0] > back[:, 1]
    back = back[runs_back]
    depth = np.zeros(int(order.max(initial=-1)) + 2, np.int64)
    np.add.at(depth, back[:, 1], 1)
    np.add.at(depth, back[:, 0] + 1, -1)
    return np.asarray(np.cumsum(depth)[order] > 0, bool)


class _Cycles:
    """The dependencies, sessions and real time of what is `near`. likely: where cycles are looked for."""

    def __init__(
        self, agreed: Agreed, clients: tuple[Operations, Placed] | None, course: time.Course | None,
        placed: dict[int, pa.Table], near: np.ndarray, likely: np.ndarray,
    ):  # fmt: skip
        self._near = near
        count, number = len(agreed.found.ids), np.where(near, np.cumsum(near) - 1, -1)
        parts = []
        for log in agreed.logs:
            (reads, writes), table = agreed.keyed(log), placed.get(log.shard, NO_PLACES)
            found = in_order(reads, writes, table)
            ops = count + numbers(table["op"]) if log.shard in placed else np.zeros(0, np.int64)
            nodes = np.concatenate([_rows(agreed.found, halves(t["gts"])) for t in (reads, writes)] + [ops])[found.row]
            nodes = np.where(nodes >= 0, number[nodes], -1)
            parts.append(circles.dependencies(found, _other_edges(found)[0], nodes))
        self._edges = circles.Dependencies(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        self._sessions, self._times = (np.zeros(0, np.int64), np.zeros(0, np.int64)), list[Interval]()
        if clients is not None and course is not None:
            self._add_clients(*clients, course, number, count)
        self._likely = number[likely]

    def _add_clients(
        self, ops: Operations, at: Placed, course: time.Course, number: np.ndarray, count: int
    ) -> None:
        node = number[np.where(ops.at_position, count + np.arange(len(ops.invoke)), at.row)][course.op]
        op, node = course.op[node >= 0], node[node >= 0]
        complete = np.where(ops.ok[op], ops.complete[op], NEVER)
        for file in np.unique(ops.file[op]):
            mine = ops.file[op] == file
            self._times.append(Interval(node[mine], ops.invoke[op][mine], complete[mine]))
        row = who_is_greatest_before(
            time.processes(ops)[op], ops.line[op], np.where(ops.ok[op], ops.line[op], NOTHING)
        )
        after = (row >= 0) & ops.ok[op[row]]
        self._sessions = node[row[after]], node[after]

    def enough(self, kept: np.ndarray) -> tuple[np.ndarray, int]:
        """`circles.enough`, among all nodes."""
        here, circling = circles.enough(
            self._edges, self._sessions, self._times, kept[self._near], np.unique(self._likely)
        )
        kept = kept.copy()
        kept[self._near] = here
        return kept, circling


def _of_places(
    agreed: Agreed, placed: dict[int, pa.Table], keys: set[bytes]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the reads at positions: dependencies of those of other versions, as pairs of nodes, which of them are by
    overwriting, and all who touched their keys, or those reads of `keys`."""
    pairs, touching, old = [np.zeros((0, 2), np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, bool)]
    count = len(agreed.found.ids)
    for log in agreed.logs:
        table = placed[log.shard]
        if not table.num_rows:
            continue
        reads, writes = agreed.keyed(log)
        found = in_order(NO_READS, writes, table)
        edges, wrong = _other_edges(found)
        nodes = np.concatenate([_rows(agreed.found, halves(writes["gts"])), count + numbers(table["op"])])[found.row]
        pairs.append(nodes[np.array(edges, np.int64).reshape(-1, 2)])
        old.append(np.array([not found.wrote[source] for source, _ in edges], bool))
        names = pa.concat_arrays([whole(writes["key"]), whole(table["key"])]).take(pa.array(found.row[wrong]))
        mine = pa.array([*keys, *pc.unique(names).to_pylist()], pa.binary())
        touching.append(count + numbers(table.filter(pc.is_in(table["key"], value_set=mine))["op"]))
        for rows in (reads, writes) if len(wrong) else ():
            rows = rows.filter(pc.is_in(rows["key"], value_set=mine))
            touching.append(_rows(agreed.found, halves(rows["gts"])))
    return np.concatenate(pairs), np.concatenate(old), np.concatenate(touching)


def _of_operations(
    clients: tuple[Operations, Placed], found: Transactions, logs: Sequence[AgreedLog], suspects: Suspects,
    wanted: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Whose lines are kept. Who is suspect himself becomes wanted, and whoever says where a read at a position is."""
    ops, at = clients
    node = np.where(ops.at_position, len(found.ids) + np.arange(len(ops.invoke)), at.row)
    own = np.array([*(op for op, _ in suspects.values), *suspects.places], np.int64)
    wanted[node[own][node[own] >= 0]] = True
    lines = (node >= 0) & wanted[node]
    told = time.steps(ops, at, found, logs).told
    heard = told[lines[np.flatnonzero(ops.at_position)]]
    lines[heard[heard >= 0]] = True
    wanted[node[lines]] = True
    return (node >= 0) & wanted[node]


def _versions(found: Transactions, nodes: np.ndarray) -> pa.Array:
    """Of those nodes that are transactions."""
    data = found.gts[nodes[nodes < len(found.ids)]].astype(">u8")
    return pa.Array.from_buffers(pa.binary(16), len(data), [None, pa.py_buffer(data.tobytes())])


def _rows(found: Transactions, versions: np.ndarray) -> np.ndarray:
    """The transactions with these versions, or -1."""
    known, asked = ranks(found.gts, versions)
    table = np.full(int(max(known.max(initial=-1), asked.max(initial=-1))) + 1, -1, np.int64)
    table[known] = np.arange(len(known))
    return table[asked]


def _in_order(
    found: Transactions, logs: Sequence[AgreedLog], clients: tuple[Operations, Placed] | None,
    before: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, time.Course | None]:
    """The place of every transaction and then of every operation (-1: it is no read at a position) in an order that
    logs follow; what real time and sessions want that runs against it, as pairs of places; and what took place."""
    if clients is None:
        return ranks(found.gts)[0], np.zeros((0, 2), np.int64), None
    ops, at = clients
    course = time.steps(ops, at, found, logs)
    order, late = course.nodes, np.zeros((0, 2), np.int64)
    if before is not None or time.against_real_time(ops, course):
        try:
            latest = precedence.certify(ops, at, found, course, logs, before)
            sorted_ = np.lexsort((order, latest))
            place = np.full(len(order), -1)
            place[sorted_] = np.arange(len(order))
            order = np.where(order >= 0, place, -1)
        except Suspect:
            trust(before is None, "not in the order of precedence")
            late = _answered_too_early(ops, course)
    mine = order[np.where(ops.at_position, len(found.ids) + np.arange(len(ops.invoke)), at.row)][course.op]
    process = time.processes(ops)[course.op]
    before = greatest_before(process, ops.line[course.op], np.where(ops.ok[course.op], mine, NOTHING))
    turned = before > mine
    return order, np.concatenate([late, np.column_stack([before[turned], mine[turned]])]), course


def _answered_too_early(ops: Operations, course: time.Course) -> np.ndarray:
    """Of each operation that was answered before one was invoked that precedes it: its place, and the first such."""
    least = -greatest_before(
        np.concatenate([ops.file[course.op]] * 2),
        -np.concatenate([ops.invoke[course.op], ops.complete[course.op]]),
        np.concatenate([-course.order, np.full(len(course.op), NOTHING)]),
    )[len(course.op) :]
    late = ops.ok[course.op] & (least >= 0) & (least < course.order)
    return np.column_stack([course.order[late], least[late]])


def cut_clients(ops: Operations, lines: np.ndarray, source: Source, into: Path) -> dict[str, int]:
    """The lines of these operations, as a table. Returns its file, with the number of its rows."""
    rows = np.concatenate([ops.begin[lines], ops.end[lines & (ops.end >= 0)]])
    return write(source.rows("history", np.sort(rows)), "history", "h0", into)


class Kept(msgspec.Struct):
    """What is kept of a shard. versions: 16 bytes each, of the transactions; placed: rows of `key.PLACED`; positions:
    of the log, whatever stands there; keys: all writes to these."""

    versions: bytes = b""
    placed: list[tuple[bytes, bytes, bytes]] = []
    positions: list[int] = []
    keys: list[bytes] = []


def cut_shard(
    source: Source, shard: int, replicas: Sequence[int], fullest: int, kept: Kept, into: Path
) -> tuple[dict[str, int], bytes]:
    """The rows of a shard's journals that are about these, and about those who wrote before and behind what these read
    and wrote; of what the latter wrote only that. fullest: whose accounts stand for all; if it is also the first, whom
    checks name, only its reads and writes are kept. Also returns the ids of their messages, 16 bytes each."""
    wanted = pa.array([kept.versions[n : n + 16] for n in range(0, len(kept.versions), 16)], pa.binary(16))
    reads, writes = source.read("reads", READS, [fullest]), source.read("writes", WRITES, [fullest])
    placed = pa.Table.from_pylist([dict(zip(PLACED, row, strict=True)) for row in kept.placed], NO_PLACES.schema)
    theirs = [table["key"].filter(pc.is_in(table["gts"], value_set=wanted)) for table in (reads, writes)]
    keys = pc.unique(pa.concat_arrays([*map(whole, theirs), whole(placed["key"])]))
    reads, writes = (table.filter(pc.is_in(table["key"], value_set=keys)) for table in (reads, writes))
    found = in_order(reads, writes, placed)
    versions = pa.concat_arrays([whole(reads["gts"]), whole(writes["gts"]), whole(placed["place"])])
    versions = versions.take(pa.array(found.row))
    mine = numbers(pc.is_in(versions, value_set=wanted)).astype(bool)
    mine |= found.row >= reads.num_rows + writes.num_rows
    every = np.arange(len(mine))
    following = np.minimum.accumulate(np.where(found.wrote, every, len(mine))[::-1])[::-1]
    behind = np.concatenate([following[1:], [len(mine)]])[mine]
    before = np.concatenate([[-1], found.last[:-1]])[mine]
    saw_none = np.unique(found.key[mine & found.saw_none()])
    deletions = every[found.deleted & np.isin(found.key, saw_none)]
    behind = behind[np.append(found.key, -1)[behind] == found.key[mine]]
    before = before[(before >= 0) & (found.key[before] == found.key[mine])]
    beside = np.unique(np.concatenate([behind, before, deletions]))
    near = pc.unique(pa.concat_arrays([wanted, versions.take(pa.array(beside))]))
    names = pa.concat_arrays([whole(reads["key"]), whole(writes["key"]), whole(placed["key"])])
    touched = pc.unique(names.take(pa.array(found.row[mine])))
    outcomes = source.read("outcomes", ("gts", "position"), [fullest])
    positions = outcomes.filter(pc.is_in(outcomes["gts"], value_set=near))["position"]  # `Case.names` wants them all
    positions = pc.unique(pa.concat_arrays([whole(positions), pa.array(kept.positions, pa.int64())]))
    rows = {table: source.where(table, replicas, "position", positions) for table in ("deliveries", "outcomes")}
    tellers = [fullest] if fullest == min(replicas) else replicas
    rows["reads"] = source.where("reads", tellers, "gts", wanted)
    rows["writes"] = _writes(source, tellers, wanted, near, touched, pa.array(kept.keys, pa.binary()))
    files: dict[str, int] = {}
    for table, found_rows in rows.items():
        files |= write(found_rows, table, f"s{shard}", into)
    return files, b"".join(pc.unique(rows["deliveries"]["id"]).to_pylist())


def cut_submitted(source: Source, shard: int, replicas: Sequence[int], messages: bytes, into: Path) -> dict[str, int]:
    """What these replicas multicast of these messages, 16 bytes each."""
    ids = pa.array([messages[n : n + 16] for n in range(0, len(messages), 16)], pa.binary(16))
    return write(source.where("submitted", replicas, "id", ids), "submitted", f"s{shard}", into)


def _writes(
    source: Source, replicas: Sequence[int], wanted: pa.Array, near: pa.Array, touched: pa.Array, keys: pa.Array
) -> pa.Table:
    """All writes of the transactions that are wanted, those near them to keys that these touched, and all to `keys`."""
    if len(keys):
        rows = source.read("writes", source.columns("writes"), replicas)
    else:
        rows = source.where("writes", replicas, "gts", near)
    is_mine, is_near = (pc.is_in(rows["gts"], value_set=versions) for versions in (wanted, near))
    is_touched, is_named = (pc.is_in(rows["key"], value_set=names) for names in (touched, keys))
    return rows.filter(pc.or_(is_named, pc.or_(is_mine, pc.and_(is_near, is_touched))))


def write(rows: pa.Table, table: str, stem: str, into: Path) -> dict[str, int]:
    """As a table of the extraction. Returns its file, with the number of its rows."""
    name = f"{place(table)}/{stem}.parquet"
    (into / name).parent.mkdir(parents=True, exist_ok=True)
    parquet.write(rows, into / name)
    return {name: rows.num_rows}
