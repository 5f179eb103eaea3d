"""One seed, one run: a cluster, clients and faults drawn from it; then everything heals, must finish, is checked."""

from __future__ import annotations

import random
import shlex
import time
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvstore.core.bundles import EMPTY
from kvstore.core.messages import decode_retained
from kvstore.core.replica import Replica
from kvstore.core.signals import SignalRule
from kvstore.simulated import (
    backups,
    chase,
    clients,
    late,
    leasing,
    moving,
    nested,
    past,
    ranging,
    reading,
    ruling,
    watched,
)
from kvstore.simulated.checks import check
from kvstore.simulated.clients import History, Operated, Workload
from kvstore.simulated.cluster import SimulatedCluster
from kvstore.simulated.repeating import Repetitions
from kvstore.storage.store import Store
from multicast import registry
from multicast.protocol import MulticastProtocol
from multicast.simulation import drawing, faults, forgotten, joins
from multicast.simulation.checkers import attach
from multicast.simulation.elections import Elections, Returns
from multicast.simulation.endings import LIVENESS_LIMIT_US, Endings
from multicast.simulation.growing import Growth
from multicast.simulation.injector import Injector
from multicast.simulation.joins import Joins, Planned
from multicast.simulation.observe import Observer
from multicast.simulation.runner import fixed_words
from multicast.simulation.scene import EPOCH_US
from multicast.simulation.trace import FrameTrace
from multicast.simulation.true_time import TrueTime
from multicast.simulation.vouching import Vouching
from multicast.types import AppMessage, GroupId, ProcessId, Topology, new_message_id

PROFILES = ("faults", "calm", "chase")
"""calm: no faults. chase: no faults, but slow links, clocks that differ, and clients after anomalies."""

_PROBES = [b"probe/%d" % number for number in range(64)]
_SECONDS, _SECONDS_SMALL = (2, 4, 8), (0.3, 0.6, 1.0)
_CLIENTS, _CLIENTS_SMALL = (3, 6, 12), (2, 3, 4)
_SHARES = {
    "backups": 0.2, "ranges": 0.3, "leases": 0.2, "rights": 0.2, "reads": 0.3, "grows": 0.15, "late": 0.3,
    "bounds": 0.3, "nested": 0.3,
}  # fmt: skip
"""Of the runs: so many have this where it is drawn."""
DRAWN = (*_SHARES, "past", "watch", "moves")
"""What may be drawn of what clients do."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the user fixes; None: drawn from the seed. backups: whether cuts are made. ranges: whether some clients
    read and delete ranges. leases: whether some hold leases. rights: whether some have tokens, whose rights change.
    reads: whether some read in every way, and replicas share what they must know for that. past, watch: whether there
    are reads at versions, and watches. moves: whether slots move. grows: whether a shard is added, to which slots
    move. late: whether late copies of requests come, and slots wander there and back. bounds: whether some bound
    numbers, and write if nothing in a range is newer. nested: whether transactions of some have others in them. size:
    one of `drawing.SIZES`. options: the protocol's. signals: see `SimulatedCluster`."""

    protocol: str
    signals: SignalRule | None = None
    profile: str = "faults"
    options: dict[str, str] = {}
    size: str | None = None
    shards: int | None = None
    replicas: int | None = None
    clients: int | None = None
    backups: bool | None = False
    ranges: bool | None = False
    leases: bool | None = False
    rights: bool | None = False
    reads: bool | None = False
    grows: bool | None = False
    late: bool | None = False
    bounds: bool | None = False
    nested: bool | None = False
    past: bool | None = False
    watch: bool | None = False
    moves: bool | None = False
    seconds: float | None = None

    def replay(self, seed: int) -> str:
        """The command that runs this seed again."""
        words = ["python", "-m", "kvstore.simulated", "run", "--protocol", self.protocol]
        words += ["--seeds", f"{seed}:{seed + 1}", "--profile", self.profile]
        names = ("signals", "size", "shards", "replicas", "clients", *DRAWN, "seconds")
        return shlex.join(words + fixed_words(self, names))

    def drawn(self, seed: int) -> Settings:
        """With what of `_SHARES` there is in the run of this seed."""
        chosen: dict[str, bool] = {}
        for name, share in _SHARES.items():
            if getattr(self, name) is None:
                lot = random.Random(f"{self.protocol}/{seed}/store {name}").random()
                chosen[name] = self.profile != "chase" and lot < share
        return msgspec.structs.replace(self, **chosen)


