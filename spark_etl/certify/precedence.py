"""Real time without a search for cycles, where the order of versions alone does not prove it.

Let e(T) be the latest invocation among T and all that was delivered before it at its shards. If e(T) is never after
T's answer, no cycle of dependencies and real time exists: along a dependency, which runs forward in the log of a shard
(reads are proved), e does not fall; and if T was answered before U was invoked, e(T) <= answer(T) < invocation(U) <=
e(U). So a cycle had no edge of real time, and dependencies alone run forward in the order of versions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvstore.core.audit import APPLIED
from spark_etl.certify.arrays import NOTHING, in_order, numbers, trust
from spark_etl.certify.client import Operations, Placed
from spark_etl.certify.id import AgreedLog, Transactions
from spark_etl.certify.time import Course, where

ROUNDS_MAX = 100
_BEHIND_ALL = 1 << 16


def certify(
    ops: Operations, at: Placed, found: Transactions, course: Course, logs: Sequence[AgreedLog],
    before: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """There is no cycle of real time and of dependencies that run forward in the logs: of all, if every read is proved
    and no key is in two shards. Returns e of each transaction, and then of each operation. before: of each log the
    greatest e of what precedes it, and then of its end, too. Suspect."""
    if before is None:
        before = np.full(len(logs), NOTHING)
    trust(np.ptp(ops.file[course.op]) == 0, "several clocks")
    count = len(found.ids)
    node = np.where(ops.at_position, count + np.arange(len(ops.invoke)), at.row)
    invoked = np.full(count + len(ops.invoke), NOTHING, np.int64)
    invoked[node[course.op]] = ops.invoke[course.op]
    trust(np.bincount(node[course.op]) < 2, "two operations of one id")
    orders = _orders(ops, found, logs, node)
    for _ in range(ROUNDS_MAX):
        last = invoked.copy()
        for order, least in zip(orders, before, strict=True):
            invoked[order] = np.maximum(np.maximum.accumulate(invoked[order]), least)
        if np.array_equal(last, invoked):
            break
    else:
        trust(False, "it does not come to an end")
    for n, order in enumerate(orders):
        before[n] = max(before[n], invoked[order].max(initial=NOTHING))
    mine = course.op[ops.ok[course.op]]
    trust(invoked[node[mine]] <= ops.complete[mine], "invoked too late for what it precedes")
    return invoked


def _orders(
    ops: Operations, found: Transactions, logs: Sequence[AgreedLog], node: np.ndarray
) -> list[np.ndarray]:
    """What took place at each shard, in the order of its log; a read at a position is behind all that is there."""
    reads = np.flatnonzero(ops.at_position)
    shard, position = where(ops, reads)
    orders = []
    for log, rows in zip(logs, found.accounts, strict=True):
        applied = numbers(log.outcomes["status"]) == APPLIED
        mine = shard == log.shard
        nodes = np.concatenate([rows[applied], node[reads[mine]]])
        positions = np.concatenate([numbers(log.outcomes["position"])[applied], position[mine]])
        places = np.concatenate([numbers(log.outcomes["index"])[applied], np.full(int(mine.sum()), _BEHIND_ALL)])
        orders.append(nodes[in_order(places, positions)])
    return orders
