"""Client operations, and what their clients were told against what the journals hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_etl.certify.arrays import (
    codes,
    entries,
    halves,
    index_in,
    names,
    numbers,
    pick,
    ranks,
    same,
    trust,
    valid,
    whole,
)
from spark_etl.certify.id import AgreedLog, Transactions
from spark_etl.certify.log import TAKEN
from spark_etl.certify.seen import as_read

HISTORY = ("file", "line", "process", "type", "at_us", "id", "f", "version", "succeeded", "reads", "value", "asked",
           "told", "shard", "position", "consistency", "age_us", "places", "seen",
           "damage")  # fmt: skip

_KNOWN = ["line", "process", "type", "at_us", "id", "version", "damage"]
"""Columns of which nothing is wanted but what `Operations` has."""

VALUED = ("value", "asked", "told", "shard", "seen")
"""Columns that are null of operations that stand in journals and tell of no values."""

CODED = ("file", "type", "f")
"""Columns of few values."""

_ONLY_READS = r'\["(put|delete|delete_range|revoke|add|min|max|append)",'


class Operations(NamedTuple):
    """A row per operation, as `relations.operations`. begin, end: rows of the history; end -1: none. ids: by which
    journals have them, and version: what was told (versioned: if it was), pairs of numbers. at_position: it stands in
    no journal."""

    history: pa.Table
    begin: np.ndarray
    end: np.ndarray
    file: np.ndarray
    process: np.ndarray
    line: np.ndarray
    end_line: np.ndarray
    invoke: np.ndarray
    complete: np.ndarray
    ok: np.ndarray
    failed: np.ndarray
    ids: np.ndarray
    version: np.ndarray
    versioned: np.ndarray
    at_position: np.ndarray

    def said(self, name: str) -> pa.Array:
        """A column of the lines at which they end."""
        return pick(self.history[name], self.end)

    def asked(self, name: str) -> pa.Array:
        """A column of the lines at which they begin."""
        return pick(self.history[name], self.begin)


def operations(history: pa.Table, promised: bool = False) -> Operations:
    """Every operation begins once and ends at most once, after that; every line could be read (HISTORY). Suspect.
    promised: those that are `relations.promised`; else the others."""
    trust(whole(history["damage"]).null_count == history.num_rows, "a line that cannot be read")
    begins = is_one(history["type"], "invoke")
    file = names(history["file"])[0]
    told_ids = halves(history["id"])
    (key,) = codes(told_ids)
    if file.any():
        (key,) = ranks(np.column_stack([file, key]))
    trust(valid(history["id"]), "an operation without an id")
    count = int(key.max(initial=-1)) + 1
    trust(np.bincount(key[begins], minlength=count) == 1, "an operation that does not begin once")
    trust(np.bincount(key[~begins], minlength=count) <= 1, "an operation with two ends")
    begin, end = np.full(count, -1), np.full(count, -1)
    begin[key[begins]], end[key[~begins]] = np.flatnonzero(begins), np.flatnonzero(~begins)
    begin_first = np.argsort(begin, kind="stable")
    begin, end = begin[begin_first], end[begin_first]
    _begins_say_nothing(history, begins)
    line, at, process = (numbers(history[name]) for name in ("line", "at_us", "process"))
    ended = end >= 0
    same = ~ended | (process[begin] == process[end])
    function = names(history["f"])[0]
    trust(same & (~ended | (function[begin] == function[end])), "an operation that ends as another one")
    ok, failed = (ended & is_one(history["type"], kind)[end] for kind in ("ok", "fail"))
    complete = np.where(ok | failed, at[end], 0)
    certain = ok | failed
    trust(~ended | (line[end] > line[begin]), "an operation that ends before it begins")
    trust(~certain | (complete >= at[begin]), "an operation that ends before it was invoked")
    version = halves(history["version"]).take(end, axis=0, mode="wrap")
    versioned = ended & valid(history["version"])[end]
    by_leader = ended & valid(history["shard"])[end]
    position = np.where(ended, numbers(history["position"], 0)[end], 0)
    absent = ~(versioned & (version[:, 0] | version[:, 1] != 0))
    trust(~(by_leader & ok) | versioned, "a leader's answer without a version")
    ids = told_ids.take(begin, axis=0)
    at_none = by_leader & (position == 0) & ~absent
    ids[at_none] = version[at_none]
    mine: slice | np.ndarray = slice(None)
    if history["seen"].null_count < history.num_rows or promised:
        mine = np.flatnonzero((ok & valid(history["seen"])[end]) == promised)
    columns = (begin, end, file[begin], process[begin], line[begin], np.where(ended, line[end], -1), at[begin],
               complete, ok, failed, ids, version, versioned, by_leader & ok & ((position > 0) | absent))  # fmt: skip
    return Operations(history.drop_columns(_KNOWN), *(column[mine] for column in columns))


def is_one(column: pa.ChunkedArray, text: str) -> np.ndarray:
    """Which of them are this text."""
    if not pa.types.is_dictionary(column.type):
        return numbers(pc.equal(column, text), 0).astype(bool)
    parts = [np.zeros(0, bool)]
    for chunk in column.chunks:
        is_text = np.append(numbers(pc.equal(chunk.dictionary, text), 0), False)
        parts.append(is_text[numbers(chunk.indices, -1)])
    return np.concatenate(parts)


def _begins_say_nothing(history: pa.Table, begins: np.ndarray) -> None:
    """What an answer says no invocation does, and the other way round."""
    for name in ("version", "succeeded", "told", "shard", "seen"):
        trust(~(begins & valid(history[name])), f"an invocation with {name}")
    trust(~begins | (numbers(history["position"], 0) == 0), "an invocation at a position")
    for name in ("asked", "consistency"):
        trust(begins | ~valid(history[name]), f"an answer with {name}")


class Placed(NamedTuple):
    """Of every operation its row of `Transactions`, or -1."""

    row: np.ndarray

    def of(self, column: np.ndarray, otherwise: int | bool = 0) -> np.ndarray:
        """A column of `Transactions`."""
        if not len(column):
            return np.full(len(self.row), otherwise, column.dtype)
        return np.where(self.row >= 0, column[self.row], otherwise)


def placed(ops: Operations, found: Transactions) -> Placed:
    """Where the journals have them."""
    return Placed(index_in(ops.ids, found.ids))


def answers(
    ops: Operations, at: Placed, found: Transactions, reads: pa.Table | None,
    written: Callable[[], pa.Table] | None = None,
) -> None:  # fmt: skip
    """Every acknowledged operation is in the journals of all shards, with the version, branch and reads that its client
    was told, and none that was refused. reads: `seen.READS` of all shards; None: another task looks at them. written:
    see `seen.as_read`. Suspect."""
    trust(~(ops.failed & at.of(found.effect, False)), "refused and present")
    told = ops.ok & ~ops.at_position
    trust(~told | ((at.of(found.applied) != 0) & (at.of(found.void) == 0)), "acknowledged, and without effect")
    trust(~told | (at.of(found.expected & ~found.delivered) == 0), "acknowledged, and not everywhere")
    right = same(ops.version.compress(told, axis=0), found.gts.take(at.row[told], axis=0))
    trust(~ops.versioned[told] | right, "another version")
    branch = ops.said("succeeded")
    trust(~valid(branch)[told] | (numbers(branch, 0)[told] == found.succeeded[at.row[told]]), "another branch")
    if reads is None:
        return
    row, key, version = told_reads(ops, np.flatnonzero(told))
    as_read(found.ids, found.gts, at.row[told][row], key, version, reads, written)


def told_reads(ops: Operations, told: np.ndarray) -> tuple[np.ndarray, pa.Array, pa.Array]:
    """What these operations, or some of them in this order, were told that they read: the place among them, key and
    version."""
    row, key, version = entries(ops.history["reads"])
    place = np.full(ops.history.num_rows, -1, np.int64)
    place[ops.end[told]] = np.arange(len(told))
    place = place[row]
    if (place >= 0).all():
        return place, key, version
    mine = pa.array(place >= 0)
    return place[place >= 0], key.filter(mine), version.filter(mine)


class Thin(msgspec.Struct):
    """Acknowledged operations that a minority of some shard's replicas holds: how many, and the first one."""

    count: int
    shard: int
    position: int
    f: str | None
    id: bytes