class Outcome(msgspec.Struct, kw_only=True):
    """What a run showed. asked_at, answered_at: how many reads at versions. moves: of slots, completed and not undone.
    asked_elsewhere: transactions called moved, in any replica's last life. watched: transactions that watches told."""

    seed: int
    topology: str
    digest: str
    simulated_us: int
    operations: int
    answered: int
    repetitions: int
    commits: int
    installations: int
    faults: dict[str, int]
    violations: list[str]
    options: dict[str, Any] = {}
    wall_s: float = 0.0
    events: int = 0
    deliveries: int = 0
    asked_at: int = 0
    answered_at: int = 0
    moves: int = 0
    asked_elsewhere: int = 0
    watched: int = 0


class Summary(msgspec.Struct, kw_only=True):
    """Outcomes of many seeds. failed: how many had a violation."""

    settings: Settings
    failed: int = 0
    runs: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        self.runs.append(outcome)
        self.failed += bool(outcome.violations)

    def faults(self) -> dict[str, int]:
        """How many of each kind."""
        counts: dict[str, int] = {}
        for outcome in self.runs:
            for kind, count in outcome.faults.items():
                counts[kind] = counts.get(kind, 0) + count
        return dict(sorted(counts.items()))

    def lines(self) -> list[str]:
        """For people."""
        runs = self.runs
        return [
            f"{self.settings.protocol}, signals {self.settings.signals or 'as needed'}: {len(runs)} seeds, "
            f"{sum(o.simulated_us for o in runs) / 1e6:.1f} simulated seconds, "
            f"{sum(o.operations for o in runs)} operations ({sum(o.answered for o in runs)} answered, "
            f"{sum(o.repetitions for o in runs)} repetitions), {sum(o.commits for o in runs)} store commits, "
            f"{sum(o.installations for o in runs)} snapshots installed, "
            f"{sum(o.asked_at for o in runs)} reads at versions ({sum(o.answered_at for o in runs)} answered), "
            f"{sum(o.watched for o in runs)} transactions watched, "
            f"{sum(o.moves for o in runs)} moves of slots, {sum(o.asked_elsewhere for o in runs)} told moved",
            "  faults: " + (", ".join(f"{kind} {count}" for kind, count in self.faults().items()) or "none"),
            f"  violations: in {self.failed} of {len(runs)} seeds",
        ]


