"""Columns of Arrow tables as NumPy arrays: ranks instead of 16-byte versions and ids, and sorted groups.

A rank is a number from 0 on that stands for a value and sorts as the values do; -1 stands for null. Ranks are only
comparable where one call has made them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array = Any
"""Of numpy, or a column of Arrow."""

_BITS = 64

NOTHING = np.iinfo(np.int64).min
"""Less than every time and rank."""


class Suspect(Exception):
    """What a kernel does not prove, or was not made for. The text says why, for a developer: it accuses nobody."""


DOUBTS = (Suspect, ValueError, IndexError, OverflowError)
"""What a kernel may end with: of journals that nobody wrote in good faith, numbers and texts are what they are."""


def trust(holds: Any, otherwise: str) -> None:
    """Suspect unless it holds: a truth value, or an array of them."""
    if not np.all(holds):
        raise Suspect(otherwise)


def whole(column: Array) -> pa.Array:
    """One contiguous array of a column of any number of chunks."""
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) and column.num_chunks else (
        pa.array([], column.type) if isinstance(column, pa.ChunkedArray) else column
    )  # fmt: skip


def numbers(column: Array, null: int | None = None) -> np.ndarray:
    """Integers or truth values. null: what stands for one; Suspect if there is one and it is not given."""
    found = whole(column)
    if found.null_count:
        trust(null is not None, "a null where there should be none")
        found = pc.fill_null(found, null if not pa.types.is_boolean(found.type) else bool(null))
    if pa.types.is_boolean(found.type):
        return np.asarray(found.to_numpy(zero_copy_only=False), bool)
    return np.asarray(found.to_numpy(zero_copy_only=False), np.int64)


def halves(column: Array) -> np.ndarray:
    """16-byte values as rows of two unsigned numbers, null as zeros. Suspect for any other length."""
    found = whole(column)
    if found.null_count:
        found = pc.fill_null(found, bytes(16))
    try:
        fixed = found.cast(pa.binary(16))
    except pa.ArrowInvalid:
        raise Suspect("an id or version that has not 16 bytes") from None
    data = np.frombuffer(fixed.buffers()[1] or b"", ">u8", 2 * len(fixed), 16 * fixed.offset)
    return data.astype(np.uint64).reshape(-1, 2)


def valid(column: Array) -> np.ndarray:
    """Where it is not null."""
    return np.asarray(pc.is_valid(whole(column)).to_numpy(zero_copy_only=False), bool)


def ranks(*columns: np.ndarray) -> list[np.ndarray]:
    """Of rows (each column: as many numbers per row, or one), comparable with one another."""
    rows = [c if c.ndim == 2 else c.reshape(-1, 1) for c in columns]
    every = np.concatenate(rows)
    if (code := _one_number(every)) is not None:
        order = np.argsort(code)
        code = code[order]
        differ = code[1:] != code[:-1]
    else:
        order = np.lexsort(every.T[::-1])
        sorted_rows = every[order]
        differ = np.any(sorted_rows[1:] != sorted_rows[:-1], axis=1)
    new = np.ones(len(every), bool)
    new[1:] = differ
    rank = np.empty(len(every), np.int64)
    rank[order] = np.cumsum(new) - 1
    return np.split(rank, np.cumsum([len(c) for c in rows])[:-1])


def _one_number(rows: np.ndarray) -> np.ndarray | None:
    """Of each row one number that sorts as it does, which is far quicker to sort: the columns side by side, each
    counted from its least value that is not 0, in 64 bits. None: they take more."""
    code = np.zeros(len(rows), np.uint64)
    bits = 0
    for column in rows.T if len(rows) else ():
        values = column.astype(np.uint64) if column.dtype.kind == "u" or column.min() >= 0 else None
        if values is None:
            return None
        least = np.min(values, initial=np.iinfo(np.uint64).max, where=values != 0)
        values = np.where(values != 0, values - (least - np.uint64(1)), np.uint64(0))
        width = int(values.max()).bit_length()
        bits += width
        if bits > _BITS:
            return None
        code = (code << np.uint64(width)) | values
    return code


def in_order(*columns: np.ndarray) -> np.ndarray:
    """As `numpy.lexsort`, of integers, the last column first: an order of the rows. Of rows that are equal throughout,
    it is any one."""
    code = _one_number(np.column_stack(columns[::-1]))
    return np.lexsort(columns) if code is None else np.argsort(code)


def versions(*columns: Array) -> list[np.ndarray]:
    """Ranks of ids or versions; -1 for null."""
    found = ranks(*map(halves, columns))
    for rank, column in zip(found, columns, strict=True):
        rank[~valid(column)] = -1
    return found


def names(*columns: Array) -> list[np.ndarray]:
    """Numbers for texts or bytes of any length, equal for equal ones; -1 for null."""
    flat = [whole(c) for c in columns]
    flat = [c.cast(pa.binary()) if c.type != pa.binary() else c for c in flat]
    codes = pa.concat_arrays(flat).dictionary_encode().indices
    found = np.asarray(pc.fill_null(codes, -1).to_numpy(zero_copy_only=False), np.int64)
    return np.split(found, np.cumsum([len(c) for c in flat])[:-1])


def of_groups(groups: np.ndarray, values: np.ndarray, count: int, function: Any, empty: Any) -> np.ndarray:
    """`function` (a ufunc with `at`, as np.minimum) over the values of each of `count` groups; `empty` where none."""
    out = np.full(count, empty, values.dtype)
    function.at(out, groups, values)
    return out


def greatest_before(groups: np.ndarray, at: np.ndarray, values: np.ndarray) -> np.ndarray:
    """For each row the greatest of `values` among the rows of its group with a lesser `at`; NOTHING: there is none."""
    row = who_is_greatest_before(groups, at, values)
    return np.where(row >= 0, values[row], NOTHING) if len(row) else np.zeros(0, np.int64)


def who_is_greatest_before(groups: np.ndarray, at: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The row that has it, the first one of several; -1: there is none."""
    found = np.full(len(at), -1, np.int64)
    if not len(at):
        return found
    order = in_order(at, groups)
    group, time, value = groups[order], at[order], values[order]
    starts = np.concatenate(([True], group[1:] != group[:-1]))
    instants = starts | np.concatenate(([True], time[1:] != time[:-1]))
    number = np.cumsum(starts)
    level, height = _levels(value, int(number[-1]))
    running = np.maximum.accumulate(number * height + level)  # every group's levels are above the last one's
    greater = np.concatenate(([True], running[1:] > running[:-1]))
    who = np.maximum.accumulate(np.where(greater, np.arange(len(at)), 0))
    before = np.maximum.accumulate(np.where(instants, np.arange(len(at)), 0)) - 1
    inside = (before >= 0) & (number[before] == number)
    found[order] = np.where(inside, order[who[before]], -1)
    return found


