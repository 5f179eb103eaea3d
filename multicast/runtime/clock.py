"""The live host's clock."""

from __future__ import annotations

import time


class Clock:
    """Microseconds since 1970 that never go back.

    It follows the wall clock forward at once. When the wall clock is set back, this one runs at half speed until the
    other has caught up: timers go on, and no instant comes twice.
    """

    __slots__ = ("_last", "_steady_last")

    def __init__(self) -> None:
        self._last = time.time_ns() // 1000
        self._steady_last = time.monotonic_ns() // 1000

    def now(self) -> int:
        wall = time.time_ns() // 1000
        steady = time.monotonic_ns() // 1000
        self._last = max(wall, self._last + (steady - self._steady_last) // 2)
        self._steady_last = steady
        return self._last
