"""Reads that stand in no journal and saw several shards, or may have missed something: held against what they promise.

A history says at which position of each shard's log such a read saw it (`places`), or at which version all of them
(`seen`). What it was told must have stood there. A linearizable read saw all that was answered before it was asked, a
stale one what was answered an age before that. A linearizable read of several shards, each at a position of its own,
saw one instant: if every version that it saw is older than every one that it missed, that is an instant of the order
of versions; if not, one that it missed may be, or have been answered before, one that it saw: then there was none. What
is left is put among the transactions, and there was an instant if it is on no cycle of dependencies and real time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_etl.checks import clients
from spark_etl.checks.ranges import FIRST_KEY, Scanned, scanned
from spark_etl.frames.columns import absent, id_text, key_text, text, union, version_text, violations
from spark_etl.frames.edges import RW, WR

_WHO = ("file", "id", "f", "consistency", "age_us", "invoke_us", "complete_us")


def looks(promised: DataFrame, places: DataFrame) -> DataFrame:
    """Each read with each place that it names: the columns of _WHO, shard, position, at: no transaction there has a
    greater version; null: no journal has that position. places: `positions.places`."""
    each = promised.select(*_WHO, F.explode("places").alias("shard", "position"))
    found = each.join(places.select("shard", "position", "last"), ["shard", "position"], "left")
    return found.withColumn("at", F.when(F.col("position") == 0, absent()).otherwise(F.col("last"))).drop("last")


def told(promised: DataFrame, looks: DataFrame, journal_writes: DataFrame, writes: DataFrame) -> DataFrame:
    """Each key that a read was told of: file, id, f, key, version, several (linearizable, of more than one shard),
    shard (of the key; null: nobody wrote it), at (up to which version it was seen), expected (the version that stood
    there), missed (the next one). Keys that were moved between shards are left out, and those at places not known.

    journal_writes: the writes as replicas report them. writes: `relations.key_writes`.
    """
    several = F.col("consistency").isNull() & (F.size("places") > 1)
    each = promised.select(
        "file", "id", "f", several.alias("several"), F.when(F.size("places") == 0, F.col("seen")).alias("seen"),
        F.explode("reads").alias("name", "version"),
    )  # fmt: skip
    owners = journal_writes.groupBy("key").agg(F.min("shard").alias("shard"), F.max("shard").alias("other"))
    each = each.withColumn("key", F.col("name").cast("binary")).join(owners, "key", "left")
    each = each.where(F.coalesce(F.col("shard") == F.col("other"), F.lit(True)))
    each = each.join(looks.select("file", "id", "shard", "at"), ["file", "id", "shard"], "left")
    nowhere = F.when(F.col("shard").isNull(), absent())
    each = each.withColumn("at", F.coalesce("seen", "at", nowhere)).where(F.col("at").isNotNull())
    wrote = writes.select("key", F.col("gts").alias("wrote"), "deleted")
    rows = each.withColumn("turn", F.concat("at", F.lit(b"\xff"))).unionByName(
        wrote.withColumn("turn", F.col("wrote")), allowMissingColumns=True
    )
    order = Window.partitionBy("key").orderBy("turn")
    write = F.when(F.col("wrote").isNotNull(), F.struct("wrote", "deleted"))
    before = F.last(write, ignorenulls=True).over(order.rowsBetween(Window.unboundedPreceding, -1))
    # backwards: a window from a row to the last one is gone through again for each row
    backwards = Window.partitionBy("key").orderBy(F.desc("turn")).rowsBetween(Window.unboundedPreceding, -1)
    after = F.last("wrote", ignorenulls=True).over(backwards)
    rows = rows.withColumn("before", before).withColumn("missed", after).where(F.col("wrote").isNull())
    stood = F.when(F.col("before").isNull() | F.col("before.deleted"), absent()).otherwise(F.col("before.wrote"))
    return rows.select("file", "id", "f", "key", "version", "several", "shard", "at", stood.alias("expected"), "missed")


def unknown_places(looks: DataFrame, open_shards: Sequence[int]) -> DataFrame:
    """Name: unknown-place. open_shards: of these the last positions may not have been written."""
    return violations(
        looks.where(F.col("at").isNull() & ~F.col("shard").isin(list(open_shards))),
        "unknown-place",
        text(
            "{} {} was answered from position {} of shard {}, which no replica has ({})",
            F.col("f"), id_text(F.col("id")), F.col("position"), F.col("shard"), F.col("file"),
        ),
        [F.col("id")],
    )  # fmt: skip


def of_other_places(promised: DataFrame, looks: DataFrame) -> DataFrame:
    """The version of a read at places is that of the earliest of these, up to which everything is in the answer, unless
    it has none. Name: version-mismatch."""
    unknown = F.count(F.when(F.col("at").isNull(), 1)).alias("unknown")
    least = looks.groupBy("file", "id").agg(F.min("at").alias("least"), unknown)
    both = promised.where((F.size("places") > 0) & (F.col("seen") != absent())).join(least, ["file", "id"])
    part = clients.message_part
    return violations(
        both.where((F.col("unknown") == 0) & (part("seen") != part("least"))),
        "version-mismatch",
        text(
            "{} {} was answered with version {}, and what stands at the earliest of its places has {} ({})",
            F.col("f"), id_text(F.col("id")), version_text(F.col("seen")), version_text(F.col("least")), F.col("file"),
        ),
        [F.col("id")],
    )  # fmt: skip


def nowhere(promised: DataFrame, settled: DataFrame) -> DataFrame:
    """Keys of shards that their reads did not look at. Name: unknown-place. settled: as of `positions.nowhere`."""
    named = F.map_keys("places").alias("looked")
    each = promised.where(F.size("places") > 0).select("file", "id", "f", named, F.explode("reads").alias("key", "_"))
    owners = settled.groupBy(F.col("key").cast("string").alias("key")).agg(F.min("shard").alias("shard"))
    return violations(
        each.join(owners, "key").where(~F.array_contains("looked", F.col("shard"))),
        "unknown-place",
        text(
            "{} {} was told of key {}, but names no position of shard {}, where that is ({})",
            F.col("f"), id_text(F.col("id")), F.col("key"), F.col("shard"), F.col("file"),
        ),
        [F.col("id")],
        [F.col("key").cast("binary")],
    )  # fmt: skip


def otherwise_there(told: DataFrame, unsure: Sequence[int], open_ends: Mapping[int, bytes]) -> DataFrame:
    """Name: not-as-it-stood. unsure: shards of which deliveries may be missing. open_ends: see `Case.open_ends`."""
    doubtful = F.col("shard").isin(list(unsure)) | (F.col("shard").isNull() & F.lit(bool(unsure or open_ends)))
    for shard, end in open_ends.items():
        doubtful = doubtful | ((F.col("shard") == shard) & (F.col("at") > F.lit(end)))
    wrong = told.where((F.col("version") != F.col("expected")) & ~F.coalesce(doubtful, F.lit(False)))
    return violations(
        wrong,
        "not-as-it-stood",
        text(
            "{} {} was told key {} at version {}; where it was read version {} stood ({})",
            F.col("f"), id_text(F.col("id")), key_text(F.col("key")), version_text(F.col("version")),
            version_text(F.col("expected")), F.col("file"),
        ),
        [F.col("id")],
        [F.col("key")],
    )  # fmt: skip


_SCANNED = (
    "file string, id binary, f string, part int, first binary, end binary, number long, keys array<string>,"
    " least boolean, course array<struct<first:binary,end:binary>>"
)


def _scans(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pylist(
            [
                {"file": row["file"], "id": row["id"], "f": row["f"], "part": part, **_as_row(one)}
                for row in batch.to_pylist()
                for part, one in enumerate(scanned(row["asked"], row["told"], row["succeeded"]))
            ],
            schema=_ARROW,
        )


def _as_row(one: Scanned) -> dict[str, Any]:
    course = None if one.course is None else [{"first": first, "end": end} for first, end in one.course]
    return one._asdict() | {"course": course}


_ROWS = 10_000
_ARROW = pa.schema([
    ("file", pa.string()), ("id", pa.binary()), ("f", pa.string()), ("part", pa.int32()),
    ("first", pa.binary()), ("end", pa.binary()), ("number", pa.int64()), ("keys", pa.list_(pa.string())),
    ("least", pa.bool_()),
    ("course", pa.list_(pa.struct([("first", pa.binary()), ("end", pa.binary())]))),
])  # fmt: skip
_STOOD = pa.schema([
    *_ARROW, ("shard", pa.int32()), ("at", pa.binary()), ("key", pa.binary()), ("gts", pa.binary())
])  # fmt: skip


def of_ordered(operations: DataFrame, placed: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Answered operations that stand in journals, or saw one shard at a position, as `incomplete` takes reads, and
    their looks. placed: transactions, of which everything is known, and reads at positions."""
    ok = operations.where((F.col("type") == "ok") & F.col("asked").isNotNull() & F.col("told").isNotNull())
    at = F.substring("gts", 1, 16).alias("at")
    reads = ok.select("file", "id", "f", "asked", "told", "succeeded", F.lit(None).cast("binary").alias("seen"))
    looks = placed.select("id", F.explode("destinations").alias("shard"), at)
    return reads.join(placed.select("id"), "id", "left_semi"), ok.select("file", "id").join(looks, "id")


