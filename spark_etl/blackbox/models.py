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

Where the order of versions is not certain, one of each two writers of a key is first, and whoever read its version
precedes the other. A history satisfies a model if there is a choice without a cycle: see `solver`. For read committed,
read atomic and causal the axioms force enough (Biswas and Enea, Theorem 5), and no search is needed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from spark_etl.blackbox.facts import INIT, Facts, Key
from spark_etl.blackbox.graphs import Chains, Edge, Graph
from spark_etl.blackbox.history import Transaction
from spark_etl.blackbox.inference import Events, Missed, Versions, seen
from spark_etl.blackbox.residue import only, residue, unordered
from spark_etl.blackbox.solver import (
    CIRCLE,
    HOLDS,
    MISSED,
    SHAPES,
    UNDETERMINED,
    VIOLATED,
    Shape,
    Solver,
    Verdict,
    build,
    circle,
    overwritten,
)

PLAIN, SESSION, REALTIME = "", "strong-session-", "strong-"
BASES = (
    "read-uncommitted", "read-committed", "read-atomic", "causal", "consistent-view", "prefix", "snapshot-isolation",
    "repeatable-read", "serializable",
)  # fmt: skip
MODELS = tuple(variant + base for variant in (PLAIN, SESSION, REALTIME) for base in BASES)
"""From weak to strong within each variant. "strong-serializable" is strict serializability."""

PL2 = "Adya's PL-2, which Elle calls read committed, holds: no G0, no G1"

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

