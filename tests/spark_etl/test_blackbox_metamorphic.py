"""What must not change a judgement, or must change it in a known way. RANDOM_HISTORIES=N tries N of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_etl.blackbox.history import Op, Transaction, parse
from spark_etl.blackbox.judge import LINEARIZABLE, Judgement, judge
from spark_etl.blackbox.models import MODELS
from spark_etl.blackbox.sessions import NAMES
from spark_etl.blackbox.solver import HOLDS, UNDETERMINED, VIOLATED
from tests.amounts import tries
from tests.spark_etl.random_histories import random_history
from tests.spark_etl.test_blackbox_random import written

EXAMPLES = tries("RANDOM_HISTORIES", 30, 60)
OWN = sorted((Path(__file__).parent / "histories").glob("*.jsonl"))
HISTORIES = st.one_of(
    st.sampled_from(OWN).map(lambda path: parse(path.read_bytes().splitlines())),
    st.tuples(st.integers(0, 1 << 60), st.booleans()).map(lambda p: random_history(Random(p[0]), 5, repeat=p[1])),
)


def verdicts(judgement: Judgement) -> dict[str, str]:
    of_sessions = {name: one.verdict for name, one in judgement.sessions.items()}
    return {name: verdict.verdict for name, verdict in judgement.models.items()} | of_sessions


def names(judgement: Judgement) -> set[str]:
    return {anomaly.name for anomaly in judgement.anomalies}


def renumbered(transactions: Sequence[Transaction]) -> list[Transaction]:
    return [msgspec.structs.replace(t, index=index) for index, t in enumerate(transactions)]


def renamed(history: Sequence[Transaction], keys: str, processes: int) -> list[Transaction]:
    """Other keys, values and processes, one to one."""
    numbers: dict[Any, int] = {}
    fresh = count(1000)

    def value(v: Any) -> Any:
        if isinstance(v, tuple):
            return tuple(map(value, v))
        return None if v is None else numbers.setdefault(v, next(fresh))

    return [
        msgspec.structs.replace(
            t, process=t.process + processes, ops=tuple(Op(o.kind, f"{keys}{o.key}", value(o.value)) for o in t.ops)
        )
        for t in history
    ]


def interleaved(random: Random, *histories: Sequence[Transaction]) -> list[Transaction]:
    """Processes in another order of lines, each in its own."""
    waiting: dict[int, list[Transaction]] = {}
    for t in (t for history in histories for t in history):
        waiting.setdefault(t.process, []).append(t)
    found = []
    while waiting:
        process = random.choice(list(waiting))
        found.append(waiting[process].pop(0))
        if not waiting[process]:
            del waiting[process]
    return renumbered(found)


@given(HISTORIES, st.integers(0, 1 << 60))
@settings(max_examples=EXAMPLES)
def test_names_and_the_order_of_lines_do_not_matter(history: list[Transaction], seed: int):
    before = judge(history)
    for other in (renamed(history, "ключ ", 70), interleaved(Random(seed), history)):
        after = judge(other)
        assert verdicts(after) == verdicts(before), written(other)
        assert names(after) == names(before), written(other)


@given(HISTORIES, HISTORIES, st.integers(0, 1 << 60))
@settings(max_examples=EXAMPLES)
def test_two_histories_that_share_nothing(one: list[Transaction], two: list[Transaction], seed: int):
    parts = [judge(one), judge(two)]
    both = judge(interleaved(Random(seed), renamed(one, "a", 0), renamed(two, "b", 100)))
    for name, verdict in verdicts(both).items():
        single = [verdicts(part)[name] for part in parts]
        if VIOLATED in single:
            few = any(name in part.models and "whichever" in part.models[name].why for part in parts)
            assert verdict == VIOLATED or (few and verdict == UNDETERMINED), f"{name}\n{written(one)}\n\n{written(two)}"
        elif UNDETERMINED in single:
            assert verdict in (UNDETERMINED, VIOLATED), f"{name}\n{written(one)}\n\n{written(two)}"
        else:
            assert verdict in (HOLDS, UNDETERMINED), f"{name}\n{written(one)}\n\n{written(two)}"
    found = {name.removesuffix("-process").removesuffix("-realtime") for name in names(both)}
    expected = {name.removesuffix("-process").removesuffix("-realtime") for part in parts for name in names(part)}
    other = {"G-other"}  # where nothing else shows why a model does not hold
    assert found - other == expected - other, f"{written(one)}\n\n{written(two)}"


@given(HISTORIES)
@settings(max_examples=EXAMPLES)
def test_without_real_time_nothing_that_needs_it_holds(history: list[Transaction]):
    timed = judge(history)
    before, after = verdicts(timed), judge(history, realtime=False)
    assert not {name for name in names(after) if name.endswith("-realtime")}, written(history)
    for name, verdict in verdicts(after).items():
        strong = name.startswith("strong-") and not name.startswith("strong-session-")
        if strong or name == LINEARIZABLE:
            there = any(t.ops for t in history if t.type != "fail")
            assert verdict != HOLDS or not there, f"{name}\n{written(history)}"
        elif "garbage-read" in names(timed):
            pass  # without real time it may have been there in the beginning
        elif before[name] != UNDETERMINED and verdict != UNDETERMINED:
            assert verdict == before[name], f"{name}\n{written(history)}"


@given(HISTORIES, st.integers(1, 50))
@settings(max_examples=EXAMPLES)
def test_what_lasts_longer_is_no_worse(history: list[Transaction], more: int):
    before = judge(history, sessions=False)
    longer = [
        msgspec.structs.replace(
            t,
            invoke=None if t.invoke is None else t.invoke - more,
            complete=None if t.complete is None else t.complete + more,
        )
        for t in history
    ]
    after = verdicts(judge(longer, sessions=False))
    for name, verdict in verdicts(before).items():
        assert verdict != HOLDS or after[name] in (HOLDS, UNDETERMINED), f"{name} {more}\n{written(history)}"
        assert after[name] != VIOLATED or verdict in (VIOLATED, UNDETERMINED), f"{name} {more}\n{written(history)}"


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_what_is_independent_changes_nothing(path: Path):
    history = parse(path.read_bytes().splitlines())
    other = [Transaction(0, 900, "ok", None, None, (Op("w", "elsewhere", 1),))]
    before = verdicts(judge(history, realtime=False))
    assert verdicts(judge(renumbered([*history, *other]), realtime=False)) == before
    assert set(before) == {*MODELS, LINEARIZABLE, *NAMES}
