"""When to stop trusting a leader: a time-out drawn anew each time, so that candidates rarely collide.

An eventually accurate failure detector is all that leader election needs (White-Box, Section IV, leader selection).
"""

from __future__ import annotations

import random


class LeaderTimer:
    """timeout_us: silence of `timeout_us` to twice that lets `due` return True."""

    __slots__ = ("_last", "_patience", "_rng", "timeout_us")

    def __init__(self, timeout_us: int, rng: random.Random):
        self.timeout_us = timeout_us
        self._rng = rng
        self._last = 0
        self._patience = timeout_us

    def heard(self, now: int) -> None:
        """The leader lives."""
        self._last = now

    def restart(self, now: int, share: float = 1.0) -> None:
        """Wait anew, for a patience drawn from `share` times the usual one."""
        self._last = now
        self._patience = int(self.timeout_us * share * (1.0 + self._rng.random()))

    @property
    def deadline(self) -> int:
        """The instant at which patience ends unless the leader is heard before."""
        return self._last + self._patience

    def due(self, now: int) -> bool:
        return now >= self._last + self._patience
