"""Who belongs to which group, view by view: the one place where members are known and majorities of them are counted.

Theory of operation. A group goes through *views*, sets of members numbered 0, 1, 2, ... A view differs from the one
before it by one process, added or removed. A `Change` names the view that it changes, and is multicast to its group
alone, as an ordinary message with a marked payload: so it is ordered, repeated, remembered, caught up with, journaled
and audited as all else is, and needs no message, no log and no recovery of its own. The view of a group is a function
of what the group has delivered: at its delivery a change makes the next view if it names the present one, adds who
never belonged to the group, or removes one who belongs to it and is not the last; otherwise it is void. Ids are never
used again.

A ballot belongs to one view, which stands in its number (`types.Ballot.view`). Whoever counts members counts them by
the ballot's view: acknowledgements of a vector of ballots each by that of its group's ballot.

    1. Who leads a ballot orders a change only if it names the view of just this ballot, or an earlier one (then it is
       void). So no change is ordered before its view has begun.
    2. Nobody promises a ballot of a view, leads one, or joins one before it has delivered the change that made the
       view. Who has delivered it leads no ballot of an earlier view any more once it notices.
    3. From the delivery of a change until this process knows that the new view has *begun*, both views count for it
       (`Views.counting`): it leads a ballot of the new view with promises of a majority of the old one, once majorities
       of both have joined; a watermark counts once majorities of both have reached it. Afterwards the new view counts
       alone. A view has begun when one of its ballots has: who leads or follows such a ballot, and has heard from its
       leader that it leads, knows it.

Why that is safe. Views next to each other differ by one process, so any two majorities of the same view, or of two
neighbours, have a member in common; and by 1, 2 and 3 it is not the one that was added before it has joined. Let
something be acknowledged in ballot b of view v by a majority of v, and let b' > b begin.
  - b' is of v or v + 1: its promises came from a majority of v - 1, v or v + 1. If v - 1: its candidate does not know
    that v has begun; but when b began a majority of v - 1 had joined it, or b's leader knew that another ballot of v
    had begun before, which a majority of v - 1 had joined; and every one of them has promised a ballot of v. Since
    then they promise none of v - 1, and of v only with the state that they have joined. If v or v + 1: one who
    acknowledged has promised b' after that, and tells.
  - b' is of a later view: the change of v was ordered in a ballot c of v + 1 that had begun, by 1, and c > b, as views
    come first in the order of ballots. So c began with what was acknowledged in b, or b had not got its majority before
    c's promises, and never gets it. Step by step from c to b'.
A ballot of a view before v that begins late: of its majorities, one of v - 1 or v has promised a ballot of v, which is
higher.

Who is added acknowledges nothing (REJOINING, as who has lost its disk, parts.rejoin) until it has the state of a ballot
whose view it belongs to, and the history that this leaves out. It has no past that it could have forgotten, so nobody
need answer it first, and it promises ballots as others do, by rule 2: it counts only where its view has begun, so all
that was acknowledged before is with a majority of that view without it. Who is removed helps the new view to begin, and
is told then, by a leader whose others know it (`ViewIs`): it stops (REMOVED). So there is a link to it until the next
view has begun; who comes back later is told by whomever it greets. Other groups learn views with ballots: a
leader of a later view than the first sends `ViewIs` before `LeaderIs`, and again to whom it answers; a vector with a
ballot of an unknown view is not counted until then. Who was added greets everybody, tells other groups the view of its
own, and whoever of its own has not heard of it asks it for that: those who could tell may be gone. Who was away
meanwhile may know nobody any more who belongs to a group: so whoever meets it again tells it the views of all groups
(`parts.founding`).

Groups, too, can be added while the others work (`Founding`, `parts.founding`). Of a group that it does not know a
process knows no members: what it has for that group goes to nobody, and is repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from multicast.types import AppMessage, Ballot, GroupId, ProcessId, Topology, is_majority, quorum_of

_MARK = b"\xc1view"
"""How the payload of a change begins; no msgpack begins so."""
_FOUNDING_MARK = b"\xc1group"


class Change(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Of view number `view`: `process` is to be added, or removed. payload: for the application, which the message
    reaches like any other. note: what hosts must know of who is added, above all its address."""

    view: int
    adds: bool
    process: ProcessId
    payload: bytes = b""
    note: bytes = b""


