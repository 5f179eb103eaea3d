"""Bugs planted in the replicas and stores of `kvstore`, each a small, named class that overrides a method or two.

Every check of `kvstore.simulated.checks`, liveness, and the replica's own assertion on replay have at least one that
they find: `checker` names it. tests/kvstore/test_simulated_planted.py demands it.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import kvstore.core.clients
import kvstore.core.collects
import kvstore.core.reads
import kvstore.core.replica
import kvstore.simulated.cluster
import kvstore.storage.cut
import kvstore.storage.store
import multicast.engine
import multicast.parts.replicated
import multicast.parts.sequence
import multicast.protocols.primcast
import multicast.protocols.white_box
import multicast.simulation.world
from kvstore.api.model import Get, Result
from kvstore.core.bundler import Bundler
from kvstore.core.bundles import decode_bundle, version_of
from kvstore.core.clients import Clients
from kvstore.core.execution import Execution
from kvstore.core.fates import Fate
from kvstore.core.log import Entry, Log
from kvstore.core.lookups import Lookups
from kvstore.core.messages import Answered, decode_remembered
from kvstore.core.reads import Reads
from kvstore.core.replica import Replica
from kvstore.core.requests import Waiting
from kvstore.core.signals import Signals
from kvstore.simulated.runner import Outcome, run_seed
from kvstore.simulated.settings import Settings
from kvstore.storage.backend import DATA, META, Changes
from kvstore.storage.store import Store
from multicast.application import ApplicationOutbox
from multicast.protocol import MulticastProtocol
from multicast.records import Delivered
from multicast.types import MessageId, Timestamp
from tests.planted import known_seed
from tests.planted.rewriting import rewrite

FAULTS = Settings(protocol="white_box")
SHORT = Settings(protocol="white_box", seconds=1.0, clients=3)
CHASE = Settings(protocol="skeen", profile="chase", shards=3)
WINDOW = Settings(protocol="white_box", seconds=1.0, clients=4, size="small", options={"dedup_window_us": "1000000"})
TWO_SHARDS = Settings(protocol="white_box", size="small", shards=2)
ONE_SHARD = Settings(protocol="white_box", seconds=1.0, clients=6, size="small", shards=1)

_MODULES = (
    kvstore.core.clients, kvstore.core.collects, kvstore.core.reads, kvstore.core.replica, kvstore.simulated.cluster,
    kvstore.storage.cut, kvstore.storage.store, multicast.engine, multicast.parts.replicated, multicast.parts.sequence,
    multicast.protocols.primcast, multicast.protocols.white_box, multicast.simulation.world,
)  # fmt: skip


# -- in the replica ---------------------------------------------------------------------------------------------------


@rewrite("_blocker", "if self.entries:", "if False:")
class VotesReadTooEarly(Log):
    """A vote is read at delivery, though earlier transactions still write what it depends on."""


@rewrite("votes", "self.own_part if one == shard else self.parts.get(one)", "self.own_part")
class RemoteVotesIgnored(Entry):
    """A shard goes by its own vote alone: half a transfer happens."""


@rewrite("voted", "succeeded = all([v.holds for v in votes])", "succeeded = any([v.holds for v in votes])")
class OneVoteIsEnough(Fate):
    """A transaction succeeds when the conditions of one shard hold."""


@rewrite(
    "_multicast",
    "NO_ID if w.unnamed else w.id, w.body",
    "NO_ID if w.unnamed else w.id if now - created_us(w.id) < 300_000 else message_id, w.body",
)
class RepetitionUnderAnotherId(Bundler):
    """What is asked again later is multicast under a fresh id, so that nobody can know it for a repetition."""


class AnsweredAtDelivery(Replica):
    """The client hears of success before the transaction is complete: of what it would have read if it were."""

    def on_deliver(self, delivery: Delivered, outcome: bytes | None, now: int, out: ApplicationOutbox) -> None:
        message, clients = delivery.message, self.clients
        for index, bundled in enumerate(decode_bundle(message) if len(message.destinations) > 1 else ()):
            waiting = clients.requests.by_id.get(bundled.id)
            if waiting is not None and not waiting.transaction.compare:
                result = Result(True, version_of(delivery.timestamp, index))
                clients._finish(waiting, Answered(result, results_omitted=True), now, out)
        super().on_deliver(delivery, outcome, now, out)


class AnsweredBeforeOrder(Clients):
    """The client hears of success as soon as its transaction is multicast."""

    def end_batch(self, now: int, out: ApplicationOutbox) -> None:
        super().end_batch(now, out)
        for waiting in [w for w in self.requests.by_id.values() if w.flight is not None and w.tokens]:
            self._finish(waiting, Answered(Result(True, Timestamp(now, 0)), results_omitted=True), now, out)


@rewrite("answer", "if not alone and not self._told_all(result): return None", "pass")
class SomeResultsAreEnough(Waiting):
    """The answer leaves without what some shards have read."""


class ReadAgainForARepetition(Clients):
    """A repetition is told what the keys hold now instead of what it was told the first time."""

    def _begin(self, waiting: Waiting, now: int, out: ApplicationOutbox) -> None:
        record, branch = self._store.remembered(waiting.id), waiting.transaction.success
        here = waiting.destinations == (self._peers.shard,)
        if record is None or not here or not all(isinstance(op, Get) for op in branch):
            return super()._begin(waiting, now, out)
        first = decode_remembered(record)
        execution = Execution(self._store, first.timestamp)
        execution.run(list(enumerate(branch)))
        results = tuple(result for _, result in execution.results)
        self._finish(waiting, Answered(Result(True, first.timestamp, results), True), now, out)


@rewrite("on_results", "if not asked.silent:", "if True:")
class FirstUnknownCounts(Lookups):
    """As soon as one replica does not know an id, its lookup says that nobody does."""


@rewrite("on_tick", "out.send((pid,), ResultRequest(ids, True))", "pass")
class AskedOnce(Lookups):
    """Who does not answer a lookup is not asked again: a question that was lost with a link is no answer."""


@rewrite("_drop", "self._store.drop_part(part.id)", "pass")
class PartsNeverDropped(Signals):
    """Parts are kept though a quorum of every shard has completed their bundles."""


class SignalsAtDelivery(Replica):
    """A shard signals a transaction when it is delivered there, whatever stands before it."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **{**options, "signals": "delivery"})


