"""One seed, one run: draw a world, its traffic and its faults; let it happen; heal it; demand progress; check.

Everything about a run comes from (protocol class, seed, settings): draw orders in this file are part of what a seed
means.
"""

from __future__ import annotations

import random
import shlex
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from multicast.protocol import Application, MulticastProtocol, Options
from multicast.simulation import faults
from multicast.simulation.checkers import Fifo, Genuineness, Properties, attach
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.endings import Endings
from multicast.simulation.invariants import invariant_checkers
from multicast.simulation.network import Conditions
from multicast.simulation.observe import Observer
from multicast.simulation.recovery import RecoveryCheck
from multicast.simulation.world import EPOCH_US, World
from multicast.types import AppMessage, GroupId, ProcessId, Topology, new_message_id

PROFILES = ("calm", "faults")
_MESSAGES_MAX = 200
"""So many messages are drawn at most; if the user wants more the run becomes longer, not denser."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the user fixes; None: drawn from the seed. store: replicas of a store run on the protocol (`worlds`)."""

    profile: str = "faults"
    groups: int | None = None
    replicas: int | None = None
    messages: int | None = None
    options: dict[str, str] = {}
    store: bool = False

    def replay(self, protocol: str, seed: int) -> str:
        """The command that runs this seed again."""
        words = ["python", "-m", "multicast.simulation", "run", "--protocol", protocol, "--seeds", f"{seed}:{seed + 1}"]
        words += ["--profile", self.profile, *(["--store"] if self.store else [])]
        for name, value in (("groups", self.groups), ("replicas", self.replicas), ("messages", self.messages)):
            if value is not None:
                words += [f"--{name}", str(value)]
        for key in sorted(self.options):
            words += ["--option", f"{key}={self.options[key]}"]
        return shlex.join(words)


class Outcome(msgspec.Struct, kw_only=True):
    """What a run showed. wall_s: processor time of this process. foreign: see `Genuineness`. options: the protocol's
    that differ from their defaults."""

    protocol: str
    seed: int
    topology: str
    digest: str
    simulated_us: int
    wall_s: float
    messages: int
    deliveries: int
    events: int
    foreign: int
    faults: dict[str, int]
    violations: list[tuple[str, str]]
    options: dict[str, Any] = {}


def changed_options(options: Options) -> dict[str, Any]:
    """Those that differ from their defaults."""
    return {
        field.name: getattr(options, field.name)
        for field in msgspec.structs.fields(type(options))
        if getattr(options, field.name) != field.default
    }


def draw_options(
    protocol: type[MulticastProtocol], rng: random.Random, topology: Topology, given: Mapping[str, str]
) -> dict[str, str]:
    """`Options.draw`, as text; nothing if that contradicts what is given."""
    drawn = {name: str(value) for name, value in protocol.specification.options.draw(rng, topology).items()}
    try:
        protocol_options(protocol, {**drawn, **given})
    except ValueError:
        return {}
    return drawn


def protocol_options(protocol: type[MulticastProtocol], values: Mapping[str, str]) -> Options:
    """Options from text. ValueError that names the option for an unknown one or a bad value."""
    known = {field.name for field in msgspec.structs.fields(protocol.specification.options)}
    for key in values:
        if key not in known:
            raise ValueError(f"{protocol.specification.name} has no option {key!r}; it has {', '.join(sorted(known))}")
    try:
        return msgspec.convert(dict(values), protocol.specification.options, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"bad option for {protocol.specification.name}: {error}") from None


