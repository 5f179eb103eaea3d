"""Bugs of rules for answers that come late, and for who comes late, anew, or back without its disk. Tests of single
parts see them: most cost time, or do harm only if two more things go wrong."""

from __future__ import annotations

from multicast.parts.delivered import DeliveredLog
from multicast.parts.detector import FailureDetector
from multicast.parts.election import Election
from multicast.parts.group_log import GroupLog
from multicast.parts.group_member import GroupMember
from multicast.parts.known_copies import KnownCopies
from multicast.parts.leadership import Leadership
from multicast.parts.paxos import Paxos
from multicast.parts.sequence import SequenceHistory
from multicast.parts.window import Window
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.white_box import WhiteBox
from tests.planted import planted_in
from tests.planted.rewriting import rewrite

# -- elections --------------------------------------------------------------------------------------------------------


@rewrite("_on_agreed", "or self.disk_hangs", "", part=FailureDetector)
class StandsWithoutDisk(WhiteBox):
    """Whose disk hangs stands when others agree to what it has asked before: it deposes a leader when the disk is
    back."""


@rewrite("_on_agreed", "agreed.question != self._question or", "", part=FailureDetector)
class AnswersAnyQuestion(WhiteBox):
    """That others missed the leader before it was heard again still counts."""


@rewrite("begin", "self._question = self._unanswered = 0", "self._unanswered = 0", part=FailureDetector)
class AskedBeforeItWon(WhiteBox):
    """A leader stands again when the answers come to what it had asked as a candidate."""


@rewrite("hear", "and sender != self._self_id", "", part=Leadership)
class ReassuredByItself(WhiteBox):
    """A leader that knows of a higher ballot waits for as long as it orders messages."""


@rewrite("on_returned", "self.highest = max(self.highest, bound)", "pass", part=Election)
class StandsBelowBound(WhiteBox):
    """A leader that is asked for a ballot above `bound` stands for its next one, again and again."""


@rewrite("_on_heartbeat", "ballot > self.election.promised or", "", part=Leadership)
class MissesTheSecond(WhiteBox):
    """Who misses one election soon after another waits for long before it asks for the state."""


@rewrite("_on_heartbeat", "or now >= self._vote_again_at", "", part=Leadership)
class VotesOnceForAll(WhiteBox):
    """Who waits for a state does not ask again when the link has lost its question."""


@rewrite("promise", "self._voter.ended(now, out)", "pass", part=Election)
class EndsWithoutAWord(WhiteBox):
    """The user of an election is not told that its ballot has ended: White-Box votes at every heartbeat."""


@rewrite("learn_leader", 'self._deadlines.by("views", now + self._retry_us)', "pass", part=Leadership)
class AsksForAViewOnce(PrimCast):
    """Who misses a view of another group, and what it asks for it, waits for that group for ever: all that it knows of
    have acknowledged."""


@rewrite("_take_over", "self.leaders.learn(self.group, state.ballot)", "pass", part=Leadership)
class AsksTheLeaderBefore(WhiteBox):
    """Who joins a ballot late goes on asking the leader before about what it waits for."""


@rewrite("idle", "not self._queue and", "", part=Paxos)
class IdleUntilTheBatchEnds(FtSkeen):
    """What was proposed in this batch does not count as waiting: the next cast of one batch, which follows it, is taken
    for one that has come too early."""


@rewrite("_on_begun", "if begun.ballot > self._begun[0]:", "if True:", part=Paxos)
class TellsAnothersBegun(FtSkeen):
    """A leader that hears late what an earlier ballot began with tells that to who has lost its disk, who takes it for
    the word of somebody else: nobody comes back while it leads."""


@rewrite("advance", "and not self.window.is_late(entry.message.id, command.final.time)", "", part=GroupLog)
class TwoLateOnesAreABug(FtSkeen):
    """Two leaders have concluded a late copy differently, and all members of the group stop."""


