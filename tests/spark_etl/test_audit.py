"""Audits of small runs: nobody is accused who is right, and what is said where not all is known. Damage in a journal:
`test_forgeries`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from multicast.records import Completed, Delivered, Members, Stopped
from spark_etl.audit.runner import PARTS, Audit
from spark_etl.certify.proof import BANK, CLIENTS, TIME
from spark_etl.report import Property, Report
from tests.spark_etl.damages import crashed_and_lagging, exchange, read_at_positions
from tests.spark_etl.promised import at, written
from tests.spark_etl.runs import MEMBERS, Run, bank_run

DELIVERY, TRANSACTIONS = ("delivery",), ("transactions",)
SERIALIZABILITY = ("delivery", "transactions", "serializability")

AuditRun = Callable[..., Report]


@pytest.fixture
def audit(spark: Any, tmp_path: Path) -> AuditRun:
    def run(run: Run | Path, parts: Sequence[str] = PARTS, **options: Any) -> Report:
        directory = run if isinstance(run, Path) else run.write(tmp_path / "run")
        return Audit(spark, directory, tmp_path / "out", parts=parts, **options).run()

    return run


def names(report: Report) -> set[str]:
    return {violation.name for prop in report.properties for violation in prop.examples}


def prop(report: Report, name: str) -> Property:
    return next(p for p in report.properties if p.name.startswith(name))


# -- correct runs -----------------------------------------------------------------------------------------------------


def test_crashes_and_a_lagging_replica_are_noted(audit: AuditRun):
    """Nobody is accused of them: `damages`."""
    report = audit(crashed_and_lagging(), DELIVERY)
    assert report.exit_code == 0
    assert prop(report, "agreement").verdict == "pending"
    assert any("replica 4 of shard 1 ends at position 5 of 9" in note for note in report.notes)
    assert any("lost in a crash for 1 message" in note for note in report.notes)


def test_lines_of_a_history_that_contradict_one_another_are_named(spark: Any, tmp_path: Path):
    """Also of reads that no journal has: whoever believes either of them may believe the wrong one."""
    run = written()
    run.look(at(run, a1=2, b1=2), (1100, 1110), places={0: 3, 1: 3})
    run.events.append(run.events[-1] | {"reads": {"a1": str(run.version(0))}})
    for_nobody, backwards = run.events[1], run.events[3]
    for_nobody["process"] = 77
    backwards["at_us"] = run.events[2]["at_us"] - 1
    audit = Audit(spark, run.write(tmp_path / "run"), tmp_path / "out", parts=())
    read, write, early = (one["id"].replace("-", "") for one in (run.events[-1], for_nobody, backwards))
    told = [problem.partition("operation ")[2] for problem in audit.run().problems]
    assert told == [
        f"{early} ends before it was invoked", f"{write} is of two processes", f"{read} has 1 invocations and 2 ends",
        "",
    ]  # fmt: skip
    (no_answer,) = audit.operations.where("backwards").collect()
    assert (no_answer.type, no_answer.version, no_answer.complete_us) == ("info", None, None)
    assert audit.history_unsure and not audit.proof.proved & {CLIENTS, TIME}


def test_of_what_a_removed_replica_multicast_that_left_no_journal_nothing_is_determined(
    audit: AuditRun, tmp_path: Path
) -> None:
    """Its shard goes on without it."""
    run = bank_run()
    for replica in (1, 2):
        run.records[replica].insert(-1, Members({**MEMBERS, 0: (1, 2)}, 6, 2))
    directory = run.write(tmp_path / "run")
    shutil.rmtree(directory / "replicas/0")
    report = audit(directory, DELIVERY)
    assert names(report) == set() and report.exit_code == 2 and report.problems == []
    told = prop(report, "validity")
    assert told.verdict == "not determined"
    assert told.note == "whoever multicast 13 messages was removed, and has left no journal"


def test_without_a_history_real_time_is_not_determined(audit: AuditRun, tmp_path: Path):
    directory = bank_run().write(tmp_path / "run", history=False)
    (directory / "history").mkdir()
    (directory / "history" / "clients.jsonl").touch()  # an empty one is none
    report = audit(directory)
    assert prop(report, "strict").verdict == "not determined"
    assert prop(report, "serializability").verdict == "valid"
    assert report.exit_code == 2
    assert "there is no client history" in prop(report, "strict").note
    shutil.rmtree(directory / "history")
    assert audit(directory, ("clients",), expect_history=False).exit_code == 0


def test_a_run_without_the_store_is_checked_for_its_deliveries_alone(audit: AuditRun):
    run = bank_run()
    for replica, records in run.records.items():
        run.records[replica] = [r for r in records if type(r) not in (Completed, Stopped)]
    report = audit(run)
    assert prop(report, "integrity").verdict == "valid"
    assert prop(report, "serializability").verdict == "not applicable"
    assert report.exit_code == 0


# -- what needs an audit of its own ------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_dropped_delivery_is_named_though_the_journal_is_also_too_short_and_so_is_money_that_appears(
    audit: AuditRun, tmp_path: Path
):
    """What the replica vouched for (its mark) still has the length of the whole journal. By default each of these is
    shown by itself: `damages`, `test_inputs`, `test_bank`."""
    run = bank_run()
    for records in run.records.values():
        assert type(records.pop()) is Stopped
    end = next(e for e in reversed(run.events) if e["f"] == "read_all" and e["type"] == "ok")
    end["value"]["a1"] += 5
    source = run.state["a2"][0]
    run.transaction("a2", {"a2": source + 5}, f="transfer")
    run.stop()
    whole = run.write(tmp_path / "whole")
    del run.records[1][run.find(1, Delivered, 4)]
    damaged = run.write(tmp_path / "damaged")
    mark = Path("replicas/1/journal/mark")
    (damaged / mark).write_bytes((whole / mark).read_bytes())
    report = audit(damaged, (*DELIVERY, "bank"))
    found = {p.name: {violation.name for violation in p.examples} for p in report.properties if p.violations}
    assert found == {"agreement in a shard": {"lost-delivery"}, BANK: {"total-changed", "money-made"}}
    assert report.exit_code == 1 and "before what this replica vouched for" in report.problems[0]


# -- serializability --------------------------------------------------------------------------------------------------


def two_groups() -> Run:
    """t0 writes both shards; a client sees it on shard 0, and only then writes shard 1, where it is ordered before."""
    run = Run()
    run.transaction(writes={"b1": 9}, f="t2", invoke=2000, complete=2100)
    run.transaction(writes={"a1": 1, "b1": 1}, f="t3", invoke=1000, complete=3000)
    run.transaction("a1", f="t1", invoke=1100, complete=1200)
    run.stop()
    return run


@pytest.mark.full
def test_an_order_against_real_time_is_explained_by_a_cycle(audit: AuditRun):
    """By default random runs are, and are held against brute force."""
    report = audit(two_groups(), SERIALIZABILITY)
    assert prop(report, "serializability").verdict == "valid"
    strict = prop(report, "strict")
    assert strict.verdict == "violated"
    cycle = strict.examples[0]
    assert cycle.name.endswith("-realtime") and len(cycle.steps) == 3
    assert sum(step.startswith("rt:") for step in cycle.steps) == 1
    assert report.exit_code == 1


def one_session(reads: str, writes: dict[str, int], invoke: int) -> Run:
    """A process writes a1 from 1000 to 1100, and what it does then is earlier in the order of versions."""
    run = Run()
    run.transaction(reads, writes, invoke=invoke, complete=2100)
    run.transaction(writes={"a1": 1}, invoke=1000, complete=1100)
    run.stop()
    run.events = [event | {"process": 0} for event in run.events[2:] + run.events[:2]]
    return run


def test_a_search_without_a_cycle_also_decides_on_sessions_and_keys(audit: AuditRun):
    """The versions run against real time, but nobody can tell."""
    report = audit(one_session("", {"b1": 9}, 2000))
    notes = {p.name: p.note for p in report.properties if p.verdict == "valid"}
    assert "without a cycle" in notes["strict serializability"]
    assert "follow one another in time, and there is no cycle" in notes["monotonic writes"]
    assert notes["linearizability per key"] == "there is no cycle of dependencies and real time"
    assert report.exit_code == 0 and report.strongest == ["strong-serializable"]


def test_a_session_counts_where_it_runs_within_one_microsecond(audit: AuditRun):
    """Real time does not order the two: only the session accuses the read of missing the write, and that is enough for
    the models with real time, which are of sessions, too."""
    report = audit(one_session("a1", {}, 1100), (*SERIALIZABILITY, "sessions"))
    assert "at one time" in prop(report, "strict").note
    assert prop(report, "strict").examples == [] and prop(report, "serializability").verdict == "valid"
    violated = {p.name for p in report.properties if p.verdict == "violated"}
    assert violated == {"read your writes", prop(report, "strict").name}
    verdicts = {m.name: m.verdict for m in report.models}
    assert verdicts["serializable"] == "holds"
    assert verdicts["strong-session-serializable"] == verdicts["strong-serializable"] == "violated"


def test_reads_at_positions_are_as_late_in_the_order_as_real_time_asks(audit: AuditRun):
    """The one of the quiet shard was invoked after a later version of the other one was acknowledged."""
    report = audit(read_at_positions())
    assert prop(report, "strict").note == "the order of versions never runs against real time"
    assert prop(report, "leader reads").rows == 5
    assert report.exit_code == 0 and report.strongest == ["strong-serializable"]


def test_a_read_at_an_old_position_is_a_cycle_with_real_time(audit: AuditRun):
    """It saw what was overwritten, although the client of that had its answer."""
    run = read_at_positions()
    run.read("a1", 0, 2, (1050, 1060), 98, version=run.version(0))
    report = audit(run)
    assert prop(report, "serializability").verdict == "valid"
    assert [edge.kind for edge in prop(report, "strict").examples[0].edges] in (["rw", "rt"], ["rt", "rw"])
    assert names(report) >= {"stale-position", "key-went-back", "G-single-realtime"}


# -- damaged files ----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_missing_replica_leaves_open_what_only_it_could_tell(audit: AuditRun, tmp_path: Path):
    run = bank_run()
    exchange(run, 4, 3, 4)
    directory = run.write(tmp_path / "run")
    for file in (directory / "replicas" / "2" / "journal").iterdir():
        file.unlink()
    report = audit(directory, DELIVERY)
    assert any("replica 2 of shard 0 is missing" in problem for problem in report.problems)
    assert prop(report, "integrity").verdict == "not determined"
    assert "position-disagreement" in names(report) and report.exit_code == 1
