"""Bugs that show only in how a run ends, or in a gap that random faults seldom hit (multicast.simulation.endings, and
`draw_gaps` of multicast.simulation.faults)."""

from __future__ import annotations

from typing import Any

from multicast.protocol import Outbox, Saved
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast, Promise
from multicast.simulation.runner import Settings
from tests.planted import Planted

SMALL = Settings(profile="faults", groups=2, replicas=3, messages=40)


def hurry(out: Outbox, begin: int, kind: type) -> None:
    """What was sent of this type since `begin` does not wait for the disk."""
    out.sends[begin:] = [(to, m, durably and not isinstance(m, kind)) for to, m, durably in out.sends[begin:]]


class ClocksOfTheFirstEpoch(PrimCast):
    """A process that restarts counts clocks as if it were in the first epoch: it delivers what others have delivered,
    but nothing by itself."""

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        first = self.clocks.epoch
        super().on_start(saved, now, out)
        self.clocks.epoch = first


class EverybodyAccepts(FtSkeen):
    """A decision needs every member of the group, not a quorum: all is well once everybody is back."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.paxos.quorum = len(self.topology.groups[self.group])


class PromisedBeforeSync(PrimCast):
    """A promise to an epoch does not wait for the disk."""

    def on_message(self, sender: int, message: Any, now: int, out: Outbox) -> None:
        begin = len(out.sends)
        super().on_message(sender, message, now, out)
        hurry(out, begin, Promise)


PLANTED = (
    Planted(ClocksOfTheFirstEpoch, SMALL),
    Planted(EverybodyAccepts, SMALL),
    Planted(PromisedBeforeSync, SMALL),
)
