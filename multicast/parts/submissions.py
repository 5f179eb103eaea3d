"""What this process has multicast and does not know the delivery of, and how it finds out what became of it.

A sender keeps its message until it knows of the delivery. It asks the processes to which it had sent it, later all of
the destinations, what they lack (`Asked`; the answer is `Lacked`), and sends that again (`Copies`); who has delivered a
message says so (`Known`, parts.delivered), who has it pending says nothing. When and how much to ask: parts.retries.

    message   from -> to                  durable before it leaves
    Asked     sender -> destinations      -
    Lacked    process -> sender           -
    Copies    sender -> process           -

A sender that has stood still has much to send at once. Where each message goes to many processes (`submit`), a batch
of more than `IDS_MAX` of them leaves in few `Copies`: sender and receivers have to catch up besides.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar

import msgspec

from multicast.parts.delivered import Known
from multicast.parts.retries import AT_MOST_IDS, IDS_MAX, RESENT_BYTES, Retries, in_questions, resendable
from multicast.protocol import Handler, Outbox
from multicast.types import AppMessage, GroupId, MessageId, ProcessId, Timestamp, Topology


class Asked(msgspec.Struct, array_like=True, tag=106, gc=False):
    """These are for your group, and wait for you. Which do you lack?"""

    ids: Annotated[list[MessageId], AT_MOST_IDS]


class Lacked(msgspec.Struct, array_like=True, tag=107, gc=False):
    """These: send them again."""

    ids: Annotated[list[MessageId], AT_MOST_IDS]


class Copies(msgspec.Struct, array_like=True, tag=108, gc=False):
    """What you lacked, as far as it fits; or many new messages."""

    bytes_max: ClassVar[int] = 2 * RESENT_BYTES
    messages: Annotated[list[AppMessage], AT_MOST_IDS]


MESSAGES = (Asked, Lacked, Copies)

EntryPoints = Callable[[AppMessage], Sequence[ProcessId]]
Take = Callable[[ProcessId, AppMessage, int, Outbox], None]


class Submissions:
    """At one process: as a sender, and as one that senders ask.

    entry_points: to whom a message is sent first. period_us: between a submission and the first question. handlers: for
    `MESSAGES`; the protocol takes them into its own.

    What the protocol tells: delivered_at(id): the timestamp of a delivery that a sender is to hear of. lacks(id), of
    what was not delivered: whether this process needs the payload. take(sender, message, now, out): a copy has come.
    payload(id): a message that it has and did not submit itself. refers(sender, out): whether it leaves the answer to
    somebody else, and has said so. resent(to, copies, out): these have just been sent again.
    """

    __slots__ = ("_delivered_at", "_entry_points", "_fresh", "_lacks", "_messages", "_payload", "_refers", "_resent",
                 "_retries", "_take", "_topology", "handlers")  # fmt: skip

    def __init__(
        self,
        topology: Topology,
        entry_points: EntryPoints,
        period_us: int,
        rng: random.Random,
        *,
        delivered_at: Callable[[MessageId], Timestamp | None],
        lacks: Callable[[MessageId], bool],
        take: Take,
        payload: Callable[[MessageId], AppMessage | None] = lambda message_id: None,
        refers: Callable[[ProcessId, Outbox], bool] = lambda sender, out: False,
        resent: Callable[[ProcessId, list[AppMessage], Outbox], None] = lambda to, copies, out: None,
    ):
        self._topology = topology
        self._entry_points = entry_points
        self._delivered_at, self._lacks, self._take = delivered_at, lacks, take
        self._payload, self._refers, self._resent = payload, refers, resent
        self._messages: dict[MessageId, AppMessage] = {}
        self._retries: Retries[MessageId] = Retries(period_us, rng)
        self._fresh: dict[tuple[GroupId, ...], list[AppMessage]] = {}
        self.handlers: dict[type, Handler] = {
            Asked: Handler(self._on_asked), Lacked: Handler(self._on_lacked), Copies: Handler(self._on_copies),
        }  # fmt: skip

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: AppMessage, now: int) -> None:
        """A message that was just sent."""
        if self._retries.add(message.id, now):
            self._messages[message.id] = message

    def submit(self, message: AppMessage, now: int) -> None:
        """A message that is to be sent at the end of the batch."""
        self.add(message, now)
        self._fresh.setdefault(message.destinations, []).append(message)

    def end_batch(self, alone: Callable[[AppMessage], Any], out: Outbox) -> None:
        """Send what was submitted: each message as what `alone` makes of it, or many together."""
        many = sum(map(len, self._fresh.values())) > IDS_MAX
        for messages in self._fresh.values():
            to, sent = self._entry_points(messages[0]), 0
            while sent < len(messages):
                copies = resendable(islice(messages, sent, None)) if many else messages[sent : sent + 1]
                out.send(to, Copies(copies) if many else alone(copies[0]))
                sent += len(copies)
        self._fresh.clear()

    def remove(self, message_id: MessageId) -> None:
        """This message was delivered."""
        if self._messages.pop(message_id, None) is not None:
            self._retries.discard(message_id)

    def _on_asked(self, sender: ProcessId, asked: Asked, now: int, out: Outbox) -> None:
        if self._refers(sender, out):
            return
        lacked = []
        for message_id in asked.ids:
            delivered = self._delivered_at(message_id)
            if delivered is not None:
                out.send((sender,), Known(message_id, delivered))
            elif self._lacks(message_id):
                lacked.append(message_id)
        if lacked:
            out.send((sender,), Lacked(lacked))

    def _on_lacked(self, sender: ProcessId, lacked: Lacked, now: int, out: Outbox) -> None:
        group, found = self._topology.group_of[sender], []
        for message_id in lacked.ids:
            self._retries.answered(message_id)
            message = self._payload(message_id) or self._messages.get(message_id)
            if message is not None and group in message.destinations:
                found.append(message)
        copies = resendable(found)
        if copies:
            out.send((sender,), Copies(copies))
            self._resent(sender, copies, out)

    def _on_copies(self, sender: ProcessId, copies: Copies, now: int, out: Outbox) -> None:
        for message in copies.messages:
            self._take(sender, message, now, out)

    def hurry(self) -> None:
        """Another process is to be asked now: ask at once."""
        self._retries.hurry()

    def tick(self, now: int, out: Outbox) -> int:
        """Ask; returns when to ask again."""
        asked: dict[tuple[ProcessId, ...], list[MessageId]] = {}
        for message_id in self._retries.due(now):
            message = self._messages[message_id]
            first = self._retries.times(message_id) == 1
            to = self._entry_points(message) if first else self._topology.members(message.destinations)
            asked.setdefault(tuple(to), []).append(message_id)
        for to, ids in asked.items():
            for some in in_questions(ids):
                out.send(to, Asked(some))
        return self._retries.wake(now)
