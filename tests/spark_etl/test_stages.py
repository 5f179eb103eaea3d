"""extract, check, report and audit, as they are called; Spark is the tests' own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from kvstore.core.audit import Read
from multicast import records
from multicast.records import Completed, Delivered, Started, Stopped
from spark_etl import jobs, schemas, session, stages
from spark_etl.audit import case
from spark_etl.audit.runner import Audit
from spark_etl.certify.proof import LOGS
from spark_etl.ingest import extraction, tables
from spark_etl.jobs import app
from spark_etl.report import Report, from_json, to_json
from tests.spark_etl.runs import MEMBERS, Run, bank_run


@pytest.fixture(autouse=True)
def shared_spark(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def shared(*args: object) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(stages, "spark_session", shared)
    monkeypatch.setattr(session, "spark_session", shared)


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*map(str, arguments), "--quiet"])
    return result.exit_code, result.output


def violated_run() -> Run:
    """A stale read that makes a cycle, a delivery left out, and a replica that was killed and came back."""
    run = bank_run()
    for replica in run.records.values():
        assert type(replica.pop()) is Stopped
    for number in range(3):
        run.transaction("a<b>" if number else "", {"a<b>": number}, f="inc")
    run.stop()
    forged = (Read(b"a<b>", run.version(13)),)
    for replica in MEMBERS[0]:
        run.change(replica, run.positions[0], lambda outcome: setattr(outcome, "reads", forged))
    del run.records[2][run.find(2, Delivered, 4)]
    run.records[1].insert(run.find(1, Delivered, 5), Started(200, 1, 0, MEMBERS, "white_box", "fsync", 2))
    return run


def load(path: Path) -> Report:
    return from_json(path.read_bytes(), str(path))


def test_of_many_rows_a_session_is_asked_for_that_is_fast(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Once it is known that they must be looked at: not if all is proved, nor of few."""
    asked: list[int] = []

    def heavier() -> Any:
        asked.append(1)
        return spark

    def prepared(name: str, rows: int) -> Audit:
        monkeypatch.setattr(case, "PLANNED_ROWS", rows)
        audit = Audit(spark, tmp_path / name, tmp_path / f"{name}-out", parts=("delivery",), heavier=heavier)
        audit._open()
        with audit._meanwhile:
            audit._prepare()
        return audit

    for name, run in (("valid", bank_run()), ("violated", violated_run())):
        extraction.extract(run.write(tmp_path / name), tmp_path / f"{name}-out")
    assert prepared("valid", 0).proof.holds(*LOGS) and not asked
    assert not prepared("violated", 10_000).proof.holds(*LOGS) and not asked
    monkeypatch.setattr(case, "PLANNED_ROWS", 0)
    audit = Audit(spark, tmp_path / "violated", tmp_path / "violated-out", parts=("delivery",), heavier=heavier)
    assert audit.check_all().verdict == "violated" and asked == [1]


def test_the_audit_of_a_correct_run_finds_it_valid(tmp_path: Path):
    run = bank_run().write(tmp_path / "run")
    assert call("audit", run)[0] == 0
    assert (run / "audit" / "report.html").is_file()
    report = load(run / "audit" / "report.json")
    assert {p.name for p in report.properties if p.verdict != "valid"} == {"genuineness", "optimistic deliveries"}
    assert {m.verdict for m in report.models} == {"holds"} and report.strongest == ["strong-serializable"]
    assert (report.verdict, report.exit_code, report.problems) == ("valid", 0, [])


