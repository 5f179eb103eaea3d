"""Bugs planted in the way that slots move from one shard to another."""

from __future__ import annotations

import msgspec

from kvstore.core.clients import Clients
from kvstore.core.fates import Fate
from kvstore.core.log import Item
from kvstore.core.moves import Moves
from kvstore.core.reads import Reads
from kvstore.core.replica import Replica
from kvstore.core.signals import Signals
from kvstore.core.versions import Versions
from kvstore.simulated.settings import Settings
from tests.planted.rewriting import rewrite
from tests.planted.store import Planted

CALM = Settings(protocol="white_box", profile="calm", size="small", shards=2, seconds=1.0, clients=6, moves=True)
MOVING = Settings(protocol="white_box", size="small", shards=2, moves=True)
PAST = msgspec.structs.replace(CALM, past=True)
FORGETTING = Settings(
    protocol="white_box", size="small", shards=2, moves=True, seconds=1.0, options={"dedup_window_us": "300000"}
)
GROWING = Settings(
    protocol="primcast", size="small", grows=True, ranges=True, backups=True, past=True, moves=True, replicas=3
)
ANY_CALM = Settings(protocol="white_box", profile="calm", size="small", moves=True)
PIECEMEAL = msgspec.structs.replace(MOVING, piecemeal=True, late=True)
THREE = Settings(protocol="white_box", size="small", shards=3, moves=True)


@rewrite("told", "if not places:", "if True:")
class SlotServedTwice(Moves):
    """The source takes transactions for a slot that it has given away."""


@rewrite("_took", "for message_id, record in given.ids:", "for message_id, record in ():")
class IdsLeftBehind(Moves):
    """What is remembered of transactions does not go with their slots."""


@rewrite(
    "_fate",
    "entry.votes(index, self.shard)",
    "[__import__('msgspec').structs.replace(v, places=item.places) for v in entry.votes(index, self.shard)]",
)
class MovedIgnoredElsewhere(Replica):
    """A shard goes by what it knows of moves itself, whatever others vote."""


@rewrite(
    "voted", "if moved([v.places for v in votes], shards):", "if any([moved([v.places], shards) for v in votes]):"
)
class MovedByWhoGave(Fate):
    """Where a shard has given a slot counts, whatever has become of it since."""


@rewrite("_took", "for row in given.rows:", "for row in [row for row in given.rows if row.value is not None]:")
class StagedDeletionLost(Moves):
    """What was deleted after it was given stands in the target."""


@rewrite("wrote", "if leaving is not None and key <= leaving.rows_to", "if False")
class DirtyRowsForgotten(Moves):
    """What the source changes after it was given is not given again."""


@rewrite("wrote", "key <= leaving.rows_to", "key < leaving.rows_to")
class LastRowNotDirty(Moves):
    """What the source changes of the last row that it has given is not given again."""


@rewrite("_took", "_joined(own, record)", "None")
class OwnMemoryKept(Moves):
    """What the target knows of an id itself is not joined with what it is given."""


@rewrite("remembers", "if leaving is not None and message_id <=", "if False and message_id <=")
class DirtyIdsForgotten(Moves):
    """What the source remembers after its ids were given is not given any more."""


@rewrite("_took", "if given.first:", "if False:")
class StagedOfAnotherMove(Moves):
    """What an abandoned move has staged is taken by the next."""


@rewrite("step", "self._store.set_note(PLACES, encode_places(self.runs))", "pass")
class PlacesLostAtRestart(Moves):
    """Which slots were given and taken is known until the next restart."""


@rewrite("_gave", "store.place(key[3:], None, at)", "pass")
class RowsStayBehind(Moves):
    """The source keeps what it has given."""


@rewrite("give", "kept = self._kept(timestamp)", 'kept = b""')
class ToldByMemory(Moves):
    """A step tells ids that some replicas have forgotten and others not yet."""


@rewrite("step", "self._store.forget_past(at)", "pass")
class ReadOnBothSides(Moves):
    """Shards are read at versions before a move: what moved is found twice."""


