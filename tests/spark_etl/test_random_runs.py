"""The audit of small random runs, correct and damaged, agrees with brute force. RANDOM_RUNS=N judges N of them."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import spark_etl
from spark_etl.audit.guarantees import MODEL_OF, PER_KEY
from spark_etl.audit.runner import Audit
from spark_etl.blackbox.models import MODELS
from spark_etl.certify.proof import ACCOUNTS, LOGS, ORDER, VALIDITY, Proof
from spark_etl.checks import clients, sessions
from spark_etl.report import Property
from spark_etl.search import consistency, serialization
from tests.spark_etl import brute, brute_cycles, brute_history, brute_run, folded
from tests.spark_etl.promised import WRONG
from tests.spark_etl.random_runs import KNOWN, lose, random_run, tiny

RUNS = int(os.environ.get("RANDOM_RUNS", "75"))
RUNS_FULL = 2000
FIRST = int(os.environ.get("RANDOM_SEED", "0"))
FOLD = 1000
"""So many at once."""

GUARANTEES = {
    "monotonic reads": "non-monotonic-read",
    "monotonic writes": "non-monotonic-write",
    "read your writes": "own-write-missed",
    "writes follow reads": "write-before-read",
}
PARTS = ("delivery", "transactions", "clients", "serializability", "sessions")
PROVED = Proof({*LOGS, *ACCOUNTS, VALIDITY, ORDER})
"""What of a run that is right in these respects need not be asked of Spark."""
BESIDE_CLIENTS = ("delivery", "transactions", "serializability", "sessions")
ORDERS = (("serializability", brute_history.nothing), ("strict serializability", brute_history.before_in_time))


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


def compare(spark: Any, runs: list[brute_run.Run], out: Path, patch: Any, tally: Tally) -> list[str]:
    """Disagreements, a line each."""
    traced = folded.unlimited(patch)
    fold = folded.Folded(spark, runs, out, parts=PARTS)
    report = fold.check_all()
    accused = {prop.name: by_case(prop) for prop in report.properties}
    tally.update(f"name: {name}" for cases in accused.values() for names in cases.values() for name in names)
    verdicts = judged_models(fold)
    late = {folded.case_of_gts(row.gts) for row in clients.against_real_time(fold.timeline).collect()}
    in_sessions: dict[int, tuple[int, int]] = {}
    bad: list[str] = []

    def differ(case: int, what: str, audit_says: Any, brute_says: Any) -> None:
        bad.append(f"{what}: audit {audit_says}, brute force {brute_says}:\n{runs[case]}")

    for case, run in enumerate(runs):
        expected, h = brute.violations(run), brute_history.history(run)
        if run.lost:
            tally["runs of which a part is missing"] += 1
            for name, says, holds in wrong_of_a_part(fold, case, expected, h, accused):
                differ(case, f"{name}, of a part", says, holds)
            continue
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
        in_doubt = len(list(brute_history.choices(h))) > 1
        tally["runs"] += 1
        tally["runs without any violation"] += not any(expected.values())
        if not h.clear:
            tally["runs whose journals contradict one another"] += 1
        for name, before in ORDERS:
            holds = brute_history.serializable(h, before) and not h.invented
            tally[f"{name}: {'holds' if holds else 'violated'}"] += 1
            found = accused[name].get(case)
            if found and holds:
                differ(case, name, found, holds)
            if not found and not holds and h.clear:
                tally[f"{name}: violated, in doubt"] += in_doubt
                if not in_doubt or case not in traced.suspected[name]:
                    differ(case, name, found, holds)
        if foundations or not h.clear:
            continue
        against_time = any(brute_history.before_in_time(a, b) and a.time > b.time for a in h.txns for b in h.txns)
        if (case in late) != against_time and not brute_history.overlapping(run):
            differ(case, "against real time", case in late, against_time)
        in_sessions[case] = brute_history.turns(h)
        broken = brute_history.guarantees(h, brute_history.overlapping(run))
        for name, violation in GUARANTEES.items():
            tally.update([f"{name}: violated"] * (violation in broken))
            suspected = in_doubt and case in traced.suspected[name]
            if accused[name].get(case, set()) != broken & {violation} and not (suspected and violation in broken):
                differ(case, name, accused[name].get(case), violation in broken)
        keys_hold = not h.invented and all(map(partial(brute_history.linearizable, h), brute_history.keys(h)))
        tally[f"{PER_KEY}: {'holds' if keys_hold else 'violated'}"] += 1
        suspected = in_doubt and case in traced.suspected[PER_KEY]
        if bool(accused[PER_KEY].get(case)) == keys_hold and not (suspected and not keys_hold):
            differ(case, PER_KEY, accused[PER_KEY].get(case), keys_hold)
        if not h.invented and not brute_history.overlapping(run):
            judged = verdicts.get(case) or dict.fromkeys(MODELS, "holds")
            untimed = brute_history.turns(h)[1]  # such sessions are in order by the models only
            for name, model in (("serializability", "serializable"), ("strict serializability", "strong-serializable")):
                found = accused[name].get(case)
                if bool(found) != (judged[model] == "violated") and (found or not untimed or name == "serializability"):
                    differ(case, f"{name} beside {model}", accused[name].get(case), judged[model])
            if broken and judged["strong-session-causal"] == "holds":
                differ(case, "sessions beside strong session causal", broken, "holds")
            if not keys_hold and judged["strong-serializable"] == "holds":
                differ(case, "keys beside strict serializability", keys_hold, "holds")
            for model, holds in brute_history.models(h).items():
                says = judged[model]
                tally[f"{model}: {says}"] += 1
                unsure = says == "not determined" and (in_doubt or model.endswith("read-committed"))
                if says != ("holds" if holds else "violated") and not unsure:
                    differ(case, model, says, holds)
    row = sessions.turns(fold.timeline.where(folded.case_of_file().isin(list(in_sessions)))).first()
    expected_turns = [sum(counts) for counts in zip(*in_sessions.values(), strict=True)]
    if row is None or [row.inverted, row.untimed] != expected_turns:
        bad.append(f"turns of sessions: audit {row}, brute force {expected_turns}")
    bad += wrong_counts(fold)
    return bad + wrong_cycles(runs, [cycle for search in traced.searches for cycle in search.cycles])


OF_SHARDS = ("one order across shards", "reads return what the order says", "serializability",
             "strict serializability", PER_KEY, *GUARANTEES)  # fmt: skip
"""What does not depend on a replica whose shard's other replicas have delivered all that it may have."""


