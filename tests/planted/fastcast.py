"""Bugs planted in FastCast."""

from __future__ import annotations

from multicast.parts.group_log import GroupLog
from multicast.parts.group_member import GroupMember
from multicast.parts.replicated import Stamp
from multicast.protocol import Outbox
from multicast.protocols.fastcast import FastCast, Soft
from multicast.types import ProcessId
from tests.planted import Planted, small
from tests.planted.ft_skeen import DECIDED_CLOCK, stale_commands_count
from tests.planted.rewriting import rewrite


class SoftIsHard(FastCast):
    """Soft stamps count as if they were decided."""

    def _on_soft(self, sender: ProcessId, soft: Soft, now: int, out: Outbox) -> None:
        super()._on_soft(sender, soft, now, out)
        self._on_stamp(sender, Stamp(soft.id, soft.ballot, soft.local), now, out)


@rewrite("_delivers_by_log", "self._options.early_clock or self.reign.acting", "True", part=GroupMember)
class FollowersApply(FastCast):
    """As printed: the stamping clock moves at the decision, and followers deliver by applying the log themselves."""


@rewrite("covers", "final.time <= self.clock", "True", part=GroupLog)
class ClockUndecided(FastCast):
    """Delivers as soon as all hard stamps are there, whatever the group's clock."""


@rewrite("covers", "final.time <= self.clock", "final.time <= self.clock + 1", part=GroupLog)
class ClockAlmostThere(FastCast):
    """Delivers when the group's clock is one below the global timestamp: the next stamp may be lower."""


@rewrite("_conclude", "(late or final.time > moved_to)", "False")
class NoSlowPath(FastCast):
    """Nothing is done if the hard stamps do not bear the soft ones out."""


@rewrite("_on_known", " and self.member.is_decided(entry)", "")
class KnownBeforeDecided(FastCast):
    """What another group says that it has delivered is concluded though its stamp is not decided here."""


@rewrite("_on_soft", "in held.values()), False)", "in held.values()), True)")
class OptimismCertain(FastCast):
    """The maximum of the soft stamps is decided as the message's global timestamp."""


@stale_commands_count
class StaleCommandsCount(FastCast):
    """Commands of deposed leaders count whenever they come."""


PLANTED = (
    Planted(SoftIsHard),
    Planted(FollowersApply, settings=DECIDED_CLOCK, shows="followers, with the clock of the decision"),
    Planted(ClockUndecided),
    Planted(ClockAlmostThere, settings=small(clock="logical")),
    Planted(NoSlowPath),
    Planted(KnownBeforeDecided),
    Planted(OptimismCertain),
    Planted(StaleCommandsCount),
)
