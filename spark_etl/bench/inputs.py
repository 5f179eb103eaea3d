"""The tables of a large, correct run whose versions run against real time: made by Spark, in the extract's schema.

Every shard has a logical clock of its own that counts its transactions, and shards are loaded unevenly: the n-th has
1/n of the first one's transactions. At the end of every epoch one transaction touches all shards, and sets all clocks
to the greatest. In between, a version on a shard with little load is small however late it is, so most operations on
busy shards ended before the invocation of one that precedes them: the cheap certificate of real time fails for them.
Every message is a bundle of one transaction. The run is strictly serializable all the same: transactions take effect
one after another, in the order of their numbers, each within its interval, and every version order is that order.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from kvstore.core.audit import APPLIED
from multicast.types import FINAL
from spark_etl import schemas
from spark_etl.frames.relations import version_of
from spark_etl.ingest import tables
from spark_etl.ingest.tables import MANIFEST, Manifest, SourceState

EPOCH = 2_000
"""Transactions between two that touch all shards."""
KEYS = 50_000
"""Of each shard."""
GAP_US = 200
PROCESSES = 128
LATENCY_US_MAX = GAP_US * PROCESSES // 2 - GAP_US
"""Half of it before, half after the effect: a process invokes nothing before it was answered."""
BEGAN_US = 1_700_000_000_000_000
DIGEST_EVERY = 64


class Shape(msgspec.Struct, frozen=True):
    """How large. hot: the share of all operations that are on one key. stale: one transaction read the version before
    the one that the order says, and told its client so."""

    transactions: int
    shards: int = 8
    replicas: int = 3
    seed: int = 1
    hot: float = 0.0
    stale: bool = False


def _random(salt: int, below: int, *columns: str) -> Column:
    return F.pmod(F.xxhash64(*(F.col(c) for c in columns), F.lit(salt)), F.lit(below)).cast("bigint")


def _transactions(spark: SparkSession, shape: Shape) -> DataFrame:
    """number, epoch, all (touches all shards), shard (of the others)."""
    weights = [1 / n for n in range(1, shape.shards + 1)]
    bounds = [round(1_000_000 * sum(weights[: n + 1]) / sum(weights)) for n in range(shape.shards)]
    drawn = _random(shape.seed, 1_000_000, "number")
    shard = F.lit(shape.shards - 1)
    for index in reversed(range(shape.shards - 1)):
        shard = F.when(drawn < bounds[index], F.lit(index)).otherwise(shard)
    return (
        spark.range(shape.transactions)
        .select(F.col("id").alias("number"), F.floor(F.col("id") / EPOCH).alias("epoch"))
        .withColumn("all", (F.col("number") % EPOCH) == EPOCH - 1)
        .withColumn("shard", F.when(~F.col("all"), shard))
    )


def _eight(number: Column) -> Column:
    return F.unhex(F.lpad(F.hex(number.cast("bigint")), 16, "0"))


def parts(spark: SparkSession, shape: Shape) -> DataFrame:
    """One row per transaction and shard that it touches: number, id, gts (its message's), version, shard, position,
    destinations, origin."""
    every = F.array(*(F.lit(n) for n in range(shape.shards)))
    touched = F.when(F.col("all"), every).otherwise(F.array("shard"))
    made = _transactions(spark, shape).withColumn("destinations", touched)
    here = made.withColumn("shard", F.explode("destinations"))
    in_epoch = Window.partitionBy("epoch", "shard").orderBy("number")
    ranked = here.withColumn("rank", F.row_number().over(in_epoch))
    counts = ranked.groupBy("epoch", "shard").agg(F.count("*").alias("count"))
    shard_before = Window.partitionBy("shard").orderBy("epoch").rowsBetween(Window.unboundedPreceding, -1)
    before = Window.orderBy("epoch").rowsBetween(Window.unboundedPreceding, -1)  # as many rows as epochs
    clocks = (
        counts.groupBy("epoch").agg(F.max("count").alias("most"))
        .select("epoch", "most", F.coalesce(F.sum("most").over(before), F.lit(0)).alias("clock"))
    )  # fmt: skip
    positions = counts.select("epoch", "shard", F.coalesce(F.sum("count").over(shard_before), F.lit(0)).alias("done"))
    time = F.col("clock") + F.when(F.col("all"), F.col("most")).otherwise(F.col("rank"))
    owner = F.when(F.col("all"), F.lit(shape.shards)).otherwise(F.col("shard"))
    placed = (
        ranked.join(F.broadcast(positions), ["epoch", "shard"]).join(F.broadcast(clocks), "epoch")
        .select(
            "number", F.concat(_eight(F.lit(shape.seed)), _eight(F.col("number"))).alias("id"),
            F.concat(_eight(time + 1), _eight(owner + 1)).alias("gts"), "shard",
            (F.col("done") + F.col("rank")).alias("position"), "destinations",
            (F.element_at("destinations", 1) * shape.replicas).alias("origin"),
        )
    )  # fmt: skip
    return placed.withColumn("version", version_of(F.col("gts"), 0))


def accesses(placed: DataFrame, shape: Shape) -> tuple[DataFrame, DataFrame]:
    """(reads, writes) of `parts`, once each, two per shard: number, id, gts, shard, position, key; version of reads."""

    busiest = 1 / sum(1 / n for n in range(1, shape.shards + 1))
    share = round(1_000_000 * min(shape.hot / busiest, 1.0))  # of the busiest shard's operations

    def keys(salt: int) -> Column:
        drawn = [
            F.when((F.col("shard") == 0) & (_random(salt + n + 70, 1_000_000, "number") < share), F.lit(0))
            .otherwise(_random(salt + n, KEYS, "number", "shard"))
            for n in (0, 1)
        ]  # fmt: skip
        many = [F.concat(F.lit("s"), F.col("shard"), F.lit("/"), key) for key in drawn]
        return F.explode(F.array_distinct(F.array(*(key.cast("binary") for key in many))))

    columns = ("number", "id", "gts", "shard", "position", "key")
    placed = placed.withColumn("gts", F.col("version"))
    reads = placed.withColumn("key", keys(shape.seed + 10)).select(*columns)
    writes = placed.withColumn("key", keys(shape.seed + 20)).select(*columns)
    both = reads.withColumn("write", F.lit(False)).unionByName(writes.withColumn("write", F.lit(True)))
    earlier = Window.partitionBy("key").orderBy("gts", "write").rowsBetween(Window.unboundedPreceding, -1)
    last = F.last(F.when(F.col("write"), F.col("gts")), ignorenulls=True).over(earlier)
    seen = both.withColumn("version", F.coalesce(last, F.lit(bytes(16)))).where(~F.col("write"))
    seen = seen.drop("write")
    return _with_stale_read(seen, writes, shape) if shape.stale else seen, writes


def _with_stale_read(reads: DataFrame, writes: DataFrame, shape: Shape) -> DataFrame:
    """One read in the middle of the run returns the version before the last one."""
    middle = (F.col("number") >= shape.transactions // 2) & (F.col("number") % EPOCH != EPOCH - 1)
    one = reads.where(middle & (F.col("version") != F.lit(bytes(16)))).orderBy("number", "key").first()
    if one is None:
        raise ValueError("no read could be stale: more transactions are needed")
    older = writes.where((F.col("key") == bytes(one.key)) & (F.col("gts") < bytes(one.version)))
    before = older.agg(F.max("gts").alias("gts")).first()
    version = bytes(before.gts) if before is not None and before.gts is not None else bytes(16)
    this = (F.col("number") == one.number) & (F.col("key") == bytes(one.key))
    return reads.withColumn("version", F.when(this, F.lit(version)).otherwise(F.col("version")))


def _at_replicas(frame: DataFrame, shape: Shape) -> DataFrame:
    """The same rows at every replica of the shard, with their place."""
    offsets = F.array(*(F.lit(n) for n in range(shape.replicas)))
    return (
        frame.withColumn("copy", F.explode(offsets))
        .withColumn("replica", (F.col("shard") * shape.replicas + F.col("copy")).cast("int"))
        .withColumn("segment", F.lit(0))
        .withColumn("offset", F.col("position") * 1000)
    )


def _effect_us() -> Column:
    return BEGAN_US + F.col("number") * GAP_US


def journal(placed: DataFrame, reads: DataFrame, writes: DataFrame, shape: Shape) -> dict[str, DataFrame]:
    """The large tables of the journals. reads, writes: from `accesses`."""
    here = _at_replicas(placed, shape)
    lag = _random(shape.seed + 30, LATENCY_US_MAX // 2, "number", "replica")
    digest = F.unhex(F.md5(F.concat_ws("/", "shard", "position")))
    done = here.select(
        "*", (_effect_us() + lag).alias("at"), F.lit(FINAL).alias("stage"), F.lit(False).alias("expired"),
        F.lit(64).alias("payload_bytes"), F.lit(False).alias("single"), F.lit(None).alias("installed_from"),
        F.lit(0).alias("index"), F.lit(None).alias("message"), F.col("gts").alias("timestamp"),
        F.lit(APPLIED).alias("status"),
        F.lit(True).alias("succeeded"), F.lit(True).alias("effect"),
        F.unhex(F.md5(F.concat("id", F.col("shard").cast("string").cast("binary")))).alias("content"),
        F.unhex(F.md5("id")).alias("bundle"),
        F.when(F.col("position") % DIGEST_EVERY == 0, digest).alias("state_digest"), F.lit("").alias("reason"),
    )  # fmt: skip
    sent = placed.where(F.col("shard") == F.element_at("destinations", 1)).select(
        "*", F.col("origin").alias("replica"), F.lit(0).alias("segment"),
        (F.col("position") * 1000 - 1).alias("offset"), (_effect_us() - LATENCY_US_MAX // 4).alias("at"),
    )  # fmt: skip
    value = _eight(F.col("number"))
    return {
        "deliveries": done,
        "outcomes": done.withColumn("gts", F.col("version")),
        "submitted": sent,
        "reads": _at_replicas(reads, shape),
        "writes": _at_replicas(writes, shape).select(
            "*", value.alias("value"), F.lit(False).alias("deleted"), F.lit(False).alias("digested")
        ),
    }


def history(placed: DataFrame, reads: DataFrame, shape: Shape) -> DataFrame:
    """What the clients would have written down."""
    told = reads.groupBy("number").agg(
        F.map_from_entries(F.collect_list(F.struct(F.col("key").cast("string"), F.col("version")))).alias("reads")
    )
    one = placed.where(F.col("shard") == F.element_at("destinations", 1)).join(told, "number")
    half = LATENCY_US_MAX // 2
    began = _effect_us() - _random(shape.seed + 40, half, "number")
    ended = _effect_us() + _random(shape.seed + 50, half, "number")
    event = F.struct
    return one.withColumn(
        "event",
        F.explode(
            F.array(
                event(
                    F.lit("invoke").alias("type"), began.alias("at_us"), (F.col("number") * 2 + 1).alias("line"),
                    F.lit(None).cast("binary").alias("version"), F.lit(None).cast("boolean").alias("succeeded"),
                    F.lit(None).cast("map<string,binary>").alias("reads"),
                ),
                event(
                    F.lit("ok").alias("type"), ended.alias("at_us"), (F.col("number") * 2 + 2).alias("line"),
                    "version", F.lit(True).alias("succeeded"), F.col("reads"),
                ),
            )
        ),
    ).select(
        F.lit("history/bench.jsonl").alias("file"), "event.line", (F.col("number") % PROCESSES).alias("process"),
        "event.type", "event.at_us", "id", F.lit("txn").alias("f"), "event.version", "event.succeeded", "event.reads",
        *(F.lit(None).alias(name) for name in ("value", "error", "asked", "told", "shard", "position", "consistency",
                                               "age_us", "places", "seen", "damage")),
    )  # fmt: skip


def _small(spark: SparkSession, placed: DataFrame, shape: Shape) -> dict[str, DataFrame]:
    members = {str(s): [s * shape.replicas + n for n in range(shape.replicas)] for s in range(shape.shards)}
    text = msgspec.json.encode(members).decode()
    tops = {row.shard: row.top for row in placed.groupBy("shard").agg(F.max("position").alias("top")).collect()}
    end = BEGAN_US + shape.transactions * GAP_US + LATENCY_US_MAX
    lives: list[tuple[Any, ...]] = []
    segments: list[tuple[Any, ...]] = []
    for shard, replicas in members.items():
        top = tops.get(int(shard), 0)
        for replica in replicas:
            place = (replica, int(shard), 0)
            lives.append((*place, 0, BEGAN_US, "started", str(replica), "bench", "none", text, None, None, None))
            lives.append((*place, (top + 1) * 1000, end, "stopped", None, None, None, None, top, top, None))
            name = f"replicas/{replica}/journal/journal-00000000.seg"
            segments.append((*place, 0, name, (top + 1) * 1000, 2 * top + 2, "bench"))
    rows: dict[str, list[tuple[Any, ...]]] = {"lives": lives, "segments": segments, "damage": []}
    return {name: spark.createDataFrame(many, schemas.table_schema(name)) for name, many in rows.items()}


def _write(frame: DataFrame, place: Path) -> None:
    """A file per replica, named as those of an extraction; or several of a table that is nobody's."""
    if "replica" not in frame.columns:
        frame.write.mode("overwrite").parquet(str(place))
        return
    order = [name for name in ("whose", "offset") if name in ("whose", *frame.columns)]
    whose = frame.withColumn("whose", F.col("replica")).repartition("whose").sortWithinPartitions(*order)
    whose.write.mode("overwrite").partitionBy("whose").parquet(str(place))
    for path in place.glob("whose=*/*.parquet"):
        path.rename(place / f"r{path.parent.name.removeprefix('whose=')}-{path.name}")
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        with suppress(OSError):  # there are more files
            path.parent.rmdir()


def generate(spark: SparkSession, shape: Shape, out: Path) -> Manifest:
    """Write all tables to `out`, as an extraction would."""
    placed = parts(spark, shape).cache()
    reads, writes = accesses(placed, shape)
    reads = reads.cache()
    frames = journal(placed, reads, writes, shape) | _small(spark, placed, shape)
    frames["history"] = history(placed, reads, shape)
    states = {}
    for table, frame in frames.items():
        schema = schemas.HISTORY if table == "history" else schemas.table_schema(table)
        place = tables.place(table)
        columns = [F.col(field.name).cast(field.dataType).alias(field.name) for field in schema]
        _write(frame.select(*columns), out / place)
        files = {f"{place}/{path.name}": path.stat().st_size for path in (out / place).glob("*.parquet")}
        states[table] = SourceState(table, (0, 0, 0, 0), rows={table: _count_rows(out / place)}, files=files)
    reads.unpersist()
    placed.unpersist()
    tables.write_empty(out)
    marks: dict[int, int | None] = dict.fromkeys(range(shape.shards * shape.replicas))
    histories = {"history/bench.jsonl": states.pop("history")}
    manifest = Manifest(schemas.SCHEMA_VERSION, "bench", marks, states, histories)
    (out / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return manifest


def _count_rows(directory: Path) -> int:
    """Of all Parquet files there, by their footers."""
    return sum(pq.read_metadata(path).num_rows for path in directory.glob("*.parquet"))
