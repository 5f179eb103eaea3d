"""Prometheus metrics of one replica: HTTP requests counted as they end, everything else read from the replica's status
when somebody asks. What there is stands in `DECLARED`, one by one, and for people in `kvstore/METRICS.md`."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from kvstore.http.admission import Admission

_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROUTES = {"/v1/kv/": "kv", "/v1/kv": "range", "/v1/txn": "txn"}
_METHODS = ("GET", "PUT", "POST", "DELETE", "HEAD")


class Declared(NamedTuple):
    """A metric; a counter's name ends with `_total`. where: the keys in the status that lead to its number. label:
    where they lead to several, by what these are told apart: {label value: {last key: number}}, or
    {label value: number} if the last key is empty. unit: what one of the status is in the metric's."""

    name: str
    text: str
    where: tuple[str, ...]
    label: str = ""
    unit: float = 1.0


_US = 1e-6
DECLARED = (
    Declared("kvstore_ready", "1 if it serves requests", ("ready",)),
    Declared("kvstore_leader_changes_total", "Changes of its shard's leader that it has seen", ("leader_changes",)),
    Declared("kvstore_leaderless_seconds", "How long it has known no leader of its shard", ("leaderless_seconds",)),
    Declared("kvstore_shard", "The shard that it belongs to", ("shard",)),
    Declared("kvstore_incarnation_seconds", "When this life began, since 1970", ("incarnation",), unit=_US),
    Declared("kvstore_delivered_total", "Deliveries of its shard, in all its lives", ("position",)),
    Declared("kvstore_completed_total", "Deliveries that took effect, in all its lives", ("store", "position")),
    Declared("kvstore_batches_total", "Batches of its event loop", ("batches",)),
    Declared("kvstore_requests_open", "Requests to the multicast layer without an answer", ("requests",)),
    Declared("kvstore_requests_waiting", "Requests that wait for results", ("store", "requests_waiting")),
    Declared("kvstore_log_length", "Deliveries that did not take effect yet", ("store", "log_length")),
    Declared("kvstore_head_waiting_seconds", "How long the first of these waits", ("store", "head_waiting_us"),
             unit=_US),
    Declared("kvstore_transactions_total", "Transactions that took effect, or had none", ("store", "transactions", ""),
             "outcome"),
    Declared("kvstore_bundles_total", "Bundles that it multicast", ("store", "bundles")),
    Declared("kvstore_bundled_transactions_total", "Transactions in them", ("store", "bundled")),
    Declared("kvstore_reads_unordered_total", "Reads that were not ordered", ("store", "reads_unordered")),
    Declared("kvstore_read_barriers_total", "Empty messages that reads have waited for", ("store", "read_barriers")),
    Declared("kvstore_reads_at_version_total", "Reads of this shard at a version", ("store", "reads_at_version")),
    Declared("kvstore_watches_waiting", "Watches that wait for changes", ("store", "watches_waiting")),
    Declared("kvstore_watch_buffer_bytes", "Changes that it keeps for them", ("store", "watch_buffer_bytes")),
    Declared("kvstore_watched_transactions_total", "Transactions that it put in order for them",
             ("store", "watched_transactions")),
    Declared("kvstore_watches_lagged_total", "Watches that fell behind that", ("store", "watches_lagged")),
    Declared("kvstore_leases", "Leases whose time it measures, as the leader of their shard", ("store", "leases")),
    Declared("kvstore_leases_expired_total", "Revocations that it asked for", ("store", "leases_expired")),
    Declared("kvstore_parts_pushed_total", "Parts told to other shards", ("store", "parts_pushed")),
    Declared("kvstore_parts_pulled_total", "Parts asked of other shards", ("store", "parts_pulled")),
    Declared("kvstore_peer_connected", "1 if both directions are up", ("peers", "connected"), "peer"),
    Declared("kvstore_peer_queued_frames", "Frames without an acknowledgement", ("peers", "queued"), "peer"),
    Declared("kvstore_clock_off", "1 if its clock is off from most that it hears", ("clock", "off")),
    Declared("kvstore_clock_ahead_seconds", "By how much", ("clock", "ahead_us"), unit=_US),
    Declared("kvstore_clock_heard", "Whose clocks it hears", ("clock", "heard")),
    Declared("kvstore_journal_syncs_total", "Syncs of its journal", ("syncs",)),
    Declared("kvstore_disk_hangs", "1 if a write to its journal takes longer than slow disks take", ("disk_hangs",)),
    Declared("kvstore_journal_sync_p50_seconds", "The median of the last syncs", ("fdatasync_us", "p50"), unit=_US),
    Declared("kvstore_journal_sync_p99_seconds", "One in a hundred took longer", ("fdatasync_us", "p99"), unit=_US),
    Declared("kvstore_journal_written_bytes_total", "Of its journal, in all its lives", ("journal_bytes",)),
    Declared("kvstore_journal_held_bytes", "Of its journal, on its disk", ("journal_held_bytes",)),
    Declared("kvstore_journal_unwritten_bytes", "Of its journal, not written yet", ("unwritten_bytes",)),
    Declared("kvstore_archived_bytes_total", "Of its journal, copied to the archive", ("archived_bytes",)),
    Declared("kvstore_disk_free_bytes", "Of the disk with its data", ("disk_free_bytes",)),
    Declared("kvstore_write_buffer_bytes", "Of its state, not committed yet", ("write_buffer_bytes",)),
)  # fmt: skip
LEADER, INFO = "kvstore_leader", "kvstore_replica_info"
REQUESTS, REQUEST_SECONDS = "kvstore_http_requests_total", "kvstore_http_request_seconds"
ADMITTED, REFUSED = "kvstore_http_admitted_total", "kvstore_http_refused_total"
SYNC_SECONDS = "kvstore_journal_sync_seconds"
CERTIFICATE = "kvstore_certificate_expires_timestamp_seconds"
UNDER_WAY, UNDER_WAY_MAX = "kvstore_http_under_way", "kvstore_http_under_way_max"


