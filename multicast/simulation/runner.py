"""One seed, one run: draw a world, its traffic and its faults; let it happen; heal it; demand progress; check.

Everything about a run comes from (protocol class, seed, settings): draw orders in this file are part of what a seed
means.
"""

from __future__ import annotations

import random
import shlex
import time
import traceback
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from multicast.application import Application
from multicast.protocol import MulticastProtocol, Options
from multicast.simulation import drawing, faults, forgotten, joins, narrow, stragglers
from multicast.simulation.checkers import Fifo, Genuineness, Properties, attach
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.dropping import Dropping
from multicast.simulation.elections import Elections, Returns
from multicast.simulation.endings import Endings, liveness_limit_us
from multicast.simulation.fault import Fault
from multicast.simulation.growing import topology_of
from multicast.simulation.injector import Injector
from multicast.simulation.invariants import invariant_checkers
from multicast.simulation.joins import Joins
from multicast.simulation.observe import Observer
from multicast.simulation.owed import Owed
from multicast.simulation.reading import Confirmations, Reader, Reads
from multicast.simulation.recovery import RecoveryCheck
from multicast.simulation.scene import EPOCH_US
from multicast.simulation.stragglers import Stragglers
from multicast.simulation.true_time import TrueTime
from multicast.simulation.vouching import Vouching
from multicast.simulation.world import World
from multicast.types import AppMessage, GroupId, MessageId, ProcessId, new_message_id
from multicast.wire import FRAME_BYTES_MAX

if TYPE_CHECKING:
    from multicast.simulation.reached import Reached

PROFILES = ("calm", "faults")
READS_SHARE = 0.25
"""Of the runs of a protocol with leader reads that have some."""
_FRAME_BYTES = 4_096
"""A message may have so much besides what it carries: lists of identifiers, of instances, of processes."""


