"""What watches told: whoever was told rightly is not accused, and everything else is called by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvstore.simulated.runner import run_seed
from kvstore.simulated.settings import Settings
from multicast.types import ZERO, Timestamp
from spark_etl.audit.runner import Audit
from spark_etl.checks import watches
from spark_etl.frames import relations
from spark_etl.ingest.extraction import extract
from spark_etl.ingest.tables import Tables
from spark_etl.report import Property
from tests.planted.store import Planted
from tests.planted.watches import PLANTED_IN_STORE
from tests.spark_etl.runs import Run

PARTS = ("delivery", "transactions", "clients")


def judged(spark: Any, directory: Path) -> Property:
    report = Audit(spark, directory, directory.parent / "out", parts=PARTS).run()
    assert not [p.name for p in report.properties if p.violations and p.name != "watches"], report.properties
    return next(p for p in report.properties if p.name == "watches")


def written() -> tuple[Run, list[Timestamp]]:
    """Four transactions, and their versions. The second one is of both shards; the last deletes a1, which is there."""
    run = Run()
    for writes in ({"a1": 1}, {"a2": 1, "b1": 1}, {"b2": 1}, {"a1": 0}):
        run.transaction(writes=writes)
    for replica in (0, 1, 2):
        run.change(replica, 3, lambda outcome: setattr(outcome.writes[0], "value", None))
    run.stop()
    return run, [run.version(number) for number in range(4)]


def test_whoever_was_told_everything_that_he_asked_for_is_not_accused(spark: Any, tmp_path: Path):
    run, (one, two, three, four) = written()
    run.watch((one, {"a1": 1}), (two, {"a2": 1, "b1": 1}), (three, {"b2": 1}), (four, {"a1": None}), after=ZERO)
    run.watch(one, (two, {"b1": 1}), two, (three, {"b2": 1}), four, four, first="b", at_us=1005)
    run.watch((two, {"a2": 1}), after=one, first="a2", end="b")  # and nobody knows how it went on
    run.watch(four, after=three, first="a2")
    run.watch(after=one)
    run.watch(three, (four, {"a1": None}), at_us=1037)  # what came when it had begun is not behind it
    run.watch((two, {"a2": 1, "b1": 1}), (three, {"b2": 1}), at_us=1012)  # told of no progress first
    found = judged(spark, run.write(tmp_path / "run"))
    assert (found.verdict, found.rows) == ("valid", 23), found
    assert found.note == "6 watches were told of 10 transactions, and missed none"


def test_what_was_told_wrongly_is_called_by_its_name(spark: Any, tmp_path: Path):
    run, (one, two, three, four) = written()
    never = Timestamp(one.time + 5, one.tiebreak)
    run.watch((one, {"a1": 1}), (three, {"b2": 1}), after=ZERO)  # not of two, whose keys are two
    run.watch((two, {"a2": 1}), after=one)  # half of it
    run.watch(three, after=two)
    run.watch((never, {"a1": 1}), after=one)
    run.watch((never, {}), after=one)
    run.watch((two, {"a2": 1, "b1": 2}), after=one)
    run.watch((four, {"a1": 0}), after=three)
    run.watch((two, {"a2": 1, "b1": 1}), (three, {"b2": 1}), (two, {"a2": 1, "b1": 1}), after=one)
    run.watch((three, {"b2": 1}), (two, {"b1": 1}), after=one, first="b")
    run.watch(three, (three, {"b2": 1}), after=two)
    run.watch(three, four, three, after=three, first="a2")
    run.watch((two, {"a2": 1, "b1": 1}), (three, {"b2": 1}), after=two)  # which it had
    run.watch((one, {"a1": 1}), after=three)
    run.watch(three, (four, {"a1": None}), at_us=1001)  # two and three were asked for after that
    run.watch((four, {"a1": None}), after=three, at_us=25)  # that was asked for at 1026
    for first in ((two, {"a2": 1, "b1": 3}), (two, {"b1": 1}), (never, {"a1": 1})):  # before any progress
        run.watch(first, at_us=1012)
    found = judged(spark, run.write(tmp_path / "run"))
    names = sorted(example.name for example in found.examples)
    assert names == sorted(
        ["change-missed"] * 5 + ["change-invented"] * 3 + ["change-otherwise"] * 3 + ["told-again"]
        + ["told-out-of-order"] * 5 + ["watch-began-late"] * 2 + ["told-before-asked"]
    ), found.examples  # fmt: skip
    missed = next(example for example in found.examples if example.name == "change-missed")
    assert missed.evidence and missed.keys and missed.transactions


def test_a_watch_with_no_beginning_or_two_or_that_goes_on_after_its_end_is_not_determined(spark: Any, tmp_path: Path):
    run, (one, two, three, four) = written()
    run.watch((two, {"a2": 1, "b1": 1}), after=one)
    begin = run.events.pop(-2)
    run.watch(four, after=two, first="b2")
    run.events.append(begin | {"id": run.events[-1]["id"]})
    run.watch(four, after=three, first="b2")
    run.events.append({**run.events[-1], "f": "end"})
    run.events.append({**run.events[-2]})
    found = judged(spark, run.write(tmp_path / "run"))
    assert (found.verdict, found.examples) == ("not determined", [])


def test_what_simulated_watches_told_is_valid(spark: Any, tmp_path: Path):
    settings = Settings(protocol="white_box", size="small", watch=True, ranges=True, moves=True)
    outcome = run_seed(settings, 24, tmp_path / "run")
    assert outcome.violations == [] and outcome.watched > 10 and outcome.moves
    found = judged(spark, tmp_path / "run")
    assert found.verdict == "valid", found


FOUND = {"NotWaitedForAShard": [pytest.mark.full], "LagNotTold": [pytest.mark.full], "ToldAgain": []}


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, id=bug.name, marks=FOUND[bug.name]) for bug in PLANTED_IN_STORE if bug.name in FOUND],
)
def test_a_planted_bug_is_found_by_the_audit_too(spark: Any, tmp_path: Path, bug: Planted):
    bug.run(bug.first_seed, tmp_path / "run")
    opened = Tables(spark, tmp_path / "out", extract(tmp_path / "run", tmp_path / "out").manifest)
    watched, writes = opened.frame("watched"), relations.key_writes(opened.frame("writes"))
    spans = watches.spans(watched, None)
    compared = watches.compare(spans, watched, writes, False, None)
    assert watches.check(spans, watched, compared, None).take(1)
