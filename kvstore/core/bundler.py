"""From requests to multicast messages: what waits for the same destinations travels as one bundle. Pure.

Theory of operation. A request waits in the *flow* of its destinations. At the end of a batch of the engine whatever
waits in a flow becomes one bundle, if none is under way, or if fewer than UNDER_WAY are and, in a flow of one shard, as
much waits as is under way: so a lone request leaves at once, and under load bundles grow to what came while the last
ones were on their way. Where that takes long, as between data centres or when a leader is lost, further bundles leave
before (PACE), and at once if one is full. Those for several shards cost much each, and are not to add to the load that
makes them late: further ones leave when it takes longer than it lately did. A bundle is under way until each of its
clients has its answer.

In a bundle for several shards no transaction writes what the vote on a later one depends on, since shards vote on all
of them before any takes effect (`kvstore.core.log`): the later one goes into the next bundle. A step of a move is a
bundle of its own. What a bundle has seen and done is one record of the journal, so ranges that may see many keys go
into further bundles, too (NOTED_KEYS_MAX); and the votes on it are one message, so no more than RANGING_MAX with ranges
go into one. An Append of a byte may write a whole value, and what a bundle writes is in memory at once, so there are
APPENDS_MAX in one, unless they are of one transaction.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from kvstore.api.model import NOTED_KEYS_MAX, appends_in, move_of
from kvstore.api.validation import noted
from kvstore.core.bundles import BUNDLE_TRANSACTIONS_MAX, NO_ID, encode_bundle, format_for, unnamed_id
from kvstore.core.plans import LocalPlan
from kvstore.core.requests import Flight, Requests, Touches, Waiting
from multicast.application import ApplicationOutbox
from multicast.types import AppMessage, GroupId, MessageId, ProcessId, created_us, new_message_id

UNDER_WAY = 4
"""Bundles of one flow that may be on their way before further requests wait for one of them; where it has several
shards, so many in all of them, for each costs all of their replicas as much as a score of transactions does."""

UNDER_WAY_MAX = 64

PACE = 2
PACE_US_MIN = 10_000
"""While bundles take long, PACE further ones leave in the time that one takes; of those for several shards one in PACE
times that time; but not more often than this."""

FULL_TRANSACTIONS = 256
FULL_BYTES = 256 * 1024
RANGING_MAX = 64
"""Transactions with a range in a bundle for several shards: a vote on one tells of every slot that the shard has given
or taken, 400 kB if all have moved one by one."""
APPENDS_MAX = 128
PASSED_MAX = 256
"""So many that must go into a later bundle are passed to fill one: where all want one key, more would be in vain."""

assert FULL_TRANSACTIONS <= BUNDLE_TRANSACTIONS_MAX


class Flow:
    """The requests that go to the same destinations. at_once: see UNDER_WAY. took_us: how long a bundle has lately
    taken. bytes: of what waits. under_way: bundles; travelling: transactions in them that are not answered."""

    __slots__ = ("at_once", "bytes", "destinations", "left_at", "queue", "took_us", "travelling", "under_way")

    def __init__(self, destinations: tuple[GroupId, ...], at_once: int):
        self.destinations = destinations
        self.at_once = at_once
        self.queue: deque[Waiting] = deque()
        self.bytes = 0
        self.under_way = self.travelling = 0
        self.left_at = 0
        self.took_us = 0

    @property
    def full(self) -> bool:
        """Whether nothing could be added to the bundle that waits."""
        return self.bytes >= FULL_BYTES or len(self.queue) >= FULL_TRANSACTIONS

    def leaves_at(self, now: int) -> int | None:
        """When the next bundle may leave; None: when one that is under way has come back."""
        if self.under_way < self.at_once and (len(self.destinations) > 1 or len(self.queue) >= self.travelling):
            return now
        if self.under_way >= UNDER_WAY_MAX:
            return None
        every = self.took_us // PACE if len(self.destinations) == 1 else self.took_us * PACE
        return now if self.full else self.left_at + max(every, PACE_US_MIN)


class Bundler:
    """Of replica `self_id`. requests: where the clients of bundles under way wait. clock: of `now`, the time that ids
    carry. at_once: see UNDER_WAY; the simulation draws it. bundles, bundled: how many have left, and how many
    transactions in them."""

    def __init__(self, self_id: ProcessId, requests: Requests, rng: random.Random, clock: Callable[[int], int]):
        self.bundles = self.bundled = 0
        self.at_once = UNDER_WAY
        self._self_id = self_id
        self._requests = requests
        self._rng = rng
        self._clock = clock
        self._flows: dict[tuple[GroupId, ...], Flow] = {}
        self._ready: set[tuple[GroupId, ...]] = set()
        self._flights: dict[MessageId, Flight] = {}

    def add(self, waiting: Waiting) -> None:
        """This request is to be multicast; if it waits for a bundle already, then as its destinations say now."""
        waiting.queued = waiting.destinations
        flow = self._flows.get(waiting.destinations)
        if flow is None:
            at_once = max(1, self.at_once // len(waiting.destinations))
            flow = self._flows[waiting.destinations] = Flow(waiting.destinations, at_once)
        flow.queue.append(waiting)
        flow.bytes += len(waiting.body)
        self._ready.add(waiting.destinations)

    def finished(self, waiting: Waiting, now: int) -> None:
        """The clients of this request have their answer."""
        flight = waiting.flight
        if flight is None:
            return
        waiting.flight = None
        flight.open -= 1
        flow = self._flows[flight.destinations]
        flow.travelling -= 1
        if not flight.open:
            del self._flights[flight.id]
            flow.under_way -= 1
            took = now - flight.left_at
            if took:  # else it was refused, which says nothing
                flow.took_us = took if not flow.took_us else (7 * flow.took_us + took) // 8
            self._ready.add(flight.destinations)

    def refused(self, message_id: MessageId) -> list[Waiting]:
        """The protocol did not take this bundle; returns the requests in it."""
        flight = self._flights.get(message_id)
        return list(flight.waiting) if flight is not None else []

    def leave(self, now: int, out: ApplicationOutbox) -> int | None:
        """Multicast the bundles that may leave. Returns when more may; None if that takes an answer first."""
        wake: int | None = None
        if not self._ready:
            return wake
        for destinations in list(self._ready):
            flow = self._flows[destinations]
            at = flow.leaves_at(now)
            while flow.queue and at is not None and at <= now:
                self._multicast(flow, now, out)
                at = flow.leaves_at(now)
            if not flow.queue or at is None:
                self._ready.discard(destinations)
            elif wake is None or at < wake:
                wake = at
        return wake

    def _multicast(self, flow: Flow, now: int, out: ApplicationOutbox) -> None:
        taken = self._take(flow)
        if not taken:
            return
        newest = max([created_us(waiting.id) for waiting in taken if not waiting.unnamed], default=0)
        created = max(self._clock(now), newest)
        message_id = new_message_id(created, self._rng.getrandbits(62))
        version = format_for([waiting.transaction for waiting in taken])
        payload = encode_bundle([(NO_ID if w.unnamed else w.id, w.body) for w in taken], version)
        flight = self._flights[message_id] = Flight(message_id, flow.destinations, taken, now)
        for index, waiting in enumerate(taken):
            waiting.flight = flight
            waiting.bundles += 1
            if waiting.unnamed:
                self._requests.rename(waiting, unnamed_id(message_id, index), now)
        flow.under_way += 1
        flow.travelling += len(taken)
        flow.left_at = now
        self.bundles += 1
        self.bundled += len(taken)
        out.submit(AppMessage(message_id, flow.destinations, payload, self._self_id))

    def _take(self, flow: Flow) -> list[Waiting]:
        """Take the requests of the next bundle out of the flow, without those for which nobody waits any more, or which
        have left with another one, or wait in another flow."""
        taken: list[Waiting] = []
        later: list[Waiting] = []
        written: set[bytes] = set()
        deleted = False
        size, keys, appends, several = 0, 0, 0, len(flow.destinations) > 1
        queue = flow.queue
        while queue and len(taken) < FULL_TRANSACTIONS and (not taken or size + len(queue[0].body) <= FULL_BYTES):
            if len(later) > PASSED_MAX:
                break
            waiting = queue.popleft()
            flow.bytes -= len(waiting.body)
            if not waiting.tokens or waiting.queued != flow.destinations:
                continue
            waiting.queued = None
            seen = noted(waiting.transaction)
            keys += max(seen, NOTED_KEYS_MAX // RANGING_MAX) if seen and several else seen
            appends += appends_in(waiting.transaction)
            if taken and (keys > NOTED_KEYS_MAX or appends > APPENDS_MAX):
                later.append(waiting)
                break
            if several:
                if move_of(waiting.transaction) is not None:
                    (later if taken else taken).append(waiting)
                    break
                deletes, conditions, writes = waiting.touches = waiting.touches or _touches(waiting)
                if not written.isdisjoint(conditions) or (deleted and conditions) or (deletes and (deleted or written)):
                    later.append(waiting)
                    continue
                written |= writes
                deleted |= deletes
            taken.append(waiting)
            size += len(waiting.body)
        for waiting in reversed(later):
            waiting.queued = flow.destinations
            queue.appendleft(waiting)
            flow.bytes += len(waiting.body)
        return taken


def _touches(waiting: Waiting) -> Touches:
    plan = LocalPlan(waiting.transaction)
    return plan.reaches_unnamed(), plan.condition_keys(), plan.written_keys()
