"""Small random histories: some executed by a database with snapshots, some made up."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from spark_etl.blackbox.history import Op, Transaction, seen_by_unknown


def random_history(random: Random, transactions: int = 4, repeat: bool = False) -> list[Transaction]:
    """repeat: values are written more than once."""
    lists = random.random() < 0.5
    keys = ["x", "y"][: random.choice((1, 2, 2))]
    made_up = random.choice((0.0, 0.0, 0.1, 0.5))
    stale = random.choice((0.0, 0.3, 0.7))
    count = random.randint(2, transactions)
    value = iter(range(1, 100))
    versions: dict[Any, list[Any]] = {key: [() if lists else None] for key in keys}
    written: dict[Any, list[Any]] = {key: [] for key in keys}
    planned: list[tuple[str, list[tuple[str, Any, Any]]]] = []
    for _ in range(count):
        kind = random.choice(("ok",) * 6 + ("fail", "info"))
        ops = [
            (random.choice("rw"), random.choice(keys), random.randint(1, 2) if repeat else next(value))
            for _ in range(random.randint(1, 3))
        ]
        planned.append((kind, ops))
        for op, key, number in ops:
            if op == "w":
                written[key].append(number)
    done: list[tuple[str, list[Op]]] = []
    for kind, ops in planned:
        age = {key: random.randint(1, 3) if random.random() < stale else 1 for key in keys}
        state = {key: versions[key][-min(age[key], len(versions[key]))] for key in keys}
        after: list[Op] = []
        touched: dict[Any, list[Any]] = {}
        for op, key, number in ops:
            if op == "w":
                state[key] = (*state[key], number) if lists else number
                touched.setdefault(key, []).append(number)
                after.append(Op("append" if lists else "w", key, number))
            elif kind == "fail" or (kind == "info" and (number + len(after)) % 3):
                after.append(Op("r", key, None))
            else:
                shown = state[key]
                if random.random() < made_up:
                    shown = _made_up(random, written[key], touched.get(key, []), lists)
                after.append(Op("r", key, shown))
        done.append((kind, after))
        if kind != "fail" and (kind == "ok" or random.random() < 0.5):
            for key, numbers in touched.items():
                versions[key].append((*versions[key][-1], *numbers) if lists else numbers[-1])
    if random.random() < 0.3:
        random.shuffle(done)
    return _timed(random, done)


def with_comparisons(random: Random, history: list[Transaction]) -> list[Transaction]:
    """Of registers: some transactions have failed compare-and-sets, too."""
    if any(op.kind == "append" or op.value == () for t in history for op in t.ops):
        return history
    found = []
    for t in history:
        ops = list(t.ops)
        if random.random() < 0.5:
            compared = Op("neq", random.choice("xy"), random.randint(1, 4))
            ops.insert(random.randint(0, len(ops)), compared)
        found.append(msgspec.structs.replace(t, ops=tuple(ops)))
    return found


def _made_up(random: Random, written: list[Any], own: list[Any], lists: bool) -> Any:
    if not lists:
        return random.choice([None, *written])
    others = [v for v in dict.fromkeys(written) if v not in own]
    if random.random() < 0.3:
        random.shuffle(others)
    return (*others[: random.randint(0, len(others))], *own)


def _timed(random: Random, done: list[tuple[str, list[Op]]]) -> list[Transaction]:
    """Sessions one after the other; a process ends with a transaction of unknown outcome. By a coarse clock an answer
    and the next invocation are at one time."""
    overlap, least = random.choice((1, 3, 8)), random.choice((0, 1))
    free: dict[int, int] = {}
    ended: set[int] = set()
    found: list[Transaction] = []
    now = 0
    for index, (kind, ops) in enumerate(done):
        process = random.choice([p for p in range(8) if p not in ended][:3])
        now += random.randint(least, 3)
        invoke = max(now, free.get(process, 0) + least)
        complete = invoke + random.randint(least, overlap)
        free[process] = complete
        if kind == "info":
            ended.add(process)
        shown = seen_by_unknown(tuple(ops)) if kind == "info" else tuple(ops)
        found.append(Transaction(index, process, kind, invoke, None if kind == "info" else complete, shown))
        now = invoke
    return found
