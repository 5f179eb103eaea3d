"""Signals and votes: what the shards of a bundle tell one another before any of them completes it. Pure.

Theory of operation. A bundle that concerns several shards waits at the head of the log for the *parts* of the others.
A part is the shard's execution signal, "everything before it here concerns no other shards or is complete"
(`kvstore.core.log` has the rule), and its votes, one per transaction: whether its comparisons hold and its operations
are possible. All shards see the same votes and take the same branch, or none.

A part is a function of the shard's log, so any replica may send it: the one that believes itself leader pushes it, and
whoever waits too long pulls it from the shard's replicas in turn. Parts are kept until the bundle is settled: a quorum
of every shard has completed it. Then a replica that is behind gets the outcome from the journal of a peer of its own
shard; or, since those who had it may have lost their disks one after the other, hears from another shard how the
transactions ended there, as long as their results are remembered.

Two kinds of parts are kept longer, for as long as results are remembered. That of the source of a move: what it gives
is nowhere else. And that of what ended as moved: what is remembered of its id is another result, once slots have come
here with that.

What the protocol says to be settled may be lost in a crash; but once a bundle is settled, so is everything before it
that concerns no other shards, and parts found at the start go by that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Literal

from kvstore.core.audit import APPLIED, MOVED, REPEATED
from kvstore.core.bundles import is_unnamed, timestamp_of, unnamed_id, version_of
from kvstore.core.execution import vote
from kvstore.core.log import Entry, Item, Log
from kvstore.core.messages import (
    Decided,
    Decisions,
    Part,
    PartRequest,
    Parts,
    Remembered,
    Retained,
    Vote,
    Wanted,
    decode_remembered,
    decode_retained,
    encode_retained,
    in_messages,
)
from kvstore.core.moves import Moves
from kvstore.core.peers import Peers
from kvstore.core.plans import voting_keys
from kvstore.core.state import State
from multicast.application import ApplicationOutbox
from multicast.protocol import PeerError
from multicast.records import Delivered
from multicast.types import ZERO, GroupId, MessageId, ProcessId, Timestamp, created_us

PULLS_BEFORE_FETCH = 3
"""After so many pulls in vain the bundle may be settled, and the part forgotten: the outcome is fetched from a peer of
the own shard."""

PULL_MAX = 64
"""How many bundles one pull asks for."""

EARLY_MANY = 1000
"""Bundles of which parts came before they were delivered: so many are looked through for some that will not be, and
then twice as many as were left, for who is far behind has a part of each bundle that follows."""

EARLY_MAX = 100_000
"""Of no more bundles: a replica that fetches a snapshot is told all parts meanwhile, for as long as that takes. Those
of the first ones go, which it will hear the outcomes of from its own shard, or can ask for."""

_SIGNAL_BYTES = 64
"""Of a part without votes, as nearly all are, about as much as it takes."""

SignalRule = Literal["rule", "delivery", "off"]
"""When a shard signals: by the store's rule; at delivery; never, so that there are only votes. The last two are unsafe
with a protocol whose `strict_groups_max` is bounded; the simulator shows how. Where nobody signals, a transaction may
take effect in some of its shards alone if another one knows its id with another body."""


def signals_for(strict_groups_max: int | None) -> SignalRule:
    """What the store needs of a protocol that says this of itself: if delivery is strict, only the votes on ids."""
    return "delivery" if strict_groups_max is None else "rule"


_NO_OBJECTION = Vote()
_REUSED = Vote(reused=True)
NOT_THE_OWNER = "move: not all of these slots are the source's"
_NOT_THE_OWNER = Vote(success_failure=NOT_THE_OWNER)


class Signals:
    """The parts of one replica. Arguments are those of `Replica`. pushed, pulled: how many parts."""

    def __init__(
        self,
        peers: Peers,
        moves: Moves,
        store: State,
        log: Log,
        rule: SignalRule,
        retry_us: int,
    ):
        self.pushed = self.pulled = 0
        self._peers = peers
        self._moves = moves
        self._store = store
        self._log = log
        self._rule = rule
        self._retry_us = retry_us
        self._early: dict[MessageId, dict[GroupId, Part]] = {}
        self._early_many = EARLY_MANY
        self._last_delivered = ZERO
        self._doubtful: dict[tuple[GroupId, ...], deque[tuple[Timestamp, MessageId]]] = {}
        self._longer: dict[MessageId, int] = {}
        self._outgoing: dict[GroupId, list[Part]] = {}
        self._last_pull = self._pulls = 0

    def kept_longer(self) -> dict[MessageId, int]:
        """Settled parts that are kept all the same, and of when they are, microseconds."""
        return dict(self._longer)

    def start(self, held: Iterable[Delivered]) -> None:
        """A life begins, perhaps with a snapshot: late copies of parts come of what is complete. What settled the parts
        that are found here may have been lost. held: deliveries behind a step of a move."""
        self._last_delivered = max(self._last_delivered, timestamp_of(self._store.complete_to))
        kept = [(message_id, decode_retained(part)) for message_id, part in self._store.parts()]
        found = [(retained.timestamp, retained.destinations, message_id) for message_id, retained in kept]
        found += [(e.timestamp, e.message.destinations, e.message.id) for e in self._log.entries]
        found += [(d.timestamp, d.message.destinations, d.message.id) for d in held]
        for timestamp, shards, message_id in sorted(found):
            if len(shards) > 1:
                self._doubtful.setdefault(shards, deque()).append((timestamp, message_id))

    # -- the way of a bundle ------------------------------------------------------------------------------------------

    def needed(self, items: list[Item], shards: tuple[GroupId, ...]) -> tuple[GroupId, ...]:
        """The shards whose parts this bundle waits for."""
        others = tuple(shard for shard in shards if shard != self._peers.shard)
        if self._rule != "off":
            return others
        if any([item.plan.reaches_unnamed() for item in items]):
            return others
        keys = {key for item in items for key in voting_keys(item.plan.transaction)}
        voters = {self._moves.map.shard_of(key) for key in keys}
        return tuple(shard for shard in others if shard in voters)

    def delivered(self, entry: Entry) -> None:
        """Take the parts that came before the delivery itself."""
        self._last_delivered = entry.timestamp
        for shard, part in self._early.pop(entry.message.id, {}).items():
            if shard in entry.needed:
                self._take(entry, shard, part)
        if len(self._early) > self._early_many:  # among them are late copies that came when a life began
            self._early = {
                message_id: parts
                for message_id, parts in self._early.items()
                if any([part.timestamp > entry.timestamp for part in parts.values()])
            }
            self._early_many = max(EARLY_MANY, 2 * len(self._early))

    def ready(self, entry: Entry, replaying: bool) -> None:
        """This shard's part may be told; push it if that is this replica's task."""
        votes = [self._vote(item, entry) for item in entry.items]
        part = entry.own_part = Part(entry.message.id, entry.timestamp, votes if any(votes) else [])
        if not replaying and self._peers.leads:
            for shard in entry.message.destinations:
                if shard != self._peers.shard:
                    self._outgoing.setdefault(shard, []).append(part)
            self.pushed += 1

    def _vote(self, item: Item, entry: Entry) -> Vote | None:
        """The vote on one transaction; None: no objection."""
        if item.expired:
            return None
        if item.after:
            item.look_back(self._store.remembered(item.id))
        if item.earlier is not None and item.reused:
            return _REUSED
        if item.earlier is not None:
            return Vote(repeated=True, places=item.places)
        if entry.move is not None:
            if entry.move.source != self._peers.shard:
                return None
            given = self._moves.give(entry.move, entry.timestamp)
            return _NOT_THE_OWNER if given is None else Vote(given=given)
        found, item.compared = vote(item.plan, self._store)
        found.places = item.places
        return None if found == _NO_OBJECTION else found

    def completed(self, entry: Entry, moved: bool) -> None:
        """Keep the part for those who are behind. moved: a transaction that has an id ended so."""
        part = entry.own_part
        if part is not None and (not entry.settled or moved or gives(part)):
            retained = Retained(part.id, part.timestamp, part.votes, entry.message.destinations, moved)
            self._store.keep_part(part.id, encode_retained(retained))
            if entry.settled:
                self._drop(retained)

    # -- other replicas -----------------------------------------------------------------------------------------------

    def on_parts(self, message: Parts) -> None:
        """Parts of another shard. PeerError if the votes are not those of the bundle."""
        for part in message.parts:
            entry = self._log.by_id.get(part.id)
            if entry is not None:
                if message.shard in entry.needed:
                    self._take(entry, message.shard, part)
            elif part.timestamp > self._last_delivered:
                self._early.setdefault(part.id, {})[message.shard] = part
        if len(self._early) > EARLY_MAX:
            self._early = dict(islice(self._early.items(), EARLY_MAX // 2, None))

    def _take(self, entry: Entry, shard: GroupId, part: Part) -> None:
        if part.votes and len(part.votes) != len(entry.items):
            raise PeerError(f"a part with {len(part.votes)} votes on {len(entry.items)} transactions")
        entry.parts[shard] = part

    def on_part_request(self, sender: ProcessId, message: PartRequest, out: ApplicationOutbox) -> None:
        """Tell another shard's replica the parts that are known here."""
        found: list[Part] = []
        for wanted in message.wanted:
            entry = self._log.by_id.get(wanted.id)
            if entry is not None:
                if entry.own_part is not None:
                    found.append(entry.own_part)
                continue
            kept = self._store.part(wanted.id)
            if kept is not None:
                found.append(decode_retained(kept).part())
            elif wanted.timestamp <= self._last_delivered:
                self._tell_decisions(sender, wanted, out)
        self._tell((sender,), found, out)

    def _tell(self, to: tuple[ProcessId, ...], parts: list[Part], out: ApplicationOutbox) -> None:
        """In as many messages as they take: of nested transactions that are impossible a part may have megabytes."""
        for some in in_messages(parts, _bytes_of):
            out.send(to, Parts(self._peers.shard, some))

    def _tell_decisions(self, sender: ProcessId, wanted: Wanted, out: ApplicationOutbox) -> None:
        """The bundle is complete here and settled, so the part is gone: tell how its transactions ended, unless their
        results are forgotten, too."""
        decided: list[Decided | None] = []
        single = wanted.ids == [wanted.id] or is_unnamed(wanted.id)  # of format 1
        for index, message_id in enumerate(wanted.ids):
            record = self._store.remembered(message_id or unnamed_id(wanted.id, index))
            if record is None and not message_id:
                decided.append(None)
                continue
            if record is None:
                return
            r = decode_remembered(record)
            status = status_at(wanted.timestamp if single else version_of(wanted.timestamp, index), r)
            decided.append(Decided(status, r.succeeded, *(r.failed or ("", b"")), r.digest, r.truths))
        out.send((sender,), Decisions(self._peers.shard, wanted.id, decided))

    def on_decisions(self, message: Decisions) -> None:
        """How the transactions of a bundle ended in another shard. PeerError if they are not those of the bundle. (What
        a step of a move gives is only in the source's part, and that is kept.)"""
        entry = self._log.by_id.get(message.id)
        if entry is None or message.shard not in entry.needed:
            return
        if len(message.decided) != len(entry.items):
            raise PeerError(f"{len(message.decided)} decisions on {len(entry.items)} transactions")
        if entry.move is not None and message.shard == entry.move.source:
            (decided,) = message.decided
            if decided is None or decided.status == APPLIED:
                return
        entry.decided = message.decided

    def on_settled(self, message_id: MessageId, timestamp: Timestamp, shards: tuple[GroupId, ...]) -> None:
        """A quorum of every one of its shards has completed it: nobody will ask for its part, if it has one. (A copy
        that came late has none, and settles nothing of the first one.)"""
        entry = self._log.by_id.get(message_id)
        if entry is not None and entry.timestamp == timestamp:
            entry.settled = True
        elif (kept := self._store.part(message_id)) is not None:
            retained = decode_retained(kept)
            if retained.timestamp == timestamp:
                self._drop(retained)
        self._settle_up_to(timestamp, shards)

    def _settle_up_to(self, timestamp: Timestamp, destinations: tuple[GroupId, ...]) -> None:
        """A quorum of each of these shards has completed everything up to there: so it is with what was found here at
        the start and concerns no other shards."""
        for shards in [shards for shards in self._doubtful if set(shards) <= set(destinations)]:
            queue = self._doubtful[shards]
            while queue and queue[0][0] <= timestamp:
                message_id = queue.popleft()[1]
                entry = self._log.by_id.get(message_id)
                if entry is not None:
                    entry.settled = True
                elif (kept := self._store.part(message_id)) is not None:
                    self._drop(decode_retained(kept))
            if not queue:
                del self._doubtful[shards]

    def _drop(self, part: Retained) -> None:
        """This part is settled. What it tells a replica that is behind may be told nowhere else: then it is kept
        longer."""
        if part.moved or gives(part):
            self._longer[part.id] = max(part.timestamp.time, created_us(part.id))  # the first stamps may be low
        else:
            self._store.drop_part(part.id)

    def forget_before(self, time_us: int) -> None:
        """Results of that time are forgotten: so are parts of before, unless they are not settled."""
        for message_id in [message_id for message_id, part_us in self._longer.items() if part_us < time_us]:
            del self._longer[message_id]
            self._store.drop_part(message_id)

    # -- batches and time ---------------------------------------------------------------------------------------------

    def end_batch(self, out: ApplicationOutbox) -> None:
        """Push what became ready in this batch."""
        if self._outgoing:
            for shard, parts in self._outgoing.items():
                self._tell(self._peers.replicas[shard], parts, out)
            self._outgoing = {}

    def on_tick(self, now: int, out: ApplicationOutbox) -> int | None:
        """Pull what has been missing for too long. Returns when there is something to do again."""
        if not self._log.entries:
            return None
        at = max(self._log.entries[0].delivered_at, self._last_pull) + self._retry_us
        if at > now:
            return at
        self._pull(now, out)
        return now + self._retry_us

    def _pull(self, now: int, out: ApplicationOutbox) -> None:
        """Ask for the parts that the first transactions of the log have been waiting for too long."""
        self._last_pull = now
        head = self._log.entries[0]
        head.pulls += 1
        if head.pulls % PULLS_BEFORE_FETCH == 0:
            peer = self._peers.to_ask(self._peers.shard, head.pulls // PULLS_BEFORE_FETCH)
            if peer is not None:
                out.fetch_outcomes(peer)
        wanted: dict[GroupId, list[Wanted]] = {}
        for entry in islice(self._log.entries, PULL_MAX):
            if entry.delivered_at + self._retry_us > now:
                break
            for shard in entry.missing():
                ids = [item.id for item in entry.items]
                wanted.setdefault(shard, []).append(Wanted(entry.message.id, entry.timestamp, ids))
        for shard, bundles in wanted.items():
            peer = self._peers.to_ask(shard, self._pulls)
            if peer is not None:
                out.send((peer,), PartRequest(bundles))
                self.pulled += len(bundles)
        self._pulls += 1


def status_at(version: Timestamp, remembered: Remembered) -> int:
    """What became of the transaction whose version this is, or would have been, by what is remembered of its id."""
    if remembered.timestamp == version:
        return remembered.status
    return MOVED if remembered.timestamp > version else REPEATED


def _bytes_of(part: Part) -> int:
    return len(encode_retained(part)) if part.votes else _SIGNAL_BYTES


def gives(part: Part) -> bool:
    """Whether it is of the source of a move: the target has what it gives from nobody else."""
    return any([vote is not None and vote.given is not None for vote in part.votes])
