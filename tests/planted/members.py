"""Bugs in how the members of a group change (multicast.membership)."""

from __future__ import annotations

from multicast.membership import Membership, Views
from multicast.parts.delivered import DeliveredLog
from multicast.parts.detector import FailureDetector
from multicast.parts.founding import FoundedGroups
from multicast.parts.group_clocks import GroupClocks
from multicast.parts.leadership import Leadership
from multicast.parts.rejoin import Rejoin
from multicast.protocols.primcast import PrimCast
from multicast.protocols.white_box import WhiteBox
from multicast.simulation.runner import Settings
from tests.planted import Planted, planted_in
from tests.planted.rewriting import rewrite

TIGHT = Settings(profile="faults", size="tight")


@rewrite("has_quorum", "self.of.get(ballot.view)", "self.counting[-1]", part=Views)
class PresentViewAcknowledges(WhiteBox):
    """Acknowledgements are counted by the view of today, not by that of their ballot. (Neighbouring views have a member
    in common in all their majorities: it takes two changes to do harm.)"""


@rewrite("has_quorum", "self.of.get(ballot.view)", "self.of[0]", part=Views)
class FirstViewAcknowledges(WhiteBox):
    """Acknowledgements are counted by the members with whom the group began."""


@rewrite("can_elect", "self.counting[0]", "self.counting[-1]", part=Views)
class PresentViewElects(WhiteBox):
    """Votes are counted by the view that is to begin, not by the one that it ends."""


@rewrite("can_elect", "self.counting[0]", "self.counting[-1]", part=Views)
class PresentViewPromises(PrimCast):
    """The same in PrimCast."""


@rewrite("restore", "is_new or saved.lost", "saved.lost", part=Rejoin)
class NewcomerVotes(WhiteBox):
    """Who is added takes part at once, as if it belonged to the first ballot."""


@rewrite("restore", "is_new or saved.lost", "saved.lost", part=Rejoin)
class NewcomerAccepts(PrimCast):
    """The same in PrimCast."""


@rewrite("may_order", "change is None or change.view <= self.joined.view", "True", part="leadership")
class SecondChangeAtOnce(WhiteBox):
    """A change is ordered before the view that it changes has begun."""


@rewrite("may_order", "change is None or change.view <= self.joined.view", "True", part="leadership")
class SecondChangeProposed(PrimCast):
    """The same in PrimCast."""


@rewrite("_put_view", "out.put(view_key(group, number), self.membership.views[group].encode(number))", "pass",
         part="leadership")  # fmt: skip
class ViewsNotSaved(WhiteBox):
    """Who restarts knows the first view only."""


@rewrite("can_begin", "for members in self.counting", "for members in self.counting[1:] or self.counting", part=Views)
class OldViewNotAsked(WhiteBox):
    """A view begins when a majority of it has joined, whatever those who belonged to the one before have promised."""


@rewrite("can_begin", "for members in self.counting", "for members in self.counting[:1]", part=Views)
class NewViewNotAsked(PrimCast):
    """A view begins when a majority of the one before has joined, and few of its own members have."""


@rewrite("_reckon", "in self._topology.counting(group)", "in self._topology.counting(group)[:1]", part=DeliveredLog)
class OldViewsWatermark(WhiteBox):
    """Until a view has begun, watermarks are those of the one before alone."""


@rewrite("_reckon", "in self._topology.counting(group)", "in self._topology.counting(group)[-1:]", part=DeliveredLog)
class NewViewsWatermark(PrimCast):
    """As soon as a view is known, watermarks are its own alone."""


@rewrite("_return_if_caught_up", "self._deliveries.position < max(state.reach, self.election.rejoin.reach)", "False",
         part="leadership")  # fmt: skip
class NewcomerBehind(WhiteBox):
    """Who is added takes part without what its group has settled."""


@rewrite("_on_new_leader", "if not self.promises:", "if not self.is_member:", part="election")
class NewcomerPromisesNothing(WhiteBox):
    """A group whose view has begun without the one that it adds stands still when another one of it is lost."""


@rewrite("on_returned", "self.amnesiac and not self.is_new", "self.amnesiac", part=Rejoin)
class NewcomerCountsAsForgetful(PrimCast):
    """Who has lost its disk waits until a newcomer has all history, which may need its help."""


@rewrite("start", "self.election.rejoin.is_new and _BALLOTS_KEY in saved.values", "False", part="leadership")
class NewcomerForgets(WhiteBox):
    """What a newcomer has promised is forgotten in a restart."""


@rewrite("_on_new_state", "ballot >= own.promised and own.rejoin.may_join(ballot)", "own.rejoin.may_join(ballot)",
         part="leadership")  # fmt: skip
class NewcomerJoinsBelow(PrimCast):
    """A newcomer joins a ballot below the one that it has promised."""


@rewrite("_on_view_is", 'out.put(_REMOVED_KEY, b"")', "pass", part="leadership")
class RemovalForgotten(WhiteBox):
    """Who is removed takes part again after a restart."""


