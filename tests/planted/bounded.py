"""Planted bugs of what is kept without the bound that options give it, or until the next restart."""

from __future__ import annotations

from multicast.parts.election import Election
from multicast.parts.group_log import LeadersWord
from multicast.parts.group_member import GroupMember
from multicast.parts.instances import Instances
from multicast.parts.sequence import Sequence
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.toto import Toto
from multicast.protocols.white_box import WhiteBox
from tests.planted import Planted, small
from tests.planted.rewriting import rewrite


@rewrite("hear", "and len(self._heard) < self._early_max", "", part=LeadersWord)
class WordsWithoutBound(FtSkeen):
    """A follower keeps all words of its leader that come too early."""


@rewrite("hold", "and len(self.reign.held) < self._options.early_max", "", part=GroupMember)
class HeldWithoutBound(FtSkeen):
    """Who is about to lead keeps all that it is sent meanwhile."""


@rewrite("_on_deliver", "if len(self._early) < self.options.early_max:", "if True:")
class DeliversWithoutBound(WhiteBox):
    """A follower keeps all deliveries of its leader that come too early."""


@rewrite("expect", "and len(self._expected) < self._early_max", "", part=Sequence)
class ProposalsWithoutBound(PrimCast):
    """A follower keeps all proposals that come too early."""


@rewrite("on_submit", "self.refuse_beyond_limit(max(len(self._queue), len(self._submissions)))", "pass")
class NothingRefused(WhiteBox):
    """However much waits, more is taken."""


@rewrite("on_submit", "self.refuse_beyond_limit(len(self._mine))", "pass")
class NothingRefusedInToto(Toto):
    """The same in ToTo."""


@rewrite("_on_view_message", "and len(self._early) < self.options.early_max", "")
class ViewsWithoutBound(Toto):
    """What is of a later view is kept, however much it is."""


@rewrite("_on_cast", "and len(self._held) < self.options.early_max", "")
class CastsWithoutBound(QuasiGenuine):
    """Who is about to lead keeps all casts that it is sent meanwhile."""


# -- found by `multicast.simulation.stays` -----------------------------------------------------------------------------


@rewrite("ended", "self._proposable.clear()", "pass")
class ProposableStays(PrimCast):
    """What a primary was about to propose when it was deposed stays."""


@rewrite("forget_proposals", "self._assembly.clear()", "pass", part=Sequence)
class RefillsInPartStay(PrimCast):
    """What has come of a primary's answer in parts, when it was deposed, stays."""


@rewrite("promise", "self._assembly.clear()", "pass", part=Election)
class StatesInPartStay(WhiteBox):
    """What has come of a leader's state or a member's vote in parts stays when its ballot is over."""


@rewrite("_delivered", "self._early.pop(entry.position, None)", "pass")
class EarlyWordStays(WhiteBox):
    """A word that came too early stays if its delivery comes by another way."""


# -- found by `multicast.simulation.books` -----------------------------------------------------------------------------


@rewrite("jump", "self._chosen = {k: v for k, v in self._chosen.items() if k > instance}", "", part=Instances)
class ChosenBeforeTheJump(FtSkeen):
    """That an instance was chosen is remembered though a peer's state contains it."""


@rewrite("jump", "self._voters = {k: v for k, v in self._voters.items() if k > instance}", "", part=Instances)
class VotersBeforeTheJump(FtSkeen):
    """Who has accepted an instance is remembered though a peer's state contains it."""


@rewrite("begin", "entry.place = -1", "pass", part=Sequence)
class PlacesOfTheSequenceBefore(PrimCast):
    """What was delivered keeps the place that it had in another T: who takes that over may put it upon another one."""


_FEW, _ONE = small(pending_max="6"), small(early_max="1")
PLANTED = (
    Planted(WordsWithoutBound, small(early_max="1", early_clock="false")), Planted(HeldWithoutBound, _ONE),
    Planted(DeliversWithoutBound, _ONE), Planted(ProposalsWithoutBound, _ONE), Planted(NothingRefused, _FEW),
    Planted(NothingRefusedInToto, _FEW), Planted(ViewsWithoutBound, _ONE), Planted(CastsWithoutBound, _ONE),
    Planted(ProposableStays), Planted(RefillsInPartStay, small(portion_bytes="100")),
    Planted(StatesInPartStay, small(portion_bytes="100")), Planted(EarlyWordStays), Planted(ChosenBeforeTheJump),
    Planted(VotersBeforeTheJump), Planted(PlacesOfTheSequenceBefore),
)  # fmt: skip