@rewrite("_destinations", "if local <= delivered_at]", "]", part=GroupLog)
class LaterCopyIsTheFirst(FtSkeen):
    """After a restart a later copy is taken for the one that was delivered."""


@rewrite("destinations", "or entry.ts > delivered_at.time", "", part=KnownCopies)
class LaterCopyInTIsTheFirst(PrimCast):
    """After a restart a later copy is taken for the one that was delivered."""


# -- who is new, and who has lost its disk ----------------------------------------------------------------------------


@rewrite("ended", "self._held = None", "pass", part=Leadership)
class NewJoinsWhatItGaveUp(WhiteBox):
    """Who is new holds a state until it has the deliveries, and joins it though it has promised a higher ballot."""


@rewrite("_on_view_is", "self._held = None", "pass", part=Leadership)
class RemovedHoldsItsState(WhiteBox):
    """Who is removed before it has the deliveries for a state that it holds takes that over when they come."""


@rewrite("_return", "and not self.election.rejoin.may_join(self._held.ballot)", "and False", part=Leadership)
class HoldsWhatIsTooOld(WhiteBox):
    """Who may not join the state that it holds any more, since there are more members, waits for deliveries."""


@rewrite("_return", "self._deliveries.position < self.election.rejoin.reach or self._held is not None",
         "self._deliveries.position < self.election.rejoin.reach", part=Leadership)  # fmt: skip
class AsksForStateAgain(WhiteBox):
    """Who has a state in hand and lacks deliveries asks for it again and again."""


@rewrite("_on_heartbeat", "if heartbeat.position > self._deliveries.position:", "if False:", part=Leadership)
class FetchesNothingWhileItWaits(WhiteBox):
    """Who has lost its disk fetches deliveries only when it has a state."""


# -- stamps and deliveries --------------------------------------------------------------------------------------------


@rewrite("_reckon", "reached = min(reached, self.watermark)", "pass", part=DeliveredLog)
class OwnGroupAhead(WhiteBox):
    """A process goes by what a quorum of its group has reached, not having reached it itself: what it delivers then is
    never settled, and it tells other groups what it does not hold."""


@rewrite("on_start", "self.clock.advance(self.log.timestamp.time)", "pass")
class StampsBelowTheRestored(WhiteBox):
    """The first leader of a restored group, which hears no votes, stamps below what was delivered before."""


@rewrite(
    "_accept_if_complete", "elif entry.phase != ACCEPTED or entry.local != local:", "elif entry.phase != ACCEPTED:"
)
class FirstStampStays(WhiteBox):
    """What is stamped twice in one ballot, since its leader dropped a late copy in between, keeps its first stamp."""


# -- PrimCast ---------------------------------------------------------------------------------------------------------


@rewrite("_delivered", "self._stuck = False", "pass")
class StuckForGood(PrimCast):
    """Who has once waited for long asks for deliveries whenever somebody is a little ahead."""


@rewrite("_on_ack", "self._stuck and ack.position > self.log.position", "self._stuck")
class AsksWhoIsBehind(PrimCast):
    """Who waits asks everybody for deliveries, whether they have any or not."""


@rewrite("_is_behind", "return copies.is_past(state)", "return False")
class ForgottenInTAgain(PrimCast):
    """Who has delivered, settled and forgotten a message that is in the T of a new primary, or in that of which it is
    to be one, takes it into T again."""


@rewrite("_append_proposals", "or self.copies.is_forgotten(proposal.id, proposal.ts)", "")
class ForgottenAppended(PrimCast):
    """Who hears a proposal when it has delivered, settled and forgotten the message appends it, and waits for it."""


@rewrite("adopt", "taken = [s for s in state.entries if not self._is_behind(s)]", "taken = state.entries")
class LeftOutOnDisk(PrimCast):
    """What is left out of a T that is taken over stays on disk, and is in T after a restart."""


@rewrite("end_batch", "AcceptAck(vector, [*ids])", "AcceptAck(vector, [*ids, *ids])")
class AcknowledgedTwiceAtOnce(WhiteBox):
    """An acknowledgement names every message twice."""


