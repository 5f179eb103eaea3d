"""Our store and etcd in turns, on this machine and disk, under the same load, with ratios.

Per round and store: a fresh cluster in a temporary directory (TMPDIR says where), measured by
`workloads.bench.measure`, stopped and removed, so that only one runs at a time; every round begins with another one.
Ours stands there twice: with one shard of three replicas, which is what etcd's three nodes are, and with two shards of
three. What is told is the median of the rounds. etcd has one group, so a transaction over two of our shards stands
against its ordinary one. The base of all ratios is etcd asked over HTTP, as ours is; its own clients speak gRPC, which
costs it less, so that may be measured, too.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from client_sdk import KvError
from workloads.bench import etcd, measure, results
from workloads.bench.clusters import START_SECONDS, ClusterFailed, fresh_cluster, terminable
from workloads.bench.costs import Costs
from workloads.bench.kinds import title
from workloads.bench.measure import Plan
from workloads.bench.results import Line
from workloads.ports import NoFreePorts

ETCD, BY_GRPC = "etcd", "etcd gRPC"
STORES = {ETCD: 1, BY_GRPC: 1, "1 shard": 1, "2 shards": 2}
"""How each is called -> how many shards it has."""
REPLICAS = 3
PROTOCOL = "white_box"
ROUNDS = 3
TURNS_MAX = 3
SECONDS = 1.5
WARMUP_SECONDS = 0.3


class Row(msgspec.Struct, kw_only=True):
    """Medians of the rounds. ratio: throughput over etcd's; p50_ratio: etcd's median latency over ours; above 1 is
    better than etcd. spread: lowest and highest throughput of a round."""

    store: str
    kind: str
    clients: int
    share: float | None
    per_second: float
    spread: tuple[float, float]
    p50_ms: float
    p99_ms: float
    ratio: float | None = None
    p50_ratio: float | None = None
    costs: Costs
    errors: dict[str, int]


class Against(msgspec.Struct, kw_only=True):
    """A whole run. rounds: for each, store -> its lines, in the order in which they were measured. failed: why not."""

    rows: list[Row]
    rounds: list[dict[str, list[Line]]]
    failed: list[str]
    load_before: list[float]
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    began: str
    total_seconds: float = 0.0


def expected_seconds(plan: Plan, stores: Sequence[str], rounds: int) -> float:
    """About how long it will take."""
    return rounds * sum(plan.expected_seconds(STORES[name]) + START_SECONDS for name in stores)


def against_etcd(plan: Plan, stores: Sequence[str], rounds: int, say: Callable[[str], None]) -> Against:
    """Measure these of STORES. NoEtcd without etcd. Whatever happens, nothing is left running."""
    began = time.monotonic()
    result = Against(
        rows=[],
        rounds=[],
        failed=[],
        load_before=[],
        machine=results.machine() | {"disk": disk_of(tempfile.gettempdir())},
        versions={"etcd": etcd.version(), **results.versions()},
        settings=msgspec.to_builtins(plan) | {"rounds": rounds, "protocol": PROTOCOL, "replicas": REPLICAS},
        began=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )
    for number in range(rounds):
        result.load_before.append(round(os.getloadavg()[0], 1))
        lines: dict[str, list[Line]] = {}
        first = number % len(stores)
        for name in (*stores[first:], *stores[:first]):
            say(f"round {number + 1} of {rounds}: {name}")
            try:
                lines[name] = _undisturbed(name, plan, say)
            except (ClusterFailed, NoFreePorts, KvError, OSError) as error:
                result.failed.append(f"{name}, round {number + 1}: {error}")
                say(f"  failed: {error}")
        result.rounds.append(lines)
    result.rows = rows_of(result.rounds)
    result.total_seconds = round(time.monotonic() - began, 1)
    return result


def _undisturbed(name: str, plan: Plan, say: Callable[[str], None]) -> list[Line]:
    """A turn in which the machine did not stand still: afterwards groups have other leaders than those that are asked.
    The last of TURNS_MAX counts, whatever happens in it."""
    for _ in range(TURNS_MAX - 1):
        lines = _turn(name, plan, say)
        if not any(line.still_ms for line in lines):
            return lines
        say("  the machine stood still meanwhile: once more")
    return _turn(name, plan, say)


def _turn(name: str, plan: Plan, say: Callable[[str], None]) -> list[Line]:
    """One store, from its start to its end."""

    def on_line(line: Line, done: int, of: int) -> None:
        asked = f"{line.clients} clients" if line.rate is None else f"{line.rate:,.0f}/s asked for"
        say(f"  {title(line.kind)}, {asked}: {line.per_second:,.0f}/s, p50 {line.p50_ms:.2f} ms")

    if name in (ETCD, BY_GRPC):
        with etcd.fresh_etcd(etcd.EtcdStore if name == ETCD else etcd.GrpcEtcdStore) as store:
            return asyncio.run(measure.lines_of(store, plan, on_line))
    with fresh_cluster(PROTOCOL, STORES[name], REPLICAS) as directory:
        return asyncio.run(measure.measure(directory, plan, on_line)).lines


def rows_of(rounds: Sequence[dict[str, list[Line]]]) -> list[Row]:
    """Medians and ratios."""
    found: dict[tuple[str, str, int, float | None], list[Line]] = {}
    for name in STORES:
        for lines in rounds:
            for line in lines.get(name, ()):
                found.setdefault((name, line.kind, line.clients, line.share), []).append(line)
    rows = [_row(name, lines) for (name, _, _, _), lines in found.items()]
    base = {(row.kind, row.clients, row.share): row for row in rows if row.store == ETCD}
    for row in rows:
        kind = "txn1" if row.kind == "txn" else row.kind
        theirs = base.get((kind, row.clients, row.share))
        if theirs is not None:
            row.ratio = round(row.per_second / theirs.per_second, 3) if theirs.per_second else None
            row.p50_ratio = round(theirs.p50_ms / row.p50_ms, 3) if row.p50_ms else None
    return rows


def _row(name: str, lines: Sequence[Line]) -> Row:
    first = lines[0]
    spent = {name: _median([getattr(line.costs, name) for line in lines]) for name in Costs.__struct_fields__}
    errors: dict[str, int] = {}
    for line in lines:
        for status, count in results.troubles(line).items():
            errors[status] = errors.get(status, 0) + count
    throughputs = [line.per_second for line in lines]
    return Row(
        store=name,
        kind=first.kind,
        clients=first.clients,
        share=first.share,
        per_second=statistics.median(throughputs),
        spread=(min(throughputs), max(throughputs)),
        p50_ms=round(statistics.median(line.p50_ms for line in lines), 3),
        p99_ms=round(statistics.median(line.p99_ms for line in lines), 3),
        costs=Costs(**spent),
        errors=errors,
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 2) if known else None


def disk_of(directory: str) -> str:
    """The file system under a directory, e.g. `ext4`: a sync on `tmpfs` is none."""
    best, kind = "", "unknown"
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return kind
    path = os.path.realpath(directory)
    for _, where, what, *_ in (line.split() for line in mounts):
        if os.path.commonpath([path, where]) == where and len(where) >= len(best):
            best, kind = where, what
    return kind


# -- for people --------------------------------------------------------------------------------------------------------


def heading(result: Against) -> list[str]:
    """What was measured, in lines."""
    settings, facts = result.settings, result.machine
    sent = "wrk" if settings["load"] == "wrk" else "the same load generator"
    loads = ", ".join(map(str, result.load_before))
    lines = [
        f"{results.machine_line(facts)}, {facts['disk']}; load average before each round: {loads}",
        ", ".join(f"{name} {version}" for name, version in result.versions.items()),
        f"Three nodes of etcd, our store with 1 and 2 shards of {settings['replicas']} replicas "
        f"({settings['protocol']}), one at a time, every write synced.",
        f"Asked by {sent} over HTTP/1.1, at the leaders; etcd through its JSON gateway, which costs it more than gRPC.",
        f"{settings['records']} keys, values of {settings['value_bytes']} bytes, linearizable reads, transactions of "
        f"two comparisons and two puts; medians of {settings['rounds']} rounds of {settings['seconds']:g} s each.",
    ]
    if facts["disk"] == "tmpfs":
        lines.append("The temporary directory is in memory: syncs cost nothing here. Set TMPDIR to a real disk.")
    return lines


HEADINGS = ("kind", "clients", "store", "per s", "×", "p50 ms", "p50 ×", "p99 ms", *results.COST_HEADINGS, "errors")
EXPLAINED = (
    "×: throughput over etcd's; p50 ×: etcd's median latency over ours (above 1: better than etcd). "
    + results.COSTS_EXPLAINED
)


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """A line under HEADINGS per row: what is comparable stands together."""
    kinds = list(dict.fromkeys(row.kind for row in rows))
    places = {name: place for place, name in enumerate(STORES)}
    in_order = sorted(rows, key=lambda r: (kinds.index(r.kind), r.share or 0, r.clients, places[r.store]))
    return [
        [
            title(row.kind),
            str(row.clients) if row.share is None else f"{row.share:.0%} load",
            row.store,
            f"{row.per_second:,.0f}",
            "-" if row.ratio is None else f"{row.ratio:.2f}",
            f"{row.p50_ms:.2f}",
            "-" if row.p50_ratio is None else f"{row.p50_ratio:.2f}",
            f"{row.p99_ms:.2f}",
            *results.cost_cells(row.costs),
            results.errors_text(row.errors),
        ]
        for row in in_order
    ]


def show(result: Against, console: Console) -> None:
    """The report for people."""
    for told in heading(result):
        console.print(told)
    table = Table()
    for name in HEADINGS:
        table.add_column(name, justify="left" if name in ("kind", "store", "errors") else "right")
    for line in cells(result.rows):
        table.add_row(*line, end_section=line[2] == list(STORES)[-1])
    console.print(table)
    console.print(EXPLAINED)
    for why in result.failed:
        console.print(f"not measured: {why}", markup=False)
    console.print(f"took {result.total_seconds:g} s in all, from {result.began}")


def run(plan: Plan, rounds: int, grpc: bool = False, json: bool = False) -> int:
    """`kvstore bench --against etcd`: progress on stderr, the table on stdout; 1 if anything failed, else 0.

    ValueError, NoEtcd or NoWrk for what cannot be, before anything is started.
    """
    plan.check()
    if not 1 <= rounds <= 20:
        raise ValueError("rounds: from 1 to 20")
    if grpc and plan.load == "wrk":
        raise ValueError("wrk does not speak gRPC")
    stores = [name for name in STORES if grpc or name != BY_GRPC]
    if "txn" in plan.kinds and "txn1" not in plan.kinds:  # what etcd has instead
        plan = msgspec.structs.replace(plan, kinds=("txn1", *plan.kinds))
    etcd.find_etcd()
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    errors.print(f"measuring {', '.join(stores)} in turns: about {expected_seconds(plan, stores, rounds):.0f} s")
    with terminable():
        result = against_etcd(plan, stores, rounds, lambda text: errors.print(text, markup=False))
    if json:
        print(results.to_json(result))
    else:
        console = Console()
        show(result, console if console.is_terminal else Console(width=170))
    return 1 if result.failed or any(row.errors for row in result.rows) else 0
