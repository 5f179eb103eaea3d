"""Choosing an order of versions: constraints, what reachability forces, and a SAT solver for the rest."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from spark_etl.blackbox.graphs import Edge, Graph, Reach

HOLDS, VIOLATED, UNDETERMINED = "holds", "violated", "not determined"


class Verdict(msgspec.Struct):
    """why: in words, for what does not hold. cycle: that proves it, if one does."""

    verdict: str
    why: str = ""
    cycle: list[Edge] = []


class Shape(NamedTuple):
    """How a model builds its graph. Each transaction t is node 2t (reached by `base`) and 2t + 1 (reached otherwise).
    weak: edge kinds after which an rw edge must not follow."""

    layered: bool
    weak: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()


SHAPES = {
    "read-uncommitted": Shape(False, leave_out=("wr", "rw")),
    "serializable": Shape(False),
    "snapshot-isolation": Shape(True, weak=("rw",)),
    "prefix": Shape(True, weak=("rw", "ww")),
}


def put(graph: Graph, shape: Shape, edge: Edge) -> None:
    """Add an edge as the model's shape wants it."""
    source, target, kind, _ = edge
    if kind in shape.leave_out:
        return
    if not shape.layered:
        graph.add(source, target, edge)
    elif kind == "rw":
        graph.add(2 * source, 2 * target + 1, edge)
    else:
        reached = 2 * target + (kind in shape.weak)
        graph.add(2 * source, reached, edge)
        graph.add(2 * source + 1, reached, edge)


class Constraint(NamedTuple):
    """Either all edges of `first` hold or all of `second`. blind: nobody read either version, so that a graph without
    layers can always be completed (in a topological order)."""

    first: tuple[Edge, ...]
    second: tuple[Edge, ...]
    blind: bool


class Solver:
    """Choose one side of every constraint so that the graph has no cycle."""

    def __init__(self, graph: Graph, shape: Shape, constraints: Sequence[Constraint], seconds: float):
        self._graph = graph
        self._shape = shape
        self._open = list(constraints)
        self._deadline = time.monotonic() + seconds

    def prune(self) -> Verdict | None:
        """Choose what reachability leaves no choice about, until it leaves nothing more."""
        while self._open:
            before = len(self._open)
            verdict = self._prune()
            if verdict is not None:
                return verdict
            if len(self._open) == before:
                return None
            if time.monotonic() > self._deadline:
                return Verdict(UNDETERMINED, "the search took too long")
        return Verdict(HOLDS)

    def _prune(self) -> Verdict | None:
        reach = Reach(self._graph)
        left: list[Constraint] = []
        for constraint in self._open:
            first = any(self._closes(reach, edge) for edge in constraint.first)
            second = any(self._closes(reach, edge) for edge in constraint.second)
            if first and second:
                edge = next(e for e in constraint.first if self._closes(reach, e))
                why = "whichever of two writes comes first, these precede one another in a circle"
                return Verdict(VIOLATED, why, self._around(edge))
            if first or second:
                for edge in constraint.second if first else constraint.first:
                    put(self._graph, self._shape, edge)
            else:
                left.append(constraint)
        if len(left) < len(self._open) and self._graph.order() is None:
            return Verdict(VIOLATED, "these transactions precede one another in a circle", self._graph.cycle())
        self._open = left
        return None

    def _pairs(self, edge: Edge) -> list[tuple[int, int]]:
        probe = Graph()
        put(probe, self._shape, edge)
        return [(source, target) for source, targets in probe.after.items() for target in targets]

    def _closes(self, reach: Reach, edge: Edge) -> bool:
        return any(source == target or reach(target, source) for source, target in self._pairs(edge))

    def _around(self, edge: Edge) -> list[Edge]:
        for source, target in self._pairs(edge):
            if way := self._graph.path(target, source):
                return [edge, *way]
        return [edge]

    def guess(self) -> Verdict | None:
        """The topological order at hand may do."""
        place = {node: i for i, node in enumerate(self._graph.order() or [])}
        trial = self._graph.copy()
        for constraint in self._open:
            for edge in constraint.first if self._fits(place, constraint.first) else constraint.second:
                put(trial, self._shape, edge)
        return Verdict(HOLDS) if trial.order() is not None else None

    def _fits(self, place: dict[int, int], edges: Sequence[Edge]) -> bool:
        good = sum(place.get(s, 0) < place.get(t, 0) for e in edges for s, t in self._pairs(e))
        return 2 * good >= sum(len(self._pairs(e)) for e in edges)

    def sat(self) -> Verdict:
        """Counterexample-guided: each cycle of a proposal becomes a clause."""
        from pysat.solvers import Solver

        place = {node: i for i, node in enumerate(self._graph.order() or [])}
        with Solver(name="cadical153") as solver:
            phases = [i if self._fits(place, c.first) else -i for i, c in enumerate(self._open, 1)]
            solver.add_clause([1, -1])
            chosen = phases
            while time.monotonic() < self._deadline:
                owner: dict[Edge, int] = {}
                trial = self._graph.copy()
                for literal, constraint in zip(chosen, self._open, strict=True):
                    for edge in constraint.first if literal > 0 else constraint.second:
                        owner.setdefault(edge, literal)
                        put(trial, self._shape, edge)
                if trial.order() is not None:
                    return Verdict(HOLDS)
                for cycle in self._cycles(trial):
                    solver.add_clause(sorted({-owner[e] for e in cycle if e in owner}))
                if not solver.solve(assumptions=[]):
                    why = "whatever the order of versions, some precede one another in a circle, e.g. these"
                    return Verdict(VIOLATED, why, trial.cycle())
                model = {abs(v): v for v in solver.get_model() or []}
                chosen = [model.get(i, phases[i - 1]) for i in range(1, len(self._open) + 1)]
        return Verdict(UNDETERMINED, "the search took too long")

    @staticmethod
    def _cycles(graph: Graph) -> list[list[Edge]]:
        """A cycle through each of some nodes on cycles."""
        found = []
        for start in graph.cyclic()[:200]:
            if cycle := graph.path(start, start):
                found.append(cycle)
        return found
