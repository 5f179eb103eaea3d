"""Reads at a leader: from which delivery on its state is fresh, without ordering anything and without the disk.

Theory of operation. The leader of ballot b is asked. It notes p, the last delivery that it has announced. *After* that
it asks its group whether b still stands, in one *round* for all that was asked meanwhile; who has joined b and has
promised nothing above it says so. With the word of a quorum, itself among them, p is the answer. (Raft's ReadIndex:
Ongaro, Consensus, 2014, Section 6.4, where positions are those of a log.)

    message     from -> to         durable before it leaves
    Confirm     leader -> others   -
    Confirmed   member -> leader   -  (nothing new is promised)

Why no process of the group had delivered more than p when the leader was asked. Let a process have delivered number q
before that, on the word of the leader of ballot a (a delivery that came from a journal was made by somebody before).
- a = b: this leader had announced q.
- a > b: a had begun, with the votes of a quorum. One of these voters is among those with whom b still stood after the
  leader was asked (with the leader itself at that instant). So it had not promised a then, and voted later still. (A
  promise is on disk before the vote leaves. Who has lost its disk says nothing until it is in a ballot above all for
  which it may have voted.)
- a < b: delivery q was decided in a. So this leader had it from its voters: delivered, or as something to be delivered.
  It answers only once it has announced all that it took over (`announced`), so q is among that.

Where members deliver by themselves, p says nothing of them. There the leader also notes all that it knows of and has
not delivered, its *backlog*, and answers when that is delivered here, with its position by then. Delivery q is among
what it had delivered or noted: in case a = b, as nothing is ordered in b that its leader has not proposed; in case
a < b, as what is decided in a is in the state that b begins with. How that is so in each protocol stands there.

What is asked while a round is under way must not be answered by it: the group may have said its word before the
question. It waits for the next one; `ROUNDS_MAX` are under way at once. Lost messages: the latest round, which speaks
for all before it, is repeated, `REPEATED_MAX` times. Then, when the ballot ends, or where there is none to ask, the
answer is None. No clock is trusted, and no lease is held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from multicast.parts.ballots import LEADER
from multicast.parts.deadlines import Deadlines
from multicast.parts.election import Election
from multicast.parts.options import GroupOptions
from multicast.parts.pending import PendingQueue
from multicast.protocol import Handler, Outbox
from multicast.types import Ballot, MessageId, ProcessId

ROUNDS_MAX = 2
REPEATED_MAX = 3


class Confirm(msgspec.Struct, array_like=True, tag=126, gc=False):
    """Does this ballot still stand with you? number: of the round."""

    ballot: Ballot
    number: int


class Confirmed(msgspec.Struct, array_like=True, tag=127, gc=False):
    """It does, and did for all rounds of that ballot before: an answer to an earlier life of the leader, which counted
    from one, too, says nothing of a later ballot. None: from an earlier release, and of no ballot."""

    number: int
    ballot: Ballot | None = None


MESSAGES = (Confirm, Confirmed)


class Led(Protocol):
    """How a group is led, as `parts.leadership.Leadership` tells it. joined: the ballot whose state this process
    has."""

    election: Election[Any]

    @property
    def joined(self) -> Ballot: ...

    def is_current(self, ballot: Ballot) -> bool:
        """Whether this process has joined this ballot, or may, and has promised none above it. Never so of an
        amnesiac."""


class _Round:
    """position: the answer to these tokens; None until the backlog is delivered. members: those who confirmed it, and
    its leader."""

    __slots__ = ("backlog", "ballot", "members", "number", "position", "repeated", "tokens")

    def __init__(
        self, number: int, ballot: Ballot, position: int | None, tokens: list[int], backlog: list[MessageId]
    ):
        self.number = number
        self.ballot = ballot
        self.position = position
        self.tokens = tokens
        self.backlog = backlog
        self.members = {ballot.leader}
        self.repeated = 0


class LeaderReads:
    """At one process: as a leader that is asked, and as a member that confirms. Call `read` and `end_batch` with the
    protocol's own, and merge `handlers`.

    announced: the last delivery that this leader has announced; None until it has announced all that it took over.
    queue: where members deliver by themselves: all that this leader knows of and has not delivered.
    """

    def __init__(
        self,
        leadership: Led,
        announced: Callable[[], int | None],
        options: GroupOptions,
        deadlines: Deadlines,
        queue: Callable[[], PendingQueue] | None = None,
    ):
        self._leadership = leadership
        self._announced = announced
        self._queue = queue
        self._retry_us = options.retry_us
        self._tokens_max = options.pending_max
        self._deadlines = deadlines
        self._waiting: list[int] = []
        self._rounds: deque[_Round] = deque()
        self._number = 0
        self.handlers: dict[type, Handler] = {
            Confirm: Handler(self._on_confirm, own_group=True),
            Confirmed: Handler(self._on_confirmed, own_group=True, can_wait=self._is_late),
        }  # fmt: skip
        deadlines.add("reads", self._repeat)

    def read(self, token: int, out: Outbox) -> None:
        """See `MulticastProtocol.on_read`."""
        if len(self._waiting) < self._tokens_max:
            self._waiting.append(token)
        else:
            out.may_read(token, None)

    def end_batch(self, now: int, out: Outbox) -> None:
        """Begin a round for what was asked; answer None to what this process cannot answer, or cannot any more."""
        leads = self._leadership.election.state is LEADER
        if self._rounds and not (leads and self._leadership.joined == self._rounds[-1].ballot):
            self._give_up(out)
        elif self._rounds and self._queue is not None:
            self._answer(out)  # its backlog may have been delivered
        if not self._waiting:
            return
        position = self._announced() if leads else None
        if position is None:
            self._refuse(self._waiting, out)
            self._waiting = []
        elif len(self._rounds) < ROUNDS_MAX:
            self._begin(position, now, out)

    def _begin(self, position: int, now: int, out: Outbox) -> None:
        self._number += 1
        backlog = self._queue().ids() if self._queue is not None else []
        known = position if not backlog else None
        self._rounds.append(_Round(self._number, self._leadership.joined, known, self._waiting, backlog))
        self._waiting = []
        self._ask(out)
        self._deadlines.by("reads", now + self._retry_us)
        self._answer(out)  # alone in the group

    def _ask(self, out: Outbox) -> None:
        latest = self._rounds[-1]
        out.send(self._leadership.election.others, Confirm(latest.ballot, latest.number))

    def _on_confirm(self, sender: ProcessId, asked: Confirm, now: int, out: Outbox) -> None:
        if self._leadership.is_current(asked.ballot):
            out.send((sender,), Confirmed(asked.number, asked.ballot))

    def _on_confirmed(self, sender: ProcessId, confirmed: Confirmed, now: int, out: Outbox) -> None:
        for asked in self._rounds:
            if asked.number <= confirmed.number and asked.ballot == confirmed.ballot:
                asked.members.add(sender)
        self._answer(out)

    def _is_late(self, confirmed: Confirmed) -> bool:
        """Whether a quorum had already confirmed those rounds when this word came."""
        return not self._rounds or confirmed.number < self._rounds[0].number

    def _answer(self, out: Outbox) -> None:
        """Answer the rounds that a quorum has confirmed and of whose backlog nothing is left."""
        rounds, has_quorum = self._rounds, self._leadership.election.views.has_quorum
        while rounds and has_quorum(rounds[0].ballot, rounds[0].members):
            position = self._position(rounds[0])
            if position is None:
                break
            for token in rounds.popleft().tokens:
                out.may_read(token, position)

    def _position(self, asked: _Round) -> int | None:
        """None while some of its backlog is not delivered."""
        if asked.position is None:
            assert self._queue is not None
            backlog, queue = asked.backlog, self._queue()
            while backlog and backlog[-1] not in queue:
                backlog.pop()
            if not backlog:
                asked.position = self._announced()
        return asked.position

    def _repeat(self, now: int, out: Outbox) -> int | None:
        if not self._rounds:
            return None
        oldest = self._rounds[0]
        oldest.repeated += 1
        if oldest.repeated > REPEATED_MAX:
            self._give_up(out)
            return None
        self._ask(out)
        return now + self._retry_us

    def _give_up(self, out: Outbox) -> None:
        """Answer None to all that is under way."""
        for asked in self._rounds:
            self._refuse(asked.tokens, out)
        self._rounds.clear()

    def _refuse(self, tokens: list[int], out: Outbox) -> None:
        for token in tokens:
            out.may_read(token, None)
