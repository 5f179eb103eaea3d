"""What this process has multicast and does not know the delivery of, and how it finds out what became of it.

A sender keeps its message until it knows of the delivery. It asks the processes to which it had sent it, later all of
the destinations, what they lack (`Asked`; the answer is `Lacked`), and sends that again (`Copies`); who has delivered a
message says so (`Known`, parts.delivered), who has it pending says nothing. When and how much to ask: parts.retries.

    message   from -> to                  durable before it leaves
    Asked     sender -> destinations      -
    Lacked    process -> sender           -
    Copies    sender -> process           -
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec

from multicast.parts.retries import AT_MOST_IDS, Retries, chunks, resendable
from multicast.protocol import Outbox
from multicast.types import AppMessage, MessageId, ProcessId, Topology


class Asked(msgspec.Struct, array_like=True, tag=106, gc=False):
    """These are for your group, and wait for you. Which do you lack?"""

    ids: Annotated[list[MessageId], AT_MOST_IDS]


class Lacked(msgspec.Struct, array_like=True, tag=107, gc=False):
    """These: send them again."""

    ids: Annotated[list[MessageId], AT_MOST_IDS]


class Copies(msgspec.Struct, array_like=True, tag=108, gc=False):
    """What you lacked, as far as it fits."""

    messages: Annotated[list[AppMessage], AT_MOST_IDS]


MESSAGES = (Asked, Lacked, Copies)

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

    def send_copies(
        self, to: ProcessId, lacked: Lacked, held: Callable[[MessageId], AppMessage | None], out: Outbox
    ) -> list[AppMessage]:
        """Somebody lacks messages that this process has sent, or that are `held` for another reason. Returns what it
        gets now."""
        group, found = self._topology.group_of[to], []
        for message_id in lacked.ids:
            self._retries.answered(message_id)
            message = held(message_id) or self._messages.get(message_id)
            if message is not None and group in message.destinations:
                found.append(message)
        copies = resendable(found)
        if copies:
            out.send((to,), Copies(copies))
        return copies

    def hurry(self) -> None:
        """Whom to ask has changed: ask at once."""
        self._retries.hurry()

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
