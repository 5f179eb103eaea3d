"""The course of a run, slice by slice: the rows of `course.slices`, from arrays."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from spark_etl.certify.arrays import NOTHING, codes, halves, in_order, numbers, of_groups
from spark_etl.certify.client import Operations, Placed
from spark_etl.certify.log import is_final
from spark_etl.certify.source import Source


class Slice(msgspec.Struct):
    """As `course.slices` has them: percentiles are exact here."""

    slice: int
    n: int
    unknown: int
    median: int | None
    p99: int | None
    most: int | None
    first: int
    last: int
    file: str | None = None
    replica: int | None = None
    shift: int | None = None


def first_sent(place: np.ndarray, at: np.ndarray, count: int) -> np.ndarray:
    """When each of `count` messages was first multicast; NOTHING: not known. place: whose each multicast was, or -1."""
    never, known = np.iinfo(np.int64).max, place >= 0
    found = of_groups(place[known], at[known], count, np.minimum, never)
    return np.where(found == never, NOTHING, found)


def _took(at: np.ndarray, sent: np.ndarray) -> np.ndarray:
    """How long after it was multicast each message was there; NOTHING: not known."""
    return np.where(sent == NOTHING, NOTHING, at - sent)


class Collected:
    """Slices of `width` microseconds, of what is added bit by bit; of each row, how long it took is kept."""

    def __init__(self, width: int):
        self._width = width
        self._found: dict[int, Slice] = {}
        self._took: dict[int, list[np.ndarray]] = {}

    def add(self, time: np.ndarray, took: np.ndarray, unknown: np.ndarray) -> None:
        """Rows: when it was, how long it took (NOTHING: not known), and whether its end is not known."""
        if not len(time):
            return
        number = np.floor_divide(time, self._width)
        order = in_order(number)
        rising = number[order]
        starts = np.flatnonzero(np.append(True, rising[1:] != rising[:-1]))
        for one, rows in zip(rising[starts].tolist(), np.split(order, starts[1:]), strict=True):
            when, known = time[rows], took[rows]
            first, last = int(when.min()), int(when.max())
            found = self._found.setdefault(one, Slice(one, 0, 0, None, None, None, first, last))
            found.n, found.unknown = found.n + len(rows), found.unknown + int(unknown[rows].sum())
            found.first, found.last = min(found.first, first), max(found.last, last)
            self._took.setdefault(one, []).append(_small(known[known != NOTHING]))

    def rows(self, file: str | None = None, replica: int | None = None) -> list[Slice]:
        """By their numbers, of a history or a replica."""
        for one, found in self._found.items():
            took = np.sort(np.concatenate(self._took.pop(one)))
            found.median, found.p99, found.most = (_percentile(took, percent) for percent in (50, 99, 100))
            found.file, found.replica = file, replica
        return [self._found[one] for one in sorted(self._found)]


def _small(values: np.ndarray) -> np.ndarray:
    """In half of the memory, if they can be."""
    short = np.iinfo(np.int32)
    fits = not len(values) or (short.min <= values.min() and values.max() <= short.max)
    return values.astype(np.int32) if fits else values


def of_deliveries(at: np.ndarray, sent: np.ndarray, into: Collected) -> None:
    """Of one replica. sent: when the messages were first multicast, or NOTHING."""
    into.add(at, _took(at, sent), np.zeros(len(at), bool))


def of_replicas(
    source: Source, replicas: Sequence[int], sent: np.ndarray, submitted: pa.Table, width: int
) -> list[Slice]:
    """All deliveries of a shard's replicas. sent: as `first_sent`, of each position of its log. submitted: id, at; of
    what was delivered early, and is in no log, the id tells when it was multicast."""
    rows = []
    for replica in replicas:
        told = source.read("deliveries", ("stage", "position", "at", "id"), [replica])
        final, when = is_final(told), np.full(told.num_rows, NOTHING)
        when[final] = sent[numbers(told["position"])[final] - 1]
        if not final.all():
            ids, whose = codes(halves(told["id"]).compress(~final, axis=0), halves(submitted["id"]))
            count = int(max(ids.max(), whose.max(initial=-1))) + 1
            when[~final] = first_sent(whose, numbers(submitted["at"]), count)[ids]
        into = Collected(width)
        of_deliveries(numbers(told["at"]), when, into)
        rows += into.rows(replica=replica)
    return rows


def of_operations(ops: Operations, into: Collected, mine: np.ndarray | slice = slice(None)) -> None:
    """Some operations of one history."""
    time = np.where(ops.ok | ops.failed, ops.complete, ops.invoke)
    took = np.where(ops.ok, ops.complete - ops.invoke, NOTHING)
    into.add(time[mine], took[mine], ~ops.ok[mine])


def shifts(ops: Operations, at: Placed, carriers: np.ndarray, sent: np.ndarray) -> np.ndarray:
    """How long after each operation was invoked its message was multicast; NOTHING: not known. carriers: of each
    transaction the place of its message; sent: of messages, as `first_sent`."""
    ahead = _took(ops.invoke, np.append(sent, NOTHING)[at.of(carriers, -1)])
    return np.where(ahead == NOTHING, NOTHING, -ahead)


def of_histories(
    ops: Operations, at: Placed, carriers: np.ndarray, sent: np.ndarray, width: int
) -> list[Slice]:
    """All of several histories. carriers, sent: as `shifts`."""
    shift = shifts(ops, at, carriers, sent)
    found = []
    for file in np.unique(ops.file).tolist():
        mine, collected = ops.file == file, Collected(width)
        of_operations(ops, collected, mine)
        rows = collected.rows(file=ops.asked("file")[int(np.argmax(mine))].as_py())
        known = shift[mine][shift[mine] != NOTHING]
        if len(known) and rows:
            rows[0].shift = int(known.min())
        found += rows
    return found


def _percentile(rising: np.ndarray, percent: int) -> int | None:
    """The least value that so many of them do not exceed."""
    return int(rising[-(-len(rising) * percent // 100) - 1]) if len(rising) else None
