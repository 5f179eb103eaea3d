"""Bugs of small decisions, as somebody would plant them who has read the code: copies, windows, views, late words."""

from __future__ import annotations

from multicast.parts.channels import Channels
from multicast.parts.clock import Clock
from multicast.parts.delivered import DeliveredLog
from multicast.parts.detector import FailureDetector
from multicast.parts.entries import Entries
from multicast.parts.group_clocks import GroupClocks
from multicast.parts.group_log import GroupLog
from multicast.parts.leadership import Leadership
from multicast.parts.learner import RemoteLearner
from multicast.parts.reign import Reign
from multicast.parts.reminders import Reminders
from multicast.parts.sequence import Sequence
from multicast.parts.stamps import Entry
from multicast.parts.stream import Base, Stream
from multicast.parts.window import Window
from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.white_box import WhiteBox
from tests.planted import Planted, planted_in
from tests.planted.rewriting import rewrite

# -- elections --------------------------------------------------------------------------------------------------------


@rewrite("_on_agreed", "if at > now - self._timer.timeout_us", "", part=FailureDetector)
class OldAgreementCounts(WhiteBox):
    """Who agreed once that the leader is missed counts for ever."""


@rewrite("_on_echo", "echo.ballot == self._election.promised and", "", part=FailureDetector)
class EchoOfAnyBallot(WhiteBox):
    """A leader takes the answer to an earlier one's pulse for one to its own."""


@rewrite("on_joined", "if joined.ballot == self._counted:", "if True:", part=Leadership)
class JoinersOfAnyBallot(WhiteBox):
    """Who has joined an earlier ballot counts among those who have joined the present one."""


@rewrite("start", "promised, self.joined = _decode_ballots(saved.values[_BALLOTS_KEY])",
         "_, self.joined = _decode_ballots(saved.values[_BALLOTS_KEY]); promised = self.joined",
         part=Leadership)  # fmt: skip
class PromiseNotRead(WhiteBox):
    """A promise is on disk, and after a restart nobody looks at it."""


@rewrite("_return_if_caught_up", "state.ballot.view > self.election.views.latest or", "", part=Leadership)
class ReturnsInUnknownView(WhiteBox):
    """Who comes back joins a ballot of a view that it does not know."""


@rewrite("is_current", "self.election.is_member and ", "", part=Leadership)
class RemovedConfirms(WhiteBox):
    """Who was removed confirms the ballot that it was in."""


# -- reigns, and what is in a log -------------------------------------------------------------------------------------


@rewrite("furthest", "furthest = max(recent", "furthest = min(recent", part=Reign)
class LeastPosition(FtSkeen):
    """A new leader acts as soon as it has what the last of a quorum has."""


@rewrite("pending", "self._leave_out(old)", "pass", part=Sequence)
class DeliveredCopyKept(PrimCast):
    """A delivered copy keeps its place in T though a later one was heard, and T does not tell that it leaves it out."""


@rewrite("_hold_stamp", "min(local, held[group])", "max(local, held[group])")
class HigherStampOfTwoCopies(FtSkeen):
    """The stamp of a later copy takes the place of the message's own."""


@rewrite("state", "[e.local for e in self.entries.values() if not e.logged]", "[]", part=GroupLog)
class UnloggedNotGiven(FtSkeen):
    """Who is given a state is not told what was delivered before its log has it: when that comes, it seems to be a
    repetition."""


@rewrite("_hold_stamp", "held[group] = min(local, held[group])", "pass")
class FirstStampOfCopies(FastCast):
    """Of two copies' stamps the first one heard counts."""


@rewrite("_conclude", "late = self.member.log.window.is_late(entry.message.id, final.time)", "late = False")
class LateFinalTrusted(FastCast):
    """A timestamp beyond the window counts before it is in the log."""


@rewrite("complete", "for group, members in topology.groups.items()",
         "for group, members in list(topology.groups.items())[:1]", part=Reminders)  # fmt: skip
class OneGroupReminds(FtSkeen):
    """Who has lost its disk waits for the first group's reminders only."""


# -- clocks and windows -----------------------------------------------------------------------------------------------


@rewrite("stamp", "if self.hybrid and real > value:", "if self.hybrid and real:", part=Clock)
class StampsFollowTheClock(WhiteBox):
    """A hybrid clock goes back when the wall clock does."""


@rewrite("advance", "self.value = to", "self.value = to - 1", part=Clock)
class AdvancesOneShort(PrimCast):
    """A clock that is to pass a stamp may give just that."""


