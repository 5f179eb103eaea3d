"""Ports of tests."""

from __future__ import annotations

from collections import deque

import pytest

from kvstore.config import HTTP_PORT_OFFSET
from tests import ports
from tests.ports import free_base_port, free_ports


def test_nobody_is_given_a_port_that_somebody_was_given_just_before() -> None:
    """And has not yet bound."""
    bases = [free_base_port(3) for _ in range(40)]
    given = [base + offset + n for base in bases for offset in (0, HTTP_PORT_OFFSET) for n in range(3)] + free_ports(40)
    assert len(set(given)) == len(given) == 280


def test_a_large_cluster_finds_room_however_much_was_given_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports taken here and there leave no piece in which it fits. In a range that no worker has: what other tests have
    open is not to be in the way."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{ports.RANGES - 1}")
    monkeypatch.setattr(ports, "_given", deque(maxlen=ports._given.maxlen))
    for _ in range(600):
        free_ports(2)
        free_base_port(3)
    assert free_base_port(46) != free_base_port(46)
