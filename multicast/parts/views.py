"""Views: who takes part, and what is agreed when that changes (virtual synchrony, Birman et al. 1991).

Theory of operation. In a view a fixed set of members multicast causally. A view ends with a *flush*: a coordinator asks
its members to stop; each keeps on disk that it has, takes and sends nothing of the old view any more, and tells what it
holds (`Flushed`). Once a quorum of every group has answered, the coordinator knows the *cut*: everything that any of
them holds. It collects what not all of them hold, and has the next view decided by consensus (`NewView`), the cut and
those messages in it. So whoever answered can finish the old view by itself: all finish it with the same messages.

Why nothing is lost. What a majority of all processes held before the flush is in the cut: a quorum of every group is a
majority of all, and two majorities have a member in common. Two coordinators may flush the same view; each may propose
another next one; only the first that is decided counts, and both cuts contain what was held by a majority.

`Gathering` is the coordinator's side, without IO.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from multicast.types import AppMessage, ProcessId, Topology

MISSING_MAX = 2_000
"""Who lacks more messages than this is not waited for, but comes back by other means, if its group can spare it."""


class Cast(msgspec.Struct, array_like=True, tag=1, gc=False):
    """Number `number` of `author`'s in this view. past: how many of each member's precede it. stamp: its author's
    clock. messages: what it multicasts; none: the cast only says what its author holds."""

    view: int
    author: ProcessId
    number: int
    past: list[int]
    stamp: int
    messages: list[AppMessage]


class NewView(msgspec.Struct, array_like=True):
    """The next view, as decided. cut: how many casts of each member of the view before belong to that one. casts: those
    of them that not everybody who answered the flush holds."""

    number: int
    members: list[ProcessId]
    cut: list[int]
    casts: list[Cast]


class Flushed(msgspec.Struct, array_like=True, tag=4, gc=False):
    """I take and send nothing in this view any more, and hold so many casts of each member. complete: I have all
    deliveries from before the view."""

    view: int
    held: list[int]
    complete: bool


Span = tuple[ProcessId, int, int]
"""Casts of an author: from number, to number."""


class Gathering:
    """The flush of one view, at its coordinator."""

    def __init__(self, number: int, members: Sequence[ProcessId], topology: Topology):
        self.number = number
        self.members = tuple(members)
        self.replies: dict[ProcessId, Flushed] = {}
        self._topology = topology
        self._casts: dict[tuple[ProcessId, int], Cast] = {}

    def add(self, sender: ProcessId, reply: Flushed) -> None:
        if sender in self.members and reply.view == self.number and len(reply.held) == len(self.members):
            self.replies[sender] = reply

    def keep(self, casts: Iterable[Cast]) -> None:
        """Copies of casts."""
        for cast in casts:
            if cast.view == self.number:
                self._casts[cast.author, cast.number] = cast

    def is_quorum(self, processes: Iterable[ProcessId]) -> bool:
        """Whether they are a quorum of every group."""
        counts = dict.fromkeys(self._topology.groups, 0)
        for p in processes:
            counts[self._topology.group_of[p]] += 1
        return all(counts[g] >= self._topology.quorum(g) for g in counts)

    @property
    def suffices(self) -> bool:
        """Whether a quorum of every group has answered that has all deliveries from before the view."""
        return self.is_quorum(p for p, r in self.replies.items() if r.complete)

    def cut(self) -> list[int]:
        """Everything that somebody holds."""
        return [max(r.held[k] for r in self.replies.values()) for k in range(len(self.members))]

    def floor(self) -> list[int]:
        """What all hold that are to finish the view by themselves."""
        cut = self.cut()
        staying = dict(self.replies)
        lack = {p: sum(cut) - sum(r.held) for p, r in self.replies.items()}
        for p in sorted(lack, key=lambda p: (-lack[p], p)):
            rest = [q for q in staying if q != p and staying[q].complete]
            if lack[p] > MISSING_MAX and self.is_quorum(rest):
                del staying[p]
        return [min(r.held[k] for r in staying.values()) for k in range(len(self.members))]

    def lacking(self) -> dict[ProcessId, list[Span]]:
        """Whom to ask for which casts, so that `result` can be given."""
        asks: dict[ProcessId, list[Span]] = {}
        for k, (low, high) in enumerate(zip(self.floor(), self.cut(), strict=True)):
            author = self.members[k]
            missing = [number for number in range(low + 1, high + 1) if (author, number) not in self._casts]
            if missing:
                holder = max(self.replies, key=lambda p: self.replies[p].held[k])
                asks.setdefault(holder, []).append((author, missing[0], missing[-1]))
        return asks

    def result(self, members: Iterable[ProcessId]) -> NewView:
        """The next view. Only when `suffices` and nothing is `lacking`."""
        cut = self.cut()
        casts = [
            self._casts[self.members[k], number]
            for k, low in enumerate(self.floor())
            for number in range(low + 1, cut[k] + 1)
        ]
        return NewView(self.number + 1, list(members), cut, casts)
