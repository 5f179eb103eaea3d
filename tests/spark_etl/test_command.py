"""The command line, as far as it gets without Spark, and the report."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from spark_etl.jobs import app
from spark_etl.report import COLUMNS_MIN, Property, Report, Violation, console, render
from tests.spark_etl.runs import bank_run


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["audit", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_directory_that_is_not_there(tmp_path: Path):
    code, output = run(tmp_path / "nowhere")
    assert code == 2 and output.count("\n") == 1 and "no such directory" in output


def test_a_directory_without_journals(tmp_path: Path):
    code, output = run(tmp_path)
    assert code == 2 and output.count("\n") == 1 and "no journal" in output


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
