"""Bugs planted in what fault-tolerant Skeen and FastCast share: the log of a group, its reigns, the consensus below."""

from __future__ import annotations

from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from tests.planted import Planted, planted_in
from tests.planted.rewriting import rewrite

# -- the log and its reigns -------------------------------------------------------------------------------------------


@rewrite("end_batch", "out.put(_BASE_KEY, _encode((self.instance, self.clock, self.seen)))", "pass")
class BaseNotSaved(FtSkeen):
    """How far the log is applied is only in memory."""


@rewrite("_adopt_if_due", "self._base_dirty = True", "pass")
class AdoptedBaseNotSaved(FtSkeen):
    """How far an adopted state goes is only in memory."""


@rewrite("_adopt_if_due", "entry.final = told.final self._save_entry(entry, out)", "entry.final = told.final")
class AdoptedEntriesNotSaved(FtSkeen):
    """The entries of an adopted state are only in memory."""


@rewrite("_apply_advance", "self._save_entry(entry, out)", "pass")
class FinalNotSaved(FtSkeen):
    """A decided global timestamp is only in memory."""


@rewrite("_mark_logged", "self._save_entry(entry, out)", "pass")
class LoggedNotSaved(FtSkeen):
    """That an installed message is in the log is only in memory."""


@rewrite(
    "_begin_if_ready",
    "if len(told) < self.topology.quorum(self.group):",
    "if len(told) < self.topology.quorum(self.group) - 1:",
)
class OnePositionLess(FtSkeen):
    """A new leader hears the positions of one process less than a quorum."""


@rewrite("_begin_if_ready", "if told[furthest] > self.log.position:", "if told[furthest] > self.log.position + 1:")
class OneDeliveryBehind(FtSkeen):
    """A new leader may be one delivery behind a quorum."""


@rewrite(
    "on_message",
    "if self._positions is not None and message.ballot == self._ballot:",
    "if self._positions is not None:",
)
class OldPositionsCount(FtSkeen):
    """Positions told in an earlier ballot count."""


@rewrite(
    "on_message",
    "out.send_durable((sender,), Position(message.ballot, self.log.position))",
    "out.send((sender,), Position(message.ballot, self.log.position))",
)
class PositionBeforeSync(FtSkeen):
    """A position is told before the deliveries are on disk."""


@rewrite(
    "on_message",
    "if not self.paxos.amnesiac: out.send_durable((sender,), Position",
    "if True: out.send_durable((sender,), Position",
)
class AmnesiacsPosition(FtSkeen):
    """Who lost its disk tells its position."""


@rewrite("_begin_reign", "self.stamping.advance(self.clock)", "pass")
class StampingFromBefore(FtSkeen):
    """A new leader stamps from its own clock, not the log's."""


@rewrite("_begin_reign", "self._rebuild_queue()", "pass")
class QueueNotRebuilt(FtSkeen):
    """A new leader's queue is what it was."""


@rewrite("_begin_reign", "entry.raised = entry.concluded = False", "pass")
class ConcludedBefore(FtSkeen):
    """A leader proposes no Advance again that it proposed in an earlier reign."""


@rewrite("_begin_reign", "self._raised_to = self.clock", "pass")
class RaisedBefore(FastCast):
    """A leader counts on Advances that it proposed in an earlier reign."""


@rewrite("_end_reign", "self.in_flight.clear()", "pass")
class InFlightKept(FtSkeen):
    """What a leader had in flight when it was deposed still is in its next reign."""


@rewrite("_end_reign", "self._rebuild_queue()", "pass")
class DeposedQueueKept(FtSkeen):
    """A deposed leader's queue still has what it had in flight."""


@rewrite("_apply", "if self.reign is not None and self.seen > self.reign: self._end_reign()", "pass")
class ReignsOn(FtSkeen):
    """A leader does not stop when it sees a later leader's command in the log."""


@rewrite(
    "_apply",
    "self.seen = max(self.seen, command.ballot)",
    "self.seen = command.ballot if not isinstance(command, Assign) else self.seen",
)
class AssignsDeposeNobody(FtSkeen):
    """Only Begin and Advance tell of a later ballot."""


@rewrite("_apply_assign", "self._raise_clock(command.local.time)", "pass")
class StampsMoveNoClock(FtSkeen):
    """The log's clock does not follow the stamps in it."""


@rewrite("_apply_advance", "self._raise_clock(command.final.time)", "pass")
class AdvancesMoveNoClock(FtSkeen):
    """The log's clock does not follow the Advances."""


@rewrite("_on_stamps", "if entry is not None and self._is_decided(entry):", "if entry is not None:")
class UndecidedTold(FtSkeen):
    """Who asks hears a stamp that is not decided."""


