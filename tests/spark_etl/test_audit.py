"""Whole audits of small runs: correct ones are believed, and every kind of damage is called by its name."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvstore.core.audit import EXPIRED, Outcome, Read
from multicast.records import Completed, Delivered, Started, Stopped, Submitted
from multicast.types import Timestamp
from spark_etl.audit import PARTS, Audit
from spark_etl.report import Property, Report, to_json
from tests.spark_etl.runs import MEMBERS, SEGMENT, Run, bank_run, gts, message_id

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


def test_a_correct_run_is_valid(audit: AuditRun):
    report = audit(bank_run())
    assert {p.name for p in report.properties if p.verdict != "valid"} == {"genuineness", "optimistic deliveries"}
    assert {m.verdict for m in report.models} == {"holds"} and report.strongest == ["strong-serializable"]
    assert (report.verdict, report.exit_code, report.problems) == ("valid", 0, [])
    assert b'"verdict": "valid"' in to_json(report)


def test_crashes_and_a_lagging_replica_are_not_accused(audit: AuditRun):
    """Replica 1 is killed in the middle, restarts and catches up; replica 4 is killed and stays away; replica 0, which
    took the messages in, was restarted after a crash that cost it the record of one of them."""
    run = bank_run()
    again = Started(200, 1, 0, MEMBERS, "white_box", "fsync", 2)
    run.records[1].insert(run.find(1, Delivered, 5), again)
    del run.records[4][run.find(4, Delivered, 6) :]
    del run.records[0][next(i for i, r in enumerate(run.records[0]) if type(r) is Submitted)]
    run.records[0].insert(5, Started(300, 0, 0, MEMBERS, "white_box", "fsync", 2))
    run.events.clear()
    report = audit(run, DELIVERY + TRANSACTIONS)
    assert report.exit_code == 0
    assert prop(report, "agreement").verdict == "pending"
    assert any("replica 4 of shard 1 ends at position 5 of 9" in note for note in report.notes)
    assert any("lost in a crash for 1 message" in note for note in report.notes)


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


# -- damaged deliveries -----------------------------------------------------------------------------------------------


def exchange(run: Run, replica: int, first: int, second: int) -> None:
    """Swap two deliveries of a replica, with their timestamps and outcomes; the positions stay where they were."""
    for kind in (Delivered, Completed):
        a, b = run.find(replica, kind, first), run.find(replica, kind, second)
        one, other = run.records[replica][a], run.records[replica][b]
        if kind is Delivered:
            run.records[replica][a] = Delivered(first, *delivered(other))
            run.records[replica][b] = Delivered(second, *delivered(one))
        else:
            run.records[replica][a] = Completed(first, other.record, 0)
            run.records[replica][b] = Completed(second, one.record, 0)


def delivered(record: Delivered) -> tuple[Any, ...]:
    return record.timestamp, record.stage, record.expired, record.message, record.at


def test_two_deliveries_swapped_at_one_replica(audit: AuditRun):
    run = bank_run()
    exchange(run, 2, 4, 5)
    report = audit(run, DELIVERY)
    assert {"position-disagreement", "timestamp-not-rising"} == names(report)
    first = next(v for v in prop(report, "agreement").examples if v.name == "position-disagreement")
    assert "position 4 of shard 0" in first.sentence and 2 in first.replicas and len(first.transactions) == 2
    assert report.exit_code == 1


def test_two_records_swapped_in_the_file(audit: AuditRun):
    run = bank_run()
    a, b = run.find(3, Delivered, 2), run.find(3, Delivered, 3)
    run.records[3][a], run.records[3][b] = run.records[3][b], run.records[3][a]
    report = audit(run, DELIVERY)
    assert names(report) == {"delivered-out-of-order"}
    assert prop(report, "prefix order").verdict == "violated"


def test_a_dropped_delivery(audit: AuditRun):
    run = bank_run()
    del run.records[1][run.find(1, Delivered, 4)]
    report = audit(run, DELIVERY + TRANSACTIONS)
    assert names(report) == {"lost-delivery", "outcome-without-delivery"}
    assert "replica 1 of shard 0 has no delivery at position 4" in prop(report, "agreement").examples[0].sentence


def test_a_dropped_delivery_is_named_though_the_journal_is_also_too_short(audit: AuditRun, tmp_path: Path):
    """What the replica vouched for (its mark) still has the length of the whole journal."""
    whole = bank_run().write(tmp_path / "whole")
    run = bank_run()
    del run.records[1][run.find(1, Delivered, 4)]
    damaged = run.write(tmp_path / "damaged")
    mark = Path("replicas/1/journal/mark")
    (damaged / mark).write_bytes((whole / mark).read_bytes())
    report = audit(damaged, DELIVERY)
    assert names(report) == {"lost-delivery"} and report.exit_code == 1
    assert "before what this replica vouched for" in report.problems[0]


def test_a_dropped_last_delivery_contradicts_the_clean_stop(audit: AuditRun):
    run = bank_run()
    last = run.positions[0]
    for kind in (Delivered, Completed):
        del run.records[1][run.find(1, kind, last)]
    report = audit(run, DELIVERY)
    assert names(report) == {"lost-delivery"}
    assert "clean stop" in prop(report, "agreement").examples[0].sentence


def test_a_delivery_repeated_at_the_next_position(audit: AuditRun):
    run = bank_run()
    position = run.positions[1] + 1
    for replica in MEMBERS[1]:
        again = run.records[replica][run.find(replica, Delivered, 2)]
        outcome = run.records[replica][run.find(replica, Completed, 2)].record
        run.records[replica] += [Delivered(position, *delivered(again)), Completed(position, outcome, 0)]
    report = audit(run, DELIVERY + TRANSACTIONS)
    assert {"duplicate-delivery", "effect-twice", "timestamp-not-rising"} <= names(report)
    assert prop(report, "integrity").violations == 3


def test_a_record_written_twice(audit: AuditRun):
    run = bank_run()
    at = run.find(5, Delivered, 3)
    run.records[5].insert(at, run.records[5][at])
    assert {"position-repeated", "duplicate-delivery"} <= names(audit(run, DELIVERY))


def test_another_order_at_a_whole_shard(audit: AuditRun):
    """Every replica of shard 1 has the two messages the other way round, so inside the shard all agree."""
    run = Run()
    run.transaction(writes={"a1": 1, "b1": 1})
    run.transaction(writes={"a1": 2, "b1": 2})
    run.stop()
    for replica in MEMBERS[1]:
        exchange(run, replica, 1, 2)
    report = audit(run, DELIVERY)
    assert names(report) == {"timestamp-not-rising", "order-cycle"}
    cycle = next(v for v in prop(report, "one order").examples if v.name == "order-cycle")
    assert len(cycle.steps) == 2
    assert prop(report, "agreement").verdict == "valid"


def test_another_timestamp_at_another_shard(audit: AuditRun):
    run = Run()
    run.transaction(writes={"a1": 1, "b1": 1})
    run.transaction(writes={"b1": 2})
    for replica in MEMBERS[1]:
        record = run.records[replica][run.find(replica, Delivered, 1)]
        record.timestamp = Timestamp(1001, 1)
    report = audit(run, DELIVERY + TRANSACTIONS)
    assert {"timestamp-disagreement", "outcome-of-another-delivery"} == names(report)


def test_a_shard_that_never_delivered_a_message_but_went_on(audit: AuditRun):
    run = Run()
    run.transaction(writes={"a1": 1, "b1": 1})
    run.transaction(writes={"b1": 2})
    for replica in MEMBERS[1]:
        run.records[replica] = run.records[replica][:1]
        run.records[replica] += [Delivered(1, gts(1), 2, False, message, 0) for message in [sent(run, 1)]]
    report = audit(run, DELIVERY)
    assert names(report) == {"missed-delivery"}


def sent(run: Run, number: int) -> Any:
    from multicast.types import AppMessage

    return AppMessage(message_id(number), (1,), b"body", 3)


def test_a_message_that_nobody_sent(audit: AuditRun):
    run = bank_run()
    for records in run.records.values():
        records[:] = [r for r in records if not (type(r) is Submitted and r.id == message_id(2))]
    run.events = [event for event in run.events if event["process"] != 2]
    report = audit(run, DELIVERY)
    assert names(report) == {"never-submitted"}
    assert prop(report, "validity").examples[0].transactions[0].startswith("018bcfe5")


def test_a_delivery_at_a_shard_that_is_no_destination(audit: AuditRun):
    run = Run()
    run.transaction(writes={"b1": 1})
    for replica in MEMBERS[1]:
        record = run.records[replica][run.find(replica, Delivered, 1)]
        record.message.destinations = (0,)
    assert "wrong-destination" in names(audit(run, DELIVERY))


def test_an_expired_delivery_with_effect(audit: AuditRun):
    run = bank_run()
    for replica in MEMBERS[0]:
        run.records[replica][run.find(replica, Delivered, 2)].expired = True
    assert "expired-with-effect" in names(audit(run, DELIVERY))


# -- damaged outcomes -------------------------------------------------------------------------------------------------


def set_read(version: Timestamp) -> Callable[[Outcome], None]:
    def change(outcome: Outcome) -> None:
        outcome.reads = (Read(outcome.reads[0].key, version), *outcome.reads[1:])

    return change


@pytest.mark.parametrize("whole", [False, True])
def test_read_versions_changed(audit: AuditRun, whole: bool):
    """One old, one not yet written, one that nobody ever wrote. At one replica, the others know better."""
    run = bank_run()
    for replica in (0, 1, 2) if whole else (1,):
        run.change(replica, 10, set_read(gts(0)))
        run.change(replica, 7, set_read(gts(8)))
        run.change(replica, 4, set_read(Timestamp(77, 7)))
    report = audit(run, TRANSACTIONS)
    reads = prop(report, "reads")
    assert {v.name for v in reads.examples} == ({"stale-read", "future-read", "unwritten-version"} if whole else set())
    assert all(v.keys and v.transactions and v.replicas for v in reads.examples)
    assert {v.name for v in prop(report, "results").examples} == (set() if whole else {"outcome-disagreement"})


def test_outcomes_lost_changed_and_of_another_branch(audit: AuditRun):
    run = bank_run()
    del run.records[0][run.find(0, Completed, 3)]
    run.change(1, 6, lambda outcome: setattr(outcome, "state_digest", b"another"))
    for replica in MEMBERS[1]:
        run.change(replica, 2, lambda outcome: setattr(outcome, "succeeded", False))
        run.change(replica, 4, lambda outcome: setattr(outcome, "status", EXPIRED))
    report = audit(run, TRANSACTIONS)
    results = prop(report, "results")
    assert {v.name for v in results.examples} == {
        "outcome-missing",
        "state-digest-disagreement",
        "branch-disagreement",
    }
    assert sum(v.name == "branch-disagreement" for v in results.examples) == 2


# -- clients ----------------------------------------------------------------------------------------------------------


def test_what_clients_were_told_is_held_against_the_journals(audit: AuditRun):
    run = bank_run()
    ends = [event for event in run.events if event["type"] == "ok"]
    ends[1]["version"] = "1-1"
    ends[3]["reads"]["a1"] = "1-1"
    ends[4]["succeeded"] = False
    ends[5]["type"] = "fail"
    for event in run.events[-2:]:
        event["id"] = "018bcfe5-6800-7000-8000-00000000ffff"
    run.events[-1]["version"] = str(gts(3))
    report = audit(run, ("clients",))
    assert names(report) == {
        "version-mismatch",
        "read-mismatch",
        "branch-mismatch",
        "refused-but-present",
        "acknowledged-but-absent",
    }


def test_an_acknowledgement_after_a_crash_that_nothing_has_passed_is_not_accused(audit: AuditRun):
    """The last transaction is acknowledged, but its replicas are killed before it reached a journal's deliveries."""
    run = Run()
    run.transaction(writes={"a1": 1})
    last = run.transaction(writes={"a1": 2})
    for replica in MEMBERS[0]:
        del run.records[replica][run.find(replica, Delivered, 2) :]
    assert audit(run, ("clients",)).exit_code == 0
    run.transaction(writes={"a1": 3, "b1": 3})
    for replica in MEMBERS[0]:
        run.records[replica][run.find(replica, Delivered, 3)].position = 2
        run.records[replica][run.find(replica, Completed, 3)].position = 2
    report = audit_again(audit, run)
    assert names(report) == {"acknowledged-but-absent"} and last == 1


