"""Columns of Arrow tables as NumPy arrays: ranks instead of 16-byte versions and ids, and sorted groups.

A rank is a number from 0 on that stands for a value and sorts as the values do; -1 stands for null. Ranks are only
comparable where one call has made them. Rows of pairs of numbers are picked by `take` and `compress`, which are ten
times as fast as an index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array = Any
"""Of numpy, or a column of Arrow."""

_BITS = 64
_FALLS_MERGED = 8
"""So few rising runs are merged, which is quicker than to sort them."""
_VALUE_BYTES = 16
_OTHER_LENGTH = "an id or version that has not 16 bytes"

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
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


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
    if not len(found):
        return np.zeros((0, 2), np.uint64)
    if found.null_count:
        found = pc.fill_null(found, bytes(_VALUE_BYTES))
    if pa.types.is_fixed_size_binary(found.type):
        trust(found.type.byte_width == _VALUE_BYTES, _OTHER_LENGTH)
        data, start = found.buffers()[1], _VALUE_BYTES * found.offset
    else:
        ends = np.frombuffer(found.buffers()[1], np.int32, len(found) + 1, found.offset * np.dtype(np.int32).itemsize)
        trust(np.diff(ends) == _VALUE_BYTES, _OTHER_LENGTH)
        data, start = found.buffers()[2], int(ends[0])
    return np.frombuffer(data, ">u8", 2 * len(found), start).astype(np.uint64).reshape(-1, 2)


def valid(column: Array) -> np.ndarray:
    """Where it is not null."""
    return np.asarray(whole(pc.is_valid(column)).to_numpy(zero_copy_only=False), bool)


def ranks(*columns: np.ndarray) -> list[np.ndarray]:
    """Of rows (each column: as many numbers per row, or one), comparable with one another."""
    rows = [c if c.ndim == 2 else c.reshape(-1, 1) for c in columns]
    every = np.concatenate(rows)
    if (code := _one_number(every.T)) is not None:
        order = _sorting(code)
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


def _one_number(columns: Iterable[np.ndarray]) -> np.ndarray | None:
    """Of each row one number that sorts as it does, which is far quicker to sort: the columns side by side, each
    counted from its least value that is not 0, in 64 bits. None: they take more."""
    code: np.ndarray | None = None
    bits = 0
    for column in columns:
        if not len(column):
            return np.zeros(0, np.uint64)
        least, greatest = int(column.min()), int(column.max())
        if least < 0:
            return None
        values = column.astype(np.uint64)
        if greatest:
            base = (least or int(values[values != 0].min())) - 1
            values -= np.minimum(values, np.uint64(base))
            greatest -= base
        width = greatest.bit_length()
        bits += width
        if bits > _BITS:
            return None
        code = values if code is None else (code << np.uint64(width)) | values
    return code


def _sorting(code: np.ndarray) -> np.ndarray:
    """An order of the rows."""
    falls = np.count_nonzero(code[1:] < code[:-1])
    if not falls:
        return np.arange(len(code))
    if falls <= _FALLS_MERGED:
        return np.argsort(code, kind="stable")
    width = len(code).bit_length()
    if int(code.max()).bit_length() + width > _BITS:
        return np.argsort(code)
    return _places_sorted(code, width)


def _places_sorted(code: np.ndarray, width: int) -> np.ndarray:
    """The rows in the order of their codes, and then as they stand: numbers are sorted faster than by their places.
    width: bits of a place."""
    both = (code.astype(np.uint64) << np.uint64(width)) | np.arange(len(code), dtype=np.uint64)
    both.sort()
    return (both & np.uint64((1 << width) - 1)).astype(np.int64)


def in_order(*columns: np.ndarray) -> np.ndarray:
    """As `numpy.lexsort`, of integers, the last column first: an order of the rows. Of rows that are equal throughout,
    it is any one."""
    code = _one_number(columns[::-1])
    return np.lexsort(columns) if code is None else _sorting(code)


def together(groups: np.ndarray) -> np.ndarray:
    """An order of the rows by their groups (numbers that are not negative), in which those of a group stand as they
    did."""
    width = len(groups).bit_length()
    if int(groups.max(initial=0)).bit_length() + width > _BITS:
        return np.argsort(groups, kind="stable")
    return _places_sorted(groups, width)


def names(*columns: Array) -> list[np.ndarray]:
    """Numbers for texts or bytes of any length, equal for equal ones; -1 for null. Columns of few values are quicker as
    dictionaries."""
    parts: list[tuple[np.ndarray, pa.Array]] = []
    for column in columns:
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
            parts.append((numbers(coded.indices, -1), coded.dictionary.cast(pa.binary())))
    if not parts:
        return [np.zeros(0, np.int64) for _ in columns]
    every = pa.concat_arrays([known for _, known in parts])
    common = np.append(numbers(every.dictionary_encode().indices, -1), -1)
    ends = np.cumsum([len(known) for _, known in parts])
    found = [np.where(code >= 0, common[code + end - len(known)], -1)
             for (code, known), end in zip(parts, ends, strict=True)]  # fmt: skip
    return np.split(np.concatenate(found), np.cumsum([len(column) for column in columns])[:-1])


_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # splitmix64's, both odd


def mixed(rows: np.ndarray) -> np.ndarray:
    """One number of each pair, another one for most others."""
    found: np.ndarray = rows[:, 0] * _FACTORS[0] + rows[:, 1] * _FACTORS[1]
    return found ^ (found >> np.uint64(32))


def codes(*rows: np.ndarray) -> list[np.ndarray]:
    """Numbers from 0 on for pairs of 64-bit numbers, equal for equal ones, in no order."""
    every = np.concatenate(rows)
    code = mixed(every)
    order = np.argsort(code)  # numbers are sorted faster than they are looked up
    starts = np.ones(len(every), bool)
    starts[1:] = np.diff(code[order]) != 0
    code = np.empty(len(every), np.int64)
    code[order] = np.cumsum(starts) - 1
    if not same(every, every.take(order[starts][code], axis=0)).all():
        code = ranks(every)[0]
    return np.split(code, np.cumsum([len(part) for part in rows])[:-1])


def same(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Which pairs of numbers are equal."""
    return np.asarray((rows[:, 0] == others[:, 0]) & (rows[:, 1] == others[:, 1]), bool)


