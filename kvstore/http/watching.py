"""Watches over HTTP: answers that go on as long as anything changes (`kvstore.api.events`).

A watch asks its replica for what follows the last event (`Follow`), writes that, and asks again once its client takes
what was written: so a connection never holds more than one answer. A client that takes nothing for STALLED_SECONDS is
cut off; one that falls behind the replica's buffer is told so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from kvstore.api.events import encode_change, encode_end, encode_progress
from kvstore.core.messages import Answered, Follow, Followed, Refused
from kvstore.core.state import Changed
from kvstore.http import errors, request
from kvstore.http.answers import EVENTS, Response
from kvstore.http.calls import Call, Calls
from kvstore.http.errors import Problem
from kvstore.http.latest import Latest
from kvstore.http.node import Node
from kvstore.limits import Limits
from multicast.types import ZERO, Timestamp

STALLED_SECONDS = 60.0
PIECE_BYTES = 64 * 1024
"""So much is given to a connection at once. What it has not taken hundreds of watches hold together, in one copy."""


class Watching:
    """The watches of one server. check_ready: raises Problem."""

    def __init__(
        self, node: Node, limits: Limits, calls: Calls, check_ready: Callable[[], None], latest: Latest
    ):  # fmt: skip
        self._latest = latest
        self._node = node
        self._limits = limits
        self._calls = calls
        self._check_ready = check_ready
        self._written = _Written()

    def begin(self, call: Call) -> None:
        """`GET /v1/watch`."""
        after, first, end = request.watch_of(call.query, call.head.fields.values)
        if not self._limits.history_ms:
            raise errors.invalid("", "this cluster keeps no history (limits.history_ms is 0): there are no watches")
        self._check_ready()
        if call.head.method == "HEAD":
            call.answer(Response(200, EVENTS))
            return
        if len(self._calls.streams) >= self._limits.watches_max:
            detail = f"more than watches_max = {self._limits.watches_max} watches are open"
            raise errors.unavailable("overloaded", detail)
        self._calls.open(call, self._limits.timeout_default_ms)
        call.stream = _Watch(self._node, self._latest, call, Follow(after, first, end, by=call.by), self._written)
        self._calls.streams[call.stream] = None
        call.stream.ask()


class _Written:
    """What was written in this turn of the loop, in which one batch tells all watches: each of five hundred would take
    as long as the first, with a value of 1 MB 4 ms."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, bytes]] = {}
        """By what it is of, which stays here, so that nothing else gets its place in memory."""

    def events(self, transactions: list[Changed]) -> bytes:
        """Of each of these transactions one."""
        return self._once(transactions, lambda: b"".join([self._event(*changed) for changed in transactions]))

    def _event(self, version: Timestamp, changes: list[tuple[bytes, bytes | None]]) -> bytes:
        return self._once(changes, lambda: encode_change(version, changes))

    def _once(self, of: object, write: Callable[[], bytes]) -> bytes:
        if (known := self._known.get(id(of))) is not None:
            return known[1]
        if not self._known:
            asyncio.get_running_loop().call_soon(self._known.clear)
        written = write()
        self._known[id(of)] = of, written
        return written


class _Watch:
    """One. asked: what it asks for, or has asked for. written: what any of them has written."""

    def __init__(self, node: Node, latest: Latest, call: Call, asked: Follow, written: _Written):
        self._node = node
        self._latest = latest
        self._call = call
        self._asked = asked
        self._written = written
        self._pending: deque[bytes] = deque()
        self._pushed = 0
        """Of the first of them."""
        self._over = False
        self._stalled: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        """What follows the last event."""
        self._call.token = self._node.request(self._asked, self._told)

    def _told(self, answer: Answered | Followed | Refused) -> None:
        call = self._call
        call.token = 0
        if call.response is None:
            call.step(self._begin, answer)
        else:
            self._go_on(answer)
            self.ready()

    def _begin(self, call: Call, answer: Answered | Followed | Refused) -> None:
        if isinstance(answer, Refused):
            if not call.may_be_old(answer):
                raise errors.refused(answer)
            self._latest.wait(partial(call.step, self._ask_again))
            return
        self._go_on(answer)
        call.answer(Response(200, EVENTS, streams=True))

    def _ask_again(self, call: Call, problem: Problem | None) -> None:
        """By the rights that were ordered meanwhile."""
        if problem is not None:
            raise problem
        if not self._over:
            self.ask()

    def _go_on(self, answer: Answered | Followed | Refused) -> None:
        if isinstance(answer, Followed):
            self._pending.append(self._events(answer))
            self._asked = Follow(answer.upto, self._asked.first, self._asked.end, True, self._asked.by)
        elif isinstance(answer, Refused):
            self._end(answer.code, answer.message)

    def _events(self, answer: Followed) -> bytes:
        """A change says how far everything was told, too."""
        return self._written.events(answer.transactions) or encode_progress(answer.upto)

    def _end(self, code: str, detail: str) -> None:
        self._pending.append(encode_end(self._asked.after or ZERO, code, detail))
        self._over = True

    # -- what the connection says -------------------------------------------------------------------------------------

    def ready(self) -> None:
        """See `kvstore.http.calls.Stream`; so the next two."""
        call = self._call
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        if self._over:
            self.gone()
        pending = self._pending
        while pending and not call.caller.clogged:
            piece = pending[0][self._pushed : self._pushed + PIECE_BYTES]
            self._pushed += len(piece)
            if self._pushed == len(pending[0]):
                pending.popleft()
                self._pushed = 0
            call.caller.push(piece, self._over and not pending)
        if not pending and (self._over or call.token):
            return
        if call.caller.clogged:
            self._stalled = asyncio.get_running_loop().call_later(STALLED_SECONDS, call.caller.abort)
        else:
            self.ask()

    def gone(self) -> None:
        self._over = True
        call = self._call
        call.calls.streams.pop(self, None)
        if self._stalled is not None:
            self._stalled.cancel()
        if call.token:
            self._node.forget(call.token)
            call.token = 0

    def stop(self) -> None:
        if self._call.response is not None:
            self._end("stopping", "this replica is stopping")
            self.ready()
