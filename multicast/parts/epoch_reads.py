"""Reads at a primary of PrimCast (multicast.protocols.primcast): `parts.reads`, and why it holds there.

Each process delivers by itself what a quorum of its group has in T with one stamp, so a primary's position says nothing
of the others. Its T does: the lengths of T that a quorum could tell are not above the primary's own, as long as its
epoch stands with them. So in a round a member says that it is in the primary's epoch and has promised none above, and
the primary waits for all that its T held, undelivered, when it was asked: its backlog. Let a process have delivered m
by then, decided in epoch a, and let b be the primary's.
- a = b: only this primary appends to T in b. It had appended m before anybody else could acknowledge it.
- a > b: one of the quorum that acknowledged m in a is asked whether b still stands. It was in a before, and does not
  say so. (Who has lost its disk says nothing until it is in an epoch above all in which it may have been.)
- a < b: whoever was chosen for b's T had m in it, or had it below its `reach`: a quorum had it in T before one of them
  promised b, and places are never given anew. What is below `reach` the primary has delivered before it answers.
What is dropped from T undelivered is delivered nowhere in that place (parts.stamps).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multicast.parts.deadlines import Deadlines
from multicast.parts.delivered import DeliveredLog
from multicast.parts.leadership import Leadership
from multicast.parts.options import GroupOptions
from multicast.parts.pending import PendingQueue
from multicast.parts.reads import LeaderReads
from multicast.parts.sequence import Sequence


class EpochReads(LeaderReads):
    """At one process. queue: the messages that are in its T and not delivered."""

    def __init__(
        self,
        leadership: Leadership[Any, Any],
        t: Sequence,
        delivered: DeliveredLog,
        options: GroupOptions,
        deadlines: Deadlines,
        queue: Callable[[], PendingQueue],
    ):
        self._t = t
        self._delivered = delivered
        super().__init__(leadership, lambda: self._last(), options, deadlines, queue)

    def _last(self) -> int | None:
        """The last delivery; None while some are missing that T lacks, too."""
        return self._delivered.position if self._delivered.position >= self._t.reach else None
