"""Damage done to the journals of runs that the simulator wrote: it is named, and nobody else is accused."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstore.core.audit import Read, decode_outcomes, encode_outcomes
from kvstore.simulated.runner import run_seed
from kvstore.simulated.settings import Settings
from multicast.records import HEADER_BYTES, Completed, Delivered, SegmentHeader, scan
from multicast.types import Timestamp
from spark_etl.audit.runner import Audit
from spark_etl.ingest.extraction import extract
from tests.spark_etl.damages import behind
from tests.spark_etl.forged import forge
from tests.spark_etl.runs import SEGMENT, bank_run
from tests.spark_etl.test_inputs import read


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("calm") / "run"
    run_seed(Settings(protocol="white_box", profile="calm", shards=2, replicas=3, clients=4, seconds=1.0), 1, directory)
    for path in directory.glob("replicas/*/journal/*.seg"):
        edit(path, lambda records: None)  # payloads where they are delivered
    return directory


@pytest.mark.parametrize("flips", [5, pytest.param(100, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "protocol", ["white_box", *(pytest.param(name, marks=pytest.mark.full) for name in ("quasi_genuine", "toto"))]
)
def test_a_flipped_byte_is_named_in_its_file_and_only_there(tmp_path: Path, protocol: str, flips: int):
    """In runs with crashes and lost disks, at any byte: header, frame, body, end of a batch."""
    run = tmp_path / "run"
    run_seed(Settings(protocol=protocol, seconds=1.0), 3, run)
    assert read(run).inputs.problems == []
    rng = random.Random(protocol)
    files = sorted(path for path in run.glob("replicas/*/journal/*.seg") if path.stat().st_size)
    for _ in range(flips):
        path = rng.choice(files)
        data = path.read_bytes()
        at = rng.randrange(len(data))
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
        inputs = read(run).inputs
        path.write_bytes(data)
        problem, *others = inputs.problems  # a damaged `Started` is also missed by what follows
        assert all(other.startswith(f"{path.relative_to(run)}, byte ") for other in others)
        name, _, rest = problem.partition(", byte ")
        assert name == str(path.relative_to(run)), (at, problem)
        assert int(rest.partition(":")[0]) <= at
        assert inputs.unsure == [int(path.parts[-3])]


def edit(path: Path, change: Callable[[list[Any]], None]) -> None:
    """Change a journal's records as somebody would who knows the format: all checksums are right."""
    path.write_bytes(forge(path.read_bytes(), change))


def swap_messages(records: list[Any]) -> None:
    one, other = [r for r in records if type(r) is Delivered][4:6]
    one.message, other.message = other.message, one.message


def forge_read(records: list[Any]) -> None:
    for record in (r for r in records if type(r) is Completed):
        account = decode_outcomes(record.record)
        outcome = account.outcomes[0]
        if outcome.reads and outcome.reads[0].version.time:
            forged = Read(outcome.reads[0].key, Timestamp(outcome.reads[0].version.time - 1, 3))
            outcome.reads = (forged, *outcome.reads[1:])
            record.record = encode_outcomes(account)
            return


def bytes_of_changes(before: Path, after: Path) -> set[int]:
    """Where the records begin that are not what they were."""
    pairs = zip(scan(before.read_bytes()), scan(after.read_bytes()), strict=True)
    return {after[0] for before, after in pairs if before[2] != after[2]}


@pytest.mark.full
def test_forged_and_swapped_records_are_found_and_nobody_else_is_accused(spark: Any, calm: Path, tmp_path: Path):
    """Most replicas of each shard are right: what others read of the forgeries is held against nobody."""
    run = tmp_path / "run"
    shutil.copytree(calm, run)
    edit(run / "replicas/1/journal" / SEGMENT, forge_read)
    edit(run / "replicas/5/journal" / SEGMENT, swap_messages)
    report = Audit(spark, run, tmp_path / "out", parts=("delivery", "transactions")).run()
    found = [violation for prop in report.properties for violation in prop.examples]
    assert sorted(v.name for v in found) == ["outcome-disagreement", *["position-disagreement"] * 2]
    for violation in found:
        assert violation.replicas[0] == (1 if violation.name == "outcome-disagreement" else 5), violation
    for replica in (1, 5):
        name = f"replicas/{replica}/journal/{SEGMENT}"
        shown = {line.byte for violation in found for line in violation.evidence if line.file == name}
        assert 1 <= len(bytes_of_changes(calm / name, run / name) & shown) == replica // 3 + 1
    assert any(note.startswith("of 3 positions of a replica, what most") for note in report.notes)
    assert report.exit_code == 1


