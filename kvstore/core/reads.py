"""Reads of what a shard has now: linearizable, or as old as the reader allows; neither ordered nor journaled. Pure.

Theory of operation. A transaction that only reads, and that nobody can repeat (NO_ID), is executed on what is complete
in a replica of the shard. If the reader wants to see all that was answered before, the replica first learns from which
delivery p on its state is that fresh (`kvstore.core.positions`), once for all that waits, and reads when everything up
to p is complete here. The answer says with how much that was. Where p is not to be had, the read is ordered as any
transaction. Reads of several shards, and of others, are `kvstore.core.collects`; they ask with `ReadNow`.

Why that is strictly serializable, as if it had been ordered where it was read. Read r at position c >= p, and let
x < y mean that x precedes y in some shard's log. A transaction takes effect, and is answered, no earlier than it *and
everything below it* are delivered in all their shards. That is what signals are for (`kvstore.core.signals`), so this
holds only where they are on:
    Let x take effect in shard g, and z < x in shard h. If h = g, z took effect there before. Otherwise h has signalled
    x: either z had taken effect at the signaller, or z goes to a subset of x's shards; then each of these, g among
    them or having signalled x as well, had x in its log, and z before it. So z is delivered in all its shards by then;
    and so on down the chain.
- What was answered before r began took effect before, so it and everything below it is in this shard's log up to p, as
  far as it goes there, and r has seen that. Nothing that r has not seen, at a position after c, can be below it.
- What begins after r's answer was multicast when all that r has seen had taken effect. It can be below none of that:
  everything below was delivered by then.
- Reads that follow one another see what the earlier one has seen: that one's positions were delivered before.
Besides, what r has seen took effect here, at one position: a state that the shard was in.

Where delivery is strict by itself, whatever is multicast after w was delivered anywhere is above w in the one order of
all messages. There p is that of a barrier, and r stands right after the c-th delivery: above all that was delivered
anywhere before it was asked, below all that is multicast after its answer.

A *stale* read needs no p if all of an earlier one is complete here, and was asked for no longer ago than the reader
allows, by this replica's own steady clock: what was answered before that is seen. So nobody else's clock is trusted,
and an age is never less than the truth.

What is due is read in turns, each of about TURN_BYTES: all else, heartbeats among it, waits for a turn and not for all
large reads that have come together. A later turn reads what is complete by then.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from kvstore.api.model import Range, Result, Transaction
from kvstore.core.execution import Execution
from kvstore.core.log import Log
from kvstore.core.messages import (
    Answered,
    Execute,
    PositionRequest,
    PositionTold,
    ReadNow,
    ReadNowTold,
    Refused,
)
from kvstore.core.moves import Moves, moved
from kvstore.core.peers import Peers
from kvstore.core.plans import LocalPlan
from kvstore.core.positions import WAIT_US_MAX, Positions, Question
from kvstore.core.rights import Rights, forbidden
from kvstore.core.shards import Shards
from kvstore.core.state import State
from multicast.application import ApplicationOutbox
from multicast.types import ProcessId

Unread = list[tuple[int, Execute]]
"""Reads that must be ordered after all, each with the token of its client."""

TURN_BYTES = 4 << 20
"""Keys and values that are read before all else has its turn."""

_encode = msgspec.msgpack.Encoder().encode


class _Asked(NamedTuple):
    """A read that waits. who: the token of the client of an `Execute`; else the replica that asks."""

    who: int
    request: Execute | ReadNow | PositionRequest


class Reads:
    """The reads at one replica. Arguments are those of `Replica`. offered, shared: see `Positions`. unread: gets what
    cannot be read here. unordered: how many were answered."""

    def __init__(
        self,
        peers: Peers,
        moves: Moves,
        store: State,
        log: Log,
        shards: Shards,
        clock: Callable[[int], int],
        rng: random.Random,
        offered: bool,
        shared: bool,
        unread: Unread,
    ):
        self.unordered = 0
        self.positions: Positions[_Asked] = Positions(peers, shards, clock, rng, offered, shared, self._on_position)
        self.shared = shared
        self._peers = peers
        self._moves = moves
        self._store = store
        self._log = log
        self._rights = Rights(store)
        self._offered = offered
        self._unread = unread
        self._readable: list[tuple[int, Question[_Asked]]] = []
        self._refused: list[tuple[Refused, Question[_Asked]]] = []
        self._due: OrderedDict[object, _Asked] = OrderedDict()
        """Of clients by their tokens, of replicas by who asks and the number: who asks again is answered once."""
        self._room = TURN_BYTES
        self._fresh_at: int | None = None
        self._open = 0

    def __len__(self) -> int:
        """How many reads wait."""
        return self._open + len(self._due)

    def takes(self, request: Execute) -> bool:
        """Whether a transaction without an id need not be ordered."""
        return self.shared or (self._offered and self._peers.leads and self.is_here(request.transaction))

    def is_here(self, transaction: Transaction) -> bool:
        """Whether the transaction concerns this replica's shard alone."""
        return self._moves.map.shards_of(transaction) == (self._peers.shard,)

    def add(self, token: int, request: Execute, now: int, out: ApplicationOutbox) -> None:
        """A client's read of this shard alone: answer it, or put it among the unread."""
        age_us = None if request.consistency == "snapshot" else request.age_us
        self._add(_Asked(token, request), age_us, now, out)

    def on_read_now(self, sender: ProcessId, message: ReadNow, now: int, out: ApplicationOutbox) -> None:
        """A read of another replica, or of this one's collects. It is answered with `ReadNowTold`, or not at all."""
        self._add(_Asked(sender, message), message.age_us, now, out)

    def on_position_request(self, sender: ProcessId, message: PositionRequest, out: ApplicationOutbox) -> None:
        """Another replica of the shard asks this one, which it takes for the leader."""
        if self._offered and self._peers.leads:
            self._open += 1
            self.positions.ask(_Asked(sender, message))
        else:
            out.send((sender,), PositionTold(message.number, None))

    def _add(self, asked: _Asked, age_us: int | None, now: int, out: ApplicationOutbox) -> None:
        if age_us is None or (self._fresh_at is not None and now - self._fresh_at < age_us):
            self._is_due(asked)
            self._take_turn(out)
        else:
            self._open += 1
            self.positions.ask(asked)

    def forget(self, token: int) -> None:
        """Nobody waits for this any longer: it is not read, if it is due and its turn has not come."""
        self._due.pop(token, None)

    # -- when it is fresh ---------------------------------------------------------------------------------------------

    def _on_position(self, question: Question[_Asked], position: int | Refused | None) -> None:
        if position is None:
            for who, request in question.waiting:
                self._open -= 1
                if type(request) is Execute:
                    self._unread.append((who, request))
        elif isinstance(position, int):
            self._readable.append((position, question))
        else:
            self._refused.append((position, question))

    def advance(self, out: ApplicationOutbox) -> None:
        """Something has completed, or a position is known: answer the reads that waited for it."""
        for refused, question in self._refused:
            self._refuse(question, refused, out)
        self._refused.clear()
        completed, waiting = self._log.completed, []
        for position, question in self._readable:
            if position > completed:
                self._tell(question, position, out)
                waiting.append((position, question))
                continue
            self._fresh_at = max(self._fresh_at or 0, question.asked_at)
            self._tell(question, position, out)
            self._open -= len(question.waiting)
            for asked in question.waiting:
                self._is_due(asked)
        self._readable = waiting
        self._take_turn(out)

    def _is_due(self, asked: _Asked) -> None:
        who, request = asked
        self._due[who if isinstance(request, Execute) else (who, request.number)] = asked

    def _take_turn(self, out: ApplicationOutbox) -> None:
        while self._due and self._room > 0:
            self._serve(self._due.popitem(last=False)[1], out)

    def _tell(self, question: Question[_Asked], position: int, out: ApplicationOutbox) -> None:
        """Answer those who have asked for the position alone."""
        for who, request in question.waiting:
            if type(request) is PositionRequest:
                self._open -= 1
                out.send((who,), PositionTold(request.number, position))
        question.waiting = [asked for asked in question.waiting if type(asked.request) is not PositionRequest]

    def _refuse(self, question: Question[_Asked], refused: Refused, out: ApplicationOutbox) -> None:
        """Refuse the clients' reads; other replicas are not answered."""
        self._open -= len(question.waiting)
        for who, request in question.waiting:
            if type(request) is Execute:
                out.answer(who, refused)
            elif type(request) is PositionRequest:
                out.send((who,), PositionTold(request.number, None))

    def _serve(self, asked: _Asked, out: ApplicationOutbox) -> None:
        """Read what is complete."""
        who, request = asked
        if type(request) is ReadNow:
            out.send((who,), self._found(request))
        elif type(request) is Execute:
            denied = self._rights.denied(request.transaction)
            if denied is not None:
                out.answer(who, forbidden(denied))
            elif self._elsewhere(request.transaction):
                self._unread.append((who, request))
            else:
                out.answer(who, self._read(request.transaction))

    def _elsewhere(self, transaction: Transaction) -> bool:
        """Whether some of it is not in this shard: not any more, or, where others' logs are further, not yet."""
        told = self._moves.told(transaction)
        return moved([told], (self._peers.shard,)) or self._moves.lacks_some(transaction)

    def _read(self, transaction: Transaction) -> Answered:
        self.unordered += 1
        log, plan = self._log, LocalPlan(transaction)
        execution = Execution(self._store, log.version)
        execution.run(plan.course(True))
        self._room -= execution.read_bytes
        told = execution.told
        result = Result(True, log.version, tuple([result for _, result in told or ()]))
        return Answered(result, False, told is None, self._peers.shard, log.completed, self._store.complete_to)

    def _found(self, request: ReadNow) -> ReadNowTold:
        """The part of this shard. Without results if the client has no right to it: the read is then ordered, and
        refused there."""
        self.unordered += 1
        denied = self._rights.denied(request.transaction)
        log, store = self._log, self._store
        execution = Execution(store, log.version)
        if request.known and request.known_at == log.completed:  # the same state: it is a function of the position
            digest = request.known
        else:
            if not request.whence and denied is None:
                execution.run(LocalPlan(request.transaction, self._moves.owns).course(True))
            self._room -= execution.read_bytes
            digest = blake2b(_encode(execution.results), digest_size=16).digest()
        results = None if denied is not None or digest == request.known else execution.told
        attached = any([type(op) is Range and op.lease for op in request.transaction.success])
        deleted_at = log.completed if attached else log.deleted_at  # what a lease has lost was not deleted
        return ReadNowTold(
            self._peers.shard, request.number, log.completed, log.version, store.complete_to, store.floor,
            deleted_at, digest, results, self._moves.told(request.transaction),
        )  # fmt: skip

    # -- batches and time ---------------------------------------------------------------------------------------------

    def end_batch(self, now: int, out: ApplicationOutbox) -> None:
        """Ask for the position, once for all reads of this batch."""
        self.positions.end_batch(now, out)

    def on_tick(self, now: int, out: ApplicationOutbox) -> int | None:
        """Give up what takes too long. The turn is over. Returns when to look again."""
        wake = self.positions.on_tick(now, out)
        self._take_turn(out)
        self._room = TURN_BYTES
        if self._due:
            wake = now
        if not self._readable and not self._refused:
            return wake
        too_old = [(p, question) for p, question in self._readable if now - question.asked_at >= WAIT_US_MAX]
        for one in too_old:
            self._readable.remove(one)
            self._refuse(one[1], Refused("timeout", "no answer in time", True, "not_applied"), out)
        if self._refused:
            self.advance(out)
        wakes = [question.asked_at + WAIT_US_MAX for _, question in self._readable]
        return min([*wakes, *([] if wake is None else [wake])], default=None)
