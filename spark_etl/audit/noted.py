"""What is wrong with the histories themselves: lines that contradict one another, clocks, histories of other runs."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from multicast.types import Timestamp
from spark_etl.audit.case import Case
from spark_etl.certify.proof import CLIENTS, HISTORY, SESSIONS
from spark_etl.checks import clients


def check(case: Case) -> None:
    """Each is a problem of the input, and accuses nobody."""
    if not case.has_history:
        return
    if not case.proof.holds(HISTORY):
        _check_lines(case)
    if case.proof.untimed or not case.proof.holds(SESSIONS):
        _check_clocks(case)
    if not case.proof.holds(CLIENTS):
        _drop_foreign(case)


def _check_lines(case: Case) -> None:
    rows = case.history.groupBy(F.col("damage").isNotNull().alias("damaged")).agg(
        F.count("*").alias("n"), F.min(F.struct("file", "line", "damage")).alias("first")
    )
    for row in rows.collect():
        if row.damaged:
            first = f"{row.first.file}, line {row.first.line}: {row.first.damage}"
            case.inputs.problems.append(first + (f", and {row.n - 1} more such lines" if row.n > 1 else ""))
    every = case.operations.unionByName(case.promised) if case.has_promised else case.operations
    two = F.col("last_process") > F.col("process")
    for what, which in {"ends before it was invoked": F.col("backwards"), "is of two processes": two}.items():
        for row in every.where(which).select("file", F.hex("id").alias("id")).limit(3).collect():
            case.inputs.problems.append(f"{row.file}: operation {row.id.lower()} {what}")
    odd = every.where((F.col("invocations") != 1) | (F.col("ends") > 1))
    for row in odd.select("file", "invocations", "ends", F.hex("id").alias("id")).limit(3).collect():
        case.inputs.problems.append(
            f"{row.file}: operation {row.id.lower()} has {row.invocations} invocations and {row.ends} ends"
        )


def _check_clocks(case: Case) -> None:
    """A process notes what it does in turn. Where it does so back in time, no time of that file says anything: all its
    operations may have been under way at once."""
    in_turn = Window.partitionBy("file", "process").orderBy("line")
    history = case.opened.frame("history")
    rows = history.where("damage IS NULL").withColumn("before", F.lag("at_us").over(in_turn))
    back = F.min_by(F.struct("line", "process", (F.col("before") - F.col("at_us")).alias("by")), "line")
    found = rows.where("at_us < before").groupBy("file").agg(back.alias("back")).orderBy("file").collect()
    for row in found:
        case.inputs.problems.append(
            f"{row.file}, line {row.back.line}: process {row.back.process} is {row.back.by:,} us before what it said"
            " last: a clock that went back, of which no time is believed"
        )
    if not found:
        return
    times = history.select("file", "at_us")
    if case.counts.get("watched"):
        times = times.unionByName(case.opened.frame("watched").select("file", "at_us"))
    spans = times.where(F.col("file").isin([row.file for row in found])).groupBy("file")
    spans = spans.agg((F.min("at_us") - 1).alias("begun"), F.max("at_us").alias("ended"))

    def timeless(operations: DataFrame) -> DataFrame:
        both = operations.join(F.broadcast(spans), "file", "left")
        for name, at in {"invoke_us": "begun", "complete_us": "ended"}.items():
            both = both.withColumn(name, F.when(F.col(name).isNotNull(), F.coalesce(at, name)))
        return case.keep(both.drop("begun", "ended"))

    case.operations = timeless(case.operations)
    if case.has_promised:
        case.promised = timeless(case.promised)


_OF_A_CLOCK = 2**40
"""Versions of at least this time (us since 1970) are of one run; logical clocks begin anew in each."""


def _read_here(case: Case) -> DataFrame:
    """The files in which somebody was told of a version that this run gave a key: file. A backup's rows
    have those of the run that it was made of."""
    made = case.writes.where(
        (F.col("id") != F.col("gts")) & (F.col("gts") >= F.lit(Timestamp(_OF_A_CLOCK, 0).encode()))
    )
    told = case.operations.where(F.col("type") == "ok").select("file", F.explode("reads").alias("name", "gts"))
    told = told.select("file", F.col("name").cast("binary").alias("key"), "gts").distinct()
    return told.join(made.select("key", "gts"), ["key", "gts"], "left_semi").select("file").distinct()


def _drop_foreign(case: Case) -> None:
    """A history whose acknowledged operations are one and all unknown to the journals, and have read nothing that these
    know, is another run's, with all that it tells; unless it says itself that it is of this cluster."""
    known = case.transactions.select("id", F.lit(1).alias("known"))
    part = clients.message_part("version")
    heard = case.messages.where("live").select(part.alias("part"), F.lit(1).alias("heard")).distinct()
    told = case.operations.withColumn("part", F.when(F.col("type") == "ok", part))
    found = told.join(known, "id", "left").join(heard, "part", "left").groupBy("file")
    ok = (F.col("type") == "ok") & F.col("shard").isNull()
    count = found.agg(F.count(F.coalesce("known", "heard")).alias("known"), F.count(F.when(ok, 1)).alias("ok"))
    suspects = count.where((F.col("known") == 0) & (F.col("ok") > 0)).orderBy("file").collect()
    own = case.history.where(F.col("cluster") == case.inputs.cluster).select("file")
    ours_too = {row.file for row in _read_here(case).union(own).collect()} if suspects else set()
    for row in (row for row in suspects if row.file not in ours_too):
        case.inputs.problems.append(
            f"{row.file}: none of its {row.ok} acknowledged operations is in any journal: a history of another run"
        )
        case.foreign_histories.append(row.file)
    if case.foreign_histories:
        ours = ~F.col("file").isin(case.foreign_histories)
        case.operations = case.operations.where(ours)
        if case.has_promised:
            case.promised = case.promised.where(ours)
