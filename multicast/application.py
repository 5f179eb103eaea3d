"""The interface between whatever runs a multicast protocol and the application, which is what deliveries are for.

The application is a state machine without IO, as the protocol is (`multicast.protocol`), driven by the same engine:
requests of clients, deliveries and messages of its peers come in as method calls, effects go out through an
`ApplicationOutbox`. `now` is the same steady count of microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from multicast.records import Delivered
from multicast.types import AppMessage, GroupId, MessageId, ProcessId, Timestamp


class ApplicationOutbox:
    """The effects of the application in one batch. asks: there is something in it besides sends."""

    __slots__ = ("answers", "asks", "completions", "fetches", "reads", "sends", "submissions")

    def __init__(self) -> None:
        self.asks = False
        self.fetches: list[ProcessId] = []
        self.sends: list[tuple[tuple[ProcessId, ...], Any]] = []
        self.submissions: list[AppMessage] = []
        self.reads: list[int] = []
        self.completions: list[tuple[int, bytes]] = []
        self.answers: list[tuple[int, Any]] = []

    def send(self, to: Sequence[ProcessId], message: Any) -> None:
        """Send one of the application's own messages, over the same links."""
        self.sends.append((tuple(to), message))

    def submit(self, message: AppMessage) -> None:
        """multicast(m). If the protocol is overloaded, `Application.on_refused` is called in the same batch."""
        self.asks = True
        self.submissions.append(message)

    def read(self, token: int) -> None:
        """Ask the protocol from which position on the state is fresh (`MulticastProtocol.on_read`); the answer reaches
        `Application.on_readable`. token: the application's own, for one read or for many."""
        self.asks = True
        self.reads.append(token)

    def complete(self, position: int, outcome: bytes) -> None:
        """What became of final delivery `position` is known, and goes into the journal. In order, without gaps."""
        self.asks = True
        self.completions.append((position, outcome))

    def fetch_outcomes(self, peer: ProcessId) -> None:
        """Ask `peer` (of the same group) for what its journal says of the first deliveries not completed here; what it
        knows comes through `Application.on_outcome`."""
        self.asks = True
        self.fetches.append(peer)

    def answer(self, token: int, answer: Any) -> None:
        """Answer the request that came with `token`."""
        self.asks = True
        self.answers.append((token, answer))


class Application:
    """What deliveries are for. Pure like a protocol. This base class does nothing with them.

    messages: types of its own messages, each with its own integer tag.
    completes: it reports every delivery's outcome with `complete`; otherwise delivered is as good as completed.
    position: of how many final deliveries it durably holds what came of them when a life begins; it gets those after.
    """

    messages: ClassVar[tuple[type, ...]] = ()
    completes: ClassVar[bool] = False
    position: int = 0

    def on_start(self, now: int, out: ApplicationOutbox) -> None:
        """The first call of a life, but for `on_deliver` of what the journal holds after `position`."""

    def on_deliver(self, delivery: Delivered, outcome: bytes | None, now: int, out: ApplicationOutbox) -> None:
        """A delivery, as it stands in the journal.

        outcome: None, or what this process's journal or a peer's says has become of it, as `complete` was given it.
        """

    def on_outcome(self, position: int, outcome: bytes, now: int, out: ApplicationOutbox) -> None:
        """What became of a delivery that was not completed here, from a peer's journal."""

    def on_request(self, token: int, request: Any, now: int, out: ApplicationOutbox) -> None:
        """A request of a client of this process; answered, now or later, with `out.answer(token, ...)`."""

    def on_refused(self, message: AppMessage, reason: str, now: int, out: ApplicationOutbox) -> None:
        """The protocol did not take a submitted message; it has no effect."""

    def on_readable(self, token: int, position: int | None, now: int, out: ApplicationOutbox) -> None:
        """The answer to `ApplicationOutbox.read`."""

    def on_message(self, sender: ProcessId, message: Any, now: int, out: ApplicationOutbox) -> None:
        """One of `messages` arrived from another process (or this one)."""

    def on_settled(
        self,
        message_id: MessageId,
        timestamp: Timestamp,
        groups: tuple[GroupId, ...],
        now: int,
        out: ApplicationOutbox,
    ) -> None:
        """See `Outbox.settled`."""

    def on_peer_reset(self, peer: ProcessId, now: int, out: ApplicationOutbox) -> None:
        """See `MulticastProtocol.on_peer_reset`."""

    def on_tick(self, now: int, out: ApplicationOutbox) -> int | None:
        """Timers, as in the protocol."""
        return None

    def end_batch(self, now: int, out: ApplicationOutbox) -> None:
        """The inputs at hand have been processed."""
