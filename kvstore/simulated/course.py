"""The course of one run: what its seed draws, clients and faults side by side, then health until all is finished.

Every kind of thing that is drawn has a generator of its own, named after it: what a run draws of one kind does not
change with what it draws of another.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from kvstore.core.bundles import EMPTY
from kvstore.core.replica import Replica
from kvstore.simulated import (
    backups,
    chase,
    edges,
    idle,
    late,
    leasing,
    moving,
    nested,
    past,
    peeking,
    ranging,
    reading,
    ruling,
    watched,
)
from kvstore.simulated.books import Books
from kvstore.simulated.checks import check
from kvstore.simulated.clients import Workload
from kvstore.simulated.cluster import SimulatedCluster
from kvstore.simulated.concluding import Conclusion
from kvstore.simulated.judging import Judge
from kvstore.simulated.lives import Lives
from kvstore.simulated.repeating import Repetitions
from kvstore.simulated.settings import Settings
from kvstore.storage.store import Store
from multicast.protocol import MulticastProtocol
from multicast.simulation import drawing, faults, forgotten, growing, joins, stragglers
from multicast.simulation.checkers import attach
from multicast.simulation.elections import Elections, Returns
from multicast.simulation.endings import Endings
from multicast.simulation.growing import Growth
from multicast.simulation.injector import Injector
from multicast.simulation.joins import Joins, Planned
from multicast.simulation.observe import Observer
from multicast.simulation.owed import Owed
from multicast.simulation.scene import EPOCH_US
from multicast.simulation.stragglers import Stragglers
from multicast.simulation.true_time import TrueTime
from multicast.simulation.vouching import Vouching
from multicast.types import Topology

_SECONDS, _SECONDS_SMALL = (2, 4, 8), (0.3, 0.6, 1.0)
_CLIENTS, _CLIENTS_SMALL = (3, 6, 12), (2, 3, 4)
_WINDOWS_US = (200_000, 300_000, 500_000)
"""Where a message may come again when most have forgotten it."""
_WINDOWS = 5
"""So many of these pass then in a run."""
_SHRINKS_SHARE = 0.3
"""Of the runs in which a shard is added."""


class Course:
    """See the module. name: of the run, in its journals. faults: those that took place, by kind. The rest: see
    `kvstore.simulated.runner.run_seed`."""

    def __init__(
        self, settings: Settings, seed: int, name: str, kind: type[MulticastProtocol], replica: type[Replica],
        store: type[Store], observers: Sequence[Observer],
    ):
        self.settings = settings
        self.seed = seed
        self._specification = kind.specification
        self._rng = random.Random(f"{settings.protocol}/{seed}/store")
        self._size = drawing.size(settings.protocol, seed, settings.size)
        replicas = (3 if self._chases else settings.replicas) if kind.specification.fault_tolerant else None
        topology = drawing.topology(self._rng, self._size, kind, settings.shards, replicas)
        if settings.shards is None and settings.replicas is None and not self._chases:
            topology = drawing.uneven(self._lot("uneven"), self._size, kind, topology)
        self.shards, sizes = len(topology.groups), [len(members) for members in topology.groups.values()]
        options = self._draw_options(kind, topology)
        typed = self._options = drawing.protocol_options(kind, options)
        conditions = chase.conditions() if self._chases else drawing.conditions(self._rng, self._size, typed)
        self._span_us = self._draw_span_us()
        lot = self._lot("joins")
        drawn = joins.draw(lot, self._size, topology, self._span_us, kind.specification)
        self._changes = drawn if self._strikes else []
        spares = joins.with_spares(topology, self._changes).spares
        free = len(topology.processes) + sum(map(len, spares.values()))
        grows = bool(settings.grows) and kind.specification.changes_members
        self.cluster = SimulatedCluster(
            kind, self.shards, sizes, seed, signals=settings.signals, options=options, conditions=conditions,
            replica=replica, store=store, name=name, drops=self._strikes, spares=spares,
            later=range(free, free + sizes[0]) if grows else (), shared_reads=bool(settings.reads),
        )  # fmt: skip
        if settings.piecemeal:
            self.cluster.hand_over(self._lot("piecemeal").choice((1, 2, 4)))
        self._coming = Joins(kind.specification, lot, self._size.patience_us, EMPTY)
        self._growth = Growth(self._lot("growth"), self.shards, self._size.patience_us, EMPTY) if grows else None
        self._shrinks = self._draw_shrinking() if grows and self._strikes else []
        self._observe(observers)
        self._late = self._draw_straggler(topology)
        self.workload = self._clients()
        self._leases: list[bytes] | None = None
        self.peeked: list[peeking.Peeked] = []
        self.asked = past.start(self.workload, self._of("store"), settings.past)
        self.watches = watched.start(self.workload, self._of("store"), settings.watch)
        self.faults: dict[str, int] = {}
        self.violations: list[str] = []

    def run(self) -> None:
        """All of it. Whatever an error of a replica raises comes out."""
        world = self.cluster.world
        copies, injector = self._begin()
        world.run_for(self._span_us)
        if copies is not None:
            copies.stop()
        judge = Judge(self.cluster, self.workload, self._growth)
        if self._chases:
            world.heal()
            judge.conclude()
        else:
            self._end(judge, injector, copies)
        world.stop()
        self.violations += [f"{checker}: {text}" for checker, text in world.violations]
        self.violations += check(
            self.cluster, self.workload.history, self.asked, self.watches, self.peeked
        )

    # -- what is drawn ------------------------------------------------------------------------------------------------

    @property
    def _chases(self) -> bool:
        return self.settings.profile == "chase"

    @property
    def _strikes(self) -> bool:
        return self.settings.profile == "faults"

    def _of(self, what: str) -> str:
        return f"{self.settings.protocol}/{self.seed}/{what}"

    def _lot(self, what: str) -> random.Random:
        return random.Random(self._of(f"store {what}"))

    def _draw_options(self, kind: type[MulticastProtocol], topology: Topology) -> dict[str, str]:
        """In a chase either clock, since stamps differ for other reasons; under faults what the protocol draws, with
        long or short windows; else the defaults. What the user fixes goes first. The clients send to any shards
        through any replica."""
        rng = self._lot("options")
        given = self.settings.options
        if self._chases:
            return {"clock": rng.choice(("logical", "hybrid", "hybrid")), **given}
        if not self._strikes:
            return given
        fixed = {"clock": "hybrid", **given}
        if fixed["clock"] == "hybrid":
            if self.settings.stragglers:
                fixed.setdefault("dedup_window_us", str(self._lot("windows").choice(_WINDOWS_US)))
            fixed.setdefault("dedup_window_us", str(rng.choice((20_000_000, 20_000_000, 4_000_000, 1_000_000))))
        if hasattr(kind.specification.options, "senders"):
            fixed.setdefault("senders", "")
        return drawing.options(rng, self._size, kind, topology, 0, fixed)

    def _draw_span_us(self) -> int:
        """Of the time with faults."""
        seconds = self.settings.seconds
        if self._chases:
            return int((seconds or 0) * 1e6) or chase.SPAN_US
        span_us = int((seconds or self._rng.choice(_SECONDS_SMALL if self._small else _SECONDS)) * 1e6)
        if self.settings.stragglers and seconds is None:
            span_us = max(span_us, _WINDOWS * min(self._options.dedup_window_us, _WINDOWS_US[-1]))
        return span_us

    def _draw_shrinking(self) -> list[Planned]:
        """In a part of the runs a replica is removed from the shard that is added."""
        lot = self._lot("shrinks")
        at_us = self._span_us // 2 + lot.randrange(self._span_us // 2)
        return [Planned(at_us, self.shards, False, False)] if lot.random() < _SHRINKS_SHARE else []

    def _draw_straggler(self, topology: Topology) -> Stragglers | None:
        lot = self._lot("stragglers")
        if not (self.settings.stragglers and self._strikes):
            return None
        fault = stragglers.draw(lot, topology, self._options, self._span_us, self._specification, share=1)
        if fault is None:
            return None
        late = Stragglers(fault, lot, EMPTY)
        self.cluster.world.observers.append(late)
        return late

    @property
    def _small(self) -> bool:
        return self._size is not drawing.LARGE

    # -- who takes part -----------------------------------------------------------------------------------------------

    def _observe(self, observers: Sequence[Observer]) -> None:
        world = self.cluster.world
        world.observers += observers
        checkers = (TrueTime(self.cluster.options), Vouching(self._specification), Elections(), Returns(), Owed())
        replicas = self.cluster.replicas
        attach(world, *checkers, Books(replicas, self.cluster.deleted_at), Lives(replicas))
        if self._changes or self._shrinks:
            attach(world, self._coming)
        if self._growth is not None:
            attach(world, self._growth)

    def _clients(self) -> Workload:
        settings, end = self.settings, EPOCH_US + self._span_us
        if self._chases:
            return chase.Chase(self.cluster, self.seed, settings.clients or chase.CLIENTS, end)
        drawn = self._rng.choice(_CLIENTS_SMALL if self._small else _CLIENTS)
        return Workload(self.cluster, self.seed, settings.clients or drawn, end)

    def _begin(self) -> tuple[late.Copies | None, Injector | None]:
        """Start the replicas and their clients, and plan the faults. Who sends late copies, and who strikes."""
        world = self.cluster.world
        if self._strikes:
            faults.skew(self._rng, world)
        elif self._chases:
            chase.prepare(self.cluster, self._rng)
        world.start()
        self._start_clients()
        if self._changes or self._shrinks:
            self._coming.plan(self._changes + self._shrinks)
        wander = not self._chases and self.settings.signals is None
        if wander:
            moving.start(self.workload, self._of("store"), self._span_us, self.settings.moves)
        if self._leases is not None and self.workload.moves:
            leasing.start_moves(self.workload, self._of("store"), self._span_us, self._leases)
        copies = late.start(self.workload, self._of("store"), wander) if self.settings.late else None
        if self._growth is not None:
            moving.start_to(self._growth.group, self.workload, self._of("store"), self._span_us)
            self._growth.plan(self._span_us // 2)
        return copies, self._injector() if self._strikes else None

    def _start_clients(self) -> None:
        settings, workload, lots = self.settings, self.workload, self._of("store")
        if settings.ranges:
            workload.when_open.append(lambda: ranging.start(workload, self.seed))
        if settings.bounds:
            workload.when_open.append(lambda: ranging.start_bounds(workload, self.seed))
        workload.start()
        workload.reads = bool(settings.reads)
        if settings.reads:
            reading.start(workload, lots)
        if settings.leases:
            self._leases = leasing.start(workload, lots)
        if settings.rights:
            ruling.start(workload, lots)
            self.peeked = peeking.start(workload, lots)
        if settings.nested:
            nested.start(workload, lots, ruling.TOKENS if settings.rights else ())
        if settings.edges:
            rights = bool(settings.rights)
            workload.when_open.append(lambda: edges.start(workload, lots, self.asked, rights))
        if settings.backups:
            backups.start(workload, lots, self._span_us)

    def _injector(self) -> Injector:
        """Of all faults, in the order of their times."""
        world, topology, pace = self.cluster.world, self.cluster.topology, self._size.fault_pace
        specification, span = self._specification, int(self._span_us / pace)
        planned = faults.draw(self._rng, topology, span)
        planned += faults.draw_disk(self._rng, topology, span, specification.survives_lost_disk)
        planned += faults.draw_gaps(self._lot("gaps"), topology, span, specification)
        planned += forgotten.draw(self._lot("forgotten"), topology, span, specification)[0]
        if self._growth is not None:
            members = self.cluster.topology.spares[self._growth.group]
            planned += growing.strike(self._lot("founded"), topology, members, span, specification)
        if self._late is not None and self._lot("straggler alone").random() < stragglers.ALONE_SHARE:
            planned = []
        if self._changes:
            planned = joins.strike(self._lot("strike"), topology, planned)
        # Replicas refuse the ids of clients whose clocks differ from theirs by more than the window. That is no fault
        # of theirs; so clocks stay within half of it.
        apart_us = self.cluster.options.dedup_window_us // 2
        injector = Injector(world, drawing.paced(planned, pace), apart_us, len(self._changes))
        if self._late is not None:
            self._late.plan(injector.casualties)
        return injector

    # -- the end ------------------------------------------------------------------------------------------------------

    def _end(self, judge: Judge, injector: Injector | None, copies: late.Copies | None) -> None:
        """Health until everybody has everything, however the run ends (`Endings`); then old requests once more."""
        world = self.cluster.world
        if injector is None:
            world.heal()
        endings = Endings(
            world, self._specification, self.cluster.options, judge, self._lot("endings"), injector
        )
        endings.all_return = self._coming.stop()
        self.faults = endings.counts
        endings.run()
        endings.counts.update(self._coming.counts)
        if not world.violations:
            Repetitions(self.workload, self._of("store"), copies).judge()
        if not world.violations and self.workload.moves:
            Conclusion(self.workload, self._of("store")).judge()
        if not world.violations:
            idle.judge(self.workload, self._of("store"))
