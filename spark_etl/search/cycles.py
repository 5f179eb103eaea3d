"""Cycles in a graph of transactions: strongly connected components and a shortest cycle in each. Pure numpy and scipy.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from spark_etl.blackbox.intervals import Interval, real_time

CYCLES_MAX = 5
STARTS_MAX = 200
"""From how many nodes of a component a shortest cycle is looked for; of more, from those that are likely, if any, and
beyond it the cycle shown may not be shortest."""


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


def cycles_through(
    source: np.ndarray, target: np.ndarray, intervals: list[Interval], nodes: int, mine: np.ndarray,
    cycles_max: int,
) -> tuple[list[list[int]], int]:  # fmt: skip
    """A shortest cycle through each of up to `cycles_max` of these nodes that are on one, and how many are."""
    graph, labels, sizes = components(source, target, intervals, nodes)
    cyclic = mine[sizes[labels[mine]] > 1]
    return [_cycle_through(graph, labels, int(node), nodes, 0) for node in cyclic[:cycles_max]], len(cyclic)


def cyclic_nodes(source: np.ndarray, target: np.ndarray, intervals: list[Interval], nodes: int) -> np.ndarray:
    """The nodes 0 <= n < nodes that are on some cycle."""
    _, labels, sizes = components(source, target, intervals, nodes)
    return np.flatnonzero(sizes[labels[:nodes]] > 1)


def components(
    source: np.ndarray, target: np.ndarray, intervals: list[Interval], nodes: int
) -> tuple[csr_matrix, np.ndarray, np.ndarray]:
    """The graph with real time (its nodes are behind the others), every node's component, and how many nodes below
    `nodes` each component has."""
    rt_source, rt_target, count = real_time(intervals, nodes)
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