@rewrite("_drop", "if part.moved or gives(part):", "if part.moved:")
class GivenPartDropped(Signals):
    """A step's part goes when a quorum of both shards has completed it: who is behind finds what it gave nowhere."""


@rewrite("_drop", "if part.moved or gives(part):", "if gives(part):")
class MovedPartDropped(Signals):
    """The part of what ended as moved goes when it is settled: who is behind is told of the copy before it, if slots
    have come with that."""


@rewrite("completed", "(not entry.settled or moved or gives(part))", "(not entry.settled or gives(part))")
class MovedPartNotKept(Signals):
    """It is not kept where it is settled before it is complete."""


@rewrite("_forget", "self.signals.forget_before(created_us(oldest))", "pass")
class GivenPartsStay(Replica):
    """A step's part is kept for ever."""


@rewrite("on_deliver", "if self._held or self.log.moving:", "if self._held:")
class LooksPastAStep(Replica):
    """What is delivered after a step of a move is looked at before that is complete."""


@rewrite("_serve", "not self._moves.owns(operation.key)", "False")
class AbsentWhereItWas(Versions):
    """A key that has moved away is read at a version as one that is not there."""


@rewrite("_gave", "store.set_note(LEAVING, msgspec.msgpack.encode(self.leaving))", "pass")
class LeavingLostAtRestart(Moves):
    """How far a move has come is known until the next restart."""


@rewrite("_serve", "self._elsewhere(request.transaction)", "False")
class ReadAfterTheMove(Reads):
    """A leader reads what its shard had until a moment ago."""


@rewrite("_elsewhere", " or self._moves.lacks_some(transaction)", "")
class ReadBeforeTheMove(Reads):
    """A replica that is behind reads what is to come to its shard, and finds nothing."""


@rewrite("_vote", "return Vote(repeated=True, places=item.places)", "return None")
class RepetitionNotTold(Signals):
    """Whoever does not know an id takes its repetition for the first."""


@rewrite("told", "if any([isinstance(op, _EVERY_SLOT)", "if any([False and isinstance(op, _EVERY_SLOT)")
class RangeWithoutTheNewShard(Moves):
    """Who scans the shards that it knows is not told of rows that are in one that was added."""


@rewrite("completed", "if result.status == EXPIRED and self._moves.joined_later", "if False")
class NewcomerCallsItExpired(Clients):
    """A shard that was added says of a scan of before its time that it has had no effect."""


@rewrite("give", "_without_ranges(record)", "record")
class RangeToldTwice(Moves):
    """What a shard has read of a range goes with a slot, too."""


@rewrite("_fate", "if alone:", "if alone or (decided is not None and item.places and moved([item.places], shards)):")
class DecidedAndMoved(Replica):
    """A shard that gave a slot calls moved what another one has told the end of."""


@rewrite("on_decisions", "message.shard == entry.move.source", "True")
class StepsEndByTheirParts(Signals):
    """How a step has ended is told a source in vain that nobody gives a part any more."""


@rewrite("on_decisions", "decided.status == APPLIED", "False")
class StepWithoutItsRows(Signals):
    """A step ends in its target by what its source says of it, without what it gives."""


@rewrite("_took", "_staged(move.source)", "_staged(0)")
class StagedOfAnySource(Moves):
    """What two sources give at a time is staged in one place."""


@rewrite("follow", "while first.later is not None:", "while False:")
class FollowsTheFirst(Item):
    """A third copy of an id does not wait for the second."""


@rewrite("_remember", "if first is not None and first.status != MOVED:", "if first is not None:")
class MovedForGood(Clients):
    """What was moved once is called so for ever."""


@rewrite("_try_elsewhere", "if anyhow or not set(shards).issubset(waiting.destinations):", "if True:")
class SameShardsAgain(Clients):
    """Who is told moved asks the same shards at once, again and again, until the map is another one."""


@rewrite("remembers", "message_id <= leaving.ids_to", "message_id < leaving.ids_to")
class LastIdNotDirty(Moves):
    """What the source remembers anew of the last id that it has looked at is not given."""


