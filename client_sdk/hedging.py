"""Hedging: a second attempt beside the first while that is still unanswered; the same request, under the same id, at
another replica.

A replica that stands still, or cannot reach the others, would cost every request at it a whole `attempt_timeout`. The
first answer decides; a write is applied once, by whichever attempt. So that a cluster that is merely busy does not get
twice as much to do, hedges are a bounded share of all requests (Dean and Barroso, The Tail at Scale, 2013).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from client_sdk.connections import Received

AFTER_SECONDS = 0.3
"""After so long without an answer a request is sent to another replica, too."""
SHARE = 0.1
"""The greatest share of all requests that is hedged."""
SAVED_MAX = 10.0
"""How many may be hedged at once, after a quiet time."""

_LOOKS = 4
"""How often within AFTER_SECONDS the open requests are looked at."""

Again = Callable[[], Awaitable[Received | None]]
"""Asks another replica; None: nothing that decides."""


class Hedges:
    """Of one client, for one event loop. made: how many so far."""

    def __init__(self, after: float = AFTER_SECONDS):
        self.made = 0
        self._after = after
        self._saved = SAVED_MAX
        self._open: dict[asyncio.Future[Received], tuple[float, Callable[[], None], Again]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, answer: asyncio.Future[Received], retire: Callable[[], None], again: Again) -> None:
        """A request was sent. retire(): its connection waits for an answer that may never come."""
        self._saved = min(self._saved + SHARE, SAVED_MAX)
        loop = answer.get_loop()
        self._open[answer] = (loop.time(), retire, again)
        if self._timer is None:
            self._timer = loop.call_later(self._after / _LOOKS, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time() - self._after
        for answer, (began, retire, again) in list(self._open.items()):
            if answer.done():
                del self._open[answer]
            elif began > before:
                break
            else:
                del self._open[answer]
                if self._saved >= 1.0:
                    self._saved -= 1.0
                    self.made += 1
                    task = loop.create_task(self._try(answer, retire, again))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        self._timer = loop.call_later(self._after / _LOOKS, self._look) if self._open else None

    async def _try(self, answer: asyncio.Future[Received], retire: Callable[[], None], again: Again) -> None:
        received = await again()
        if received is not None and not answer.done():
            answer.set_result(received)
            retire()

    async def close(self) -> None:
        """Make no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
