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

from collections import defaultdict
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations

import msgspec

from spark_etl.blackbox.graphs import Edge, Graph, Reach
from spark_etl.blackbox.history import Transaction
from spark_etl.blackbox.resolve import INIT, Facts, Key, Read
from spark_etl.blackbox.solver import HOLDS, SHAPES, UNDETERMINED, VIOLATED, Constraint, Shape, Solver, Verdict, put

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


NO_REALTIME = "the history has no real time"
_PROBES_MAX = 200
"""Consistent view: how many open choices are tried one by one, ..."""
_BLOCK = 4096
"""Of so many writers at once it is found out who has seen them."""
_TRIES_MAX = 5_000
"""... and how often in all."""


class Limits(msgspec.Struct, frozen=True):
    """Beyond these the answer is "not determined". transactions: of one history with a search; seconds: of one search;
    constraints: of one history."""

    transactions: int = 30_000
    constraints: int = 3_000_000
    seconds: float = 60.0


# -- judging ----------------------------------------------------------------------------------------------------------


class TooLarge(Exception):
    """Beyond a limit."""


class Judge:
    """One history. `verdicts` gives every model of MODELS."""

    def __init__(
        self, facts: Facts, history: Sequence[Transaction], limits: Limits | None = None, sessions: bool = True
    ):
        """sessions: whether the transactions of a process follow one another."""
        self.facts = facts
        self.limits = limits or Limits()
        self.history = [facts.committed[i] for i in sorted(facts.committed)]
        self.timed = all(t.timed and (t.complete is not None or t.type != "ok") for t in self.history if t.ops)
        self.no_sessions = "" if sessions else "the history has no sessions"
        if sessions and (process := _overlapping(self.history)) is not None:
            self.no_sessions = f"process {process} runs several transactions at once, so that it is no session"
        self.readers: dict[tuple[Key, int], list[int]] = defaultdict(list)
        for read in facts.reads:
            if read.reader not in self.readers[read.key, read.writer]:
                self.readers[read.key, read.writer].append(read.reader)
        self.known = self._known_edges()
        self._constraints = self._all_constraints()
        self._tries = 0

    def verdicts(self) -> dict[str, Verdict]:
        """Model -> verdict. What a stronger model proves of a weaker one, and the other way round, is not asked."""
        found: dict[str, Verdict] = {}
        for base in reversed(BASES):
            for variant in (REALTIME, SESSION, PLAIN):
                found[variant + base] = self._judge(variant, base, found)
        for model in found:
            broken = (name for name in weaker(model) if found[name].verdict == VIOLATED)
            if found[model].verdict == UNDETERMINED and (name := next(broken, None)):
                found[model] = found[name]
        if self.facts.repeated:
            keys = ", ".join(sorted(map(repr, self.facts.repeated))[:4])
            why = f"values repeat at {keys}, so that reads do not name their writers"
            for model in found:
                if found[model].verdict == HOLDS:
                    found[model] = Verdict(UNDETERMINED, why)
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
            return Verdict(UNDETERMINED, NO_REALTIME)
        if variant == SESSION and self.no_sessions:
            return Verdict(UNDETERMINED, self.no_sessions)
        try:
            verdict = self._check(variant, base)
        except TooLarge as reason:
            return Verdict(UNDETERMINED, str(reason))
        if variant == REALTIME and verdict.verdict == HOLDS and not self.timed:
            return Verdict(UNDETERMINED, "some of the transactions have no real time")
        return verdict

    def _check(self, variant: str, base: str) -> Verdict:
        extra = self.session_edges() if variant != PLAIN else []
        extra += self.realtime_edges() if variant == REALTIME else []
        if base in ("read-committed", "read-atomic", "causal"):
            return self._forced(base, extra)
        if base == "consistent-view":
            return self._consistent_view(extra)
        return self._search(SHAPES["serializable" if base == "repeatable-read" else base], extra)

    # -- edges --------------------------------------------------------------------------------------------------------

    def _known_edges(self) -> list[Edge]:
        facts = self.facts
        edges = [Edge(a, b, "ww", key) for a, b, key in sorted(facts.ww, key=repr)]
        edges += [Edge(r.writer, r.reader, "wr", r.key) for r in facts.reads if r.writer != INIT]
        edges += [Edge(a, b, "rw", key) for a, b, key in sorted(facts.rw, key=repr)]
        for earlier, later, key in facts.ww:
            edges += self.overwritten(key, earlier, later)
        for key, writers in facts.writers.items():
            for reader in self.readers.get((key, INIT), ()):
                edges += [Edge(reader, w, "rw", key) for w in writers if w != reader and not self._is_list(key)]
        return list(dict.fromkeys(edges))

    def _is_list(self, key: Key) -> bool:
        return key in self.facts.list_keys

    def overwritten(self, key: Key, earlier: int, later: int) -> list[Edge]:
        """Whoever read a version precedes those who wrote a later one."""
        if self._is_list(key):
            return []
        return [Edge(r, later, "rw", key) for r in self.readers.get((key, earlier), ()) if r != later]

    def _all_constraints(self) -> list[Constraint] | None:
        """None: too many."""
        found: list[Constraint] = []
        known = {(a, b, key) for a, b, key in self.facts.ww}
        for key in sorted(self.facts.free, key=repr):
            writers = self.facts.free[key]
            if len(found) + len(writers) ** 2 // 2 > self.limits.constraints:
                return None
            for u, v in combinations(writers, 2):
                if (u, v, key) in known or (v, u, key) in known:
                    continue
                first = (Edge(u, v, "ww", key), *self.overwritten(key, u, v))
                second = (Edge(v, u, "ww", key), *self.overwritten(key, v, u))
                found.append(Constraint(first, second, len(first) == len(second) == 1))
        return found

    def session_edges(self) -> list[Edge]:
        """From each transaction to the next one of its process. Nobody knows when one of unknown outcome took effect:
        nothing follows it."""
        if self.no_sessions:
            return []
        last: dict[int, int] = {}
        edges = []
        for transaction in self.history:
            if transaction.process in last:
                edges.append(Edge(last[transaction.process], transaction.index, "session", None))
            if transaction.type == "ok":
                last[transaction.process] = transaction.index
        return edges

    def realtime_edges(self) -> list[Edge]:
        """Enough of "completed before the other was invoked" that the rest follows: of those completed before an
        invocation, only the ones that completed after every invocation among them."""
        return realtime_edges(t for t in self.history if t.timed)

    # -- search -------------------------------------------------------------------------------------------------------

    def _search(self, shape: Shape, extra: Iterable[Edge]) -> Verdict:
        graph = Graph()
        own = [Edge(a, b, "rw", key) for a, b, key in sorted(self.facts.rw_own, key=repr)]
        for edge in (*self.known, *own, *extra):
            put(graph, shape, edge)
        if graph.order() is None:
            return Verdict(VIOLATED, "these transactions precede one another in a circle", graph.cycle())
        if self._constraints is None:
            return Verdict(UNDETERMINED, f"more than {self.limits.constraints} pairs of writes have no known order")
        constraints = self._constraints if shape.layered else [c for c in self._constraints if not c.blind]
        if not constraints:
            return Verdict(HOLDS)
        if len(self.history) > self.limits.transactions:
            most = self.limits.transactions
            return Verdict(UNDETERMINED, f"more than {most} transactions, and versions without a known order")
        solver = Solver(graph, shape, constraints, self.limits.seconds)
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
        graph = Graph()
        for edge in (*(e for e in self.known if e.kind in ("ww", "wr")), *extra):
            graph.add(edge.source, edge.target, edge)
        for read, other in self._overlooked(base, extra):
            if read.writer == INIT:
                cycle = [Edge(read.reader, other, "rw", read.key)]
                return Verdict(VIOLATED, self._blind(read.reader, other, read.key), cycle)
            graph.add(other, read.writer, Edge(other, read.writer, "ww", read.key))
        if graph.order() is not None:
            return Verdict(HOLDS)
        return Verdict(VIOLATED, "these transactions precede one another in a circle", graph.cycle())

    def _overlooked(self, base: str, extra: Sequence[Edge]) -> Iterable[tuple[Read, int]]:
        """Reads, and other writers of the key that the reader has seen: they come before the version that was read.
        Of lists only those of which that is not known anyway."""
        facts = self.facts
        if base != "causal":
            sources: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for read in facts.reads:
                if read.writer != INIT:
                    sources[read.reader].append((read.ordinal, read.writer))
            writers = {key: set(ones) for key, ones in facts.writers.items()}
            for read in facts.reads:
                seen = sources.get(read.reader, ())
                if base == "read-committed":
                    seen = [(at, writer) for at, writer in seen if at < read.ordinal]
                others = dict.fromkeys(writer for _, writer in seen if writer in writers.get(read.key, ()))
                yield from ((read, other) for other in others if self._overtakes(read, other))
        graph = Graph()
        for edge in (*(e for e in self.known if e.kind == "wr" and base == "causal"), *extra):
            graph.add(edge.source, edge.target, edge)
        if base == "read-committed" or not graph.after:
            return
        keys: dict[int, list[Key]] = defaultdict(list)
        for key, ones in facts.writers.items():
            for writer in ones:
                keys[writer].append(key)
        columns = sorted(keys)
        order = graph.order() or []
        for start in range(0, len(columns), _BLOCK):
            block = columns[start : start + _BLOCK]
            for read, number in self._seen_of(block, order, graph, keys):
                if self._overtakes(read, block[number]):
                    yield read, block[number]

    def _seen_of(
        self, block: list[int], order: list[int], graph: Graph, keys: dict[int, list[Key]]
    ) -> Iterable[tuple[Read, int]]:
        """Reads, and the places in `block` of writers of the key in the reader's past."""
        bit = {writer: 1 << i for i, writer in enumerate(block)}
        masks: dict[Key, int] = defaultdict(int)
        for writer in block:
            for key in keys[writer]:
                masks[key] |= bit[writer]
        past: dict[int, int] = defaultdict(int)
        for node in order:
            if bits := past.get(node, 0) | bit.get(node, 0):
                for target in graph.after.get(node, ()):
                    past[target] |= bits
        for read in self.facts.reads:
            found = past.get(read.reader, 0) & masks.get(read.key, 0)
            while found:
                yield read, (found & -found).bit_length() - 1
                found &= found - 1

    def _overtakes(self, read: Read, other: int) -> bool:
        """Whether it is not known already that the other one's version comes first."""
        if other in (read.writer, read.reader):
            return False
        place = self.facts.places.get(read.key)
        if place is None:
            return True
        return place.get(other, len(place)) > place.get(read.writer, -1)

    def forced(self, extra: Sequence[Edge]) -> list[Edge]:
        """The order of versions that causal consistency with these edges leaves no choice about, beyond what is known:
        a reader had seen the version that comes first; or the edges are between the writers themselves."""
        found = [Edge(o, r.writer, "ww", r.key) for r, o in self._overlooked("causal", extra) if r.writer != INIT]
        for key, writers in self.facts.free.items():
            if extra and extra[0].kind == "session":
                chain: dict[int, int] = {}
                for writer in writers:
                    process = self.facts.committed[writer].process
                    if process in chain:
                        found.append(Edge(chain[process], writer, "ww", key))
                    chain[process] = writer
            elif extra:
                timed = (t for w in writers if (t := self.facts.committed[w]).timed)
                found += [Edge(e.source, e.target, "ww", key) for e in realtime_edges(timed)]
        known = {(a, b, key) for a, b, key in self.facts.ww}
        return [e for e in dict.fromkeys(found) if (e.source, e.target, e.key) not in known]

    def _blind(self, reader: int, other: int, key: Key) -> str:
        return f"T{reader} has seen T{other}, which wrote {key!r}, and yet reads its initial version"

    def _consistent_view(self, extra: Sequence[Edge]) -> Verdict:
        """No rw edge leads back along ww, wr (and session or real time); and causal consistency, which also counts what
        somebody did not see in a list after having appended to it."""
        causal = self._forced("causal", extra)
        if causal.verdict == VIOLATED:
            return causal
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
        self._tries = _TRIES_MAX if len(self._constraints) <= _PROBES_MAX else 0
        if not self._tries:
            return Verdict(UNDETERMINED, "the order of some versions is not known")
        known = [e for e in self.known if e.kind == "rw"]
        verdict = self._choose(graph, known, list(self._constraints))
        return verdict or Verdict(UNDETERMINED, "the order of some versions is not known")

    def _choose(self, graph: Graph, rw: list[Edge], left: list[Constraint]) -> Verdict | None:
        """Search for an order of versions without a forbidden cycle. None: given up."""
        while True:
            open_: list[Constraint] = []
            forced: list[tuple[Edge, ...]] = []
            for constraint in left:
                ways = [self._probe(graph, rw, side) for side in (constraint.first, constraint.second)]
                self._tries -= 1
                if all(ways):
                    why = "whichever of two writes comes first, one of them did not see what it depends on"
                    return Verdict(VIOLATED, why, ways[0])
                if any(ways):
                    forced.append(constraint.second if ways[0] else constraint.first)
                else:
                    open_.append(constraint)
            for side in forced:
                if cycle := self._probe(graph, rw, side):
                    return Verdict(VIOLATED, "one of them did not see what it depends on", cycle)
                graph, rw = self._taken(graph, rw, side)
            if not open_:
                return Verdict(HOLDS)
            if self._tries <= 0:
                return None
            left = open_
            if not forced:
                break
        first, *rest = left
        given_up = False
        for side in (first.first, first.second):
            verdict = self._choose(*self._taken(graph, rw, side), rest)
            if verdict is None:
                given_up = True
            elif verdict.verdict == HOLDS:
                return verdict
        return None if given_up else verdict

    def _taken(self, graph: Graph, rw: list[Edge], side: Sequence[Edge]) -> tuple[Graph, list[Edge]]:
        chosen = graph.copy()
        for edge in side:
            if edge.kind == "ww":
                chosen.add(edge.source, edge.target, edge)
        return chosen, [*rw, *(e for e in side if e.kind == "rw")]

    def _single(self, graph: Graph, rw: Sequence[Edge]) -> list[Edge]:
        """A cycle with exactly one of these rw edges and no other."""
        whole = graph.copy()
        for edge in rw:
            whole.add(edge.source, edge.target, edge)
        cyclic = set(whole.cyclic())
        if len(cyclic) > self.limits.transactions:
            raise TooLarge(f"more than {self.limits.transactions} transactions lie on circles")
        inside = Graph()
        for source in cyclic:
            for target, edge in graph.after.get(source, {}).items():
                if target in cyclic:
                    inside.add(source, target, edge)
        reach = Reach(inside)
        for edge in rw:
            if reach(edge.target, edge.source):
                return [edge, *graph.path(edge.target, edge.source)]
        return []

    def _probe(self, graph: Graph, rw: list[Edge], side: Sequence[Edge]) -> list[Edge]:
        """A forbidden cycle that one side of a constraint brings about by itself."""
        trial, edges = self._taken(graph, rw, side)
        return trial.cycle() if trial.order() is None else self._single(trial, edges)


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


def realtime_edges(timed: Iterable[Transaction]) -> list[Edge]:
    """Of these transactions alone; see `Judge.realtime_edges`."""
    edges: list[Edge] = []
    timed = sorted(timed, key=lambda t: t.invoke or 0)
    ended = sorted((t for t in timed if t.complete is not None and t.type == "ok"), key=lambda t: t.complete or 0)
    frontier: list[Transaction] = []
    position = 0
    for transaction in timed:
        invoke = transaction.invoke or 0
        while position < len(ended) and (ended[position].complete or 0) < invoke:
            newest = ended[position]
            frontier = [t for t in frontier if (t.complete or 0) >= (newest.invoke or 0)]
            frontier.append(newest)
            position += 1
        others = [t.index for t in frontier if t.index != transaction.index]
        edges += [Edge(other, transaction.index, "realtime", None) for other in others]
    return edges


def _overlapping(history: Sequence[Transaction]) -> int | None:
    """A process one of whose transactions was invoked before the one before it had completed."""
    ends: dict[int, int] = {}
    for t in history:
        if t.invoke is not None and t.invoke < ends.get(t.process, t.invoke):
            return t.process
        if t.invoke is not None and t.complete is not None and t.type == "ok":
            ends[t.process] = t.complete
    return None
