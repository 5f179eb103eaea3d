"""Archive and journal are read as one; what neither has is named, and what an extraction has read stays."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from multicast import records
from multicast.journal import Journal
from multicast.records import SegmentHeader
from multicast.retention import Retention
from multicast.runtime.disk import FileDisk
from spark_etl import schemas
from spark_etl.ingest import extraction, sources
from spark_etl.ingest.extraction import extract
from spark_etl.ingest.inputs import Inputs, understand
from spark_etl.ingest.tables import Tables
from tests.spark_etl.runs import SEGMENT, bank_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return bank_run().write(tmp_path / "run")


def rewritten(run: Path, replica: int, position: int, archive: str = "archive") -> Path:
    """The journal of this replica in short segments, of which those up to a position have gone. Returns the archive of
    them."""
    journal = run / "replicas" / str(replica) / "journal"
    data = (journal / SEGMENT).read_bytes()
    header = SegmentHeader.decode(data, "")
    for path in journal.iterdir():
        path.unlink()
    disk = FileDisk(journal)
    short = Journal(disk, header.cluster, header.group, header.process, 300)
    begin, life = records.HEADER_BYTES, 0
    for found in records.scan(data):
        assert not isinstance(found, records.Damage)
        at, kind, body = found
        if kind == records.STARTED:
            life = records.decode_body(kind, body).incarnation
        if kind == records.BATCH_END:
            end = at + records.FRAME_BYTES + 1 + len(body)
            short.append(data[begin:end])
            short.sync()
            begin = end
    folder = run / archive / "replicas" / str(replica) / f"journal-{life}"
    retention = Retention(short, 0, lambda: FileDisk(folder))
    retention.advance(position, short.end)
    retention.close()
    disk.close()
    assert (short.floor > 0) == (position > 0)
    return folder


def let_go(run: Path, replica: int, position: int) -> None:
    """Later."""
    journal = run / "replicas" / str(replica) / "journal"
    disk = FileDisk(journal)
    header = SegmentHeader.decode((journal / SEGMENT).read_bytes(), "")
    assert Journal(disk, header.cluster, header.group, header.process, 300).drop(position, 1 << 40)
    disk.close()


def inputs(run: Path, out: Path) -> Inputs:
    """As the audit understands what an extraction has left."""
    manifest = extract(run, out).manifest
    small = Tables(None, out, manifest).small()  # type: ignore[arg-type]
    return understand(small, sorted(manifest.marks), manifest.marks, manifest.floors)


def counts(run: Path, out: Path) -> Counter[str]:
    found = extract(run, out).manifest.rows()
    return Counter({table: found.get(table, 0) for table in schemas.TABLES if table != "segments"})


def test_archive_and_journal_are_read_as_one(run: Path, tmp_path: Path):
    whole = counts(run, tmp_path / "whole")
    for replica in (0, 3):
        rewritten(run, replica, 6)
    assert counts(run, tmp_path / "out") == whole
    assert inputs(run, tmp_path / "out").problems == []


def test_an_archive_elsewhere_is_found_by_the_configuration(run: Path, tmp_path: Path):
    whole = counts(run, tmp_path / "whole")
    rewritten(run, 0, 6, archive="../old")
    (run / "cluster.json").write_text('{"archive": "../old"}')
    assert counts(run, tmp_path / "out") == whole
    assert inputs(run, tmp_path / "out").problems == []


def test_what_no_archive_has_is_said_in_a_sentence(run: Path, tmp_path: Path):
    folder = rewritten(run, 0, 6)
    floor = sources.find_floors(run)[0]
    second = sorted(folder.iterdir())[1]
    second.unlink()
    found = inputs(run, tmp_path / "out")
    assert found.problems == [
        f"replicas/0/journal: it begins with journal-{floor[0]:08d}.seg; what was before went, and no archive has"
        f" {second.name}: of its deliveries up to number {floor[2]} nothing is determined"
    ]
    assert found.holed == [0]


def test_what_was_read_before_it_went_is_kept(run: Path, tmp_path: Path):
    out = tmp_path / "out"
    rewritten(run, 0, 0)
    whole = counts(run, out)
    let_go(run, 0, 6)
    for path in (run / "archive").rglob("*.seg"):
        path.unlink()
    assert counts(run, out) == whole
    assert inputs(run, out).problems == []
    assert "no archive has" in inputs(run, tmp_path / "new").problems[0]


def test_copies_that_differ_are_named_until_they_are_the_same(run: Path, tmp_path: Path):
    out = tmp_path / "out"
    folder = rewritten(run, 0, 0)
    whole = counts(run, out)
    last = sorted(folder.iterdir())[-1]
    data = last.read_bytes()
    last.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    for _ in range(2):
        (problem,) = inputs(run, out).problems
        assert problem.startswith(f"replicas/0/journal/{last.name}, byte 0: ")
        assert problem.endswith(f"{last.name} is another copy of it, and not the same")
    last.write_bytes(data)
    assert inputs(run, out).problems == []
    assert counts(run, out) == whole


def test_a_copy_that_cannot_be_read_is_damage_of_that_segment_alone(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def failing(one: Path, other: Path) -> bool:
        raise OSError(errno.EIO, "Input/output error", str(other))

    copy = sorted(rewritten(run, 0, 0).iterdir())[0]
    whole = counts(run, tmp_path / "whole")
    monkeypatch.setattr(extraction, "same", failing)
    assert counts(run, tmp_path / "out") - whole == Counter(damage=len(list(copy.parent.iterdir())))
    problem = inputs(run, tmp_path / "out").problems[0]
    assert problem.endswith(f"{SEGMENT}, byte 0: it cannot be compared with {copy}: Input/output error")


def test_a_segment_that_has_moved_is_not_read_again(run: Path, tmp_path: Path):
    out = tmp_path / "out"
    folder = rewritten(run, 0, 0)
    extract(run, out)
    let_go(run, 0, 6)
    again = extract(run, out)
    assert again.bytes_read == 0
    assert str((folder / SEGMENT).relative_to(run)) in again.manifest.segments


def during_reading(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """This happens when the first segment is about to be read."""
    read, left = extraction.read_segment, [happens]

    def later(*arguments: Any) -> Any:
        if left:
            left.pop()()
        return read(*arguments)

    monkeypatch.setattr(extraction, "read_segment", later)


def test_what_goes_while_it_is_read_is_read_where_it_is_now(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = rewritten(run, 0, 0)
    whole = counts(run, tmp_path / "whole")
    during_reading(monkeypatch, lambda: let_go(run, 0, 6))
    assert counts(run, tmp_path / "out") == whole
    assert inputs(run, tmp_path / "out").problems == []
    assert str((folder / SEGMENT).relative_to(run)) in extract(run, tmp_path / "out").manifest.segments


def test_a_run_that_goes_while_it_is_read_is_a_sentence(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    during_reading(monkeypatch, lambda: shutil.rmtree(run / "replicas"))
    with pytest.raises(sources.Unreadable, match="its journals have gone"):
        extract(run, tmp_path / "out")


@pytest.mark.parametrize("directory", ["history", "trace", "replicas"])
def test_a_directory_that_cannot_be_listed_is_named_and_not_taken_for_an_empty_one(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str
):
    (run / "trace").mkdir()

    def closed(there: Callable[..., Any], path: Any = ".") -> Any:
        if str(path) == str(run / directory):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return there(path)

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, partial(closed, getattr(os, name)))
    with pytest.raises(sources.Unreadable, match=f"{directory}: Permission denied"):
        extract(run, tmp_path / "out")


def test_the_archive_of_a_lost_disk_is_not_taken_for_that_of_its_successor(run: Path, tmp_path: Path):
    whole = counts(run, tmp_path / "whole")
    folder = rewritten(run, 0, 6)
    other = folder.with_name("journal-1")
    other.mkdir()
    (other / SEGMENT).write_bytes(b"of another life")
    assert counts(run, tmp_path / "out") == whole
