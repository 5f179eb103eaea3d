"""Bugs planted in rules of the store that seldom matter: who answers for a moved slot, who is the first, what goes with
a row, from when on something counts."""

from __future__ import annotations

import msgspec

from kvstore.core.bundler import Bundler
from kvstore.core.changes import Changes
from kvstore.core.clients import Clients
from kvstore.core.execution import Execution
from kvstore.core.fates import Fate
from kvstore.core.leases import Leases
from kvstore.core.log import Log
from kvstore.core.lookups import Lookups
from kvstore.core.moves import Moves
from kvstore.core.reads import Reads
from kvstore.core.replica import Replica
from kvstore.core.requests import Waiting
from kvstore.core.rights import Rights
from kvstore.core.shards import Shards
from kvstore.core.signals import Signals
from kvstore.core.versions import Versions
from kvstore.core.watches import Watches
from kvstore.host import LiveReplica
from kvstore.simulated.settings import Settings
from kvstore.storage.store import Store
from tests.planted.leases import SMALL as LEASES
from tests.planted.moves import FORGETTING, MOVING, THREE
from tests.planted.rewriting import rewrite
from tests.planted.rights import RULED
from tests.planted.store import TWO_SHARDS, Planted
from tests.planted.watches import SMALL as WATCHED

LATE = Settings(
    protocol="white_box", size="small", shards=2, seconds=2.0, late=True, options={"dedup_window_us": "3000000"}
)
RANGES = Settings(protocol="white_box", size="small", shards=2, ranges=True)
LEASES_MOVE = Settings(protocol="white_box", size="small", shards=2, leases=True, moves=True, profile="calm")
PAST_GROWS = Settings(protocol="primcast", size="small", replicas=3, grows=True, ranges=True, past=True, moves=True)
PAST_MOVES = Settings(protocol="white_box", size="small", shards=2, past=True, moves=True)
LATE_OF_THREE = msgspec.structs.replace(LATE, shards=3)

# -- copies, and who answers ------------------------------------------------------------------------------------------


@rewrite("voted", "any([v.repeated for v in votes])", "all([v.repeated for v in votes])")
class RepeatedIfAllSay(Fate):
    """A transaction takes effect again unless all who vote know its id."""


@rewrite("completed", "if entry.settled:", "if True:")
class GivenIsTakenForSettled(Signals):
    """What a step of a move gives goes when results of its time go, though its target may still wait for it."""


@rewrite("_drop", "max(part.timestamp.time, created_us(part.id))", "part.timestamp.time")
class AsOldAsItsStamp(Signals):
    """What was given under a low stamp goes at once."""


@rewrite("_begin", "if remembered.status != REPEATED:", "if True:")
class RepeatedIsAnAnswer(Clients):
    """A shard's word that it knows nothing of the first time is taken for a result."""


@rewrite("on_outcome", "self._held[position - self._held[0].delivery.position].outcome = outcome",
         "self._held[position - self._held[0].delivery.position - 1].outcome = outcome")  # fmt: skip
class HeldOutcomeOneOff(Replica):
    """Behind a step of a move a peer's outcome is taken for that of the transaction before."""


@rewrite("completed", "if result.status == EXPIRED and self._moves.gave_all(item.plan.transaction, item.slots):",
         "if False:")  # fmt: skip
class ExpiredWhereItWas(Clients):
    """A shard that gave its slots away says of a late copy that there never was an effect."""


@rewrite("_gone", "if first is None or first.status == MOVED:", "if True:")
class GoneThoughKnown(Clients):
    """A shard that gave its slots away does not tell of a late copy what it knows of the first one."""


@rewrite("completed", "self._moves.gave_all(item.plan.transaction, item.slots)", "item.places")
class MovedByAnyPlace(Clients):
    """A late copy in a shard that has taken a slot is called moved."""


@rewrite("gave_all", "not any(", "self.leads_beyond([self._shard]) and not all(")
class OneIsNotEnough(Moves):
    """A shard that has given one of the keys away says of a late copy that it does not know, though it must."""


@rewrite("_on_result", "if not waiting.results and result.timestamp > waiting.moved_at:", "if not waiting.results:")
class EveryMovedCounts(Clients):
    """Who is told moved tries again each time that somebody repeats it."""


@rewrite("missing", "if shard_map is not self.shard_map:", "if False:")
class ResultsOfOldShards(Waiting):
    """Results are asked of the shards that are the right ones by the map of then, wherever the slots have gone."""


@rewrite("_ask_for_results", "not missing and (waiting.results or waiting.without or waiting.repeated)", "False")
class NothingMoreIsTold(Clients):
    """Who waits for what nobody can tell any more waits for a minute."""


