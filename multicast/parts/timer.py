"""When to stop trusting a leader: a time-out drawn anew each time, so that candidates rarely collide.

An eventually accurate failure detector is all that leader election needs (White-Box, Section IV, leader selection).
"""

from __future__ import annotations

import random

_HAND_OVER = 0.1
"""Patience with a leader that asks to be relieved, as a share of the usual one: so long, and `_BEATS_AFTER` heartbeats,
in which it may take it back. It may not have heard yet of the leader of another group whom it reaches (parts.reach)."""
_BEATS_AFTER = 1.5
_CUT_OFF = 0.25
"""With one that was heard, and to which there is no connection any more: so long a silence it still takes, and
`_BEATS_MISSED` heartbeats, so that a connection that comes back costs nothing."""
_BEATS_MISSED = 2
_ASKED_AGAIN = 0.1
"""Between two questions whether others miss the leader, too."""
_RELUCTANCE = 4


class LeaderTimer:
    """timeout_us: `due` is True after a silence that is drawn from this to twice as long. heartbeat_us: how often a
    leader is heard at least. reluctant: this process should not lead (`MulticastProtocol.on_clock`), and waits four
    times as long. cut_off: there is no connection to the leader: a hint that it is dead."""

    __slots__ = ("_cut_off_share", "_hand_over_share", "_heard", "_last", "_not_before", "_patience", "_relieving",
                 "_rng", "_share", "cut_off", "reluctant", "timeout_us")  # fmt: skip

    def __init__(self, timeout_us: int, rng: random.Random, heartbeat_us: int = 0):
        self.timeout_us = timeout_us
        self._cut_off_share = min(1.0, max(_CUT_OFF, _BEATS_MISSED * heartbeat_us / timeout_us))
        self._hand_over_share = min(1.0, max(_HAND_OVER, _BEATS_AFTER * heartbeat_us / timeout_us))
        self._rng = rng
        self._last = self._not_before = 0
        self._share = 1.0
        self._patience = timeout_us
        self._heard = self._relieving = False
        self.reluctant = self.cut_off = False

    def heard(self, now: int, resigning: bool | None = None) -> None:
        """The leader lives. resigning: whether it asks to be relieved, if it has said so or the contrary: after the
        one, nothing else that it says prolongs patience before the other."""
        if resigning and not self.reluctant:
            if not self._relieving:
                self.restart(now, self._hand_over_share)
                self._relieving = True
            return
        if self._relieving and resigning is False:
            self.restart(now)
        if not self._relieving:
            self._last = now
            self._heard = True
            self._not_before = 0

    def restart(self, now: int, share: float = 1.0) -> None:
        """Wait anew, for a patience drawn from `share` times the usual one."""
        self._last = now
        self._not_before = 0
        self._heard = self._relieving = False
        self._share = share
        self._patience = int(self.timeout_us * share * (1.0 + self._rng.random()))

    def settle(self) -> None:
        """Go on with no more than the usual patience."""
        if self._share > 1.0:
            self._patience, self._share = int(self._patience / self._share), 1.0

    def asked(self, now: int) -> None:
        """The others were asked whether they miss the leader, too; not to be asked again before a while."""
        self._not_before = now + int(self.timeout_us * _ASKED_AGAIN * (1.0 + self._rng.random()))

    @property
    def _hurry(self) -> float:
        """The share of its patience that this process has with a leader to which there is no connection. It must have
        been heard before; one that was not may be about to start."""
        return self._cut_off_share if self.cut_off and self._heard else 1.0

    @property
    def deadline(self) -> int:
        """The instant at which patience ends unless the leader is heard before."""
        patience = int(self._patience * self._hurry)
        return max(self._not_before, self._last + (patience * _RELUCTANCE if self.reluctant else patience))

    def due(self, now: int) -> bool:
        return now >= self.deadline

    def misses(self, now: int) -> bool:
        """Whether the leader has been silent for so long that a member with the least patience would be due."""
        return now >= self._last + int(self.timeout_us * self._share * self._hurry)