def run_seed(
    settings: Settings,
    seed: int,
    out: Path | None = None,
    *,
    trace: bool = False,
    protocol: type[MulticastProtocol] | None = None,
    replica: type[Replica] = Replica,
    store: type[Store] = Store,
    observers: Sequence[Observer] = (),
) -> Outcome:
    """Run one seed; `out`: write the run directory there; trace: with the frames that the replicas exchanged. An
    exception in a replica is a violation like any other.
    protocol, replica, store: classes, for planted bugs. observers: who else watches."""
    if out is not None and trace:
        path = out / "trace" / "frames.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            frames = FrameTrace(file.write, settings.protocol, seed, settings, settings.replay(seed))
            watching = (*observers, frames)
            outcome = run_seed(
                settings, seed, out, protocol=protocol, replica=replica, store=store, observers=watching
            )
            frames.finish(digest=outcome.digest, simulated_us=outcome.simulated_us, faults=outcome.faults)
        return outcome
    started = time.process_time()
    given, settings = settings, settings.drawn(seed)
    rng = random.Random(f"{settings.protocol}/{seed}/store")
    kind = protocol or registry.load(settings.protocol)
    chasing = settings.profile == "chase"
    size = drawing.size(settings.protocol, seed, settings.size)
    replicas = 3 if chasing and kind.specification.fault_tolerant else settings.replicas
    topology = drawing.topology(rng, size, kind, settings.shards, replicas)
    shards, replicas = len(topology.groups), len(topology.groups[0])
    options = _draw_options(kind, settings, seed, size, topology)
    typed = drawing.protocol_options(kind, options)
    small = size is drawing.SMALL
    conditions = chase.conditions() if chasing else drawing.conditions(rng, size, typed)
    if chasing:
        span_us = int((settings.seconds or 0) * 1e6) or chase.SPAN_US
    else:
        span_us = int((settings.seconds or rng.choice(_SECONDS_SMALL if small else _SECONDS)) * 1e6)
    own = random.Random(f"{settings.protocol}/{seed}/store joins")
    changes = joins.draw(own, topology, span_us, kind.specification) if settings.profile == "faults" else []
    spares = joins.with_spares(topology, changes).spares
    free = len(topology.processes) + sum(map(len, spares.values()))
    grows = bool(settings.grows) and kind.specification.changes_members
    cluster = SimulatedCluster(
        kind,
        shards,
        replicas,
        seed,
        signals=settings.signals,
        options=options,
        conditions=conditions,
        replica=replica,
        store=store,
        name=given.replay(seed),
        drops=settings.profile == "faults",
        spares=spares,
        later=range(free, free + replicas) if grows else (),
        shared_reads=bool(settings.reads),
    )
    world = cluster.world
    world.observers += observers
    attach(world, TrueTime(cluster.options), Vouching(kind.specification), Elections(), Returns())
    coming = Joins(kind.specification, own, size.patience_us, EMPTY)
    if changes:
        attach(world, coming)
    growth = None
    if grows:
        growth = Growth(random.Random(f"{settings.protocol}/{seed}/store growth"), shards, size.patience_us, EMPTY)
        attach(world, growth)
    if chasing:
        workload: Workload = chase.Chase(cluster, seed, settings.clients or chase.CLIENTS, EPOCH_US + span_us)
    else:
        drawn = rng.choice(_CLIENTS_SMALL if small else _CLIENTS)
        workload = Workload(cluster, seed, settings.clients or drawn, EPOCH_US + span_us)
    counts: dict[str, int] = {}
    violations: list[str] = []
    asked = past.start(workload, f"{settings.protocol}/{seed}/store", settings.past)
    watches = watched.start(workload, f"{settings.protocol}/{seed}/store", settings.watch)
    try:
        counts = _execute(cluster, workload, settings, rng, span_us, seed, size, coming, changes, growth)
        violations += [f"{checker}: {text}" for checker, text in world.violations]
        violations += check(cluster, workload.history, asked, watches)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{frame.filename.rpartition('/')[2]}:{frame.lineno} in {frame.name}"
        violations.append(f"exception: {type(error).__name__}: {error} ({where})")
    if out is not None:
        write_run(cluster, workload.history, out)
    operations = workload.history.operations
    return Outcome(
        seed=seed,
        topology=f"{shards}x{replicas}",
        digest=world.digest(),
        simulated_us=world.now - EPOCH_US,
        operations=len(operations),
        answered=sum(op.result is not None for op in operations.values()),
        repetitions=workload.repetitions,
        commits=cluster.commits,
        installations=cluster.installations,
        faults=counts,
        violations=violations,
        options=drawing.changed_options(cluster.options),
        wall_s=time.process_time() - started,
        events=world.events,
        asked_at=len(asked),
        watched=sum(len(one.told) for one in watches),
        answered_at=sum(one.result is not None for one in asked),
        moves=len({place.since for replica in cluster.replicas.values() for place in replica.moves.places.values()}),
        asked_elsewhere=sum(replica.transactions["moved"] for replica in cluster.replicas.values()),
        deliveries=sum(world.node(pid).engine.position for pid in cluster.topology.processes),
    )


