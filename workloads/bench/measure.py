"""How fast a running cluster is over HTTP, and what that costs it: one line per kind of request and number of clients.

Closed loop: each client has one request under way and sends the next when it is answered; requests go to the leader of
the (first) shard that they touch. Open loop (`Plan.open_loop`, `Plan.rate`): requests fall due at a given rate, see
`workloads.bench.load`. Only answers of the measured seconds after the warm-up count; whatever is not a success is
counted by status, never dropped.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from hdrh.histogram import HdrHistogram
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from client_sdk import AsyncClient, KvError
from client_sdk.routing import ClusterView, find_urls
from workloads.bench.costs import between, look, sync_ms
from workloads.bench.kinds import KINDS, RECORDS, VALUE_BYTES, Workload, check_kinds, workload
from workloads.bench.load import Load, Tally
from workloads.bench.results import Latency, Line, Report, clients_text, machine, show, to_json, versions
from workloads.bench.store import KvStore, Store
from workloads.bench.wrk import WrkLoad, find_wrk

CLIENTS = (1, 16, 100, 256)
CLIENTS_MAX = 8192
"""Past capacity, in open loop, as many are needed as may be under way."""
SECONDS = 4.0
WARMUP_SECONDS = 1.0
SHARES = (0.25, 0.5, 0.75)
"""Of saturation, at which open loop is measured."""
LOADS = ("own", "wrk")
LATENCY_US_MAX = 60_000_000
LIBRARIES = ("lmdb", "msgpack", "msgspec", "tenacity")
STILL_SECONDS = 0.5
"""A process that is woken so much too late was not merely waiting for its turn."""
_WATCH_SECONDS = 0.05
_OVERHEAD_SECONDS = 0.4


class Plan(msgspec.Struct, kw_only=True, frozen=True):
    """What is measured.

    seconds, warmup: for each line. value_bytes: of every value written. records: how many keys there are.
    distribution: of YCSB's keys, "" for the workload's own. open_loop: also at SHARES of the highest throughput just
    measured. rate: instead of closed loop, so many operations per second from as many clients as may be.
    load: "own" (`workloads.bench.load`) or "wrk", which is asked for closed loop only.
    """

    clients: tuple[int, ...] = CLIENTS
    kinds: tuple[str, ...] = KINDS
    seconds: float = SECONDS
    warmup: float = WARMUP_SECONDS
    value_bytes: int = VALUE_BYTES
    records: int = RECORDS
    distribution: str = ""
    open_loop: bool = False
    rate: float = 0.0
    load: str = "own"
    seed: int = 1

    def check(self) -> None:
        """ValueError that names the option and its limits."""
        check_kinds(self.kinds, self.value_bytes, self.records, self.distribution)
        if not self.clients or min(self.clients) < 1 or max(self.clients) > CLIENTS_MAX:
            raise ValueError(f"clients: each from 1 to {CLIENTS_MAX}")
        if not 0.1 <= self.seconds <= 600 or not 0 <= self.warmup <= 60:
            raise ValueError("seconds: from 0.1 to 600; warmup: from 0 to 60")
        if self.load not in LOADS:
            raise ValueError(f"load: {', '.join(LOADS)}, not {self.load!r}")
        if self.load == "wrk":
            if self.rate or self.open_loop or any(kind not in KINDS for kind in self.kinds):
                raise ValueError(f"wrk sends {', '.join(KINDS)} in closed loop only")
            find_wrk()
        if self.rate and (not 1 <= self.rate <= 1_000_000 or self.open_loop):
            raise ValueError("rate: from 1 to 1000000 per second, and not together with shares of saturation")

    def kinds_for(self, shards: int) -> tuple[str, ...]:
        """Those that a store with so many shards can be asked for."""
        return tuple(kind for kind in self.kinds if shards > 1 or kind != "txn")

    def lines(self, shards: int = 2) -> int:
        """How many lines there will be."""
        per_kind = 1 if self.rate else len(self.clients) + (len(SHARES) if self.open_loop else 0)
        return per_kind * len(self.kinds_for(shards))

    def expected_seconds(self, shards: int = 2) -> float:
        """About how long measuring one store will take, without starting it."""
        return self.lines(shards) * (self.seconds + self.warmup + _OVERHEAD_SECONDS) + 3


OnLine = Callable[[Line, int, int], None]
"""Called after each line: (line, lines done, lines in all)."""


# -- measuring ---------------------------------------------------------------------------------------------------------


async def lines_of(store: Store, plan: Plan, on_line: OnLine | None = None) -> list[Line]:
    """Everything that the plan says, on one store. OSError if it cannot be reached, KvError if it cannot be filled."""
    lines: list[Line] = []
    in_all = plan.lines(len(store.servers))
    filled: set[str] = set()

    async def measured(kind: str, make: Workload, clients: int, rate: float, share: float | None = None) -> Line:
        line = await _line(store, plan, kind, make, clients, rate)
        line.share = share
        lines.append(line)
        if on_line:
            on_line(line, len(lines), in_all)
        return line

    for kind in plan.kinds_for(len(store.servers)):
        make = workload(kind, store, plan.value_bytes, plan.records, plan.distribution, plan.seed)
        missing = [key for key in make.load_keys() if key not in filled]
        await store.fill(missing, make.value)
        filled.update(missing)
        if plan.rate:
            await measured(kind, make, max(plan.clients), plan.rate)
            continue
        closed = [await measured(kind, make, clients, 0.0) for clients in plan.clients]
        for share in SHARES if plan.open_loop else ():
            saturation = max(line.per_second for line in closed)
            await measured(kind, make, max(plan.clients), max(1.0, share * saturation), share)
    return lines


class _Watch:
    """Whether the machine stands still, as a suspended one does: every process loses that time, and elections follow.
    still_ms: for how long in all."""

    def __init__(self) -> None:
        self.still_ms = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(_WATCH_SECONDS)
            late = time.monotonic() - before - _WATCH_SECONDS
            if late > STILL_SECONDS:
                self.still_ms += int(late * 1000)


async def _line(store: Store, plan: Plan, kind: str, make: Workload, clients: int, rate: float) -> Line:
    load: Load | WrkLoad
    if plan.load == "wrk":
        load = WrkLoad(store.servers, clients, make, plan.seconds)
    else:
        load = Load(store.servers, clients, make, plan.seconds, plan.warmup, rate, plan.seed, store.connect)
    before = await look(store.all_servers)
    watch = _Watch()
    watching = asyncio.ensure_future(watch.run())
    try:
        tally = await asyncio.to_thread(load.run)
    except asyncio.CancelledError:
        load.stop()
        raise
    finally:
        watching.cancel()
    after = await look(store.all_servers)
    whole = _latency([one for latencies in tally.latencies.values() for one in latencies])
    return Line(
        **msgspec.structs.asdict(whole),
        kind=kind,
        clients=clients,
        rate=round(rate, 1) or None,
        per_second=round(whole.requests / load.seconds, 1),
        fdatasync_ms=sync_ms(after),
        generator_cpu=round(tally.cpu_ns / max(tally.ran_ns, 1), 2),
        costs=between(before, after, store.servers, tally.succeeded, tally.cpu_ns),
        still_ms=watch.still_ms,
        errors=dict(tally.errors),
        refused=_latency(tally.refused) if tally.refused else None,
        operations=_operations(tally),
    )


def _operations(tally: Tally) -> dict[str, Latency]:
    if len(tally.latencies) < 2:
        return {}
    return {name: _latency(latencies) for name, latencies in sorted(tally.latencies.items())}


def _latency(nanoseconds: Sequence[int]) -> Latency:
    histogram = HdrHistogram(1, LATENCY_US_MAX, 3)
    for one in nanoseconds:
        histogram.record_value(min(max(one // 1000, 1), LATENCY_US_MAX))
    p50, p95, p99 = (histogram.get_value_at_percentile(p) / 1000 for p in (50, 95, 99))
    highest = histogram.get_max_value() / 1000 if nanoseconds else 0.0
    return Latency(requests=len(nanoseconds), p50_ms=p50, p95_ms=p95, p99_ms=p99, max_ms=highest)


async def measure(
    target: str | Path | Sequence[str], plan: Plan | None = None, on_line: OnLine | None = None
) -> Report:
    """Measure the cluster at `target` (as for the SDK). ValueError for a bad plan, KvError or OSError if the cluster
    does not answer."""
    plan = plan or Plan()
    plan.check()
    began, began_at, facts = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%S%z"), machine()
    async with AsyncClient(target, timeout=10.0) as client:
        first = await client.cluster()
        view = ClusterView.parse(msgspec.json.encode(first))
        if not plan.kinds_for(len(view.urls)):
            raise ValueError("kinds: txn needs two shards, and this cluster has one")
        store = KvStore(view, client, random.Random(plan.seed), with_ids=plan.load != "wrk")
        lines = await lines_of(store, plan, on_line)
        replicas = await _replica_facts(client, view)
    return Report(
        lines=lines,
        machine=facts,
        versions=versions(),
        cluster={k: first.get(k) for k in ("protocol", "durability", "dedup_window_ms", "limits")}
        | {"shards": len(view.urls), "replicas_per_shard": [len(urls) for urls in view.urls.values()]},
        settings=msgspec.to_builtins(plan)
        | {
            "transaction": "two comparisons and two puts: txn1 on one shard, txn on two",
            "load": "closed loop, one request under way per client, no retries, one connection per leader and client",
        },
        replicas=replicas,
        began=began_at,
        total_seconds=round(time.monotonic() - began, 1),
    )


async def _replica_facts(client: AsyncClient, view: ClusterView) -> list[dict[str, Any]]:
    """What every replica that answers says of itself."""
    facts = []
    for url in (url for urls in view.urls.values() for url in urls):
        try:
            facts.append({"url": url, **(await client.cluster(url, timeout=2.0))["replica"]})
        except KvError as error:
            facts.append({"url": url, "error": str(error)})
    return facts


def run(target: str | Path | Sequence[str], plan: Plan, json: bool = False) -> int:
    """`kvstore bench TARGET`: progress on stderr, the report on stdout; 1 if any request failed, else 0.

    ValueError for a bad plan, before anything is done.
    """
    plan.check()
    errors = Console(stderr=True)
    find_urls(target)
    asked = ", ".join(plan.kinds)
    errors.print(f"measuring {asked} at {', '.join(map(str, plan.clients))} clients: {plan.expected_seconds():.0f} s")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("preparing", total=plan.lines())

        def on_line(line: Line, done: int, of: int) -> None:
            said = f"{line.kind} {clients_text(line)} clients: {line.per_second:,.0f}/s, p50 {line.p50_ms:.2f} ms"
            progress.update(task, completed=done, total=of, description=said)

        report = asyncio.run(measure(target, plan, on_line))
    if json:
        print(to_json(report))
    else:
        # Not on a terminal, rich would fold the table to 80 columns.
        show(report, Console(width=None if sys.stdout.isatty() else 150))
    return 1 if any(line.errors for line in report.lines) else 0
