"""Bugs planted in ToTo: in stability, the flush, the coming back, and the delivery rules."""

from __future__ import annotations

from multicast.parts.causal import EarlyDelivery, Votes
from multicast.parts.views import Cast, Gathering
from multicast.protocol import Outbox
from multicast.protocols.toto import Receipt, Toto
from multicast.simulation.runner import Settings
from multicast.types import ProcessId
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


class StopForgotten(Toto):
    """That a member has stopped is not on disk."""

    def _save_view(self, out: Outbox) -> None:
        stopped, self.record.stopped = self.record.stopped, False
        super()._save_view(out)
        self.record.stopped = stopped


class CastsNotSaved(Toto):
    """Casts are only in memory."""

    def _save_cast(self, cast: Cast, out: Outbox) -> None:
        pass


class ReceiptBeforeSync(Toto):
    """A receipt leaves before what it says is on disk."""

    def _send_receipt(self, to: tuple[ProcessId, ...], receipt: Receipt, out: Outbox) -> None:
        out.send(to, receipt)


class ComesBackTooSoon(Toto):
    """Who comes back goes on before it has the deliveries from before the view."""

    def _complete_if_due(self, out: Outbox) -> None:
        if self._target is not None:
            self._target = (0, self._target[1])
        super()._complete_if_due(out)


class SmallestCut(Gathering):
    """Only what all who answered hold belongs to the old view."""

    def cut(self) -> list[int]:
        return [min(r.held[k] for r in self.replies.values()) for k in range(len(self.members))]


class CutTooSmall(Toto):
    """Only what all who answered the flush hold belongs to the old view."""

    gathering_class = SmallestCut


class AnybodySuffices(Gathering):
    """Two answers end a view."""

    @property
    def suffices(self) -> bool:
        return len(self.replies) >= 2


class FlushedByTwo(Toto):
    """A view ends when two members have answered."""

    gathering_class = AnybodySuffices


class DeliversCandidates(Votes):
    """When all are seen, the candidates are delivered, not the sources."""

    def last_resort(self, sources: list[int]) -> list[int]:
        return sorted(self.votes)


class OrdersCandidates(EarlyDelivery):
    votes_class = DeliversCandidates


class CandidatesDelivered(Toto):
    """When all are seen, the candidates are delivered, not the sources."""

    order_class = OrdersCandidates


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


def _faults(**options: str) -> Settings:
    return Settings(profile="faults", options=options)


PLANTED = (
    Planted(OrdersUnstable),
    Planted(MinorityIsStable),
    Planted(GoesOnAfterFlush),
    Planted(StopForgotten),
    Planted(CastsNotSaved),
    Planted(ReceiptBeforeSync),
    Planted(ComesBackTooSoon),
    Planted(CutTooSmall),
    Planted(FlushedByTwo),
    Planted(UnstableSources),
    Planted(CandidatesDelivered, _faults(rule="toto"), shows="the default rule as printed"),
    Planted(ThresholdReached, _faults(rule="g_toto", phi="2"), shows="source with nvt >= phi"),
)
