"""The invariants of workloads, on histories with and without a planted violation."""

from __future__ import annotations

import os
from collections.abc import Iterable
from random import Random
from typing import Any

from spark_etl import schemas
from spark_etl.checks import workloads
from spark_etl.frames import relations
from tests.spark_etl.brute_workloads import Operation, broken, random_operations

RANDOM_RUNS = int(os.environ.get("RANDOM_RUNS", "300"))


def ring(*pointers: int) -> dict[str, int]:
    return {f"cycle/1/{i:03}": n for i, n in enumerate(pointers)}


def group(*present: int) -> dict[str, int]:
    return {f"long_fork/1/1/{i}": n for i, n in enumerate(present)}


CASES: dict[str, tuple[list[Operation], set[str]]] = {
    "one ring": ([("cycle_read", "ok", 1, 2, ring(1, 2, 0)), ("cycle_read", "ok", 1, 2, ring(2, 0, 1))], set()),
    "two rings": ([("cycle_read", "ok", 1, 2, ring(1, 0, 3, 2))], {"ring-broken"}),
    "a ring with a tail": ([("cycle_read", "ok", 1, 2, ring(1, 2, 1))], {"ring-broken"}),
    "a pointer to nowhere": ([("cycle_read", "ok", 1, 2, ring(1, 7))], {"ring-broken"}),
    "a pointer far beyond": ([("cycle_read", "ok", 1, 2, ring(1, 1 << 40))], {"ring-broken"}),
    "a read that failed": ([("cycle_read", "fail", 1, 2, ring(1, 0, 3, 2))], set()),
    "no fork": ([("fork_read", "ok", 1, 2, group(*g)) for g in ((0, 0, 0), (0, 1, 0), (1, 1, 0), (1, 1, 0))], set()),
    "a fork": ([("fork_read", "ok", 1, 2, group(*g)) for g in ((0, 0, 0), (1, 0, 0), (0, 1, 0))], {"long-fork"}),
    "a fork of different sizes": (
        [("fork_read", "ok", 1, 2, group(*g)) for g in ((0, 0, 1), (1, 1, 0))], {"long-fork"}
    ),
    "a good set": (
        [("set_add", "ok", 1, 5, {"a": 1}), ("set_add", "info", 1, 5, {"b": 1}), ("set_add", "fail", 1, 5, {"c": 1}),
         ("set_read", "ok", 2, 3, {}), ("set_read", "ok", 5, 6, {}), ("set_read", "ok", 6, 9, {"a": 1, "b": 1})],
        set(),
    ),
    "a lost element": (
        [("set_add", "ok", 1, 5, {"a": 1}), ("set_read", "ok", 2, 9, {"a": 1}), ("set_read", "ok", 6, 9, {})],
        {"lost-element"},
    ),
    "an element added again and lost": (
        [("set_add", "ok", 1, 2, {"a": 1}), ("set_add", "ok", 1, 2, {"a": 1}), ("set_read", "ok", 6, 9, {"a": 1}),
         ("set_read", "ok", 6, 9, {})],
        {"lost-element"},
    ),
    "an element without effect": (
        [("set_add", "fail", 1, 5, {"a": 1}), ("set_read", "ok", 6, 9, {"a": 1})], {"unexpected-element"}
    ),
    "an element of the future": (
        [("set_add", "ok", 10, 15, {"a": 1}), ("set_read", "ok", 6, 9, {"a": 1})], {"unexpected-element"}
    ),
    "an element twice": (
        [("set_add", "ok", 1, 2, {"a": 1}), ("set_read", "ok", 6, 9, {"a": 2})], {"repeated-element"}
    ),
    "a good counter": (
        [("counter_add", "ok", 1, 5, {"n": 3}), ("counter_add", "info", 6, 7, {"n": 4}),
         ("counter_add", "ok", 8, 9, {"n": -2}), ("counter_read", "ok", 1, 2, {"n": 3}),
         ("counter_read", "ok", 5, 7, {"n": 7}), ("counter_read", "ok", 8, 9, {"n": 1})],
        set(),
    ),
    "a subtraction during a read": (
        [("counter_add", "ok", 1, 2, {"n": 3}), ("counter_add", "ok", 5, 6, {"n": -3}),
         ("counter_read", "ok", 3, 9, {"n": 3}), ("counter_read", "ok", 4, 8, {"n": 0})],
        set(),
    ),
    "a counter too low": (
        [("counter_add", "ok", 1, 5, {"n": 3}), ("counter_read", "ok", 6, 7, {"n": 2})], {"counter-out-of-bounds"}
    ),
    "a counter too high": (
        [("counter_add", "ok", 1, 5, {"n": 3}), ("counter_add", "fail", 1, 5, {"n": 3}),
         ("counter_read", "ok", 2, 7, {"n": 4})],
        {"counter-out-of-bounds"},
    ),
    "a good counter beyond 64 bits": (
        [("counter_add", "ok", 1, 5, {"n": (1 << 63) - 1}), ("counter_add", "info", 1, 5, {"n": (1 << 63) - 1}),
         ("counter_read", "ok", 6, 7, {"n": (1 << 63) - 1})],
        set(),
    ),
    "a counter too high after a subtraction": (
        [("counter_add", "ok", 1, 5, {"n": 3}), ("counter_add", "ok", 6, 7, {"n": -3}),
         ("counter_read", "ok", 8, 9, {"n": 3})],
        {"counter-out-of-bounds"},
    ),
}  # fmt: skip


