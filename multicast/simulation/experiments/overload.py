"""A leader stands still for a while under open load: whether its group recovers, and what repetition costs meanwhile.

Clients are open: they multicast at a rate, whatever has become of what they multicast before, as the users of a store
do. So everything that a pause holds up is there at once when it ends, and a protocol that then repeats what merely
waits does less work, waits longer and repeats more: it collapses, and stays so after the cause is gone. The rate is a
share of the protocol's own saturation, measured with clients in a closed loop (`load`).

Processors are slower than the measured ones (`SLOWER`), and rates lower by as much: how long things queue against how
long timeouts are is what matters here, and that stays the same.

A message is outstanding until every replica of its destinations has delivered it. Recovered means: outstanding messages
and latency are for `STEADY_US` within `FACTOR` times the worst of the stretch before the pause. A group can do at most
what its processors do: of a pause that stops everything, load / (1 - load) pauses of work are left to catch up on.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from multicast.records import Delivered
from multicast.simulation.experiments.deployments import LAN, REPLICAS
from multicast.simulation.experiments.load import PAYLOAD_BYTES, Clients, Point, Variant, build, measure, quantile
from multicast.simulation.network import Cpu
from multicast.simulation.scene import Node
from multicast.simulation.world import World
from multicast.types import FINAL, AppMessage, MessageId, ProcessId, Topology, new_message_id

SLOWER = 200.0
"""Processors of these experiments against measured ones."""

FACTOR = 2.0
STEADY_US = 1_000_000
BIN_US = 100_000

PAUSES_MAX = 3.0
"""Recovery is good within so many pauses, counted from the end of the pause, or within what is possible at best."""

STORM_MAX = 2.0
"""So many times the messages per multicast of a world in peace are no storm."""

GROUPS = 2
_OUTSTANDING = 48
_SAMPLES = 600
_WARM_UP_US = 2_000_000
_BEFORE_US = 2_000_000
_SPARE = 10
"""So many outstanding messages more are as good as none."""


class Overload(msgspec.Struct, frozen=True, kw_only=True):
    """What to try. saturation: multicasts per second of this variant. share: of it, the load. pause_us: how long the
    leader of `group` stands still."""

    variant: Variant
    saturation: float
    share: float
    pause_us: int
    group: int
    cpu: Cpu
    seed: int

    @property
    def rate(self) -> float:
        """Multicasts per second."""
        return self.share * self.saturation

    @property
    def limit_us(self) -> int:
        """From the begin of the pause, how long to wait for recovery."""
        return int((1 + max(PAUSES_MAX, self.best)) * self.pause_us) + STEADY_US + BIN_US

    @property
    def best(self) -> float:
        """In pauses, how long processors need for what a pause leaves to do, besides what comes meanwhile."""
        return self.share / (1.0 - self.share)


class Bin(msgspec.Struct, frozen=True):
    """A stretch of `BIN_US`. at_us: its end, from the begin of the pause on. done: messages delivered everywhere in it.
    latency_us: the median of theirs; None if there are none. frames: messages between processes."""

    at_us: int
    done: int
    outstanding: int
    latency_us: float | None
    frames: int


class Outcome(msgspec.Struct, kw_only=True):
    """Microseconds. recovered_us: from the end of the pause; None: not within the limit. frames, frames_after: messages
    between processes for each multicast, before the pause and from its begin until recovery. worst: most outstanding
    messages."""

    overload: Overload
    bins: list[Bin]
    recovered_us: int | None
    frames: float
    frames_after: float

    @property
    def worst(self) -> int:
        return max(b.outstanding for b in self.bins)

    @property
    def pauses(self) -> float | None:
        """Recovery, in lengths of the pause."""
        return None if self.recovered_us is None else self.recovered_us / self.overload.pause_us

    @property
    def best(self) -> float:
        """See `Overload.best`."""
        return self.overload.best

    @property
    def good(self) -> bool:
        """Recovered in time, and without a storm."""
        return self.pauses is not None and self.pauses <= max(PAUSES_MAX, self.best) and self.storm <= STORM_MAX

    @property
    def storm(self) -> float:
        """By what factor a multicast costs more frames than in peace."""
        return self.frames_after / self.frames if self.frames else float("nan")


def slow(cpu: Cpu, factor: float = SLOWER) -> Cpu:
    """A processor on which everything takes so many times longer."""
    return Cpu(batch_us=cpu.batch_us * factor, input_us=cpu.input_us * factor, send_us=cpu.send_us * factor)


def saturation(variant: Variant, cpu: Cpu, seed: int) -> float:
    """Multicasts per second that the variant does when its clients always wait for it."""
    point = Point(
        deployment=LAN, variant=variant, groups=GROUPS, destinations=GROUPS, outstanding=_OUTSTANDING,
        samples=_SAMPLES, cpu=cpu, seed=seed,
    )  # fmt: skip
    return measure(point).throughput


class _OpenClients(Clients):
    """Multicasts to all groups, from every replica in turn, at a rate; counts what is delivered everywhere."""

    def __init__(self, topology: Topology, rate: float, seed: str):
        super().__init__(topology, len(topology.groups), seed)
        self.submitted = 0
        self.completed: list[int] = []
        self._every_us = 1e6 / rate
        self._missing: dict[MessageId, tuple[int, set[ProcessId]]] = {}

    @property
    def outstanding(self) -> int:
        """Messages that somebody has not delivered."""
        return len(self._missing)

    def begin_load(self) -> None:
        """From now on, for ever."""
        self._again()

    def _again(self) -> None:
        rng, world = self._rng, self.world
        pid = self._topology.processes[self.submitted % len(self._topology.processes)]
        self.submitted += 1
        identity = new_message_id(world.now, rng.getrandbits(62))
        self._missing[identity] = (world.now, set(self._topology.processes))
        world.submit(pid, AppMessage(identity, self._groups, bytes(PAYLOAD_BYTES), pid))
        world.schedule(world.now + max(1, int(self._every_us * rng.uniform(0.5, 1.5))), self._again)

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        """A replica delivers."""
        held = self._missing.get(delivery.message.id)
        if delivery.stage == FINAL and held is not None:
            held[1].discard(node.pid)
            if not held[1]:
                del self._missing[delivery.message.id]
                self.completed.append(self.world.now - held[0])


def overload(plan: Overload, progress: Callable[[float], None] = lambda share: None) -> Outcome:
    """Run it. Depends on nothing but the plan."""
    seed = f"{plan.seed}/overload/{plan.variant.title}/{plan.share}/{plan.pause_us}/{plan.group}"
    clients = _OpenClients(Topology.grid(GROUPS, REPLICAS), plan.rate, seed)
    world = build(LAN, plan.variant, GROUPS, plan.cpu, seed, clients, patient=False)
    world.start()
    clients.begin_load()
    world.run_for(_WARM_UP_US)
    before = _stretch(world, clients, _BEFORE_US, -_BEFORE_US)
    sent, multicast = world.network.frames_sent, clients.submitted
    begun = world.now
    world.pause(_leader(world, plan.group), plan.pause_us)
    bins: list[Bin] = []
    while world.now - begun < plan.limit_us:
        bins += _stretch(world, clients, BIN_US, world.now - begun)
        progress((world.now - begun) / plan.limit_us)
        if (steady := _steady_since(before, bins, plan.pause_us)) is not None:
            break
    frames = sum(b.frames for b in before) / max(1.0, plan.rate * _BEFORE_US / 1e6)
    after = (world.network.frames_sent - sent) / max(1, clients.submitted - multicast)
    if world.violations:
        raise AssertionError(f"{plan.variant.title}: {world.violations[0]}")
    return Outcome(overload=plan, bins=[*before, *bins], recovered_us=steady, frames=frames, frames_after=after)


def _leader(world: World, group: int) -> ProcessId:
    """Who leads this group; its first process where nobody does."""
    members = world.topology.groups[group]
    return next((p for p in members if world.node(p).protocol.role() == "leader"), members[0])


def _stretch(world: World, clients: _OpenClients, length_us: int, first_us: int) -> list[Bin]:
    bins: list[Bin] = []
    for number in range(length_us // BIN_US):
        frames = world.network.frames_sent
        world.run_for(BIN_US)
        latencies = sorted(clients.completed)
        clients.completed.clear()
        bins.append(
            Bin(
                first_us + (number + 1) * BIN_US, len(latencies), clients.outstanding,
                quantile(latencies, 0.5) if latencies else None, world.network.frames_sent - frames,
            )
        )  # fmt: skip
    return bins


def _steady_since(before: list[Bin], bins: list[Bin], pause_us: int) -> int | None:
    """How long after the pause everything was usual again, if it has been so for `STEADY_US`."""
    outstanding = FACTOR * max(b.outstanding for b in before) + _SPARE
    latency = FACTOR * max(b.latency_us or 0.0 for b in before)
    last = bins[-(STEADY_US // BIN_US) :]
    if len(last) < STEADY_US // BIN_US or last[0].at_us <= pause_us:
        return None
    if any(b.outstanding > outstanding or b.latency_us is None or b.latency_us > latency for b in last):
        return None
    return last[0].at_us - BIN_US - pause_us
