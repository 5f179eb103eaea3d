"""The delivery queue of Skeen's protocol and its descendants (White-Box, Fig. 1 line 17, Fig. 4 line 21).

A message is *proposed* with a local timestamp, later *committed* with its global one. It may be delivered when it has
the lowest global timestamp of the committed ones and no message is still proposed with a lower local timestamp.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Any

from multicast.types import MessageId, Timestamp

BLOCKERS_MAX = 16
"""How many messages that block another one are named, the lowest ones."""


class PendingQueue:
    """The messages that are not delivered. Two heaps with lazy deletion: every operation costs O(log n) amortised,
    `pop` O(1) when nothing is due."""

    __slots__ = ("_committed", "_global", "_local", "_proposed")

    def __init__(self) -> None:
        self._proposed: dict[MessageId, Timestamp] = {}
        self._committed: dict[MessageId, Timestamp] = {}
        self._local: list[tuple[Timestamp, MessageId]] = []
        self._global: list[tuple[Timestamp, MessageId]] = []

    def __len__(self) -> int:
        return len(self._proposed) + len(self._committed)

    def __contains__(self, message_id: MessageId) -> bool:
        return message_id in self._proposed or message_id in self._committed

    def ids(self) -> list[MessageId]:
        """The ids of all messages that are not delivered."""
        return [*self._proposed, *self._committed]

    def propose(self, message_id: MessageId, local: Timestamp) -> None:
        """Nothing above `local` is delivered before this message is committed or removed."""
        if self._proposed.get(message_id) != local:
            self._proposed[message_id] = local
            heappush(self._local, (local, message_id))

    def commit(self, message_id: MessageId, final: Timestamp) -> None:
        """The message's place in the order is known."""
        self._proposed.pop(message_id, None)
        self._committed[message_id] = final
        heappush(self._global, (final, message_id))

    def remove(self, message_id: MessageId) -> None:
        """Forget the message, whether proposed or committed."""
        self._proposed.pop(message_id, None)
        self._committed.pop(message_id, None)

    def lowest_proposed(self) -> tuple[Timestamp, MessageId] | None:
        """What blocks delivery: the lowest local timestamp of a message that is not committed."""
        local, proposed = self._local, self._proposed
        while local and proposed.get(local[0][1]) != local[0][0]:
            heappop(local)
        return local[0] if local else None

    def pop(self) -> tuple[Timestamp, MessageId] | None:
        """Take the next message that may be delivered; None if there is none now."""
        final, committed = self._global, self._committed
        while final and committed.get(final[0][1]) != final[0][0]:
            heappop(final)
        if not final:
            return None
        lowest = self.lowest_proposed()
        if lowest is not None and lowest[0] < final[0][0]:
            return None
        entry = heappop(final)
        del committed[entry[1]]
        return entry

    def pop_up_to(self, time: int) -> tuple[Timestamp, MessageId] | None:
        """The same, unless its timestamp is above `time`."""
        final, committed = self._global, self._committed
        while final and committed.get(final[0][1]) != final[0][0]:
            heappop(final)
        return self.pop() if final and final[0][0].time <= time else None

    def blockers(self, clocks: Mapping[str, int] | None = None) -> dict[MessageId, list[dict[str, Any]]]:
        """For each committed message what keeps it from being delivered (`parts.inspection`): messages that come before
        it, or may, lowest first, and those of these clocks that have not reached it. Changes nothing."""
        rising = sorted((t, i) for known in (self._proposed, self._committed) for i, t in known.items())
        lowest = [(t, {"message": i.hex(), "at": list(t)}) for t, i in rising[:BLOCKERS_MAX]]
        found: dict[MessageId, list[dict[str, Any]]] = {}
        for message_id, final in self._committed.items():
            found[message_id] = [blocker for t, blocker in lowest if t < final]
            found[message_id] += [{"clock": name, "at": at} for name, at in (clocks or {}).items() if at < final.time]
        return found