def incomplete(
    reads: DataFrame, looks: DataFrame, journal_writes: DataFrame, writes: DataFrame, unsure: Sequence[int],
    open_ends: Mapping[int, bytes], based: bool,
) -> DataFrame:  # fmt: skip
    """Ranges in which a key stood that they did not show, or another number of keys. A shard that one of them did not
    look at must be as it was at the earliest of its looks: so of a run in which keys have gone to other shards only
    those are asked about who saw all shards at one version.
    Names: key-left-out, otherwise-counted. reads: file, id, f, asked, told, succeeded, seen: at which version of all
    shards; null: at their looks. based: what was written first is not known of all keys. Other arguments: as of `told`
    and `otherwise_there`."""
    ranges = reads.select("file", "id", "f", "asked", "told", "succeeded").mapInArrow(_scans, _SCANNED)
    owner = journal_writes.groupBy("key").agg(F.min("shard").alias("shard"))
    seen = reads.select("file", "id", "seen")
    stood = _stood(ranges, looks, seen, writes.select("key", "gts", "deleted").join(owner, "key"), owner)
    mine = F.exists("course", lambda one: (F.col("key") >= one["first"]) & (
        (F.length(one["end"]) == 0) | (F.col("key") < one["end"])))  # fmt: skip
    stood = stood.where(~F.coalesce(mine, F.lit(False)))
    own = F.col("key") < F.lit(FIRST_KEY)  # nobody asks for the store's own over HTTP
    doubtful = F.col("shard").isin(list(unsure)) | F.col("at").isNull()
    for shard, end in open_ends.items():
        doubtful = doubtful | ((F.col("shard") == shard) & (F.col("at") > F.lit(end)))
    left_out = stood.where(F.col("keys").isNotNull() & ~own & ~doubtful)
    left_out = left_out.where(~F.array_contains("keys", F.col("key").cast("string")))
    counted = ["file", "id", "f", "part", "first", "end", "number", "least"]
    numbers = ranges.where(F.col("keys").isNull()).select(*counted, F.col("course").isNotNull().alias("beside"))
    there = stood.groupBy(*counted).agg(F.count(F.when(~own, 1)).alias("there"), F.count("*").alias("most"))
    other = numbers.join(there, counted, "left").na.fill(0, ["there", "most"])
    more = (F.col("number") > F.col("most")) & F.lit(not based)
    other = other.where((~F.col("least") & (F.col("there") > F.col("number"))) | more)
    other = other.join(looks.where(doubtful).select("file", "id"), ["file", "id"], "left_anti")
    if unsure or open_ends:
        other = other.join(seen.where("seen IS NULL"), ["file", "id"], "left_semi")
    return violations(
        left_out,
        "key-left-out",
        text(
            "{} {} was not told of key {} in its range; where it was read version {} stood ({})",
            F.col("f"), id_text(F.col("id")), key_text(F.col("key")), version_text(F.col("gts")), F.col("file"),
        ),
        [F.col("id")],
        [F.col("key")],
    ).unionByName(
        violations(
            other,
            "otherwise-counted",
            text(
                "{} {} was told of {}{} keys in its range{}; where they were {} {} stood ({})",
                F.col("f"), id_text(F.col("id")), F.when(F.col("least"), "at least ").otherwise(""), F.col("number"),
                F.when(F.col("beside"), ", beside what it had written itself").otherwise(""),
                F.when(F.col("least"), "read").otherwise("counted"), F.col("there"), F.col("file"),
            ),
            [F.col("id")],
        )
    )  # fmt: skip


