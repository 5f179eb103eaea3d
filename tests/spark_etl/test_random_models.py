"""The consistency models of small random runs, judged by brute force; without Spark. RANDOM_RUNS=N tries N of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from random import Random

from multicast.types import Timestamp
from spark_etl.frames.edges import RW, WR, WW
from spark_etl.search import consistency
from tests.amounts import tries
from tests.spark_etl import brute_history
from tests.spark_etl.random_runs import KNOWN, random_run

RUNS = tries("RANDOM_RUNS", 150, 300)


def gts(time: int) -> bytes:
    return Timestamp(time, 0).encode() if time else bytes(16)


def dependencies(h: brute_history.History) -> list[consistency.Dependency]:
    """What `edges.dependencies` makes of these transactions."""
    versions: dict[str, list[int]] = defaultdict(list)
    for key, time in sorted(version for t in h.txns for version in t.writes):
        versions[key].append(time)
    found = [(a, b, WW, key, False, True) for key, times in versions.items() for a, b in pairwise(times)]
    for t in h.txns:
        for key, version in t.reads:
            sure = len(h.sources(key, version)) == 1
            seen = version or max((d for d in h.sources(key, 0) if d < t.time), default=0)
            later = [time for time in versions[key] if time > seen]
            if seen:
                found.append((seen, t.time, WR, key, False, sure))
            if later:
                found.append((t.time, later[0], RW, key, not version, sure))
    return [
        consistency.Dependency(gts(a), gts(b), kind, key.encode(), initial, sure)
        for a, b, kind, key, initial, sure in found
        if a != b
    ]


def placed(h: brute_history.History) -> list[consistency.Placed]:
    mine = sorted((t for t in h.txns if t.invoke is not None), key=lambda t: t.invoke or 0)
    return [
        consistency.Placed(gts(t.time), t.file, t.process, line, t.ok, t.invoke, t.complete)
        for line, t in enumerate(mine)
    ]


def test_a_session_goes_by_the_lines_of_the_history_whatever_its_clock_says():
    """The first operation was still under way when the second was invoked, and has the greater version."""
    first = consistency.Placed(gts(2), "h", 0, 0, True, 10, 20)
    second = consistency.Placed(gts(1), "h", 0, 1, True, 15, 30)
    found = consistency.judge([consistency.Dependency(gts(1), gts(2), WW, b"x", False)], [first, second])
    assert found["strong-session-read-uncommitted"] == "violated"
    assert found["read-uncommitted"] == "holds"


def test_random_runs_satisfy_the_models_that_they_do_by_brute_force():
    tally: Counter[str] = Counter()
    for run in [*KNOWN.values(), *(random_run(Random(seed))[0] for seed in range(RUNS))]:
        h = brute_history.history(run)
        if h.invented or not h.clear or brute_history.overlapping(run) or not placed(h):
            continue
        doubt = len(list(brute_history.choices(h))) > 1
        found = consistency.judge(dependencies(h), placed(h))
        for model, holds in brute_history.models(h).items():
            tally[f"{model} {found[model]}"] += 1
            if found[model] == "not determined":
                assert doubt or model.endswith("read-committed"), (model, holds, str(run))
            else:
                assert (found[model] == "holds") == holds, (model, holds, str(run))
                # in what order a transaction read is not known
                atomic = model.replace("read-committed", "read-atomic")
                assert found[model] != "holds" or found[atomic] == "holds", (model, str(run))
    print("\n".join(f"{n:6} {what}" for what, n in sorted(tally.items())))
    models = {what.split()[0] for what in tally}
    assert all(tally[f"{model} holds"] for model in models)
    assert all(tally[f"{model} violated"] for model in models - {"read-uncommitted"})
