"""What a process knows of a message's stamps, and so of its final timestamp (PrimCast, Algorithm 1, lines 9 to 12).

Theory of operation. A group's stamp of m is *decided* (`local-ts`) once a quorum of the group has acknowledged it in
one epoch. m's final timestamp is the highest stamp decided in its destinations, with the group that gave it as
tie-break: unique, since a group decides one message per stamp, and rising in every group.

Late copies. After m's id was forgotten (parts.delivered) a copy of it is stamped anew; stamps of different copies must
not make one timestamp. A stamp later than m's creation plus the deduplication window is *late*: whatever the others
say, m will have no effect. So a group delivers what it has stamped late at its own stamp, alone, and what it has
stamped in time only with stamps in time.
(a) A group decides m in time at most once, and never after it decided it late: it stamps nothing that it knows as
delivered, forgets m when its deliveries (so its clock) are beyond "in time", and a later primary keeps what was
decided. So stamps in time are all of one copy, and old acknowledgements do no harm.
(b) Where one group stamped in time and another decided late, m is *void*: the group begins a new epoch, whose
candidate, having caught up, leaves m out of T if it was not delivered, to be stamped anew, late. This is safe: were m
decided in time in all groups, the first group that decided it late did so after it had forgotten it, so m was settled,
and the candidate, who has all that a quorum delivered, has it. Until then a void stamp blocks what is above it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from multicast.parts.inspection import DELIVERED, seen
from multicast.parts.window import NEVER, Window
from multicast.types import AppMessage, Ballot, GroupId, MessageId, ProcessId, Timestamp

HasQuorum = Callable[[GroupId, Ballot, Collection[ProcessId]], bool]
"""See `Topology.has_quorum`."""


class Stamp(NamedTuple):
    """The sender's T holds message `id` at `place` (-1: delivered, place unknown), stamped `ts` in `epoch`. digest: of
    the payload, from a primary; empty otherwise."""

    id: MessageId
    place: int
    ts: int
    epoch: Ballot
    digest: bytes = b""


class EntryState(msgspec.Struct, array_like=True, gc=False):
    """A message in somebody's T; also its saved form. See `Stamp`. position: of its delivery, if whoever tells this
    knows of it, otherwise 0. Who has delivered so far needs no more of the message, though it may have forgotten it."""

    message: AppMessage
    place: int
    epoch: Ballot
    ts: int
    position: int = 0

    def in_view_of(self, epoch: Ballot, position: int) -> EntryState:
        """For a T that begins in this epoch, delivered there if it was. What was stamped in an earlier view is stamped
        so again: those who acknowledged it may have been removed."""
        of = epoch if self.epoch.view < epoch.view else self.epoch
        return EntryState(self.message, self.place, of, self.ts, position)


class Entry:
    """A message that is not settled, at a process of `group`.

    epoch, place, ts: as in T; None, -1 and 0 if it is not there. acks: (group, epoch, stamp) -> who acknowledged it.
    locals: group -> lowest decided stamp; of the own group that in T. final: once all that it needs are decided.
    position: of its delivery here, 0 before.
    """

    __slots__ = (
        "acks", "digest", "epoch", "final", "group", "id", "locals", "message", "place", "position", "seen_at",
        "ts",
    )  # fmt: skip

    def __init__(self, message_id: MessageId, group: GroupId, now: int):
        self.id = message_id
        self.group = group
        self.message: AppMessage | None = None
        self.digest = b""
        self.epoch: Ballot | None = None
        self.place = -1
        self.ts = 0
        self.acks: dict[tuple[GroupId, Ballot, int], set[ProcessId]] = {}
        self.locals: dict[GroupId, int] = {}
        self.final: Timestamp | None = None
        self.position = 0
        self.seen_at = now

    def take(self, message: AppMessage) -> None:
        """Its payload has come."""
        groups = b"".join(g.to_bytes(2, "big") for g in message.destinations)
        self.message = message
        self.digest = blake2b(message.payload + groups, digest_size=8).digest()

    def state(self) -> EntryState:
        """Of a message in T."""
        assert self.message is not None and self.epoch is not None
        return EntryState(self.message, self.place, self.epoch, self.ts, self.position)

    def stamp(self, with_digest: bool) -> Stamp:
        """Of a message in T."""
        assert self.epoch is not None
        return Stamp(self.id, self.place, self.ts, self.epoch, self.digest if with_digest else b"")

    def put(self, stamp: Stamp, has_quorum: HasQuorum) -> None:
        """T has the message with this stamp from now on."""
        self.place, self.epoch, self.ts = stamp.place, stamp.epoch, stamp.ts
        self.final = None
        self.locals.pop(self.group, None)
        if has_quorum(self.group, stamp.epoch, self.acks.get((self.group, stamp.epoch, stamp.ts), ())):
            self.locals[self.group] = stamp.ts

    def take_out(self) -> None:
        """T does not have the message any more."""
        self.place, self.epoch, self.ts, self.final = -1, None, 0, None
        self.locals.pop(self.group, None)

    def is_decided(self, group: GroupId, ts: int) -> bool:
        """Whether this group has decided this stamp or a lower one."""
        return self.locals.get(group, NEVER) <= ts

    def acknowledge(self, sender: ProcessId, group: GroupId, stamp: Stamp, has_quorum: HasQuorum) -> bool:
        """Line 10: a process of the group has acknowledged this stamp. Whether that decides it; of the own group's only
        the one that T has."""
        key = (group, stamp.epoch, stamp.ts)
        held = self.acks.get(key)
        if held is None:
            held = self.acks[key] = set()
        held.add(sender)
        if (group == self.group and self.ts != stamp.ts) or not has_quorum(group, stamp.epoch, held):
            return False
        self.locals[group] = stamp.ts
        return True

    def recount(self, has_quorum: HasQuorum) -> bool:
        """It has become known who belongs to an epoch of another group. Returns whether a stamp is decided by that."""
        decided = False
        for (group, epoch, ts), held in self.acks.items():
            if group != self.group and group not in self.locals and has_quorum(group, epoch, held):
                self.locals[group] = ts
                decided = True
        return decided

    def is_acknowledged_by(self, process: ProcessId) -> bool:
        """Whether that process of the own group has acknowledged the stamp that T has."""
        return self.epoch is not None and process in self.acks.get((self.group, self.epoch, self.ts), ())

    def silent(self, group: GroupId, members: Sequence[ProcessId]) -> list[ProcessId]:
        """Of these members of the group those of whom no acknowledgement is here in the latest epoch that stamped it;
        none if its stamp is decided. What was acknowledged before then may be lost with the disks of those who did. If
        only those are lacking who were removed since, all members: their group has decided it, or stamps it again."""
        if group in self.locals:
            return []
        epochs = [(epoch, processes) for (of, epoch, _), processes in self.acks.items() if of == group]
        latest = max([epoch for epoch, _ in epochs], default=None)
        heard = {process for epoch, processes in epochs if epoch == latest for process in processes}
        return [p for p in members if p not in heard] or [*members]

    def decide(self, window: Window) -> Timestamp:
        """Lines 12 and 19, of a message in T. Returns its final timestamp, and has it in `final`, if that is decided;
        otherwise a timestamp that its final one will not be below."""
        assert self.message is not None
        needs = window.needs(self.message, self.ts, self.group)
        limit = window.limit(self.id) if len(needs) > 1 else NEVER - 1
        known = [Timestamp(self.locals[g], g) for g in needs if self.locals.get(g, NEVER) <= limit]
        if len(known) == len(needs):
            self.final = max(known)
            return self.final
        self.final = None
        return max([Timestamp(self.ts, self.group), *known])

    def is_void(self, ts: int, window: Window) -> bool:
        """Whether another group has decided it late, and the own stamp `ts` was in time."""
        limit = window.limit(self.id)
        return ts <= limit and any(other > limit for group, other in self.locals.items() if group != self.group)

    def learn_final(self, group: GroupId, final: Timestamp, window: Window) -> None:
        """Another group has delivered it: at its own late stamp, or at the timestamp that all groups have decided."""
        assert self.message is not None
        limit = window.limit(self.id)
        if final.time > limit:
            self.locals.setdefault(group, final.time)
            return
        for other in self.message.destinations:
            if other != self.group and self.locals.get(other, NEVER) > limit:
                self.locals[other] = final.time if other == final.tiebreak else 0

    def is_delivered_before(self, view: int) -> bool:
        """Whether it was delivered here, and those who acknowledged its stamp may have been removed by this view."""
        return self.position > 0 and self.epoch is not None and self.epoch.view < view

    def seen(self, blocked_by: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """See `MulticastProtocol.inspect`. stamps: those decided."""
        known = (self.epoch is not None) + (self.final is not None) + (self.position > 0)
        phase, local = ("started", "proposed", "decided", DELIVERED)[known], Timestamp(self.ts, self.group)
        return seen(phase, local if known else None, self.final, blocked_by, self.locals, place=self.place)

    def delivered(self, final: Timestamp, position: int) -> None:
        """It was delivered here; acknowledgements are not counted any more."""
        self.final, self.position = final, position
        self.acks.clear()
        self.locals.clear()