@rewrite("_on_unknown", "if is_majority(replicas, waiting.unknown):", "if False:")
class ForgottenAwaited(Clients):
    """What a shard has forgotten is waited for."""


@rewrite("_is_forgotten", "waiting.forgotten.add(shard)", "waiting.without.add(shard)")
class ForgottenIsNothing(Clients):
    """Who repeats a range is told it without what a shard had in it and has forgotten."""


@rewrite("tell", "elif message_id < self._forgotten_before(self._store.complete_to):", "elif False:")
class TooOldIsNotTold(Clients):
    """Of what a late copy has left nothing in a shard its replicas say nothing, as if it were to come."""


@rewrite("_told_all", "everywhere = self.results.keys() | self.without >= self._asked()", "everywhere = True")
class RangeOfSomeShards(Waiting):
    """A range is answered when one of its shards has told what it has."""


# -- moves ------------------------------------------------------------------------------------------------------------


@rewrite("give", "first = slots not in (self._leaving_slots, _expanded(leaving.slots))", "first = False")
class AnotherMoveGoesOn(Moves):
    """A move begins where another one was given up."""


@rewrite("give", "_moved_row(row) for row in found",
         "_moved_row(msgspec.structs.replace(row, lease=b'')) for row in found")  # fmt: skip
class LeaseLeftBehind(Moves):
    """A key that moves is attached to no lease any more."""


@rewrite("_took", "_encoded(row, row.value)", "_encoded(msgspec.structs.replace(row, create_version=ZERO), row.value)")
class CreatedByTheLastWrite(Moves):
    """A key that moves counts as created when it was written last."""


@rewrite("_took", "self.remembers(message_id, decode_remembered(joined).slots)", "pass")
class TakenIdsNotGivenOn(Moves):
    """What a shard learns of an id by one move is not given with another that is under way."""


@rewrite("_tell_decisions",
         "status = status_at(wanted.timestamp if single else version_of(wanted.timestamp, index), r)",
         "status = r.status")  # fmt: skip
class DecidedByTheLastCopy(Signals):
    """Who asks how a copy ended is told how its id did."""


@rewrite("_tell_decisions", "wanted.timestamp if single", "wanted.timestamp if r.timestamp == wanted.timestamp")
class TakenForASingle(Signals):
    """What is the version of another copy is taken for that of one that came alone."""


@rewrite("_tell_decisions", "if record is None and not message_id:", "if record is None:")
class ForgottenWasApplied(Signals):
    """Who asks how something ended that is forgotten is told that it was applied."""


@rewrite("on_part_request", "elif wanted.timestamp <= self._last_delivered:", "else:")
class DecisionsToldEarly(Signals):
    """Who asks for a part of what was not delivered here is told how it ended."""


# -- leases and rights ------------------------------------------------------------------------------------------------


@rewrite("_measure", "1000 * leases.decode_lease(value).ttl_ms", "900 * leases.decode_lease(value).ttl_ms")
class NineTenths(Leases):
    """A lease lives for nine tenths of its time."""


@rewrite("_revoke", "shards = self._moves.map.shards_of(transaction)", "shards = (self._peers.shard,)")
class RevokedAtHome(Leases):
    """What has expired goes in its home shard alone."""


@rewrite("_change", "if row is not None and row.lease:", "if False:")
class DetachedByAnAppend(Execution):
    """Appending and adding detach a key from its lease."""


@rewrite("_change", "self.leases.pop(key, None)", "pass")
class AttachedAgain(Execution):
    """What is put with a lease, deleted, and added to, all in one transaction, is attached."""


@rewrite("_put", "if before[2] != after[2]:", "if after[2]:")
class AttachedForGood(Store):
    """Which keys are attached to a lease is never noted off."""


@rewrite("denied", "compare.key + b\"\\0\"", "b\"\"")
class ComparisonsOfAll(Rights):
    """Who compares a key needs to read all that follow it."""


@rewrite("denied", "in _needed(operation, first, end):", "in _needed(operation, first, end)[:1]:")
class OneNeedIsEnough(Rights):
    """Who may read may add and append."""


# -- watches, versions ------------------------------------------------------------------------------------------------


@rewrite("_over", "Followed(found, max(upto, client.after))",
         "Followed(merged(asked.told, asked.complete), asked.complete)")  # fmt: skip
class OlderThanTheBuffer(Watches):
    """Who asks for what is older than the buffer is told up to where the first shard is."""


@rewrite("_go_on", "asked.news = not starting and wanted <= feed.upto", "asked.news = wanted <= feed.upto")
class BeginnersWaitForNews(Watches):
    """Who begins waits until something changes."""


