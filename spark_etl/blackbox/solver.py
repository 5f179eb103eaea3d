"""Choosing an order of versions: an execution as a witness, what is forced, and a SAT solver for the rest."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import msgspec

from spark_etl.blackbox.facts import INIT, Facts, Key
from spark_etl.blackbox.graphs import Chains, Edge, Graph
from spark_etl.blackbox.inference import Events, Missed, Versions, forced, seen

HOLDS, VIOLATED, UNDETERMINED = "holds", "violated", "not determined"
CIRCLE = "these transactions precede one another in a circle"
MISSED = "one of them did not see what it depends on"
UNFITTING = "whatever the order of versions, some precede one another in a circle, e.g. these"
_CONFLICTS_MAX = 2_000
"""So many pairs of writers are added to the SAT solver's problem at once."""
_CYCLES_MAX = 200
"""So many cycles of one proposal become clauses."""


_SAT_CONFLICTS = 10_000
"""After so many conflicts, the SAT solver looks at the clock."""
_FOREVER = 1 << 62
_Ranked = tuple[bool, tuple[int, int], int]
"""Whether it writes, its rank, and the node."""


class Verdict(msgspec.Struct):
    """why: in words, for what does not hold. cycle: that proves it, if one does."""

    verdict: str
    why: str = ""
    cycle: list[Edge] = []


class Shape(NamedTuple):
    """How a model builds its graph. layered: transaction t begins at node 2t and ends at 2t + 1; otherwise both are t.
    exclusive: two writers of a key do not overlap. weak: whoever writes a later version only ends later.
    leave_out: edge kinds that do not count."""

    layered: bool = False
    exclusive: bool = False
    weak: bool = False
    leave_out: tuple[str, ...] = ()

    @property
    def events(self) -> Events:
        return Events(1 + self.layered, self.exclusive, self.weak)


