"""Channels between groups: numbered messages from each group that may send to this one, barriers, receipts, repairs.

Theory of operation. A group's messages for this one are numbered; a member takes those of each group in that order. A
barrier names how many messages precede it and counts once those are here, so a lost message cannot be passed over, and
any member of the source group may repeat it; it is a maximum, so it may come late or twice. A message waits, in the
order of (stamp, source group), until the barriers of all channels, the own group's among them, have reached its stamp.

Repairs. Only the source's leader sends unasked. Who sees a gap, or has been blocked by one message for a while, asks:
the group's leader and its other members in turn. What the source keeps no more (`Channel.low`) comes with a peer's
state.

Receipts. A member tells (Ack) up to which number it durably has a group's messages: saved, or delivered; of the own
group its instances. The source drops what a quorum has.

Durable: `i` + group + number -> a message that was received, and acknowledged before it was delivered; `c` + group ->
how many were received, and the barrier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush

import msgspec

from multicast.parts.barriers import (
    NEVER,
    Ack,
    Ask,
    Barrier,
    Item,
    Ordered,
    Repair,
    Stamp,
    Want,
    stamp_of,
    timestamp_of,
)
from multicast.parts.deadlines import Deadlines
from multicast.parts.delivered import DeliveredLog
from multicast.protocol import Outbox
from multicast.types import ZERO, AppMessage, GroupId, MessageId, ProcessId, Timestamp, Topology

_CHANNEL_PREFIX, _ITEM_PREFIX = b"c", b"i"
_COMES_PERIODS = 8
"""So long the next portion of a repair may take before it is asked for again."""

_encode = msgspec.msgpack.Encoder().encode
_decode_item = msgspec.msgpack.Decoder(Item).decode
_decode_channel = msgspec.msgpack.Decoder(tuple[int, Stamp]).decode


def _item_key(source: GroupId, number: int) -> bytes:
    return _ITEM_PREFIX + source.to_bytes(2, "big") + number.to_bytes(8, "big")


def _channel_key(source: GroupId) -> bytes:
    return _CHANNEL_PREFIX + source.to_bytes(2, "big")


class Channel:
    """What came from one group. received: messages without a gap. barrier: in force. acked: durably received, and told.
    unsaved: (number, timestamp) of what was received since. low: the source keeps nothing below this number. asked_at:
    when a repair was asked for; turn: of whom. comes: some portions of it have come, and not the last."""

    __slots__ = ("acked", "asked_at", "barrier", "comes", "low", "received", "turn", "unsaved")

    def __init__(self) -> None:
        self.received = 0
        self.barrier = NEVER
        self.acked = 0
        self.low = 0
        self.asked_at = 0
        self.comes = False
        self.turn = 0
        self.unsaved: deque[tuple[int, Timestamp]] = deque()

    @property
    def is_cut_off(self) -> bool:
        """Whether the source has dropped what is lacking here."""
        return self.low > self.received + 1

    def raise_barrier(self, stamp: Stamp) -> None:
        self.barrier = max(self.barrier, stamp)


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

    __slots__ = ("_copies", "_heap", "_last", "items")

    def __init__(self) -> None:
        self.items: dict[Timestamp, Pending] = {}
        self._heap: list[Timestamp] = []
        self._last = ZERO
        self._copies: dict[MessageId, int] = {}

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, message_id: MessageId) -> bool:
        """Whether a copy of this message waits."""
        return message_id in self._copies

    @property
    def last(self) -> Timestamp:
        """The highest one, if there is any: the lowest are taken, so that it stays until it is the only one."""
        return self._last

    @property
    def head(self) -> Timestamp | None:
        return self._heap[0] if self._heap else None

    def add(self, timestamp: Timestamp, pending: Pending) -> bool:
        """False if it waits already."""
        if timestamp in self.items:
            return False
        self._last = max(self._last, timestamp) if self._heap else timestamp
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


class Channels:
    """At one member of a group.

    sources: the groups that may send to it, its own among them. log: its deliveries. deadlines: the user's; this part
    has a timer there, "blocked". leader_of: through whom a group is reached soonest. may_vouch(): whether what this
    process says that it has counts (not while it is an amnesiac). waiting: received and not delivered. of: source ->
    its channel.
    """

    def __init__(
        self,
        group: GroupId,
        topology: Topology,
        sources: Iterable[GroupId],
        log: DeliveredLog,
        retry_us: int,
        deadlines: Deadlines,
        leader_of: Callable[[GroupId], ProcessId],
        may_vouch: Callable[[], bool],
    ):
        self.of = {source: Channel() for source in sources}
        self.waiting = WaitingMessages()
        self._group = group
        self._topology = topology
        self._log = log
        self._retry_us = retry_us
        self._deadlines = deadlines
        self._leader_of, self._may_vouch = leader_of, may_vouch
        self._lowest_barrier: Stamp = NEVER
        self._head: Timestamp | None = None
        deadlines.add("blocked", self._ask_if_blocked)

    def restore(self, values: Mapping[bytes, bytes], out: Outbox) -> None:
        """From what was saved, after the log."""
        for source, channel in self.of.items():
            if _channel_key(source) in values:
                channel.received, channel.barrier = _decode_channel(values[_channel_key(source)])
                channel.acked = channel.received
        for key, value in values.items():
            if key[:1] == _ITEM_PREFIX and len(key) == 11:
                source, number = int.from_bytes(key[1:3], "big"), int.from_bytes(key[3:], "big")
                if not self.receive(source, number, _decode_item(value), True):
                    out.delete(key)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def take(
        self, group: GroupId, sender: ProcessId, message: Ordered | Barrier | Repair, now: int, out: Outbox
    ) -> None:
        """Messages and barriers of another group (lines 11-14)."""
        channel = self.of[group]
        before = channel.received
        if isinstance(message, Barrier):
            upto, stamp = message.upto, message.stamp
        else:
            for number, item in enumerate(message.items, message.first):
                if number == channel.received + 1:
                    self.receive(group, number, item)
                    channel.received = number
            stamp = message.barrier
            upto = message.first + len(message.items) - 1 if isinstance(message, Ordered) else message.upto
        if isinstance(message, Repair):
            channel.low = max(channel.low, message.low)
            if channel.is_cut_off:
                channel.asked_at, channel.comes = 0, False  # nothing of it is of use before a state has come
            elif channel.received > before or not message.more:  # else it has come before: the next is asked for
                channel.asked_at, channel.comes = 0, message.more
                if message.more:
                    self._ask(channel, sender, now, out)
        if channel.received >= upto:
            channel.raise_barrier(stamp)
            if isinstance(message, Barrier) and channel.acked == channel.received:
                self._send_ack(channel, (sender,), out)
        elif not channel.is_cut_off:
            self._ask(channel, sender, now, out)

    def receive(self, group: GroupId, number: int, item: Item, saved: bool = False) -> bool:
        """A message of a group, perhaps of the own one. Returns False if this process has delivered beyond it."""
        timestamp = timestamp_of(item.stamp, group)
        if timestamp <= self._log.timestamp:
            return False
        added = self.waiting.add(timestamp, Pending(group, number, item.message, saved))
        if added and group != self._group and not saved:
            self.of[group].unsaved.append((number, timestamp))
        return True

    # -- delivery -----------------------------------------------------------------------------------------------------

    def raise_lowest(self, own: Stamp) -> None:
        """Note the own group's barrier, and the lowest of all: no group can still send anything up to it. own: the last
        stamp of the own group. (A group is its own barrier: what it decides later might otherwise come before what it
        has delivered.)"""
        self.of[self._group].barrier = own
        self._lowest_barrier = min(channel.barrier for channel in self.of.values())

    def pop(self, out: Outbox) -> tuple[Timestamp, Pending] | None:
        """Take the first waiting message, if all barriers have reached its stamp, inclusively (or a message would block
        itself), or if this process has delivered beyond it."""
        head = self.waiting.head
        if head is None or (head > self._log.timestamp and stamp_of(head) > self._lowest_barrier):
            return None
        timestamp, pending = self.waiting.pop()
        if pending.saved:
            out.delete(_item_key(pending.source, pending.number))
        return timestamp, pending

    # -- repairs ------------------------------------------------------------------------------------------------------

    def _ask(self, channel: Channel, peer: ProcessId, now: int, out: Outbox) -> None:
        """Ask this peer for what is missing from a group, not too often."""
        if channel.asked_at and now - channel.asked_at < self._retry_us * (_COMES_PERIODS if channel.comes else 1):
            return
        channel.asked_at = now
        out.send((peer,), Ask(channel.received, self._wanted()))

    def _wanted(self) -> Stamp:
        """The stamp of the last waiting message: were barriers asked for up to the first one, and others had not come,
        each of those that wait would take as long as this one."""
        return stamp_of(self.waiting.last) if self.waiting.head is not None else NEVER

    def ask_in_turn(self, group: GroupId, now: int, out: Outbox) -> None:
        """Another group's leader and its members, one after the other."""
        channel, members = self.of[group], self._topology.groups[group]
        peer = members[channel.turn // 2 % len(members)] if channel.turn % 2 else self._leader_of(group)
        channel.turn += 1
        if not channel.comes:
            channel.asked_at = 0
        self._ask(channel, peer, now, out)

    def watch(self, now: int) -> None:
        """To be called in every batch: notes how long the first waiting message has been the first."""
        head = self.waiting.head
        if head != self._head:
            self._head = head
            self._deadlines.restart("blocked", now + self._retry_us)

    def _ask_if_blocked(self, now: int, out: Outbox) -> int | None:
        """The first waiting message has waited for too long: ask the groups whose barriers it lacks."""
        if self._head is None:
            return None
        stamp = stamp_of(self._head)
        for group, channel in self.of.items():
            if channel.barrier >= stamp:
                continue
            if group == self._group:
                out.send((self._leader_of(group),), Want([(group, self._wanted())]))
            else:
                self.ask_in_turn(group, now, out)
        return now + self._retry_us

    @property
    def are_cut_off(self) -> bool:
        """Whether some source has dropped what is lacking here."""
        return any(channel.is_cut_off for channel in self.of.values())

    def lacking(self, numbers: Mapping[GroupId, int]) -> list[GroupId]:
        """Other groups of which this process has fewer messages than these."""
        return [g for g, c in self.of.items() if g != self._group and c.received < numbers[g]]

    def on_peer_reset(self, peer: ProcessId, out: Outbox) -> None:
        """What was asked of the peer, or told to it, may be lost."""
        channel = self.of.get(self._topology.group_of[peer])
        if channel is not None:
            channel.asked_at, channel.comes = 0, False
            self._send_ack(channel, (peer,), out)

    # -- receipts -----------------------------------------------------------------------------------------------------

    def owes_receipt(self, group: GroupId) -> bool:
        channel = self.of[group]
        return channel.received > channel.acked

    def tell_receipts(self, instance: int, out: Outbox) -> None:
        """Save what was received and is not delivered; then say so. instance: the own group's last one here."""
        if not self._may_vouch():
            return
        for group, channel in self.of.items():
            number = instance if group == self._group else channel.received
            if number > channel.acked:
                if group != self._group:
                    self._save(group, channel, out)
                channel.acked = number
                self._send_ack(channel, self._topology.groups[group], out)

    def tell_again(self, instance: int, out: Outbox) -> None:
        """After a restart: nobody may have heard what is on disk here. instance: as above, 0 if it does not count."""
        self.of[self._group].acked = instance
        for group, channel in self.of.items():
            self._send_ack(channel, self._topology.groups[group], out)

    def _save(self, group: GroupId, channel: Channel, out: Outbox) -> None:
        for number, timestamp in channel.unsaved:
            pending = self.waiting.items.get(timestamp)
            if pending is not None and not pending.saved:
                pending.saved = True
                item = _encode(Item(stamp_of(timestamp), pending.message))
                out.put(_item_key(group, number), item, carries=(pending.message,))
        channel.unsaved.clear()
        out.put(_channel_key(group), _encode((channel.received, channel.barrier)))

    def _send_ack(self, channel: Channel, to: tuple[ProcessId, ...], out: Outbox) -> None:
        if self._may_vouch():
            out.send_durable(to, Ack(channel.acked))

    # -- a peer's state -----------------------------------------------------------------------------------------------

    def state(self) -> tuple[list[tuple[GroupId, int, Stamp]], list[tuple[GroupId, int, Item]]]:
        """Of other groups: (group, messages received, barrier), and what waits: (group, number, message)."""
        received = [(g, c.received, c.barrier) for g, c in self.of.items() if g != self._group]
        waiting = [
            (p.source, p.number, Item(stamp_of(t), p.message))
            for t, p in self.waiting.items.items()
            if p.source != self._group
        ]
        return received, waiting

    def adopt(
        self, received: Iterable[tuple[GroupId, int, Stamp]], waiting: Iterable[tuple[GroupId, int, Item]]
    ) -> None:
        """A peer's `state`, once all that the peer has delivered is delivered here."""
        before = {group: channel.received for group, channel in self.of.items()}
        for group, number, item in waiting:
            if number > before[group]:
                self.receive(group, number, item)
        for group, count, barrier in received:
            channel = self.of[group]
            channel.received = max(channel.received, count)
            channel.raise_barrier(barrier)