@rewrite("_on_view_is", "self._view_begun(view.number, out)", "self._view_begun(views.latest, out)", part=Leadership)
class LatestViewBegunWithTheTold(PrimCast):
    """Who is told of any view that it has begun takes the latest one that it knows for begun."""


@rewrite("change", "if change.view != self.latest:", "if False:", part=Views)
class AnyViewChanged(PrimCast):
    """A change takes place though it was made for another view."""


@rewrite("_on_ack", "sender == ack.epoch.leader or", "")
class ViewAskedForOnce(PrimCast):
    """Who hears of a view that it does not know asks for it once: if that is lost, it counts nothing of that group."""


@rewrite("_tell", "self._tell_view(to, out)", "pass", part=FoundedGroups)
class ViewNotToldAgain(WhiteBox):
    """Who was down when somebody was added, and whoever founds a group, is not told: when that one leads, he has no
    link to it, and nobody else to hear it from."""


@rewrite("_tell", "if views.latest and group != self._group:", "if False:", part=FoundedGroups)
class ViewsOfOthersUntold(PrimCast):
    """A view is told by those alone who belong to it: who was away until nobody of the one before was left knows none
    of them, and hears none of them."""


@rewrite("tick", "if self._membership.processes is not self._told:", "if False:", part=FoundedGroups)
class ViewsUntoldToWhoIsNew(PrimCast):
    """Who is added knows the groups as its file has them, which may be of long ago, and nobody who belongs to one."""


@rewrite("begun", "self.latest - (len(self.counting) - 1)", "self.latest * (len(self.counting) == 1)", part=Views)
class ViewUntoldWhileTheNextIsMade(WhiteBox):
    """Who has made a view that has not begun tells none: who lost its disk waits for a removed one, and the view for
    it."""


@rewrite("_on_view_is", "self._view_begun(view.number, out)", "pass", part=Leadership)
class ToldViewNotBegun(WhiteBox):
    """Who is told a view that it has made waits for those of the one before all the same."""


@rewrite("tell_view", "out.send_durable(to", "out.send(to", part="election")
class BegunBeforeDisk(PrimCast):
    """That a view has begun is told before it is on disk: who is removed ends, and nobody is left who knows it."""


@rewrite("tell_view", "() if self.state is REMOVED else self._left_out()", "()", part="election")
class RemovedIsToldByAny(WhiteBox):
    """Whoever knows that a view has begun tells one whom it leaves out, and that one ends, though most others do not
    know it, and may need it."""


@rewrite("start", "self._tell_all(out)", "self._told = self._membership.processes", part=FoundedGroups)
class FoundedToldOnce(WhiteBox):
    """Who knows a founded group does not tell of it again when it has restarted: what it had to send is lost."""


@rewrite("_ask_strangers", "if strangers:", "if False:", part=FoundedGroups)
class StrangersNotAsked(PrimCast):
    """Who was removed while it was away, and knows nobody who is left, is not told by those who greet it."""


@rewrite("may_join", "self._views.of.get(ballot.view, (self._self_id,))", "(self._self_id,)", part="election.rejoin")
class JoinsAnothersView(PrimCast):
    """Who was added takes over a state of the view before, to which it does not belong, and vouches for it."""


@rewrite("recount", "if self._counted is self._topology.processes:", "if True:", part=DeliveredLog)
class WatermarksOfTheViewBefore(WhiteBox):
    """What a smaller group has delivered is settled when it delivers something new, not before."""


@rewrite("begin", "self._reckon()", "pass", part=GroupClocks)
class QuorumClockOfTheViewBefore(PrimCast):
    """Those who stay have clocks that are a quorum now, and none of them rises: nothing more is delivered."""


@rewrite("_on_agreed", "if not election.knows_view(sender, agreed.ballot, out): return", "", part=FailureDetector)
class AgreedInAnyView(WhiteBox):
    """Who agrees to a campaign names a ballot of a view that the candidate does not know, and it stands above that."""


@rewrite("on_returned", "or not self.knows_view(sender, bound, out)", "", part="election")
class ReturnsInAnyView(WhiteBox):
    """The same of who has lost its disk, and waits for a ballot above one of that view."""


_EVERY = "for group, views in self.views.items():"
_FIRST = "for group, views in [known for known in self.views.items() if known[0] not in self.founded]:"


@rewrite("restore", _EVERY, _FIRST, part=Membership)
class FoundedViewsForgotten(PrimCast):
    """Who restarts knows of a group that was added those with whom it began, who may all be gone."""


HARMLESS = (Planted(PresentViewAcknowledges),)
_IN_TIGHT = (Planted(AgreedInAnyView, TIGHT), Planted(ReturnsInAnyView, TIGHT))
PLANTED = (*planted_in(__name__, (*HARMLESS, *_IN_TIGHT)), *_IN_TIGHT)
