"""How fast a running cluster is over HTTP: puts, gets and two-shard transactions, by a closed loop of 1 to 256 clients.

Each client has one request under way and sends the next when it is answered; requests go to the leader of the (first)
shard that they touch. `put`: 100 bytes to a random key. `get`: linearizable, of a random key. `txn`: two comparisons
and two puts, on keys of two shards; `txn1`: the same on one shard. Writes carry a fresh UUIDv7 each, as those of the
SDK do. Only answers that arrive in the measured seconds after the warm-up count; whatever is not a success is counted
by status, never dropped.

    python -m workloads.bench TARGET [-o json] [--clients 1,16,64,256] [--seconds 4] [--kinds put,get,txn]
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import os
import platform
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from hdrh.histogram import HdrHistogram
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from client_sdk import AsyncClient, KvError, Put
from client_sdk.routing import ClusterView
from multicast.types import GroupId, new_message_id
from workloads.lean_http import LOST, Connection, request_bytes

KINDS = ("put", "get", "txn")
"""What is measured unless something else is asked for."""
ALL_KINDS = (*KINDS, "txn1")
CLIENTS = (1, 16, 64, 256)
SECONDS = 4.0
WARMUP_SECONDS = 1.0
KEYS = 10_000
VALUE_BYTES = 100
TIMEOUT_MS = 5_000
DRAIN_SECONDS = 6.0
PAUSE_AFTER_ERROR_SECONDS = 0.02
LATENCY_US_MAX = 60_000_000
LIBRARIES = ("aiohttp", "lmdb", "msgpack", "msgspec", "tenacity")


class Line(msgspec.Struct):
    """One measurement. Latencies in milliseconds, of successes only.

    fdatasync_ms: the median of the replicas' own medians, asked for right afterwards. generator_cpu: the share of one
    core that this process took. errors: status -> count ("lost": the connection broke; "unanswered": at the end).
    """

    kind: str
    clients: int
    requests: int
    per_second: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    fdatasync_ms: float | None
    generator_cpu: float
    errors: dict[str, int]


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


class _Target:
    """What the generator needs to know of the cluster: where each shard's leader is, and which keys it owns."""

    def __init__(self, view: ClusterView, rng: random.Random, value_bytes: int):
        self.urls = {shard: urls[0] for shard, urls in view.urls.items()}
        self.shards = sorted(self.urls)
        self.rng = rng
        self.value = bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=value_bytes))
        self.keys: list[tuple[str, GroupId]] = [
            (key, view.shard_map.shard_of(key.encode())) for key in (f"bench/{i}" for i in range(KEYS))
        ]
        self.of_shard = {s: [key for key, shard in self.keys if shard == s] for s in self.shards}

    def make(self, kind: str) -> tuple[str, bytes]:
        """(URL, request)"""
        key, shard = self.rng.choice(self.keys)
        url = self.urls[shard]
        if kind == "get":
            return url, request_bytes("GET", f"/v1/kv/{key}", f"X-Timeout-Ms: {TIMEOUT_MS}\r\n")
        text = new_message_id(time.time_ns() // 1000, self.rng.getrandbits(62)).hex()
        headers = (
            f"Idempotency-Key: {text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}\r\n"
            f"X-Timeout-Ms: {TIMEOUT_MS}\r\n"
        )
        if kind == "put":
            return url, request_bytes("PUT", f"/v1/kv/{key}", headers, self.value)
        others = [s for s in self.shards if s != shard and kind == "txn"] or [shard]
        other = self.rng.choice(self.of_shard[self.rng.choice(others)])
        value = self.value.decode()
        body = (
            f'{{"compare":[{{"key":"{key}","target":"exists","op":"==","value":true}},'
            f'{{"key":"{other}","target":"exists","op":"==","value":true}}],'
            f'"success":[{{"op":"put","key":"{key}","value":"{value}"}},'
            f'{{"op":"put","key":"{other}","value":"{value}"}}],"failure":[]}}'
        )
        return url, request_bytes("POST", "/v1/txn", headers + "Content-Type: application/json\r\n", body.encode())


class _Client:
    """One closed loop. Callbacks only; `stop` lets the request under way finish, then sets `idle`."""

    def __init__(self, target: _Target, kind: str, answered: Callable[[int, int, int], None]):
        self._target = target
        self._kind = kind
        self._answered = answered
        self._connections: dict[str, Connection] = {}
        self._loop = asyncio.get_running_loop()
        self._stopping = False
        self._sent_at = 0
        self.idle = asyncio.Event()

    async def connect(self) -> None:
        """To every leader."""
        for url in self._target.urls.values():
            self._connections[url] = await Connection.open(url)

    def start(self) -> None:
        """Send the first request."""
        self._next()

    def stop(self) -> None:
        """Send no more."""
        self._stopping = True

    def close(self) -> None:
        """Drop the connections."""
        self._stopping = True
        for connection in self._connections.values():
            connection.close()

    def _next(self) -> None:
        if self._stopping:
            self.idle.set()
            return
        url, data = self._target.make(self._kind)
        connection = self._connections[url]
        if connection.usable:
            self._sent_at = time.monotonic_ns()
            connection.request(data, self._done)
        else:
            self._reconnecting = asyncio.ensure_future(self._reconnect(url))

    async def _reconnect(self, url: str) -> None:
        self._connections[url].close()
        try:
            self._connections[url] = await Connection.open(url)
        except OSError:
            now = time.monotonic_ns()
            self._answered(LOST, now, now)
            await asyncio.sleep(PAUSE_AFTER_ERROR_SECONDS)
        self._next()

    def _done(self, status: int) -> None:
        self._answered(status, self._sent_at, time.monotonic_ns())
        if 200 <= status < 300:
            self._next()
        else:
            self._loop.call_later(PAUSE_AFTER_ERROR_SECONDS, self._next)


async def _measure_line(target: _Target, kind: str, clients: int, seconds: float, warmup: float) -> Line:
    """One line of the report, but for the replicas' fdatasync."""
    latencies: list[int] = []
    errors: Counter[str] = Counter()
    window = [0, 0]

    def answered(status: int, sent_at: int, now: int) -> None:
        if window[0] <= now < window[1]:
            if 200 <= status < 300:
                latencies.append(now - sent_at)
            else:
                errors["lost" if status == LOST else str(status)] += 1

    loops = [_Client(target, kind, answered) for _ in range(clients)]
    try:
        for one in loops:
            await one.connect()
        window[0] = time.monotonic_ns() + int(warmup * 1e9)
        window[1] = window[0] + int(seconds * 1e9)
        for one in loops:
            one.start()
        await asyncio.sleep(warmup)
        cpu = time.process_time()
        await asyncio.sleep(seconds)
        cpu = time.process_time() - cpu
        for one in loops:
            one.stop()
        _, unanswered = await asyncio.wait([asyncio.ensure_future(o.idle.wait()) for o in loops], timeout=DRAIN_SECONDS)
        for wait in unanswered:
            wait.cancel()
        if unanswered:
            errors["unanswered"] += len(unanswered)
    finally:
        for one in loops:
            one.close()
    return _line(kind, clients, seconds, latencies, errors, cpu)


def _line(kind: str, clients: int, seconds: float, latencies: list[int], errors: Counter[str], cpu: float) -> Line:
    histogram = HdrHistogram(1, LATENCY_US_MAX, 3)
    for nanoseconds in latencies:
        histogram.record_value(min(max(nanoseconds // 1000, 1), LATENCY_US_MAX))
    p50, p95, p99 = (histogram.get_value_at_percentile(p) / 1000 for p in (50, 95, 99))
    highest = histogram.get_max_value() / 1000 if latencies else 0.0
    return Line(
        kind=kind,
        clients=clients,
        requests=len(latencies),
        per_second=round(len(latencies) / seconds, 1),
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        max_ms=highest,
        fdatasync_ms=None,
        generator_cpu=round(cpu / seconds, 2),
        errors=dict(errors),
    )


async def _replica_facts(store: AsyncClient, view: ClusterView) -> list[dict[str, Any]]:
    """What every replica that answers says of itself."""
    facts = []
    for url in (url for urls in view.urls.values() for url in urls):
        try:
            facts.append({"url": url, **(await store.cluster(url, timeout=2.0))["replica"]})
        except KvError as error:
            facts.append({"url": url, "error": str(error)})
    return facts


def _fdatasync_ms(replicas: Sequence[dict[str, Any]]) -> float | None:
    medians = [r["fdatasync_us"]["p50"] for r in replicas if r.get("fdatasync_us", {}).get("p50")]
    return round(statistics.median(medians) / 1000, 3) if medians else None


async def _preload(store: AsyncClient, target: _Target) -> None:
    """Every key exists, so that gets find something and comparisons hold."""
    value = target.value
    for keys in target.of_shard.values():
        for start in range(0, len(keys), 250):
            await store.txn(success=[Put(key.encode(), value) for key in keys[start : start + 250]], timeout=30.0)


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


def check_options(
    clients: Sequence[int],
    kinds: Sequence[str],
    seconds: float,
    warmup: float = WARMUP_SECONDS,
    value_bytes: int = VALUE_BYTES,
) -> None:
    """ValueError that names the option and its limits."""
    if unknown := [kind for kind in kinds if kind not in ALL_KINDS]:
        raise ValueError(f"kinds: {', '.join(ALL_KINDS)}, not {unknown[0]!r}")
    if not clients or min(clients) < 1 or max(clients) > 1024:
        raise ValueError("clients: each from 1 to 1024")
    if not 1 <= seconds <= 600 or not 0 <= warmup <= 60 or not 1 <= value_bytes <= 65536:
        raise ValueError("seconds: from 1 to 600; warmup: from 0 to 60; value_bytes: from 1 to 65536")


async def measure(
    target: str | Path | Sequence[str],
    *,
    clients: Sequence[int] = CLIENTS,
    kinds: Sequence[str] = KINDS,
    seconds: float = SECONDS,
    warmup: float = WARMUP_SECONDS,
    value_bytes: int = VALUE_BYTES,
    seed: int = 1,
    on_line: Callable[[Line, int, int], None] | None = None,
) -> Report:
    """Measure the cluster at `target` (as for the SDK).

    clients, kinds: what to measure. seconds, warmup: for each line of the report. on_line(line, lines done, lines in
    all) is called after each. ValueError for a bad option, KvError if the cluster does not answer.
    """
    check_options(clients, kinds, seconds, warmup, value_bytes)
    began, began_at, facts = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%S%z"), machine()
    lines: list[Line] = []
    async with AsyncClient(target, timeout=10.0) as store:
        first = await store.cluster()
        view = ClusterView.parse(msgspec.json.encode(first))
        work = _Target(view, random.Random(seed), value_bytes)
        await _preload(store, work)
        steps = [(kind, n) for kind in kinds for n in clients]
        for kind, n in steps:
            line = await _measure_line(work, kind, n, seconds, warmup)
            line.fdatasync_ms = _fdatasync_ms(await _replica_facts(store, view))
            lines.append(line)
            if on_line:
                on_line(line, len(lines), len(steps))
        replicas = await _replica_facts(store, view)
    return Report(
        lines=lines,
        machine=facts,
        versions=versions(),
        cluster={k: first.get(k) for k in ("protocol", "durability", "dedup_window_ms", "limits")}
        | {"shards": len(view.urls), "replicas_per_shard": [len(urls) for urls in view.urls.values()]},
        settings={
            "seconds": seconds,
            "warmup_seconds": warmup,
            "keys": KEYS,
            "value_bytes": value_bytes,
            "seed": seed,
            "transaction": "two comparisons and two puts"
            + (" on two shards" if len(view.urls) > 1 else " on ONE shard: there is no other"),
            "load": "closed loop, one request under way per client, no retries, one connection per leader and client",
        },
        replicas=replicas,
        began=began_at,
        total_seconds=round(time.monotonic() - began, 1),
    )


def expected_seconds(clients: Sequence[int] = CLIENTS, kinds: Sequence[str] = KINDS, seconds: float = SECONDS) -> float:
    """About how long a run will take."""
    return len(clients) * len(kinds) * (seconds + WARMUP_SECONDS + 0.3) + 3


def to_json(report: Report) -> str:
    """The report for programs."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def show(report: Report, console: Console) -> None:
    """The report for people."""
    cluster, facts = report.cluster, report.machine
    console.print(
        f"{facts['cpu']}, {facts['cores']} cores shared by replicas and load generator, {facts['memory_gib']} GiB, "
        f"{facts['kernel']}, load average before {facts['load_average_before']}"
    )
    console.print(", ".join(f"{name} {version}" for name, version in report.versions.items()))
    console.print(
        f"{cluster['protocol']}, {cluster['shards']} shards of {_counts(cluster['replicas_per_shard'])} replicas, "
        f"durability {cluster['durability']}; {report.settings['transaction']}; {report.settings['load']}; "
        f"{report.settings['keys']} keys, values of {report.settings['value_bytes']} bytes; "
        f"{report.settings['seconds']:g} s each after {report.settings['warmup_seconds']:g} s of warm-up"
    )
    table = Table()
    for column in ("kind", "clients", "per second", "p50 ms", "p95 ms", "p99 ms", "max ms", "fdatasync"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    table.add_column("load CPU", justify="right")
    table.add_column("errors")
    for line in report.lines:
        table.add_row(
            line.kind,
            str(line.clients),
            f"{line.per_second:,.0f}",
            *(f"{ms:.2f}" for ms in (line.p50_ms, line.p95_ms, line.p99_ms, line.max_ms)),
            "-" if line.fdatasync_ms is None else f"{line.fdatasync_ms:.2f}",
            f"{line.generator_cpu:.0%}",
            ", ".join(f"{status}: {n}" for status, n in sorted(line.errors.items())) or "-",
        )
    console.print(table)
    console.print("fdatasync: the replicas' own median, ms. load CPU: share of one core that the load generator took.")
    console.print(f"took {report.total_seconds:g} s in all, from {report.began}")


def _counts(numbers: Sequence[int]) -> str:
    return "/".join(map(str, sorted(set(numbers))))


def run(target: str | Path | Sequence[str], *, json: bool = False, **options: Any) -> int:
    """`kvstore bench`: progress on stderr, the report on stdout; 1 if any request failed, else 0.

    options: those of `measure`. ValueError for a bad one, before anything is done.
    """
    clients, kinds = options.get("clients", CLIENTS), options.get("kinds", KINDS)
    check_options(clients, kinds, options.get("seconds", SECONDS))
    errors = Console(stderr=True)
    took = expected_seconds(clients, kinds, options.get("seconds", SECONDS))
    errors.print(f"measuring {', '.join(kinds)} at {', '.join(map(str, clients))} clients: about {took:.0f} s")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("preparing", total=len(clients) * len(kinds))

        def on_line(line: Line, done: int, of: int) -> None:
            progress.update(
                task,
                completed=done,
                total=of,
                description=f"{line.kind} {line.clients} clients: {line.per_second:,.0f}/s, p50 {line.p50_ms:.2f} ms",
            )

        report = asyncio.run(measure(target, on_line=on_line, **options))
    if json:
        print(to_json(report))
    else:
        # Not on a terminal, rich would fold the table to 80 columns.
        show(report, Console(width=None if sys.stdout.isatty() else 120))
    return 1 if any(line.errors for line in report.lines) else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m workloads.bench", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("target", help="a cluster's directory, or URLs with commas between them")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--clients", default=",".join(map(str, CLIENTS)), help="default %(default)s")
    parser.add_argument("--kinds", default=",".join(KINDS), help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="per measurement; default %(default)s")
    parser.add_argument("--value-bytes", type=int, default=VALUE_BYTES, help="default %(default)s")
    options = parser.parse_args()
    try:
        return run(
            options.target,
            json=options.output == "json",
            clients=tuple(int(n) for n in options.clients.split(",")),
            kinds=tuple(options.kinds.split(",")),
            seconds=options.seconds,
            value_bytes=options.value_bytes,
        )
    except (KvError, ValueError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
