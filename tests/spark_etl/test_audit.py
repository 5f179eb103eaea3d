"""Audits of small runs: nobody is accused who is right, and every kind of damage is called by its name."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvstore.core.audit import APPLIED, EXPIRED, MISMATCH, REPEATED, Outcome, Read, decode_outcomes
from multicast.records import Completed, Delivered, Started, Stopped, Submitted
from multicast.types import FINAL, AppMessage, Timestamp
from spark_etl.audit.runner import PARTS, Audit
from spark_etl.report import Property, Report, Violation
from tests.spark_etl import folded
from tests.spark_etl.forged import Written
from tests.spark_etl.promised import WRONG
from tests.spark_etl.runs import MEMBERS, Run, bank_run, gts, message_id

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


# -- damage, of which one audit finds all ------------------------------------------------------------------------------


class Damage(NamedTuple):
    """A damaged run, and the names of what is found in it."""

    run: Run
    found: str


DAMAGES: dict[str, Damage] = {name: Damage(make(), found) for name, (make, found) in WRONG.items()}

BUNDLES, SINGLES = False, True
"""Journals of today, and such whose messages are transactions themselves."""


def damaged(
    found: str, formats: Sequence[bool] = (BUNDLES, SINGLES)
) -> Callable[[Callable[[bool], Run]], Callable[[bool], Run]]:
    """The run that this function makes is to be audited, in these formats, and this is found."""

    def enrol(make: Callable[[bool], Run]) -> Callable[[bool], Run]:
        for single in formats:
            name = make.__name__.removeprefix("_") + "_in_format_1" * single
            DAMAGES[name] = Damage(make(single), found)
        return make

    return enrol


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


@damaged("")
def _none(single: bool) -> Run:
    return bank_run(single)


@damaged("outcome-disagreement position-disagreement timestamp-not-rising")
def _two_deliveries_swapped_at_one_replica(single: bool) -> Run:
    run = bank_run(single)
    exchange(run, 2, 4, 5)
    return run


@damaged("delivered-out-of-order")
def _two_records_swapped_in_the_file(single: bool) -> Run:
    run = bank_run(single)
    a, b = run.find(3, Delivered, 2), run.find(3, Delivered, 3)
    run.records[3][a], run.records[3][b] = run.records[3][b], run.records[3][a]
    return run


@damaged("lost-delivery outcome-without-delivery")
def _a_dropped_delivery(single: bool) -> Run:
    run = bank_run(single)
    del run.records[1][run.find(1, Delivered, 4)]
    return run


@damaged("lost-delivery")
def _a_dropped_last_delivery_against_the_clean_stop(single: bool) -> Run:
    run = bank_run(single)
    last = run.positions[0]
    for kind in (Delivered, Completed):
        del run.records[1][run.find(1, kind, last)]
    return run


@damaged("duplicate-delivery effect-twice order-cycle timestamp-not-rising")
def _a_delivery_repeated_at_the_next_position(single: bool) -> Run:
    run = bank_run(single)
    position = run.positions[1] + 1
    for replica in MEMBERS[1]:
        again = run.records[replica][run.find(replica, Delivered, 2)]
        outcome = run.records[replica][run.find(replica, Completed, 2)].record
        run.records[replica] += [Delivered(position, *delivered(again)), Completed(position, outcome, 0)]
    return run


@damaged("duplicate-delivery position-repeated")
def _a_record_written_twice(single: bool) -> Run:
    run = bank_run(single)
    at = run.find(5, Delivered, 3)
    run.records[5].insert(at, run.records[5][at])
    return run


@damaged("order-cycle timestamp-not-rising")
def _another_order_at_a_whole_shard(single: bool) -> Run:
    """Every replica of shard 1 has the two messages the other way round, so inside the shard all agree."""
    run = Run(single)
    run.transaction(writes={"a1": 1, "b1": 1})
    run.transaction(writes={"a1": 2, "b1": 2})
    run.stop()
    for replica in MEMBERS[1]:
        exchange(run, replica, 1, 2)
    return run


@damaged("timestamp-disagreement outcome-of-another-delivery")
def _another_timestamp_at_another_shard(single: bool) -> Run:
    run = Run(single)
    run.transaction(writes={"a1": 1, "b1": 1})
    run.transaction(writes={"b1": 2})
    for replica in MEMBERS[1]:
        record = run.records[replica][run.find(replica, Delivered, 1)]
        record.timestamp = Timestamp(1001, 1)
    return run


@damaged("acknowledged-but-absent missed-delivery")
def _a_shard_that_never_delivered_a_message_but_went_on(single: bool) -> Run:
    run = Run(single)
    run.transaction(writes={"a1": 1, "b1": 1})
    run.transaction(writes={"b1": 2})
    for replica in MEMBERS[1]:
        run.records[replica] = run.records[replica][:1]
        message = AppMessage(message_id(1), (1,), b"body", 3)
        run.records[replica].append(Delivered(1, gts(1), FINAL, False, message, 0))
    return run


@damaged("never-submitted")
def _a_message_that_nobody_sent(single: bool) -> Run:
    run = bank_run(single)
    for records in run.records.values():
        records[:] = [r for r in records if not (type(r) is Submitted and r.id == message_id(2))]
    run.events = [event for event in run.events if event["process"] != 2]
    return run


@damaged("multicast-elsewhere wrong-destination")
def _a_delivery_at_a_shard_that_is_no_destination(single: bool) -> Run:
    run = Run(single)
    run.transaction(writes={"b1": 1})
    for replica in MEMBERS[1]:
        record = run.records[replica][run.find(replica, Delivered, 1)]
        record.message.destinations = (0,)
    return run


@damaged("acknowledged-but-absent expired-with-effect")
def _an_expired_delivery_with_effect(single: bool) -> Run:
    run = bank_run(single)
    for replica in MEMBERS[0]:
        run.records[replica][run.find(replica, Delivered, 2)].expired = True
    return run


def set_read(version: Timestamp) -> Callable[[Outcome], None]:
    def change(outcome: Outcome) -> None:
        outcome.reads = (Read(outcome.reads[0].key, version), *outcome.reads[1:])

    return change


def reads_changed(single: bool, replicas: Sequence[int]) -> Run:
    """One old, one not yet written, one that nobody ever wrote."""
    run = bank_run(single)
    for replica in replicas:
        run.change(replica, 10, set_read(run.version(0)))
        run.change(replica, 7, set_read(run.version(8)))
        run.change(replica, 4, set_read(Timestamp(77, 7)))
    return run


@damaged("stale-read future-read unwritten-version read-mismatch value-mismatch")
def _read_versions_changed(single: bool) -> Run:
    return reads_changed(single, MEMBERS[0])


@damaged("outcome-disagreement")
def _read_versions_changed_at_one_replica(single: bool) -> Run:
    """The others know better."""
    return reads_changed(single, [1])


@damaged(
    "outcome-missing state-digest-disagreement branch-disagreement branch-mismatch unwritten-version fate-disagreement"
    " acknowledged-but-absent"
)
def _outcomes_lost_changed_and_of_another_branch(single: bool) -> Run:
    run = bank_run(single)
    del run.records[0][run.find(0, Completed, 3)]
    run.change_account(1, 6, lambda account: setattr(account, "state_digest", b"another"))
    for replica in MEMBERS[1]:
        run.change(replica, 2, lambda outcome: setattr(outcome, "succeeded", False))
        run.change(replica, 4, lambda outcome: setattr(outcome, "status", EXPIRED))
    return run


@damaged("version-mismatch read-mismatch branch-mismatch refused-but-present acknowledged-but-absent")
def _what_clients_were_told(single: bool) -> Run:
    run = bank_run(single)
    ends = [event for event in run.events if event["type"] == "ok"]
    ends[1]["version"] = "1-1"
    ends[3]["reads"]["a1"] = "1-1"
    ends[4]["succeeded"] = False
    ends[5]["type"] = "fail"
    for event in run.events[-2:]:
        event["id"] = "018bcfe5-6800-7000-8000-00000000ffff"
    run.events[-1]["version"] = str(run.version(3))
    return run


def acknowledged_before_a_crash(single: bool) -> Run:
    """The last transaction is acknowledged, but its replicas are killed before it reached a journal's deliveries."""
    run = Run(single)
    run.transaction(writes={"a1": 1})
    run.transaction(writes={"a1": 2})
    for replica in MEMBERS[0]:
        del run.records[replica][run.find(replica, Delivered, 2) :]
    return run


