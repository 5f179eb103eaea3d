"""Bugs planted in Skeen's protocol. Lines are those of Fig. 1 of the White-Box paper."""

from __future__ import annotations

from typing import Any

from multicast.protocol import Outbox
from multicast.protocols.skeen import Skeen
from multicast.simulation.runner import Settings
from multicast.types import GroupId, ProcessId
from tests.planted import Planted
from tests.planted.rewriting import rewrite


@rewrite("_commit_if_complete", "self._clock.advance(entry.final.time)", "pass")
class ClockNotAdvanced(Skeen):
    """Fig. 1, line 15 left out."""


@rewrite("_propose", "out.send_durable(", "out.send(")
class ProposedBeforeSync(Skeen):
    """A stamp is told before it is on disk."""


class Impatient(Skeen):
    """Delivers at its own stamp, without the others'."""

    def _commit_if_complete(self, message_id: bytes, entry: Any) -> None:
        self._queue.commit(message_id, entry.stamps[self.group])


@rewrite("_save", "out.put(_ENTRY_PREFIX + entry.message.id, _encode(entry), carries=(entry.message,))", "pass")
class ForgetsStamps(Skeen):
    """Stamps are only in memory."""


class TellsEverybody(Skeen):
    """Sends proposals to all groups: not genuine."""

    def _propose(self, entry: Any, to: tuple[ProcessId, ...], again: bool, out: Outbox) -> None:
        strangers = [p for p in self.topology.processes if p not in to]
        super()._propose(entry, to, again, out)
        if strangers:
            super()._propose(entry, tuple(strangers), again, out)

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        groups: tuple[GroupId, ...] = message.message.destinations if hasattr(message, "message") else (self.group,)
        if self.group in groups:
            super().on_message(sender, message, now, out)


class FinalTooEarly(Skeen):
    """The coordinator does not wait for the last stamp."""

    def _commit_if_complete(self, message_id: bytes, entry: Any) -> None:
        enough = len(entry.stamps) >= len(entry.message.destinations) - 1
        if self._coordinator(entry.message) == self.self_id and entry.final is None and entry.told and enough:
            entry.final = max(entry.stamps.values())
        super()._commit_if_complete(message_id, entry)


class FinalNotTold(Skeen):
    """The coordinator keeps the final timestamp to itself, and nobody asks again."""

    def _tell_final(self, entry: Any, out: Outbox) -> None:
        pass

    def on_tick(self, now: int, out: Outbox) -> int | None:
        self._retries.clear()
        return super().on_tick(now, out)


class ProposedToCoordinatorBeforeSync(ProposedBeforeSync):
    """A stamp is told to the coordinator before it is on disk."""


COORDINATOR = Settings(profile="faults", options={"coordinator": "true"})

PLANTED = (
    Planted(ClockNotAdvanced, shows="Fig. 1, line 15"),
    Planted(ProposedBeforeSync),
    Planted(Impatient),
    Planted(ForgetsStamps),
    Planted(TellsEverybody),
    Planted(FinalTooEarly, settings=COORDINATOR),
    Planted(FinalNotTold, settings=COORDINATOR),
    Planted(ProposedToCoordinatorBeforeSync, settings=COORDINATOR),
)
