"""What checks find, looked at in their turn or before it. Of few rows Spark takes most of its time to plan, which it
does in one thread: so a second one begins with the checks that the first one comes to last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession

from spark_etl.report import EXAMPLES
from spark_etl.session import work_in_this_thread

Frame = Callable[[], DataFrame]


class Found(NamedTuple):
    """The first rows, at most `EXAMPLES`, and how many there are of them all."""

    rows: list[Row]
    number: int


def look(frame: Frame) -> Found:
    """At what a check finds."""
    found = frame()
    rows = found.limit(EXAMPLES + 1).collect()
    return Found(rows[:EXAMPLES], found.count() if len(rows) > EXAMPLES else len(rows))


class Ahead:
    """The checks that a second thread looks at, by property."""

    def __init__(self) -> None:
        self._coming: dict[str, Future[Found]] = {}

    @contextmanager
    def looking(self, spark: SparkSession, frames: Mapping[str, Frame]) -> Iterator[None]:
        """It does, for the block at most. What it has not begun when its turn has come is left to who asks for it."""
        with ThreadPoolExecutor(1, initializer=work_in_this_thread, initargs=(spark,)) as thread:
            try:
                self._coming = {name: thread.submit(look, frame) for name, frame in frames.items()}
                yield
            finally:
                thread.shutdown(cancel_futures=True)

    def look(self, name: str, frame: Frame) -> Found:
        """At what the check of a property finds."""
        coming = self._coming.pop(name, None)
        return look(frame) if coming is None or coming.cancel() else coming.result()
