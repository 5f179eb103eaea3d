"""What watches told, held against the order of versions: every change within their bounds, once, in order.

A history has the lines of each watch (`kvstore.core.audit.WATCH_EVENTS`). It answers for what follows the version
that it began after, up to the last one that it was told of, as a change or as progress: to where it did not come,
nothing is missing. So a watch that ended, because it was too slow or because what it asked for was no longer known, is
judged up to there, and whoever goes on after the last event is another watch that begins there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kvstore.core.audit import value_text
from spark_etl.checks.replay import digest_text
from spark_etl.frames.columns import key_text, text, union, version_text, violations

_WATCH = ("file", "id")


def _is_told() -> Column:
    """Of a line: whether it says up to which version everything was told."""
    return F.col("f").isin("change", "progress")


def _begins() -> Column:
    """Of a watch: how many beginnings it has."""
    return F.count(F.when(F.col("f") == "begin", 1)).alias("begins")


def odd(watched: DataFrame) -> DataFrame:
    """Watches that have no beginning, or several, so that nobody knows what they were to tell, or that go on after
    their end: file, id (as hex), begins, after (what came after the end)."""
    ended = Window.partitionBy(*_WATCH).orderBy("line").rowsBetween(Window.unboundedPreceding, -1)
    rows = watched.withColumn("ended", F.max(F.col("f") == "end").over(ended))
    found = rows.groupBy(*_WATCH).agg(_begins(), F.count(F.when(F.col("ended"), 1)).alias("after"))
    found = found.where((F.col("begins") != 1) | (F.col("after") > 0))
    return found.select("file", F.hex("id").alias("id"), "begins", "after").orderBy("file", "id")


def _just_below(version: Column) -> Column:
    """What is less than this version, and not less than any other that is."""
    index = F.conv(F.hex(F.substring(version, 15, 2)), 16, 10).cast("int")
    before = F.unhex(F.lpad(F.hex(index - 1), 4, "0"))
    return F.when(index > 0, F.concat(F.substring(version, 1, 14), before)).otherwise(F.substring(version, 1, 14))


def spans(watched: DataFrame, floor: bytes | None) -> DataFrame:
    """Each watch that was told anything, and began once: file, id, begin_line, first, end, begun, upto: it answers for
    begun < version <= upto; started_us: when it was given `begun`, if it had named none: as progress, or it is what was
    just before the first change that it was told of. floor: nothing is known up to there."""
    begin = F.col("f") == "begin"
    found = watched.groupBy(*_WATCH).agg(
        _begins(),
        F.min(F.when(begin, F.col("line"))).alias("begin_line"),
        F.min(F.when(begin, F.col("first"))).alias("first"),
        F.min(F.when(begin, F.col("end"))).alias("end"),
        F.min(F.when(begin, F.col("version"))).alias("after"),
        F.min_by(
            F.when(F.col("f") == "change", _just_below(F.col("version"))).otherwise(F.col("version")),
            F.when(_is_told(), F.col("line")),
        ).alias("given"),
        F.min(F.when(_is_told(), F.col("at_us"))).alias("given_us"),
        F.max(F.when(_is_told(), F.col("version"))).alias("upto"),
    )
    begun = F.coalesce("after", "given")
    return found.where(F.col("upto").isNotNull() & (F.col("begins") == 1)).select(
        *_WATCH, "begin_line", "first", "end",
        (begun if floor is None else F.greatest(begun, F.lit(floor))).alias("begun"), "upto",
        F.when(F.col("after").isNull(), F.col("given_us")).alias("started_us"),
    )  # fmt: skip


def _changes(writes: DataFrame, cut: bool) -> DataFrame:
    """Of the writes those that change something: key, gts, writer, deleted, value, digested, sure. Deleting
    what is not there changes nothing; cut: what was there before the first of them nobody knows."""
    before = F.lag(~F.col("deleted")).over(Window.partitionBy("key").orderBy("gts"))
    there = F.coalesce("before", F.lit(cut))
    return writes.withColumn("before", before).where(~F.col("deleted") | there).select(
        "key", "gts", F.col("id").alias("writer"), "deleted", "value", "digested",
        (~F.col("deleted") | F.col("before").isNotNull()).alias("sure"),
    )  # fmt: skip


def compare(spans: DataFrame, watched: DataFrame, writes: DataFrame, cut: bool, under_way: bytes | None) -> DataFrame:
    """Each change that a watch was told of, or should have been: file, id, gts, key, line (null: it was not told), said
    (as in histories, null: deleted), writer (null: there is none), deleted, found: what is wrong, or empty; "open": it
    may have been under way. writes: `relations.key_writes`. cut: see `_changes`. under_way: what is beyond may be in no
    journal."""
    each = watched.where(F.col("f") == "change").select(
        *_WATCH, "line", F.col("version").alias("gts"), F.explode("changes").alias("name", "said")
    )
    told = each.join(F.broadcast(spans.select(*_WATCH, "begun")), list(_WATCH)).where(F.col("gts") > F.col("begun"))
    told = told.groupBy(*_WATCH, "gts", F.col("name").cast("binary").alias("key")).agg(
        F.min("line").alias("line"), F.min_by("said", "line").alias("said")
    )
    within = (
        (F.col("gts") > F.col("begun"))
        & (F.col("gts") <= F.col("upto"))
        & (F.col("key") >= F.col("first"))
        & ((F.length("end") == 0) | (F.col("key") < F.col("end")))
    )
    wanted = _changes(writes, cut).join(F.broadcast(spans), within).drop("begin_line", "first", "end", "started_us")
    both = told.join(wanted, [*_WATCH, "gts", "key"], "full_outer")
    beyond = F.lit(False) if under_way is None else F.col("gts") > F.lit(under_way)
    both = both.where(F.col("line").isNotNull() | F.col("sure")).withColumn("beyond", beyond)
    return both.select(
        *_WATCH, "gts", "key", "line", "said", "writer", "deleted", "value", "digested", "beyond"
    ).mapInArrow(_judged, _COMPARED)  # fmt: skip


_COMPARED = (
    "file string, id binary, gts binary, key binary, line long, said string, writer binary, deleted boolean,"
    " found string"
)


def _judged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = pa.array([_found(row) for row in batch.to_pylist()], pa.string())
        kept = batch.select(["file", "id", "gts", "key", "line", "said", "writer", "deleted"])
        yield kept.append_column("found", found)


def _found(row: dict[str, Any]) -> str:
    if row["writer"] is None:
        return "open" if row["beyond"] else "change-invented"
    if row["line"] is None:
        return "change-missed"
    said, value = row["said"], row["value"]
    if row["deleted"] or said is None:
        return "" if row["deleted"] and said is None else "change-otherwise"
    if value is None:
        return ""  # of before a base, whose values nobody knows
    wrote = f"#{value.hex()}" if row["digested"] else value_text(value)
    return "" if wrote in (said, digest_text(said)) else "change-otherwise"


def differing(compared: DataFrame) -> DataFrame:
    """Names: change-missed, change-invented, change-otherwise."""
    deleted = F.col("said").isNull()
    what = F.when(deleted, F.lit("was deleted")).otherwise(text("is {}", F.substring("said", 1, 60)))
    told = text("was told that key {} {}, by version {}", key_text(F.col("key")), what, version_text(F.col("gts")))
    why = F.when(F.col("found") == "change-invented", F.lit(", which no journal says")).otherwise(
        text(", which {} it otherwise", F.when(F.col("deleted"), F.lit("deleted")).otherwise(F.lit("wrote")))
    )
    missed = text(
        "was told beyond version {}, but not that it {} key {}", version_text(F.col("gts")),
        F.when(F.col("deleted"), F.lit("deleted")).otherwise(F.lit("wrote")), key_text(F.col("key")),
    )  # fmt: skip
    sentence = F.when(F.col("found") == "change-missed", missed).otherwise(
        text("{}{} (line {})", told, why, F.col("line"))
    )
    return violations(
        compared.where(~F.col("found").isin("", "open")),
        F.col("found"),
        text("a watch of {} {}", F.col("file"), sentence),
        [F.col("writer")],
        [F.col("key")],
    )


def of_nothing(watched: DataFrame) -> DataFrame:
    """Changes of no key. Name: change-invented."""
    return violations(
        watched.where((F.col("f") == "change") & (F.size("changes") == 0)),
        "change-invented",
        text(
            "a watch of {} was told of version {}, and of no key that it changed (line {})",
            F.col("file"), version_text(F.col("version")), F.col("line"),
        ),
    )  # fmt: skip


def out_of_order(watched: DataFrame) -> DataFrame:
    """What a watch was told when it had been told of that version, or of a later one; of changes also when it was to
    tell only what comes after. Names: told-again, told-out-of-order."""
    in_turn = Window.partitionBy(*_WATCH).orderBy("line")
    earlier = in_turn.rowsBetween(Window.unboundedPreceding, -1)
    times = F.row_number().over(Window.partitionBy(*_WATCH, "f", "version").orderBy("line"))
    change, told = F.col("f") == "change", F.max(F.when(_is_told(), F.col("version"))).over(earlier)
    after = F.max(F.when(F.col("f") == "begin", F.col("version"))).over(earlier)
    rows = watched.select("*", F.when(change, F.greatest(told, after)).otherwise(told).alias("reached"))
    rows = rows.where(_is_told()).withColumn("times", times)
    late = F.when(change, F.col("version") <= F.col("reached")).otherwise(F.col("version") < F.col("reached"))
    again = change & (F.col("times") > 1)
    return violations(
        rows.where(late),
        F.when(again, "told-again").otherwise("told-out-of-order"),
        text(
            "a watch of {} was told {} {} after everything up to {} (line {})", F.col("file"),
            F.when(change, F.lit("of version")).otherwise(F.lit("of progress to")), version_text(F.col("version")),
            version_text(F.col("reached")), F.col("line"),
        ),
    )  # fmt: skip


def begun_late(spans: DataFrame, steps: DataFrame) -> DataFrame:
    """Watches that named no version and begin after something that was asked for later. Name: watch-began-late. steps:
    `sessions.steps`."""
    mine = spans.where(F.col("started_us").isNotNull()).select("file", "begun", "started_us", "begin_line")
    asked = steps.where("ok").select("file", "invoke_us", "gts", F.col("id").alias("writer"), F.col("f").alias("what"))
    late = (F.col("invoke_us") >= F.col("started_us")) & (F.col("gts") <= F.col("begun"))
    both = F.broadcast(mine).join(asked, "file").where(late)
    return violations(
        both,
        "watch-began-late",
        text(
            "a watch of {} (line {}) begins after version {}; {} was asked for when that had been told, and has version"
            " {}", F.col("file"), F.col("begin_line"), version_text(F.col("begun")), F.col("what"),
            version_text(F.col("gts")),
        ),
        [F.col("writer")],
    )  # fmt: skip


def told_early(watched: DataFrame, steps: DataFrame) -> DataFrame:
    """Changes that were told when what made them had not been asked for. Name: told-before-asked. steps:
    `sessions.steps`."""
    told = watched.where(F.col("f") == "change").select("file", "line", "at_us", "version")
    asked = steps.select("file", "invoke_us", F.col("gts").alias("version"), F.col("id").alias("writer"),
                         F.col("f").alias("what"))  # fmt: skip
    return violations(
        told.join(asked, ["file", "version"]).where(F.col("at_us") < F.col("invoke_us")),
        "told-before-asked",
        text(
            "a watch of {} was told of version {} (line {}) before {}, whose it is, was asked for",
            F.col("file"), version_text(F.col("version")), F.col("line"), F.col("what"),
        ),
        [F.col("writer")],
    )  # fmt: skip


def check(spans: DataFrame, watched: DataFrame, compared: DataFrame, steps: DataFrame | None) -> DataFrame:
    """All of these. steps: None: there are no operations."""
    found = [differing(compared), of_nothing(watched), out_of_order(watched)]
    return union(found if steps is None else [*found, begun_late(spans, steps), told_early(watched, steps)])


class Counts(NamedTuple):
    """watches: that were told anything. told: transactions. open: changes that may have been under way."""

    watches: int
    told: int
    open: int


def counts(spans: DataFrame, compared: DataFrame) -> Counts:
    """For the report."""
    open_ = F.count(F.when(F.col("found") == "open", 1)).alias("open")
    told = F.countDistinct(*_WATCH, F.when(F.col("line").isNotNull(), F.col("gts"))).alias("told")
    row = compared.agg(told, open_).first()
    return Counts(spans.count(), row.told if row else 0, row.open if row else 0)