def audit_again(audit: AuditRun, run: Run) -> Report:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as directory:
        return audit(run.write(Path(directory) / "run"), ("clients",))


def test_money_that_appears(audit: AuditRun):
    run = bank_run()
    end = next(e for e in reversed(run.events) if e["f"] == "read_all" and e["type"] == "ok")
    end["value"]["a1"] += 5
    source = run.state["a2"][0]
    run.transaction("a2", {"a2": source + 5}, f="transfer")
    report = audit(run, ("bank",))
    assert names(report) == {"total-changed", "money-made"}


# -- serializability --------------------------------------------------------------------------------------------------


def two_groups() -> Run:
    """t0 writes both shards; a client sees it on shard 0, and only then writes shard 1, where it is ordered before."""
    run = Run()
    run.transaction(writes={"b1": 9}, f="t2", invoke=2000, complete=2100)
    run.transaction(writes={"a1": 1, "b1": 1}, f="t3", invoke=1000, complete=3000)
    run.transaction("a1", f="t1", invoke=1100, complete=1200)
    run.stop()
    return run


def three_groups() -> Run:
    """b < z1 < z2 < a in the order, and a ended before b was invoked: a chain over three transactions' keys."""
    run = Run()
    run.transaction(writes={"b1": 1}, f="b", invoke=5000, complete=5100)
    run.transaction(writes={"b1": 2, "b2": 2}, f="z1", invoke=1000, complete=9000)
    run.transaction(writes={"b2": 3, "a1": 3}, f="z2", invoke=1000, complete=9000)
    run.transaction("a1", f="a", invoke=2000, complete=2100)
    run.stop()
    return run


