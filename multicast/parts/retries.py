"""What waits for somebody else's answer, and when to ask for it again: rarely, little at once, the oldest first.

Theory of operation. Whatever is waited for may be lost, or merely late. When all is late, because some process stood
still or has too much to do, repetition is the worst thing to do: it makes everything later, and more is repeated. So

- what is waited for is *asked after*, many of them in one message, and only what the other one lacks is sent again;
- each is asked after one period first, then after pauses that double, up to `_PAUSE_MAX` periods, drawn a little apart;
- no more than a *window* of them is asked about at once. When all of the window have come, it doubles and the next
  are asked at once; if not within a period, it is small again (as TCP's congestion window: Jacobson 1988). So what is
  really lost comes back at the speed of the link, and what only waits costs a few messages per period;
- questions are gathered for a share of a period, so that those that become due one by one leave together.

So repetition costs, of a message to one process, at most `_GATHERED` questions per period, whatever is outstanding.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from multicast.types import AppMessage

WINDOW_MIN = 16
WINDOW_MAX = 256
IDS_MAX = 64
"""In one question."""
RESENT_BYTES = 1024 * 1024
"""Of payload, as the answer to one question."""

IDLE_PERIODS = 20
_PAUSE_MAX = 8
_GATHERED = 8

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Retries(Generic[K]):
    """Keys that wait. period_us: after which one is asked for the first time, if it still waits then."""

    __slots__ = ("_asked", "_count", "_heap", "_left", "_period_end", "_rng", "_times", "_turn_at", "_waiting",
                 "period_us", "window")  # fmt: skip

    def __init__(self, period_us: int, rng: random.Random):
        self.period_us = period_us
        self.window = WINDOW_MIN
        self._rng = rng
        self._count = 0
        self._waiting: dict[K, int] = {}
        self._times: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._asked: set[K] = set()
        self._left = WINDOW_MIN
        self._period_end = self._turn_at = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: K) -> bool:
        return key in self._waiting

    def add(self, key: K, now: int) -> bool:
        """Wait for it, unless it is waited for already. Whether it is new here."""
        if key in self._waiting:
            return False
        self._times[key] = 0
        self._wait(key, now + self.period_us)
        return True

    def _wait(self, key: K, due: int) -> None:
        self._count += 1
        self._waiting[key] = self._count
        heappush(self._heap, (due, self._count, key))

    def discard(self, key: K) -> None:
        """It has come, or is not wanted any more."""
        if self._waiting.pop(key, None) is None:
            return
        del self._times[key]
        if key in self._asked:
            self._asked.remove(key)
            if not self._asked and not self._left:
                self.window = min(2 * self.window, WINDOW_MAX)
                self._left = self.window
                self._turn_at = 0
        if len(self._heap) > 2 * len(self._waiting) + WINDOW_MAX:
            self._heap = [item for item in self._heap if self._waiting.get(item[2]) == item[1]]
            heapify(self._heap)

    def clear(self) -> None:
        """Wait for nothing."""
        self._waiting.clear()
        self._times.clear()
        self._heap.clear()
        self._asked.clear()

    def hurry(self) -> None:
        """All are due, the oldest first, as if never asked: whom to ask has changed."""
        self._times = dict.fromkeys(self._times, 0)
        self._heap = sorted((0, count, key) for key, count in self._waiting.items())
        self._asked.clear()
        self._period_end = self._turn_at = 0

    def times(self, key: K) -> int:
        """How often it has been due, this time included."""
        return self._times[key]

    def due(self, now: int) -> list[K]:
        """Those to ask about now; each waits anew."""
        if not self._waiting or now < self._turn_at:
            return []
        if now >= self._period_end:
            if self._asked and not self._left:
                self.window = WINDOW_MIN
            self._asked.clear()
            self._left = self.window
            self._period_end = now + self.period_us
        due: list[K] = []
        heap, waiting = self._heap, self._waiting
        while heap and self._left and heap[0][0] <= now:
            _, count, key = heappop(heap)
            if waiting.get(key) == count:
                self._left -= 1
                due.append(key)
        for key in due:
            self._times[key] += 1
            pause = min(2 ** (self._times[key] - 1), _PAUSE_MAX) * self.period_us
            self._wait(key, now + pause + int(pause * self._rng.random() / 4))
        if due:
            self._asked.update(due)
            self._turn_at = now + self.period_us // _GATHERED
        return due

    def wake(self, now: int) -> int:
        """The next instant at which something may be due; a distant one if there is nothing."""
        heap, waiting = self._heap, self._waiting
        while heap and waiting.get(heap[0][2]) != heap[0][1]:
            heappop(heap)
        if not heap:
            return now + IDLE_PERIODS * self.period_us
        return max(heap[0][0], self._turn_at, 0 if self._left else self._period_end)


def chunks(items: Sequence[T]) -> Iterable[list[T]]:
    """In lists that fit into one question each."""
    return (list(items[first : first + IDS_MAX]) for first in range(0, len(items), IDS_MAX))


def resendable(messages: Iterable[AppMessage]) -> list[AppMessage]:
    """The first of these messages, so many as may be sent again at once; at least one. The rest will be asked for."""
    chosen: list[AppMessage] = []
    size = 0
    for message in messages:
        size += len(message.payload)
        if chosen and (size > RESENT_BYTES or len(chosen) == IDS_MAX):
            break
        chosen.append(message)
    return chosen