SHAPES = {
    "read-uncommitted": Shape(leave_out=("wr", "rw")),
    "consistent-view": Shape(leave_out=("rw",)),
    "serializable": Shape(),
    "snapshot-isolation": Shape(layered=True, exclusive=True),
    "prefix": Shape(layered=True, weak=True),
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
        graph.add(2 * source + 1, 2 * target + (shape.weak and kind == "ww"), edge)


def circle(graph: Graph) -> list[Edge]:
    """A short cycle, without the edges inside of transactions."""
    return [edge for edge in graph.cycle() if edge.source != edge.target]


def build(shape: Shape, transactions: Iterable[int], edges: Iterable[Edge]) -> Graph:
    """The graph of a shape; every transaction begins before it ends."""
    graph = Graph()
    if shape.layered:
        for t in transactions:
            graph.add(2 * t, 2 * t + 1, Edge(t, t, "", None))
    for edge in edges:
        put(graph, shape, edge)
    return graph


class Solver:
    """Find an order of the versions of `Facts.free` so that the graph has no cycle."""

    def __init__(self, facts: Facts, readers: Mapping[tuple[Key, int], Collection[int]], shape: Shape, deadline: float):
        """readers: (key, writer) -> who read that version. deadline: of `time.monotonic`."""
        self._facts = facts
        self._readers = readers
        self._shape = shape
        self._deadline = deadline
        self._nodes = [node for t in facts.committed for node in ((2 * t, 2 * t + 1) if shape.layered else (t,))]
        self._writes: dict[int, list[Key]] = defaultdict(list)
        for key in facts.free:
            for writer in facts.writers[key]:
                self._writes[writer].append(key)
        self._reads: dict[int, list[tuple[Key, int]]] = defaultdict(list)
        for read in facts.reads:
            if read.key in facts.free:
                self._reads[read.reader].append((read.key, read.writer))
        every = "rw" in shape.leave_out
        overtaken = {(reader, key) for reader, _, key in facts.rw}
        reads = [r for r in facts.reads if r.key not in facts.list_keys or (every and (r.reader, r.key) in overtaken)]
        self._versions = Versions(facts.writers if every else facts.free, reads, facts.places)
        self._lanes = {i: t.process for i, t in facts.committed.items()}

    def solve(self, graph: Graph) -> Verdict:
        """graph: of the shape, with all edges that are known; without a cycle. It is changed. TimeoutError."""
        if self._execute(graph) is not None:
            return Verdict(HOLDS)
        if (verdict := self._saturate(graph)) is not None:
            return verdict
        if self._execute(graph) is not None:
            return Verdict(HOLDS)
        return self._sat(graph)

    # -- what is forced -----------------------------------------------------------------------------------------------

    def _chains(self, graph: Graph) -> Chains | None:
        order = graph.order(self._nodes)
        return None if order is None else Chains(graph, order, self._lanes, self._shape.layered)

    def _saturate(self, graph: Graph) -> Verdict | None:
        """Add what is forced, until nothing more is. The verdict if that closes a cycle. TimeoutError."""
        infer = _seen_edges if "rw" in self._shape.leave_out else forced
        while (chains := self._chains(graph)) is not None:
            before = graph.size
            for edge in list(infer(chains, self._versions, self._shape.events, self._deadline)):
                if edge.kind in self._shape.leave_out:
                    return Verdict(VIOLATED, MISSED, [edge, *graph.path(edge.target, edge.source)])
                put(graph, self._shape, edge)
            if graph.size == before:
                return None
        return Verdict(VIOLATED, CIRCLE, circle(graph))

    # -- consistent view ----------------------------------------------------------------------------------------------

    def view(self, graph: Graph) -> Verdict:
        """Whether there is an order of versions with which nobody missed what precedes him. graph: without rw edges.
        Depth first through what must be chosen. TimeoutError."""
        verdict, choices = self._view(graph)
        untried: list[tuple[Graph, Edge]] = [(graph, choice) for choice in choices]
        if not untried:
            return verdict
        while untried:
            before, choice = untried.pop()
            chosen = before.copy()
            put(chosen, self._shape, choice)
            verdict, choices = self._view(chosen)
            if verdict.verdict == HOLDS:
                return verdict
            untried += [(chosen, choice) for choice in choices]
        return Verdict(VIOLATED, UNFITTING, verdict.cycle)

    def _view(self, graph: Graph) -> tuple[Verdict, list[Edge]]:
        """The verdict; if it depends on the order of two versions, both of them, the likelier one last."""
        if (verdict := self._saturate(graph)) is not None:
            return verdict, []
        trial = graph.copy()
        while True:
            whole, missed = self._missed(trial)
            if not missed:
                return Verdict(HOLDS), []
            before = trial.size
            for one in missed:
                if one.writer != INIT:
                    put(trial, self._shape, one.edge)
            if trial.size == before or self._saturate(trial) is not None:
                break
        whole, missed = self._missed(graph)
        return Verdict(UNDETERMINED), self._choices(graph, whole, missed[0])

    def _missed(self, graph: Graph) -> tuple[Graph, list[Missed]]:
        """The graph with an order of all versions that fits; who missed something then."""
        ranks = self._ranks(graph)
        whole = graph.copy()
        for key, writers in self._facts.free.items():
            for earlier, later in pairwise(sorted(writers, key=lambda t: ranks[t])):
                put(whole, self._shape, Edge(earlier, later, "ww", key))
        chains = self._chains(whole)
        assert chains is not None
        return whole, list(seen(chains, self._versions, self._shape.events, self._deadline))

    def _choices(self, graph: Graph, whole: Graph, missed: Missed) -> list[Edge]:
        """One of the choices that made somebody miss something must be another one: that choice, and the other."""
        way = [Edge(missed.writer, missed.other, "ww", missed.key)] if missed.writer != INIT else []
        way += [e for e in whole.path(missed.other, missed.reader) if e.target not in graph.after.get(e.source, ())]
        choice = next(e for e in way if not graph.path(e.source, e.target))
        return [choice, Edge(choice.target, choice.source, "ww", choice.key)]

    # -- a witness ----------------------------------------------------------------------------------------------------

    def _ranks(self, graph: Graph) -> dict[int, tuple[int, int]]:
        """A topological order: by when a transaction, or one that must follow it, completes."""
        step, ranks = self._shape.events.step, dict[int, tuple[int, int]]()
        for i, node in reversed(list(enumerate(graph.order(self._nodes) or []))):
            end = self._facts.committed[node // step].complete
            ends = (ranks[target][0] for target in graph.after.get(node, ()))
            ranks[node] = min((*ends, _FOREVER if end is None else end)), i
        return ranks

    def _execute(self, graph: Graph, force: bool = False) -> list[int] | None:
        """A topological order in which every read returns what was written last, and exclusive writers do not overlap:
        a writer waits until whoever reads the present version has had his turn. None if all wait for one another.
        force: then one of them goes first all the same."""
        step, exclusive = self._shape.events.step, self._shape.exclusive
        left = {key: set(self._readers.get((key, INIT), ())) for key in self._facts.free}
        holder: dict[Key, int] = {}
        waits: dict[int, int] = defaultdict(int)
        for targets in graph.after.values():
            for target in targets:
                waits[target] += 1
        ranks = self._ranks(graph)
        free = [(bool(self._writes.get(n // step)), ranks[n], n) for n in self._nodes if not waits[n]]
        heapify(free)
        blocked: dict[tuple[Key, bool], list[_Ranked]] = defaultdict(list)
        woken: dict[int, tuple[Key, bool]] = {}
        forced: list[_Ranked] = []
        done: dict[int, None] = {}

        def wake(place: tuple[Key, bool]) -> None:
            if blocked[place]:
                one = heappop(blocked[place])
                woken[one[2]] = place
                heappush(free, one)

        while free or (force and forced):
            must = not free
            one = heappop(free or forced)
            node = one[2]
            if node in done:
                continue
            if not len(done) & 0xFFF:
                self._look()
            t, writes = node // step, self._writes.get(node // step, ())
            begins, ends = node == step * t, node == step * t + step - 1
            hindered: tuple[Key, bool] | None = None
            if exclusive and begins:
                hindered = next(((k, True) for k in writes if k in holder), None)
            if ends and hindered is None:
                hindered = next(((k, False) for k in writes if left[k] and left[k] != {t}), None)
            if hindered is not None and not must:
                heappush(blocked[hindered], one)
                if force:
                    heappush(forced, one)
                if (place := woken.pop(node, hindered)) != hindered:
                    wake(place)
                continue
            done[node] = None
            touched: list[Key] = []
            if begins:
                for key, _ in self._reads.get(t, ()):
                    left[key].discard(t)
                    touched.append(key)
                if exclusive:
                    holder.update((key, t) for key in writes)
            if ends:
                for key in writes:
                    left[key] = {r for r in self._readers.get((key, t), ()) if step * r not in done}
                    touched.append(key)
                    if holder.get(key) == t:
                        del holder[key]
                        wake((key, True))
            for key in touched:
                if len(left[key]) <= 1:
                    wake((key, False))
            for target in graph.after.get(node, ()):
                waits[target] -= 1
                if not waits[target]:
                    heappush(free, (bool(self._writes.get(target // step)), ranks[target], target))
        return list(done) if len(done) == len(self._nodes) else None

    # -- search -------------------------------------------------------------------------------------------------------

    def _conflicts(self, order: Sequence[int]) -> dict[tuple[Key, int, int], None]:
        """Pairs of writers of a key that this order has the wrong way round for some read, or overlapping."""
        step = self._shape.events.step
        found: dict[tuple[Key, int, int], None] = {}
        present: dict[Key, int] = {}
        following: dict[tuple[Key, int], int] = {}
        holder: dict[Key, int] = {}
        for node in order:
            t = node // step
            if node == step * t:
                for key, source in self._reads.get(t, ()):
                    if source != INIT and key not in self._facts.list_keys and present.get(key, source) != source:
                        for other in (present[key], following[key, source]):
                            if other != t:
                                found[key, min(source, other), max(source, other)] = None
                if self._shape.exclusive:
                    for key in self._writes.get(t, ()):
                        if key in holder:
                            found[key, min(t, holder[key]), max(t, holder[key])] = None
                        holder[key] = t
            if node == step * t + step - 1:
                for key in self._writes.get(t, ()):
                    if key in present:
                        following.setdefault((key, present[key]), t)
                    present[key] = t
                    if holder.get(key) == t:
                        del holder[key]
            if len(found) >= _CONFLICTS_MAX:
                break
        return found

    def _side(self, key: Key, earlier: int, later: int) -> list[Edge]:
        """What follows if one version comes before the other."""
        return [Edge(earlier, later, "ww", key), *overwritten(self._facts, self._readers, key, earlier, later)]

    def _sat(self, graph: Graph) -> Verdict:
        """Counterexample-guided: a pair of writers takes part as soon as an execution fails at it, and each cycle of a
        proposal becomes a clause."""
        from pysat.solvers import Solver as Sat

        pairs: dict[tuple[Key, int, int], None] = {}
        trial = graph
        with Sat(name="glucose4") as sat:
            sat.add_clause([1, -1])
            while True:
                sat.conf_budget(_SAT_CONFLICTS)
                while (found := sat.solve_limited()) is None:
                    self._look()
                    sat.conf_budget(_SAT_CONFLICTS)
                if not found:
                    return Verdict(VIOLATED, UNFITTING, circle(trial))
                self._look()
                model = {abs(v): v for v in sat.get_model() or []}
                trial = graph.copy()
                owner: dict[Edge, int] = {}
                for i, (key, a, b) in enumerate(pairs, 1):
                    literal = model.get(i, i)
                    for edge in self._side(key, a, b) if literal > 0 else self._side(key, b, a):
                        owner.setdefault(edge, literal)
                        put(trial, self._shape, edge)
                if trial.order() is None:
                    for cycle in self._cycles(trial):
                        sat.add_clause(sorted({-owner[e] for e in cycle if e in owner}))
                    continue
                order = self._execute(trial, force=True) or []
                new = self._conflicts(order)
                if not new:
                    return Verdict(HOLDS)
                pairs.update(new)

    def _look(self) -> None:
        """At the clock. TimeoutError."""
        if time.monotonic() > self._deadline:
            raise TimeoutError

    @staticmethod
    def _cycles(graph: Graph) -> list[list[Edge]]:
        """A cycle through each of some nodes on cycles."""
        part = graph.knots()
        return [part.path(start, start) for start in sorted(part.after)[: part.tries(_CYCLES_MAX)]]


def _seen_edges(chains: Chains, versions: Versions, events: Events, deadline: float) -> Iterator[Edge]:
    return (missed.edge for missed in seen(chains, versions, events, deadline))


def overwritten(
    facts: Facts, readers: Mapping[tuple[Key, int], Collection[int]], key: Key, earlier: int, later: int
) -> list[Edge]:
    """Whoever read a version of a register precedes those who wrote a later one."""
    if key in facts.list_keys:
        return []
    return [Edge(r, later, "rw", key) for r in readers.get((key, earlier), ()) if r != later]
