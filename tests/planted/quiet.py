"""Planted bugs of who says too much when all is done, and of what is kept twice and does not agree."""

from __future__ import annotations

from multicast.parts.channels import WaitingMessages
from multicast.parts.delivered import DeliveredLog
from multicast.parts.detector import FailureDetector
from multicast.parts.early import EarlyDeliveries
from multicast.parts.founding import FoundedGroups
from multicast.parts.group_log import GroupLog
from multicast.parts.retries import Retries
from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.skeen import Skeen
from multicast.protocols.white_box import WhiteBox
from tests.planted import Planted, planted_in, small
from tests.planted.rewriting import rewrite

# -- who says too much ------------------------------------------------------------------------------------------------


@rewrite("heard", "if heartbeat.position > self.log.position:", "if heartbeat.position >= self.log.position:")
class FetchesNothing(WhiteBox):
    """Who has all deliveries asks its leader for more at every heartbeat."""


@rewrite(
    "heard",
    "max(self._primarys_position, self.t.reach) > self.log.position",
    "max(self._primarys_position, self.t.reach) >= self.log.position",
)
class FetchesWhatItHas(PrimCast):
    """Who has all that its primary had one heartbeat ago asks for more at every one."""


@rewrite("tick", "self._told[group] = own", "pass", part=DeliveredLog)
class TellsItsWatermarkAgain(Skeen):
    """A watermark that was told is told again whenever there is time."""


@rewrite("_campaign_if_due", "election.highest <= election.promised", "election.highest < election.promised",
         part=FailureDetector)  # fmt: skip
class LeaderMissesItself(WhiteBox):
    """A leader that knows of no higher ballot stands for election again when it has not heard itself for long."""


@rewrite("tick", "self._told = self._membership.processes", "pass", part=FoundedGroups)
class TellsTheAddedForEver(WhiteBox):
    """Who was added is told of everything whenever there is time."""


# -- what is kept twice -----------------------------------------------------------------------------------------------


@rewrite("_remove", "if not kept:", "if False:", part=GroupLog)
class MessagesWithoutEntries(FtSkeen):
    """A message of which the last entry is gone stays in the index."""


@rewrite("add", "self._copies.get(message_id, 0) + 1", "self._copies.get(message_id, 1) + 1", part=WaitingMessages)
class OneCopyTooMany(QuasiGenuine):
    """A message that has left still counts as one that waits: its submission is refused."""


@rewrite("due", "self._wait(key, now + pause + int(pause * self._rng.random() / 4))",
         "self._rng.random(); self._waiting[key] = self._count + 1", part=Retries)  # fmt: skip
class NotDueAgain(FastCast):
    """What was asked for once waits on, and is never due again."""


@rewrite("set_final", "heappush(self._uncovered, (final, entry.local))", "pass", part=GroupLog)
class ClockComesTooLate(FtSkeen):
    """Whose timestamp the log's clock has not reached when it is known is not looked at again when it has."""


@rewrite("hurry", "self._waiting = {key: count for _, count, key in self._heap}", "pass", part=Retries)
class HurriedIntoNowhere(PrimCast):
    """What is to be asked for at once is not due any more."""


@rewrite("on_connected", "self._timer.cut_off = not up", "pass", part=FailureDetector)
class NeverCutOff(PrimCast):
    """Who has lost the connection to its leader does not know it."""


@rewrite("wait", "self._timer.cut_off = self._election.promised.leader in self.reach.lost", "pass",
         part=FailureDetector)  # fmt: skip
class CutOffFromAnother(WhiteBox):
    """Who was cut off from the leader before is impatient with the next one, to which it is connected."""


@rewrite("final", "self._pending.pop(message_id, None)", "pass", part=EarlyDeliveries)
class EarlyAfterAll(QuasiGenuine):
    """What was delivered finally before its time had come for early delivery is delivered early then."""


@rewrite("expect", "or message.id in self._delivered", "", part=EarlyDeliveries)
class EarlyTwice(QuasiGenuine):
    """A copy of what was delivered early is delivered early again."""


@rewrite("_deliver_early", "self.early.due(self.real_clock(now), now)", "self.early.due(*2 * [self.real_clock(now)])")
@rewrite("_forget_early", "self.early.forget(now", "self.early.forget(self.real_clock(now)")
class EarlyByTheRealClock(QuasiGenuine):
    """A clock that is set right makes its process forget what it has delivered early."""


_OTHERS = (EarlyAfterAll, EarlyTwice, EarlyByTheRealClock)
PLANTED = (
    *(bug for bug in planted_in(__name__) if bug.protocol not in _OTHERS),
    *(Planted(kind, small(optimistic="true")) for kind in _OTHERS),
)
