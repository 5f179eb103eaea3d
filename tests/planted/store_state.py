"""Bugs planted in replicas and stores: votes read too early, results and parts forgotten, restarts that lose something.

`tests.planted.store` has one for every check; these need not be found by a certain one.
"""

from __future__ import annotations

from kvstore.core.clients import Clients
from kvstore.core.execution import Execution, LocalPlan
from kvstore.core.log import Log
from kvstore.core.replica import Replica
from kvstore.core.requests import Requests, Waiting
from kvstore.core.signals import Signals
from kvstore.simulated.runner import Settings
from kvstore.storage.store import Store
from multicast.checkpoint import Checkpoints
from tests.planted.rewriting import rewrite
from tests.planted.store import CHASE, SHORT, Planted

CALM = Settings(protocol="white_box", profile="calm", seconds=0.6, clients=8, size="small", shards=3)
WINDOW = Settings(protocol="white_box", seconds=2.0, clients=4, options={"dedup_window_us": "1000000"})

# -- in the replica ---------------------------------------------------------------------------------------------------


@rewrite("_forget", "forgotten_before(timestamp, self.window_us)", "forgotten_before(timestamp, self.window_us // 6)")
class ForgottenEarly(Replica):
    """Results are forgotten half a window after the creation of their ids."""


@rewrite("_settle_up_to", "if set(shards) <= set(destinations)", "")
class SettledElsewhere(Signals):
    """What was found at the start is settled by any later transaction, of whichever shards."""


@rewrite("_settle_up_to", "queue[0][0] <= timestamp:", "queue[0][0] >= timestamp:")
class SettledTheWrongWay(Signals):
    """What was found at the start is settled by what comes before it."""


@rewrite("completed", "if part is not None and not entry.settled:", "if False:")
class PartsNotKept(Signals):
    """Parts are not kept after completion: whoever missed one must do with the result."""


@rewrite("on_part_request", "self._clients.tell(sender, message_id)", "pass")
class NoResultForPart(Signals):
    """Who asks for a part that is gone does not get the result for it."""


@rewrite("_remember", "if first is not None:", "if False:")
class ExpiredRemembered(Clients):
    """A repetition that came too late takes the place of the first result."""


@rewrite("_fate", "succeeded = all(v.holds for v in votes)", "succeeded = any(v.holds for v in votes)")
class OneVoteIsEnough(Replica):
    """A transaction succeeds when the conditions of one shard hold."""


@rewrite("_fate", "if failure:", "if failure and v is votes[0]:")
class FirstFailureCounts(Replica):
    """Only the first shard's impossible operation fails a transaction."""


@rewrite("_fate", "if entry.expired: return Fate(EXPIRED)", "pass")
class ExpiryIgnored(Replica):
    """What comes too late for its id has its effect."""


@rewrite("_execute", "if fate.status == APPLIED: if len(", "if True:\n            if len(")
class FailedIsApplied(Replica):
    """A transaction that failed in another shard has its effect in this one."""


@rewrite("_execute", "if execution.failure: fate =", "if False: fate =")
class FailureNotTold(Replica):
    """A transaction of one shard that fails is called applied."""


@rewrite("append", "self.by_id.setdefault(entry.message.id, entry)", "self.by_id[entry.message.id] = entry")
class RepetitionTakesPlace(Log):
    """A repetition that expired takes the place of the first delivery."""


@rewrite(
    "complete",
    "if self.by_id.get(entry.message.id) is entry: del self.by_id[entry.message.id]",
    "self.by_id.pop(entry.message.id, None)",
)
class BothForgotten(Log):
    """When one of two deliveries of an id completes, both are forgotten."""


@rewrite("on_outcome", "entries[position - entries[0].position]", "entries[position - entries[0].position - 1]")
class OutcomeOneOff(Replica):
    """A peer's outcome is taken for that of the transaction before."""


@rewrite("delivered", "if shard in entry.needed: entry.parts[shard] = part", "pass")
class EarlyPartsLost(Signals):
    """Parts that come before the delivery are forgotten."""


@rewrite("on_message", "self._advance(now, out)", "pass")
class NoProgressByParts(Replica):
    """A part that comes completes nothing before the next delivery."""


# -- in what it consists of -------------------------------------------------------------------------------------------


@rewrite("complete", "if self._last_writer.get(key) == position:", "if key in self._last_writer:")
class WriterForgotten(Log):
    """When a writer of a key completes, later writers of it are forgotten, too."""


@rewrite("_blocker", "entry.plan.condition_keys()", "(c.key for c in entry.plan.compares)")
class FallibleNotWaitedFor(Log):
    """A vote on an addition is read though an earlier transaction still writes the key."""


@rewrite(
    "append",
    "entry.written_keys = entry.plan.written_keys()",
    "entry.written_keys = {op.key for _, op in entry.plan.success if hasattr(op, 'key')}",
)
class FailureBranchWritesNothing(Log):
    """A vote is read though the failure branch of an earlier transaction may write the key."""


@rewrite("_blocker", "not own.issuperset(shards)", "own.isdisjoint(shards)")
class SignalsPastOverlaps(Log):
    """A transaction is signalled though one before it shares a shard with it and has others besides."""


@rewrite("append", "if entry.blocker <= self.completed:", "if entry.blocker <= self.completed + 1:")
class BlockerOneOff(Log):
    """A part is sent when the last transaction but one in its way is complete."""


@rewrite("fail", "self.writes = {}", "pass")
class FailedWrites(Execution):
    """What a transaction wrote before its impossible operation stays."""


