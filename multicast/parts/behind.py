"""A process that is behind its group: it knows so by the watermarks of the others, and fetches what it misses.

Watermarks arrive all the while, and usually what they speak of is just under way. So only what was told a period ago
and is still not delivered here is asked for: of anyone who has told that he has it, not always of the same, who may be
dead by then.
"""

from __future__ import annotations

import random

from multicast.protocol import Outbox
from multicast.types import ZERO, ProcessId, Timestamp


class Behind:
    """At one process. wake_at: when `tick` has something to do; 0: not behind."""

    __slots__ = ("_period_us", "_rng", "_target", "_told", "wake_at")

    def __init__(self, period_us: int, rng: random.Random):
        self.wake_at = 0
        self._period_us = period_us
        self._rng = rng
        self._target = ZERO
        self._told: dict[ProcessId, Timestamp] = {}

    def notice(self, member: ProcessId, watermark: Timestamp, own: Timestamp, now: int) -> None:
        """A member of the own group has delivered everything up to `watermark`, this process up to `own`."""
        if watermark > own:
            self._told[member] = max(watermark, self._told.get(member, ZERO))
            if not self.wake_at:
                self._wait(now)

    def _wait(self, now: int) -> None:
        self._target = max(self._told.values())
        self.wake_at = now + self._period_us

    def tick(self, own: Timestamp, now: int, out: Outbox) -> int | None:
        """Fetch what is due. Returns when there is something to do again."""
        if not self.wake_at:
            return None
        if now >= self.wake_at:
            self._told = {member: told for member, told in self._told.items() if told > own}
            if not self._told:
                self.wake_at = 0
                return None
            if own < self._target:
                out.catch_up(self._rng.choice(list(self._told)))
            self._wait(now)
        return self.wake_at
