"""Every kind of damage, and of forgery at one replica and at all of a shard, gets the names that it deserves, and
nobody else any: one audit of all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvstore.simulated.runner import run_seed
from kvstore.simulated.settings import Settings
from spark_etl.report import Report, Violation
from tests.spark_etl import folded
from tests.spark_etl.altered import ALTERED
from tests.spark_etl.damages import DAMAGES
from tests.spark_etl.forged import FORGERIES, NESTED, TOLD, Forged, Forgery, Kind, Written
from tests.spark_etl.losses import LOSSES

PARTS = ("delivery", "transactions", "clients")
ONE, SHARD = (2,), (0, 1, 2)


def misnamed(kinds: Mapping[str, Kind], found: Sequence[set[str]]) -> list[str]:
    """Of the kinds, copied two by two, those that got other names than they deserve."""
    wrong = []
    for n, (name, kind) in enumerate(kinds.items()):
        got = [" ".join(sorted(found[2 * n + one])) for one in (0, 1)]
        wrong += [f"{name}: {got}"] * (got != [kind.one, kind.shard])
    return wrong


def names_of_copies(fold: Forged, report: Report) -> list[set[str]]:
    """What was found in each copy; of those that one replica forged, it alone is to be blamed."""
    found: dict[int, set[str]] = defaultdict(set)
    for case, violations in folded.by_case(report).items():
        for _, violation in violations:
            found[case].add(violation.name)
            if fold.first <= case and fold.copies[case - fold.first][1] == ONE:
                assert case * folded.REPLICAS + ONE[0] in violation.replicas, violation
    for problem in (problem for problem in report.problems if problem.startswith("replicas/")):
        found[int(problem.split("/")[1].split("-")[0])].add("damage")
    return [found[case] for case in range(fold.first, fold.first + len(fold.copies))]


def simulated(directory: Path, seconds: float = 1.0) -> Path:
    settings = Settings(protocol="white_box", profile="calm", shards=2, replicas=3, clients=3, seconds=seconds)
    run_seed(settings, 11, directory)
    return directory


def of_kinds(kinds: Mapping[str, Kind]) -> list[tuple[Forgery, Sequence[int]]]:
    return [(kind.forge, replicas) for kind in kinds.values() for replicas in (ONE, SHARD)]


class Judged(NamedTuple):
    """The audit of all damaged runs and, after them, of all forged copies of a run."""

    report: Report
    forged: Forged


@pytest.fixture(scope="module")
def judged(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    path = tmp_path_factory.mktemp("judged")
    runs = [damage.run.write(path / str(n)) for n, damage in enumerate(DAMAGES.values())]
    copies = of_kinds(FORGERIES) + [(loss.forge, loss.replicas) for loss in LOSSES.values()]
    told = {len(copies) + n: change for n, (change, _) in enumerate(TOLD.values())}
    copies += [(lambda records: None, ()) for _ in TOLD]
    forged = Forged(spark, simulated(path / "run"), copies, told, path / "out", PARTS)
    damaged = Written(spark, runs, path / "out", PARTS)
    with pytest.MonkeyPatch.context() as patch:
        folded.unlimited(patch)
        report = folded.Together(spark, [damaged, forged], path / "out", parts=PARTS).check_all()
    return Judged(report, forged)


class Found(NamedTuple):
    """In one damaged run: a property's name -> what violates it; and how its shards and replicas are numbered."""

    violations: dict[str, list[Violation]]
    case: int

    def names(self) -> set[str]:
        return {v.name for violations in self.violations.values() for v in violations}

    def one(self, name: str) -> Violation:
        return next(v for violations in self.violations.values() for v in violations if v.name == name)

    def replica(self, number: int) -> int:
        return self.case * folded.REPLICAS + number

    def shard(self, number: int) -> int:
        return self.case * folded.SHARDS + number


@pytest.fixture(scope="module")
def found(judged: Judged) -> dict[str, Found]:
    found = {name: Found({}, case) for case, name in enumerate(DAMAGES)}
    by_case = folded.by_case(judged.report)
    for case, name in enumerate(DAMAGES):
        for prop, violation in by_case[case]:
            found[name].violations.setdefault(prop, []).append(violation)
    return found


@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_is_called_by_its_name_and_nobody_else_is_accused(found: dict[str, Found], name: str):
    assert found[name].names() == set(DAMAGES[name].found.split())


