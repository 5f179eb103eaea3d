"""What clients asked and were told, value by value, held against what the journals say was written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kvstore.core.audit import FAILED, value_text
from multicast.types import ZERO, Timestamp
from spark_etl.checks import replay
from spark_etl.frames.columns import absent, id_text, text, version_text, violations

READERS = ("read_all", "cycle_read", "counter_read")
"""Operations whose `value` in a history is what they read, key -> integer, and all of it."""

_BYTES, _TEXTS = ("id", "gts", "key"), ("f", "file", "name", "said", "digest", "why")
_COMPARED = ", ".join([*(f"{name} binary" for name in _BYTES), *(f"{name} string" for name in _TEXTS)])
_ARROW = pa.schema([*((name, pa.binary()) for name in _BYTES), *((name, pa.string()) for name in _TEXTS)])


def compare(
    operations: DataFrame, transactions: DataFrame, reads: DataFrame, writes: DataFrame, whole: Column
) -> DataFrame:
    """Each operation that says what was asked or read, executed again on the values that it read (`replay`): a row with
    name "" for each, and one for everything that is wrong: id, gts, f, file, name, key, said (as in a history), digest
    (of that), why.

    whole: `relations.applied_everywhere`; of other transactions only a part is known, and they are left out. writes:
    `relations.key_writes`, with `since` or without.
    """
    journaled = F.col("message").isNotNull().alias("journaled")
    ran = transactions.where(whole).select("id", "gts", _branch(), "truths", journaled)
    asked = _asked(operations).select("id", "f", "file", "asked", "told", "value").join(ran, "id")
    wrote = writes.groupBy("id").agg(F.collect_list(F.struct("key", "value", "digested", "deleted")).alias("wrote"))
    return _with_seen(asked, reads, writes).join(wrote, "id", "left").mapInArrow(_batches, _COMPARED)


def compare_promised(promised: DataFrame, writes: DataFrame) -> DataFrame:
    """The same of reads that are `relations.promised`: what they saw is their clients' word (gts: the version that they
    name, or null), and what was written there is not."""
    reads = promised.select("id", F.explode("reads").alias("name", "version"))
    reads = reads.select("id", F.col("name").cast("binary").alias("key"), "version")
    asked = _asked(promised).select(
        "id", "f", "file", "asked", "told", "value", F.nullif("seen", absent()).alias("gts"),
        _branch(), F.lit(None).cast("binary").alias("truths"), F.lit(False).alias("journaled"),
    )  # fmt: skip
    nothing = F.array().cast("array<struct<key:binary,value:binary,digested:boolean,deleted:boolean>>")
    return _with_seen(asked, reads, writes).withColumn("wrote", nothing).mapInArrow(_batches, _COMPARED)


def _branch() -> Column:
    """Which one ran; a read whose client does not say that asked nothing first."""
    return F.coalesce("succeeded", F.lit(True)).alias("ran")


def _asked(operations: DataFrame) -> DataFrame:
    """Of which it is known what was asked, or which integers were read."""
    integers = F.col("f").isin(*READERS) & (F.col("type") == "ok") & F.col("value").isNotNull()
    asked = operations.where(F.col("asked").isNotNull() | integers)
    return asked.withColumn("value", F.when(integers, F.col("value")))


def refused(
    operations: DataFrame, transactions: DataFrame, outcomes: DataFrame, reads: DataFrame, writes: DataFrame
) -> DataFrame:
    """Operations that the journals call impossible, and that were possible by what they read: rows of `compare`, and
    none for others. outcomes: as replicas report them."""
    kind = F.regexp_extract("reason", f"^({'|'.join(replay.REASONS)})[: ]", 1)
    why = outcomes.where((F.col("status") == FAILED) & (kind != "")).groupBy("id").agg(
        F.min(kind).alias("kind"), F.max(kind).alias("other"), F.min("reason").alias("reason")
    )
    here = transactions.where(F.col("live") & (F.col("applied") == 0))
    failed = why.where(F.col("kind") == F.col("other")).join(here.select("id", "gts"), "id").drop("other")
    asked = operations.where(F.col("asked").isNotNull()).select("id", "f", "file", "asked").join(failed, "id")
    return _with_seen(asked, reads, writes).mapInArrow(_refused, _COMPARED)


def _refused(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pylist([
            {name: row[name] for name in ("id", "gts", "f", "file")} | {
                "name": "not-as-asked", "key": None, "said": None, "digest": None,
                "why": f"the journals call it impossible ({row['reason']}), and by what it read it was not",
            }
            for row in batch.to_pylist() if was_possible(row, row["kind"])
        ], schema=_ARROW)  # fmt: skip


def was_possible(row: dict[str, Any], kind: str) -> bool | None:
    """Of an operation with `seen`: see `replay.possible`."""
    try:
        return replay.possible(row["asked"], _seen(row), kind)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None


def since(writes: DataFrame, complete: bool) -> DataFrame:
    """All writes of a run, with the first version since the key last was not there (since), null if that may have been
    before all that is known: of a row that was there at first, the writer has its version for an id. complete: nothing
    is missing at the beginning."""
    in_turn = Window.partitionBy("key").orderBy("gts")
    before = F.lag("deleted").over(in_turn)
    begins = ~F.col("deleted") & F.coalesce(before, F.lit(True))
    known = (F.col("id") != F.col("gts")) & (F.lit(complete) | before.isNotNull())
    first = F.when(begins, F.struct(F.when(known, F.col("gts")).alias("at")))
    rows = writes.withColumn("first", first)
    return rows.withColumn("since", F.last("first", ignorenulls=True).over(in_turn)["at"]).drop("first")


def _with_seen(asked: DataFrame, reads: DataFrame, writes: DataFrame) -> DataFrame:
    """With what each has `seen`."""
    if "since" not in writes.columns:
        writes = writes.withColumn("since", F.lit(None).cast("binary"))
    versions = writes.select(
        "key", F.col("gts").alias("version"), "value", "digested", "deleted", "since", F.lit(True).alias("known")
    )
    concerned = asked.select("id").distinct()
    seen = reads.select("id", "key", "version").join(concerned, "id", "left_semi").join(
        versions, ["key", "version"], "left"
    )
    seen = seen.groupBy("id").agg(
        F.collect_list(F.struct("key", "version", "value", "digested", "deleted", "known", "since")).alias("seen")
    )
    return asked.join(seen, "id", "left")


def _batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pylist([found for row in batch.to_pylist() for found in replayed(row)], schema=_ARROW)


def replayed(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Of one operation with `seen` and `wrote`: the rows of `compare`."""
    seen = _seen(row)
    writes = {_key(one): _text(one) for one in row["wrote"] or ()}
    read = None if row["value"] is None else dict(row["value"])
    truths = bytes(row["truths"] or b"")
    try:
        found = replay.compare(
            row["asked"], row["told"], read, bool(row["ran"]), seen, writes, truths, row["journaled"]
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return  # nothing that a client of ours writes: not compared
    base = {"id": row["id"], "gts": row["gts"], "f": row["f"], "file": row["file"]}
    yield {**base, "name": "", "key": None, "said": None, "digest": None, "why": None}
    for one in found:
        digest = replay.digest_text(one.said) if one.said and one.said[0] in "=#" else None
        key, why = (text.encode(errors="surrogateescape") for text in (one.key, one.why))
        shown = why.decode(errors="backslashreplace")
        yield {**base, "name": one.name, "key": key, "said": one.said, "digest": digest, "why": shown}


def _seen(row: dict[str, Any]) -> dict[str, replay.Seen]:
    return {
        _key(one): replay.Seen(_before(one), _version(one["version"]), one["since"] and _version(one["since"]))
        for one in row["seen"] or ()
    }


def _key(one: dict[str, Any]) -> str:
    return bytes(one["key"]).decode(errors="surrogateescape")


def _version(version: bytes) -> str:
    return str(Timestamp.decode(bytes(version)))


def _before(one: dict[str, Any]) -> Any:
    if _version(one["version"]) == str(ZERO):
        return None
    known = one["known"] and one["value"] is not None
    return _text(one) if known and not one["deleted"] else replay.UNKNOWN


def _text(one: dict[str, Any]) -> str | None:
    if one["deleted"]:
        return None
    value = bytes(one["value"])
    return f"#{value.hex()}" if one["digested"] else value_text(value)


def wrong(compared: DataFrame, writes: DataFrame) -> DataFrame:
    """Names: value-mismatch, unwritten-value, not-as-asked. compared: from `compare`."""
    hashed = F.concat(F.lit("#"), F.lower(F.hex("value")))
    text_ = F.when(F.col("digested"), hashed).otherwise(F.concat(F.lit("="), F.col("value").cast("string")))
    written = writes.where(~F.col("deleted")).select(F.col("key").alias("at"), text_.alias("text")).distinct()
    found = compared.where(~F.col("name").isin("", replay.CREATED_ANEW))
    there = (F.col("key") == F.col("at")) & ((F.col("said") == F.col("text")) | (F.col("digest") == F.col("text")))
    found = found.join(written, there, "left")
    told = (F.col("name") == "value-mismatch") & F.col("said").rlike("^[=#]")
    unwritten = told & F.col("at").isNull()
    return violations(
        found,
        F.when(unwritten, "unwritten-value").otherwise(F.col("name")),
        text(
            "{} {}{}: {}{} ({})",
            F.col("f"), id_text(F.col("id")),
            F.when(F.col("gts").isNull(), "").otherwise(text(" (version {})", version_text(F.col("gts")))),
            F.col("why"),
            F.when(unwritten, ", and nobody ever wrote what it was told").otherwise(""), F.col("file"),
        ),
        [F.col("id")],
        [F.when(F.length("key") > 0, F.col("key"))],
    )  # fmt: skip
