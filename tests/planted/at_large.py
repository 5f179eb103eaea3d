"""Bugs of who hears of a message: of genuine protocols only its sender and its destinations do, also by what orders
nothing: questions, what was delivered, watermarks."""

from __future__ import annotations

from multicast.parts.delivered import DeliveredLog
from multicast.parts.submissions import Submissions
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.white_box import WhiteBox
from tests.planted import planted_in
from tests.planted.rewriting import rewrite


@rewrite("tick", "self._topology.members(message.destinations)", "self._topology.processes", part=Submissions)
class EverybodyIsAsked(PrimCast):
    """A sender asks all processes about its message."""


@rewrite("_delivered", "out.send((message.origin,), Known(entry.id, final))",
         "out.send(self.leadership.membership.others(self.self_id), Known(entry.id, final))")  # fmt: skip
class EverybodyHearsOfDeliveries(WhiteBox):
    """What was delivered is told to all processes, not to who multicast it."""


@rewrite("_track", "for group in groups:", "for group in self._topology.groups:", part=DeliveredLog)
class EverybodyHearsWatermarks(FtSkeen):
    """All groups hear of a delivery by a watermark, also those that had no part in it."""


PLANTED = planted_in(__name__)