def fixed_words(settings: Any, names: Sequence[str]) -> list[str]:
    """The options of a command line for what is fixed of these settings, those of the protocol last."""
    values = [(name, getattr(settings, name)) for name in names]
    words: list[str] = []
    for name, value in values:
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            words += [f"--{name}", str(value)]
    for key in sorted(settings.options):
        words += ["--option", f"{key}={settings.options[key]}"]
    return words


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the user fixes; None: drawn from the seed. size: one of `drawing.SIZES`. store: replicas of a store
    run on the protocol (`worlds`)."""

    profile: str = "faults"
    size: str | None = None
    groups: int | None = None
    replicas: int | None = None
    messages: int | None = None
    options: dict[str, str] = {}
    store: bool = False

    def replay(self, protocol: str, seed: int) -> str:
        """The command that runs this seed again."""
        return self._command("multicast.simulation", "--protocol", protocol, "--seeds", f"{seed}:{seed + 1}")

    def see(self, protocol: str, seed: int) -> str:
        """The command that shows this seed in the browser."""
        return self._command("multicast.visual", "--protocol", protocol, "--seed", str(seed))

    def _command(self, package: str, *which: str) -> str:
        words = ["python", "-m", package, "run", *which, "--profile", self.profile]
        words += ["--store"] if self.store else []
        return shlex.join(words + fixed_words(self, ("size", "groups", "replicas", "messages")))


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


class Run:
    """One run. `execute` does it all; tests may look at `world` and `properties` afterwards."""

    def __init__(self, protocol: type[MulticastProtocol], seed: int, settings: Settings):
        self.protocol = protocol
        self.specification = protocol.specification
        self.seed = seed
        self.settings = settings
        name = self.specification.name
        rng = self.rng = random.Random(f"{name}/{seed}")
        self.size = drawing.size(name, seed, settings.size)
        self.storm = settings.profile == "faults" and rng.random() < 0.4
        self.topology = drawing.topology(rng, self.size, protocol, settings.groups, settings.replicas)
        if settings.groups is None and settings.replicas is None:
            own = random.Random(f"{name}/{seed}/uneven")
            self.topology = drawing.uneven(own, self.size, protocol, self.topology)
        self.messages = settings.messages or rng.choice(self.size.messages)
        self.span_us = rng.choice(self.size.storm_spans if self.storm else self.size.spans)
        if self.messages > self.size.messages[-1]:
            self.span_us = self.span_us * self.messages // self.size.messages[-1]
        own = random.Random(f"{name}/{seed}/joins")
        faulty = settings.profile == "faults"
        self._changes = joins.draw(own, self.size, self.topology, self.span_us, self.specification) if faulty else []
        self.topology = joins.with_spares(self.topology, self._changes)
        self.options = self._draw_options()
        self._kept = random.Random(f"{name}/{seed}/kept").choice(self.size.kept)
        self.world = World(
            self.topology,
            self._make_process,
            seed,
            drawing.conditions(rng, self.size, self.options),
            segment_bytes_max=rng.choice(self.size.segment_bytes),
            on_flushed=lambda node, _: self.dropping.at_flush(node),
            on_lost_disk=lambda node: self.dropping.lost_disk(node),
            name=settings.replay(name, seed),
        )
        longer = max(1, self.messages // self.size.messages[-1])
        self.world.network.frames_max = self.size.frames_max * longer * drawing.crowd(self.topology)
        self.world.recovery = RecoveryCheck(self._spare, f"{protocol.__name__}/{seed}")
        self.dropping = Dropping(f"{name}/{seed}")
        self.dropping.active = self.dropping.active and not self._changes  # who is added needs all deliveries
        self.properties = Properties(self.topology)
        self.genuineness = Genuineness(self.topology, self.specification)
        attach(
            self.world, self.properties, self.genuineness, TrueTime(self.options),
            Vouching(self.specification), Elections(), Returns(), Owed(),
            *invariant_checkers(self.specification.name, self.topology),
        )  # fmt: skip
        self.joins = Joins(self.specification, own, self.size.patience_us)
        if self._changes:
            attach(self.world, self.joins)
        self.reads = Reads(self.properties)
        attach(self.world, self.reads)
        if self.specification.leader_reads and self.specification.fault_tolerant:
            attach(self.world, Confirmations())
        self.fifo = Fifo(self.properties) if self.specification.fifo else None
        if self.fifo is not None:
            attach(self.world, self.fifo)
        self.injector: Injector | None = None
        self.faults: dict[str, int] = {}
        self._endings_rng = random.Random(f"{self.specification.name}/{seed}/endings")
        own = random.Random(f"{name}/{seed}/stragglers")
        late = stragglers.draw(own, self.topology, self.options, self.span_us, self.specification) if faulty else None
        self._late = Stragglers(late, own) if late is not None else None
        self._late_alone = self._late is not None and own.random() < stragglers.ALONE_SHARE
        if self._late is not None:
            self.world.observers.append(self._late)
        self._persistent: list[AppMessage] = []
        self._handed: list[tuple[MessageId, ProcessId, int]] = []  # probes: to whom, in which life
        self._refused: set[MessageId] = set()
        self._last_copy_at = 0
        self._copies = random.Random(f"{name}/{seed}/copies").random() < self.size.copies_share
        self._faults: list[Fault] = []

    # -- drawing ------------------------------------------------------------------------------------------------------

    def _draw_options(self) -> Options:
        own = random.Random(f"{self.specification.name}/{self.seed}/options")
        given = self.settings.options
        values = drawing.options(own, self.size, self.protocol, self.topology, self.span_us, given, self.storm)
        return drawing.protocol_options(self.protocol, values)

    def draw_faults(self) -> list[Fault]:
        """Those of the world, of disks, in gaps, and those that end with something forgotten, or these alone."""
        pace, survives = self.size.fault_pace, self.specification.survives_lost_disk
        span_us = int(self.span_us / pace)
        planned = faults.draw(self.rng, self.topology, span_us, self.storm)
        own = random.Random(f"{self.specification.name}/{self.seed}/disks")
        planned += faults.draw_disk(own, self.topology, span_us, survives, self.storm)
        gaps = random.Random(f"{self.specification.name}/{self.seed}/gaps")
        planned += faults.draw_gaps(gaps, self.topology, span_us, self.specification)
        own = random.Random(f"{self.specification.name}/{self.seed}/forgotten")
        more, alone = forgotten.draw(own, self.topology, span_us, self.specification)
        own = random.Random(f"{self.specification.name}/{self.seed}/losses")
        more += forgotten.draw_losses(own, self.topology, span_us, self.specification)
        planned = more if alone else planned + more
        planned = [] if self._late_alone else planned
        if self._changes:
            own = random.Random(f"{self.specification.name}/{self.seed}/strike")
            planned = joins.strike(own, self.topology, planned)
        return drawing.paced(planned, pace)

    def _make_process(
        self, pid: ProcessId, rng: random.Random, disk: SimulatedDisk
    ) -> tuple[MulticastProtocol, Application]:
        reader = Reader(pid, self.reads, self._refused)
        reader.position = self.dropping.held(pid)
        return self._process(pid, rng), reader

    def _spare(self, pid: ProcessId, rng: random.Random) -> tuple[MulticastProtocol, Application]:
        """For `RecoveryCheck`."""
        application = Application()
        application.position = self.dropping.held(pid)
        return self._process(pid, rng), application

    def _process(self, pid: ProcessId, rng: random.Random) -> MulticastProtocol:
        process: Any = self.protocol(pid, topology_of(self.topology, pid), self.options, rng)
        if self._kept and hasattr(process, "member"):
            process.member._truncation.kept = self._kept
        elif self._kept and hasattr(process, "stream"):
            process.stream.spare = self._kept
        return process  # type: ignore[no-any-return]

    def _plan_reads(self) -> None:
        """In some runs of a protocol that has them."""
        own = random.Random(f"{self.specification.name}/{self.seed}/reads")
        if self.specification.leader_reads and own.random() < READS_SHARE:
            self.reads.plan(own, self.world, self.span_us, 2 * self.messages)

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
        centres = [rng.randrange(self.span_us) for _ in range(rng.choice((0, 3, 10)))]
        width = rng.choice((5_000, 100_000))
        if self._faults and rng.random() < 0.6:
            centres = [max(0, fault.at_us - width // 2) for fault in self._faults]
        largest = 0
        for _ in range(self.messages):
            at = rng.randrange(self.span_us)
            if centres:
                at = min(self.span_us - 1, rng.choice(centres) + rng.randrange(width))
            size = drawing.payload_bytes(rng)
            largest = max(largest, size)
            plan = (rng.choice(senders), rng.choice(sets), rng.getrandbits(62), size, rng.random())
            world.schedule(world.now + at, self._submit, *plan)
        world.network.frame_bytes_max = self._frame_bytes_max(largest)

    def _frame_bytes_max(self, largest: int) -> int:
        """Of a message that carries about a portion, whatever else there is: one that is nearly full may take the
        largest payload, and what comes with each small one counts, too."""
        return min(FRAME_BYTES_MAX, _FRAME_BYTES + 2 * self.options.portion_bytes + largest)

    # -- clients ------------------------------------------------------------------------------------------------------

    def _submit(self, pid: ProcessId, destinations: tuple[GroupId, ...], bits: int, size: int, chance: float) -> None:
        """A client multicasts. Half of them insist: they try again until they know; a fifth repeat themselves."""
        world = self.world
        payload = (bits.to_bytes(8, "big") * (size // 8 + 1))[:size]
        message = AppMessage(new_message_id(world.now, bits), destinations, payload, pid)
        if not world.submit(pid, message):
            others = [p for p in self.topology.processes if world.nodes[p].up]
            if not others:
                return
            message = self._copy(message, others[bits % len(others)])
            world.submit(message.origin, message)
        if chance < 0.5:
            self._persistent.append(message)
            world.schedule(world.now + self.size.patience_us, self._insist, message, 1)
        if self._copies and self.options.dedup_window_us > 0 and chance < 0.75:
            self._repeat_late(message, random.Random(bits))
        elif 0.4 < chance < 0.6:
            self._repeat(message, bits)

    def _repeat(self, message: AppMessage, bits: int) -> None:
        """Copies through other processes: soon, and about one and two windows after the message's creation."""
        window_us, processes = self.options.dedup_window_us, self.topology.processes
        jitter_us, patience_us = bits % 100_003 - 50_000, self.size.patience_us
        for number, after_us in enumerate((bits % patience_us, window_us, 2 * window_us)):
            if after_us:
                again_us = max(0, after_us + (jitter_us if number else 0))
                self._come_again(message, processes[(bits + number) % len(processes)], again_us)

    def _repeat_late(self, message: AppMessage, rng: random.Random) -> None:
        """Copies when some may have forgotten it, and others not."""
        for _ in range(rng.choice((1, 2, 4))):
            windows = rng.choice((rng.uniform(0, 1.5), rng.uniform(0.8, 1.2), rng.uniform(1.8, 4.0)))
            after_us = int(windows * self.options.dedup_window_us)
            self._come_again(message, rng.choice(self.topology.processes), after_us + rng.randrange(50_000))

    def _come_again(self, message: AppMessage, origin: ProcessId, after_us: int) -> None:
        at = self.world.now + after_us
        self._last_copy_at = max(self._last_copy_at, at)
        self.world.schedule(at, self.world.submit, origin, self._copy(message, origin))

    @staticmethod
    def _copy(message: AppMessage, origin: ProcessId) -> AppMessage:
        return AppMessage(message.id, message.destinations, message.payload, origin)

    def _insist(self, message: AppMessage, attempt: int) -> None:
        if message.id in self.properties.messages and message.id not in self.properties.missing:
            return
        processes = self.topology.processes
        pid = processes[(message.origin + attempt) % len(processes)]
        self.world.submit(pid, self._copy(message, pid))
        if attempt < 4:
            self.world.schedule(self.world.now + self.size.patience_us, self._insist, message, attempt + 1)

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
            topology=drawing.shape(self.topology),
            digest=world.digest(),
            simulated_us=world.now - EPOCH_US,
            wall_s=time.process_time() - started,
            messages=len(self.properties.messages),
            deliveries=self.properties.deliveries,
            events=world.events,
            foreign=self.genuineness.foreign,
            faults=self.faults,
            violations=list(world.violations),
            options=drawing.changed_options(self.options),
        )

    def _execute(self) -> None:
        world = self.world
        faulty = self.settings.profile == "faults"
        if faulty:
            faults.skew(self.rng, world)
            self._faults = self.draw_faults()
        world.start()
        self._plan_traffic()
        self._plan_reads()
        if self._changes:
            self.joins.plan(self._changes)
        if faulty:
            self.injector = Injector(world, self._faults, comers=len(self._changes))
            if self._late is not None:
                self._late.plan(self.injector.casualties)
        world.run_for(self.span_us)
        limit_us = liveness_limit_us(self.options)
        own = random.Random(f"{self.specification.name}/{self.seed}/stalls")
        endings = Endings(
            world, self.specification, self.options, self, self._endings_rng, self.injector, limit_us, own
        )
        self.faults = endings.counts
        endings.all_return = self.joins.stop()
        endings.run(self._insist_once_more)
        self.faults.update(self.joins.counts)

    def _insist_once_more(self) -> None:
        for message in self._persistent:
            self._insist(message, 4)

    # -- as the endings see it ----------------------------------------------------------------------------------------

    def unfinished(self, dead: Collection[ProcessId]) -> bool:
        """See `endings.Judged`."""
        return self._is_handing_over() or self.reads.open > 0 or self.properties.unfinished(dead)

    def _is_handing_over(self) -> bool:
        """Whether a process that is up has yet to multicast a probe, or to refuse to."""
        nodes, taken = self.world.nodes, self.properties.messages.keys() | self._refused
        return any(nodes[p].up and nodes[p].life == life and i not in taken for i, p, life in self._handed)

    def finish(self, dead: Collection[ProcessId]) -> None:
        """See `endings.Judged`."""
        self.properties.finish(dead)
        self.reads.finish()
        if self.fifo is not None:
            self.fifo.finish()

    def multicast(self, sender: ProcessId, destinations: tuple[GroupId, ...]) -> None:
        """See `endings.Judged`."""
        identity = new_message_id(self.world.now, self._endings_rng.getrandbits(62))
        self.world.submit(sender, AppMessage(identity, destinations, b"probe", sender))
        self._handed.append((identity, sender, self.world.nodes[sender].life))

    def answered_us(self) -> int:
        """See `endings.Judged`: nobody waits for an answer."""
        return 0

    def expects_copies(self) -> bool:
        """See `endings.Judged`."""
        return self.world.now <= self._last_copy_at

    def left(self, pid: ProcessId) -> dict[str, int]:
        """See `endings.Judged`."""
        return {}


