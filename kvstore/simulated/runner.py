"""One seed, one run: a cluster, clients and faults drawn from it; then everything heals, must finish, is checked."""

from __future__ import annotations

import random
import shlex
import traceback
from pathlib import Path

import msgspec

from kvstore.core.replica import Replica
from kvstore.simulated import chase
from kvstore.simulated.checks import check
from kvstore.simulated.clients import History, Operated, Workload
from kvstore.simulated.cluster import SimulatedCluster
from kvstore.storage.store import Store
from multicast import registry
from multicast.simulation import faults
from multicast.simulation.network import Conditions
from multicast.simulation.world import EPOCH_US

PROFILES = ("faults", "calm", "chase")
"""calm: no faults. chase: no faults, but slow links, clocks that differ, and clients after anomalies."""

LIVENESS_LIMIT_US = 60_000_000


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the user fixes; None: drawn from the seed. signals: see `SimulatedCluster`. options: the protocol's."""

    protocol: str
    signals: str = "store"
    profile: str = "faults"
    options: dict[str, str] = {}
    shards: int | None = None
    clients: int | None = None
    seconds: float | None = None

    def replay(self, seed: int) -> str:
        """The command that runs this seed again."""
        words = ["python", "-m", "kvstore.simulated", "run", "--protocol", self.protocol]
        words += ["--seeds", f"{seed}:{seed + 1}", "--signals", self.signals, "--profile", self.profile]
        for name, value in (("shards", self.shards), ("clients", self.clients), ("seconds", self.seconds)):
            if value is not None:
                words += [f"--{name}", str(value)]
        for key in sorted(self.options):
            words += ["--option", f"{key}={self.options[key]}"]
        return shlex.join(words)


class Outcome(msgspec.Struct, kw_only=True):
    """What a run showed."""

    seed: int
    topology: str
    digest: str
    simulated_us: int
    operations: int
    answered: int
    repetitions: int
    commits: int
    faults: dict[str, int]
    violations: list[str]


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
            f"{self.settings.protocol}, signals {self.settings.signals}: {len(runs)} seeds, "
            f"{sum(o.simulated_us for o in runs) / 1e6:.1f} simulated seconds, "
            f"{sum(o.operations for o in runs)} operations ({sum(o.answered for o in runs)} answered, "
            f"{sum(o.repetitions for o in runs)} repetitions), {sum(o.commits for o in runs)} store commits",
            "  faults: " + (", ".join(f"{kind} {count}" for kind, count in self.faults().items()) or "none"),
            f"  violations: in {self.failed} of {len(runs)} seeds",
        ]


def run_seed(
    settings: Settings,
    seed: int,
    out: Path | None = None,
    *,
    replica: type[Replica] = Replica,
    store: type[Store] = Store,
) -> Outcome:
    """Run one seed; `out`: write the run directory there. An exception in a replica is a violation like any other.
    replica, store: classes, for planted bugs."""
    rng = random.Random(f"{settings.protocol}/{seed}/store")
    replicas = 3 if registry.load(settings.protocol).specification.fault_tolerant else 1
    shards = settings.shards or rng.choice((2, 2, 3, 4))
    chasing = settings.profile == "chase"
    cluster = SimulatedCluster(
        settings.protocol,
        shards,
        replicas,
        seed,
        signals=settings.signals,
        options=_options(settings, rng),
        conditions=chase.conditions() if chasing else _conditions(rng),
        replica=replica,
        store=store,
    )
    world = cluster.world
    if chasing:
        span_us = int((settings.seconds or 0) * 1e6) or chase.SPAN_US
        workload: Workload = chase.Chase(cluster, seed, settings.clients or chase.CLIENTS, EPOCH_US + span_us)
    else:
        span_us = int((settings.seconds or rng.choice((2, 4, 8))) * 1e6)
        workload = Workload(cluster, seed, settings.clients or rng.choice((3, 6, 12)), EPOCH_US + span_us)
    counts: dict[str, int] = {}
    violations: list[str] = []
    try:
        counts = _execute(cluster, workload, settings.profile, rng, span_us)
        violations += [f"{checker}: {text}" for checker, text in world.violations]
        violations += check(cluster, workload.history)
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
        faults=counts,
        violations=violations,
    )


def _options(settings: Settings, rng: random.Random) -> dict[str, str]:
    """In a chase either clock, since stamps differ for other reasons; else the store's."""
    if settings.profile != "chase":
        return settings.options
    return {"clock": rng.choice(("logical", "hybrid", "hybrid")), **settings.options}


def _conditions(rng: random.Random) -> Conditions:
    most = rng.choice((1_000, 5_000, 40_000))
    return Conditions(
        delay_us=(100, most),
        late_probability=rng.choice((0.0, 0.02)),
        late_us=(most, 20 * most),
        fsync_us=rng.choice(((0, 0), (50, 300), (1_000, 8_000))),
        batch_us=rng.choice(((0, 0), (0, 500))),
        acknowledge_frames=rng.choice((1, 16, 256)),
    )


def _execute(
    cluster: SimulatedCluster, workload: Workload, profile: str, rng: random.Random, span_us: int
) -> dict[str, int]:
    """Faults while the clients work, then health until everybody has everything. Returns the faults by kind."""
    world = cluster.world
    injector = None
    if profile == "faults":
        faults.skew(rng, world)
    elif profile == "chase":
        chase.prepare(cluster, rng)
    world.start()
    workload.start()
    if profile == "faults":
        planned = faults.draw(rng, cluster.topology, span_us)
        survives = cluster.protocol.specification.survives_lost_disk
        injector = faults.Injector(world, planned + faults.draw_disk(rng, cluster.topology, span_us, survives))
    world.run_for(span_us)
    if injector:
        injector.stop()
    world.heal()
    if not world.run_while(lambda: workload.running > 0, LIVENESS_LIMIT_US):
        world.report("liveness", f"{workload.running} clients still wait, a minute after everything was healed")
    closing: list[Operated] = []
    workload.read_everything(closing.append)
    if not world.run_while(lambda: not closing or cluster.unfinished, LIVENESS_LIMIT_US):
        logs = {pid: replica.status()["log_length"] for pid, replica in cluster.replicas.items()}
        world.report("liveness", f"replicas are behind a minute after everything was healed; their logs: {logs}")
    elif closing[0].result is None:
        world.report("liveness", "the last read of all accounts was not answered")
    world.stop()
    return dict(injector.counts) if injector else {}


def write_run(cluster: SimulatedCluster, history: History, out: Path) -> None:
    """The run directory: journals and the client history."""
    cluster.world.dump_journals(out)
    history.write(out / "history" / "clients.jsonl")
