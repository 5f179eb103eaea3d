"""Catching up: which member of the own group is asked for the deliveries that this process misses. Pure.

One is asked at a time, and anew only after `RETRY_US`, or if there is a connection to another one and none to that. If
the connection to it is lost, or it has lost its memory, the next one that is connected is asked at once.
"""

from __future__ import annotations

from collections.abc import Callable

from multicast.types import ProcessId

RETRY_US = 1_000_000


class CatchUp:
    """At process `self_id`. members(): of its group. away: peers to which there is no connection."""

    def __init__(self, self_id: ProcessId, members: Callable[[], tuple[ProcessId, ...]]):
        self._self_id = self_id
        self._members = members
        self._asked: tuple[ProcessId, int] | None = None
        self.away: set[ProcessId] = set()

    def connected(self, peer: ProcessId, up: bool) -> bool:
        """There is a connection to this peer again, or none any more. Returns whether another peer should be asked
        instead."""
        if up:
            self.away.discard(peer)
            return False
        self.away.add(peer)
        return self._asked is not None and self._asked[0] == peer

    def ask(self, peer: ProcessId, now: int) -> ProcessId | None:
        """`peer` has what is missing. Returns whom to ask: this peer, or another one if it is not connected; None: wait
        for the one that was asked."""
        lately = self._asked[0] if self._asked is not None and now - self._asked[1] < RETRY_US else None
        if lately is not None and lately not in self.away:
            return None
        if peer in self.away:
            peer = self._next_after(peer)
        if lately is not None and peer in self.away:
            return None  # nobody is there, as before
        self._asked = (peer, now)
        return peer

    def ask_instead_of(self, peer: ProcessId, now: int) -> ProcessId | None:
        """This peer may not answer what it was asked. Returns whom to ask instead; None if it was not asked."""
        if self._asked is None or self._asked[0] != peer:
            return None
        self._asked = None
        return self.ask(self._next_after(peer), now)

    def answered(self) -> None:
        """The peer that was asked has answered."""
        self._asked = None

    def alone_with(self, peer: ProcessId) -> bool:
        """Whether no other member could be asked instead of this one."""
        return self._next_after(peer) == peer

    def _next_after(self, peer: ProcessId) -> ProcessId:
        """The next other member that is connected; the same one if there is none."""
        members = self._members()
        first = members.index(peer) + 1 if peer in members else 0
        around = (*members[first:], *members[:first])
        return next((p for p in around if p != self._self_id and p not in self.away), peer)
