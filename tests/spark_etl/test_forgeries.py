"""Every kind of forgery, at one replica and at all of a shard, gets the names that it deserves, and nobody else any."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvstore.simulated.runner import run_seed
from kvstore.simulated.settings import Settings
from spark_etl.report import Report
from tests.spark_etl import folded
from tests.spark_etl.altered import ALTERED
from tests.spark_etl.forged import FORGERIES, NESTED, TOLD, Forged, Forgery, Kind
from tests.spark_etl.losses import LOSSES

PARTS = ("delivery", "transactions", "clients")
ONE, SHARD = (2,), (0, 1, 2)


def misnamed(kinds: Mapping[str, Kind], found: Mapping[int, set[str]]) -> list[str]:
    """Of the kinds, copied two by two from the first copy on, those that got other names than they deserve."""
    wrong = []
    for n, (name, kind) in enumerate(kinds.items()):
        got = [" ".join(sorted(found[2 * n + one])) for one in (0, 1)]
        wrong += [f"{name}: {got}"] * (got != [kind.one, kind.shard])
    return wrong


def names_by_case(report: Report, ones: int) -> Mapping[int, set[str]]:
    """Copy -> what was found in it. ones: so many copies are of kinds, and the even ones of those are of one replica,
    which alone is to be blamed."""
    found: dict[int, set[str]] = defaultdict(set)
    for violation in (violation for prop in report.properties for violation in prop.examples):
        cases = {folded.case_of_text(one) for one in violation.transactions}
        (case,) = cases | {replica // folded.REPLICAS for replica in violation.replicas}
        found[case].add(violation.name)
        if case % 2 == 0 and case < ones:
            assert case * folded.REPLICAS + ONE[0] in violation.replicas, violation
    for problem in (problem for problem in report.problems if problem.startswith("replicas/")):
        found[int(problem.split("/")[1].split("-")[0])].add("damage")
    return found


def simulated(directory: Path) -> Path:
    settings = Settings(protocol="white_box", profile="calm", shards=2, replicas=3, clients=3, seconds=1.0)
    run_seed(settings, 11, directory)
    return directory


def of_kinds(kinds: Mapping[str, Kind]) -> list[tuple[Forgery, Sequence[int]]]:
    return [(kind.forge, replicas) for kind in kinds.values() for replicas in (ONE, SHARD)]


def test_every_forgery_is_named_or_known_to_be_beyond_us(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One audit of all copies. What one replica forged is blamed on that replica alone, whatever others read of it."""
    copies = of_kinds(FORGERIES) + [(loss.forge, loss.replicas) for loss in LOSSES.values()]
    told = {len(copies) + n: change for n, (change, _) in enumerate(TOLD.values())}
    copies += [(lambda records: None, ()) for _ in TOLD]
    folded.unlimited(monkeypatch)
    report = Forged(spark, simulated(tmp_path / "run"), copies, told, tmp_path / "out", PARTS).check_all()
    found = names_by_case(report, 2 * len(FORGERIES))
    assert misnamed(FORGERIES, found) == []
    expected = {name: loss.found for name, loss in LOSSES.items()}
    got = {name: " ".join(sorted(found[2 * len(FORGERIES) + n])) for n, name in enumerate(LOSSES)}
    expected |= {name: names for name, (_, names) in TOLD.items()}
    got |= {name: " ".join(sorted(found[case])) for name, case in zip(TOLD, told, strict=True)}
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
    run_seed(settings, 5, tmp_path / "run")
    report = Forged(spark, tmp_path / "run", of_kinds(NESTED), {}, tmp_path / "out", PARTS).check_all()
    assert misnamed(NESTED, names_by_case(report, 2 * len(NESTED))) == []


@pytest.mark.full
def test_so_is_every_alteration(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folded.unlimited(monkeypatch)
    run = simulated(tmp_path / "run")
    report = Forged(spark, run, of_kinds(ALTERED), {}, tmp_path / "out", PARTS).check_all()
    assert misnamed(ALTERED, names_by_case(report, 2 * len(ALTERED))) == []
