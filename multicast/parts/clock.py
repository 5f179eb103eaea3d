"""The clock that stamps messages: logical (Lamport 1978) or hybrid (Kulkarni et al. 2014; PrimCast, Section 5)."""

from __future__ import annotations

from collections.abc import Mapping

from multicast.protocol import Outbox

_KEY = b"c"


class Clock:
    """Only rises. Logical: counts stamps. Hybrid: `max(clock + 1, real time)`, so it stays near that, in
    microseconds."""

    __slots__ = ("_saved", "hybrid", "value")

    def __init__(self, kind: str):
        self.hybrid = kind == "hybrid"
        self.value = self._saved = 0

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

    def save(self, out: Outbox) -> None:
        """Put its value if it has changed, for protocols that vouch for it."""
        if self.value != self._saved:
            self._saved = self.value
            out.put(_KEY, self._saved.to_bytes(8, "big"))

    def restore(self, values: Mapping[bytes, bytes]) -> None:
        """What was saved: of `Saved.values`."""
        self._saved = int.from_bytes(values.get(_KEY, b""), "big")
        self.advance(self._saved)
