"""Of a long run the same is cut out around suspect reads, whether all of it is looked at or only the stretch where
their cycles may lie. STRETCH_RUNS=N tries N of them, from RANDOM_SEED on."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_etl.bench import inputs
from spark_etl.bench.inputs import Shape, generate
from spark_etl.certify import circles, key, near, source, stretch, windows
from spark_etl.certify.arrays import Suspect, whole
from spark_etl.certify.proof import READS, Proof, Reached
from spark_etl.ingest.tables import Manifest
from tests.amounts import tries
from tests.spark_etl import certified

NONE = bytes(16)
RUNS = tries("STRETCH_RUNS", 2, 8)
FIRST = int(os.environ.get("RANDOM_SEED", "0"))
REPLICAS = 2


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of few keys are long."""
    monkeypatch.setattr(inputs, "CHUNK", 200)
    monkeypatch.setattr(inputs, "EPOCH", 200)
    monkeypatch.setattr(inputs, "KEYS", 150)
    monkeypatch.setattr(windows, "POSITIONS", 24)
    monkeypatch.setattr(source, "BATCH", 50)
    monkeypatch.setattr(near, "SHARE_MAX", 1.0)
    monkeypatch.setattr(stretch, "SHARE_MAX", 0.9)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[stretch.Stretch]:
    """What was looked at, and could be told."""
    found, around = list[stretch.Stretch](), stretch.around

    def watched(*about: Any) -> stretch.Part:
        part = around(*about)
        found.append(about[2])
        return part

    monkeypatch.setattr(stretch, "around", watched)
    return found


def _changed(path: str, column: str, of: dict[tuple[bytes, bytes], Any]) -> None:
    rows = pq.ParquetFile(path).read()
    values = [
        of.get((gts, name), old)
        for gts, name, old in zip(*(rows[one].to_pylist() for one in ("gts", "key", column)), strict=True)
    ]
    where = rows.schema.get_field_index(column)
    pq.write_table(rows.set_column(where, rows.schema.field(where), pa.array(values, rows.schema.types[where])), path)


