"""Bugs planted in replicas and stores: votes read too early, results and parts forgotten, restarts that lose something.

`tests.planted.store` has one for every check; these need not be found by a certain one.
"""

from __future__ import annotations

from kvstore.core.bundler import Bundler
from kvstore.core.clients import Clients
from kvstore.core.execution import Execution
from kvstore.core.fates import Fate
from kvstore.core.log import Entry, Item, Log
from kvstore.core.plans import LocalPlan
from kvstore.core.replica import Replica
from kvstore.core.requests import Requests, Waiting
from kvstore.core.signals import Signals
from kvstore.simulated.settings import Settings
from kvstore.storage.store import Store
from multicast.checkpoint import Checkpoints
from tests.planted.rewriting import rewrite
from tests.planted.store import CHASE, SHORT, Planted

CALM = Settings(protocol="white_box", profile="calm", seconds=0.6, clients=8, size="small", shards=3)
CROWDED = Settings(protocol="white_box", profile="calm", seconds=1.0, clients=8, size="small", shards=2)
ALONE = Settings(protocol="skeen", profile="calm", seconds=0.2, clients=12, shards=1)
LOSSES = Settings(protocol="white_box", size="small", options={"leaders_in_quorum": "true"})
FORGETFUL = Settings(
    protocol="white_box", seconds=2.0, clients=4, size="small", options={"dedup_window_us": "300000"}
)
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


@rewrite("completed", "if part is not None and (not entry.settled or moved or gives(part)):", "if False:")
class PartsNotKept(Signals):
    """Parts are not kept after completion: whoever missed one must do with the result."""


@rewrite("_pull", "if head.pulls % PULLS_BEFORE_FETCH == 0:", "if False:")
class NothingIsFetched(Signals):
    """Who asks in vain for a part that is settled, and gone, does not ask the own shard for the outcome."""


@rewrite("_remember", "if first is not None and first.status != MOVED:", "if False:")
class ExpiredRemembered(Clients):
    """A repetition that came too late takes the place of the first result."""


@rewrite("voted", "if failure:", "if failure and v is votes[0]:")
class FirstFailureCounts(Fate):
    """Only the first shard's impossible operation fails a transaction."""


@rewrite("_fate", "if item.expired: return Fate(EXPIRED)", "pass")
class ExpiryIgnored(Replica):
    """What comes too late for its id has its effect."""


@rewrite("_execute", "if fate.status == APPLIED: execution.run", "if True:\n            execution.run")
class FailedIsApplied(Replica):
    """A transaction that failed in another shard has its effect in this one."""


@rewrite("_execute", "execution.compared = item.compared or {}", "pass")
class ComparedNotTold(Replica):
    """The journal does not say what was compared for a vote."""


@rewrite("_execute", "if execution.failure: fate =", "if False: fate =")
class FailureNotTold(Replica):
    """A transaction of one shard that fails is called applied."""


@rewrite("on_outcome", "entries[position - entries[0].position]", "entries[position - entries[0].position - 1]")
class OutcomeOneOff(Replica):
    """A peer's outcome is taken for that of the transaction before."""


@rewrite("on_part_request", "self._tell_decisions(sender, wanted, out)", "pass")
class DecisionsNotTold(Signals):
    """Who asks for a part that is gone hears nothing, though all who knew the outcome in its shard lost their disks."""


@rewrite("delivered", "if shard in entry.needed: self._take(entry, shard, part)", "pass")
class EarlyPartsLost(Signals):
    """Parts that come before the delivery are forgotten."""


@rewrite("on_message", "self._advance(now, out)", "pass")
class NoProgressByParts(Replica):
    """A part that comes completes nothing before the next delivery."""


# -- in what it consists of -------------------------------------------------------------------------------------------


@rewrite("complete", "if self._last_writer.get(key) == position:", "if False:")
class WritersKept(Log):
    """Who has written a key is known for ever."""


@rewrite("complete", "if self._last_writer.get(key) == position:", "if key in self._last_writer:")
class WriterForgotten(Log):
    """When a writer of a key completes, later writers of it are forgotten, too."""


@rewrite("complete", "if item.id and self.items.get(item.id) is item:", "if False:")
class ItemsKept(Log):
    """The log knows the ids of what is complete for ever."""


@rewrite("complete", "if self.by_id.get(entry.message.id) is entry:", "if False:")
class EntriesKept(Log):
    """What is complete stays in the log under its id."""


@rewrite("_blocker", "item.plan.condition_keys()", "(c.key for c in item.plan.compares)")
class FallibleNotWaitedFor(Log):
    """A vote on an addition is read though an earlier transaction still writes the key."""


@rewrite(
    "append",
    "entry.written_keys |= item.plan.written_keys()",
    "entry.written_keys |= {op.key for _, op in item.plan.course(True) if hasattr(op, 'key')}",
)
class FailureBranchWritesNothing(Log):
    """A vote is read though the failure branch of an earlier transaction may write the key."""


