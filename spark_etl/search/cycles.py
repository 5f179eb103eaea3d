"""Cycles in a graph of transactions: strongly connected components and a shortest cycle in each. Pure numpy and scipy.

Real time is encoded without drawing an edge for every pair. The operations' ends, sorted, form a chain of nodes; an
operation points to its own end, and every link of the chain to the operations that were invoked after it and before the
next. A path over the chain is then exactly a real-time edge, with at most three edges per operation.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

CYCLES_MAX = 5
STARTS_MAX = 200
"""From how many nodes of a component a shortest cycle is looked for; of more, from those that are likely, if any, and
beyond it the cycle shown may not be shortest."""


class Interval(NamedTuple):
    """When operations ran, by one clock: arrays of node, invocation and end (no end: the largest int64)."""

    node: np.ndarray
    invoke: np.ndarray
    complete: np.ndarray


NEVER = np.iinfo(np.int64).max


def _real_time(intervals: list[Interval], nodes: int) -> tuple[np.ndarray, np.ndarray, int]:
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


def find_cycles(
    source: np.ndarray, target: np.ndarray, intervals: list[Interval], nodes: int, cycles_max: int = CYCLES_MAX,
    likely: np.ndarray | None = None,
) -> tuple[list[list[int]], int]:  # fmt: skip
    """A shortest cycle of up to `cycles_max` components, as lists of nodes 0 <= n < nodes, and how many components have
    one. A step of a cycle that is no edge given is a real-time edge. likely: nodes on cycles, if known."""
    graph, labels, sizes = components(source, target, intervals, nodes)
    cyclic = np.flatnonzero(sizes > 1)
    cyclic = cyclic[np.argsort(sizes[cyclic], kind="stable")]
    found = []
    for label in cyclic[:cycles_max]:
        members = np.flatnonzero(labels[:nodes] == label)
        if likely is not None and len(members) > STARTS_MAX:
            mine = np.intersect1d(members, likely)
            members = mine if len(mine) else members
        found.append(_shortest_cycle(graph, labels, members, nodes))
    return found, len(cyclic)


def cyclic_nodes(source: np.ndarray, target: np.ndarray, intervals: list[Interval], nodes: int) -> np.ndarray:
    """The nodes 0 <= n < nodes that are on some cycle."""
    _, labels, sizes = components(source, target, intervals, nodes)
    return np.flatnonzero(sizes[labels[:nodes]] > 1)


def components(
    source: np.ndarray, target: np.ndarray, intervals: list[Interval], nodes: int
) -> tuple[csr_matrix, np.ndarray, np.ndarray]:
    """The graph with real time (its nodes are behind the others), every node's component, and how many nodes below
    `nodes` each component has."""
    rt_source, rt_target, count = _real_time(intervals, nodes)
    rows, columns = np.concatenate([source, rt_source]), np.concatenate([target, rt_target])
    graph = csr_matrix((np.ones(len(rows), np.int8), (rows, columns)), shape=(count, count))
    _, labels = connected_components(graph, directed=True, connection="strong")
    sizes = np.bincount(labels[:nodes], minlength=labels.max() + 1) if nodes else np.empty(0, np.int64)
    return graph, labels, sizes


def _shortest_cycle(graph: csr_matrix, labels: np.ndarray, members: np.ndarray, nodes: int) -> list[int]:
    best: list[int] = []
    for start in members[:STARTS_MAX]:
        cycle = _cycle_through(graph, labels, int(start), nodes, len(best))
        best = cycle or best
        if len(best) == 2:
            break
    return best


def _cycle_through(graph: csr_matrix, labels: np.ndarray, start: int, nodes: int, limit: int) -> list[int]:
    """A shortest cycle through `start` (not longer than `limit` unless that is 0), counting steps into transactions."""
    indptr, indices, label = graph.indptr, graph.indices, labels[start]
    distance = {start: 0}
    parent: dict[int, int] = {}
    queue = deque([start])
    visited: set[int] = set()
    while queue:
        node = queue.popleft()
        if node in visited:
            continue
        visited.add(node)
        for following in indices[indptr[node] : indptr[node + 1]].tolist():
            if following == start:
                return _walk_back(parent, node, nodes)
            step = distance[node] + (1 if following < nodes else 0)
            if labels[following] != label or step >= distance.get(following, limit or len(labels) + 1):
                continue
            distance[following], parent[following] = step, node
            if following < nodes:
                queue.append(following)
            else:
                queue.appendleft(following)
    return []


def _walk_back(parent: dict[int, int], node: int, nodes: int) -> list[int]:
    path = [node]
    while node in parent:
        node = parent[node]
        path.append(node)
    return [n for n in reversed(path) if n < nodes]
