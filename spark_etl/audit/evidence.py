"""The log lines behind a violation: which record, in which file, from which byte on. One job of Spark for them all."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kvstore.core.audit import EXPIRED, MISMATCH, MOVED, REPEATED
from multicast.records import HEADER_BYTES
from multicast.types import Timestamp
from spark_etl.frames import relations
from spark_etl.frames.columns import id_text, key_text, text, union, version_text
from spark_etl.ingest.histories import is_version
from spark_etl.report import Evidence, Violation

_VERSION = re.compile(r"(?:version|says) ([0-9a-f]{1,16}-[0-9a-f]{1,16})\b")

LINES_MAX = 24
"""Of one violation."""
_ROWS_MAX = 50_000
_ORDER = ("history", "submitted", "deliveries", "outcomes", "reads", "writes", "lives")


def find(tables: Mapping[str, DataFrame], small: Iterable[Any], examples: Sequence[Violation]) -> None:
    """Fill in the evidence of the examples. small: the rows of "lives" and "segments"."""
    ids = sorted({one for violation in examples for one in violation.transactions})
    places = {(r, p) for v in examples if not v.transactions for r in v.replicas for p in v.positions}
    if not ids and not places:
        return
    versions = {one for violation in examples for one in _written(violation)}
    rows = lines(tables, ids, sorted(places), sorted(versions)).limit(_ROWS_MAX).collect()
    lists = list(small)
    segments = {(row.replica, row.segment): row for row in lists if row.table == "segments"}
    by_id: dict[str, list[Any]] = defaultdict(list)
    by_place: dict[tuple[int, int], list[Any]] = defaultdict(list)
    by_write: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in rows:
        by_id[row.id].append(row)
        if row.table == "deliveries":
            by_place[row.replica, row.position].append(row)
        elif row.table == "writes":
            by_write[row.version, row.key].append(row)
    stops = [row for row in lists if row.table == "lives" and row.event == "stopped"]
    for violation in examples:
        if violation.transactions:
            found = [row for one in violation.transactions for row in _chosen(by_id[one], violation)]
            known = {row.id for row in found}
            for version in _written(violation):
                rows = sorted((r for k in violation.keys for r in by_write[version, k]), key=lambda r: r.replica)
                found += [row for row in rows[:1] if row.id not in known]
        else:
            found = [row for r in violation.replicas for p in violation.positions for row in by_place[r, p]]
        kept = [_evidence(row, segments) for row in found[:LINES_MAX]]
        if not violation.transactions:
            kept += [_stop(row, segments) for row in stops if row.replica in violation.replicas]
        violation.evidence = violation.evidence + kept


def _written(violation: Violation) -> list[str]:
    """The versions that a violation's sentence speaks of, if it is about keys: who wrote them is of interest. In
    keys and values that it names anything may stand."""
    return [one for one in _VERSION.findall(violation.sentence) if is_version(one)] if violation.keys else []


def lines(
    tables: Mapping[str, DataFrame],
    ids: Sequence[str],
    places: Sequence[tuple[int, int]],
    versions: Sequence[str] = (),
) -> DataFrame:
    """Rows of several tables that are about these ids, stand at these (replica, position), or write these versions:
    table, id, shard, replica, segment, position, offset, key, version, file, line, text."""
    binary = [bytes.fromhex(one.replace("-", "")) for one in ids]
    about = F.col("id").isin(binary) if binary else F.lit(False)
    there = F.lit(False)
    for replica, position in places:
        there = there | ((F.col("replica") == replica) & (F.col("position") == position))
    sentences = {
        "submitted": text("multicast to shards {}", F.concat_ws(", ", "destinations")),
        "deliveries": text("delivered at position {} with version {}", F.col("position"), version_text(F.col("gts"))),
        "outcomes": text(
            "outcome {} of the message at position {}: {}", F.col("index") + 1, F.col("position"),
            F.when(F.col("status") != 1, text("{} {}", _fate(), F.col("reason"))).when(
                F.col("succeeded"), F.lit("applied, success branch")).otherwise(F.lit("applied, failure branch")),
        ),
        "reads": text("read key {} at version {}", key_text(F.col("key")), version_text(F.col("version"))),
        "writes": text(
            "wrote key {}: {} (version {})", key_text(F.col("key")),
            F.when(F.col("deleted"), F.lit("deleted")).when(F.col("digested"), F.lit("a long value"))
            .otherwise(F.substring(key_text(F.col("value")), 1, 60)), version_text(F.col("gts")),
        ),
    }  # fmt: skip
    parts = []
    for table, sentence in sentences.items():
        frame = tables[table]
        key = key_text(F.col("key")) if "key" in frame.columns else F.lit(None).cast("string")
        position = F.col("position") if "position" in frame.columns else F.lit(None).cast("bigint")
        wanted = about | there if table == "deliveries" else about
        if table == "writes" and versions:
            wanted = about | F.col("gts").isin([Timestamp.parse(version).encode() for version in versions])
        version = version_text(F.col("gts")) if table == "writes" else F.lit(None).cast("string")
        none = F.lit(None)
        parts.append(
            frame.where(wanted).select(
                F.lit(table).alias("table"), id_text(F.col("id")).alias("id"), "shard", "replica", "segment",
                position.alias("position"), "offset", key.alias("key"), version.alias("version"),
                none.cast("string").alias("file"),
                none.cast("bigint").alias("line"), sentence.alias("text"),
            )
        )  # fmt: skip
    history = tables["history"].withColumn("id", relations.journal_id())
    return union([*parts, _history_lines(history.where(about))])


def _fate() -> Column:
    """Of an outcome that is not APPLIED."""
    names = {
        EXPIRED: "too late, no effect", REPEATED: "a repetition, no effect", MISMATCH: "a used id, no effect",
        MOVED: "its keys have moved, no effect",
    }  # fmt: skip
    said = F.lit("no effect")
    for status, name in names.items():
        said = F.when(F.col("status") == status, name).otherwise(said)
    return said


def _history_lines(history: DataFrame) -> DataFrame:
    said = text(
        "{}: {} at {} s{}", F.col("type"), F.col("f"), F.format_number(F.col("at_us") / 1e6, 6),
        F.when(F.col("version").isNotNull(), text(", version {}", version_text(F.col("version")))).otherwise(F.lit("")),
    )  # fmt: skip
    none: Column = F.lit(None)
    return history.select(
        F.lit("history").alias("table"), id_text(F.col("id")).alias("id"), none.cast("int").alias("shard"),
        none.cast("int").alias("replica"), none.cast("int").alias("segment"), none.cast("bigint").alias("position"),
        none.cast("bigint").alias("offset"), none.cast("string").alias("key"),
        none.cast("string").alias("version"), "file", "line", said.alias("text"),
    )  # fmt: skip


def _chosen(rows: list[Any], violation: Violation) -> list[Any]:
    """The rows of the replicas that the violation names, else of a lowest one per shard; of reads and writes, those of
    its keys."""
    lowest: dict[int, int] = {}
    for row in rows:
        if row.table in ("deliveries", "outcomes"):
            lowest[row.shard] = min(row.replica, lowest.get(row.shard, row.replica))
    chosen = [
        row
        for row in rows
        if row.table in ("history", "submitted")
        or (row.replica in violation.replicas if violation.replicas else row.replica == lowest.get(row.shard))
    ]
    keys = set(violation.keys)
    chosen = [row for row in chosen if row.key is None or not keys or row.key in keys]
    return sorted(chosen, key=lambda row: (_ORDER.index(row.table), row.line or 0, row.replica or 0, row.offset or 0))


def _evidence(row: Any, segments: Mapping[tuple[int, int], Any]) -> Evidence:
    if row.table == "history":
        return Evidence(row.file, f"{row.id} {row.text}", line=row.line)
    what = f"replica {row.replica} of shard {row.shard}: {row.id} {row.text}"
    return _at(row.replica, row.segment, row.offset, what, segments)


def _stop(row: Any, segments: Mapping[tuple[int, int], Any]) -> Evidence:
    what = f"replica {row.replica} of shard {row.shard}: stopped in good order, {row.delivered} delivered"
    return _at(row.replica, row.segment, row.offset, what, segments)


def _at(replica: int, number: int, offset: int, what: str, segments: Mapping[tuple[int, int], Any]) -> Evidence:
    segment = segments.get((replica, number))
    if segment is None:
        return Evidence(f"replicas/{replica}/journal/journal-{number:08d}.seg", f"{what} (journal offset {offset})", 0)
    return Evidence(segment.file, what, byte=offset - segment.offset + HEADER_BYTES)
