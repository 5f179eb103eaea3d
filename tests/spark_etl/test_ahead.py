"""Checks that a second thread looks at before their turn."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.sql import DataFrame

from spark_etl.audit.ahead import Ahead, Found
from spark_etl.report import EXAMPLES
from spark_etl.session import FEW_ROWS, PLANNED_ROWS, of_rows


class Frames:
    """Of numbers; who made which."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark
        self.makers: list[tuple[int, threading.Thread]] = []
        self.go_on = threading.Event()

    def of(self, count: int) -> DataFrame:
        self.makers.append((count, threading.current_thread()))
        return self.spark.range(count)

    def late(self, count: int) -> DataFrame:
        self.go_on.wait(60)
        return self.of(count)


def numbers(found: Found) -> tuple[list[int], int]:
    return [row.id for row in found.rows], found.number


def test_what_was_begun_ahead_is_waited_for_and_what_was_not_is_looked_at_by_who_needs_it(spark: Any) -> None:
    frames, here = Frames(spark), threading.current_thread()
    ahead = Ahead()
    coming = {"first": lambda: frames.late(EXAMPLES + 3), "second": lambda: frames.of(2)}
    with ahead.looking(spark, coming):
        assert numbers(ahead.look("second", lambda: frames.of(2))) == ([0, 1], 2)
        frames.go_on.set()
        found = ahead.look("first", lambda: frames.of(0))
        assert numbers(found) == (list(range(EXAMPLES)), EXAMPLES + 3)
        assert numbers(ahead.look("third", lambda: frames.of(1))) == ([0], 1)
    (two, first), (many, other), (one, last) = frames.makers
    assert (two, many, one) == (2, EXAMPLES + 3, 1)
    assert first is last is here and other is not here


def test_what_fails_ahead_fails_when_it_is_asked_for_and_what_nobody_asks_for_does_not(spark: Any) -> None:
    frames, ahead = Frames(spark), Ahead()
    frames.go_on.set()

    def bad() -> DataFrame:
        raise ValueError("bad")

    with ahead.looking(spark, {"bad": bad, "worse": bad, "late": lambda: frames.late(1)}):
        assert numbers(ahead.look("late", lambda: frames.of(1))) == ([0], 1)
        with pytest.raises(ValueError, match="bad"):
            ahead.look("bad", lambda: frames.of(1))


def test_who_is_interrupted_does_not_wait_for_what_was_not_begun(spark: Any) -> None:
    frames, ahead = Frames(spark), Ahead()
    with pytest.raises(KeyboardInterrupt), ahead.looking(spark, {n: lambda: frames.late(1) for n in "abc"}):
        frames.go_on.set()
        raise KeyboardInterrupt
    assert len(frames.makers) <= 1


@pytest.mark.parametrize(
    "rows, few, planned", [(1, True, True), (FEW_ROWS + 1, False, True), (PLANNED_ROWS + 1, False, False)]
)
def test_of_few_rows_queries_are_not_compiled_and_afterwards_as_before(
    spark: Any, rows: int, few: bool, planned: bool
) -> None:
    names = ("spark.sql.codegen.factoryMode", "spark.sql.adaptive.enabled")
    session = spark.newSession()
    for name, value in zip(names, ("FALLBACK", "true"), strict=True):
        session.conf.set(name, value)
    with of_rows(session, rows):
        assert [session.conf.get(name) for name in names] == [
            "NO_CODEGEN" if few else "FALLBACK", "false" if planned else "true"
        ]  # fmt: skip
    assert [session.conf.get(name) for name in names] == ["FALLBACK", "true"]
