"""Registers whose reads do not name their writers, by enumeration: values that repeat, nulls that are written, failed
comparisons, and what may have been there at first. Each way in which the reads could name their writers is a history
for `brute_blackbox`; a model holds if it does in one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import msgspec

from spark_etl.blackbox.history import Op, Transaction
from tests.spark_etl import brute_blackbox as brute

Initial = dict[Any, Any]


class Name:
    """A value by whom it was written; `NOBODY` wrote some."""


class First(Name):
    """What was there at first, in the eyes of a transaction of unknown outcome, of which null says nothing."""

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, First)

    def __hash__(self) -> int:
        return hash(None)


NOBODY = Name()


def models(history: Sequence[Transaction], variant: str, most: int) -> dict[str, bool] | None:
    """Base model -> whether it holds; None: there are more than `most` ways."""
    found = dict.fromkeys(brute.CHECKS, False)
    for n, way in enumerate(ways(history)):
        if n == most:
            return None
        asked = [name for name, holds in found.items() if not holds]
        for name, holds in brute.models(way, variant, asked).items() if asked else ():
            found[name] = holds and not (name == "read-uncommitted" and _garbage(way))
    return found


def linearizable(history: Sequence[Transaction]) -> bool:
    keys = dict.fromkeys(op.key for t in history for op in t.ops)
    return all(any(brute.linearizable(way, key) for way in ways(history)) for key in keys)


def ways(history: Sequence[Transaction]) -> Iterator[list[Transaction]]:
    for initial in initials(history):
        yield from _named(history, initial)


def certain(history: Sequence[Transaction]) -> list[Transaction]:
    """What was acknowledged, and what certainly was read of who happened."""
    times = Counter(_write(op) for t in history if t.type != "fail" for op in t.ops if op.kind == "w")
    found = [t for t in history if t.type == "ok"]
    for t in found:
        for read in t.ops:
            named = read.kind == "r" and read.value is not None and times[_write(read)] == 1
            for other in history if named else ():
                wrote = any(op.kind == "w" and _write(op) == _write(read) for op in other.ops)
                found += [other] if wrote and other.type == "info" and other not in found else []
    return found


def initials(history: Sequence[Transaction]) -> list[Initial]:
    """Null, or what nobody wrote and somebody read before he wrote there, if that is one value; or, if nobody certain
    read such a value, what one of unknown outcome did. None of them is read after an acknowledged write."""
    keys = list(dict.fromkeys(op.key for t in history for op in t.ops))
    choices = []
    for key in keys:
        written = {op.value for t in history for op in t.ops if op.kind == "w" and op.key == key}
        lasting = {op.value for t in history if t.type != "fail" for op in t.ops if op.kind == "w" and op.key == key}
        happened = certain(history)
        seen = [(t, value) for t in happened for value in _external(t, key)]
        strange = {value for _, value in seen if value is not None and value not in written}
        null = None not in lasting and any(value is None for _, value in seen)
        if not strange:
            strange = {v for t in history if t.type == "info" and t not in happened for v in _external(t, key)}
            strange -= written | {None}
            choices.append([None, *strange])
        elif len(strange) == 1 and not null and not any(
            value in strange and _after_a_write(history, t, key) for t, value in seen
        ):  # fmt: skip
            choices.append([None, *strange])
        else:
            choices.append([None])
    return [dict(zip(keys, chosen, strict=True)) for chosen in product(*choices)]


def _write(op: Op) -> tuple[Any, Any]:
    return op.key, op.value


def _external(t: Transaction, key: Any) -> Iterator[Any]:
    for op in t.ops:
        if op.key == key and op.kind == "w":
            return
        if op.key == key and op.kind == "r" and (t.type == "ok" or op.value is not None):
            yield op.value


def _after_a_write(history: Sequence[Transaction], reader: Transaction, key: Any) -> bool:
    for t in history:
        if t is reader or t.type != "ok" or not any(op.kind == "w" and op.key == key for op in t.ops):
            continue
        if t.complete is not None and reader.invoke is not None:
            if t.complete < reader.invoke:
                return True
        elif t.invoke is None and reader.invoke is None and t.process == reader.process and t.index < reader.index:
            return True
    return False


def _named(history: Sequence[Transaction], initial: Initial) -> Iterator[list[Transaction]]:
    names = {(t.index, n): Name() for t in history for n, op in enumerate(t.ops) if op.kind == "w"}
    there = [(t.ops[n].key, t.ops[n].value, names[t.index, n])
             for t in history for n, op in enumerate(t.ops) if op.kind == "w"]  # fmt: skip
    choices: list[list[tuple[int, int, Any]]] = []
    for t in history:
        for n, op in enumerate(t.ops) if t.type != "fail" else ():
            if op.kind == "w" or (t.type == "info" and (op.kind == "neq" or op.value is None)):
                continue
            wanted = op.kind == "r"
            found: list[Any] = [name for key, value, name in there if key == op.key and (value == op.value) is wanted]
            if (initial.get(op.key) == op.value) is wanted:
                found.append(First() if t.type == "info" else None)
            choices.append([(t.index, n, name) for name in found or [NOBODY]])
    for chosen in product(*choices):
        seen = {(index, n): name for index, n, name in chosen}
        yield [msgspec.structs.replace(t, ops=tuple(_renamed(t, names, seen))) for t in history]


def _renamed(t: Transaction, names: dict[tuple[int, int], Name], seen: dict[tuple[int, int], Any]) -> Iterator[Op]:
    for n, op in enumerate(t.ops):
        if op.kind == "w":
            yield op._replace(value=names[t.index, n])
        elif (t.index, n) in seen:
            yield Op("r", op.key, seen[t.index, n])
        elif op.kind == "r":
            yield op


def _garbage(way: Sequence[Transaction]) -> bool:
    return any(op.value is NOBODY for t in brute.happened(way) for op in t.ops)