def wrong_of_a_part(
    fold: folded.Folded, case: int, expected: dict[str, set[str]], h: brute_history.History, accused: dict[str, Any]
) -> Iterator[tuple[str, Any, str]]:
    """A run whose journals are not all there is accused of nothing that the whole run is not, and nothing is valid that
    is violated by what is missing."""
    run = fold.runs[case]
    broken = {name for name, names in expected.items() if names}
    if h.clear:
        sessions_broken = brute_history.guarantees(h, brute_history.overlapping(run))
        broken |= {name for name, violation in GUARANTEES.items() if violation in sessions_broken}
    for name, before in ORDERS:
        broken |= set() if brute_history.serializable(h, before) and not h.invented else {name}
    linearizable = not h.invented and all(map(partial(brute_history.linearizable, h), brute_history.keys(h)))
    broken |= set() if linearizable else {PER_KEY}
    unequal = broken & {"agreement in a shard", "results complete and equal"}
    for name in (*brute.MULTICAST, *OF_SHARDS[2:]):
        unclear = not h.clear and name in OF_SHARDS[1:]
        unclear |= name in OF_SHARDS[4:] and brute.MULTICAST[-1] in broken  # judged by what clients were told
        if accused[name].get(case) and name not in broken and not (unclear or unequal):
            yield name, accused[name][case], "holds"
        blind = fold.blind_shards(case) if name in OF_SHARDS else run.lost
        if name in broken and not accused[name].get(case) and not blind and not (unclear or unequal):
            yield name, "valid", "violated"


