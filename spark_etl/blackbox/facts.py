"""What is known of a history from outside: its versions, what is certain about their order, what is plainly wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import msgspec

from spark_etl.blackbox.graphs import Edge
from spark_etl.blackbox.history import Op, Transaction

INIT = -1
"""In place of a transaction: whatever was there at the beginning."""

Key = Hashable
_SHOWN_ELEMENTS = 20


class Anomaly(msgspec.Struct, frozen=True):
    """transactions: indexes of those involved. text: a sentence with the operations. steps: of a cycle, why each of the
    transactions precedes the next (and the last one the first), a sentence each; edges: the same, to be drawn."""

    name: str
    transactions: tuple[int, ...]
    text: str
    steps: tuple[str, ...] = ()
    edges: tuple[Edge, ...] = ()


class Read(NamedTuple):
    """A committed transaction read this version of a key, not its own. ordinal: of the operation."""

    reader: int
    key: Key
    writer: int
    ordinal: int


class Facts:
    """What is known of a history.

    committed: index -> transaction. writers: key -> committed transactions that write it, in the order of the file.
    reads: of versions of others. ww: certain (earlier, later, key); neighbours only, where a whole order is known.
    places: list key -> writer -> its place in the order that was read.
    own_missed: reads of those who had written the key before, in the same transaction: at registers the other version
    that was read instead, at lists (writer: the reader itself) without what had been appended.
    rw: certain (reader, overwriter, key) at lists; at registers they follow from `reads` and the order of versions.
    rw_own: the same of those who read a list only after they had appended to it, where it shows that their own elements
    were not yet in their place: what they did not see follows their snapshot, in models that have one.
    free: key -> writers whose order among each other is not known from here. repeated: keys of which something was read
    (or compared) that does not name its writer, because the value was written twice; such reads are left out here.
    list_keys: keys that are appended to. contradictory: lists that have no order. initial: key -> what it held in the
    beginning, where that is not null.
    anomalies: what is plainly wrong.
    """

    def __init__(self) -> None:
        self.committed: dict[int, Transaction] = {}
        self.writers: dict[Key, list[int]] = defaultdict(list)
        self.reads: list[Read] = []
        self.ww: set[tuple[int, int, Key]] = set()
        self.places: dict[Key, dict[int, int]] = {}
        self.rw: set[tuple[int, int, Key]] = set()
        self.rw_own: set[tuple[int, int, Key]] = set()
        self.free: dict[Key, list[int]] = {}
        self.repeated: set[Key] = set()
        self.list_keys: set[Key] = set()
        self.own_missed: list[Read] = []
        self.contradictory: set[Key] = set()
        self.initial: dict[Key, Any] = {}
        self.anomalies: list[Anomaly] = []
        self._reported: set[Anomaly] = set()

    def report(self, name: str, transactions: Sequence[int], text: str) -> None:
        anomaly = Anomaly(name, tuple(dict.fromkeys(transactions)), text)
        if anomaly not in self._reported:
            self._reported.add(anomaly)
            self.anomalies.append(anomaly)


def show(op: Op) -> str:
    """An operation for people."""
    value = listed(op.value) if isinstance(op.value, tuple) else repr(op.value)
    return f"r({op.key!r}) = {value}" if op.kind == "r" else f"{op.kind}({op.key!r}, {value})"


def listed(values: Sequence[Any]) -> str:
    """A list, of a long one its beginning and its end."""
    if len(values) <= _SHOWN_ELEMENTS:
        return repr(list(values))
    half = _SHOWN_ELEMENTS // 2
    first, last = (", ".join(map(repr, part)) for part in (values[:half], values[-half:]))
    return f"[{first}, ... {len(values) - 2 * half} more ..., {last}]"
