"""A part of a bundle is let go of, and a bundle called settled, only once a quorum of each of its shards has completed
it (`kvstore.core.signals`): then whoever is behind hears the outcome from its own shard. A part that goes too early is
missed only where results are forgotten, too, and so in a rare schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kvstore.core.bundles import timestamp_of
from kvstore.core.messages import decode_retained
from kvstore.core.replica import Replica
from kvstore.storage.store import Store
from multicast.types import ZERO, GroupId, MessageId, ProcessId, Timestamp, created_us, quorum_of


class Settling:
    """Of all replicas of one world. window_us: after so long an id expires; what came later is settled by its own shard
    alone. report: of a sentence."""

    def __init__(self, window_us: int, report: Callable[[str], None]):
        self._window_us, self._report = window_us, report
        self._reached: dict[ProcessId, Timestamp] = {}
        """Up to where each has completed, in any life."""
        self._shard_of: dict[ProcessId, GroupId] = {}
        self._sizes: dict[GroupId, int] = {}
        """The fewest members that any replica has known a shard to have."""

    def watch(self, pid: ProcessId, store: Store) -> None:
        """From now on, until it dies."""
        own: Any = store
        drop = own.drop_part

        def dropped(message_id: MessageId) -> None:
            kept = store.part(message_id)
            if kept is not None:
                part = decode_retained(kept)
                for text in self._lacking(part.id, part.timestamp, part.destinations):
                    self._report(f"replica {pid} lets go of its part of {message_id.hex()}, and {text}")
            drop(message_id)

        own.drop_part = dropped

    def after_batch(self, pid: ProcessId, replica: Replica) -> None:
        """Note how far it has come."""
        peers, own = replica.peers, self._reached
        self._shard_of[pid] = peers.shard
        own[pid] = max(own.get(pid, ZERO), timestamp_of(replica.store.complete_to))
        for shard, members in peers.replicas.items():
            if members:
                self._sizes[shard] = min(self._sizes.get(shard, len(members)), len(members))
        for entry in replica.log.entries:
            if entry.settled:
                message = entry.message
                for text in self._lacking(message.id, entry.timestamp, message.destinations):
                    self._report(f"replica {pid} calls {message.id.hex()} settled, and {text}")

    def _lacking(self, message_id: MessageId, at: Timestamp, shards: tuple[GroupId, ...]) -> Iterator[str]:
        if 0 < self._window_us < at.time - created_us(message_id):
            return
        for shard in shards:
            reached = [pid for pid, of in self._shard_of.items() if of == shard and self._reached[pid] >= at]
            if shard in self._sizes and len(reached) < quorum_of(self._sizes[shard]):
                yield f"of shard {shard} only {reached} have completed it"