def exported_names() -> set[str]:
    """Of all samples, those of the process aside."""
    histograms = {f"{name}_{end}" for name in (REQUEST_SECONDS, SYNC_SECONDS) for end in ("bucket", "count", "sum")}
    admission = {ADMITTED, REFUSED, UNDER_WAY, UNDER_WAY_MAX}
    return {declared.name for declared in DECLARED} | histograms | admission | {LEADER, INFO, REQUESTS, CERTIFICATE}


class Metrics:
    """status: the replica's, see `kvstore.host`. admission: of its server, once there is one. certificate_expires():
    seconds since 1970, with TLS."""

    admission: Admission | None = None
    certificate_expires: Callable[[], float] | None = None

    def __init__(self, status: Callable[[], dict[str, Any]]):
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = _RequestCollector()
        self._registry.register(self._requests)
        self._registry.register(_StatusCollector(status))
        self._registry.register(_AdmissionCollector(self))
        self.observe = self._requests.observe
        self.refusals: Counter[str] = Counter()
        """By reason."""

    def refused(self, reason: str) -> None:
        """Count one request that was not served though nothing is wrong with it."""
        self.refusals[reason] += 1

    def render(self) -> tuple[bytes, str]:
        """(text, content type)."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class _Timings:
    """Answers of one kind: how many took up to each bound and longer than the last, and seconds in all."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS_SECONDS) + 1)
        self.seconds = 0.0


