"""What measurements say: their shape, what they were made on, and their tables."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from workloads.bench.costs import Costs

LIBRARIES = ("aiohttp", "lmdb", "msgpack", "msgspec", "tenacity")


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
    took. still_ms: so long the whole machine stood still meanwhile, and the line tells nothing. errors: status -> count
    ("lost": the connection broke; "unanswered": at the end). refused: the latency of refusals, if there were any.
    operations: the latency of each, where a kind has several.
    """

    kind: str
    clients: int
    rate: float | None = None
    share: float | None = None
    per_second: float
    fdatasync_ms: float | None = None
    generator_cpu: float
    costs: Costs = msgspec.field(default_factory=Costs)
    still_ms: int = 0
    errors: dict[str, int]
    refused: Latency | None = None
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


# -- what it was made on -----------------------------------------------------------------------------------------------


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


def troubles(line: Line) -> dict[str, int]:
    """What went wrong, and for how many milliseconds the machine stood still."""
    return line.errors | ({"ms stood still": line.still_ms} if line.still_ms else {})


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
                errors_text(troubles(line)),
            ]
        )
        blanks = [""] * (len(COST_HEADINGS) + 2)
        refusals = {"refused": line.refused} if line.refused else {}
        for name, one in (line.operations | refusals).items():
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
