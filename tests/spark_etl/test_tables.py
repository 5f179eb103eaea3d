"""The Parquet tables: only what is new is read again, whatever has changed is, and other versions are refused."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from multicast.records import HEADER_BYTES
from spark_etl import schemas
from spark_etl.ingest import extraction, tables
from spark_etl.ingest.extraction import extract
from spark_etl.ingest.sources import Unreadable
from spark_etl.ingest.tables import MANIFEST, check_tables
from tests.spark_etl.runs import SEGMENT, Run, bank_run, write_mark


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return bank_run().write(tmp_path / "run")


def rows(out: Path, table: str) -> list[dict[str, object]]:
    """Sorted, as the checks would see them."""
    manifest = check_tables(out)
    names = sorted(name for name in manifest.files() if name.startswith(f"{tables.place(table)}/"))
    found = [row for name in names for row in pq.ParquetFile(out / name).read().to_pylist()]
    return sorted(found, key=repr)


def everything(out: Path) -> dict[str, list[dict[str, object]]]:
    return {table: rows(out, table) for table in (*schemas.TABLES, "history")}


def segment(run: Path, replica: int) -> Path:
    return run / "replicas" / str(replica) / "journal" / SEGMENT


def test_nothing_new_is_nothing_read(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "out"
    first = extract(run, out)
    assert first.bytes_known == 0 and first.manifest.rows()["deliveries"] == 13 * 3 + 9 * 3
    before = everything(out)
    opened: list[str] = []
    really = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *a, **k: opened.append(path.suffix) or really(path, *a, **k))
    again = extract(run, out)
    assert again.bytes_read == 0 and again.manifest == first.manifest
    assert ".json" in opened and not {".seg", ".jsonl"} & set(opened)
    assert everything(out) == before


def grown(tmp_path: Path, cut: Callable[[int], int]) -> tuple[int, int, Path]:
    """Extract a run whose journals and history are cut somewhere, then the whole of it. Bytes read then, and in all."""
    whole = bank_run().write(tmp_path / "whole")
    part, out = tmp_path / "part", tmp_path / "out"
    files = [path for path in whole.rglob("*") if path.is_file() and path.name != "mark"]
    for path in files:
        to = part / path.relative_to(whole)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(path.read_bytes()[: cut(path.stat().st_size)])
    extract(part, out)
    for path in files:
        (part / path.relative_to(whole)).write_bytes(path.read_bytes())
    size = sum(path.stat().st_size for path in files)
    return extract(part, out).bytes_read, size, out


@pytest.mark.parametrize("percent", [0, 3, 31, 50, 77, 99])
def test_only_what_is_behind_the_last_whole_batch_is_read_again(tmp_path: Path, percent: int):
    read, size, out = grown(tmp_path, lambda size: size * percent // 100)
    extract(tmp_path / "part", tmp_path / "afresh")
    assert everything(out) == everything(tmp_path / "afresh")
    assert read <= size * (100 - percent) // 100 + 12 * 700  # and of each file at most one batch more
    lines = [row["line"] for row in rows(out, "history")]
    assert sorted(lines) == list(range(1, len(lines) + 1))  # type: ignore[arg-type]


def test_a_byte_changed_in_what_had_been_read_is_noticed(run: Path, tmp_path: Path):
    out = tmp_path / "out"
    extract(run, out)
    path = segment(run, 1)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert extract(run, out).bytes_read == len(data)
    assert [row["event"] for row in rows(out, "damage")] == ["damage"]
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    extract(run, out)
    assert rows(out, "damage") == [] and len(rows(out, "deliveries")) == 13 * 3 + 9 * 3


def test_tasks_of_spark_read_the_same(spark: Any, run: Path, tmp_path: Path):
    """As they do for large runs; what stands at the end of one segment is new to them later."""
    path = segment(run, 1)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    for left in (data[: len(data) * 2 // 3], data):
        path.write_bytes(left)
        here, there = extract(run, tmp_path / "here"), extract(run, tmp_path / "there", spark)
        assert (here.bytes_read, here.manifest.rows()) == (there.bytes_read, there.manifest.rows())
        assert [*here.manifest.segments] == [*there.manifest.segments]
        assert everything(tmp_path / "here") == everything(tmp_path / "there")


def test_a_copied_run_is_compared_and_not_read(run: Path, tmp_path: Path):
    out = tmp_path / "out"
    extract(run, out)
    os.utime(segment(run, 0), ns=(1, 1))
    assert extract(run, out).bytes_read == 0


def test_an_end_that_was_unfinished_is_damage_once_it_was_vouched_for(run: Path, tmp_path: Path):
    out = tmp_path / "out"
    path = segment(run, 4)
    data = path.read_bytes()
    path.write_bytes(data[:-3])
    write_mark(path.parent, 0)
    extract(run, out)
    assert [row["event"] for row in rows(out, "damage")] == ["unfinished"]
    write_mark(path.parent, len(data) - HEADER_BYTES)
    extract(run, out)
    assert [row["event"] for row in rows(out, "damage")] == ["damage"]


def test_a_segment_that_is_gone_takes_its_rows_along(run: Path, tmp_path: Path):
    out = tmp_path / "out"
    extract(run, out)
    segment(run, 5).unlink()
    extract(run, out)
    assert {row["replica"] for row in rows(out, "deliveries")} == {0, 1, 2, 3, 4}


def test_another_run_in_the_same_place_starts_afresh(run: Path, tmp_path: Path):
    out = tmp_path / "out"
    extract(run, out)
    other = Run()
    other.transaction(writes={"a1": 1})
    extract(other.write(tmp_path / "other"), out)
    assert len(rows(out, "deliveries")) == 3


def test_a_newer_version_is_refused(run: Path, tmp_path: Path):
    out = tmp_path / "out"
    extract(run, out)
    manifest = msgspec.json.decode((out / MANIFEST).read_bytes())
    manifest |= {"version": schemas.SCHEMA_VERSION + 1, "something": "else"}
    (out / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    newer, own = schemas.SCHEMA_VERSION + 1, schemas.SCHEMA_VERSION
    for use in (lambda: extract(run, out), lambda: check_tables(out)):
        with pytest.raises(Unreadable, match=f"schema version {newer}, and this program knows none newer than {own}"):
            use()


def test_a_file_of_a_newer_version_is_refused(run: Path, tmp_path: Path):
    out = tmp_path / "out"
    extract(run, out)
    path = next((out / "journal" / "table=reads").glob("r0*"))
    table = pq.read_table(path, partitioning=None)
    newer = str(schemas.SCHEMA_VERSION + 1)
    pq.write_table(table.replace_schema_metadata({schemas.VERSION_KEY: newer}), path)
    with pytest.raises(Unreadable, match=f"has schema version {newer}"):
        check_tables(out)


@pytest.mark.parametrize("change", ["more", "fewer", "broken", "none", "old", "garbage"])
def test_tables_that_are_not_what_was_extracted_are_refused(run: Path, tmp_path: Path, change: str):
    out = tmp_path / "out"
    extract(run, out)
    path = next((out / "journal" / "table=reads").glob("r0*"))
    if change == "more":
        (path.parent / "r9.parquet").write_bytes(path.read_bytes())
    elif change == "fewer":
        path.unlink()
    elif change == "broken":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        text = {"none": None, "old": b'{"version":0,"run":"","marks":{},"segments":{},"histories":{}}', "garbage": b"{"}
        (out / MANIFEST).unlink()
        if (data := text[change]) is not None:
            (out / MANIFEST).write_bytes(data)
    with pytest.raises(Unreadable, match="extract") as error:
        check_tables(out)
    assert "\n" not in str(error.value)
    if change != "garbage":
        extract(run, out)
        assert len(rows(out, "reads")) > 0


@pytest.mark.parametrize("share", [0.0, 0.37, 0.99])
def test_a_changed_byte_anywhere_in_the_tables_is_seen_and_made_good(run: Path, tmp_path: Path, share: float):
    """In every file, at its beginning, in its middle and at its end, of which Parquet has no checksum."""
    out = tmp_path / "out"
    extract(run, out)
    whole = everything(out)
    written = check_tables(out).written()
    assert {Path(name).parent.name for name in written} >= {"table=deliveries", "table=reads", "history"}
    for number, (name, (size, _)) in enumerate(sorted(written.items())):
        data = bytearray((out / name).read_bytes())
        data[int(share * size)] ^= 1 << number % 8
        (out / name).write_bytes(data)
    with pytest.raises(Unreadable, match="extract again"):
        check_tables(out)
    assert extract(run, out).damaged == sorted(written)
    assert check_tables(out).written() == written and everything(out) == whole
    assert extract(run, out).damaged == []


def test_a_damaged_table_is_named(run: Path, tmp_path: Path):
    out = tmp_path / "out"
    written = sorted(extract(run, out).manifest.written())
    (out / written[3]).write_bytes((out / written[3]).read_bytes().replace(b"PAR1", b"PAR2", 1))
    with pytest.raises(Unreadable, match="extract again") as error:
        check_tables(out)
    assert str(out / written[3]) in str(error.value)


def test_a_changed_byte_in_a_table_without_rows_is_seen_and_made_good(run: Path, tmp_path: Path):
    """Only its columns are of use."""
    out = tmp_path / "out"
    manifest = extract(run, out).manifest
    for name in sorted(manifest.files() - manifest.written().keys()):
        data = (out / name).read_bytes()
        (out / name).write_bytes(data.replace(b"shard", b"shrad") if b"shard" in data else data[:-2])
        with pytest.raises(Unreadable, match="extract again") as error:
            check_tables(out)
        assert str(out / name) in str(error.value)
        (out / name).write_bytes(data)
    damaged = out / sorted(manifest.files() - manifest.written().keys())[0]
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-2])
    extract(run, out)
    assert check_tables(out) and damaged.read_bytes() == whole


def test_a_changed_byte_in_the_list_of_what_was_read_is_seen(run: Path, tmp_path: Path):
    """A number or a name there decides what is read again, and what counts as missing."""
    out = tmp_path / "out"
    extract(run, out)
    path = out / MANIFEST
    whole = path.read_bytes()
    for words, other in ((b'"rows"', b'"rowz"'), (b'"writes":', b'"writer":'), (b'"marks": {', b'"marks": {"9": 1,')):
        assert words in whole
        path.write_bytes(whole.replace(words, other, 1))
        for use in (lambda: check_tables(out), lambda: extract(run, out)):
            with pytest.raises(Unreadable, match=r"its checksum does not match.*; remove"):
                use()
    path.write_bytes(whole)
    assert extract(run, out).bytes_read == 0


@pytest.mark.parametrize("directory", ["history", "trace"])
@pytest.mark.parametrize("name", [b"a.jsonl", b"z.jsonl", b"a\xff.jsonl"])
def test_a_file_that_comes_later_replaces_no_other_ones_tables(run: Path, tmp_path: Path, directory: str, name: bytes):
    """Whatever its name, before or behind that of the one that was there."""
    out, table = tmp_path / "out", {"history": "history", "trace": "frames"}[directory]
    (run / directory).mkdir(exist_ok=True)
    (run / directory / "more.jsonl").write_bytes(b"no line\n")
    extract(run, out)
    before = rows(out, table)
    later = Path(os.fsdecode(os.fsencode(run / directory) + b"/" + name))
    later.write_bytes(b"nor is this\n")
    extract(run, out)
    after = rows(out, table)
    (added,) = [row for row in after if row not in before]
    assert len(after) == len(before) + 1 and added["line"] == 1
    later.unlink()
    extract(run, out)
    assert rows(out, table) == before


def test_a_damaged_table_of_what_the_journal_has_let_go_is_not_kept(run: Path, tmp_path: Path):
    out = tmp_path / "out"
    manifest = extract(run, out).manifest
    name = segment(run, 5).relative_to(run).as_posix()
    lost = next(iter(manifest.segments[name].files))
    left = manifest.without([lost])
    assert name not in left.segments and left.segments.keys() | {name} == manifest.segments.keys()
    assert left.histories == manifest.histories and lost not in left.files()


def test_workers_of_spark_extract_the_same(spark: Any, run: Path, tmp_path: Path):
    extract(run, tmp_path / "here")
    extract(run, tmp_path / "there", spark)
    assert everything(tmp_path / "here") == everything(tmp_path / "there")


def test_every_file_says_its_version_and_its_columns(run: Path, tmp_path: Path):
    extract(run, tmp_path)
    for table in schemas.TABLES:
        for path in (tmp_path / f"journal/table={table}").iterdir():
            schema = pq.read_schema(path)
            assert tuple(schema.names) == schemas.TABLES[table]
            assert schema.metadata[schemas.VERSION_KEY.encode()] == str(schemas.SCHEMA_VERSION).encode()


def test_statistics_tell_the_span_without_a_job(run: Path, tmp_path: Path):
    manifest = extract(run, tmp_path).manifest
    assert tables.Tables(None, tmp_path, manifest).span("deliveries", "at") == (0, 12)


@pytest.mark.parametrize("what", ["directory", "pipe", "loop", "nothing"])
@pytest.mark.parametrize("kind", ["segment", "history", "trace"])
def test_what_is_no_file_is_named_and_the_rest_is_read(run: Path, tmp_path: Path, kind: str, what: str):
    path = segment(run, 1) if kind == "segment" else run / kind / "clients.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if what == "directory":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.name if what == "loop" else "nothing")
    out = tmp_path / "out"
    for _ in range(2):
        extract(run, out)
        table = {"segment": "damage", "history": "history", "trace": "frames"}[kind]
        (reason,) = (row["reason" if kind == "segment" else "damage"] for row in rows(out, table))
        assert str(reason).startswith("it cannot be read: ")
        assert len(rows(out, "deliveries")) == (13 * 2 if kind == "segment" else 13 * 3) + 9 * 3


@pytest.mark.timeout(60)
@pytest.mark.parametrize("content", [b'{"archive":"\xff"}', b"[" * 100_000, b"", None])
def test_what_is_no_configuration_says_nothing(run: Path, tmp_path: Path, content: bytes | None):
    path = run / "cluster.json"
    os.mkfifo(path) if content is None else path.write_bytes(content)
    assert extract(run, tmp_path / "out").manifest.archived


@pytest.mark.timeout(60)
def test_a_pipe_where_an_archived_journal_begins_or_a_table_was_is_not_waited_for(run: Path, tmp_path: Path):
    (run / "archive" / "replicas").mkdir(parents=True)
    out = tmp_path / "out"
    table = next(iter(extract(run, out).manifest.histories["history/clients.jsonl"].files))
    for path in (segment(run, 1), out / table):
        path.unlink()
        os.mkfifo(path)
    assert tables.damaged(out, tables.load_manifest(out) or pytest.fail()) == [table]
    (out / table).unlink()
    extract(run, out)
    assert [row["reason"] for row in rows(out, "damage")] == ["it cannot be read: it is not a file"]


def test_a_directory_whose_number_is_no_replicas_is_none(run: Path, tmp_path: Path):
    path = run / "replicas" / str(2**31) / "journal" / SEGMENT
    path.parent.mkdir(parents=True)
    path.write_bytes(b"something")
    assert extract(run, tmp_path / "out").manifest.marks.keys() == {0, 1, 2, 3, 4, 5}


def test_a_run_that_cannot_be_read_leaves_no_tables(run: Path, tmp_path: Path):
    for replica in range(6):
        segment(run, replica).write_bytes(b"something else altogether, longer than a header would have been")
    with pytest.raises(Unreadable, match="not a journal segment"):
        extract(run, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_tables_never_go_where_the_run_is(run: Path):
    before = sorted(path for path in run.rglob("*"))
    for out in (run, run / "history", run / "replicas" / "0"):
        with pytest.raises(Unreadable, match="choose another --out"), tables.alone(run, out):
            pass
    assert sorted(path for path in run.rglob("*")) == before


@pytest.mark.parametrize("name", ["mkdir", "open"])
def test_where_nothing_can_be_written_another_place_is_to_be_chosen(
    run: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    """As in the directory of a run that is mounted to be read only."""

    def refused(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, name, refused)
    expected = r"audit: nothing can be written there \(Read-only file system\); choose another --out"
    with pytest.raises(Unreadable, match=expected), tables.alone(run, run / "audit"):
        pass


def test_only_tables_are_ever_removed(run: Path, tmp_path: Path):
    kept = tmp_path / "out" / "history" / "notes.jsonl"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    extract(run, tmp_path / "out")
    assert kept.read_text() == "mine"


def test_two_do_not_work_in_one_place(run: Path, tmp_path: Path):
    out = tmp_path / "out"
    with tables.alone(run, out), pytest.raises(Unreadable, match="another audit"), tables.alone(run, out):
        pass
    with tables.alone(run, tmp_path / "out"):
        pass


def test_a_full_disk_is_a_sentence(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "Error writing bytes to file")

    monkeypatch.setattr(pq.ParquetWriter, "write_batch", full)
    with pytest.raises(Unreadable, match="out: No space left on device"):
        extract(run, tmp_path / "out")


def test_histories_are_read_before_journals(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a cluster that runs, the journals hold all that its clients had heard of by then."""
    order: list[str] = []

    def noted(name: str) -> Callable[..., object]:
        real = getattr(extraction, name)
        return lambda *args: (order.append(name), real(*args))[1]

    for name in ("_read_history", "find_segments", "read_segment"):
        monkeypatch.setattr(extraction, name, noted(name))
    extract(run, tmp_path / "out")
    assert order[-8:] == ["_read_history", "find_segments", *["read_segment"] * 6]
