"""The vocabulary of the library: processes, groups, messages, timestamps, ballots, topology.

Everything here is plain data. Protocols, hosts and applications share it; it imports nothing of them.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

Progress = TypeVar("Progress", int, "Timestamp")

ProcessId = int
"""One replica. Unique over all groups; 0 <= id < 2**31."""

GroupId = int
"""The replicas of one shard; 0 <= id < 2**16."""

MessageId = bytes
"""16 bytes. The library only compares ids; with a deduplication window they must be UUIDv7 (RFC 9562)."""

OPTIMISTIC = 1
"""Stage of an early delivery whose order may still change."""

FINAL = 2
"""Stage of a delivery whose order is decided. Only final timestamps become versions."""

MESSAGE_ID_BYTES = 16


_TIMESTAMP = struct.Struct(">QQ")


class Timestamp(NamedTuple):
    """A point of the total order: compared by `time`, then by `tiebreak` (both unsigned 64-bit), never reused.

    What `time` counts is the protocol's choice of clock: events (logical) or microseconds (hybrid).
    """

    time: int
    tiebreak: int

    def encode(self) -> bytes:
        """16 bytes that sort as the timestamps do."""
        return _TIMESTAMP.pack(self[0], self[1])

    @classmethod
    def decode(cls, data: bytes) -> Timestamp:
        """The inverse of `encode`. ValueError unless 16 bytes."""
        if len(data) != _TIMESTAMP.size:
            raise ValueError(f"a timestamp has 16 bytes, not {len(data)}")
        return cls(*_TIMESTAMP.unpack(data))

    def __str__(self) -> str:
        """The opaque form of ETags and JSON, e.g. `6423f1a2b3c4d-1`."""
        return f"{self.time:x}-{self.tiebreak:x}"

    @classmethod
    def parse(cls, text: str) -> Timestamp:
        """The inverse of `str`. ValueError for anything else."""
        time, dash, tiebreak = text.partition("-")
        if not dash or not time or tiebreak[:1] in ("", "-") or len(time) > 16 or len(tiebreak) > 16:
            raise ValueError(f"not a version: {text[:40]!r}")
        try:
            parsed = cls(int(time, 16), int(tiebreak, 16))
        except ValueError:
            raise ValueError(f"not a version: {text[:40]!r}") from None
        if str(parsed) != text:
            raise ValueError(f"not a version: {text[:40]!r}")
        return parsed


ZERO = Timestamp(0, 0)
"""Below every timestamp that a protocol gives."""


VIEW_BITS = 32


class Ballot(NamedTuple):
    """A number and who leads in it (White-Box: ballot; PrimCast: epoch). Compared by number, then by leader.

    number: counts the campaigns; its upper bits, above `VIEW_BITS`, are the number of the view of the members to which
    the ballot belongs (multicast.membership), so that a later view's ballots are higher.
    """

    number: int
    leader: ProcessId

    @property
    def view(self) -> int:
        return self.number >> VIEW_BITS

    @property
    def text(self) -> str:
        """For people: campaign/leader, and in a later view than the first that one's number before it."""
        campaign = self.number - (self.view << VIEW_BITS)
        return f"{self.view}:{campaign}/{self.leader}" if self.view else f"{campaign}/{self.leader}"


