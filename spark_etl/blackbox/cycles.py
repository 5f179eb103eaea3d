"""Names for cycles (Adya 1999; Elle, Section 3.2), the shortest of each kind, and a sentence for every edge.

G0: only ww. G1c: ww and wr. G-single: exactly one rw. G-nonadjacent: several rw, no two in a row. G2-item: two rw in a
row. G-other: a cycle that some model forbids, and that has none of these shapes. With the suffix -process a cycle needs
the order within sessions, with -realtime real time. Where the order of versions is not certain, only cycles of what is
certain have one of the first names.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec

from spark_etl.blackbox.facts import INIT, Anomaly, Facts, Key, show
from spark_etl.blackbox.graphs import Chains, Edge, Graph
from spark_etl.blackbox.history import Transaction
from spark_etl.blackbox.models import DEMANDED, MODELS, PLAIN, REALTIME, SESSION, Judge, realtime_edges, weaker
from spark_etl.blackbox.reasons import explain
from spark_etl.blackbox.solver import VIOLATED, Verdict

NAMES = ("G0", "G1c", "G-single", "G-nonadjacent", "G2-item")
OTHER = "G-other"
_FORBIDDEN_BY = DEMANDED | {
    "G0": "read-uncommitted", "G1c": "read-committed", "G-single": "consistent-view", "long-fork": "prefix",
    "G-nonadjacent": "snapshot-isolation", "G2-item": "repeatable-read", OTHER: "serializable",
}  # fmt: skip
"""The weakest model that forbids what has this name."""
INFERRED_MAX = 5_000
"""Up to so many transactions, orders of versions that must be inferred count too."""
_TRIES_MAX = 500
_SHOWN_OPS = 4
_SHOWN_KEYS = 20


def name(kinds: Sequence[str]) -> str:
    """The strongest-named kind that a cycle with edges of these kinds (`graphs.Edge`) is an instance of."""
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


def anomaly(kind: str, cycle: Sequence[Edge], facts: Facts) -> Anomaly:
    """A sentence per edge, and what the transactions did."""
    steps = tuple(explain(edge, facts) for edge in cycle)
    did = ". ".join(_did(facts.committed[edge.source], [e.key for e in cycle]) for edge in cycle)
    text = f"{', '.join(f'T{edge.source}' for edge in cycle)} precede one another in a circle. {did}"
    return Anomaly(kind, tuple(edge.source for edge in cycle), text, steps, tuple(cycle))


def _did(transaction: Transaction, keys: Iterable[object]) -> str:
    wanted = set(keys)
    ops = [show(op) for op in transaction.ops if op.key in wanted]
    more = ", ..." if len(ops) > _SHOWN_OPS else ""
    return f"T{transaction.index}: {', '.join(ops[:_SHOWN_OPS])}{more}"


def find(judge: Judge) -> list[Anomaly]:
    """One cycle, the shortest found, of every kind that the history has; with sessions and real time only those kinds
    that do not exist without. Where sessions or real time leave no choice about the order of versions, that counts."""
    transactions = judge.facts.committed
    found: dict[str, list[Edge]] = {}
    certain = set(judge.known)
    anyway: set[Edge] = set()
    for suffix, extra in (("", []), ("-process", judge.session_edges()), ("-realtime", judge.realtime_edges())):
        if suffix and not extra:
            continue
        new: set[Edge] = set()
        if len(transactions) <= INFERRED_MAX:
            with suppress(TimeoutError):
                inferred = judge.forced(extra)
                inferred += [rw for e in inferred for rw in judge.overwritten(e.key, e.source, e.target)]
                new = set(inferred) - certain
        anyway = anyway if suffix else new
        for cycle in _cycles([*judge.known, *sorted(new, key=repr)], extra, judge.end):
            kind = name([edge.kind for edge in cycle])
            plain = kind.removesuffix("-process").removesuffix("-realtime")
            if any(edge in new and edge not in anyway for edge in cycle):
                kind = plain + suffix
            elif kind in ("G0", "G1c") and any(edge in anyway for edge in cycle):
                kind = plain = "G-single"  # with any other order of these versions, one reader misses what it has seen
            if plain in found and kind not in NAMES:
                continue
            if kind not in found or len(cycle) < len(found[kind]):
                found[kind] = cycle
        if not suffix and (fork := _long_fork([*judge.known, *sorted(new, key=repr)])):
            found["long-fork"] = fork
    return [anomaly(kind, cycle, judge.whole) for kind, cycle in found.items()]


def unnamed(judge: Judge, models: Mapping[str, Verdict], named: Sequence[Anomaly]) -> list[Anomaly]:
    """The cycles that show the weakest violated models that no anomaly found so far rules out."""
    shown = {_forbidden_by(anomaly.name) for anomaly in named} - {""}
    found: list[Anomaly] = []
    broken = [model for model in MODELS if models[model].verdict == VIOLATED]
    for model in broken:
        if any(m in broken or m in shown for m in weaker(model)) or model in shown or len(models[model].cycle) < 2:
            continue
        cycle = models[model].cycle
        variant = next(v for v in (SESSION, REALTIME, PLAIN) if model.startswith(v))
        one = anomaly(OTHER + {SESSION: "-process", REALTIME: "-realtime", PLAIN: ""}[variant], cycle, judge.whole)
        text = f"{one.text}. No execution that is {model.replace('-', ' ')} has this"
        if all(set(one.transactions) != set(other.transactions) for other in found):
            found.append(msgspec.structs.replace(one, text=text))
    return found


def _forbidden_by(kind: str) -> str:
    """The weakest model that an anomaly's name rules out; empty: none of the table."""
    for suffix, variant in (("-process", SESSION), ("-realtime", REALTIME), ("", PLAIN)):
        if kind.endswith(suffix) and (base := _FORBIDDEN_BY.get(kind.removesuffix(suffix))):
            return variant + base
    return ""


