"""Load that is over when enough was asked, however fast the machine is, and ports that no other worker takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.ports import free_base_port
from workloads import soak
from workloads.bench import clusters, etcd, measure
from workloads.bench.load import Load, Operation
from workloads.nemesis import cluster

SECONDS = 60.0
"""What a plan says; the counted load ends long before."""


class Counted(Load):
    """Stops when `OPERATIONS` have begun."""

    OPERATIONS = 100

    def __init__(
        self, urls: Sequence[str], clients: int, make: Callable[[], Operation], seconds: float, *rest: Any
    ):
        left = iter(range(self.OPERATIONS))

        def counted() -> Operation:
            if next(left, None) is None:
                self.stop()
            return make()

        super().__init__(urls, clients, counted, seconds, *rest)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[Counted]:
    """The load of all that is measured while a test runs; the class is the test's own. That the machine stands still
    spoils nothing."""
    kind = type("Counted", (Counted,), {})
    monkeypatch.setattr(measure, "Load", kind)
    monkeypatch.setattr(measure, "STILL_SECONDS", 3600.0)
    return kind


@pytest.fixture(autouse=True)
def own_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all clusters that are started by this process: else two workers would find the same ones free."""
    for module in (clusters, etcd, soak, cluster):
        monkeypatch.setattr(module, "free_base_port", lambda replicas, apart=False: free_base_port(replicas))