@rewrite("_current", "if key in self.writes:", "if False:")
class OwnWritesUnread(Execution):
    """A transaction does not read what it has written."""


@rewrite("condition_keys", "for branch in (self.success, self.failure):", "for branch in (self.success,):")
class FailureBranchNeedsNothing(LocalPlan):
    """The failure branch's additions decide no vote."""


@rewrite("due", "self._due.popleft()[1]", "self._due.pop()[1]")
class LastDueFirst(Requests):
    """Of those who wait the last one is asked for first."""


@rewrite("answer", "if result.status == EXPIRED:", "if False:")
class ExpiredAnswered(Waiting):
    """A client hears of success though its transaction came too late."""


@rewrite("_expired", "if timestamp.time <= created_us(self.id) + REMEMBERED_WINDOWS * self.window_us:", "if True:")
class ForgottenWithoutEffect(Waiting):
    """A repetition beyond memory is called without effect."""


# -- in the store -----------------------------------------------------------------------------------------------------


@rewrite("remembered", "if found is None and self._frozen is not None:", "if False:")
class FrozenIdsUnseen(Store):
    """While a commit is under way its results are not found."""


@rewrite("part", "for layer in (self._active, self._frozen):", "for layer in (self._frozen, self._active):")
class FrozenPartsFirst(Store):
    """While a commit is under way, what it holds hides later changes of parts."""


@rewrite("_row", "if row is None and self._frozen is not None:", "if False:")
class FrozenRowsUnseen(Store):
    """While a commit is under way its rows are not read."""


@rewrite(
    "drop_part",
    "if self._active.parts.pop(message_id, None) is None and",
    "if self._active.parts.pop(message_id, None) is None and self._frozen is None and",
)
class DropsLost(Store):
    """A part that is dropped while a commit is under way stays."""


@rewrite("commit", "IDS: {id_: record for id_, record in layer.ids.items() if id_ >= forgotten}", "IDS: {}")
class ResultsNotCommitted(Store):
    """Results are only in memory."""


@rewrite("commit", "PARTS: layer.parts", "PARTS: {}")
class PartsNotCommitted(Store):
    """Parts are only in memory."""


@rewrite("freeze", '_POSITION: position.to_bytes(8, "big")', '_POSITION: (position + 1).to_bytes(8, "big")')
class PositionOneAhead(Store):
    """The committed position is one ahead of the data."""


@rewrite("freeze", '_POSITION: position.to_bytes(8, "big")', '_POSITION: max(0, position - 1).to_bytes(8, "big")')
class PositionOneBehind(Store):
    """The committed position is one behind the data."""


@rewrite("write", "self._digest -= row_digest(key, before)", "pass")
class DigestGrows(Store):
    """The digest counts what was overwritten, too."""


@rewrite(
    "remembered",
    "if message_id < self._forgotten:",
    "if message_id <= self._forgotten or message_id in self._active.ids:",
)
class FreshIdsUnseen(Store):
    """Results that are not committed yet are not found."""


# -- in the protocol's checkpoints -------------------------------------------------------------------------------------


@rewrite("_apply", "values.pop(record.key, None)", "pass")
class DeletesLost(Checkpoints):
    """What a protocol has deleted is in the checkpoint."""


@rewrite("advance", "values = before.values", "values = {}")
class ProtocolNotCommitted(Checkpoints):
    """A checkpoint has only what was put since the one before."""


@rewrite("advance", "self._journal.synced", "self._journal.end")
class CheckpointAhead(Checkpoints):
    """A checkpoint stands for what is not on disk yet."""


def _replica(*kinds: type[Replica], settings: Settings = SHORT) -> list[Planted]:
    return [Planted(kind.__name__, "", kind, settings=settings) for kind in kinds]


def _core(*kinds: type, settings: Settings = SHORT) -> list[Planted]:
    return [Planted(kind.__name__, "", core=kind, settings=settings) for kind in kinds]


def _store(*kinds: type[Store], settings: Settings = SHORT) -> list[Planted]:
    return [Planted(kind.__name__, "", store=kind, settings=settings) for kind in kinds]


PLANTED_IN_STORE = (
    *_replica(ForgottenEarly, ExpiryIgnored, settings=WINDOW),
    *_replica(
        OneVoteIsEnough, FirstFailureCounts, FailedIsApplied, FailureNotTold, OutcomeOneOff, NoProgressByParts
    ),
    *_core(ExpiredRemembered, RepetitionTakesPlace, BothForgotten, settings=WINDOW),
    *_core(
        SettledElsewhere, SettledTheWrongWay, PartsNotKept, NoResultForPart, EarlyPartsLost,
        WriterForgotten, FallibleNotWaitedFor, FailureBranchWritesNothing, FailedWrites, OwnWritesUnread,
        FailureBranchNeedsNothing, LastDueFirst,
    ),
    *_core(BlockerOneOff, settings=CALM),
    *_core(SignalsPastOverlaps, settings=CHASE),
    *_core(ExpiredAnswered, ForgottenWithoutEffect, settings=WINDOW),
    *_core(DeletesLost, ProtocolNotCommitted, CheckpointAhead),
    *_store(
        FrozenIdsUnseen, FrozenPartsFirst, FrozenRowsUnseen, DropsLost, ResultsNotCommitted,
        PartsNotCommitted, PositionOneAhead, PositionOneBehind, DigestGrows, FreshIdsUnseen,
    ),
)  # fmt: skip
