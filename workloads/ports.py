"""Where a cluster that is started for a while can listen."""

from __future__ import annotations

import random
import socket

HTTP_PORT_OFFSET = 100
BASE_PORT = 7400
PORT_STEP = 200


class NoFreePorts(OSError):
    """Every range of ports that was tried is in use."""


def free_base_port(replicas: int, apart: bool = False) -> int:
    """The first base port from BASE_PORT on whose peer and HTTP ports are all free on the loopback address. apart: any
    such one, for who stops some replicas for a while: the first is what the next cluster takes, too."""
    bases = range(BASE_PORT, 32000, PORT_STEP)
    for base in random.sample(bases, len(bases)) if apart else bases:
        ports = [base + i + offset for i in range(replicas) for offset in (0, HTTP_PORT_OFFSET)]
        if all(map(_free, ports)):
            return base
    raise NoFreePorts("no free ports on 127.0.0.1")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
