"""Runs that the simulator wrote: whole replicas, production journals, scripted and faulty worlds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from kvstore.core.audit import APPLIED
from kvstore.simulated.runner import run_seed
from kvstore.simulated.schedules import play
from kvstore.simulated.settings import Settings
from multicast.types import OPTIMISTIC
from spark_etl.audit.runner import Audit
from spark_etl.ingest.journals import parse_segment
from spark_etl.ingest.sources import find_segments
from spark_etl.report import Property, Report

PARTS = ("delivery", "transactions", "serializability")


def audit(spark: Any, directory: Path, parts: tuple[str, ...] = PARTS) -> Report:
    return Audit(spark, directory / "run", directory / "out", parts=parts).run()


def first_run(settings: Settings, seeds: Iterable[int], suits: Callable[[Any], bool], path: Path) -> Path:
    """Where the first of these seeds is whose run suits; of each the run is written once."""
    return next(path / str(n) for n in seeds if suits(run_seed(settings, n, path / str(n) / "run")))


def rows(run: Path, table: str) -> Iterator[dict[str, Any]]:
    """Of all journals, in their order."""
    for segment in find_segments(run):
        for batches in parse_segment(segment, Path(segment.path).read_bytes()):
            if table in batches:
                yield from batches[table].to_pylist()


def prop(report: Report, name: str) -> Property:
    return next(p for p in report.properties if p.name == name)


def test_a_schedule_that_runs_against_real_time_is_explained(spark: Any, tmp_path: Path):
    """A chain over three transactions' keys."""
    play("three-groups", "skeen", "delivery", tmp_path / "run")
    report = audit(spark, tmp_path)
    assert prop(report, "serializability").verdict == "valid"
    strict = prop(report, "strict serializability")
    assert strict.verdict == "violated"
    steps = strict.examples[0].steps
    assert strict.examples[0].name.endswith("-realtime")
    assert sum(step.startswith("rt: ") and "was answered at" in step for step in steps) == 1
    assert {p.name for p in report.properties if p.verdict == "violated"} == {"strict serializability"}


def test_the_rule_of_the_store_keeps_the_order_of_real_time(spark: Any, tmp_path: Path):
    play("three-groups", "skeen", "rule", tmp_path / "run")
    assert audit(spark, tmp_path).exit_code == 0


def test_crashes_power_failures_and_partitions_are_not_accused(spark: Any, tmp_path: Path):
    settings = Settings(protocol="white_box", seconds=4.0)
    directory = first_run(settings, (2, *range(20)), lambda run: run.faults.get("crash", 0) >= 2, tmp_path)
    report = audit(spark, directory)
    assert [p.name for p in report.properties if p.verdict == "violated"] == []
    assert report.exit_code == 0 and report.problems == []
    assert int(report.input["lives"]) > int(report.input["replicas"])


def test_what_a_snapshot_stands_for_is_no_loss(spark: Any, tmp_path: Path):
    settings = Settings(protocol="white_box", size="small")
    directory = first_run(settings, (15, *range(40)), lambda run: run.installations >= 2, tmp_path)
    assert any(row["event"] == "installed" and row["delivered"] for row in rows(directory / "run", "lives"))
    report = audit(spark, directory, ("delivery", "transactions"))
    assert [p.name for p in report.properties if p.verdict == "violated"] == []
    assert report.exit_code == 0 and report.problems == []


def test_early_deliveries_in_another_order_are_counted(spark: Any, tmp_path: Path):
    options = {"optimistic": "true", "dedup_window_us": "1000000"}
    settings = Settings(protocol="quasi_genuine", options=options, seconds=2.0, shards=2, clients=6)
    assert run_seed(settings, 25, tmp_path / "run").violations == []
    report = audit(spark, tmp_path, ("delivery",))
    final: dict[tuple[int, bytes], int] = {}
    early: dict[int, dict[bytes, None]] = {}
    for row in rows(tmp_path / "run", "deliveries"):
        if row["stage"] == OPTIMISTIC:
            early.setdefault(row["replica"], {})[row["id"]] = None
        elif not row["expired"]:
            final[row["replica"], row["id"]] = row["position"]
    mistaken = total = 0
    for replica, ids in early.items():
        latest = 0
        for position in (final.get((replica, one)) for one in ids):
            total += 1
            mistaken += position is not None and position < latest
            latest = max(latest, position or 0)
    assert mistaken > 10
    optimistic = prop(report, "optimistic deliveries")
    assert optimistic.note.startswith(f"{mistaken:,} of {total:,} were early in another order than finally (")
    assert (report.exit_code, optimistic.verdict, optimistic.rows) == (0, "valid", total)


def fates(run: Path) -> tuple[set[str], set[str], set[str], set[str]]:
    """The operations whose outcome no client knows: all, those that were applied, those that were not or only read, and
    those of which no journal knows."""
    ends: dict[str, str] = {}
    readers: set[str] = set()
    for line in (run / "history" / "clients.jsonl").read_bytes().splitlines():
        event = msgspec.json.decode(line)
        ends[event["id"].replace("-", "")] = event["type"]
        if all(words[0] in ("get", "range") for words in event.get("asked", {}).get("success", [["put"]])):
            readers.add(event["id"].replace("-", ""))
    unknown = {one for one, end in ends.items() if end in ("invoke", "info")}
    outcomes = list(rows(run, "outcomes"))
    there = {row["id"].hex() for row in outcomes} & unknown
    applied = {row["id"].hex() for row in outcomes if row["status"] == APPLIED} & unknown
    refused = (there | (readers & unknown)) - applied
    return unknown, applied, refused, unknown - applied - refused


def test_operations_of_unknown_outcome_were_applied_or_expired_or_may_be_under_way(spark: Any, tmp_path: Path):
    settings = Settings(protocol="toto", options={"dedup_window_us": "1000000"}, seconds=2.0, shards=2, clients=6)
    seeds = (n for n in range(9, 29) if not run_seed(settings, n, tmp_path / f"{n}/run", trace=True).violations)
    directory = tmp_path / str(next(n for n in seeds if all(fates(tmp_path / f"{n}/run"))))
    report = audit(spark, directory, ("delivery", "transactions", "clients"))
    unknown, applied, refused, absent = fates(directory / "run")
    lives = [row["event"] for row in rows(directory / "run", "lives")]
    if lives.count("started") == lives.count("stopped"):  # nothing can be under way any more
        refused, absent = refused | absent, set()
    fate = prop(report, "unknown outcomes resolved")
    note = f"of {len(unknown)} operations {len(applied)} were applied, {len(refused)} were not"
    note += f", and {len(absent)} may still be under way" if absent else ""
    verdict = "pending" if absent else "valid"
    assert (fate.verdict, fate.rows, fate.note, report.exit_code) == (verdict, len(unknown), note, 0)
    genuine = prop(report, "genuineness")
    assert genuine.verdict == "not applicable" and "does not claim it" in genuine.note and genuine.rows > 1000
