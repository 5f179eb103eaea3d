"""Leases: what is attached to one goes when it ends, all of it and nothing else, and none ends before its time.

A lease is a row; whoever deletes that ends it (`kvstore.api.leases`). To which lease a key is attached no journal says:
it follows from what clients have asked for, write by write. Of a write of which that is not known nothing is said, nor
of what keeps the key as it was after that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kvstore.core.audit import lease_key
from spark_etl.checks import replay
from spark_etl.checks.ranges import FIRST_KEY
from spark_etl.frames.columns import absent, id_text, key_text, text, union, version_text, violations

ROWS = lease_key(b"")
"""With what the keys of the rows of all leases begin."""
_KEPT, _NONE, _UNKNOWN = None, "", "?"
"""In place of the lease that a write attaches its key to: it leaves that as it was; to none; nobody knows."""
CLOCKS_DIFFER = 0.01
"""By so much of the time a replica's clock may run faster than a client's."""


def is_lease(key: Column) -> Column:
    """Whether this is the key of a lease's row."""
    return key.startswith(F.lit(ROWS))


def attached(asked: str, succeeded: bool, truths: bytes) -> dict[str, str | None]:
    """Of a transaction: each key that it may have written, as it says itself, and the key of the lease that it is
    attached to by that; _NONE, or _KEPT. What it deletes in ranges is not among them. asked: JSON of its history."""
    found: dict[str, str | None] = {}
    for words in replay.course(json.loads(asked), succeeded, truths):
        if words[0] == "put":
            found[words[1]] = words[3] if len(words) > 3 else _NONE
        elif words[0] == "delete":
            found[words[1]] = _NONE
        elif words[0] in ("add", "min", "max", "append"):
            found.setdefault(words[1], _KEPT)
    return found


_ATTACHED = pa.schema([("id", pa.binary()), ("key", pa.binary()), ("lease", pa.string())])


