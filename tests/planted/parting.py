"""Bugs by which links that stay broken stop groups, or change leaders without need (parts.reach), or messages (relays:
parts.submissions)."""

from __future__ import annotations

from multicast.parts.reach import Reach
from multicast.parts.submissions import Submissions
from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.toto import Toto
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


@rewrite("is_cut_off", "if not self.lost or self._topology is None:", "if True:", part=Reach)
class NothingIsPassedOn(WhiteBox):
    """A message for a group that its sender does not reach waits until it does."""


@rewrite("is_cut_off", "if not self.lost or self._topology is None:", "if True:", part=Reach)
class NothingIsPassedOnByPeers(PrimCast):
    """The same, where whoever is reached would have told the primary."""


@rewrite("_on_asked", "self._is_cut_off(asked.relayed, now) if relayed else self._refers(sender, out)",
         "self._refers(sender, out)", part=Submissions)  # fmt: skip
class OnlyLeadersPassOn(FtSkeen):
    """A follower says who leads, instead of passing on what it is asked to."""


@rewrite("_on_lacked", "if message_id in self._messages and self._is_cut_off(message.destinations, now):", "if False:",
         part=Submissions)  # fmt: skip
class CopiesForRelays(FastCast):
    """Who is to pass a message on is given it as a destination would be."""


@rewrite("known", "if asking is not None:", "if False:", part=Submissions)
class SenderNotTold(WhiteBox):
    """Who has passed a message on does not say that it was delivered: its sender, who cannot hear it from the others,
    has it passed on for ever."""


@rewrite("remove", "self._asking.pop(message_id, None)", "pass", part=Submissions)
class AskersKept(WhiteBox):
    """Who asked for a message to be passed on is remembered for ever."""


@rewrite("_relays", "self._turn += 1", "pass", part=Submissions)
class OneIsAskedToPassOn(WhiteBox):
    """Whoever is asked first to pass messages on is asked always, though he be cut off, too."""


@rewrite("_on_relay", "return # it asks again if message.id in self._messages:", "return\n            if False:",
         part=Submissions)  # fmt: skip
class AskerNotNoted(WhiteBox):
    """Who passes a message on does not know for whom."""


@rewrite("_retry", "reach.is_long_lost(self.paxos.promised.leader, now)", "False")
class OutsideNotHelped(Toto):
    """Nobody multicasts what a process does that its coordinator does not reach."""


@rewrite("_beat", "if self.view.me is None:", "if False:")
class OutsideStaysBehind(Toto):
    """A process that its coordinator does not reach does not learn what the others deliver."""


@rewrite("_is_delivered", "if asking is not None:", "if False:")
class SenderNotToldInTime(Toto):
    """Who has multicast for another one does not say that it was delivered before it is asked again."""


@rewrite("_on_relay", "if known is not None:", "if False:")
class AskedInVainToPassOn(Toto):
    """Who is to multicast what was delivered does not say that it was: its sender asks for ever."""


@rewrite("_refer", "out.send((sender,), LeaderIs(self.member.paxos.promised))", "pass")
class NobodySaysWhoLeads(FastCast):
    """A sender that asks what became of its message is not told of a leader of whom it has not heard."""


PLANTED = (
    Planted(NeverParted, TWO_GROUPS),
    Planted(OtherLeaderIsNotNeeded, TWO_GROUPS),
    Planted(QuorumIsNotNeeded, TWO_GROUPS),
    Planted(BarriersFromNobody, TWO_GROUPS),
    Planted(UnfitTakesOver, TWO_GROUPS),
    Planted(NothingIsPassedOn, TWO_GROUPS),
    Planted(NothingIsPassedOnByPeers, TWO_GROUPS),
    Planted(OnlyLeadersPassOn, TWO_GROUPS),
    Planted(CopiesForRelays, TWO_GROUPS),
    Planted(SenderNotTold, TWO_GROUPS),
    Planted(AskersKept, TWO_GROUPS),
    Planted(OneIsAskedToPassOn, TWO_GROUPS),
    Planted(AskerNotNoted, TWO_GROUPS),
    Planted(OutsideNotHelped, TWO_GROUPS),
    Planted(OutsideStaysBehind, TWO_GROUPS),
    Planted(SenderNotToldInTime, TWO_GROUPS),
    Planted(AskedInVainToPassOn, TWO_GROUPS),
    Planted(NobodySaysWhoLeads, TWO_GROUPS),
)
