"""Enough of what is on cycles, against small graphs and all that is on them."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from spark_etl.blackbox.intervals import NEVER, Interval
from spark_etl.certify import circles
from spark_etl.search.cycles import cyclic_nodes, find_cycles

NOBODY = (np.zeros(0, np.int64), np.zeros(0, np.int64))


def drawn(rng: Random, nodes: int) -> tuple[circles.Dependencies, list[Interval], np.ndarray]:
    """Dependencies that run forward, some that run back, operations in time, and who is kept in any case."""
    edges = set()
    for _ in range(rng.randint(nodes // 2, nodes)):
        a, b = sorted(rng.sample(range(nodes), 2))
        edges.add((a, b) if rng.random() < 0.8 else (b, a))
    source, target = np.array(sorted(edges)).T
    sure = np.array([rng.random() < 0.9 for _ in edges])
    invoke = np.array([10 * n + rng.randint(-40, 0) for n in range(nodes)])
    complete = np.array([NEVER if rng.random() < 0.1 else 10 * n + rng.randint(1, 60) for n in range(nodes)])
    kept = np.array([rng.random() < 0.3 for _ in range(nodes)])
    return circles.Dependencies(source, target, sure), [Interval(np.arange(nodes), invoke, complete)], kept


def cycles(
    found: circles.Dependencies, which: np.ndarray, times: list[Interval], kept: np.ndarray
) -> tuple[list[int], int]:
    """Lengths of the shortest cycles, and how many components have one, among those who are kept."""
    number = np.cumsum(kept) - 1
    mine = which & kept[found.source] & kept[found.target]
    clocks = [Interval(number[t.node[kept[t.node]]], t.invoke[kept[t.node]], t.complete[kept[t.node]]) for t in times]
    count = int(kept.sum())
    shown, components = find_cycles(number[found.source[mine]], number[found.target[mine]], clocks, count, count)
    return sorted(map(len, shown)), components


def differing(seeds: range) -> list[int]:
    """The seeds of whose graph something else is found among what is enough."""
    seen = []
    for seed in seeds:
        rng = Random(seed)
        nodes = rng.randint(20, 40)
        found, times, kept = drawn(rng, nodes)
        likely = np.unique(found.source[found.source > found.target])
        enough, count = circles.enough(found, NOBODY, times, kept, likely)
        assert not np.any(kept & ~enough)
        assert count == len(cyclic_nodes(found.source, found.target, times, nodes))
        for which in (np.ones(len(found.sure), bool), found.sure):
            for clocks in ([], times):
                if cycles(found, which, clocks, enough) != cycles(found, which, clocks, np.ones(nodes, bool)):
                    seen.append(seed)
    return seen


def test_the_same_components_and_cycles_as_short_are_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(circles, "MANY", 0)
    assert not differing(range(25))


def test_what_joins_components_is_needed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(circles, "MANY", 0)
    monkeypatch.setattr(circles.Graph, "joining", lambda self, kept: np.zeros(0, np.int64))
    assert differing(range(25))


def test_all_of_few_are_kept():
    found = circles.Dependencies(np.array([0, 1, 2, 3]), np.array([1, 2, 0, 0]), np.ones(4, bool))
    kept, count = circles.enough(found, NOBODY, [], np.zeros(5, bool), np.array([2]))
    assert kept.tolist() == [True, True, True, False, False] and count == 0


def test_a_session_closes_a_cycle():
    found = circles.Dependencies(np.array([0]), np.array([1]), np.ones(1, bool))
    kept, _ = circles.enough(found, (np.array([1]), np.array([0])), [], np.zeros(2, bool), np.array([1]))
    assert kept.all()
