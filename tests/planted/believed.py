"""Bugs planted in what is bounded, and by whom: how far clocks are believed, which views count, from when on ToTo and
the quasi-genuine protocol go by what they know."""

from __future__ import annotations

from multicast.discipline import Discipline
from multicast.membership import Membership, Views
from multicast.parts.causal import EarlyDelivery
from multicast.parts.channels import Channels
from multicast.protocols.primcast import PrimCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.toto import Toto
from multicast.protocols.white_box import WhiteBox
from tests.planted import planted_in
from tests.planted.rewriting import rewrite

# -- how far clocks are believed --------------------------------------------------------------------------------------


@rewrite("_agree", "min(len(votes) - self._wrong_max, (len(votes) + 1) // 2)", "(len(votes) + 1) // 2", part=Discipline)
class MedianOfFew(WhiteBox):
    """The lower median of those that were heard is believed, though it may be one of those who may be wrong."""


@rewrite("_decide", "self.correction = self._agreed if self.off else self._own", "self.correction = self._own",
         part=Discipline)  # fmt: skip
class OffIsOnlySaid(WhiteBox):
    """Whose clock is off says so, and stamps by it."""


@rewrite("on_reading", "if not 0 <= now - sent <= self.skew_us_max:", "if False:", part=Discipline)
class LateAnswersCount(WhiteBox):
    """What a clock showed counts, however long the answer took."""


@rewrite("on_reading", "if before is not None and max(low, before[0]) <= min(high, before[1]):",
         "if before is not None:", part=Discipline)  # fmt: skip
class SetClocksAveraged(WhiteBox):
    """Who has set his clock is believed to be between before and after."""


@rewrite("_follow", "quorum_of(len(processes))", "len(processes) // 2", part=Discipline)
class HalfAgrees(WhiteBox):
    """Half of the clocks are enough for an agreed time."""


@rewrite("read", "self._known.clear()", "pass", part=Discipline)
class LapseUnnoticed(WhiteBox):
    """Who was stopped for long goes by what clocks showed before."""


# -- views ------------------------------------------------------------------------------------------------------------


@rewrite("restore", "joint = begun is not None and begun < self.latest", "joint = False", part=Views)
class BegunAtRestart(WhiteBox):
    """Who restarts takes every view that it knows for begun."""


@rewrite("learn", "self.latest = max(self.latest, number)", "self.latest = number", part=Views)
class LearnsOldViews(PrimCast):
    """An earlier view of another group, heard of late, takes the place of the present one."""


@rewrite("given", "if made <= position", "", part=Views)
class ViewsAheadGiven(WhiteBox):
    """With a snapshot go views that its deliveries have not made."""


@rewrite("gone", "if number < self.views[self.group_of[p]].begun", "", part=Membership)
class RemovedToldAtTheGreeting(WhiteBox):
    """Whoever has restarted tells one that greets that it was removed, though few may know it, and need that one."""


@rewrite("change", "if any(process in some for some in self.of.values()):", "if process in members:", part=Views)
class RemovedComeAgain(WhiteBox):
    """An id that was removed is added again."""


# -- ToTo -------------------------------------------------------------------------------------------------------------


@rewrite("_order", "if self.record.complete and self.view.me is not None:", "if self.view.me is not None:")
class OrdersIncomplete(Toto):
    """Who has not all deliveries from before the view orders in it."""


@rewrite("_finish", "if any(held < last for held, last in zip(view.held, new.cut, strict=True)):", "if False:")
class FinishesWithGaps(Toto):
    """Who lacks casts of the cut finishes the view with the others."""


@rewrite("_complete_if_due", "self._resume(state.order)", "pass")
class OrderNotTakenOver(Toto):
    """Who was outside a view finishes it from its beginning."""


@rewrite("order_rest", "if not self.early >> p & 1:", "if True:", part=EarlyDelivery)
class RestOrderedAgain(Toto):
    """What GL-ToTo has ordered early is ordered once more when its view ends."""


# -- the quasi-genuine protocol ---------------------------------------------------------------------------------------


@rewrite("take_cast", "min(cast.rtc, most) if real_clock else cast.rtc", "cast.rtc",
         part="leader", after="_new_leader")  # fmt: skip
class AnyStampAhead(QuasiGenuine):
    """A cast is proposed with its stamp, be that ever so far ahead of the leader's clock."""


@rewrite("_send_ack", "if self._may_vouch():", "if True:", part=Channels)
@rewrite("tell_receipts", "if not self._may_vouch(): return", "pass", part=Channels)
class ForgetfulVouches(QuasiGenuine):
    """Who has lost its disk acknowledges what it is sent, before it has what it had acknowledged before."""


@rewrite("adopt", "channel.received = max(channel.received, count)", "channel.received = count", part=Channels)
class ReceivedGoesBack(QuasiGenuine):
    """Of what a peer's state has received less the numbers go back."""


PLANTED = planted_in(__name__)
