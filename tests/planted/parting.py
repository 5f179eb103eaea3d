"""Bugs by which links that stay broken stop groups, or change leaders without need (parts.reach)."""

from __future__ import annotations

from multicast.parts.reach import Reach
from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.white_box import WhiteBox
from multicast.simulation.runner import Settings
from tests.planted import Planted
from tests.planted.rewriting import rewrite

TWO_GROUPS = Settings(profile="faults", size="small", groups=2, replicas=3, options={"ask_first": "true"})


@rewrite("look", "any(now", "False and any(now", part=Reach)
class NeverParted(WhiteBox):
    """A leader that does not reach another one goes on to lead."""


@rewrite("_missing", "if leader in members and leader in self.lost:", "if False:", part=Reach)
class OtherLeaderIsNotNeeded(FastCast):
    """A quorum of another group is thought to be enough, without its leader."""


@rewrite("_missing", "if len(away) > spare:", "if False:", part=Reach)
class QuorumIsNotNeeded(PrimCast):
    """A leader that reaches nobody of another group goes on to lead."""


@rewrite("_missing", "if len(away) > spare:", "if False:", part=Reach)
class BarriersFromNobody(QuasiGenuine):
    """The same."""


@rewrite("is_whole", "not any(self._missing())", "True", part=Reach)
class UnfitTakesOver(FtSkeen):
    """Who could do no better takes over from who asks to be relieved."""


PLANTED = (
    Planted(NeverParted, TWO_GROUPS),
    Planted(OtherLeaderIsNotNeeded, TWO_GROUPS),
    Planted(QuorumIsNotNeeded, TWO_GROUPS),
    Planted(BarriersFromNobody, TWO_GROUPS),
    Planted(UnfitTakesOver, TWO_GROUPS),
)
