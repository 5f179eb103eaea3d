"""The live host's two clocks: a steady one for timers, and the wall clock, which may be wrong and may be set."""

from __future__ import annotations

import time
from collections.abc import Callable

# On Linux one that goes on while the machine sleeps: what peers were heard to show then stays comparable.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_us() -> int:
    """What the machine's clock shows: microseconds since 1970."""
    return time.time_ns() // 1000


class Clock:
    """wall: the wall clock. now(): begins at what it shows, then runs at real rate and never goes back."""

    __slots__ = ("_begun", "_last", "wall")

    def __init__(self, wall: Callable[[], int] = wall_us) -> None:
        self.wall = wall
        self._begun = wall() - time.clock_gettime_ns(_STEADY) // 1000
        self._last = 0

    def now(self) -> int:
        self._last = max(self._last, self._begun + time.clock_gettime_ns(_STEADY) // 1000)
        return self._last
