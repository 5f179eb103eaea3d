"""A process that is behind its group: it knows so by the watermarks of the others, and fetches what it misses.

Watermarks arrive all the while, and usually what they speak of is just under way. So only what was told a period ago
and is still not delivered here is asked for: of anyone who has told that he has it, not always of the same, who may be
dead by then.
"""

from __future__ import annotations

import random

from multicast.parts.deadlines import Deadlines
from multicast.parts.delivered import DeliveredLog
from multicast.protocol import Outbox
from multicast.types import ZERO, ProcessId, Timestamp, Topology


class Behind:
    """At one process, which has delivered what is in `log`. deadlines: the user's; this part adds a timer, "behind".
    wake_at: when that acts; 0: not behind."""

    __slots__ = ("_deadlines", "_log", "_period_us", "_rng", "_self_id", "_target", "_told", "_topology", "wake_at")

    def __init__(
        self,
        self_id: ProcessId,
        topology: Topology,
        log: DeliveredLog,
        period_us: int,
        rng: random.Random,
        deadlines: Deadlines,
    ):
        self.wake_at = 0
        self._self_id = self_id
        self._topology = topology
        self._log = log
        self._period_us = period_us
        self._rng = rng
        self._deadlines = deadlines
        self._target = ZERO
        self._told: dict[ProcessId, Timestamp] = {}
        deadlines.add("behind", self._fetch)

    def notice(self, sender: ProcessId, watermark: Timestamp, now: int) -> None:
        """A process has delivered everything up to `watermark`. Only those of the own group count."""
        group_of = self._topology.group_of
        if watermark > self._log.timestamp and group_of.get(sender) == group_of.get(self._self_id):
            self._told[sender] = max(watermark, self._told.get(sender, ZERO))
            if not self.wake_at:
                self._wait(now)
                self._deadlines.by("behind", self.wake_at)

    def _wait(self, now: int) -> None:
        self._target = max(self._told.values())
        self.wake_at = now + self._period_us

    def _fetch(self, now: int, out: Outbox) -> int | None:
        own = self._log.timestamp
        self._told = {member: told for member, told in self._told.items() if told > own}
        if not self._told:
            self.wake_at = 0
            return None
        if own < self._target:
            out.catch_up(self._rng.choice(list(self._told)))
        self._wait(now)
        return self.wake_at
