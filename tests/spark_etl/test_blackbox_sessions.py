"""Session guarantees from client histories: one history for each side of each, and random ones against enumeration."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_etl.blackbox.history import Op, Transaction
from spark_etl.blackbox.judge import judge
from spark_etl.blackbox.models import SESSION
from spark_etl.blackbox.sessions import NAMES
from spark_etl.blackbox.solver import HOLDS, UNDETERMINED, VIOLATED
from tests.amounts import tries
from tests.spark_etl.brute_sessions import CHECKS, guarantees
from tests.spark_etl.random_histories import random_history
from tests.spark_etl.test_blackbox_random import written

EXAMPLES = tries("RANDOM_HISTORIES", 120, 300)

MR, RYW, MW, WFR = NAMES


def sessions(*transactions: tuple[int, list[tuple[str, str, Any]]]) -> list[Transaction]:
    return [
        Transaction(index, process, "ok", None, None, tuple(Op(*op) for op in ops))
        for index, (process, ops) in enumerate(transactions)
    ]


W1, W2, V1 = ("w", "x", 1), ("w", "x", 2), ("w", "y", 1)
R0, R1, R2, S1 = ("r", "x", None), ("r", "x", 1), ("r", "x", 2), ("r", "y", 1)
UPDATE = [R1, W2]
"""x = 2 is newer than x = 1."""


@pytest.mark.parametrize(
    ("broken", "history"),
    [
        ([MR], sessions((0, [W1]), (1, [R1]), (1, [R0]))),
        ([MR], sessions((0, [W1]), (1, UPDATE), (2, [R2]), (2, [R1]))),
        ([MR], sessions((0, [W1]), (1, [R1, R0]))),
        ([RYW], sessions((0, [W1]), (0, [R0]))),
        ([RYW], sessions((0, [W1]), (1, UPDATE), (1, [R1]))),
        ([RYW], sessions((0, [("append", "x", 1), ("r", "x", ())]))),
        ([MW], sessions((0, [W1]), (0, [V1]), (1, [S1, R0]))),
        ([MW], sessions((0, [W1]), (0, [V1]), (1, [S1]), (1, [R0]))),
        ([WFR], sessions((0, [W1]), (1, [R1]), (1, [V1]), (2, [S1]), (2, [R0]))),
        ([WFR], sessions((0, [R2]), (0, [W1]), (1, UPDATE))),
        ([MR, RYW], sessions((0, [W1]), (0, [R1]), (0, [R0]))),
        ([], sessions((0, [W1]), (0, [W2]), (1, [R2]), (1, [("r", "y", None)]))),
        ([], sessions((0, [W1]), (1, [W2]), (2, [R1]), (2, [R2]), (3, [R1]), (3, [R2]))),
        ([], sessions((0, [W1]), (0, [V1]), (1, [R0, S1]))),
    ],
)
def test_what_is_broken_is_named(broken: list[str], history: list[Transaction]):
    found = judge(history).sessions
    assert [name for name, one in found.items() if one.verdict == VIOLATED] == broken
    assert all(one.verdict == HOLDS for name, one in found.items() if name not in broken)
    for name in broken:
        (violation, *_) = found[name].violations
        assert violation.name == NAMES[name] and violation.transactions and violation.text


def test_a_sentence_for_each_step():
    (violation,) = judge(sessions((0, [W1]), (1, UPDATE), (2, [R2]), (2, [R1]))).sessions[MR].violations
    assert violation.transactions == (2, 3, 0, 1)
    assert violation.steps[:2] == ("process 2 first did T2 r('x') = 2", "process 2 then did T3 r('x') = 1")


@pytest.mark.parametrize(
    "history",
    [
        sessions((0, [W1, V1]), (1, [W1, ("w", "y", 2)]), (2, [R1, ("r", "y", None)])),
        sessions((0, [("r", "x", 7)]), (1, [W1]), (2, [R0])),
        sessions(
            (0, [("append", "x", 1)]), (1, [("append", "x", 2)]), (2, [("r", "x", (1, 2))]), (3, [("r", "x", (2,))])
        ),
    ],
)
def test_what_is_not_determined(history: list[Transaction]):
    assert {one.verdict for one in judge(history).sessions.values()} <= {UNDETERMINED, VIOLATED}
    assert judge(history).sessions[MW].why


def test_no_sessions_no_guarantees():
    found = judge(sessions((0, [W1]), (0, [R0])), sessions=False).sessions
    assert {(one.verdict, one.why) for one in found.values()} == {(UNDETERMINED, "the history has no sessions")}


@given(st.integers(0, 1 << 60))
@settings(max_examples=EXAMPLES)
def test_random_sessions_against_enumeration(seed: int):
    random = Random(seed)
    few, made = random.choice((1, 2, 2, 3)), random_history(random, random.choice((3, 4, 4, 5)))
    history = [msgspec.structs.replace(t, process=t.process % few, invoke=None, complete=None) for t in made]
    judgement, expected = judge(history), guarantees(history)
    for name, one in judgement.sessions.items():
        if judgement.models[SESSION + "causal"].verdict == HOLDS:
            assert one.verdict == HOLDS, f"{name}\n{written(history)}"
        if expected is not None:
            assert one.verdict == (HOLDS if expected[name] else VIOLATED), f"{name}: {one}\n{written(history)}"


def test_there_are_random_histories_on_both_sides():
    seen = set()
    for seed in range(400):
        made = random_history(Random(seed), 4)
        history = [msgspec.structs.replace(t, process=t.process % 2, invoke=None, complete=None) for t in made]
        seen |= set((guarantees(history) or {}).items())
    assert seen == {(name, side) for name in CHECKS for side in (True, False)}
