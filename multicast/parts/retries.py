"""What waits for somebody else's answer, and when to ask for it again: rarely, little at once, the oldest first.

Theory of operation. Whatever is waited for may be lost, or merely late. When all is late, because some process stood
still or has too much to do, repetition is the worst thing to do: it makes everything later, and more is repeated. So

- what is waited for is *asked after*, many of them in one message, and only what the other one lacks is sent again;
- each is asked after one period first, or after twice the time that others took lately, if that is longer; then after
  pauses that double. Nothing waits for more than `_PAUSE_MAX` periods, drawn a little apart;
- no more than a *congestion window* of them is asked about at once. It grows by one with each answer, and is halved
  when some are
  not answered within a period (as TCP's congestion window: Jacobson 1988). So what is really lost comes back at the
  speed of the link, and what only waits costs a few messages per period;
- questions are gathered for a share of a period, so that those that become due one by one leave together.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

import msgspec

from multicast.types import AppMessage

IDS_MAX = 64
"""How many ids are in one question."""
AT_MOST_IDS = msgspec.Meta(max_length=IDS_MAX)
"""Of a list in a message: a longer one is refused before it is decoded."""
RESENT_BYTES = 1024 * 1024
"""How much payload is sent again as the answer to one question."""
WINDOW_MIN = IDS_MAX
WINDOW_MAX = 8 * IDS_MAX

IDLE_PERIODS = 20
_PAUSE_MAX = 4
_SMOOTHED = 8
_GATHERED = 8

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Retries(Generic[K]):
    """What waits for an answer, by keys. period_us: after how long a key is asked about for the first time."""

    __slots__ = ("_asked", "_count", "_expiry", "_heap", "_now", "_rng", "_since", "_times", "_turn_at", "_typical_us",
                 "_waiting", "congestion_window", "period_us")  # fmt: skip

    def __init__(self, period_us: int, rng: random.Random):
        self.period_us = period_us
        self.congestion_window = WINDOW_MIN
        self._rng = rng
        self._count = 0
        self._waiting: dict[K, int] = {}
        self._times: dict[K, int] = {}
        self._since: dict[K, int] = {}  # the oldest first
        self._now = self._typical_us = 0
        self._heap: list[tuple[int, int, K]] = []
        self._asked: dict[K, int] = {}
        self._expiry: deque[tuple[int, K]] = deque()
        self._turn_at = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: K) -> bool:
        return key in self._waiting

    def add(self, key: K, now: int) -> bool:
        """Wait for this key, unless it is waited for already. Returns whether it is new."""
        if key in self._waiting:
            return False
        self._now = now
        self._times[key] = 0
        self._since[key] = now
        self._wait(key, now + self._patience_us)
        return True

    @property
    def _patience_us(self) -> int:
        """How long a key waits before it is asked about for the first time."""
        return max(self.period_us, min(2 * self._typical_us, _PAUSE_MAX * self.period_us))

    def _wait(self, key: K, due: int) -> None:
        self._count += 1
        self._waiting[key] = self._count
        heappush(self._heap, (due, self._count, key))

    def discard(self, key: K) -> None:
        """This key has come, or is not wanted any more."""
        if self._waiting.pop(key, None) is None:
            return
        del self._times[key]
        self._typical_us += (self._now - self._since.pop(key) - self._typical_us) // _SMOOTHED
        if not self._waiting:
            self._typical_us = 0
        self.answered(key)
        if len(self._heap) > 2 * len(self._waiting) + WINDOW_MAX:
            self._heap = [item for item in self._heap if self._waiting.get(item[2]) == item[1]]
            heapify(self._heap)

    def answered(self, key: K) -> None:
        """There was an answer about this key, which may not be all that it waits for: another question may be asked."""
        if self._asked.pop(key, None) is not None:
            self.congestion_window = min(self.congestion_window + 1, WINDOW_MAX)

    def clear(self) -> None:
        """Wait for nothing."""
        self._waiting.clear()
        self._times.clear()
        self._since.clear()
        self._typical_us = 0
        self._heap.clear()
        self._asked.clear()
        self._expiry.clear()

    def hurry(self) -> None:
        """All keys are due, the oldest first, as if none had been asked about: another process is to be asked now."""
        self._times = dict.fromkeys(self._since, 0)
        self._heap = [(0, count, key) for count, key in enumerate(self._since, self._count + 1)]
        self._waiting = {key: count for _, count, key in self._heap}
        self._count += len(self._since)
        self._asked.clear()
        self._expiry.clear()
        self._turn_at = 0

    def times(self, key: K) -> int:
        """How often this key has been due, this time included."""
        return self._times[key]

    def due(self, now: int) -> list[K]:
        """The keys to ask about now; each waits anew."""
        if not self._waiting or now < self._turn_at:
            return []
        self._now = now
        self._expire(now)
        due: list[K] = []
        patient = now - self._patience_us
        heap, waiting, room = self._heap, self._waiting, self.congestion_window - len(self._asked)
        while heap and len(due) < room and heap[0][0] <= now:
            at, count, key = heappop(heap)
            if waiting.get(key) != count:
                continue
            if at and not self._times[key] and self._since[key] > patient:
                heappush(heap, (self._since[key] + self._patience_us, count, key))
            else:
                due.append(key)
        for key in due:
            self._times[key] += 1
            pause = min(2 ** (self._times[key] - 1), _PAUSE_MAX) * self.period_us
            self._wait(key, now + pause + int(pause * self._rng.random() / 4))
            self._asked[key] = expiry = now + self.period_us
            self._expiry.append((expiry, key))
        if due:
            self._turn_at = now + self.period_us // _GATHERED
        return due

    def _expire(self, now: int) -> None:
        """A key that was asked about a period ago and was not answered makes room for others."""
        late = False
        while self._expiry and self._expiry[0][0] <= now:
            expiry, key = self._expiry.popleft()
            if self._asked.get(key) == expiry:
                del self._asked[key]
                late = True
        if late:
            self.congestion_window = max(self.congestion_window // 2, WINDOW_MIN)

    def wake(self, now: int) -> int:
        """The next instant at which something may be due; a distant one if there is nothing."""
        heap, waiting = self._heap, self._waiting
        while heap and waiting.get(heap[0][2]) != heap[0][1]:
            heappop(heap)
        if not heap:
            return now + IDLE_PERIODS * self.period_us
        room_at = 0
        if len(self._asked) >= self.congestion_window and self._expiry:  # or earlier, when something is answered
            room_at = min(self._expiry[0][0], now + self.period_us // _GATHERED)
        return max(heap[0][0], self._turn_at, room_at)


def in_questions(items: Sequence[T]) -> Iterable[list[T]]:
    """The items in lists, each of which fits into one question."""
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
