"""Bugs planted in what one part counts, takes over or asks for, each in a line of its own. Tests of single parts see
them: seeds would need links that lose just the last word, copies after their window, or views that come late."""

from __future__ import annotations

from multicast.parts.barrier_leader import BarrierLeader
from multicast.parts.channels import Channels
from multicast.parts.coordinator import Coordinator
from multicast.parts.delivered import DeliveredLog
from multicast.parts.detector import FailureDetector
from multicast.parts.group_clocks import GroupClocks
from multicast.parts.group_log import GroupLog
from multicast.parts.learner import RemoteLearner
from multicast.parts.paxos import Paxos
from multicast.parts.reads import LeaderReads
from multicast.parts.reminders import Reminders
from multicast.parts.retries import Retries
from multicast.parts.sequence import Sequence, SequenceHistory
from multicast.parts.stamps import Entry
from multicast.parts.stream import Stream
from multicast.parts.transfer import StateTransfer
from multicast.parts.views import Gathering
from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.toto import Toto
from multicast.protocols.white_box import WhiteBox
from tests.planted import planted_in
from tests.planted.rewriting import rewrite

# -- PrimCast ---------------------------------------------------------------------------------------------------------


@rewrite("learn_final", "final.time if other == final.tiebreak else 0", "final.time", part=Entry)
class EveryGroupGaveIt(PrimCast):
    """What another group has delivered gets the tie-break of another group than there: the order differs."""


@rewrite("learn_final", "self.locals.setdefault(group, final.time)", "pass", part=Entry)
class LateElsewhereUnlearned(PrimCast):
    """What another group has delivered late, and dropped, keeps what is above its own stamp waiting here for good."""


@rewrite("recount", "decided = True", "pass", part=Entry)
class RecountedInVain(PrimCast):
    """A stamp that is decided once it is known who belongs to its epoch is looked at no more: its message waits."""


@rewrite("_on_known", "self.clock.advance(known.final.time)", "pass")
class KnownMovesNoClock(PrimCast):
    """What another group has delivered waits until some other message moves this group's clocks."""


@rewrite("_missing", "missing += self.election.others", "pass")
class ClocksNotAskedFor(PrimCast):
    """A message waits for clocks whose last word was lost, and nobody is asked for them."""


@rewrite("end_batch", "or self.topology.group_of[peer] == self.group", "")
class ClockNotToldAgain(PrimCast):
    """Who is asked for its clock, and has no stamps to tell besides, is silent."""


@rewrite("on_install", "self.t.reach = max(self.t.reach, position)", "pass")
class InstalledCopyNotInReach(PrimCast):
    """T lacks an installed message, of which it has a later copy, and does not say so."""


@rewrite("report", "del later[-2]", "del later[-1]", part=GroupClocks)
class FirstReportOfALaterEpoch(PrimCast):
    """Of what was told of clocks in an epoch before it was joined the first counts and not the last."""


@rewrite("extend", "for place in range(self.length, length): self._expected.pop(place, None)",
         "self._expected.pop(self.length, None)", part=Sequence)  # fmt: skip
class RefilledProposalsWait(PrimCast):
    """Proposals that came by another way keep the room of those that wait."""


# -- consensus and stamps ---------------------------------------------------------------------------------------------


@rewrite("jump", "self._decided_since(instance)", "pass", part=Paxos)
class ProposesForThePast(QuasiGenuine):
    """A leader that takes over a state proposes next for an instance that is decided: that value is lost."""


@rewrite("_hear_stamp", "(known is not None and (entry is None or entry.position))", "known is not None")
class StampsOfLaterCopiesUnheard(FtSkeen):
    """Whoever still knows the first copy of a message never learns the stamps of the later one."""


@rewrite("on_reign", "self._conclude(entry, entry.final)", "self._consider(entry)")
class KnownFinalNotConcluded(FastCast):
    """A leader that knows a timestamp by a peer's state alone never has the clock moved to it."""


@rewrite("hurry", "self._asked.clear()", "pass", part=Retries)
class AskedInVainForEver(WhiteBox):
    """Questions to a dead leader leave no room for those to the next one."""


@rewrite("ask", "min(self._asks // len(self.peers), _PATIENCE)", "self._asks // len(self.peers)", part=StateTransfer)
class PatienceWithoutEnd(FtSkeen):
    """Who lacks dropped instances asks for a state ever more seldom: after a long outage never any more."""


@rewrite("_doubts", " or self.member.log.window.is_late(entry.message.id, entry.local.time)", "")
class DoubtsItsOwnStamp(FastCast):
    """A leader that has stamped an old message late itself has its group elect a leader before it delivers it."""


# -- what is taken over -----------------------------------------------------------------------------------------------


@rewrite("adopt", "(passed or entry.local in given)", "passed", part=GroupLog)
class LoggedElsewhereWaits(FtSkeen):
    """Who has delivered more than the peer whose state it takes over waits for Assigns that were before it, and never
    leads."""


