"""The bank's invariant, on tiny histories with and without a planted violation."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F

from multicast.types import Timestamp
from spark_etl.checks import bank

Step = tuple[str, str, dict[str, int], dict[str, Any]]
"""f, type, what a read saw, what was written; in the order of versions."""

OPEN: Step = ("open", "ok", {}, {"a": 60, "b": 40})
BASE: Step = ("", "ok", {}, {"a": None, "b": None})
ALL = {"a": 60, "b": 40}


def gts(number: int) -> bytes:
    return Timestamp(number, 0).encode()


def violations(spark: Any, steps: list[Step]) -> set[str]:
    ids = [number.to_bytes(16, "big") for number in range(1, len(steps) + 1)]
    operations = [("bank.jsonl", one, f, type_, value) for one, (f, type_, value, _) in zip(ids, steps, strict=True)]
    messages = [(one, gts(n)) for n, one in enumerate(ids, 1)]
    writes = [
        (key.encode(), gts(n), ids[n - 1], None if balance is None else str(balance).encode(), False)
        for n, (_, _, _, wrote) in enumerate(steps, 1)
        for key, balance in wrote.items()
    ]
    found = bank.conservation(
        spark.createDataFrame(operations, "file string, id binary, f string, type string, value map<string,bigint>"),
        spark.createDataFrame(messages, "id binary, gts binary"),
        spark.createDataFrame(
            [(*write, False) for write in writes],
            "key binary, gts binary, id binary, value binary, digested boolean, deleted boolean",
        ),
        F.lit(True),
    )
    return {row.name for row in found.collect()}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([OPEN, ("read_all", "ok", ALL, {}), ("transfer", "ok", {}, {"a": 50, "b": 50})], set()),
        ([OPEN, ("transfer", "ok", {}, {"a": 50, "b": 50}), ("read_all", "ok", {"a": 50, "b": 50}, {})], set()),
        ([OPEN, ("read_all", "ok", ALL, {}), ("read_all", "ok", {"a": 60, "b": 41}, {})], {"total-changed"}),
        ([OPEN, ("read_all", "ok", ALL, {}), ("read_all", "ok", {"a": 61, "b": 39}, {})], set()),
        ([OPEN, ("read_all", "ok", ALL, {}), ("read_all", "fail", {"a": 60, "b": 41}, {})], set()),
        ([OPEN, ("read_all", "ok", ALL, {}), ("look", "ok", {"a": 1}, {})], set()),
        ([OPEN, ("read_all", "ok", ALL, {}), ("transfer", "ok", {}, {"a": 50, "b": 51})], {"money-made"}),
        ([OPEN, ("read_all", "ok", ALL, {}), ("transfer", "info", {}, {"a": 50})], {"money-made"}),
        ([OPEN, ("read_all", "ok", ALL, {}), ("transfer", "ok", {}, {"a": 60, "c": 7})], set()),
        ([OPEN, ("read_all", "ok", ALL, {}), ("deposit", "ok", {}, {"a": 70})], set()),
        ([BASE, ("read_all", "ok", ALL, {}), ("transfer", "ok", {}, {"a": 50, "b": 51})], set()),
    ],
    ids=[
        "right", "a transfer before the first read", "another total", "the same total", "a failed read",
        "no read of all", "a transfer that makes money", "one of unknown outcome that loses some",
        "a key that is no account", "a deposit", "of before nothing is known",
    ],
)  # fmt: skip
def test_conservation(spark: Any, steps: list[Step], expected: set[str]):
    assert violations(spark, steps) == expected
