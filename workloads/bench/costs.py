"""What servers spent per request, from what they tell at `/metrics` before and after."""

from __future__ import annotations

import asyncio
import http.client
import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

import msgspec

_PLAIN = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*) ([-+0-9.eE]+|NaN)$", re.M)
_SECONDS = 3.0
_SYNC = "kvstore_journal_sync_p50_seconds"
_MEMORY = "process_resident_memory_bytes"

Numbers = dict[str, float]
"""A server's metrics without labels: name -> value."""


class Costs(msgspec.Struct, kw_only=True):
    """Per request (but for memory), of everything between two looks at the servers; None: they do not tell.

    leader_us, follower_us: processor time of all leaders that clients asked, and of all other replicas, together,
    microseconds (counted in ticks of 10 ms: short measurements are coarse). load_us: of the load generator.
    syncs, journal_bytes: of the leaders' journals (etcd: of its write-ahead log).
    memory_mib: of all servers together, afterwards.
    bundle: transactions per bundle that was multicast. batch: requests per batch of a leader's engine.
    """

    leader_us: float | None = None
    follower_us: float | None = None
    load_us: float | None = None
    syncs: float | None = None
    journal_bytes: float | None = None
    memory_mib: float | None = None
    bundle: float | None = None
    batch: float | None = None


def parse(text: str) -> Numbers:
    """From Prometheus' text format."""
    return {name: float(value) for name, value in _PLAIN.findall(text)}


async def look(servers: Iterable[str]) -> dict[str, Numbers]:
    """What each server tells now; nothing for one that does not answer."""
    return {url: await asyncio.to_thread(_fetch, url) for url in servers}


def _fetch(url: str) -> Numbers:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=_SECONDS)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        return parse(answer.read().decode()) if answer.status == 200 else {}
    except (OSError, http.client.HTTPException):
        return {}
    finally:
        connection.close()


def between(
    before: dict[str, Numbers], after: dict[str, Numbers], leaders: Sequence[str], requests: int, load_ns: int
) -> Costs:
    """What `requests` cost. leaders: the servers that were asked."""
    if not requests:
        return Costs()
    followers = [url for url in after if url not in leaders]

    def spent(servers: Sequence[str], *names: str) -> float | None:
        for name in names:
            found = [after[u][name] - before[u][name] for u in servers if name in after[u] and name in before[u]]
            if found:
                return sum(found)
        return None

    def each(amount: float | None, scale: float = 1.0) -> float | None:
        return None if amount is None else round(amount * scale / requests, 2)

    memory = [numbers[_MEMORY] for numbers in after.values() if _MEMORY in numbers]
    batches = spent(leaders, "kvstore_batches_total")
    bundles = spent(list(after), "kvstore_bundles_total")
    bundled = spent(list(after), "kvstore_bundled_transactions_total")
    return Costs(
        leader_us=each(spent(leaders, "process_cpu_seconds_total"), 1e6),
        follower_us=each(spent(followers, "process_cpu_seconds_total"), 1e6),
        load_us=round(load_ns / 1000 / requests, 2),
        syncs=each(spent(leaders, "kvstore_journal_syncs_total", "etcd_disk_wal_fsync_duration_seconds_count")),
        journal_bytes=each(spent(leaders, "kvstore_journal_written_bytes_total", "etcd_disk_wal_write_bytes_total")),
        memory_mib=round(sum(memory) / 2**20, 1) if memory else None,
        bundle=round(bundled / bundles, 2) if bundles and bundled is not None else None,
        batch=round(requests / batches, 2) if batches else None,
    )


def sync_ms(now: dict[str, Numbers]) -> float | None:
    """The median of the servers' own medians of one `fdatasync`, milliseconds."""
    medians = sorted(n[_SYNC] for n in now.values() if _SYNC in n)
    return round(medians[len(medians) // 2] * 1000, 3) if medians else None
