"""What happened when: throughput and latency of the clients, delivery lag of the replicas, lives. One job of Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_etl.report import Course, Life, Point

SLICES = 120
"""Into so many slices of time a run is cut, at most."""


def _lives_of(small: Iterable[Any]) -> list[Any]:
    return [row for row in small if row.table == "lives"]


def _limits(small: Iterable[Any], span: tuple[int, int] | None) -> tuple[int, int] | None:
    times = [row.at for row in _lives_of(small)] + list(span or ())
    return (min(times), max(times)) if times else None


def slice_width(small: Iterable[Any], span: tuple[int, int] | None) -> int:
    """Microseconds of a slice; 0: nothing says when anything was. Arguments: as of `course`."""
    limits = _limits(small, span)
    return _width(limits[1] - limits[0]) if limits else 0


def course(small: Sequence[Any], rows: Sequence[Any], span: tuple[int, int] | None, width: int) -> Course:
    """small: rows of "lives". rows: of `slices`. span: of the times of deliveries, microseconds."""
    limits = _limits(small, span)
    if limits is None:
        return Course()
    began, ended = limits
    shifts: dict[str, int] = {}
    for row in rows:
        if row.file is not None and row.shift is not None:
            shifts[row.file] = min(row.shift, shifts.get(row.file, row.shift))
    grid = (shifts[min(shifts)] - began) % width if shifts else 0  # one history's slices are where they are
    deliveries: dict[int, list[Point]] = defaultdict(list)
    clients: dict[float, list[Any]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.slice):
        if row.file is None:
            deliveries[row.replica].append(_point((row.slice * width - began) / 1e6, row))
        elif row.file in shifts:
            at = row.slice * width + shifts[row.file] - began
            clients[(round((at - grid) / width) * width + grid) / 1e6].append(row)
    points = [_merged(second, many) for second, many in sorted(clients.items())]
    signs: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        if row.file is None:
            signs[row.replica] += [(row.first - began) / 1e6, (row.last - began) / 1e6]
    lives = _lives(_lives_of(small), signs, began, ended)
    return Course(width / 1e6, points, dict(sorted(deliveries.items())), lives, began)


def _width(span: int) -> int:
    """Of a slice, microseconds: 1, 2 or 5 times a power of ten."""
    digit = 10 ** max(len(str(span // SLICES)) - 1, 0)
    return next(digit * n for n in (1, 2, 5, 10) if digit * n * SLICES >= span)


def slices(deliveries: DataFrame, submitted: DataFrame, operations: DataFrame, width: int) -> DataFrame:
    """One row per slice of `width` microseconds and replica, or client history: replica or file; slice (number, by the
    clock of that replica or history); n; unknown; median, p99, most (microseconds); shift: of a history, how far the
    replicas' clocks are before its own, at most; first, last: times. operations: `relations.operations`, each with the
    `message` that carried it."""
    sent = submitted.groupBy("id").agg(F.min("at").alias("sent"))
    carrying = sent.withColumnRenamed("id", "message")
    none = F.lit(None)
    delivered = deliveries.join(sent, "id", "left").select(
        none.cast("string").alias("file"), "replica", F.col("at").alias("time"),
        (F.col("at") - F.col("sent")).alias("took"), none.cast("bigint").alias("shift"), F.lit(0).alias("open"),
    )  # fmt: skip
    done = F.coalesce("complete_us", "invoke_us")
    asked = operations.where(F.col("invoke_us").isNotNull()).join(carrying, "message", "left").select(
        "file", none.cast("int").alias("replica"), done.alias("time"),
        F.when(F.col("type") == "ok", F.col("complete_us") - F.col("invoke_us")).alias("took"),
        (F.col("sent") - F.col("invoke_us")).alias("shift"), (F.col("type") != "ok").cast("int").alias("open"),
    )  # fmt: skip
    return (
        delivered.unionByName(asked)
        .groupBy("file", "replica", F.floor(F.col("time") / width).alias("slice"))
        .agg(
            F.count("*").alias("n"),
            F.sum("open").alias("unknown"),
            F.percentile_approx("took", 0.5, 1000).alias("median"),
            F.percentile_approx("took", 0.99, 1000).alias("p99"),
            F.max("took").alias("most"),
            F.min("shift").alias("shift"),
            F.min("time").alias("first"),
            F.max("time").alias("last"),
        )
    )


def _point(second: float, row: Any) -> Point:
    parts = (None if value is None else round(value / 1000, 3) for value in (row.median, row.p99, row.most))
    return Point(round(second, 6), row.n - row.unknown, row.unknown, *parts)


def _merged(second: float, rows: list[Any]) -> Point:
    """Slices of different histories that fall together. Of percentiles the greatest is a bound."""
    points = [_point(second, row) for row in rows]
    parts = ([v for p in points if (v := getattr(p, name)) is not None] for name in ("median_ms", "p99_ms", "max_ms"))
    return Point(
        round(second, 6), sum(p.count for p in points), sum(p.unknown for p in points),
        *(max(values, default=None) for values in parts),
    )  # fmt: skip


def _lives(rows: list[Any], signs: Mapping[int, list[float]], began: int, ended: int) -> list[Life]:
    """Lives in their order. signs: replica -> seconds at which it was certainly alive. A life without a stop ended with
    the last of them before the next life began."""
    lives: list[Life] = []
    by_replica: dict[int, list[Any]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.replica, row.offset)):
        if row.event in ("started", "stopped"):
            by_replica[row.replica].append(row)
    for replica, events in by_replica.items():
        for event, following in zip(events, [*events[1:], None], strict=True):
            if event.event != "started":
                continue
            start, limit = (event.at - began) / 1e6, ((following.at if following else ended) - began) / 1e6
            if following is not None and following.event == "stopped":
                lives.append(Life(replica, event.shard, start, limit, "stopped"))
            else:
                last = max((second for second in signs.get(replica, ()) if start < second <= limit), default=start)
                lives.append(Life(replica, event.shard, start, last, "crashed"))
    return lives