@rewrite("_given_again", "slot if all_known else 0", "SLOTS")
class DirtyRowsLeft(Moves):
    """A move is over though there are changed rows that were not given again."""


@rewrite("give", "len(dirty_ids) == self.portion or", "")
class DirtyIdsLeft(Moves):
    """A move is over though there are ids that were not given."""


@rewrite("_gave", "store.set_note(DIRTY + row.key, None)", "pass")
class DirtyForGood(Moves):
    """What has changed once is given with every step."""


@rewrite("_gave", "if key < kept:", "if False:")
class ForgottenIdsStayDirty(Moves):
    """Ids that some replica may have forgotten are to be given, and never are: with a portion of them no move ends."""


@rewrite("give", "0 if left else min(self._handed_before(), clean_to)", "self._handed_before()")
class HandedOverTooEarly(Moves):
    """Slots are handed over while something is left to give."""


@rewrite("_set_leaving", "_remaining(leaving)", "_expanded(leaving.slots)")
class GivenAgainWhereItIs(Moves):
    """What is written to a slot that has come back goes with the move that has handed it over."""


@rewrite("_gave", "given.ids_to, slots_to)", "given.ids_to)")
class HandedOverForgotten(Moves):
    """A move does not know which slots it has handed over."""


@rewrite("completed", "(not entry.settled or moved or gives(part))", "not entry.settled")
class SettledGiftNotKept(Signals):
    """A step's part is not kept where that is complete when all others are."""


@rewrite("on_settled", "held.settled |= held.delivery.timestamp == timestamp", "pass")
class HeldIsNotSettled(Replica):
    """The part of what was settled behind a step of a move is kept for ever."""


@rewrite("on_start", "[held.delivery for held in self._held]", "[]")
class HeldIsNotDoubtful(Replica):
    """The part of what stands behind a step when a life begins is kept if it was settled before."""


@rewrite("_refuse", '"unknown" if before else refusal.outcome', "refusal.outcome")
class NothingWillBeDone(Clients):
    """Who is refused where its slots have gone is told that nothing will be done, though something has left before."""


@rewrite("_given_again", "SLOTS if all_known else 0", "SLOTS if rows else 0")
class NeverOver(Moves):
    """A move ends only if something has changed since the step before."""


@rewrite("_clear", "return True", "return False")
class RestUnnoticed(Moves):
    """Of a move that was given up the first portion goes, and nobody knows of the rest."""


@rewrite("remembers", "_among(slots, self._leaving_slots)",
         "slots is not None and set(_slots(slots)) <= self._leaving_slots")  # fmt: skip
class AllMustLeave(Moves):
    """What the source remembers anew goes with its slots only if all of them go."""


@rewrite("_took", "store.set_note(key, None)", "pass")
class StagedForGood(Moves):
    """Rows that stand in the target stay among those that are staged, too."""


@rewrite("wrote", "key <= leaving.rows_to", "key < leaving.rows_to")
class LastGivenNotWatched(Moves):
    """What the source changes at the very key up to which it has given is not given again."""