def _stood(ranges: DataFrame, looks: DataFrame, seen: DataFrame, writes: DataFrame, owner: DataFrame) -> DataFrame:
    """Each range with each key that stood in it, and each of the store's own if it is from the first key on: its
    columns, shard, at: where it was read, key, gts: the version. In one course through each shard's writes, so that
    much that was written and many ranges are not multiplied. writes: key, gts, deleted, shard (its owner's)."""
    shards = F.broadcast(owner.select("shard").distinct())
    looked = looks.select("file", "id", "shard", F.col("at").alias("look"), F.lit(True).alias("looked"))
    earliest = looks.groupBy("file", "id").agg(F.min("at").alias("earliest"))
    points = ranges.crossJoin(shards).join(looked, ["file", "id", "shard"], "left")
    points = points.join(seen, ["file", "id"]).join(earliest, ["file", "id"], "left")
    at = F.coalesce("seen", F.when(F.col("looked"), F.col("look")).otherwise(F.col("earliest")))
    points = points.withColumn("at", at).drop("seen", "look", "looked", "earliest")
    turns = writes.withColumn("at", F.col("gts")).unionByName(points.where("at IS NOT NULL"), allowMissingColumns=True)
    turn = F.when(F.col("course").isNotNull(), 0).when(F.col("id").isNull(), 1).otherwise(2)
    in_turn = turns.repartition("shard").sortWithinPartitions("shard", "at", turn)
    return in_turn.mapInArrow(_course, f"{_SCANNED}, shard int, at binary, key binary, gts binary")


