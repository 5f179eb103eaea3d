"""A member that comes too late for its group's log: it takes over a peer's state, after the peer's deliveries.

What is dropped everywhere cannot be asked for again. Who lacks it asks one member after the other for its state
(`StateAsk`), once in a period, more seldom when all have been asked, and while portions come not at all, until it lacks
nothing any more: on a slow link ever more states would be under way. A state comes in portions and says after which
delivery of the group it holds; so the host first installs what is missing up to there from the journal of whoever gave
it. The latest state counts: who gave an earlier one may be dead, and its deliveries with it.

    message     from -> to                     durable before it leaves
    StateAsk    process -> member of its group -
    (a state)   member -> who asked            -  (what it says is agreed, or in its journal before it is read)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from multicast.parts.deadlines import Deadlines
from multicast.parts.portions import Assembly
from multicast.protocol import Handler, Outbox
from multicast.types import ProcessId

_PATIENCE = 4
"""The pause between two questions doubles so often."""


class StateAsk(msgspec.Struct, array_like=True, tag=109, gc=False):
    """What I lack is dropped where it came from: tell me what you have."""


class State(Protocol):
    """What a user's state must have. position: it holds after this delivery of the group. items: what may be large, in
    portions; this is portion `number` of `count`."""

    position: int
    items: list[Any]
    number: int
    count: int


S = TypeVar("S", bound=State)


class StateTransfer(Generic[S]):
    """At one member: as one that needs a state, and as one that is asked for its own.

    kind: the message type of the user's state. deadlines: the user's; this part has a timer there, "state". position():
    the number of deliveries here. is_needed(): whether this process lacks what is dropped. give(): its state in
    portions, none if it must not give any. adopt(state, now, out): the deliveries that precede it are here. handlers:
    for `StateAsk` and `kind`; the protocol takes them into its own.
    """

    def __init__(
        self,
        self_id: ProcessId,
        members: Sequence[ProcessId],
        period_us: int,
        deadlines: Deadlines,
        kind: type[S],
        *,
        position: Callable[[], int],
        is_needed: Callable[[], bool],
        give: Callable[[], list[S]],
        adopt: Callable[[S, int, Outbox], None],
    ):
        self.peers = tuple(p for p in members if p != self_id)
        self._period_us = period_us
        self._deadlines = deadlines
        self._position, self._is_needed, self._give, self._adopt = position, is_needed, give, adopt
        self._assembly: Assembly[Any] = Assembly()
        self._waiting: tuple[ProcessId, S] | None = None
        self._turn = self._state_turn = 0
        self._asks = self._again_at = 0
        deadlines.add("state", self._repeat)
        self.handlers: dict[type, Handler] = {
            StateAsk: Handler(self._on_ask, own_group=True), kind: Handler(self._on_state, own_group=True),
        }  # fmt: skip

    def next_peer(self) -> ProcessId:
        """Another member of the group, each in turn, to be asked for deliveries. Who is asked for a state has its own
        turn: of two peers one would always be asked for the one, and the other for the other."""
        self._turn += 1
        return self.peers[self._turn % len(self.peers)]

    def ask(self, now: int, out: Outbox) -> None:
        """Ask for a state: what this process lacks is dropped."""
        if self.peers and not self._deadlines.is_set("state"):
            self._deadlines.by("state", now + self._period_us)
            self._again_at = now + (self._period_us << min(self._asks // len(self.peers), _PATIENCE))
            self._asks += 1
            self._state_turn += 1
            out.send((self.peers[self._state_turn % len(self.peers)],), StateAsk())

    def _repeat(self, now: int, out: Outbox) -> int | None:
        if self._waiting is None and not self._is_needed():
            return None
        if now >= self._again_at:
            self.ask(now, out)
        self.adopt_if_due(now, out)
        return now + self._period_us

    def _on_ask(self, sender: ProcessId, ask: StateAsk, now: int, out: Outbox) -> None:
        for portion in self._give():
            out.send((sender,), portion)

    def _on_state(self, sender: ProcessId, state: S, now: int, out: Outbox) -> None:
        items = self._assembly.add(sender, state.number, state.count, state.items)
        self._again_at = max(self._again_at, now + self._period_us)
        if items is not None:
            state.items = items
            self._waiting = (sender, state)
            self._deadlines.by("state", now + self._period_us)
            self.adopt_if_due(now, out)

    def adopt_if_due(self, now: int, out: Outbox) -> None:
        """A delivery was installed: perhaps it was the last one that the state waits for."""
        if self._waiting is None:
            return
        peer, state = self._waiting
        if self._position() < state.position:
            out.catch_up(peer)
            return
        self._waiting = None
        self._asks = 0
        self._adopt(state, now, out)

    def forget(self, peer: ProcessId) -> None:
        """The state that this peer has begun to send will not be completed."""
        self._assembly.forget(peer)
        self._again_at = 0
