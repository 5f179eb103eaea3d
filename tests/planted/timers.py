"""Bugs of what is repeated: a timer that acts once and never again, or that the host does not hear of. What was to be
asked again is seldom lost, so that little else shows them."""

from __future__ import annotations

from multicast.parts.casts import Casts
from multicast.parts.detector import FailureDetector
from multicast.parts.election import Election
from multicast.parts.group_member import GroupMember
from multicast.parts.paxos import Paxos
from multicast.parts.payloads import Payloads
from multicast.parts.reads import LeaderReads
from multicast.parts.retries import Retries
from multicast.parts.submissions import Submissions
from multicast.parts.transfer import StateTransfer
from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.skeen import Skeen
from multicast.protocols.toto import Toto
from multicast.protocols.white_box import WhiteBox
from tests.planted import planted_in
from tests.planted.rewriting import rewrite


@rewrite("_retry", "return self._retries.wake(now)", "return None")
class StampsToldOnceMore(WhiteBox):
    """A leader asks once after what is not committed."""


@rewrite("due", "min(2 ** (self._times[key] - 1), _PAUSE_MAX) * self.period_us", "self.period_us", part=Retries)
class NeverMoreRarely(WhiteBox):
    """What waits is asked after once in a period, for as long as it takes."""


@rewrite("tick", "return self._retries.wake(now)", "return None", part=Submissions)
class AskedAfterOnce(PrimCast):
    """A sender asks once after what it has multicast."""


@rewrite("tick", "return self._retries.wake(now)", "return None", part=Payloads)
class WantedOnce(PrimCast):
    """A payload that is lacked is asked for once."""


@rewrite("_ask_for_stamps", "return self._retries.wake(now)", "return None")
class StampsAskedForOnce(FtSkeen):
    """A leader asks once for the stamps that it lacks."""


@rewrite("_ask_for_stamps", "return self._retries.wake(now)", "return None")
class ProposedOnceMore(Skeen):
    """A process tells its stamps again once."""


@rewrite("_forget_strays", "return strays[0][0] + patience if strays else None", "return None")
class StraysKept(FastCast):
    """What was held of messages that never come is forgotten once, and not what is held later."""


@rewrite("_ask_positions", "return now + self._options.heartbeat_us", "return None", part=GroupMember)
class PositionsAskedForOnce(FtSkeen):
    """Who is elected asks its group once how much it has delivered."""


@rewrite("_campaign_if_due", "return self._timer.deadline", "return None", part=FailureDetector)
class MissesALeaderOnce(WhiteBox):
    """Who was patient in vain, and was told that others were not, does not miss a leader any more."""


@rewrite("_beat", "return now + self._heartbeat_us", "return None", part=Election)
class OneHeartbeat(PrimCast):
    """A leader tells once that it lives."""


@rewrite("_fetch_if_behind", "return now + self.heartbeat_us", "return None", part=Paxos)
class FetchesOnce(QuasiGenuine):
    """Who lacks decisions asks one member for them."""


@rewrite("_repeat", "return self._sent_at + self._period_us", "return None", part=Casts)
class CastRepeatedOnce(QuasiGenuine):
    """A cast is sent once more."""


@rewrite("_begin_to_lead", 'self._deadlines.by("nulls", now)', "pass")
class SilenceUnbroken(QuasiGenuine):
    """A leader that is to send barriers by itself waits until it is asked."""


@rewrite("_begin_to_lead", 'self._deadlines.restart("hint", now + self.options.retry_us)', "pass")
class NewLeaderHintsNobody(QuasiGenuine):
    """Who has missed what an earlier leader has sent hears nothing from the new one, until there is more."""


@rewrite("_optimistic_wake", "leader.due_at", "None")
class HeldBackUnwatched(QuasiGenuine):
    """What a leader holds back until its clock has come so far is looked at when something else happens."""


@rewrite("_optimistic_wake", "now + early - real", "None")
class EarlyUnwatched(QuasiGenuine):
    """What is to be delivered early is looked at when something else happens."""


@rewrite("_on_state", 'self._deadlines.by("state", now + self._period_us)', "pass", part=StateTransfer)
class WaitsForOneGiver(FtSkeen):
    """Who has a state waits for the deliveries of who gave it, be that one dead or not."""


@rewrite("_repeat", "if now >= self._again_at: self.ask(now, out)", "self.ask(now, out)", part=StateTransfer)
class AsksWhileStatesCome(FtSkeen):
    """Who lacks much asks for a state once in a period, be one under way or not."""


@rewrite("_repeat", "return now + self._retry_us", "return None", part=LeaderReads)
class ConfirmAskedTwice(WhiteBox):
    """A leader that waits for its group's word about reads asks once more."""


@rewrite("_begin_to_lead", "self._retries.add(entry.id, now)", "pass")
class TakenOverUnasked(WhiteBox):
    """A new leader does not ask for acknowledgements of what it has taken over."""


@rewrite("_refresh", "self._retry_later(entry, now)", "pass")
class StateUnasked(PrimCast):
    """Who has a message from somebody's state, and no START, does not ask for acknowledgements."""


@rewrite("on_reign", "self._retry_later(entry, now)", "pass")
class ReignsUnasked(FtSkeen):
    """A new leader does not ask for the stamps that its predecessor lacked."""


@rewrite("on_tick", "return earliest(paxos_wake, log_wake, self._deadlines.wake_at)",
         "return earliest(paxos_wake, log_wake)")  # fmt: skip
class SleepsPastItsTimers(Toto):
    """A process acts when something comes, or the consensus wants to."""


@rewrite("_retry", "if self._needs_state(): self._ask_for_state(out)", "pass")
class AsksOutsideNever(Toto):
    """Who lacks deliveries from before the view asks for them only when it is flushed."""


@rewrite("_optimistic_wake", "now + max(1, due - real)", "now + 1")
class WokenForNothing(QuasiGenuine):
    """A leader that waits until its clock has gone far enough is woken at once, and again, for as long as it takes."""


PLANTED = planted_in(__name__)
