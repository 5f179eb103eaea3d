"""What a process multicasts until its group has decided it: in its order, once, whatever is lost.

A cast carries the number of its sender's *life*, which is on disk before the first cast of that life leaves, and its
own number among the casts of that life; the group's log takes them without gaps (parts.stream). So casts go to the
leader in order, and all that are not decided go again to a new leader, or to one that seems to have lost them: few at
first, so that no link's queue overflows with them; for each that is decided two more.

    message    from -> to                  durable before it leaves
    Cast       sender -> leader            the number of the sender's life
    Ready      process -> itself           the same

Durable: `e` -> the number of the present life.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

import msgspec

from multicast.parts.deadlines import Deadlines
from multicast.parts.stream import Cast
from multicast.protocol import Handler, Outbox, PeerError
from multicast.types import AppMessage, MessageId, ProcessId

_KEY = b"e"
_WINDOW_MIN, _WINDOW_MAX = 4, 32
"""How many casts are sent again at once. Both sides of a link tell that it was reset."""


class Ready(msgspec.Struct, array_like=True, tag=11, gc=False):
    """To oneself: the number of this life is on disk, casts may leave."""


def saved_life(values: Mapping[bytes, bytes]) -> int:
    """The number of the life before; 0 if there was none."""
    return int.from_bytes(values.get(_KEY, b""), "big")


class Casts:
    """The casts of one sender, this process. deadlines: the user's; this part has a timer there, "casts". leader(): to
    whom they go. on_leaving(cast, out): called when a cast leaves for the first time in this life."""

    def __init__(
        self,
        self_id: ProcessId,
        period_us: int,
        deadlines: Deadlines,
        leader: Callable[[], ProcessId],
        on_leaving: Callable[[Cast, Outbox], None],
    ):
        self._self_id = self_id
        self._period_us = period_us
        self._deadlines = deadlines
        self._leader, self._on_leaving = leader, on_leaving
        self._queue: deque[Cast] = deque()
        self._ids: set[MessageId] = set()
        self._life = self._number = self._rtc = 0
        self._ready = False
        self._sent, self._window = 0, _WINDOW_MIN
        self._sent_at = 0
        deadlines.add("casts", self._repeat)
        self.handlers: dict[type, Handler] = {Ready: Handler(self._on_ready)}

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Cast]:
        return iter(self._queue)

    def __contains__(self, message_id: MessageId) -> bool:
        return message_id in self._ids

    def begin(self, life: int, out: Outbox) -> None:
        """A life begins. What was given to this part before belongs to it."""
        self._life = life
        for cast in self._queue:
            cast.life = life
        out.put(_KEY, life.to_bytes(8, "big"))
        out.send_durable((self._self_id,), Ready())

    def add(self, message: AppMessage, real_clock: int, now: int, out: Outbox) -> None:
        """Lines 5-7: stamped with the clock, above all earlier ones."""
        self._rtc = max(real_clock, self._rtc + 1)
        self._number += 1
        cast = Cast(self._self_id, self._life, self._number, self._rtc, message)
        if not self._queue:
            self._sent_at = now
            self._deadlines.by("casts", now + self._period_us)
        self._queue.append(cast)
        self._ids.add(message.id)
        if self._ready:
            if self._sent == len(self._queue) - 1:
                self._sent += 1
                out.send((self._leader(),), cast)
            self._on_leaving(cast, out)

    def _on_ready(self, sender: ProcessId, ready: Ready, now: int, out: Outbox) -> None:
        if sender != self._self_id:
            raise PeerError("another process's life")
        self._ready = True
        self.send_again(now, out)
        for cast in self._queue:
            self._on_leaving(cast, out)

    def send_again(self, now: int, out: Outbox) -> None:
        """To a new leader, which may lack them all."""
        self._sent_at = now
        self._sent, self._window = 0, _WINDOW_MIN
        self.send_more(out)

    def send_more(self, out: Outbox) -> None:
        """Those that the window allows, after a decision."""
        if self._ready and self._sent < self._window:
            more = list(islice(self._queue, self._sent, self._window))
            self._sent += len(more)
            for cast in more:
                out.send((self._leader(),), cast)

    def forget(self, decided: tuple[int, int], now: int) -> None:
        """The group's log has come to this (life, number) of the sender: casts up to there need not be repeated."""
        life, number = decided
        queue = self._queue
        while queue and life == self._life and queue[0].number <= number:
            self._ids.discard(queue.popleft().message.id)
            self._sent_at = now
            self._sent = max(self._sent - 1, 0)
            self._window = min(self._window + 1, _WINDOW_MAX)

    def _repeat(self, now: int, out: Outbox) -> int | None:
        if not self._queue:
            return None
        if now - self._sent_at >= self._period_us:
            self.send_again(now, out)
        return self._sent_at + self._period_us
