"""Session guarantees (Terry et al. 1994): what one client may rely on from one of its operations to the next.

A session is one process of a history file: its operations in the order of the file. Versions of a key are ordered as
their timestamps are. An operation binds the later ones of its session once it was acknowledged; what it read counts
only then, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_etl.frames.columns import absent, id_text, key_text, text, version_text, violations

_SESSION = ("file", "process")


def steps(operations: DataFrame, transactions: DataFrame) -> DataFrame:
    """The operations that took place, with their place in the order: file, process, line, id, f, gts, ok, invoke_us,
    complete_us (null unless ok)."""
    placed = transactions.where(F.col("live") & (F.col("applied") != 0)).select("id", "gts")
    ok = F.col("type") == "ok"
    return operations.where(F.col("invoke_us").isNotNull()).join(placed, "id").select(
        *_SESSION, "line", "id", "f", "gts", ok.alias("ok"), "invoke_us", F.when(ok, F.col("complete_us")).alias(
            "complete_us"),
    )  # fmt: skip


def overlapping(operations: DataFrame) -> DataFrame:
    """file and process of those that invoked an operation before the one before it had ended: they are no sessions."""
    earlier = Window.partitionBy(*_SESSION).orderBy("line").rowsBetween(Window.unboundedPreceding, -1)
    ended = F.when(F.col("type") != "info", F.col("end_line"))
    began = operations.where(F.col("line").isNotNull()).withColumn("before", F.max(ended).over(earlier))
    return began.where(F.col("before") > F.col("line")).select(*_SESSION).distinct()


def edges(steps: DataFrame) -> DataFrame:
    """source, target (gts): from each acknowledged operation to the next one of its session that took place."""
    in_session = Window.partitionBy(*_SESSION).orderBy("line").rowsBetween(Window.unboundedPreceding, -1)
    before = F.last(F.when(F.col("ok"), F.col("gts")), ignorenulls=True).over(in_session)
    return steps.select(before.alias("source"), F.col("gts").alias("target")).where(F.col("source").isNotNull())


def turns(steps: DataFrame) -> DataFrame:
    """How sessions run: one row with the counts inverted (operations ordered before an earlier, acknowledged one of
    their session) and untimed (invoked before that one was answered, or at the same microsecond).

    A certificate of serializability in the order of versions and none inverted: every session guarantee holds. No cycle
    of dependencies and real time, and none untimed: likewise."""
    in_session = Window.partitionBy(*_SESSION).orderBy("line").rowsBetween(Window.unboundedPreceding, -1)
    latest = F.max(F.when(F.col("ok"), F.col("gts"))).over(in_session)
    answered = F.max(F.when(F.col("ok"), F.col("complete_us"))).over(in_session)
    after = steps.select("gts", "invoke_us", latest.alias("latest"), answered.alias("answered"))
    return after.agg(
        F.count(F.when(F.col("gts") < F.col("latest"), 1)).alias("inverted"),
        F.count(F.when(F.col("invoke_us") <= F.col("answered"), 1)).alias("untimed"),
    )


def seen(
    ordered_reads: DataFrame, writes: DataFrame, operations: DataFrame | None, unsure_shards: Sequence[int]
) -> DataFrame:
    """What was read, as bounds: id, key, gts (the reader's), version, low and high; and likely, what it was if a key
    that was said to be absent was so by its last deletion before the reader. They differ where a key was absent that
    was deleted at some time: that may have been any of its deletions, or the beginning.

    ordered_reads: `edges.reads_in_order`; what a transaction wrote itself is left out. operations: given, what clients
    were told replaces what the journals say.
    unsure_shards: deletions may be missing there; absent keys are left out.
    """
    deletions = writes.where("deleted").groupBy("key").agg(F.max("gts").alias("last"))
    reads = ordered_reads.select("id", "key", "gts", "shard", "version", "last_delete").join(deletions, "key", "left")
    if operations is not None:
        told = operations.where(F.col("type") == "ok").select("id", F.explode("reads").alias("name", "told"))
        told = told.select("id", F.col("name").cast("binary").alias("key"), "told")
        reads = reads.join(told, ["id", "key"], "left")
        reads = reads.withColumn("version", F.when(F.col("told") != F.col("gts"), F.col("told")).otherwise(
            F.col("version")))  # fmt: skip
    reads = reads.where(F.col("version") != F.col("gts"))
    none = F.col("version") == absent()
    if unsure_shards:
        reads = reads.where(~(none & F.col("shard").isin(list(unsure_shards))))
    return reads.select(
        "id", "key", "gts", "version", F.col("version").alias("low"),
        F.when(none, F.coalesce("last", absent())).otherwise(F.col("version")).alias("high"),
        F.when(none, F.col("last_delete")).otherwise(F.col("version")).alias("likely"),
    )  # fmt: skip


def as_likely(seen: DataFrame) -> DataFrame:
    """`seen` without doubt: one way in which it may have been."""
    return seen.withColumn("low", F.col("likely")).withColumn("high", F.col("likely"))


def accesses(steps: DataFrame, seen: DataFrame, writes: DataFrame) -> DataFrame:
    """Each operation with each key that it read (and saw the answer) or wrote: the columns of `steps`, key, written,
    low, high (of a write: its own version)."""
    who = [*_SESSION, "line", "id", "f", "ok", "invoke_us", "complete_us"]
    read = steps.where("ok").select(*who).join(seen.select("id", "gts", "key", "low", "high"), "id")
    wrote = steps.select(*who).join(writes.select("id", "gts", "key").distinct(), "id")
    wrote = wrote.withColumn("low", F.col("gts")).withColumn("high", F.col("gts"))
    columns = [*who, "gts", "key", "low", "high"]
    return read.select(*columns, F.lit(False).alias("written")).unionByName(
        wrote.select(*columns, F.lit(True).alias("written"))
    )


def _after(accesses: DataFrame, earlier: Column) -> DataFrame:
    """Each access beside the highest version among those accesses `earlier` to the same key that its session had before
    it: before (low, id)."""
    earlier_lines = Window.partitionBy(*_SESSION, "key").orderBy("line").rangeBetween(Window.unboundedPreceding, -1)
    return accesses.withColumn("before", F.max(F.when(earlier, F.struct("low", "id"))).over(earlier_lines)).where(
        F.col("before").isNotNull()
    )


def _ok_write() -> Column:
    return F.col("ok") & F.col("written")


def _ok_read() -> Column:
    return F.col("ok") & ~F.col("written")


def monotonic_reads(accesses: DataFrame) -> DataFrame:
    """Who has read a version of a key never reads an earlier one. Name: non-monotonic-read."""
    wrong = _after(accesses, _ok_read()).where(~F.col("written") & (F.col("high") < F.col("before.low")))
    return _violations(wrong, "non-monotonic-read", "read", "read")


def read_your_writes(accesses: DataFrame) -> DataFrame:
    """Who has written a key reads that version of it or a later one. Name: own-write-missed."""
    wrong = _after(accesses, _ok_write()).where(~F.col("written") & (F.col("high") < F.col("before.low")))
    return _violations(wrong, "own-write-missed", "read", "written")


def monotonic_writes(accesses: DataFrame, views: DataFrame) -> DataFrame:
    """The writes of a session take effect in its order: a later one never has the smaller version of a key, and nobody
    sees the later one without the earlier. Name: non-monotonic-write.

    views: from `views`.
    """
    wrong = _after(accesses, _ok_write()).where(F.col("written") & (F.col("high") < F.col("before.low")))
    inverted = _violations(wrong, "non-monotonic-write", "wrote", "written")
    return inverted.unionByName(_overlooked(accesses, views, _ok_write(), "non-monotonic-write", "written"))


def writes_follow_reads(accesses: DataFrame, views: DataFrame) -> DataFrame:
    """What a session writes comes after what it has read before: the write never has a smaller version of a key than it
    had read, and nobody sees the write without what was read. Name: write-before-read."""
    wrong = _after(accesses, _ok_read()).where(F.col("written") & (F.col("high") < F.col("before.low")))
    inverted = _violations(wrong, "write-before-read", "wrote", "read")
    return inverted.unionByName(_overlooked(accesses, views, _ok_read(), "write-before-read", "read"))


def _violations(wrong: DataFrame, name: str, does: str, had: str) -> DataFrame:
    return violations(
        wrong,
        name,
        text(
            f"process {{}} {does} key {{}} at version {{}} ({{}}), after it had {had} version {{}} of it ({{}}; {{}})",
            F.col("process"), key_text(F.col("key")), version_text(F.col("high")), id_text(F.col("id")),
            version_text(F.col("before.low")), id_text(F.col("before.id")), F.col("file"),
        ),
        [F.col("id"), F.col("before.id")],
        [F.col("key")],
    )  # fmt: skip


def views(seen: DataFrame, steps: DataFrame, writes: DataFrame) -> DataFrame:
    """What transactions saw of each session beside what else they read: observer (id), key, high, and of the session
    the last operation that the observer has read from: file, process, line, writer."""
    writers = steps.select(F.col("gts").alias("version"), *_SESSION, "line", F.col("id").alias("writer"))
    last = (
        seen.select("id", "key", "version")
        .join(writes.select("key", F.col("gts").alias("version")).distinct(), ["key", "version"], "left_semi")
        .join(writers, "version")
        .groupBy("id", *_SESSION)
        .agg(F.max("line").alias("line"), F.max_by("writer", "line").alias("writer"))
    )
    return last.join(seen.select("id", "key", "high"), "id").withColumnRenamed("id", "observer")


def _overlooked(accesses: DataFrame, views: DataFrame, earlier: Column, name: str, did: str) -> DataFrame:
    """Observers that read from an operation of a session, and of a key an older version than the session had written,
    or read, before that operation."""
    columns = [*_SESSION, "line", "key"]
    past = accesses.where(earlier).select(*columns, F.struct("low", "id").alias("had"))
    probes = views.where(F.col("observer") != F.col("writer")).select(*columns, "high", "observer", "writer")
    rows = past.unionByName(probes, allowMissingColumns=True)
    earlier_lines = Window.partitionBy(*_SESSION, "key").orderBy("line").rangeBetween(Window.unboundedPreceding, -1)
    wrong = (
        rows.withColumn("before", F.max("had").over(earlier_lines))
        .where(F.col("observer").isNotNull() & (F.col("high") < F.col("before.low")))
        .where(F.col("before.id") != F.col("observer"))
    )
    return violations(
        wrong,
        name,
        text(
            "transaction {} saw what process {} wrote in {}, but read key {} at version {}, although that process had"
            f" {did} version {{}} of it before ({{}}, {{}})",
            id_text(F.col("observer")), F.col("process"), id_text(F.col("writer")), key_text(F.col("key")),
            version_text(F.col("high")), version_text(F.col("before.low")), id_text(F.col("before.id")),
            F.col("file"),
        ),
        [F.col("observer"), F.col("writer"), F.col("before.id")],
        [F.col("key")],
    )  # fmt: skip


# -- one key at a time -------------------------------------------------------------------------------------------------


def linearizable(accesses: DataFrame, ordered_reads: DataFrame, writes: DataFrame, unsure: Sequence[int]) -> DataFrame:
    """Every key by itself is linearizable. Names: key-went-back, lost-update.

    The versions of a key have a total order, so a cycle of it and real time contains an access that ended before
    another one was invoked that is before it in that order (both orders are interval or weak orders, so that a longest
    chain can be cut short): a read or write must not see, or make, an earlier version than one that had ended before.
    Whoever reads and writes a key must have read the version right before its own. Only operations of one file share a
    clock. Reads of what nobody wrote are `transactions.reads`' to find.
    """
    place = F.when(F.col("written"), F.lit(b"\0")).otherwise(F.lit(b"\1"))
    who = ["file", "key", "id", "f", "written", "low", "high"]
    ends = accesses.where(F.col("complete_us").isNotNull()).select(
        *who, F.col("complete_us").alias("at"), F.lit(1).alias("end"), F.concat("low", place).alias("level")
    )
    begins = accesses.select(
        *who, F.col("invoke_us").alias("at"), F.lit(0).alias("end"), F.concat("high", place).alias("level")
    )
    in_time = Window.partitionBy("key", "file").orderBy("at", "end").rowsBetween(Window.unboundedPreceding, -1)
    ended = F.when(F.col("end") == 1, F.struct("level", "at", "id", "f", "low", "written"))
    back = (
        ends.unionByName(begins)
        .withColumn("before", F.max(ended).over(in_time))
        .where((F.col("end") == 0) & (F.col("level") < F.col("before.level")))
    )
    return _went_back(back).unionByName(_lost_updates(ordered_reads, writes, unsure))


def _went_back(back: DataFrame) -> DataFrame:
    did = F.when(F.col("written"), "wrote").otherwise("read")
    had = F.when(F.col("before.written"), "written").otherwise("read")
    return violations(
        back,
        "key-went-back",
        text(
            "{} {} {} key {} at version {}, although it was invoked after {} {}, which had {} version {}, was answered"
            " at {} s ({})",
            F.col("f"), id_text(F.col("id")), did, key_text(F.col("key")), version_text(F.col("high")),
            F.col("before.f"), id_text(F.col("before.id")), had, version_text(F.col("before.low")),
            F.format_string("%.6f", F.col("before.at") / 1e6), F.col("file"),
        ),
        [F.col("id"), F.col("before.id")],
        [F.col("key")],
    )  # fmt: skip


def _lost_updates(ordered_reads: DataFrame, writes: DataFrame, unsure: Sequence[int]) -> DataFrame:
    wrong = ordered_reads.where((F.col("version") != F.col("expected")) & (F.col("version") != F.col("gts")))
    if unsure:
        wrong = wrong.where(~F.col("shard").isin(list(unsure)))
    wrong = wrong.join(writes.select("key", "gts").distinct(), ["key", "gts"])
    return violations(
        wrong,
        "lost-update",
        text(
            "transaction {} read key {} at version {} and wrote version {}, but right before its own is version {}",
            id_text(F.col("id")), key_text(F.col("key")), version_text(F.col("version")), version_text(F.col("gts")),
            version_text(F.col("expected")),
        ),
        [F.col("id")],
        [F.col("key")],
    )  # fmt: skip
