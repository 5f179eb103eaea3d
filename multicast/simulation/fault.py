"""One fault, as it was drawn."""

from __future__ import annotations

import msgspec

from multicast.types import ProcessId


class Fault(msgspec.Struct, frozen=True):
    """One fault. at, lasts_us: microseconds after the start. processes: whom it hits. peers: the far ends of links.
    amount_us: a jump, or how much slower (a swizzle's own seed). aimed: it hits the one whom its victim then takes
    for its group's leader.

    Of a gap: tag, message: of the type of message, and its name; sends: at its sender, not at its receiver. then: what
    happens to the victim ("power", "pause", "lost_disk") after amount_us; "": nothing. reaches: of the victim's own
    group it reaches "all", "one" or "none". cut_us: how long somebody who has it is cut off. again: how many more
    follow on a second loss."""

    kind: str
    at_us: int
    lasts_us: int
    processes: tuple[ProcessId, ...]
    peers: tuple[ProcessId, ...] = ()
    amount_us: int = 0
    aimed: bool = False
    tag: int = 0
    message: str = ""
    sends: bool = False
    then: str = "power"
    reaches: str = "all"
    cut_us: int = 0
    again: int = 0

    def pairs(self) -> list[tuple[ProcessId, ProcessId]]:
        """(from, to) of the links that it hits."""
        pairs = [(a, b) for a in self.processes for b in self.peers]
        if self.kind == "partition":
            pairs += [(b, a) for a, b in pairs]
        return pairs
