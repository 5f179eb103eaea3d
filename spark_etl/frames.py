"""From the extracted tables to what the checks work on. DataFrames in and out; nothing is read or written here."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kvstore.core.audit import APPLIED, MISMATCH
from multicast.types import FINAL
from spark_etl.columns import union

SHARDS_MAX = 63
"""Sets of shards are bits of a 64-bit integer."""


def replica_log(deliveries: DataFrame, outcomes: DataFrame) -> DataFrame:
    """Every final delivery of every replica beside that replica's account of it; either may be missing.

    Columns: replica, shard, position; of the delivery: offset, gts, id, expired, destinations, origin; of the outcome:
    outcome_gts, outcome_id, outcome_offset, status, succeeded, effect, content, state_digest. live: delivered, and
    neither expired nor a second message under a used id, by this replica's account or, without one, by any. It may have
    an effect.
    A record that stands twice in a journal makes two rows; `offset` and `outcome_offset` tell them apart.
    """
    delivered = deliveries.where(F.col("stage") == FINAL).select(
        "replica", "shard", "position", "offset", "gts", "id", "expired", "destinations", "origin"
    )
    done = outcomes.select(
        "replica", "shard", "position", F.col("offset").alias("outcome_offset"), F.col("gts").alias("outcome_gts"),
        F.col("id").alias("outcome_id"), "status", "succeeded", "effect", "content", "state_digest",
    )  # fmt: skip
    second = outcomes.where(F.col("status") == MISMATCH).select("id", "gts", F.lit(True).alias("second")).distinct()
    log = delivered.join(done, ["replica", "shard", "position"], "full_outer")
    log = log.join(F.broadcast(second), ["id", "gts"], "left")  # they are rare
    mismatch = F.coalesce(F.col("status") == MISMATCH, F.col("second"), F.lit(False))
    live = F.col("id").isNotNull() & ~F.col("expired") & ~mismatch
    return log.withColumn("live", live).drop("second")


def entry() -> Column:
    """Of `replica_log`: what was delivered, as the replicas of a shard should agree on it; null if nothing was."""
    return F.when(F.col("id").isNotNull(), F.struct("id", "gts", "destinations", "expired"))


def disputed(log: DataFrame) -> DataFrame:
    """The rows of `replica_log` at those positions of a shard at which its replicas hold different deliveries, outcomes
    or states."""
    values = log.select("shard", "position", entry().alias("entry"), "content", "state_digest")
    held = ("entry", "content", "state_digest")
    spread = values.groupBy("shard", "position").agg(
        *(F.min(one).alias(f"{one}_min") for one in held), *(F.max(one).alias(f"{one}_max") for one in held)
    )
    differs = reduce(operator.or_, (F.coalesce(F.col(f"{o}_min") != F.col(f"{o}_max"), F.lit(False)) for o in held))
    return log.join(F.broadcast(spread.where(differs)), ["shard", "position"], "left_semi")


def outvoted(rows: DataFrame) -> DataFrame:
    """Where a replica says something else than more than half of the replicas of its shard that hold this position, of
    the delivery or of the outcome: replica, position. rows: from `disputed`.

    At least one account of every delivery remains: of two majorities one replica is in both.
    """
    return union([_outvoted(rows, value) for value in (entry(), F.col("content"))]).distinct()


def _outvoted(rows: DataFrame, value: Column) -> DataFrame:
    values = rows.select("shard", "position", "replica", value.alias("value")).where(F.col("value").isNotNull())
    camps = values.groupBy("shard", "position", "value").agg(F.collect_set("replica").alias("replicas"))
    votes = camps.groupBy("shard", "position").agg(F.collect_list("replicas").alias("camps"))
    votes = votes.withColumn("holders", F.size(F.array_distinct(F.flatten("camps"))))
    majority = F.filter("camps", lambda camp: F.size(camp) * 2 > F.col("holders"))
    minority = F.filter("camps", lambda camp: F.size(camp) * 2 <= F.col("holders"))
    return votes.where(F.size(majority) > 0).select(F.explode(F.flatten(minority)).alias("replica"), "position")


def judged(frame: DataFrame, outvoted: DataFrame) -> DataFrame:
    """Of a frame with `replica` and `position` what is not `outvoted`."""
    return frame.join(outvoted, ["replica", "position"], "left_anti")


def shard_bit(shard: str, shards: list[int]) -> Column:
    """1 << index of the shard in `shards`."""
    cases = F.lit(0).cast("bigint")
    for index, number in enumerate(shards):
        cases = F.when(F.col(shard) == number, F.lit(1 << index)).otherwise(cases)
    return cases.cast("bigint")


def destination_bits(destinations: str, shards: list[int]) -> Column:
    """The set of destinations as bits; destinations that are no shard of this run are left out."""
    bits = F.lit(0).cast("bigint")
    for index, number in enumerate(shards):
        bits = bits + F.when(F.array_contains(destinations, number), F.lit(1 << index)).otherwise(F.lit(0))
    return bits.cast("bigint")


def applied_everywhere(shards: list[int], unsure: Sequence[int]) -> Column:
    """Of `messages`: whether every destination is known to have applied it, none of them being an `unsure` shard."""
    bits = sum(1 << index for index, shard in enumerate(shards) if shard not in unsure)
    expected = F.col("expected")
    return (expected.bitwiseAND(F.col("applied")) == expected) & (expected.bitwiseAND(F.lit(bits)) == expected)


def messages(log: DataFrame, shards: list[int]) -> DataFrame:
    """One row per message that was delivered somewhere, over all replicas.

    Columns: id; gts (smallest) and gts_max, destinations (smallest) and destinations_max, over live deliveries (over
    all, if none is live), with a replica that reports each gts; delivered, applied: shards, as bits, that delivered it,
    that applied it; expected: its destinations as bits; void: those of them that delivered it, but never live; effect:
    it wrote something somewhere; status and status_max, succeeded and succeeded_max: over live accounts; live: it is
    not everywhere expired; origin and origin_max.
    """
    live = F.col("live")
    applied = live & (F.col("status") == APPLIED)
    return (
        log.where(F.col("id").isNotNull())
        .withColumn("bit", shard_bit("shard", shards))
        .groupBy("id")
        .agg(
            F.coalesce(F.min(F.when(live, F.col("gts"))), F.min("gts")).alias("gts"),
            F.coalesce(F.max(F.when(live, F.col("gts"))), F.min("gts")).alias("gts_max"),
            F.coalesce(F.min(F.when(live, F.col("destinations"))), F.min("destinations")).alias("destinations"),
            F.coalesce(F.max(F.when(live, F.col("destinations"))), F.min("destinations")).alias("destinations_max"),
            F.min_by("replica", F.when(live, F.col("gts"))).alias("replica"),
            F.max_by("replica", F.when(live, F.col("gts"))).alias("replica_max"),
            F.bit_or("bit").alias("delivered"),
            F.coalesce(F.bit_or(F.when(applied, F.col("bit"))), F.lit(0)).alias("applied"),
            F.coalesce(F.bit_or(F.when(live, F.col("bit"))), F.lit(0)).alias("alive"),
            F.coalesce(F.max(live & F.col("effect")), F.lit(False)).alias("effect"),
            F.min(F.when(live, F.col("status"))).alias("status"),
            F.max(F.when(live, F.col("status"))).alias("status_max"),
            F.min(F.when(applied, F.col("succeeded"))).alias("succeeded"),
            F.max(F.when(applied, F.col("succeeded"))).alias("succeeded_max"),
            F.max("live").alias("live"),
            F.min("origin").alias("origin"),
            F.max("origin").alias("origin_max"),
        )
        .withColumn("expected", destination_bits("destinations", shards))
        .withColumn("void", F.col("expected").bitwiseAND(F.col("delivered")).bitwiseAND(F.bitwise_not("alive")))
        .drop("alive")
    )


def key_reads(reads: DataFrame) -> DataFrame:
    """Each read once, whichever replicas report it: key, gts (the reader's), id, version, shard, replica (a lowest)."""
    return reads.groupBy("key", "gts", "id", "version").agg(
        F.min("shard").alias("shard"), F.min("replica").alias("replica")
    )


def key_writes(writes: DataFrame) -> DataFrame:
    """Each write once: key, gts, id, deleted, value, digested, replica (the lowest)."""
    return writes.groupBy("key", "gts", "id", "deleted").agg(
        F.min("value").alias("value"), F.max("digested").alias("digested"), F.min("replica").alias("replica")
    )


def operations(history: DataFrame) -> DataFrame:
    """Client operations, one row each: invocation and end together.

    Columns: file, id, process, f, type (ok, fail, info), line, end_line (of invocation and end), invoke_us, complete_us
    (null unless ok or fail), version, succeeded, reads, value (what its invocation says, if its end says nothing),
    asked, told (JSON, or null), invocations, ends.
    """
    end = F.col("type") != "invoke"
    certain = F.col("type").isin("ok", "fail")
    return (
        history.where(F.col("damage").isNull())
        .groupBy("file", "id")
        .agg(
            F.min("process").alias("process"),
            F.max("f").alias("f"),
            F.min(F.when(~end, F.col("line"))).alias("line"),
            F.max(F.when(end, F.col("line"))).alias("end_line"),
            F.min(F.when(~end, F.col("at_us"))).alias("invoke_us"),
            F.max(F.when(certain, F.col("at_us"))).alias("complete_us"),
            F.coalesce(F.max(F.when(end, F.col("type"))), F.lit("info")).alias("type"),
            F.max("version").alias("version"),
            F.max("succeeded").alias("succeeded"),
            F.max_by("reads", F.when(end, F.col("at_us"))).alias("reads"),
            F.max_by("value", F.when(F.col("value").isNotNull(), F.when(end, 1).otherwise(0))).alias("value"),
            F.max("asked").alias("asked"),
            F.max(F.when(end, F.col("told"))).alias("told"),
            F.sum((~end).cast("int")).alias("invocations"),
            F.sum(end.cast("int")).alias("ends"),
        )
    )