class ViewIs(msgspec.Struct, array_like=True, tag=98, gc=False):
    """The view of a group that has this number has begun, with these members. notes: of those who were added. group:
    None for the sender's own."""

    number: int
    members: tuple[ProcessId, ...]
    notes: dict[ProcessId, bytes]
    group: GroupId | None = None


class ViewAsk(msgspec.Struct, array_like=True, tag=97, gc=False):
    """You have told of a ballot of your group's, and I do not know who belongs to it."""


class GroupIs(msgspec.Struct, array_like=True, tag=96, gc=False):
    """There is this group, which began with these members. notes: of them, see `Change`."""

    group: GroupId
    members: tuple[ProcessId, ...]
    notes: dict[ProcessId, bytes]


class Founding(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Multicast to the first of all groups alone: from its delivery on there is one more. payload: for the application.
    """

    founded: GroupIs
    payload: bytes = b""


MESSAGES = (ViewIs, ViewAsk, GroupIs)
_TOLD = (1 << 63) - 1
"""Kept in place of the delivery that made it with a view that was told, and is given to nobody (`Views.given`)."""
VIEW_PREFIX = b"V"


def view_key(group: GroupId, number: int) -> bytes:
    """The key under which a process puts that view of this group."""
    return VIEW_PREFIX + group.to_bytes(2, "big") + number.to_bytes(4, "big")


def founding_payload(founding: Founding) -> bytes:
    """The payload of the message, to the first group alone, that orders this founding."""
    return _FOUNDING_MARK + _encode(founding)


def founding_of(message: AppMessage) -> Founding | None:
    """The group that this message founds; None for all other messages."""
    if not message.payload.startswith(_FOUNDING_MARK) or len(message.destinations) != 1:
        return None
    try:
        return _decode_founding(message.payload[len(_FOUNDING_MARK) :])
    except msgspec.MsgspecError:
        return None


def change_payload(change: Change) -> bytes:
    """The payload of the message, to the group alone, that orders this change."""
    return _MARK + _encode(change)


def change_of(message: AppMessage) -> Change | None:
    """The change that this message orders; None for all other messages."""
    if not message.payload.startswith(_MARK) or len(message.destinations) != 1:
        return None
    try:
        return _decode(message.payload[len(_MARK) :])
    except msgspec.MsgspecError:
        return None


def payload_of(message: AppMessage) -> bytes:
    """The part of a message's payload that is the application's."""
    special = change_of(message) or founding_of(message)
    return message.payload if special is None else special.payload


class Views:
    """The views of one group.

    of: number -> members, of all views known. latest: the number of the last one. counting: the members of the last
    view, after those of the one before it until the last is known to have begun. everybody: the members of both. notes:
    see `Change`.
    """

    def __init__(self, members: Sequence[ProcessId], notes: Mapping[ProcessId, bytes] | None = None):
        self.of: dict[int, tuple[ProcessId, ...]] = {0: tuple(members)}
        self.latest = 0
        self.notes: dict[ProcessId, bytes] = {**(notes or {})}
        self._made: dict[int, int] = {}
        self._follow(())

    def _follow(self, before: tuple[tuple[ProcessId, ...], ...]) -> None:
        self.counting = (*before, self.of[self.latest])
        self.everybody = tuple(dict.fromkeys(p for members in reversed(self.counting) for p in members))

    @property
    def begun(self) -> int:
        """The number of the last one that is known to have begun."""
        return self.latest - (len(self.counting) - 1)

    # -- changes ------------------------------------------------------------------------------------------------------

    def change(self, change: Change, position: int = 0) -> bool:
        """A change was the group's delivery number `position`. Returns whether it makes a view."""
        members, process = self.of[self.latest], change.process
        if change.view != self.latest:
            return False
        if change.adds:
            if any(process in some for some in self.of.values()):
                return False
            after = (*members, process)
            self.notes[process] = change.note
        else:
            if process not in members or len(members) == 1:
                return False
            after = tuple(p for p in members if p != process)
        self.latest += 1
        self.of[self.latest] = after
        self._made[self.latest] = position
        self._follow((members,))
        return True

    def begin(self, number: int) -> bool:
        """The view with this number has begun. Returns whether that is new."""
        if number != self.latest or len(self.counting) == 1:
            return False
        self._follow(())
        return True

    def learn(self, view: ViewIs) -> bool:
        """A view of another group. Returns whether it is new."""
        number = view.number
        if number in self.of:
            return False
        self.of[number] = view.members
        self.notes.update(view.notes)
        self.latest = max(self.latest, number)
        self._follow(())
        return True

    def had(self, process: ProcessId, before: int) -> bool:
        """Whether this process belonged to a view before the one with this number."""
        return any([process in members for number, members in self.of.items() if number < before])

    # -- majorities ---------------------------------------------------------------------------------------------------

    def has_quorum(self, ballot: Ballot, processes: Collection[ProcessId]) -> bool:
        """Whether a majority of this ballot's view is among them; False if the view is unknown."""
        members = self.of.get(ballot.view)
        return members is not None and is_majority(members, processes)

    def can_elect(self, voters: Collection[ProcessId]) -> bool:
        """Whether their promises are enough for a ballot of the last view."""
        return is_majority(self.counting[0], voters)

    def can_begin(self, ballot: Ballot, joiners: Collection[ProcessId]) -> bool:
        """Whether this ballot has begun once these have joined it."""
        if ballot.view != self.latest:
            return self.has_quorum(ballot, joiners)
        return all(is_majority(members, joiners) for members in self.counting)

    # -- told, and on disk --------------------------------------------------------------------------------------------

    def told(self, number: int) -> ViewIs:
        """A view, as it is told."""
        members = self.of[number]
        return ViewIs(number, members, {p: self.notes[p] for p in members if p in self.notes})

    def encode(self, number: int) -> bytes:
        """A view, as it is put."""
        return _encode((self.told(number), self._made.get(number, _TOLD)))

    def given(self, position: int) -> list[int]:
        """The views that the first `position` deliveries of the group have made; not what was only told (`learn`)."""
        return [number for number, made in self._made.items() if made <= position]

    def restore(self, values: Mapping[int, bytes], begun: int | None) -> None:
        """What was saved of each view. begun: the number of the last one that is known to have begun; None: all have.
        """
        for number, value in sorted(values.items()):
            view, made = _decode_view(value)
            if made != _TOLD:
                self._made[number] = made
            self.of[number] = view.members
            self.notes.update(view.notes)
        self.latest = max(self.of)
        joint = begun is not None and begun < self.latest
        self._follow((self.of[self.latest - 1],) if joint else ())


class _Groups(dict[GroupId, tuple[ProcessId, ...]]):
    def __missing__(self, group: GroupId) -> tuple[ProcessId, ...]:
        return ()


class _AllViews(dict[GroupId, Views]):
    def __missing__(self, group: GroupId) -> Views:
        return Views(())


class Membership(Topology):
    """A topology whose groups change: `groups` and what is asked about them are those of the last views known, with
    those who still belong to the one before it where that counts. views: group -> its views. founded: the groups that
    were added to the first ones, in order. Both tell of an unknown group that nobody belongs to it. met: see `meet`."""

    __slots__ = ("founded", "met", "views")

    def __init__(self, first: Topology):
        super().__init__(first.groups, first.spares)
        self.groups = _Groups(self.groups)
        self.views = _AllViews({group: Views(members) for group, members in self.groups.items()})
        self.founded: list[GroupId] = []
        self.met: set[ProcessId] = set()

    def add_group(self, group: GroupIs) -> bool:
        """There is one more group. Returns whether that is new."""
        if group.group in self.groups or not group.members:
            return False
        self.views[group.group] = Views(group.members, group.notes)
        self.founded.append(group.group)
        self.follow(group.group)
        return True

    def meet(self, process: ProcessId, group: GroupId) -> None:
        """A process that no view known here names was added to this group: it greets and says so, or a file does."""
        self.group_of.setdefault(process, group)
        self.met.add(process)

    def strangers(self, group: GroupId) -> list[ProcessId]:
        """Those who were met as added to this group, and are still not in any view of it that is known here."""
        known = {p for members in self.views[group].of.values() for p in members}
        return sorted(p for p in self.met - known if self.group_of[p] == group)

    def restore(self, values: Mapping[bytes, bytes], own: GroupId, begun: int) -> None:
        """All views, as they were put under `view_key`. own: the process's group; begun: see `Views.restore`."""
        for group, views in self.views.items():
            key = view_key(group, 0)[:-4]
            saved = {int.from_bytes(k[-4:], "big"): v for k, v in values.items() if k[:-4] == key}
            views.restore(saved, begun if group == own else None)
            self.follow(group)

    def note_of(self, process: ProcessId) -> bytes:
        """The note of a process that was added: see `Change`."""
        return self.views[self.group_of[process]].notes.get(process, b"")

    def gone(self) -> dict[ProcessId, int]:
        """Every process that a view before the latest one that has begun has removed -> the number of the first known
        view without it. Nobody needs them any more, and anybody may tell them."""
        return {p: number for p, number in self._removed().items() if number < self.views[self.group_of[p]].begun}

    def leaving(self) -> list[ProcessId]:
        """Who was removed by the latest view of its group that has begun. Perhaps few know that it has, and the others
        need them: they are told by its leader (`Election.tell_begun`)."""
        gone = self.gone()
        return [p for p in self._removed() if p not in gone]

    def _removed(self) -> dict[ProcessId, int]:
        found: dict[ProcessId, int] = {}
        for views in self.views.values():
            for number, members in sorted(views.of.items()):
                before = {p for earlier in range(number) for p in views.of.get(earlier, ())}
                for process in before.difference(members, views.everybody):
                    found.setdefault(process, number)
        return found

    def told(self, group: GroupId) -> GroupIs:
        """A founded group, as it is told."""
        views = self.views[group]
        members = views.of[0]
        return GroupIs(group, members, {p: views.notes[p] for p in members if p in views.notes})

    def others(self, process: ProcessId) -> tuple[ProcessId, ...]:
        """All that are known, of all groups, but this one."""
        return tuple(p for p in self.processes if p != process)

    def counting(self, group: GroupId) -> tuple[tuple[ProcessId, ...], ...]:
        return self.views[group].counting

    def has_quorum(self, group: GroupId, ballot: Ballot, processes: Collection[ProcessId]) -> bool:
        return self.views[group].has_quorum(ballot, processes)

    def quorum_in(self, group: GroupId, ballot: Ballot) -> int:
        return quorum_of(len(self.views[group].of.get(ballot.view, ())))

    def follow(self, group: GroupId) -> None:
        """The views of this group have changed. Late messages tell of who belonged to it only in between."""
        views = self.views[group]
        self.groups[group] = views.everybody
        self.processes = tuple(p for members in self.groups.values() for p in members)
        self.group_of.update((process, group) for members in views.of.values() for process in members)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Change).decode
_decode_founding = msgspec.msgpack.Decoder(Founding).decode
_decode_view = msgspec.msgpack.Decoder(tuple[ViewIs, int]).decode
