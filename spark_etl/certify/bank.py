"""The bank's total: `checks.bank` in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_etl.certify.arrays import codes, entries, halves, names, numbers, pick, ranks, trust, valid, whole
from spark_etl.certify.client import Operations, Placed
from spark_etl.certify.id import Transactions
from spark_etl.certify.value import value_of

_SUM_MAX = 2.0**62

WRITES = ("id", "key", "gts", "value", "deleted", "digested")


def certify(
    ops: Operations, at: Placed, found: Transactions, read: Callable[[str, Sequence[str]], pa.Table]
) -> None:
    """Every read of all accounts saw one total, and no transfer changed it; all histories are of one bank. read: writes
    of all shards. Suspect."""
    kinds = ops.asked("f")
    reading = np.asarray(pc.equal(kinds, "read_all").fill_null(False).to_numpy(zero_copy_only=False), bool)
    readers = np.flatnonzero(reading & ops.ok & ((at.row >= 0) | ops.at_position))
    row, key, amount = entries(pick(value_of(ops), readers))
    if not len(row):
        return
    writes = read("writes", WRITES)
    account, place, of_write = _accounts(key, writes)
    sizes = np.bincount(row, minlength=len(readers))
    trust(np.isin(sizes, (0, len(np.unique(account)))), "histories of several banks")
    totals = _sums(row, numbers(amount), len(readers))
    trust(totals[sizes > 0] == totals[sizes > 0][0], "another total")
    moving = np.asarray(pc.equal(kinds, "transfer").fill_null(False).to_numpy(zero_copy_only=False), bool)
    moving &= (at.row >= 0) & (at.of(found.applied) != 0) & (at.of(found.expected & ~found.applied) == 0)
    _no_money_made(ops.ids[moving], writes.take(pa.array(of_write)), place)


def _accounts(key: pa.Array, writes: pa.Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Accounts as numbers, of what was read and of the writes to them, and which writes these are."""
    read, wrote = names(key, writes["key"])
    ours = np.flatnonzero(np.isin(wrote, read))
    return read, wrote[ours], ours


def _no_money_made(transfers: np.ndarray, writes: pa.Table, account: np.ndarray) -> None:
    told = valid(writes["value"]) | numbers(writes["deleted"]).astype(bool)
    balance = _integers(writes, told)
    order = np.lexsort((ranks(halves(writes["gts"]))[0], account))
    before = np.concatenate(([0], balance[order][:-1]))
    first = np.concatenate(([True], account[order][1:] != account[order][:-1]))
    change = np.zeros(len(order), np.int64)
    change[order] = balance[order] - np.where(first, 0, before)
    mover = codes(halves(writes["id"]), transfers)
    total = _sums(mover[0], change, int(max(m.max(initial=-1) for m in mover)) + 1)
    blind = np.concatenate(([False], ~told[order][:-1])) & ~first
    total[mover[0][order[blind]]] = 0
    trust(total[mover[1]] == 0, "money made")


def _sums(group: np.ndarray, amount: np.ndarray, groups: int) -> np.ndarray:
    """Suspect if one may be beyond 64 bits, where others come out as equal."""
    trust(np.bincount(group, np.abs(amount.astype(float)), groups) < _SUM_MAX, "amounts that are too large")
    sums = np.zeros(groups, np.int64)
    np.add.at(sums, group, amount)
    return sums


def _integers(writes: pa.Table, told: np.ndarray) -> np.ndarray:
    """Values as integers, 0 for a deletion and what is not told. Suspect for anything else."""
    deleted = numbers(writes["deleted"]).astype(bool)
    trust(~numbers(writes["digested"]).astype(bool), "a value that is only a digest")
    text = pc.if_else(pa.array(deleted | ~told), pa.scalar(b"0"), whole(writes["value"]))
    trust(pc.match_substring_regex(text.cast(pa.string(), safe=False), r"^-?[0-9]{1,18}$"), "an account without number")
    return numbers(text.cast(pa.string()).cast(pa.int64()))
