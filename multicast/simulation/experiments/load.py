"""One point of a curve: clients in a closed loop on a simulated deployment, and the latencies that they see.

As in the PrimCast paper, Section 7.2: one client sits beside each replica. It multicasts through its replica to that
replica's group and to other groups drawn evenly, until so many of its messages are outstanding; for each that its
replica has delivered it multicasts another. Latency is from the multicast to the delivery at that replica, taken when
the replica's processor is done with the batch in which it delivers.

Disks take no time (the papers' implementations keep everything in memory). Computing costs what `Cpu` says. Nothing
fails, so timeouts and retries are made so long that load alone does not set them off.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import ceil

import msgspec

from multicast import registry
from multicast.application import Application
from multicast.protocol import MulticastProtocol, Options
from multicast.records import Delivered
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.drawing import protocol_options
from multicast.simulation.experiments.deployments import BASE_DELAY_US, REPLICAS, Deployment
from multicast.simulation.network import Conditions, Cpu
from multicast.simulation.observe import Observer
from multicast.simulation.scene import Node
from multicast.simulation.world import World
from multicast.types import FINAL, AppMessage, MessageId, ProcessId, Topology, new_message_id

PAYLOAD_BYTES = 20
"""As in the White-Box paper, Section VI."""

ALONE = 0
"""Instead of messages outstanding per client: one message in the whole system at a time. Nobody waits for anybody."""

LIMIT_US = 60_000_000
"""Simulated time after which a point is given up."""

_PATIENT = {"election_timeout_us": "20000000", "retry_us": "10000000"}
_SPREAD_US = 4
"""Clients begin within so many times the longest delay, not all at once."""


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """A protocol with the options to measure it with. title: for people."""

    title: str
    protocol: str
    options: tuple[tuple[str, str], ...] = ()


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. outstanding: messages per client, or `ALONE`. samples: messages to measure, at least; with many
    outstanding it is three for each of them."""

    deployment: Deployment
    variant: Variant
    groups: int
    destinations: int
    outstanding: int
    samples: int
    cpu: Cpu
    seed: int

    @property
    def in_flight(self) -> int:
        """Messages in the whole system."""
        return self.outstanding * self.groups * REPLICAS or 1

    @property
    def warm_up(self) -> int:
        """Messages that are not counted."""
        return max(8, self.deployment.warmup_rounds * self.in_flight)


class Measured(msgspec.Struct, kw_only=True):
    """What clients saw. leaders, followers: latencies in microseconds, at clients of (first) leaders and of others, in
    the order of delivery. elapsed_us: while these were measured. sent: messages between processes for each multicast,
    housekeeping included."""

    point: Point
    leaders: list[int]
    followers: list[int]
    elapsed_us: int
    sent: float

    @property
    def all(self) -> list[int]:
        """Of every client, sorted."""
        return sorted(self.leaders + self.followers)

    @property
    def throughput(self) -> float:
        """Multicasts per second."""
        return (len(self.leaders) + len(self.followers)) / self.elapsed_us * 1e6 if self.elapsed_us else 0.0

    @property
    def mean_us(self) -> float:
        """Over every client."""
        return sum(self.leaders + self.followers) / max(1, len(self.leaders) + len(self.followers))


def quantile(values: list[int], share: float) -> float:
    """The value below or at which so large a share of the sorted `values` is."""
    if not values:
        return float("nan")
    return float(values[min(len(values) - 1, max(0, ceil(share * len(values)) - 1))])


