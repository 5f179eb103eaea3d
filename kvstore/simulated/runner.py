"""One seed, one run: a cluster, clients and faults drawn from it; then everything heals, must finish, is checked."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

from kvstore.core.replica import Replica
from kvstore.simulated import narrow
from kvstore.simulated.clients import History
from kvstore.simulated.cluster import SimulatedCluster
from kvstore.simulated.course import Course
from kvstore.simulated.settings import Settings
from kvstore.storage.store import Store
from multicast import registry
from multicast.protocol import MulticastProtocol
from multicast.simulation import drawing
from multicast.simulation.observe import Observer
from multicast.simulation.scene import EPOCH_US
from multicast.simulation.trace import FrameTrace


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
    kind = protocol or registry.load(settings.protocol)
    drawn = settings.drawn(seed)
    with narrow.of_seed(settings.protocol, seed) if drawn.narrow else nullcontext():
        course = Course(drawn, seed, settings.replay(seed), kind, replica, store, observers)
        try:
            course.run()
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename.rpartition('/')[2]}:{frame.lineno} in {frame.name}"
            course.violations.append(f"exception: {type(error).__name__}: {error} ({where})")
    if out is not None:
        write_run(course.cluster, course.workload.history, out)
    return _outcome(course, time.process_time() - started)


def _outcome(course: Course, wall_s: float) -> Outcome:
    cluster, workload, asked = course.cluster, course.workload, course.asked
    world, operations = cluster.world, workload.history.operations
    return Outcome(
        seed=course.seed,
        topology=drawing.shape(cluster.topology),
        digest=world.digest(),
        simulated_us=world.now - EPOCH_US,
        operations=len(operations),
        answered=sum(op.result is not None for op in operations.values()),
        repetitions=workload.repetitions,
        commits=cluster.commits,
        installations=cluster.installations,
        faults=course.faults,
        violations=course.violations,
        options=drawing.changed_options(cluster.options),
        wall_s=wall_s,
        events=world.events,
        asked_at=len(asked),
        watched=sum(len(one.told) for one in course.watches),
        answered_at=sum(one.result is not None for one in asked),
        moves=len({place.since for replica in cluster.replicas.values() for place in replica.moves.places.values()}),
        asked_elsewhere=sum(replica.transactions["moved"] for replica in cluster.replicas.values()),
        deliveries=sum(world.node(pid).engine.position for pid in cluster.topology.processes),
    )


def write_run(cluster: SimulatedCluster, history: History, out: Path) -> None:
    """The run directory: journals and the client history."""
    cluster.world.dump_journals(out)
    for node in cluster.world.nodes.values():
        cluster.dropping.dump(node, out)
    history.write(out / "history" / "clients.jsonl")