@rewrite("_release", "client.versioned and client.after <= feed.upto", "client.versioned")
class AnsweredBeforeItsVersion(Watches):
    """Who follows a version beyond what was released is answered with less."""


@rewrite("_answer", "if waiting.at < oldest:", "if False:")
class CompactedNotTold(Changes):
    """What is not known any more is passed over."""


@rewrite("_serve", "elsewhere = bool(waiting.shards) and self._moves.leads_beyond(waiting.shards)", "elsewhere = False")
class RangeOfOldShards(Versions):
    """A range at a version is read of the shards that there were."""


@rewrite("_kept", "floor = min(self._first_floor, upto.encode())", "floor = bytes(16)")
class FloorNotCommitted(Store):
    """From when on versions are known is forgotten at a restart."""


# -- what is kept twice, and what stays -------------------------------------------------------------------------------


@rewrite("on_results", "asked.silent.discard(sender)", "asked.silent.discard(self._peers.self_id)")
class NobodyIsHeard(Lookups):
    """Whoever says that he knows nothing of an id still counts as silent: a lookup of nobody's id says at last that no
    majority answers."""


@rewrite("_take", "flow.bytes += len(waiting.body)", "pass")
class PutBackWeightless(Bundler):
    """What has to wait for the next bundle weighs nothing any more."""


@rewrite("_take", "if not waiting.tokens or waiting.queued != flow.destinations:", "if not waiting.tokens:")
class TravelsTwice(Bundler):
    """What is sent elsewhere while it waits for a bundle leaves with one here and with one there: of two bundles it
    ends only the later one, and the other one is under way for ever."""


@rewrite("complete", "if self._last_of_shards.get(entry.message.destinations) == position:",
         "if entry.message.destinations in self._last_of_shards:")  # fmt: skip
class LastOfShardsIsGone(Log):
    """With the first bundle of some shards those after it are taken for complete: what is to wait for them votes."""


@rewrite("append", "self._last_writer[key] = entry.position",
         "self._last_writer[key] = self._last_writer.get(key, entry.position)")  # fmt: skip
class FirstWriterCounts(Log):
    """A condition waits for the first open writer of its key, not for the last."""


@rewrite("_take", "keys > NOTED_KEYS_MAX or appends", "appends")
class MoreThanARecord(Bundler):
    """A bundle may see so much that the record of it is none that can be read again."""


@rewrite("_take", "if seen and several else seen", "if False else seen")
class MoreThanAMessage(Bundler):
    """So many ranges may be in a bundle that the votes on it are no message."""


@rewrite("reads", "if len(found) * KEY_BYTES_MAX <= NOTED_BYTES_MAX", "if True")
class AllIsNoted(Execution):
    """So may a transaction alone."""


@rewrite("start", 'self._journal.append(b"")', "pass")
class NothingBegun(LiveReplica):
    """A first life that came to write nothing is taken for one whose disk is gone."""


@rewrite("_renew", "if self._failure:", "if False:")
class GoesOnAfterAnError(LiveReplica):
    """After an error of the disk another life of the same process begins with what was written."""


@rewrite("_sweep", "if self._suspended and self._host is not None:", "if False:")
class NobodyLooks(LiveReplica):
    """Who stands still as nothing could be archived does so for good: without a write nothing is tried again."""


@rewrite(
    "_open",
    "begun, known =",
    "life = wall_us(), config.durability; Snapshots(backend).install(self._journal, new_protocol(),"
    " owner_of(config.cluster, replica_id), life, wall_us()); begun, known =",
)
class SnapshotForAJournal(LiveReplica):
    """A snapshot that waits is installed in a journal that is gone."""


@rewrite("_complete", "if large and read > BUNDLE_RESULT_BYTES_MAX", "if False")
class AllResultsAtOnce(Replica):
    """What a bundle reads is held together, be it as often the most that one may read as it has transactions."""


@rewrite("_tell", "in_messages(parts, _bytes_of)", "[parts]")
class AllPartsAtOnce(Signals):
    """Whoever asks for the parts of many bundles is sent them in one message, be it ever so large."""


@rewrite("delivered", "max(EARLY_MANY, 2 * len(self._early))", "EARLY_MANY")
class LooksEachTime(Signals):
    """Who is far behind looks through all parts that came early at each delivery, and falls back further."""


@rewrite("wrote", "if len(self._due) > 2 * len(self._versions) + _STALE_MAX:", "if False:")
class InstantsStay(Leases):
    """A lease that is renewed all the time takes memory for each renewal, for a time to live."""


