"""Starting Spark: being interrupted meanwhile, and the classes that are kept for it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_etl import session
from tests.kvstore.live import wait_until


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_waits_until_spark_has_started(number: int) -> None:
    before, done = signal.getsignal(number), []
    with pytest.raises(KeyboardInterrupt), session._later():
        os.kill(os.getpid(), number)
        done.append(number)
    assert done == [number] and signal.getsignal(number) is before


@pytest.mark.parametrize("told", [True, False])
def test_an_interruption_that_ends_java_too_is_no_failure_to_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: bool
) -> None:
    def killed(*_: object) -> None:
        if told:
            os.kill(os.getpid(), signal.SIGTERM)
        raise session.CannotStart("Java gateway process exited")

    monkeypatch.setattr(session, "_start", killed)
    with pytest.raises(KeyboardInterrupt if told else session.CannotStart), session.spark_session(tmp_path):
        raise AssertionError("it has not started")
    assert list(tmp_path.iterdir()) == []


class Gone:
    """A session whose Java has ended, or during whose end this happens."""

    def __init__(self, why: BaseException):
        self._why = why

    def stop(self) -> None:
        raise self._why


@pytest.mark.parametrize("why", [KeyboardInterrupt, ValueError])
def test_who_ends_when_java_has_gone_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, why: type[BaseException]
) -> None:
    monkeypatch.setattr(session, "_start", lambda *_: Gone(ConnectionRefusedError("Connection refused")))
    with pytest.raises(why), session.spark_session(tmp_path):
        raise why
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_of_its_end_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session, "_start", lambda *_: Gone(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt), session.spark_session(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["tmp"]
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_is_one_whatever_fails_because_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session, "_start", lambda *_: Gone(ConnectionRefusedError("Connection refused")))
    with pytest.raises(KeyboardInterrupt), session.spark_session(tmp_path):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise ValueError("Gateway must be connected to send cancel cmd.")  # noqa: B904 (so does Py4J)
    assert list(tmp_path.iterdir()) == []


INTERRUPTED = """
import os, pathlib, signal, sys
from spark_etl import gateway, session
def started(jvm):
    from pyspark import SparkContext
    print(SparkContext._gateway.proc.pid, flush=True)
    os.killpg(0, signal.SIGINT)
gateway.remember = started
try:
    with session.spark_session(pathlib.Path(sys.argv[1]), "local[1]", "1g"):
        print("nobody has interrupted it")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interruption_that_comes_when_java_has_just_started_leaves_neither_it_nor_its_files(tmp_path: Path) -> None:
    """PySpark would have a handler of its own from then on."""
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, start_new_session=True)
    java, said = done.stdout.splitlines()
    assert said == "interrupted"
    assert [path.name for path in tmp_path.iterdir()] == ["spark.log"]
    wait_until(lambda: not Path("/proc", java).exists())


def test_java_that_goes_leaves_no_stack_trace(spark: Any, capfd: pytest.CaptureFixture[str]):
    server = spark.sparkContext._accumulatorServer
    try:
        raise EOFError
    except EOFError:
        server.handle_error(None, server.server_address)
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """In whose name has a space."""
    place = tmp_path / "an installation"
    monkeypatch.setattr(sys, "prefix", str(place))
    return place


def test_classes_are_kept_for_one_version_of_java(installation: Path):
    mine, other = session.kept_classes('openjdk version "17.0.15"'), session.kept_classes('openjdk version "21"')
    assert mine != other and installation in mine.parents
    assert session._classes(mine, None) == ""
    mine.parent.mkdir(parents=True)
    mine.touch()
    assert f'-XX:SharedArchiveFile="{mine}"' in session._classes(mine, None)
    assert session._classes(other, None) == ""
    assert f'-XX:ArchiveClassesAtExit="{other}"' in session._classes(mine, other)


def test_so_they_are_whatever_its_options(monkeypatch: pytest.MonkeyPatch):
    plain = session.check_java()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx64m")
    assert session.check_java() == plain


def test_what_java_says_of_classes_that_do_not_fit_or_else_is_not_on_standard_output(installation: Path):
    """As JSON may be."""
    java, kept = shutil.which("java"), installation / "kept.jsa"
    assert java is not None
    kept.parent.mkdir()
    kept.touch()
    flags = session._classes(kept, None).replace('"', "").split(" -")[1:]
    odd = ("-XX:+UseSerialGC", "-Xmx64m", "-XX:NewSize=128m", "-version")
    done = subprocess.run([java, *(f"-{flag}" for flag in flags), *odd], capture_output=True, text=True, check=True)
    assert done.stdout == "" and "[warning]" in done.stderr


PREPARE = """
import sys, pathlib
sys.prefix = sys.argv[1]
from spark_etl.prepare import prepare
print(prepare(print))
"""
MAPPED = """
import sys, pathlib
sys.prefix = sys.argv[1]
from spark_etl.session import spark_session
with spark_session(pathlib.Path(sys.argv[2])) as spark:
    print(pathlib.Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read_text())
"""


TWO = """
import sys, pathlib
from spark_etl import session
session.SMALL_INPUT_BYTES = 0
def options(spark):
    java = spark.sparkContext._gateway.proc
    print(spark.range(5).count(), "TieredStopAtLevel=1" in pathlib.Path(f"/proc/{java.pid}/cmdline").read_text())
    return java
with session.sessions(pathlib.Path(sys.argv[1]), "local[1]", "1g", 1) as (spark, heavier):
    first = options(spark)
    second = options(heavier())
    print(first.poll() is None, second.poll() is None)
"""


@pytest.mark.full
def test_much_input_gets_another_java_once_its_rows_are_looked_at(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", TWO, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.splitlines() == ["5 True", "5 False", "False True"]
    assert [path.name for path in tmp_path.iterdir()] == ["spark.log"]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_an_audit_maps_the_classes_that_were_kept(installation: Path, tmp_path: Path):
    def python(program: str) -> str:
        command = [sys.executable, "-c", program, str(installation), str(tmp_path / "out")]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    kept = session.kept_classes(session.check_java())
    assert python(PREPARE).splitlines()[-1] == str(kept)
    assert list(kept.parent.iterdir()) == [kept]
    assert str(kept) in python(MAPPED)
