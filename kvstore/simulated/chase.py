"""Clients that hunt for what atomic multicast alone does not promise: an order that agrees with real time.

The anomaly needs a transaction over several shards that one shard has executed while another's leader has not heard how
high it is stamped, and a client that sees it in the first and at once asks the second. So writers write to several
shards; chasers read one shard until they see something new, and then read another one, again and again. What one group
sends to some replicas of another is slow; clocks differ from group to group: hybrid ones because some groups are ahead,
logical ones because some groups have more to do (their writers).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from kvstore.api.model import Get, Put, Transaction
from kvstore.simulated.clients import Client, Operated, Workload
from kvstore.simulated.cluster import SimulatedCluster
from multicast.simulation.network import Conditions
from multicast.types import GroupId, ProcessId, Timestamp

CLIENTS = 16
SPAN_US = 600_000
_SLOW_US = (5_000, 20_000, 80_000)
_AHEAD_US = (0, 0, 20_000, 60_000)
_WRITER, _CHASER, _HOT = range(3)
_ROLES = (_WRITER, _CHASER, _CHASER, _WRITER, _CHASER, _HOT)


def conditions() -> Conditions:
    """Quick but for what `prepare` makes slow: a chaser must be quicker than a stamp."""
    return Conditions(delay_us=(100, 600), late_probability=0.0, fsync_us=(0, 0))


def prepare(cluster: SimulatedCluster, rng: random.Random) -> None:
    """Slow links and clocks that differ: anything, or a group that is ahead and slow towards one other's leader."""
    groups = cluster.topology.groups
    slow, late = rng.sample(list(groups), 2) if len(groups) > 1 else (-1, -1)
    aimed = rng.random() < 0.7
    for group, members in groups.items():
        ahead = rng.choice(_AHEAD_US[2:] if aimed and group == slow else _AHEAD_US)
        for pid in members:
            cluster.world.node(pid).offset_us = ahead + rng.randint(0, 500)
    for source in groups:
        for target, members in groups.items():
            if aimed and (source, target) == (slow, late):
                _slow(cluster, source, members[:1], _SLOW_US[-1])
            elif source != target and rng.random() < (0.2 if aimed else 0.6):
                _slow(cluster, source, [p for p in members if rng.random() < 0.5], rng.choice(_SLOW_US))


def _slow(cluster: SimulatedCluster, source: GroupId, receivers: Sequence[ProcessId], extra_us: int) -> None:
    for receiver in receivers:
        for sender in cluster.topology.groups[source]:
            cluster.world.network.slow(sender, receiver, extra_us)


class Chase(Workload):
    """Writers and chasers; see the module."""

    def __init__(self, cluster: SimulatedCluster, seed: int | str, clients: int, stop_at: int):
        super().__init__(cluster, seed, clients, stop_at)
        self.shards = list(cluster.topology.groups)
        self.key_of = {shard: self._key(b"chase", shard) for shard in self.shards}
        self.hot_key_of = {shard: self._key(b"hot", shard) for shard in self.shards}
        rng = random.Random(f"{seed}/chase")
        self.hot = [shard for shard in self.shards if rng.random() < 0.5]

    def _key(self, name: bytes, shard: GroupId) -> bytes:
        keys = (b"%s/%d" % (name, i) for i in range(10_000))
        return next(key for key in keys if self.cluster.shard_map.shard_of(key) == shard)

    def make_client(self, number: int, rng: random.Random) -> Client:
        return ChaseClient(self, rng, _ROLES[number % len(_ROLES)])


class ChaseClient(Client):
    """One writer, chaser, or writer to one busy shard."""

    def __init__(self, workload: Chase, rng: random.Random, role: int):
        super().__init__(workload, rng)
        self._chase = workload
        self._role = role if role != _HOT or workload.hot else _WRITER
        self._seen: dict[GroupId, Timestamp] = {}
        self._at = rng.choice(workload.shards)

    def entry(self, operation: Operated, attempt: int) -> ProcessId:
        """The first leader of a shard that takes part; anybody, if that was in vain."""
        if attempt > 1:
            return super().entry(operation, attempt)
        cluster = self._chase.cluster
        shard = self._rng.choice(cluster.shard_map.shards_of(operation.transaction))
        return cluster.topology.groups[shard][0]

    def go_on(self, last: Operated | None) -> None:
        if self._world.now >= self._workload.stop_at:
            self._workload.running -= 1
            return
        rng = self._rng
        if self._role == _CHASER:
            self._world.after(0 if last is not None and self._is_news(last) else rng.randint(0, 8_000), self._read)
        elif self._role == _HOT:
            self._world.after(rng.randint(0, 3_000), self._heat)
        else:
            self._world.after(rng.randint(0, 30_000), self._write)

    def _is_news(self, last: Operated) -> bool:
        """Whether this read saw a version that the client had not seen; then another shard is next, as sometimes
        otherwise."""
        if last.result is None or not last.result.results:
            return False
        found = last.result.results[0].found
        news = found is not None and self._seen.get(self._at) != found.version
        if found is not None:
            self._seen[self._at] = found.version
        if news or self._rng.random() < 0.1:
            others = [shard for shard in self._chase.shards if shard != self._at]
            self._at = self._rng.choice(others or self._chase.shards)
        return news

    def _read(self) -> None:
        self.operate("get", Transaction(success=(Get(self._chase.key_of[self._at]),)), self.go_on)

    def _write(self) -> None:
        shards = self._chase.shards
        some = self._rng.sample(shards, min(len(shards), self._rng.choice((1, 2, 2, 2, 2, 3))))
        value = b"%d" % self._rng.getrandbits(20)
        self.operate("put", Transaction(success=tuple(Put(self._chase.key_of[s], value) for s in some)), self.go_on)

    def _heat(self) -> None:
        key = self._chase.hot_key_of[self._rng.choice(self._chase.hot)]
        self.operate("put", Transaction(success=(Put(key, b"x"),)), self.go_on)
