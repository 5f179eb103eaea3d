"""Real time as edges, without drawing one for every pair.

The operations' ends, sorted, form a chain of nodes; an operation points to its own end, and every link of the chain to
the operations that were invoked after it and before the next. A path over the chain is then exactly a real-time edge,
with at most three edges per operation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NEVER = np.iinfo(np.int64).max


class Interval(NamedTuple):
    """When operations ran, by one clock: arrays of node, invocation and end (no end: the largest int64)."""

    node: np.ndarray
    invoke: np.ndarray
    complete: np.ndarray


def real_time(intervals: list[Interval], nodes: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Edges (source, target) over the chains, and the number of nodes including theirs."""
    sources: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    for node, invoke, complete in intervals:
        ended = complete != NEVER
        order = np.argsort(complete[ended], kind="stable")
        ends = complete[ended][order]
        chain = nodes + np.arange(len(ends))
        nodes += len(ends)
        sources += [node[ended][order], chain[:-1]]
        targets += [chain, chain[1:]]
        last = np.searchsorted(ends, invoke, side="left") - 1  # the last end strictly before the invocation
        after = last >= 0
        sources.append(chain[last[after]])
        targets.append(node[after])
    empty = np.empty(0, np.int64)
    return np.concatenate([empty, *sources]), np.concatenate([empty, *targets]), nodes
