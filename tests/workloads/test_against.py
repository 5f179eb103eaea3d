"""Beside etcd: what is compared with what, that etcd answers what it is asked, and that nothing is left, whatever
happens."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests import conftest
from tests.client_sdk.fake import FakeCluster
from tests.kvstore.live import wait_until
from tests.workloads.conftest import SECONDS
from workloads.bench import against, etcd, measure, wrk
from workloads.bench.clusters import uninterrupted
from workloads.bench.costs import Costs
from workloads.bench.load import Request
from workloads.bench.measure import Plan
from workloads.bench.results import Line
from workloads.cli import main

pytestmark = pytest.mark.usefixtures("counted")
needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed")
needs_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where clusters go; empty in the end."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def servers() -> list[str]:
    """Servers of these tests that run."""
    lines = conftest.left_behind(os.environ[conftest.MARK]).values()
    return [line for line in lines if "kvstore serve" in line or "--initial-cluster" in line]


def line(kind: str, per_second: float, p50_ms: float, clients: int = 100, **more: Any) -> Line:
    return Line(
        requests=10, p50_ms=p50_ms, p95_ms=p50_ms, p99_ms=9.0, max_ms=9.0, kind=kind, clients=clients,
        per_second=per_second, generator_cpu=0.1, errors=more.pop("errors", {}), **more,
    )  # fmt: skip


def body_of(request: Request) -> str:
    return request[1].partition(b"\r\n\r\n")[2].decode()


def test_ratios_are_those_of_medians_and_two_shards_stand_against_etcds_one_group() -> None:
    rounds = [
        {"etcd": [line("put", theirs, 4.0), line("txn1", 50, 4.0)],
         "2 shards": [line("put", ours, 2.0, costs=Costs(leader_us=ours)), line("txn", 25, 8.0, errors={"503": 1})]}
        for theirs, ours in ((100, 300), (110, 220), (900, 200))
    ]  # fmt: skip
    rows = {(row.store, row.kind): row for row in against.rows_of(rounds)}
    put = rows["2 shards", "put"]
    assert (put.per_second, put.spread, put.ratio, put.p50_ratio) == (220, (200, 300), 2.0, 2.0)
    assert put.costs.leader_us == 220
    assert put.costs.journal_bytes is None
    assert rows["etcd", "put"].ratio == 1.0
    transaction = rows["2 shards", "txn"]
    assert (transaction.ratio, transaction.p50_ratio, transaction.errors) == (0.5, 0.5, {"503": 3})


def test_shares_of_saturation_are_compared_with_one_another() -> None:
    lines = {
        name: [line("get", 1000, 1.0), line("get", rate, 1.0, rate=rate, share=0.5)]
        for name, rate in (("etcd", 500.0), ("1 shard", 700.0))
    }
    rows = [row for row in against.rows_of([lines]) if row.store == "1 shard"]
    assert [(row.share, row.ratio) for row in rows] == [(None, 1.0), (0.5, 1.4)]


def test_without_etcd_one_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit):
        main(("bench", "--against", "etcd"))
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "apt-get install etcd-server" in said
    with pytest.raises(SystemExit):
        main(("bench", "http://127.0.0.1:1", "--load", "wrk"))
    assert "apt-get install wrk" in capsys.readouterr().err


def test_a_turn_in_which_the_machine_stood_still_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [[line("put", 1, 1.0), line("get", 1, 1.0, still_ms=700)], [line("put", 2, 1.0)]]
    monkeypatch.setattr(against, "_turn", lambda name, plan, say: turns.pop(0))
    said: list[str] = []
    (one,) = against._undisturbed("etcd", Plan(), said.append)
    assert (one.per_second, len(said), turns) == (2, 1, [])


def test_a_machine_that_never_stops_standing_still_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [[line("put", n, 1.0, still_ms=600)] for n in range(against.TURNS_MAX)]
    monkeypatch.setattr(against, "_turn", lambda name, plan, say: turns.pop(0))
    lines = against._undisturbed("etcd", Plan(), lambda text: None)
    (row,) = against.rows_of([{"etcd": lines}])
    assert (row.per_second, row.errors, turns) == (against.TURNS_MAX - 1, {"ms stood still": 600}, [])


@needs_etcd
@pytest.mark.parametrize("api", [etcd.EtcdStore, etcd.GrpcEtcdStore])
def test_etcd_answers_what_it_is_asked(api: type[etcd.EtcdStore], temporary: Path) -> None:
    plan = Plan(clients=(4,), kinds=("put", "get", "txn1", "txn", "ycsb-e"), seconds=SECONDS, warmup=0.0, records=200)
    with etcd.fresh_etcd(api) as store:
        lines = asyncio.run(measure.lines_of(store, plan))
        over_http = etcd.EtcdStore(store.servers[0], store.all_servers)
        pairs = (("bench/1", "bench/2"), ("bench/1", "missing"))
        told = [etcd._ask(store.servers[0], "/v3/kv/txn", body_of(over_http.transaction(keys, "z"))) for keys in pairs]
        ranges = etcd._ask(store.servers[0], "/v3/kv/range", body_of(over_http.scan("bench/1", 5)))
        written = etcd._ask(store.servers[0], "/v3/kv/range", f'{{"key":"{etcd._b64("bench/5")}"}}')["kvs"][0]
    assert [one.kind for one in lines] == ["put", "get", "txn1", "ycsb-e"]
    assert all(one.requests > 0 and one.errors == {} for one in lines)
    assert (len(written["value"]), int(written["version"]) > 1) == (136, True)  # 100 bytes in base64
    put = lines[0].costs
    assert put.leader_us and put.follower_us and put.syncs and put.journal_bytes
    assert [one.get("succeeded", False) for one in told] == [True, False]
    assert [one["key"] for one in ranges["kvs"]] == [etcd._b64(f"bench/{n}") for n in (10, 100, 101, 102, 103)]
    assert (servers(), list(temporary.iterdir())) == ([], [])


@needs_etcd
def test_a_whole_run_tells_both(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(against, "STORES", {"etcd": 1, "etcd gRPC": 1, "2 shards": 2})
    monkeypatch.setattr(against, "REPLICAS", 1)
    plan = Plan(clients=(2,), kinds=("txn",), seconds=SECONDS, warmup=0.0, records=200)
    assert against.run(plan, 1, grpc=True, json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(row["store"], row["kind"]) for row in told["rows"]] == [
        ("etcd", "txn1"), ("etcd gRPC", "txn1"), ("2 shards", "txn1"), ("2 shards", "txn"),
    ]  # fmt: skip
    assert all(row["per_second"] > 0 and row["ratio"] > 0 and row["errors"] == {} for row in told["rows"])
    console = Console(width=170, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    against.show(against.Against(**{**told, "rows": [], "failed": ["etcd, round 1: no"]}), console)
    text = console.export_text()
    console.file.close()
    assert "not measured: etcd, round 1: no" in text
    assert "Three nodes of etcd" in text
    assert (servers(), list(temporary.iterdir())) == ([], [])


@needs_etcd
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_an_interruption_leaves_nothing(temporary: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "workloads", "bench", "--against", "etcd", "--seconds", "60"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        wait_until(lambda: len(servers()) == etcd.NODES or process.poll() is not None)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert b"Traceback" not in said
    assert (servers(), list(temporary.iterdir())) == ([], [])


@needs_wrk
async def test_wrk_sends_the_same_requests(temporary: Path) -> None:
    async with FakeCluster() as cluster:
        plan = Plan(clients=(1, 3), kinds=("get",), seconds=1.0, records=200, load="wrk")
        report = await measure.measure(cluster.urls, plan)
        paths = [path for replica in cluster.replicas for method, path, _ in replica.seen if method == "GET"]
    assert [(one.kind, one.clients) for one in report.lines] == [("get", 1), ("get", 3)]
    assert all(one.requests > 0 and 0 < one.p50_ms <= one.p99_ms and one.errors == {} for one in report.lines)
    assert len(set(paths)) > 5
    assert sum(one.requests for one in report.lines) <= len(paths)
    assert list(temporary.iterdir()) == []


@needs_wrk
async def test_what_wrk_is_refused_is_counted() -> None:
    async with FakeCluster() as cluster:
        cluster.replicas[0].always = "not_ready"
        plan = Plan(clients=(2,), kinds=("get",), seconds=0.5, records=200, load="wrk")
        (one,) = (await measure.measure(cluster.urls, plan)).lines
    assert one.errors["refused"] > 0
    assert one.requests > 0


def test_wrk_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(wrk.NoWrk, match="unable to connect"):
        wrk._count("put", "", "unable to connect to 127.0.0.1:1\n", measure.Tally())


def test_an_interruption_waits_until_what_was_started_is_known() -> None:
    known = False
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with uninterrupted(), uninterrupted():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            known = True
    assert known
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
