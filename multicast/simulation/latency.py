"""Delivery latency in message delays, measured against the published figures.

The papers' model: every message takes exactly δ, a message to oneself nothing, computation and disk nothing.
Collision-free: m is alone. `first` is the worst group's first delivery, `every` the last delivery of all, both after
multicast(m), both worst over the senders tried. A sender outside the destinations is tried, and every process inside
them. The figures are exact, so a measured one must equal them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from multicast.protocol import Application, MulticastProtocol
from multicast.simulation.checkers import attach
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.network import Conditions
from multicast.simulation.observe import Observer
from multicast.simulation.runner import protocol_options
from multicast.simulation.world import Node, World
from multicast.types import FINAL, AppMessage, ProcessId, Timestamp, Topology, new_message_id

DELTA_US = 1_000
DESTINATIONS = (1, 2, 4)
REPLICAS = (3, 5)
_WARM_UP_US = 3_000_500
_WATCH_DELTAS = 50


class Row(msgspec.Struct, kw_only=True):
    """One measurement. sender: "outside" or "inside" the destinations. collision_free_*: in δ. messages: sent per
    multicast except housekeeping, to oneself included. paper: the published figures. match: see `rows`."""

    protocol: str
    options: dict[str, Any]
    destinations: int
    replicas: int
    sender: str
    collision_free_first: float
    collision_free_all: float
    messages: int
    paper: dict[str, int | None]
    match: bool


class _Meter(Observer):
    """Counts messages and notes deliveries."""

    watches_protocol = True

    def __init__(self, protocol: type[MulticastProtocol]):
        self.delivered: dict[ProcessId, int] = {}
        self.messages = 0
        self.counting = False
        self._housekeeping = protocol.specification.housekeeping

    def on_deliver(
        self,
        node: Node,
        position: int,
        message: AppMessage,
        timestamp: Timestamp,
        stage: int,
        expired: bool,
        replay: bool,
    ) -> None:
        if stage == FINAL:
            self.delivered[node.pid] = node.world.now

    def on_handled(
        self, node: Node, handler: str, args: tuple[Any, ...], sends: list[tuple[tuple[ProcessId, ...], Any, bool]]
    ) -> None:
        if self.counting:
            for to, message, _ in sends:
                if not isinstance(message, self._housekeeping):
                    self.messages += len(to)


def _measure(
    protocol: type[MulticastProtocol], options: Mapping[str, str], topology: Topology, sender: ProcessId, groups: int
) -> tuple[float, float, int]:
    """(first, every, messages) of one multicast to the first `groups` groups."""

    def make_process(
        pid: ProcessId, rng: random.Random, disk: SimulatedDisk
    ) -> tuple[MulticastProtocol, Application, None]:
        return protocol(pid, topology, protocol_options(protocol, options), rng), Application(), None

    meter = _Meter(protocol)
    world = World(topology, make_process, 0, Conditions.exact(DELTA_US), observers=[meter])
    attach(world)
    world.start()
    world.run_for(_WARM_UP_US)
    start = world.now
    destinations = tuple(range(groups))
    meter.counting = True
    world.submit(sender, AppMessage(new_message_id(world.now, 1), destinations, b"m", sender))
    members = topology.members(destinations)
    world.run_while(lambda: len(meter.delivered) < len(members), _WATCH_DELTAS * DELTA_US, DELTA_US)
    meter.counting = False
    if len(meter.delivered) < len(members):
        return float("inf"), float("inf"), meter.messages
    first = max(min(meter.delivered[p] for p in topology.groups[g]) for g in destinations)
    every = max(meter.delivered.values())
    return (first - start) / DELTA_US, (every - start) / DELTA_US, meter.messages


def rows(protocol: type[MulticastProtocol], options: Mapping[str, str]) -> list[Row]:
    """Measure one protocol in all topologies, except a message to one single process: nobody has to agree with it, so
    the published figures do not speak of it.

    A published figure holds for every message: it must be reached, and nowhere exceeded. Single cases may be quicker:
    of three processes, one needs nobody's acknowledgement but the primary's and its own.
    """
    found = list(_measurements(protocol, options))
    for field, published in (found[0].paper if found else {}).items():
        if published is not None:
            reached = any(getattr(row, field) == published for row in found)
            for row in found:
                row.match = row.match and reached and getattr(row, field) <= published
    return found


def _measurements(protocol: type[MulticastProtocol], options: Mapping[str, str]) -> Iterator[Row]:
    specification = protocol.specification
    paper_first, paper_every = specification.latency or (None, None)
    shown = msgspec.to_builtins(protocol_options(protocol, options))
    for replicas in REPLICAS if specification.fault_tolerant else (1,):
        for groups in DESTINATIONS:
            topology = Topology.grid(groups + 1, replicas)
            inside = topology.members(range(groups))
            if len(inside) == 1:
                continue
            for where, senders in (("outside", topology.groups[groups]), ("inside", inside)):
                measured = [_measure(protocol, options, topology, sender, groups) for sender in senders]
                first, every = max(m[0] for m in measured), max(m[1] for m in measured)
                yield Row(
                    protocol=specification.name,
                    options=shown,
                    destinations=groups,
                    replicas=replicas,
                    sender=where,
                    collision_free_first=first,
                    collision_free_all=every,
                    messages=max(m[2] for m in measured),
                    paper={"collision_free_first": paper_first, "collision_free_all": paper_every},
                    match=True,
                )
