"""How fast a running cluster is over HTTP, and what that costs it: one line per kind of request and number of clients.

Closed loop: each client has one request under way and sends the next when it is answered; requests go to the leader of
the (first) shard that they touch. Open loop (`Plan.open_loop`, `Plan.rate`): requests fall due at a given rate, see
`workloads.bench.load`. Only answers of the measured seconds after the warm-up count; whatever is not a success is
counted by status, never dropped.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
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
from rich.table import Table

from client_sdk import AsyncClient, KvError
from client_sdk.routing import ClusterView, find_urls
from workloads.bench.costs import Costs, between, look, sync_ms
from workloads.bench.kinds import KINDS, RECORDS, VALUE_BYTES, Workload, check_kinds, workload
from workloads.bench.load import Load, Tally
from workloads.bench.store import KvStore, Store
from workloads.bench.wrk import WrkLoad, find_wrk

CLIENTS = (1, 16, 100, 256)
SECONDS = 4.0
WARMUP_SECONDS = 1.0
SHARES = (0.25, 0.5, 0.75)
"""Of saturation, at which open loop is measured."""
LOADS = ("own", "wrk")
LATENCY_US_MAX = 60_000_000
LIBRARIES = ("lmdb", "msgpack", "msgspec", "tenacity")
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
        if not self.clients or min(self.clients) < 1 or max(self.clients) > 1024:
            raise ValueError("clients: each from 1 to 1024")
        if not 0.1 <= self.seconds <= 600 or not 0 <= self.warmup <= 60:
            raise ValueError("seconds: from 0.1 to 600; warmup: from 0 to 60")
        if self.load not in LOADS:
            raise ValueError(f"load: {', '.join(LOADS)}, not {self.load!r}")
        if self.load == "wrk":
            find_wrk()
            if self.rate or self.open_loop or any(kind not in KINDS for kind in self.kinds):
                raise ValueError(f"wrk sends {', '.join(KINDS)} in closed loop only")
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


class Latency(msgspec.Struct, kw_only=True):
    """Of successes, milliseconds."""

    requests: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


class Line(Latency, kw_only=True):
    """One measurement.

    rate: what was asked for per second, in open loop; None in closed loop. share: of saturation. fdatasync_ms: the
    median of the replicas' own medians, asked for right afterwards. generator_cpu: the share of one core that the load
    took. errors: status -> count ("lost": the connection broke; "unanswered": at the end). operations: the latency of
    each, where a kind has several.
    """

    kind: str
    clients: int
    rate: float | None = None
    share: float | None = None
    per_second: float
    fdatasync_ms: float | None = None
    generator_cpu: float
    costs: Costs = msgspec.field(default_factory=Costs)
    errors: dict[str, int]
    operations: dict[str, Latency] = {}


class Report(msgspec.Struct):
    """A whole run: what was measured, on what, and how."""

    lines: list[Line]
    machine: dict[str, Any]
    versions: dict[str, str]
    cluster: dict[str, Any]
    settings: dict[str, Any]
    replicas: list[dict[str, Any]]
    began: str
    total_seconds: float


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


async def _line(store: Store, plan: Plan, kind: str, make: Workload, clients: int, rate: float) -> Line:
    load: Load | WrkLoad
    if plan.load == "wrk":
        load = WrkLoad(store.servers, clients, make, plan.seconds)
    else:
        load = Load(store.servers, clients, make, plan.seconds, plan.warmup, rate, plan.seed, store.connect)
    before = await look(store.all_servers)
    try:
        tally = await asyncio.to_thread(load.run)
    except asyncio.CancelledError:
        load.stop()
        raise
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
        errors=dict(tally.errors),
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


def machine() -> dict[str, Any]:
    """The processor, its cores, the memory, and how busy others keep them."""
    model = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        model = model or "unknown"
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Of Python and of the libraries that matter here, as installed beside this process."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


# -- for programs and people -------------------------------------------------------------------------------------------


def to_json(report: Any) -> str:
    """A report for programs."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def machine_line(facts: dict[str, Any]) -> str:
    """The machine in one line."""
    return (
        f"{facts['cpu']}, {facts['cores']} cores shared by servers and load generator, {facts['memory_gib']} GiB, "
        f"{facts['kernel']}"
    )


