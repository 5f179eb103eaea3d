"""Barriers: the vocabulary of groups that promise one another to say nothing earlier any more.

A group's decided messages have rising stamps (parts.stream); "my last stamp is b" is a promise, a *barrier*: nothing up
to b will follow. A destination delivers a message once the barriers of all groups that may send to it have reached the
message's stamp (parts.channels). Who may send to whom comes from the configuration (`senders_to`).

    message    from -> to                                 says
    Ordered    leader -> members of a destination         these are decided, and with them my barrier is this
    Barrier    leader -> members of a destination         my barrier is this
    Want       leader, or who is blocked -> leader        somebody waits for your barrier
    Ask        member -> a member of a source group       what do I lack? I wait for your barrier
    Repair     member -> who asked                        this, and this is my barrier
    Ack        member -> members of a source group        I durably have your messages
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import msgspec

from multicast.types import AppMessage, GroupId, Timestamp, Topology

Stamp = tuple[int, int]
"""(rtc, seq): a wall-clock time in microseconds, and the place among those that share it."""

NEVER: Stamp = (0, 0)
_GROUP_BITS = 16
_WANTS_MAX = 1_000


def timestamp_of(stamp: Stamp, source: GroupId) -> Timestamp:
    """The place in the total order of a message that `source` decided at this stamp."""
    return Timestamp(stamp[0], stamp[1] << _GROUP_BITS | source)


def stamp_of(timestamp: Timestamp) -> Stamp:
    """The inverse, without the source."""
    return (timestamp.time, timestamp.tiebreak >> _GROUP_BITS)


def parse_senders(text: str) -> dict[GroupId, tuple[GroupId, ...]]:
    """Receiving group -> the other groups that may send to it, from e.g. "0<1,2 1<0 2<". ValueError if malformed."""
    senders: dict[GroupId, tuple[GroupId, ...]] = {}
    for word in text.split():
        receiver, arrow, sources = word.partition("<")
        numbers = [receiver, *(s for s in sources.split(",") if sources)]
        if not arrow or not all(n.isascii() and n.isdigit() for n in numbers) or int(receiver) in senders:
            raise ValueError(f"senders is like '0<1,2 1<0 2<', each group once, not {text[:60]!r}")
        senders[int(receiver)] = tuple(sorted({int(n) for n in numbers[1:]} - {int(receiver)}))
    return senders


def senders_to(topology: Topology, text: str) -> dict[GroupId, tuple[GroupId, ...]]:
    """For every group the others that may send to it; an empty text: all of them. ValueError for unknown groups."""
    groups, given = topology.groups, parse_senders(text)
    if not given:
        return {g: tuple(o for o in groups if o != g) for g in groups}
    for group, sources in given.items():
        for named in (group, *sources):
            if named not in groups:
                raise ValueError(f"senders names group {named}; the groups are {', '.join(map(str, groups))}")
    return {g: given.get(g, ()) for g in groups}


def all_promise(senders_to: dict[GroupId, tuple[GroupId, ...]]) -> bool:
    """Whether each delivery waits for the promise of every group whose messages could be ordered against it: of all
    that are joined with its own by messages to several groups, directly or by way of others."""
    joined = {group: {group} for group in senders_to}
    for source in senders_to:
        receivers = [g for g, senders in senders_to.items() if g == source or source in senders]
        union = set().union(*(joined[g] for g in receivers))
        for group in union:
            joined[group] = union
    return all(joined[group] <= {group, *senders} for group, senders in senders_to.items())


class Item(msgspec.Struct, array_like=True, gc=False):
    """A decided message and its final stamp."""

    stamp: Stamp
    message: AppMessage


class Ordered(msgspec.Struct, array_like=True, tag=3, gc=False):
    """The sender's group has decided these, numbers `first`, `first` + 1, ... of those for the receiver's group.
    barrier: it decides nothing up to here any more. wants: (group, stamp): that group waits for the receivers' group's
    barrier."""

    first: int
    items: list[Item]
    barrier: Stamp
    wants: list[tuple[GroupId, Stamp]]


class Barrier(msgspec.Struct, array_like=True, tag=4, gc=False):
    """The sender's group decides nothing up to `stamp` any more; `upto` messages for the receiver's group precede
    it."""

    stamp: Stamp
    upto: int


class Want(msgspec.Struct, array_like=True, tag=5, gc=False):
    """As in `Ordered`."""

    wants: list[tuple[GroupId, Stamp]]


class Ask(msgspec.Struct, array_like=True, tag=6, gc=False):
    """I have your group's messages for mine up to number `received`, and wait for its barrier to reach `stamp`."""

    received: int
    stamp: Stamp


class Repair(msgspec.Struct, array_like=True, tag=7, gc=False):
    """Messages as in `Ordered`, `upto` as in `Barrier`. low: the lowest number that is still kept. more: there are more
    than fit; ask again."""

    first: int
    items: list[Item]
    barrier: Stamp
    upto: int
    low: int
    more: bool


class Ack(msgspec.Struct, array_like=True, tag=8, gc=False):
    """I durably have your group's messages for mine up to this number (to the own group: its instances)."""

    number: int


MESSAGES = (Ordered, Barrier, Want, Ask, Repair, Ack)


class Wants:
    """Which groups wait for the own group's barrier, and up to where. A newer want does not put off the answer to an
    older one: under load, with a slow clock here, there is always a newer one."""

    __slots__ = ("_stamps",)

    def __init__(self) -> None:
        self._stamps: dict[GroupId, list[Stamp]] = {}

    def __contains__(self, group: GroupId) -> bool:
        return group in self._stamps

    def groups(self) -> tuple[GroupId, ...]:
        return tuple(self._stamps)

    def add(self, group: GroupId, stamp: Stamp) -> None:
        """In any order. Beyond the limit the highest one stands for those just below it."""
        stamps = self._stamps.setdefault(group, [])
        index = bisect_left(stamps, stamp)
        if index < len(stamps) and stamps[index] == stamp:
            return
        stamps.insert(index, stamp)
        if len(stamps) > _WANTS_MAX:
            del stamps[-2]

    def reached(self, group: GroupId, barrier: Stamp) -> bool:
        """Whether this barrier answers a want of the group."""
        stamps = self._stamps.get(group)
        return stamps is not None and stamps[0] <= barrier

    def drop(self, group: GroupId, barrier: Stamp) -> bool:
        """Forget the wants that this barrier answers; whether there were any."""
        if not self.reached(group, barrier):
            return False
        stamps = self._stamps[group]
        del stamps[: bisect_right(stamps, barrier)]
        if not stamps:
            del self._stamps[group]
        return True