class NoSignals(Replica):
    """Transactions without conditions do not wait for other shards."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **{**options, "signals": "off"})


class NothingIsPulled(Signals):
    """Parts are pushed once; whoever misses one never asks for it."""

    def _pull(self, now: int, out: ApplicationOutbox) -> None:
        self._last_pull = now


@rewrite("_items", "= delivery.expired or message_id <", "= len(shards) > 1 and message_id <")
class ExpiredIsApplied(Replica):
    """What came too late for its id has its effect nevertheless, in bundles for one shard."""


# -- in the store -----------------------------------------------------------------------------------------------------


class CommitForgetsPosition(Store):
    """A commit is not atomic: the data are there, the position and offset are those of the commit before."""

    def commit(self) -> None:
        apply = self._backend.apply
        earlier = getattr(self, "_earlier_meta", None)
        self._earlier_meta = self._frozen_meta

        def torn(changes: Changes) -> None:
            if earlier is not None:
                changes.tables[META] = dict(earlier)
            apply(changes)

        self._backend.apply = torn  # type: ignore[method-assign]
        try:
            super().commit()
        finally:
            self._backend.apply = apply  # type: ignore[method-assign]


class ReadsTheCommitted(Store):
    """A read misses what the write buffer holds of keys that the backend has, too."""

    def _row(self, key: bytes) -> bytes | None:
        return self._backend.get(DATA, key) or super()._row(key)


class ScansMissTheBuffer(Store):
    """A scan does not see what is not committed."""

    def scan(self, *arguments: Any) -> Any:
        found, more = super().scan(*arguments)
        hidden = self._active.data
        return [row for row in found if row.key not in hidden], more


class ForgetsAtOnce(Store):
    """Results and parts are not kept: who asks later hears nothing."""

    def remembered(self, message_id: MessageId) -> bytes | None:
        return None

    def part(self, message_id: MessageId) -> bytes | None:
        return None


@rewrite("advance", "if position > completed:", "if False:")
class ReadsBeforeCompletion(Reads):
    """A leader reads what is complete, whatever the protocol says must be."""


class Planted(NamedTuple):
    """A bug. checker: what shall find it, "" for any. core: a class that takes the place of the one of which it is a
    subclass, wherever that is used. protocol: one with a bug."""

    name: str
    checker: str
    replica: type[Replica] = Replica
    store: type[Store] = Store
    settings: Settings = FAULTS
    core: type | None = None
    protocol: type[MulticastProtocol] | None = None

    @property
    def kind(self) -> type:
        """The class that the bug is in."""
        return self.protocol or self.core or (self.store if self.replica is Replica else self.replica)

    @property
    def key(self) -> str:
        """By what `first_seeds.json` knows it."""
        return f"store.{self.name}-{self.checker.replace(' ', '_')}".rstrip("-")

    @property
    def first_seed(self) -> int:
        """One that found it when that was last counted."""
        return known_seed(self.key) or 0

    @property
    def elusive(self) -> bool:
        """Whether no search has found it yet."""
        return known_seed(self.key) is None

    def run(self, seed: int, out: Path | None = None) -> Outcome:
        """One seed, with the bug. out: of `run_seed`."""
        with ExitStack() as stack:
            if self.core is not None:
                replaced = self.core.__mro__[1]
                for module in [m for m in _MODULES if getattr(m, replaced.__name__, None) is replaced]:
                    stack.enter_context(mock.patch.object(module, replaced.__name__, self.core))
            how: Any = {"protocol": self.protocol, "replica": self.replica, "store": self.store}
            return run_seed(self.settings, seed, out, **how)

    def finds(self, outcome: Outcome) -> str:
        """What the check has to say; "" for nothing."""
        return next((v for v in outcome.violations if v.startswith(self.checker and f"{self.checker}: ")), "")


PLANTED_IN_STORE = (
    Planted("votes_read_too_early", "agreement", core=VotesReadTooEarly),
    Planted("remote_votes_ignored", "exactly once", core=RemoteVotesIgnored),
    Planted("remote_votes_ignored", "conservation", core=RemoteVotesIgnored),
    Planted("one_vote_is_enough", "serial execution", core=OneVoteIsEnough, settings=SHORT),
    Planted("repetition_under_another_id", "exactly once", core=RepetitionUnderAnotherId),
    Planted("answered_at_delivery", "strict serializability", AnsweredAtDelivery, settings=CHASE),
    Planted("answered_before_order", "answers", core=AnsweredBeforeOrder, settings=SHORT),
    Planted("some_results_are_enough", "answers", core=SomeResultsAreEnough),
    Planted("read_again_for_a_repetition", "answers", core=ReadAgainForARepetition, settings=ONE_SHARD),
    Planted("first_unknown_counts", "repetitions", core=FirstUnknownCounts, settings=TWO_SHARDS),
    Planted("asked_once", "", core=AskedOnce, settings=TWO_SHARDS),
    Planted("parts_never_dropped", "left", core=PartsNeverDropped, settings=TWO_SHARDS),
    Planted("signals_at_delivery", "strict serializability", SignalsAtDelivery, settings=CHASE),
    Planted("no_signals", "strict serializability", NoSignals, settings=CHASE),
    Planted("nothing_is_pulled", "liveness", core=NothingIsPulled),
    Planted("expired_is_applied", "exactly once", ExpiredIsApplied, settings=WINDOW),
    Planted("commit_forgets_position", "exception", store=CommitForgetsPosition),
    Planted("reads_the_committed", "reads", store=ReadsTheCommitted),
    Planted("scans_miss_the_buffer", "agreement", store=ScansMissTheBuffer),
    Planted("reads_before_completion", "strict serializability", core=ReadsBeforeCompletion, settings=TWO_SHARDS),
    Planted("forgets_at_once", "exactly once", store=ForgetsAtOnce),
)
