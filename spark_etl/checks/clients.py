"""What clients were told, held against the journals; and real time."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_etl.columns import id_text, key_text, text, union, version_text, violations


def answers(
    operations: DataFrame, messages: DataFrame, reads: DataFrame, settled_before: bytes | None, whole: Column
) -> DataFrame:
    """Acknowledged operations are in the journals with the version, branch and reads that the client saw; refused ones
    have no effect. Names: acknowledged-but-absent, refused-but-present, version-mismatch, branch-mismatch,
    read-mismatch.

    settled_before: what is absent below this version will not appear any more; None: nothing will. Beyond it a
    transaction may still be under way, stored by a killed replica as a protocol's state only.
    whole: `frames.applied_everywhere`; other transactions may have read what is not in the journals.
    """
    messages = messages.withColumn("whole", whole)
    both = operations.join(messages.withColumnRenamed("succeeded", "ran").drop("replica"), "id", "left")
    both = both.withColumn("present", F.col("gts").isNotNull())
    acknowledged = both.where(F.col("type") == "ok")
    return union(
        [
            _absent(acknowledged, settled_before),
            _refused(both.where((F.col("type") == "fail") & F.col("effect"))),
            _version(acknowledged),
            _branch(acknowledged),
            _reads(acknowledged, reads),
        ]
    )


def _absent(acknowledged: DataFrame, settled_before: bytes | None) -> DataFrame:
    if settled_before is None:
        settled = F.lit(True)
    else:
        settled = F.coalesce(F.col("version") < F.lit(settled_before), F.lit(False))
    nowhere = ~F.col("present") & settled
    ineffective = F.col("present") & F.col("status").isNotNull() & (F.col("applied") == 0)
    partly = F.col("present") & settled & (F.col("delivered").bitwiseAND(F.col("expected")) != F.col("expected"))
    why = (
        F.when(nowhere, "is in no journal")
        .when(ineffective, "has no effect according to the journals")
        .otherwise("is missing in the journals of a shard that it concerns")
    )
    return violations(
        acknowledged.where(nowhere | ineffective | partly),
        "acknowledged-but-absent",
        text(
            "{} {} was acknowledged to a client with version {}, but it {} ({})",
            F.col("f"), id_text(F.col("id")), version_text(F.col("version")), why, F.col("file"),
        ),
        [F.col("id")],
    )  # fmt: skip


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


def _reads(acknowledged: DataFrame, reads: DataFrame) -> DataFrame:
    """Reads of the transaction's own writes carry its own version; the journals keep earlier versions only."""
    told = acknowledged.where(F.col("present"))
    told = told.select("id", "f", "gts", "whole", F.explode("reads").alias("name", "told"))
    told = told.where(F.col("told") != F.col("gts")).withColumn("key", F.col("name").cast("binary"))
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


def unknown(operations: DataFrame, messages: DataFrame, settled_before: bytes | None) -> DataFrame:
    """What became of the operations whose outcome no client knows: one row with the counts n, applied, not_applied
    (for certain) and open. settled_before: as in `answers`; such an operation has no version that a client knows, so
    that it may still be under way unless nothing is."""
    known = messages.select("id", "live", "status", "applied")
    fate = operations.where(F.col("type") == "info").join(known, "id", "left")
    applied = F.coalesce(F.col("applied") != 0, F.lit(False))
    refused = F.col("live").isNotNull() & (~F.col("live") | F.col("status").isNotNull())
    never = F.col("live").isNull() & F.lit(settled_before is None)
    out = ~applied & (refused | never)
    return fate.agg(
        F.count("*").alias("n"),
        F.count(F.when(applied, 1)).alias("applied"),
        F.count(F.when(out, 1)).alias("not_applied"),
        F.count(F.when(~applied & ~out, 1)).alias("open"),
    )


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