@damaged("")
def _an_acknowledgement_after_a_crash_that_nothing_has_passed(single: bool) -> Run:
    return acknowledged_before_a_crash(single)


@damaged("acknowledged-but-absent")
def _an_acknowledgement_after_a_crash_that_another_has_passed(single: bool) -> Run:
    run = acknowledged_before_a_crash(single)
    run.transaction(writes={"a1": 3, "b1": 3})
    for replica in MEMBERS[0]:
        run.records[replica][run.find(replica, Delivered, 3)].position = 2
        run.records[replica][run.find(replica, Completed, 3)].position = 2
    return run


def bundled() -> Run:
    """Three messages, of two, one and three transactions; the second one's was delivered before, and once more."""
    run = Run()
    run.transaction(writes={"a1": 1, "b1": 1})
    run.transaction("a1 b1", {"a1": 2, "b1": 2}, join=True)
    run.transaction("a1", {"a2": 1})
    run.transaction("a2", {"a2": 2}, join=True)
    run.transaction("a1 a2", join=True)
    run.again(2, REPEATED, [0])
    return run


@damaged("", [BUNDLES])
def _bundles_and_a_repetition(single: bool) -> Run:
    run = bundled()
    run.again(1, REPEATED, [0, 1])
    run.again(1, MISMATCH, [0, 1])
    run.stop()
    return run


