"""Bugs that take a shard that is added, or messages that come again when most have forgotten them, under a store."""

from __future__ import annotations

from typing import Any

from kvstore.simulated.settings import Settings
from multicast.parts.delivered import DeliveredLog
from multicast.protocol import Outbox, PeerError
from multicast.protocols.white_box import WhiteBox
from tests.planted.later_copies import LaterStampOfFirst
from tests.planted.rewriting import rewrite
from tests.planted.store import Planted

GROWING = Settings(protocol="white_box", size="small", grows=True)
LATE = Settings(protocol="white_box", size="small", stragglers=True)


class StrangersAreHeard(WhiteBox):
    """What comes from a group of which nobody has told yet is taken as any message."""

    def on_message(self, sender: int, message: Any, now: int, out: Outbox) -> None:
        handler = self.handlers[type(message)]
        if handler.own_group and self.topology.group_of[sender] != self.group:
            raise PeerError("from another group")
        handler.call(sender, message, now, out)


@rewrite("forget_reports", "self._topology.group_of.get(peer)", "self._topology.group_of[peer]")
class StrangersAreReported(DeliveredLog):
    """Whoever greets this process is of a group that it knows."""


PLANTED_IN_STORE = (
    Planted("strangers_are_heard", "exception", settings=GROWING, protocol=StrangersAreHeard),
    Planted("strangers_are_reported", "exception", settings=GROWING, core=StrangersAreReported),
    Planted("later_stamp_of_first", "exception", settings=LATE, protocol=LaterStampOfFirst),
)
