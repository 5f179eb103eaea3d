"""What is wrong with a history itself is named, and accuses nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from multicast.types import Timestamp
from spark_etl.audit.runner import Audit
from spark_etl.report import Property, Report
from tests.spark_etl.promised import at, written
from tests.spark_etl.runs import CLUSTER, Run


def judged(spark: Any, run: Path) -> Report:
    return Audit(spark, run, run.parent / "out").run()


def accused(report: Report) -> list[Property]:
    return [prop for prop in report.properties if prop.verdict == "violated"]


def verdicts(report: Report, *names: str) -> list[str]:
    return [prop.verdict for name in names for prop in report.properties if prop.name == name]


def told() -> Run:
    """Reads in no journal, and a watch."""
    run = written()
    run.read("a1", 0, 3, (1050, 1060))
    run.look(at(run, a1=2, b1=2), (1100, 1110), places={0: 3, 1: 3})
    one, two, three = map(run.version, (1, 2, 3))
    run.watch((one, {"a2": 1}), (two, {"a1": 2, "b1": 2}), (three, {"b2": 1}), after=run.version(0))
    return run


def test_a_history_of_another_run_says_nothing_with_its_watches_and_reads_either(spark: Any, tmp_path: Path):
    directory, other = told().write(tmp_path / "run"), told()
    later = 7_000
    for number, event in enumerate(other.events):
        event["id"] = event["id"][:-4] + f"{later + number // 2:04x}"
        for name in ("version", "at"):
            if name in event:
                moved = Timestamp.parse(event[name])
                event[name] = str(Timestamp(moved.time + later, moved.tiebreak))
        event["reads"] = {key: str(Timestamp(later, 0)) for key in event.get("reads", ())}
    watch = {event["id"]: f"{later:032x}" for event in other.events if event["type"] == "watch"}
    for event in other.events:
        event["id"] = watch.get(event["id"], event["id"])
    (directory / "history/other.jsonl").write_text("".join(json.dumps(event) + "\n" for event in other.events))
    report = judged(spark, directory)
    (problem,) = report.problems
    assert problem.startswith("history/other.jsonl: none of its 4 acknowledged operations") and not accused(report)
    assert verdicts(report, "watches", "reads as promised") == ["not determined", "valid"] and report.exit_code == 2


def test_a_history_that_has_read_what_this_run_wrote_is_not_another_runs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """All that its client was told is lost, of which it is told what it read before."""
    monkeypatch.setattr("spark_etl.audit.noted._OF_A_CLOCK", 500)
    run = written()
    ours = [*run.events]
    run.transaction("a1", writes={"a1": 3})
    lost = run.events[len(ours) :]
    directory = written().write(tmp_path / "run")
    (directory / "history/other.jsonl").write_text("".join(json.dumps(event) + "\n" for event in lost))
    report = judged(spark, directory)
    names = {example.name for prop in report.properties for example in prop.examples}
    assert (names, report.problems) == ({"acknowledged-but-absent"}, [])


@pytest.mark.parametrize("ours", [True, False])
def test_a_history_that_says_of_which_cluster_it_is_is_believed(spark: Any, tmp_path: Path, ours: bool):
    """All of it is lost, and nothing that it read was this run's."""
    run = written()
    before = len(run.events)
    for key in ("a1", "b1"):
        run.transaction(key, writes={key: 3})
    lost = run.events[before:]
    lost[0]["cluster"] = CLUSTER.hex() if ours else "ab" * 16
    directory = written().write(tmp_path / "run")
    (directory / "history/other.jsonl").write_text("".join(json.dumps(event) + "\n" for event in lost))
    report = judged(spark, directory)
    names = {example.name for prop in report.properties for example in prop.examples}
    assert names == ({"acknowledged-but-absent"} if ours else set())
    assert len(report.problems) == (not ours) and report.exit_code == (1 if ours else 2)


def test_what_is_no_id_of_a_cluster_is_damage(spark: Any, tmp_path: Path):
    run = written()
    run.events[0]["cluster"] = "mine"
    report = judged(spark, run.write(tmp_path / "run"))
    assert any("line 1: cluster: 32 hexadecimal digits" in problem for problem in report.problems)


def test_of_a_clock_that_went_back_no_time_is_believed(spark: Any, tmp_path: Path):
    """Whatever it says: the second half seems to be before the first."""
    run = told()
    for event in run.events[:8]:
        event["process"] = 0
    for event in run.events[4:]:
        event["at_us"] -= 500
    report = judged(spark, run.write(tmp_path / "run"))
    (problem,) = report.problems
    told_last = "process 0 is 498 us before what it said last: a clock that went back, of which no time is believed"
    assert problem == f"history/clients.jsonl, line 5: {told_last}"
    assert not accused(report) and report.exit_code == 2
    assert verdicts(report, "strict serializability", "linearizability per key") == ["not determined"] * 2
