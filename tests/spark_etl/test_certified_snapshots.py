"""What a replica lacks because it installed a snapshot is proved all the same; what it lacks without one is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from multicast.records import Completed, Delivered, Installed
from spark_etl.certify import proof
from spark_etl.checks import transactions
from tests.spark_etl import certified
from tests.spark_etl.runs import Run, bank_run, gts

FROM, TO = 3, 6
"""The positions that a replica lacks."""


def lacking(run: Run, replica: int, *, installed: int, behind: bool = False, digest: bytes = b"digest 6") -> Run:
    """The replica has not FROM to TO, and a snapshot of this position, in front of what follows or behind it."""
    records = [
        r for r in run.records[replica] if not (isinstance(r, Delivered | Completed) and FROM <= r.position <= TO)
    ]
    at = next(i for i, r in enumerate(records) if isinstance(r, Delivered) and r.position > TO) + (2 if behind else 0)
    if installed:
        records.insert(at, Installed(installed, gts(0), digest, 0, 1))
    run.records[replica] = records
    return run


def why(run: Run, path: Path) -> str:
    return certified.of_directory(run.write(path / "run"), path / "out").why.get("all", "")


def test_a_snapshot_stands_for_what_it_holds(tmp_path: Path) -> None:
    found = certified.of_directory(lacking(bank_run(), 2, installed=TO).write(tmp_path / "run"), tmp_path / "out")
    assert found.why == {} and {*proof.LOGS, *proof.ACCOUNTS, proof.READS, proof.CLIENTS} <= found.proved
    tops = {top.replica: (top.delivered, top.completed, top.gts, top.version) for top in found.tops}
    assert tops[2] == tops[0]


def test_who_ends_with_a_snapshot_has_come_as_far(tmp_path: Path) -> None:
    run = bank_run()
    last = run.positions[0]
    run.records[2] = [r for r in run.records[2] if not (isinstance(r, Delivered | Completed) and r.position >= FROM)]
    run.records[2].insert(-1, Installed(last, gts(0), b"digest %d" % last, 0, 1))
    found = certified.of_directory(run.write(tmp_path / "run"), tmp_path / "out")
    assert found.why == {} and {top.delivered for top in found.tops if top.shard == 0} == {last}


@pytest.mark.parametrize(("installed", "behind"), [(0, False), (TO - 1, False), (TO + 1, False), (TO, True)])
def test_what_no_snapshot_holds_is_suspect(tmp_path: Path, installed: int, behind: bool) -> None:
    run = lacking(bank_run(), 2, installed=installed, behind=behind)
    assert why(run, tmp_path) == "positions are not 1, 2, 3, ..."


def test_what_follows_on_a_snapshot_must_be_what_the_others_have(tmp_path: Path) -> None:
    run = lacking(bank_run(), 2, installed=TO)
    run.change(2, run.positions[0], lambda outcome: setattr(outcome, "succeeded", False))
    assert why(run, tmp_path) == "replicas differ in content"


def test_a_snapshot_of_what_nobody_has_is_suspect(tmp_path: Path) -> None:
    run = bank_run()
    run.records[2].append(Installed(run.positions[0] + 5, gts(0), b"", 0, 1))
    assert why(run, tmp_path) == "a snapshot of what nobody has"


def test_a_snapshot_of_another_state_is_found(tmp_path: Path) -> None:
    assert why(lacking(bank_run(), 2, installed=TO, digest=b"another"), tmp_path) == "a snapshot of another state"


def test_a_snapshot_of_another_state_is_accused(spark: Any) -> None:
    log = [(0, 0, 5, None), (0, 0, 6, b"six"), (1, 0, 6, b"six"), (3, 1, 6, b"other")]
    held = [(0, 2, 6, b"another"), (0, 1, 6, b"six"), (1, 4, 5, b"unknown")]
    found = transactions.of_another_state(
        spark.createDataFrame(log, "replica int, shard int, position bigint, state_digest binary"),
        spark.createDataFrame(held, "shard int, replica int, position bigint, digest binary"),
    ).collect()
    assert [(v.name, v.replicas, v.positions) for v in found] == [("state-digest-disagreement", [2, 0], [6])]
