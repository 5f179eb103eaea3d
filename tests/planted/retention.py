"""Bugs planted in what lets old segments of a journal go: each must cost somebody what only they held."""

from __future__ import annotations

from multicast.journal import Journal
from multicast.protocols.skeen import Skeen
from multicast.retention import Retention
from tests.planted import Planted
from tests.planted.rewriting import rewrite


@rewrite("advance", "journal.drop(position, limit)", "journal.drop(journal.end, limit)")
class DroppedBeforeCommit(Retention):
    """A segment goes before the application holds what its deliveries have led to."""


@rewrite("advance", "limit = min(covered, ", "limit = min(journal.end, ")
class DroppedUncovered(Retention):
    """A segment goes though no checkpoint stands for what was put in it."""


@rewrite("_raise_floor", "self.disk.replace(segments.FLOOR, (segments.encode(floor),))", "pass")
class FloorNotWritten(Journal):
    """Segments go, and no file says so."""


PLANTED = tuple(
    Planted(Skeen, host=(kind,))
    for kind in (DroppedBeforeCommit, DroppedUncovered, FloorNotWritten)
)
