"""The course of a run, slice by slice: the rows of `course.slices`, from arrays."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_etl.certify.arrays import NOTHING, codes, halves, in_order, numbers, of_groups, whole
from spark_etl.certify.client import Operations, Placed


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


def addressed(submitted: pa.Table, shard: int) -> pa.Table:
    """What was multicast to this shard. submitted: destinations."""
    to = whole(submitted["destinations"])
    here = numbers(pc.list_flatten(to)) == shard
    return submitted.take(pa.array(numbers(pc.list_parent_indices(to))[here]))


def of_deliveries(deliveries: pa.Table, submitted: pa.Table, width: int) -> list[Slice]:
    """deliveries: replica, at, id. submitted: id, at."""
    at, replica, ids = numbers(deliveries["at"]), numbers(deliveries["replica"]), halves(deliveries["id"])
    rows = {one: np.flatnonzero(replica == one) for one in np.unique(replica).tolist()}
    longest = ids[max(rows.values(), key=len, default=np.zeros(0, np.int64))]
    others = {one: where for one, where in rows.items() if not np.array_equal(ids[where], longest[: len(where)])}
    each = [longest, *(ids[where] for where in others.values())]
    mine, theirs = codes(np.concatenate(each), halves(submitted["id"]))
    count = int(max(mine.max(initial=-1), theirs.max(initial=-1))) + 1
    every = first_sent(theirs, numbers(submitted["at"]), count)[mine]
    common, *own = np.split(every, np.cumsum([len(part) for part in each])[:-1])
    sent = dict(zip(others, own, strict=True))
    found = []
    for one, where in rows.items():
        took = _took(at[where], sent.get(one, common[: len(where)]))
        found += _slices(at[where], took, np.zeros(len(where), bool), width, {"replica": one})
    return found


def of_operations(
    ops: Operations, at: Placed, carriers: np.ndarray, sent: np.ndarray, width: int
) -> list[Slice]:
    """carriers: of each transaction the place of its message; sent: of messages, as `first_sent`."""
    time = np.where(ops.ok | ops.failed, ops.complete, ops.invoke)
    took = np.where(ops.ok, ops.complete - ops.invoke, NOTHING)
    carrier = at.of(carriers, -1)
    ahead = _took(ops.invoke, np.append(sent, NOTHING)[carrier])
    shift = np.where(ahead == NOTHING, NOTHING, -ahead)
    found = []
    for file in np.unique(ops.file).tolist():
        mine = ops.file == file
        name = ops.asked("file")[int(np.argmax(mine))].as_py()
        rows = _slices(time[mine], took[mine], ~ops.ok[mine], width, {"file": name})
        known = shift[mine][shift[mine] != NOTHING]
        if len(known) and rows:
            rows[0].shift = int(known.min())
        found += rows
    return found


def _percentile(rising: np.ndarray, percent: int) -> int | None:
    """The least value that so many of them do not exceed."""
    return int(rising[-(-len(rising) * percent // 100) - 1]) if len(rising) else None


def _slices(time: np.ndarray, took: np.ndarray, unknown: np.ndarray, width: int, who: dict[str, Any]) -> list[Slice]:
    number = np.floor_divide(time, width)
    order = in_order(np.where(took == NOTHING, 0, took - took.min(initial=0, where=took != NOTHING) + 1), number)
    slices, starts = np.unique(number[order], return_index=True)
    found = []
    for one, rows in zip(slices.tolist(), np.split(order, starts[1:]), strict=True):
        known = took[rows]
        known = known[np.searchsorted(known, NOTHING, side="right"):]
        half, most_of, most = (_percentile(known, p) for p in (50, 99, 100))
        first, last = int(time[rows].min()), int(time[rows].max())
        found.append(Slice(one, len(rows), int(unknown[rows].sum()), half, most_of, most, first, last, **who))
    return found
