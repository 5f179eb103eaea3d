"""A replica of one shard: executes transactions strictly in delivery order. Pure; an `Application` of the engine.

Theory of operation. A client's `Execute` becomes one multicast message to the shards of its keys (`clients`).
Deliveries enter the log. A transaction completes at the head of the log, once the parts of the other shards that it
concerns are there (`signals`): its effects become visible, its outcome goes to the journal, its result is remembered
beside its id and answers the client.

So the way of a put is `on_request`, `Clients.on_request`, the protocol, `on_deliver`, `_advance`, `_complete`,
`Clients.completed`.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NamedTuple

from kvstore.api.model import RESULT_BYTES_MAX
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
from kvstore.core.clients import Clients, forgotten_before
from kvstore.core.execution import Execution, LocalPlan, result_bytes
from kvstore.core.log import Entry, Log
from kvstore.core.messages import (
    MESSAGES,
    PartRequest,
    Parts,
    ShardResult,
    ShardResults,
    Vote,
    decode_payload,
    request_digest,
)
from kvstore.core.peers import Peers
from kvstore.core.signals import SignalRule, Signals
from kvstore.core.state import State
from multicast.protocol import Application, ApplicationOutbox
from multicast.records import Delivered
from multicast.types import AppMessage, GroupId, MessageId, ProcessId, Timestamp, Topology

DEDUP_WINDOW_US = 120_000_000
CLOCK_AHEAD_US_MAX = 10_000_000
PART_RETRY_US = 200_000
DIGEST_EVERY = 1000
FORGET_EVERY_US = 1_000_000

_STATUS_NAMES = {APPLIED: "applied", EXPIRED: "expired", FAILED: "failed", MISMATCH: "mismatch"}


class Fate(NamedTuple):
    """How a transaction ends. status: of `kvstore.core.audit`. succeeded: which branch runs. failure, failure_key: why
    it is impossible, if it is, and at which key."""

    status: int
    succeeded: bool = False
    failure: str = ""
    failure_key: bytes = b""


class Replica(Application):
    """One replica's application.

    store: its state, of the first `position` deliveries. signals: see `SignalRule`.
    dedup_window_us: the protocol's option of that name; 0: ids never expire and are remembered for ever.
    leader_of: the protocol's. digest_every: the state's digest is part of the outcome of every delivery whose number is
        a multiple of this; 0: of none.
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
        signals: SignalRule = "rule",
        dedup_window_us: int = DEDUP_WINDOW_US,
        leader_of: Callable[[GroupId], ProcessId | None],
        digest_every: int = DIGEST_EVERY,
        part_retry_us: int = PART_RETRY_US,
        clock_ahead_us_max: int = CLOCK_AHEAD_US_MAX,
        real_clock: Callable[[int], int] = int,
    ):
        self.peers = Peers(self_id, topology, leader_of)
        self.shard = self.peers.shard
        self.shard_map = shard_map
        self.store = store
        self.position = store.position
        self.window_us = dedup_window_us
        self.digest_every = digest_every
        self.log = Log(signal_at_delivery=signals != "rule")
        self.clients = Clients(
            self.peers, shard_map, store, self.log, dedup_window_us, clock_ahead_us_max, real_clock
        )
        self.signals = Signals(self.peers, shard_map, store, self.log, self.clients, signals, part_retry_us)
        self._replaying = True
        self._last_forget = 0
        self._now = 0
        self.transactions = dict.fromkeys(_STATUS_NAMES.values(), 0)

    def status(self) -> dict[str, Any]:
        """Numbers for status pages and metrics, as of the last batch. JSON-ready."""
        head = self.log.entries[0] if self.log.entries else None
        return {
            "position": self.log.completed,
            "log_length": len(self.log),
            "head_waiting_for": head.missing() if head else [],
            "head_waiting_us": self._now - head.delivered_at if head else 0,
            "requests_waiting": len(self.clients.requests),
            "parts_pushed": self.signals.pushed,
            "parts_pulled": self.signals.pulled,
            "transactions": dict(self.transactions),
        }

    def on_start(self, now: int, out: ApplicationOutbox) -> None:
        self._replaying = False
        self._now = now
        self.signals.start()

    # -- requests -----------------------------------------------------------------------------------------------------

    def on_request(self, token: int, request: Any, now: int, out: ApplicationOutbox) -> None:
        """`Execute`; answered with `Answered` or `Refused`."""
        self.clients.on_request(token, request, now, out)

    def on_refused(self, message: AppMessage, reason: str, now: int, out: ApplicationOutbox) -> None:
        self.clients.on_refused(message.id, reason, out)

    # -- the log ------------------------------------------------------------------------------------------------------

    def on_deliver(self, delivery: Delivered, outcome: bytes | None, now: int, out: ApplicationOutbox) -> None:
        if delivery.position == 0:
            return
        message = delivery.message
        if not self.log.entries:
            self.log.completed = delivery.position - 1
        transaction = decode_payload(message.payload)
        shards = message.destinations
        plan = LocalPlan(transaction, self._owns if len(shards) > 1 else None)
        digest = request_digest(message.id, message.payload, shards)
        needed = self.signals.needed(transaction, shards) if len(shards) > 1 else ()
        at, expired = delivery.timestamp, delivery.expired
        entry = Entry(delivery.position, message, at, expired, plan, digest, needed, outcome, now)
        self.signals.delivered(entry)
        for unblocked in self.log.append(entry):
            self.signals.ready(unblocked, self._replaying)
        self._advance(now, out)

    def on_outcome(self, position: int, outcome: bytes, now: int, out: ApplicationOutbox) -> None:
        entries = self.log.entries
        if entries and entries[0].position <= position <= entries[-1].position:
            entries[position - entries[0].position].outcome = outcome
        self._advance(now, out)

    def _owns(self, key: bytes) -> bool:
        return self.shard_map.shard_of(key) == self.shard

    def _advance(self, now: int, out: ApplicationOutbox) -> None:
        """Complete what is ready at the head."""
        log = self.log
        while log.entries and log.entries[0].ready:
            self._complete(log.entries[0], out)
            for unblocked in log.complete():
                self.signals.ready(unblocked, self._replaying)

    def _complete(self, entry: Entry, out: ApplicationOutbox) -> None:
        """The head takes effect."""
        fate, execution = self._execute(entry)
        for key, value in execution.writes.items():
            self.store.write(key, value, entry.timestamp)
        outcome = self._outcome(entry, fate, execution)
        if entry.outcome is not None and not _same_state(outcome, decode_outcome(entry.outcome)):
            raise AssertionError(
                f"the state after delivery {entry.position} is not the one that its journal record names"
            )
        self.transactions[_STATUS_NAMES[fate.status]] += 1
        results = execution.results if result_bytes(execution.results) <= RESULT_BYTES_MAX else None
        result = ShardResult(entry.message.id, entry.digest, entry.timestamp, *fate, results)
        out.complete(entry.position, entry.outcome or encode_outcome(outcome))
        self.signals.completed(entry)
        self.clients.completed(entry, result, self._replaying, out)
        self._forget(entry.timestamp)

    def _execute(self, entry: Entry) -> tuple[Fate, Execution]:
        """What becomes of it, and what that reads and writes here."""
        fate, plan = self._fate(entry), entry.plan
        execution = Execution(self.store, entry.timestamp)
        if fate.status in (APPLIED, FAILED):
            holds = execution.compare(plan.compares)
            if fate.status == APPLIED:
                if len(entry.message.destinations) == 1 and entry.outcome is None:
                    fate = Fate(APPLIED, holds)
                execution.run(plan.success if fate.succeeded else plan.failure)
                if execution.failure:
                    fate = Fate(FAILED, fate.succeeded, execution.failure, execution.failure_key)
        return fate, execution

    def _fate(self, entry: Entry) -> Fate:
        """As far as it is decided before execution."""
        if entry.outcome is not None:
            known = decode_outcome(entry.outcome)
            return Fate(known.status, known.succeeded, known.reason, known.reason_key)
        if entry.expired:
            return Fate(EXPIRED)
        if entry.decided is not None:
            decided = entry.decided
            if decided.digest != entry.digest:
                return Fate(MISMATCH)
            return Fate(decided.status, decided.succeeded, decided.failure, decided.failure_key)
        if len(entry.message.destinations) == 1:
            return Fate(APPLIED)
        votes: list[Vote] = []
        for shard in entry.message.destinations:
            part = entry.own_part if shard == self.shard else entry.parts.get(shard)
            if part is None:
                continue  # without signals, a shard without conditions sends none
            if part.digest != entry.digest:
                return Fate(MISMATCH)
            votes.append(part.vote)
        succeeded = all(v.holds for v in votes)
        for v in votes:
            failure, key = (v.success_failure, v.success_key) if succeeded else (v.failure_failure, v.failure_key)
            if failure:
                return Fate(FAILED, succeeded, failure, key)
        return Fate(APPLIED, succeeded)

    def _outcome(self, entry: Entry, fate: Fate, execution: Execution) -> Outcome:
        """What the audit reads."""
        digest = None
        if self.digest_every and entry.position % self.digest_every == 0:
            digest = self.store.state_digest()
        return Outcome(
            AUDIT_VERSION,
            entry.message.id,
            entry.timestamp,
            fate.status,
            fate.succeeded,
            tuple(Read(key, version) for key, version in execution.reads.items()),
            tuple(_write(key, value) for key, value in execution.writes.items()),
            digest,
            fate.failure,
            fate.failure_key,
        )

    def _forget(self, timestamp: Timestamp) -> None:
        """What nobody may use any more when everything up to `timestamp` is complete here."""
        if self.window_us and timestamp.time >= self._last_forget + FORGET_EVERY_US:
            self._last_forget = timestamp.time
            oldest = forgotten_before(timestamp, self.window_us)
            self.store.forget_before(oldest)
            self.signals.forget_before(oldest)

    # -- other replicas -----------------------------------------------------------------------------------------------

    def on_message(self, sender: ProcessId, message: Any, now: int, out: ApplicationOutbox) -> None:
        kind = type(message)
        if kind is Parts:
            self.peers.check(sender, message.shard, "a part")
            self.signals.on_parts(message)
        elif kind is PartRequest:
            self.signals.on_part_request(sender, message, out)
        elif kind is ShardResults:
            self.peers.check(sender, message.shard, "a result")
            self._decide(message)
            self.clients.on_results(message, out)
        else:
            for message_id in message.ids:
                self.clients.tell(sender, message_id)
        self._advance(now, out)

    def _decide(self, message: ShardResults) -> None:
        """How transactions ended in another shard, which has completed them, is how they end here."""
        for result in message.results:
            entry = self.log.by_id.get(result.id)
            if entry is not None and message.shard in entry.message.destinations and entry.needed:
                entry.decided = result

    def on_settled(self, message_id: MessageId, now: int, out: ApplicationOutbox) -> None:
        self.signals.on_settled(message_id)

    # -- batches and time ---------------------------------------------------------------------------------------------

    def end_batch(self, now: int, out: ApplicationOutbox) -> None:
        self.signals.end_batch(out)
        self.clients.end_batch(out)

    def on_tick(self, now: int, out: ApplicationOutbox) -> int | None:
        self._now = now
        results, parts = self.clients.on_tick(now, out), self.signals.on_tick(now, out)
        return parts if results is None or (parts is not None and parts < results) else results


def _write(key: bytes, value: bytes | None) -> Write:
    if value is not None and len(value) > VALUE_BYTES_KEPT:
        return Write(key, blake2b(value, digest_size=16).digest(), True)
    return Write(key, value)


def _same_state(computed: Outcome, known: Outcome) -> bool:
    """Whether replaying gave the state that the record was made with, as far as both say."""
    return computed.state_digest == known.state_digest or None in (computed.state_digest, known.state_digest)
