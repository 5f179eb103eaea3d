"""The benchmark of a running cluster counts what happened, and what it cost."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from client_sdk import AsyncClient
from client_sdk.routing import ClusterView
from kvstore.api.shard_map import ShardMap
from tests.client_sdk.fake import FakeCluster
from tests.workloads.conftest import SECONDS, Counted
from workloads.bench import costs, kinds, measure, results
from workloads.bench.load import Load, Operation, Tally
from workloads.bench.measure import Plan
from workloads.bench.store import KvStore

pytestmark = pytest.mark.usefixtures("counted")


async def measured(change: Callable[[FakeCluster], None] = lambda _: None, **options: Any) -> results.Report:
    async with FakeCluster() as cluster:
        change(cluster)
        return await measure.measure(cluster.urls, Plan(seconds=SECONDS, warmup=0.0, records=200, **options))


async def test_every_kind_is_measured_at_every_number_of_clients() -> None:
    report = await measured(clients=(1, 4))
    assert [(line.kind, line.clients) for line in report.lines] == [(k, n) for k in kinds.KINDS for n in (1, 4)]
    for line in report.lines:
        assert line.errors == {}
        assert Counted.OPERATIONS - line.clients < line.requests <= Counted.OPERATIONS
        assert 0 < line.p50_ms <= line.p95_ms <= line.p99_ms <= line.max_ms
        assert line.fdatasync_ms == 0.5
    assert report.cluster["durability"] == "none"
    told = json.loads(results.to_json(report))
    assert told["machine"]["cores"] >= 1
    assert told["versions"]["python"].startswith("3.")
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    results.show(report, console)
    text = console.export_text()
    console.file.close()
    for word in ("durability none", "fdatasync", "p99 ms", "in all", "two comparisons and two puts: txn1 on one shard"):
        assert word in text


async def test_costs_are_told_per_request(counted: type[Counted]) -> None:
    counted.OPERATIONS = 400
    report = await measured(clients=(4,), kinds=("put",))
    (line,) = report.lines
    # The fake's replicas say that a request takes 1000 µs and 100 bytes; what is under way at a look may count once.
    assert line.costs.leader_us == pytest.approx(1000, rel=0.05)
    assert line.costs.journal_bytes == pytest.approx(100, rel=0.05)
    assert line.costs.follower_us == 0
    assert line.costs.load_us is not None and line.costs.load_us > 0
    assert line.costs.bundle == 3
    assert line.costs.memory_mib == 4
    assert line.costs.syncs is None


async def test_a_machine_that_stands_still_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's event loop stands for the machine: it does nothing for a while."""
    monkeypatch.setattr(measure, "STILL_SECONDS", 0.2)
    loop = asyncio.get_running_loop()

    class StandsStill(Counted):
        def run(self) -> Tally:
            loop.call_soon_threadsafe(threading.Event().wait, 0.5)
            return super().run()

    monkeypatch.setattr(measure, "Load", StandsStill)
    (line,) = (await measured(clients=(1,), kinds=("get",))).lines
    assert line.still_ms >= 300
    assert "ms stood still" in results.cells([line])[0][-1]


