"""Deciding (strict) serializability by cycle search, where the cheap certificate did not.

The edges are numbers here: `xxhash64` of a version stands for a transaction, so that the driver holds one numeric edge
list and nothing else. Two versions with one hash (unlikely below a billion transactions) could only add cycles; a cycle
is believed once its edges were found again by version.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from spark_etl.blackbox.cycles import name
from spark_etl.blackbox.intervals import NEVER, Interval
from spark_etl.frames.columns import id_text, key_text, version_text
from spark_etl.frames.edges import KINDS, WR, WW
from spark_etl.report import EXAMPLES, Edge, Operation, Violation
from spark_etl.search.cycles import cycles_through, cyclic_nodes, find_cycles

IN_DOUBT = "it depends on which deletions of a key were seen by those who read that it is absent"


class Cycle(msgspec.Struct):
    """One cycle. name: Adya's anomaly. The n-th edge goes from the n-th operation to the next."""

    name: str
    operations: list[Operation]
    edges: list[Edge]

    @property
    def sentences(self) -> list[str]:
        return [edge.sentence for edge in self.edges]

    def violation(self, sentence: str) -> Violation:
        """The same for the report."""
        return Violation(
            self.name, sentence, [operation.id for operation in self.operations],
            sorted({edge.key for edge in self.edges if edge.key}), steps=self.sentences, operations=self.operations,
            edges=self.edges,
        )  # fmt: skip


class CycleSearch(msgspec.Struct):
    """components: how many groups of transactions depend on one another in a circle; a cycle of some of them each.
    unexplained: cycles that could not be found again by version."""

    components: int
    cycles: list[Cycle]
    unexplained: int


class _Graph(NamedTuple):
    """Nodes are places in `hashes`. back: of each edge whether it runs against the order of versions."""

    hashes: np.ndarray
    source: np.ndarray
    target: np.ndarray
    back: np.ndarray
    intervals: list[Interval]


def _graph(edges: DataFrame, timeline: DataFrame | None) -> _Graph:
    back = (F.col("source") > F.col("target")).alias("back")
    pairs = edges.select(F.xxhash64("source").alias("s"), F.xxhash64("target").alias("t"), back)
    numeric = _numbers(pairs.distinct())
    times: dict[str, np.ndarray] = {}
    if timeline is not None:
        times = _numbers(
            timeline.select(
                F.xxhash64("gts").alias("node"), "invoke_us", F.coalesce("complete_us", F.lit(int(NEVER))).alias("end"),
                F.xxhash64("file").alias("file"),
            )
        )  # fmt: skip
    hashes = np.unique(np.concatenate([numeric["s"], numeric["t"], times.get("node", np.empty(0, np.int64))]))
    intervals = []
    for file in np.unique(times["file"]) if times else ():
        mine = times["file"] == file
        node = np.searchsorted(hashes, times["node"][mine])
        intervals.append(Interval(node, times["invoke_us"][mine], times["end"][mine]))
    source, target = np.searchsorted(hashes, numeric["s"]), np.searchsorted(hashes, numeric["t"])
    return _Graph(hashes, source, target, numeric["back"], intervals)


def search(
    edges: DataFrame, names: DataFrame, timeline: DataFrame | None, through: DataFrame | None = None
) -> CycleSearch:
    """Cycles among `edges` (`edges.dependencies`) and, if given, real time (`sessions.steps`).

    names: gts, id, f (may be null) of every transaction. through: the few whose cycles are looked for, one of each;
    they are counted in place of components.
    """
    hashes, source, target, back, intervals = _graph(edges, timeline)
    if through is None:
        likely = np.unique(source[back])  # through these goes every cycle of dependencies alone
        cycles, components = find_cycles(source, target, intervals, len(hashes), likely=likely)
    else:
        mine = np.searchsorted(hashes, _numbers(through.select(F.xxhash64("gts").alias("node")).distinct())["node"])
        cycles, components = cycles_through(source, target, intervals, len(hashes), mine, EXAMPLES)
    explained = _explain([[int(hashes[n]) for n in cycle] for cycle in cycles], edges, names, timeline)
    good = [cycle for cycle in explained if cycle is not None]
    return CycleSearch(components, good, len(explained) - len(good))


def residue(edges: DataFrame, sessions: DataFrame | None, timeline: DataFrame | None) -> list[int]:
    """The transactions, as `xxhash64` of their versions, that are on some cycle of dependencies, sessions
    (`sessions.edges`) and real time. Every cycle that any consistency model rules out is among them."""
    pairs = edges.select("source", "target")
    if sessions is not None:
        pairs = pairs.unionByName(sessions.select("source", "target"))
    hashes, source, target, _, intervals = _graph(pairs, timeline)
    return [int(hash) for hash in hashes[cyclic_nodes(source, target, intervals, len(hashes))]]


def _numbers(frame: DataFrame) -> dict[str, np.ndarray]:
    table = frame.toArrow()
    return {name: table.column(name).to_numpy() for name in table.column_names}


