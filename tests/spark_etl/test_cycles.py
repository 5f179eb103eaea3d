"""The cycle search, against small graphs whose cycles are known, and against brute force."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np

from spark_etl.blackbox.intervals import NEVER, Interval
from spark_etl.search.cycles import CYCLES_MAX, STARTS_MAX, cyclic_nodes, find_cycles
from tests.spark_etl.brute_cycles import closure, shortest_cycle


def arrays(edges: list[tuple[int, int]], times: list[tuple[int, int, int]]):
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    intervals = []
    if times:
        node, invoke, complete = np.array(times, np.int64).T
        intervals = [Interval(node, invoke, complete)]
    return pairs[:, 0], pairs[:, 1], intervals


def search(edges: list[tuple[int, int]], nodes: int, times: list[tuple[int, int, int]] | None = None):
    return find_cycles(*arrays(edges, times or []), nodes)


def test_edges_that_all_point_forward_have_no_cycle():
    assert search([(0, 1), (1, 2), (0, 2)], 3) == ([], 0)


def test_the_shortest_cycle_of_a_component_is_shown():
    cycles, components = search([(0, 1), (1, 2), (2, 3), (3, 0), (2, 1)], 4)
    assert components == 1
    assert sorted(cycles[0]) == [1, 2]


def test_of_a_large_component_a_cycle_is_looked_for_where_it_is_likely():
    ring = [(n, (n + 1) % (STARTS_MAX + 9)) for n in range(STARTS_MAX + 9)]
    source, target, _ = arrays([*ring, (STARTS_MAX + 7, STARTS_MAX + 6)], [])
    cycles, _ = find_cycles(source, target, [], len(ring), likely=np.array([STARTS_MAX + 7]))
    assert [sorted(cycle) for cycle in cycles] == [[STARTS_MAX + 6, STARTS_MAX + 7]]


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


def test_the_smallest_components_are_shown_first_and_not_all():
    three, two = [(0, 1), (1, 2), (2, 0)], [(3, 4), (4, 3)]
    pairs = np.array(three + two)
    cycles, components = find_cycles(pairs[:, 0], pairs[:, 1], [], 5, 1)
    assert ([sorted(cycle) for cycle in cycles], components) == ([[3, 4]], 2)


def test_nothing_has_no_cycle():
    empty = np.empty(0, np.int64)
    assert search([], 0) == ([], 0)
    assert len(cyclic_nodes(empty, empty, [], 0)) == 0


def test_agrees_with_the_closure_of_all_real_time_edges_drawn_out():
    rng = random.Random(7)
    lengths = Counter[int]()
    for _ in range(600):
        nodes = rng.randint(2, 8)
        edges = [tuple(rng.sample(range(nodes), 2)) for _ in range(rng.randint(1, nodes + 3))]
        begins = [rng.randint(0, 20) for _ in range(nodes)]
        timed = rng.sample(range(nodes), rng.choice((0, 0, 2, nodes)))
        times = [(n, begins[n], rng.choice([NEVER, begins[n] + rng.randint(1, 8)])) for n in timed]
        drawn = set(edges) | {(a, b) for a, _, end in times for b, begin, _ in times if end < begin}
        cycles, components = search(edges, nodes, times)
        reach = closure(drawn)
        on_cycles = {n for n in range(nodes) if (n, n) in reach}
        assert set(cyclic_nodes(*arrays(edges, times), nodes)) == on_cycles
        assert components == len({frozenset(m for m in on_cycles if {(n, m), (m, n)} <= reach) for n in on_cycles})
        assert len(cycles) == min(components, CYCLES_MAX)
        for cycle in cycles:
            assert set(zip(cycle, [*cycle[1:], cycle[0]], strict=True)) <= drawn
            assert len(cycle) == shortest_cycle(drawn, cycle[0])
            lengths[len(cycle)] += 1
        lengths[0] += not cycles
    assert all(lengths[n] for n in (0, 2, 3, 4))
