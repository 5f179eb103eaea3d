"""From the extracted tables to what the checks work on. DataFrames in and out; nothing is read or written here."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kvstore.core.audit import APPLIED, EXPIRED, FAILED, MISMATCH, REPEATED
from multicast.types import FINAL
from spark_etl.frames.columns import absent, union

SHARDS_MAX = 63
"""Sets of shards are bits of a 64-bit integer."""

TAKEN = (APPLIED, FAILED)
"""What becomes of a transaction that is delivered for the first time, and in time."""


def replica_log(deliveries: DataFrame, outcomes: DataFrame) -> DataFrame:
    """Every final delivery of every replica beside that replica's account of it, a row per transaction; either may be
    missing. `bundles` has a row per delivery.

    Columns: replica, shard, position; of the delivery: offset, id, gts (of the message), expired, destinations, origin,
    payload (its CRC-32), single; of the account: outcome_message (format 1), outcome_gts (the message's, by this
    account), outcome_offset, content, bundle, state_digest; of a transaction: index, transaction (id), version, status,
    succeeded, truths, effect.
    Without an account the transactions of a delivery are not known (null), but for a single one of format 1; version is
    that of its first.
    live: delivered, and neither expired nor, in format 1, a second message under a used id, by this replica's account
    or, without one, by any. taken: live, and the transaction may have an effect: not too late, nor delivered before.
    A record that stands twice in a journal makes rows twice; `offset` and `outcome_offset` tell them apart.
    """
    delivered = deliveries.where(F.col("stage") == FINAL).select(
        "replica", "shard", "position", "offset", "gts", "id", "expired", "destinations", "origin",
        F.col("payload_crc").alias("payload"),
        F.coalesce("single", F.lit(False)).alias("single"),
    )  # fmt: skip
    done = outcomes.select(
        "replica", "shard", "position", F.col("offset").alias("outcome_offset"),
        F.col("timestamp").alias("outcome_gts"), F.col("message").alias("outcome_message"),
        F.col("id").alias("transaction"), F.col("gts").alias("version"),
        "index", "status", "succeeded", "truths", "effect", "content", "bundle", "state_digest",
    )  # fmt: skip
    mismatch = (F.col("status") == MISMATCH) & F.col("message").isNotNull()
    second = outcomes.where(mismatch).select(
        F.col("message").alias("id"), F.col("timestamp").alias("gts"), F.lit(True).alias("second")
    )
    log = delivered.join(done, ["replica", "shard", "position"], "full_outer")
    log = log.join(F.broadcast(second.distinct()), ["id", "gts"], "left")  # they are rare
    used = (F.col("status") == MISMATCH) & F.col("outcome_message").isNotNull()
    used = F.coalesce(used, F.lit(False)) | F.coalesce("second", F.lit(False))
    unknown = F.col("status").isNull()
    alone = unknown & F.col("single")
    log = log.withColumn("live", F.col("id").isNotNull() & ~F.col("expired") & ~used)
    log = log.withColumn("transaction", F.when(alone, F.col("id")).otherwise(F.col("transaction")))
    first = F.when(F.col("single"), F.col("gts")).otherwise(version_of(F.col("gts"), 0))
    log = log.withColumn("version", F.when(unknown, first).otherwise(F.col("version")))
    taken = F.col("live") & (alone | F.coalesce(F.col("status").isin(*TAKEN), F.lit(False)))
    return log.withColumn("taken", taken).withColumn("index", F.coalesce("index", F.lit(0))).drop("second")


def bundles(log: DataFrame) -> DataFrame:
    """Of `replica_log` a row per delivery, with its first transaction."""
    return log.where(F.col("index") == 0)


def version_of(gts: Column, index: int) -> Column:
    """`kvstore.core.bundles.version_of`, of an encoded timestamp."""
    return F.concat(F.substring(gts, 1, 8), F.substring(gts, 11, 6), F.lit(index.to_bytes(2, "big")))


def entry() -> Column:
    """Of `bundles`: what was delivered, as the replicas of a shard should agree on it; null if nothing was."""
    return F.when(F.col("id").isNotNull(), F.struct("id", "gts", "destinations", "expired", "payload"))


def disputed(log: DataFrame) -> DataFrame:
    """The rows of `bundles` at those positions of a shard at which its replicas hold different deliveries, outcomes
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


def beginnings(writes: DataFrame, deliveries: DataFrame, unsure: Sequence[int]) -> DataFrame:
    """Of a cluster that was restored from a backup, each row with which a shard began, as each replica has it that
    was there from the beginning: shard, replica, position (in place of one: the key), id (the row's), value (never
    null), transaction (null). unsure: replicas of whose journals a part is missing."""
    rows = writes.where(F.col("position") == 0)
    first = (F.col("position") == 1) & (F.col("stage") == FINAL) & F.col("installed_from").isNull()
    there = rows.select("shard", "replica").unionByName(deliveries.where(first).select("shard", "replica")).distinct()
    there = there.where(~F.col("replica").isin(list(unsure)))
    each = rows.groupBy("shard", "key").agg(F.max("id").alias("id")).join(F.broadcast(there), "shard")
    held = rows.groupBy("shard", "replica", "key").agg(
        F.sort_array(F.collect_list(F.struct("gts", "value", "digested"))).alias("value")
    )
    each = each.join(held, ["shard", "replica", "key"], "left").withColumnRenamed("key", "position")
    held_ = F.coalesce("value", F.array().cast(held.schema["value"].dataType))
    return each.withColumns({"value": held_, "transaction": F.lit(None).cast("binary")})


