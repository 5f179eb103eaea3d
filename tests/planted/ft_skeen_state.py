"""Bugs planted in what fault-tolerant Skeen and FastCast share: the log of a group, its reigns, the consensus below."""

from __future__ import annotations

from multicast.parts.election import Election
from multicast.parts.group_log import GroupLog, LeadersWord
from multicast.parts.group_member import GroupMember
from multicast.parts.instances import Instances
from multicast.parts.paxos import Paxos
from multicast.parts.reign import Reign
from multicast.parts.rejoin import Rejoin
from multicast.parts.reminders import Reminders
from multicast.parts.transfer import StateTransfer
from multicast.parts.truncation import Truncation
from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from tests.planted import Planted, planted_in
from tests.planted.rewriting import rewrite

# -- the log and its reigns -------------------------------------------------------------------------------------------


@rewrite("end_batch", "out.put(_BASE_KEY, _encode((self.instance, self.clock, self.seen)))", "pass", part=GroupLog)
class BaseNotSaved(FtSkeen):
    """How far the log is applied is only in memory."""


@rewrite("adopt", "self._base_dirty = True", "pass", part=GroupLog)
class AdoptedBaseNotSaved(FtSkeen):
    """How far an adopted state goes is only in memory."""


@rewrite("adopt", "entry.final = told.final self._save(entry, out)", "entry.final = told.final", part=GroupLog)
class AdoptedEntriesNotSaved(FtSkeen):
    """The entries of an adopted state are only in memory."""


@rewrite("advance", "self._save(entry, out)", "pass", part=GroupLog)
class FinalNotSaved(FtSkeen):
    """A decided global timestamp is only in memory."""


@rewrite("_mark_logged", "self._save(entry, out)", "pass", part=GroupLog)
class LoggedNotSaved(FtSkeen):
    """That an installed message is in the log is only in memory."""


@rewrite("furthest", "if len(recent) < self._quorum:", "if len(recent) < self._quorum - 1:", part=Reign)
class OnePositionLess(FtSkeen):
    """A new leader hears the positions of one process less than a quorum."""


@rewrite("_reign_if_ready", "> self.deliveries.position", "> self.deliveries.position + 1", part=GroupMember)
class OneDeliveryBehind(FtSkeen):
    """A new leader may be one delivery behind a quorum. (What it lacks is in the log that it begins with, stamped, and
    the log's clock is above its timestamp: whatever it stamps comes later, and waits for it.)"""


@rewrite("told", "if self.state is PREPARING and position.ballot == self.ballot:", "if True:", part=Reign)
class OldPositionsCount(FtSkeen):
    """Positions told in an earlier ballot count."""


@rewrite("_on_position_ask", "out.send_durable(", "out.send(", part=GroupMember)
class PositionBeforeSync(FtSkeen):
    """A position is told before the deliveries are on disk."""


@rewrite("_on_position_ask", "if not self.paxos.amnesiac:", "if True:", part=GroupMember)
class AmnesiacsPosition(FtSkeen):
    """Who lost its disk tells its position."""


@rewrite("reign", "self.clock.advance(log_clock)", "pass", part=Reign)
class StampingFromBefore(FtSkeen):
    """A new leader stamps from its own clock, not the log's."""


@rewrite("_begin_reign", "entry.raised = entry.concluded = False", "pass", part=GroupMember)
class ConcludedBefore(FtSkeen):
    """A leader proposes no Advance again that it proposed in an earlier reign."""


@rewrite("reign", "self.raised_to = log_clock", "pass", part=Reign)
class RaisedBefore(FastCast):
    """A leader counts on Advances that it proposed in an earlier reign."""


@rewrite("_go", "self.in_flight.clear()", "pass", part=Reign)
class InFlightKept(FtSkeen):
    """What a leader had in flight when it was deposed still is in its next reign."""


@rewrite("_stop_acting", "self.log.rebuild_queue()", "pass", part=GroupMember)
class DeposedQueueKept(FtSkeen):
    """A deposed leader's queue still has what it had in flight."""


