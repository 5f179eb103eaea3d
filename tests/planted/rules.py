"""Bugs planted in ToTo's delivery rules (`multicast.parts.causal`): processes that see much the same survive them."""

from __future__ import annotations

from multicast.parts.causal import EarlyDelivery, Votes
from multicast.protocols.toto import Toto
from tests.planted import Planted, small
from tests.planted.rewriting import rewrite


def _toto(votes: type[Votes]) -> type[Toto]:
    """ToTo, by these votes."""
    order = type(votes.__name__, (EarlyDelivery,), {"votes_class": votes})
    names = {"order_class": order, "__doc__": votes.__doc__, "__module__": __name__}
    return type(votes.__name__, (Toto,), names | {k: v for k, v in vars(votes).items() if k == "misplaced"})


@rewrite("_loses", "+ self.unseen", "")
class UnseenVoteForNobody(Votes):
    """A candidate loses for good that the unseen could still elect."""


@rewrite("is_stable", "if general and self.tail < n - phi:", "if False:")
class FewAreSeen(Votes):
    """Sources are ordered though so many are unseen that one of them may become a source."""


@rewrite("wins", "> self.phi", ">= self.phi")
class WinsWithPhi(Votes):
    """A candidate loses for good against one that is preferred by Φ."""


@rewrite("sources", "spare = self.phi - self.unseen", "spare = self.phi")
class UnseenBeatNobody(Votes):
    """A source is who is not beaten by now, whoever is unseen."""


@rewrite("stable_prefix", "if not (enough or self.votes[i].bit_count() > self.phi):", "if False:")
class PrefixTooEarly(Votes):
    """A source of a prefix is ordered before it is one for good."""


@rewrite("stable_prefix", "and not self._loses(i, self.votes)", "and False")
class PrefixPassesTheUndecided(Votes):
    """A prefix goes on beyond a candidate that may still become a source."""


@rewrite("stable_prefix", "if not self.seen >> i & 1:", "if False:")
class PrefixPassesTheUnseen(Votes):
    """A prefix goes on beyond a process that was not seen."""


class ResumesUnmarked(EarlyDelivery):
    """After a restart what was ordered early in the present activation is ordered once more."""

    def resume(self, ordered: list[int], early: int) -> None:  # type: ignore[override]
        super().resume(ordered, 0)


class MarksForgotten(Toto):
    """After a restart what GL-ToTo has ordered early in the present activation is ordered once more."""

    order_class = ResumesUnmarked


PLANTED = (
    *(Planted(_toto(votes), small(rule="g_toto")) for votes in (UnseenVoteForNobody, FewAreSeen, WinsWithPhi)),
    Planted(_toto(UnseenBeatNobody)),
    *(
        Planted(_toto(votes), small(rule="gl_toto"))
        for votes in (PrefixTooEarly, PrefixPassesTheUndecided, PrefixPassesTheUnseen)
    ),
    Planted(MarksForgotten, small(rule="gl_toto")),
)