def thin(ops: Operations, logs: Sequence[AgreedLog], held: Mapping[int, int]) -> Thin | None:
    """`checks.clients.thin`. held: shard -> the last position that more than half of its replicas hold."""
    rows = []
    for log in logs:
        outcomes = log.outcomes
        beyond = np.isin(numbers(outcomes["status"]), TAKEN) & (numbers(outcomes["position"]) > held[log.shard])
        outcomes = outcomes.filter(pa.array(beyond))
        if outcomes.num_rows:
            place = index_in(ops.ids, halves(outcomes["id"]))
            there = np.flatnonzero(ops.ok & (place >= 0))
            position = numbers(outcomes["position"])[place[there]]
            rows += [(log.shard, at, op) for at, op in zip(position.tolist(), there.tolist(), strict=True)]
    if not rows:
        return None
    shard, position, op = min(rows)
    ids = len(np.unique(ops.ids[[row[2] for row in rows]], axis=0))
    return Thin(ids, shard, position, ops.asked("f")[op].as_py(), ops.ids[op].astype(">u8").tobytes())


class Unknown(msgspec.Struct):
    """Operations whose outcome no client knows. absent: in no journal; readers: those of them that only read."""

    total: int
    applied: int
    refused: int
    absent: int
    readers: int

    def counts(self, over: bool) -> tuple[int, int, int, int]:
        """All, applied, not applied, open, as `checks.clients.unknown`. over: nothing can be under way any more."""
        out = self.refused + (self.absent if over else self.readers)
        return self.total, self.applied, out, self.total - self.applied - out


def unknown(ops: Operations, at: Placed, found: Transactions) -> Unknown:
    """What became of them."""
    lost = ~(ops.ok | ops.failed)
    applied, absent = lost & (at.of(found.applied) != 0), lost & (at.row < 0)
    changes = pc.match_substring_regex(pick(ops.history["asked"], ops.begin[absent]), _ONLY_READS)
    readers = ~np.asarray(pc.fill_null(changes, True).to_numpy(zero_copy_only=False), bool)
    counts = (lost, applied, lost & ~applied & ~absent, absent, readers)
    return Unknown(*(int(one.sum()) for one in counts))


def functions(ops: Operations) -> Mapping[str, int]:
    """How many operations there are of each kind."""
    rows = pc.value_counts(ops.asked("f")).to_pylist()
    return {row["values"]: row["counts"] for row in rows if row["values"] is not None}