def _long_fork(known: Sequence[Edge]) -> list[Edge]:
    """Two readers that saw two writes in opposite orders."""
    wrote: dict[int, list[Edge]] = {}
    missed: dict[int, list[Edge]] = {}
    knots = _graph(known).knots().after
    for edge in known:
        if edge.kind in ("wr", "rw") and edge.target in knots.get(edge.source, ()):
            (wrote if edge.kind == "wr" else missed).setdefault(edge.source, []).append(edge)
    tried = 0
    for firsts in wrote.values():
        for first in firsts:
            for second in missed.get(first.target, ()):
                for third in wrote.get(second.target, ()):
                    tried += 1
                    if tried > 100_000:
                        return []
                    for fourth in missed.get(third.target, ()):
                        if fourth.target == first.source and len({first[0], second[0], third[0], fourth[0]}) == 4:
                            return [first, second, third, fourth]
    return []


def cyclic_versions(judge: Judge) -> list[Anomaly]:
    """Registers whose versions succeed one another in a circle: the initial one is first, who reads one version and
    writes another puts its own later, and so do operations that follow one another in real time."""
    touched: dict[Key, list[Transaction]] = {}
    values: dict[tuple[Key, int], tuple[Any, Any]] = {}
    history = [t for _, t in sorted(judge.whole.committed.items())]
    times = Counter((op.key, op.value) for t in history for op in t.ops if op.kind == "w")
    repeated = judge.whole.repeated | {key for (key, value), n in times.items() if n > (value is not None)}
    for transaction in history:
        for key in dict.fromkeys(op.key for op in transaction.ops):
            if key not in judge.whole.list_keys and key not in repeated:
                seen = _versions(transaction, key)
                if seen is not None:
                    touched.setdefault(key, []).append(transaction)
                    values[key, transaction.index] = seen
    found = []
    for key, transactions in touched.items():
        numbers: dict[Any, int] = {None: 0}
        graph = Graph()
        for t in transactions:
            first, last = (numbers.setdefault(v, len(numbers)) for v in values[key, t.index])
            if first != last:
                graph.add(first, last, Edge(t.index, t.index, "ww", key))
        for a, b, _, _ in realtime_edges(t for t in transactions if t.timed):
            before, after = numbers[values[key, a][1]], numbers[values[key, b][0]]
            if before != after:
                graph.add(before, after, Edge(a, b, "realtime", key))
        for number in range(1, len(numbers)):
            graph.add(0, number, Edge(INIT, INIT, "init", key))
        if cycle := graph.cycle():
            found.append(_versions_anomaly(key, cycle, {t.index: t for t in transactions}))
            if len(found) == _SHOWN_KEYS:
                break
    return found


def _versions(transaction: Transaction, key: Key) -> tuple[Any, Any] | None:
    """The first and the last version of a register that a transaction proves to have been there."""
    ops = [op for op in transaction.ops if op.key == key and op.kind in ("r", "w")]
    if transaction.type != "ok":
        ops = [op for op in ops if op.kind == "w"]
    if not ops or any(isinstance(op.value, tuple) for op in ops):
        return None
    writes = [op.value for op in ops if op.kind == "w"]
    last = writes[-1] if writes else ops[0].value
    return (ops[0].value if ops[0].kind == "r" else last), last


