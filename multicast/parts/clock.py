"""The clock that stamps messages: logical (Lamport 1978) or hybrid (Kulkarni et al. 2014; PrimCast, Section 5)."""

from __future__ import annotations


class Clock:
    """Only rises. Logical: counts stamps. Hybrid: `max(clock + 1, now)`, so it stays near real time in microseconds."""

    __slots__ = ("hybrid", "value")

    def __init__(self, kind: str):
        self.hybrid = kind == "hybrid"
        self.value = 0

    def stamp(self, now: int) -> int:
        """A value above every earlier one."""
        value = self.value + 1
        if self.hybrid and now > value:
            value = now
        self.value = value
        return value

    def advance(self, to: int) -> None:
        """Never stamp `to` or anything below it again."""
        if to > self.value:
            self.value = to
