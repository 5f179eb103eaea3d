"""When leases expire: the leader of a lease's home shard measures, and asks. Pure.

Theory of operation. Whoever leads the shard keeps, for each lease there, the version of its row and since when, by its
own monotonic clock, that has been it: since it saw that version complete, or since it leads. After the time to live it
multicasts *revoke the lease if its row still has that version* (`kvstore.api.leases`), to the shards of the lease, as
any transaction; and again, if nothing has come of it.

So clocks decide nothing but when this is asked. A lease goes only if no renewal was ordered between the version that
was seen and the revocation, which was asked a time to live after that version was complete at the leader, thus after
its client had sent it. *No lease expires earlier than its time to live after its last renewal was sent*, if the
leader's clock does not run faster than time does. Who only believes that it leads asks the same question, and is as
right. A new leader does not know since when a version is the row's, and begins anew: the time to live is a minimum.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from kvstore.api import leases
from kvstore.api.model import FIRST_KEY, lease_key
from kvstore.core.bundles import encode_bundle, encode_transaction
from kvstore.core.moves import Moves
from kvstore.core.peers import Peers
from kvstore.core.shards import Shards
from kvstore.core.state import State
from multicast.application import ApplicationOutbox
from multicast.types import AppMessage, Timestamp, new_message_id

RETRY_US = 1_000_000
"""How long after a revocation was asked for it is asked for again, if the lease is still there with this version."""
REVOKED_AT_ONCE, PACE_US = 64, 5_000
"""So many are asked for in one batch, and the next ones after that: of ten thousand clients that have gone together
with their leases all at once would hold up the shard."""
PORTION = 1000
"""So many rows are looked at in one batch, to find the leases."""
_STALE_MAX = 1000
"""About so many instants of earlier versions, and of leases that have gone, are kept besides: whoever renews a lease of
a day every second leaves one each time, for a day."""


class _Due(NamedTuple):
    """A lease that may be revoked at that instant."""

    at: int
    lease: bytes
    version: Timestamp


class Leases:
    """The leases of one replica's shard; it measures them while it leads. clock: of `now`, the time that ids carry.
    expired: how many revocations it has asked for. portion: see PORTION; the simulation draws it."""

    def __init__(
        self, peers: Peers, moves: Moves, store: State, shards: Shards, clock: Callable[[int], int], rng: random.Random
    ):
        self.expired = 0
        self.portion = PORTION
        self._peers = peers
        self._moves = moves
        self._store = store
        self._shards = shards
        self._clock = clock
        self._rng = rng
        self._versions: dict[bytes, Timestamp] | None = None
        self._at: bytes | None = None
        """From this key on leases are still looked for; None: all were found."""
        self._seen: set[bytes] = set()
        """Those that were found or written since that began."""
        self._due: list[_Due] = []
        self._next_at = 0
        self._moved = False

    def __len__(self) -> int:
        """How many leases it measures."""
        return len(self._versions or ())

    def wrote(self, key: bytes, value: bytes | None, version: Timestamp, now: int) -> None:
        """A transaction has written one of the store's own keys."""
        if self._versions is None or not key.startswith(leases.ROWS):
            return
        lease = leases.id_of(key)
        if self._at is not None:
            self._seen.add(lease)
        if value is None:
            self._versions.pop(lease, None)
        else:
            self._measure(lease, value, version, now)
        if len(self._due) > 2 * len(self._versions) + _STALE_MAX:
            self._due = [due for due in self._due if self._versions.get(due.lease) == due.version]
            heapify(self._due)

    def moved(self) -> None:
        """Leases may have come to this shard, or gone from it."""
        self._moved = True

    def _measure(self, lease: bytes, value: bytes, version: Timestamp, now: int) -> None:
        assert self._versions is not None
        self._versions[lease] = version
        heappush(self._due, _Due(now + 1000 * leases.decode_lease(value).ttl_ms, lease, version))

    def _find(self, now: int) -> None:
        """Which leases there are, a portion. What is measured already goes on: slots may move for longer than any lease
        lives."""
        assert self._versions is not None
        if self._at is None:
            self._at, self._moved, self._seen = leases.ROWS, False, set()
        rows, more = self._store.scan(self._at, FIRST_KEY, self.portion)
        for row in rows:
            if row.key.startswith(leases.ROWS):
                lease = leases.id_of(row.key)
                self._seen.add(lease)
                if self._versions.get(lease) != row.version:
                    self._measure(lease, row.value, row.version, now)
        self._at = rows[-1].key + b"\0" if more else None
        if not more:  # the others have gone with their slots
            for lease in self._versions.keys() - self._seen:
                del self._versions[lease]
            self._seen = set()

    def on_tick(self, now: int, out: ApplicationOutbox) -> int | None:
        """Revoke what has expired. Returns when there is something to do again."""
        if not self._peers.leads:
            self._versions, self._due, self._at = None, [], None
            return None
        if self._versions is None:
            self._versions, self._moved = {}, True
        if self._moved or self._at is not None:
            self._find(now)
        due = self._due
        if now >= self._next_at:
            left = REVOKED_AT_ONCE
            while due and due[0].at <= now and left:
                _, lease, version = heappop(due)
                if self._versions is not None and self._versions.get(lease) == version:
                    self._revoke(lease, version, now, out)
                    heappush(due, _Due(now + RETRY_US, lease, version))
                    left -= 1
            if not left:
                self._next_at = now + PACE_US
        if self._moved or self._at is not None:
            return now
        return max(due[0].at, self._next_at) if due else None

    def _revoke(self, lease: bytes, version: Timestamp, now: int, out: ApplicationOutbox) -> None:
        row = self._store.get(lease_key(lease))
        if row is None or row.version != version:
            return
        transaction = leases.revoke(row, lease)
        shards = self._moves.map.shards_of(transaction)
        if self._shards.refusal(shards, transaction, now) is not None:
            return
        self.expired += 1
        created = max(self._clock(now), self._store.complete_to.time)  # a clock that was set back expires nothing
        message_id, its_id = [new_message_id(created, self._rng.getrandbits(62)) for _ in range(2)]
        payload = encode_bundle([(its_id, encode_transaction(transaction))])
        out.submit(AppMessage(message_id, shards, payload, self._peers.self_id))
