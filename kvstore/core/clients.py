"""Clients: their requests, and the results that they and other replicas ask for. Pure.

Theory of operation. A request becomes a transaction of a bundle to the shards of its keys, under the client's id
(`Clients.on_request`, `kvstore.core.bundler`). When it completes in this replica's shard, its result is remembered
beside the id and goes to whoever waits for it (`Clients.completed`): to clients here, or, if this replica leads the
shard, to the replica where it entered. The entry replica answers as soon as it has what every shard has read that read
anything (`kvstore.core.requests`). What was lost on its way it asks for, one replica after the other.

Exactly once. A repetition of a request, through any replica, may stand in another bundle, and both are delivered. Both
go to the same shards, as one body has one set of destinations (`kvstore.core.moves` says what if it has not), and all
replicas of these deliver the two bundles in the same order. So everywhere the first takes effect and the second finds
the first's id, in the log or in the store, has no effect (REPEATED), and is answered with the first's result. An id may
take effect as long as the timestamp of the bundle is at most one deduplication window past the id's creation; else the
transaction is EXPIRED, in all shards alike, since all see the same timestamp. Timestamps rise along a log. So when a
replica forgets an id, because the log's own timestamps have passed that, nothing that could take effect under it can
follow: memory needs nobody's clock and nobody else's word. Results are kept for longer, `REMEMBERED_WINDOWS`, for those
who ask late. The same id with another body is refused where both are known, and a shard that knows the id with another
body votes so against the transaction in all.

Reads that nobody can repeat, because the replica itself asked for them (NO_ID), leave nothing behind, unless a slot of
theirs had moved: a replica that comes later must hear of that (`Decisions`). The results of
the last `READS_KEPT` that entered elsewhere stay in memory, should one be lost on its way, or the entry replica slow.
One that nobody has any more is not waited for: the read is ordered anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from kvstore.api.model import InvalidTransaction, only_reads
from kvstore.api.shard_map import is_everywhere
from kvstore.api.validation import validate
from kvstore.core.audit import APPLIED, EXPIRED, MISMATCH, MOVED, REPEATED
from kvstore.core.bundler import Bundler
from kvstore.core.bundles import NO_ID, encode_transaction, request_digest, unnamed_id
from kvstore.core.collects import Collects
from kvstore.core.execution import result_bytes
from kvstore.core.log import Entry, Log
from kvstore.core.lookups import Lookups, tells
from kvstore.core.messages import (
    Answered,
    Execute,
    Lookup,
    Refused,
    ResultRequest,
    ShardResult,
    ShardResults,
    decode_remembered,
    encode_remembered,
    in_messages,
)
from kvstore.core.moves import Moves
from kvstore.core.peers import Peers
from kvstore.core.reads import Reads
from kvstore.core.requests import WAIT_US_MAX, Requests, Waiting, forgotten_before, id_reused
from kvstore.core.rights import Rights, forbidden
from kvstore.core.shards import Shards
from kvstore.core.state import State
from kvstore.core.versions import Versions
from multicast.application import ApplicationOutbox
from multicast.types import GroupId, MessageId, ProcessId, Timestamp, created_us, is_majority, is_uuid7

REQUESTS_MAX = 50_000

_ENTRY_BYTES = 100
RESULT_BYTES_KEPT = 4096
"""Larger results are not remembered beside their id."""

READS_KEPT = 1000


class Clients:
    """The clients of one replica. Arguments are those of `Replica`."""

    def __init__(
        self,
        peers: Peers,
        moves: Moves,
        store: State,
        log: Log,
        window_us: int,
        clock_ahead_us_max: int,
        real_clock: Callable[[int], int],
        rng: random.Random,
        reads: Reads,
        collects: Collects,
        versions: Versions,
        shards: Shards,
    ):
        self.requests = Requests()
        self.lookups = Lookups(peers, store)
        self._reads = reads
        self._collects = collects
        self._versions = versions
        self._shards = shards
        self.bundler = Bundler(peers.self_id, self.requests, rng, self._clock)
        self._peers = peers
        self._moves = moves
        self._store = store
        self._rights = Rights(store)
        self._log = log
        self._window_us = window_us
        self._clock_ahead_us_max = clock_ahead_us_max
        self._real_clock = real_clock
        self._results: dict[MessageId, ShardResult] = {}
        self._outgoing: dict[ProcessId, list[ShardResult]] = {}
        self._questions: dict[tuple[tuple[ProcessId, ...], bool], list[MessageId]] = {}

    # -- requests -----------------------------------------------------------------------------------------------------

    def on_request(self, token: int, request: Execute | Lookup, now: int, out: ApplicationOutbox) -> None:
        """A client's request, answered with `Answered` or `Refused`."""
        if isinstance(request, Lookup):
            self.lookups.add(token, request.message_id, now, out)
            return
        refusal = self._refusal(request, now)
        if refusal is not None:
            out.answer(token, refusal)
            return
        if request.at is not None:
            self._versions.add(token, request, now, out)
        elif not request.message_id and self._reads.takes(request):
            if self._reads.is_here(request.transaction):
                self._reads.add(token, request, now, out)
            else:
                self._collects.add(token, request, now, out)
        else:
            self.order(token, request, now, out)

    def order(self, token: int, request: Execute, now: int, out: ApplicationOutbox) -> None:
        """Get the result of a transaction, in its place in the order."""
        message_id, transaction = request.message_id, request.transaction
        waiting = self.requests.by_id.get(message_id)
        body = encode_transaction(transaction)
        moves = self._moves
        homes = moves.first_map.shards_of(transaction)
        digest = request_digest(body, homes) if message_id else b""
        if waiting is not None:
            if waiting.digest == digest:
                waiting.tokens.append(token)
            else:
                out.answer(token, id_reused())
            return
        shards = homes if moves.map is moves.first_map else moves.map.shards_of(transaction)
        waiting = Waiting(message_id, transaction, body, moves.map, shards, digest, now, self._window_us)
        waiting.tokens.append(token)
        self._begin(waiting, now, out)

    def _begin(self, waiting: Waiting, now: int, out: ApplicationOutbox) -> None:
        """Get the result: from the store, from the log, or by multicasting the transaction."""
        self.requests.add(waiting)
        if waiting.unnamed:
            self._multicast(waiting, now, out)
            return
        record = self._store.remembered(waiting.id)
        remembered = None if record is None else decode_remembered(record).result(waiting.id)
        if (
            remembered is not None
            and remembered.status != MOVED
            and not waiting.is_another(self._peers.shard, remembered)
        ):
            waiting.repeated = True
            if remembered.status != REPEATED:
                waiting.results[self._peers.shard] = remembered
            else:
                waiting.without.add(self._peers.shard)
            if not self._answer(waiting, now, out):
                self._ask_for_results(waiting, now, out)
            return
        item = self._log.items.get(waiting.id)
        if item is None:
            self._multicast(waiting, now, out)
        elif item.digest != waiting.digest:
            self._finish(waiting, id_reused(), now, out)

    def _multicast(self, waiting: Waiting, now: int, out: ApplicationOutbox) -> None:
        """Have the transaction multicast, unless one of its shards cannot take it."""
        refusal = self._shards.refusal(waiting.destinations, waiting.transaction, now)
        if refusal is not None:
            self._refuse(waiting, refusal, waiting.bundles, now, out)
        else:
            self.bundler.add(waiting)

    def _refuse(self, waiting: Waiting, refusal: Refused, before: int, now: int, out: ApplicationOutbox) -> None:
        """Multicast it no more. before: the bundles with which it has left. What came of another copy of it, by which
        this replica may have learned that its shards were others, need not come of these: slots come back."""
        outcome = "unknown" if before else refusal.outcome
        self._finish(waiting, msgspec.structs.replace(refusal, outcome=outcome), now, out)

    def _refusal(self, request: Execute, now: int) -> Refused | None:
        message_id = request.message_id
        if message_id and not is_uuid7(message_id):
            return Refused("invalid", "message_id: not a UUIDv7", False, "not_applied")
        try:
            validate(request.transaction)
        except InvalidTransaction as error:
            return Refused("invalid", str(error), False, "not_applied")
        if not message_id and not only_reads(request.transaction):
            return Refused("invalid", "message_id: only reads may do without", False, "not_applied")
        denied = self._rights.denied(request.transaction)
        if denied is not None:
            return forbidden(denied)
        if len(self.requests) + len(self._reads) + len(self._collects) + len(self._versions) >= REQUESTS_MAX:
            return Refused("overloaded", f"{REQUESTS_MAX} requests are waiting here", True, "not_applied")
        if not self._window_us or not message_id:
            return None
        real = self._real_clock(now)
        now = real or now
        age = now - created_us(message_id)
        old = age > self._window_us and self._store.remembered(message_id) is None
        if not real and (old or -age > self._clock_ahead_us_max):
            # Its own clock alone may be the one that is wrong: another replica knows, or this one will.
            how_far = f"{abs(age) / 1e6:.1f} s {'before' if age > 0 else 'after'} what its own clock shows"
            return Refused(
                "not_ready",
                f"this replica does not know the time yet, and the id was made {how_far}",
                True,
                "not_applied",
            )
        if old:
            return Refused(
                "id_expired",
                f"the id was made {age / 1e6:.1f} s ago by this server's clock ({now / 1e6:.3f} s since 1970); "
                f"at most {self._window_us / 1e6:g} s are allowed",
                False,
                "unknown",
            )
        if -age > self._clock_ahead_us_max:
            # What replicas agree on differs by less than the allowance, so twice of it was acceptable to none of them.
            return Refused(
                "id_in_future",
                f"the id was made {-age / 1e6:.1f} s ahead of this server's clock ({now / 1e6:.3f} s since 1970); "
                f"at most {self._clock_ahead_us_max / 1e6:g} s are allowed",
                False,
                "not_applied" if -age > 2 * self._clock_ahead_us_max else "unknown",
            )
        return None

    def on_refused(self, message_id: MessageId, reason: str, now: int, out: ApplicationOutbox) -> None:
        """The protocol did not take the bundle."""
        for waiting in self.bundler.refused(message_id):
            if waiting.tokens:
                refusal = Refused("overloaded", reason, True, "not_applied")
                self._refuse(waiting, refusal, waiting.bundles - 1, now, out)

    def _answer(self, waiting: Waiting, now: int, out: ApplicationOutbox) -> bool:
        """Answer if nothing is missing; returns whether that is so."""
        answer = waiting.answer()
        if answer is not None:
            self._finish(waiting, answer, now, out)
        return answer is not None

    def _finish(self, waiting: Waiting, answer: Answered | Refused, now: int, out: ApplicationOutbox) -> None:
        self.requests.remove(waiting.id)
        tokens, waiting.tokens = waiting.tokens, []
        for token in tokens:
            out.answer(token, answer)
        self.bundler.finished(waiting, now)

    def _ask_for_results(self, waiting: Waiting, now: int, out: ApplicationOutbox) -> None:
        """Ask one replica of each shard whose results are missing. If the transaction was complete before this request
        came, and asking one was in vain, ask all of them: if most of a shard remember nothing of it, it is waited for
        no longer."""
        missing, whether = waiting.missing(self._moves.map), waiting.repeated and waiting.attempt > 0
        for shard in missing:
            replicas, peer = self._peers.replicas[shard], self._peers.to_ask(shard, waiting.attempt)
            if whether:
                others = tuple([p for p in replicas if p != self._peers.self_id])
                self._questions.setdefault((others, True), []).append(waiting.id)
            elif peer is not None:
                self._questions.setdefault(((peer,), False), []).append(waiting.id)
        waiting.attempt, waiting.asked = waiting.attempt + 1, now
        if not missing and (waiting.results or waiting.without or waiting.repeated):
            self._finish(waiting, waiting.conclusion(), now, out)

    def _read_again(self, waiting: Waiting, now: int, out: ApplicationOutbox) -> None:
        """Order a read without an id anew: some shard has completed it, and who asks another one in vain for what it
        found will hardly be told, since nobody remembers that for long."""
        self.requests.remove(waiting.id)
        self.bundler.finished(waiting, now)
        shards = self._moves.map.shards_of(waiting.transaction)
        again = Waiting(NO_ID, waiting.transaction, waiting.body, self._moves.map, shards, b"", now, self._window_us)
        again.tokens = waiting.tokens
        self._begin(again, now, out)
        again.since = waiting.since

    def _on_unknown(
        self, sender: ProcessId, message: ShardResults, message_id: MessageId, now: int, out: ApplicationOutbox
    ) -> None:
        """A replica remembers nothing of this transaction. (Who has not come to it yet may do so later.)"""
        waiting = self.requests.by_id.get(message_id)
        if waiting is None or not waiting.repeated:
            return
        if message.complete is not None and message.complete < waiting.served_at():
            return
        waiting.unknown.add(sender)
        replicas = self._peers.replicas[message.shard]
        if is_majority(replicas, waiting.unknown):
            self._is_forgotten(waiting, message.shard, now, out)

    def _is_forgotten(self, waiting: Waiting, shard: GroupId, now: int, out: ApplicationOutbox) -> None:
        """This shard will not tell what it had of the transaction."""
        waiting.forgotten.add(shard)
        if not waiting.missing(self._moves.map):
            self._finish(waiting, waiting.conclusion(), now, out)

    # -- results ------------------------------------------------------------------------------------------------------

    def completed(
        self, entry: Entry, results: list[ShardResult], replaying: bool, now: int, out: ApplicationOutbox
    ) -> None:
        """A bundle is complete in this shard: remember its results, and tell them to those who wait, here or
        elsewhere."""
        message, shard, by_id = entry.message, self._peers.shard, self.requests.by_id
        origin, shards, first = message.origin, message.destinations, self._moves.first_map.shards
        elsewhere = self._peers.shard_of.get(origin) not in (None, shard) and self._peers.leads and not replaying
        for index, (item, result) in enumerate(zip(entry.items, results, strict=True)):
            if item.id:
                if result.status == EXPIRED and self._moves.joined_later and is_everywhere(item.slots):
                    result.status = REPEATED  # the shards that were there at first know what became of it
                if result.status == APPLIED and is_everywhere(item.slots) and shards != first:
                    result.shards = shards
                if result.status == EXPIRED and self._moves.gave_all(item.plan.transaction, item.slots):
                    result = self._gone(result)
                result = self._remember(result, item.slots)
            else:
                result.id = unnamed_id(message.id, index)
                if result.status == MOVED:  # else it was applied, and nobody needs to be told
                    self._store.remember(result.id, encode_remembered(result, None))
                if origin != self._peers.self_id and not replaying:
                    self._keep_read(result)
            waiting = by_id.get(result.id)
            if waiting is not None:
                self._on_result(waiting, shard, result, now, out)
                if origin != self._peers.self_id and waiting.asked < now and not waiting.astray and result.id in by_id:
                    self._ask_for_results(waiting, now, out)  # the others report to the one who asked first
            if elsewhere:
                reads = result.status == APPLIED and len(shards) > 1
                if reads and result.digest == item.digest:  # else it is of another request under this id
                    reads = item.plan.reads_something(result.succeeded, result.truths)
                if reads or (self._peers.shard_of[origin] not in shards and shard == shards[0]):
                    self._outgoing.setdefault(origin, []).append(result)

    def _remembered(self, message_id: MessageId) -> ShardResult | None:
        record = self._store.remembered(message_id)
        return None if record is None else decode_remembered(record).result(message_id)

    def _remember(self, result: ShardResult, slots: bytes | None) -> ShardResult:
        """Remember a result under its id; returns the one that counts."""
        if result.status in (EXPIRED, MISMATCH, REPEATED, MOVED):
            first = self._remembered(result.id)
            if first is not None and first.status != MOVED:
                return first if result.status not in (MISMATCH, MOVED) else result
            if result.id < self._forgotten_before(result.timestamp):
                return result  # whether there was a first time nobody may know any more
        record = encode_remembered(result, slots)
        if len(record) > RESULT_BYTES_KEPT:
            record = encode_remembered(_without_results(result), slots)
        self._store.remember(result.id, record)
        if self._moves.leaving is not None:
            self._moves.remembers(result.id, slots)
        return result

    def _forgotten_before(self, timestamp: Timestamp) -> MessageId:
        return forgotten_before(timestamp, self._window_us) if self._window_us else b""

    def _gone(self, result: ShardResult) -> ShardResult:
        """The result of a copy that came too late, to a shard that had given the slots of all its keys away. Whether
        another copy, sent where the slots are, took effect is known there, if it is not known here. (A shard that has
        at least one of the slots knows all ids that touched it.)"""
        first = self._remembered(result.id)
        if first is None or first.status == MOVED:
            result.status = MOVED
        return result

    def _keep_read(self, result: ShardResult) -> None:
        large = result_bytes(result.results or []) > RESULT_BYTES_KEPT
        self._results[result.id] = _without_results(result) if large else result
        if len(self._results) > READS_KEPT:
            del self._results[next(iter(self._results))]

    def tell(self, receiver: ProcessId, message: ResultRequest, out: ApplicationOutbox) -> None:
        """Send another replica the results of transactions that are complete and remembered here."""
        unknown: list[MessageId] = []
        forgotten: list[MessageId] = []
        for message_id in message.ids:
            result = self._remembered(message_id) or self._results.get(message_id)
            if result is not None and (not message.whether or tells(result)):
                self._outgoing.setdefault(receiver, []).append(result)
            elif message.whether:
                unknown.append(message_id)
            elif message_id < self._forgotten_before(self._store.complete_to):
                forgotten.append(message_id)
        if unknown or forgotten:
            complete_to = self._store.complete_to
            out.send((receiver,), ShardResults(self._peers.shard, [], unknown, forgotten, complete_to))

    def on_results(self, sender: ProcessId, message: ShardResults, now: int, out: ApplicationOutbox) -> None:
        """What another replica knows of transactions of this one's clients."""
        if self.lookups:
            self.lookups.on_results(sender, message, out)
        for result in message.results:
            waiting = self.requests.by_id.get(result.id)
            if waiting is not None:
                self._on_result(waiting, message.shard, result, now, out)
        for message_id in message.unknown:
            self._on_unknown(sender, message, message_id, now, out)
        for message_id in message.forgotten:
            waiting = self.requests.by_id.get(message_id)
            if waiting is not None:
                self._is_forgotten(waiting, message.shard, now, out)

    def _on_result(
        self, waiting: Waiting, shard: GroupId, result: ShardResult, now: int, out: ApplicationOutbox
    ) -> None:
        """The result of one shard: answer, if that was all that is needed; or try other shards, if it was not
        theirs."""
        if waiting.is_another(shard, result):
            return
        if result.status == MOVED:
            if not waiting.results and result.timestamp > waiting.moved_at:
                waiting.moved_at = result.timestamp
                waiting.astray = True
                self._try_elsewhere(waiting, now, out)
            return
        if result.status == REPEATED:
            waiting.without.add(shard)
        else:
            known = waiting.results.get(shard)
            if known is None or known.results is None:
                waiting.results[shard] = result
            waiting.astray = False
        self._answer(waiting, now, out)

    def _try_elsewhere(self, waiting: Waiting, now: int, out: ApplicationOutbox, anyhow: bool = False) -> None:
        """Multicast it to the shards that own its keys by the present map, if these are other ones."""
        shards = self._moves.map.shards_of(waiting.transaction)
        if anyhow or not set(shards).issubset(waiting.destinations):
            waiting.astray, waiting.without = False, set()
            waiting.shard_map, waiting.destinations = self._moves.map, shards
            self.bundler.finished(waiting, now)
            self._multicast(waiting, now, out)

    def on_map(self, now: int, out: ApplicationOutbox) -> None:
        """The map has changed."""
        for waiting in [waiting for waiting in self.requests.by_id.values() if waiting.astray]:
            self._try_elsewhere(waiting, now, out)

    # -- batches and time ---------------------------------------------------------------------------------------------

    def end_batch(self, now: int, out: ApplicationOutbox) -> None:
        """Multicast and send what this batch has gathered."""
        self.bundler.leave(now, out)
        self._send_questions(out)
        if self._outgoing:
            for receiver, results in self._outgoing.items():
                for some in in_messages(results, _told_bytes):
                    out.send((receiver,), ShardResults(self._peers.shard, some))
            self._outgoing = {}

    def _send_questions(self, out: ApplicationOutbox) -> None:
        """Of all requests together: where all is late each of them would be a message more, and all be later."""
        for (to, whether), ids in self._questions.items():
            out.send(to, ResultRequest(ids, whether))
        self._questions = {}

    def on_tick(self, now: int, out: ApplicationOutbox) -> int | None:
        """Ask again for what is missing. Returns when there is something to do again."""
        for waiting in self.requests.due(now):
            if now - waiting.since > WAIT_US_MAX:
                self._finish(waiting, Refused("timeout", "no result in time", True, "unknown"), now, out)
            elif waiting.astray:
                self.requests.schedule(waiting, now)
                self._try_elsewhere(waiting, now, out, anyhow=True)
            elif waiting.unnamed and waiting.results and waiting.attempt:
                self._read_again(waiting, now, out)
            else:
                self.requests.schedule(waiting, now)
                self._ask_for_results(waiting, now, out)
        self._send_questions(out)
        wakes = self.bundler.leave(now, out), self.requests.next_due(), self.lookups.on_tick(now, out)
        return min([wake for wake in wakes if wake is not None], default=None)

    def _clock(self, now: int) -> int:
        """The time; where it is not known, this replica's steady clock. If that was set back, as of what is complete
        here: by an older id all would come too late."""
        return max(self._real_clock(now) or now, self._store.complete_to.time)


def _told_bytes(result: ShardResult) -> int:
    """About so many, with what stands around keys and values."""
    told = result.results or []
    return result_bytes(told) + _ENTRY_BYTES * (1 + sum([1 + len(one.entries) for _, one in told]))


def _without_results(result: ShardResult) -> ShardResult:
    return msgspec.structs.replace(result, results=None)