@rewrite("_on_stamps", "elif entry is None and known is not None:", "elif False:")
class DeliveredNotTold(FtSkeen):
    """Who asks for the stamp of a message that is settled hears nothing."""


@rewrite(
    "_consider", "len(stamps) == len(entry.message.destinations)", "len(stamps) >= len(entry.message.destinations) - 1"
)
class OneStampLess(FtSkeen):
    """The maximum of all stamps but one is the global timestamp."""


@rewrite("_is_covered", "final.time <= self.clock", "final.time <= self.clock + 1")
class CoveredOneEarly(FtSkeen):
    """A message is delivered when the log's clock is one below its global timestamp."""


@rewrite("_deliver", "note=entry.local.encode()", "note=final.encode()")
class NoteLost(FtSkeen):
    """A delivery is journaled without the own group's stamp: who installs it takes the global timestamp for that."""


@rewrite("on_install", "if self.reign is not None and not self._is_in_flight(message.id, local):", "if False:")
class DeposedGoesOn(FtSkeen):
    """A leader whose group delivers what it has not stamped goes on."""


@rewrite("_on_deliver", "if position > self.log.position and", "if")
class OldWordsKept(FtSkeen):
    """A leader's word on what was delivered already is kept. (It only takes memory: words are looked up by the next
    position.)"""


@rewrite("_adopt_if_due", "if self.log.position < state.position:", "if False:")
class AdoptedBehind(FtSkeen):
    """A state is adopted before what its owner had delivered is here."""


@rewrite("_adopt_if_due", "if again: self.paxos.stand(now, out)", "pass")
class ReignLostInState(FtSkeen):
    """A leader that adopts a state leads on without a reign."""


@rewrite(
    "_adopt_if_due",
    "passed = entry.position <= state.position and entry.local not in unlogged",
    "passed = entry.position <= state.position",
)
class UnloggedForgotten(FtSkeen):
    """What is delivered and not in the log yet is taken for logged when a state is adopted."""


@rewrite("_send_state", "self.clock, self.seen, unlogged)", "0, self.seen, unlogged)")
class StateWithoutClock(FtSkeen):
    """A state is adopted without its clock."""


@rewrite("_send_state", "self.clock, self.seen, unlogged)", "self.clock, Ballot(0, 0), unlogged)")
class StateWithoutBallot(FtSkeen):
    """A state is adopted without the highest ballot of the log."""


@rewrite("_on_applied", "drop = min(quorum, spare, applied[self.self_id])", "drop = max(quorum, spare)")
class DroppedBeforeApplied(FtSkeen):
    """Instances are dropped though this process has not applied them."""


@rewrite("_drop", "elif entry.position:", "elif False:")
class SettledForgotten(FtSkeen):
    """What is settled before it is in the log stays for ever. (It only takes memory.)"""


@rewrite(
    "_recollect", "told.complete and not behind and self.paxos.may_return", "told.complete and self.paxos.may_return"
)
class ReturnsBehind(FtSkeen):
    """Who lost its disk returns before it has what it had delivered."""


@rewrite("_recollect", "told.complete and not behind and self.paxos.may_return", "not behind and self.paxos.may_return")
class ReturnsUnreminded(FtSkeen):
    """Who lost its disk returns before a quorum of every group has said what it had delivered."""


@rewrite("add", "if reminder.question == self._question:", "if True:", part="_reminders")
class StaleReminders(FtSkeen):
    """Who lost its disk takes the answers to an earlier life's question."""


@rewrite("complete", ">= topology.quorum(group)", ">= topology.quorum(group) - 1", part="_reminders")
class OneReminderLess(FtSkeen):
    """Who lost its disk needs one answer less than a quorum of each group."""


@rewrite(
    "_conclude",
    "(late or final.time > max(self._raised_to, self.clock))",
    "(late or final.time > max(self._raised_to, self.clock) + 1)",
)
class SlowPathOneLate(FastCast):
    """The slow path is not taken for a clock that is one short."""


@rewrite("_on_soft", "held[group][0] < soft.ballot", "held[group][0] > soft.ballot")
class FirstSoftCounts(FastCast):
    """The first soft stamp of a group stays, whatever its later leaders say. (Soft stamps bind nobody: the slow path is
    taken more often.)"""


# -- consensus --------------------------------------------------------------------------------------------------------


@rewrite("_follow", "if ballot < self.promised:", "if False:", part="paxos")
class DeposedObeyed(FtSkeen):
    """An acceptor obeys a leader of a lower ballot than it has promised."""


@rewrite("_promise", "self._votes.clear()", "pass", part="paxos")
class VotesKept(FtSkeen):
    """Promises for a candidate's earlier ballot count in the next."""