@rewrite("known_until", "created_us(message_id)) + 2 * self.us", "created_us(message_id))", part=Window)
class NewCopyAtOnce(PrimCast):
    """A stamp that is above the delivery counts as a later copy's."""


@rewrite("limit", "created_us(message_id) + self.us", "created_us(message_id) + 2 * self.us", part=Window)
class TwoWindowsInTime(PrimCast):
    """Stamps of two windows after the creation count as in time."""


@rewrite("recall", "out.put(KNOWN_PREFIX + message_id, _encode(timestamp, 0))", "pass", part=DeliveredLog)
class RecalledNotSaved(WhiteBox):
    """What another group says to have delivered is remembered in memory only."""


@rewrite("_bucket", "max(timestamp.time, created_us(message_id))", "timestamp.time", part=DeliveredLog)
class CreatedAheadForgotten(WhiteBox):
    """An id that was made by a clock that was ahead is forgotten by its delivery."""


# -- White-Box --------------------------------------------------------------------------------------------------------


@rewrite("is_dropped_copy", "entry.final.time > self._window.limit(entry.id) and entry.final <= self._log.timestamp",
         "False", part=Entries)  # fmt: skip
class DroppedCopyDelivered(WhiteBox):
    """A late copy that an earlier leader has dropped is delivered after all."""


@rewrite("is_past", "return state.local <= log.timestamp  # its final timestamp", "return False", part=Entries)
class LocalTakenBack(WhiteBox):
    """A local message that is settled and forgotten is taken over from a state."""


@rewrite("_on_deliver", "if deliver.position <= self.log.position:", "if deliver.position < self.log.position:")
class LastDeliverAgain(WhiteBox):
    """The word on the last delivery, come twice, is taken for one that comes too early: it is kept for a position that
    has passed, and somebody is asked for what nobody lacks."""


# -- PrimCast ---------------------------------------------------------------------------------------------------------


@rewrite("acknowledge", "(group == self.group and self.ts != stamp.ts) or", "", part=Entry)
class OtherStampDecides(PrimCast):
    """A stamp of the own group is decided that T does not have."""


@rewrite("take_out", "self.locals.pop(self.group, None)", "pass", part=Entry)
class DecidedThoughTakenOut(PrimCast):
    """What T does not have any more still is decided."""


@rewrite("report", "if len(later) > 1 and later[-2][0] == epoch:", "if len(later) > 1:", part=GroupClocks)
class LatestFutureOnly(PrimCast):
    """What a member reports of an epoch is forgotten when it reports of a later one, joined or not."""


@rewrite("report", "elif clock > self._report[0]:", "elif not self._report[0]:", part=GroupClocks)
class FirstReportWaits(PrimCast):
    """While a leader's clock waits for its proposals no higher one of it counts."""


@rewrite("forget", "self._future.pop(member, None)", "pass", part=GroupClocks)
class FutureClocksKept(PrimCast):
    """What who has lost its disk had told of a later epoch counts in that."""


# -- quasi-genuine ----------------------------------------------------------------------------------------------------


@rewrite("copy", "dict(self.numbers)", "self.numbers", part=Base)
class NumbersShared(QuasiGenuine):
    """What a log amounted to goes on counting."""


@rewrite("take", "if channel.received >= upto: channel.raise_barrier(stamp)",
         "if channel.received >= upto - 1:\n        channel.raise_barrier(stamp)", part=Channels)  # fmt: skip
class BarrierOneMissing(QuasiGenuine):
    """A barrier counts though one message before it is missing."""


@rewrite("tell", "if instance > self._last:", "if True:", part=RemoteLearner)
class ToldTwice(QuasiGenuine):
    """What a leader proposes again counts twice. (It is numbered, so whoever has it takes no notice.)"""


@rewrite("_follow", "self._told.clear()", "pass", part=RemoteLearner)
class OldProposalsLearned(QuasiGenuine):
    """What a former leader proposed counts as decided when the instance is."""


@rewrite("want", "> max(self._stream.base.last, self._null)", "> self._null", part="leader", after="_new_leader")
class NullsForThePast(QuasiGenuine):
    """A null is proposed for what the log has passed. (It only costs an instance.)"""


@rewrite("truncate", "or (own is not None and own in waiting)", "", part=Stream)
class DroppedUndelivered(QuasiGenuine):
    """An instance is dropped though a message of it was not delivered here."""


HARMLESS = (Planted(ToldTwice), Planted(NullsForThePast))
PLANTED = planted_in(__name__, HARMLESS)