def run_seed(
    protocol: type[MulticastProtocol],
    seed: int,
    settings: Settings | None = None,
    observers: Sequence[Observer] = (),
) -> Outcome:
    """Run one seed. observers: who else watches; they see what the checkers see."""
    chosen = settings or Settings()
    with narrow.of_seed(protocol.specification.name, seed, chosen.profile, chosen.size):
        run = Run(protocol, seed, chosen)
        run.world.observers += observers
        return run.execute()


class Summary:
    """Outcomes of many seeds, added up. reached: see `reached.reached`, if it was measured."""

    def __init__(self, protocol: str, settings: Settings):
        self.protocol = protocol
        self.settings = settings
        self.seeds = self.simulated_us = self.messages = self.deliveries = self.events = self.foreign = 0
        self.wall_s = 0.0
        self.faults: dict[str, int] = {}
        self.failures: list[Outcome] = []
        self.reached: list[Reached] = []

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
    def seeds_per_second(self) -> float:
        """Of processor time."""
        return round(self.seeds / self.wall_s, 1) if self.wall_s else 0.0

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
            "size": self.settings.size,
            "seeds": self.seeds,
            "seeds_per_second": self.seeds_per_second,
            "simulated_seconds": round(self.simulated_us / 1e6, 3),
            "messages": self.messages,
            "deliveries": self.deliveries,
            "protocol_events": self.events,
            "protocol_events_per_second": self.events_per_second,
            "foreign_per_message": self.foreign_per_message,
            "faults": dict(sorted(self.faults.items())),
            "reached": msgspec.to_builtins(self.reached),
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
