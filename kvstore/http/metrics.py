"""Prometheus metrics of one replica: HTTP requests counted as they end, everything else read from the replica's status
when somebody asks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
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
        self._requests = Counter(
            "kvstore_http_requests", "Answered requests", ["method", "route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "kvstore_http_request_seconds",
            "From the request's head to its answer",
            ["method", "route"],
            buckets=_BUCKETS_SECONDS,
            registry=self._registry,
        )
        self._registry.register(_StatusCollector(status))
        self._children: dict[tuple[str, str, int], tuple[Any, Any]] = {}

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request. Unknown routes and methods are one each: labels are not for strangers to choose."""
        children = self._children.get((method, route, status))
        if children is None:
            name = _ROUTES.get(route, "other")
            verb = method if method in _METHODS else "other"
            children = self._requests.labels(verb, name, str(status)), self._seconds.labels(verb, name)
            if name != "other" and verb != "other":
                self._children[method, route, status] = children
        children[0].inc()
        children[1].observe(seconds)

    def render(self) -> tuple[bytes, str]:
        """(text, content type)."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


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
