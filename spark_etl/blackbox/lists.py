"""The certificate of a long history of lists: it is strictly serializable, and hence all that is weaker.

Nothing is built for a transaction: lines become arrays, and these edges. Every read is a beginning of the longest one
of its list, whose elements were appended once each, those of one transaction as it appended them; what no read shows
comes behind it, in the order of invocations. If these versions (ww, wr, rw), sessions and real time have no circle, the
transactions in any order that follows all of them are an execution that answers all that was answered. Sessions do not
follow from real time: by a coarse clock an answer and the next invocation are at one time. Whatever else a history
holds is left to `judge`: this accuses nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal

import msgspec
import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from spark_etl.blackbox.history import LINE_BYTES_MAX
from spark_etl.blackbox.intervals import NEVER, Interval, real_time

_AT_ONCE = 20_000
"""Lines."""


class _Line(msgspec.Struct):
    process: int
    type: Literal["ok", "info", "fail"]
    invoke: int
    ops: list[tuple[Literal["append", "r"], str | int, int | list[int] | None]]
    complete: int | None = None


_decode = msgspec.json.Decoder(_Line).decode


class _Unlike(Exception):
    """The certificate does not hold, or is not made for this."""


def _demand(holds: Any) -> None:
    if not np.all(holds):
        raise _Unlike


class _Columns:
    """Of transactions that were not refused, their appends, reads, and elements that these show."""

    def __init__(self) -> None:
        self.count = 0
        self.keys: dict[str | int, int] = {}
        self._of: dict[str, list[np.ndarray]] = {"transactions": [], "appends": [], "reads": [], "elements": []}
        self._next = 0

    def add(self, lines: Iterable[_Line]) -> None:
        """Some more."""
        keys, known = self.keys, self._next
        transactions, appends, reads, elements = list[int](), list[int](), list[int](), list[int]()
        for line in lines:
            self.count += 1
            if line.type == "fail":
                continue
            ok, complete, ops = line.type == "ok", line.complete, line.ops
            transactions += (ok, line.process, line.invoke, NEVER if complete is None else complete)
            own = _own(ops) if ok and len(ops) > 1 and len({op[1] for op in ops}) < len(ops) else None
            for number, (kind, name, value) in enumerate(ops):
                key = keys.setdefault(name, len(keys))
                if kind == "append":
                    if not isinstance(value, int):
                        raise _Unlike
                    appends += (known, key, value)
                elif ok and (own is None or number in own):
                    if isinstance(value, int):
                        raise _Unlike
                    reads += (known, key, len(value or ()), own[number] if own is not None else 0)
                    elements += value or ()
            known += 1
        self._next = known
        for name, numbers in zip(self._of, (transactions, appends, reads, elements), strict=True):
            self._of[name].append(np.array(numbers, np.int64))

    def table(self, name: str, width: int) -> np.ndarray:
        """A row for each column."""
        return np.concatenate(self._of[name]).reshape(-1, width).T


def _own(ops: Sequence[tuple[str, Any, Any]]) -> dict[int, int]:
    """The first read of each key, and how many elements the transaction has itself appended before; the others must
    show what these did, and what was appended since."""
    found: dict[int, int] = {}
    before: dict[Any, list[int]] = {}
    state: dict[Any, list[int]] = {}
    for number, (kind, key, value) in enumerate(ops):
        if kind == "append":
            (state if key in state else before).setdefault(key, []).append(value)
            continue
        shown, mine = value or [], before.get(key, [])
        _demand(isinstance(shown, list))
        if key in state:
            _demand(shown == state[key])
            continue
        _demand(shown[len(shown) - len(mine) :] == mine)
        found[number], state[key] = len(mine), [*shown]
    return found


def certified(texts: Iterable[bytes]) -> int | None:
    """How many transactions the lines of a history have, if it is proved; else None."""
    columns = _Columns()
    lines: Iterator[bytes] = iter(texts)
    try:
        while some := list(islice(lines, _AT_ONCE)):
            _demand(len(max(some, key=len)) <= LINE_BYTES_MAX)
            columns.add(map(_decode, some))
        _prove(columns)
    except (_Unlike, msgspec.DecodeError, UnicodeDecodeError, OverflowError, RecursionError):
        return None
    return columns.count


def _prove(columns: _Columns) -> None:
    ok, process, invoke, complete = columns.table("transactions", 4)
    _demand((invoke <= complete) & ((ok == 0) | (complete != NEVER)))
    complete = np.where(ok != 0, complete, NEVER)
    appender, append_key, appended = columns.table("appends", 3)
    reader, read_key, length, own = columns.table("reads", 4)
    (element,) = columns.table("elements", 1)
    place, shown_key, longest = _beginnings(read_key, length, element, len(columns.keys))
    _, value = np.unique(np.concatenate([appended, element[longest]]), return_inverse=True)
    values = int(value.max(initial=-1)) + 1
    written, seen = append_key * values + value[: len(appended)], shown_key * values + value[len(appended) :]
    by_value = np.argsort(written)
    written = written[by_value]
    _demand(written[1:] != written[:-1])
    at = np.searchsorted(written, seen)
    _demand(np.append(written, -1)[at] == seen)
    rows = by_value[at]
    _demand(np.bincount(rows, minlength=1) < 2)
    committed = ok != 0
    committed[appender[rows]] = True
    places = np.full(len(appender), NEVER)
    places[rows] = place
    order = np.lexsort((invoke[appender], places, append_key))
    order = order[committed[appender[order]]]
    writer, key = appender[order], append_key[order]
    start = np.searchsorted(key, np.arange(len(columns.keys) + 1))
    follows, by_one = key[1:] == key[:-1], writer[1:] == writer[:-1]
    _demand(~(follows & by_one) | (order[1:] > order[:-1]))
    follows &= ~by_one
    first, end, before = start[read_key], start[read_key + 1], length - own
    version, next_ = (np.append(writer, -1)[np.clip(first + before + n, 0, len(writer))] for n in (-1, 0))
    saw, missed = before > 0, (first + before < end) & (next_ != reader)
    _demand(~saw | (version != reader))
    nodes = np.flatnonzero(committed)
    source, target, count = real_time([Interval(nodes, invoke[nodes], complete[nodes])], len(ok))
    earlier, later = _sessions(nodes, process[nodes], ok[nodes] != 0)
    source = np.concatenate([writer[:-1][follows], version[saw], reader[missed], earlier, source])
    target = np.concatenate([writer[1:][follows], reader[saw], next_[missed], later, target])
    graph = csr_matrix((np.ones(len(source), np.int8), (source, target)), shape=(count, count))
    found, _ = connected_components(graph, directed=True, connection="strong")
    _demand(found == count)


def _sessions(nodes: np.ndarray, process: np.ndarray, ok: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `models.session_edges`: to each from the last acknowledged one before it in its process."""
    order = np.argsort(process, kind="stable")
    last = np.append(-1, np.maximum.accumulate(np.where(ok[order], np.arange(len(order)), -1)))[:-1]
    follows = (last >= 0) & (process[order[last]] == process[order])
    return nodes[order[last[follows]]], nodes[order[follows]]


def _beginnings(
    key: np.ndarray, length: np.ndarray, element: np.ndarray, keys: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every read is a beginning of the longest one of its list. Of each element of these: its place, its list, and its
    place among all elements."""
    start = np.cumsum(length) - length
    order = np.lexsort((length, key))
    last = order[np.append(np.diff(key[order]) != 0, True)] if len(order) else order
    longest = np.zeros(keys, np.int64)
    longest[key[last]] = last
    which = np.repeat(np.arange(len(key)), length)
    place = np.arange(len(element)) - start[which]
    _demand(element == element[start[longest[key[which]]] + place])
    mine = np.isin(np.arange(len(key)), last)[which]
    return place[mine], key[which[mine]], np.flatnonzero(mine)