def test_what_is_found_says_where_and_what(found: dict[str, Found]):
    swapped = found["two_deliveries_swapped_at_one_replica"]
    both = swapped.violations["agreement in a shard"]
    first = next(v for v in both if f"position 4 of shard {swapped.shard(0)}" in v.sentence)
    assert {v.name for v in both} == {"position-disagreement"}
    assert swapped.replica(2) in first.replicas and len(first.transactions) == 2
    assert list(found["two_records_swapped_in_the_file"].violations) == ["prefix order"]
    dropped = found["a_dropped_delivery"]
    said = f"replica {dropped.replica(1)} of shard {dropped.shard(0)} has no delivery at position 4"
    assert said in dropped.one("lost-delivery").sentence
    last = found["a_dropped_last_delivery_against_the_clean_stop"]
    assert "clean stop" in last.violations["agreement in a shard"][0].sentence
    assert len(found["a_delivery_repeated_at_the_next_position"].violations["integrity"]) == 3
    order = found["another_order_at_a_whole_shard"]
    assert len(order.one("order-cycle").steps) == 2 and "agreement in a shard" not in order.violations
    assert list(found["a_message_that_nobody_sent"].violations) == ["validity"]
    reads = found["read_versions_changed"].violations["reads return what the order says"]
    assert len(reads) >= 3 and all(v.keys and v.transactions and v.replicas for v in reads)
    results = found["outcomes_lost_changed_and_of_another_branch"].violations["results complete and equal"]
    assert [v.name for v in results].count("branch-disagreement") == 1
    differ = found["two_that_differ_from_the_others_beside_a_foreign_history"]
    sentences = {v.sentence.partition(") ")[2] for violations in differ.violations.values() for v in violations}
    one, two, three, four, five = (differ.replica(number) for number in (0, 1, 3, 4, 5))
    assert sentences == {
        f"the outcome of replica {four} is not that of replicas {three} and {five}",
        f"the state of replica {differ.replica(2)} is not that of replicas {one} and {two}",
    }


def test_a_foreign_history_is_a_problem_and_the_others_are_none(judged: Judged, found: dict[str, Found]):
    told = [problem for problem in judged.report.problems if problem.startswith("history/")]
    halves = [problem for problem in told if problem.endswith("has 0 invocations and 1 ends")]
    told = [problem for problem in told if problem not in halves]
    assert {problem.partition("-")[0] for problem in halves} == {
        f"history/{found[name].case}" for name in DAMAGES if name.endswith("in_no_history")
    }
    foreign = found["two_that_differ_from_the_others_beside_a_foreign_history"].case
    assert [problem.removeprefix("history/").partition("-")[0] for problem in told] == [str(foreign)]
    assert "a history of another run" in told[0]


def test_every_forgery_is_named_or_known_to_be_beyond_us(judged: Judged) -> None:
    """What one replica forged is blamed on that replica alone, whatever others read of it."""
    report = judged.report
    found = names_of_copies(judged.forged, report)
    assert misnamed(FORGERIES, found) == []
    expected = {name: loss.found for name, loss in LOSSES.items()} | {name: names for name, (_, names) in TOLD.items()}
    got = {name: " ".join(sorted(one)) for name, one in zip(expected, found[2 * len(FORGERIES) :], strict=True)}
    assert [f"{name}: {got[name]}" for name in expected if got[name] != expected[name]] == []
    assert any("acknowledged operations stand in the journals of a minority of a shard" in n for n in report.notes)
    assert any("acknowledged operations are not in the journals" in note for note in report.notes)
    assert any("what most replicas of its shard contradict was left out" in note for note in report.notes)


@pytest.mark.full
def test_so_is_what_is_forged_of_nested_transactions(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded.unlimited(monkeypatch)
    settings = Settings(
        protocol="white_box", profile="calm", shards=2, replicas=3, clients=1, seconds=0.5, nested=True
    )
    run_seed(settings, 8, tmp_path / "run")
    fold = Forged(spark, tmp_path / "run", of_kinds(NESTED), {}, tmp_path / "out", PARTS)
    assert misnamed(NESTED, names_of_copies(fold, fold.check_all())) == []


@pytest.mark.full
def test_so_is_every_alteration(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folded.unlimited(monkeypatch)
    fold = Forged(spark, simulated(tmp_path / "run"), of_kinds(ALTERED), {}, tmp_path / "out", PARTS)
    assert misnamed(ALTERED, names_of_copies(fold, fold.check_all())) == []
