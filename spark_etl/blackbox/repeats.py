"""Histories whose values repeat, so that a read does not name its writer: every way in which it could.

Each way is a history in which the values that somebody read and several wrote have names of their own; a failed
comparison is a read of some other value. A history satisfies a model if one of the ways does. Of registers only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import msgspec

from spark_etl.blackbox.facts import Facts, Key
from spark_etl.blackbox.history import Op, Transaction


class Named:
    """A value by whom it was written. It looks like the value."""

    def __init__(self, value: Any):
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


_Writes = dict[Key, list[tuple[int, Any, Any]]]
"""key -> (transaction, the value, its name) of each write that may have happened."""


def ways(history: Sequence[Transaction], facts: Facts, most: int) -> Iterator[list[Transaction]] | None:
    """None: there are more than `most`, or lists are among the keys where values repeat, or nothing can have been there
    that a comparison says."""
    keys = facts.repeated
    if keys & facts.list_keys or any(isinstance(op.value, tuple) for t in history for op in t.ops if op.key in keys):
        return None
    renamed: dict[int, list[Op]] = {}
    written: _Writes = defaultdict(list)
    for t in history:
        renamed[t.index] = ops = list(t.ops)
        for n, op in enumerate(t.ops):
            if op.kind == "w" and op.key in keys and t.type != "fail":
                ops[n] = op._replace(value=Named(op.value))
                written[op.key].append((t.index, op.value, ops[n].value))
    open_: list[tuple[int, int, list[Any]]] = []
    for t in history:
        if t.type != "fail":
            open_ += _reads(t, renamed[t.index], written, facts)
    if not 0 < prod(len(choices) for _, _, choices in open_) <= most:
        return None
    return _chosen(history, renamed, open_)


def _reads(t: Transaction, ops: list[Op], written: _Writes, facts: Facts) -> list[tuple[int, int, list[Any]]]:
    """What each of a transaction's reads and comparisons may have seen: (transaction, ordinal, names). Changes `ops`
    where there is no choice."""
    found = []
    own: dict[Key, tuple[Any, Any]] = {}
    for n, op in enumerate(t.ops):
        if op.key not in facts.repeated or (t.type == "info" and (op.kind == "neq" or op.value is None)):
            continue
        if op.kind == "w":
            own[op.key] = (op.value, ops[n].value)
            continue
        value, name = own.get(op.key, (None, None))
        if op.key in own and (value == op.value) is (op.kind == "r"):
            ops[n] = Op("r", op.key, name)
            continue
        initial = facts.initial.get(op.key)
        mine = op.key in own  # which it has missed: what it read instead may be what it had overwritten itself
        there = [(initial, initial), *((v, name) for i, v, name in written[op.key] if mine or i != t.index)]
        choices = [name for value, name in there if (value == op.value) is (op.kind == "r")]
        ops[n] = Op("r", op.key, choices[0] if choices else Named(op.value))
        if len(choices) > 1 or (op.kind == "neq" and not choices):
            found.append((t.index, n, choices))
    return found


def _chosen(
    history: Sequence[Transaction], renamed: dict[int, list[Op]], open_: list[tuple[int, int, list[Any]]]
) -> Iterator[list[Transaction]]:
    for chosen in product(*(choices for _, _, choices in open_)):
        ops = {index: list(there) for index, there in renamed.items()}
        for (index, n, _), name in zip(open_, chosen, strict=True):
            ops[index][n] = ops[index][n]._replace(value=name)
        yield [msgspec.structs.replace(t, ops=tuple(ops[t.index])) for t in history]
