"""The clock that stamps messages: logical (Lamport 1978) or hybrid (Kulkarni et al. 2014; PrimCast, Section 5)."""

from __future__ import annotations


class Clock:
    """Only rises. Logical: counts stamps. Hybrid: `max(clock + 1, real time)`, so it stays near that, in
    microseconds."""

    __slots__ = ("hybrid", "value")

    def __init__(self, kind: str):
        self.hybrid = kind == "hybrid"
        self.value = 0

    def stamp(self, real: int) -> int:
        """A value above every earlier one. real: `MulticastProtocol.real_clock`, 0 where it is not known."""
        value = self.value + 1
        if self.hybrid and real > value:
            value = real
        self.value = value
        return value

    def advance(self, to: int) -> None:
        """Never stamp `to` or anything below it again."""
        if to > self.value:
            self.value = to