def new_message_id(now_us: int, random_bits: int) -> MessageId:
    """A UUIDv7 (RFC 9562, Section 5.7): created at `now_us` microseconds since 1970, with the lower 62 random bits
    given.

    Its 12 bits beside the millisecond hold the fraction of it (Section 6.2, method 3), so ids sort by creation.
    """
    milliseconds, rest = divmod(now_us, 1000)
    value = (milliseconds & (1 << 48) - 1) << 80 | 0x7 << 76 | (rest * 4096 // 1000) << 64
    value |= 0b10 << 62 | random_bits & (1 << 62) - 1
    return value.to_bytes(16, "big")


def is_uuid7(message_id: MessageId) -> bool:
    """Whether these bytes are a UUIDv7."""
    return len(message_id) == MESSAGE_ID_BYTES and message_id[6] >> 4 == 7 and message_id[8] >> 6 == 0b10


def created_us(message_id: MessageId) -> int:
    """When a UUIDv7 was made: microseconds since 1970, to the millisecond."""
    return int.from_bytes(message_id[:6], "big") * 1000


def oldest_id(since_us: int) -> MessageId:
    """No UUIDv7 made at `since_us` or later (as `created_us` tells it) sorts before these bytes, all others do."""
    return max(0, -(-since_us // 1000)).to_bytes(6, "big") + bytes(10)


class AppMessage(msgspec.Struct, array_like=True, gc=False):
    """What is multicast. Never changed after it was made, so it may be shared between processes of a simulation.

    `destinations` is sorted and without repetition; `origin` is the process that multicast it. Two messages with one
    id are the same message, even when a retry through another process gave the copy another origin.
    """

    id: MessageId
    destinations: tuple[GroupId, ...]
    payload: bytes
    origin: ProcessId


def quorum_of(members: int) -> int:
    """f + 1 of 2f + 1: any two quorums have a process in common."""
    return members // 2 + 1


def reached_by_majority(progress: Iterable[Progress]) -> Progress:
    """The highest that a majority of the members has reached. progress: how far each has come."""
    highest_first = sorted(progress, reverse=True)
    return highest_first[quorum_of(len(highest_first)) - 1]


def is_majority(members: Sequence[ProcessId], processes: Collection[ProcessId]) -> bool:
    """Whether a majority of the members is among the processes."""
    enough = quorum_of(len(members))
    return len(processes) >= enough and sum(p in processes for p in members) >= enough


class Topology:
    """Which groups exist and who belongs to them. Immutable.

    groups: group -> its processes; an order that all processes know alike (the first is the first leader).
    spares: group -> processes that do not belong to it and may be added (multicast.membership). group_of: of both.
    ValueError if a group is empty or a process belongs to two groups.
    """

    __slots__ = ("group_of", "groups", "processes", "spares")

    def __init__(
        self,
        groups: Mapping[GroupId, Sequence[ProcessId]],
        spares: Mapping[GroupId, Sequence[ProcessId]] | None = None,
    ):
        self.groups: dict[GroupId, tuple[ProcessId, ...]] = {g: tuple(groups[g]) for g in sorted(groups)}
        self.group_of: dict[ProcessId, GroupId] = {}
        for group, members in self.groups.items():
            if not members:
                raise ValueError(f"group {group} has no process")
            for process in members:
                if process in self.group_of:
                    raise ValueError(f"process {process} is in group {self.group_of[process]} and in group {group}")
                self.group_of[process] = group
        self.processes: tuple[ProcessId, ...] = tuple(self.group_of)
        self.spares = {g: tuple(some) for g, some in (spares or {}).items()}
        for group, some in self.spares.items():
            for process in some:
                if process in self.group_of:
                    raise ValueError(f"process {process} is in group {self.group_of[process]} already")
                self.group_of[process] = group

    def quorum(self, group: GroupId) -> int:
        """How many of the group's processes."""
        return quorum_of(len(self.groups[group]))

    def counting(self, group: GroupId) -> tuple[tuple[ProcessId, ...], ...]:
        """The sets of processes of each of which a majority is needed where the group as such counts."""
        return (self.groups[group],)

    def has_quorum(self, group: GroupId, ballot: Ballot, processes: Collection[ProcessId]) -> bool:
        """Whether a majority of those to whom this ballot of the group belongs are among them."""
        return is_majority(self.groups[group], processes)

    def quorum_in(self, group: GroupId, ballot: Ballot) -> int:
        """How many of those to whom this ballot of the group belongs."""
        return self.quorum(group)

    def members(self, groups: Sequence[GroupId]) -> tuple[ProcessId, ...]:
        """Every process of these groups, group by group."""
        return tuple(p for g in groups for p in self.groups[g])

    @classmethod
    def grid(cls, groups: int, replicas: int) -> Topology:
        """`groups` groups of `replicas` processes each, numbered from 0 on."""
        return cls({g: range(g * replicas, (g + 1) * replicas) for g in range(groups)})
