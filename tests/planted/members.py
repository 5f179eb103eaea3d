"""Bugs in how the members of a group change (multicast.membership)."""

from __future__ import annotations

from multicast.membership import Views
from multicast.parts.rejoin import Rejoin
from multicast.protocols.primcast import PrimCast
from multicast.protocols.white_box import WhiteBox
from tests.planted import Planted, planted_in
from tests.planted.rewriting import rewrite


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


@rewrite("_put_view", "out.put(_view_key(group, number), self.membership.views[group].encode(number))", "pass",
         part="leadership")  # fmt: skip
class ViewsNotSaved(WhiteBox):
    """Who restarts knows the first view only."""


HARMLESS = (Planted(PresentViewAcknowledges),)
PLANTED = planted_in(__name__, HARMLESS)