def test_the_stages_one_after_another_and_the_log_lines_that_prove_what_is_found(tmp_path: Path):
    run = violated_run().write(tmp_path / "run")
    assert call("check", run)[0] == 2
    code, output = call("extract", run)
    assert code == 0 and "MB new, 0.0 MB known" in output
    shutil.move(run / "replicas", tmp_path / "aside")  # the check needs the tables only
    code, output = call("report", run)
    assert code == 2 and "run `python -m spark_etl check RUN_DIR` first" in output
    code, output = call("check", run)
    assert code == 1 and "verdict: violated" in output
    shutil.move(tmp_path / "aside", run / "replicas")
    code, output = call("report", run, "--html", tmp_path / "p.html", "--json", tmp_path / "r.json")
    assert code == 1 and f"page: {tmp_path / 'p.html'}" in output
    report = load(run / "audit" / "report.json")
    assert load(tmp_path / "r.json") == report
    printed = CliRunner().invoke(app, ["report", str(run), "--json", "-"])
    assert from_json(printed.stdout_bytes, "-") == report and "verdict: violated" in printed.stderr
    page = (tmp_path / "p.html").read_text()
    assert page.count("<svg") >= 2 and "a&lt;b&gt;" in page and "a<b>" not in page
    assert sum("nothing is wrong with the order, but" in prop.note for prop in report.properties) == 1
    proved(run, report)
    follows(report)


def proved(run: Path, report: Report) -> None:
    """The lines stand where they are said to."""
    violations = [violation for prop in report.properties for violation in prop.examples]
    assert violations and all(violation.evidence for violation in violations)
    kinds = set()
    for one in (one for violation in violations for one in violation.evidence):
        data = (run / one.file).read_bytes()
        if one.line is not None:
            assert one.text.split()[0] in data.decode().splitlines()[one.line - 1]
            continue
        assert one.byte is not None
        found = next(records.scan(data, one.byte))
        assert not isinstance(found, records.Damage)
        record = records.decode_body(found[1], found[2])
        kinds.add(type(record))
        if isinstance(record, Delivered | Completed):
            assert not (said := re.search(r"at position (\d+)", one.text)) or int(said[1]) == record.position
    assert {Delivered, Completed} <= kinds
    stale = next(violation for violation in violations if violation.name == "stale-read")
    texts = [one.text for one in stale.evidence]
    assert any(f"read key a<b> at version {Run().version(13)}" in text for text in texts)
    assert any(f"wrote key a<b>: 1 (version {Run().version(14)})" in text for text in texts)  # what it should have read
    cycle = next(violation for violation in violations if violation.name == "G-single")
    assert [edge.kind for edge in cycle.edges] in (["ww", "rw"], ["rw", "ww"], ["wr", "rw"], ["rw", "wr"])
    assert [edge.sentence for edge in cycle.edges] == cycle.steps
    lost = next(violation for violation in violations if violation.name == "lost-delivery")
    assert "delivered at position 3" in lost.evidence[0].text and "stopped in good order" in lost.evidence[-1].text


def follows(report: Report) -> None:
    """The course of the run."""
    killed = next(life for life in report.course.lives if life.replica == 1)
    assert (killed.began, killed.ended, killed.how) == (1e-6, 2e-6, "crashed")  # with the last delivery before the next
    assert (report.course.began_us, report.course.slice_seconds) == (0, 1e-6)
    assert sum(point.count for point in report.course.operations) == 16


def test_a_newer_schema_or_report_is_one_sentence(tmp_path: Path):
    run = bank_run().write(tmp_path / "run")
    extraction.extract(run, run / "audit")
    path = run / "audit" / tables.MANIFEST
    newer = msgspec.json.decode(path.read_bytes()) | {"version": schemas.SCHEMA_VERSION + 1}
    path.write_bytes(msgspec.json.encode(newer))
    for command in ("audit", "extract", "check"):
        code, output = call(command, run)
        assert code == 2 and output.count("\n") == 1 and f"schema version {schemas.SCHEMA_VERSION + 1}" in output
    (run / "audit" / "report.json").write_text('{"version": 99}')
    code, output = call("report", run)
    assert code == 2 and output.count("\n") == 1 and "report version 99" in output


