"""Session guarantees (Terry et al. 1994): what a client may rely on from one of its operations to the next.

A session is one process. Each guarantee asks for an order of the versions of each key, one that agrees with what is
certain of it (`resolve`), in which certain versions are not before certain others; "before" is about one session:

    monotonic reads       what is read is not older than what was read before
    read your writes      what is read is not older than what was written before
    monotonic writes      what is written is newer than what was written before; and who reads a write, and then, or
                          later in his session, a key that the writer's session had written before, reads that version
                          or a later one
    writes follow reads   the same of what the writer's session had read before

A transaction's reads follow its operations before them; what it writes takes effect when it commits, so that it follows
only earlier transactions. Who reads a write is somebody of another session. A transaction binds later ones once it was
acknowledged. Nothing is chosen: what a guarantee demands of a key's versions, and what is certain of them, has either a
cycle or an order. All four follow from causal consistency with sessions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import combinations, islice
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from spark_etl.blackbox.facts import INIT, Anomaly, Facts, Key, Read, show
from spark_etl.blackbox.graphs import Edge, Graph
from spark_etl.blackbox.reasons import explain
from spark_etl.blackbox.solver import HOLDS, UNDETERMINED, VIOLATED

NAMES = {
    "monotonic reads": "non-monotonic-read",
    "read your writes": "own-write-missed",
    "monotonic writes": "non-monotonic-write",
    "writes follow reads": "write-before-read",
}
"""Guarantee -> what a violation is called."""

_UNNAMED = ("garbage-read", "G1a")
_SHOWN_KEYS = 20
_TRIED_MAX = 100


class Guarantee(msgspec.Struct):
    """verdict: "holds", "violated" or "not determined". why: it is not determined. violations: a cycle of versions for
    each key that has one."""

    verdict: str
    why: str = ""
    violations: list[Anomaly] = []


class _Access(NamedTuple):
    """A read or a write of one key. version: its writer."""

    transaction: int
    ordinal: int
    key: Key
    version: int
    writes: bool


def judge(facts: Facts, no_sessions: str = "") -> dict[str, Guarantee]:
    """no_sessions: why there are none, if so."""
    if no_sessions:
        return {name: Guarantee(UNDETERMINED, no_sessions) for name in NAMES}
    unordered = _unordered(facts)
    sessions = _sessions(facts, unordered)
    return {name: _judge(name, facts, sessions, unordered) for name in NAMES}


def _unordered(facts: Facts) -> set[Key]:
    """Keys whose versions have no order that fits what is certain of them."""
    graphs: dict[Key, Graph] = defaultdict(Graph)
    for a, b, key in facts.ww:
        graphs[key].add(a, b, Edge(a, b, "ww", key))
    return facts.contradictory | {key for key, graph in graphs.items() if graph.order() is None}


def _judge(name: str, facts: Facts, sessions: Mapping[int, list[_Access]], unordered: set[Key]) -> Guarantee:
    demanded = _Demanded(facts, unordered, had_writes=name in ("read your writes", "monotonic writes"))
    for process, accesses in sessions.items():
        for access in accesses:
            had = demanded.past[access.key][process]
            if access.writes and name in ("monotonic writes", "writes follow reads"):
                demanded.after(had.before(access.transaction), access)
            elif not access.writes and name in ("monotonic reads", "read your writes"):
                within = name == "monotonic reads" or access.key not in facts.list_keys
                demanded.after(had.now if within else had.before(access.transaction), access)
            demanded.met(process, access)
    if name in ("monotonic writes", "writes follow reads"):
        for process, accesses in sessions.items():
            _observed(demanded, facts, process, accesses)
    missed = [read for read in facts.own_missed if read.writer == read.reader and name == "read your writes"]
    wrong = [_own_missed(facts, read) for read in missed[:_SHOWN_KEYS]] + demanded.violations(NAMES[name])
    if wrong:
        return Guarantee(VIOLATED, violations=wrong)
    return Guarantee(UNDETERMINED, why) if (why := _unknown(facts, unordered)) else Guarantee(HOLDS)


def _unknown(facts: Facts, unordered: set[Key]) -> str:
    """Why not every read names its version."""
    if facts.repeated:
        return f"values repeat at {', '.join(sorted(map(repr, facts.repeated))[:4])}"
    if unordered:
        return f"no order of the versions of {', '.join(sorted(map(repr, unordered))[:4])} fits what was read"
    return next((a.text for a in facts.anomalies if a.name in _UNNAMED), "")


def _sessions(facts: Facts, unordered: set[Key]) -> dict[int, list[_Access]]:
    """Process -> its accesses, in order."""
    reads: dict[int, dict[int, Read]] = defaultdict(dict)
    for read in (*facts.reads, *(r for r in facts.own_missed if r.writer != r.reader)):
        reads[read.reader][read.ordinal] = read
    found: dict[int, list[_Access]] = defaultdict(list)
    for index, transaction in facts.committed.items():
        wrote: set[Key] = set()
        for n, op in enumerate(transaction.ops):
            if op.key in unordered:
                continue
            if n in reads[index]:
                found[transaction.process].append(_Access(index, n, op.key, reads[index][n].writer, False))
            elif op.kind in ("w", "append") and op.key not in wrote:
                wrote.add(op.key)
                found[transaction.process].append(_Access(index, n, op.key, index, True))
    return found


def _observed(demanded: _Demanded, facts: Facts, process: int, accesses: Iterable[_Access]) -> None:
    """Who has read a write of another session must not miss what that session had met before it."""
    seen: dict[int, int] = {}
    for access in accesses:
        if access.writes:
            continue
        if access.version != INIT and (other := facts.committed[access.version].process) != process:
            seen[other] = max(access.version, seen.get(other, INIT))
        there = demanded.past[access.key]
        for other in seen.keys() & there.keys():
            demanded.after(there[other].before(seen[other]), access, seen[other])


class _Past:
    """What a session had met of a key, by transaction: numbers of nodes, each after the one before it."""

    def __init__(self) -> None:
        self.transactions: list[int] = []
        self.nodes: list[int] = []

    @property
    def now(self) -> int | None:
        return self.nodes[-1] if self.nodes else None

    def before(self, transaction: int) -> int | None:
        """None: nothing."""
        place = bisect_left(self.transactions, transaction)
        return self.nodes[place - 1] if place else None


class _Demanded:
    """What must not be before what: versions, and for each version that a session meets, all those it had met."""

    def __init__(self, facts: Facts, unordered: set[Key], had_writes: bool):
        self.facts = facts
        self.had_writes = had_writes
        self.graph = Graph()
        self.keys: list[Key] = []
        self.versions: dict[tuple[Key, int], int] = {}
        self.past: dict[Key, dict[int, _Past]] = defaultdict(lambda: defaultdict(_Past))
        for key, writers in facts.writers.items():
            for writer in writers if key not in unordered else ():
                self.graph.add(self._version(key, INIT), self._version(key, writer), Edge(INIT, writer, "first", key))
        for a, b, key in sorted(facts.ww, key=repr):
            if key not in unordered:
                self.graph.add(self._version(key, a), self._version(key, b), Edge(a, b, "ww", key))

    def _node(self, key: Key) -> int:
        self.keys.append(key)
        return len(self.keys) - 1

    def _version(self, key: Key, writer: int) -> int:
        if (key, writer) not in self.versions:
            self.versions[key, writer] = self._node(key)
        return self.versions[key, writer]

    def met(self, process: int, access: _Access) -> None:
        """From now on this counts for the session, if it was acknowledged."""
        if access.writes is self.had_writes and self.facts.committed[access.transaction].type == "ok":
            past, node = self.past[access.key][process], self._node(access.key)
            if past.now is not None:
                self.graph.add(past.now, node, Edge(INIT, INIT, "before", access.key))
            edge = Edge(access.transaction, access.ordinal, "had", access.key)
            self.graph.add(self._version(access.key, access.version), node, edge)
            past.transactions.append(access.transaction)
            past.nodes.append(node)

    def after(self, past: int | None, access: _Access, saw: int = INIT) -> None:
        """saw: whose write the reader had seen, if that is why."""
        if past is not None:
            edge = Edge(access.transaction, access.ordinal, "then" if saw == INIT else f"saw T{saw}", access.key)
            self.graph.add(past, self._version(access.key, access.version), edge)

    def violations(self, name: str) -> list[Anomaly]:
        """A cycle for each key that has one of several versions: not being older than itself is no contradiction."""
        after = self.graph.after
        sources = [source for source, targets in after.items() for _ in targets]
        links = coo_matrix(
            (np.ones(len(sources), np.int8), (sources, [t for ts in after.values() for t in ts])), [len(self.keys)] * 2
        )
        _, component = connected_components(links, connection="strong")
        versions: dict[int, list[int]] = defaultdict(list)
        for node in self.versions.values():
            versions[component[node]].append(node)
        found: list[Anomaly] = []
        for label, several in versions.items():
            if len(several) > 1 and len(found) < _SHOWN_KEYS:
                part = Graph()
                for source in np.flatnonzero(component == label).tolist():
                    for target, edge in after.get(source, {}).items():
                        if component[target] == label:
                            part.add(source, target, edge)
                found.append(_violation(name, self.keys[several[0]], _through_two(part, several), self.facts))
        return found


def _through_two(graph: Graph, versions: list[int]) -> list[Edge]:
    """A short cycle through two of these nodes of a strongly connected graph."""
    ways = ([*graph.path(a, b), *graph.path(b, a)] for a, b in islice(combinations(versions, 2), _TRIED_MAX))
    return min(ways, key=len)


def _violation(name: str, key: Key, cycle: list[Edge], facts: Facts) -> Anomaly:
    start = next(i for i, edge in enumerate(cycle) if edge.kind == "had")
    steps: list[str] = []
    involved: list[int] = []
    for source, target, kind, _ in (*cycle[start:], *cycle[:start]):
        if kind == "before":
            continue
        involved.append(source)
        if kind == "first":
            steps.append(f"the initial version of {key!r} comes before all others")
            continue
        if kind == "ww":
            involved.append(target)
            steps.append(explain(Edge(source, target, kind, key), facts))
            continue
        transaction = facts.committed[source]
        did = f"T{source} {show(transaction.ops[target])}"
        if kind == "had":
            steps.append(f"process {transaction.process} first did {did}")
        elif kind == "then":
            steps.append(f"process {transaction.process} then did {did}")
        else:
            writer = kind.removeprefix("saw ")
            steps.append(f"it then did {writer}, which process {transaction.process} had seen when it did {did}")
    text = f"{'; '.join(steps[:2])}, an older version"
    return Anomaly(name, tuple(dict.fromkeys(i for i in involved if i != INIT)), text, tuple(steps))


def _own_missed(facts: Facts, read: Read) -> Anomaly:
    t = facts.committed[read.reader]
    wrote = ", ".join(show(op) for op in t.ops[: read.ordinal] if op.key == read.key and op.kind != "r")
    text = f"T{t.index} did {wrote} and then {show(t.ops[read.ordinal])}, without what it had written"
    return Anomaly(NAMES["read your writes"], (t.index,), text)