@rewrite("_apply", "if self.reign.acting and command.ballot > self.reign.ballot:", "if False:", part=GroupMember)
class ReignsOn(FtSkeen):
    """A leader does not stop when it sees a later leader's command in the log."""


@rewrite(
    "read",
    "self.seen = command.ballot",
    "self.seen = self.seen if type(command) is Assign else command.ballot",
    part=GroupLog,
)
@rewrite("_apply", "if self.reign.acting and", "if type(command) is Advance and self.acting and", part=GroupMember)
class AssignsDeposeNobody(FtSkeen):
    """Only Begin and Advance tell of a later ballot."""


@rewrite("_apply", "self.log.raise_clock(command.local.time)", "pass", part=GroupMember)
class StampsMoveNoClock(FtSkeen):
    """The log's clock does not follow the stamps in it."""


@rewrite("advance", "self.raise_clock(command.final.time)", "pass", part=GroupLog)
class AdvancesMoveNoClock(FtSkeen):
    """The log's clock does not follow the Advances."""


@rewrite("_on_stamps", "if entry is not None and self.member.is_decided(entry):", "if entry is not None:")
class UndecidedTold(FtSkeen):
    """Who asks hears a stamp that is not decided."""


@rewrite("_on_stamps", "elif entry is None and known is not None:", "elif False:")
class DeliveredNotTold(FtSkeen):
    """Who asks for the stamp of a message that is settled hears that it is lacked. (It sends the message itself, and
    hears then when it was delivered: what is saved is the payload.)"""


@rewrite(
    "_consider", "len(stamps) == len(entry.message.destinations)", "len(stamps) >= len(entry.message.destinations) - 1"
)
class OneStampLess(FtSkeen):
    """The maximum of all stamps but one is the global timestamp."""


@rewrite("covers", "final.time <= self.clock", "final.time <= self.clock + 1", part=GroupLog)
class CoveredOneEarly(FastCast):
    """A message is delivered when the log's clock is one below its global timestamp."""


@rewrite("_deliver", "note=entry.local.encode()", "note=entry.final.encode()", part=GroupMember)
class NoteLost(FtSkeen):
    """A delivery is journaled without the own group's stamp: who installs it takes the global timestamp for that."""


@rewrite("install", "if mine is None or mine.local != local:", "if False:", part=GroupMember)
class DeposedGoesOn(FtSkeen):
    """A leader whose group delivers what it has not stamped goes on."""


@rewrite("hear", "if position > delivered and", "if", part=LeadersWord)
class OldWordsKept(FtSkeen):
    """A leader's word on what was delivered already is kept. (It only takes memory: words are looked up by the next
    position.)"""


@rewrite("adopt_if_due", "if self._position() < state.position:", "if False:", part=StateTransfer)
class AdoptedBehind(FtSkeen):
    """A state is adopted before what its owner had delivered is here."""


@rewrite("_adopt", "if again: self.paxos.election.campaign(now, out)", "pass", part=GroupMember)
class ReignLostInState(FtSkeen):
    """A leader that adopts a state leads on without a reign."""


@rewrite(
    "adopt",
    "passed = entry.position <= state.position and entry.local not in unlogged",
    "passed = entry.position <= state.position",
    part=GroupLog,
)
class UnloggedForgotten(FtSkeen):
    """What is delivered and not in the log yet is taken for logged when a state is adopted."""


@rewrite("state", "self.clock, self.seen, unlogged)", "0, self.seen, unlogged)", part=GroupLog)
class StateWithoutClock(FtSkeen):
    """A state is adopted without its clock."""


@rewrite("state", "self.clock, self.seen, unlogged)", "self.clock, Ballot(0, 0), unlogged)", part=GroupLog)
class StateWithoutBallot(FtSkeen):
    """A state is adopted without the highest ballot of the log."""