def forged(rng: Random, out: Path, shards: int) -> Manifest:
    """A correct run with deletions, but that everybody says alike of a few reads that they returned something else."""
    manifest = generate(Shape(1_000, shards=shards, replicas=REPLICAS, seed=rng.randrange(1_000)), out)
    files = source.source(out, manifest.files())
    told: dict[tuple[bytes, bytes], bytes] = {}
    deleted: dict[tuple[bytes, bytes], bool] = {}
    middle, often = rng.random(), rng.choice((0.05, 0.4))
    for shard in range(shards):
        reads, writes = (
            files.read(table, ("key", "gts", column), [shard * REPLICAS]).to_pylist()
            for table, column in (("reads", "version"), ("writes", "deleted"))
        )
        of_key = defaultdict(list)
        for row in writes:
            of_key[row["key"]].append(row["gts"])
        gone = {(row["gts"], row["key"]) for row in writes if rng.random() < often}
        deleted |= dict.fromkeys(gone, True)
        mine = {(r["gts"], r["key"]): NONE for r in reads if (r["version"], r["key"]) in gone}
        begin = int(middle * 0.9 * len(reads))
        for row in rng.sample(reads[begin : begin + len(reads) // 10], rng.choice((0, 1, 1, 2))):
            versions = [NONE, *(one for one in of_key[row["key"]] if one != row["gts"])]
            some = range(len(versions))
            nearest = sorted(some, key=lambda n: abs(n - sum(one < row["gts"] for one in versions)))
            mine[row["gts"], row["key"]] = versions[rng.choice(nearest[: rng.choice((2, 3, len(versions)))])]
        for replica in range(shard * REPLICAS, (shard + 1) * REPLICAS):
            for path in files.files["reads"][replica]:
                _changed(path, "version", mine)
            for path in files.files["writes"][replica]:
                _changed(path, "deleted", deleted)
        told |= mine
    for path in (path for paths in files.files["history"].values() for path in paths):
        lines = pq.ParquetFile(path).read()
        if not lines.num_rows:
            continue
        said = [
            reads and [(name, told.get((version, name.encode()), seen)) for name, seen in reads]
            for version, reads in zip(lines["version"].to_pylist(), lines["reads"].to_pylist(), strict=True)
        ]
        where = lines.schema.get_field_index("reads")
        pq.write_table(
            lines.set_column(where, lines.schema.field(where), pa.array(said, lines.schema.types[where])), path
        )
    return manifest


def cut(out: Path, manifest: Manifest) -> tuple[Proof, dict[str, list[str]]]:
    """What is near, by table."""
    into, rows = out / "near", defaultdict[str, list[str]](list)
    shutil.rmtree(into, ignore_errors=True)
    found = certified.of_tables(out, manifest, into)
    for name in found.near:
        rows[Path(name).parent.name] += map(repr, pq.ParquetFile(into / name).read().to_pylist())
    return found, {table: sorted(mine) for table, mine in rows.items()}


def test_the_same_is_cut_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: list[stretch.Stretch]
) -> None:
    where, tried = stretch.stretch, list[stretch.Stretch]()

    def noted(*about: Any) -> stretch.Stretch | None:
        found = where(*about)
        tried.extend([found] if found else [])
        return found

    for seed in range(FIRST, FIRST + RUNS):
        rng, out = Random(f"{seed}/stretch"), tmp_path / str(seed)
        monkeypatch.setattr(circles, "MANY", (3_000, 4)[seed % 2])  # on cycles; of more only some are shown
        manifest = forged(rng, out, rng.choice((1, 2, 3)))
        monkeypatch.setattr(stretch, "stretch", noted)
        once, rows = cut(out, manifest)
        monkeypatch.setattr(stretch, "stretch", lambda *about: None)
        at_once, every = cut(out, manifest)
        assert once.holds(READS) == at_once.holds(READS) == (not at_once.near), seed
        assert (once.circling, rows) == (at_once.circling, every), seed
    assert parts == tried and len(parts) > RUNS // 4, "a few are too long, or right"


def test_reads_of_a_stretch_seem_what_they_are(tmp_path: Path) -> None:
    """Right, if they are, whoever wrote what they read; and sure, unless that their key is absent may be since any of
    several deletions, of which none need be in the stretch."""
    compared, doubtful = 0, 0
    for seed in range(FIRST, FIRST + RUNS):
        rng, out = Random(f"{seed}/seem"), tmp_path / str(seed)
        files = source.source(out, forged(rng, out, 1).files())
        versions = files.read("outcomes", ("position", "gts"), [0]).sort_by("position")["gts"].to_pylist()
        low = rng.randrange(1, len(versions) - 1)
        high = rng.randrange(low + 1, len(versions))
        place = stretch.Stretch(Reached(versions[low - 1], [low], [0]), Reached(versions[high - 1], [high], [0]))
        part = stretch._keyed(files, 0, place, (low, high))
        every = (files.read("reads", key.READS, [0]), files.read("writes", key.WRITES, [0]))
        seems, is_ = (_seem(reads, writes) for reads, writes in (part, every))
        assert len(seems) == files.within("reads", key.READS, 0, (low, high)).num_rows
        right = {read: said for read, said in is_.items() if not said[0] and read in seems}
        assert {read: seems[read] for read in right} == right, seed
        compared += len(right)
        doubtful += sum(unsure for _, unsure in right.values())
    assert 0 < doubtful < compared / 2


def _seem(reads: pa.Table, writes: pa.Table) -> dict[tuple[bytes, bytes], tuple[bool, bool]]:
    """Of reads, by version and key: of another version than the order says; unsure (`circles.dependencies`)."""
    found = key.in_order(reads, writes, key.NO_PLACES)
    unsure = found.saw_none() & np.isin(found.key, found.key[found.deleted])
    names, gts = (
        pa.concat_arrays([whole(table[column].cast(kind)) for table in (reads, writes)]).to_pylist()
        for column, kind in (("key", pa.binary()), ("gts", pa.binary(16)))
    )
    return {
        (gts[row], names[row]): (bool(other), bool(doubt))
        for row, wrote, other, doubt in zip(found.row.tolist(), found.wrote, found.other(), unsure, strict=True)
        if not wrote
    }


def test_it_is_a_stretch(tmp_path: Path, parts: list[stretch.Stretch]) -> None:
    """Of one read of the version before, far fewer positions are looked at than there are."""
    manifest = generate(Shape(2_000, shards=2, replicas=1, stale=True), tmp_path)
    proof, _ = cut(tmp_path, manifest)
    (part,) = parts
    low, high = part.positions(0)
    assert proof.near and part.before and high - low < part.end.positions[0] / 2


def reached(*windows: tuple[int, list[int], list[int]]) -> list[Reached]:
    return [Reached(version(upto), positions, latest) for upto, positions, latest in windows]


def version(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_a_log_that_stands_still_does_not_make_it_longer() -> None:
    """Of the second log nothing is in the later windows, whose e is then still the one of before."""
    logs = reached((10, [5, 5], [100, 90]), (20, [9, 5], [200, 90]), (30, [14, 5], [300, 90]), (40, [20, 5], [400, 90]))
    logs += reached((50, [25, 6], [500, 490]), (60, [29, 9], [600, 590]))
    doubts = near.Doubts(1, [(version(3), version(4), True)])
    found = stretch.stretch(logs, near.Suspects([doubts]), [4, 1])
    assert found is not None and found.before is None and found.end == logs[0]
    later = near.Doubts(4, [(version(21), version(24), True)])
    found = stretch.stretch(logs, near.Suspects([later]), [4, 1])
    assert found is not None and found.before == logs[1] and found.end == logs[4]


def test_a_window_in_which_nothing_later_was_invoked_is_one() -> None:
    logs = reached(*((10 * n, [5 * n], [100 * max(n, 2)]) for n in range(1, 7)))
    doubts = near.Doubts(0, [(version(12), version(14), True)])
    found = stretch.stretch(logs, near.Suspects([doubts]), [0])
    assert found is not None and found.before == logs[0] and found.end == logs[1]


def test_of_a_long_stretch_the_whole_is_looked_at() -> None:
    logs = reached(*((10 * n, [5 * n], [100 * n]) for n in range(1, 7)))
    doubts = near.Doubts(0, [(version(1), version(59), True)])
    assert stretch.stretch(logs, near.Suspects([doubts]), [0]) is None
    assert stretch.stretch([], near.Suspects([near.Doubts(0, [(version(1), version(2), True)])]), [0]) is None


def test_of_a_key_that_half_of_all_touched_the_whole_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: list[stretch.Stretch]
) -> None:
    manifest = generate(Shape(1_000, shards=1, replicas=1, stale=True, hot=1.0), tmp_path)
    monkeypatch.setattr(near, "SHARE_MAX", 0.5)
    proof, _ = cut(tmp_path, manifest)
    assert not proof.holds(READS) and not proof.near and not parts
    monkeypatch.setattr(near, "SHARE_MAX", 1.0)
    proof, _ = cut(tmp_path, manifest)
    assert proof.near and len(parts) == 1


def test_what_cannot_be_told_of_a_stretch_is_told_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = generate(Shape(1_000, shards=2, replicas=1, stale=True), tmp_path)
    _, rows = cut(tmp_path, manifest)

    def fails(*about: Any) -> Any:
        raise Suspect("a test")

    monkeypatch.setattr(stretch, "around", fails)
    assert cut(tmp_path, manifest)[1] == rows and rows
