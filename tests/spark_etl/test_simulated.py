"""Runs that the simulator wrote: whole replicas, production journals, scripted and faulty worlds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvstore.simulated.runner import Settings, run_seed
from kvstore.simulated.schedules import play
from spark_etl.audit import Audit
from spark_etl.report import Property, Report

PARTS = ("delivery", "transactions", "serializability")


def audit(spark: Any, directory: Path) -> Report:
    return Audit(spark, directory / "run", directory / "out", parts=PARTS).run()


def prop(report: Report, name: str) -> Property:
    return next(p for p in report.properties if p.name == name)


@pytest.mark.parametrize(("name", "signals"), [("two-groups", "off"), ("three-groups", "delivery")])
def test_a_schedule_that_runs_against_real_time_is_explained(spark: Any, tmp_path: Path, name: str, signals: str):
    play(name, "skeen", signals, tmp_path / "run")
    report = audit(spark, tmp_path)
    assert prop(report, "serializability").verdict == "valid"
    strict = prop(report, "strict serializability")
    assert strict.verdict == "violated"
    steps = strict.examples[0].steps
    assert sum(step.startswith("rt: ") and "was answered at" in step for step in steps) == 1
    assert {p.name for p in report.properties if p.verdict == "violated"} == {"strict serializability"}


def test_the_rule_of_the_store_keeps_the_order_of_real_time(spark: Any, tmp_path: Path):
    play("three-groups", "skeen", "rule", tmp_path / "run")
    assert audit(spark, tmp_path).exit_code == 0


def test_crashes_power_failures_and_partitions_are_not_accused(spark: Any, tmp_path: Path):
    settings = Settings(protocol="white_box", seconds=4.0)
    seed = next(n for n in range(20) if run_seed(settings, n).faults.get("crash", 0) >= 2)
    run_seed(settings, seed, tmp_path / "run")
    report = audit(spark, tmp_path)
    assert [p.name for p in report.properties if p.verdict == "violated"] == []
    assert report.exit_code == 0 and report.problems == []
    assert int(report.input["lives"]) > int(report.input["replicas"])
