"""What a process has delivered, kept exactly as long as somebody may need it: integrity and garbage collection.

Theory of operation. Each process tells the others of a message's destination groups its *watermark*: the final
timestamp up to which it durably holds all outcomes. A group's watermark is the highest that a quorum of it has reached
(and in one's own group oneself). A message is *settled* when the watermark of every destination group has passed it:
then every future leader of any of them either has delivered it or catches up past it before leading, so nobody will ask
for it, and its payload and timestamps may go. Its id is still *known*, so that a late copy is recognised and ignored,
until the watermark has passed the message's own timestamp (and its creation) by twice the deduplication window. Without
a window ids are known for ever.

A copy that comes even later is stamped as if it were new. That stamp is beyond creation plus window, so if the message
is delivered once more, it is delivered *expired*, without effect. Groups forget at slightly different times, and so do
the processes of a group. What becomes of a copy that some still know is the protocol's: in one group all must deliver
it, or nobody, however few know what, and whoever leads next (parts.entries, parts.copies, parts.sequence). Between
groups it makes no difference: expired deliveries have no effect, and nothing waits for them. Where a group has no more
than one process, one that still knows the message says so (`Known`), and the other drops its new stamp and remembers
the id for another two windows (`recall`).

Lost disks. A process that loses its disk has told what it does not hold any more, and its group may go on without what
it alone had delivered. Either it must have that again before it is a member again (parts.reminders), or, `by_quorum`, a
watermark is told to other groups only once the group cannot lose it: a process r tells them what it holds itself and
counts a quorum C of its group for. It forgets what a member has told it when that member says that its disk is gone
(`forget_watermark`), and who has lost its disk tells nothing until it is a member again.

Why that is enough. Let r count C for m at time t, q a quorum's size. Then for ever at most n - q members of r's group
lack m, and since 2q > n every quorum of members has one that holds it; so every later leader delivers it. At t it is
so: who is in C holds m, or has lost its disk, and is no member: it has not had r's answer, without which it does not
return (links are FIFO; parts.rejoin, step 2). Let x be the first of C, or of those who lose their disks after t, that
returns without m.
  - If it asked its last question before t, r answered later, having m: were r without memory by then, in a life that
    began after t, x would have had to ask again (step 3).
  - If it asked after t, q members answered, and at most n - q of them lacked m.
In either case x was told of m, and had to fetch it (`Rejoin.reach`). That others count what is told by quorums again is
more than is needed, and that they go on counting what a member told before its disk was lost does no harm.

Durable: `d` + id -> timestamp and position of each known message; `D` -> the last delivery. Deliveries are delivered in
the order of their timestamps, so a watermark speaks for everything below it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from multicast.protocol import Outbox
from multicast.types import ZERO, GroupId, MessageId, ProcessId, Timestamp, Topology, created_us, reached_by_majority

LAST_KEY = b"D"
KNOWN_PREFIX = b"d"
_ASK_AFTER_PERIODS = 10
_BUCKET_US_MAX = 1_000_000
_BUCKETS = 16
"""Of one deduplication window: so finely ids are forgotten."""


class Known(msgspec.Struct, array_like=True, tag=101, gc=False):
    """This message was delivered here, at this timestamp, and needs nothing any more. At ZERO: so long ago that I do
    not know it (parts.payloads)."""

    id: MessageId
    final: Timestamp


class Watermark(msgspec.Struct, array_like=True, tag=100, gc=False):
    """I durably hold the outcome of every message up to `watermark` that is addressed to my group.
    ask: I wait for your watermark; send it again."""

    watermark: Timestamp
    ask: bool = False


def delivered_at(value: bytes) -> tuple[Timestamp, int]:
    """Timestamp and position of a delivery, from the value kept under LAST_KEY, or under KNOWN_PREFIX and an id."""
    return _decode(value)


def _encode(timestamp: Timestamp, position: int) -> bytes:
    return timestamp.encode() + position.to_bytes(8, "big")


def _decode(value: bytes) -> tuple[Timestamp, int]:
    return Timestamp.decode(value[:16]), int.from_bytes(value[16:], "big")


class DeliveredLog:
    """The deliveries of one process.

    period_us: how often watermarks are told. window_us: the deduplication window, 0 for none. by_quorum: tell other
    groups a watermark only once a quorum of the own group has reached it: see the module. position, timestamp: of the
    last delivery; 0 and ZERO before the first.
    """

    def __init__(
        self, self_id: ProcessId, topology: Topology, period_us: int, window_us: int, by_quorum: bool = False
    ):
        self._by_quorum = by_quorum
        self.position = 0
        self.timestamp = ZERO
        self._self_id = self_id
        self._topology = topology
        self._period_us = period_us
        self._window_us = window_us
        self._bucket_us = min(_BUCKET_US_MAX, window_us // _BUCKETS + 1)
        self._known: dict[MessageId, tuple[Timestamp, int]] = {}
        self._unsettled: dict[tuple[GroupId, ...], deque[tuple[Timestamp, MessageId]]] = {}
        self._unsettled_count = 0
        self._not_durable: deque[tuple[int, Timestamp]] = deque()
        self._watermarks: dict[ProcessId, Timestamp] = {self_id: ZERO}
        self._counted = topology.processes
        self._group_watermarks: defaultdict[GroupId, Timestamp] = defaultdict(lambda: ZERO)
        self._shared: dict[GroupId, Timestamp] = {}
        self._told: dict[GroupId, Timestamp] = {}
        self._next_report = 0
        self._ask_at = 0
        self._buckets: dict[int, list[MessageId]] = {}
        self._overdue: set[MessageId] = set()
        self._settled_known: set[MessageId] = set()
        self._last_dirty = False
        self._forgotten = self._swept = 0

    def restore(
        self,
        values: dict[bytes, bytes],
        position: int,
        destinations: Callable[[MessageId, Timestamp], tuple[GroupId, ...] | None],
    ) -> None:
        """From what was saved. `destinations` of a message delivered at that timestamp; None if it is settled."""
        self.position = position
        found: list[tuple[int, Timestamp, MessageId]] = []
        for key, value in values.items():
            if key[:1] == KNOWN_PREFIX and len(key) == 17:
                timestamp, at = _decode(value)
                if at > position:
                    raise AssertionError(f"delivery {at} is known, but the journal ends at {position}")
                found.append((at, timestamp, key[1:]))
        found.sort()
        for at, timestamp, message_id in found:
            self._remember(message_id, timestamp, at)
            groups = destinations(message_id, timestamp)
            if groups is None:
                self._settled_known.add(message_id)
            else:
                self._track(message_id, groups, timestamp)
            if at:
                self._not_durable.append((at, timestamp))
        if LAST_KEY in values:
            self.timestamp, at = _decode(values[LAST_KEY])
            self._forgotten = (self.timestamp.time - 2 * self._window_us) // self._bucket_us
            if at != position:
                raise AssertionError(f"the last delivery is {at}, but the journal ends at {position}")
            if not found or found[-1][0] < at:
                self._not_durable.append((at, self.timestamp))

    def given(self, position: int, timestamp: Timestamp) -> Iterable[tuple[bytes, bytes]]:
        """What a snapshot holds of this: what was put up to this delivery, at `timestamp`, and is not forgotten by the
        time at which the first of it is taken; then there may be more deliveries."""
        for message_id, (at, number) in self._known.copy().items():
            if 0 < number <= position:
                yield KNOWN_PREFIX + message_id, _encode(at, number)
        yield LAST_KEY, _encode(timestamp, position)

    # -- deliveries ---------------------------------------------------------------------------------------------------

    def known(self, message_id: MessageId) -> tuple[Timestamp, int] | None:
        """Timestamp and position of a message that was delivered here, unless it is so old that it is forgotten."""
        return self._known.get(message_id)

    def may_have_forgotten(self, message_id: MessageId, local: Timestamp) -> bool:
        """Whether this message, with this local stamp, may have been delivered here and forgotten since. (See
        `Window.may_be_forgotten`.)"""
        return self._window_us > 0 and self._bucket(message_id, local) < self._forgotten

    def recall(self, message_id: MessageId, timestamp: Timestamp, out: Outbox) -> None:
        """Another group says that this message was delivered at `timestamp`, and this process has delivered beyond."""
        self._known[message_id] = (timestamp, 0)
        self._settled_known.add(message_id)
        self._buckets.setdefault(self.timestamp.time // self._bucket_us, []).append(message_id)
        out.put(KNOWN_PREFIX + message_id, _encode(timestamp, 0))

    def add(self, message_id: MessageId, groups: tuple[GroupId, ...], timestamp: Timestamp, out: Outbox) -> int:
        """The next delivery; its position."""
        if timestamp <= self.timestamp:
            raise AssertionError(f"delivery at {timestamp} after {self.timestamp}")
        self.position += 1
        self.timestamp = timestamp
        self._last_dirty = True
        self._remember(message_id, timestamp, self.position)
        self._track(message_id, groups, timestamp)
        self._not_durable.append((self.position, timestamp))
        out.put(KNOWN_PREFIX + message_id, _encode(timestamp, self.position))
        return self.position

    def end_batch(self, out: Outbox) -> None:
        """Keep the last delivery: one put per batch."""
        if self._last_dirty:
            self._last_dirty = False
            out.put(LAST_KEY, _encode(self.timestamp, self.position))

    def _remember(self, message_id: MessageId, timestamp: Timestamp, position: int) -> None:
        self._known[message_id] = (timestamp, position)
        self._settled_known.discard(message_id)
        self._overdue.discard(message_id)
        if self._window_us:
            self._buckets.setdefault(self._bucket(message_id, timestamp), []).append(message_id)

    def _bucket(self, message_id: MessageId, timestamp: Timestamp) -> int:
        """The time from which on an id is remembered: of its delivery, or of its creation, if that was by a clock that
        was ahead."""
        return max(timestamp.time, created_us(message_id)) // self._bucket_us

    def _track(self, message_id: MessageId, groups: tuple[GroupId, ...], timestamp: Timestamp) -> None:
        queue = self._unsettled.get(groups)
        if queue is None:
            queue = self._unsettled[groups] = deque()
        queue.append((timestamp, message_id))
        self._unsettled_count += 1
        for group in groups:
            self._shared[group] = timestamp

    # -- watermarks ---------------------------------------------------------------------------------------------------

    @property
    def unsettled(self) -> int:
        """How many delivered messages somebody may still ask for."""
        return self._unsettled_count

    @property
    def watermark(self) -> Timestamp:
        """This process's own."""
        return self._watermarks[self._self_id]

    def watermark_of(self, process: ProcessId) -> Timestamp:
        """The highest watermark that this process has told since this one started."""
        return self._watermarks.get(process, ZERO)

    def durable(self, position: int, out: Outbox) -> list[MessageId]:
        """The host durably holds the outcomes up to `position`. Returns the messages that are settled by that, except
        those of which a later copy has been delivered. (A message that all others had delivered before this process is
        settled here, too: the watermark of the own group never passes the own one.)"""
        reached = ZERO
        queue = self._not_durable
        while queue and queue[0][0] <= position:
            reached = queue.popleft()[1]
        return self.report(self._self_id, reached, out)

    def report(self, process: ProcessId, watermark: Timestamp, out: Outbox) -> list[MessageId]:
        """A process has told its watermark. Returns newly settled messages."""
        if watermark <= self._watermarks.get(process, ZERO):
            return []
        self._watermarks[process] = watermark
        return self._reckon(self._topology.group_of[process], out)

    def recount(self, out: Outbox) -> list[MessageId]:
        """As `report`, once the members of a group are others: of fewer a majority may have reached more, and none of
        them need tell anything new."""
        if self._counted is self._topology.processes:
            return []
        self._counted = self._topology.processes
        return [message_id for group in self._topology.groups for message_id in self._reckon(group, out)]

    def _reckon(self, group: GroupId, out: Outbox) -> list[MessageId]:
        """What a majority of this group has reached."""
        reached = min(self._reached_by_most_of(members) for members in self._topology.counting(group))
        if group == self._topology.group_of[self._self_id]:
            reached = min(reached, self.watermark)
        if reached <= self._group_watermarks[group]:
            return []
        self._group_watermarks[group] = reached
        return self._settle(group, out)

    def _reached_by_most_of(self, members: Sequence[ProcessId]) -> Timestamp:
        """What a majority of them has reached."""
        return reached_by_majority(self._watermarks.get(p, ZERO) for p in members)

    def _settle(self, group: GroupId, out: Outbox) -> list[MessageId]:
        settled: list[tuple[Timestamp, MessageId]] = []
        for groups, queue in list(self._unsettled.items()):
            if group not in groups:
                continue
            reached = min(self._group_watermarks[g] for g in groups)
            while queue and queue[0][0] <= reached:
                timestamp, message_id = queue.popleft()
                settled.append((timestamp, message_id))
                out.settled(message_id, timestamp, groups)
            if not queue:
                del self._unsettled[groups]
        if settled:
            self._unsettled_count -= len(settled)
            self._ask_at = 0
        latest = []
        for timestamp, message_id in settled:
            known = self._known.get(message_id)
            if known is not None and known[0] != timestamp:
                continue  # a later copy of it has been delivered since
            latest.append(message_id)
            if message_id in self._overdue:
                self._overdue.discard(message_id)
                self._forget(message_id, out)
            elif self._window_us and known is not None:
                self._settled_known.add(message_id)
        return latest

    def is_settled(self, groups: tuple[GroupId, ...], timestamp: Timestamp) -> bool:
        """Whether what was delivered at `timestamp` in these groups is."""
        return timestamp <= min(self._group_watermarks[g] for g in groups)

    def forget_reports(self, peer: ProcessId) -> None:
        """The link to `peer` was reset: tell its group the watermark again."""
        group = self._topology.group_of.get(peer)
        if group is not None:
            self._told.pop(group, None)

    def forget_watermark(self, peer: ProcessId) -> None:
        """The peer lost its disk: what it told of its own watermark counts no more."""
        self._watermarks[peer] = ZERO

    def on_watermark(self, sender: ProcessId, message: Watermark, out: Outbox) -> list[MessageId]:
        """Returns newly settled messages."""
        if message.ask:
            own = self._topology.group_of[self._self_id]  # since it restarted, its members may have told nobody
            self._shared[own] = max(self._shared.get(own, ZERO), self.watermark)
            out.send((sender,), Watermark(self._told_to(self._topology.group_of[sender])))
        return self.report(sender, message.watermark, out)

    def tick(self, now: int, out: Outbox) -> int | None:
        """Tell watermarks, forget old ids. Returns when there is something to do again."""
        if now < self._next_report:
            return self._next_report
        behind = False
        for group, shared in self._shared.items():
            told = self._told.get(group, ZERO)
            if told < shared:
                own = self._told_to(group)
                if own > told:
                    self._told[group] = own
                    self._send(group, Watermark(own), out)
                behind = behind or own < shared
        if self._window_us:
            self._forget_old(self.watermark.time - 2 * self._window_us, out)
        if self._unsettled and not self._ask_at:
            self._ask_at = now + _ASK_AFTER_PERIODS * self._period_us
        elif self._unsettled and now >= self._ask_at:
            self._ask_at = 0
            for group in sorted({g for groups in self._unsettled for g in groups}):
                self._send(group, Watermark(self._told_to(group), True), out)
        if not self._unsettled and not behind:
            self._next_report = 0
            return None
        self._next_report = now + self._period_us
        return self._next_report

    def _told_to(self, group: GroupId) -> Timestamp:
        """What a process of this group may hear of the own watermark."""
        own_group = self._topology.group_of[self._self_id]
        return self._group_watermarks[own_group] if self._by_quorum and group != own_group else self.watermark

    def _send(self, group: GroupId, message: Watermark, out: Outbox) -> None:
        peers = [p for p in self._topology.groups[group] if p != self._self_id]
        if peers:
            out.send(peers, message)

    # -- forgetting ---------------------------------------------------------------------------------------------------

    def _forget_old(self, before_us: int, out: Outbox) -> None:
        limit = self._forgotten = max(self._forgotten, before_us // self._bucket_us)
        if limit == self._swept:
            return  # what is delivered later is remembered longer
        self._swept = limit
        old: Iterable[int] = sorted(bucket for bucket in self._buckets if bucket < limit)
        for bucket in old:
            for message_id in self._buckets.pop(bucket):
                known = self._known.get(message_id)
                if known is not None and known[1] and self._bucket(message_id, known[0]) > bucket:
                    continue  # a later copy of it has been delivered since
                if message_id in self._settled_known:
                    self._settled_known.discard(message_id)
                    self._forget(message_id, out)
                elif message_id in self._known:
                    self._overdue.add(message_id)

    def _forget(self, message_id: MessageId, out: Outbox) -> None:
        if self._known.pop(message_id, None) is not None:  # an id that was delivered twice comes here twice
            out.delete(KNOWN_PREFIX + message_id)
