"""Of an audit whose run has moves of slots: what they handed over, on the whole run, whatever is near suspects."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_etl.audit.case import Case
from spark_etl.checks import moves
from spark_etl.frames import relations
from spark_etl.report import UNDETERMINED, VALID

MOVES = "moves of slots"
_RANGES = list[tuple[int, int]]


def check_moves(case: Case, skip: str) -> None:
    """The property `MOVES`. Rows are compared of steps that the journals of their source have, and so all that was
    before them in its log, whatever a crash has cost it later."""
    tables = {name: _whole(case, name) for name in ("moves", "given", "reads", "writes")}
    steps = _steps(tables["moves"])
    found: Callable[[], DataFrame] | None = None
    followed = moves.Followed(steps, complete=case.base is None)
    if not case.unsure_shards:
        floor = case.base.version if case.base else bytes(16)
        key_writes = relations.key_writes(tables["writes"]) if case.proof.near else case.writes
        found = partial(moves.check, followed, tables["given"], tables["reads"], tables["writes"], key_writes, floor)
    prop = case.check(MOVES, found, len(steps), blind=bool(case.unsure_shards), skip=skip)
    if prop.verdict == VALID:
        handed = sum(last - first + 1 for step in steps for first, last in step.slots)
        prop.note = f"{len(steps):,} steps handed over {handed:,} slots, with their rows"
        if open_ := {one.step.gts for one in followed.taken if not one.closed}:
            prop.verdict = UNDETERMINED
            prop.note += f"; of {len(open_):,} the rows had perhaps not been written at the end"


def _whole(case: Case, table: str) -> DataFrame:
    frame = case.opened.frame(table)
    if case.inputs.foreign:
        frame = frame.where(~F.col("replica").isin(case.inputs.foreign))
    return case.judged_rows(frame)


def _steps(table: DataFrame) -> list[moves.Step]:
    columns = ("replica", "id", "source", "target", "first", "last", "asked", "slots")
    known = F.max(F.col("shard") == F.col("source")).alias("known")
    rows = table.groupBy("gts").agg(F.min(F.struct(*columns)).alias("step"), known).collect()
    return [
        moves.Step(
            bytes(row.gts), bytes(row.step.id), row.step.replica, row.step.source, row.step.target, row.step["first"],
            row.step["last"], _ranges(row.step.asked), _ranges(row.step.slots), row.known,
        )
        for row in rows
    ]  # fmt: skip


def _ranges(text: str) -> _RANGES:
    return msgspec.json.decode(text, type=_RANGES)
