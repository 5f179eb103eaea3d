"""From which delivery on the state of a replica is fresh: one question for all reads that wait. Pure.

Theory of operation. The answer to a question that is asked at some instant is a position p such that until then no
process of the shard had more than p deliveries (`MulticastProtocol.on_read`). There are three ways to it:
- the leader asks its protocol, if that knows;
- another replica asks the leader (`PositionRequest`): what was not delivered anywhere when the leader was asked was not
  when this replica was, before that;
- else a *read barrier*: an empty message is multicast to the shard (as Raft's no-op). Its position p is beyond all that
  any process of the shard had delivered before, for they all deliver it, each after that. So any protocol has this way.
What is asked while a question to the leader or a read barrier is under way waits for the next one: one message per
replica and shard for all that wait. No clock is trusted.

Where delivery is strict by itself (`SignalRule` "delivery") only the read barrier will do: there a transaction may have
taken effect before what is below it is delivered in this shard, but the read barrier, multicast later, is above both.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Generic, TypeVar

from kvstore.api.model import Transaction
from kvstore.core.bundles import EMPTY
from kvstore.core.messages import PositionRequest, PositionTold, Refused
from kvstore.core.peers import Peers
from kvstore.core.shards import Shards
from multicast.application import ApplicationOutbox
from multicast.types import AppMessage, MessageId, ProcessId, new_message_id

T = TypeVar("T")

LEADER_US = 200_000
"""How long the leader has to answer; then there is a read barrier."""
WAIT_US_MAX = 10_000_000
"""How long a read barrier has; the protocol repeats it, if need be."""


class Question(Generic[T]):
    """A question for the position. waiting: what waits for its answer. asked_at: `now` of this replica. due: when to do
    more about it; None: the protocol is asked, which always answers."""

    __slots__ = ("asked_at", "due", "number", "waiting")

    def __init__(self, number: int, waiting: list[T], asked_at: int):
        self.number = number
        self.waiting = waiting
        self.asked_at = asked_at
        self.due: int | None = None


class Positions(Generic[T]):
    """The questions of one replica. Arguments are those of `Replica`. offered: the protocol answers `on_read`. shared:
    there are read barriers, and leaders are asked. known(question, position): called with the answer; None: nothing is
    known, and nothing can be done; Refused: the shard can take nothing. barriers: how many read barriers were
    multicast."""

    def __init__(
        self,
        peers: Peers,
        shards: Shards,
        clock: Callable[[int], int],
        rng: random.Random,
        offered: bool,
        shared: bool,
        known: Callable[[Question[T], int | Refused | None], None],
    ):
        self.barriers = 0
        self._peers = peers
        self._shards = shards
        self._clock = clock
        self._rng = rng
        self._offered = offered
        self._shared = shared
        self._known = known
        self._new: list[T] = []
        self._unknown: list[T] = []
        self._questions: dict[int, Question[T]] = {}
        self._number: int | None = None
        self._open: Question[T] | None = None
        self._barrier: MessageId | None = None

    def ask(self, waiting: T) -> None:
        """To be asked at the end of the batch, or with the next question."""
        self._new.append(waiting)

    def end_batch(self, now: int, out: ApplicationOutbox) -> None:
        """Ask what is new, unless it waits for a question that is under way."""
        if self._new and self._offered and (self._peers.leads or not self._shared):
            question = self._next(self._new, now)
            self._new = []
            self._questions[question.number] = question
            out.read(question.number)
        if self._open is not None or not (self._new or self._unknown):
            return
        leader = self._peers.leader if self._offered and not self._unknown else None
        question = self._open = self._next(self._unknown + self._new, now)
        self._unknown, self._new = [], []
        if leader is None:
            self._raise(question, now, out)
        else:
            question.due = now + LEADER_US
            out.send((leader,), PositionRequest(question.number))

    def _next(self, waiting: list[T], now: int) -> Question[T]:
        if self._number is None:  # answers to an earlier life must not be taken for answers to this one
            self._number = self._rng.getrandbits(48)
        self._number += 1
        return Question(self._number, waiting, now)

    def _raise(self, question: Question[T], now: int, out: ApplicationOutbox) -> None:
        """Multicast a read barrier."""
        refusal = self._shards.refusal((self._peers.shard,), Transaction(), now)
        if refusal is not None:
            self._end(refusal)
            return
        message_id = new_message_id(self._clock(now) or now, self._rng.getrandbits(62))
        self._barrier = message_id
        self.barriers += 1
        question.due = now + WAIT_US_MAX
        out.submit(AppMessage(message_id, (self._peers.shard,), EMPTY, self._peers.self_id))

    def _end(self, position: int | Refused) -> None:
        question, self._open = self._open, None
        self._barrier = None
        if question is not None:
            self._known(question, position)

    def on_readable(self, number: int, position: int | None) -> None:
        """See `Application.on_readable`."""
        question = self._questions.pop(number)
        if position is not None or not self._shared:
            self._known(question, position)
        else:
            self._unknown += question.waiting

    def on_told(self, sender: ProcessId, message: PositionTold, now: int, out: ApplicationOutbox) -> None:
        """The leader's answer."""
        self._peers.check(sender, self._peers.shard, "a position")
        question = self._open
        if question is None or question.number != message.number or self._barrier:
            return
        if message.position is None:
            self._raise(question, now, out)
        else:
            self._end(message.position)

    def on_deliver(self, message_id: MessageId, position: int) -> None:
        """A delivery, perhaps of a read barrier."""
        if message_id == self._barrier:
            self._end(position)

    def on_refused(self, message_id: MessageId, reason: str) -> None:
        """The protocol did not take a message."""
        if message_id == self._barrier:
            self._end(Refused("overloaded", reason, True, "not_applied"))

    def on_tick(self, now: int, out: ApplicationOutbox) -> int | None:
        """A leader is silent, or nothing is delivered. Returns when to look again."""
        question = self._open
        if question is not None and question.due is not None and question.due <= now:
            if self._barrier is not None:
                self._end(Refused("timeout", "the shard says nothing in time", True, "not_applied"))
            else:
                self._raise(question, now, out)
        return self._open.due if self._open is not None else None
