"""The command line, as far as it gets without Spark, and the report."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from kvstore.simulated.__main__ import app as schedules
from multicast.records import COMPLETED, DELIVERED, scan
from spark_etl.jobs import app
from spark_etl.names import GUARANTEES
from spark_etl.report import (
    COLUMNS_MIN,
    REPORT_VERSION,
    STEPS_SHOWN,
    Property,
    Report,
    Violation,
    console,
    render,
    render_violation,
)
from tests.house import ROOT
from tests.spark_etl.runs import SEGMENT, bank_run, transaction_id


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["audit", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_directory_that_is_not_there(tmp_path: Path):
    code, output = run(tmp_path / "nowhere")
    assert code == 2 and output.count("\n") == 1 and "no such directory" in output


def test_a_directory_without_journals(tmp_path: Path):
    code, output = run(tmp_path)
    assert code == 2 and output.count("\n") == 1 and "no journal" in output


def test_a_round_of_a_watch_has_an_end(tmp_path: Path):
    result = CliRunner().invoke(app, ["watch", str(tmp_path / "nowhere"), "--every", "inf"])
    assert result.exit_code == 2 and "--every" in result.output


@pytest.mark.parametrize("command", [["schema"], ["show", "README.md", "1"], ["show", "nowhere", "1"]])
def test_what_needs_no_spark_does_not_load_it(command: list[str]):
    program = "import sys; from spark_etl.jobs import app; app({!r}, standalone_mode=False);"
    told = "print({*sys.modules} & {'pyspark.sql.dataframe', 'scipy', 'numpy', 'pyarrow'}, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program.format(command) + told], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "set()"


@pytest.mark.parametrize("says", [None, 'openjdk version "11.0.2"', 'java version "1.8.0_292"'])
def test_without_a_fit_java_one_line_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str | None):
    directory = bank_run().write(tmp_path / "run")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if says is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        java = tmp_path / "java"
        java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
        java.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    code, output = run(directory, "--quiet")
    assert code == 2 and output.count("\n") == 1
    assert "Java 17" in output and "apt install" in output
    assert not (directory / "audit").exists()


def report(*properties: Property, problems: tuple[str, ...] = ()) -> Report:
    return Report("run", list(properties), list(problems), [], {"replicas": 6}, 1.5)


def test_a_violation_outweighs_damage_and_damage_outweighs_pending():
    fine, late = Property("a", "valid", 1, 0.1), Property("b", "pending", 1, 0.1)
    wrong = Property("c", "violated", 1, 0.1, 1, [Violation("stale-read", "why")])
    open_ = Property("d", "not determined", 1, 0.1)
    assert report(fine, late).exit_code == 0
    assert report(fine, open_).exit_code == 2
    assert report(fine, problems=("a file",)).exit_code == 2
    assert report(wrong, open_, problems=("a file",)).exit_code == 1


def test_the_table_shows_verdicts_violations_and_steps():
    violation = Violation("G-single", "a circle", ["t1"], ["x"], steps=["rw: one", "wr: two"])
    prop = Property("serializability", "violated", 1234, 0.1, 30, [violation])
    whole = report(prop, problems=("file, byte 7: torn",))
    console = Console(record=True, width=60)
    render(whole, console)
    text = console.export_text()
    for expected in ("serializability", "violated", "1,234", "G-single: a circle", "    rw: one", "29 more", "byte 7"):
        assert expected in text
    assert "verdict: violated" in text


def test_off_a_terminal_the_table_is_not_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.delenv("COLUMNS", raising=False)
    long = Property("a name of some fifty characters, which are a good many", "not applicable", 10**9, 12.5, 10**6)
    render(report(long), console())
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("a name"))
    assert "a good many" in line and line.rstrip().endswith("12.5") and len(line) <= COLUMNS_MIN
    monkeypatch.setenv("COLUMNS", "200")
    assert console().width == 200


@pytest.mark.parametrize("width", [80, 200])
def test_a_terminal_gets_names_and_verdicts_whole_and_nothing_that_steers_it(width: int):
    steering = Violation("stale-read", "key \x1b[2J", steps=["step \x1b]0;title\x07"])
    properties = [Property(name, "not determined", 1_234_567, 12.3, 0) for name in GUARANTEES]
    whole = report(Property("serializability", "violated", 7, 0.1, 12_345, [steering]), *properties)
    terminal = Console(record=True, width=width, force_terminal=True, file=StringIO())
    render(whole, terminal)
    text = terminal.export_text()
    rows = [line for line in text.splitlines() if "│" in line]
    assert all(any(row.startswith(name) for row in rows) for name in GUARANTEES)
    assert all(len(row) <= width and "…" not in row for row in rows)
    assert "key \\u001b[2J" in text and "step \\u001b]0;title\\u0007" in text and "\x1b" not in text


def test_a_terminal_shows_the_beginning_and_the_end_of_a_long_cycle():
    steps = [f"step {number} of many" for number in range(300)]
    terminal = Console(record=True, width=COLUMNS_MIN, file=StringIO())
    render_violation(Violation("G0", "a circle", steps=steps), terminal)
    lines = terminal.export_text().split("\n    ")[1:]
    half = STEPS_SHOWN // 2
    assert [line.strip() for line in lines] == [*steps[:half], "… and 276 more steps, in the JSON", *steps[-half:]]


def test_show_prints_the_record_at_a_byte_and_the_line_of_a_history(tmp_path: Path):
    directory = bank_run().write(tmp_path / "run")
    segment, history = directory / "replicas" / "0" / "journal" / SEGMENT, directory / "history" / "clients.jsonl"
    places = {kind: at for at, kind, _ in scan(segment.read_bytes())}  # the last of each kind
    delivered = json.loads(call("show", segment, places[DELIVERED])[1])
    assert delivered["kind"] == "Delivered" and delivered["position"] == 13 and delivered["replica"] == 0
    done = json.loads(call("show", segment, places[COMPLETED])[1])
    assert done["record"]["timestamp"] == delivered["timestamp"]
    (outcome,) = done["record"]["outcomes"]
    assert outcome["id"] == str(uuid.UUID(bytes=transaction_id(12)))
    assert [read["key"] for read in outcome["reads"]] == ["a1", "a2"]
    assert json.loads(json.loads(call("show", history, 1)[1])["text"])["type"] == "invoke"
    for wrong, says in (
        ((segment, places[COMPLETED] + 1), "no good record begins at byte"),
        ((segment, 10**9), "no good record"),
        ((segment, 0), "no good record"),
        ((history, 10**6), "there is no line"),
        ((history, 0), "there is no line 0"),
        ((history, 10**20), "there is no line 1000"),
        ((tmp_path / "no.seg", 1), "there is no such file"),
        ((bad(tmp_path), 44), "not a journal segment"),
    ):
        code, output = call("show", *wrong)
        assert code == 2 and output.count("\n") == 1 and says in output, output


def test_the_pages_show_what_the_run_that_is_made_to_fail_is_like(tmp_path: Path):
    """Its versions and times, and the record at a byte; the audit's sentences have tests of their own."""
    first, own = (ROOT / "README.md").read_text(), (ROOT / "spark_etl" / "README.md").read_text()
    (wanted,) = re.findall(r"^\$ python -m kvstore\.simulated (schedule .*) --out run/failing$", first, re.MULTILINE)
    done = CliRunner().invoke(schedules, [*wanted.split(), "--out", str(tmp_path / "run/failing")])
    assert done.exit_code == 0, done.output
    excerpt = first[first.index("--out run/failing") : first.index("page: run/failing")]
    assert set(re.findall(r"\(version\s+(\S+)\)", excerpt)) <= set(re.findall(r"version (\S+)", done.output))
    history = (tmp_path / "run/failing/history/clients.jsonl").read_text().splitlines()
    at = {event["at_us"] for event in map(json.loads, history)}
    assert {int(when.replace(".", "")) for when in re.findall(r"(1700000000\.\d+) s", excerpt)} <= at
    ((arguments, shown),) = re.findall(r"^    \$ python -m spark_etl (show .*)\n((?:    .*\n)+)    +\.\.\.$", own, re.M)
    command, file, place = arguments.split()
    lines = call(command, tmp_path / file, place)[1].splitlines()
    assert [f"    {line}" for line in lines[: shown.count("\n")]] == shown.splitlines()


