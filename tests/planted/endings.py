"""Bugs that show only in how a run ends (multicast.simulation.endings)."""

from __future__ import annotations

from typing import Any

from multicast.parts.clock import Clock
from multicast.parts.delivered import DeliveredLog
from multicast.protocol import Outbox, Saved
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.toto import Toto
from multicast.protocols.white_box import WhiteBox
from multicast.simulation.runner import Settings
from tests.planted import Planted
from tests.planted.rewriting import rewrite

SMALL = Settings(profile="faults", size="small", groups=2, replicas=3, messages=40)


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
        self.member.paxos.instances._quorum = len(self.topology.groups[self.group])


@rewrite("_send", "out.send(peers, message)", "pass", part=DeliveredLog)
class NothingSettled(WhiteBox):
    """Nobody tells its watermark: everybody keeps everything for ever."""


@rewrite("_changes_nothing", "return not any(", "return True or not any(")
class AcknowledgementsWait(WhiteBox):
    """The acknowledgement that commits a message waits for company."""


@rewrite("stamp", "if self.hybrid and real > value:", "if False:", part=Clock)
class StampsCount(WhiteBox):
    """A hybrid clock counts stamps and takes no notice of the time: no id ever expires."""


@rewrite("_deliver", "max(self.time + 1, stamp)", "self.time + 1")
class OrdersTimeCounts(Toto):
    """The time of the order takes no notice of the stamps of casts."""


HYBRID = Settings(profile="faults", size="small", groups=2, replicas=3, messages=40, options={"clock": "hybrid"})

PLANTED = (
    Planted(StampsCount, HYBRID),
    Planted(OrdersTimeCounts, HYBRID),
    Planted(NothingSettled, SMALL),
    Planted(AcknowledgementsWait, SMALL),
    Planted(ClocksOfTheFirstEpoch, SMALL),
    Planted(EverybodyAccepts, SMALL),
)
