"""Enough of what is on circles of dependencies and real time, where that is much.

One stale read in a long run puts whatever happened between what it should have seen and itself on circles through real
time: a hundred thousand transactions, of which two tell what went wrong. A search finds the same components and a
shortest cycle of each, if it is given of each a shortest cycle, and what joins whatever else of it is looked at.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order

from spark_etl.blackbox.intervals import Interval
from spark_etl.certify.key import Ordered
from spark_etl.search.cycles import components, cyclic_nodes, find_cycles

MANY = 3_000
"""Transactions on circles; of fewer, all are looked at."""


class Dependencies(NamedTuple):
    """Edges (`frames.edges`): source and target, numbers of nodes, and whether it is sure."""

    source: np.ndarray
    target: np.ndarray
    sure: np.ndarray


def dependencies(found: Ordered, other: list[tuple[int, int]], node: np.ndarray) -> Dependencies:
    """Of one shard. other: those of the reads of other versions than the order says, as places in `found`. node: of
    each place."""
    every, count = np.arange(len(found.key)), len(found.key)
    following = np.append(np.minimum.accumulate(np.where(found.wrote, every, count)[::-1])[::-1], count)[1:]
    following = np.where(np.append(found.key, -1)[following] == found.key, following, -1)
    right = ~found.wrote & ~found.other()
    doubtful = found.saw_none() & np.isin(found.key, found.key[found.deleted])
    next_, last = np.flatnonzero((found.wrote | right) & (following >= 0)), np.flatnonzero(right & (found.last >= 0))
    more = np.array(other, np.int64).reshape(-1, 2)
    source = np.concatenate([next_, found.last[last], more[:, 0]])
    target = np.concatenate([following[next_], last, more[:, 1]])
    sure = ~(doubtful[source] | doubtful[target])
    source, target = node[source], node[target]
    there = (source >= 0) & (target >= 0) & (source != target)
    return Dependencies(source[there], target[there], sure[there])


class Graph:
    """Some edges and real time among so many nodes. likely: where cycles are looked for."""

    def __init__(self, source: np.ndarray, target: np.ndarray, times: list[Interval], nodes: int, likely: np.ndarray):
        self._edges, self._times, self._nodes = (source, target), times, nodes
        self._graph, self._labels, sizes = components(source, target, times, nodes)
        self._cyclic = sizes > 1
        found, _ = find_cycles(source, target, times, nodes, nodes, likely)
        self.shortest = np.array(sorted({node for cycle in found for node in cycle}), np.int64)

    def joining(self, kept: np.ndarray) -> np.ndarray:
        """What joins, of each component, whatever of it is on cycles among the nodes that are kept."""
        number = np.cumsum(kept) - 1
        source, target = self._edges
        mine = kept[source] & kept[target]
        times = []
        for one in self._times:
            here = kept[one.node]
            times.append(Interval(number[one.node[here]], one.invoke[here], one.complete[here]))
        count = int(kept.sum())
        _, labels, sizes = components(number[source[mine]], number[target[mine]], times, count)
        some = np.flatnonzero(sizes > 1)
        first = np.flatnonzero(kept)[[int(np.argmax(labels[:count] == one)) for one in some]]
        found: set[int] = set()
        for label in np.unique(self._labels[first]):
            parts = first[self._labels[first] == label]
            if len(parts) > 1:
                for graph in (self._graph, self._graph.T.tocsr()):
                    found |= _paths(graph, int(parts[0]), parts[1:].tolist())
        joining = np.array(sorted(found), np.int64)
        return joining[joining < self._nodes]


def _paths(graph: csr_matrix, start: int, ends: list[int]) -> set[int]:
    """The nodes on paths from one to others."""
    _, before = breadth_first_order(graph, start)
    found: set[int] = set()
    for node in ends:
        while node != start and node not in found:
            found.add(node)
            node = int(before[node])
    return found


def enough(
    found: Dependencies, sessions: tuple[np.ndarray, np.ndarray], times: list[Interval], kept: np.ndarray,
    likely: np.ndarray,
) -> tuple[np.ndarray, int]:  # fmt: skip
    """What is to be looked at instead of all nodes, and if that is not all that is on cycles of dependencies, sessions
    and real time: how many these are, else 0. kept: what is looked at in any case. likely: where cycles are looked for.
    """
    nodes = len(kept)
    pairs = (np.concatenate([found.source, sessions[0]]), np.concatenate([found.target, sessions[1]]))
    circling = cyclic_nodes(*pairs, times, nodes)
    kept = kept.copy()
    if len(circling) <= MANY:
        kept[circling] = True
        return kept, 0
    every = np.ones(len(found.sure), bool)
    graphs = [
        Graph(found.source[which], found.target[which], clocks, nodes, likely)
        for which in ([every] if found.sure.all() else [every, found.sure])
        for clocks in ([], times)
    ]
    for graph in graphs:
        kept[graph.shortest] = True
    while True:
        before = int(kept.sum())
        for graph in graphs:
            kept[graph.joining(kept)] = True
        if kept.sum() == before:
            return kept, len(circling)
