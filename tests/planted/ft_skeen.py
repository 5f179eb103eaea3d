"""Bugs planted in fault-tolerant Skeen and in what it shares with FastCast (parts.group_log, parts.replicated)."""

from __future__ import annotations

from multicast.parts.group_log import Entry
from multicast.protocol import Outbox, Saved
from multicast.protocols.ft_skeen import FtSkeen
from multicast.simulation.runner import Settings
from multicast.types import Ballot
from tests.planted import Planted

DECIDED_CLOCK = Settings(profile="faults", options={"early_clock": "false"})


class FollowersApply(FtSkeen):
    """As printed: the stamping clock moves at the decision, and followers deliver by applying the log themselves."""

    def _may_deliver(self) -> bool:
        return True


class ClockNotAdvanced(FtSkeen):
    """The leader goes on stamping below the global timestamps that its group has decided."""

    def _advance_stamping(self, to: int) -> None:
        pass


class ToldUndecided(FtSkeen):
    """A stamp is told as soon as it is proposed; a leader change may take it back."""

    def _on_proposed(self, entry: Entry, out: Outbox) -> None:
        self._tell_stamp(entry, out)


class InFlightForgotten(FtSkeen):
    """The leader delivers past what it has stamped, as long as that is not decided."""

    def _block(self, entry: Entry) -> None:
        pass


class StaleCommandsCount(FtSkeen):
    """Commands of deposed leaders count whenever they come."""

    def _is_void(self, ballot: Ballot) -> bool:
        return False


class BeginsAtOnce(FtSkeen):
    """A new leader stamps and delivers before it knows the log."""

    def _is_recovered(self) -> bool:
        return self.paxos.leading


class EntriesNotSaved(FtSkeen):
    """Assigned messages are only in memory, though the log before them may be dropped."""

    def _save_entry(self, entry: Entry, out: Outbox) -> None:
        pass


class ReturnsAtOnce(FtSkeen):
    """A process that has lost its disk begins anew, as if it had never been there."""

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        super().on_start(Saved(saved.values, saved.position, saved.first or saved.lost), now, out)


PLANTED = (
    Planted(FollowersApply, settings=DECIDED_CLOCK, shows="followers, with the clock of the decision"),
    Planted(ClockNotAdvanced, settings=DECIDED_CLOCK, shows="Fig. 1, line 15"),
    Planted(ToldUndecided),
    Planted(InFlightForgotten, settings=DECIDED_CLOCK),
    Planted(StaleCommandsCount),
    Planted(BeginsAtOnce),
    Planted(EntriesNotSaved),
    Planted(ReturnsAtOnce),
)