@rewrite("_take", "if len(later) > PASSED_MAX:", "if False:")
class LooksAtAll(Bundler):
    """Where all want one key each bundle looks at all that waits."""


@rewrite("on_state", "before is None or before.places != state.places", "True")
class SlotBySlot(Shards):
    """Thousands of slots are looked at whenever a leader says where they still are."""


@rewrite("_step", "self.log.deleted_at = entry.position", "pass")
class GoneIsNotDeleted(Replica):
    """What came with a slot and went with it is not missed by who looked twice while it was elsewhere."""


@rewrite("_try_elsewhere", "waiting.astray, waiting.without = False, set()", "waiting.astray = False")
class NothingThereEither(Clients):
    """A shard that had nothing of a copy is not waited for where another copy has gone to it."""


@rewrite("_find", 'rest = (first, last) if reverse else (last + b"\\0", end)', 'rest = (first, last)')
class FallsAnyhow(Execution):
    """Behind own writes of large values the same rows are found again."""


@rewrite("_found", "log.completed if attached else log.deleted_at", "log.deleted_at")
class DetachedInBetween(Reads):
    """A key that was attached for a moment is overlooked by who was told the same before and after."""


@rewrite("_take_turn", " and self._room > 0", "")
class AllInOneTurn(Reads):
    """All that is due is read at once, and whatever else there is waits for that."""


@rewrite("on_tick", "wake = now", "pass")
class NextTurnComesByChance(Reads):
    """What is left for the next turn waits until there is something else to do."""


@rewrite("forget", "self._due.pop(token, None)", "pass")
class ForgottenIsRead(Reads):
    """What is due is read though nobody waits for it any longer."""


def _core(settings: Settings, *kinds: type) -> list[Planted]:
    return [Planted(kind.__name__, "", core=kind, settings=settings) for kind in kinds]


PLANTED_IN_STORE = (
    *_core(TWO_SHARDS, NobodyIsHeard, PutBackWeightless, LastOfShardsIsGone, FirstWriterCounts),
    *_core(TWO_SHARDS, RepeatedIsAnAnswer, EveryMovedCounts, NothingMoreIsTold, ForgottenAwaited),
    *_core(TWO_SHARDS, ForgottenIsNothing, TooOldIsNotTold, MoreThanARecord, MoreThanAMessage, AllIsNoted),
    *_core(TWO_SHARDS, NothingBegun, GoesOnAfterAnError, NobodyLooks, SnapshotForAJournal, AllPartsAtOnce),
    *_core(TWO_SHARDS, LooksEachTime, InstantsStay, LooksAtAll, SlotBySlot, DetachedInBetween, NothingThereEither),
    *_core(TWO_SHARDS, FallsAnyhow, AllInOneTurn, NextTurnComesByChance, ForgottenIsRead),
    Planted("GoneIsNotDeleted", "", GoneIsNotDeleted, settings=MOVING),
    Planted("AllResultsAtOnce", "", AllResultsAtOnce, settings=TWO_SHARDS),
    Planted("RepeatedIfAllSay", "", core=RepeatedIfAllSay, settings=THREE),
    Planted("HeldOutcomeOneOff", "", HeldOutcomeOneOff, settings=MOVING),
    *_core(FORGETTING, GivenIsTakenForSettled, AsOldAsItsStamp),
    *_core(LATE, ExpiredWhereItWas, GoneThoughKnown, MovedByAnyPlace),
    *_core(LATE_OF_THREE, OneIsNotEnough, ResultsOfOldShards, DecidedByTheLastCopy),
    *_core(LATE_OF_THREE, TakenForASingle, TakenIdsNotGivenOn),
    *_core(FORGETTING, ForgottenWasApplied),
    *_core(RANGES, RangeOfSomeShards),
    *_core(MOVING, AnotherMoveGoesOn, CreatedByTheLastWrite, DecisionsToldEarly, TravelsTwice),
    *_core(LEASES_MOVE, LeaseLeftBehind),
    *_core(LEASES, NineTenths, RevokedAtHome, DetachedByAnAppend, AttachedAgain),
    Planted("AttachedForGood", "", store=AttachedForGood, settings=LEASES),
    *_core(RULED, ComparisonsOfAll, OneNeedIsEnough),
    *_core(WATCHED, OlderThanTheBuffer, BeginnersWaitForNews, AnsweredBeforeItsVersion, CompactedNotTold),
    *_core(PAST_GROWS, RangeOfOldShards),
    Planted("FloorNotCommitted", "", store=FloorNotCommitted, settings=PAST_MOVES),
)  # fmt: skip
