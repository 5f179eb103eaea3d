"""Values as asked and as written: each transaction executed once more, as `checks.values` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.core.audit import FAILED
from spark_etl.certify.arrays import (
    all_differ,
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
from spark_etl.certify.client import Operations, Placed
from spark_etl.certify.id import Transactions
from spark_etl.checks.replay import CREATED_ANEW, REASONS
from spark_etl.checks.values import READERS, replayed, was_possible

READS = ("id", "key", "version")
WRITES = ("id", "key", "gts", "value", "deleted", "digested")


class Compared(NamedTuple):
    """How many operations could be compared, and how many were acknowledged; and those that came out otherwise: rows
    of operations, with the keys that they are about."""

    compared: int
    answered: int
    wrong: list[tuple[int, list[bytes]]]


def certify(
    ops: Operations, at: Placed, found: Transactions, read: Callable[[str, Sequence[str]], pa.Table]
) -> Compared:
    """Whether all that clients asked and were told comes out again. read: reads or writes of all shards. Suspect."""
    kinds = np.asarray(pc.is_in(ops.asked("f"), value_set=pa.array(READERS)).to_numpy(zero_copy_only=False), bool)
    value = value_of(ops)
    integers = kinds & ops.ok & valid(value)
    everywhere = (at.row >= 0) & (at.of(found.applied) != 0) & (at.of(found.expected & ~found.applied) == 0)
    wanted = np.flatnonzero((valid(ops.asked("asked")) | integers) & (everywhere | ops.at_position))
    failed = np.flatnonzero(at.of(found.live, False) & (at.of(found.applied) == 0) & valid(ops.asked("asked")))
    if not len(wanted) and not len(failed):
        return Compared(0, int(ops.ok.sum()), [])
    ids = ops.ids[wanted]
    trust(all_differ(ids), "two operations of one id")
    reads, writes = read("reads", READS), read("writes", WRITES)
    asked = pick(ops.history["asked"], ops.begin[wanted])
    since = _since(writes) if pc.any(pc.match_substring(ops.asked("asked"), '"create_version"')).as_py() else None
    if len(failed):
        _not_in_vain(ops, failed, reads, writes, since, read("outcomes", ("id", "status", "reason")))
    seen = _seen(ops, wanted, reads.filter(pa.array(index_in(halves(reads["id"]), ids) >= 0)), writes, since)
    writes = writes.filter(pa.array(index_in(halves(writes["id"]), ids) >= 0))
    wrote = _by_id(ops.ids, writes["id"])
    rows = asked.to_pylist()
    told = pick(ops.history["told"], ops.end[wanted]).to_pylist()
    integer = pc.if_else(pa.array(integers[wanted]), value.take(pa.array(wanted)), pa.scalar(None, value.type))
    succeeded = ops.said("succeeded").fill_null(True).to_pylist()
    truths = pick(found.truths, at.row[wanted]).to_pylist()
    written = [dict(zip(("key", "value", "digested", "deleted"), row, strict=True)) for row in zip(
        *(writes[c].to_pylist() for c in ("key", "value", "digested", "deleted")), strict=True)]  # fmt: skip
    count, wrong = 0, []
    each = zip(wanted.tolist(), rows, told, integer.to_pylist(), truths, strict=True)
    for op, asked, answer, read, nested in each:
        ran = bool(found.succeeded[at.row[op]]) if at.row[op] >= 0 else succeeded[op]
        row = {
            "id": None, "gts": None, "f": None, "file": None, "asked": asked, "told": answer, "value": read, "ran": ran,
            "truths": nested, "journaled": not ops.at_position[op],
            "seen": seen.get(op), "wrote": [written[n] for n in wrote.get(op, ())],
        }  # fmt: skip
        outcome = list(replayed(row))
        trust(not any(one["name"] == CREATED_ANEW for one in outcome), "a key that was created anew")
        count += bool(outcome)
        if len(outcome) > 1:
            keys = {one["key"] for one in outcome if one["key"]}
            wrong.append((op, sorted(keys.union(one["key"] for one in row["seen"] or ()))))
    return Compared(count, int(ops.ok.sum()), wrong)


def _not_in_vain(
    ops: Operations, failed: np.ndarray, reads: pa.Table, writes: pa.Table, since: list[bytes | None] | None,
    outcomes: pa.Table,
) -> None:  # fmt: skip
    """What is called impossible was (`checks.values.refused`). Suspect."""
    outcomes = outcomes.filter(pc.equal(outcomes["status"], FAILED))
    why = pc.extract_regex(outcomes["reason"], f"^(?P<kind>{'|'.join(REASONS)})[: ]")
    kinds = pc.struct_field(why, "kind")
    whose = index_in(ops.ids[failed], halves(outcomes["id"]))
    kind = pick(kinds, whose).to_pylist()
    asked = pick(ops.history["asked"], ops.begin[failed])
    reads = reads.filter(pa.array(index_in(halves(reads["id"]), ops.ids[failed]) >= 0))
    seen = _seen(ops, failed, reads, writes, since)
    for op, question, what in zip(failed.tolist(), asked.to_pylist(), kind, strict=True):
        row = {"asked": question, "seen": seen.get(op)}
        trust(what is None or not was_possible(row, what), "possible, and without effect")


def value_of(ops: Operations) -> pa.Array:
    """What an end says, or else its invocation."""
    end, begin = ops.said("value"), ops.asked("value")
    return pc.if_else(pa.array(valid(end)), end, begin)


def _by_id(ids: np.ndarray, rows: Any) -> dict[int, list[int]]:
    """Operation -> the rows with its id."""
    found: dict[int, list[int]] = {}
    for row, op in enumerate(index_in(halves(rows), ids).tolist()):
        if op >= 0:
            found.setdefault(op, []).append(row)
    return found


def _since(writes: pa.Table) -> list[bytes | None]:
    """Of each write, the first one since the key last was not there (`checks.values`)."""
    gts = halves(writes["gts"])
    (key,), (turn,) = names(writes["key"]), ranks(gts)
    order = np.lexsort((turn, key))
    gone = numbers(writes["deleted"]).astype(bool)[order]
    first = np.append(True, key[order][1:] != key[order][:-1])
    begins = ~gone & (first | np.append(True, gone[:-1]))
    begin = order[np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))] if len(order) else order
    found = np.where(same(halves(writes["id"]), gts)[begin], -1, begin)
    told = np.full(len(order), -1)
    told[order] = found
    return pick(writes["gts"], told).to_pylist()


def _seen(
    ops: Operations, wanted: np.ndarray, reads: pa.Table, writes: pa.Table, since: list[bytes | None] | None
) -> dict[int, list[dict[str, Any]]]:
    """Of the `wanted` operations: operation -> what it read before it began; a read at a position is its client's word.
    reads: theirs. since: from `_since`, or None if nobody asks for it."""
    leader = wanted[ops.at_position[wanted]]
    row, name, told = entries(pick(ops.history["reads"], ops.end[leader]))
    op = np.concatenate([index_in(halves(reads["id"]), ops.ids), leader[row]])
    key = pa.concat_arrays([whole(reads["key"]), name.cast(pa.binary())])
    version = pa.concat_arrays([whole(reads["version"]), told])
    at, place = names(key, writes["key"])
    gts, wrote = ranks(halves(version), halves(writes["gts"]))
    both = ranks(np.column_stack([at, gts]), np.column_stack([place, wrote]))
    mine = np.flatnonzero(op >= 0)
    last = np.full(int(max(side.max(initial=-1) for side in both)) + 1, -1, np.int64)
    last[both[1]] = np.arange(len(both[1]))
    source = last[both[0][mine]]
    columns = [pick(writes[c], source).to_pylist() for c in ("value", "digested", "deleted")]
    begun = [None if since is None or n < 0 else since[n] for n in source.tolist()]
    found: dict[int, list[dict[str, Any]]] = {}
    for n, k, v, value, digested, deleted, first in zip(
        op[mine].tolist(), key.take(pa.array(mine)).to_pylist(), version.take(pa.array(mine)).to_pylist(), *columns,
        begun, strict=True,
    ):  # fmt: skip
        found.setdefault(n, []).append(
            {"key": k, "version": v, "value": value, "digested": digested, "deleted": deleted,
             "known": None if digested is None and deleted is None else True, "since": first}
        )  # fmt: skip
    return found
