"""What a group has decided: a log of casts and nulls, as a stream of numbered messages to each group.

Theory of operation (quasi-genuine draft, Decide, lines 26-33). The values of an instance are taken in the order of
their stamps, sender and number; equal stamps and all. A cast counts if it is its sender's next one in that sender's
life, so the log is FIFO, without gaps or repetitions. It keeps its stamp if that is above the log's last one and gets
the next one after that otherwise. A null only raises the last stamp. All this is the same at every member (`Base`).

A member keeps a decided message for another group, to repeat it (`repair`), until a quorum of that group has
acknowledged it. It drops an instance when that is so for all of its messages, when it has delivered those for the own
group, and when all of the own group have the instance, or a quorum has and the others lack more than `SPARE`; what the
dropped ones amounted to is saved. Who lacks more gets a peer's state (parts.transfer). Who lacks few must not: where
instances come all the while (`liveness` periodic), a state is as old as its receiver was when it arrives.

Durable: `s` -> the base up to which instances are dropped. (Those after it are the consensus part's.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping
from itertools import islice
from typing import Any

import msgspec

from multicast.parts.barriers import NEVER, Item, Repair, Stamp, timestamp_of
from multicast.parts.portions import one_by_one
from multicast.protocol import Outbox
from multicast.types import AppMessage, GroupId, ProcessId, Timestamp, Topology

SPARE = 64
"""Instances."""

_KEY = b"s"


class Cast(msgspec.Struct, array_like=True, tag=1, gc=False):
    """Decide this message. life: the number of the sender's life. number: counts its casts in this life."""

    sender: ProcessId
    life: int
    number: int
    rtc: int
    message: AppMessage


class Null(msgspec.Struct, array_like=True, tag=2, gc=False):
    """A null message, as decided. It is the same as any other of this group and stamp."""

    stamp: Stamp


class Base(msgspec.Struct, array_like=True):
    """What a group's log amounts to after `instance`; also the saved form. numbers: how many messages were decided for
    each group. casts: sender -> (life, number) of its last one."""

    instance: int = 0
    last: Stamp = NEVER
    numbers: dict[GroupId, int] = {}
    casts: dict[ProcessId, tuple[int, int]] = {}

    def copy(self) -> Base:
        return Base(self.instance, self.last, dict(self.numbers), dict(self.casts))


Sent = dict[GroupId, list[Item]]
"""What is new for each group, in order."""

_encode = msgspec.msgpack.Encoder().encode
_decode_value = msgspec.msgpack.Decoder(Cast | Null).decode
_decode_base = msgspec.msgpack.Decoder(Base).decode


def carried(values: list[bytes]) -> list[AppMessage]:
    """The messages in what is decided together."""
    return [value.message for value in map(_decode_value, values) if type(value) is Cast]


