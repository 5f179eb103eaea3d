"""Orders of versions that nothing forces: they are tried, and the verdict is that of enumeration."""

from __future__ import annotations

from itertools import chain, combinations
from random import Random
from typing import Any

import pytest

from spark_etl.blackbox.history import Op, Transaction
from spark_etl.blackbox.judge import judge
from spark_etl.blackbox.linearize import linearize, serialize
from spark_etl.blackbox.models import Limits
from spark_etl.blackbox.solver import HOLDS, UNDETERMINED, VIOLATED, Solver
from tests.spark_etl import brute_blackbox as brute

WRITERS = (
    "w x 1, w a3 1, w a4 1",
    "w x 2, w b1 1, w b2 1",
    "w y 1, w c2 1, w c4 1",
    "w y 2, w d1 1, w d3 1",
)
READERS = (
    ("r x 1, r d1 1", "r y 1, r b1 1"),
    ("r x 1, r c2 1", "r y 2, r b2 1"),
    ("r x 2, r d3 1", "r y 1, r a3 1"),
    ("r x 2, r c4 1", "r y 2, r a4 1"),
)
"""Each two rule out one of the four combinations of an order of x = 1 and x = 2 with an order of y = 1 and y = 2: e.g.
the first two that x = 1 and y = 1 come first."""
ALL = [chosen for count in range(5) for chosen in combinations(READERS, count)]
SEEDS = (74, 190, 435, 537, 567)
"""The first one holds after all."""
DECIDED = ("serializable", "consistent-view")


def history(*readers: tuple[str, ...]) -> list[Transaction]:
    found = []
    for index, text in enumerate((*WRITERS, *chain(*readers))):
        ops = tuple(Op(kind, key, int(value)) for kind, key, value in map(str.split, text.split(", ")))
        found.append(Transaction(index, index, "ok", None, None, ops))
    return found


def counted(monkeypatch: pytest.MonkeyPatch, *names: str) -> dict[str, int]:
    """How often these methods of the solver are called from now on."""
    calls = dict.fromkeys(names, 0)
    for name in names:
        original = getattr(Solver, name)

        def called(self: Solver, *args: Any, name: str = name, original: Any = original) -> Any:
            calls[name] += 1
            return original(self, *args)

        monkeypatch.setattr(Solver, name, called)
    return calls


def made_up(random: Random) -> list[Transaction]:
    """Six transactions that write without reading before, and read whatever somebody writes."""
    plans = [[(random.choice("rw"), random.choice("xy")) for _ in range(random.randint(1, 3))] for _ in range(6)]
    written: dict[str, list[int | None]] = {"x": [None], "y": [None]}
    for number, (kind, key) in enumerate(chain(*plans), 1):
        written[key] += [number] * (kind == "w")
    numbers, found = iter(range(1, 100)), []
    for index, plan in enumerate(plans):
        state: dict[str, int | None] = {}
        ops = []
        for kind, key in plan:
            number = next(numbers)
            state[key] = number if kind == "w" else state.get(key, random.choice(written[key]))
            ops.append(Op(kind, key, state[key]))
        found.append(Transaction(index, index, "ok", None, None, tuple(ops)))
    return found


@pytest.mark.parametrize("readers", ALL)
def test_it_holds_as_long_as_one_combination_is_left(readers: tuple[tuple[str, ...], ...]):
    models = judge(history(*readers)).models
    assert models["serializable"].verdict == (VIOLATED if len(readers) == 4 else HOLDS)
    assert models["consistent-view"].verdict == HOLDS


def test_the_sat_solver_is_reached(monkeypatch: pytest.MonkeyPatch):
    calls = counted(monkeypatch, "_sat")
    judge(history(*READERS))
    violated = calls["_sat"]
    judge(history(*READERS[:3]))
    assert 0 < violated < calls["_sat"]


@pytest.mark.parametrize("seed", SEEDS)
def test_views_that_must_be_tried(seed: int, monkeypatch: pytest.MonkeyPatch):
    calls = counted(monkeypatch, "_choices")
    random = made_up(Random(seed))
    models = judge(random).models
    assert calls["_choices"]
    for model, holds in brute.models(random, "", DECIDED).items():
        assert models[model].verdict == (HOLDS if holds else VIOLATED), model
    assert (models["consistent-view"].verdict == HOLDS) == (seed == SEEDS[0])


def test_without_time_nothing_is_decided_that_needs_a_search():
    models = judge(history(*READERS), limits=Limits(seconds=-1.0)).models
    assert models["serializable"].verdict == UNDETERMINED
    assert "--seconds" in models["serializable"].why


def test_the_search_for_linearizability_looks_at_the_clock():
    timed = [Transaction(0, 0, "ok", 0, 3, (Op("w", "x", 1),)), Transaction(1, 1, "ok", 1, 2, (Op("r", "x", 1),))]
    for found in (linearize(timed, deadline=0.0), serialize(timed, True, 100, deadline=0.0)):
        assert [part.verdict for part in found] == [UNDETERMINED]
        assert "--seconds" in found[0].why
