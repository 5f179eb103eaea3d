"""Who is refused by the rights that this replica knows may have been given more, through another one, and have been
answered: before he is refused the replica comes to know all that was answered by then.

It reads a key of its own shard, linearizably and in nobody's name: where that is answered, everything before it has
taken effect here. One such read is under way at a time, for all who have come before it, and the next one waits a
moment: whoever invents tokens causes no more reads than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count, islice

from kvstore.api.model import Get, Transaction
from kvstore.api.problem import NOT_APPLIED
from kvstore.api.shard_map import ShardMap
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Answered, Execute, Followed, Refused
from kvstore.http import errors
from kvstore.http.errors import Problem
from kvstore.http.node import Node

WAIT_SECONDS = 2.0
PACE_SECONDS = 0.02
"""Between the end of one and the beginning of the next."""
KEYS_TRIED = 10_000

Then = Callable[[Problem | None], None]


class Latest:
    """Of one replica."""

    def __init__(self, node: Node):
        self._node = node
        self._waiting: list[Then] = []
        self._pausing = False
        self._asked: _Asked | None = None

    def wait(self, then: Then) -> None:
        """then: called when all is known here that was answered by now; with a problem if that is not to be had."""
        self._waiting.append(then)
        if self._asked is None and not self._pausing:
            self._ask()

    def _ask(self) -> None:
        self._pausing = False
        if not self._waiting:
            return
        unready = self._node.unready()
        key = None if unready else self._own_key()
        waiting, self._waiting = self._waiting, []
        if unready or key is None:
            self._pausing = True
            asyncio.get_running_loop().call_later(PACE_SECONDS, self._ask)
            problem = errors.unavailable("not_ready", unready or "this replica's shard has no keys yet")
            for then in waiting:
                then(problem)
            return
        self._asked = asked = _Asked(self._node, waiting, self._over)
        asked.begin(key)

    def _over(self) -> None:
        self._asked, self._pausing = None, True
        asyncio.get_running_loop().call_later(PACE_SECONDS, self._ask)

    def _own_key(self) -> bytes | None:
        known = self._node.describe_cluster()
        shards = ShardMap.from_json(known.shard_map)
        own = [shard.id for shard in known.shards if known.self_id in [replica.id for replica in shard.replicas]]
        tried = islice(map(b"%d".__mod__, count()), KEYS_TRIED)
        return next((key for key in tried if shards.shard_of(key) in own), None)


class _Asked:
    """One read, for those who wait."""

    def __init__(self, node: Node, waiting: list[Then], over: Callable[[], None]):
        self._node = node
        self._waiting = waiting
        self._over = over
        self._token = 0
        self._late = asyncio.get_running_loop().call_later(WAIT_SECONDS, self._on_late)

    def begin(self, key: bytes) -> None:
        """Read this."""
        self._token = self._node.request(Execute(NO_ID, Transaction(success=(Get(key),))), self._told)

    def _told(self, answer: Answered | Followed | Refused) -> None:
        self._late.cancel()
        self._over()
        for then in self._waiting:
            then(errors.refused(answer) if isinstance(answer, Refused) else None)

    def _on_late(self) -> None:
        self._node.forget(self._token)
        detail = "this replica could not find out in time what its caller may do"
        self._told(Refused("timeout", detail, True, NOT_APPLIED))
