"""Histories of the literature and of other checkers' kinds, in short, with what is so of them by definition; each is
also planted among many transactions that are right.

A line of `histories/known.txt`: name ; transactions between bars ; models that hold ; weakest models that do not ;
anomalies ; what is none of them (*: all others) ; order of versions. A transaction: `fail` or `info`, `p3` its process
(else each has its own), `@1-4` its times, and operations: wx1, rx1, rx (null), rx[1,2], ax1 (append), nx1 (not).
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest

from spark_etl.blackbox.history import Op, Transaction
from spark_etl.blackbox.judge import LINEARIZABLE, judge
from spark_etl.blackbox.models import MODELS, PLAIN, REALTIME, SESSION, weaker
from spark_etl.blackbox.solver import HOLDS, VIOLATED

NAMES = {
    "G0", "G1c", "G-single", "G-nonadjacent", "G2-item", "long-fork", "lost-update", "G1a", "G1b", "dirty-update",
    "internal", "future-read", "incompatible-order", "duplicate-elements", "garbage-read", "cyclic-versions",
    "not-linearizable", "not-strict-serializable",
}  # fmt: skip
BASES = {
    "RU": "read-uncommitted", "RC": "read-committed", "RA": "read-atomic", "CC": "causal", "CV": "consistent-view",
    "PC": "prefix", "SI": "snapshot-isolation", "RR": "repeatable-read", "SER": "serializable",
}  # fmt: skip
KINDS = {"w": "w", "r": "r", "a": "append", "n": "neq"}


class Known(NamedTuple):
    name: str
    history: list[Transaction]
    holds: list[str]
    broken: list[str]
    names: set[str]
    absent: set[str]
    orders: dict[str, list[int]]


def read(line: str) -> Known:
    name, text, holds, broken, names, absent, *orders = (part.strip() for part in line.split(";"))
    history = [transaction(index, part.split()) for index, part in enumerate(text.split("|"))]
    found = set(names.split())
    none = NAMES - {base(one) for one in found} if absent == "*" else set(absent.split())
    given = ast.literal_eval(orders[0]) if orders else {}
    return Known(name, history, list(map(model, holds.split())), list(map(model, broken.split())), found, none, given)


def transaction(index: int, words: list[str]) -> Transaction:
    kind, process, times, ops = "ok", index, ["", ""], []
    for word in words:
        if word in ("fail", "info"):
            kind = word
        elif re.fullmatch(r"p\d+", word):
            process = int(word[1:])
        elif word[0] == "@":
            times = word[1:].split("-")
        else:
            ops.append(Op(KINDS[word[0]], word[1], value(word[2:])))
    invoke, complete = (int(time) if time else None for time in times)
    return Transaction(index, process, kind, invoke, complete, tuple(ops))


def value(text: str) -> Any:
    if text[:1] == "[":
        return tuple(int(one) for one in text[1:-1].split(",") if one)
    return int(text) if text else None


def model(code: str) -> str:
    if code == "LIN":
        return LINEARIZABLE
    for prefix, variant in (("rt", REALTIME), ("s", SESSION)):
        if code.startswith(prefix):
            return variant + BASES[code.removeprefix(prefix)]
    return PLAIN + BASES[code]


def base(name: str) -> str:
    return name.removesuffix("-process").removesuffix("-realtime")


ALL = [read(line) for line in (Path(__file__).parent / "histories" / "known.txt").read_text().splitlines()]


@pytest.mark.parametrize("known", ALL, ids=lambda known: known.name)
def test_by_definition(known: Known):
    judgement = judge(known.history, known.orders)
    found = {anomaly.name for anomaly in judgement.anomalies}
    assert known.names <= found and not found & known.absent, found
    for name in known.holds:
        implied = () if name == LINEARIZABLE else weaker(name)
        assert {m: judgement.models[m] for m in (name, *implied) if judgement.models[m].verdict != HOLDS} == {}
    for name in known.broken:
        stronger = (m for m in MODELS if name != LINEARIZABLE and name in weaker(m))
        assert {m: judgement.models[m] for m in (name, *stronger) if judgement.models[m].verdict != VIOLATED} == {}


def test_every_anomaly_is_there():
    assert {base(name) for known in ALL for name in known.names} >= NAMES - {"not-strict-serializable"}


def right(random: Random, count: int, lists: bool) -> list[Transaction]:
    """Strictly serializable: each takes effect at a moment between its times."""
    state: dict[str, Any] = {}
    found = []
    for index in range(count):
        now, after, ops = 10 * index, dict(state), []
        for number in range(random.randint(1, 4)):
            key, fresh = f"k{random.randrange(20)}", 10 * index + number
            if random.random() < 0.5:
                ops.append(Op("r", key, after.get(key, () if lists else None)))
            else:
                after[key] = (*after.get(key, ()), fresh) if lists else fresh
                ops.append(Op("append" if lists else "w", key, fresh))
        kind = random.choice(["ok"] * 8 + ["fail", "info"])
        if kind == "ok" or (kind == "info" and random.random() < 0.5):
            state = after
        if kind != "ok":
            ops = [op._replace(value=None) if op.kind == "r" else op for op in ops]
        invoke, complete = now - random.randint(0, 15), now + random.randint(0, 15)
        found.append(
            Transaction(index, 1000 + index % 8 if kind == "ok" else 2000 + index, kind, invoke, complete, tuple(ops))
        )
    return [msgspec.structs.replace(t, complete=None) if t.type == "info" else t for t in found]


def planted(random: Random, among: list[Transaction], known: Known) -> tuple[list[Transaction], set[int]]:
    """Between transactions, with keys and values of its own; and its lines."""
    lines: list[tuple[float, Transaction, bool]] = [(index, t, False) for index, t in enumerate(among)]
    for place, t in zip(sorted(random.random() * len(among) for _ in known.history), known.history, strict=True):
        ops = tuple(Op(op.kind, f"planted {op.key}", moved(op.value)) for op in t.ops)
        lines.append((place, msgspec.structs.replace(t, ops=ops), True))
    lines.sort(key=lambda line: line[0])
    history = [msgspec.structs.replace(t, index=index) for index, (_, t, _) in enumerate(lines)]
    return history, {index for index, (_, _, mine) in enumerate(lines) if mine}


def moved(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(moved, value))
    return None if value is None else 100_000 + value


@pytest.mark.parametrize("seed", range(24))
def test_what_is_planted_is_found_and_nothing_else(seed: int):
    random = Random(seed)
    among = right(random, 150, lists=seed % 2 == 0)
    known = random.choice([one for one in ALL if one.names and not one.orders])
    history, lines = planted(random, among, known)
    assert not judge(among).anomalies
    alone, judgement = judge(known.history), judge(history)
    assert {base(a.name) for a in judgement.anomalies} == {base(a.name) for a in alone.anomalies}, known.name
    assert all(set(anomaly.transactions) <= lines for anomaly in judgement.anomalies), known.name
    for name, verdict in alone.models.items():
        assert (judgement.models[name].verdict == VIOLATED) >= (verdict.verdict == VIOLATED), (known.name, name)
        assert not (verdict.verdict == HOLDS and judgement.models[name].verdict == VIOLATED), (known.name, name)
