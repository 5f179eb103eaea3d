"""Protocols side by side: what is measured, what one failure costs, and that no cluster is left, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from multicast import registry
from tests import conftest
from tests.kvstore.live import wait_until
from tests.workloads.conftest import SECONDS
from workloads.bench import clusters as fresh
from workloads.bench import compare
from workloads.bench.measure import Plan

pytestmark = pytest.mark.usefixtures("counted")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where clusters go; empty in the end."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def clusters() -> list[str]:
    """Replicas of these tests that run."""
    return [line for line in conftest.left_behind(os.environ[conftest.MARK]).values() if "kvstore serve" in line]


def test_protocols_are_all_or_named() -> None:
    assert compare.chosen("all") == registry.names()
    assert compare.chosen("skeen, white_box,skeen") == ["skeen", "white_box"]
    with pytest.raises(registry.UnknownProtocol, match="did you mean 'skeen'"):
        compare.chosen("skean")
    with pytest.raises(ValueError, match="all, or names"):
        compare.chosen(" ,")


def test_fresh_clusters_one_after_the_other_in_one_table(temporary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan(clients=(1, 4), kinds=("txn",), seconds=SECONDS, warmup=0.0, records=200)
    status = compare.run("skeen,sequencer", plan, json=True)
    said = capsys.readouterr()
    assert status == 0, said.err
    told = json.loads(said.out)
    assert told["baseline"] == "skeen"
    assert list(told["load_before"]) == ["skeen", "sequencer"]
    rows = told["rows"]
    assert [(r["protocol"], r["kind"], r["clients"]) for r in rows] == [
        (protocol, "txn", n) for protocol in ("skeen", "sequencer") for n in (1, 4)
    ]
    assert all(r["per_second"] > 0 and 0 < r["p50_ms"] <= r["p99_ms"] and r["errors"] == {} for r in rows)
    assert [r["ratio"] for r in rows[:2]] == [1.0, 1.0]
    assert rows[3]["ratio"] == round(rows[3]["per_second"] / rows[1]["per_second"], 3)
    assert (clusters(), list(temporary.iterdir())) == ([], [])


def test_one_that_does_not_start_costs_only_its_own_rows(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_kvstore = fresh.run_kvstore

    def fail(limit: float, *arguments: str) -> None:
        run_kvstore(limit, *arguments)
        if "skeen" in arguments:
            (Path(arguments[2]) / "cluster.json").write_text("{}")

    monkeypatch.setattr(fresh, "run_kvstore", fail)
    said: list[str] = []
    plan = Plan(clients=(1,), kinds=("txn",), seconds=SECONDS, warmup=0.0, records=200)
    result = compare.compare(["skeen", "sequencer"], plan, said.append)
    assert list(result.failed) == ["skeen"]
    assert "cluster.json" in result.failed["skeen"]
    assert [(row.protocol, row.ratio) for row in result.rows] == [("sequencer", None)]
    console = Console(width=140, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    compare.show(result, console)
    text = console.export_text()
    console.file.close()
    assert "skeen was not measured: kvstore cluster up: " in text
    assert "txn, two shards" in text
    assert (clusters(), list(temporary.iterdir())) == ([], [])


def test_a_cluster_that_does_not_stop_is_told_once_more(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fail_once(limit: float, *arguments: str) -> None:
        asked.append(arguments[1])
        if asked == ["init", "up", "down"]:
            raise fresh.ClusterFailed("not done within 60 s")

    monkeypatch.setattr(fresh, "run_kvstore", fail_once)
    with fresh.fresh_cluster("skeen", 1, 1):
        pass
    assert asked == ["init", "up", "down", "down"]


def test_a_bad_option_is_refused_before_anything_is_started() -> None:
    with pytest.raises(ValueError, match="clients: each from 1"):
        compare.run("all", Plan(clients=(0,)))
    assert clusters() == []


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.full), signal.SIGINT])
def test_an_interruption_leaves_nothing(temporary: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "workloads", "bench", "--protocols", "sequencer", "--seconds", "60"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        wait_until(lambda: len(clusters()) == compare.SHARDS or process.poll() is not None)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert b"Traceback" not in said
    assert (clusters(), list(temporary.iterdir())) == ([], [])
