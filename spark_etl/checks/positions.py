"""Reads that stand in no journal: a leader answered them from its shard's state at a position of the log, which their
client was told. Each is a transaction of its own, right behind that position.

In the order of versions it stands at the latest place between its position and the next one that real time asks for,
so that a quiet shard's reads do not seem to be older than what other shards have done meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from kvstore.core.audit import APPLIED
from spark_etl.checks import clients
from spark_etl.frames import relations
from spark_etl.frames.columns import absent, id_text, key_text, text, version_text, violations


def places(bundles: DataFrame) -> DataFrame:
    """Of every position of every shard: first, the version of its first transaction, and last: no transaction there has
    a greater one."""
    alone = F.col("single") | F.col("outcome_message").isNotNull()
    last = F.when(alone, F.col("version")).otherwise(relations.version_of(F.col("gts"), 0xFFFF))
    return (
        bundles.where(F.col("id").isNotNull())
        .groupBy("shard", "position")
        .agg(F.min("version").alias("first"), F.max(last).alias("last"))
    )


def placed(operations: DataFrame, steps: DataFrame, places: DataFrame, shards: list[int]) -> DataFrame:
    """The reads at positions, as rows of `relations.transactions` with the columns file, process, line, f, invoke_us,
    complete_us, shard, position, reads, told (the version that their clients were), last (of `places`); gts: the place
    in the order, which begins with the version that it is behind; null: no journal has that position.

    operations: `relations.operations`. steps: `sessions.steps` of what journals have. places: from `places`.
    """
    reads = operations.where(relations.at_position()).select(
        "file", "process", "line", "id", "f", "invoke_us", "complete_us", "succeeded", "shard", "position", "reads",
        F.col("version").alias("told"),
    )  # fmt: skip
    here = places.select("shard", "position", "last")
    following = places.select("shard", (F.col("position") - 1).alias("position"), F.col("first").alias("next"))
    reads = reads.join(here, ["shard", "position"], "left").join(following, ["shard", "position"], "left")
    beginning = F.when(F.col("position") == 0, absent())
    reads = reads.withColumn("last", F.coalesce("last", beginning))
    ends = steps.where("ok").select("file", F.col("complete_us").alias("at"), F.col("gts").alias("done"))
    ends = ends.unionByName(reads.select("file", F.col("complete_us").alias("at"), F.col("last").alias("done")))
    begins = reads.withColumn("at", F.col("invoke_us"))
    earlier = Window.partitionBy("file").orderBy("at").rangeBetween(Window.unboundedPreceding, -1)
    seen = begins.unionByName(ends, allowMissingColumns=True).withColumn("done", F.max("done").over(earlier))
    late = (F.col("done") > F.col("last")) & (F.col("next").isNull() | (F.col("done") < F.col("next")))
    base = F.when(F.coalesce(late, F.lit(False)), F.col("done")).otherwise(F.col("last"))
    turn = F.unhex(F.lpad(F.hex(F.coalesce("invoke_us", "complete_us")), 16, "0"))
    bit = relations.shard_bit("shard", shards)
    return seen.where(F.col("id").isNotNull()).select(
        "file", "process", "line", "id", "f", "invoke_us", "complete_us", "shard", "position", "reads", "told", "last",
        F.concat(base, turn, "id").alias("gts"), F.lit(None).cast("binary").alias("message"),
        F.array("shard").alias("destinations"), bit.alias("expected"), bit.alias("applied"),
        F.lit(True).alias("live"), F.lit(APPLIED).alias("status"), "succeeded",
        F.lit(b"").alias("truths"),
    )  # fmt: skip


def key_reads(placed: DataFrame) -> DataFrame:
    """As `relations.key_reads`; no replica reports them."""
    told = placed.where(F.col("gts").isNotNull()).select(
        "gts", "id", "shard", F.explode("reads").alias("name", "version")
    )
    key, nobody = F.col("name").cast("binary"), F.lit(None).cast("int")
    return told.select(key.alias("key"), "gts", "id", "version", "shard", nobody.alias("replica"))


def visits(placed: DataFrame, steps: DataFrame, log: DataFrame) -> DataFrame:
    """Where acknowledged operations were in the logs of their shards, of those that some history has asked for: file,
    process, line, id, f, invoke_us, complete_us, shard, position, read (at a position). steps: as for `placed`. log:
    `relations.replica_log`."""
    columns = ["file", "process", "line", "id", "f", "invoke_us", "complete_us", "shard", "position"]
    at = log.where("taken").groupBy(F.col("transaction").alias("id"), "shard").agg(F.min("position").alias("position"))
    ordered = steps.where("ok").join(at, "id").select(*columns, F.lit(False).alias("read"))
    asked = placed.where(F.col("invoke_us").isNotNull())
    return ordered.unionByName(asked.select(*columns, F.lit(True).alias("read")))


def stale(visits: DataFrame, placed: DataFrame, open_shards: Sequence[int]) -> DataFrame:
    """A read sees its shard at a position that some replica has, no earlier than any that had been told to a client
    before the read was invoked, or earlier in its session; and its version is that of what stands there, unless it has
    none. Names: unknown-position, stale-position, position-went-back, version-mismatch.

    visits: from `visits`. placed: from `placed`. open_shards: of these the last positions may not have been written.
    """
    unknown = placed.where(F.col("gts").isNull() & ~F.col("shard").isin(list(open_shards)))
    nobody = violations(
        unknown,
        "unknown-position",
        text(
            "{} {} was answered from position {} of shard {}, which no replica has ({})",
            F.col("f"), id_text(F.col("id")), F.col("position"), F.col("shard"), F.col("file"),
        ),
        [F.col("id")],
    )  # fmt: skip
    part = clients.message_part
    told = F.col("told").isNotNull() & (F.col("told") != absent()) & F.col("last").isNotNull()
    other = violations(
        placed.where(told & (part("told") != part("last"))),
        "version-mismatch",
        text(
            "{} {} was answered from position {} of shard {} with version {}, and what stands there has {} ({})",
            F.col("f"), id_text(F.col("id")), F.col("position"), F.col("shard"), version_text(F.col("told")),
            version_text(F.col("last")), F.col("file"),
        ),
        [F.col("id")],
    )  # fmt: skip
    had = F.struct("position", "id", "f")
    in_time = Window.partitionBy("shard", "file").orderBy("at").rangeBetween(Window.unboundedPreceding, -1)
    columns = ("shard", "file", "id", "f", "position")
    ends = visits.select("shard", "file", F.col("complete_us").alias("at"), had.alias("had"))
    begins = visits.where("read").select(*columns, F.col("invoke_us").alias("at"))
    timed = begins.unionByName(ends, allowMissingColumns=True).withColumn("before", F.max("had").over(in_time))
    in_session = Window.partitionBy("file", "process", "shard").orderBy("line")
    had_before = F.max(had).over(in_session.rowsBetween(Window.unboundedPreceding, -1))
    turns = visits.withColumn("before", had_before).where("read")
    return nobody.unionByName(other).unionByName(_behind(timed, "stale-position", "had ended before")).unionByName(
        _behind(turns, "position-went-back", "came before in its session")
    )


def nowhere(placed: DataFrame, settled: DataFrame) -> DataFrame:
    """Keys of other shards than the one that answered. Name: unknown-place. settled: keys that have not gone to another
    shard, with theirs."""
    owners = settled.groupBy("key").agg(F.min("shard").alias("owner"))
    each = placed.select("file", "id", "f", "shard", F.explode("reads").alias("name", "_"))
    each = each.withColumn("key", F.col("name").cast("binary"))
    return violations(
        each.join(owners, "key").where(F.col("shard") != F.col("owner")),
        "unknown-place",
        text(
            "{} {} was told of key {} by shard {}, and shard {} has that ({})",
            F.col("f"), id_text(F.col("id")), key_text(F.col("key")), F.col("shard"), F.col("owner"), F.col("file"),
        ),
        [F.col("id")],
        [F.col("key")],
    )  # fmt: skip


def _behind(reads: DataFrame, name: str, why: str) -> DataFrame:
    return violations(
        reads.where(F.col("id").isNotNull() & (F.col("position") < F.col("before.position"))),
        name,
        text(
            f"{{}} {{}} was answered from position {{}} of shard {{}}, although {{}} {{}}, which {why}, was at position"
            " {} of it ({})",
            F.col("f"), id_text(F.col("id")), F.col("position"), F.col("shard"), F.col("before.f"),
            id_text(F.col("before.id")), F.col("before.position"), F.col("file"),
        ),
        [F.col("id"), F.col("before.id")],
    )  # fmt: skip