@rewrite("settled_at", "known is not None and message_id not in self._entries", "known is not None", part=KnownCopies)
class LaterCopyIsSettled(PrimCast):
    """Who has heard of a later copy of a settled message tells others that this one is settled, too."""


@rewrite("_on_known", "elif group == self.group: out.catch_up(sender)", "elif group == self.group: pass")
class TurnsToNobody(PrimCast):
    """Who hears from its group that a message which it holds is settled waits for a heartbeat."""


@rewrite("_on_watermark", "told.ask and self.is_member()", "told.ask")
class AmnesiacTellsHowFar(PrimCast):
    """Who has lost its disk tells its watermark if asked."""


@rewrite("_on_watermark", "told.ask and self.is_member()", "told.ask")
class AmnesiacTellsHowFarInWhiteBox(WhiteBox):
    """The same in White-Box."""


@rewrite("taken", "if self._window.may_be_forgotten(key[1:], _decode(value).ts, timestamp)", "if True",
         part=SequenceHistory)  # fmt: skip
class SnapshotDropsAccepted(PrimCast):
    """Who takes a snapshot drops what it has in T, undelivered."""


@rewrite("_is_copy_after", "return self._window.is_new_copy(state.message.id, state.ts, delivered)", "return False",
         part=SequenceHistory)  # fmt: skip
class SnapshotTakesCopies(PrimCast):
    """Who takes a snapshot takes what was delivered for the later copy of it that it has in T."""


@rewrite("taken", "if self._window.may_be_forgotten(key[1:], _decode(value).ts, timestamp)", "if False",
         part=SequenceHistory)  # fmt: skip
class SnapshotLeavesForgotten(PrimCast):
    """Who takes a snapshot keeps in T what its group may have delivered and forgotten."""


@rewrite("may_be_forgotten", "max(ts, created_us(message_id))", "ts", part=Window)
class StampedLowIsForgotten(PrimCast):
    """Who takes a snapshot takes what was stamped before anybody knew the time for long forgotten: its T has a hole."""


@rewrite("taken", "max(reach, lacking)", "reach", part=SequenceHistory)
class SnapshotWithoutReach(PrimCast):
    """Who has taken a snapshot may give its T to others as if nothing was left out of it."""


@rewrite("taken", "max(reach, lacking)", "max(reach, position)", part=SequenceHistory)
class SnapshotWithoutUnsettled(PrimCast):
    """Who takes over the T of one that has taken a snapshot installs all of that, though perhaps only two had it."""


@rewrite("taken", "max(clock, timestamp.time)", "clock", part=SequenceHistory)
class SnapshotWithoutClock(PrimCast):
    """A snapshot does not move the clock."""


# -- consensus --------------------------------------------------------------------------------------------------------


@rewrite("_end_reign", "self._stop_acting()", "pass", part=GroupMember)
class InFlightHoldsUp(FtSkeen):
    """When a leader finds that another one has taken its place, what it had in flight still holds up what follows."""


@rewrite("install", "mine is None or mine.local != local", "mine is None", part=GroupMember)
class AnyStampIsMine(FtSkeen):
    """A leader goes on when its group delivers what it has in flight, at another stamp than its own."""


@rewrite("_on_accept", "self.see(accept.decided, now)", "pass", part=Paxos)
class WaitsForAHeartbeat(FtSkeen):
    """A member that lacks decisions hears of them by heartbeats only."""


@rewrite("_on_applied", "self.paxos.see(applied.instance, now)", "pass", part=GroupMember)
class LogOfItsLeaderAlone(FtSkeen):
    """Whom its leader does not reach does not notice that it lacks decisions."""


@rewrite("_on_ack", "self.paxos.see(ack.number, now)", "pass")
class DecisionsOfItsLeaderAlone(QuasiGenuine):
    """Whom its leader does not reach does not notice that it lacks decisions."""


PLANTED = planted_in(__name__)
