"""A replica of one shard: executes transactions strictly in delivery order. Pure; an `Application` of the engine.

Theory of operation. A client's `Execute` becomes one multicast message to the shards of its keys, under the client's
id. Deliveries enter the log. A transaction completes at the head of the log: its effects become visible, its outcome
goes to the journal, its result is remembered beside its id and answers the client. One that concerns several shards
waits at the head for the *parts* of the others. A part is the shard's execution signal, "everything before it here
concerns no other shards or is complete" (`kvstore.core.log` has the rule), and its vote: whether its comparisons hold
and its operations are possible. All shards see the same votes and take the same branch, or none.

A part is a function of the shard's log, so any replica may send it: the one that believes itself leader pushes it, and
whoever waits too long pulls it from the shard's replicas in turn. A replica that has completed the transaction answers
a pull with the result, which does as well. Parts are kept until a quorum of every shard has completed the transaction,
results until `REMEMBERED_WINDOWS`. When even that is gone, a replica that is behind gets the outcome from the journal
of a peer of its own shard. What the protocol says to be settled may be lost in a crash; but once a transaction is
settled, so is everything before it that concerns no other shards, and parts found at the start go by that.

A repetition of a request, through any replica, is the same multicast message again; the protocol delivers it once. The
replica that got the repetition finds the result in its own store or asks the shards for it. So an id has one result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from itertools import islice
from typing import Any

from kvstore.api.model import RESULT_BYTES_MAX, InvalidTransaction, Transaction, validate
from kvstore.api.shard_map import ShardMap
from kvstore.core.audit import (
    APPLIED,
    AUDIT_VERSION,
    EXPIRED,
    FAILED,
    MISMATCH,
    VALUE_BYTES_KEPT,
    Outcome,
    Read,
    Write,
    decode_outcome,
    encode_outcome,
)
from kvstore.core.execution import Execution, LocalPlan, result_bytes, vote, voting_keys
from kvstore.core.log import Entry, Log
from kvstore.core.messages import (
    MESSAGES,
    Answered,
    Execute,
    Part,
    PartRequest,
    Parts,
    Refused,
    ResultRequest,
    Retained,
    ShardResult,
    ShardResults,
    Vote,
    body_digest,
    decode_payload,
    decode_retained,
    decode_shard_result,
    encode_payload,
    encode_retained,
    encode_shard_result,
)
from kvstore.core.requests import REMEMBERED_WINDOWS, WAIT_US_MAX, Requests, Waiting, id_reused, reporting_shards
from kvstore.core.state import State
from multicast.protocol import Application, ApplicationOutbox, PeerError
from multicast.records import Delivered
from multicast.types import AppMessage, GroupId, MessageId, ProcessId, Timestamp, Topology, created_us, is_uuid7

__all__ = ["Answered", "Execute", "Refused", "Replica"]

DEDUP_WINDOW_US = 120_000_000
CLOCK_AHEAD_US_MAX = 10_000_000
PART_RETRY_US = 200_000
DIGEST_EVERY = 1000
REQUESTS_MAX = 50_000

RESULT_BYTES_KEPT = 4096
"""Larger results are not remembered beside their id."""

REPETITION_AFTER_US = 100_000
"""A request whose id is older than this is likely a repetition: shards are asked at once whether they have a result."""

FORGET_EVERY_US = 1_000_000
PULLS_BEFORE_FETCH = 5
"""After so many pulls in vain the other shards may have forgotten the transaction: ask a peer of the own shard."""

PULL_MAX = 64
"""Transactions whose parts one pull asks for."""

_STATUS_NAMES = {APPLIED: "applied", EXPIRED: "expired", FAILED: "failed", MISMATCH: "mismatch"}


class Replica(Application):
    """One replica's application.

    store: its state; holds the outcomes of the deliveries that the engine does not hand over again.
    signals: "rule" or True: the store's rule. "delivery": signal at delivery; "off" or False: no signals, only votes.
        Both are unsafe with a protocol whose `strict_groups_max` is bounded; the simulator shows how.
    dedup_window_us: the protocol's option of that name; 0: ids never expire and are remembered for ever.
    leader_of: the protocol's. digest_every: the state digest goes into every so manieth outcome; 0: never.
    part_retry_us: how long to wait for parts before pulling them. clock_ahead_us_max: how far ahead of this replica's
        clock the creation of an id may be. real_clock: the protocol's; what ids are compared with, and `now` where it
        knows nothing.
    """

    messages = MESSAGES
    completes = True

    def __init__(
        self,
        self_id: ProcessId,
        topology: Topology,
        shard_map: ShardMap,
        store: State,
        *,
        signals: bool | str = True,
        dedup_window_us: int = DEDUP_WINDOW_US,
        leader_of: Callable[[GroupId], ProcessId | None],
        digest_every: int = DIGEST_EVERY,
        part_retry_us: int = PART_RETRY_US,
        clock_ahead_us_max: int = CLOCK_AHEAD_US_MAX,
        real_clock: Callable[[int], int] = int,
    ):
        if signals not in (True, False, "rule", "delivery", "off"):
            raise ValueError(f"signals is 'rule', 'delivery' or 'off', not {signals!r}")
        self.self_id = self_id
        self.topology = topology
        self.shard = topology.group_of[self_id]
        self.shard_map = shard_map
        self.store = store
        self.position = store.position
        self.window_us = dedup_window_us
        self.leader_of = leader_of
        self.digest_every = digest_every
        self.part_retry_us = part_retry_us
        self.clock_ahead_us_max = clock_ahead_us_max
        self.real_clock = real_clock
        self._votes_only = signals in (False, "off")
        self.log = Log(signal_at_delivery=signals not in (True, "rule"))
        self.requests = Requests()
        self._delivered: dict[MessageId, Entry] = {}
        self._early_parts: dict[MessageId, dict[GroupId, Part]] = {}
        self._settled_early: set[MessageId] = set()
        self._doubtful: dict[tuple[GroupId, ...], deque[tuple[Timestamp, MessageId]]] = {}
        self._outgoing_parts: dict[GroupId, list[Part]] = {}
        self._outgoing_results: dict[ProcessId, list[ShardResult]] = {}
        self._replaying = True
        self._last_pull = self._pulls = 0
        self._last_forget = 0
        self._now = 0
        self.parts_pushed = self.parts_pulled = 0
        self.transactions = dict.fromkeys(_STATUS_NAMES.values(), 0)

    def status(self) -> dict[str, Any]:
        """Numbers for status pages and metrics, as of the last batch. JSON-ready."""
        head = self.log.entries[0] if self.log.entries else None
        return {
            "position": self.log.completed,
            "log_length": len(self.log),
            "head_waiting_for": head.missing() if head else [],
            "head_waiting_us": self._now - head.delivered_at if head else 0,
            "requests_waiting": len(self.requests),
            "parts_pushed": self.parts_pushed,
            "parts_pulled": self.parts_pulled,
            "transactions": dict(self.transactions),
        }

    # -- clients ------------------------------------------------------------------------------------------------------

    def on_start(self, now: int, out: ApplicationOutbox) -> None:
        self._replaying = False
        self._now = now
        found = [(r.timestamp, r.destinations, i) for i, r in ((i, decode_retained(p)) for i, p in self.store.parts())]
        found += [(e.timestamp, e.message.destinations, e.message.id) for e in self.log.entries]
        for timestamp, shards, message_id in sorted(found):
            if len(shards) > 1:
                self._doubtful.setdefault(shards, deque()).append((timestamp, message_id))

    def on_request(self, token: int, request: Any, now: int, out: ApplicationOutbox) -> None:
        """`Execute`; answered with `Answered` or `Refused`."""
        transaction: Transaction = request.transaction
        refusal = self._refusal(request, now)
        if refusal is not None:
            out.answer(token, refusal)
            return
        payload = encode_payload(transaction)
        destinations = self.shard_map.shards_of(transaction)
        digest = body_digest(payload, destinations)
        waiting = self.requests.by_id.get(request.message_id)
        if waiting is not None:
            if waiting.digest == digest:
                waiting.tokens.append(token)
            else:
                out.answer(token, id_reused())
            return
        waiting = Waiting(request.message_id, transaction, destinations, digest, now, self.window_us)
        waiting.tokens.append(token)
        self._begin(waiting, payload, now, out)

    def _begin(self, waiting: Waiting, payload: bytes, now: int, out: ApplicationOutbox) -> None:
        """Get the result: from the store, from the log, or by multicasting the transaction."""
        remembered = self.store.remembered(waiting.id)
        if remembered is not None:
            waiting.repeated = True
            waiting.results[self.shard] = decode_shard_result(remembered)
        self.requests.add(waiting)
        if remembered is not None:
            if not self._answer(waiting, out):
                self._ask_for_results(waiting, out)
            return
        entry = self._delivered.get(waiting.id)
        if entry is None:
            out.submit(AppMessage(waiting.id, waiting.destinations, payload, self.self_id))
            if (self.real_clock(now) or now) - created_us(waiting.id) > REPETITION_AFTER_US:
                self._ask_for_results(waiting, out)
        elif entry.digest != waiting.digest:
            self._finish(waiting, id_reused(), out)

    def _refusal(self, request: Execute, now: int) -> Refused | None:
        message_id = request.message_id
        if not is_uuid7(message_id):
            return Refused("invalid", "message_id: not a UUIDv7", False, "not_applied")
        try:
            validate(request.transaction)
        except InvalidTransaction as error:
            return Refused("invalid", str(error), False, "not_applied")
        if len(self.requests) >= REQUESTS_MAX:
            return Refused("overloaded", f"{REQUESTS_MAX} requests are waiting here", True, "not_applied")
        if not self.window_us:
            return None
        real = self.real_clock(now)
        now = real or now
        age = now - created_us(message_id)
        if age > self.window_us and self.store.remembered(message_id) is None:
            return Refused(
                "id_expired",
                f"the id was made {age / 1e6:.1f} s ago by this server's clock ({now / 1e6:.3f} s since 1970); "
                f"at most {self.window_us / 1e6:g} s are allowed",
                False,
                "unknown",
            )
        if -age > self.clock_ahead_us_max:
            # What replicas agree on differs by less than the allowance, so twice of it was acceptable to none of them.
            return Refused(
                "id_in_future",
                f"the id was made {-age / 1e6:.1f} s ahead of this server's clock ({now / 1e6:.3f} s since 1970); "
                f"at most {self.clock_ahead_us_max / 1e6:g} s are allowed",
                False,
                "not_applied" if real and -age > 2 * self.clock_ahead_us_max else "unknown",
            )
        return None

    def on_refused(self, message: AppMessage, reason: str, now: int, out: ApplicationOutbox) -> None:
        waiting = self.requests.by_id.get(message.id)
        if waiting is not None:
            self._finish(waiting, Refused("overloaded", reason, True, "not_applied"), out)

    def _answer(self, waiting: Waiting, out: ApplicationOutbox) -> bool:
        """Answer if nothing is missing."""
        answer = waiting.answer(self.shard_map)
        if answer is not None:
            self._finish(waiting, answer, out)
        return answer is not None

    def _finish(self, waiting: Waiting, answer: Answered | Refused, out: ApplicationOutbox) -> None:
        self.requests.remove(waiting.id)
        for token in waiting.tokens:
            out.answer(token, answer)

    def _ask_for_results(self, waiting: Waiting, out: ApplicationOutbox) -> None:
        for shard in waiting.missing(self.shard_map):
            peer = self._peer(shard, waiting.attempt)
            if peer is not None:
                out.send((peer,), ResultRequest([waiting.id]))
        waiting.attempt += 1

    def _peer(self, shard: GroupId, attempt: int) -> ProcessId | None:
        """A replica of `shard` to ask, another one at every attempt, beginning with the leader; never this one."""
        members = self.topology.groups[shard]
        leader = self.leader_of(shard)
        first = members.index(leader) if leader in members else 0
        others = [p for p in members[first:] + members[:first] if p != self.self_id]
        return others[attempt % len(others)] if others else None

    # -- the log ------------------------------------------------------------------------------------------------------

    def on_deliver(self, delivery: Delivered, completion: bytes | None, now: int, out: ApplicationOutbox) -> None:
        if delivery.position == 0:
            return
        message = delivery.message
        if not self.log.entries:
            self.log.completed = delivery.position - 1
        transaction = decode_payload(message.payload)
        shards = message.destinations
        plan = LocalPlan(transaction, self._owns if len(shards) > 1 else None)
        digest, needed = body_digest(message.payload, shards), self._needed(transaction, shards)
        at, expired = delivery.timestamp, delivery.expired
        entry = Entry(delivery.position, message, at, expired, plan, digest, needed, completion, now)
        self._delivered.setdefault(message.id, entry)  # a repetition that expired may overtake the first's completion
        if message.id in self._settled_early:
            self._settled_early.discard(message.id)
            entry.settled = True
        if len(shards) > 1:
            for shard, part in self._early_parts.pop(message.id, {}).items():
                if shard in entry.needed:
                    entry.parts[shard] = part
        if self.log.append(entry):
            self._make_part(entry)
        self._advance(now, out)

    def on_outcome(self, position: int, completion: bytes, now: int, out: ApplicationOutbox) -> None:
        entries = self.log.entries
        if entries and entries[0].position <= position <= entries[-1].position:
            entries[position - entries[0].position].outcome = completion
        self._advance(now, out)

    def _owns(self, key: bytes) -> bool:
        return self.shard_map.shard_of(key) == self.shard

    def _needed(self, transaction: Transaction, shards: tuple[GroupId, ...]) -> tuple[GroupId, ...]:
        """The shards whose parts this transaction waits for."""
        others = tuple(shard for shard in shards if shard != self.shard)
        if not self._votes_only:
            return others
        voters = {self.shard_map.shard_of(key) for key in voting_keys(transaction)}
        return tuple(shard for shard in others if shard in voters)

    def _make_part(self, entry: Entry) -> None:
        """This shard's part can be told; push it if that is this replica's task."""
        shards = entry.message.destinations
        if len(shards) == 1 or entry.expired:
            return
        part = entry.own_part = Part(entry.message.id, entry.digest, vote(entry.plan, self.store))
        if not self._replaying and self.leader_of(self.shard) == self.self_id:
            for shard in shards:
                if shard != self.shard:
                    self._outgoing_parts.setdefault(shard, []).append(part)
            self.parts_pushed += 1

    def _advance(self, now: int, out: ApplicationOutbox) -> None:
        """Complete what is ready at the head."""
        log = self.log
        while log.entries and log.entries[0].ready:
            entry = log.entries[0]
            self._complete(entry, now, out)
            for unblocked in log.complete():
                self._make_part(unblocked)

    def _complete(self, entry: Entry, now: int, out: ApplicationOutbox) -> None:
        message_id = entry.message.id
        if self._delivered.get(message_id) is entry:
            del self._delivered[message_id]
        status, succeeded, failure, failure_key = self._fate(entry)
        execution = Execution(self.store, entry.timestamp)
        if status in (APPLIED, FAILED):
            plan = entry.plan
            holds = execution.compare(plan.compares)
            if status == APPLIED:
                if len(entry.message.destinations) == 1 and entry.outcome is None:
                    succeeded = holds
                execution.run(plan.success if succeeded else plan.failure)
                if execution.failure:
                    status, failure, failure_key = FAILED, execution.failure, execution.failure_key
            for key, value in execution.writes.items():
                self.store.write(key, value, entry.timestamp)
        outcome = self._outcome(entry, status, succeeded, execution, failure, failure_key)
        record = entry.outcome or encode_outcome(outcome)
        if entry.outcome is not None and not _same_state(outcome, decode_outcome(entry.outcome)):
            raise AssertionError(
                f"the state after delivery {entry.position} is not the one that its journal record names"
            )
        self.transactions[_STATUS_NAMES[status]] += 1
        if entry.own_part is not None and not entry.settled:
            part, shards = entry.own_part, entry.message.destinations
            retained = Retained(part.id, part.digest, part.vote, entry.timestamp, shards)
            self.store.keep_part(message_id, encode_retained(retained))
        results = execution.results if result_bytes(execution.results) <= RESULT_BYTES_MAX else None
        result = ShardResult(
            message_id, entry.digest, entry.timestamp, status, succeeded, failure, failure_key, results
        )
        out.complete(entry.position, record)
        self._report(entry, self._remember(result), out)
        self._forget(entry.timestamp)

    def _fate(self, entry: Entry) -> tuple[int, bool, str, bytes]:
        """(status, which branch, why it is impossible, at which key), as far as it is decided before execution."""
        if entry.outcome is not None:
            known = decode_outcome(entry.outcome)
            return known.status, known.succeeded, known.reason, known.reason_key
        if entry.expired:
            return EXPIRED, False, "", b""
        if entry.decided is not None:
            decided = entry.decided
            if decided.digest != entry.digest:
                return MISMATCH, False, "", b""
            return decided.status, decided.succeeded, decided.failure, decided.failure_key
        if len(entry.message.destinations) == 1:
            return APPLIED, True, "", b""
        votes: list[Vote] = []
        for shard in entry.message.destinations:
            part = entry.own_part if shard == self.shard else entry.parts.get(shard)
            if part is None:
                continue  # without signals, a shard without conditions sends none
            if part.digest != entry.digest:
                return MISMATCH, False, "", b""
            votes.append(part.vote)
        succeeded = all(v.holds for v in votes)
        for v in votes:
            failure, key = (v.success_failure, v.success_key) if succeeded else (v.failure_failure, v.failure_key)
            if failure:
                return FAILED, succeeded, failure, key
        return APPLIED, succeeded, "", b""

    def _outcome(
        self, entry: Entry, status: int, succeeded: bool, execution: Execution, failure: str, failure_key: bytes
    ) -> Outcome:
        """What the audit reads."""
        digest = None
        if self.digest_every and entry.position % self.digest_every == 0:
            digest = self.store.state_digest()
        return Outcome(
            AUDIT_VERSION,
            entry.message.id,
            entry.timestamp,
            status,
            succeeded,
            tuple(Read(key, version) for key, version in execution.reads.items()),
            tuple(_write(key, value) for key, value in execution.writes.items()),
            digest,
            failure,
            failure_key,
        )

    def _remember(self, result: ShardResult) -> ShardResult:
        """Keep the result of this id; returns the one that stands."""
        if result.status == EXPIRED:
            first = self.store.remembered(result.id)
            if first is not None:
                return decode_shard_result(first)  # a repetition that came too late
        record = encode_shard_result(result)
        if len(record) > RESULT_BYTES_KEPT:
            record = encode_shard_result(_without_results(result))
        self.store.remember(result.id, record)
        return result

    def _report(self, entry: Entry, result: ShardResult, out: ApplicationOutbox) -> None:
        """Tell those who wait: clients here, or the entry replica elsewhere."""
        waiting = self.requests.by_id.get(result.id)
        if waiting is not None:
            waiting.results[self.shard] = result
            if not self._answer(waiting, out) and entry.message.origin != self.self_id:
                self._ask_for_results(waiting, out)  # the others report to the one who asked first
        shards = entry.message.destinations
        origin_shard = self.topology.group_of.get(entry.message.origin)
        if self._replaying or origin_shard in (None, self.shard) or self.leader_of(self.shard) != self.self_id:
            return
        reporting = reporting_shards(entry.plan.transaction, result.status, result.succeeded, self.shard_map)
        if self.shard in reporting or (origin_shard not in shards and self.shard == shards[0]):
            self._outgoing_results.setdefault(entry.message.origin, []).append(result)

    def _forget(self, timestamp: Timestamp) -> None:
        """Ids created more than REMEMBERED_WINDOWS before what is complete here: nobody may use them any more."""
        if not self.window_us or timestamp.time < self._last_forget + FORGET_EVERY_US:
            return
        self._last_forget = timestamp.time
        milliseconds = max(0, timestamp.time - REMEMBERED_WINDOWS * self.window_us) // 1000
        oldest = milliseconds.to_bytes(6, "big") + bytes(10)
        self.store.forget_before(oldest)
        for message_id in [i for i in self._early_parts if i < oldest]:
            del self._early_parts[message_id]
        self._settled_early = {message_id for message_id in self._settled_early if message_id >= oldest}

    # -- other replicas -----------------------------------------------------------------------------------------------

    def on_message(self, sender: ProcessId, message: Any, now: int, out: ApplicationOutbox) -> None:
        kind = type(message)
        if kind is Parts:
            self._on_parts(sender, message)
        elif kind is PartRequest:
            self._on_part_request(sender, message, out)
        elif kind is ShardResults:
            self._on_results(sender, message, out)
        else:
            for message_id in message.ids:
                record = self.store.remembered(message_id)
                if record is not None:
                    self._outgoing_results.setdefault(sender, []).append(decode_shard_result(record))
        self._advance(now, out)

    def _on_parts(self, sender: ProcessId, message: Parts) -> None:
        shard = message.shard
        if self.topology.group_of.get(sender) != shard:
            raise PeerError(f"a part of shard {shard} from a replica of another shard")
        for part in message.parts:
            entry = self._delivered.get(part.id)
            if entry is not None:
                if shard in entry.needed:
                    entry.parts[shard] = part
            elif self.store.remembered(part.id) is None:
                self._early_parts.setdefault(part.id, {})[shard] = part

    def _on_part_request(self, sender: ProcessId, message: PartRequest, out: ApplicationOutbox) -> None:
        found: list[Part] = []
        for message_id in message.ids:
            entry = self._delivered.get(message_id)
            if entry is not None:
                if entry.own_part is not None:
                    found.append(entry.own_part)
                continue
            kept = self.store.part(message_id)
            if kept is not None:
                found.append(decode_retained(kept).part())
                continue
            record = self.store.remembered(message_id)
            if record is not None:
                self._outgoing_results.setdefault(sender, []).append(decode_shard_result(record))
        if found:
            out.send((sender,), Parts(self.shard, found))

    def _on_results(self, sender: ProcessId, message: ShardResults, out: ApplicationOutbox) -> None:
        if self.topology.group_of.get(sender) != message.shard:
            raise PeerError(f"a result of shard {message.shard} from a replica of another shard")
        for result in message.results:
            entry = self._delivered.get(result.id)
            if entry is not None and message.shard in entry.message.destinations and entry.needed:
                entry.decided = result
            waiting = self.requests.by_id.get(result.id)
            if waiting is not None and message.shard in waiting.destinations:
                known = waiting.results.get(message.shard)
                if known is None or known.results is None:
                    waiting.results[message.shard] = result
                self._answer(waiting, out)

    def on_settled(self, message_id: MessageId, now: int, out: ApplicationOutbox) -> None:
        entry = self._delivered.get(message_id)
        if entry is not None:
            entry.settled = True
            self._settle_up_to(entry.timestamp, entry.message.destinations)
        elif self.store.remembered(message_id) is None:
            self._settled_early.add(message_id)  # this replica is behind and will deliver it
        else:
            kept = self.store.part(message_id)
            if kept is not None:
                self.store.drop_part(message_id)
                retained = decode_retained(kept)
                self._settle_up_to(retained.timestamp, retained.destinations)

    def _settle_up_to(self, timestamp: Timestamp, destinations: tuple[GroupId, ...]) -> None:
        """A quorum of each of these shards has completed everything up to there: so it is with what was found here at
        the start and concerns no other shards."""
        for shards in [shards for shards in self._doubtful if set(shards) <= set(destinations)]:
            queue = self._doubtful[shards]
            while queue and queue[0][0] <= timestamp:
                message_id = queue.popleft()[1]
                entry = self._delivered.get(message_id)
                if entry is not None:
                    entry.settled = True
                else:
                    self.store.drop_part(message_id)
            if not queue:
                del self._doubtful[shards]

    # -- batches and time ---------------------------------------------------------------------------------------------

    def end_batch(self, now: int, out: ApplicationOutbox) -> None:
        for shard, parts in self._outgoing_parts.items():
            out.send(self.topology.groups[shard], Parts(self.shard, parts))
        self._outgoing_parts = {}
        for receiver, results in self._outgoing_results.items():
            for some in _portions(results):
                out.send((receiver,), ShardResults(self.shard, some))
        self._outgoing_results = {}

    def on_tick(self, now: int, out: ApplicationOutbox) -> int | None:
        self._now = now
        for waiting in self.requests.due(now):
            if now - waiting.since > WAIT_US_MAX:
                self._finish(waiting, Refused("timeout", "no result in time", True, "unknown"), out)
            else:
                self._ask_for_results(waiting, out)
                self.requests.schedule(waiting, now)
        wake = self.requests.next_due()
        pull = self._pull_at()
        if pull is not None and pull <= now:
            self._pull(now, out)
            pull = now + self.part_retry_us
        if pull is not None and (wake is None or pull < wake):
            wake = pull
        return wake

    def _pull_at(self) -> int | None:
        if not self.log.entries:
            return None
        return max(self.log.entries[0].delivered_at, self._last_pull) + self.part_retry_us

    def _pull(self, now: int, out: ApplicationOutbox) -> None:
        """Ask for the parts that the first transactions of the log have been waiting for too long."""
        self._last_pull = now
        head = self.log.entries[0]
        head.pulls += 1
        if head.pulls % PULLS_BEFORE_FETCH == 0:
            peer = self._peer(self.shard, self._pulls)
            if peer is not None:
                out.fetch_outcomes(peer)
        wanted: dict[GroupId, list[MessageId]] = {}
        for entry in islice(self.log.entries, PULL_MAX):
            if entry.delivered_at + self.part_retry_us > now:
                break
            for shard in entry.missing():
                wanted.setdefault(shard, []).append(entry.message.id)
        for shard, ids in wanted.items():
            peer = self._peer(shard, self._pulls)
            if peer is not None:
                out.send((peer,), PartRequest(ids))
                self.parts_pulled += len(ids)
        self._pulls += 1


def _write(key: bytes, value: bytes | None) -> Write:
    if value is not None and len(value) > VALUE_BYTES_KEPT:
        return Write(key, blake2b(value, digest_size=16).digest(), True)
    return Write(key, value)


def _same_state(computed: Outcome, known: Outcome) -> bool:
    """Whether replaying gave the state that the record was made with, as far as both say."""
    return computed.state_digest == known.state_digest or None in (computed.state_digest, known.state_digest)


def _portions(results: list[ShardResult]) -> list[list[ShardResult]]:
    """Portions for one message each, of about RESULT_BYTES_MAX."""
    portions: list[list[ShardResult]] = [[]]
    size = 0
    for result in results:
        more = result_bytes(result.results or [])
        if portions[-1] and size + more > RESULT_BYTES_MAX:
            portions.append([])
            size = 0
        portions[-1].append(result)
        size += more
    return portions


def _without_results(result: ShardResult) -> ShardResult:
    return ShardResult(
        result.id,
        result.digest,
        result.timestamp,
        result.status,
        result.succeeded,
        result.failure,
        result.failure_key,
        None,
    )
