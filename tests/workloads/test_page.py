"""The page of published results: every result finds its place, and nothing else on the page changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from multicast import bench as alone
from tests.client_sdk.fake import FakeCluster
from tests.workloads.test_against import line
from workloads.bench import against, compare, measure, page
from workloads.bench.measure import Plan
from workloads.bench.results import to_json
from workloads.cli import main

PARTS = ("etcd", "wrk", "open", "ycsb", "cluster", "protocols", "multicast")


def beside_etcd(**settings: Any) -> str:
    lines = {"etcd": [line("put", 100, 4.0)], "1 shard": [line("put", 250, 2.0)]}
    facts = {"cpu": "C", "cores": 2, "memory_gib": 1, "kernel": "L", "disk": "ext4"}
    told = {"load": "own", "open_loop": False, "kinds": ["put"], "records": 100, "value_bytes": 100, "seconds": 1.0}
    run = against.Against(
        rows=against.rows_of([lines]), rounds=[lines], failed=[], load_before=[0.1], machine=facts,
        versions={"etcd": "3"},
        settings={**told, "rounds": 1, "protocol": "white_box", "replicas": 3, **settings}, began="now",
    )  # fmt: skip
    return to_json(run)


def protocols() -> str:
    row = compare.Row(
        protocol="skeen", replicas=1, kind="txn", clients=4, per_second=7.0, p50_ms=1.0, p99_ms=2.0, ratio=1.0,
        errors={}, generator_cpu=0.1, fdatasync_ms=None,
    )  # fmt: skip
    facts = {"cpu": "C", "cores": 2, "memory_gib": 1, "kernel": "L"}
    settings = {"shards": 2, "durability": "fsync", "seconds": 1.0, "warmup_seconds": 1.0}
    made = compare.Comparison(
        baseline="skeen", rows=[row], failed={"toto": "no"}, load_before={"skeen": 0.1}, machine=facts, versions={},
        settings=settings, began="now",
    )  # fmt: skip
    return to_json(made)


async def cluster() -> str:
    async with FakeCluster() as fake:
        plan = Plan(seconds=0.1, warmup=0.0, records=100, clients=(1,), kinds=("get",))
        return to_json(await measure.measure(fake.urls, plan))


async def test_every_result_finds_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert alone.main(["--protocols", "skeen", "--bundles", "2", "--seconds", "0.05", "-o", "json"]) == 0
    results = {
        "etcd": beside_etcd(),
        "wrk": beside_etcd(load="wrk"),
        "open": beside_etcd(open_loop=True),
        "ycsb": beside_etcd(kinds=["ycsb-a"]),
        "cluster": await cluster(),
        "protocols": protocols(),
        "multicast": capsys.readouterr().out,
    }
    assert {name: page.section(json.loads(text))[0] for name, text in results.items()} == {n: n for n in PARTS}
    body = page.section(json.loads(results["etcd"]))[1]
    assert "| put | 100 | 1 shard | 250 | 2.50 | 2.00 | 2.00 |" in body
    assert "toto was not measured: no" in page.section(json.loads(results["protocols"]))[1]
    copy, files = tmp_path / "page.md", []
    copy.write_text(page.PAGE.read_text())
    for name, text in results.items():
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(text)
    assert page.update(copy, files) == list(PARTS)
    assert "Not measured yet" not in copy.read_text()
    assert copy.read_text().count("\n| --- |") == len(PARTS)


def test_only_its_part_of_the_page_changes(tmp_path: Path) -> None:
    before, after = "# T\n\n<!-- etcd: x -->\n", "<!-- end of etcd -->\n\nrest\n"
    copy, result = tmp_path / "page.md", tmp_path / "r.json"
    copy.write_text(f"{before}\nold\n\n{after}")
    result.write_text(beside_etcd())
    page.update(copy, [result])
    text = copy.read_text()
    assert text.startswith(before) and text.endswith(after) and "old" not in text
    page.update(copy, [result])
    assert copy.read_text() == text


@pytest.mark.parametrize(
    ("result", "says"),
    [("{}", "not a result"), ("x", "not a result"), (beside_etcd(load="wrk"), "one place for 'wrk'")],
)
def test_what_does_not_fit_is_one_line(
    result: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, file = tmp_path / "page.md", tmp_path / "r.json"
    copy.write_text("nothing")
    file.write_text(result)
    with pytest.raises(SystemExit):
        main(("bench-page", str(file), "--page", str(copy)))
    said = capsys.readouterr().err
    assert said.startswith("error: bench-page: ") and says in said and said.count("\n") == 1
    assert copy.read_text() == "nothing"
