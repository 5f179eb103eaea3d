"""Names for cycles (Adya 1999; Elle, Section 3.2), the shortest of each kind, and a sentence for every edge.

G0: only ww. G1c: ww and wr. G-single: exactly one rw. G-nonadjacent: several rw, no two in a row. G2-item: two rw in a
row. With the suffix -process a cycle needs the order within sessions, with -realtime real time. Where the order of
versions is not certain, only cycles of what is certain have such a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_etl.blackbox.history import Transaction
from spark_etl.blackbox.models import Edge, Graph, Judge
from spark_etl.blackbox.resolve import Anomaly, show

NAMES = ("G0", "G1c", "G-single", "G-nonadjacent", "G2-item")
_SHOWN_OPS = 4


def name(cycle: Sequence[Edge]) -> str:
    """The strongest-named kind that a cycle is an instance of."""
    kinds = [edge.kind for edge in cycle]
    rw = kinds.count("rw")
    if not rw:
        base = "G1c" if "wr" in kinds else "G0"
    elif rw == 1:
        base = "G-single"
    else:
        adjacent = any(a == b == "rw" for a, b in zip(kinds, [*kinds[1:], kinds[0]], strict=True))
        base = "G2-item" if adjacent else "G-nonadjacent"
    if "realtime" in kinds:
        return base + "-realtime"
    return base + "-process" if "session" in kinds else base


def explain(edge: Edge, transactions: dict[int, Transaction]) -> str:
    """Why the source of this edge precedes its target."""
    source, target, kind, key = edge
    if kind == "realtime":
        a, b = transactions[source], transactions[target]
        return f"T{source} completed at {a.complete}, before T{target} was invoked at {b.invoke}"
    if kind == "session":
        return f"T{source} comes before T{target} in the session of process {transactions[source].process}"
    ops = {
        "ww": f"T{source} wrote {key!r} before T{target} did",
        "wr": f"T{target} read what T{source} wrote at {key!r}",
        "rw": f"T{source} read {key!r} as it was before T{target} wrote it",
    }
    return ops[kind]


def describe(cycle: Sequence[Edge], transactions: dict[int, Transaction]) -> str:
    """A sentence per edge, and what the transactions did."""
    sentences = "; ".join(explain(edge, transactions) for edge in cycle)
    did = ". ".join(_did(transactions[edge.source], {e.key for e in cycle}) for edge in cycle)
    return f"{sentences}: a circle. {did}"


def _did(transaction: Transaction, keys: Iterable[object]) -> str:
    wanted = set(keys)
    ops = [show(op) for op in transaction.ops if op.key in wanted]
    more = ", ..." if len(ops) > _SHOWN_OPS else ""
    return f"T{transaction.index}: {', '.join(ops[:_SHOWN_OPS])}{more}"


def find(judge: Judge) -> list[Anomaly]:
    """One cycle, the shortest found, of every kind that the history has; with sessions and real time only those kinds
    that do not exist without."""
    transactions = judge.facts.committed
    found: dict[str, list[Edge]] = {}
    for extra in ([], judge.session_edges(), judge.realtime_edges()):
        for cycle in _cycles(judge.known, extra):
            kind = name(cycle)
            if kind.partition("-process")[0].partition("-realtime")[0] in found and kind not in NAMES:
                continue
            if kind not in found or len(cycle) < len(found[kind]):
                found[kind] = cycle
    return [
        Anomaly(kind, tuple(edge.source for edge in cycle), describe(cycle, transactions))
        for kind, cycle in found.items()
    ]


def _cycles(known: Sequence[Edge], extra: Sequence[Edge]) -> Iterable[list[Edge]]:
    """A short cycle of each shape, if there is one."""
    by_kind: dict[str, list[Edge]] = {"ww": [], "wr": [], "rw": []}
    for edge in known:
        by_kind[edge.kind].append(edge)
    ww = _graph(by_kind["ww"], extra)
    yield from _one(ww.cycle())
    base = ww.copy()
    for edge in by_kind["wr"]:
        base.add(edge.source, edge.target, edge)
    yield from _one(_through(base, by_kind["wr"]))
    yield from _one(_through(base, by_kind["rw"]))
    layered = Graph()
    for edge in (*by_kind["ww"], *by_kind["wr"], *extra):
        layered.add(2 * edge.source, 2 * edge.target, edge)
        layered.add(2 * edge.source + 1, 2 * edge.target, edge)
    for edge in by_kind["rw"]:
        layered.add(2 * edge.source, 2 * edge.target + 1, edge)
    yield from _one(layered.cycle())
    whole = base.copy()
    for edge in by_kind["rw"]:
        whole.add(edge.source, edge.target, edge)
    yield from _one(_adjacent(whole, by_kind["rw"]))
    yield from _one(whole.cycle())


def _one(cycle: list[Edge]) -> list[list[Edge]]:
    return [cycle] if cycle else []


def _graph(*edges: Iterable[Edge]) -> Graph:
    graph = Graph()
    for several in edges:
        for edge in several:
            graph.add(edge.source, edge.target, edge)
    return graph


def _through(graph: Graph, edges: Iterable[Edge]) -> list[Edge]:
    """The shortest cycle of one of these edges and a way back. Only between nodes on cycles with it."""
    best: list[Edge] = []
    whole = graph.copy()
    edges = list(edges)
    for edge in edges:
        whole.add(edge.source, edge.target, edge)
    cyclic = set(whole.cyclic())
    tried = 0
    for edge in edges:
        if edge.source in cyclic and edge.target in cyclic and tried < 500:
            tried += 1
            way = graph.path(edge.target, edge.source)
            if way and (not best or len(way) + 1 < len(best)):
                best = [edge, *way]
    return best


def _adjacent(graph: Graph, rw: Sequence[Edge]) -> list[Edge]:
    """A cycle with two rw edges in a row."""
    cyclic = set(graph.cyclic())
    following: dict[int, list[Edge]] = {}
    for edge in rw:
        if edge.source in cyclic and edge.target in cyclic:
            following.setdefault(edge.source, []).append(edge)
    best: list[Edge] = []
    tried = 0
    for edges in list(following.values()):
        for first in edges:
            for second in following.get(first.target, ()):
                tried += 1
                if tried > 500:
                    return best
                way = [] if second.target == first.source else graph.path(second.target, first.source)
                if (way or second.target == first.source) and (not best or len(way) + 2 < len(best)):
                    best = [first, second, *way]
    return best
