"""A run whose beginning has gone for good is judged from its base on: what of it is wrong above the cut is found, and
what is missing below it is not held against anybody."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvstore.core.audit import MISMATCH, REPEATED, Read
from spark_etl.audit.case import Case
from spark_etl.audit.runner import Audit
from spark_etl.certify.proof import ACCOUNTS, LOGS, ORDER, PROMISES, READS, VALIDITY, Proof
from spark_etl.report import NOT_APPLICABLE, VALID, VIOLATED
from tests.spark_etl import certified
from tests.spark_etl.runs import MEMBERS, Run, bank_run, gts
from tests.spark_etl.test_archive import rewritten

CUT = {0: 3, 1: 7, 2: 3, 3: 3, 4: 0, 5: 3}
"""Replica -> up to which delivery its journal has let go, at most; two are further than others, and one is whole."""


OF_JOURNALS = {*LOGS, *ACCOUNTS, VALIDITY, ORDER}


def without_beginning(run: Run, path: Path) -> Path:
    """On the disk, as a cluster without an archive leaves it."""
    directory = run.write(path)
    for replica, position in CUT.items():
        rewritten(directory, replica, position)
    shutil.rmtree(directory / "archive")
    (directory / "cluster.json").write_text('{"archive": "none"}')
    return directory


def test_it_is_proved_from_the_base_on_and_the_report_says_from_where(spark: Any, tmp_path: Path) -> None:
    audit = Audit(spark, without_beginning(bank_run(), tmp_path / "run"), tmp_path / "out")
    report = audit.run()
    assert report.verdict == VALID and not report.problems
    assert {p.verdict for p in report.properties} == {VALID, NOT_APPLICABLE}
    assert audit.proof.why == {} and audit.base is not None
    assert audit.base.timestamp >= gts(6).encode() and 0 < audit.base.positions[1] < audit.base.positions[0]
    assert report.notes[0].startswith(f"shard 0 is judged from its base on, after delivery {audit.base.positions[0]} ")


def test_a_base_that_is_read_in_two_ways_is_found(tmp_path: Path) -> None:
    run = Run()
    old = run.transaction("b9", {"b9": 1})
    run.transaction("b9", {"b9": 2})
    for number in range(6):
        run.transaction("a1 b1", {"a1": number, "b1": number})
    reader = run.transaction("b9", f="get")
    run.transaction("b9", f="get")
    run.stop()
    position = run.positions[1] - 1
    for replica in MEMBERS[1]:
        run.change(replica, position, lambda o: setattr(o, "reads", (Read(b"b9", run.version(old)),)))
    run.events[2 * reader + 1]["reads"]["b9"] = str(run.version(old))
    found = certified.of_directory(without_beginning(run, tmp_path / "run"), tmp_path / "out")
    assert found.why[READS] == "a read of another version than the order says"


def test_nobody_is_accused_of_a_repetition_whose_first_time_has_gone(spark: Any, tmp_path: Path) -> None:
    run = Run()
    one, other = run.transaction(writes={"a1": 1}), run.transaction(writes={"a2": 1})
    for number in range(8):
        run.transaction("a1 b1", {"a1": number, "b1": number})
    run.again(one, REPEATED, [0])
    run.again(other, MISMATCH, [0])
    run.stop()
    directory = without_beginning(run, tmp_path / "run")
    report = Audit(spark, directory, tmp_path / "out", parts=("delivery", "transactions")).run()
    assert {p.name: [v.sentence for v in p.examples] for p in report.properties if p.verdict == VIOLATED} == {}
    assert report.notes[0].startswith("shard 0 is judged from its base on")


def read_without_journals() -> Run:
    """Reads that stand in no journal, of keys that nobody else has touched since the cut; some of them below it."""
    run = Run()
    old = run.version(run.transaction(writes={"a7": 1, "a8": 1, "b7": 1, "b8": 1}))
    run.look({"a8": old}, (1005, 1007), places={0: 1})
    run.look({"a8": old}, (1005, 1007), seen=old, consistency="snapshot")
    for number in range(8):
        run.transaction("a1 b1", {"a1": number, "b1": number})
    run.read("a7", 0, run.positions[0], (1100, 1110))
    run.look({"a8": old, "b8": old, "a9": None}, (1120, 1130), places=dict(run.positions))
    run.look({"b7": old}, (1140, 1150), seen=run.version(run.numbers - 1), consistency="snapshot")
    run.stop()
    return run


@pytest.mark.parametrize(
    "left", [OF_JOURNALS, pytest.param(set(), marks=pytest.mark.full)], ids=["of clients", "everything"]
)
def test_nobody_is_accused_who_read_what_was_written_before_and_stands_in_no_journal(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: set[str]
) -> None:
    """left: what the kernels may prove; the rest is checked."""
    directory = without_beginning(read_without_journals(), tmp_path / "run")
    found = certified.of_directory(directory, tmp_path / "out")
    assert (found.why, found.at_positions, sum(found.promises.values())) == ({}, 1, 2)
    proof = msgspec.structs.replace(found, proved=found.proved & left) if left else Proof()
    monkeypatch.setattr(Case, "_certify", lambda case: proof)
    parts = ("delivery", "transactions", "clients", "serializability", "sessions")
    report = Audit(spark, directory, tmp_path / "out", parts=parts).run()
    assert {p.verdict for p in report.properties} == {VALID, NOT_APPLICABLE}


def test_of_reads_that_stand_in_no_journal_a_base_that_is_read_in_two_ways_is_found(tmp_path: Path) -> None:
    run = read_without_journals()
    run.read("a8", 0, run.positions[0], (1160, 1170), version=run.version(1))
    found = certified.of_directory(without_beginning(run, tmp_path / "run"), tmp_path / "out")
    assert found.why[PROMISES] == "another version than stood there"


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize("lie", ["a digest", "an outcome"])
def test_what_replicas_contradict_is_found_above_the_cut_only(tmp_path: Path, above: bool, lie: str) -> None:
    run = bank_run()
    position = 2 * (run.positions[0] // 2) if above else 2
    if lie == "a digest":
        run.change_account(1, position, lambda account: setattr(account, "state_digest", b"another"))
    else:
        run.change(1, position, lambda outcome: setattr(outcome, "succeeded", False))
    found = certified.of_directory(without_beginning(run, tmp_path / "run"), tmp_path / "out")
    assert found.why == {} if not above else "replicas" in found.why["all"]


def test_where_there_should_be_an_archive_there_is_no_base(tmp_path: Path) -> None:
    directory = without_beginning(bank_run(), tmp_path / "run")
    (directory / "cluster.json").unlink()  # there should be an archive: what is missing can be put back
    assert "damaged" in certified.of_directory(directory, tmp_path / "out").why["all"]