@pytest.mark.full
def test_a_journal_of_another_run_and_a_flipped_byte_are_no_violations_but_leave_the_verdict_open(
    spark: Any, calm: Path, tmp_path: Path
):
    """The name of its cluster is in every segment's header. The other replicas of both shards have it all. By default
    random runs with lost journals are held against brute force, and problems are named: `test_inputs`."""
    run = tmp_path / "run"
    shutil.copytree(calm, run)
    other = tmp_path / "other"
    run_seed(Settings(protocol="white_box", profile="calm", shards=2, replicas=3, clients=4, seconds=1.0), 2, other)
    data = (other / "replicas/1/journal" / SEGMENT).read_bytes()
    path = run / "replicas/1/journal" / SEGMENT
    header = SegmentHeader.decode(data, SEGMENT)
    theirs = SegmentHeader(b"another cluster.", header.group, header.process, header.segment, header.base)
    path.write_bytes(theirs.encode() + data[HEADER_BYTES:])
    damaged = run / "replicas/4/journal" / SEGMENT
    flipped = bytearray(damaged.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    damaged.write_bytes(flipped)
    report = Audit(spark, run, tmp_path / "out", parts=("delivery", "transactions", "serializability")).run()
    assert [violation for prop in report.properties for violation in prop.examples] == []
    assert (report.verdict, report.exit_code) == ("not determined", 2)
    assert {prop.name: prop.verdict for prop in report.properties}["serializability"] == "valid"
    foreign, damage = sorted(report.problems)
    assert foreign.startswith(f"replicas/1/journal/{SEGMENT}: it belongs to another cluster")
    assert damage.startswith(f"replicas/4/journal/{SEGMENT}, byte")


def test_two_simulated_runs_that_were_mixed_are_told_apart(tmp_path: Path):
    one, other = tmp_path / "one", tmp_path / "other"
    for seed, directory in enumerate((one, other)):
        run_seed(Settings(protocol="white_box", profile="calm", shards=2, replicas=3, seconds=0.1), seed, directory)
    shutil.copytree(other / "replicas/4", one / "replicas/4", dirs_exist_ok=True)
    inputs = read(one).inputs
    assert inputs.foreign == [4] and "another cluster" in inputs.problems[0]


def test_what_one_shard_has_not_delivered_yet_is_pending(spark: Any, tmp_path: Path):
    """Nobody is accused of what is about transactions and clients, either: `damages`."""
    run = behind().write(tmp_path / "run", mark=False)
    report = Audit(spark, run, tmp_path / "out", parts=("delivery", "bank")).run()
    assert [violation for prop in report.properties for violation in prop.examples] == []
    assert {prop.name: prop.verdict for prop in report.properties}["one order across shards"] == "pending"


def test_rows_of_a_foreign_journal_are_not_judged(spark: Any, tmp_path: Path):
    run = bank_run().write(tmp_path / "run")
    path = run / "replicas/1/journal" / SEGMENT
    header = SegmentHeader.decode(path.read_bytes(), SEGMENT)
    foreign = SegmentHeader(b"another cluster.", header.group, header.process, header.segment, header.base)
    path.write_bytes(foreign.encode() + path.read_bytes()[HEADER_BYTES:])
    extract(run, tmp_path / "out")
    audit = Audit(spark, run, tmp_path / "out")
    audit._open()
    whose = {row.replica for row in audit.tables["deliveries"].select("replica").distinct().collect()}
    assert whose == {0, 2, 3, 4, 5} and audit.inputs.foreign == [1]