def _course(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    shard: int | None = None
    there: dict[bytes, bytes] = {}
    keys: list[bytes] = []
    for batch in batches:
        found: list[dict[str, Any]] = []
        for row in batch.to_pylist():
            if row["shard"] != shard:
                shard, there, keys = row["shard"], {}, []
            key = row["key"]
            if row["id"] is None:
                if (key in there) == row["deleted"]:
                    at = bisect_left(keys, key)
                    keys[at : at + row["deleted"]] = [] if row["deleted"] else [key]
                there[key] = row["gts"]
                if row["deleted"]:
                    del there[key]
                continue
            low = 0 if row["first"] == FIRST_KEY else bisect_left(keys, row["first"])
            high = bisect_left(keys, row["end"]) if row["end"] else len(keys)
            found += [{**row, "key": key, "gts": there[key]} for key in keys[low:high]]
            if len(found) >= _ROWS:
                yield pa.RecordBatch.from_pylist(found, schema=_STOOD)
                found = []
        yield pa.RecordBatch.from_pylist(found, schema=_STOOD)


def _since() -> Column:
    """What was answered before then must be seen."""
    return F.col("invoke_us") - F.coalesce("age_us", F.lit(0))


def _must_be_fresh() -> Column:
    return F.col("consistency").isNull() | (F.col("consistency") == "stale")


def behind(looks: DataFrame, visits: DataFrame) -> DataFrame:
    """Who saw a shard at a position before one that had been told to a client in time. Names: missed-what-was-answered,
    older-than-promised. visits: `positions.visits`."""
    had = F.struct("position", "id", "f")
    linearizable = looks.where(F.col("consistency").isNull())
    ends = visits.select("shard", "file", "complete_us", had.alias("had")).unionByName(
        linearizable.select("shard", "file", "complete_us", had.alias("had"))
    )
    begins = looks.where(_must_be_fresh()).withColumn("at", _since())
    rows = begins.unionByName(ends.withColumnRenamed("complete_us", "at"), allowMissingColumns=True)
    in_time = Window.partitionBy("shard", "file").orderBy("at").rangeBetween(Window.unboundedPreceding, -1)
    rows = rows.withColumn("before", F.max("had").over(in_time))
    late = rows.where(F.col("id").isNotNull() & (F.col("position") < F.col("before.position")))
    where = text("saw {} deliveries of shard {}, but not number {}, that of",
                 F.col("position"), F.col("shard"), F.col("before.position"))  # fmt: skip
    return _late(late, where)


def ahead(looks: DataFrame, visits: DataFrame) -> DataFrame:
    """Who saw a shard at a position behind which stands what was asked for only when he had been answered. Name:
    saw-what-was-asked-later. visits: `positions.visits`."""
    has = F.struct((-F.col("position")).alias("before"), "position", "id", "f")
    asked = visits.where(~F.col("read")).select("shard", "file", (-F.col("invoke_us")).alias("at"), has.alias("has"))
    rows = looks.withColumn("at", -F.col("complete_us")).drop("has").unionByName(asked, allowMissingColumns=True)
    in_time = Window.partitionBy("shard", "file").orderBy("at").rangeBetween(Window.unboundedPreceding, -1)
    rows = rows.withColumn("later", F.max("has").over(in_time))
    return _early(rows.where(F.col("id").isNotNull() & (F.col("position") >= F.col("later.position"))))


def ahead_of_versions(promised: DataFrame, steps: DataFrame) -> DataFrame:
    """The same of who read at one version: what he was told of."""
    each = promised.where(F.size("places") == 0).select("file", "id", "f", "complete_us", F.explode("reads"))
    later = F.struct(F.col("id"), F.col("f")).alias("later")
    asked = steps.select("file", F.col("gts").alias("value"), F.col("invoke_us").alias("asked"), later)
    return _early(each.join(asked, ["file", "value"]).where(F.col("asked") > F.col("complete_us")))


def _early(early: DataFrame) -> DataFrame:
    return violations(
        early,
        "saw-what-was-asked-later",
        text(
            "{} {} saw what {} {} did, which was asked for only when it had been answered ({})",
            F.col("f"), id_text(F.col("id")), F.col("later.f"), id_text(F.col("later.id")), F.col("file"),
        ),
        [F.col("id"), F.col("later.id")],
    )  # fmt: skip


def behind_version(promised: DataFrame, steps: DataFrame) -> DataFrame:
    """The same of who read at one version. steps: `sessions.steps` of what journals have."""
    had = F.struct("gts", "id", "f")
    ends = steps.where("ok").select("file", F.col("complete_us").alias("at"), had.alias("had"))
    begins = promised.where(_must_be_fresh() & (F.size("places") == 0))
    begins = begins.select(*_WHO, "seen", _since().alias("at"))
    in_time = Window.partitionBy("file").orderBy("at").rangeBetween(Window.unboundedPreceding, -1)
    rows = begins.unionByName(ends, allowMissingColumns=True).withColumn("before", F.max("had").over(in_time))
    late = rows.where(F.col("id").isNotNull() & (F.col("seen") < F.col("before.gts")))
    where = text("saw version {}, but not {}, that of", version_text(F.col("seen")), version_text(F.col("before.gts")))
    return _late(late, where)


def _late(late: DataFrame, where: Column) -> DataFrame:
    stale = F.col("consistency").isNotNull()
    when = F.when(stale, text("more than {} us before it was asked", F.col("age_us"))).otherwise("before it was asked")
    return violations(
        late,
        F.when(stale, F.lit("older-than-promised")).otherwise("missed-what-was-answered"),
        text(
            "{} {} {} {} {}, which was answered {} ({})",
            F.col("f"), id_text(F.col("id")), where, F.col("before.f"), id_text(F.col("before.id")), when,
            F.col("file"),
        ),
        [F.col("id"), F.col("before.id")],
    )  # fmt: skip


def torn(told: DataFrame) -> DataFrame:
    """Linearizable reads of several shards that missed something no later than what they saw: file, id, f, key, missed
    (its next version there), other, seen (of another key)."""
    mine = told.where("several")
    saw = mine.select("file", "id", F.col("key").alias("other"), F.col("version").alias("seen"))
    both = mine.where(F.col("missed").isNotNull()).join(saw, ["file", "id"])
    return both.where(F.col("missed") <= F.col("seen")).select("file", "id", "f", "key", "missed", "other", "seen")


def _excluded(torn: DataFrame, steps: DataFrame) -> DataFrame:
    """Those that nothing excuses: what was missed is what was seen (`one`), or was answered before that was asked for.
    """
    answered = steps.where("ok").select("file", F.col("gts").alias("missed"), F.col("complete_us").alias("answered"))
    asked = steps.select("file", F.col("gts").alias("seen"), F.col("invoke_us").alias("asked"))
    both = torn.join(answered, ["file", "missed"], "left").join(asked, ["file", "seen"], "left")
    one = F.col("missed") == F.col("seen")
    return both.withColumn("one", one).where(one | F.coalesce(F.col("answered") < F.col("asked"), F.lit(False)))


def not_excluded(torn: DataFrame, steps: DataFrame) -> DataFrame:
    """Of `torn` the reads of which it takes others to tell. steps: `sessions.steps`."""
    return torn.join(_excluded(torn, steps).select("file", "id").distinct(), ["file", "id"], "left_anti")


def of_no_instant(torn: DataFrame, steps: DataFrame) -> DataFrame:
    """Reads of which it does not. Name: no-one-instant. steps: `sessions.steps`."""
    why = F.when(F.col("one"), F.lit("of the same transaction")).otherwise(
        F.lit("which was answered before that was asked for")
    )
    return violations(
        _excluded(torn, steps),
        "no-one-instant",
        text(
            "{} {} saw key {} at version {}, and did not see version {} of key {}, {} ({})",
            F.col("f"), id_text(F.col("id")), key_text(F.col("other")), version_text(F.col("seen")),
            version_text(F.col("missed")), key_text(F.col("key")), why, F.col("file"),
        ),
        [F.col("id")],
        [F.col("key"), F.col("other")],
    )  # fmt: skip


def instant() -> Column:
    """Of a read: what stands for its version."""
    return F.concat(F.lit(b"\xff"), F.col("id"))


def among_others(
    told: DataFrame, promised: DataFrame
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """The linearizable reads as transactions: their edges as `edges.dependencies`, their names (gts, id, f), and
    `sessions.steps`. Their gts is nobody's version."""
    node = instant().alias("gts")
    who = promised.where(F.col("consistency").isNull())
    mine = told.join(who.select("file", "id"), ["file", "id"]).withColumn("gts", node)
    saw = mine.where(F.col("version") != absent()).select(
        F.col("version").alias("source"), F.col("gts").alias("target"), F.lit(WR).alias("kind"), "key", "version",
        F.lit(True).alias("sure"),
    )  # fmt: skip
    missed = mine.where(F.col("missed").isNotNull()).select(
        F.col("gts").alias("source"), F.col("missed").alias("target"), F.lit(RW).alias("kind"), "key", "version",
        F.lit(True).alias("sure"),
    )  # fmt: skip
    steps = who.select(
        "file", "process", "line", "id", "f", node, F.lit(True).alias("ok"), "invoke_us", "complete_us"
    )
    return saw.unionByName(missed), who.select(node, "id", "f"), steps


def check(
    promised: DataFrame, looks: DataFrame, told: DataFrame, torn: DataFrame, visits: DataFrame, steps: DataFrame,
    unsure: Sequence[int], open_ends: Mapping[int, bytes],
) -> DataFrame:  # fmt: skip
    """All of these."""
    return union(
        [
            unknown_places(looks, list(open_ends)),
            of_other_places(promised, looks),
            otherwise_there(told, unsure, open_ends),
            behind(looks, visits),
            behind_version(promised, steps),
            ahead(looks, visits),
            ahead_of_versions(promised, steps),
            of_no_instant(torn, steps),
        ]
    )
