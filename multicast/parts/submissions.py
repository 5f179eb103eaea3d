"""What this process has multicast and does not know the delivery of, and how it finds out what became of it.

A sender keeps its message until it knows of the delivery. It asks the processes to which it had sent it, later all of
the destinations, what they lack (`Asked`), and sends that again (`Lacked` is the answer); who has delivered a message
says so (`Known`, parts.delivered), who has it pending says nothing. When and how much to ask: parts.retries.

    message   from -> to                  durable before it leaves
    Asked     sender -> destinations      -
    Lacked    process -> sender           -
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

from multicast.parts.retries import Retries, chunks
from multicast.protocol import Outbox
from multicast.types import AppMessage, GroupId, MessageId, ProcessId, Topology


class Asked(msgspec.Struct, array_like=True, tag=106, gc=False):
    """These are for your group, and wait for you. Which do you lack?"""

    ids: list[MessageId]


class Lacked(msgspec.Struct, array_like=True, tag=107, gc=False):
    """These: send them again."""

    ids: list[MessageId]


MESSAGES = (Asked, Lacked)

EntryPoints = Callable[[AppMessage], Sequence[ProcessId]]


class Submissions:
    """entry_points: to whom a message is sent first. period_us: between a submission and the first question."""

    __slots__ = ("_entry_points", "_messages", "_retries", "_topology")

    def __init__(self, topology: Topology, entry_points: EntryPoints, period_us: int, rng: random.Random):
        self._topology = topology
        self._entry_points = entry_points
        self._messages: dict[MessageId, AppMessage] = {}
        self._retries: Retries[MessageId] = Retries(period_us, rng)

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: AppMessage, now: int) -> None:
        """Just sent."""
        if self._retries.add(message.id, now):
            self._messages[message.id] = message

    def remove(self, message_id: MessageId) -> None:
        """It was delivered."""
        if self._messages.pop(message_id, None) is not None:
            self._retries.discard(message_id)

    def get(self, message_id: MessageId) -> AppMessage | None:
        return self._messages.get(message_id)

    def new_leader(self, group: GroupId) -> bool:
        """Another process leads `group`, to whom this one has sent nothing: ask it soon. Whether there is anything."""
        concerned = any(group in message.destinations for message in self._messages.values())
        if concerned:
            self._retries.hurry()
        return concerned

    def tick(self, now: int, out: Outbox) -> int:
        """Ask; when it wants to be called again."""
        asked: dict[tuple[ProcessId, ...], list[MessageId]] = {}
        for message_id in self._retries.due(now):
            message = self._messages[message_id]
            first = self._retries.times(message_id) == 1
            to = self._entry_points(message) if first else self._topology.members(message.destinations)
            asked.setdefault(tuple(to), []).append(message_id)
        for to, ids in asked.items():
            for some in chunks(ids):
                out.send(to, Asked(some))
        return self._retries.wake(now)
