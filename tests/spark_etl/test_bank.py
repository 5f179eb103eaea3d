"""The bank's invariant, on tiny histories with and without a planted violation."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import numpy as np
import pytest
from pyspark.sql import functions as F

from multicast.types import Timestamp
from spark_etl.certify import bank as certified
from spark_etl.certify.arrays import Suspect
from spark_etl.checks import bank

Step = tuple[str, str, dict[str, int], dict[str, Any]]
"""f, type, what a read saw, what was written; in the order of versions."""

OPEN: Step = ("open", "ok", {}, {"a": 60, "b": 40})
BASE: Step = ("", "ok", {}, {"a": None, "b": None})
ALL = {"a": 60, "b": 40}
MOST = (1 << 63) - 1


STRIDE = 100
"""Between the versions of two cases."""

CASES: dict[str, tuple[list[Step], set[str]]] = {
    "right": ([OPEN, ("read_all", "ok", ALL, {}), ("transfer", "ok", {}, {"a": 50, "b": 50})], set()),
    "a transfer before the first read": (
        [OPEN, ("transfer", "ok", {}, {"a": 50, "b": 50}), ("read_all", "ok", {"a": 50, "b": 50}, {})], set(),
    ),
    "another total": (
        [OPEN, ("read_all", "ok", ALL, {}), ("read_all", "ok", {"a": 60, "b": 41}, {})], {"total-changed"},
    ),
    "the same total": ([OPEN, ("read_all", "ok", ALL, {}), ("read_all", "ok", {"a": 61, "b": 39}, {})], set()),
    "a total beyond 64 bits": (
        [OPEN, ("read_all", "ok", {"a": MOST, "b": MOST}, {}), ("read_all", "ok", {"a": MOST, "b": MOST - 1}, {})],
        {"total-changed"},
    ),
    "a change beyond 64 bits": (
        [("open", "ok", {}, {"a": MOST, "b": -MOST}), ("read_all", "ok", {"a": MOST, "b": -MOST}, {}),
         ("transfer", "ok", {}, {"a": -MOST, "b": MOST})],
        set(),
    ),
    "a failed read": ([OPEN, ("read_all", "ok", ALL, {}), ("read_all", "fail", {"a": 60, "b": 41}, {})], set()),
    "no read of all": ([OPEN, ("read_all", "ok", ALL, {}), ("look", "ok", {"a": 1}, {})], set()),
    "a transfer that makes money": (
        [OPEN, ("read_all", "ok", ALL, {}), ("transfer", "ok", {}, {"a": 50, "b": 51})], {"money-made"},
    ),
    "one of unknown outcome that loses some": (
        [OPEN, ("read_all", "ok", ALL, {}), ("transfer", "info", {}, {"a": 50})], {"money-made"},
    ),
    "a key that is no account": (
        [OPEN, ("read_all", "ok", ALL, {}), ("transfer", "ok", {}, {"a": 60, "c": 7})], set(),
    ),
    "a deposit": ([OPEN, ("read_all", "ok", ALL, {}), ("deposit", "ok", {}, {"a": 70})], set()),
    "of before nothing is known": (
        [BASE, ("read_all", "ok", ALL, {}), ("transfer", "ok", {}, {"a": 50, "b": 51})], set(),
    ),
}  # fmt: skip


def test_what_may_be_beyond_64_bits_is_not_proved():
    """Four times 2**62 would be 0."""
    rows = np.zeros(4, np.int64)
    assert certified._sums(rows, np.array([3, -4, 5, -3]), 1) == 1
    with pytest.raises(Suspect):
        certified._sums(rows, np.full(4, 1 << 62), 1)


def test_conservation(spark: Any):
    """Each case is a bank of its own: histories with other accounts."""
    operations: list[Any] = []
    messages: list[Any] = []
    writes: list[Any] = []
    for case, (name, (steps, _)) in enumerate(CASES.items()):
        for n, (f, type_, seen, wrote) in enumerate(steps, case * STRIDE + 1):
            one, gts = n.to_bytes(16, "big"), Timestamp(n, 0).encode()
            operations.append((name, one, f, type_, {f"{case} {key}": balance for key, balance in seen.items()}))
            messages.append((one, gts))
            for key, balance in wrote.items():
                value = None if balance is None else str(balance).encode()
                writes.append((f"{case} {key}".encode(), gts, one, value, False, False))
    violations = bank.conservation(
        spark.createDataFrame(operations, "file string, id binary, f string, type string, value map<string,bigint>"),
        spark.createDataFrame(messages, "id binary, gts binary"),
        spark.createDataFrame(
            writes, "key binary, gts binary, id binary, value binary, digested boolean, deleted boolean"
        ),
        F.lit(True),
    ).collect()
    found: dict[str, set[str]] = {name: set() for name in CASES}
    for row in violations:
        found[list(CASES)[UUID(row.transactions[0]).int // STRIDE]].add(row.name)
    assert found == {name: expected for name, (_, expected) in CASES.items()}
