"""Invariants of workloads whose answers tell by themselves whether something went wrong (`workloads.invariants`).

From the client histories alone: an operation's `f` says what it was, its `value` what it added or saw. Times are
compared within one file only, since its clients share a clock.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_etl.frames.columns import SUM, id_text, text, union, violations


def _done(operations: DataFrame, f: str) -> DataFrame:
    return operations.where((F.col("f") == f) & (F.col("type") == "ok") & (F.size("value") > 0))


def ring(operations: DataFrame) -> DataFrame:
    """The pointers that a "cycle_read" sees (key -> number of the next key, in the order of their names) are one ring
    through all keys. Name: ring-broken."""
    reads = _done(operations, "cycle_read")
    pointers = F.transform(F.array_sort(F.map_entries("value")), lambda entry: entry["value"].try_cast("int"))
    reads = reads.withColumn("pointers", pointers).withColumn("size", F.size("pointers"))
    inside = F.forall("pointers", lambda p: F.coalesce((p >= 0) & (p < F.col("size")), F.lit(False)))
    way = F.aggregate(
        F.sequence(F.lit(1), F.col("size")),
        F.array(F.lit(0)),
        lambda way, _: F.concat(way, F.array(F.get("pointers", F.element_at(way, -1)))),
    )
    closed = (F.element_at("way", -1) == 0) & (F.size(F.array_distinct("way")) == F.col("size"))
    broken = reads.where(~inside).withColumn("way", F.array(F.lit(0))).unionByName(
        reads.where(inside).withColumn("way", way).where(~closed)
    )  # fmt: skip
    return violations(
        broken,
        "ring-broken",
        text(
            "cycle_read {} saw {} keys that are not one ring: from the first one on it leads to {} ({})",
            id_text(F.col("id")), F.col("size"), F.concat_ws(", ", F.col("way").cast("array<string>")), F.col("file"),
        ),
        [F.col("id")],
    )  # fmt: skip


def long_fork(operations: DataFrame) -> DataFrame:
    """Each key of a group is written once; of two "fork_read"s of a group (key -> 1 if it was there), one has seen all
    that the other has. Name: long-fork."""
    there = F.map_filter("value", lambda _, present: present != 0)
    reads = _done(operations, "fork_read").select(
        "file", "id", F.array_join(F.array_sort(F.map_keys("value")), " ").alias("group"),
        F.array_sort(F.map_keys(there)).alias("seen"),
    )  # fmt: skip
    views = reads.groupBy("group", "seen").agg(F.min("id").alias("id"), F.min("file").alias("file"))
    smaller = Window.partitionBy("group").orderBy(F.size("seen"), "id")
    views = views.withColumn("other", F.lag("id").over(smaller)).withColumn("less", F.lag("seen").over(smaller))
    forked = views.where(F.col("other").isNotNull() & (F.size(F.array_except("less", "seen")) > 0))
    return violations(
        forked,
        "long-fork",
        text(
            "fork_read {} saw {} without {}, and fork_read {} the other way round ({})",
            id_text(F.col("id")), F.concat_ws(", ", F.array_except("seen", "less")),
            F.concat_ws(", ", F.array_except("less", "seen")), id_text(F.col("other")), F.col("file"),
        ),
        [F.col("id"), F.col("other")],
        [F.try_element_at(F.array_except("seen", "less"), F.lit(1)),
         F.try_element_at(F.array_except("less", "seen"), F.lit(1))],
    )  # fmt: skip


def set_elements(operations: DataFrame) -> DataFrame:
    """Every element whose "set_add" was acknowledged is in all "set_read"s invoked later, and there is nothing in them
    that nobody tried to add, and nothing twice. Names: lost-element, unexpected-element, repeated-element."""
    adds = operations.where(F.col("f") == "set_add").select(
        "file", "id", "type", "invoke_us", "complete_us", F.explode(F.map_keys("value")).alias("element")
    )
    reads = _done(operations, "set_read").select(
        "file", F.col("id").alias("reader"), F.col("invoke_us").alias("began"), F.col("complete_us").alias("ended"),
        F.map_keys("value").alias("elements"),
    )  # fmt: skip
    contents = reads.select("file", "reader", "began", "ended", F.explode("elements").alias("element"))
    # empty reads count, too: "value" is {} there
    all_reads = operations.where((F.col("f") == "set_read") & (F.col("type") == "ok") & F.col("value").isNotNull())
    twice = _done(operations, "set_read").select("file", "id", F.explode("value").alias("element", "n"))
    twice = violations(
        twice.where(F.col("n") > 1),
        "repeated-element",
        text("set_read {} saw element {} {} times ({})", id_text(F.col("id")), F.col("element"), F.col("n"),
             F.col("file")),
        [F.col("id")],
    )  # fmt: skip
    return union([_lost(adds, all_reads, contents), _unexpected(adds, contents), twice])


def _lost(adds: DataFrame, reads: DataFrame, contents: DataFrame) -> DataFrame:
    acknowledged = adds.where(F.col("type") == "ok")
    moments = acknowledged.select("file", F.col("complete_us").alias("at"), F.lit(0).alias("read"), "element", "id")
    begins = reads.select("file", F.col("invoke_us").alias("at"), F.lit(1).alias("read"))
    # backwards: what begins at a row and ends with the last one is summed up again for each row
    later = Window.partitionBy("file").orderBy(F.desc("at")).rangeBetween(Window.unboundedPreceding, -1)
    due = moments.unionByName(begins, allowMissingColumns=True)
    due = due.withColumn("due", F.coalesce(F.sum("read").over(later), F.lit(0))).where(F.col("read") == 0)
    held = (
        contents.join(acknowledged.select("file", "element", "id", "complete_us"), ["file", "element"])
        .where(F.col("began") > F.col("complete_us"))
        .groupBy("file", "element", "id")
        .agg(F.count("*").alias("held"))
    )
    lost = due.join(held, ["file", "element", "id"], "left").withColumn("held", F.coalesce("held", F.lit(0)))
    return violations(
        lost.where(F.col("held") < F.col("due")),
        "lost-element",
        text(
            "set_add {} of element {} was acknowledged at {} s, but {} of the {} reads invoked after that lack it ({})",
            id_text(F.col("id")), F.col("element"), F.col("at") / 1e6, F.col("due") - F.col("held"), F.col("due"),
            F.col("file"),
        ),
        [F.col("id")],
    )  # fmt: skip


def _unexpected(adds: DataFrame, contents: DataFrame) -> DataFrame:
    tried = adds.where(F.col("type") != "fail").groupBy("element").agg(
        F.min("file").alias("tried_in"), F.min("invoke_us").alias("tried"))  # fmt: skip
    both = contents.join(tried, "element", "left")
    early = (F.col("tried_in") == F.col("file")) & (F.col("tried") > F.col("ended"))
    wrong = both.where(F.col("tried").isNull() | early)
    why = F.when(F.col("tried").isNull(), "which nobody added, or somebody without effect").otherwise(
        "before anybody tried to add it"
    )
    return violations(
        wrong,
        "unexpected-element",
        text("set_read {} saw element {}, {} ({})", id_text(F.col("reader")), F.col("element"), why, F.col("file")),
        [F.col("reader")],
    )


def counter(operations: DataFrame) -> DataFrame:
    """Every "counter_read" (key -> value) is between the sum of the "counter_add"s (key -> what was added) acknowledged
    before it was invoked and the sum of those invoked before it was answered. (What takes away counts the other way
    round; adds of another history, with another clock, may have come at any time.) Name: counter-out-of-bounds."""
    adds = operations.where((F.col("f") == "counter_add") & (F.col("type") != "fail")).select(
        "file", "type", "invoke_us", "complete_us", F.explode("value").alias("key", "n")
    ).withColumn("n", F.col("n").cast(SUM))
    reads = _done(operations, "counter_read").select(
        "file", "id", "invoke_us", "complete_us", F.explode("value").alias("key", "n")
    )
    up, down = F.greatest(F.col("n"), F.lit(0)), F.least(F.col("n"), F.lit(0))
    tried = adds.select("file", "key", F.col("invoke_us").alias("at"), F.lit(0).alias("turn"), up.alias("tried_up"),
                        down.alias("tried_down"))  # fmt: skip
    done = adds.where(F.col("type") == "ok").select(
        "file", "key", F.col("complete_us").alias("at"), F.lit(3).alias("turn"), up.alias("done_up"),
        down.alias("done_down"),
    )  # fmt: skip
    # at one instant: adds that begin, reads that end, reads that begin, adds that end
    begins = reads.select("file", "key", F.col("invoke_us").alias("at"), F.lit(2).alias("turn"), "id", "n")
    ends = reads.select("file", "key", F.col("complete_us").alias("at"), F.lit(1).alias("turn"), "id", "n")
    events = tried.unionByName(done, True).unionByName(union([begins, ends]), True)
    past = Window.partitionBy("file", "key").orderBy("at", "turn").rowsBetween(Window.unboundedPreceding, 0)

    def total(column: str, turn: int) -> Column:
        return F.max(F.when(F.col("turn") == turn, F.coalesce(F.col(column), F.lit(0))))

    for column in ("tried_up", "tried_down"):
        everywhere, here = (F.sum(column).over(Window.partitionBy(*by)) for by in (["key"], ["file", "key"]))
        events = events.withColumn(f"other_{column}", F.coalesce(everywhere, F.lit(0)) - F.coalesce(here, F.lit(0)))
    for column in ("tried_up", "tried_down", "done_up", "done_down"):
        events = events.withColumn(column, F.sum(column).over(past))
    bounds = events.where(F.col("id").isNotNull()).groupBy("file", "key", "id", "n").agg(
        (total("done_up", 2) + total("tried_down", 1) + F.max("other_tried_down")).alias("lowest"),
        (total("tried_up", 1) + total("done_down", 2) + F.max("other_tried_up")).alias("highest"),
    )  # fmt: skip
    return violations(
        bounds.where((F.col("n") < F.col("lowest")) | (F.col("n") > F.col("highest"))),
        "counter-out-of-bounds",
        text(
            "counter_read {} saw {} at {}, but what was acknowledged before it makes at least {}, and all that was"
            " tried until its end at most {} ({})",
            id_text(F.col("id")), F.col("n"), F.col("key"), F.col("lowest"), F.col("highest"), F.col("file"),
        ),
        [F.col("id")],
        [F.col("key").cast("binary")],
    )  # fmt: skip


def of_a_part(found: DataFrame) -> DataFrame:
    """What is wrong even if a part of the history is missing, in which somebody may have tried anything."""
    return found.where(~F.col("name").isin("unexpected-element", "counter-out-of-bounds"))


INVARIANTS = {
    "one ring (cycle)": ("cycle_read", ring),
    "no long fork": ("fork_read", long_fork),
    "set": ("set_read", set_elements),
    "counter": ("counter_read", counter),
}
"""Name -> the operations that the check is about, and the check (operations -> violations)."""
