"""Bugs planted in what is remembered of deliveries, and how long (parts.delivered): a copy, or an election, that comes
just then would do harm."""

from __future__ import annotations

from multicast.parts.delivered import DeliveredLog
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.white_box import WhiteBox
from tests.planted import Planted, small
from tests.planted.rewriting import rewrite

WINDOW = small(clock="hybrid", dedup_window_us="100000")


@rewrite(
    "tick", "self.watermark.time - 2 * self._window_us", "self.watermark.time - self._window_us", part=DeliveredLog
)
class ForgottenAfterOneWindow(WhiteBox):
    """An id is forgotten when copies of it may still be stamped in time."""


@rewrite("_forget_old", "if message_id in self._settled_known:", "if message_id in self._known:", part=DeliveredLog)
class ForgottenUnsettled(WhiteBox):
    """An id is forgotten though the message is not settled."""


@rewrite(
    "tick", "self.watermark.time - 2 * self._window_us", "self.timestamp.time - self._window_us", part=DeliveredLog
)
class ForgottenByTheLastDelivery(PrimCast):
    """What is forgotten goes by deliveries that are not on disk yet, and by one window."""


@rewrite("_bucket", "max(timestamp.time, created_us(message_id))", "timestamp.time", part=DeliveredLog)
class ForgottenByDelivery(FtSkeen):
    """An id that was made by a clock that is ahead is forgotten before its window ends."""


@rewrite(
    "_forget_old",
    "if known is not None and known[1] and self._bucket(message_id, known[0]) > bucket:",
    "if False:",
    part=DeliveredLog,
)
class ForgottenByTheFirstCopy(WhiteBox):
    """An id is forgotten two windows after its first delivery, whenever a late copy was delivered."""


@rewrite(
    "_settle", "reached = min(self._group_watermarks[g] for g in groups)",
    "reached = max(self._group_watermarks[g] for g in groups)",
    part=DeliveredLog,
)  # fmt: skip
class SettledInOneGroup(WhiteBox):
    """A message is dropped once one of its groups has it."""


@rewrite("_settle", "reached = min(", "reached = max(", part=DeliveredLog)
class SettledByOneOfThem(FtSkeen):
    """A message is settled when one of its groups has delivered it."""


@rewrite("_settle", "out.settled(message_id, timestamp, groups)", "out.settled(message_id, timestamp, (group,))",
         part=DeliveredLog)  # fmt: skip
class SettledIsSaidOfOne(FtSkeen):
    """Of a message that is settled it is said in one of its groups only."""


PLANTED = (
    Planted(ForgottenAfterOneWindow, WINDOW),
    Planted(ForgottenUnsettled, WINDOW),
    Planted(ForgottenByTheLastDelivery, WINDOW),
    Planted(ForgottenByDelivery, WINDOW),
    Planted(ForgottenByTheFirstCopy, WINDOW),
    Planted(SettledInOneGroup),
    Planted(SettledByOneOfThem),
    Planted(SettledIsSaidOfOne),
)