class _RequestCollector(Collector):
    """Answered requests, counted as cheaply as can be and made into Prometheus' families when somebody asks."""

    def __init__(self) -> None:
        self._timings: dict[tuple[str, str, int], _Timings] = {}

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request. Unknown routes and methods are one each: labels are not for strangers to choose."""
        timings = self._timings.get((method, route, status)) or self._timings_of(method, route, status)
        timings.counts[bisect_left(_BUCKETS_SECONDS, seconds)] += 1
        timings.seconds += seconds

    def _timings_of(self, method: str, route: str, status: int) -> _Timings:
        verb = method if method in _METHODS else "other"
        name = route if route in _ROUTES else "other"
        return self._timings.setdefault((verb, name, status), _Timings())

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(REQUESTS, "Answered requests", labels=["method", "route", "status"])
        whole: dict[tuple[str, str], _Timings] = {}
        for (method, route, status), timings in sorted(self._timings.items()):
            name = _ROUTES.get(route, route)
            requests.add_metric([method, name, str(status)], sum(timings.counts))
            total = whole.setdefault((method, name), _Timings())
            total.counts = [a + b for a, b in zip(total.counts, timings.counts, strict=True)]
            total.seconds += timings.seconds
        yield requests
        text = "From the request's head to its answer"
        seconds = HistogramMetricFamily(REQUEST_SECONDS, text, labels=["method", "route"])
        for labels, total in whole.items():
            seconds.add_metric(labels, _cumulative(_BUCKETS_SECONDS, total.counts), sum_value=total.seconds)
        yield seconds


def _cumulative(bounds_seconds: Iterable[float], counts: Iterable[int]) -> list[tuple[str, float]]:
    """As Prometheus has buckets. counts: of each bucket alone, the last of what is beyond the bounds."""
    return list(zip([*map(str, bounds_seconds), "+Inf"], accumulate(counts), strict=True))


class _AdmissionCollector(Collector):
    """What was taken and what was not, and the server's certificate."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Metric]:
        text = "Requests that were not served, though nothing is wrong"
        refused = CounterMetricFamily(REFUSED, text, labels=["reason"])
        for reason, count in sorted(self._metrics.refusals.items()):
            refused.add_metric([reason], count)
        yield refused
        if self._metrics.certificate_expires is not None:
            text = "When its certificate ends, or the authority that has signed it, since 1970"
            yield GaugeMetricFamily(CERTIFICATE, text, value=self._metrics.certificate_expires())
        admission = self._metrics.admission
        if admission is not None:
            yield CounterMetricFamily(ADMITTED, "Requests that were taken", value=admission.admitted)
            text = "Requests that were taken and are not answered"
            yield GaugeMetricFamily(UNDER_WAY, text, value=admission.under_way)
            text = "No more than these are taken, by what was answered lately"
            yield GaugeMetricFamily(UNDER_WAY_MAX, text, value=admission.limit)


class _StatusCollector(Collector):
    def __init__(self, status: Callable[[], dict[str, Any]]):
        self._status = status

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        names = ["replica", "shard", "protocol", "durability"]
        info = GaugeMetricFamily(INFO, "1, and what it is", labels=names)
        info.add_metric([str(status.get(name, "")) for name in ("id", *names[1:])], 1)
        yield info
        yield GaugeMetricFamily(LEADER, "1 if it leads its shard", value=float(status.get("role") == "leader"))
        for declared in DECLARED:
            numbers = _numbers(status, declared)
            if numbers:
                kind = CounterMetricFamily if declared.name.endswith("_total") else GaugeMetricFamily
                family = kind(declared.name, declared.text, labels=[declared.label] if declared.label else [])
                for label, number in numbers.items():
                    family.add_metric([label] if declared.label else [], number * declared.unit)
                yield family
        if syncs := status.get("syncs_us"):
            seconds = HistogramMetricFamily(SYNC_SECONDS, "Syncs of its journal, in this life")
            bounds = [bound / 1e6 for bound in syncs["bounds"]]
            seconds.add_metric([], _cumulative(bounds, syncs["counts"]), sum_value=syncs["sum"] / 1e6)
            yield seconds


def _numbers(status: Any, declared: Declared) -> dict[str, float]:
    """Label value -> number; none while the status does not have it."""
    *ways, last = declared.where
    for way in ways:
        status = status.get(way) or {}
    found = status if declared.label else {"": status}
    chosen = {label: (one.get(last) if last else one) for label, one in found.items()}
    return {str(label): float(number) for label, number in chosen.items() if number is not None}
