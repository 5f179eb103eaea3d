"""What is cut out around a suspect read is all that can be said of it: of many small runs, with one or two reads forged
alike in all journals and answers, the same is found there as in the whole, in the same words."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from spark_etl.audit.guarantees import PER_KEY, SESSIONS
from spark_etl.certify import near, proof
from spark_etl.certify.proof import Proof
from tests.spark_etl import brute_cycles, brute_history, brute_run, certified, folded
from tests.spark_etl.random_runs import correct_run
from tests.spark_etl.test_random_runs import PARTS, judged_models

FOUND_NEAR = (proof.READS, "serializability", "strict serializability", *SESSIONS, PER_KEY)
PROVED = {*proof.LOGS, *proof.ACCOUNTS, proof.VALIDITY, proof.ORDER, proof.HISTORY, proof.CLIENTS, proof.VALUES}


def forged(rng: Random) -> brute_run.Run:
    """A correct run, in which everybody says alike that some transactions read other versions than they did."""
    run = correct_run(rng)
    accounts = [r for records in run.journals.values() for r in records if isinstance(r, brute_run.Account)]
    readers = [(one.id, key) for one in accounts for key in one.reads]
    for number, key in rng.sample(readers, min(len(readers), rng.choice((1, 1, 2)))):
        own = {one.version for one in accounts if one.id == number}
        versions = {0, *(one.version for one in accounts if key in one.writes and one.status == brute_run.APPLIED)}
        seen = rng.choice(sorted(versions - own))
        for one in accounts:
            if one.id == number and key in one.reads:
                one.reads[key] = seen
        for op in run.ops:
            if op.id == number and key in op.reads:
                op.reads[key] = seen
    return run


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


@pytest.mark.timeout(1800)
@pytest.mark.full
def test_the_same_is_said_of_what_is_near_as_of_the_whole(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found = list(cuts(range(600), tmp_path / "tables", monkeypatch))
    runs, cut = [run for run, _ in found], [rows for _, rows in found]
    assert len(runs) > 150
    folded.unlimited(monkeypatch)
    folds = [_Folded(spark, runs, tmp_path / name, parts=PARTS) for name in ("whole", "near")]
    folds[1].near = cut
    whole, mine = map(said, folds)
    assert len({name for name, *_ in whole}) == len(FOUND_NEAR)
    assert not whole ^ mine, sorted(whole ^ mine, key=len)[:6]
    assert judged_models(folds[0]) == judged_models(folds[1])


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
