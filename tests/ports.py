"""Free ports for what tests start. Every worker of pytest-xdist has a range of its own, below those that the kernel
gives to whoever connects, so that nobody else takes a port between its choice and its use; nor does the same test, for
another of its clusters: what was given lately is not given again."""

from __future__ import annotations

import os
import random
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice

from kvstore.config import HTTP_PORT_OFFSET

_FIRST, _PER_WORKER, RANGES = 10_000, 2_800, 8
_given: deque[int] = deque(maxlen=1_000)
"""By this process, the latest ones."""


def _mine() -> range:
    """The range of this worker; of the only process, where there are none."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _FIRST + worker % RANGES * _PER_WORKER
    return range(first, first + _PER_WORKER)


def _in_turn() -> Iterator[int]:
    """This worker's ports, once round from the one given last: so what was given lately lies together, and leaves
    room for a large cluster in one piece. A process begins anywhere: what the one before it had may linger."""
    mine = _mine()
    start = _given[-1] + 1 - mine.start if _given else random.Random(os.getpid()).randrange(len(mine))
    return (mine[(start + n) % len(mine)] for n in range(len(mine)))


def _all_free(ports: list[int]) -> bool:
    """If they are, they are given now. For a server, that is: connections that linger are nothing to it."""
    if ports[-1] not in _mine() or not set(_given).isdisjoint(ports):
        return False
    with ExitStack() as stack:
        try:
            for port in ports:
                one = stack.enter_context(socket.socket())
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind(("127.0.0.1", port))
        except OSError:
            return False
    _given.extend(ports)
    return True


def free_ports(count: int) -> list[int]:
    """Ports that are free now."""
    found = list(islice((port for port in _in_turn() if _all_free([port])), count))
    assert len(found) == count, "no free ports"
    return found


def free_base_port(replicas: int) -> int:
    """A base port such that every port of a cluster of so many replicas is free now."""
    for base in _in_turn():
        if _all_free([base + offset + i for offset in (0, HTTP_PORT_OFFSET) for i in range(replicas)]):
            return base
    raise AssertionError("no free ports")
