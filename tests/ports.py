"""Free ports for what tests start. Every worker of pytest-xdist has a range of its own, below those that the kernel
gives to whoever connects, so that nobody else takes a port between its choice and its use; nor does the same test, for
another of its clusters: what was given lately is not given again."""

from __future__ import annotations

import os
import random
import socket
import time
from collections import deque
from contextlib import ExitStack

from kvstore.config import HTTP_PORT_OFFSET

_FIRST, _PER_WORKER, _RANGES = 10_000, 2_800, 8
_TRIES = 100
_given: deque[int] = deque(maxlen=1_000)
"""By this process, the latest ones."""


def _mine() -> range:
    """The range of this worker; of the only process, where there are none."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _FIRST + worker % _RANGES * _PER_WORKER
    return range(first, first + _PER_WORKER)


def _all_free(ports: list[int]) -> bool:
    """If they are, they are given now."""
    if not set(_given).isdisjoint(ports):
        return False
    with ExitStack() as stack:
        try:
            for port in ports:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            return False
    _given.extend(ports)
    return True


def _rng() -> random.Random:
    return random.Random(os.getpid() ^ time.monotonic_ns())


def free_ports(count: int) -> list[int]:
    """Ports that are free now."""
    rng = _rng()
    found: list[int] = []
    for port in rng.sample(_mine(), _PER_WORKER):
        if len(found) == count:
            break
        found += [port] if _all_free([port]) else []
    assert len(found) == count, "no free ports"
    return found


def free_base_port(replicas: int) -> int:
    """A base port such that every port of a cluster of so many replicas is free now."""
    rng = _rng()
    for _ in range(_TRIES):
        base = rng.choice(_mine()[: -HTTP_PORT_OFFSET - replicas])
        if _all_free([base + offset + i for offset in (0, HTTP_PORT_OFFSET) for i in range(replicas)]):
            return base
    raise AssertionError("no free ports")