def _explain(
    cycles: list[list[int]], edges: DataFrame, names: DataFrame, timeline: DataFrame | None
) -> list[Cycle | None]:
    nodes = sorted({node for cycle in cycles for node in cycle})
    if not nodes:
        return []
    known = {
        row.node: row
        for row in names.where(F.xxhash64("gts").isin(nodes))
        .select(
            F.xxhash64("gts").alias("node"), "gts", F.coalesce("f", F.lit("transaction")).alias("f"),
            id_text(F.col("id")).alias("id"), version_text(F.col("gts")).alias("version"),
        )
        .collect()
    }  # fmt: skip
    pairs: dict[tuple[bytes, bytes], list[Row]] = {}
    gts = [bytes(row.gts) for row in known.values()]
    ours = edges.where(F.col("source").isin(gts) & F.col("target").isin(gts))
    for row in ours.select(
        "source", "target", "kind", key_text(F.col("key")).alias("key"), version_text(F.col("version")).alias("version")
    ).collect():
        pairs.setdefault((bytes(row.source), bytes(row.target)), []).append(row)
    times: dict[bytes, list[Row]] = {}
    if timeline is not None:
        for row in timeline.where(F.col("gts").isin(gts)).collect():
            times.setdefault(bytes(row.gts), []).append(row)
    return [_explain_one([known.get(node) for node in cycle], pairs, times) for cycle in cycles]


def _explain_one(
    nodes: list[Row | None], pairs: dict[tuple[bytes, bytes], list[Row]], times: dict[bytes, list[Row]]
) -> Cycle | None:
    if any(node is None for node in nodes):
        return None
    rows: list[Any] = nodes
    edges: list[Edge] = []
    kinds: list[str] = []
    for at, (one, other) in enumerate(zip(rows, [*rows[1:], rows[0]], strict=True)):
        a, b = bytes(one.gts), bytes(other.gts)
        who, whom = (f"{r.f} {r.id} (version {r.version})" for r in (one, other))
        found = sorted(pairs.get((a, b), []), key=lambda row: row.kind)
        if found:
            kind, key, sentence = found[0].kind, found[0].key, _dependency(found[0], who, whom)
        elif times_between := _before(times.get(a, []), times.get(b, [])):
            ended, began = times_between
            kind, key = 0, ""
            sentence = (
                f"rt: {who} was answered at {ended / 1e6:.6f} s, before {whom} was invoked at {began / 1e6:.6f} s"
            )
        else:
            return None
        kinds.append(KINDS.get(kind, "realtime"))
        edges.append(Edge(at, (at + 1) % len(rows), KINDS.get(kind, "rt"), key, sentence))
    return Cycle(name(kinds), [Operation(row.id, row.f, row.version) for row in rows], edges)


def _before(one: list[Row], other: list[Row]) -> tuple[int, int] | None:
    """(end, invocation) if an operation of `one` ended before one of `other` of the same file was invoked."""
    for a in one:
        for b in other:
            if a.file == b.file and a.complete_us is not None and a.complete_us < b.invoke_us:
                return a.complete_us, b.invoke_us
    return None


def _dependency(edge: Row, who: str, whom: str) -> str:
    kind = KINDS[edge.kind]
    if edge.kind == WW:
        return f"{kind}: {who} wrote key {edge.key}, which {whom} then overwrote"
    if edge.kind == WR:
        return f"{kind}: {whom} read key {edge.key} as {who} wrote it"
    return f"{kind}: {who} read key {edge.key} at version {edge.version}, before {whom} overwrote that"


def order_cycle(edges: DataFrame, where: int = 5) -> tuple[int, list[Cycle]]:
    """Cycles in the order of deliveries (`edges.delivery_edges`): how many components, and some, explained."""
    numeric = _numbers(edges.select(F.xxhash64("source").alias("s"), F.xxhash64("target").alias("t")).distinct())
    hashes = np.unique(np.concatenate([numeric["s"], numeric["t"]]))
    source, target = np.searchsorted(hashes, numeric["s"]), np.searchsorted(hashes, numeric["t"])
    found, components = find_cycles(source, target, [], len(hashes), where)
    nodes = sorted({int(hashes[n]) for cycle in found for n in cycle})
    rows = {}
    if nodes:
        ours = edges.where(F.xxhash64("source").isin(nodes) & F.xxhash64("target").isin(nodes))
        for row in ours.select(
            F.xxhash64("source").alias("s"), F.xxhash64("target").alias("t"), "replica", "shard", "position",
            id_text(F.col("source")).alias("source"), id_text(F.col("target")).alias("target"),
        ).collect():  # fmt: skip
            rows[row.s, row.t] = row
    cycles = []
    for cycle in found:
        steps = [int(hashes[n]) for n in cycle]
        edge_rows = [rows[pair] for pair in zip(steps, [*steps[1:], steps[0]], strict=True)]
        sentences = [
            f"replica {r.replica} of shard {r.shard} delivered {r.target} right after {r.source}"
            f" (positions up to {r.position})"
            for r in edge_rows
        ]
        edges_of = [
            Edge(at, (at + 1) % len(sentences), "order", "", sentence) for at, sentence in enumerate(sentences)
        ]
        cycles.append(Cycle("order-cycle", [Operation(r.source, "message") for r in edge_rows], edges_of))
    return components, cycles
