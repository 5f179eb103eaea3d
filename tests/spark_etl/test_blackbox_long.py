"""A transaction of many operations is gone through a few times, not once for each of its operations."""

from __future__ import annotations

from typing import Any

import pytest

from spark_etl.blackbox.history import Op, Transaction, seen_by_unknown
from spark_etl.blackbox.resolve import resolve

MANY = 300


class Counted(tuple[Any, ...]):
    """looked: how many of its elements were asked for, or were in what was cut out of it."""

    looked = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.looked += len(found) if isinstance(at, slice) else 1
        return found


LONG = {
    "reads": [("r", n, None) for n in range(MANY)],
    "reads of one key": [("r", "x", None) for _ in range(MANY)],
    "reads and writes": [op for n in range(MANY // 2) for op in (("r", "x", n or None), ("w", "x", n + 1))],
    "appends and reads": [op for n in range(MANY // 2) for op in (("append", "x", n), ("r", "x", tuple(range(n + 1))))],
}


@pytest.mark.parametrize("name", LONG)
def test_its_operations_are_gone_through_a_few_times(name: str):
    ops = Counted(Op(*op) for op in LONG[name])
    facts = resolve([Transaction(0, 0, "ok", 0, 5, ops)])
    assert not facts.anomalies and ops.looked < 10 * MANY


def test_who_compared_is_found_in_one_pass():
    ops = Counted(Op(*op) for op in (*LONG["reads and writes"], *LONG["reads"]))
    seen = seen_by_unknown(ops)
    assert seen == ops and ops.looked < 10 * MANY
    read = Op("r", "x", 1)
    wrote, appended = Op("w", "x", 2), Op("append", "y", 2)
    assert seen_by_unknown((read, read, wrote, read)) == (read, read, wrote, Op("r", "x", None))
    assert seen_by_unknown((Op("r", "y", ()), appended)) == (Op("r", "y", None), appended)


def test_what_is_appended_to_a_register_is_no_reason_to_fail():
    ops = (Op("w", "x", 5), Op("append", "x", 6), Op("r", "x", (5, 6)))
    assert resolve([Transaction(0, 0, "ok", 0, 5, ops)]).repeated == {"x"}
