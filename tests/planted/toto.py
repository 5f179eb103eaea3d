"""Bugs planted in ToTo: in what is safe, the flush, the coming back, and the delivery rules."""

from __future__ import annotations

from multicast.parts.causal import EarlyDelivery, Votes
from multicast.parts.views import Gathering
from multicast.protocols.toto import Toto
from multicast.simulation.runner import Settings
from tests.planted import SMALL, Planted, small
from tests.planted.rewriting import rewrite


@rewrite("_order", "zip(self.view.safe, self.view.held,", "zip(self.view.held, self.view.held,")
class OrdersUnsafe(Toto):
    """Whatever is held decides about the order, safe or not."""


@rewrite("_begin_view", "quorum_of(len(self.topology.processes))", "max(1, len(self.topology.processes) // 2)")
class MinorityIsStable(Toto):
    """A cast is safe when one process less than a majority holds it."""


@rewrite("_begin_view", "quorum_of(len(self.topology.processes))", "quorum_of(n)")
class SafeInTheView(Toto):
    """A cast is safe when a majority of the view holds it. (Of a view of six, three in each of two groups of five, four
    suffice; if these die, the others go on without it.)"""


@rewrite("_on_flush", 'record.move("stop") self._save_view(out)', "pass")
class GoesOnAfterFlush(Toto):
    """Having answered a flush, a member still takes and sends."""


@rewrite("_save_cast", "out.put(_cast_key(cast), _encode(cast), carries=cast.messages)", "pass")
class CastsNotSaved(Toto):
    """Casts are only in memory."""


@rewrite("_complete_if_due", "if state is None or self.log.position < state.position:", "if state is None:")
class ComesBackTooSoon(Toto):
    """Who comes back goes on before it has the deliveries from before the view."""


@rewrite("cut", "return [max(", "return [min(", part=Gathering)
class CutTooSmall(Toto):
    """Only what all who answered the flush hold belongs to the old view."""


@rewrite("result", "first, *more = portions(casts, bytes_of, portion_bytes)", "first, more = casts, []", part=Gathering)
class ViewWithEverything(Toto):
    """What a member lacks travels along with the next view, however much that is."""


@rewrite("_responsive", "min(heard[p], reached.get(p, since)) > since", "heard[p] > since", part="coordinator")
class WaitsForTheDeaf(Toto):
    """Who is heard has to answer the flush, though it does not hear of it."""


@rewrite(
    "_enter", "min(self.record.instance, self.paxos.decided)", "min(record.instance - 1, self.paxos.decided)"
)
class HandedOutForgotten(Toto):
    """In a new view nobody keeps what was handed out before; a group that was cut off meanwhile lacks it for ever."""


@rewrite("_retry_by", "self.options.retry_us", "50 * self.options.retry_us")
class AsksSeldom(Toto):
    """What was lost is asked for at last, but everybody has stood still for long."""


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
    Planted(OrdersUnsafe, _faults()),
    Planted(MinorityIsStable, _faults(groups=1)),
    Planted(SafeInTheView, SMALL),
    Planted(GoesOnAfterFlush, _faults()),
    Planted(CastsNotSaved, _faults()),
    Planted(ComesBackTooSoon, _faults()),
    Planted(CutTooSmall, _faults()),
    Planted(ViewWithEverything, SMALL),
    Planted(WaitsForTheDeaf, small(ask_first="true")),
    Planted(HandedOutForgotten, SMALL),
    Planted(AsksSeldom, SMALL),
    Planted(UnstableSources, _faults()),
    Planted(ThresholdReached, _faults(rule="g_toto", phi="2"), shows="a source has more than phi votes"),
)
