"""Load that is over when enough was asked, however fast the machine is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from workloads.bench import measure
from workloads.bench.load import Load, Operation

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
    """The load of all that is measured while a test runs; the class is the test's own."""
    kind = type("Counted", (Counted,), {})
    monkeypatch.setattr(measure, "Load", kind)
    return kind
