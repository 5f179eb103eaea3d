"""Directed graphs of transactions: topological order, shortest cycles, reachability."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple


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

    def add(self, source: int, target: int, edge: Edge) -> None:
        self.after[source].setdefault(target, edge)

    def copy(self) -> Graph:
        """With the same edges."""
        other = Graph()
        for source, targets in self.after.items():
            other.after[source] = dict(targets)
        return other

    def order(self) -> list[int] | None:
        """A topological order of all nodes, None if there is a cycle (Kahn)."""
        waits: dict[int, int] = defaultdict(int)
        nodes = dict.fromkeys(self.after)
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

    def cycle(self) -> list[Edge]:
        """A shortest cycle through some node of a cycle; empty if there is none."""
        best: list[Edge] = []
        for start in self.cyclic()[:64]:
            found = self.path(start, start)
            if found and (not best or len(found) < len(best)):
                best = found
                if len(best) <= 2:
                    break
        return best

    def cyclic(self) -> list[int]:
        """Nodes that remain when those without predecessors or successors are taken away, again and again."""
        waits: dict[int, int] = defaultdict(int)
        before: dict[int, list[int]] = defaultdict(list)
        for source, targets in self.after.items():
            for target in targets:
                waits[target] += 1
                before[target].append(source)
        gone: set[int] = set()
        free = [node for node in self.after if not waits[node]]
        while free:
            node = free.pop()
            gone.add(node)
            for target in self.after.get(node, ()):
                waits[target] -= 1
                if not waits[target]:
                    free.append(target)
        left = [node for node in {*waits, *self.after} if node not in gone]
        leaves = {node: sum(t not in gone for t in self.after.get(node, ())) for node in left}
        free = [node for node in left if not leaves[node]]
        while free:
            node = free.pop()
            gone.add(node)
            for source in before.get(node, ()):
                if source in leaves and source not in gone:
                    leaves[source] -= 1
                    if not leaves[source]:
                        free.append(source)
        return sorted(node for node in left if node not in gone)

    def path(self, start: int, end: int) -> list[Edge]:
        """The shortest way from one node to another, or around."""
        came: dict[int, tuple[int, Edge]] = {}
        layer = [start]
        while layer:
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


class Reach:
    """Reachability in an acyclic graph, by bit sets."""

    def __init__(self, graph: Graph):
        order = graph.order() or []
        self._bit = {node: i for i, node in enumerate(order)}
        self._reached: dict[int, int] = {}
        for node in reversed(order):
            bits = 0
            for target in graph.after.get(node, ()):
                bits |= self._reached[target] | 1 << self._bit[target]
            self._reached[node] = bits

    def __call__(self, source: int, target: int) -> bool:
        bit = self._bit.get(target)
        return bit is not None and bool(self._reached.get(source, 0) >> bit & 1)
