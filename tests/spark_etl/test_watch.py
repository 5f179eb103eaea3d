"""A run that goes on is judged round after round; what goes wrong in it is said once, with the reason."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from kvstore.core.audit import Read
from multicast.records import BATCH_END, FRAME_BYTES, HEADER_BYTES, scan
from spark_etl import stages
from spark_etl.ingest import merging
from spark_etl.ingest.extraction import extract
from spark_etl.jobs import app
from spark_etl.report import Property, Report, Violation
from spark_etl.watch import REST, Round, Watch, Watched
from tests.spark_etl.runs import MEMBERS, Run, bank_run, write_mark


def grow(run: Path, whole: Path, share: float) -> None:
    """So much of the batches of a finished run's journals, and of the lines of its histories, is there by now."""
    for source in sorted([*whole.rglob("*.seg"), *whole.rglob("*.jsonl")]):
        target, data = run / source.relative_to(whole), source.read_bytes()
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".seg":
            found = [one for one in scan(data) if isinstance(one, tuple)]
            ends = [at + FRAME_BYTES + 1 + len(body) for at, kind, body in found if kind == BATCH_END]
            data = data[: ends[round(share * (len(ends) - 1))]]
            write_mark(target.parent, len(data) - HEADER_BYTES)
        else:
            lines = data.splitlines(keepends=True)
            data = b"".join(lines[: round(share * len(lines)) - 1])
        target.write_bytes(data)


@pytest.fixture
def stale(tmp_path: Path) -> Path:
    """A finished run, whose last transaction read what was overwritten."""
    run = bank_run()
    for records in run.records.values():
        records.pop()
    for number in range(3):
        run.transaction("a3" if number else "", {"a3": number}, f="inc")
    forged = (Read(b"a3", run.version(13)),)
    for replica in MEMBERS[0]:
        run.change(replica, run.positions[0], lambda outcome: setattr(outcome, "reads", forged))
    run.stop()
    return run.write(tmp_path / "whole")


def test_a_stale_read_is_told_once_as_soon_as_it_is_in_the_journals(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stale: Path
):
    monkeypatch.setattr("spark_etl.watch.Watched", partial(Watched, parts=("delivery", "transactions")))
    run, now = tmp_path / "run", [0.0]
    (tmp_path / "out").mkdir()
    run.mkdir()
    watch = Watch(spark, run, tmp_path / "out", clock=lambda: now[0])
    assert "no journal" in watch.round().waiting
    grow(run, stale, 0.5)
    first = watch.round()
    assert first.report is not None and first.report.verdict == "valid" and not first.alarms
    read = first.report.input["deliveries"]
    watch = Watch(spark, run, tmp_path / "out", clock=lambda: now[0])
    assert watch.round().line().startswith("valid: "), "a new one begins with what the last one left"
    now[0] = 5.0
    grow(run, stale, 1.0)
    found = watch.round()
    assert found.report is not None and found.lag == 5.0, "clients are judged as they were when the last round began"
    assert found.report.input["deliveries"] > read and found.report.verdict == "violated"
    said = {(name, one.name) for name, one in found.alarms}
    assert ("reads return what the order says", "stale-read") in said
    assert all(one.evidence for _, one in found.alarms)


def stale_at_first(others: int) -> Run:
    """A stale read, what others do meanwhile on other keys, and in the end one more on its key."""
    run = bank_run()
    for records in run.records.values():
        records.pop()
    for number in range(3):
        run.transaction("a3" if number else "", {"a3": number})
    forged = (Read(b"a3", run.version(13)),)
    for replica in MEMBERS[0]:
        run.change(replica, run.positions[0], lambda outcome: setattr(outcome, "reads", forged))
    run.events[-1]["reads"]["a3"] = str(run.version(13))
    for number in range(others):
        run.transaction("a8" if number < 6 else "a3", {"a8" if number < 6 else "a3": number})
    return run


