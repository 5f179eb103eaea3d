"""Bugs planted in the comparison of clocks (`multicast.discipline`) and in how far it is believed, under White-Box."""

from __future__ import annotations

from typing import ClassVar

from multicast.discipline import Discipline
from multicast.protocols.white_box import WhiteBox
from multicast.simulation.runner import Settings
from tests.planted import Planted
from tests.planted.rewriting import rewrite


class _Deaf(Discipline):
    def _agree(self) -> int:
        return self._own


class _Hasty(Discipline):
    def _agree(self) -> int:
        agreed = super()._agree()
        return self._own if agreed is None else agreed


class _Disciplined(WhiteBox):
    """The comparison is replaced."""

    kind: ClassVar[type[Discipline]] = Discipline

    def new_discipline(self) -> Discipline | None:
        made = super().new_discipline()
        return made and self.kind(self.self_id, self.topology.processes, made.skew_us_max, made.period_us)


class BelievesItself(_Disciplined):
    """A process takes its own clock for the agreed time."""

    kind = _Deaf


class BelievesItselfAtFirst(_Disciplined):
    """Before a majority has answered a process believes its own clock, also after a restart."""

    kind = _Hasty


@rewrite("_agree", "votes[min(len(votes) - self._wrong_max, (len(votes) + 1) // 2) - 1]", "votes[len(votes) // 2]",
         part=Discipline)  # fmt: skip
class MedianOfTheHeard(WhiteBox):
    """The upper median of those that were heard: of two or of four a wrong one may be it."""


class StampsByTimers(WhiteBox):
    """Stamps are taken from the time of the timers, which begins a life at what the wall clock shows."""

    def real_clock(self, now: int) -> int:
        return now


_SMALL = Settings(groups=2, replicas=3, messages=40, options={"clock": "hybrid"})

PLANTED = (
    Planted(BelievesItself, _SMALL, shows="discipline: agreed time"),
    Planted(BelievesItselfAtFirst, _SMALL, shows="discipline: stamps, nothing before a majority has answered"),
    Planted(MedianOfTheHeard, _SMALL, shows="discipline: rank min(h - f, ceil(h / 2))"),
    Planted(StampsByTimers, _SMALL, shows="discipline: two readings"),
)