class Stream:
    """The log of a group as one member has it.

    receivers: the other groups to which this one may send. announced: senders request barriers for their first stamps
    by themselves (Section 3.2). group: the own one. base: the log so far. kept: up to where instances are dropped.
    spare: who lacks no more instances of the own group than this can get them.
    """

    def __init__(self, topology: Topology, group: GroupId, receivers: tuple[GroupId, ...], announced: bool):
        self.base = Base()
        self.kept = Base()
        self.spare = SPARE
        self._topology = topology
        self.group = group
        self._receivers = receivers
        self._announced = announced
        self._outgoing: dict[GroupId, deque[Item]] = {g: deque() for g in receivers}
        self._records: deque[tuple[Base, Timestamp | None]] = deque()
        self._acks: dict[ProcessId, int] = dict.fromkeys(topology.processes, 0)

    def restore(self, values: Mapping[bytes, bytes]) -> None:
        """From what was saved."""
        if _KEY in values:
            self.kept = _decode_base(values[_KEY])
            self.base = self.kept.copy()

    def adopt(self, base: Base, out: Outbox) -> None:
        """Take over a peer's log, which has come further and is dropped up to there."""
        self.kept = base
        self.base = base.copy()
        self._records.clear()
        for kept in self._outgoing.values():
            kept.clear()
        self._save(out)

    def _save(self, out: Outbox) -> None:
        out.put(_KEY, _encode(self.kept))

    # -- what is decided ----------------------------------------------------------------------------------------------

    def decide(self, instance: int, values: list[bytes]) -> tuple[Sent, dict[GroupId, Stamp]]:
        """The next instance; returns as `apply`."""
        base = self.base
        base.instance += 1
        assert base.instance == instance, "instances are taken in order"
        sent, requested = self.apply(base, values)
        own: Timestamp | None = None
        for group, items in sent.items():
            if group == self.group:
                own = timestamp_of(items[-1].stamp, group)
            else:
                self._outgoing[group] += items
        self._records.append((base.copy(), own))
        return sent, requested

    def apply(self, base: Base, values: list[bytes]) -> tuple[Sent, dict[GroupId, Stamp]]:
        """What a batch does to a log: what is new for each group, and the stamps up to which it needs barriers that its
        sender has not requested already."""
        sent: Sent = {}
        requested: dict[GroupId, Stamp] = {}
        for stamp, value in sorted(map(_in_order, map(_decode_value, values)), key=_sort_key):
            if type(value) is Null:
                base.last = max(base.last, stamp)
            if isinstance(value, Null) or not self.follows(base.casts.get(value.sender), value):
                continue
            base.casts[value.sender] = (value.life, value.number)
            restamped = stamp <= base.last
            item = Item((base.last[0], base.last[1] + 1) if restamped else stamp, value.message)
            base.last = max(base.last, item.stamp)
            for group in value.message.destinations:
                sent.setdefault(group, []).append(item)
                base.numbers[group] = base.numbers.get(group, 0) + 1
                if restamped or not self._announced:
                    requested[group] = item.stamp
        return sent, requested

    def follows(self, last: tuple[int, int] | None, cast: Cast) -> bool:
        """Whether the cast is its sender's next one after `last` = (life, number)."""
        if last is None or cast.life > last[0]:
            return cast.number == 1
        return cast.life == last[0] and cast.number == last[1] + 1

    def number(self, group: GroupId) -> int:
        """How many messages were decided for this group."""
        return self.base.numbers.get(group, 0)

    # -- what is kept -------------------------------------------------------------------------------------------------

    @property
    def droppable(self) -> bool:
        """Whether there are instances that have not been dropped yet."""
        return bool(self._records)

    @property
    def outgoing(self) -> int:
        """How many messages are kept for other groups."""
        return sum(map(len, self._outgoing.values()))

    def acknowledge(self, sender: ProcessId, number: int) -> bool:
        """A process durably has so many messages for its group; of the own group: instances. Whether that is new."""
        news = number > self._acks[sender]
        if news:
            self._acks[sender] = number
        return news

    def vouched_by(self, sender: ProcessId) -> int:
        """How many messages for its group a process must have, since it has said so or they are dropped here."""
        group = self._topology.group_of[sender]
        if group not in self._outgoing:
            return 0
        dropped = self.number(group) - len(self._outgoing[group])
        return max(self._acks[sender], dropped)

    def quorum_has(self, group: GroupId) -> int:
        """What a quorum of the group has acknowledged."""
        acks = sorted((self._acks[p] for p in self._topology.groups[group]), reverse=True)
        return acks[self._topology.quorum(group) - 1]

    def lacking(self, groups: Container[GroupId]) -> int:
        """How many messages wait here for one of these groups, since no quorum of it has them: most of any."""
        kept = [(len(some), g) for g, some in self._outgoing.items() if g in groups]
        return max((min(many, self.number(g) - self.quorum_has(g)) for many, g in kept), default=0)

    def behind(self, group: GroupId) -> tuple[ProcessId, ...]:
        """Who has not acknowledged all messages for its group."""
        number = self.number(group)
        return tuple(p for p in self._topology.groups[group] if self._acks[p] < number)

    def repair(self, group: GroupId, received: int, portion_bytes: int) -> Repair:
        """What follows the first `received` messages for a group, as far as it fits."""
        kept = self._outgoing[group]
        upto = self.number(group)
        low = upto - len(kept) + 1
        first = max(low, received + 1)
        some = islice(kept, first - low, None)
        items = next(one_by_one(some, lambda item: len(item.message.payload), portion_bytes))
        if first + len(items) <= upto:
            return Repair(first, items, items[-1].stamp, first + len(items) - 1, low, True)
        return Repair(first, items, self.base.last, upto, low, False)

    def truncate(self, waiting: Container[Timestamp], out: Outbox) -> int:
        """Drop what nobody needs any more. waiting: timestamps of what is not delivered here. Returns the last instance
        that is dropped, 0 if none is."""
        has = {group: self.quorum_has(group) for group in (self.group, *self._receivers)}
        slowest = min(self._acks[p] for p in self._topology.groups[self.group])
        has[self.group] = min(has[self.group], max(slowest, self.base.instance - self.spare))
        records = self._records
        last: Base | None = None
        while records:
            after, own = records[0]
            if (
                after.instance > has[self.group]
                or (own is not None and own in waiting)
                or any(after.numbers.get(group, 0) > has[group] for group in self._receivers)
            ):
                break
            last = after
            records.popleft()
        if last is None:
            return 0
        self.kept = last
        self._save(out)
        for group, kept in self._outgoing.items():
            while len(kept) > self.number(group) - last.numbers.get(group, 0):
                kept.popleft()
        return last.instance


def _in_order(value: Cast | Null) -> tuple[Stamp, Cast | Null]:
    return (value.stamp, value) if type(value) is Null else ((value.rtc, 0), value)  # type: ignore[union-attr]


def _sort_key(entry: tuple[Stamp, Cast | Null]) -> tuple[Any, ...]:
    """Line 27, with equal stamps in a fixed order that is FIFO."""
    stamp, value = entry
    return (stamp, 0, value.sender, value.life, value.number) if isinstance(value, Cast) else (stamp, 1)
