"""A store of one replica that lies in memory and nowhere else: for tests of programs that use the store.

Theory of operation. Below HTTP everything is as in a live replica (`kvstore.core.replica.Replica` over a `Store`), but
nobody has to be asked what comes next: what the replica multicasts is delivered at once, in the order in which it
leaves, and what it asks the protocol is answered with what is complete. So transactions, reads, watches, leases and
remembered ids are the real ones; crashes, delays and other shards are what is missing.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque

from kvstore.api.cluster import ClusterJson, ReplicaJson, ShardJson
from kvstore.api.shard_map import ShardMap
from kvstore.config import ConfigError, ReplicaConfig
from kvstore.core.bundles import EMPTY
from kvstore.core.messages import Execute, Follow, Lookup, Told
from kvstore.core.replica import Replica
from kvstore.core.rights import Rights
from kvstore.members import Unfit, Wanted
from kvstore.storage.backend import MemoryBackend
from kvstore.storage.cut import Cut
from kvstore.storage.store import Store
from multicast.application import ApplicationOutbox
from multicast.records import Delivered
from multicast.runtime.clock import Clock
from multicast.types import FINAL, AppMessage, MessageId, Timestamp, Topology, new_message_id

DEDUP_WINDOW_US = 2 * 24 * 3600 * 1_000_000
"""Longer than any lease: clients make ids by their own clock, which does not go forward with `advance`."""
_ONE = Topology.grid(1, 1)


class MemoryNode:
    """The replica, as the HTTP interface needs it (`kvstore.http.node.Node`). For one event loop. url: where clients
    shall look for it."""

    def __init__(self, url: str):
        self._url = url
        self._clock = Clock()
        self._ahead_us = 0
        self._random = random.Random()
        self._store = Store.open(MemoryBackend())
        self._replica = Replica(
            0, _ONE, ShardMap.even([0]), self._store, dedup_window_us=DEDUP_WINDOW_US, leader_of=lambda shard: 0,
            leader_reads=True, rng=self._random,
        )  # fmt: skip
        self._out = ApplicationOutbox()
        self._position = 0
        self._last = Timestamp(0, 0)
        self._asked: deque[tuple[int, Execute | Lookup | Follow]] = deque()
        self._told: dict[int, Told] = {}
        self._tokens = 0
        self._working = False
        self._timer: asyncio.TimerHandle | None = None
        self._replica.on_start(self._now(), self._out)

    def _now(self) -> int:
        return self._clock.now() + self._ahead_us

    def close(self) -> None:
        """No timer does anything any more."""
        if self._timer is not None:
            self._timer.cancel()

    def advance(self, seconds: float) -> None:
        """Let its clock go forward: leases expire, and what was overwritten is forgotten, as if so much time had
        passed."""
        self._ahead_us += round(seconds * 1_000_000)
        self._out.submit(AppMessage(self.new_message_id(), (0,), EMPTY, 0))  # its timestamp tells the time
        self._work()
        if self._store.freeze(self._position):
            self._store.commit()
            self._store.thawed()

    # -- what happens -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """All that there is to do, until the next timer. What answers lead to is done in the same go."""
        if self._working:
            return
        self._working = True
        if self._timer is not None:
            self._timer.cancel()
        now, out, replica = self._now(), self._out, self._replica
        wake = replica.on_tick(now, out)
        while self._asked or not self._is_quiet():
            if self._asked:
                replica.on_request(*self._asked.popleft(), now, out)
            self._carry_out(now)
            replica.end_batch(now, out)
            wake = replica.on_tick(now, out)
        self._working = False
        if wake is not None:
            seconds = max(wake - now, 0) / 1_000_000
            self._timer = asyncio.get_running_loop().call_later(seconds, self._work)

    def _is_quiet(self) -> bool:
        out = self._out
        return not (out.submissions or out.reads or out.answers or out.sends)

    def _carry_out(self, now: int) -> None:
        out, replica = self._out, self._replica
        reads, out.reads = out.reads, []
        for token in reads:
            replica.on_readable(token, self._position, now, out)
        sends, out.sends = out.sends, []
        for _, message in sends:
            replica.on_message(0, message, now, out)
        submissions, out.submissions = out.submissions, []
        for message in submissions:
            self._position += 1
            self._last = Timestamp(max(self._last.time + 1, now), 0)
            replica.on_deliver(Delivered(self._position, self._last, FINAL, False, message, now), None, now, out)
        out.completions.clear()
        answers, out.answers = out.answers, []
        for token, answer in answers:
            told = self._told.pop(token, None)
            if told is not None:
                told(answer)

    # -- what the HTTP interface needs --------------------------------------------------------------------------------

    def request(self, asked: Execute | Lookup | Follow, answer: Told) -> int:
        self._tokens += 1
        self._told[self._tokens] = answer
        self._asked.append((self._tokens, asked))
        asyncio.get_running_loop().call_soon(self._work)
        return self._tokens

    def forget(self, token: int) -> None:
        self._told.pop(token, None)

    def new_message_id(self) -> MessageId:
        return new_message_id(self._now(), self._random.getrandbits(62))

    def unready(self) -> str:
        return ""

    def overload(self) -> str:
        return ""

    def full(self) -> str:
        return ""

    def failure(self) -> str:
        return ""

    def put_in_place(self, replica: ReplicaConfig) -> None:
        raise ConfigError("a store in memory has one replica")

    def change_members(self, wanted: Wanted) -> bool:
        raise Unfit("a store in memory has one replica")

    def cut(self, version: Timestamp) -> Cut | None:
        return self._store.cuts.find(version)

    def rights(self) -> Rights:
        return self._replica.rights

    def status(self) -> dict[str, object]:
        """As `LiveReplica.status`."""
        return {"id": 0, "shard": 0, "ready": True, "role": "leader", "store": self._replica.status()}

    def describe_cluster(self) -> ClusterJson:
        return ClusterJson(
            cluster_id="00" * 16,
            protocol="memory",
            durability="none",
            self_id=0,
            shard_map=self._replica.moves.map.to_json(),
            dedup_window_ms=DEDUP_WINDOW_US // 1000,
            shards=[ShardJson(id=0, leader=0, replicas=[ReplicaJson(0, self._url)])],
            replica=self.status(),
        )