def wrong_cycles(runs: list[brute_run.Run], cycles: list[serialization.Cycle]) -> list[str]:
    """Shown cycles that have an edge that is none, another name, or a shorter one beside them."""
    bad = []
    for cycle in cycles:
        run, ids = runs[folded.case_of_cycle(cycle)], folded.ids_of_cycle(cycle)
        h = brute_history.history(run)
        if run.lost or not h.clear or len(list(brute_history.choices(h))) > 1:
            continue
        drawn = brute_history.dependencies(h, {})
        drawn |= {(a.id, b.id, "rt") for a in h.txns for b in h.txns if brute_history.before_in_time(a, b)}
        kinds = [edge.kind for edge in cycle.edges]
        claimed = set(zip(ids, ids[1:] + ids[:1], kinds, strict=True))
        pairs = {(a, b) for a, b, kind in drawn if kind != "rt" or "rt" in kinds}
        longer = len(ids) > brute_cycles.shortest_cycle(pairs, ids[0])
        if longer or not claimed <= drawn or cycle.name != brute_cycles.adya(kinds):
            bad.append(f"cycle {cycle.name}: {claimed}:\n{run}")
    return bad


def wrong_counts(fold: folded.Folded) -> list[str]:
    """Of the operations of unknown outcome; of runs without a crash, and of all with every one of them unsettled."""
    bad = []
    whole = [c for c, run in enumerate(fold.runs) if not run.lost]
    calm = [c for c in whole if brute.settled(fold.runs[c]) is None]
    stormy = [c for c in whole if c not in calm]
    for cases, complete_before in ((calm, None), (stormy, bytes(16))):
        theirs = [sum(counts) for counts in zip(*(brute.unknown(fold.runs[c]) for c in cases), strict=True)]
        mine = fold.operations.where(folded.case_of_file().isin(cases))
        row = clients.unknown(mine, fold.transactions, complete_before).first()
        if row is None or [row.n, row.applied, row.not_applied, row.open] != theirs:
            bad.append(f"unknown outcomes: audit {row}, brute force {theirs}")
    return bad


def judged_models(fold: folded.Folded) -> dict[int, dict[str, str]]:
    """Run -> model -> verdict, of the runs with a cycle; no run has processes that do two things at once."""
    graph, steps = fold.dependencies(), fold.timeline
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
    """The violations that the documentation lists, but for those of workloads, of traces, of values, of reads in no
    journal, of watches, of leases, of moves of slots and of the time of ids, which numbers are not."""
    text = Path(spark_etl.__file__).with_name("README.md").read_text()
    rows = text.partition("| property |")[2].partition("\n\n")[0].partition("| conservation")[0].splitlines()
    promised = {name for _, found in WRONG.values() for name in found.split()} - {"version-mismatch"}
    rows = [row for row in rows if not row.startswith("| genuineness") and "value" not in row.split("|")[2]]
    known = ("not-as-asked", "expired-early", "outlived-its-lease", "taken-along")
    rows = [row for row in rows if not any(f"`{name}`" in row for name in known)]
    rows = [row for row in rows if not any(f"`{name}`" in row for name in promised)]
    others = ("change", "told", "watch", "step", "left", "given", "served")
    rows = [row for row in rows if not any(f"`{begin}-" in row for begin in others)]
    rows = [row for row in rows if "-position`" not in row and "`position-went-back`" not in row]
    names = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[2] if "|" in row else "")}
    return {name for name in names if not name.startswith("-")}


def numbered(seed: int) -> brute_run.Run:
    """Every fifth has lost something."""
    run = random_run(Random(seed))[0]
    return run if seed % 5 else lose(Random(seed), run)


