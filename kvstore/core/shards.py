"""Which shards can take transactions: what their leaders say, and since when they say nothing. Pure.

Theory of operation. A message that one of its shards orders and another one does not stops both. So whether a shard can
take a transaction is asked *before* that is multicast, at the replica where it enters, and nobody refuses afterwards.
Every TELL_US the leader of a shard tells all replicas that a majority follows it, whether the shard is full, and which
other shards it waits for; a new leader begins at once, since its shard may be taken for dead until then. A shard of
which nothing was heard for `silent_us` is taken for dead: its majority is down, or cut off. Then a transaction for it
is refused, and so is one for a shard that waits for it. What was multicast before is not affected: it holds up others
until that shard is back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvstore.api.model import Transaction, adds
from kvstore.core.messages import Refused, ShardState
from kvstore.core.moves import Moves
from kvstore.core.peers import Peers
from multicast.application import ApplicationOutbox
from multicast.types import GroupId

TELL_US = 250_000
SILENT_US = 3_000_000
"""Longer than an election takes."""


class Shards:
    """The shards, as one replica hears of them.

    has_majority(): of a leader (`MulticastProtocol.has_majority`). lacks(): the shards without whose word the first of
    what is pending here cannot go on. full(): whether this replica can store nothing more.
    """

    def __init__(
        self,
        peers: Peers,
        moves: Moves,
        has_majority: Callable[[], bool],
        lacks: Callable[[], Iterable[GroupId]],
        full: Callable[[], bool],
        silent_us: int = SILENT_US,
    ):
        self._peers = peers
        self._moves = moves
        self._has_majority = has_majority
        self._lacks = lacks
        self._full = full
        self._silent_us = silent_us
        self._heard = dict.fromkeys(peers.replicas, 0)
        self._said: dict[GroupId, ShardState] = {}
        self._tell_at = 0
        self._leads = False

    def start(self, now: int) -> None:
        """A life begins: everybody is given the time to be heard."""
        self._heard = dict.fromkeys(self._heard, now)
        self._tell_at = now

    def on_state(self, state: ShardState, now: int) -> bool:
        """A leader tells the state of its shard. Returns whether it tells of other places than before."""
        before = self._said.get(state.shard)
        self._heard[state.shard] = now
        self._said[state.shard] = state
        return before is None or before.places != state.places

    def on_tick(self, now: int, out: ApplicationOutbox) -> int:
        """Tell, if this replica leads and is followed, or has just begun to; returns when to do so again."""
        due = now >= self._tell_at
        if due or not self._leads:
            self._leads = self._peers.leads and self._has_majority()
            if due or self._leads:
                self._tell_at = now + TELL_US
            if self._leads:
                waits_for = sorted(shard for shard in set(self._lacks()) if self._is_silent(shard, now))
                state = ShardState(self._peers.shard, self._full(), waits_for, self._moves.runs)
                self.on_state(state, now)
                others = self._peers.others()
                if others:
                    out.send(others, state)
        return self._tell_at

    def _is_silent(self, shard: GroupId, now: int) -> bool:
        return now - self._heard.setdefault(shard, now) > self._silent_us

    def trouble(self, shard: GroupId, now: int) -> str:
        """Why this shard can take nothing at the moment, naming the shard that is waited for; empty if it can."""
        if self._is_silent(shard, now):
            since = f"{(now - self._heard[shard]) / 1e6:.1f} s"
            return f"shard {shard} has no majority, or cannot be reached: its leader was not heard for {since}"
        said = self._said.get(shard)
        if said is not None and said.waits_for:
            return f"shard {shard} waits for shard {said.waits_for[0]}, which has no leader with a majority"
        return ""

    def refusal(self, shards: Iterable[GroupId], transaction: Transaction, now: int) -> Refused | None:
        """Why this transaction must not be multicast now; None if it may be."""
        for shard in shards:
            if shard not in self._peers.replicas:
                return Refused("no_majority", f"there is no shard {shard} known here yet", True, "not_applied")
            trouble = self.trouble(shard, now)
            if trouble:
                return Refused("no_majority", trouble, True, "not_applied")
            said = self._said.get(shard)
            if said is not None and said.full and adds(transaction):
                return Refused("full", f"shard {shard} is full: it takes deletes and reads only", True, "not_applied")
        return None
