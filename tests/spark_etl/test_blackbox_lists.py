"""The certificate of a history of lists, against the judgement of the same: what it proves is so, and it proves most of
what holds."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from spark_etl.bench.histories import write_lists
from spark_etl.blackbox import lists
from spark_etl.blackbox.compare import Expected
from spark_etl.blackbox.history import Transaction, parse
from spark_etl.blackbox.jobs import Context, judge_lines
from spark_etl.blackbox.judge import judge, strictly_serializable
from spark_etl.blackbox.lists import certified
from tests.spark_etl.random_histories import random_history


def lines(history: list[Transaction]) -> list[bytes]:
    return [
        json.dumps({"process": t.process, "type": t.type, "invoke": t.invoke, "complete": t.complete, "ops": t.ops})
        .encode() for t in history
    ]  # fmt: skip


def told(*transactions: tuple[Any, ...], overlapping: bool = False) -> list[bytes]:
    """Of each its operations, and its type if it is not ok. One after the other, or all at once."""
    return [
        json.dumps({
            "process": n, "type": next((op for op in ops if isinstance(op, str)), "ok"),
            "invoke": n if overlapping else 10 * n, "complete": 100 if overlapping else 10 * n + 5,
            "ops": [op for op in ops if not isinstance(op, str)],
        }).encode()
        for n, ops in enumerate(transactions)
    ]  # fmt: skip


def append(key: Any, value: int) -> list[Any]:
    return ["append", key, value]


def read(key: Any, *values: int) -> list[Any]:
    return ["r", key, list(values)]


def test_what_is_proved_holds_and_most_of_what_holds_is_proved():
    proved = holding = 0
    for seed in range(400):
        history = random_history(Random(f"{seed}/lists"), 5)
        if any(op.kind == "w" for t in history for op in t.ops):
            continue
        judgement = judge(history)
        number = certified(lines(history))
        if number is not None:
            assert judgement == strictly_serializable(number), seed
        proved += number is not None
        holding += judgement.models["strong-serializable"].verdict == "holds" and not judgement.anomalies
    assert proved > 0.8 * holding > 20


@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize(
    "transactions",
    [
        [(append("x", 1),), (append("x", 2),), (read("x", 1, 2),)],
        [(append("x", 1), read("x", 1)), (read("y"), append("y", 3), read("y", 3)), (read("x", 1), read("x", 1))],
        [(append("x", 1), "info"), (read("x", 1),), (append("x", 2), "fail"), (append("x", 3), append("x", 4))],
        [(append("x", 1), "info"), (append(1, 1),), (read("x"), append("y", 1)), (read("1"),)],
    ],
)  # fmt: skip
def test_what_is_right_is_proved(transactions: list[tuple[Any, ...]], overlapping: bool):
    assert certified(told(*transactions, overlapping=overlapping)) == len(transactions)


@pytest.mark.parametrize(
    "transactions",
    [
        [(append("x", 1),), (append("x", 2),), (read("x", 1),)],
        [(append("x", 1),), (read("x"), append("y", 1)), (read("y"),)],
        [(append("x", 1),), (append("x", 2),), (read("x", 2, 1),)],
        [(append("x", 1), read("x", 1, 7))],
        [(read("x", 7),)],
        [(append("x", 1),), (read("x", 1, 1),)],
        [(append("x", 1),), (append("x", 2),), (read("x", 1, 2),), (read("x", 2),)],
        [(append("x", 1), append("x", 2)), (read("x", 1),)],
        [(append("x", 1), append("x", 2)), (read("x", 2, 1),)],
        [(append("x", 1), "fail"), (read("x", 1),)],
        [(append("x", 1),), (append("x", 2), read("x", 1))],
        [(read("x", 1), append("x", 1))],
        [(append("x", 1),), (read("x"), read("x", 1))],
        [(append("x", 1),), (read("x", 1), append("x", 2), read("x", 1))],
        [(append("x", 1),), (append("x", 1),), (read("x", 1),)],
        [(["w", "x", [1]],), (read("x", 1),)],
        [(append("x", 1), ["r", "x", 1])],
        [(["append", "x", None],)],
        [(["append", "x", [1]],)],
    ],
)
def test_what_is_wrong_or_of_another_kind_is_not_proved(transactions: list[tuple[Any, ...]]):
    assert certified(told(*transactions)) is None


def test_a_session_is_in_order_by_a_coarse_clock_too():
    """The answer and the next invocation are at one time, so that real time does not order them."""
    wrote = {"process": 0, "type": "ok", "invoke": 0, "complete": 5, "ops": [append("x", 1)]}
    missed = {"process": 0, "type": "ok", "invoke": 5, "complete": 9, "ops": [read("x")]}
    assert certified([json.dumps(line).encode() for line in (wrote, missed)]) is None
    assert certified([json.dumps(line).encode() for line in (wrote, missed | {"process": 1})]) == 2


@pytest.mark.parametrize("change", [{"invoke": None}, {"complete": None}, {"complete": 2}, {"type": "other"}])
def test_lines_without_times_are_left_to_the_judge(change: dict[str, Any]):
    line = {"process": 1, "type": "ok", "invoke": 3, "complete": 5, "ops": [append("x", 1)]}
    assert certified([json.dumps(line).encode()]) == 1
    assert certified([json.dumps(line | change).encode()]) is None
    assert certified([b"{"]) is None and certified([b"\xff"]) is None


def test_a_long_history_is_read_some_lines_at_a_time(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lists, "_AT_ONCE", 7)
    write_lists(tmp_path / "lists.jsonl", 400)
    texts = (tmp_path / "lists.jsonl").read_bytes().splitlines(keepends=True)
    assert certified(texts) == 400 and judge(parse(texts)) == strictly_serializable(400)


def test_what_is_known_besides_is_not_passed_over():
    texts = told((append("x", 1),), (read("x", 1),))
    assert judge_lines(texts, Context())["asked"] == "strict-serializable"
    assert judge_lines(texts, Context(Expected(no_realtime=True)))["asked"] == "strong-session-serializable"