@rewrite("_blocker", "not own.issuperset(shards)", "own.isdisjoint(shards)")
class SignalsPastOverlaps(Log):
    """A transaction is signalled though one before it shares a shard with it and has others besides."""


@rewrite("append", "if entry.blocker <= self.completed:", "if entry.blocker <= self.completed + 1:")
class BlockerOneOff(Log):
    """A part is sent when the last transaction but one in its way is complete."""


@rewrite("_blocker", "max(blocker, self._last_deleter, ", "max(blocker, ")
class DeletedRangesForgotten(Log):
    """A vote is read though an earlier transaction may still delete what it depends on, in a range."""


@rewrite("_find", "if value is not None and between(key, first, end):", "if False:")
class OwnWritesInNoRange(Execution):
    """A range shows, counts and deletes what was there before its transaction."""


@rewrite("append", "if self.entries or not entry.ready:", "if self.entries:")
class FirstWriterUnnoticed(Log):
    """A vote is read though the head of the log still writes what it depends on."""


@rewrite("fail", "self.writes = {}", "pass")
class FailedWrites(Execution):
    """What a transaction wrote before its impossible operation stays."""


@rewrite("_current", "if key in self.writes:", "if False:")
class OwnWritesUnread(Execution):
    """A transaction does not read what it has written."""


@rewrite("condition_keys", "for _, op in self.every_operation():", "for _, op in self.course(True):")
class FailureBranchNeedsNothing(LocalPlan):
    """The failure branch's additions decide no vote."""


@rewrite("_find", "while more and all(entry.key in writes for entry in stored):", "while False:")
class HiddenByOwnWrites(Execution):
    """A range ends where own writes hide all that one look finds."""


@rewrite("_find", "if more: # beyond", "if False: # beyond")
class ShownBeyond(Execution):
    """A range shows own writes beyond keys that were not looked at."""


@rewrite("_take", "if move_of(waiting.transaction) is not None:", "if False:")
class StepWithOthers(Bundler):
    """A step of a move travels with other transactions."""


@rewrite("notes", "if key != last and value is not None:", "if value is not None:")
class OlderNotesFound(Store):
    """Of a note that was written anew, or has gone, what is committed is found, too."""


@rewrite("rename", "self.schedule(waiting, now)", "pass")
class UnnamedNotDue(Requests):
    """The results of a read without an id are not asked for again."""


@rewrite("_begin", "self._ask_for_results(waiting, now, out)", "pass")
class RepetitionAsksLate(Clients):
    """Who repeats what is complete here waits for a while before the other shards are asked."""


@rewrite("told", "if decided.digest != digest:", "if False:")
class OtherBodyDecided(Fate):
    """What ended elsewhere under this id counts, whatever it was."""


@rewrite("due", "self._due.popleft()[1]", "self._due.pop()[1]")
class LastDueFirst(Requests):
    """Of those who wait the last one is asked for first."""


@rewrite("answer", "if result.status == EXPIRED:", "if False:")
class ExpiredAnswered(Waiting):
    """A client hears of success though its transaction came too late."""


@rewrite("_expired", "if timestamp.time <= created_us(self.id) + REMEMBERED_WINDOWS * self.window_us:", "if True:")
class ForgottenWithoutEffect(Waiting):
    """A repetition beyond memory is called without effect."""


# -- bundles, and ids in them -----------------------------------------------------------------------------------------


@rewrite("look_back", "None if earlier.status == MOVED", "None if earlier.digest == self.digest")
class SecondTakesEffect(Item):
    """A repetition in another bundle takes effect, too."""


@rewrite("_items", "if item.earlier is None:", "if False:")
class UndecidedForgotten(Replica):
    """What is delivered and not yet complete is not known when its id comes again."""


@rewrite("_items", "(record := remembered(message_id)) is not None", "False")
class CompleteForgotten(Replica):
    """What is complete is not known when its id comes again."""


@rewrite("_remember", "(EXPIRED, MISMATCH, REPEATED, MOVED)", "(EXPIRED, MISMATCH, MOVED)")
class SecondRemembered(Clients):
    """That something was a repetition is remembered in place of the first result."""


@rewrite("_on_result", "if result.status == REPEATED:", "if False:")
@rewrite("_remember", "return first if result.status not in (MISMATCH, MOVED) else result", "return result")
class SecondAnswered(Clients):
    """A repetition is answered with what it did, which is nothing, instead of the first result."""


@rewrite("_remember", "(EXPIRED, MISMATCH, REPEATED, MOVED)", "(EXPIRED, REPEATED, MOVED)")
class MismatchRemembered(Clients):
    """A misuse of an id is remembered in place of the first result."""


