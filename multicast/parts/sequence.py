"""The sequence T of a group's proposed messages, as one process has it (PrimCast, Algorithm 1, lines 38 and 43).

T has absolute places, 0, 1, 2, ... A place is empty if what was there is settled and dropped, here or at the member
from whom this process has its T. Who lacks in T what was dropped must not deliver beyond it on its own: up to `reach`,
the highest position of what was dropped, it installs deliveries from its peers' journals.

A primary proposes for the next place. What it proposes for a later one waits: the channel has lost something, or a
payload is missing.
"""

from __future__ import annotations

from multicast.parts.stamps import Entry, Stamp


class Sequence:
    """length: T ends before this place. reach: see the module. early_max: how many proposals wait at most."""

    __slots__ = ("_entries", "_expected", "early_max", "length", "reach")

    def __init__(self, early_max: int):
        self.early_max = early_max
        self.length = 0
        self.reach = 0
        self._entries: dict[int, Entry] = {}
        self._expected: dict[int, Stamp] = {}

    def __len__(self) -> int:
        """How many places hold something."""
        return len(self._entries)

    def put(self, entry: Entry) -> None:
        """At its place, if that is known."""
        if entry.place >= 0:
            self._entries[entry.place] = entry

    def remove(self, entry: Entry) -> None:
        """It is no message of T any more, or at another place."""
        self._entries.pop(entry.place, None)

    def drop(self, entry: Entry) -> None:
        """It was delivered, and is settled."""
        self.remove(entry)
        self.reach = max(self.reach, entry.position)

    def since(self, first: int) -> list[Entry]:
        """From this place on."""
        if self.length - first > len(self._entries):
            return sorted((e for place, e in self._entries.items() if place >= first), key=lambda e: e.place)
        return [self._entries[place] for place in range(first, self.length) if place in self._entries]

    def begin(self, length: int, reach: int) -> None:
        """Another T: so long, and empty so far."""
        self._entries.clear()
        self._expected.clear()
        self.length = length
        self.reach = max(self.reach, reach)

    # -- proposals ----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many proposals wait."""
        return len(self._expected)

    def expect(self, proposal: Stamp) -> None:
        """The primary proposes this."""
        if proposal.place >= self.length and len(self._expected) < self.early_max:
            self._expected[proposal.place] = proposal

    def next(self) -> Stamp | None:
        """What is proposed for the next place."""
        return self._expected.get(self.length)

    def extend(self, length: int) -> None:
        """All places before this one are filled, or empty for good."""
        for place in range(self.length, length):
            self._expected.pop(place, None)
        self.length = max(self.length, length)

    def forget_proposals(self) -> None:
        """Their epoch is over."""
        self._expected.clear()
