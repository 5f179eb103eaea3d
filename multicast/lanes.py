"""One FIFO per link: what waits for the disk, and what waits behind that. Pure.

A durable message may not leave before a batch is on disk, and no later one to the same peer overtakes it.
"""

from __future__ import annotations

from collections import deque

from multicast.types import ProcessId


class Lanes:
    """Encoded messages that wait, by peer."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[ProcessId, deque[tuple[int, bytes]]] = {}

    def enter(self, to: tuple[ProcessId, ...], data: bytes, batch: int) -> tuple[ProcessId, ...]:
        """A message that waits for this batch, 0 for none. Returns to whom it may leave now; for the others it is
        kept."""
        held = self._held
        if not (batch or held):
            return to
        free = []
        for peer in to:
            queue = held.get(peer)
            if batch or queue:
                if queue is None:
                    queue = held[peer] = deque()
                queue.append((batch or queue[-1][0], data))
            else:
                free.append(peer)
        return tuple(free)

    def release(self, number: int) -> list[tuple[tuple[ProcessId, ...], bytes]]:
        """Batch `number` and all before it are on disk: what may leave now."""
        released: list[tuple[tuple[ProcessId, ...], bytes]] = []
        for peer in list(self._held):
            queue = self._held[peer]
            while queue and queue[0][0] <= number:
                released.append(((peer,), queue.popleft()[1]))
            if not queue:
                del self._held[peer]
        return released
