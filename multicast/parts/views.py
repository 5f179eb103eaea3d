"""Views: who takes part, and what is agreed when that changes (virtual synchrony, Birman et al. 1991).

Theory of operation. In a view a fixed set of members multicast causally. A view ends with a *flush*: a coordinator asks
its members to stop; each keeps on disk that it has, takes and sends nothing of the old view any more, and tells what it
holds (`Flushed`). Once a quorum of every group has answered and lives, the coordinator knows the *cut*: everything that
any of these holds. It collects what not all of them hold, and has the next view decided by consensus (`NewView`), the
cut and those messages in it. So whoever's answer counted can finish the old view by itself: all finish it with the same
messages.

What not all hold may be more than one message can carry, and would be for every coordinator after this one. So it is
*handed out* before, in portions, each decided by the same consensus; the view comes last, with the rest. What is handed
out counts whoever goes on with the flush, since everybody takes the same decisions in the same order; but nobody says
that he holds it: an earlier answer to another coordinator would not be what it says any more.

Who is suspected before the cut is collected does not count any more, as if it had never answered (`among`): what it
alone holds, nobody could give. It counts again when it is heard again. Who is outside the view holds nothing of it, and
never will; its answer counts, too, if it has all deliveries of its group that the casts which are dropped have led to,
so that it can finish the view with the others.

Why nothing is lost that anybody may have ordered. Only what a majority of all processes hold on their disks is ordered.
Those whose answers count are a majority, too, as a quorum of every group; both have one in common, which is a member.
This one held the message when it answered, or never will, since it takes nothing any more in this view: not after a
restart either, both being on its disk before it answers. So whatever anybody has ordered, or ever orders, in this view
is in the cut, whoever else has died. What only the dead held, nobody has ordered, they neither; its author multicasts
it in the next view, if it lives.

Two coordinators may flush the same view; each may propose another next one; only the first that is decided counts, and
both cuts contain what a majority holds.

`Gathering` is the coordinator's side, without IO.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence

import msgspec

from multicast.parts.portions import portions
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
    of them that not everybody who answered the flush holds, but for what was handed out. No members: these casts are
    handed out, and the view before goes on."""

    number: int
    members: list[ProcessId]
    cut: list[int]
    casts: list[Cast]


class Flushed(msgspec.Struct, array_like=True, tag=4, gc=False):
    """I take and send nothing in this view any more, and hold so many casts of each member, less the first `base` ones,
    which I have dropped. complete: I have all deliveries from before the view; or, outside the view, all that the casts
    which I hold have led to."""

    view: int
    held: list[int]
    base: list[int]
    complete: bool


ACTIVE, RECOVERING = "active", "recovering"
STOPPED, STOPPED_RECOVERING = "stopped", "stopped while recovering"

TRANSITIONS: dict[str, dict[str, str]] = {
    "stop": {ACTIVE: STOPPED, RECOVERING: STOPPED_RECOVERING},
    "catch up": {RECOVERING: ACTIVE, STOPPED_RECOVERING: STOPPED, STOPPED: STOPPED},
}
"""What happens to a process in a view -> state before -> state after; nothing else may happen. It enters a view ACTIVE
if it could finish the one before, else RECOVERING: it lacks deliveries from before, and only votes. Who has stopped
takes and sends nothing; if it is outside the view, it may still learn how far the order has come."""


class ViewRecord(msgspec.Struct, array_like=True):
    """The present view, as saved: the consensus instance that decided it, and the order's time when it began. stopped:
    flushed. complete: all deliveries from before it are here."""

    number: int
    members: list[ProcessId]
    instance: int
    stopped: bool
    complete: bool
    time: int

    @property
    def state(self) -> str:
        """See `TRANSITIONS`."""
        if self.stopped:
            return STOPPED if self.complete else STOPPED_RECOVERING
        return ACTIVE if self.complete else RECOVERING

    def move(self, what: str) -> None:
        after = TRANSITIONS[what].get(self.state)
        if after is None:
            raise AssertionError(f"a process that is {self.state} in view {self.number} does not {what}")
        self.stopped, self.complete = after in (STOPPED, STOPPED_RECOVERING), after in (ACTIVE, STOPPED)