def outvoted_beginnings(rows: DataFrame) -> DataFrame:
    """The replicas that began otherwise than more than half of their shard's, as `outvoted`. rows: of `beginnings`."""
    return _outvoted(rows, F.col("value")).select("replica", F.lit(0).cast("bigint").alias("position")).distinct()


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
    """Of `transactions`: whether every destination is known to have applied it, none being an `unsure` shard."""
    bits = sum(1 << index for index, shard in enumerate(shards) if shard not in unsure)
    expected = F.col("expected")
    return (expected.bitwiseAND(F.col("applied")) == expected) & (expected.bitwiseAND(F.lit(bits)) == expected)


def messages(log: DataFrame, shards: list[int]) -> DataFrame:
    """One row per message that was delivered somewhere, over all replicas. log: `bundles`.

    Columns: id; gts (smallest) and gts_max, destinations (smallest) and destinations_max, over live deliveries (over
    all, if none is live), with a replica that reports each gts; delivered: shards, as bits, that delivered it;
    expected: its destinations as bits; live: it is not everywhere expired; known: somebody accounts for its
    transactions; single: of format 1; version: of the first transaction; bundle and bundle_max: of `outcomes`, of live
    deliveries; carried and carried_max: of all, what tells its transactions apart; origin and origin_max; payload and
    payload_max, over live deliveries, with a replica that has each.
    """
    live, told = F.col("live"), F.col("outcome_gts") == F.col("gts")
    carried = F.substring("bundle", 9, 8)
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
            F.max("live").alias("live"),
            F.max(F.col("transaction").isNotNull()).alias("known"),
            F.max(F.col("single") | F.col("outcome_message").isNotNull()).alias("single"),
            F.min("version").alias("version"),
            F.min(F.when(told & live, F.col("bundle"))).alias("bundle"),
            F.max(F.when(told & live, F.col("bundle"))).alias("bundle_max"),
            F.min(F.when(told, carried)).alias("carried"),
            F.max(F.when(told, carried)).alias("carried_max"),
            F.min("origin").alias("origin"),
            F.max("origin").alias("origin_max"),
            F.min(F.when(live, F.col("payload"))).alias("payload"),
            F.max(F.when(live, F.col("payload"))).alias("payload_max"),
            F.min_by("replica", F.when(live, F.col("payload"))).alias("holder"),
            F.max_by("replica", F.when(live, F.col("payload"))).alias("holder_max"),
        )
        .withColumn("expected", destination_bits("destinations", shards))
    )


