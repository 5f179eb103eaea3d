"""The transactions that the models depend on: those that may lie on a cycle, and whose versions these read.

A cycle lies in one strongly connected component of the graph of all edges, of every kind, where whatever order may
still be chosen of two versions has edges both ways. Outside of them every model holds. Who reads a version that is
overwritten by somebody whom he has seen lies on a cycle with him; the writer of what he read need not (`_forced`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from spark_etl.blackbox.facts import INIT, Facts, Key
from spark_etl.blackbox.graphs import Edge
from spark_etl.blackbox.history import Transaction

Free = Mapping[Key, list[int]]
"""Key -> writers whose order among each other must be chosen."""


def unordered(facts: Facts) -> Free:
    """`Facts.free` without registers all of whose writers form one chain of known neighbours."""
    following: dict[Key, dict[int, int]] = defaultdict(dict)
    branched: set[Key] = set()
    for earlier, later, key in facts.ww:
        if key in facts.free and following[key].setdefault(earlier, later) != later:
            branched.add(key)
    branched |= facts.list_keys
    return {k: ws for k, ws in facts.free.items() if k in branched or not _chain(ws, following.get(k, {}))}


def _chain(writers: list[int], following: Mapping[int, int]) -> bool:
    """Whether these neighbours lead from one of the writers through all of them."""
    first = set(writers).difference(following.values())
    if len(first) != 1 or len(following) != len(writers) - 1:
        return False
    (at,), count = first, 1
    while at in following:
        at, count = following[at], count + 1
    return count == len(writers)


def residue(facts: Facts, free: Free, known: Iterable[Edge], timed: Iterable[Transaction]) -> set[int]:
    """Indexes of transactions. known: edges that are certain, those of sessions too; timed: whose real time counts."""
    pairs = [(edge.source, edge.target) for edge in known]
    for writers in free.values():
        pairs += pairwise([*writers, writers[0]])
    for read in facts.reads:
        if (others := free.get(read.key)) and read.key not in facts.list_keys:
            pairs += [(read.reader, w) for w in others[:3] if w not in (read.reader, read.writer)][:1]
    pairs += _time(list(timed), 1 + max(facts.committed, default=0))
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    count = int(ends.max(initial=0)) + 1
    matrix = coo_matrix((np.ones(len(ends), np.int8), (ends[:, 0], ends[:, 1])), shape=(count, count))
    _, component = connected_components(matrix, connection="strong")
    inside = np.bincount(component)[component] > 1
    found = {i for i in facts.committed if i < count and inside[i]}
    return found | {read.writer for read in facts.reads if read.reader in found and read.writer != INIT}


def _time(timed: Sequence[Transaction], first: int) -> list[tuple[int, int]]:
    """Nodes from `first` on, one per invocation or completion, in the order of time: whoever completed precedes whoever
    was invoked later."""
    events = [(t.invoke or 0, False, t.index) for t in timed]
    events += [(t.complete, True, t.index) for t in timed if t.complete is not None and t.type == "ok"]
    pairs: list[tuple[int, int]] = []
    for node, (_, completes, transaction) in enumerate(sorted(events), first):
        pairs.append((transaction, node) if completes else (node, transaction))
        pairs.append((node, node + 1))
    return pairs


def only(facts: Facts, free: Free, inside: set[int]) -> Facts:
    """Of the facts what is about these transactions alone."""
    part = Facts()
    part.committed = {i: t for i, t in facts.committed.items() if i in inside}
    for key, writers in facts.writers.items():
        if there := [w for w in writers if w in inside]:
            part.writers[key] = there
    part.reads = [r for r in facts.reads if r.reader in inside and (r.writer in inside or r.writer == INIT)]
    part.ww = {(a, b, key) for a, b, key in facts.ww if a in inside and b in inside}
    part.rw = {(a, b, key) for a, b, key in facts.rw if a in inside and b in inside}
    part.rw_own = {(a, b, key) for a, b, key in facts.rw_own if a in inside and b in inside}
    part.places, part.free = facts.places, dict(free)
    part.list_keys, part.repeated, part.contradictory = facts.list_keys, facts.repeated, facts.contradictory
    part.own_missed, part.initial, part.anomalies = facts.own_missed, facts.initial, facts.anomalies
    return part