@damaged("bundle-disagreement", [BUNDLES])
def _transactions_of_a_message_in_another_order_at_a_shard(single: bool) -> Run:
    run = Run()
    run.transaction(writes={"a1": 1, "b1": 1})
    run.transaction(writes={"a2": 1, "b2": 1}, join=True)
    for replica in MEMBERS[1]:
        run.change_account(replica, 1, lambda account: account.outcomes.reverse())
    run.events.clear()
    return run


@damaged("version-mismatch", [BUNDLES])
def _a_client_told_the_version_of_another_place_in_the_bundle(single: bool) -> Run:
    run = bundled()
    next(e for e in run.events if e["type"] == "ok" and e["process"] == 3)["version"] = str(run.version(2, 2))
    return run


@damaged("effect-twice", [BUNDLES])
def _a_repetition_applied(single: bool) -> Run:
    run = bundled()
    first = decode_outcomes(run.records[0][run.find(0, Completed, 2)].record).outcomes[0]

    def apply(outcome: Outcome) -> None:
        outcome.status, outcome.writes = APPLIED, first.writes

    for replica in MEMBERS[0]:
        run.change(replica, 3, apply)
    return run


@damaged("taken-twice", [BUNDLES])
def _a_repetition_without_effect_taken_as_new(single: bool) -> Run:
    run = bundled()
    run.again(4, APPLIED, [0])
    return run


@damaged("repeated-without-first", [BUNDLES])
def _a_repetition_of_nothing(single: bool) -> Run:
    run = bundled()
    run.again(77, REPEATED, [0])
    return run


@damaged("repeated-without-first", [BUNDLES])
def _a_repetition_before_the_first(single: bool) -> Run:
    run = Run()
    run.again(1, REPEATED, [0])
    run.transaction(writes={"a1": 1})
    return run


@damaged("mismatch-without-first", [BUNDLES])
def _a_used_id_that_nobody_used(single: bool) -> Run:
    run = bundled()
    run.again(77, MISMATCH, [0])
    return run


@damaged("fate-disagreement repeated-without-first acknowledged-but-absent", [BUNDLES])
def _a_repetition_at_one_shard_and_new_at_another(single: bool) -> Run:
    run = Run()
    run.transaction(writes={"a1": 1})
    run.transaction(writes={"a1": 2, "b1": 2})
    for replica in MEMBERS[1]:
        run.change(replica, 1, lambda o: (setattr(o, "status", REPEATED), setattr(o, "writes", ())))
    return run


@damaged("acknowledged-but-absent", [BUNDLES])
def _a_client_told_of_a_message_that_does_not_carry_its_transaction(single: bool) -> Run:
    """Its message is there, with an account of others."""
    run = bundled()
    for replica in MEMBERS[0]:
        run.change_account(replica, 2, lambda account: account.outcomes.pop())
    return run


