"""What is cut out around a suspect is all that can be said of it: of many small runs, with one or two reads forged
alike in all journals and answers, reads at positions, values, and clocks that do not follow the versions, the same is
found there as in the whole, in the same words. NEAR_RUNS=N tries N of them, from RANDOM_SEED on."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from spark_etl.audit.guarantees import PER_KEY, SESSIONS
from spark_etl.certify import circles, near, proof
from spark_etl.certify.proof import Proof
from tests.spark_etl import brute_cycles, brute_history, brute_run, certified, damages, folded
from tests.spark_etl.random_runs import correct_run
from tests.spark_etl.test_random_runs import PARTS, judged_models

FOUND_NEAR = (
    proof.READS, proof.VALUES, proof.POSITIONS, "serializability", "strict serializability", *SESSIONS, PER_KEY
)  # fmt: skip
POSITIONED = 600
"""From here on numbers are of reads at positions."""
RUNS = int(os.environ.get("NEAR_RUNS", "600"))
FIRST = int(os.environ.get("RANDOM_SEED", "0"))
PROVED = {*proof.LOGS, *proof.ACCOUNTS, proof.VALIDITY, proof.ORDER, proof.HISTORY, proof.CLIENTS}


def forged(rng: Random) -> brute_run.Run:
    """A correct run, in which everybody says alike that some transactions read other versions than they did."""
    run = correct_run(rng)
    accounts = [r for records in run.journals.values() for r in records if isinstance(r, brute_run.Account)]
    readers = [(one.id, key) for one in accounts for key in one.reads]
    for number, key in rng.sample(readers, min(len(readers), rng.choice((0, 1, 1, 2)))):
        own = {one.version for one in accounts if one.id == number}
        versions = {0, *(one.version for one in accounts if key in one.writes and one.status == brute_run.APPLIED)}
        seen = rng.choice(sorted(versions - own))
        for one in accounts:
            if one.id == number and key in one.reads:
                one.reads[key] = seen
        for op in run.ops:
            if op.id == number and key in op.reads:
                op.reads[key] = seen
    for number in range(rng.choice((0, 0, 1, 2, 3))):
        _read_at_position(rng, run, POSITIONED + number)
    for op in run.ops:
        if op.type == "ok" and (op.place or not any(one.writes for one in accounts if one.id == op.id)):
            _tell(rng, op)
    return run


def _tell(rng: Random, op: brute_run.Op) -> None:
    """Every value is the version of its writer (`correct_run`)."""
    op.told = {key: seen or None for key, seen in op.reads.items()}
    if op.told and rng.random() < 0.1:
        op.told[rng.choice(sorted(op.told))] = rng.choice((None, 10, 20, 9_999))


def _read_at_position(rng: Random, run: brute_run.Run, number: int) -> None:
    """By a client of its own or another one's, of what stood there or something else."""
    shard = rng.choice(sorted(run.shards))
    log = [r for r in run.journals[run.shards[shard][0]] if isinstance(r, brute_run.Account)]
    if not log or not run.ops:
        return
    position = rng.randint(1, max(one.position for one in log))
    state: dict[str, int] = {}
    for one in log:
        for key, value in one.writes.items() if one.status == brute_run.APPLIED and one.position <= position else ():
            state[key] = 0 if value is None else one.version
    keys = sorted({key for one in log for key in one.writes})
    reads = {key: state.get(key, 0) for key in rng.sample(keys, min(len(keys), 2))}
    if reads and rng.random() < 0.3:
        reads[rng.choice(sorted(reads))] = rng.choice([0, *(one.version for one in log)])
    beside = rng.choice(run.ops)
    invoke = beside.complete + rng.randint(-20, 40)
    process = beside.process if beside.type and rng.random() < 0.5 else POSITIONED + number
    told = max(one.version for one in log if one.position == position)
    run.ops.append(
        brute_run.Op(beside.file, process, number, "get", invoke, "ok", invoke + rng.randint(1, 20), told, True, reads,
                     (shard, position))
    )  # fmt: skip


def cuts(
    seeds: Sequence[int], directory: Path, patch: pytest.MonkeyPatch
) -> Iterator[tuple[brute_run.Run, dict[str, list[dict[str, Any]]]]]:
    """Forged runs, and the rows of the tables of what is near; not of those that are looked at whole."""
    patch.setattr(near, "SHARE_MAX", 1.0)
    case = 0
    for seed in seeds:
        run, into = forged(Random(f"{seed}/near")), directory / "near"
        shutil.rmtree(into, ignore_errors=True)
        directory.mkdir(exist_ok=True)
        if found := certified.of_run(run, directory, case, into).near:
            rows: dict[str, list[dict[str, Any]]] = {}
            for name in found:
                table = Path(name).parent.name.removeprefix("table=")
                rows.setdefault(table, []).extend(pq.ParquetFile(into / name).read().to_pylist())
            yield run, rows
            case += 1


