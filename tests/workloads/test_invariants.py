"""The workloads with invariants, against a cluster that fails at random."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from client_sdk import AsyncClient, KvError
from kvstore.core.audit import HistoryEvent
from tests.client_sdk.fake import FakeCluster
from tests.workloads.test_bank import FAULTS, check_well_formed
from workloads import invariants


class Enough:
    """Stops a run when its counts say so; it would take 50 seconds otherwise."""

    def __init__(self, holds: Callable[[Counter[str]], bool], monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(invariants, "PROGRESS_SECONDS", 0.1)
        self.told: list[int] = []
        self.stop = asyncio.Event()
        self.holds = holds

    def on_pause(self, counts: Counter[str]) -> None:
        self.told.append(counts.total())
        if self.holds(counts):
            self.stop.set()

    async def run(self, name: str, cluster: FakeCluster, directory: Path, **options: Any) -> tuple[Counter[str], bool]:
        told = await invariants.run(
            name, cluster.urls, directory=directory, seconds=50.0, stop=self.stop, on_pause=self.on_pause, **options
        )
        assert self.stop.is_set()
        return told


def events_of(directory: Path, name: str) -> list[HistoryEvent]:
    lines = (directory / "history" / f"{name}.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=HistoryEvent) for line in lines]


@pytest.mark.parametrize("name", sorted(invariants.WORKLOADS))
async def test_histories_are_well_formed_under_faults_and_say_what_was_added_and_seen(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    reader = invariants.WORKLOADS[name].reader
    enough = Enough(lambda counts: counts.total() > 30 and counts[reader] > 2, monkeypatch)
    rng = random.Random(name)
    async with FakeCluster() as cluster:
        for replica in cluster.replicas:
            replica.faults.extend([""] * 8 + [rng.choice(FAULTS) for _ in range(100)])
        counts, answered = await enough.run(name, cluster, tmp_path, clients=3)
        assert answered
    events = events_of(tmp_path, name)
    check_well_formed(events)
    reads = [e for e in events if e.f == reader and e.type == "ok"]
    assert len(reads) == counts[reader]
    assert all(e.value is not None for e in reads)
    changes = [e for e in events if e.type == "invoke" and e.f in ("set_add", "counter_add", "fork_write")]
    assert all(e.value for e in changes)
    assert bool(changes) == (name != "cycle")


async def test_a_swap_leaves_one_ring():
    async with FakeCluster() as cluster, AsyncClient(cluster.urls) as store:
        workload = invariants.Cycle(store, None)
        await workload.open()
        rng = random.Random(1)
        for _ in range(60):
            await workload.step(rng, 0)
        assert workload.counts["cycle_swap"] > 20
        way = [0]
        rows = {key: int(value) for key, (value, _) in cluster.rows.items()}
        for _ in workload.keys:
            way.append(rows[workload.keys[way[-1]]])
        assert way[-1] == 0 and sorted(way[:-1]) == list(range(workload.SIZE))
        assert way != [*range(workload.SIZE), 0]


async def test_two_runs_on_one_cluster_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with FakeCluster() as cluster:
        for _ in range(2):
            enough = Enough(lambda counts: counts["set_add"] > 0 < counts["set_read"], monkeypatch)
            await enough.run("set", cluster, tmp_path, clients=1)
    first, second = events_of(tmp_path, "set"), events_of(tmp_path, "set-2")
    assert first and second
    added = [{x for e in events if e.f == "set_add" for x in e.value or {}} for events in (first, second)]
    seen = {x for e in second if e.f == "set_read" for x in e.value or {}}
    assert not added[0] & added[1] and seen <= added[1]


async def test_what_is_not_answered_in_time_is_of_unknown_outcome_and_progress_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    enough = Enough(lambda counts: counts["unknown"] > 2 and len(enough.told) >= 3, monkeypatch)
    async with FakeCluster() as cluster:
        for replica in cluster.replicas:
            replica.faults.extend([""] * 8 + ["hang_after", "", ""] * 200)
        counts, answered = await enough.run("counter", cluster, tmp_path, clients=4, timeout=0.2)
    assert answered
    assert enough.told == sorted(enough.told)
    events = events_of(tmp_path, "counter")
    check_well_formed(events)
    assert sum(e.type == "info" for e in events) == counts["unknown"]


@pytest.mark.parametrize("name", sorted(invariants.WORKLOADS))
async def test_a_run_in_which_nothing_was_answered_failed(name: str):
    async with FakeCluster() as cluster:
        with pytest.raises(KvError, match="no operation was answered"):
            await invariants.run(name, cluster.urls, clients=0, seconds=0.05)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["set", "x", "--clients", "0"], "from 1 to 1000"),
        (["set", "x", "--seconds", "nan"], "a positive number"),
        (["set", "x", "--timeout", "-1"], "a positive number"),
    ],
)
def test_bad_usage_is_one_line_of_reason(
    arguments: list[str], why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.argv", ["invariants", *arguments])
    with pytest.raises(SystemExit) as ended:
        invariants.main()
    assert ended.value.code == 2 and why in capsys.readouterr().err.splitlines()[-1]
