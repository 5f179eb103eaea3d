"""What clients were told, held against the journals; and real time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_etl.frames import relations
from spark_etl.frames.columns import id_text, key_text, text, union, version_text, violations


def answers(
    operations: DataFrame, transactions: DataFrame, reads: DataFrame, writes: DataFrame, whole: Column
) -> DataFrame:
    """What the journals hold of an operation is what its client was told: version, branch and reads; refused operations
    have no effect. Names: refused-but-present, version-mismatch, branch-mismatch, read-mismatch.

    whole: `relations.applied_everywhere`; other transactions may have read what is not in the journals.
    """
    both = _beside(operations.where(~relations.at_position()), transactions.withColumn("whole", whole))
    acknowledged = both.where(F.col("type") == "ok")
    return union(
        [
            _refused(both.where((F.col("type") == "fail") & F.col("effect"))),
            _version(acknowledged),
            _branch(acknowledged),
            _reads(acknowledged, reads, writes),
        ]
    )


def _beside(operations: DataFrame, transactions: DataFrame) -> DataFrame:
    """Operations, each with its row of `relations.transactions` if there is one (present)."""
    both = operations.join(transactions.withColumnRenamed("succeeded", "ran"), "id", "left")
    return both.withColumn("present", F.col("gts").isNotNull())


def lost(
    operations: DataFrame,
    transactions: DataFrame,
    messages: DataFrame,
    shards: list[int],
    open_ends: DataFrame,
    complete_before: bytes | None,
    unsure_shards: Sequence[int],
    owners: DataFrame | None,
) -> DataFrame:
    """The acknowledged operations without effect, as far as the journals say: file, id, f, version, invoke_us,
    complete_us, why (a sentence's end), lacks (shards; null: not known), excused: all that is missing may have been
    what a shard had not yet written when it went down.

    The transactions of a message that nobody accounts for are not known: an operation that was answered with one of its
    versions is under way, not lost. If somebody does, and it is not among them, nothing excuses that.
    open_ends: shard, end, of the shards of which nobody knows how far they got: beyond that version, what they lack
    is no evidence. complete_before: the least of these, None: there is no such shard; of what stands in no journal the
    shards are unknown, but for those of the keys of `owners` (key, shard), which never had another one; None: it does
    not matter.
    unsure_shards: of what they were sent another delivery may be missing that had the effect.
    """
    told = operations.where((F.col("type") == "ok") & ~relations.at_position())
    acknowledged = _beside(told, transactions)
    unsure = F.arrays_overlap("destinations", F.array([F.lit(n) for n in unsure_shards]).cast("array<int>"))
    void = (F.col("void") != 0) & ~unsure
    ineffective = F.coalesce((F.col("applied") == 0) & F.col("status").isNotNull(), F.lit(False)) | void
    there = acknowledged.where("present")
    columns = ["file", "id", "f", "version", "invoke_us", "complete_us", "why", "lacks", "excused"]
    unknown = F.lit(None).cast("array<int>")
    carriers = messages.where(F.col("live") & ~F.col("single")).select(message_part("version").alias("part"), "known")
    nowhere = acknowledged.where(~F.col("present")).withColumn("why", F.lit("is in no journal"))
    nowhere = nowhere.withColumn("part", message_part("version")).join(carriers, "part", "left")
    nowhere = nowhere.where(F.coalesce("known", F.lit(True)))
    if owners is None:
        nowhere = nowhere.withColumns({"lacks": unknown, "sure": F.lit(False)})
    else:
        nowhere = nowhere.join(_homes(nowhere, owners, open_ends), ["file", "id"], "left")
    complete = F.lit(True) if complete_before is None else F.col("version") < F.lit(complete_before)
    complete = F.coalesce(complete, F.lit(False)) | F.col("known").isNotNull() | F.coalesce("sure", F.lit(False))
    without = there.where(ineffective).withColumn("why", F.lit("has no effect according to the journals"))
    return union(
        [
            nowhere.withColumn("excused", ~complete).select(*columns),
            without.withColumn("lacks", unknown).withColumn("excused", F.lit(False)).select(*columns),
            _partly(there.where(~ineffective), shards, open_ends).select(*columns),
        ]
    )


def _homes(nowhere: DataFrame, owners: DataFrame, open_ends: DataFrame) -> DataFrame:
    """Those that ask for keys that are known: file, id, lacks (their shards), sure: whether it is known of one of these
    that it got further, or how far it got."""
    asked = nowhere.where("asked IS NOT NULL").select("file", "id", "version", "asked")
    keys = asked.mapInArrow(_keys, "file string, id binary, version binary, key binary")
    ends = keys.join(owners, "key").join(F.broadcast(open_ends), "shard", "left")
    sure = F.max(F.col("end").isNull() | (F.col("version") < F.col("end"))).alias("sure")
    return ends.groupBy("file", "id").agg(F.array_sort(F.collect_set("shard")).alias("lacks"), sure)


_KEYED = ("get", "put", "delete", "add", "min", "max", "append")


def asked_keys(asked: dict[str, Any]) -> Iterator[str]:
    """The keys, one by one, that this transaction (`kvstore.core.audit.Asked`) is about, whatever holds."""
    for compared in asked.get("compare", ()):
        yield compared[0]
    for words in (*asked.get("success", ()), *asked.get("failure", ())):
        if words[0] == "txn":
            yield from asked_keys(words[1])
        elif words[0] in _KEYED:
            yield words[1]


def _keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([("file", pa.string()), *((name, pa.binary()) for name in ("id", "version", "key"))])
    for batch in batches:
        rows = [
            {**row, "key": key.encode(errors="surrogateescape")}
            for row in batch.to_pylist()
            for key in asked_keys(json.loads(row.pop("asked")))
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def message_part(version: str) -> Column:
    """What the versions of all transactions of a message have in common."""
    return F.substring(version, 1, 14)


def _partly(there: DataFrame, shards: list[int], open_ends: DataFrame) -> DataFrame:
    lacking = F.bitwise_not("delivered")
    missing = (
        there.where(F.col("expected").bitwiseAND(lacking) != 0)
        .withColumn("shard", F.explode("destinations"))
        .where(relations.shard_bit("shard", shards).bitwiseAND(lacking) != 0)
        .join(F.broadcast(open_ends), "shard", "left")
    )
    excused = F.coalesce(F.col("gts") >= F.col("end"), F.lit(False))
    return (
        missing.groupBy("file", "id")
        .agg(
            F.first("f").alias("f"), F.first("version").alias("version"), F.first("invoke_us").alias("invoke_us"),
            F.first("complete_us").alias("complete_us"),
            F.array_sort(F.collect_set("shard")).alias("lacks"), F.min(excused).alias("excused"),
        )
        .withColumn("why", text("is in no journal of shard {}", F.concat_ws(", ", "lacks")))
    )  # fmt: skip


def absent(lost: DataFrame) -> DataFrame:
    """Name: acknowledged-but-absent. lost: rows of `lost`."""
    return violations(
        lost,
        "acknowledged-but-absent",
        text(
            "{} {} was acknowledged to a client with version {}, but it {} ({})",
            F.col("f"), id_text(F.col("id")), version_text(F.col("version")), F.col("why"), F.col("file"),
        ),
        [F.col("id")],
    )  # fmt: skip


def thin(operations: DataFrame, log: DataFrame, held: DataFrame) -> DataFrame:
    """Acknowledged operations that stand in the journals of fewer than half of the replicas of some shard: id, f, file,
    shard, position. held: shard, most: the last position that more than half of its replicas hold."""
    beyond = log.where(F.col("taken")).join(F.broadcast(held), "shard").where(F.col("position") > F.col("most"))
    beyond = beyond.groupBy(F.col("transaction").alias("id"), "shard").agg(F.min("position").alias("position"))
    return operations.where(F.col("type") == "ok").select("id", "f", "file").join(beyond, "id")


def _refused(refused: DataFrame) -> DataFrame:
    return violations(
        refused,
        "refused-but-present",
        text(
            "a client was told that {} {} has no effect, but the journals hold its effect at version {} ({})",
            F.col("f"), id_text(F.col("id")), version_text(F.col("gts")), F.col("file"),
        ),
        [F.col("id")],
    )  # fmt: skip


def _version(acknowledged: DataFrame) -> DataFrame:
    return violations(
        acknowledged.where(F.col("version") != F.col("gts")),
        "version-mismatch",
        text(
            "a client was told that {} {} has version {}, but the journals say {}",
            F.col("f"), id_text(F.col("id")), version_text(F.col("version")), version_text(F.col("gts")),
        ),
        [F.col("id")],
    )  # fmt: skip


def _branch(acknowledged: DataFrame) -> DataFrame:
    ran = F.when(F.col("ran"), "success").otherwise("failure")
    told = F.when(F.col("ops_succeeded"), "success").otherwise("failure")
    frame = acknowledged.withColumn("ops_succeeded", F.col("succeeded")).where(F.col("ops_succeeded") != F.col("ran"))
    return violations(
        frame,
        "branch-mismatch",
        text(
            "a client was told that {} {} ran its {} branch, but the journals say the {} branch",
            F.col("f"), id_text(F.col("id")), told, ran,
        ),
        [F.col("id")],
    )  # fmt: skip


def _reads(acknowledged: DataFrame, reads: DataFrame, writes: DataFrame) -> DataFrame:
    """Reads of the transaction's own writes carry its own version; the journals keep earlier versions only."""
    told = acknowledged.where(F.col("present"))
    told = told.select("id", "f", "gts", "whole", F.explode("reads").alias("name", "told"))
    told = told.withColumn("key", F.col("name").cast("binary"))
    own = writes.select("id", "key", F.col("gts").alias("told"))
    told = told.where(F.col("whole") | (F.col("told") != F.col("gts"))).join(own, ["id", "key", "told"], "left_anti")
    logged = reads.groupBy("id", "key").agg(F.max("version").alias("logged"))
    both = told.join(logged, ["id", "key"], "left")
    wrong = both.where((F.col("logged").isNull() & F.col("whole")) | (F.col("told") != F.col("logged")))
    says = F.when(F.col("logged").isNull(), "that it did not read it").otherwise(version_text(F.col("logged")))
    return violations(
        wrong,
        "read-mismatch",
        text(
            "a client was told that {} {} read key {} at version {}, but the journals say {}",
            F.col("f"), id_text(F.col("id")), key_text(F.col("key")), version_text(F.col("told")), says,
        ),
        [F.col("id")],
        [F.col("key")],
    )  # fmt: skip


def unknown(operations: DataFrame, transactions: DataFrame, complete_before: bytes | None) -> DataFrame:
    """What became of the operations whose outcome no client knows: one row with the counts n, applied, not_applied
    (for certain) and open. complete_before: None if nothing is under way any more; no client knows the version of such
    an operation."""
    known = transactions.select("id", "live", "status", "applied")
    fate = operations.where(F.col("type") == "info").join(known, "id", "left")
    applied = F.coalesce(F.col("applied") != 0, F.lit(False))
    refused = F.col("live").isNotNull() & (~F.col("live") | F.col("status").isNotNull())
    never = F.col("live").isNull() & (F.lit(complete_before is None) | F.coalesce(_only_reads(), F.lit(False)))
    out = ~applied & (refused | never)
    return fate.agg(
        F.count("*").alias("n"),
        F.count(F.when(applied, 1)).alias("applied"),
        F.count(F.when(out, 1)).alias("not_applied"),
        F.count(F.when(~applied & ~out, 1)).alias("open"),
    )


def _only_reads() -> Column:
    """Of an operation: whether it asked for nothing that has an effect."""
    return ~F.col("asked").rlike(r'\["(put|delete|delete_range|revoke|add|min|max|append)",')


BLOCKS = 64


def against_real_time(timeline: DataFrame) -> DataFrame:
    """The operations that ended before the invocation of one that precedes them in the order. None: the order of
    versions is an order of real time. Only operations of one file share a clock. timeline: `sessions.steps`.

    Operations are cut into blocks by version; a block starts from the latest invocation of all blocks before it.
    """
    time = F.conv(F.hex(F.substring("gts", 1, 8)), 16, 10).cast("double")
    timed = timeline.withColumn("time", time)
    span = timed.agg(F.min("time").alias("low"), F.max("time").alias("high"))
    share = (F.col("time") - F.col("low")) / F.greatest(F.col("high") - F.col("low"), F.lit(1.0))
    blocked = timed.crossJoin(F.broadcast(span)).withColumn("block", F.floor(share * BLOCKS).cast("int"))
    earlier_blocks = Window.partitionBy("file").orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    starts = (
        blocked.groupBy("file", "block")
        .agg(F.max("invoke_us").alias("latest"))
        .select("file", "block", F.max("latest").over(earlier_blocks).alias("before"))
    )
    inside = Window.partitionBy("file", "block").orderBy("gts").rowsBetween(Window.unboundedPreceding, -1)
    return (
        blocked.join(F.broadcast(starts), ["file", "block"])
        .withColumn("latest", F.greatest(F.max("invoke_us").over(inside), F.col("before")))
        .where(F.col("complete_us") < F.col("latest"))
        .select("file", "gts", "id", "f", "invoke_us", "complete_us", "latest")
    )