def _levels(values: np.ndarray, groups: int) -> tuple[np.ndarray, int]:
    """Numbers from 0 on that sort as the values do, and a bound of these numbers that can be multiplied by so many
    groups."""
    some = values[values != NOTHING]
    low = int(some.min(initial=0))
    height = int(some.max(initial=0)) - low + 2
    if groups * height < 1 << 62:
        return np.where(values != NOTHING, values - low + 1, 0), height
    known, level = np.unique(values, return_inverse=True)
    return level, len(known)


def entries(column: Array) -> tuple[np.ndarray, pa.Array, pa.Array]:
    """Of a column of maps: row, key and value of every entry."""
    found = whole(column)
    if not pa.types.is_map(found.type):
        raise Suspect("no maps")
    offsets = np.asarray(found.offsets.to_numpy(zero_copy_only=False), np.int64)
    rows = np.repeat(np.arange(len(found)), np.diff(offsets))
    start, size = int(offsets[0]) if len(offsets) else 0, len(rows)
    return rows, found.keys.slice(start, size), found.items.slice(start, size)


def pick(column: Array, rows: Sequence[int] | np.ndarray) -> pa.Array:
    """These rows; a negative one is null."""
    at = np.asarray(rows, np.int64)
    return whole(column).take(pa.array(at, mask=at < 0))
