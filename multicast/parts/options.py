"""The options that all protocols of replicated groups have: how often to beat, when to campaign, to ask again, to
tell."""

from __future__ import annotations

import random
from typing import Any

from multicast.protocol import Options
from multicast.types import Topology


class GroupOptions(Options, kw_only=True, forbid_unknown_fields=True):
    """Microseconds. heartbeat_us: between a leader's heartbeats. election_timeout_us: after how long a silence of its
    leader a member campaigns; drawn from this to twice as long. retry_us: after which time what seems lost is asked
    after or repeated. stability_us: how often watermarks (or what everybody holds) are told. ask_first: a member
    campaigns only if a quorum says that it misses the leader, too (parts.detector); without, leaders change more often
    than they must."""

    heartbeat_us: int = 100_000
    election_timeout_us: int = 1_000_000
    retry_us: int = 500_000
    stability_us: int = 100_000
    ask_first: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.heartbeat_us, self.retry_us, self.stability_us) < 1:
            raise ValueError("heartbeat_us, retry_us and stability_us must be at least 1")
        if self.election_timeout_us < 2 * self.heartbeat_us:
            raise ValueError("election_timeout_us must be at least twice heartbeat_us")

    @classmethod
    def draw(cls, rng: random.Random, topology: Topology) -> dict[str, Any]:
        return {**super().draw(rng, topology), "ask_first": rng.random() < 0.5}