class Run:
    """One run. `execute` does it all; tests may look at `world` and `properties` afterwards."""

    def __init__(self, protocol: type[MulticastProtocol], seed: int, settings: Settings):
        self.protocol = protocol
        self.specification = protocol.specification
        self.seed = seed
        self.settings = settings
        rng = self.rng = random.Random(f"{self.specification.name}/{seed}")
        self.storm = settings.profile == "faults" and rng.random() < 0.4
        self.topology = self._draw_topology(rng)
        self.options = self._draw_options(rng)
        self.span_us = rng.choice((2_000_000, 4_000_000) if self.storm else (3_000_000, 8_000_000, 15_000_000))
        if settings.messages and settings.messages > _MESSAGES_MAX:
            self.span_us = self.span_us * settings.messages // _MESSAGES_MAX
        conditions = self._draw_conditions(rng)
        segment_bytes = rng.choice((4_096, 65_536, 1 << 20))
        name = settings.replay(self.specification.name, seed)
        self.world = World(
            self.topology, self._make_process, seed, conditions, segment_bytes_max=segment_bytes, name=name
        )
        self.world.recovery = RecoveryCheck(
            lambda pid, rng: (self.protocol(pid, self.topology, self.options, rng), None), f"{protocol.__name__}/{seed}"
        )
        self.properties = Properties(self.topology)
        self.genuineness = Genuineness(self.topology, self.specification)
        attach(
            self.world, self.properties, self.genuineness, *invariant_checkers(self.specification.name, self.topology)
        )
        self.fifo = Fifo(self.properties) if self.specification.fifo else None
        if self.fifo is not None:
            attach(self.world, self.fifo)
        self.injector: faults.Injector | None = None
        self.faults: dict[str, int] = {}
        self._endings_rng = random.Random(f"{self.specification.name}/{seed}/endings")
        self._persistent: list[AppMessage] = []
        self._faults: list[faults.Fault] = []

    # -- drawing ------------------------------------------------------------------------------------------------------

    def _draw_topology(self, rng: random.Random) -> Topology:
        groups = rng.choice((1, 2, 2, 3, 3, 4))
        replicas = rng.choice((3, 3, 3, 5)) if self.specification.fault_tolerant else 1
        return Topology.grid(self.settings.groups or groups, self.settings.replicas or replicas)

    def _draw_options(self, rng: random.Random) -> Options:
        drawn = {"clock": rng.choice(("logical", "hybrid"))}
        pace = 0.1 if self.storm else rng.choice((1.0, 0.3, 0.1))
        for field in msgspec.structs.fields(self.specification.options):
            if field.name.endswith("_us") and isinstance(field.default, int) and field.default:
                drawn[field.name] = str(int(field.default * pace))
        window = rng.random() < 0.3
        if window and drawn["clock"] == "hybrid" and self.settings.options.get("clock", "hybrid") == "hybrid":
            drawn["dedup_window_us"] = "4000000"
        given = {**drawn, **self.settings.options}
        own = random.Random(f"{self.specification.name}/{self.seed}/options")
        return protocol_options(self.protocol, {**draw_options(self.protocol, own, self.topology, given), **given})

    def _draw_conditions(self, rng: random.Random) -> Conditions:
        most = rng.choice((1_000, 5_000, 50_000))
        return Conditions(
            delay_us=(100, most),
            late_probability=rng.choice((0.0, 0.01, 0.05)),
            late_us=(most, 20 * most),
            fsync_us=rng.choice(((0, 0), (50, 300), (1_000, 8_000), (5_000, 40_000))),
            batch_us=rng.choice(((0, 0), (0, 0), (0, 500), (1_000, 3_000))),
            acknowledge_frames=rng.choice((1, 16, 256)),
        )

    def _make_process(
        self, pid: ProcessId, rng: random.Random, disk: SimulatedDisk
    ) -> tuple[MulticastProtocol, Application, None]:
        return self.protocol(pid, self.topology, self.options, rng), Application(), None

    def _plan_traffic(self) -> None:
        """Messages to a few sets of groups (so that others should hear nothing), evenly, in bursts, or around
        faults."""
        rng, world = self.rng, self.world
        groups = list(self.topology.groups)
        sets: list[tuple[GroupId, ...]] = []
        for _ in range(rng.randint(1, 4)):
            sets.append(tuple(sorted(rng.sample(groups, rng.randint(1, len(groups))))))
        senders = list(self.topology.processes)
        if rng.random() < 0.3:
            senders = rng.sample(senders, rng.randint(1, len(senders)))
        count = self.settings.messages or rng.choice((40, 100, _MESSAGES_MAX))
        bursts = rng.choice((0, 3, 10))
        centres = [rng.randrange(self.span_us) for _ in range(bursts)]
        width = rng.choice((5_000, 100_000))
        if self._faults and rng.random() < 0.6:
            centres = [max(0, fault.at_us - width // 2) for fault in self._faults]
        for _ in range(count):
            at = rng.randrange(self.span_us)
            if centres:
                at = min(self.span_us - 1, rng.choice(centres) + rng.randrange(width))
            plan = (rng.choice(senders), rng.choice(sets), rng.getrandbits(62), rng.randrange(40), rng.random())
            world.schedule(world.now + at, self._submit, *plan)

    # -- clients ------------------------------------------------------------------------------------------------------

    def _submit(self, pid: ProcessId, destinations: tuple[GroupId, ...], bits: int, size: int, chance: float) -> None:
        """A client multicasts. Half of them insist: they try again until they know; a tenth repeat themselves."""
        world = self.world
        message = AppMessage(new_message_id(world.now, bits), destinations, bytes(size), pid)
        if not world.submit(pid, message):
            others = [p for p in self.topology.processes if world.nodes[p].up]
            if not others:
                return
            pid = others[bits % len(others)]
            message = AppMessage(message.id, destinations, message.payload, pid)
            world.submit(pid, message)
        if chance < 0.5:
            self._persistent.append(message)
            world.schedule(world.now + 2_000_000, self._insist, message, 1)
        if 0.4 < chance < 0.5:
            again = AppMessage(
                message.id, destinations, message.payload, self.topology.processes[bits % len(self.topology.processes)]
            )
            world.schedule(world.now + bits % 3_000_000, self._again, again)
        if chance > 0.98:
            world.schedule(world.now + 10_000_000, self._again, message)

    def _again(self, message: AppMessage) -> None:
        self.world.submit(message.origin, message)

    def _insist(self, message: AppMessage, attempt: int) -> None:
        world = self.world
        if message.id in self.properties.messages and message.id not in self.properties.missing:
            return
        processes = self.topology.processes
        pid = processes[(message.origin + attempt) % len(processes)]
        world.submit(pid, AppMessage(message.id, message.destinations, message.payload, pid))
        if attempt < 4:
            world.schedule(world.now + 2_000_000, self._insist, message, attempt + 1)

    # -- running ------------------------------------------------------------------------------------------------------

    def execute(self) -> Outcome:
        """Both phases. An exception of the protocol is a violation like any other."""
        started = time.process_time()
        try:
            self._execute()
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename.rpartition('/')[2]}:{frame.lineno} in {frame.name}"
            self.world.report("exception", f"{type(error).__name__}: {error} ({where})")
        world = self.world
        return Outcome(
            protocol=self.specification.name,
            seed=self.seed,
            topology=f"{len(self.topology.groups)}x{len(next(iter(self.topology.groups.values())))}",
            digest=world.digest(),
            simulated_us=world.now - EPOCH_US,
            wall_s=time.process_time() - started,
            messages=len(self.properties.messages),
            deliveries=self.properties.deliveries,
            events=world.events,
            foreign=self.genuineness.foreign,
            faults=self.faults,
            violations=list(world.violations),
            options=changed_options(self.options),
        )

    def _execute(self) -> None:
        world = self.world
        faulty = self.settings.profile == "faults"
        if faulty:
            faults.skew(self.rng, world)
            self._faults = faults.draw(self.rng, self.topology, self.span_us, self.storm)
            self._faults += faults.draw_disk(
                random.Random(f"{self.specification.name}/{self.seed}/disks"), self.topology, self.span_us,
                self.specification.survives_lost_disk, self.storm,
            )  # fmt: skip
        world.start()
        self._plan_traffic()
        if faulty:
            self.injector = faults.Injector(world, self._faults)
        world.run_for(self.span_us)
        endings = Endings(world, self.specification, self.options, self, self._endings_rng, self.injector)
        self.faults = endings.counts
        endings.run(self._insist_once_more)

    def _insist_once_more(self) -> None:
        for message in self._persistent:
            self._insist(message, 4)

    # -- as the endings see it ----------------------------------------------------------------------------------------

    def unfinished(self, dead: Collection[ProcessId]) -> bool:
        """See `endings.Judged`."""
        return self.properties.unfinished(dead)

    def finish(self, dead: Collection[ProcessId]) -> None:
        """See `endings.Judged`."""
        self.properties.finish(dead)
        if self.fifo is not None:
            self.fifo.finish()

    def multicast(self, sender: ProcessId, destinations: tuple[GroupId, ...]) -> None:
        """See `endings.Judged`."""
        identity = new_message_id(self.world.now, self._endings_rng.getrandbits(62))
        self.world.submit(sender, AppMessage(identity, destinations, b"probe", sender))


def run_seed(
    protocol: type[MulticastProtocol],
    seed: int,
    settings: Settings | None = None,
    observers: Sequence[Observer] = (),
) -> Outcome:
    """Run one seed. observers: who else watches; they see what the checkers see."""
    run = Run(protocol, seed, settings or Settings())
    run.world.observers += observers
    return run.execute()


class Summary:
    """Outcomes of many seeds, added up."""

    def __init__(self, protocol: str, settings: Settings):
        self.protocol = protocol
        self.settings = settings
        self.seeds = self.simulated_us = self.messages = self.deliveries = self.events = self.foreign = 0
        self.wall_s = 0.0
        self.faults: dict[str, int] = {}
        self.failures: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        for name in ("simulated_us", "messages", "deliveries", "events", "foreign", "wall_s"):
            setattr(self, name, getattr(self, name) + getattr(outcome, name))
        for kind, count in outcome.faults.items():
            self.faults[kind] = self.faults.get(kind, 0) + count
        if outcome.violations:
            self.failures.append(outcome)

    @property
    def events_per_second(self) -> int:
        return int(self.events / self.wall_s) if self.wall_s else 0

    @property
    def foreign_per_message(self) -> float | None:
        """See `Genuineness`; None where it is not measured."""
        if self.settings.store:
            return None
        return round(self.foreign / self.messages, 3) if self.messages else 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "protocol": self.protocol,
            "profile": self.settings.profile,
            "seeds": self.seeds,
            "simulated_seconds": round(self.simulated_us / 1e6, 3),
            "messages": self.messages,
            "deliveries": self.deliveries,
            "protocol_events": self.events,
            "protocol_events_per_second": self.events_per_second,
            "foreign_per_message": self.foreign_per_message,
            "faults": dict(sorted(self.faults.items())),
            "violations": [
                {
                    "seed": o.seed,
                    "options": o.options,
                    "checker": checker,
                    "text": text,
                    "replay": self.settings.replay(self.protocol, o.seed),
                }
                for o in self.failures
                for checker, text in o.violations
            ],
        }