@rewrite("adopt", "(known is None or known[0] < local)", "known is None", part=GroupLog)
class LateCopyLeftOut(FastCast):
    """Who takes over a state leaves out the late copy of a message of which it knows the first one."""


@rewrite("taken", "max(clock, timestamp.time)", "timestamp.time", part=SequenceHistory)
class SnapshotsClockCounts(PrimCast):
    """Who takes a snapshot goes on with its clock, below what it has told of its own."""


# -- ids and reads ----------------------------------------------------------------------------------------------------


@rewrite("_remember", "self._overdue.discard(message_id)", "pass", part=DeliveredLog)
class OverdueForGood(PrimCast):
    """An id that was overdue is forgotten as soon as its late copy is settled, by some sooner than by others."""


@rewrite("_position", "asked.position = self._announced()", "asked.position = self._announced() or 0", part=LeaderReads)
class FreshFromTheBeginning(PrimCast):
    """A read of what its backlog does not hold any more, and T lacks, is said to be fresh from the beginning."""


@rewrite("end_batch", "not (leads and self._leadership.joined == self._rounds[-1].ballot)", "not leads",
         part=LeaderReads)  # fmt: skip
class RoundsOfTheBallotBefore(PrimCast):
    """Who leads again waits for what nobody confirms any more, and all that is asked then waits behind it."""


@rewrite("begin", "self._question = now << 8 | rng.getrandbits(8)", "self._question = 1", part=Reminders)
class SameQuestionInEveryLife(FtSkeen):
    """Answers to an earlier life remind who has lost its disk once more, of less than it has told since."""


# -- barriers and views -----------------------------------------------------------------------------------------------


@rewrite("_may_go", "or waits_us > self._wait_us + self._ahead_max_us", "", part=BarrierLeader)
class WaitsForAClockSetBack(QuasiGenuine):
    """A barrier that was wanted before the clock was set back waits until the clock is there once more."""


@rewrite("apply", "if restamped or not self._announced:", "if not self._announced:", part=Stream)
class NextStampNotRequested(QuasiGenuine):
    """Barriers are requested for a message's first stamp only, which it does not keep."""


@rewrite("truncate", "self.base.instance - self.spare", "self.base.instance", part=Stream)
class StatesForWhoLacksOne(QuasiGenuine):
    """Instances are dropped as soon as a quorum has them: a member that is a moment behind is so for as long as they
    come all the while."""


@rewrite("adopt", "self.receive(group, number, item)", "self.receive(group, number, item, True)", part=Channels)
class AdoptedUnsaved(QuasiGenuine):
    """What comes with a peer's state is acknowledged, and not on disk: a crash loses it for this process."""


@rewrite("_prune", "self._votes = {k: v for k, v in self._votes.items() if k > limit}", "pass", part=RemoteLearner)
class VotesKeptForEver(QuasiGenuine):
    """A direct learner keeps the votes on instances of which others were lost, for as long as the ballot stands."""


@rewrite("add", "self.replies[sender] = reply", "self.replies.setdefault(sender, reply)", part=Gathering)
class FirstAnswerCounts(Toto):
    """Who answers a flush again, having caught up, still counts as one who has not: the view never ends."""


@rewrite("held_by_all", "lack[p] > MISSING_MAX and", "", part=Gathering)
class NobodyIsWaitedFor(Toto):
    """Who lacks a single cast is not waited for, and comes back by other means, whenever its group can spare it."""


@rewrite("held_by_all", "if q != p and staying[q].complete", "if q != p", part=Gathering)
class SparedForTheIncomplete(Toto):
    """Who lacks much is left behind though without it nobody of its group, or too few, can finish the view."""


@rewrite("coordinate", "p not in answered.replies or not answered.suffices", "p not in answered.replies",
         part=Coordinator)  # fmt: skip
class AnswersOnce(Toto):
    """Who has answered a flush before it had caught up is not asked again: the view never ends."""


@rewrite("coordinate", "p not in answered.replies or not answered.suffices", "not answered.suffices",
         part=Coordinator)  # fmt: skip
class SilentAreNotAskedAgain(Toto):
    """Whom the flush has not reached is not asked again once others suffice, and is waited for as long as it lives."""


@rewrite("break_silence", "max(told, self._stream.base.last[0])", "told", part=BarrierLeader)
class SilentThoughItSpeaks(QuasiGenuine):
    """A group that decides all the while decides null messages for itself besides."""


@rewrite("tells", "max(self.told.get(group, 0), barrier[0])", "barrier[0]", part=BarrierLeader)
class ToldLess(QuasiGenuine):
    """A barrier that comes late makes a leader take a group for one that has been told nothing for longer."""


@rewrite("_on_doubt", "not self.has_majority or self.resigning", "not self.has_majority", part=FailureDetector)
class ResigningNotMissed(WhiteBox):
    """A leader that should not lead does not agree that it is missed: with another member down it stays."""


@rewrite("_next_messages", "messages[-1]", "messages[0]")
class CastsCountTheFirst(Toto):
    """A cast holds whatever waits if the first of it is small, and is more than a link takes at once."""


PLANTED = planted_in(__name__)
