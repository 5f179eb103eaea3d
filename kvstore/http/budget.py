"""How many bytes of requests may be under way at once: back-pressure before a body is read."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    """`take` waits in line until so many bytes are free; what is larger than the whole budget waits for all of it."""

    def __init__(self, bytes_max: int):
        self.bytes_max = bytes_max
        self.free = bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take_now(self, size: int) -> bool:
        """Take so many bytes if nobody has to wait; whether they were taken."""
        if size > self.free or self._waiting:
            return False
        self.free -= size
        return True

    async def take(self, size: int) -> int:
        """How many bytes to `give` back. Cancellable; then nothing was taken."""
        size = min(size, self.bytes_max)
        if self.take_now(size):
            return size
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(size)
            else:
                self._wake()
            raise
        return size

    def give(self, size: int) -> None:
        """Back what was taken."""
        self.free += size
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if turn.done():  # cancelled
                self._waiting.popleft()
            elif size <= self.free:
                self._waiting.popleft()
                self.free -= size
                turn.set_result(None)
            else:
                return