@rewrite(
    "heard", "min(quorum, spare, reached[self._self_id])", "max(quorum, spare)", part=Truncation
)
class DroppedBeforeApplied(FtSkeen):
    """Instances are dropped though this process has not applied them."""


@rewrite("drop", "elif entry.position:", "elif False:", part=GroupLog)
class SettledForgotten(FtSkeen):
    """What is settled before it is in the log stays for ever."""


@rewrite("_return_if_due", "told.complete and not behind and", "told.complete and", part=GroupMember)
class ReturnsBehind(FtSkeen):
    """Who lost its disk returns before it has what it had delivered."""


@rewrite("_return_if_due", "told.complete and not behind and", "not behind and", part=GroupMember)
class ReturnsUnreminded(FtSkeen):
    """Who lost its disk returns before a quorum of every group has said what it had delivered."""


@rewrite("add", "if reminder.question == self._question:", "if True:", part=Reminders)
class StaleReminders(FtSkeen):
    """Who lost its disk takes the answers to an earlier life's question."""


@rewrite("complete", ">= topology.quorum(group)", ">= topology.quorum(group) - 1", part=Reminders)
class OneReminderLess(FtSkeen):
    """Who lost its disk needs one answer less than a quorum of each group."""


@rewrite(
    "_conclude",
    "(late or final.time > moved_to)",
    "(late or final.time > moved_to + 1)",
)
class SlowPathOneLate(FastCast):
    """The slow path is not taken for a clock that is one short."""


@rewrite("_on_soft", "held[group][0] < soft.ballot", "held[group][0] > soft.ballot")
class FirstSoftCounts(FastCast):
    """The first soft stamp of a group stays, whatever its later leaders say. (Soft stamps bind nobody: the slow path is
    taken more often.)"""


# -- consensus --------------------------------------------------------------------------------------------------------


@rewrite("obey", "if ballot < self.promised:", "if False:", part=Election)
class DeposedObeyed(FtSkeen):
    """An acceptor obeys a leader of a lower ballot than it has promised."""


@rewrite("promise", "self._votes = {}", "pass", part=Election)
class VotesKept(FtSkeen):
    """Promises for a candidate's earlier ballot count in the next."""


@rewrite("ended", "self._queue.clear()", "pass", part=Paxos)
class QueueKept(FtSkeen):
    """What a deposed leader had not proposed yet it proposes when it leads again."""


@rewrite("vote", "if k > after", "if k > after + 1", part=Paxos)
class FirstInstanceLeftOut(FtSkeen):
    """A promise leaves out the first instance that was asked for."""


@rewrite("send_vote", "out.send_durable(", "out.send(", part=Election)
class PromiseBeforeSync(FtSkeen):
    """A promise is told before it is on disk."""


@rewrite("choose", "or self._self_id not in votes", "", part=Election)
class OwnPromiseNotNeeded(FtSkeen):
    """A candidate leads with a quorum of promises, its own not among them. (It asks for them when its own is on disk,
    and has heard itself before anybody can have answered; and a quorum of others is a quorum. The rule is that of
    parts.rejoin, which counts on the disk, and of its users.)"""


@rewrite("choose", "not self.views.can_elect(votes)", "len(votes) < self.quorum - 1", part=Election)
class OnePromiseLess(FtSkeen):
    """A candidate needs one promise less than a quorum."""


@rewrite("won", "range(self.decided + 1, self._next)", "range(self.decided + 1, self._next - 1)", part=Paxos)
class LastInstanceNotProposed(FtSkeen):
    """A new leader does not propose again what was accepted last."""


@rewrite(
    "won",
    "self._begun = (self.promised, self._next - 1)",
    "self._begun = (self.promised, self.decided)",
    part=Paxos,
)
class BegunAtDecided(FtSkeen):
    """Who lost its disk returns with what was decided when the ballot began, not with what it began with."""


@rewrite("decide_next", "if entry is None or entry[0] < ballot:", "if entry is None:", part=Instances)
class AnyBatchDecided(FtSkeen):
    """What was accepted in a lower ballot is taken for what is chosen."""


