"""Bugs planted in the sequencer."""

from __future__ import annotations

from typing import Any

from multicast.protocol import Outbox, Saved
from multicast.protocols.sequencer import Missing, Ordered, Sequencer
from multicast.types import AppMessage, ProcessId
from tests.planted import Planted


class ToldBeforeSync(Sequencer):
    """An entry leaves before it is on disk."""

    def _on_please(self, message: AppMessage, now: int, out: Outbox) -> None:
        before = len(out.sends)
        super()._on_please(message, now, out)
        out.sends[before:] = [(to, sent, False) for to, sent, _ in out.sends[before:]]


class CopiesEntered(Sequencer):
    """A message that is asked for again gets a second entry."""

    def _on_please(self, message: AppMessage, now: int, out: Outbox) -> None:
        self._known.discard(message.id)
        super()._on_please(message, now, out)


class GapsAccepted(Sequencer):
    """A process delivers whatever comes, if it is ahead of what it has."""

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        if isinstance(message, Ordered) and message.number > self._delivered:
            self._delivered = message.number - 1
        super().on_message(sender, message, now, out)


class NothingMissing(Sequencer):
    """Nobody asks for what a restart of the sequencer lost."""

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        if not isinstance(message, Missing):
            super().on_message(sender, message, now, out)


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