def test_the_report_of_another_run_is_not_shown_as_this_ones(tmp_path: Path):
    run, other = (bank_run().write(tmp_path / name) for name in ("run", "other"))
    found = Report(str(other.resolve()), [], [], [], {}, 0.0)
    stages.write(run / "audit" / "report.json", to_json(found))
    assert call("report", run)[1].endswith(f"it is of {other.resolve()}, not of {run}; check that again\n")
    extraction.extract(other, run / "audit")
    stages.write(run / "audit" / "report.json", to_json(msgspec.structs.replace(found, run="other")))
    code, output = call("report", run)
    assert code == 2 and output.count("\n") == 1 and f"it is of {other.resolve()}, not of {run}" in output


def test_a_page_where_a_directory_is_is_one_sentence_and_leaves_nothing(tmp_path: Path):
    run = bank_run().write(tmp_path / "run")
    stages.write(run / "audit" / "report.json", to_json(Report(str(run), [], [], [], {}, 0.0)))
    code, output = call("report", run, "--html", tmp_path)
    assert code == 2 and output.count("\n") == 1
    assert f"it is a directory, and no file can be written there: '{tmp_path}'" in output
    assert list(tmp_path.iterdir()) == [run] and list(tmp_path.parent.glob(".*.new")) == []


def test_tables_of_another_run_are_not_judged_as_this_ones(tmp_path: Path):
    run, other = (bank_run().write(tmp_path / name) for name in ("run", "other"))
    extraction.extract(other, run / "audit")
    code, output = call("check", run)
    assert code == 2 and output.count("\n") == 1 and f"its tables are of {other.resolve()}, not of {run}" in output
    extraction.extract(run, run / "audit")
    assert tables.check_tables(run / "audit").run == str(run.resolve())


@pytest.mark.parametrize("command", ["audit", "extract", "check", "report"])
@pytest.mark.parametrize("what", ["nothing", "file", "empty", "foreign", "history"])
def test_what_is_no_run_is_refused_in_one_sentence(tmp_path: Path, command: str, what: str):
    path = tmp_path / "input"
    if what == "file":
        path.write_text("{}")
    elif what != "nothing":
        path.mkdir()
    if what == "foreign":
        journal = path / "replicas" / "0" / "journal"
        journal.mkdir(parents=True)
        (journal / "journal-00000000.seg").write_bytes(b"PAR1" * 100)
    if what == "history":
        (path / "h.jsonl").write_text("{}\n")
    code, output = call(command, path)
    assert code == 2 and output.count("\n") == 1 and output.startswith(f"{command}: {path}")
    if command in ("audit", "extract"):
        expected = {
            "nothing": "no such directory", "file": "check-history", "empty": "is empty",
            "foreign": "not a journal segment", "history": "check-history",
        }  # fmt: skip
        assert expected[what] in output


def test_the_examples_of_the_readme_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    violated_run().write(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    text = (Path(stages.__file__).parent / "README.md").read_text().split("## As a library\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    shown = []
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
        shown.append(capsys.readouterr().out)
    _, audited, order, lag, own, judged = shown
    assert audited.startswith("violated [") and "('agreement in a shard', 1)" in audited
    assert "|name" in order
    assert lag.count("\n|    0|") == 2 and "|mistaken" in lag.replace(" ", "")
    assert "stale-read" in own and "the order says 0-2" in own
    assert "|mine   |violated|" in judged and "G-single-realtime" in judged


@pytest.mark.parametrize(
    "text, said",
    [
        ("An error occurred while calling o1.collect.\n: java.lang.OutOfMemoryError: heap\n\tat x", "java.lang.OutOfM"),
        (
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File x\n    w()\n"
            "    ^\nOSError: No space left on device\n\nDuring handling:\nValueError",
            "OSError: No space left on device",
        ),
        ("An exception was thrown from the Python worker:", "An exception was thrown from the Python worker:"),
        ("Job aborted", "Job aborted"),
    ],
)  # fmt: skip
def test_what_failed_in_spark_is_told_in_a_line(text: str, said: str) -> None:
    assert jobs._cause(text).startswith(said) and "\n" not in jobs._cause(text)