def test_of_a_violated_run_checks_are_made_again_if_something_new_concerns_them(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Not if others write other keys meanwhile; what they do is judged all the same."""
    checked, now = list[Round](), [0.0]

    class Counted(Watched):
        def _check_transactions(self) -> None:
            checked.append(found[-1])
            super()._check_transactions()

    monkeypatch.setattr("spark_etl.watch.Watched", partial(Counted, parts=("transactions",)))
    watch = Watch(spark, tmp_path / "run", tmp_path / "out", clock=lambda: now[0])
    found, rounds = [Round(None, [], 0.0)], list[int]()
    for others in (0, 3, 6, 7):
        shutil.copytree(stale_at_first(others).write(tmp_path / f"{others}"), tmp_path / "run", dirs_exist_ok=True)
        found.append(watch.round())
        rounds.append(len(checked))
        now[0] += 1.0
    assert [one.report and one.report.verdict for one in found[1:]] == ["violated"] * 4
    assert [len(one.alarms) for one in found[1:]] == [1, 0, 0, 0]
    assert rounds == [1, 1, 1, 2], "what writes the key again is near"
    seen = [one.seen["deliveries"] for one in found[1:]]
    assert seen == [seen[0], seen[0] + 9, seen[0] + 18, seen[0] + 21] and f"{seen[2]:,} deliveries" in found[3].line()
    assert found[3].lag == 1.0, "the others were judged"


def test_where_nothing_can_be_certified_that_is_said_once_and_rounds_rest(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """They say how far they are, too."""
    monkeypatch.setattr("spark_etl.watch.Watched", partial(Watched, parts=("delivery",)))
    run, said = bank_run().write(tmp_path / "run"), list[str]()
    shutil.rmtree(run / "replicas/1")
    ticks = count(0, 5.0)
    watch = Watch(spark, run, tmp_path / "out", clock=lambda: next(ticks), progress=said.append)
    found = watch.round()
    assert found.report is not None and found.report.verdict == "not determined"
    assert found.problems == ["replicas/1/journal: the journal of replica 1 of shard 0 is missing"]
    assert found.checked > 0 and found.rest == REST * found.checked and "nothing could be certified" in found.line()
    assert any(text.startswith("checking") for text in said)
    again = watch.round()
    assert (again.problems, again.rest) == ([], 0.0), "nothing is new"


def test_of_two_cycles_of_one_kind_each_is_told_once(tmp_path: Path):
    """Their sentences are the same."""

    def report(*cycles: list[str]) -> Report:
        found = [Violation("G2-item", "a cycle of dependencies", transactions=one) for one in cycles]
        prop = Property("serializability", "violated", 1, 0.0, len(found), found)
        return Report(str(tmp_path), [prop], [], [], {}, 0.0)

    watch = Watch(None, tmp_path, tmp_path)  # type: ignore[arg-type]
    reports = (report(["a", "b"]), report(["b", "a"], ["c", "d"]), report(["c", "d"]))
    assert [[one.transactions for _, one in watch._new(found)] for found in reports] == [[["a", "b"]], [["c", "d"]], []]


def test_the_command_ends_with_the_last_report(
    spark: Any, tmp_path: Path, stale: Path, monkeypatch: pytest.MonkeyPatch
):
    @contextmanager
    def session(*args: object, lasting: bool) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(stages, "spark_session", session)
    grow(tmp_path / "run", stale, 0.5)
    result = CliRunner().invoke(app, ["watch", str(tmp_path / "run"), "--every", "0", "--rounds", "2"])
    assert result.exit_code == 0, result.output
    assert result.output.count("judged up to") == 2 and "verdict: valid" in result.output
    assert (tmp_path / "run/audit/report.html").is_file()


def test_who_interrupts_the_first_round_is_told_that_nothing_was_judged(
    tmp_path: Path, stale: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Watch) -> Round:
        raise KeyboardInterrupt

    @contextmanager
    def session(*args: object, lasting: bool) -> Iterator[Any]:
        yield None

    monkeypatch.setattr(stages, "spark_session", session)
    monkeypatch.setattr(Watch, "round", interrupted)
    result = CliRunner().invoke(app, ["watch", str(stale), "--quiet"])
    assert (result.exit_code, result.output) == (2, "watch: it ended before anything was judged\n")


def test_small_files_of_many_rounds_are_merged(tmp_path: Path, stale: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(merging, "FILES_MAX", 2)
    for step in range(1, 11):
        grow(tmp_path / "run", stale, step / 10)
        manifest = extract(tmp_path / "run", tmp_path / "out").manifest
    once = extract(tmp_path / "run", tmp_path / "once").manifest
    assert manifest.rows() == once.rows() and len(manifest.files()) <= 3 * len(once.files())
    for table in ("deliveries", "writes"):
        rows = [
            sorted(map(str, pq.read_table(tmp_path / out / f"journal/table={table}", partitioning=None).to_pylist()))
            for out in ("out", "once")
        ]
        assert rows[0] == rows[1]
