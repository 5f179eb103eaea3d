"""The cycle search, against small graphs whose cycles are known, and against brute force."""

from __future__ import annotations

import itertools
import random

import numpy as np

from spark_etl.cycles import NEVER, Interval, find_cycles


def search(edges: list[tuple[int, int]], nodes: int, times: list[tuple[int, int, int]] | None = None):
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    intervals = []
    if times:
        node, invoke, complete = np.array(times, np.int64).T
        intervals = [Interval(node, invoke, complete)]
    return find_cycles(pairs[:, 0], pairs[:, 1], intervals, nodes)


def test_edges_that_all_point_forward_have_no_cycle():
    assert search([(0, 1), (1, 2), (0, 2)], 3) == ([], 0)


def test_the_shortest_cycle_of_a_component_is_shown():
    cycles, components = search([(0, 1), (1, 2), (2, 3), (3, 0), (2, 1)], 4)
    assert components == 1
    assert sorted(cycles[0]) == [1, 2]


def test_every_component_is_counted():
    cycles, components = search([(0, 1), (1, 0), (2, 3), (3, 2)], 4)
    assert components == 2
    assert sorted(map(sorted, cycles)) == [[0, 1], [2, 3]]


def test_real_time_closes_a_cycle():
    """1 ended before 0 was invoked, but 1 depends on 0."""
    cycles, _ = search([(0, 1)], 2, [(0, 20, 30), (1, 5, 10)])
    assert [sorted(cycle) for cycle in cycles] == [[0, 1]]


def test_operations_that_touch_in_time_are_concurrent():
    assert search([(0, 1)], 2, [(0, 10, 30), (1, 5, 10)]) == ([], 0)


def test_an_operation_without_an_end_precedes_nothing():
    assert search([(0, 1)], 2, [(0, 20, 30), (1, 5, NEVER)]) == ([], 0)


def has_cycle(edges: set[tuple[int, int]], nodes: int) -> bool:
    """Warshall's closure."""
    reach = set(edges)
    for k, i, j in itertools.product(range(nodes), repeat=3):
        if (i, k) in reach and (k, j) in reach:
            reach.add((i, j))
    return any((i, i) in reach for i in range(nodes))


def test_agrees_with_the_closure_of_all_real_time_edges_drawn_out():
    rng = random.Random(7)
    seen = set()
    for _ in range(400):
        nodes = rng.randint(2, 7)
        edges = [tuple(rng.sample(range(nodes), 2)) for _ in range(rng.randint(1, 6))]
        begins = [rng.randint(0, 20) for _ in range(nodes)]
        times = [(n, b, rng.choice([NEVER, b + rng.randint(1, 8)])) for n, b in enumerate(begins)]
        drawn = set(edges) | {(a, b) for a, _, end in times for b, begin, _ in times if end < begin}
        cycles, components = search(edges, nodes, times)
        expected = has_cycle(drawn, nodes)
        seen.add(expected)
        assert bool(components) == expected
        for cycle in cycles:
            assert set(zip(cycle, [*cycle[1:], cycle[0]], strict=True)) <= drawn
    assert seen == {True, False}
