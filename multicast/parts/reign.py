"""Leading a group that acts as one process of Skeen's protocol: from leading its consensus to stamping messages.

Theory of operation. Whoever leads the consensus of a group (parts.paxos) may propose, but must not stamp: commands of
earlier leaders may still be decided before its own. So a new leader first has *Begin* decided (parts.group_log). When
that is applied, what precedes it in the log is fixed and known, and what any leader before it has delivered lies below
the log's clock. Once this process has delivered, too, what any of a quorum of its group has delivered, the reign
begins: from then on it stamps, and delivers by the log and by what it has in flight. It asks for the positions of the
others all the while, and counts those who still answer, since who is dead may have delivered what nobody else has. (In
the first ballot there was nothing to deliver.) The states and what leads from one to another are `TRANSITIONS`.

    message        from -> to                durable before it leaves
    PositionAsk    new leader -> members     -
    Position       member -> new leader      its deliveries up to that position

A leader's reign ends before its ballot if it finds that it does not know any more what is in flight: the log has a
command of a later ballot, its group has delivered what it has not stamped, or it has taken over a peer's state.
"""

from __future__ import annotations

import msgspec

from multicast.parts.clock import Clock
from multicast.parts.group_log import Entry
from multicast.types import AppMessage, Ballot, MessageId, ProcessId

FOLLOWING, PREPARING, REIGNING, ENDED = "following", "preparing", "reigning", "ended"

TRANSITIONS: dict[str, dict[str, str]] = {
    "promise": dict.fromkeys((FOLLOWING, PREPARING, REIGNING, ENDED), FOLLOWING),
    "lead": {FOLLOWING: PREPARING},
    "reign": {PREPARING: REIGNING},
    "end": {REIGNING: ENDED},
}
"""What happens -> state before -> state after; nothing else may happen. FOLLOWING: consensus has not made this process
leader in the present ballot. PREPARING: it has; Begin is proposed. ENDED: it leads consensus still, but not the
group."""


class PositionAsk(msgspec.Struct, array_like=True, tag=6, gc=False):
    """I lead this ballot: how far have you delivered?"""

    ballot: Ballot


class Position(msgspec.Struct, array_like=True, tag=7, gc=False):
    """I have delivered so far."""

    ballot: Ballot
    position: int


class Reign:
    """At one member. quorum: of the group. recent_us: a position that was told longer ago does not count.

    state: see `TRANSITIONS`. ballot: the one that this process has promised, in consensus. clock: from which a leader
    stamps. in_flight: what it has stamped, undecided. raised_to: up to where it has proposed to move the log's clock.
    held: what was sent to it while it prepared its reign: (sender, message).
    """

    def __init__(self, clock: str, quorum: int, recent_us: int):
        self.state = FOLLOWING
        self.ballot = Ballot(0, 0)
        self.clock = Clock(clock)
        self.in_flight: dict[MessageId, Entry] = {}
        self.raised_to = 0
        self.held: list[tuple[ProcessId, AppMessage]] = []
        self._quorum = quorum
        self._recent_us = recent_us
        self._positions: dict[ProcessId, tuple[int, int]] = {}

    @property
    def acting(self) -> bool:
        """Whether this process stamps messages and delivers as the leader."""
        return self.state is REIGNING

    def _go(self, what: str) -> None:
        after = TRANSITIONS[what].get(self.state)
        if after is None:
            raise AssertionError(f"{self.state} in ballot {self.ballot}: it cannot {what}")
        self.state = after
        self.in_flight.clear()
        self._positions.clear()

    def promise(self, ballot: Ballot) -> None:
        """A higher ballot, of this process or of another one, was promised."""
        self._go("promise")
        self.ballot = ballot
        self.held.clear()

    def lead(self) -> None:
        """Consensus has made this process leader."""
        self._go("lead")

    def reign(self, log_clock: int) -> list[tuple[ProcessId, AppMessage]]:
        """The reign begins. Returns what was held."""
        self._go("reign")
        self.clock.advance(log_clock)
        self.raised_to = log_clock
        held, self.held = self.held, []
        return held

    def end(self) -> None:
        """The reign ends before the ballot does."""
        self._go("end")
        self.held.clear()

    def told(self, sender: ProcessId, position: Position, now: int) -> None:
        """A member has delivered so far."""
        if self.state is PREPARING and position.ballot == self.ballot:
            self._positions[sender] = (position.position, now)

    def furthest(self, now: int) -> tuple[int, ProcessId] | None:
        """The highest position that was told lately, and a member that told it; None if fewer than a quorum have told
        theirs lately."""
        recent = {p: position for p, (position, at) in self._positions.items() if at >= now - self._recent_us}
        if len(recent) < self._quorum:
            return None
        furthest = max(recent, key=lambda p: recent[p])
        return recent[furthest], furthest
