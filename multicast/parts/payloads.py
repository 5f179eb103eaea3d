"""Payloads that a process lacks of messages that others have: it asks who has told it of the message last. Who has
told of it, and dropped and forgotten it since, answers with a Known at ZERO: then the asker forgets it, too. Whoever
still waits for the message tells of it again, and has it.

message   from -> to                         durable before it leaves
Want      process -> who told of a message   -
Copies    the answer (parts.submissions)     -
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Annotated

import msgspec

from multicast.parts.delivered import Known
from multicast.parts.retries import AT_MOST_IDS, Retries, in_questions, resendable
from multicast.parts.submissions import Copies
from multicast.protocol import Handler, Outbox
from multicast.types import ZERO, AppMessage, MessageId, ProcessId, Timestamp


class Want(msgspec.Struct, array_like=True, tag=109, gc=False):
    """I lack the payloads of these messages, of which you have told me."""

    ids: Annotated[list[MessageId], AT_MOST_IDS]


class Payloads:
    """At one process: as one that lacks payloads, and as one that is asked. period_us: how long a payload may be late
    before it is asked for.

    What the protocol tells: payload(id): what this process has. lacks(id): whether it still wants it. settled_at(id):
    the timestamp of a delivery of which it has dropped the payload.
    """

    __slots__ = ("_holders", "_lacks", "_payload", "_retries", "_settled_at", "handlers")

    def __init__(
        self,
        period_us: int,
        rng: random.Random,
        *,
        payload: Callable[[MessageId], AppMessage | None],
        lacks: Callable[[MessageId], bool],
        settled_at: Callable[[MessageId], Timestamp | None],
    ):
        self._payload, self._lacks, self._settled_at = payload, lacks, settled_at
        self._holders: dict[MessageId, ProcessId] = {}
        self._retries: Retries[MessageId] = Retries(period_us, rng)
        self.handlers: dict[type, Handler] = {Want: Handler(self._on_want)}

    def lack(self, message_id: MessageId, holder: ProcessId, now: int) -> bool:
        """`holder` has told of a message whose payload is missing here. Returns whether this is the first that is
        missing."""
        self._holders[message_id] = holder
        return self._retries.add(message_id, now)

    def tick(self, now: int, out: Outbox) -> int:
        """Ask; returns when to ask again."""
        wanted: dict[ProcessId, list[MessageId]] = {}
        for message_id in self._retries.due(now):
            if self._lacks(message_id):
                wanted.setdefault(self._holders[message_id], []).append(message_id)
            else:
                self._retries.discard(message_id)
                del self._holders[message_id]
        for holder, ids in wanted.items():
            for some in in_questions(ids):
                out.send((holder,), Want(some))
        return self._retries.wake(now)

    def _on_want(self, sender: ProcessId, want: Want, now: int, out: Outbox) -> None:
        found = []
        for message_id in want.ids:
            message = self._payload(message_id)
            if message is not None:
                found.append(message)
            elif (settled := self._settled_at(message_id)) is not None:
                out.send((sender,), Known(message_id, settled))
            elif not self._lacks(message_id):
                out.send((sender,), Known(message_id, ZERO))
        copies = resendable(found)
        if copies:
            out.send((sender,), Copies(copies))
