"""Groups that are added while others work.

Theory of operation. A new group's processes begin as any others: they know their own group, and all that were there
before. Nobody else need know it until something is addressed to it. A `Founding` is multicast to the first of all
groups alone; whoever delivers it knows the group, and tells all (`GroupIs`). Who learns of a group keeps that on disk,
tells all, too, and again whoever may have missed it, and who is added to a group. So whatever it says of that group
afterwards finds one who knows it: links are FIFO. With that everybody tells the views that it knows, of all groups: all
who belong to one by now may have been added, and who was away has no link to these, and cannot ask them. Only who has
lost its disk may be sent what was meant for its life before that. It has nothing for the members of a group that it
does not know (`multicast.membership`), and who lacks its word repeats.

Who was away while all whom it knows of a group were removed is greeted by those who were added (`Membership.meet`):
those of another group tell it the view, since its link to them is new; of its own it asks them, as it may have been
removed itself.

Which processes a group begins with is decided by the order of the first group. Nothing else need be agreed on: members
are counted by the views of their own group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from multicast.membership import GroupIs, Membership, ViewAsk, ViewIs, founding_of
from multicast.parts.deadlines import Deadlines
from multicast.protocol import Handler, Outbox, PeerError, Stranger
from multicast.types import AppMessage, GroupId, ProcessId

_PREFIX = b"G"
_DOUBLED = 6
"""So often the pause between two questions to strangers doubles: what is sent to one that does not exist waits."""


class FoundedGroups:
    """The added groups that one process knows; `membership.founded` are their messages. tell_view(to, out): tell the
    own group's view. deadlines: the user's; this part adds the timer "strangers"."""

    def __init__(
        self,
        membership: Membership,
        self_id: ProcessId,
        tell_view: Callable[[tuple[ProcessId, ...], Outbox], None],
        deadlines: Deadlines,
        retry_us: int,
    ):
        self._tell_view = tell_view
        self._deadlines, self._retry_us = deadlines, retry_us
        self._met = self._asked = 0
        deadlines.add("strangers", self._ask_strangers)
        self._group = membership.group_of[self_id]
        self._membership = membership
        self._self_id = self_id
        self._told: tuple[ProcessId, ...] = ()
        self._is_first = self._group == min(membership.groups)
        self.handlers: dict[type, Handler] = {GroupIs: Handler(self._on_group_is)}

    def restore(self, saved: Mapping[bytes, bytes]) -> None:
        """A life begins. Before views are restored: these groups have had some, too."""
        for key, value in sorted(saved.items()):
            if key[:1] == _PREFIX:
                self._membership.add_group(_decode(value))

    def start(self, out: Outbox) -> None:
        """All is restored. What was sent in the life before may be lost, so it is told again."""
        self._tell_all(out)

    def delivered(self, message: AppMessage, out: Outbox) -> None:
        """The own group's next delivery."""
        founding = founding_of(message) if self._is_first else None
        if founding is not None:
            self._learn(founding.founded, out)

    def on_peer_reset(self, peer: ProcessId, out: Outbox) -> None:
        """As the protocol is told; who is not known yet is told when it is."""
        if peer in self._membership.group_of:
            self._tell((peer,), out)

    def group_of(self, sender: ProcessId, view: ViewIs) -> GroupId:
        """Whose view this is. PeerError; Stranger: the group was told of before, and that was lost."""
        if view.group is None:
            return self._membership.group_of[sender]
        if view.group == self._group:
            raise PeerError("a view of this process's own group from another one")
        if view.group not in self._membership.groups:
            raise Stranger(f"a view of group {view.group}, which is not known here")
        return view.group

    def tick(self, out: Outbox) -> None:
        """Tell the processes that were added to a group since the last time."""
        if self._membership.processes is not self._told:
            self._tell(tuple(p for p in self._membership.processes if p not in self._told), out)
            self._told = self._membership.processes
        if len(self._membership.met) != self._met:
            self._met, self._asked = len(self._membership.met), 0
            self._deadlines.by("strangers", 0)

    def _ask_strangers(self, now: int, out: Outbox) -> int | None:
        """Somebody of the own group greets whom no view known here names: it knows one that does."""
        strangers = self._membership.strangers(self._group)
        if strangers:
            out.send(strangers, ViewAsk())
        pause_us = self._retry_us << self._asked
        self._asked = min(self._asked + 1, _DOUBLED)
        return now + pause_us if strangers else None

    def _on_group_is(self, sender: ProcessId, group: GroupIs, now: int, out: Outbox) -> None:
        self._learn(group, out)

    def _learn(self, group: GroupIs, out: Outbox) -> None:
        if self._membership.add_group(group):
            out.put(_PREFIX + group.group.to_bytes(2, "big"), _encode(group))
            self._tell_all(out)

    def _tell_all(self, out: Outbox) -> None:
        self._told = self._membership.processes
        self._tell(self._membership.others(self._self_id), out)

    def _tell(self, to: tuple[ProcessId, ...], out: Outbox) -> None:
        for group in self._membership.founded:
            out.send(to, self._membership.told(group))
        self._tell_view(to, out)
        for group, views in self._membership.views.items():
            if views.latest and group != self._group:  # whoever is of that group has its views with its deliveries
                others = tuple(p for p in to if self._membership.group_of[p] != group)
                if others:
                    out.send(others, msgspec.structs.replace(views.told(views.latest), group=group))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(GroupIs).decode