PLANTED_IN_STORE = (
    Planted("slot_served_twice", "", core=SlotServedTwice, settings=CALM),
    Planted("last_given_not_watched", "books", core=LastGivenNotWatched, settings=MOVING),
    Planted("ids_left_behind", "", core=IdsLeftBehind, settings=MOVING),
    Planted("moved_ignored_elsewhere", "", MovedIgnoredElsewhere, settings=THREE),
    Planted("moved_by_who_gave", "", core=MovedByWhoGave, settings=THREE),
    Planted("staged_deletion_lost", "", core=StagedDeletionLost, settings=CALM),
    Planted("dirty_rows_forgotten", "", core=DirtyRowsForgotten, settings=CALM),
    Planted("last_row_not_dirty", "", core=LastRowNotDirty, settings=CALM),
    Planted("own_memory_kept", "", core=OwnMemoryKept, settings=MOVING),
    Planted("all_must_leave", "", core=AllMustLeave, settings=PIECEMEAL),
    Planted("dirty_ids_forgotten", "", core=DirtyIdsForgotten, settings=MOVING),
    Planted("staged_of_another_move", "", core=StagedOfAnotherMove, settings=CALM),
    Planted("places_lost_at_restart", "", core=PlacesLostAtRestart, settings=MOVING),
    Planted("rows_stay_behind", "final states", core=RowsStayBehind, settings=MOVING),
    Planted("told_by_memory", "", core=ToldByMemory, settings=FORGETTING),
    Planted("read_on_both_sides", "reads at versions", core=ReadOnBothSides, settings=PAST),
    Planted("moved_part_dropped", "memory", core=MovedPartDropped, settings=THREE),
    Planted("moved_part_not_kept", "", core=MovedPartNotKept, settings=THREE),
    Planted("given_part_dropped", "memory", core=GivenPartDropped, settings=MOVING),
    Planted("given_parts_stay", "memory", GivenPartsStay, settings=FORGETTING),
    Planted("looks_past_a_step", "", LooksPastAStep, settings=CALM),
    Planted("absent_where_it_was", "reads at versions", core=AbsentWhereItWas, settings=PAST),
    Planted("leaving_lost_at_restart", "", core=LeavingLostAtRestart, settings=MOVING),
    Planted("read_after_the_move", "", core=ReadAfterTheMove, settings=CALM),
    Planted("read_before_the_move", "", core=ReadBeforeTheMove, settings=CALM),
    Planted("range_without_the_new_shard", "", core=RangeWithoutTheNewShard, settings=GROWING),
    Planted("newcomer_calls_it_expired", "", core=NewcomerCallsItExpired, settings=GROWING),
    Planted("range_told_twice", "", core=RangeToldTwice, settings=GROWING),
    Planted("repetition_not_told", "", core=RepetitionNotTold, settings=THREE),
    Planted("decided_and_moved", "", DecidedAndMoved, settings=THREE),
    Planted("steps_end_by_their_parts", "", core=StepsEndByTheirParts, settings=MOVING),
    Planted("step_without_its_rows", "", core=StepWithoutItsRows, settings=MOVING),
    Planted("staged_of_any_source", "", core=StagedOfAnySource, settings=THREE),
    Planted("follows_the_first", "", core=FollowsTheFirst, settings=THREE),
    Planted("moved_for_good", "", core=MovedForGood, settings=MOVING),
    Planted("same_shards_again", "", core=SameShardsAgain, settings=MOVING),
    Planted("nothing_will_be_done", "", core=NothingWillBeDone, settings=MOVING),
    Planted("last_id_not_dirty", "", core=LastIdNotDirty, settings=MOVING),
    Planted("dirty_rows_left", "", core=DirtyRowsLeft, settings=CALM),
    Planted("dirty_ids_left", "", core=DirtyIdsLeft, settings=CALM),
    Planted("dirty_for_good", "moves", core=DirtyForGood, settings=CALM),
    Planted("forgotten_ids_stay_dirty", "", core=ForgottenIdsStayDirty, settings=FORGETTING),
    Planted("move_never_over", "moves", core=NeverOver, settings=CALM),
    Planted("rest_unnoticed", "moves", core=RestUnnoticed, settings=ANY_CALM),
    Planted("staged_for_good", "moves", core=StagedForGood, settings=CALM),
    Planted("handed_over_too_early", "", core=HandedOverTooEarly, settings=CALM),
    Planted("given_again_where_it_is", "", core=GivenAgainWhereItIs, settings=MOVING),
    Planted("handed_over_forgotten", "", core=HandedOverForgotten, settings=CALM),
    Planted("settled_gift_not_kept", "", core=SettledGiftNotKept, settings=MOVING),
    Planted("held_is_not_settled", "", HeldIsNotSettled, settings=MOVING),
    Planted("held_is_not_doubtful", "", HeldIsNotDoubtful, settings=MOVING),
)
