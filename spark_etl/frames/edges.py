"""Dependencies between transactions (Adya), from the versions in the journals. DataFrames in and out.

A transaction is named by its version, `gts`. Per key, versions are ordered as the timestamps are.
ww: the target overwrote what the source wrote. wr: the target read what the source wrote. rw: the target overwrote what
the source had read.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_etl.frames.columns import absent

WW, WR, RW = 1, 2, 3
KINDS = {WW: "ww", WR: "wr", RW: "rw"}


def reads_in_order(reads: DataFrame, writes: DataFrame) -> DataFrame:
    """Each read beside the last write to its key that precedes the reader in the order of versions.

    Columns: those of `relations.key_reads`; last_write (gts), last_deleted, last_delete (gts of the last deletion, or
    absent); expected: the version that the order says. A transaction never sees its own write.
    """
    rows = reads.withColumn("deleted", F.lit(None).cast("boolean"))
    rows = rows.unionByName(writes.select("key", "gts", "id", "replica", "deleted"), allowMissingColumns=True)
    is_write = F.col("version").isNull()
    before = Window.partitionBy("key").orderBy("gts", is_write).rowsBetween(Window.unboundedPreceding, 0)
    return (
        rows.withColumn("last_write", F.last(F.when(is_write, F.col("gts")), ignorenulls=True).over(before))
        .withColumn("last_deleted", F.last(F.when(is_write, F.col("deleted")), ignorenulls=True).over(before))
        .withColumn("last_delete", F.last(F.when(F.col("deleted"), F.col("gts")), ignorenulls=True).over(before))
        .where(~is_write)
        .withColumn("last_delete", F.coalesce("last_delete", absent()))
        .withColumn(
            "expected",
            F.when(F.col("last_write").isNull() | F.col("last_deleted"), absent()).otherwise(F.col("last_write")),
        )
    )


def dependencies(ordered_reads: DataFrame, writes: DataFrame) -> DataFrame:
    """Every ww, wr and rw edge: source and target (gts), kind, key, version (of the version concerned), sure.

    ordered_reads: from `reads_in_order`. Reads of versions that nobody wrote have no edges. sure: false if somebody saw
    that a key is absent which was deleted at some time: that may have been any of its deletions, or the beginning; the
    edge is that of the last one before the reader.
    """
    by_version = Window.partitionBy("key").orderBy("gts")
    versions = writes.select("key", "gts").distinct()
    first = versions.select("key").distinct().withColumn("gts", absent())
    versions = versions.unionByName(first).withColumn("next", F.lead("gts").over(by_version))
    ww = versions.where((F.col("gts") != absent()) & F.col("next").isNotNull()).select(
        F.col("gts").alias("source"), F.col("next").alias("target"), F.lit(WW).alias("kind"), "key",
        F.col("gts").alias("version"), F.lit(True).alias("sure"),
    )  # fmt: skip
    deleted = writes.where("deleted").select("key").distinct().withColumn("deleted", F.lit(True))
    seen = F.when(F.col("version") == absent(), F.col("last_delete")).otherwise(F.col("version"))
    none = F.col("version") == absent()
    read = ordered_reads.select("key", F.col("gts").alias("reader"), seen.alias("gts"), none.alias("none")).distinct()
    matched = read.join(versions, ["key", "gts"]).join(deleted, "key", "left")
    matched = matched.withColumn("sure", ~(F.col("none") & F.col("deleted").isNotNull()))
    wr = matched.where(F.col("gts") != absent()).select(
        F.col("gts").alias("source"), F.col("reader").alias("target"), F.lit(WR).alias("kind"), "key",
        F.col("gts").alias("version"), "sure",
    )  # fmt: skip
    rw = matched.where(F.col("next").isNotNull()).select(
        F.col("reader").alias("source"), F.col("next").alias("target"), F.lit(RW).alias("kind"), "key",
        F.col("gts").alias("version"), "sure",
    )  # fmt: skip
    return ww.unionByName(wr).unionByName(rw).where(F.col("source") != F.col("target"))


def delivery_edges(log: DataFrame) -> DataFrame:
    """m -> m' where some replica delivered m' right after m: source and target are message ids; replica, shard."""
    in_log = Window.partitionBy("replica").orderBy("position")
    return (
        log.where(F.col("live"))
        .select("replica", "shard", "position", F.col("id").alias("target"))
        .withColumn("source", F.lag("target").over(in_log))
        .where(F.col("source").isNotNull() & (F.col("source") != F.col("target")))
        .groupBy("source", "target")
        .agg(F.min("replica").alias("replica"), F.min("shard").alias("shard"), F.min("position").alias("position"))
    )
