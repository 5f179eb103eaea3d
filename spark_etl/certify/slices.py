"""The course of a run, slice by slice: the rows of `course.slices`, from arrays."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_etl.certify.arrays import NOTHING, numbers, pick, whole
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


def first_sent(submitted: pa.Table) -> tuple[pa.Array, np.ndarray]:
    """Ids of messages, and when each was first multicast. submitted: id, at."""
    table = submitted.group_by("id").aggregate([("at", "min")])
    return whole(table["id"]), numbers(table["at_min"])


def _took(ids: pa.Array, at: np.ndarray, sent: tuple[pa.Array, np.ndarray]) -> np.ndarray:
    """How long after it was multicast each message was there; NOTHING: not known."""
    place = numbers(pc.index_in(ids, value_set=sent[0]), -1)
    known = sent[1][place] if len(sent[1]) else np.zeros(len(place), np.int64)
    return np.where(place >= 0, at - known, NOTHING)


def of_deliveries(deliveries: pa.Table, sent: tuple[pa.Array, np.ndarray], width: int) -> list[Slice]:
    """deliveries: replica, at, id."""
    at, replica = numbers(deliveries["at"]), numbers(deliveries["replica"])
    took = _took(whole(deliveries["id"]), at, sent)
    found = []
    for one in np.unique(replica).tolist():
        mine = replica == one
        found += _slices(at[mine], took[mine], np.zeros(int(mine.sum()), bool), width, {"replica": one})
    return found


def of_operations(
    ops: Operations, at: Placed, carriers: tuple[np.ndarray, pa.Array], sent: tuple[pa.Array, np.ndarray], width: int
) -> list[Slice]:
    """carriers: of each transaction the place of its message, and the messages' ids."""
    time = np.where(ops.ok | ops.failed, ops.complete, ops.invoke)
    took = np.where(ops.ok, ops.complete - ops.invoke, NOTHING)
    message = pick(carriers[1], at.of(carriers[0], -1))
    ahead = _took(message, ops.invoke, sent)
    shift = np.where(ahead == NOTHING, NOTHING, -ahead)
    file = ops.asked("file")
    found = []
    for name in pc.unique(file).to_pylist():
        mine = np.asarray(pc.equal(file, name).to_numpy(zero_copy_only=False), bool)
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
    order = np.lexsort((took, number))
    slices, starts = np.unique(number[order], return_index=True)
    found = []
    for one, rows in zip(slices.tolist(), np.split(order, starts[1:]), strict=True):
        known = took[rows]
        known = known[np.searchsorted(known, NOTHING, side="right"):]
        half, most_of, most = (_percentile(known, p) for p in (50, 99, 100))
        first, last = int(time[rows].min()), int(time[rows].max())
        found.append(Slice(one, len(rows), int(unknown[rows].sum()), half, most_of, most, first, last, **who))
    return found
