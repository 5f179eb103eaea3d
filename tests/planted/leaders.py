"""Bugs by which leaders change without need (parts.detector): they cost time and nothing else. See
`multicast.simulation.endings`, "Leaders stay"."""

from __future__ import annotations

from multicast.engine import Engine
from multicast.parts.detector import FailureDetector
from multicast.parts.election import Election
from multicast.parts.timer import LeaderTimer
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.white_box import WhiteBox
from multicast.simulation.runner import Settings
from tests.planted import Planted
from tests.planted.rewriting import rewrite

TWO_GROUPS = Settings(profile="faults", size="small", groups=2, replicas=3, options={"ask_first": "true"})


@rewrite("_campaign_if_due", "self._ask(now, out)", "election.campaign(now, out)", part="election.detector")
class StandsUnasked(WhiteBox):
    """A member whose patience ends campaigns at once: a leader that it alone cannot hear is deposed."""


@rewrite("_on_doubt", "sender == election.promised.leader or self._timer.misses(now)", "True", part="election.detector")
class AgreesWithEverybody(PrimCast):
    """Whoever is asked agrees, though it hears its leader."""


@rewrite("restore", "_RESTARTED if led else 1.0", "0.001", part=Election)
@rewrite("_campaign_if_due", "self._ask(now, out)", "election.campaign(now, out)", part=FailureDetector)
class RestartDeposes(FtSkeen):
    """A restarted process campaigns before it has heard anybody."""


@rewrite("misses", "now >= self._last", "self.cut_off or now >= self._last", part=LeaderTimer)
@rewrite(
    "deadline",
    "patience = int(self._patience * self._hurry)",
    "patience = 0 if self.cut_off else self._patience",
    part=LeaderTimer,
)
class HintIsEvidence(WhiteBox):
    """A connection that breaks is as good as a leader's death."""


@rewrite("on_peer_reset", "max(now, self._beaten_at + self._heartbeat_us // _BEATS_MAX)", "now", part=Election)
class BeatPerReset(FtSkeen):
    """A leader beats to everybody for each link that has lost something."""


@rewrite("_send", 'if not getattr(message, "overtakes", False):', "if True:")
class PulseBehindTheDisk(Engine):
    """A leader's signs of life wait for its disk."""


PLANTED = (
    Planted(StandsUnasked, TWO_GROUPS),
    Planted(AgreesWithEverybody, TWO_GROUPS),
    Planted(RestartDeposes, TWO_GROUPS),
    Planted(HintIsEvidence, TWO_GROUPS),
    Planted(BeatPerReset, TWO_GROUPS),
    Planted(PrimCast, TWO_GROUPS, host=(PulseBehindTheDisk,)),
)