@rewrite("_promise", "self._assembly.clear()", "pass", part="paxos")
class PortionsMixed(FtSkeen):
    """Portions of promises for two ballots make one."""


@rewrite("_promise", "self._queue.clear()", "pass", part="paxos")
class QueueKept(FtSkeen):
    """What a deposed leader had not proposed yet it proposes when it leads again."""


@rewrite("_send_promise", "if k >= first", "if k > first", part="paxos")
class FirstInstanceLeftOut(FtSkeen):
    """A promise leaves out the first instance that was asked for."""


@rewrite("_send_promise", "out.send_durable(", "out.send(", part="paxos")
class PromiseBeforeSync(FtSkeen):
    """A promise is told before it is on disk."""


@rewrite("_lead_if_complete", "or self.self_id not in self._votes", "", part="paxos")
class OwnPromiseNotNeeded(FtSkeen):
    """A candidate leads with a quorum of promises, its own not on disk."""


@rewrite("_lead_if_complete", "else self.quorum", "else self.quorum - 1", part="paxos")
class OnePromiseLess(FtSkeen):
    """A candidate needs one promise less than a quorum."""


@rewrite(
    "_lead_if_complete", "range(self.decided + 1, self._next)", "range(self.decided + 1, self._next - 1)", part="paxos"
)
class LastInstanceNotProposed(FtSkeen):
    """A new leader does not propose again what was accepted last."""


@rewrite(
    "_lead_if_complete",
    "self._begun = (self.promised, self._next - 1)",
    "self._begun = (self.promised, self.decided)",
    part="paxos",
)
class BegunAtDecided(FtSkeen):
    """Who lost its disk returns with what was decided when the ballot began, not with what it began with."""


@rewrite("_decide_next", "if entry is None or entry[0] < ballot:", "if entry is None:", part="paxos")
class AnyBatchDecided(FtSkeen):
    """What was accepted in a lower ballot is taken for what is chosen."""


@rewrite(
    "_on_accepted",
    "max(accepted.ballot, self._chosen.get(instance, accepted.ballot))",
    "min(accepted.ballot, self._chosen.get(instance, accepted.ballot))",
    part="paxos",
)
class LowestChosen(FtSkeen):
    """An instance is chosen in the lowest ballot that a quorum accepted."""


@rewrite("_on_chosen", "self._save_entry(k, out)", "pass", part="paxos")
class FetchedNotSaved(FtSkeen):
    """Decisions that were fetched are only in memory."""


@rewrite("_on_fetch", "first = max(first, self.low)", "first = max(first - 1, self.low)", part="paxos")
class FetchesOneBefore(FtSkeen):
    """Decisions are told from one instance earlier on. (They have their numbers.)"""


@rewrite("on_start", "range(self.low, self.decided + 1)", "range(self.low, self.decided)", part="paxos")
class LastDecisionForgotten(FtSkeen):
    """After a restart the last decision is not taken again."""


@rewrite(
    "on_start",
    "self._timer.restart(now, 0.1 if self.promised.leader == self.self_id else 1.0)",
    "self._timer.restart(now); self._next = max(self._entries, default=self.decided) + 1; "
    "self.status = LEADER if self.promised.leader == self.self_id else FOLLOWER",
    part="paxos",
)
class LeadsAgain(FtSkeen):
    """A restarted leader goes on in its ballot."""


@rewrite("jump", "self._taken.clear()", "pass", part="paxos")
class TakenAfterJump(FtSkeen):
    """Decisions that an adopted state contains are taken again. (Whoever takes them passes over what it has.)"""


@rewrite("finish_return", "self._save_promise(out)", "pass", part="paxos")
class ReturnNotSaved(FtSkeen):
    """The ballot in which a process without memory returns is only in memory."""


@rewrite("may_return", "max(upto, self.rejoin.reach)", "self.rejoin.reach", part="paxos")
class ReturnsBeforeBegun(FtSkeen):
    """Who lost its disk returns without the instances that the ballot began with."""


@rewrite("_on_prepare", "if self.amnesiac: return", "pass", part="paxos")
class AmnesiacPromises(FtSkeen):
    """Who lost its disk promises."""


@rewrite("on_highest", "self.bound = max(ballots)", "self.bound = min(ballots)", part="paxos.rejoin")
class LowestBound(FtSkeen):
    """Who lost its disk returns above the lowest ballot that it hears of."""


@rewrite("on_highest", "or answer.question != self._question ", "", part="paxos.rejoin")
class StaleAnswers(FtSkeen):
    """Who lost its disk takes answers to the questions of an earlier life."""


HARMLESS = tuple(map(Planted, (OldWordsKept, FetchesOneBefore, TakenAfterJump, SettledForgotten, FirstSoftCounts)))
PLANTED = planted_in(__name__, HARMLESS)
