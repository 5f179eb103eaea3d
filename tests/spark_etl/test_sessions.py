"""Session guarantees, linearizability per key and consistency models, held against brute force. Small histories are
judged by the hundred in one Spark job."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multicast.types import Timestamp
from spark_etl.checks import sessions
from spark_etl.frames import edges
from spark_etl.search import consistency, serialization
from tests.spark_etl import small
from tests.spark_etl.small import STRIDE, History, Txn, txn

CASES: dict[str, tuple[History, set[str]]] = {
    "in order": ([txn(0, 1, (10, 20), "wx"), txn(0, 2, (30, 40), "rx1 wy"), txn(1, 3, (30, 50), "rx1 ry2")], set()),
    "monotonic reads": (
        [txn(0, 1, (10, 60), "wx"), txn(1, 3, (20, 30), "rx1"), txn(1, 2, (40, 50), "rx0")],
        {"non-monotonic-read", "not-linearizable"},
    ),
    "read your writes": (
        [txn(0, 2, (10, 20), "wx"), txn(0, 1, (30, 40), "rx0")],
        {"own-write-missed", "not-linearizable"},
    ),
    "monotonic writes at a key": (
        [txn(0, 2, (10, 20), "wx"), txn(0, 1, (30, 40), "wx")],
        {"non-monotonic-write", "not-linearizable"},
    ),
    "monotonic writes seen by another": (
        [txn(0, 3, (10, 20), "wx"), txn(0, 1, (30, 40), "wy"), txn(1, 2, (15, 50), "rx0 ry1")],
        {"non-monotonic-write"},
    ),
    "writes follow reads at a key": (
        [txn(1, 2, (5, 90), "wx"), txn(0, 3, (10, 20), "rx2"), txn(0, 1, (30, 40), "wx")],
        {"write-before-read", "not-linearizable"},
    ),
    "writes follow reads seen by another": (
        [txn(1, 3, (5, 90), "wx"), txn(0, 4, (10, 20), "rx3"), txn(0, 1, (30, 40), "wy"),
         txn(2, 2, (15, 50), "rx0 ry1")],
        {"write-before-read"},
    ),
    "an unknown outcome binds nobody": (
        [txn(0, 2, (10, None), "wx"), txn(1, 1, (30, 40), "rx0")], set()
    ),
    "a key went back for another client": (
        [txn(0, 2, (10, 20), "wx"), txn(1, 1, (30, 40), "rx0")], {"not-linearizable"}
    ),
    "an order against real time that no key shows": (
        [txn(0, 2, (10, 20), "wx"), txn(1, 1, (30, 40), "wy")], set()
    ),
    "a lost update": (
        [txn(0, 1, (10, 50), "rx0 wx"), txn(1, 2, (10, 50), "rx0 wx")], {"not-linearizable"}
    ),
}  # fmt: skip


def test_each_guarantee_is_broken_by_its_own_history(spark: Any):
    found = small.violations(small.batch(spark, [history for history, _ in CASES.values()]))
    expected = {name: names for name, (_, names) in CASES.items()}
    assert {name: found.get(case, set()) for case, name in enumerate(CASES)} == expected
    assert {name: small.broken(history) for name, (history, _) in CASES.items()} == expected


def judged(frames: small.Batch, histories: list[History]) -> tuple[list[dict[str, str]], set[int]]:
    """(model -> verdict of every case, the cases of which something is on a cycle)."""
    graph = edges.dependencies(frames.ordered, frames.writes).cache()
    dependencies: dict[int, list[consistency.Dependency]] = defaultdict(list)
    for r in graph.distinct().collect():
        initial = r.kind == edges.RW and bytes(r.version) == bytes(16)
        one = consistency.Dependency(bytes(r.source), bytes(r.target), r.kind, bytes(r.key), initial)
        dependencies[case_of(one.source)].append(one)
    verdicts = []
    for case, history in enumerate(histories):
        placed = [placed_at(case, line, t) for line, t in enumerate(sorted(history, key=lambda t: t.invoke))]
        verdicts.append(consistency.judge(dependencies[case], placed))
    hashes = serialization.residue(graph, sessions.edges(frames.steps), frames.steps)
    part = consistency.collect(hashes, graph, frames.steps)
    assert part is not None
    return verdicts, {case_of(one.gts) for one in part[1]}


def case_of(version: bytes) -> int:
    return Timestamp.decode(version).time // STRIDE - 1


def placed_at(case: int, line: int, t: Txn) -> consistency.Placed:
    ok = t.complete is not None
    return consistency.Placed(small.gts(case, t.version), "h", t.process, line, ok, t.invoke, t.complete)


@settings(
    max_examples=int(os.environ.get("WHITE_BOX_BATCHES", "1")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
@given(seed=st.integers(0, 2**32))
def test_random_histories_get_the_verdicts_of_brute_force(spark: Any, seed: int):
    rng = random.Random(seed)
    histories = [small.random_history(rng) for _ in range(250)]
    frames = small.batch(spark, histories)
    found = small.violations(frames)
    verdicts, cyclic = judged(frames, histories)
    seen: set[str] = set()
    for case, history in enumerate(histories):
        assert found.get(case, set()) == small.broken(history), history
        expected = {
            "serializable": small.serializable(history),
            "strong-session-serializable": small.serializable(history, small.before_in_session),
            "strong-serializable": small.serializable(history, small.before_in_time),
        }
        assert {m: verdicts[case][m] for m in expected} == {
            m: "holds" if holds else "violated" for m, holds in expected.items()
        }, history
        assert (case in cyclic) == (not all(expected.values())), history
        assert case in cyclic or not found.get(case), history  # what a search without a cycle decides
        seen |= found.get(case, set()) | {model for model, holds in expected.items() if not holds}
    assert len(seen) >= 6, seen  # the histories are not all alike
