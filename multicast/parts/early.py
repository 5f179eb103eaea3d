"""Optimistic delivery: messages in the order of their first stamps, before that order is decided (quasi-genuine draft,
Section 3.2).

A message is delivered early once the own clock has reached its stamp plus w: if no message is under way, and no clock
off, for longer than that (assumption A2), everything with a lower stamp is here by then. Where A2 does not hold, or
stamps are equal to the microsecond, the early order may differ from the final one: that is a *mistake*, counted when
the final order shows it, for the application to mend. Nothing here is kept on disk, and nobody waits for it: a message
may be delivered finally without having been delivered early.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush

import msgspec

from multicast.parts.barriers import Stamp
from multicast.parts.window import Window
from multicast.types import AppMessage, GroupId, MessageId


class Early(msgspec.Struct, array_like=True, tag=12, gc=False):
    """A cast, to its destinations: expect this message at that stamp. To a blocking group: no message. wants: as in
    `barriers.Ordered`."""

    life: int
    number: int
    rtc: int
    message: AppMessage | None
    wants: list[tuple[GroupId, Stamp]]


Place = tuple[int, int, int, int, int]
"""Where a message is expected: (its stamp in microseconds, source group, sender, the sender's life, number in it)."""


class EarlyDeliveries:
    """At one process. wait_us: w. most: how many messages may wait; more are not delivered early. window_us: the
    deduplication window.

    early: how many were delivered so. mistakes: final deliveries that did not come next in the early order. missed:
    final deliveries of messages that had not been delivered early, without any other having been delivered early in
    their place.
    """

    __slots__ = ("_delivered", "_heap", "_most", "_pending", "_window", "early", "missed", "mistakes", "wait_us")

    def __init__(self, wait_us: int, most: int, window_us: int):
        self.wait_us = wait_us
        self.early = self.mistakes = self.missed = 0
        self._most = most
        self._window = Window(window_us)
        self._heap: list[tuple[Place, MessageId]] = []
        self._pending: dict[MessageId, AppMessage] = {}
        self._delivered: OrderedDict[MessageId, int] = OrderedDict()

    def expect(self, place: Place, message: AppMessage, final: int) -> None:
        """A message of which no copy is known to have been delivered finally. final: the time of the last final
        delivery, which this one comes after: if it will be expired, it is not delivered early."""
        known = message.id in self._pending or message.id in self._delivered
        if not known and not self._window.is_late(message.id, max(place[0], final)) and len(self._heap) < self._most:
            self._pending[message.id] = message
            heappush(self._heap, (place, message.id))

    @property
    def wake_at(self) -> int | None:
        """When `due` will have something."""
        return self._heap[0][0][0] + self.wait_us if self._heap else None

    def due(self, real: int, now: int) -> Iterator[tuple[Place, AppMessage]]:
        """What is to be delivered early now, in order. real: the time by which stamps are."""
        heap = self._heap
        while heap and heap[0][0][0] + self.wait_us <= real:
            place, message_id = heappop(heap)
            message = self._pending.pop(message_id, None)
            if message is not None:
                self._delivered[message_id] = now
                self.early += 1
                yield place, message

    def final(self, message_id: MessageId) -> None:
        """The next final delivery."""
        self._pending.pop(message_id, None)
        delivered = self._delivered
        if message_id in delivered:
            if next(iter(delivered)) != message_id:
                self.mistakes += 1
            del delivered[message_id]
        elif delivered:
            self.mistakes += 1
        else:
            self.missed += 1

    def forget(self, before: int) -> None:
        """What was delivered early before this instant and is not delivered finally yet will perhaps never be."""
        delivered = self._delivered
        while delivered and next(iter(delivered.values())) < before:
            delivered.popitem(last=False)
