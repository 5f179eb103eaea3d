"""Bugs planted in fault-tolerant Skeen and in what it shares with FastCast (parts.group_member and what that owns)."""

from __future__ import annotations

from typing import TypeVar

from multicast.parts.group_log import Entry, GroupLog
from multicast.parts.group_member import GroupMember
from multicast.protocol import Outbox, Saved
from multicast.protocols.ft_skeen import FtSkeen
from multicast.simulation.runner import Settings
from tests.planted import Planted
from tests.planted.rewriting import rewrite

T = TypeVar("T", bound=type)
DECIDED_CLOCK = Settings(profile="faults", options={"early_clock": "false"})


def stale_commands_count(kind: T) -> T:
    """A class decorator."""
    kind = rewrite("read", "= command.ballot", "= max(self.seen, command.ballot)", part=GroupLog)(kind)
    return rewrite("read", "if command.ballot >= self.seen:", "if True:", part=GroupLog)(kind)


@rewrite("_delivers_by_log", "self._options.early_clock or self.reign.acting", "True", part=GroupMember)
class FollowersApply(FtSkeen):
    """As printed: the stamping clock moves at the decision, and followers deliver by applying the log themselves."""


@rewrite("_apply", "if self.reign.acting: self.reign.clock.advance(command.final.time)", "pass", part=GroupMember)
class ClockNotAdvanced(FtSkeen):
    """The leader goes on stamping below the global timestamps that its group has decided."""


class ToldUndecided(FtSkeen):
    """A stamp is told as soon as it is proposed; a leader change may take it back."""

    def _on_proposed(self, entry: Entry, out: Outbox) -> None:
        self._tell_stamp(entry, out)


@rewrite("stamp", "self.log.block(entry)", "pass", part=GroupMember)
class InFlightForgotten(FtSkeen):
    """The leader delivers past what it has stamped, as long as that is not decided."""


@stale_commands_count
class StaleCommandsCount(FtSkeen):
    """Commands of deposed leaders count whenever they come."""


@rewrite("_reign_if_ready", "or self.log.seen != reign.ballot", "", part=GroupMember)
class BeginsAtOnce(FtSkeen):
    """A new leader stamps and delivers before it knows the log."""


@rewrite(
    "_save",
    "out.put(_ENTRY_PREFIX + entry.local.encode(), _encode(entry.saved()), carries=(entry.message,))",
    "pass",
    part=GroupLog,
)
class EntriesNotSaved(FtSkeen):
    """Assigned messages are only in memory, though the log before them may be dropped."""


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