@pytest.mark.parametrize(("make", "length"), [(two_groups, 3), (three_groups, 4)])
def test_an_order_against_real_time_is_explained_by_a_cycle(audit: AuditRun, make: Callable[[], Run], length: int):
    report = audit(make(), SERIALIZABILITY)
    assert prop(report, "serializability").verdict == "valid"
    strict = prop(report, "strict")
    assert strict.verdict == "violated"
    cycle = strict.examples[0]
    assert cycle.name.endswith("-realtime") and len(cycle.steps) == length
    assert sum(step.startswith("rt:") for step in cycle.steps) == 1
    assert report.exit_code == 1


def test_an_order_against_real_time_without_a_conflict_is_no_violation(audit: AuditRun):
    """The versions run against real time, but nobody can tell: there is no cycle."""
    run = Run()
    run.transaction(writes={"b1": 9}, invoke=2000, complete=2100)
    run.transaction(writes={"a1": 1}, invoke=1000, complete=1100)
    run.stop()
    strict = prop(audit(run, SERIALIZABILITY), "strict")
    assert strict.verdict == "valid" and "without a cycle" in strict.note


def one_session(reads: str, writes: dict[str, int], invoke: int) -> Run:
    """A process writes a1 from 1000 to 1100, and what it does then is earlier in the order of versions."""
    run = Run()
    run.transaction(reads, writes, invoke=invoke, complete=2100)
    run.transaction(writes={"a1": 1}, invoke=1000, complete=1100)
    run.stop()
    run.events = [event | {"process": 0} for event in run.events[2:] + run.events[:2]]
    return run


