"""Which consistency models a run satisfies, as a table: from the properties, and from what a cycle search left over.

The order of the versions of every key is known here (their timestamps), so every model is a statement about cycles of
dependencies, sessions and real time, and every such cycle lies among the transactions that are on some cycle at all
(`serialization.residue`). Usually there are none, and all models hold. Otherwise those few transactions, with the
writers that they read from, are judged by the models of `spark_etl.blackbox`, whose names these are.

Not in the journals: in what order a transaction read. Read committed demands less than read atomic only by that order,
so where read atomic is violated and read committed is not for certain, it is not determined.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_etl.blackbox.facts import INIT, Facts, Read
from spark_etl.blackbox.graphs import Edge
from spark_etl.blackbox.history import Transaction
from spark_etl.blackbox.models import MODELS, PLAIN, REALTIME, SESSION, Judge, realtime_edges, session_edges, weaker
from spark_etl.blackbox.solver import HOLDS, UNDETERMINED, VIOLATED
from spark_etl.frames.columns import absent
from spark_etl.frames.edges import KINDS, RW, WR
from spark_etl.report import ModelVerdict

LINEARIZABLE = "linearizable-per-key"
STRICT = REALTIME + "serializable"

RESIDUE_MAX = 3_000
"""Transactions on cycles that are judged model by model; of more, only what the properties say is known."""
EDGES_MAX = 200_000


class Placed(msgspec.Struct):
    """A transaction as its client saw it. file: whose clock; invoke, complete: microseconds, None if not known."""

    gts: bytes
    file: str
    process: int
    line: int
    ok: bool
    invoke: int | None
    complete: int | None


class Dependency(msgspec.Struct):
    """source, target: versions of transactions. kind, sure: as in `edges`. initial: of an rw edge: nobody wrote what
    was read."""

    source: bytes
    target: bytes
    kind: int
    key: bytes
    initial: bool
    sure: bool = True


def collect(
    hashes: Sequence[int], edges: DataFrame, steps: DataFrame | None
) -> tuple[list[Dependency], list[Placed]] | None:
    """What `judge` needs of these transactions (`serialization.residue`). None: too much."""
    if len(hashes) > RESIDUE_MAX:
        return None
    spark = edges.sparkSession
    mine = F.broadcast(spark.createDataFrame([(h,) for h in hashes], "node bigint"))
    pairs = edges.withColumn("s", F.xxhash64("source")).withColumn("t", F.xxhash64("target"))
    touching = pairs.join(mine, F.col("s") == F.col("node"), "left_semi").unionByName(
        pairs.join(mine, F.col("t") == F.col("node"), "left_semi")
    )
    initial = (F.col("kind") == RW) & (F.col("version") == absent())
    rows = touching.select("source", "target", "kind", "key", initial.alias("initial"), "sure").distinct()
    found = rows.limit(EDGES_MAX + 1).collect()
    if len(found) > EDGES_MAX:
        return None
    dependencies = [
        Dependency(bytes(r.source), bytes(r.target), r.kind, bytes(r.key), r.initial, r.sure) for r in found
    ]
    placed = []
    if steps is not None:
        for r in steps.join(mine, F.xxhash64("gts") == F.col("node"), "left_semi").collect():
            placed.append(Placed(bytes(r.gts), r.file, r.process, r.line, r.ok, r.invoke_us, r.complete_us))
    return dependencies, placed


class _Judge(Judge):
    """With the sessions and the clocks of several history files."""

    def __init__(self, facts: Facts, history: Sequence[Transaction], files: Mapping[int, str]):
        self._files = files
        super().__init__(facts, history)
        self.no_sessions = ""

    def realtime_edges(self) -> list[Edge]:
        by_file: dict[str, list[Transaction]] = defaultdict(list)
        for transaction in self.history:
            if transaction.timed:
                by_file[self._files[transaction.index]].append(transaction)
        return [edge for one in by_file.values() for edge in realtime_edges(one)]

    def session_edges(self) -> list[Edge]:
        """Those of the processes that run one after the other, although some do not."""
        return session_edges(self.history)


def judge(dependencies: Sequence[Dependency], placed: Sequence[Placed]) -> dict[str, str]:
    """Model -> verdict, of the transactions on cycles. Sessions and real time only as far as `placed` tells. What is
    not sure can show that a model holds, and not that it is violated."""
    found = _judge(dependencies, placed)
    if all(d.sure for d in dependencies):
        return found
    proved = _judge([d for d in dependencies if d.sure], placed)
    return {m: v if v == HOLDS else VIOLATED if proved[m] == VIOLATED else UNDETERMINED for m, v in found.items()}


def _judge(dependencies: Sequence[Dependency], placed: Sequence[Placed]) -> dict[str, str]:
    sessions: dict[tuple[str, int], int] = {}
    history: dict[bytes, Transaction] = {}
    files: dict[int, str] = {}
    for one in sorted(placed, key=lambda p: (p.file, p.line)):
        index = len(history)
        process = sessions.setdefault((one.file, one.process), len(sessions))
        files[index] = one.file
        history[one.gts] = Transaction(index, process, "ok" if one.ok else "info", one.invoke, one.complete, ())
    for gts in sorted({gts for d in dependencies for gts in (d.source, d.target)}):
        if gts not in history:
            history[gts] = Transaction(len(history), -1 - len(history), "ok", None, None, ())
    verdicts = _Judge(_facts(dependencies, history), list(history.values()), files).verdicts()
    found = {model: verdict.verdict for model, verdict in verdicts.items()}
    for variant in (PLAIN, SESSION, REALTIME):
        if found[variant + "read-atomic"] != HOLDS and found[variant + "read-committed"] == HOLDS:
            found[variant + "read-committed"] = UNDETERMINED
    return found


def _facts(dependencies: Sequence[Dependency], history: Mapping[bytes, Transaction]) -> Facts:
    facts = Facts()
    facts.committed = {t.index: t for t in history.values()}
    versions: dict[bytes, set[bytes]] = defaultdict(set)
    for d in dependencies:
        if d.kind != RW:
            versions[d.key].add(d.source)
        if d.kind != WR:
            versions[d.key].add(d.target)
    for key, found in versions.items():
        writers = [history[gts].index for gts in sorted(found)]
        facts.writers[key] = writers
        facts.ww |= {(a, b, key) for a, b in pairwise(writers)}
    for d in dependencies:
        if KINDS[d.kind] == "wr":
            facts.reads.append(Read(history[d.target].index, d.key, history[d.source].index, 0))
        elif d.initial:
            facts.reads.append(Read(history[d.source].index, d.key, INIT, 0))
    return facts


# -- the table ---------------------------------------------------------------------------------------------------------


def table(found: Mapping[str, tuple[str, str]], unfounded: str) -> list[ModelVerdict]:
    """Every model with its verdict, from weak to strong, and linearizability per key.

    found: model -> (verdict, why), as far as they are known; what follows is filled in. unfounded: why nothing can be
    said to hold, or empty.
    """
    known = {m: v for m, v in found.items() if v[0] == VIOLATED or (v[0] == HOLDS and not unfounded)}
    for model, (verdict, why) in list(known.items()):
        if model == LINEARIZABLE:
            continue
        if verdict == HOLDS:
            for other in weaker(model):
                known.setdefault(other, (HOLDS, f"{display(model)} implies it"))
        else:
            for other in MODELS:
                if model in weaker(other):
                    known.setdefault(other, (VIOLATED, f"it implies {display(model)}, which is violated: {why}"))
    if known.get(STRICT, ("", ""))[0] == HOLDS:
        known.setdefault(LINEARIZABLE, (HOLDS, f"{display(STRICT)} implies it"))
    elif known.get(LINEARIZABLE, ("", ""))[0] == VIOLATED:
        known.setdefault(STRICT, (VIOLATED, f"it implies {display(LINEARIZABLE)}, which is violated"))
    rows = []
    for model in (*MODELS, LINEARIZABLE):
        verdict, why = known.get(model) or (UNDETERMINED, unfounded or found.get(model, ("", ""))[1])
        rows.append(ModelVerdict(model, verdict, why))
    return rows


def display(model: str) -> str:
    """For people."""
    return "strict serializable" if model == STRICT else model.replace("strong-session-", "strong session ").replace(
        "-", " ")  # fmt: skip


def strongest(rows: Sequence[ModelVerdict]) -> list[str]:
    """The models that hold and that no other one implies that holds."""
    holding = {row.name for row in rows if row.verdict == HOLDS}
    implied = {name for model in holding - {LINEARIZABLE} for name in weaker(model)}
    if STRICT in holding:
        implied.add(LINEARIZABLE)
    return [row.name for row in rows if row.name in holding - implied]
