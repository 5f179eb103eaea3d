"""Directed graphs of transactions: topological order, shortest cycles, reachability."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

NEVER = np.iinfo(np.int32).max
_VISITS = 10_000_000
"""So many edges searches for short cycles may follow in all."""
_CELLS = 1 << 25
"""Of one table of clocks, 4 bytes each."""
_Lists = tuple[np.ndarray, np.ndarray]


class Edge(NamedTuple):
    """source must come before target. kind: ww, wr, rw, session or realtime. key: None for the last two."""

    source: int
    target: int
    kind: str
    key: Any


class Graph:
    """Edges between nodes; a transaction may be several nodes, by how it was reached (see `_layered`)."""

    def __init__(self) -> None:
        self.after: dict[int, dict[int, Edge]] = defaultdict(dict)

    @property
    def size(self) -> int:
        """How many edges."""
        return sum(map(len, self.after.values()))

    def add(self, source: int, target: int, edge: Edge) -> None:
        self.after[source].setdefault(target, edge)

    def copy(self) -> Graph:
        """With the same edges."""
        other = Graph()
        for source, targets in self.after.items():
            other.after[source] = dict(targets)
        return other

    def order(self, nodes: Iterable[int] = ()) -> list[int] | None:
        """A topological order of all nodes, and of these; None if there is a cycle (Kahn)."""
        waits: dict[int, int] = defaultdict(int)
        nodes = dict.fromkeys((*self.after, *nodes))
        for targets in list(self.after.values()):
            for target in targets:
                waits[target] += 1
                nodes.setdefault(target)
        free = [node for node in nodes if not waits[node]]
        for node in free:
            for target in self.after.get(node, ()):
                waits[target] -= 1
                if not waits[target]:
                    free.append(target)
        return free if len(free) == len(nodes) else None

    def tries(self, most: int) -> int:
        """Of so many searches at most, how many a graph of this size is worth."""
        return max(8, min(most, _VISITS // (1 + self.size)))

    def cycle(self, deadline: float = math.inf) -> list[Edge]:
        """A shortest cycle through some node of a cycle; empty if there is none. deadline: of tries to shorten it."""
        if self.order() is not None:
            return []
        best: list[Edge] = []
        part = self.knots()
        for start in sorted(part.after)[: part.tries(64)]:
            best = part.path(start, start, len(best) - 1) or best
            if 0 < len(best) <= 2 or time.monotonic() > deadline:
                break
        return best

    def knots(self) -> Graph:
        """The edges that lie on cycles."""
        part = Graph()
        for one in self.parts():
            part.after.update(one.after)
        return part

    def parts(self) -> list[Graph]:
        """The edges that lie on cycles, by strongly connected component."""
        names = np.array(sorted({*self.after, *(t for targets in self.after.values() for t in targets)}), np.int64)
        pairs = np.array([(s, t) for s, targets in self.after.items() for t in targets], np.int64).reshape(-1, 2)
        ends = np.searchsorted(names, pairs)
        matrix = coo_matrix((np.ones(len(ends), np.int8), (ends[:, 0], ends[:, 1])), shape=(len(names), len(names)))
        if not len(pairs):
            return []
        _, component = connected_components(matrix, connection="strong")
        inside = component[ends[:, 0]] == component[ends[:, 1]]
        found: dict[int, Graph] = defaultdict(Graph)
        for label, (source, target) in zip(component[ends[inside, 0]].tolist(), pairs[inside].tolist(), strict=True):
            found[label].after[source][target] = self.after[source][target]
        return list(found.values())

    def path(self, start: int, end: int, most: int = -1) -> list[Edge]:
        """The shortest way from one node to another, or around; of at most so many edges, if `most` is not negative."""
        came: dict[int, tuple[int, Edge]] = {}
        layer = [start]
        while layer and most:
            most -= 1
            following = []
            for node in layer:
                for target, edge in self.after.get(node, {}).items():
                    if target == end:
                        way = [edge]
                        while node != start:
                            node, edge = came[node]
                            way.append(edge)
                        return way[::-1]
                    if target not in came and target != start:
                        came[target] = (node, edge)
                        following.append(target)
            layer = following
        return []


class Chains:
    """Paths that cover an acyclic graph, and how far each node sees along each of them (vector clocks).

    Rows are nodes in topological order. A node joins the chain of a predecessor that is the last of its chain, if
    possible one of its own lane. paired: nodes 2t and 2t + 1, beginning and end of a transaction, stay together.
    """

    def __init__(self, graph: Graph, order: Sequence[int], lanes: Mapping[int, int], paired: bool):
        self.nodes = np.array(order, np.int64)
        self.row = np.full(int(self.nodes.max(initial=0)) + 3, -1, np.int64)
        self.row[self.nodes] = np.arange(len(order))
        pairs = [(source, target) for source, targets in graph.after.items() for target in targets]
        ends = self.row[np.array(pairs, np.int64).reshape(-1, 2)]
        self._before = _grouped(ends[:, 1], ends[:, 0], len(order))
        self._after = _grouped(ends[:, 0], ends[:, 1], len(order))
        self.chain = np.zeros(len(order), np.int64)
        self.place = np.zeros(len(order), np.int32)
        self.count = self._cover(order, lanes, paired)

    def _cover(self, order: Sequence[int], lanes: Mapping[int, int], paired: bool) -> int:
        starts, before = (one.tolist() for one in self._before)
        chain, place, last = [0] * len(order), [0] * len(order), list[int]()
        for i, node in enumerate(order):
            if paired and node & 1:
                mine = chain[self.row[node - 1]]
            else:
                lane = lanes.get(node >> paired)
                tails = [p for p in before[starts[i] : starts[i + 1]] if last[chain[p]] == p]
                tails = [p for p in tails if order[p] & 1] if paired else tails
                tail = next((p for p in tails if lanes.get(order[p] >> paired) == lane), tails[0] if tails else None)
                mine = chain[tail] if tail is not None else len(last)
            if mine == len(last):
                last.append(i)
            else:
                place[i] = place[last[mine]] + 1
            chain[i], last[mine] = mine, i
        self.chain[:], self.place[:] = chain, place
        return len(last)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Ranges of chains whose clocks fit in memory."""
        width = max(1, _CELLS // max(1, len(self.nodes)))
        for low in range(0, self.count, width):
            yield low, min(self.count, low + width)

    def past(self, low: int, high: int, deadline: float) -> np.ndarray:
        """[row, chain - low]: the last place in the chain from which the row is reached, itself included; or -1."""
        clocks = np.full((len(self.nodes), high - low), -1, np.int32)
        self._fill(clocks, low, high, range(len(self.nodes)), self._before, np.maximum, deadline)
        return clocks

    def future(self, low: int, high: int, deadline: float) -> np.ndarray:
        """[row, chain - low]: the first place in the chain that the row reaches, itself included; or NEVER."""
        clocks = np.full((len(self.nodes), high - low), NEVER, np.int32)
        self._fill(clocks, low, high, range(len(self.nodes) - 1, -1, -1), self._after, np.minimum, deadline)
        return clocks

    def reached(self, pairs: Sequence[tuple[int, int]], deadline: float = math.inf) -> Iterator[int]:
        """Numbers of the pairs of nodes of which the first reaches the second."""
        sources, targets = self.row[np.array(pairs, np.int64).reshape(-1, 2)].T
        for low, high in self.blocks():
            past = self.past(low, high, deadline)
            mine = np.flatnonzero((self.chain[sources] >= low) & (self.chain[sources] < high))
            a, b = sources[mine], targets[mine]
            yield from mine[past[b, self.chain[a] - low] >= self.place[a]].tolist()

    def _fill(
        self, clocks: np.ndarray, low: int, high: int, rows: range, near: _Lists, best: np.ufunc, deadline: float
    ) -> None:
        starts, others = near[0].tolist(), near[1]
        chain, place = self.chain.tolist(), self.place.tolist()
        for i in rows:
            a, b = starts[i], starts[i + 1]
            if b - a == 1:
                clocks[i] = clocks[others[a]]
            elif b > a:
                best.reduce(clocks[others[a:b]], axis=0, out=clocks[i])
            if low <= chain[i] < high:
                clocks[i, chain[i] - low] = place[i]
            if not i & 0xFFF and time.monotonic() > deadline:
                raise TimeoutError


def _grouped(by: np.ndarray, values: np.ndarray, count: int) -> _Lists:
    """Lists, one behind the other: where each begins, and all of them."""
    return np.concatenate(([0], np.cumsum(np.bincount(by, minlength=count)))), values[np.argsort(by, kind="stable")]
