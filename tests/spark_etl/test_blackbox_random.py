"""The judgement of small random histories against enumeration. RANDOM_HISTORIES=N tries N of each kind."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_etl.blackbox.history import Op, Transaction
from spark_etl.blackbox.judge import LINEARIZABLE, Judgement, judge
from spark_etl.blackbox.linearize import LINEARIZABLE as FOUND
from spark_etl.blackbox.linearize import linearize
from spark_etl.blackbox.models import PLAIN, REALTIME, SESSION
from spark_etl.blackbox.solver import HOLDS, UNDETERMINED, VIOLATED
from tests.amounts import tries
from tests.spark_etl import brute_blackbox as brute
from tests.spark_etl.random_histories import random_history, with_comparisons

EXAMPLES = tries("RANDOM_HISTORIES", 160, 400)

PROVES = {
    "G0": "read-uncommitted",
    "G1a": "read-committed",
    "G1b": "read-committed",
    "G1c": "read-committed",
    "dirty-update": "read-committed",
    "incompatible-order": "read-committed",
    "future-read": "read-committed",
    "internal": "read-atomic",
    "G-single": "consistent-view",
    "lost-update": "snapshot-isolation",
    "G-nonadjacent": "snapshot-isolation",
    "long-fork": "snapshot-isolation",
    "G2-item": "serializable",
    "G-other": "serializable",
    "garbage-read": "read-uncommitted",
    "duplicate-elements": "read-uncommitted",
    "not-linearizable": "strong-serializable",
    "cyclic-versions": "strong-serializable",
}


def written(history: list[Transaction]) -> str:
    return "\n".join(str((t.process, t.type, t.invoke, t.complete, [tuple(op) for op in t.ops])) for t in history)


def agrees(history: list[Transaction]) -> Judgement:
    judgement = judge(history)
    certain = brute.World(history, [t for t in history if t.type == "ok"], set())
    for variant in (PLAIN, SESSION, REALTIME):
        for model, holds in brute.models(history, variant).items():
            if model == "read-uncommitted" and certain.contradictory():
                continue  # no order of versions is meant, so that there is none to look for cycles in
            found = judgement.models[variant + model]
            assert found.verdict == (HOLDS if holds else VIOLATED), f"{variant}{model}: {found}\n{written(history)}"
    keys = dict.fromkeys(op.key for t in history for op in t.ops)
    each = all(brute.linearizable(history, key) for key in keys)
    assert judgement.models[LINEARIZABLE].verdict == (HOLDS if each else VIOLATED), written(history)
    return judgement


def names_are_true(judgement: Judgement, history: list[Transaction]) -> None:
    """A name stands for a model that does not hold; what violates a model has a name."""
    for anomaly in judgement.anomalies:
        plain = anomaly.name.removesuffix("-process").removesuffix("-realtime")
        suffix = anomaly.name.removeprefix(plain)
        broken = {"": PROVES[plain], "-process": SESSION + "serializable", "-realtime": REALTIME + "serializable"}
        assert judgement.models[broken[suffix]].verdict == VIOLATED, f"{anomaly}\n{written(history)}"
    if not {a.name for a in judgement.anomalies} - {"not-linearizable"}:
        strict = judgement.models[REALTIME + "serializable"]
        assert strict.verdict == HOLDS or len(strict.cycle) < 2, written(history)


@given(st.integers(0, 1 << 60))
@example(seed=552)
@example(seed=32_167_789_891_862)
@settings(max_examples=EXAMPLES)
def test_three_transactions(seed: int):
    history = random_history(Random(seed), 3)
    names_are_true(agrees(history), history)


@given(st.integers(0, 1 << 60))
@example(seed=12_447_042_505)
@settings(max_examples=max(20, EXAMPLES // 4))
def test_four_transactions(seed: int):
    history = random_history(Random(seed), 4)
    names_are_true(agrees(history), history)


@given(st.integers(0, 1 << 60), st.integers(2, 6))
@settings(max_examples=EXAMPLES)
def test_values_that_repeat_are_searched(seed: int, count: int):
    history = random_history(Random(seed), count, repeat=True)
    by_key = {part.keys[0]: part.verdict == FOUND for part in linearize(history)}
    for key, found in by_key.items():
        assert found == brute.linearizable(history, key), f"{key}\n{written(history)}"
    judgement = judge(history)
    for variant in (PLAIN, SESSION, REALTIME) if count <= 4 else ():
        for model, holds in brute.executed(history, variant).items():
            found = judgement.models[variant + model].verdict
            assert found in (UNDETERMINED, HOLDS if holds else VIOLATED), f"{variant}{model}\n{written(history)}"


@given(st.integers(0, 1 << 60), st.booleans())
@settings(max_examples=EXAMPLES)
def test_failed_comparisons_are_searched(seed: int, repeat: bool):
    random = Random(seed)
    history = with_comparisons(random, random_history(random, 4, repeat))
    compared = any(op.kind == "neq" for t in history for op in t.ops)
    judgement = judge(history)
    for variant in (PLAIN, SESSION, REALTIME) if compared else ():
        (holds,) = brute.models(history, variant, ["serializable"]).values()
        found = judgement.models[variant + "serializable"]
        assert found.verdict == (HOLDS if holds else VIOLATED), f"{variant}{found}\n{written(history)}"
    each = all(brute.linearizable(history, key) for key in dict.fromkeys(op.key for t in history for op in t.ops))
    assert judgement.models[LINEARIZABLE].verdict == (HOLDS if each else VIOLATED), written(history)


@given(st.integers(0, 1 << 60))
@settings(max_examples=EXAMPLES)
def test_every_step_names_what_was_read_or_written_or_when(seed: int):
    """Nothing has to be taken on trust, but the order of writes that is forced by a cycle of its own. Not so where the
    reads of a list contradict one another: no order of its versions is meant."""
    history = random_history(Random(seed), 5)
    if brute.World(history, [t for t in history if t.type == "ok"], set()).contradictory():
        return
    evidence = ("r('", "w('", "append('", "completed at", "session of process", "in this order", "any other order")
    for anomaly in judge(history).anomalies:
        assert len(anomaly.steps) == len(anomaly.edges) or anomaly.name == "cyclic-versions"
        for step in anomaly.steps if anomaly.edges else ():
            assert any(word in step for word in evidence), f"{step}\n{written(history)}"


def test_long_lists_are_cut_short():
    numbers = tuple(range(1000))
    history = [Transaction(0, 0, "ok", 0, 1, tuple(Op("append", "x", n) for n in numbers))]
    history += [Transaction(i, i, "ok", 2, 3, (Op("r", "x", value),)) for i, value in ((1, numbers), (2, numbers[:-1]))]
    judgement = judge(history)
    assert {a.name for a in judgement.anomalies} >= {"G1b", "not-linearizable"}
    assert all(len(text) < 600 for a in judgement.anomalies for text in (a.text, *a.steps))


def test_values_that_repeat_are_told_apart():
    """Whichever of the two writes of 1 T2 has read, it missed the other of x, or of y, of the transaction it read."""
    ops = [[("w", "x", 1), ("w", "y", 1)], [("w", "x", 1), ("w", "y", 2)], [("r", "x", 1), ("r", "y", None)]]
    made = [[Op(*op) for op in several] for several in ops]
    history = [Transaction(i, i, "ok", None, None, tuple(there)) for i, there in enumerate(made)]
    models = judge(history).models
    assert models["read-atomic"].verdict == VIOLATED and "whichever write" in models["read-atomic"].why
    assert models["read-committed"].verdict == VIOLATED
    models = judge([*history[:2], msgspec.structs.replace(history[2], ops=tuple(made[2][:1]))]).models
    assert models["strong-session-serializable"].verdict == HOLDS


@pytest.mark.parametrize("spans", [False, True])
def test_keys_of_one_session_are_not_searched_apart_where_a_coarse_clock_does_not_order_it(spans: bool):
    """Each process reads what the other one is about to write; which write of a value it was is not known."""
    ops = [(0, "r", "x"), (0, "w", "y"), (1, "r", "y"), (1, "w", "x"), (2, "w", "x"), (2, "w", "y")]
    times = [(0, 5), (5, 9), (0, 5), (5, 9), (20, 21), (22, 23)]
    made = [(process, when, (Op(kind, key, 1),)) for (process, kind, key), when in zip(ops, times, strict=True)]
    made += [(3, (30, 31), (Op("w", "z", 1), Op("w", "u", 1)))] if spans else []
    history = [Transaction(i, process, "ok", *when, there) for i, (process, when, there) in enumerate(made)]
    models = judge(history).models
    assert models[LINEARIZABLE].verdict == HOLDS and models["serializable"].verdict == HOLDS
    assert models["strong-serializable"].verdict == VIOLATED


def test_many_values_that_repeat_are_searched_without_real_time():
    ops = [[Op("w", "x", i % 2)] if i % 3 else [Op("r", "x", 1)] for i in range(1, 40)]
    history = [Transaction(i, i % 5, "ok", None, None, tuple(there)) for i, there in enumerate(ops)]
    assert judge(history).strongest == ["strong-session-serializable"]


@pytest.mark.parametrize("variant", [PLAIN, SESSION, REALTIME])
def test_there_are_histories_on_both_sides_of_every_model(variant: str):
    seen = {
        (m, holds) for seed in range(300) for m, holds in brute.models(random_history(Random(seed), 3), variant).items()
    }
    assert seen >= {(model, side) for model in brute.CHECKS for side in (True, False)}
