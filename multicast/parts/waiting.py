"""Who waits for an answer, and since when: repetition with a period, at constant cost per repetition."""

from __future__ import annotations

from collections import OrderedDict

from multicast.types import MessageId

IDLE_PERIODS = 20


class Waiting:
    """Ids in the order in which they are due. period_us: how long each waits."""

    __slots__ = ("_since", "period_us")

    def __init__(self, period_us: int):
        self.period_us = period_us
        self._since: OrderedDict[MessageId, int] = OrderedDict()

    def add(self, message_id: MessageId, now: int) -> bool:
        """Wait for it, unless it is waited for already. Whether it is new here."""
        if message_id in self._since:
            return False
        self._since[message_id] = now
        return True

    def due(self, now: int) -> list[MessageId]:
        """Take out all that have waited for a period."""
        due, since = [], self._since
        while since and next(iter(since.values())) + self.period_us <= now:
            due.append(since.popitem(last=False)[0])
        return due

    def hurry(self) -> None:
        """All of them are due."""
        self._since = OrderedDict.fromkeys(self._since, 0)

    def wake(self, now: int) -> int:
        """The next instant at which something is due; a distant one if there is nothing."""
        return next(iter(self._since.values()), now + IDLE_PERIODS * self.period_us) + self.period_us
