"""Bugs planted in FastCast."""

from __future__ import annotations

from typing import Any

from multicast.parts.group_log import Entry
from multicast.parts.replicated import Stamp
from multicast.protocol import Outbox
from multicast.protocols.fastcast import FastCast, Soft
from multicast.types import Ballot, ProcessId, Timestamp
from tests.planted import Planted
from tests.planted.ft_skeen import DECIDED_CLOCK


class SoftIsHard(FastCast):
    """Soft stamps count as if they were decided."""

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        super().on_message(sender, message, now, out)
        if type(message) is Soft:
            self._on_stamp(sender, Stamp(message.id, message.ballot, message.local, False), now, out)


class FollowersApply(FastCast):
    """As printed: the stamping clock moves at the decision, and followers deliver by applying the log themselves."""

    def _may_deliver(self) -> bool:
        return True


class ClockUndecided(FastCast):
    """Delivers as soon as all hard stamps are there, whatever the group's clock."""

    def _is_covered(self, final: Timestamp) -> bool:
        return True


class NoSlowPath(FastCast):
    """Nothing is done if the hard stamps do not bear the soft ones out."""

    def _conclude(self, entry: Entry, final: Timestamp) -> None:
        if entry.final is None:
            self._set_final(entry, final)


class OptimismCertain(FastCast):
    """The maximum of the soft stamps is decided as the message's global timestamp."""

    def _propose_advance(self, entry: Entry, final: Timestamp, certain: bool) -> None:
        super()._propose_advance(entry, final, True)


class StaleCommandsCount(FastCast):
    """Commands of deposed leaders count whenever they come."""

    def _is_void(self, ballot: Ballot) -> bool:
        return False


PLANTED = (
    Planted(SoftIsHard),
    Planted(FollowersApply, settings=DECIDED_CLOCK, shows="followers, with the clock of the decision"),
    Planted(ClockUndecided),
    Planted(NoSlowPath),
    Planted(OptimismCertain),
    Planted(StaleCommandsCount),
)