def clients_text(line: Line) -> str:
    """How many clients, or the rate of open loop."""
    return str(line.clients) if line.rate is None else f"{line.rate:,.0f}/s"


COST_HEADINGS = ("leader µs", "followers µs", "load µs", "bundle", "batch", "syncs", "bytes", "MiB")


def cost_cells(spent: Costs) -> list[str]:
    """The cells under COST_HEADINGS."""
    values = ((spent.leader_us, 0), (spent.follower_us, 0), (spent.load_us, 0), (spent.bundle, 1), (spent.batch, 1),
              (spent.syncs, 2), (spent.journal_bytes, 0), (spent.memory_mib, 0))  # fmt: skip
    return ["-" if value is None else f"{value:,.{digits}f}" for value, digits in values]


COSTS_EXPLAINED = (
    "µs: processor time per request, of all leaders, all followers, and the load generator. bundle: transactions per "
    "multicast; batch: requests per batch of a leader; syncs, bytes: of the leaders' journals, per request; MiB: the "
    "memory of all servers."
)


def errors_text(errors: dict[str, int]) -> str:
    """`503: 4, lost: 1`, or a dash."""
    return ", ".join(f"{status}: {n}" for status, n in sorted(errors.items())) or "-"


HEADINGS = ("kind", "clients", "per s", "p50 ms", "p95 ms", "p99 ms", *COST_HEADINGS, "fdatasync", "errors")


def heading(report: Report) -> list[str]:
    """What was measured, in lines."""
    cluster, settings = report.cluster, report.settings
    replicas = "/".join(map(str, sorted(set(cluster["replicas_per_shard"]))))
    lines = [
        f"{machine_line(report.machine)}, load average before {report.machine['load_average_before']}",
        ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        f"{cluster['protocol']}, {cluster['shards']} shards of {replicas} replicas, durability {cluster['durability']}",
        f"{settings['transaction']}; {settings['load']}; {settings['records']} keys, values of "
        f"{settings['value_bytes']} bytes; {settings['seconds']:g} s each after {settings['warmup']:g} s of warm-up",
    ]
    if any(line.rate is not None for line in report.lines):
        lines.append("With a rate: open loop; latencies count from when a request was due, not from when it was sent.")
    return lines


def cells(lines: Sequence[Line]) -> list[list[str]]:
    """Rows under HEADINGS: one for each line, and one for each operation where it has several."""
    rows = []
    for line in lines:
        rows.append(
            [
                line.kind,
                clients_text(line),
                f"{line.per_second:,.0f}",
                *_latency_cells(line),
                *cost_cells(line.costs),
                "-" if line.fdatasync_ms is None else f"{line.fdatasync_ms:.2f}",
                errors_text(line.errors),
            ]
        )
        blanks = [""] * (len(COST_HEADINGS) + 2)
        for name, one in line.operations.items():
            rows.append([f"  {name}", "", "", *_latency_cells(one), *blanks])
    return rows


def _latency_cells(latency: Latency) -> list[str]:
    return [f"{ms:.2f}" for ms in (latency.p50_ms, latency.p95_ms, latency.p99_ms)]


def show(report: Report, console: Console) -> None:
    """The report for people."""
    for told in heading(report):
        console.print(told)
    table = Table()
    for name in HEADINGS:
        table.add_column(name, justify="left" if name == "kind" else "right")
    for row in cells(report.lines):
        table.add_row(*row)
    console.print(table)
    console.print(f"{COSTS_EXPLAINED} fdatasync: the replicas' own median, ms.")
    console.print(f"took {report.total_seconds:g} s in all, from {report.began}")


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