def test_a_search_without_a_cycle_also_decides_on_sessions_and_keys(audit: AuditRun):
    report = audit(one_session("", {"b1": 9}, 2000))
    notes = {p.name: p.note for p in report.properties if p.verdict == "valid"}
    assert "follow one another in time, and there is no cycle" in notes["monotonic writes"]
    assert notes["linearizability per key"] == "there is no cycle of dependencies and real time"
    assert report.exit_code == 0 and report.strongest == ["strong-serializable"]


def test_it_does_not_where_a_session_runs_within_one_microsecond(audit: AuditRun):
    """Real time does not order the two, so that only the session accuses the read of missing the write."""
    report = audit(one_session("a1", {}, 1100))
    assert prop(report, "strict").verdict == "valid"
    assert {p.name for p in report.properties if p.verdict == "violated"} == {"read your writes"}
    assert {m.verdict for m in report.models if m.name.startswith("strong-session-")} == {"violated", "holds"}


def test_write_skew_is_not_serializable(audit: AuditRun):
    """Each of two transactions read the key that the other one wrote, before it did."""
    run = Run()
    run.transaction(writes={"a1": 0, "a2": 0})
    run.transaction("a1", {"a2": 1})
    run.transaction("a2", {"a1": 1})
    run.stop()
    for replica in MEMBERS[0]:
        run.change(replica, 3, set_read(gts(0)))
    report = audit(run, SERIALIZABILITY)
    assert prop(report, "reads").examples[0].name == "stale-read"
    cycle = prop(report, "serializability").examples[0]
    assert cycle.name == "G2-item" and len(cycle.steps) == 2 and cycle.keys == ["a1", "a2"]
    assert prop(report, "strict").verdict == "violated"


def test_a_stale_read_alone_may_still_be_serializable(audit: AuditRun):
    run = Run()
    run.transaction(writes={"a1": 0})
    run.transaction(writes={"a1": 1})
    run.transaction("a1")
    run.stop()
    for replica in MEMBERS[0]:
        run.change(replica, 3, set_read(gts(0)))
    report = audit(run, SERIALIZABILITY)
    assert prop(report, "serializability").verdict == "valid"
    assert prop(report, "strict").examples[0].name == "G-single-realtime"


# -- damaged files ----------------------------------------------------------------------------------------------------


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


def test_a_flipped_byte_is_no_violation_but_leaves_the_verdict_open(audit: AuditRun, tmp_path: Path):
    directory = bank_run().write(tmp_path / "run")
    path = directory / "replicas" / "0" / "journal" / SEGMENT
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    report = audit(directory)
    assert names(report) == set()
    assert (report.verdict, report.exit_code) == ("not determined", 2)
    assert f"replicas/0/journal/{SEGMENT}, byte" in report.problems[0]
    assert prop(report, "serializability").verdict == "valid"  # the other replicas of the shard have it all
