"""The audit of small random runs, correct and damaged, agrees with brute force. RANDOM_RUNS=N judges N of them."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

import spark_etl
from spark_etl import consistency, serialization
from spark_etl.blackbox.models import MODELS
from spark_etl.checks import clients, sessions
from spark_etl.report import Property
from tests.spark_etl import brute, folded
from tests.spark_etl.random_runs import KNOWN, random_run

RUNS = int(os.environ.get("RANDOM_RUNS", "150"))
FIRST = int(os.environ.get("RANDOM_SEED", "0"))
FOLD = 500
"""So many at once."""

GUARANTEES = {
    "monotonic reads": "non-monotonic-read",
    "monotonic writes": "non-monotonic-write",
    "read your writes": "own-write-missed",
    "writes follow reads": "write-before-read",
}
PER_KEY = "linearizability per key"
PARTS = ("delivery", "transactions", "clients", "serializability", "sessions")


def by_case(prop: Property) -> dict[int, set[str]]:
    """Which runs of a fold are accused, and of what."""
    found: dict[int, set[str]] = defaultdict(set)
    for violation in prop.examples:
        if violation.transactions:
            cases = {folded.case_of_text(one) for one in violation.transactions}
        else:
            cases = {replica // folded.REPLICAS for replica in violation.replicas}
        (case,) = cases
        found[case].add(violation.name)
    return found


class Tally(Counter[str]):
    """What there was, and how often the audit did not know."""


def compare(spark: Any, runs: list[brute.Run], out: Path, patch: Any, tally: Tally) -> list[str]:
    """Disagreements, a line each."""
    searches = folded.unlimited(patch)
    audit = folded.Folded(spark, runs, out, parts=PARTS)
    report = audit.check_all()
    accused = {prop.name: by_case(prop) for prop in report.properties}
    tally.update(f"name: {name}" for cases in accused.values() for names in cases.values() for name in names)
    verdicts = judged_models(audit)
    late = {folded.case_of_gts(row.gts) for row in clients.against_real_time(audit.timeline).collect()}
    inverted = {folded.case_of_gts(row.gts) for row in sessions.against_versions(audit.timeline).collect()}
    bad: list[str] = []

    def differ(case: int, what: str, audit_says: Any, brute_says: Any) -> None:
        bad.append(f"{what}: audit {audit_says}, brute force {brute_says}:\n{runs[case]}")

    for case, run in enumerate(runs):
        expected, h = brute.violations(run), brute.history(run)
        for name in brute.MULTICAST:
            mine, theirs = accused[name].get(case, set()), set(expected[name])
            if name.startswith("reads return") and not h.clear:
                continue
            if name == "one order across shards" and not any(expected[n] for n in brute.MULTICAST[2:5]):
                theirs.discard("order-cycle")
            tally.update(f"{name}: {n}" for n in theirs)
            if mine != theirs:
                differ(case, name, mine, theirs)
        foundations = any(expected[name] for name in brute.MULTICAST if not name.startswith("reads"))
        in_doubt = len(list(brute.choices(h))) > 1
        tally["runs"] += 1
        tally["runs without any violation"] += not any(expected.values())
        if not h.clear:
            tally["runs whose journals contradict one another"] += 1
        for name, before in (("serializability", brute.nothing), ("strict serializability", brute.before_in_time)):
            holds = brute.serializable(h, before) and not h.invented
            tally[f"{name}: {'holds' if holds else 'violated'}"] += 1
            found = accused[name].get(case)
            if found and holds:
                differ(case, name, found, holds)
            if not found and not holds and h.clear and not foundations:
                if in_doubt:
                    tally[f"{name}: violated, in doubt"] += 1
                else:
                    differ(case, name, found, holds)
        if foundations or not h.clear:
            continue
        for what, found, before in (
            ("against real time", late, brute.before_in_time),
            ("against sessions", inverted, brute.before_in_session),
        ):
            runs_against = any(before(a, b) and a.time > b.time for a in h.txns for b in h.txns)
            if (case in found) != runs_against and not brute.overlapping(run):
                differ(case, what, case in found, runs_against)
        broken = brute.guarantees(h, brute.overlapping(run))
        for name, violation in GUARANTEES.items():
            tally.update([f"{name}: violated"] * (violation in broken))
            if accused[name].get(case, set()) != broken & {violation} and not (in_doubt and violation in broken):
                differ(case, name, accused[name].get(case), violation in broken)
        keys_hold = not h.invented and all(brute.linearizable(h, key) for key in brute.keys(h))
        tally[f"{PER_KEY}: {'holds' if keys_hold else 'violated'}"] += 1
        if bool(accused[PER_KEY].get(case)) == keys_hold and not (in_doubt and not keys_hold):
            differ(case, PER_KEY, accused[PER_KEY].get(case), keys_hold)
        if not h.invented and not brute.overlapping(run):
            judged = verdicts.get(case) or dict.fromkeys(MODELS, "holds")
            for model, holds in brute.models(h).items():
                says = judged[model]
                tally[f"{model}: {says}"] += 1
                unsure = says == "not determined" and (in_doubt or model.endswith("read-committed"))
                if says != ("holds" if holds else "violated") and not unsure:
                    differ(case, model, says, holds)
    bad += wrong_counts(audit)
    return bad + wrong_cycles(runs, [cycle for search in searches for cycle in search.cycles])


def wrong_cycles(runs: list[brute.Run], cycles: list[serialization.Cycle]) -> list[str]:
    """Shown cycles that have an edge that is none, another name, or a shorter one beside them."""
    bad = []
    for cycle in cycles:
        run, ids = runs[folded.case_of_cycle(cycle)], folded.ids_of_cycle(cycle)
        h = brute.history(run)
        if not h.clear or len(list(brute.choices(h))) > 1:
            continue
        drawn = brute.dependencies(h, {})
        drawn |= {(a.id, b.id, "rt") for a in h.txns for b in h.txns if brute.before_in_time(a, b)}
        kinds = [edge.kind for edge in cycle.edges]
        claimed = set(zip(ids, ids[1:] + ids[:1], kinds, strict=True))
        pairs = {(a, b) for a, b, kind in drawn if kind != "rt" or "rt" in kinds}
        if not claimed <= drawn or cycle.name != brute.adya(kinds) or len(ids) > brute.shortest_cycle(pairs, ids[0]):
            bad.append(f"cycle {cycle.name}: {claimed}:\n{run}")
    return bad


def wrong_counts(audit: folded.Folded) -> list[str]:
    """Of the operations of unknown outcome; of runs without a crash, and of all with every one of them unsettled."""
    bad = []
    calm = [c for c, run in enumerate(audit.runs) if brute.settled(run) is None]
    stormy = [c for c in range(len(audit.runs)) if c not in calm]
    for cases, settled_before in ((calm, None), (stormy, bytes(16))):
        theirs = [sum(counts) for counts in zip(*(brute.unknown(audit.runs[c]) for c in cases), strict=True)]
        mine = audit.operations.where(folded.case_of_file().isin(cases))
        row = clients.unknown(mine, audit.messages, settled_before).first()
        if row is None or [row.n, row.applied, row.not_applied, row.open] != theirs:
            bad.append(f"unknown outcomes: audit {row}, brute force {theirs}")
    return bad


def judged_models(audit: folded.Folded) -> dict[int, dict[str, str]]:
    """Run -> model -> verdict, of the runs with a cycle; no run has processes that do two things at once."""
    graph, steps = audit.dependencies(), audit.timeline
    hashes = serialization.residue(graph, sessions.edges(steps), steps)
    part = consistency.collect(hashes, graph, steps)
    assert part is not None
    dependencies: dict[int, list[consistency.Dependency]] = defaultdict(list)
    placed: dict[int, list[consistency.Placed]] = defaultdict(list)
    for d in part[0]:
        dependencies[folded.case_of_gts(d.source)].append(d)
    for p in part[1]:
        placed[folded.case_of_gts(p.gts)].append(p)
    return {case: consistency.judge(dependencies[case], placed[case]) for case in {*dependencies, *placed}}


def named() -> set[str]:
    """The violations that the documentation lists, but for those of workloads and of traces."""
    text = Path(spark_etl.__file__).with_name("README.md").read_text()
    rows = text.partition("| property |")[2].partition("\n\n")[0].partition("| conservation")[0].splitlines()
    rows = [row for row in rows if not row.startswith("| genuineness")]
    names = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[2] if "|" in row else "")}
    return {name for name in names if not name.startswith("-")}


@pytest.mark.timeout(60 + RUNS)
def test_random_runs_get_the_verdicts_of_brute_force(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tally, bad = Tally(), []
    for start in range(FIRST, FIRST + RUNS, FOLD):
        seeds = range(start, min(start + FOLD, FIRST + RUNS))
        with monkeypatch.context() as patch:
            runs = [*KNOWN.values(), *(random_run(Random(seed))[0] for seed in seeds)]
            bad += compare(spark, runs, tmp_path / str(start), patch, tally)
    print("\n" + "\n".join(f"{n:6} {what}" for what, n in sorted(tally.items())))
    seen = {what.removeprefix("name: ") for what in tally if what.startswith("name: ")}
    assert {name.removesuffix("-realtime") for name in seen} == named()
    assert any(name.endswith("-realtime") for name in seen)
    bad.sort(key=len)
    assert not bad, f"{len(bad)} disagreements, the shortest:\n" + "\n".join(bad[:3])