def events(cases: Iterable[list[Operation]]) -> list[dict[str, Any]]:
    """Every operation as the lines of a history: one file per case, values with the invocation and, if ok, the end."""
    rows: list[dict[str, Any]] = []
    for case, operations in enumerate(cases):
        for number, (f, type_, began, ended, value) in enumerate(operations):
            base = {"file": str(case), "line": 0, "process": number, "f": f"{f}",
                    "id": (case * 100 + number).to_bytes(16, "big")}  # fmt: skip
            keyed = {f"{case}:{key}": n for key, n in value.items()}
            asked = None if f.endswith("_read") else keyed
            rows.append(base | {"type": "invoke", "at_us": began, "value": asked})
            rows.append(base | {"type": type_, "at_us": ended, "value": keyed if type_ == "ok" else None})
    return rows


def violations(spark: Any, cases: Iterable[list[Operation]]) -> dict[int, set[str]]:
    """Case -> names."""
    return judged(spark, events(cases))


def judged(spark: Any, lines: list[dict[str, Any]], in_part: bool = False) -> dict[int, set[str]]:
    """Case -> names. in_part: some of the lines are missing."""
    names = schemas.HISTORY.fieldNames()
    rows = [tuple(row.get(name) for name in names) for row in lines]
    operations = relations.operations(spark.createDataFrame(rows, schemas.HISTORY)).cache()
    found: dict[int, set[str]] = {}
    for _, check in workloads.INVARIANTS.values():
        wrong = check(operations)
        for row in (workloads.of_a_part(wrong) if in_part else wrong).collect():
            found.setdefault(int(row.transactions[0].replace("-", ""), 16) // 100, set()).add(row.name)
            assert "?" not in row.sentence
    return found


def test_each_invariant_is_broken_by_its_own_histories_only(spark: Any):
    found = violations(spark, [operations for operations, _ in CASES.values()])
    expected = {name: names for name, (_, names) in CASES.items()}
    assert {name: found.get(case, set()) for case, name in enumerate(CASES)} == expected
    assert {name: broken(operations) for name, (operations, _) in CASES.items()} == expected


def test_what_another_history_added_may_have_come_at_any_time(spark: Any):
    """The last two operations of each are another host's, whose clock is ahead, or behind."""
    adds = [("counter_add", "ok", 5, 6, {"n": 4}), ("set_add", "ok", 5, 6, {"e": 1})]
    here = [("counter_add", "ok", 1, 2, {"n": 3}), ("set_read", "ok", 3, 4, {"e": 1})]
    cases = [[*here, ("counter_read", "ok", 3, 4, {"n": n}), *adds] for n in (7, 3, 7, 3, 8, 2)]
    lines = events(cases)
    for line in lines:
        case, number = divmod(int.from_bytes(line["id"], "big"), 100)
        if number > 2:
            line["file"] += "-there"
            line["at_us"] += 10_000_000 if case % 3 else -10_000_000
    wrong = {"counter-out-of-bounds"}
    assert judged(spark, lines) == {4: wrong, 5: wrong}


def test_what_a_history_lacks_may_have_been_tried_there(spark: Any):
    names = ("an element twice", "a lost element", "an element of the future", "a counter too low", "two rings")
    found = judged(spark, events(CASES[name][0] for name in names), in_part=True)
    assert found == {1: {"lost-element"}, 4: {"ring-broken"}, 0: {"repeated-element"}}
    without = [line for line in events([CASES["a good set"][0]]) if line["type"] != "invoke" or line["process"]]
    assert judged(spark, without, in_part=True) == {}


def test_random_histories_get_the_verdicts_of_brute_force(spark: Any):
    histories = [random_operations(Random(seed)) for seed in range(RANDOM_RUNS)]
    found = violations(spark, histories)
    for case, history in enumerate(histories):
        assert found.get(case, set()) == broken(history), history
    assert len({name for names in found.values() for name in names}) == 6
