"""Bugs planted in ToTo: in stability, the flush, the coming back, and the delivery rules."""

from __future__ import annotations

import msgspec

from multicast.parts.causal import EarlyDelivery, Votes
from multicast.parts.views import Cast, Gathering
from multicast.protocol import Outbox
from multicast.protocols.toto import Toto
from multicast.simulation.runner import Settings
from tests.planted import Planted


class OrdersUnstable(Toto):
    """Whatever is held decides about the order, stable or not."""

    def _ripe(self) -> list[int]:
        return self.view.held


class MinorityIsStable(Toto):
    """A cast is stable when one process less than a majority holds it."""

    def _quorum(self) -> int:
        return max(1, super()._quorum() - 1)


class GoesOnAfterFlush(Toto):
    """Having answered a flush, a member still takes and sends."""

    def _stop(self, out: Outbox) -> None:
        pass


class CastsNotSaved(Toto):
    """Casts are only in memory."""

    def _save_cast(self, cast: Cast, out: Outbox) -> None:
        pass


class ComesBackTooSoon(Toto):
    """Who comes back goes on before it has the deliveries from before the view."""

    def _complete_if_due(self, out: Outbox) -> None:
        if self._target is not None:
            self._target = msgspec.structs.replace(self._target, position=0)
        super()._complete_if_due(out)


class SmallestCut(Gathering):
    """Only what all who answered hold belongs to the old view."""

    def cut(self) -> list[int]:
        return [min(r.held[k] for r in self.replies.values()) for k in range(len(self.members))]


class CutTooSmall(Toto):
    """Only what all who answered the flush hold belongs to the old view."""

    gathering_class = SmallestCut


class SourceAtThreshold(Votes):
    """A candidate with Φ votes is a source."""

    def elected(self, a: int) -> bool:
        return self.votes[a].bit_count() >= self.phi


class OrdersAtThreshold(EarlyDelivery):
    votes_class = SourceAtThreshold


class ThresholdReached(Toto):
    """A candidate with Φ votes is a source; more are needed."""

    order_class = OrdersAtThreshold


class NoRule(Votes):
    """Sources are delivered as soon as there are any, stable or not."""

    def is_stable(self, sources: list[int]) -> bool:
        return True


class OrdersSources(EarlyDelivery):
    votes_class = NoRule


class UnstableSources(Toto):
    """Sources are delivered whether or not they are stable."""

    order_class = OrdersSources


def _faults(groups: int = 2, **options: str) -> Settings:
    return Settings(profile="faults", groups=groups, replicas=3, options=options)


PLANTED = (
    Planted(OrdersUnstable, _faults()),
    Planted(MinorityIsStable, _faults(groups=1)),
    Planted(GoesOnAfterFlush, _faults()),
    Planted(CastsNotSaved, _faults()),
    Planted(ComesBackTooSoon, _faults()),
    Planted(CutTooSmall, _faults()),
    Planted(UnstableSources, _faults()),
    Planted(ThresholdReached, _faults(rule="g_toto", phi="2"), shows="a source has more than phi votes"),
)
