"""A replica of one shard: executes transactions strictly in delivery order. Pure; an `Application` of the engine.

Theory of operation. A client's `Execute` becomes a transaction of a multicast message, a bundle of them, to the shards
of its keys (`clients`, `bundler`). Deliveries enter the log. A bundle completes at the head of the log, once the parts
of the other shards that it concerns are there (`signals`): its transactions take effect one after the other, their
outcomes go to the journal, their results are remembered beside their ids and answer the clients.

Reads without an id need no order: of now (`reads`, `collects`) or of the past (`versions`). Who watches is told what
completed, in all shards (`changes`, `watches`).

The way of a put, from HTTP to LMDB and back, is `kvstore/WAY.md`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kvstore.api.model import BUNDLE_RESULT_BYTES_MAX, FIRST_KEY, NO_LEASE, Move, OperationResult
from kvstore.api.shard_map import ShardMap
from kvstore.core.accounts import STATUS_NAMES, account, given_by, outcome_of, outcome_of_step
from kvstore.core.audit import (
    APPLIED,
    EXPIRED,
    FAILED,
    MISMATCH,
    MOVED,
    REPEATED,
    MoveOutcome,
    Outcome,
    Outcomes,
    decode_outcomes,
)
from kvstore.core.bundles import (
    CREATES_VERSION,
    LIMITED_VERSION,
    NO_ID,
    decode_bundle,
    decode_transaction,
    format_of,
    is_single,
    version_of,
)
from kvstore.core.changes import Changes
from kvstore.core.clients import RESULT_BYTES_KEPT, Clients
from kvstore.core.collects import Collects
from kvstore.core.execution import Execution
from kvstore.core.fates import SUCCEEDED, Fate
from kvstore.core.leases import Leases
from kvstore.core.log import Entry, Held, Item, Log
from kvstore.core.messages import (
    MESSAGES,
    ChangesAfter,
    ChangesTold,
    Decisions,
    Follow,
    PartRequest,
    Parts,
    PositionRequest,
    PositionTold,
    ReadAt,
    ReadAtTold,
    ReadNow,
    ReadNowTold,
    ResultRequest,
    ShardResult,
    ShardResults,
    ShardState,
)
from kvstore.core.moves import Moves, moved
from kvstore.core.peers import Peers
from kvstore.core.plans import LocalPlan
from kvstore.core.reads import Reads, Unread
from kvstore.core.requests import forgotten_before
from kvstore.core.rights import Rights
from kvstore.core.shards import SILENT_US, Shards
from kvstore.core.signals import SignalRule, Signals
from kvstore.core.state import State
from kvstore.core.versions import Versions
from kvstore.core.watches import Watches
from multicast.application import Application, ApplicationOutbox
from multicast.records import Delivered
from multicast.types import AppMessage, GroupId, MessageId, ProcessId, Timestamp, Topology, created_us, oldest_id

DEDUP_WINDOW_US = 120_000_000
CLOCK_AHEAD_US_MAX = 10_000_000
PART_RETRY_US = 200_000
DIGEST_EVERY = 1000
FORGET_EVERY_US = 1_000_000

_TOLD_BY_SHARDS = frozenset([kind for kind in MESSAGES if "shard" in kind.__struct_fields__])


class Replica(Application):
    """One replica's application.

    shard_map: at first. store: its state, of the first `position` deliveries. signals: see `SignalRule`.
    dedup_window_us: the protocol's option of that name; 0: ids never expire and are remembered for ever.
    leader_of: the protocol's. digest_every: the state's digest is part of the outcome of every delivery whose number is
        a multiple of this; 0: of none.
    part_retry_us: how long to wait for parts before pulling them. clock_ahead_us_max: how far ahead of this replica's
        clock the creation of an id may be. real_clock: the protocol's; what ids are compared with. Where it knows
        nothing, by `now` only what may wait is refused. rng: for the ids of messages.
    leader_reads: the protocol's `Specification.leader_reads`.
    shared_reads: False: what no leader can answer alone is ordered.
    has_majority, waits_for: the protocol's. full(), silent_us: see `Shards`.
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
        rng: random.Random,
        leader_reads: bool = False,
        shared_reads: bool = True,
        has_majority: Callable[[], bool] = lambda: True,
        waits_for: Callable[[], Sequence[GroupId]] = lambda: (),
        full: Callable[[], bool] = lambda: False,
        silent_us: int = SILENT_US,
    ):
        self.peers = Peers(self_id, topology, leader_of)
        self.shard = self.peers.shard
        self.rights = Rights(store)
        self.moves = Moves(self.shard, shard_map, store, dedup_window_us)
        self.store = store
        self.position = store.position
        self.window_us = dedup_window_us
        self.digest_every = digest_every
        self.log = Log(store.position, signal_at_delivery=signals != "rule")
        self._held: deque[Held] = deque()
        self.shards = Shards(self.peers, self.moves, has_majority, self._lacks, full, silent_us)
        self._waits_for = waits_for
        self._unread: Unread = []
        self.reads = Reads(
            self.peers, self.moves, store, self.log, self.shards, real_clock, rng, leader_reads and signals == "rule",
            shared_reads and signals != "off", self._unread,
        )  # fmt: skip

        def known_time(now: int) -> int:
            """0 where versions count events: no window is possible. Versions that are complete here may be ahead."""
            real = real_clock(now) if dedup_window_us else 0
            return real and max(real, store.complete_to.time)

        self.changes = Changes(self.peers, store)
        self.watches = Watches(self.peers, self.changes, store, known_time, clock_ahead_us_max, rng)
        self.versions = Versions(
            self.peers, self.moves, store, self.log, known_time, clock_ahead_us_max, rng, self.changes.wanted,
            self.shards, self._unread,
        )  # fmt: skip
        self.collects = Collects(self.peers, self.moves, self.versions, rng, self._unread)
        self.clients = Clients(
            self.peers, self.moves, store, self.log, dedup_window_us, clock_ahead_us_max, real_clock, rng, self.reads,
            self.collects, self.versions, self.shards,
        )  # fmt: skip
        self.leases = Leases(self.peers, self.moves, store, self.shards, lambda now: real_clock(now) or now, rng)
        self.signals = Signals(self.peers, self.moves, store, self.log, signals, part_retry_us)
        self._handlers: dict[type, Callable[[ProcessId, Any, int, ApplicationOutbox], object]] = {
            Parts: lambda _, message, now, out: self.signals.on_parts(message),
            PartRequest: lambda sender, message, now, out: self.signals.on_part_request(sender, message, out),
            Decisions: lambda _, message, now, out: self.signals.on_decisions(message),
            ShardState: self._on_shard_state,
            ShardResults: self.clients.on_results,
            ResultRequest: lambda sender, message, now, out: self.clients.tell(sender, message, out),
            ReadAt: self.versions.on_read_at,
            ReadAtTold: self.versions.on_found,
            ReadNow: self.reads.on_read_now,
            ReadNowTold: lambda _, message, now, out: self.collects.on_found(message, now, out),
            PositionRequest: lambda sender, message, now, out: self.reads.on_position_request(sender, message, out),
            PositionTold: self.reads.positions.on_told,
            ChangesAfter: self.changes.ask,
            ChangesTold: self.watches.on_told,
        }
        self._replaying = True
        self.last_forget_us = 0
        self._now = 0
        self.transactions = dict.fromkeys(STATUS_NAMES.values(), 0)

    def status(self) -> dict[str, Any]:
        """Numbers for status pages and metrics, as of the last batch. JSON-ready."""
        head = self.log.entries[0] if self.log.entries else None
        return {
            "position": self.log.completed,
            "log_length": len(self.log) + len(self._held),
            "head_waiting_for": head.missing() if head else [],
            "head_waiting_us": self._now - head.delivered_at if head else 0,
            "shards_in_trouble": [text for shard in self.peers.replicas if (text := self.trouble(shard))],
            "requests_waiting": len(self.clients.requests),
            "bundles": self.clients.bundler.bundles,
            "bundled": self.clients.bundler.bundled,
            "reads_unordered": self.reads.unordered,
            "read_barriers": self.reads.positions.barriers,
            "reads_at_version": self.versions.served,
            "watches_waiting": len(self.watches),
            "watch_buffer_bytes": self.watches.buffer_bytes,
            "watched_transactions": self.watches.released,
            "watches_lagged": self.watches.lagged,
            "oldest_version": str(self.store.floor),
            "moves": self.moves.status(),
            "leases": len(self.leases),
            "leases_expired": self.leases.expired,
            "parts_pushed": self.signals.pushed,
            "parts_pulled": self.signals.pulled,
            "transactions": dict(self.transactions),
        }

    def on_start(self, now: int, out: ApplicationOutbox) -> None:
        self._replaying = False
        self._now = now
        self.signals.start([held.delivery for held in self._held])
        self.shards.start(now)

    def trouble(self, shard: GroupId) -> str:
        """See `Shards.trouble`; as of the last batch."""
        return self.shards.trouble(shard, self._now)

    def _lacks(self) -> set[GroupId]:
        """The shards without whose word this one does not go on: those that block a delivery, or the completion of a
        bundle."""
        head = self.log.entries[0] if self.log.entries else None
        return {*self._waits_for(), *(head.missing() if head else ())} - {self.shard}

    # -- requests -----------------------------------------------------------------------------------------------------

    def on_request(self, token: int, request: Any, now: int, out: ApplicationOutbox) -> None:
        """`Execute` or `Lookup`, answered with `Answered` or `Refused`; `Follow`, see there."""
        if type(request) is Follow:
            self.watches.add(token, request, now, out)
        else:
            self.clients.on_request(token, request, now, out)

    def forget(self, token: int) -> None:
        """Nobody waits for the answer to this request any longer. It may have its effect all the same."""
        self.reads.forget(token)
        self.collects.forget(token)

    def on_refused(self, message: AppMessage, reason: str, now: int, out: ApplicationOutbox) -> None:
        self.reads.positions.on_refused(message.id, reason)
        self.clients.on_refused(message.id, reason, now, out)
        self._read(now, out)

    def on_readable(self, token: int, position: int | None, now: int, out: ApplicationOutbox) -> None:
        self.reads.positions.on_readable(token, position)
        self._read(now, out)

    def _read(self, now: int, out: ApplicationOutbox) -> None:
        """Answer the reads that can be answered now, and have the unread ordered."""
        self.reads.advance(out)
        while self._unread:
            self.clients.order(*self._unread.pop(0), now, out)

    # -- the log ------------------------------------------------------------------------------------------------------

    def on_deliver(self, delivery: Delivered, outcome: bytes | None, now: int, out: ApplicationOutbox) -> None:
        if delivery.position == 0:
            return
        self.reads.positions.on_deliver(delivery.message.id, delivery.position)
        if self._held or self.log.moving:
            self._held.append(Held(delivery, outcome, now))
        else:
            self._append(delivery, outcome, now)
        self._advance(now, out)

    def _append(self, delivery: Delivered, outcome: bytes | None, at: int, settled: bool = False) -> None:
        """The next delivery enters the log. Every step of a move before it is complete."""
        message = delivery.message
        if not self.log.entries:
            self.log.completed = delivery.position - 1
        shards = message.destinations
        items = self._items(delivery)
        needed = self.signals.needed(items, shards) if len(shards) > 1 else ()
        entry = Entry(delivery.position, message, delivery.timestamp, items, needed, outcome, at)
        entry.settled = settled
        self.signals.delivered(entry)
        for unblocked in self.log.append(entry):
            self.signals.ready(unblocked, self._replaying)

    def _items(self, delivery: Delivered) -> list[Item]:
        """The transactions of a delivery, and whether their ids were delivered before."""
        message, at, window_us, position = delivery.message, delivery.timestamp, self.window_us, delivery.position
        shards, known, remembered = message.destinations, self.log.items, self.store.remembered
        oldest = oldest_id(at.time - window_us) if window_us else NO_ID
        moves, homes_of = self.moves, self.moves.first_map.homes_of
        owns = moves.owns if len(shards) > 1 else None
        single, bundle = is_single(message.payload), decode_bundle(message)
        form, digest_of = format_of(message), self.clients.requests.digest_of
        creates, limited = form >= CREATES_VERSION, form >= LIMITED_VERSION
        items: list[Item] = []
        for index, bundled in enumerate(bundle):
            message_id, plan = bundled.id, LocalPlan(decode_transaction(bundled), owns, limited)
            version = at if single else version_of(at, index)
            if not message_id:
                item = Item(message_id, plan, b"", version, delivery.expired, position)
            else:
                slots, homes = homes_of(plan.transaction)
                expired, digest = delivery.expired or message_id < oldest, digest_of(message_id, bundled.body, homes)
                item = Item(message_id, plan, digest, version, expired, position, slots)
                if not expired:
                    earlier = known.get(message_id)
                    if earlier is not None:
                        item.follow(earlier)
                    else:
                        if (record := remembered(message_id)) is not None:
                            item.look_back(record)
                        if item.earlier is None:
                            known[message_id] = item
            if not creates:
                item.create_version = version
            if moves.places:
                item.places = moves.told(plan.transaction)
            items.append(item)
        return items

    def on_outcome(self, position: int, outcome: bytes, now: int, out: ApplicationOutbox) -> None:
        entries = self.log.entries
        if entries and entries[0].position <= position <= entries[-1].position:
            entries[position - entries[0].position].outcome = outcome
        elif self._held and 0 <= position - self._held[0].delivery.position < len(self._held):
            self._held[position - self._held[0].delivery.position].outcome = outcome
        self._advance(now, out)

    def _advance(self, now: int, out: ApplicationOutbox) -> None:
        """Complete what is ready at the head of the log, and let in what was held."""
        log, held = self.log, self._held
        while True:
            while log.entries and log.entries[0].ready:
                self._complete(log.entries[0], now, out)
                for unblocked in log.complete():
                    self.signals.ready(unblocked, self._replaying)
            if not held or log.moving:
                break
            following = held.popleft()
            self._append(following.delivery, following.outcome, following.at, following.settled)
        self.versions.advance(now, out)
        self.watches.advance(now, out)
        self._read(now, out)

    def _complete(self, entry: Entry, now: int, out: ApplicationOutbox) -> None:
        """The bundle at the head takes effect."""
        known = decode_outcomes(entry.outcome) if entry.outcome is not None else None
        outcomes: list[Outcome] = []
        results: list[ShardResult] = []
        read = 0
        write, transactions, wrote = self.store.write, self.transactions, self.moves.leaving and self.moves.wrote
        for index, item in enumerate(entry.items):
            fate, execution = self._execute(entry, index, item, known)
            leases, created = execution.leases, item.create_version
            for key, value in execution.writes.items():
                write(key, value, item.version, created, leases.get(key, NO_LEASE))
                if key < FIRST_KEY:
                    self.leases.wrote(key, value, item.version, now)
                if wrote:
                    wrote(key)
            if None in execution.writes.values():
                self.log.deleted_at = entry.position
            transactions[STATUS_NAMES[fate.status]] += 1
            if entry.move is None:
                outcomes.append(outcome_of(item.id, fate, execution))
            else:
                outcomes.append(self._step(entry, entry.move, fate, execution, known, now, out))
            large = execution.read_bytes > RESULT_BYTES_KEPT
            read += large * execution.read_bytes
            told = None if large and read > BUNDLE_RESULT_BYTES_MAX else execution.told
            results.append(ShardResult(item.id, item.digest, item.version, *fate[:4], told, fate.truths))
        digest = None
        if self.digest_every and entry.position % self.digest_every == 0:
            digest = self.store.state_digest()
        if known is not None and None not in (digest, known.state_digest) and digest != known.state_digest:
            raise AssertionError(
                f"the state after delivery {entry.position} is not the one that its journal record names"
            )
        out.complete(entry.position, entry.outcome or account(entry, outcomes, digest))
        self.signals.completed(entry, any([result.status == MOVED and result.id for result in results]))
        self.clients.completed(entry, results, self._replaying, now, out)
        self._forget(entry.timestamp)
        self.store.reached(entry.position, entry.timestamp)

    def _step(
        self, entry: Entry, move: Move, fate: Fate, execution: Execution, known: Outcomes | None, now: int,
        out: ApplicationOutbox,
    ) -> MoveOutcome:
        """The bundle at the head is a step of a move."""
        given = None
        if fate.status == APPLIED:
            given = given_by(entry, move, known, self.shard)
            before = self.moves.map
            self.moves.step(move, given, entry.timestamp)
            self.log.deleted_at = entry.position
            if given.slots:  # with their leases, whether the map was known before or not
                self.leases.moved()
            if self.moves.map is not before:
                self.clients.on_map(now, out)
            execution.results = [(0, OperationResult(more=not given.last))]
        return outcome_of_step(entry.items[0].id, fate, move, given)

    def _execute(self, entry: Entry, index: int, item: Item, known: Outcomes | None) -> tuple[Fate, Execution]:
        """What becomes of one of its transactions, and what that reads and writes here."""
        fate, plan = self._fate(entry, index, item, known), item.plan
        execution = Execution(self.store, item.version, plan.limited)
        if plan.transaction.by and known is None and fate.status in (APPLIED, FAILED):
            fate = Fate(FAILED, False, *denied) if (denied := self.rights.denied(plan.transaction)) else fate
        if fate.status in (APPLIED, FAILED) and entry.move is None:
            execution.compared = item.compared or {}
            if item.compared is None:
                holds, truths = execution.judge(plan)
                if fate.status == APPLIED and known is None and len(entry.message.destinations) == 1:
                    fate = Fate(APPLIED, holds, "", b"", truths)
            if fate.status == APPLIED:
                execution.run(plan.course(fate.succeeded, fate.truths))
                if execution.failure:
                    fate = fate._replace(status=FAILED, failure=execution.failure, failure_key=execution.failure_key)
        return fate, execution

    def _fate(self, entry: Entry, index: int, item: Item, known: Outcomes | None) -> Fate:
        """As far as it is decided before execution, by whoever knows it first; see `kvstore.core.fates`."""
        if known is not None:
            return Fate.recorded(known.outcomes[index])
        if item.expired:
            return Fate(EXPIRED)
        if item.after:
            item.look_back(self.store.remembered(item.id))
        shards, decided = entry.message.destinations, entry.decided
        alone = len(shards) == 1
        if item.earlier is not None and (alone or decided is not None):
            return Fate(MISMATCH if item.reused else REPEATED)
        if alone:
            return Fate(MOVED) if item.places and moved([item.places], shards) else SUCCEEDED
        if decided is not None:
            return Fate.told(decided[index], item.digest)
        return Fate.voted(item.plan, entry.votes(index, self.shard), shards)

    def _forget(self, timestamp: Timestamp) -> None:
        """Everything up to `timestamp` is complete here: forget what nobody may use any more."""
        if self.window_us and timestamp.time >= self.last_forget_us + FORGET_EVERY_US:
            self.last_forget_us = timestamp.time
            oldest = forgotten_before(timestamp, self.window_us)
            self.store.forget_before(oldest)
            self.signals.forget_before(created_us(oldest))

    # -- other replicas -----------------------------------------------------------------------------------------------

    def on_message(self, sender: ProcessId, message: Any, now: int, out: ApplicationOutbox) -> None:
        kind = type(message)
        if kind in _TOLD_BY_SHARDS:
            self.peers.check(sender, message.shard, kind.__name__)
        self._handlers[kind](sender, message, now, out)
        self._advance(now, out)

    def _on_shard_state(self, sender: ProcessId, message: ShardState, now: int, out: ApplicationOutbox) -> None:
        if self.shards.on_state(message, now) and self.moves.learn(message.places):
            self.clients.on_map(now, out)

    def on_settled(
        self, message_id: MessageId, timestamp: Timestamp, groups: tuple[GroupId, ...], now: int,
        out: ApplicationOutbox,
    ) -> None:
        for held in self._held:
            held.settled |= held.delivery.timestamp == timestamp
        self.signals.on_settled(message_id, timestamp, groups)

    # -- batches and time ---------------------------------------------------------------------------------------------

    def end_batch(self, now: int, out: ApplicationOutbox) -> None:
        if self._unread:  # of a request, or of what another shard has told
            self._read(now, out)
        self.signals.end_batch(out)
        self.reads.end_batch(now, out)
        self.versions.end_batch(now, out)
        self.clients.end_batch(now, out)

    def on_tick(self, now: int, out: ApplicationOutbox) -> int | None:
        self._now = now
        parts = self.clients, self.signals, self.shards, self.versions, self.watches, self.reads, self.collects
        wakes = [part.on_tick(now, out) for part in (*parts, self.leases)]
        if self._unread:
            self._read(now, out)
            wakes.append(self.clients.on_tick(now, out))
        return min([wake for wake in wakes if wake is not None])