def bad(directory: Path) -> Path:
    (directory / "bad.seg").write_bytes(b"PAR1" * 100)
    return directory / "bad.seg"


@pytest.mark.parametrize(("what", "title"), [("audit", "Report"), ("check-history", "HistoriesReport")])
def test_the_schema_is_that_of_the_report(what: str, title: str):
    schema = json.loads(call("schema", what)[1])
    assert schema["$ref"].endswith(title) and schema["$defs"][title]["properties"]["version"]["type"] == "integer"


def test_every_field_of_version_2_is_still_there():
    """Programs read them. Fields may be added; one that is renamed, or changes its type, needs a new version."""
    defined = msgspec.json.schema(Report)["$defs"]
    fields = {name: " ".join(sorted(defined[name]["properties"])) for name in defined}
    assert REPORT_VERSION == 2
    for name, known in FIELDS.items():
        assert set(known.split()) <= set(fields[name].split()), name


FIELDS = {
    "Report": "course input models notes problems properties run seconds strongest verdict version",
    "Property": "examples name note rows seconds verdict violations",
    "Violation": "edges evidence keys name operations positions replicas sentence steps transactions",
    "Operation": "f id version", "Edge": "key kind sentence source target", "Evidence": "byte file line text",
    "ModelVerdict": "name verdict why", "Course": "deliveries lives operations slice_seconds",
    "Point": "count max_ms median_ms p99_ms second unknown", "Life": "began ended how replica shard",
}  # fmt: skip


def test_every_command_says_what_its_exit_status_means_and_has_an_example():
    for command in ("audit", "extract", "check", "report", "check-history", "show"):
        code, output = call(command, "--help")
        assert code == 0 and "Exit status: " in output and f"python -m spark_etl {command} " in output
        assert all(len(line) <= 80 for line in output.splitlines())


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "80"})
    return result.exit_code, result.output
