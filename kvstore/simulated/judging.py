"""What a store owes at the end of a run."""

from __future__ import annotations

import random
from collections.abc import Collection

from kvstore.core.bundler import Bundler
from kvstore.core.bundles import EMPTY
from kvstore.core.messages import decode_retained
from kvstore.core.signals import gives
from kvstore.simulated import clients
from kvstore.simulated.clients import Operated, Workload
from kvstore.simulated.cluster import SimulatedCluster
from multicast.simulation.endings import LIVENESS_LIMIT_US
from multicast.simulation.growing import Growth
from multicast.simulation.leftovers import held
from multicast.types import AppMessage, GroupId, ProcessId, new_message_id

_PROBES = [b"probe/%d" % number for number in range(64)]
_GOES: dict[str, tuple[str, ...]] = {
    "Bundler": ("_flights", "_ready"),
    "Changes": ("_waiting",),
    "Clients": ("_outgoing",),
    "Collects": ("_begun", "_collects", "_in_line", "_under_way", "_unread", "_waiting"),
    "Positions": ("_barrier", "_new", "_open", "_questions", "_unknown"),
    "Reads": ("_due", "_open", "_readable", "_refused"),
    "Replica": ("_held",),
    "Requests": ("_due",),
    "Signals": ("_doubtful", "_early", "_outgoing"),
    "Versions": ("_asked", "_waiting"),
    "Watches": ("_clients", "_dues", "_rounds"),
}
"""Of a replica: see `leftovers.GOES`."""


class Judge:
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
            self._workload.probed_us = 0
            identity = new_message_id(world.now, self._rng.getrandbits(62))
            world.submit(sender, AppMessage(identity, destinations, EMPTY, sender))

    def answered_us(self) -> int:
        """See `multicast.simulation.endings.Judged`: of one that was not refused, and not asked of another replica."""
        return self._workload.probed_us

    def expects_copies(self) -> bool:
        """See `multicast.simulation.endings.Judged`: whoever repeats a request is waited for."""
        return False

    def left(self, pid: ProcessId) -> dict[str, int]:
        """See `multicast.simulation.endings.Judged`."""
        replica = self._cluster.replicas[pid]
        log, clients = replica.log, replica.clients
        left = held(replica, _GOES) | {
            "log": len(log), "by_id": len(log.by_id), "items": len(log.items), "requests": len(clients.requests),
            "blocked": len(log._blocked) + len(log._last_of_shards) + len(log._last_writer),
            "reads": len(replica.reads) + len(replica.collects) + len(replica.versions),
            "bundles": _under_way(clients.bundler), "lookups": len(clients.lookups),
            "parts": self._parts(pid),
        }  # fmt: skip
        settles = "unsettled" in self._cluster.world.node(pid).protocol.describe()
        if self._workload.wide_probe_refused or not settles:  # refused for a wrong clock: nothing came that settles
            left["parts"] = left["Signals._doubtful"] = 0
        return left

    def _parts(self, pid: ProcessId) -> int:
        """Those that nobody will ask for."""
        kept = [decode_retained(part) for _, part in self._cluster.stores[pid].parts()]
        return sum([not (part.moved or gives(part)) for part in kept])

    def conclude(self) -> None:
        """Wait for it."""
        self._cluster.world.run_while(lambda: self.unfinished(()), 2 * LIVENESS_LIMIT_US)
        self.finish(())


def _under_way(bundler: Bundler) -> int:
    """How much it takes for under way, or for waiting: so much less leaves at once."""
    flows = bundler._flows.values()
    return len(bundler._flights) + sum(len(f.queue) + f.bytes + f.under_way + f.travelling for f in flows)