def _attached(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [one for row in batch.to_pylist() for one in _rows(row)]
        yield pa.RecordBatch.from_pylist(rows, schema=_ATTACHED)


def _rows(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        found = attached(row["asked"], bool(row["succeeded"]), bytes(row["truths"] or b""))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, StopIteration, RuntimeError):
        return  # nothing that a client of ours writes
    for key, lease in found.items():
        yield {"id": row["id"], "key": key.encode(errors="surrogateescape"), "lease": lease}


def holdings(operations: DataFrame, transactions: DataFrame, writes: DataFrame, complete: bool) -> DataFrame:
    """Each write of a key that is no store's own, with the lease that the key is attached to from then on (its row's
    key, _NONE or _UNKNOWN): key, gts, id, deleted, lease, next (the gts of the next one, or null), had (the lease
    before it, null: the key was not there). complete: nothing is missing at the beginning."""
    asked = operations.groupBy("id").agg(F.min("asked").alias("asked"), F.max("asked").alias("other"))
    asked = asked.where(F.col("asked") == F.col("other"))
    asked = asked.join(transactions.select("id", "succeeded", "truths"), "id").drop("other")
    said = asked.mapInArrow(_attached, "id binary, key binary, lease string").withColumn("said", F.lit(True))
    rows = writes.where(F.col("key") >= F.lit(FIRST_KEY)).select("key", "gts", "id", "deleted")
    rows = rows.join(said, ["id", "key"], "left")
    known = F.when(F.col("said"), F.col("lease")).otherwise(_UNKNOWN)
    in_turn = Window.partitionBy("key").orderBy("gts")
    rows = rows.withColumn("lease", F.when(F.col("deleted"), _NONE).otherwise(known))
    last = F.last("lease", ignorenulls=True).over(in_turn)
    rows = rows.withColumn("lease", F.coalesce(last, F.lit(_NONE if complete else _UNKNOWN)))
    there = F.when(~F.lag("deleted").over(in_turn), F.lag("lease").over(in_turn))
    return rows.withColumn("next", F.lead("gts").over(in_turn)).withColumn("had", there).drop("said")


def ends(writes: DataFrame, transactions: DataFrame, operations: DataFrame) -> DataFrame:
    """Each end of a lease: lease (its row's key), ended (the version), ender (the transaction's id), asked (null: it
    was not asked for by a client). transactions: of which everything is known."""
    found = writes.where(F.col("deleted") & is_lease(F.col("key"))).join(transactions.select("id"), "id", "left_semi")
    asked = operations.groupBy("id").agg(F.coalesce(F.max("asked"), F.lit("?")).alias("asked"))
    found = found.join(asked, "id", "left")
    return found.select(F.col("key").alias("lease"), F.col("gts").alias("ended"), F.col("id").alias("ender"), "asked")


def outlived(
    holdings: DataFrame, ends: DataFrame, journal_writes: DataFrame, open_ends: Mapping[int, bytes]
) -> DataFrame:
    """Keys that were attached to a lease and are there after its end. Name: outlived-its-lease. journal_writes: the
    writes as replicas report them. open_ends: see `Case.open_ends`."""
    held = holdings.where(~F.col("deleted")).withColumn("lease", F.col("lease").cast("binary"))
    between = (F.col("ended") > F.col("gts")) & (F.col("next").isNull() | (F.col("ended") < F.col("next")))
    found = held.join(ends, "lease").where(between)
    owners = journal_writes.groupBy("key").agg(F.collect_set("shard").alias("shards"))
    open_ = F.lit(False)
    for shard, end in open_ends.items():
        open_ = open_ | (F.array_contains("shards", shard) & (F.col("ended") > F.lit(end)))
    found = found.join(owners, "key").where(~open_) if open_ends else found
    return violations(
        found,
        "outlived-its-lease",
        text(
            "key {} was attached to {} by transaction {}, and is there still after that lease ended at version {}",
            key_text(F.col("key")), _name("lease"), id_text(F.col("id")), version_text(F.col("ended")),
        ),
        [F.col("id"), F.col("ender")],
        [F.col("key")],
    )  # fmt: skip


def taken_along(holdings: DataFrame, ends: DataFrame) -> DataFrame:
    """Keys that went with a lease that they were not attached to. Name: taken-along."""
    more = F.col("asked").rlike('"(delete|delete_range|txn)",') | (F.col("asked") == _UNKNOWN)
    plain = ends.where(~F.coalesce(more, F.lit(False)))
    gone = holdings.where(F.col("deleted") & F.col("had").isNotNull() & (F.col("had") != _UNKNOWN))
    gone = gone.drop("lease").join(plain, F.col("id") == F.col("ender"))
    whose = F.when(F.col("had") == _NONE, F.lit("no lease")).otherwise(_name("had"))
    return violations(
        gone.where(F.col("had").cast("binary") != F.col("lease")),
        "taken-along",
        text(
            "with {} transaction {} (version {}) deleted key {}, which was attached to {}",
            _name("lease"), id_text(F.col("id")), version_text(F.col("gts")), key_text(F.col("key")), whose,
        ),
        [F.col("id")],
        [F.col("key")],
    )  # fmt: skip


def ended_early(writes: DataFrame, reads: DataFrame, operations: DataFrame, ends: DataFrame) -> DataFrame:
    """Leases that somebody saw gone before their time to live was over since their last renewal was asked for, by one
    file's clock, and that no client of these histories revoked: lease, id and f (who saw it), lived and ttl (us)."""
    rows = writes.where(is_lease(F.col("key")))
    in_turn = Window.partitionBy("key").orderBy("gts")
    last = F.lag(F.struct("id", "value", "digested", "deleted")).over(in_turn)
    rows = rows.select(F.col("key").alias("lease"), F.col("gts").alias("ended"), last.alias("last"))
    rows = rows.join(ends.where(F.col("asked").isNull()), ["lease", "ended"])
    rows = rows.where(~F.col("last.deleted") & ~F.col("last.digested"))
    ttl = F.regexp_extract(F.col("last.value").cast("string"), r"^(\d{1,12})( |$)", 1).cast("bigint") * 1000
    rows = rows.select("lease", "ended", F.col("last.id").alias("renewer"), ttl.alias("ttl"))
    asked = operations.select("file", F.col("id").alias("renewer"), F.col("invoke_us").alias("renewed"))
    gone = reads.where(is_lease(F.col("key")) & (F.col("version") == absent()))
    gone = gone.select("id", F.col("key").alias("lease"), F.col("gts").alias("seen"))
    answered = operations.where((F.col("type") == "ok") & F.col("complete_us").isNotNull())
    gone = answered.select("file", "id", "f", "complete_us").join(gone, "id")
    both = rows.join(asked, "renewer").join(gone, ["file", "lease"]).where(F.col("seen") > F.col("ended"))
    both = both.withColumn("lived", F.col("complete_us") - F.col("renewed"))
    return both.where(F.col("lived") < F.col("ttl") * (1 - CLOCKS_DIFFER)).select("lease", "id", "f", "lived", "ttl")


def check(
    holdings: DataFrame, ends: DataFrame, journal_writes: DataFrame, open_ends: Mapping[int, bytes]
) -> DataFrame:
    """What is certain. Names: outlived-its-lease, taken-along."""
    return union([outlived(holdings, ends, journal_writes, open_ends), taken_along(holdings, ends)])


def _name(lease: str) -> Column:
    """For people."""
    return F.regexp_replace(key_text(F.col(lease).cast("binary")), "^.*lease/", "lease ")