async def test_open_loop_asks_at_shares_of_what_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is asked without a rate answers 100 in a second, and 50 if they are more than one."""
    asked: list[tuple[int, float]] = []

    class Reached(Load):
        def __init__(self, urls: Any, clients: int, make: Any, seconds: float, warmup: float, rate: float, *rest: Any):
            super().__init__(urls, clients, make, seconds, warmup, rate, *rest)
            asked.append((clients, rate))
            self.tally.latencies["get"] = [1_000_000] * round(seconds * (rate or 100 / clients))

        def run(self) -> Tally:
            return self.tally

    monkeypatch.setattr(measure, "Load", Reached)
    report = await measured(clients=(1, 2), kinds=("get",), open_loop=True)
    assert asked == [(1, 0), (2, 0), (2, 25.0), (2, 50.0), (2, 75.0)]
    assert [(line.rate, line.share, line.per_second) for line in report.lines[2:]] == [
        (25.0, 0.25, 25.0), (50.0, 0.5, 50.0), (75.0, 0.75, 75.0),
    ]  # fmt: skip


async def test_ycsb_tells_each_operation() -> None:
    report = await measured(clients=(4,), kinds=("ycsb-e", "ycsb-f"))
    ranges, modify = report.lines
    assert (ranges.errors, modify.errors) == ({}, {})
    assert ranges.operations.keys() == {"scan", "insert"}
    assert modify.operations.keys() == {"read", "read-modify-write"}
    assert modify.requests == sum(one.requests for one in modify.operations.values())
    assert modify.operations["read-modify-write"].p50_ms > modify.operations["read"].p50_ms


async def test_refusals_are_counted_as_what_they_are() -> None:
    def refuse(cluster: FakeCluster) -> None:
        # The preloading is to succeed: it tries again elsewhere.
        cluster.replicas[0].always = "not_ready"

    report = await measured(refuse, clients=(2,), kinds=("get",))
    (line,) = report.lines
    assert line.errors["503"] > 2
    assert line.requests > 0


async def test_broken_connections_are_counted_and_opened_again(counted: type[Counted]) -> None:
    counted.OPERATIONS = 400

    def drop(cluster: FakeCluster) -> None:
        for replica in cluster.replicas:
            replica.faults.extend(([""] * 100 + ["reset_after"]) * 20)

    report = await measured(drop, clients=(2,), kinds=("put",))
    (line,) = report.lines
    assert line.errors.keys() == {"lost"}
    assert line.requests > line.errors["lost"]


@pytest.mark.parametrize(
    "options",
    [{"kinds": ("push",)}, {"clients": (0,)}, {"clients": ()}, {"value_bytes": 0}, {"distribution": "normal"}],
)
async def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"kinds|clients|value_bytes|distribution"):
        await measure.measure("http://127.0.0.1:1", Plan(**options))


def store_of(shard_map: ShardMap, with_ids: bool = True) -> KvStore:
    urls: dict[int, tuple[str, ...]] = {shard: (f"http://127.0.0.1:{shard + 1}",) for shard in (0, 1)}
    view = ClusterView("0" * 32, shard_map, urls, {}, 1000)
    return KvStore(view, AsyncClient(urls[0]), random.Random(1), with_ids)


@pytest.mark.parametrize(("kind", "shards"), [("txn1", 1), ("txn", 2)])
def test_transactions_touch_as_many_shards_as_they_say(kind: str, shards: int) -> None:
    shard_map = ShardMap.even([0, 1])
    make = kinds.workload(kind, store_of(shard_map), 100, 200, "", 1)
    for _ in range(200):
        operation = make()
        assert isinstance(operation, Operation)
        ((place, request),) = operation.requests
        transaction = json.loads(request.partition(b"\r\n\r\n")[2])
        keys = [put["key"].encode() for put in transaction["success"]]
        assert len(keys) == 2
        assert shard_map.shard_of(keys[0]) == place
        assert len({shard_map.shard_of(key) for key in keys}) == shards


def test_writes_carry_ids_of_their_own_unless_they_will_be_repeated() -> None:
    with_ids, without = (store_of(ShardMap.even([0, 1]), one) for one in (True, False))
    assert with_ids.put("k/1", "v") != with_ids.put("k/1", "v")
    assert b"Idempotency-Key" in with_ids.transaction(("k/1", "k/2"), "v")[1]
    assert without.put("k/1", "v") == without.put("k/1", "v")
    assert b"Idempotency-Key" not in without.transaction(("k/1", "k/2"), "v")[1]


def test_metrics_are_read_without_their_labels() -> None:
    text = '# HELP a b\na 1.5\nb{c="d"} 2\nkvstore_syncs 1e+06\n'
    assert costs.parse(text) == {"a": 1.5, "kvstore_syncs": 1e6}
