"""Prometheus metrics of one replica: HTTP requests counted as they end, everything else read from the replica's status
when somebody asks."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROUTES = {"/v1/kv/": "kv", "/v1/kv": "scan", "/v1/txn": "txn"}
_METHODS = ("GET", "PUT", "POST", "DELETE", "HEAD")
_NOT_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


class Metrics:
    """status: the replica's numbers, nested; every number in it becomes a gauge `kvstore_<path with _>`."""

    def __init__(self, status: Callable[[], dict[str, Any]]):
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = _RequestCollector()
        self._registry.register(self._requests)
        self._registry.register(_StatusCollector(status))
        self.observe = self._requests.observe

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
        requests = CounterMetricFamily(
            "kvstore_http_requests", "Answered requests", labels=["method", "route", "status"]
        )
        whole: dict[tuple[str, str], _Timings] = {}
        for (method, route, status), timings in sorted(self._timings.items()):
            name = _ROUTES.get(route, route)
            requests.add_metric([method, name, str(status)], sum(timings.counts))
            total = whole.setdefault((method, name), _Timings())
            total.counts = [a + b for a, b in zip(total.counts, timings.counts, strict=True)]
            total.seconds += timings.seconds
        yield requests
        seconds = HistogramMetricFamily(
            "kvstore_http_request_seconds", "From the request's head to its answer", labels=["method", "route"]
        )
        for labels, total in whole.items():
            bounds = [*map(str, _BUCKETS_SECONDS), "+Inf"]
            seconds.add_metric(
                labels, list(zip(bounds, accumulate(total.counts), strict=True)), sum_value=total.seconds
            )
        yield seconds


class _StatusCollector(Collector):
    def __init__(self, status: Callable[[], dict[str, Any]]):
        self._status = status

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, value in sorted(flat_numbers(self._status()).items()):
            yield GaugeMetricFamily(f"kvstore_{name}", "From the replica's status", value=value)


def flat_numbers(status: dict[str, Any], path: str = "") -> dict[str, float]:
    """Every number in nested dictionaries, by its path: {"a": {"b": 1}} gives {"a_b": 1.0}."""
    numbers: dict[str, float] = {}
    for key, value in status.items():
        name = f"{path}_{key}" if path else str(key)
        if isinstance(value, dict):
            numbers.update(flat_numbers(value, name))
        elif isinstance(value, int | float):
            numbers[_NOT_A_NAME.sub("_", name)] = float(value)
    return numbers