DEMANDED = {
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
_SHARE = 0.75
"""Of the seconds for orders of versions; the rest is for names of cycles and for linearizability."""
TOO_LONG = "the search for an order of versions took too long (--seconds)"


class Limits(msgspec.Struct, frozen=True):
    """Beyond it the answer is "not determined". seconds: of all searches in one history. Three quarters are for orders
    of versions, each of which may take half of what is left."""

    seconds: float = 300.0


# -- judging ----------------------------------------------------------------------------------------------------------


def session_edges(history: Iterable[Transaction]) -> list[Edge]:
    """From each transaction to the next one of its process. Nobody knows when one of unknown outcome took effect:
    nothing follows it."""
    last: dict[int, int] = {}
    edges = []
    for transaction in history:
        if transaction.process in last:
            edges.append(Edge(last[transaction.process], transaction.index, "session", None))
        if transaction.type == "ok":
            last[transaction.process] = transaction.index
    return edges


class Judge:
    """One history. `verdicts` gives every model of MODELS."""

    def __init__(
        self, facts: Facts, history: Sequence[Transaction], limits: Limits | None = None, sessions: bool = True
    ):
        """sessions: whether the transactions of a process follow one another."""
        self.whole = self.facts = facts
        self.limits = limits or Limits()
        now = time.monotonic()
        self.end = now + self.limits.seconds
        self._searched = now + _SHARE * self.limits.seconds
        self.history = [facts.committed[i] for i in sorted(facts.committed)]
        self.timed = all(t.timed and (t.complete is not None or t.type != "ok") for t in self.history if t.ops)
        self.no_sessions = "" if sessions else "the history has no sessions"
        if sessions and (process := _overlapping(self.history)) is not None:
            self.no_sessions = f"process {process} runs several transactions at once, so that it is no session"
        self.has_times = any(t.timed for t in self.history)
        self._restrict()

    def _restrict(self) -> None:
        """From here on, `facts`, `history` and `known` are about the transactions that matter; see `residue`."""
        facts = self.whole
        free = unordered(facts)
        self.readers = _readers(facts)
        self.known = self._known_edges()
        own = (Edge(a, b, "rw", key) for a, b, key in facts.rw_own)
        timed = (t for t in self.history if t.timed)
        inside = residue(facts, free, (*self.known, *own, *self.session_edges()), timed)
        self.facts = facts = only(facts, free, inside)
        self.history = [t for t in self.history if t.index in inside]
        self.known = [e for e in self.known if e.source in inside and e.target in inside]
        self.readers = _readers(facts)
        self._versions = Versions(facts.writers, facts.reads, facts.places)

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
            demanded = DEMANDED.get(anomaly.name)
            if demanded and demanded in (base, *weaker(base)):
                return Verdict(VIOLATED, anomaly.text)
        if variant == REALTIME and not self.has_times:
            return Verdict(UNDETERMINED, NO_REALTIME)
        if variant == SESSION and self.no_sessions:
            return Verdict(UNDETERMINED, self.no_sessions)
        same = found.get(variant + "serializable") if base == "repeatable-read" else None
        if same is not None and (same.cycle or same.why == TOO_LONG):
            return same  # reads are of items only
        try:
            verdict = self._check(variant, base)
        except TimeoutError:
            return Verdict(UNDETERMINED, TOO_LONG)
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

    def _deadline(self) -> float:
        return (time.monotonic() + self._searched) / 2

    # -- edges --------------------------------------------------------------------------------------------------------

    def _known_edges(self) -> list[Edge]:
        facts = self.facts
        edges = [Edge(a, b, "ww", key) for a, b, key in sorted(facts.ww, key=repr)]
        edges += [Edge(r.writer, r.reader, "wr", r.key) for r in facts.reads if r.writer != INIT]
        edges += [Edge(a, b, "rw", key) for a, b, key in sorted(facts.rw, key=repr)]
        for earlier, later, key in facts.ww:
            edges += self.overwritten(key, earlier, later)
        follows = {(later, key) for _, later, key in facts.ww}
        for key, writers in facts.writers.items():
            if key not in facts.list_keys:
                first = [w for w in writers if (w, key) not in follows]
                edges += [Edge(r, w, "rw", key) for r in self.readers.get((key, INIT), ()) for w in first if w != r]
        return list(dict.fromkeys(edges))

    def overwritten(self, key: Key, earlier: int, later: int) -> list[Edge]:
        """Whoever read a version precedes those who wrote a later one."""
        return overwritten(self.facts, self.readers, key, earlier, later)

    def session_edges(self) -> list[Edge]:
        """`session_edges`; none without sessions."""
        return [] if self.no_sessions else session_edges(self.history)

    def realtime_edges(self) -> list[Edge]:
        """Enough of "completed before the other was invoked" that the rest follows: of those completed before an
        invocation, only the ones that completed after every invocation among them."""
        return realtime_edges(t for t in self.history if t.timed)

    # -- search -------------------------------------------------------------------------------------------------------

    def _search(self, shape: Shape, extra: Iterable[Edge]) -> Verdict:
        own = [Edge(a, b, "rw", key) for a, b, key in sorted(self.facts.rw_own, key=repr)]
        graph = build(shape, self.facts.committed, (*self.known, *own, *extra))
        if graph.order() is None:
            return Verdict(VIOLATED, CIRCLE, circle(graph))
        if not self.facts.free or "rw" in shape.leave_out:
            return Verdict(HOLDS)
        return Solver(self.facts, self.readers, shape, self._deadline()).solve(graph)

    # -- models without search ----------------------------------------------------------------------------------------

    def _forced(self, base: str, extra: Sequence[Edge]) -> Verdict:
        """Biswas and Enea: what the axiom forces upon the commit order, together with wr and the session order."""
        graph = Graph()
        for edge in (*(e for e in self.known if e.kind in ("ww", "wr")), *extra):
            graph.add(edge.source, edge.target, edge)
        if graph.order() is None:
            return Verdict(VIOLATED, CIRCLE, circle(graph))
        otherwise = f" ({PL2})" if base == "read-committed" else ""
        for missed in self._overlooked(base, extra):
            edge = missed.edge
            if missed.writer == INIT:
                return Verdict(VIOLATED, self._blind(missed) + otherwise, [edge])
            graph.add(edge.source, edge.target, edge)
        if graph.order() is not None:
            return Verdict(HOLDS)
        return Verdict(VIOLATED, CIRCLE + otherwise, circle(graph))

    def _overlooked(self, base: str, extra: Sequence[Edge]) -> Iterable[Missed]:
        """Reads, and other writers of the key that the reader has seen: they come before the version that was read.
        Of lists only those of which that is not known anyway."""
        facts, versions = self.facts, self._versions
        if base != "causal":
            sources: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for read in facts.reads:
                if read.writer != INIT:
                    sources[read.reader].append((read.ordinal, read.writer))
            writers = {key: set(ones) for key, ones in facts.writers.items()}
            for read in facts.reads:
                seen_ones = sources.get(read.reader, ())
                if base == "read-committed":
                    seen_ones = [(at, writer) for at, writer in seen_ones if at < read.ordinal]
                others = dict.fromkeys(w for _, w in seen_ones if w in writers.get(read.key, ()))
                for other in others:
                    if other not in (read.writer, read.reader) and not versions.known(read.key, other, read.writer):
                        yield Missed(read.reader, read.writer, other, read.key)
        if base == "read-committed":
            return
        graph = Graph()
        for edge in (*(e for e in self.known if e.kind == "wr" and base == "causal"), *extra):
            graph.add(edge.source, edge.target, edge)
        for source, targets in graph.knots().after.items():  # the rest still holds where some precede one another
            for target in targets:
                del graph.after[source][target]
        if graph.after and (order := graph.order(facts.committed)) is not None:
            lanes = {i: t.process for i, t in facts.committed.items()}
            chains = Chains(graph, order, lanes, paired=False)
            yield from seen(chains, versions, Events(), self._deadline())

    def forced(self, extra: Sequence[Edge]) -> list[Edge]:
        """The order of versions that causal consistency with these edges leaves no choice about, beyond what is known:
        a reader had seen what comes first; or the edges are between the writers themselves. TimeoutError."""
        found = [missed.edge for missed in self._overlooked("causal", extra) if missed.writer != INIT]
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

    @staticmethod
    def _blind(missed: Missed) -> str:
        reader, _, other, key = missed
        return f"T{reader} has seen T{other}, which wrote {key!r}, and yet reads its initial version"

    def _consistent_view(self, extra: Sequence[Edge]) -> Verdict:
        """No rw edge leads back along ww, wr (and session or real time); and causal consistency, which also counts what
        somebody did not see in a list after having appended to it."""
        causal = self._forced("causal", extra)
        if causal.verdict == VIOLATED:
            return causal
        shape = SHAPES["consistent-view"]
        graph = build(shape, self.facts.committed, (*self.known, *extra))
        if graph.order() is None:
            return Verdict(VIOLATED, CIRCLE, circle(graph))
        if single := self._single(graph):
            return Verdict(VIOLATED, MISSED, single)
        if not self.facts.free:
            return Verdict(HOLDS)
        return Solver(self.facts, self.readers, shape, self._deadline()).view(graph)

    def _single(self, graph: Graph) -> list[Edge]:
        """A known rw edge, and a way back."""
        whole = graph.copy()
        rw = [edge for edge in self.known if edge.kind == "rw"]
        for edge in rw:
            whole.add(edge.source, edge.target, edge)
        knots = whole.knots()
        inside = Graph()
        for source, targets in knots.after.items():
            for target, edge in targets.items():
                if edge.kind != "rw":
                    inside.add(source, target, edge)
        rw = [edge for edge in rw if edge.target in knots.after.get(edge.source, {})]
        chains = Chains(inside, inside.order(knots.after) or [], {}, paired=False)
        back = chains.reached([(edge.target, edge.source) for edge in rw], self._deadline())
        if (at := next(back, None)) is None:
            return []
        return [rw[at], *inside.path(rw[at].target, rw[at].source)]


def _readers(facts: Facts) -> dict[tuple[Key, int], dict[int, None]]:
    """(key, writer) -> who read that version."""
    readers: dict[tuple[Key, int], dict[int, None]] = defaultdict(dict)
    for read in facts.reads:
        readers[read.key, read.writer][read.reader] = None
    return readers


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
