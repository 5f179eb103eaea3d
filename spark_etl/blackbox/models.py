"""Which consistency models a history satisfies, given its facts.

Every model here asks for an order of the versions of each key (Adya) under which certain cycles do not exist. With
base = ww and wr (and the session order, or real time, in the stronger variants):

    read uncommitted     no cycle of ww                                      Adya 1999 (no G0)
    read committed       a commit order holds wr, and: whoever read from t2 before it read x of t1, though t2 wrote x,
                         has t2 before t1                                    Biswas and Enea 2019, Section 2.2
    read atomic          the same with "is t2, or t2 is before it in the session"
    causal               the same with "t2 is in its causal past"
    consistent view      no cycle with exactly one rw                        Adya 1999, PL-2+ (no G-single)
    prefix               ((session and wr) ; rw?) and ww have no cycle       Cerone and Gotsman 2018
    snapshot isolation   (base ; rw?) has no cycle                           Cerone and Gotsman 2018
    serializable         base and rw have no cycle (repeatable read: the same, with item reads only)

Where the order of versions is not certain, there is a *constraint* for each two writers of a key: one of them is first,
and whoever read its version precedes the other. A history satisfies a model if there is a choice without a cycle. What
follows from reachability is chosen first (Cobra, OSDI 2020, Section 4.3); the rest is left to a SAT solver that learns
from the cycles of its proposals. For read committed, read atomic and causal the axioms force enough (Biswas and Enea,
Theorem 5), and no search is needed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations
from typing import NamedTuple

import msgspec

from spark_etl.blackbox.history import Transaction
from spark_etl.blackbox.resolve import INIT, Facts, Key

HOLDS, VIOLATED, UNDETERMINED = "holds", "violated", "not determined"

PLAIN, SESSION, REALTIME = "", "strong-session-", "strong-"
BASES = (
    "read-uncommitted", "read-committed", "read-atomic", "causal", "consistent-view", "prefix", "snapshot-isolation",
    "repeatable-read", "serializable",
)  # fmt: skip
MODELS = tuple(variant + base for variant in (PLAIN, SESSION, REALTIME) for base in BASES)
"""From weak to strong within each variant. "strong-serializable" is strict serializability."""

_IMPLIED = {
    "serializable": ("snapshot-isolation", "repeatable-read"),
    "repeatable-read": ("consistent-view",),
    "snapshot-isolation": ("prefix", "consistent-view"),
    "prefix": ("causal",),
    "consistent-view": ("causal",),
    "causal": ("read-atomic",),
    "read-atomic": ("read-committed",),
    "read-committed": ("read-uncommitted",),
    "read-uncommitted": (),
}

_DEMANDED = {
    "G1a": "read-committed",
    "G1b": "read-committed",
    "dirty-update": "read-committed",
    "future-read": "read-committed",
    "incompatible-order": "read-committed",
    "internal": "read-atomic",
    "garbage-read": "read-uncommitted",
    "duplicate-elements": "read-uncommitted",
    "lost-update": "consistent-view",
}
"""The weakest model that each plain anomaly rules out."""


_PROBES_MAX = 200
"""Consistent view: how many open choices are tried one by one."""


class Edge(NamedTuple):
    """source must come before target. kind: ww, wr, rw, session or realtime. key: None for the last two."""

    source: int
    target: int
    kind: str
    key: Key


class Verdict(msgspec.Struct):
    """why: in words, for what does not hold. cycle: that proves it, if one does."""

    verdict: str
    why: str = ""
    cycle: list[Edge] = []


class Limits(msgspec.Struct, frozen=True):
    """Beyond these the answer is "not determined". transactions: of one history with a search; seconds: of one search;
    constraints: of one history."""

    transactions: int = 30_000
    constraints: int = 3_000_000
    seconds: float = 60.0


# -- graphs -----------------------------------------------------------------------------------------------------------


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


class _Shape(NamedTuple):
    """How a model builds its graph. Each transaction t is node 2t (reached by `base`) and 2t + 1 (reached otherwise).
    weak: edge kinds after which an rw edge must not follow."""

    layered: bool
    weak: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()


_SHAPES = {
    "read-uncommitted": _Shape(False, leave_out=("wr", "rw")),
    "serializable": _Shape(False),
    "snapshot-isolation": _Shape(True, weak=("rw",)),
    "prefix": _Shape(True, weak=("rw", "ww")),
}


def _put(graph: Graph, shape: _Shape, edge: Edge) -> None:
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


class _Constraint(NamedTuple):
    """Either all edges of `first` hold or all of `second`. blind: nobody read either version, so that a graph without
    layers can always be completed (in a topological order)."""

    first: tuple[Edge, ...]
    second: tuple[Edge, ...]
    blind: bool


# -- judging ----------------------------------------------------------------------------------------------------------


class Judge:
    """One history. `verdicts` gives every model of MODELS."""

    def __init__(self, facts: Facts, history: Sequence[Transaction], limits: Limits | None = None):
        self.facts = facts
        self.limits = limits or Limits()
        self.history = [facts.committed[i] for i in sorted(facts.committed)]
        self.timed = all(t.timed for t in self.history)
        self.readers: dict[tuple[Key, int], list[int]] = defaultdict(list)
        for read in facts.reads:
            if read.reader not in self.readers[read.key, read.writer]:
                self.readers[read.key, read.writer].append(read.reader)
        self.known = self._known_edges()
        self._constraints = self._all_constraints()

    def verdicts(self) -> dict[str, Verdict]:
        """Model -> verdict. What a stronger model proves of a weaker one, and the other way round, is not asked."""
        if self.facts.repeated:
            why = "values repeat at some key, so that reads do not name their writers"
            return {model: Verdict(UNDETERMINED, why) for model in MODELS}
        found: dict[str, Verdict] = {}
        for base in reversed(BASES):
            for variant in (REALTIME, SESSION, PLAIN):
                found[variant + base] = self._judge(variant, base, found)
        for model in found:
            broken = (name for name in weaker(model) if found[name].verdict == VIOLATED)
            if found[model].verdict == UNDETERMINED and (name := next(broken, None)):
                found[model] = found[name]
        return {model: found[model] for model in MODELS}

    def _judge(self, variant: str, base: str, found: dict[str, Verdict]) -> Verdict:
        model = variant + base
        if any(verdict.verdict == HOLDS and model in weaker(stronger) for stronger, verdict in found.items()):
            return Verdict(HOLDS)
        for anomaly in self.facts.anomalies:
            demanded = _DEMANDED.get(anomaly.name)
            if demanded and demanded in (base, *weaker(base)):
                return Verdict(VIOLATED, anomaly.text)
        if variant == REALTIME and not any(t.timed for t in self.history):
            return Verdict(UNDETERMINED, "the history has no real time")
        return self._check(variant, base)

    def _check(self, variant: str, base: str) -> Verdict:
        extra = self.session_edges() if variant == SESSION else self.realtime_edges() if variant == REALTIME else []
        if base in ("read-committed", "read-atomic", "causal"):
            return self._forced(base, extra)
        if base == "consistent-view":
            return self._consistent_view(extra)
        return self._search(_SHAPES["serializable" if base == "repeatable-read" else base], extra)

    # -- edges --------------------------------------------------------------------------------------------------------

    def _known_edges(self) -> list[Edge]:
        facts = self.facts
        edges = [Edge(a, b, "ww", key) for a, b, key in sorted(facts.ww, key=repr)]
        edges += [Edge(r.writer, r.reader, "wr", r.key) for r in facts.reads if r.writer != INIT]
        edges += [Edge(a, b, "rw", key) for a, b, key in sorted(facts.rw, key=repr)]
        for earlier, later, key in facts.ww:
            edges += self._overwritten(key, earlier, later)
        for key, writers in facts.writers.items():
            for reader in self.readers.get((key, INIT), ()):
                edges += [Edge(reader, w, "rw", key) for w in writers if w != reader and not self._is_list(key)]
        return list(dict.fromkeys(edges))

    def _is_list(self, key: Key) -> bool:
        return key in self.facts.list_keys

    def _overwritten(self, key: Key, earlier: int, later: int) -> list[Edge]:
        """Whoever read a version precedes those who wrote a later one."""
        if self._is_list(key):
            return []
        return [Edge(r, later, "rw", key) for r in self.readers.get((key, earlier), ()) if r != later]

    def _all_constraints(self) -> list[_Constraint] | None:
        """None: too many."""
        found: list[_Constraint] = []
        known = {(a, b, key) for a, b, key in self.facts.ww}
        for key in sorted(self.facts.free, key=repr):
            writers = self.facts.free[key]
            if len(found) + len(writers) ** 2 // 2 > self.limits.constraints:
                return None
            for u, v in combinations(writers, 2):
                if (u, v, key) in known or (v, u, key) in known:
                    continue
                first = (Edge(u, v, "ww", key), *self._overwritten(key, u, v))
                second = (Edge(v, u, "ww", key), *self._overwritten(key, v, u))
                found.append(_Constraint(first, second, len(first) == len(second) == 1))
        return found

    def session_edges(self) -> list[Edge]:
        last: dict[int, int] = {}
        edges = []
        for transaction in self.history:
            if transaction.process in last:
                edges.append(Edge(last[transaction.process], transaction.index, "session", None))
            last[transaction.process] = transaction.index
        return edges

    def realtime_edges(self) -> list[Edge]:
        """Enough of "completed before the other was invoked" that the rest follows: of those completed before an
        invocation, only the ones that completed after every invocation among them."""
        edges: list[Edge] = []
        timed = [t for t in self.history if t.timed]
        ended = sorted((t for t in timed if t.complete is not None and t.type == "ok"), key=lambda t: t.complete or 0)
        frontier: list[Transaction] = []
        position = 0
        for transaction in sorted(timed, key=lambda t: t.invoke or 0):
            invoke = transaction.invoke or 0
            while position < len(ended) and (ended[position].complete or 0) < invoke:
                newest = ended[position]
                frontier = [t for t in frontier if (t.complete or 0) >= (newest.invoke or 0)]
                frontier.append(newest)
                position += 1
            others = [t.index for t in frontier if t.index != transaction.index]
            edges += [Edge(other, transaction.index, "realtime", None) for other in others]
        return edges

    # -- search -------------------------------------------------------------------------------------------------------

    def _search(self, shape: _Shape, extra: Iterable[Edge]) -> Verdict:
        graph = Graph()
        own: list[Edge] = []
        if "ww" not in shape.weak:
            own = [Edge(a, b, "rw", key) for a, b, key in sorted(self.facts.rw_own, key=repr)]
        for edge in (*self.known, *own, *extra):
            _put(graph, shape, edge)
        if graph.order() is None:
            return Verdict(VIOLATED, "these transactions precede one another in a circle", graph.cycle())
        if self._constraints is None:
            return Verdict(UNDETERMINED, f"more than {self.limits.constraints} pairs of writes have no known order")
        if self._constraints and len(self.history) > self.limits.transactions:
            most = self.limits.transactions
            return Verdict(UNDETERMINED, f"more than {most} transactions, and versions without a known order")
        constraints = self._constraints if shape.layered else [c for c in self._constraints if not c.blind]
        solver = _Solver(graph, shape, constraints, self.limits.seconds)
        if (verdict := solver.prune()) is not None:
            return verdict
        if not shape.layered and (verdict := self._execute(graph)) is not None:
            return verdict
        return solver.guess() or solver.sat()

    def _execute(self, graph: Graph) -> Verdict | None:
        """Try to execute the history one transaction after the other: a witness, if it comes to the end. A write waits
        until everybody who reads the present version has had his turn."""
        writes: dict[int, list[Key]] = defaultdict(list)
        for key in self.facts.free:
            for writer in self.facts.writers[key]:
                writes[writer].append(key)
        left = {key: set(self.readers.get((key, INIT), ())) for key in self.facts.free}
        reads: dict[int, list[Key]] = defaultdict(list)
        for read in self.facts.reads:
            if read.key in left:
                reads[read.reader].append(read.key)
        waits: dict[int, int] = defaultdict(int)
        for targets in graph.after.values():
            for target in targets:
                waits[target] += 1
        place = {node: i for i, node in enumerate(graph.order() or [])}
        free = [(bool(writes[t.index]), place.get(t.index, 0), t.index) for t in self.history if not waits[t.index]]
        heapify(free)
        blocked: dict[Key, list[int]] = defaultdict(list)
        done: set[int] = set()
        while free:
            _, _, node = heappop(free)
            hindered = next((k for k in writes[node] if left[k] and left[k] != {node}), None)
            if hindered is not None:
                blocked[hindered].append(node)
                continue
            done.add(node)
            for key in reads[node]:
                left[key].discard(node)
            for key in writes[node]:
                left[key] = set(self.readers.get((key, node), ()))
            for key in (*reads[node], *writes[node]):
                if len(left[key]) <= 1 and blocked[key]:
                    for waiting in blocked.pop(key):
                        heappush(free, (True, place.get(waiting, 0), waiting))
            for target in graph.after.get(node, ()):
                waits[target] -= 1
                if not waits[target]:
                    heappush(free, (bool(writes[target]), place.get(target, 0), target))
        return Verdict(HOLDS) if len(done) == len(self.history) else None

    # -- models without search ----------------------------------------------------------------------------------------

    def _forced(self, base: str, extra: Sequence[Edge]) -> Verdict:
        """Biswas and Enea: what the axiom forces upon the commit order, together with wr and the session order."""
        edges = [e for e in self.known if e.kind in ("ww", "wr")] + list(extra)
        before = self._visible(base, extra)
        writers = {key: set(ones) for key, ones in self.facts.writers.items()}
        for read in self.facts.reads:
            others = writers.get(read.key)
            if not others:
                continue
            for other in before(read) & others:
                if other in (read.writer, read.reader):
                    continue
                if read.writer == INIT:
                    cycle = [Edge(read.reader, other, "rw", read.key)]
                    return Verdict(VIOLATED, self._blind(read.reader, other, read.key), cycle)
                edges.append(Edge(other, read.writer, "ww", read.key))
        graph = Graph()
        for edge in edges:
            graph.add(edge.source, edge.target, edge)
        if graph.order() is not None:
            return Verdict(HOLDS)
        return Verdict(VIOLATED, "these transactions precede one another in a circle", graph.cycle())

    def _blind(self, reader: int, other: int, key: Key) -> str:
        return f"T{reader} has seen T{other}, which wrote {key!r}, and yet reads its initial version"

    def _visible(self, base: str, extra: Sequence[Edge]) -> _Visibility:
        return _Visibility(base, self.facts, self.known, extra)

    def _consistent_view(self, extra: Sequence[Edge]) -> Verdict:
        """No rw edge leads back along ww, wr (and session or real time); exact only where the order is certain."""
        graph = Graph()
        for edge in (*self.known, *extra):
            if edge.kind != "rw":
                graph.add(edge.source, edge.target, edge)
        if graph.order() is None:
            return Verdict(VIOLATED, "these transactions precede one another in a circle", graph.cycle())
        if single := self._single(graph, [e for e in self.known if e.kind == "rw"]):
            return Verdict(VIOLATED, "one of them did not see what it depends on", single)
        if not self._constraints:
            if self._constraints is None:
                return Verdict(UNDETERMINED, "too many versions without a known order")
            return Verdict(HOLDS)
        if len(self._constraints) > _PROBES_MAX:
            return Verdict(UNDETERMINED, "the order of some versions is not known")
        for constraint in self._constraints:
            ways = [self._probe(graph, side) for side in (constraint.first, constraint.second)]
            if all(ways):
                why = "whichever of two writes comes first, one of them did not see what it depends on"
                return Verdict(VIOLATED, why, ways[0])
        return Verdict(UNDETERMINED, "the order of some versions is not known")

    def _single(self, graph: Graph, rw: Sequence[Edge]) -> list[Edge]:
        """A cycle with exactly one of these rw edges and no other."""
        reach = _Reach(graph)
        for edge in rw:
            if reach(edge.target, edge.source):
                return [edge, *graph.path(edge.target, edge.source)]
        return []

    def _probe(self, graph: Graph, side: Sequence[Edge]) -> list[Edge]:
        """A forbidden cycle that one side of a constraint brings about by itself."""
        trial = graph.copy()
        for edge in side:
            if edge.kind == "ww":
                trial.add(edge.source, edge.target, edge)
        if trial.order() is None:
            return trial.cycle()
        return self._single(trial, [e for e in (*self.known, *side) if e.kind == "rw"])


class _Visibility:
    """read -> the transactions that its reader has seen, in the sense of the model."""

    def __init__(self, base: str, facts: Facts, known: Sequence[Edge], extra: Sequence[Edge]):
        self._base = base
        sources: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for read in facts.reads:
            if read.writer != INIT:
                sources[read.reader].append((read.ordinal, read.writer))
        self._sources = sources
        self._direct: dict[int, set[int]] = {r: {w for _, w in ones} for r, ones in sources.items()}
        graph = Graph()
        for edge in (*(e for e in known if e.kind == "wr"), *extra):
            graph.add(edge.source, edge.target, edge)
        order = graph.order() if base != "read-committed" else []
        self._past: dict[int, set[int]] = {}
        kinds = ("wr", "session", "realtime") if base == "causal" else ("session", "realtime")
        if base != "read-committed" and order is not None:
            past: dict[int, set[int]] = defaultdict(set)
            for node in order:
                for target, edge in graph.after.get(node, {}).items():
                    if edge.kind in kinds:
                        past[target] |= past[node] | {node}
            self._past = past

    def __call__(self, read: tuple[int, Key, int, int]) -> set[int]:
        reader, _, _, ordinal = read
        if self._base == "read-committed":
            return {writer for at, writer in self._sources.get(reader, ()) if at < ordinal}
        return self._direct.get(reader, set()) | self._past.get(reader, set())


class _Reach:
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


class _Solver:
    """Choose one side of every constraint so that the graph has no cycle."""

    def __init__(self, graph: Graph, shape: _Shape, constraints: Sequence[_Constraint], seconds: float):
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
        reach = _Reach(self._graph)
        left: list[_Constraint] = []
        for constraint in self._open:
            first = any(self._closes(reach, edge) for edge in constraint.first)
            second = any(self._closes(reach, edge) for edge in constraint.second)
            if first and second:
                edge = next(e for e in constraint.first if self._closes(reach, e))
                why = "whichever of two writes comes first, these precede one another in a circle"
                return Verdict(VIOLATED, why, self._around(edge))
            if first or second:
                for edge in constraint.second if first else constraint.first:
                    _put(self._graph, self._shape, edge)
            else:
                left.append(constraint)
        if len(left) < len(self._open) and self._graph.order() is None:
            return Verdict(VIOLATED, "these transactions precede one another in a circle", self._graph.cycle())
        self._open = left
        return None

    def _pairs(self, edge: Edge) -> list[tuple[int, int]]:
        probe = Graph()
        _put(probe, self._shape, edge)
        return [(source, target) for source, targets in probe.after.items() for target in targets]

    def _closes(self, reach: _Reach, edge: Edge) -> bool:
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
                _put(trial, self._shape, edge)
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
                        _put(trial, self._shape, edge)
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


def weaker(model: str) -> frozenset[str]:
    """Every other model that this one implies. A session's transactions follow one another in real time."""
    if model not in _IMPLIES:
        variant = next(v for v in (SESSION, REALTIME, PLAIN) if model.startswith(v))
        base = model.removeprefix(variant)
        below = {PLAIN: (), SESSION: (PLAIN,), REALTIME: (SESSION, PLAIN)}[variant]
        direct = [variant + implied for implied in _IMPLIED[base]] + [v + base for v in below]
        _IMPLIES[model] = frozenset(direct).union(*map(weaker, direct))
    return _IMPLIES[model]


_IMPLIES: dict[str, frozenset[str]] = {}
