"""What a destination keeps in a barrier protocol: channels from the groups that may send to it, and waiting messages.

A message waits, in the order of (rtc, seq, source group), for the barriers of all channels. Who may send to whom comes
from the configuration (`senders_to`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from heapq import heappop, heappush

import msgspec

from multicast.parts.delivered import DeliveredLog
from multicast.protocol import Outbox
from multicast.types import AppMessage, GroupId, MessageId, ProcessId, Timestamp, Topology, created_us

Stamp = tuple[int, int]
"""(rtc, seq): a wall-clock time in microseconds, and the place among those that share it."""

NEVER: Stamp = (0, 0)
_GROUP_BITS = 16
_WANTS_MAX = 1_000


def timestamp_of(stamp: Stamp, source: GroupId) -> Timestamp:
    """The place in the total order of a message that `source` decided at this stamp."""
    return Timestamp(stamp[0], stamp[1] << _GROUP_BITS | source)


def stamp_of(timestamp: Timestamp) -> Stamp:
    """The inverse, without the source."""
    return (timestamp.time, timestamp.tiebreak >> _GROUP_BITS)


def parse_senders(text: str) -> dict[GroupId, tuple[GroupId, ...]]:
    """Receiving group -> the other groups that may send to it, from e.g. "0<1,2 1<0 2<". ValueError if malformed."""
    senders: dict[GroupId, tuple[GroupId, ...]] = {}
    for word in text.split():
        receiver, arrow, sources = word.partition("<")
        numbers = [receiver, *(s for s in sources.split(",") if sources)]
        if not arrow or not all(n.isascii() and n.isdigit() for n in numbers) or int(receiver) in senders:
            raise ValueError(f"senders is like '0<1,2 1<0 2<', each group once, not {text[:60]!r}")
        senders[int(receiver)] = tuple(sorted({int(n) for n in numbers[1:]} - {int(receiver)}))
    return senders


def senders_to(topology: Topology, text: str) -> dict[GroupId, tuple[GroupId, ...]]:
    """For every group the others that may send to it; an empty text: all of them. ValueError for unknown groups."""
    groups, given = topology.groups, parse_senders(text)
    if not given:
        return {g: tuple(o for o in groups if o != g) for g in groups}
    for group, sources in given.items():
        for named in (group, *sources):
            if named not in groups:
                raise ValueError(f"senders names group {named}; the groups are {', '.join(map(str, groups))}")
    return {g: given.get(g, ()) for g in groups}


def all_promise(senders_to: dict[GroupId, tuple[GroupId, ...]]) -> bool:
    """Whether each delivery waits for the promise of every group whose messages could be ordered against it: of all
    that are joined with its own by messages to several groups, directly or by way of others."""
    joined = {group: {group} for group in senders_to}
    for source in senders_to:
        receivers = [g for g, senders in senders_to.items() if g == source or source in senders]
        union = set().union(*(joined[g] for g in receivers))
        for group in union:
            joined[group] = union
    return all(joined[group] <= {group, *senders} for group, senders in senders_to.items())


class Item(msgspec.Struct, array_like=True, gc=False):
    """A decided message and its final stamp."""

    stamp: Stamp
    message: AppMessage


class Base(msgspec.Struct, array_like=True):
    """What a group's log amounts to after `instance`; also the saved form. numbers: how many messages were decided for
    each group. casts: sender -> (epoch, number) of its last one."""

    instance: int = 0
    last: Stamp = NEVER
    numbers: dict[GroupId, int] = {}
    casts: dict[ProcessId, tuple[int, int]] = {}

    def copy(self) -> Base:
        return Base(self.instance, self.last, dict(self.numbers), dict(self.casts))


class CopiesLog(DeliveredLog):
    """Deliveries of which two may be of one id: a copy that is stamped very late is delivered again, expired, maybe
    before the first delivery is settled. Whichever is settled first lets the id be forgotten."""

    def is_repeated(self, message_id: MessageId, timestamp: Timestamp) -> bool:
        """Whether a copy of this message was delivered not long before: everybody who delivered that one knows it for
        two windows. Later copies are delivered, expired."""
        known = self.known(message_id)
        if known is None or not self._window_us:
            return known is not None
        return timestamp.time <= max(known[0].time, created_us(message_id)) + 2 * self._window_us

    def _forget(self, message_id: MessageId, out: Outbox) -> None:
        if self.known(message_id) is not None:
            super()._forget(message_id, out)


class Channel:
    """What came from one group. received: messages without a gap. barrier: in force. acked: durably received, and told.
    unsaved: (number, timestamp) of what was received since. low: the source keeps nothing below this number. asked_at:
    when a repair was asked for; turn: of whom."""

    __slots__ = ("acked", "asked_at", "barrier", "low", "received", "turn", "unsaved")

    def __init__(self) -> None:
        self.received = 0
        self.barrier = NEVER
        self.acked = 0
        self.low = 0
        self.asked_at = 0
        self.turn = 0
        self.unsaved: deque[tuple[int, Timestamp]] = deque()


class Wants:
    """Which groups wait for the own group's barrier, and up to where. A newer want does not put off the answer to an
    older one: under load, with a slow clock here, there is always a newer one."""

    __slots__ = ("_stamps",)

    def __init__(self) -> None:
        self._stamps: dict[GroupId, list[Stamp]] = {}

    def __contains__(self, group: GroupId) -> bool:
        return group in self._stamps

    def groups(self) -> tuple[GroupId, ...]:
        return tuple(self._stamps)

    def add(self, group: GroupId, stamp: Stamp) -> None:
        """In any order. Beyond the limit the highest one stands for those just below it."""
        stamps = self._stamps.setdefault(group, [])
        index = bisect_left(stamps, stamp)
        if index < len(stamps) and stamps[index] == stamp:
            return
        stamps.insert(index, stamp)
        if len(stamps) > _WANTS_MAX:
            del stamps[-2]

    def reached(self, group: GroupId, barrier: Stamp) -> bool:
        """Whether this barrier answers a want of the group."""
        stamps = self._stamps.get(group)
        return stamps is not None and stamps[0] <= barrier

    def drop(self, group: GroupId, barrier: Stamp) -> bool:
        """Forget the wants that this barrier answers; whether there were any."""
        if not self.reached(group, barrier):
            return False
        stamps = self._stamps[group]
        del stamps[: bisect_right(stamps, barrier)]
        if not stamps:
            del self._stamps[group]
        return True

    def clear(self) -> None:
        self._stamps.clear()


class Pending:
    """A message that waits. saved: it is on disk on its own."""

    __slots__ = ("message", "number", "saved", "source")

    def __init__(self, source: GroupId, number: int, message: AppMessage, saved: bool):
        self.source = source
        self.number = number
        self.message = message
        self.saved = saved


class WaitingMessages:
    """The messages that wait, lowest first. Adding and removing the first one cost O(log n)."""

    __slots__ = ("_copies", "_heap", "items")

    def __init__(self) -> None:
        self.items: dict[Timestamp, Pending] = {}
        self._heap: list[Timestamp] = []
        self._copies: dict[MessageId, int] = {}

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, message_id: MessageId) -> bool:
        """Whether a copy of this message waits."""
        return message_id in self._copies

    @property
    def head(self) -> Timestamp | None:
        return self._heap[0] if self._heap else None

    def add(self, timestamp: Timestamp, pending: Pending) -> bool:
        """False if it waits already."""
        if timestamp in self.items:
            return False
        self.items[timestamp] = pending
        heappush(self._heap, timestamp)
        message_id = pending.message.id
        self._copies[message_id] = self._copies.get(message_id, 0) + 1
        return True

    def pop(self) -> tuple[Timestamp, Pending]:
        """Take the first one."""
        timestamp = heappop(self._heap)
        pending = self.items.pop(timestamp)
        message_id = pending.message.id
        if self._copies[message_id] == 1:
            del self._copies[message_id]
        else:
            self._copies[message_id] -= 1
        return timestamp, pending
