"""How many bytes of requests may be under way at once: back-pressure while bodies are read, and before ordering."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Arrivals:
    """Room for bodies that come piece by piece. Each holds what has come of it, and nothing for what was announced.

    Where no room is left a body waits with its next piece; only the oldest goes on regardless, so that bodies cannot
    wait for one another for ever, and what is held is at most `bytes_max` and one body.
    """

    def __init__(self, bytes_max: int):
        self.bytes_max = bytes_max
        self.free = bytes_max
        self._held: dict[object, int] = {}
        self._waiting: dict[object, tuple[int, Callable[[], None]]] = {}

    def grow(self, body: object, size: int, go_on: Callable[[], None]) -> bool:
        """So much of this body has come. False: it has to wait, and `go_on` is called when it may go on."""
        held = self._held.setdefault(body, 0)
        if size - held > self.free and next(iter(self._held)) is not body:
            self._waiting[body] = size, go_on
            return False
        self._held[body] = size
        self.free -= size - held
        return True

    def leave(self, body: object) -> None:
        """This body is whole, or nobody waits for it any longer. Idempotent."""
        self._waiting.pop(body, None)
        if body in self._held:
            self.free += self._held.pop(body)
            for other, (size, go_on) in list(self._waiting.items()):
                if other in self._waiting and self.grow(other, size, go_on):
                    del self._waiting[other]
                    go_on()


class ByteBudget:
    """`take` waits in line until so many bytes are free; what is larger than the whole budget waits for all of it."""

    def __init__(self, bytes_max: int):
        self.bytes_max = bytes_max
        self.free = bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take_now(self, size: int) -> bool:
        """Take so many bytes if nobody waits for any. Returns whether they were taken."""
        if size > self.free or self._waiting:
            return False
        self.free -= size
        return True

    async def take(self, size: int) -> int:
        """Wait in line; returns how many bytes to `give` back. Cancellable; then nothing was taken."""
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
        """Give back what was taken."""
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