Span = tuple[ProcessId, int, int]
"""Casts of an author: from number, to number."""


def bytes_of(cast: Cast) -> int:
    """About its size, without what every cast has."""
    return 5 * len(cast.past) + sum(100 + len(message.payload) for message in cast.messages)


class Gathering:
    """The flush of one view, as its coordinator has it."""

    def __init__(self, number: int, members: Sequence[ProcessId], topology: Topology):
        self.number = number
        self.members = tuple(members)
        self.replies: dict[ProcessId, Flushed] = {}
        self._topology = topology
        self._casts: dict[tuple[ProcessId, int], Cast] = {}

    def add(self, sender: ProcessId, reply: Flushed) -> None:
        if reply.view == self.number and len(reply.held) == len(reply.base) == len(self.members):
            self.replies[sender] = reply

    def among(self, processes: Collection[ProcessId]) -> Gathering:
        """The same flush, as if only these processes had answered; nor does the answer of a process outside the view
        count if the casts that it lacks are not kept any more. (What a member has dropped, all members hold.) What is
        collected is shared with this one."""
        other = type(self)(self.number, self.members, self._topology)
        given = {p: reply for p, reply in self.replies.items() if p in processes}
        bases = [reply.base for p, reply in given.items() if p in self.members]
        kept = list(map(min, zip(*bases, strict=True)))
        other.replies = {
            p: r for p, r in given.items() if p in self.members or (kept and all(map(int.__le__, kept, r.held)))
        }
        other._casts = self._casts
        return other

    def keep(self, casts: Iterable[Cast]) -> None:
        """Copies of casts have come."""
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
        """How many casts of each member somebody holds: all of these belong to the view."""
        return [max(r.held[k] for r in self.replies.values()) for k in range(len(self.members))]

    def held_by_all(self) -> list[int]:
        """How many casts of each member are held by all that are to finish the view by themselves."""
        cut = self.cut()
        staying = dict(self.replies)
        lack = {p: sum(cut) - sum(r.held) for p, r in self.replies.items()}
        for p in sorted(lack, key=lambda p: (-lack[p], p)):
            rest = [q for q in staying if q != p and staying[q].complete]
            if lack[p] > MISSING_MAX and self.is_quorum(rest):
                del staying[p]
        return [min(r.held[k] for r in staying.values()) for k in range(len(self.members))]

    def lacking(self) -> dict[ProcessId, list[Span]]:
        """Which casts are to be asked of whom, so that `result` can be given."""
        asks: dict[ProcessId, list[Span]] = {}
        for k, (low, high) in enumerate(zip(self.held_by_all(), self.cut(), strict=True)):
            author = self.members[k]
            missing = [number for number in range(low + 1, high + 1) if (author, number) not in self._casts]
            if missing:
                holders = [p for p, r in self.replies.items() if r.base[k] < missing[0] <= r.held[k]]
                holder = max(holders, key=lambda p: self.replies[p].held[k])
                asks.setdefault(holder, []).append((author, missing[0], missing[-1]))
        return asks

    def result(
        self, members: Iterable[ProcessId], handed: Container[tuple[ProcessId, int]], portion_bytes: int
    ) -> NewView:
        """What to have decided next: the next view, or if too much has not been handed out yet, a portion of that. Only
        when `suffices` and nothing is `lacking`."""
        cut = self.cut()
        casts = [
            self._casts[self.members[k], number]
            for k, low in enumerate(self.held_by_all())
            for number in range(low + 1, cut[k] + 1)
            if (self.members[k], number) not in handed
        ]
        first, *more = portions(casts, bytes_of, portion_bytes)
        return NewView(self.number + 1, [] if more else list(members), cut, first)