def _draw_options(
    protocol: type[MulticastProtocol], settings: Settings, seed: int, size: drawing.Size, topology: Topology
) -> dict[str, str]:
    """In a chase either clock, since stamps differ for other reasons; under faults what the protocol draws, with long
    or short windows; else the defaults. What the user fixes goes first. The clients send to any shards through any
    replica."""
    rng = random.Random(f"{settings.protocol}/{seed}/store options")
    given = settings.options
    if settings.profile == "chase":
        return {"clock": rng.choice(("logical", "hybrid", "hybrid")), **given}
    if settings.profile != "faults":
        return given
    fixed = {"clock": "hybrid", **given}
    if fixed["clock"] == "hybrid":
        fixed.setdefault("dedup_window_us", str(rng.choice((20_000_000, 20_000_000, 4_000_000, 1_000_000))))
    if hasattr(protocol.specification.options, "senders"):
        fixed.setdefault("senders", "")
    return drawing.options(rng, size, protocol, topology, 0, fixed)


def _execute(
    cluster: SimulatedCluster, workload: Workload, settings: Settings, rng: random.Random, span_us: int, seed: int,
    size: drawing.Size, coming: Joins, changes: list[Planned], growth: Growth | None,
) -> dict[str, int]:
    """Faults while the clients work, then health until everybody has everything, however the run ends (`Endings`; a
    chase has an end of its own). Returns the faults by kind."""
    world, profile = cluster.world, settings.profile
    injector = None
    if profile == "faults":
        faults.skew(rng, world)
    elif profile == "chase":
        chase.prepare(cluster, rng)
    world.start()
    if settings.ranges:
        workload.when_open.append(lambda: ranging.start(workload, seed))
    if settings.bounds:
        workload.when_open.append(lambda: ranging.start_bounds(workload, seed))
    workload.start()
    workload.reads = bool(settings.reads)
    if settings.reads:
        reading.start(workload, f"{settings.protocol}/{seed}/store")
    if settings.leases:
        leasing.start(workload, f"{settings.protocol}/{seed}/store")
    if settings.rights:
        ruling.start(workload, f"{settings.protocol}/{seed}/store")
    if settings.nested:
        nested.start(workload, f"{settings.protocol}/{seed}/store", ruling.TOKENS if settings.rights else ())
    if settings.backups:
        backups.start(workload, f"{settings.protocol}/{seed}/store", span_us)
    if changes:
        coming.plan(changes)
    if profile != "chase" and settings.signals is None:
        moving.start(workload, f"{settings.protocol}/{seed}/store", span_us, settings.moves)
    copies = None
    if settings.late:
        wander = profile != "chase" and settings.signals is None
        copies = late.start(workload, f"{settings.protocol}/{seed}/store", wander)
    if growth is not None:
        moving.start_to(growth.group, workload, f"{settings.protocol}/{seed}/store", span_us)
        growth.plan(span_us // 2)
    if profile == "faults":
        pace, survives = size.fault_pace, cluster.protocol.specification.survives_lost_disk
        planned = faults.draw(rng, cluster.topology, int(span_us / pace))
        planned += faults.draw_disk(rng, cluster.topology, int(span_us / pace), survives)
        gaps = random.Random(f"{settings.protocol}/{seed}/store gaps")
        planned += faults.draw_gaps(gaps, cluster.topology, int(span_us / pace), cluster.protocol.specification)
        own = random.Random(f"{settings.protocol}/{seed}/store forgotten")
        planned += forgotten.draw(own, cluster.topology, int(span_us / pace), cluster.protocol.specification)[0]
        if changes:
            planned = joins.strike(random.Random(f"{settings.protocol}/{seed}/store strike"), cluster.topology, planned)
        # Replicas refuse the ids of clients whose clocks differ from theirs by more than the window. That is no fault
        # of theirs; so clocks stay within half of it.
        injector = Injector(world, drawing.paced(planned, pace), cluster.options.dedup_window_us // 2, len(changes))
    world.run_for(span_us)
    if copies is not None:
        copies.stop()
    judge = _Judge(cluster, workload, growth)
    if injector is None:
        world.heal()
    if injector is None and profile == "chase":
        judge.conclude()
        world.stop()
        return {}
    own = random.Random(f"{settings.protocol}/{seed}/store endings")
    specification = cluster.protocol.specification
    endings = Endings(world, specification, cluster.options, judge, own, injector)
    endings.all_return = coming.stop()
    endings.run()
    endings.counts.update(coming.counts)
    if not world.violations:
        Repetitions(workload, f"{settings.protocol}/{seed}/store", copies).judge()
    world.stop()
    return endings.counts


class _Judge:
    """What a store owes, for `Endings`: its clients get their answers, among them one for a last read of all accounts;
    all replicas of a shard have completed the same."""

    def __init__(self, cluster: SimulatedCluster, workload: Workload, growth: Growth | None):
        self._cluster = cluster
        self._workload = workload
        self._growth = growth
        self._rng = random.Random(f"{cluster.world.seed}/probes")
        self._closing: list[Operated] = []
        self._asked = False

    def unfinished(self, dead: Collection[ProcessId]) -> bool:
        """See `multicast.simulation.endings.Judged`."""
        world, workload = self._cluster.world, self._workload
        if workload.running or workload.probes or (self._growth is not None and not self._growth.announced):
            return True
        if not self._asked:
            self._asked = True
            workload.read_everything(self._closing.append, world.now + LIVENESS_LIMIT_US - clients.LONGEST_US)
        return not self._closing or self._cluster.unfinished(dead)

    def finish(self, dead: Collection[ProcessId]) -> None:
        """See `multicast.simulation.endings.Judged`."""
        cluster, workload, world = self._cluster, self._workload, self._cluster.world
        if workload.running:
            world.report("liveness", f"{workload.running} clients still wait, a minute after everything was healed")
        elif not self._closing or self._cluster.unfinished(dead):
            logs = {pid: replica.status()["log_length"] for pid, replica in cluster.replicas.items() if pid not in dead}
            world.report("liveness", f"replicas are behind a minute after everything was healed; their logs: {logs}")
        elif self._closing[0].result is None and not self._closing[0].refused:
            world.report("liveness", "the last read of all accounts was not answered")

    def multicast(self, sender: ProcessId, destinations: tuple[GroupId, ...]) -> None:
        """See `multicast.simulation.endings.Judged`."""
        world, shard_of = self._cluster.world, self._cluster.replicas[sender].moves.map.shard_of
        keys = {shard_of(key): key for key in _PROBES}
        if all(shard in keys for shard in destinations):
            self._workload.probe(sender, [keys[shard] for shard in destinations])
        else:  # a shard that was added may have no slots
            identity = new_message_id(world.now, self._rng.getrandbits(62))
            world.submit(sender, AppMessage(identity, destinations, EMPTY, sender))

    def expects_copies(self) -> bool:
        """See `multicast.simulation.endings.Judged`: whoever repeats a request is waited for."""
        return False

    def left(self, pid: ProcessId) -> dict[str, int]:
        """See `multicast.simulation.endings.Judged`."""
        replica = self._cluster.replicas[pid]
        log, clients = replica.log, replica.clients
        return {
            "log": len(log), "by_id": len(log.by_id), "items": len(log.items), "requests": len(clients.requests),
            "reads": len(replica.reads) + len(replica.collects), "lookups": len(clients.lookups),
            "parts": self._parts(pid),
        }  # fmt: skip

    def _parts(self, pid: ProcessId) -> int:
        """Those that nobody will ask for, as far as the protocol says what is settled."""
        if "unsettled" not in self._cluster.world.node(pid).protocol.describe():
            return 0
        kept = [decode_retained(part) for _, part in self._cluster.stores[pid].parts()]
        return sum(not any([vote is not None and vote.given is not None for vote in part.votes]) for part in kept)

    def conclude(self) -> None:
        """Wait for it."""
        self._cluster.world.run_while(lambda: self.unfinished(()), 2 * LIVENESS_LIMIT_US)
        self.finish(())


def write_run(cluster: SimulatedCluster, history: History, out: Path) -> None:
    """The run directory: journals and the client history."""
    cluster.world.dump_journals(out)
    for node in cluster.world.nodes.values():
        cluster.dropping.dump(node, out)
    history.write(out / "history" / "clients.jsonl")