def _versions_anomaly(key: Key, cycle: Sequence[Edge], transactions: dict[int, Transaction]) -> Anomaly:
    steps = []
    for a, b, kind, _ in cycle:
        if kind == "init":
            steps.append(f"the initial version of {key!r} comes before all others")
        elif a == b:
            steps.append(f"T{a} read one version of {key!r} and then wrote the next: {_did(transactions[a], [key])}")
        else:
            did = f"{_did(transactions[a], [key])}. {_did(transactions[b], [key])}"
            steps.append(f"T{a} completed before T{b} was invoked: {did}")
    involved = tuple(dict.fromkeys(i for a, b, _, _ in cycle for i in (a, b) if i != INIT))
    return Anomaly(
        "cyclic-versions", involved, f"the versions of {key!r} succeed one another in a circle", tuple(steps)
    )


def _cycles(known: Sequence[Edge], extra: Sequence[Edge], deadline: float) -> Iterable[list[Edge]]:
    """Of each part whose transactions all precede one another a short cycle of each shape, if there is one, until
    the deadline (`time.monotonic`)."""
    parts = _graph(known, extra).parts()
    part_of = {node: number for number, part in enumerate(parts) for node in part.after}
    edges: list[tuple[list[Edge], list[Edge]]] = [([], []) for _ in parts]
    for kind, several in enumerate((known, extra)):
        for edge in several:
            number = part_of.get(edge.source, -1)
            if number >= 0 and number == part_of.get(edge.target):
                edges[number][kind].append(edge)
    for part_known, part_extra in edges:
        if part_known:
            yield from _cycles_within(part_known, part_extra, deadline)


def _cycles_within(known: Sequence[Edge], extra: Sequence[Edge], deadline: float) -> Iterable[list[Edge]]:
    by_kind: dict[str, list[Edge]] = {"ww": [], "wr": [], "rw": []}
    for edge in known:
        by_kind[edge.kind].append(edge)
    ww = _graph(by_kind["ww"], extra)
    yield from _one(ww.cycle(deadline))
    base = ww.copy()
    for edge in by_kind["wr"]:
        base.add(edge.source, edge.target, edge)
    yield from _one(_through(base, by_kind["wr"], deadline))
    yield from _one(_through(base, by_kind["rw"], deadline))
    layered = Graph()
    for edge in (*by_kind["ww"], *by_kind["wr"], *extra):
        layered.add(2 * edge.source, 2 * edge.target, edge)
        layered.add(2 * edge.source + 1, 2 * edge.target, edge)
    for edge in by_kind["rw"]:
        layered.add(2 * edge.source, 2 * edge.target + 1, edge)
    yield from _one(layered.cycle(deadline))
    whole = base.copy()
    for edge in by_kind["rw"]:
        whole.add(edge.source, edge.target, edge)
    yield from _one(_adjacent(whole, by_kind["rw"], deadline))
    yield from _one(whole.cycle(deadline))


def _one(cycle: list[Edge]) -> list[list[Edge]]:
    return [cycle] if cycle else []


def _graph(*edges: Iterable[Edge]) -> Graph:
    graph = Graph()
    for several in edges:
        for edge in several:
            graph.add(edge.source, edge.target, edge)
    return graph


def _through(graph: Graph, edges: Iterable[Edge], deadline: float) -> list[Edge]:
    """The shortest cycle of one of these edges and a way back."""
    best: list[Edge] = []
    for edge in list(_closing(graph, edges))[: graph.tries(_TRIES_MAX)]:
        if time.monotonic() > deadline:
            break
        if way := graph.path(edge.target, edge.source, len(best) - 2):
            best = [edge, *way]
    return best


def _closing(graph: Graph, edges: Iterable[Edge]) -> Iterable[Edge]:
    """Those of the edges that have a way back; if the graph itself has cycles, those that lie on one with others."""
    whole = graph.copy()
    for edge in edges:
        whole.add(edge.source, edge.target, edge)
    knots = whole.knots().after
    edges = [edge for edge in edges if edge.target in knots.get(edge.source, ())]
    if (order := graph.order(knots)) is None:
        return edges
    return (edges[i] for i in Chains(graph, order, {}, paired=False).reached([(e.target, e.source) for e in edges]))


def _adjacent(graph: Graph, rw: Sequence[Edge], deadline: float) -> list[Edge]:
    """A cycle with two rw edges in a row."""
    knots = graph.knots().after
    following: dict[int, list[Edge]] = {}
    for edge in rw:
        if edge.target in knots.get(edge.source, ()):
            following.setdefault(edge.source, []).append(edge)
    best: list[Edge] = []
    pairs = ((a, b) for edges in list(following.values()) for a in edges for b in following.get(a.target, ()))
    for first, second in islice(pairs, graph.tries(_TRIES_MAX)):
        around = second.target == first.source
        way = [] if around else graph.path(second.target, first.source, len(best) - 3)
        if around or way:
            best = [first, second, *way]
        if around or time.monotonic() > deadline:
            break
    return best