@rewrite("learn", "self._keep(k,", "self.accepted[k] =(lambda k, b, v, o: (b, v))(k,", part=Instances)
class FetchedNotSaved(FtSkeen):
    """Decisions that were fetched are only in memory."""


@rewrite("_on_fetch", "max(fetch.first, known.low)", "max(fetch.first - 1, known.low)", part=Paxos)
class FetchesOneBefore(FtSkeen):
    """Decisions are told from one instance earlier on: of small portions, that one for ever."""


@rewrite("restore", "range(self.low, self.decided + 1)", "range(self.low, self.decided)", part=Instances)
class LastDecisionForgotten(FtSkeen):
    """After a restart the last decision is not taken again."""


@rewrite(
    "on_start",
    "self.election.restore(promised, now, promised.leader == self.self_id)",
    "self.election.restore(promised, now, False); "
    "self._next = max(self.instances.accepted, default=self.decided) + 1; "
    "self.election.state = LEADER if promised.leader == self.self_id else self.election.state; "
    'self._deadlines.by("beat", now)',
    part=Paxos,
)
class LeadsAgain(FtSkeen):
    """A restarted leader goes on in its ballot."""


@rewrite("jump", "self._taken.clear()", "pass", part=Instances)
class TakenAfterJump(FtSkeen):
    """Decisions that an adopted state contains are taken again. (Whoever takes them passes over what it has.)"""


@rewrite("finish_return", "self.keep(out)", "pass", part=Paxos)
class ReturnNotSaved(FtSkeen):
    """The ballot in which a process without memory returns is only in memory."""


@rewrite("come_back", 'self.go("return")', "pass", part=Election)
class NeverAMember(FtSkeen):
    """Who lost its disk has all that it needs, and stays without memory."""


@rewrite("may_return", "max(upto, rejoin.reach)", "rejoin.reach", part=Paxos)
class ReturnsBeforeBegun(FtSkeen):
    """Who lost its disk returns without the instances that the ballot began with."""


@rewrite("_on_new_leader", "if not self.promises: return", "pass", part=Election)
@rewrite("promise", "self.go(what)", "self.state is REJOINING or self.go(what)", part=Election)
class AmnesiacPromises(FtSkeen):
    """Who lost its disk promises."""


@rewrite("_conclude", "self.bound = max(ballots)", "self.bound = min(ballots)", part=Rejoin)
class LowestBound(FtSkeen):
    """Who lost its disk returns above the lowest ballot that it hears of."""


@rewrite("on_highest", "or answer.question != self._question ", "", part=Rejoin)
class StaleAnswers(FtSkeen):
    """Who lost its disk takes answers to the questions of an earlier life."""


@rewrite("adopt", "held.final = told.final", "pass", part=GroupLog)
class CertainInAStateIgnored(FtSkeen):
    """Who takes over a state does not learn what is certain in it of the messages that it has already."""


@rewrite("_reign_if_ready", "or self.log.is_behind", "", part=GroupMember)
class DeposedBeginsToAct(FtSkeen):
    """Who prepares its reign begins it although a later leader has stamped what was delivered here."""


@rewrite("on_returned", "self.highest = max(self.highest, bound)", "self.highest = bound", part=Election)
class BoundLowersBallots(FtSkeen):
    """Who hears the bound of one without memory late stands next for a ballot below what it has promised."""


@rewrite("_on_forgot", "watermark = max(watermark, self.deliveries.watermark)", "pass", part=GroupMember)
class RemindsOfWhatItHeard(FtSkeen):
    """Who has restarted reminds a member of its group of nothing, and that one returns with less than it had told."""


HARMLESS = tuple(
    map(
        Planted,
        (
            OldWordsKept, TakenAfterJump, FirstSoftCounts, DeliveredNotTold, OwnPromiseNotNeeded,
            OneDeliveryBehind,
        ),
    )
)  # fmt: skip
PLANTED = planted_in(__name__, HARMLESS)