class _Folded(folded.Folded):
    """All is proved but for reads and what rests on them. near: rows of tables instead of the runs' own."""

    near: Sequence[dict[str, list[dict[str, Any]]]] = ()

    def _certify(self) -> Proof:
        return Proof(proved=set(PROVED))

    def _rows(self) -> Any:
        rows = dict(super()._rows())
        if self.near:
            for table in ("deliveries", "outcomes", "reads", "writes", "history"):
                rows[table] = [row for one in self.near for row in one.get(table, ())]
        return rows


def said(fold: folded.Folded) -> set[tuple[str, ...]]:
    """Each violation, in all its words."""
    return {
        (prop.name, one.name, one.sentence, *one.steps)
        for prop in fold.check_all().properties
        if prop.name in FOUND_NEAR
        for one in prop.examples
    }


def lengths(fold: folded.Folded) -> list[tuple[str, ...]]:
    """The same, of cycles only how long they are: of several that are as short any one may be shown."""
    return sorted(
        (name, str(len(steps))) if steps else (name, kind, sentence) for name, kind, sentence, *steps in said(fold)
    )


@pytest.mark.timeout(1800)
@pytest.mark.full
def test_the_same_is_said_of_what_is_near_as_of_the_whole(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found = list(cuts(range(FIRST, FIRST + RUNS), tmp_path / "tables", monkeypatch))
    runs, cut = [run for run, _ in found], [rows for _, rows in found]
    assert len(runs) > RUNS // 4
    folded.unlimited(monkeypatch)
    folds = [_Folded(spark, runs, tmp_path / name, parts=PARTS) for name in ("whole", "near")]
    folds[1].near = cut
    whole, mine = map(said, folds)
    assert not whole ^ mine, sorted(whole ^ mine, key=len)[:6]
    assert judged_models(folds[0]) == judged_models(folds[1])
    assert len({name for name, *_ in whole}) == len(FOUND_NEAR)


@pytest.mark.timeout(1800)
@pytest.mark.full
def test_as_much_is_said_of_what_is_shown_of_many(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(circles, "MANY", 0)
    found = list(cuts(range(FIRST, FIRST + RUNS), tmp_path / "tables", monkeypatch))
    runs, cut = [run for run, _ in found], [rows for _, rows in found]
    folded.unlimited(monkeypatch)
    folds = [_Folded(spark, runs, tmp_path / name, parts=PARTS) for name in ("whole", "near")]
    folds[1].near = cut
    whole, mine = map(lengths, folds)
    assert whole == mine


def test_all_that_is_on_a_cycle_is_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = []
    for run, rows in cuts(range(24), tmp_path / "tables", monkeypatch):
        h = brute_history.history(run)
        if len(list(brute_history.choices(h))) > 1:
            continue
        edges = {(a, b) for a, b, _ in brute_history.dependencies(h, {})}
        for before in (brute_history.before_in_time, brute_history.before_in_session):
            edges |= {(a.id, b.id) for a in h.txns for b in h.txns if before(a, b)}
        circles = {a for a, b in brute_cycles.closure(edges) if a == b}
        kept = {int.from_bytes(row["id"], "big") % folded.IDS for row in rows["outcomes"]}
        assert circles <= kept, run
        seen.append((bool(circles), len(kept) < len(h.txns)))
    assert {True, False} == {circles for circles, _ in seen} == {less for _, less in seen}


def _another_version(answers: list[dict[str, Any]]) -> None:
    answers[2]["reads"] = {"a1": "0-0"}


def _another_value(answers: list[dict[str, Any]]) -> None:
    answers[2]["told"] = ["=9999"]


def _an_earlier_position(answers: list[dict[str, Any]]) -> None:
    answers[4] |= {"position": 2, "reads": answers[2]["reads"], "version": answers[2]["version"]}


@pytest.mark.parametrize(
    ("change", "suspect"),
    [(_another_version, proof.READS), (_another_value, proof.VALUES), (_an_earlier_position, proof.POSITIONS)],
)
def test_a_suspect_read_at_a_position_is_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[list[dict[str, Any]]], None], suspect: str
):
    monkeypatch.setattr(near, "SHARE_MAX", 1.0)
    run = damages.read_at_positions()
    answers = [event for event in run.events if "position" in event]
    change(answers)
    before = {event["id"] for event in run.events}
    proved = certified.of_directory(run.write(tmp_path / "run"), tmp_path / "out", tmp_path / "near")
    assert not proved.holds(suspect) and proved.holds(proof.CLIENTS, proof.TIME)
    lines = pq.ParquetFile(tmp_path / "near/history/h0.parquet").read()["id"].to_pylist()
    kept = {str(uuid.UUID(bytes=one)) for one in lines}
    assert answers[4 if change is _an_earlier_position else 2]["id"] in kept <= before


def test_a_write_that_nobody_asked_for_is_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of who read nothing."""
    monkeypatch.setattr(near, "SHARE_MAX", 1.0)
    run = damages.read_at_positions()
    first = next(event for event in run.events if event["type"] == "invoke" and event["f"] != "get")
    first["asked"] = {"success": [["put", "a1", "=something else"]]}
    proved = certified.of_directory(run.write(tmp_path / "run"), tmp_path / "out", tmp_path / "near")
    assert not proved.holds(proof.VALUES) and proved.near
