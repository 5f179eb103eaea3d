"""All protocols side by side: a fresh cluster of each, one after the other, on this machine, under the same load.

Per protocol: 2 shards of 3 replicas (of 1 if it tolerates no faults) in a temporary directory, started as processes,
measured by `workloads.bench.measure`, stopped and removed. A protocol that cannot be started or measured costs its own
rows only. White-Box is the baseline of the ratios; without it, the protocol that is named first.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from client_sdk import KvError
from multicast import registry
from workloads.bench import kinds, measure, results
from workloads.bench.clusters import START_SECONDS, ClusterFailed, fresh_cluster, terminable
from workloads.bench.costs import Costs
from workloads.ports import NoFreePorts

CLIENTS = (1, 64)
KINDS = ("txn1", "txn")
SHARDS = 2
REPLICAS = 3
BASELINE = "white_box"


class Row(msgspec.Struct, kw_only=True):
    """One measurement, as in `results.Line`. ratio: its throughput over the baseline's; None if there is none."""

    protocol: str
    replicas: int
    kind: str
    clients: int
    per_second: float
    p50_ms: float
    p99_ms: float
    ratio: float | None = None
    errors: dict[str, int]
    generator_cpu: float
    fdatasync_ms: float | None
    costs: Costs = msgspec.field(default_factory=Costs)


class Comparison(msgspec.Struct, kw_only=True):
    """A whole run. failed: protocol -> why it was not measured. load_before: protocol -> the machine's load average
    when its turn came: what others do on the machine is part of every number, and changes while this runs."""

    baseline: str
    rows: list[Row]
    failed: dict[str, str]
    load_before: dict[str, float]
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    began: str
    total_seconds: float = 0.0


def chosen(text: str) -> list[str]:
    """The protocols of `all` or `a,b`. registry.UnknownProtocol or ValueError for anything else."""
    names = registry.names() if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"protocols: all, or names with commas between them: {', '.join(registry.names())}")
    for name in names:
        registry.load(name)
    return list(dict.fromkeys(names))


def replicas_of(protocol: str) -> int:
    """Per shard."""
    return REPLICAS if registry.load(protocol).specification.fault_tolerant else 1


def compare(protocols: Sequence[str], plan: measure.Plan, say: Callable[[str], None]) -> Comparison:
    """Measure them in this order. ValueError for a bad plan. Whatever happens, no cluster is left."""
    plan.check()
    began = time.monotonic()
    result = Comparison(
        baseline=BASELINE if BASELINE in protocols else protocols[0],
        rows=[],
        failed={},
        load_before={},
        machine=results.machine(),
        versions=results.versions(),
        settings={"seconds": plan.seconds, "warmup_seconds": plan.warmup, "shards": SHARDS, "durability": "fsync"},
        began=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )
    for number, protocol in enumerate(protocols, 1):
        say(f"{protocol} ({number} of {len(protocols)})")
        result.load_before[protocol] = round(os.getloadavg()[0], 1)

        def on_line(line: results.Line, done: int, of: int) -> None:
            told = f"{line.per_second:,.0f}/s, p50 {line.p50_ms:.2f} ms"
            say(f"  {kinds.title(line.kind)}, {_clients(line.clients)}: {told}")

        try:
            with fresh_cluster(protocol, SHARDS, replicas_of(protocol)) as directory:
                report = asyncio.run(measure.measure(directory, plan, on_line))
        except (ClusterFailed, NoFreePorts, KvError) as error:
            result.failed[protocol] = str(error)
            say(f"  failed: {error}")
        else:
            result.rows += [_row(protocol, line) for line in report.lines]
    _set_ratios(result)
    result.total_seconds = round(time.monotonic() - began, 1)
    return result


def _row(protocol: str, line: results.Line) -> Row:
    return Row(
        protocol=protocol,
        replicas=replicas_of(protocol),
        kind=line.kind,
        clients=line.clients,
        per_second=line.per_second,
        p50_ms=line.p50_ms,
        p99_ms=line.p99_ms,
        errors=line.errors,
        generator_cpu=line.generator_cpu,
        fdatasync_ms=line.fdatasync_ms,
        costs=line.costs,
    )


def _set_ratios(result: Comparison) -> None:
    base = {(r.kind, r.clients): r.per_second for r in result.rows if r.protocol == result.baseline}
    for row in result.rows:
        against = base.get((row.kind, row.clients))
        row.ratio = round(row.per_second / against, 3) if against else None


# -- for people --------------------------------------------------------------------------------------------------------


def heading(result: Comparison) -> list[str]:
    """What was measured, in lines."""
    settings = result.settings
    loads = ", ".join(f"{protocol} {load}" for protocol, load in result.load_before.items())
    lines = [
        f"{results.machine_line(result.machine)}; load average before each: {loads}",
        f"{settings['shards']} shards, durability {settings['durability']}, closed loop, {settings['seconds']:g} s each"
        f" after {settings['warmup_seconds']:g} s of warm-up; transactions: two comparisons and two puts of 100 bytes",
        f"×: throughput over that of {result.baseline}; latencies in ms",
    ]
    if any(row.replicas == 1 for row in result.rows):
        lines.append("n: replicas per shard. With 1 nothing is replicated, and every replica must come back.")
    return lines


def cells(result: Comparison) -> tuple[list[str], list[list[str]]]:
    """(headings, a row per protocol and kind, with columns per number of clients)."""
    headings = ["protocol", "n", "kind"]
    for n in sorted({row.clients for row in result.rows}):
        headings += [f"{_clients(n)}: per s", "p50", "p99", "×"]
    return [*headings, "errors"], list(_lines(result))


def show(result: Comparison, console: Console) -> None:
    """One table."""
    for told in heading(result):
        console.print(told)
    table = Table()
    headings, rows = cells(result)
    for name in headings:
        left = name in ("protocol", "kind", "errors")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "errors")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for protocol, why in result.failed.items():
        console.print(f"{protocol} was not measured: {why}", markup=False)
    console.print(f"took {result.total_seconds:g} s in all, from {result.began}")


def _lines(result: Comparison) -> Iterator[list[str]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in result.rows:
        found.setdefault((row.protocol, row.kind), []).append(row)
    previous = ""
    for (protocol, kind), rows in found.items():
        line = ["", ""] if protocol == previous else [protocol, str(rows[0].replicas)]
        line.append(kinds.title(kind))
        for row in sorted(rows, key=lambda row: row.clients):
            ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
            line += [f"{row.per_second:,.0f}", f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}", ratio]
        errors = {f"{status} at {row.clients}": count for row in rows for status, count in row.errors.items()}
        line.append(", ".join(f"{what}: {count}" for what, count in sorted(errors.items())) or "-")
        previous = protocol
        yield line


def _clients(number: int) -> str:
    return "1 client" if number == 1 else f"{number} clients"


def run(protocols: str, plan: measure.Plan, json: bool = False) -> int:
    """`kvstore bench --protocols`: progress on stderr, the table on stdout; 1 if anything failed, else 0.

    ValueError for a bad name or plan, before anything is started.
    """
    names = chosen(protocols)
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    plan.check()
    took = len(names) * (plan.expected_seconds(SHARDS) + START_SECONDS)
    errors.print(f"measuring {', '.join(names)}, a fresh cluster each: about {took:.0f} s")
    with terminable():
        result = compare(names, plan, lambda text: errors.print(text, markup=False))
    if json:
        print(results.to_json(result))
    else:
        console = Console()
        show(result, console if console.is_terminal else Console(width=140))
    return 1 if result.failed or any(row.errors for row in result.rows) else 0