class Clients(Observer):
    """The closed loop. begin: from which completion on to measure. stopped: multicast no more."""

    def __init__(self, topology: Topology, destinations: int, seed: str, begin: int = 0):
        self.world: World
        self.leaders: list[int] = []
        self.followers: list[int] = []
        self.first_us = self.last_us = 0
        self.done = 0
        self.begin = begin
        self._groups = tuple(topology.groups)
        self._topology = topology
        self._leaders = {members[0] for members in topology.groups.values()}
        self._others = destinations - 1
        self._rng = random.Random(f"{seed}/clients")
        self._waiting: dict[MessageId, tuple[ProcessId, int, bool]] = {}

    def start(self, outstanding: int, spread_us: int) -> None:
        """Clients begin within `spread_us`."""
        world = self.world
        if outstanding == ALONE:
            world.schedule(world.now + spread_us, self._submit, 0, True)
            return
        for pid in self._topology.processes:
            for _ in range(outstanding):
                world.schedule(world.now + self._rng.randint(0, spread_us), self._submit, pid, False)

    @property
    def measured(self) -> int:
        """How many messages."""
        return max(0, self.done - self.begin)

    def _submit(self, pid: ProcessId, roams: bool) -> None:
        rng, world = self._rng, self.world
        if roams:
            pid = rng.choice(self._topology.processes)
        own = self._topology.group_of[pid]
        others = rng.sample([g for g in self._groups if g != own], self._others)
        identity = new_message_id(world.now, rng.getrandbits(62))
        self._waiting[identity] = (pid, world.now, roams)
        world.submit(pid, AppMessage(identity, tuple(sorted((own, *others))), bytes(PAYLOAD_BYTES), pid))

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        """One of ours may have come home."""
        if node.pid != delivery.message.origin or delivery.stage != FINAL or replay:
            return
        pid, since, roams = self._waiting.pop(delivery.message.id)
        at = max(self.world.now, ceil(node.busy_until))
        self.done += 1
        if self.done == self.begin:
            self.first_us = at
        elif self.done > self.begin:
            (self.leaders if pid in self._leaders else self.followers).append(at - since)
            self.last_us = max(self.last_us, at)
        self.world.schedule(at, self._submit, pid, roams)


def build(
    deployment: Deployment, variant: Variant, groups: int, cpu: Cpu, seed: str, clients: Clients, patient: bool
) -> World:
    """A world of this deployment, not started. patient: timeouts so long that nothing sets them off."""
    topology = Topology.grid(groups, REPLICAS)
    protocol = registry.load(variant.protocol)
    options = _options(protocol, {**(_PATIENT if patient else {}), **dict(variant.options)})

    def make_process(
        pid: ProcessId, rng: random.Random, _: SimulatedDisk
    ) -> tuple[MulticastProtocol, Application]:
        return protocol(pid, topology, options, rng), Application()

    conditions = Conditions(
        delay_us=(BASE_DELAY_US, BASE_DELAY_US), late_probability=0.0, fsync_us=(0, 0), acknowledge_frames=256, cpu=cpu
    )
    world = World(topology, make_process, seed, conditions, [clients])
    clients.world = world
    deployment.place(world, seed)
    return world


def _options(protocol: type[MulticastProtocol], values: dict[str, str]) -> Options:
    """Those of `values` that the protocol has; its variant's it has."""
    known = {field.name for field in msgspec.structs.fields(protocol.specification.options)}
    return protocol_options(protocol, {key: value for key, value in values.items() if key in known})


def measure(point: Point, progress: Callable[[float], None] = lambda share: None) -> Measured:
    """Run until enough messages have come home; those of the first rounds are not counted (`Deployment.warmup_rounds`).

    Depends on nothing but the point. A run in which nothing comes home for `LIMIT_US` has fewer samples."""
    seed = f"{point.seed}/{point.deployment.name}/{point.variant.title}/{point.destinations}/{point.outstanding}"
    samples = max(point.samples, 3 * point.in_flight)
    clients = Clients(Topology.grid(point.groups, REPLICAS), point.destinations, seed, point.warm_up)
    world = build(point.deployment, point.variant, point.groups, point.cpu, seed, clients, patient=True)
    longest = max(point.deployment.delay_us(0, pid) for pid in world.nodes)
    world.start()
    clients.start(point.outstanding, _SPREAD_US * longest)
    end = world.now + LIMIT_US
    while clients.measured < samples and world.now < end:
        world.run_for(point.deployment.step_us)
        progress(min(1.0, clients.done / (samples + clients.begin)))
    if world.violations:
        raise AssertionError(f"{point.variant.title}: {world.violations[0]}")
    return Measured(
        point=point, leaders=clients.leaders, followers=clients.followers,
        elapsed_us=clients.last_us - clients.first_us, sent=world.network.frames_sent / max(1, clients.done),
    )  # fmt: skip