def transactions(log: DataFrame, messages: DataFrame, shards: list[int]) -> DataFrame:
    """One row per transaction that somebody accounts for, over all replicas and all messages that carry it. log:
    `replica_log`. messages: from `messages`.

    Where it was delivered more than once, it is the first delivery that counts: that where it was taken as new, not as
    REPEATED, EXPIRED or MISMATCH. Columns: id; message, destinations, gts (its version, smallest) and gts_max, over
    those where it was taken (over all, if it never was); other: the last message in which it was taken; delivered,
    applied: shards, as bits, that delivered it, that applied it; expected: its destinations as bits; void: those of
    them whose accounts have it, but never as taken; effect: it wrote something somewhere; status and status_max,
    succeeded and succeeded_max, truths and truths_max: over accounts that took it; live: somebody took it; fates: each
    version with what it was called there, 0: new; again: shards, as bits, that call it REPEATED, and did not take it;
    repeated, mismatch: the smallest version so called; lapsed, kept: the smallest one that is EXPIRED though its
    message is not, the greatest one that is not EXPIRED.
    """
    taken, status = F.col("taken"), F.col("status")
    applied = taken & (status == APPLIED)
    none = F.lit(0).cast("bigint")
    fate = F.when(status.isin(*TAKEN), F.lit(0)).otherwise(status)
    second = (status == MISMATCH) & F.col("outcome_message").isNull()

    def least(column: str) -> Column:
        return F.coalesce(F.min(F.when(taken, F.col(column))), F.min(column)).alias(column)

    found = (
        log.where(F.col("transaction").isNotNull() & F.col("id").isNotNull())
        .withColumn("bit", shard_bit("shard", shards))
        .groupBy(F.col("transaction").alias("transaction"))
        .agg(
            F.coalesce(F.min(F.when(taken, F.struct("version", "id")))["id"], F.min("id")).alias("message"),
            F.max(F.when(taken, F.struct("version", "id")))["id"].alias("other"),
            least("version"),
            least("destinations"),
            F.coalesce(F.max(F.when(taken, F.col("version"))), F.min("version")).alias("gts_max"),
            F.bit_or("bit").alias("accounted"),
            F.coalesce(F.bit_or(F.when(applied, F.col("bit"))), none).alias("applied"),
            F.coalesce(F.bit_or(F.when(taken, F.col("bit"))), none).alias("alive"),
            F.coalesce(F.max(taken & F.col("effect")), F.lit(False)).alias("effect"),
            F.min(F.when(taken, status)).alias("status"),
            F.max(F.when(taken, status)).alias("status_max"),
            F.min(F.when(applied, F.col("succeeded"))).alias("succeeded"),
            F.max(F.when(applied, F.col("succeeded"))).alias("succeeded_max"),
            F.min(F.when(applied, F.col("truths"))).alias("truths"),
            F.max(F.when(applied, F.col("truths"))).alias("truths_max"),
            F.max("taken").alias("live"),
            F.collect_set(F.when(fate.isNotNull(), F.struct("version", fate.alias("fate")))).alias("fates"),
            F.coalesce(F.bit_or(F.when(status == REPEATED, F.col("bit"))), none).alias("again"),
            F.min(F.when(status == REPEATED, F.col("version"))).alias("repeated"),
            F.min(F.when(second, F.col("version"))).alias("mismatch"),
            F.min(F.when((status == EXPIRED) & ~F.col("expired"), F.col("version"))).alias("lapsed"),
            F.max(F.when(status != EXPIRED, F.col("version"))).alias("kept"),
        )
        .withColumnRenamed("transaction", "id")
        .withColumnRenamed("version", "gts")
    )
    carried = messages.select(F.col("id").alias("message"), "delivered")
    void = F.col("expected").bitwiseAND(F.col("accounted")).bitwiseAND(F.bitwise_not("alive"))
    return (
        found.join(carried, "message")
        .withColumn("delivered", F.col("delivered").bitwiseOR(F.col("accounted")))
        .withColumn("expected", destination_bits("destinations", shards))
        .withColumn("void", void)
        .withColumn("again", F.col("again").bitwiseAND(F.bitwise_not("alive")))
        .drop("accounted", "alive")
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

    Columns: file, id, process (last_process: another one, if its lines differ), f, type (ok, fail, info), line,
    end_line (of invocation and end), invoke_us, complete_us (null unless ok or fail), version, succeeded, reads, value
    (what its invocation says, if its end says nothing), asked, told (JSON, or null), shard, position (of a read without
    an id, which was ordered if position is 0), consistency (null: linearizable; without an invocation it is not known,
    and the weakest is taken), age_us, places, seen (not null of what is `promised`), invocations, ends, backwards: it
    ends before it was invoked; that is no answer, and its type is info.
    """
    end = F.col("type") != "invoke"
    certain = F.col("type").isin("ok", "fail")
    found = (
        history.where(F.col("damage").isNull())
        .groupBy("file", "id")
        .agg(
            F.min("process").alias("process"),
            F.max("process").alias("last_process"),
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
            F.max("shard").alias("shard"),
            F.max("position").alias("position"),
            F.when(F.max(~end), F.max("consistency")).otherwise("snapshot").alias("consistency"),
            F.max("age_us").alias("age_us"),
            F.max_by("places", F.col("seen")).alias("places"),
            F.max("seen").alias("seen"),
            F.sum((~end).cast("int")).alias("invocations"),
            F.sum(end.cast("int")).alias("ends"),
        )
    )
    backwards = (F.col("complete_us") < F.col("invoke_us")) | (F.col("end_line") < F.col("line"))
    found = found.withColumn("backwards", F.coalesce(backwards, F.lit(False)))
    kept = {name: F.when(~F.col("backwards"), F.col(name)) for name in _ANSWER}
    kept["type"] = F.coalesce(kept["type"], F.lit("info"))
    return found.withColumns(kept).withColumn("id", journal_id())


_ANSWER = ("type", "complete_us", "version", "succeeded", "reads", "told", "shard", "position", "places", "seen")
"""What the end of an operation says."""


def journal_id() -> Column:
    """Of an operation, the id under which journals have it: a read without an id that was ordered has its version's."""
    ordered = F.col("shard").isNotNull() & (F.col("position") == 0) & (F.col("version") != absent())
    return F.when(ordered, F.col("version")).otherwise(F.col("id"))


def promised() -> Column:
    """Of an operation: whether it is a read that stands in no journal and saw several shards, or may have missed
    something. No other check knows of it than those of `checks.promises`."""
    return F.col("seen").isNotNull() & (F.col("type") == "ok")


def at_position() -> Column:
    """Of an operation: whether it is a read that stands in no journal, and saw its shard as it was at a position."""
    return F.col("shard").isNotNull() & (F.col("type") == "ok") & (
        (F.col("position") > 0) | F.coalesce(F.col("version") == absent(), F.lit(True))
    )