def all_differ(rows: np.ndarray) -> bool:
    """Whether no two pairs of 64-bit numbers are equal."""
    return not len(rows) or int(codes(rows)[0].max()) + 1 == len(rows)


def rise(rows: np.ndarray) -> np.ndarray:
    """Of each pair of 64-bit numbers but the first, whether it is greater than the one before."""
    high, low = rows[:, 0], rows[:, 1]
    higher, as_high, lower = high[1:] > high[:-1], high[1:] == high[:-1], low[1:] > low[:-1]
    return np.asarray(higher | (as_high & lower), bool)


def index_in(rows: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Of each pair of 64-bit numbers the first place at which it is `known`, or -1."""
    if not len(known):
        return np.full(len(rows), -1, np.int64)
    mine, theirs = mixed(rows), mixed(known)
    turn, order = np.argsort(mine), np.argsort(theirs)
    mine, theirs = mine[turn], theirs[order]
    at = np.minimum(np.searchsorted(theirs, mine), len(known) - 1)
    found = np.empty(len(rows), np.int64)
    found[turn] = np.where(theirs[at] == mine, order[at], -1)
    if np.all(theirs[1:] != theirs[:-1]) and np.all(same(known.take(found, axis=0, mode="wrap"), rows) | (found < 0)):
        return found
    mine, theirs = codes(rows, known)
    place = np.full(int(max(mine.max(initial=-1), theirs.max(initial=-1))) + 1, -1, np.int64)
    place[theirs[::-1]] = np.arange(len(known))[::-1]
    return place[mine]


def of_groups(groups: np.ndarray, values: np.ndarray, count: int, function: Any, empty: Any) -> np.ndarray:
    """`function` (a ufunc with `at`, as np.minimum) over the values of each of `count` groups; `empty` where none."""
    out = np.full(count, empty, values.dtype)
    function.at(out, groups, values)
    return out


def sums_below(values: np.ndarray, weights: np.ndarray, first: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Of each pair of `first` and `bound` the sum of the weights of those among the first so many values that are less
    than that; none is negative. A wavelet matrix (Claude, Navarro and Ordóñez 2015): bit by bit, zeros before ones."""
    begin, end, total = np.zeros_like(first), first, np.zeros(len(first), np.int64)
    for bit in range(int(max(values.max(initial=0), bound.max(initial=0))).bit_length())[::-1]:
        one, above = (values >> bit & 1).astype(bool), (bound >> bit & 1).astype(bool)
        zeros = np.concatenate([[0], np.cumsum(~one)])
        ones = zeros[-1] + np.arange(len(zeros)) - zeros
        of_zeros = np.concatenate([[0], np.cumsum(np.where(one, 0, weights))])
        total += np.where(above, of_zeros[end] - of_zeros[begin], 0)
        begin, end = (np.where(above, ones[at], zeros[at]) for at in (begin, end))
        order = np.argsort(one, kind="stable")
        values, weights = values[order], weights[order]
    return total


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
