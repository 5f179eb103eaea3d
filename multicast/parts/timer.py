"""When to stop trusting a leader: a time-out drawn anew each time, so that candidates rarely collide.

An eventually accurate failure detector is all that leader election needs (White-Box, Section IV, leader selection).
"""

from __future__ import annotations

import random

_HAND_OVER = 0.1
"""Patience with a leader that asks to be relieved, as a share of the usual one."""
_RELUCTANCE = 4


class LeaderTimer:
    """timeout_us: silence of `timeout_us` to twice that lets `due` return True. reluctant: this process should not
    lead (`MulticastProtocol.on_clock`), and waits four times as long."""

    __slots__ = ("_last", "_patience", "_relieving", "_rng", "reluctant", "timeout_us")

    def __init__(self, timeout_us: int, rng: random.Random):
        self.timeout_us = timeout_us
        self._rng = rng
        self._last = 0
        self._patience = timeout_us
        self._relieving = False
        self.reluctant = False

    def heard(self, now: int, resigning: bool = False) -> None:
        """The leader lives. resigning: it asks to be relieved; after that nothing that it says prolongs patience."""
        if not resigning or self.reluctant:
            if not self._relieving:
                self._last = now
        elif not self._relieving:
            self.restart(now, _HAND_OVER)
            self._relieving = True

    def restart(self, now: int, share: float = 1.0) -> None:
        """Wait anew, for a patience drawn from `share` times the usual one."""
        self._last = now
        self._relieving = False
        self._patience = int(self.timeout_us * share * (1.0 + self._rng.random()))

    @property
    def deadline(self) -> int:
        """The instant at which patience ends unless the leader is heard before."""
        return self._last + (self._patience * _RELUCTANCE if self.reluctant else self._patience)

    def due(self, now: int) -> bool:
        return now >= self.deadline