@damaged("", [BUNDLES])
def _answers_of_messages_that_no_journal_accounts_for(single: bool) -> Run:
    """Every replica of the shard was killed before the account was written, and came back without it."""
    run = bundled()
    run.transaction(writes={"a1": 7})
    run.transaction("a1", join=True)
    for replica in MEMBERS[0]:
        del run.records[replica][run.find(replica, Completed, 4)]
        run.records[replica] += [Started(300 + replica, replica, 0, MEMBERS, "white_box", "fsync", 2), Stopped(4, 3, 9)]
    return run


def read_at_positions() -> Run:
    """Writes of a1 at positions 1 and 3 and of b1 at 1 of the other shard; the readers saw what there was."""
    run = Run()
    run.transaction(writes={"a1": 1})
    run.read("a1", 0, 1, (1005, 1007))
    run.transaction(writes={"a2": 1})
    run.read("a1", 0, 2, (1015, 1017))
    run.transaction(writes={"b1": 1})
    run.read("a1", 0, 2, (1025, 1027))
    run.transaction(writes={"a1": 2})
    run.read("b1", 1, 1, (1035, 1036))
    run.read("a1", 0, 3, (1037, 1039))
    run.stop()
    return run


@damaged("", [BUNDLES])
def _reads_at_positions(single: bool) -> Run:
    run = read_at_positions()
    run.read("a9", 0, 3, (1050, 1060), 98)
    return run


@damaged("stale-position position-went-back", [BUNDLES])
def _a_read_at_an_old_position(single: bool) -> Run:
    """What it saw was never overwritten."""
    run = read_at_positions()
    run.read("a9", 0, 2, (1050, 1060))
    return run


@damaged("stale-position future-read", [BUNDLES])
def _a_read_at_an_old_position_of_what_was_written_behind_it(single: bool) -> Run:
    run = read_at_positions()
    run.read("a2", 0, 1, (1050, 1060), 98)
    return run


@damaged("stale-read", [BUNDLES])
def _a_read_of_another_value_than_its_positions(single: bool) -> Run:
    run = read_at_positions()
    run.events[-1]["reads"]["a1"] = str(run.version(0))
    return run


@damaged("unwritten-version", [BUNDLES])
def _a_read_of_what_nobody_wrote_at_a_position(single: bool) -> Run:
    run = read_at_positions()
    run.read("a1", 0, 3, (1050, 1060), version=Timestamp(5, 0))
    return run


@damaged("unknown-position", [BUNDLES])
def _a_read_at_a_position_that_nobody_has(single: bool) -> Run:
    run = read_at_positions()
    run.read("a1", 0, 4, (1050, 1060))
    return run


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
def found(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    path = tmp_path_factory.mktemp("damaged")
    runs = [damage.run.write(path / str(case)) for case, damage in enumerate(DAMAGES.values())]
    with pytest.MonkeyPatch.context() as patch:
        folded.unlimited(patch)
        report = Written(spark, runs, path / "out", DELIVERY + TRANSACTIONS + ("clients",)).check_all()
    per_case = {case: Found({}, case) for case in range(len(runs))}
    for prop in report.properties:
        for violation in prop.examples:
            cases = {folded.case_of_text(one) for one in violation.transactions}
            (case,) = cases | {replica // folded.REPLICAS for replica in violation.replicas}
            per_case[case].violations.setdefault(prop.name, []).append(violation)
    return dict(zip(DAMAGES, per_case.values(), strict=True))


@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_is_called_by_its_name_and_nobody_else_is_accused(found: dict[str, Found], name: str):
    assert found[name].names() == set(DAMAGES[name].found.split())


def test_what_is_found_says_where_and_what(found: dict[str, Found]):
    swapped = found["two_deliveries_swapped_at_one_replica"]
    first = swapped.one("position-disagreement")
    assert f"position 4 of shard {swapped.shard(0)}" in first.sentence
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


# -- what needs an audit of its own ------------------------------------------------------------------------------------


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


def test_an_order_against_real_time_is_explained_by_a_cycle(audit: AuditRun):
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


def test_it_does_not_where_a_session_runs_within_one_microsecond(audit: AuditRun):
    """Real time does not order the two, so that only the session accuses the read of missing the write."""
    report = audit(one_session("a1", {}, 1100))
    assert prop(report, "strict").verdict == "valid"
    assert {p.name for p in report.properties if p.verdict == "violated"} == {"read your writes"}
    assert {m.verdict for m in report.models if m.name.startswith("strong-session-")} == {"violated", "holds"}


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
