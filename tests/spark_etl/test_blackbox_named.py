"""Registers and lists whose reads do not name their writers, or show what nobody wrote. RANDOM_HISTORIES=N tries N."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations, product
from random import Random
from typing import Any

import pytest

from spark_etl.blackbox.history import Op, Transaction, seen_by_unknown
from spark_etl.blackbox.judge import LINEARIZABLE, STRICT, judge
from spark_etl.blackbox.models import PLAIN, REALTIME, SESSION
from spark_etl.blackbox.solver import HOLDS, UNDETERMINED, VIOLATED
from tests.amounts import tries
from tests.spark_etl import brute_blackbox as brute
from tests.spark_etl import brute_named as named

EXAMPLES = tries("RANDOM_HISTORIES", 100, 250)
FIRST = 100
"""What may have been there at first."""


def told(*transactions: Sequence[Any]) -> list[Transaction]:
    """One after the other, each of a process of its own: its operations, or "info" before them."""
    found = []
    for n, ops in enumerate(transactions):
        unknown = ops[0] == "info"
        made = tuple(Op(kind, key, tuple(value) if isinstance(value, list) else value) for kind, key, value in
                     (ops[1:] if unknown else ops))  # fmt: skip
        made = seen_by_unknown(made) if unknown else made
        found.append(Transaction(n, n, "info" if unknown else "ok", 10 * n, None if unknown else 10 * n + 5, made))
    return found


def r(key: str, value: Any) -> tuple[str, str, Any]:
    return "r", key, value


def w(key: str, value: Any) -> tuple[str, str, Any]:
    return "w", key, value


def append(value: int) -> tuple[str, str, int]:
    return "append", "x", value


def neq(value: int) -> tuple[str, str, int]:
    return "neq", "x", value


CASES = {
    "an element that nobody appended, before the reader's own": (
        told([append(1), r("x", [1])], [r("x", [FIRST, 1])]),
        {"read-uncommitted": VIOLATED, STRICT: VIOLATED, LINEARIZABLE: VIOLATED},
    ),
    "a list that was not empty at first": (
        told([r("x", [FIRST]), append(1)], [append(1)], [r("x", [FIRST, 1, 1])]),
        {STRICT: HOLDS, LINEARIZABLE: HOLDS},
    ),
    "a comparison that failed before the register was written, after all": (
        told([r("x", FIRST), w("x", 1)], [neq(1)]),
        {"serializable": HOLDS, SESSION + "serializable": HOLDS, STRICT: VIOLATED},
    ),
    "the same in its time": (told([neq(1)], [r("x", FIRST), w("x", 1)]), {STRICT: HOLDS}),
    "a comparison of which nobody knows whether it failed": (
        told(["info", neq(1), w("x", None)], [r("x", None), w("x", 1)], [r("x", None)]),
        {STRICT: HOLDS, LINEARIZABLE: HOLDS},
    ),
    "only those of unknown outcome have read what was there at first": (
        told(["info", r("x", 0), w("x", 1)], ["info", r("x", 0), w("x", 1)], [r("x", 1)]),
        {STRICT: HOLDS, LINEARIZABLE: HOLDS},
    ),
    "who misses his own write of a repeated value reads another's": (
        told([w("x", 1)], [w("x", 2), r("x", 1)], [w("x", 1)]),
        {"read-uncommitted": HOLDS, "read-committed": HOLDS, "read-atomic": VIOLATED},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each(case: str):
    history, expected = CASES[case]
    models = judge(history).models
    assert {model: models[model].verdict for model in expected} == expected


def random_registers(random: Random) -> list[Transaction]:
    """Up to three transactions, of reads, writes, comparisons; some executed, some made up."""
    keys = ["x", "y"][: random.choice((1, 2))]
    first = {key: random.choice((None, None, FIRST)) for key in keys}
    fresh, repeats = iter(range(1, 90)), random.random() < 0.6
    versions, pool = {key: [first[key]] for key in keys}, {key: [first[key]] for key in keys}
    stale, made_up = random.choice((0, 0.3, 0.6)), random.choice((0, 0, 0.15, 0.4))
    done: list[tuple[str, list[Op]]] = []
    for _ in range(random.randint(2, 3)):
        kind = random.choice(("ok",) * 6 + ("fail", "info"))
        ages = {key: random.randint(1, 3) if random.random() < stale else 1 for key in keys}
        state = {key: versions[key][-min(ages[key], len(versions[key]))] for key in keys}
        ops: list[Op] = []
        written = {}
        for _ in range(random.randint(1, 3)):
            key, what = random.choice(keys), random.choice(("r", "r", "w", "w", "cas", "neq"))
            shown = random.choice(pool[key]) if random.random() < made_up else state[key]
            if what in ("r", "cas"):
                ops.append(Op("r", key, shown))
            if what in ("w", "cas"):
                value = None if random.random() < 0.2 else random.choice((1, 2)) if repeats else next(fresh)
                ops.append(Op("w", key, value))
                state[key] = written[key] = value
                pool[key].append(value)
            others = [v for v in (*pool[key], 1, 2) if v is not None and (v != shown or random.random() < made_up)]
            if what == "neq" and others:
                ops.append(Op("neq", key, random.choice(others)))
        done.append((kind, ops))
        for key, value in written.items() if kind == "ok" or (kind == "info" and random.random() < 0.5) else ():
            versions[key].append(value)
    random.shuffle(done) if random.random() < 0.3 else None
    return _timed(random, done)


def random_lists(random: Random) -> list[Transaction]:
    """Up to three transactions, of appends, whole writes and reads of one list."""
    first = random.choice(((), (), (FIRST,), (FIRST, FIRST + 1)))
    fresh, repeats, wholes = iter(range(1, 90)), random.random() < 0.5, random.random() < 0.4
    versions, pool, made_up = [first], list(first), random.choice((0, 0, 0.2, 0.5))
    done: list[tuple[str, list[Op]]] = []
    for _ in range(random.randint(2, 3)):
        kind, state, ops = random.choice(("ok",) * 6 + ("fail", "info")), random.choice(versions[-2:]), []
        for _ in range(random.randint(1, 3)):
            what, value = random.choice("raaw" if wholes else "ra"), random.choice((1, 2)) if repeats else next(fresh)
            if what == "r":
                shown = tuple(random.sample(pool, random.randint(0, min(3, len(pool)))))
                ops.append(Op("r", "x", shown if random.random() < made_up else state))
            else:
                state = (*state, value) if what == "a" else (value,)
                ops.append(Op("append", "x", value) if what == "a" else Op("w", "x", state))
                pool += [value] if value not in pool else []
        done.append((kind, ops))
        versions += [state] if kind != "fail" else []
    return _timed(random, done)


def _timed(random: Random, done: Sequence[tuple[str, list[Op]]]) -> list[Transaction]:
    """Some without real time, some by a coarse clock; a process may go on after it does not know what became of one."""
    overlap, least, timeless = random.choice((1, 3, 8)), random.choice((0, 1)), random.choice((0, 0, 0.4, 1))
    free: dict[int, int] = {}
    now, found = 0, []
    for index, (kind, ops) in enumerate(done):
        process = random.randrange(3)
        now = max(now + random.randint(least, 3), free.get(process, 0) + least)
        free[process] = now + random.randint(least, overlap)
        times = (now, None if kind == "info" else free[process])
        times = (None, None) if random.random() < timeless else times
        found.append(Transaction(index, process, kind, *times, seen_by_unknown(tuple(ops)) if kind == "info" else
                                 tuple(ops)))  # fmt: skip
    return found


def test_random_registers_against_enumeration():
    decided = 0
    for seed in range(EXAMPLES):
        history = random_registers(Random(f"{seed} registers"))
        compared = any(op.kind == "neq" for t in history for op in t.ops)
        judgement = judge(history).models
        for variant in (PLAIN, SESSION, REALTIME):
            expected = named.models(history, variant, 150)
            for model, holds in (expected or {}).items():
                if model == "read-uncommitted" and compared:
                    continue  # what a comparison says of the order of versions is nowhere said
                verdict = judgement[variant + model].verdict
                decided += verdict != UNDETERMINED
                assert verdict in (UNDETERMINED, HOLDS if holds else VIOLATED), f"{seed} {variant}{model}"
        if expected is not None and all(t.timed for t in history):
            verdict = judgement[LINEARIZABLE].verdict
            assert verdict in (UNDETERMINED, HOLDS if named.linearizable(history) else VIOLATED), seed
    assert decided > 20 * EXAMPLES


def test_random_lists_against_enumeration():
    """An element twice is called wrong though it may have been there twice at first."""
    decided = 0
    for seed in range(2 * EXAMPLES):
        history = random_lists(Random(f"{seed} lists"))
        judgement = judge(history)
        for variant in (PLAIN, SESSION, REALTIME):
            verdict = judgement.models[variant + "serializable"].verdict
            decided += verdict != UNDETERMINED
            assert verdict in (UNDETERMINED, HOLDS if _serial(history, variant) else VIOLATED), f"{seed} {variant}"
    assert decided > 4 * EXAMPLES


def _serial(history: list[Transaction], variant: str) -> bool:
    """Whether some order explains it, from a beginning that somebody has read and nobody has written."""
    written = {v for t in history for op in t.ops if op.kind != "r" for v in _values(op.value)}
    shown = [_values(op.value) for t in history for op in t.ops if op.kind == "r"]
    beginnings = {value[:n] for value in [(), *shown] for n in range(len(value) + 1) if not {*value[:n]} & written}
    certain, unknown = ([t for t in history if t.type == kind] for kind in ("ok", "info"))
    for first, size in product(beginnings, range(len(unknown) + 1)):
        for chosen in combinations(unknown, size):
            before = brute.precedence(sorted((*certain, *chosen), key=lambda t: t.index), variant)
            for order in permutations((*certain, *chosen)):
                if brute.respects(order, before) and _executes(order, first):
                    return True
    return False


def _values(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _executes(order: Sequence[Transaction], state: tuple[Any, ...]) -> bool:
    for t in order:
        for op in t.ops:
            if op.kind == "append":
                state = (*state, op.value)
            elif op.kind == "w":
                state = op.value
            elif op.value != state and not (t.type == "info" and op.value is None):
                return False
    return True
