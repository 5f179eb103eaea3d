"""What this process has multicast and does not know the delivery of, and how it finds out what became of it.

A sender keeps its message until it knows of the delivery. It asks the processes to which it had sent it, later all of
the destinations, what they lack (`Asked`), and sends that again (`Copies`). The answer (`Lacked`) says besides what was
delivered (`Known`, parts.delivered), in one message: after a pause all are asked about much that they have just
delivered. Of what is pending it says nothing. When and how much to ask: parts.retries.

    message   from -> to                  durable before it leaves
    Asked     sender -> destinations      -
    Lacked    process -> sender           -
    Copies    sender -> process           -
    Relay     sender -> process           -

A sender that has stood still has much to send at once. Where each message goes to many processes (`submit`), a batch
of more than `IDS_MAX` of them leaves in few `Copies`: sender and receivers have to catch up besides.

Relays. Some links may be broken for good. A sender that is cut off from all destinations (`Reach.is_cut_off`) has a
message passed on by another process: a destination that it reaches, else a member of its own group. `Relay` asks that
one to multicast the message as if it were its own, and to tell of the delivery; `Asked`, with the destinations, asks
each time another one whether it was given the message. Who is cut off from them, too, takes no part. (So a process may
have to do with a message that it neither multicast nor is a destination of: while links are broken even a genuine
protocol cannot do without.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar

import msgspec

from multicast.parts.delivered import Known
from multicast.parts.reach import Reach
from multicast.parts.retries import AT_MOST_IDS, IDS_MAX, RESENT_BYTES, Retries, in_questions, resendable
from multicast.protocol import Handler, Outbox, Overloaded, PeerError
from multicast.types import AppMessage, GroupId, MessageId, ProcessId, Timestamp, Topology


class Asked(msgspec.Struct, array_like=True, tag=106, gc=False):
    """These are for your group, and wait for you. Which do you lack? relayed: they are for these groups, from which I
    am cut off; which of them have I not told you to pass on?"""

    ids: Annotated[list[MessageId], AT_MOST_IDS]
    relayed: tuple[GroupId, ...] = ()


class Lacked(msgspec.Struct, array_like=True, tag=107, gc=False):
    """These: send them again. known: these were delivered."""

    ids: Annotated[list[MessageId], AT_MOST_IDS]
    known: Annotated[list[Known], AT_MOST_IDS] = []


class Copies(msgspec.Struct, array_like=True, tag=108, gc=False):
    """What you lacked, as far as it fits; or many new messages."""

    bytes_max: ClassVar[int] = 2 * RESENT_BYTES
    messages: Annotated[list[AppMessage], AT_MOST_IDS]


class Relay(msgspec.Struct, array_like=True, tag=95, gc=False):
    """I am cut off from those to whom these should go: multicast them for me, and tell me when they are delivered."""

    bytes_max: ClassVar[int] = Copies.bytes_max
    messages: Annotated[list[AppMessage], AT_MOST_IDS]


MESSAGES = (Asked, Lacked, Copies, Relay)

EntryPoints = Callable[[AppMessage], Sequence[ProcessId]]
Take = Callable[[ProcessId, AppMessage, int, Outbox], None]
OnKnown = Callable[[ProcessId, Known, int, Outbox], None]


class Submissions:
    """At one process: as a sender, and as one that senders ask.

    entry_points: to whom a message is sent first. period_us: between a submission and the first question. handlers: for
    `MESSAGES`; the protocol takes them into its own.

    What the protocol tells: delivered_at(id): the timestamp of a delivery that a sender is to hear of. lacks(id), of
    what was not delivered: whether this process needs the payload. take(sender, message, now, out): a copy has come.
    on_known(sender, known, now, out): a message was delivered. payload(id): one that it has and did not submit itself.
    refers(sender, out): whether it leaves the answer to somebody else, and has said so. resent(to, copies, out): these
    have just been sent again. reach: for relays; submit: the protocol's `on_submit`. None: there are no relays.
    """

    __slots__ = ("_asking", "_delivered_at", "_entry_points", "_fresh", "_lacks", "_messages", "_on_known", "_payload",
                 "_reach", "_refers", "_resent", "_retries", "_submit", "_take", "_topology", "_turn",
                 "handlers")  # fmt: skip

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
        on_known: OnKnown,
        payload: Callable[[MessageId], AppMessage | None] = lambda message_id: None,
        refers: Callable[[ProcessId, Outbox], bool] = lambda sender, out: False,
        resent: Callable[[ProcessId, list[AppMessage], Outbox], None] = lambda to, copies, out: None,
        reach: Reach | None = None,
        submit: Callable[[AppMessage, int, Outbox], None] = lambda message, now, out: None,
    ):
        self._topology = topology
        self._entry_points = entry_points
        self._delivered_at, self._lacks, self._take, self._on_known = delivered_at, lacks, take, on_known
        self._payload, self._refers, self._resent = payload, refers, resent
        self._reach, self._submit = reach, submit
        self._messages: dict[MessageId, AppMessage] = {}
        self._asking: dict[MessageId, ProcessId] = {}  # who asked this process to pass a message on
        self._turn = 0
        self._retries: Retries[MessageId] = Retries(period_us, rng)
        self._fresh: dict[tuple[GroupId, ...], list[AppMessage]] = {}
        self.handlers: dict[type, Handler] = {
            Asked: Handler(self._on_asked), Lacked: Handler(self._on_lacked), Copies: Handler(self._on_copies),
            Relay: Handler(self._on_relay),
        }  # fmt: skip

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: AppMessage, now: int) -> None:
        """A message that was just sent."""
        if self._retries.add(message.id, now):
            self._messages[message.id] = message

    def send(self, message: AppMessage, alone: Any, now: int, out: Outbox) -> None:
        """Add a message, and send it, as `alone`."""
        self.add(message, now)
        if self._is_cut_off(message.destinations, now):
            out.send(self._relays(message.destinations), Relay([message]))
        else:
            out.send(self._entry_points(message), alone)

    def submit(self, message: AppMessage, now: int) -> None:
        """A message that is to be sent at the end of the batch."""
        self.add(message, now)
        self._fresh.setdefault(message.destinations, []).append(message)

    def end_batch(self, alone: Callable[[AppMessage], Any], now: int, out: Outbox) -> None:
        """Send what was submitted: each message as what `alone` makes of it, or many together."""
        many = sum(map(len, self._fresh.values())) > IDS_MAX
        for groups, messages in self._fresh.items():
            relayed, sent = self._is_cut_off(groups, now), 0
            to = self._relays(groups) if relayed else self._entry_points(messages[0])
            while sent < len(messages):
                copies = resendable(islice(messages, sent, None)) if many or relayed else messages[sent : sent + 1]
                out.send(to, Relay(copies) if relayed else Copies(copies) if many else alone(copies[0]))
                sent += len(copies)
        self._fresh.clear()

    def remove(self, message_id: MessageId) -> None:
        """This message was delivered."""
        if self._messages.pop(message_id, None) is not None:
            self._retries.discard(message_id)
            self._asking.pop(message_id, None)

    def known(self, known: Known, out: Outbox) -> None:
        """Somebody says that this message was delivered."""
        asking = self._asking.get(known.id)
        if asking is not None:
            out.send((asking,), known)
        self.remove(known.id)

    def _on_asked(self, sender: ProcessId, asked: Asked, now: int, out: Outbox) -> None:
        relayed = bool(asked.relayed)
        if self._is_cut_off(asked.relayed, now) if relayed else self._refers(sender, out):
            return
        answer = Lacked([], [])
        for message_id in asked.ids:
            delivered = self._delivered_at(message_id)
            if delivered is not None:
                answer.known.append(Known(message_id, delivered))
            elif relayed and message_id in self._messages:
                self._asking[message_id] = sender
            elif relayed or self._lacks(message_id):
                answer.ids.append(message_id)
        if answer.ids or answer.known:
            out.send((sender,), answer)

    def _on_lacked(self, sender: ProcessId, lacked: Lacked, now: int, out: Outbox) -> None:
        for known in lacked.known:
            self._on_known(sender, known, now, out)
        group, found, relayed = self._topology.group_of[sender], [], []
        for message_id in lacked.ids:
            self._retries.answered(message_id)
            message = self._payload(message_id) or self._messages.get(message_id)
            if message is None:
                continue
            if message_id in self._messages and self._is_cut_off(message.destinations, now):
                relayed.append(message)
            elif group in message.destinations:
                found.append(message)
        if relayed:
            out.send((sender,), Relay(resendable(relayed)))
        copies = resendable(found)
        if copies:
            out.send((sender,), Copies(copies))
            self._resent(sender, copies, out)

    def _on_copies(self, sender: ProcessId, copies: Copies, now: int, out: Outbox) -> None:
        for message in copies.messages:
            self._take(sender, message, now, out)

    def _on_relay(self, sender: ProcessId, relay: Relay, now: int, out: Outbox) -> None:
        for message in relay.messages:
            if not message.destinations or any(g not in self._topology.groups for g in message.destinations):
                raise PeerError(f"a message for groups {message.destinations}")
            delivered = self._delivered_at(message.id)
            if delivered is not None:
                out.send((sender,), Known(message.id, delivered))
            elif message.id in self._messages:
                self._asking[message.id] = sender
            elif not self._is_cut_off(message.destinations, now):
                try:
                    self._submit(message, now, out)
                except Overloaded:
                    return  # it asks again
                if message.id in self._messages:
                    self._asking[message.id] = sender

    def hurry(self) -> None:
        """Another process is to be asked now: ask at once."""
        self._retries.hurry()

    def tick(self, now: int, out: Outbox) -> int:
        """Ask; returns when to ask again."""
        asked: dict[tuple[ProcessId, ...], list[MessageId]] = {}
        relayed: dict[tuple[GroupId, ...], list[MessageId]] = {}
        for message_id in self._retries.due(now):
            message = self._messages[message_id]
            first = self._retries.times(message_id) == 1
            to = self._entry_points(message) if first else self._topology.members(message.destinations)
            asked.setdefault(tuple(to), []).append(message_id)
            if self._is_cut_off(message.destinations, now):
                relayed.setdefault(message.destinations, []).append(message_id)
        for to, ids in asked.items():
            for some in in_questions(ids):
                out.send(to, Asked(some))
        for groups, ids in relayed.items():
            to = self._relays(groups)
            for some in in_questions(ids):
                out.send(to, Asked(some, groups))
        return self._retries.wake(now)

    def _is_cut_off(self, groups: tuple[GroupId, ...], now: int) -> bool:
        return self._reach is not None and self._reach.is_cut_off(groups, now)

    def _relays(self, groups: tuple[GroupId, ...]) -> tuple[ProcessId, ...]:
        """Who is to pass on what is for these groups: each time another one of those who can; empty if nobody can."""
        assert self._reach is not None
        able = self._reach.reached(groups)
        self._turn += 1
        return (able[self._turn % len(able)],) if able else ()
