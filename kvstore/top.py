"""What the replicas of a cluster do at the moment: rates and times between two looks at their metrics and statuses."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from kvstore.cluster import fetch
from kvstore.status import ASKED_AT_ONCE, ReplicaStatus, lags, statuses

MIB = 1024 * 1024
REQUESTS, BUCKETS = "kvstore_http_requests_total", "kvstore_http_request_seconds_bucket"
HEADINGS = (
    "ID", "SHARD", "ROLE", "STATE", "REQ/S", "FAIL/S", "P50", "P99", "LAG", "WAITS", "SYNC", "JOURNAL", "MEMORY",
    "DISK", "CLOCK",
)  # fmt: skip


class Look(msgspec.Struct):
    """At one replica. at: `time.monotonic`. numbers: of its metrics without labels. requests, failed: answered ones,
    and those with a status from 500 on. buckets: upper bound in seconds -> requests that took no longer."""

    status: ReplicaStatus
    at: float
    numbers: dict[str, float] = {}
    requests: float = 0.0
    failed: float = 0.0
    buckets: dict[float, float] = {}


class Row(msgspec.Struct):
    """Of a replica between two looks; None: not known. p50, p99: seconds, of requests in between. lag: deliveries
    behind the first of its shard. head_waiting, sync_p99: seconds. The rest in bytes."""

    id: int
    shard: int
    role: str
    state: str
    requests_per_second: float | None = None
    failed_per_second: float | None = None
    p50: float | None = None
    p99: float | None = None
    lag: int | None = None
    head_waiting: float | None = None
    sync_p99: float | None = None
    journal_bytes: float | None = None
    memory_bytes: float | None = None
    disk_free_bytes: float | None = None
    clock_off: bool | None = None


def watched(target: str | Path, seconds: float) -> Iterator[list[Row]]:
    """Of all replicas, again and again: what was between two looks that are so far apart."""
    before = {look.status.id: look for look in looked(target)}
    while True:
        time.sleep(seconds)
        now = looked(target)
        behind = lags([look.status for look in now])
        yield [row(before.get(look.status.id), look, lag) for look, lag in zip(now, behind, strict=True)]
        before = {look.status.id: look for look in now}


def looked(target: str | Path) -> list[Look]:
    """At every replica. ClusterError, ConfigError: see `statuses`."""
    replicas = statuses(target)
    with ThreadPoolExecutor(ASKED_AT_ONCE) as together:
        return list(together.map(_look, replicas))


def _look(status: ReplicaStatus) -> Look:
    look = Look(status, time.monotonic())
    if not status.details:
        return look
    try:
        code, body = fetch(f"{status.url}/metrics")
    except OSError:
        return look
    if code == 200:  # who may not see metrics sees the rest
        read(look, body.decode())
    return look


def read(look: Look, text: str) -> None:
    """What its metrics say."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == REQUESTS:
                look.requests += sample.value
                look.failed += sample.value if sample.labels["status"] >= "500" else 0.0
            elif sample.name == BUCKETS:
                bound = float(sample.labels["le"])
                look.buckets[bound] = look.buckets.get(bound, 0.0) + sample.value
            elif not sample.labels:
                look.numbers[sample.name] = sample.value


def row(before: Look | None, now: Look, lag: int | None) -> Row:
    """A counter that has become less has begun anew."""
    status, numbers = now.status, now.numbers
    made = Row(status.id, status.shard, status.role, status.state, lag=lag)
    if before is not None and now.buckets and now.requests >= before.requests and before.numbers:
        seconds = max(now.at - before.at, 1e-9)
        made.requests_per_second = (now.requests - before.requests) / seconds
        made.failed_per_second = (now.failed - before.failed) / seconds
        between = [(bound, count - before.buckets.get(bound, 0.0)) for bound, count in sorted(now.buckets.items())]
        made.p50, made.p99 = quantile(between, 0.5), quantile(between, 0.99)
    made.head_waiting = numbers.get("kvstore_head_waiting_seconds")
    made.sync_p99 = numbers.get("kvstore_journal_sync_p99_seconds")
    made.journal_bytes = numbers.get("kvstore_journal_held_bytes")
    made.memory_bytes = numbers.get("process_resident_memory_bytes")
    made.disk_free_bytes = status.details.get("disk_free_bytes")
    made.clock_off = (status.details.get("clock") or {}).get("off")
    return made


def quantile(buckets: Sequence[tuple[float, float]], part: float) -> float | None:
    """Of a histogram, (bound, how many up to it) rising, evenly spread within a bucket; the last finite bound for what
    is beyond. None if it is empty."""
    if not buckets or not buckets[-1][1]:
        return None
    wanted, low, below = part * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted:
            return low if bound == float("inf") else low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return low


def cells(one: Row) -> tuple[str, ...]:
    """As HEADINGS."""
    return (
        str(one.id), str(one.shard), one.role or "-", one.state, _text(one.requests_per_second, "{:.0f}"),
        _text(one.failed_per_second, "{:.0f}"), _ms(one.p50), _ms(one.p99), _text(one.lag, "{}"),
        _ms(one.head_waiting), _ms(one.sync_p99), _mib(one.journal_bytes), _mib(one.memory_bytes),
        _mib(one.disk_free_bytes), "-" if one.clock_off is None else "off" if one.clock_off else "ok",
    )  # fmt: skip


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f}ms"


def _mib(size: float | None) -> str:
    if size is None:
        return "-"
    return f"{size / MIB:.0f}M" if size < 10_000 * MIB else f"{size / 1024 / MIB:.0f}G"
