"""Bugs of rules that seldom matter: what counts as a majority, who has come back, and from when on a view counts."""

from __future__ import annotations

from typing import Any

from multicast.parts.election import Election
from multicast.parts.entries import Entries
from multicast.parts.group_member import GroupMember
from multicast.parts.instances import Instances
from multicast.parts.paxos import Paxos
from multicast.parts.rejoin import Rejoin
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.white_box import WhiteBox
from tests.planted import planted_in
from tests.planted.rewriting import rewrite

# -- consensus --------------------------------------------------------------------------------------------------------


@rewrite("count", "chosen = len(voters) >= self._quorum",
         "chosen = len(set().union(*self._voters[instance].values())) >= self._quorum", part=Instances)  # fmt: skip
class ChosenOfAnyBallot(FtSkeen):
    """An instance counts as chosen though its acknowledgements are of different ballots."""


@rewrite("_on_applied", "truncate(instance, out)", "truncate(min(instance + 1, self.paxos.decided), out)",
         part=GroupMember)  # fmt: skip
class TruncatesOneMore(FtSkeen):
    """Instances are cut one too far."""


@rewrite("truncate", "range(self.low, instance + 1)", "range(self.low, instance + 2)", part=Instances)
class NextInstanceDropped(FtSkeen):
    """What follows the instances that are cut is dropped, too."""


# -- lost disks -------------------------------------------------------------------------------------------------------


@rewrite("_give_state", "[] if self.paxos.amnesiac else", "", part=GroupMember)
class AmnesiacGivesState(FtSkeen):
    """Who has lost its disk gives its state to others."""


@rewrite("_on_forgot", "if not self.paxos.amnesiac:", "if True:", part=GroupMember)
class AmnesiacReminds(FtSkeen):
    """Who has lost its disk reminds others."""


@rewrite("may_return", "self.decided >= max(upto, rejoin.reach)", "self.decided >= upto", part=Paxos)
class ReachOfLogIgnored(FtSkeen):
    """Who has lost its disk returns before it has the decisions up to `reach`."""


@rewrite("may_return", "self.decided >= max(upto, rejoin.reach)", "self.decided >= upto", part=Paxos)
class ReachOfStreamIgnored(QuasiGenuine):
    """The same in quasi-genuine."""


@rewrite("_conclude", "self._question += 1", "pass", part=Rejoin)
class SameQuestionAgain(FtSkeen):
    """Late answers to its first question count for who has lost its disk as answers to the second one."""


@rewrite("_reign_if_ready", "or self.log.is_behind", "", part=GroupMember)
class BehindReigns(FtSkeen):
    """Who has installed what comes later in the log begins to reign."""


@rewrite("_conclude", "any(p not in self._answers for p in self._others)",
         "len(self._answers) + 1 < len(self._others)", part=Rejoin)  # fmt: skip
class NotAllOthers(WhiteBox):
    """Who has lost its disk rejoins without the answer of all others."""


@rewrite("_conclude", "self.bound = max(ballots)", "self.bound = min(ballots)", part=Rejoin)
class LowestBoundPrimCast(PrimCast):
    """The bound is the lowest of the answers."""


@rewrite("_conclude", "self.reach = max(a.reached for a in self._answers.values())", "pass", part=Rejoin)
class ReachNotHeard(PrimCast):
    """What the others have is not waited for."""


@rewrite("on_returned", "return None if self.amnesiac else message.bound", "return message.bound", part=Rejoin)
class AmnesiacReadmits(WhiteBox):
    """Who has lost its disk itself acts on another one's bound."""


@rewrite("on_returned", "return None if self.amnesiac else message.bound", "return message.bound", part=Rejoin)
class AmnesiacReadmitsInPrimCast(PrimCast):
    """The same in PrimCast."""


@rewrite("on_returned", "None if self.amnesiac and not self.is_new else highest", "highest", part=Rejoin)
class AmnesiacAnswersBallot(WhiteBox):
    """Who has lost its disk answers another one with a ballot."""


# -- views of members -------------------------------------------------------------------------------------------------


class InstallsNoView(PrimCast):
    """A change that is installed makes no view."""

    def on_install(self, *args: Any) -> None:
        self.leadership.delivered = lambda message, out: None  # type: ignore[method-assign]
        super().on_install(*args)
        del self.leadership.delivered


@rewrite("choose", "or self.promised.view < self.views.latest", "", part=Election)
class WinsInOldView(WhiteBox):
    """A candidate wins in a view of which it knows that it is over."""


@rewrite("on_install", "# T has a later copy self.leadership.delivered(message, out)", "")
class InstalledCopyMakesNoView(PrimCast):
    """A change that was installed while T has a later copy of it makes no view."""


@rewrite("choose", "s.in_view_of(epoch,", "s.in_view_of(s.epoch,")
class OldViewsStamps(PrimCast):
    """What was stamped in an earlier view is not stamped in the new one again."""


@rewrite("_view_begun", "begin(number)", "begin(self.election.views.latest)", part="leadership")
class HeartbeatBegunByAny(WhiteBox):
    """A heartbeat of an earlier view's leader tells that the latest one has begun."""


# -- PrimCast ---------------------------------------------------------------------------------------------------------


@rewrite("_append_proposals", "if entry.message is not None and entry.digest != proposal.digest:", "if False:")
class DigestIgnored(PrimCast):
    """A follower acknowledges another payload than its primary's."""


@rewrite("end_batch", "self._told_clock, self.t.length))", "self._told_clock, 0))")
class BumpWithoutLength(PrimCast):
    """A bump tells the clock, and not how long the sequence is that goes with it."""


@rewrite("beat", "self._told_clock, self.t.length)", "self._told_clock, 0)")
class BeatWithoutLength(PrimCast):
    """A heartbeat tells the clock, and not how long the sequence is that goes with it."""


@rewrite("extend", "if self._report[1] <= self.length:", "if True:", part="clocks")
class ReportWithoutLength(PrimCast):
    """A primary's clock counts as soon as its sequence has become longer here."""


@rewrite("_deliver_ready", "horizon = self.clocks.horizon", "horizon = self.clocks.horizon + 1")
class HorizonOneAhead(PrimCast):
    """What is stamped one above what nothing new will be stamped up to is delivered."""


# -- White-Box --------------------------------------------------------------------------------------------------------


@rewrite("destinations", "or (entry.local is not None and entry.local > delivered)", "", part=Entries)
class DestinationsOfCopy(WhiteBox):
    """After a restart a settled message counts as unsettled if there is a later copy of it."""


@rewrite("_begin_to_lead", "if e.phase >= ACCEPTED and not e.position", "if e.phase > ACCEPTED and not e.position")
class FreshTakenOver(WhiteBox):
    """A new leader confirms reads before what it took over as accepted is delivered."""


PLANTED = planted_in(__name__)