@pytest.mark.timeout(600 + max(RUNS, RUNS_FULL))
@pytest.mark.parametrize("count", [RUNS, pytest.param(RUNS_FULL, marks=pytest.mark.full)])
def test_random_runs_get_the_verdicts_of_brute_force(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
):
    tally, bad = Tally(), []
    for start in range(FIRST, FIRST + count, FOLD):
        seeds = range(start, min(start + FOLD, FIRST + count))
        with monkeypatch.context() as patch:
            runs = [*KNOWN.values(), *map(numbered, seeds)]
            bad += compare(spark, runs, tmp_path / str(start), patch, tally)
    print("\n" + "\n".join(f"{n:6} {what}" for what, n in sorted(tally.items())))
    bad.sort(key=len)
    assert not bad, f"{len(bad)} disagreements, the shortest:\n" + "\n".join(bad[:3])
    seen = {what.removeprefix("name: ") for what in tally if what.startswith("name: ")}
    assert {name.removesuffix("-realtime") for name in seen} == named()
    assert any(name.endswith("-realtime") for name in seen)


FIRST_VALID = ("valid", "not determined", "not determined")
OPEN = ("not determined",) * 3
VERDICT = {"holds": "valid", "violated": "violated", "not determined": "not determined"}


@pytest.mark.parametrize(
    ("names", "history_unsure", "expected"),
    [
        pytest.param(["right"], True, FIRST_VALID, marks=pytest.mark.full, id="a history in part"),
        pytest.param(["right", "two states"], False, OPEN, marks=pytest.mark.full, id="contradictory journals"),
        pytest.param(["absent before a deletion"], False, FIRST_VALID, id="in doubt"),
        pytest.param(
            ["a cut journal of the only replica"], False, OPEN, marks=pytest.mark.full, id="a journal in part"
        ),
    ],
)
def test_properties_and_models_say_the_same(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    names: list[str], history_unsure: bool, expected: tuple[str, ...],
):  # fmt: skip
    """Of the others by default: `test_verdicts`."""
    monkeypatch.setattr(Audit, "history_unsure", history_unsure)
    runs = [KNOWN[name] for name in names]
    if names == ["absent before a deletion"]:
        monkeypatch.setattr(Audit, "_certify", lambda _: PROVED)
    report = folded.Folded(spark, runs, tmp_path, parts=BESIDE_CLIENTS).check_all()
    found = {prop.name: prop.verdict for prop in report.properties}
    models = {row.name: row.verdict for row in report.models}
    assert tuple(found[name] for name in MODEL_OF) == expected
    assert tuple(VERDICT[models[model]] for model in MODEL_OF.values()) == expected
    assert found["read your writes"] == "not determined"
    if any(run.lost for run in runs):
        assert {found[name] for name in brute.MULTICAST[:-1]} == {"not determined"}  # the last needs the clients' part


@pytest.mark.full
def test_a_session_is_in_order_where_a_coarse_clock_does_not_order_it(spark: Any, tmp_path: Path):
    """Another such run by default: `test_audit`."""
    runs = [KNOWN["an own write missed at one time by the clock"]]
    report = folded.Folded(spark, runs, tmp_path, parts=BESIDE_CLIENTS).check_all()
    found = {prop.name: prop.verdict for prop in report.properties}
    models = {row.name: VERDICT[row.verdict] for row in report.models}
    assert (found["read your writes"], found["serializability"], found[PER_KEY]) == ("violated", "valid", "valid")
    assert tuple(models[model] for model in MODEL_OF.values()) == tuple(found[name] for name in MODEL_OF)
    assert models["strong-serializable"] == models["strong-session-serializable"] == "violated"


def test_a_read_of_what_nobody_wrote_counts_behind_many_others(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("spark_etl.audit.ahead.EXAMPLES", 1)
    monkeypatch.setattr(Audit, "_certify", lambda _: PROVED)
    run = tiny("wa | ra=0 | ra=0 | rb=9 | ra=0")
    report = folded.Folded(spark, [run], tmp_path, parts=BESIDE_CLIENTS[:3]).check_all()
    assert [violation.name for violation in report.properties[-2].examples] == ["unwritten-version"]
    assert report.properties[-2].verdict == "violated"
