"""Bugs planted in the sequencer."""

from __future__ import annotations

from multicast.protocol import Outbox, Saved
from multicast.protocols.sequencer import Sequencer
from tests.planted import Planted
from tests.planted.rewriting import rewrite


@rewrite("_on_please", "out.send_durable(self.topology.groups[group],", "out.send(self.topology.groups[group],")
class ToldBeforeSync(Sequencer):
    """An entry leaves before it is on disk."""


@rewrite("_on_please", "if message.id not in self._known:", "if True:")
class CopiesEntered(Sequencer):
    """A message that is asked for again gets a second entry."""


@rewrite("_on_ordered", "ordered.number == self._delivered + 1:", "ordered.number > self._delivered:")
@rewrite("_on_ordered", "self._delivered += 1", "self._delivered = ordered.number")
class GapsAccepted(Sequencer):
    """A process delivers whatever comes, if it is ahead of what it has."""


@rewrite("_on_missing", "[missing.number :]", "[:0]")
class NothingMissing(Sequencer):
    """Nobody is told what a restart of the sequencer lost."""


class ForgetsItsLog(Sequencer):
    """After a restart the sequencer counts from 1 again."""

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        saved.values.clear()
        super().on_start(saved, now, out)


PLANTED = (
    Planted(ToldBeforeSync),
    Planted(CopiesEntered),
    Planted(GapsAccepted),
    Planted(NothingMissing),
    Planted(ForgetsItsLog),
)