@rewrite("_items", "oldest_id(at.time - window_us)", "oldest_id(self._now - window_us)")
class ExpiryByLocalClock(Replica):
    """Each replica goes by its own clock when it decides what came too late."""


@rewrite("_items", "version_of(at, index)", "version_of(at, 0)")
class IndexLost(Replica):
    """All transactions of a bundle write at one version."""


@rewrite("_items", "version_of(at, index)", "version_of(at, 0 if self._replaying else index)")
class IndexLostAtRecovery(Replica):
    """The same, where a bundle is delivered again when a life begins."""


@rewrite("_take", "if several:", "if False:")
class ConflictsInOneBundle(Bundler):
    """Shards vote on a transaction before what stands before it in the bundle has taken effect."""


@rewrite("votes", "part.vote(index)", "part.vote(0)")
class VotesOfAnother(Entry):
    """The votes on a bundle's first transaction are taken for those on all."""


@rewrite("voted", "if any([v.reused for v in votes]): return Fate(MISMATCH)", "pass")
class ReusedIgnored(Fate):
    """A transaction takes effect though another shard knows its id with another body."""


@rewrite("_multicast", "NO_ID if w.unnamed else w.id, w.body", "NO_ID if w.unnamed else message_id, w.body")
class BundlesIdForAll(Bundler):
    """A bundle's own id stands for those of the clients."""


@rewrite("finished", "if not flight.open:", "if False:")
class FlightsNeverEnd(Bundler):
    """Bundles are under way for ever, until none may leave any more."""


@rewrite("completed", "result.id = unnamed_id(message.id, index)", "result.id = unnamed_id(message.id, 0)")
class UnnamedIndexLost(Clients):
    """The reads of a bundle that have no ids are all known by that of the first."""


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


@rewrite("thawed", "self._newest_id = max(self._newest_id, self._newest_frozen)", "pass")
class CommittedIdsUnseen(Store):
    """Results that were committed in this life are not found."""


@rewrite("commit", "PARTS: layer.parts", "PARTS: {}")
class PartsNotCommitted(Store):
    """Parts are only in memory."""


@rewrite("freeze", "meta_of(self._owner, position,", "meta_of(self._owner, position + 1,")
class PositionOneAhead(Store):
    """The committed position is one ahead of the data."""


@rewrite("freeze", "meta_of(self._owner, position,", "meta_of(self._owner, max(0, position - 1),")
class PositionOneBehind(Store):
    """The committed position is one behind the data."""


@rewrite("_put", "(self._digest + after[0] - before[0])", "(self._digest + after[0])")
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


@rewrite("_go_on", "values = before.values", "values: dict[bytes, bytes] = {}")
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
    *_replica(FailedIsApplied, FailureNotTold, NoProgressByParts, ComparedNotTold),
    *_core(FirstFailureCounts, OtherBodyDecided, VotesOfAnother, ReusedIgnored),
    *_core(ExpiredRemembered, settings=WINDOW),
    *_core(
        SettledElsewhere, EarlyPartsLost, ItemsKept, EntriesKept,
        WriterForgotten, WritersKept,
        FallibleNotWaitedFor, FailureBranchWritesNothing, FirstWriterUnnoticed, FailedWrites,
        OwnWritesUnread, FailureBranchNeedsNothing, LastDueFirst, UnnamedNotDue, RepetitionAsksLate,
        HiddenByOwnWrites, ShownBeyond, StepWithOthers,
    ),
    *_replica(UndecidedForgotten, CompleteForgotten, IndexLost, IndexLostAtRecovery),
    *_replica(ExpiryByLocalClock, settings=WINDOW),
    *_core(
        SecondTakesEffect, SecondRemembered, SecondAnswered, MismatchRemembered, BundlesIdForAll, UnnamedIndexLost,
    ),
    *_core(FlightsNeverEnd, settings=ALONE),
    *_core(BlockerOneOff, settings=CALM),
    *_core(DeletedRangesForgotten, OwnWritesInNoRange),
    *_core(DecisionsNotTold, settings=LOSSES),
    *_replica(OutcomeOneOff, settings=WINDOW),
    *_core(SettledTheWrongWay, PartsNotKept, NothingIsFetched, settings=FORGETFUL),
    *_store(PartsNotCommitted, settings=FORGETFUL),
    *_core(ConflictsInOneBundle, settings=CROWDED),
    *_core(SignalsPastOverlaps, settings=CHASE),
    *_core(ExpiredAnswered, ForgottenWithoutEffect, settings=WINDOW),
    *_core(DeletesLost, ProtocolNotCommitted, CheckpointAhead),
    *_store(
        FrozenIdsUnseen, FrozenPartsFirst, FrozenRowsUnseen, DropsLost, ResultsNotCommitted, CommittedIdsUnseen,
        PositionOneAhead, PositionOneBehind, DigestGrows, FreshIdsUnseen, OlderNotesFound,
    ),
)  # fmt: skip
