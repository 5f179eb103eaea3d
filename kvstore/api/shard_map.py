"""Which shard owns a key: hash slots, as in Redis Cluster. Pure; the SDK routes by the same code.

A key's slot is CRC-32 of its tag modulo `SLOTS`. The tag is the text inside the first `{...}` of the key if that is not
empty, else the whole key: keys with one tag live in one shard.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from kvstore.api.model import (
    EVERYWHERE,
    LEASED,
    SLOTS,
    LeasedPut,
    Move,
    Revoke,
    Transaction,
    Txn,
    compares_of,
    lease_key,
    operations_of,
)
from multicast.types import ZERO, GroupId, Timestamp


class Place(NamedTuple):
    """Where a slot was moved to, and when: by the timestamp of its last move."""

    shard: GroupId
    since: Timestamp


KEYS_KEPT = 16_384
"""Of so many keys the slots are remembered: whoever orders or executes a transaction asks again and again."""
_NOT_OF_ONE_SLOT = frozenset((*EVERYWHERE, *LEASED, Txn))

ALL_SLOTS = b"\xff\xff"
"""Among slots, two bytes each and rising: and all others."""

Places = Mapping[int, Place]
"""Of slots that were moved; all others are where they were at first. See `own_slot`, too."""


def own_slot(shard: GroupId) -> int:
    """No key's: it stands for the shard itself, which has it from the first move to it on."""
    return SLOTS + shard


class PlacedRun(msgspec.Struct, array_like=True, gc=False):
    """The slots from `first` to `last` have the same `Place`."""

    first: int
    last: int
    shard: GroupId
    since: Timestamp


def runs_of(places: Places) -> list[PlacedRun]:
    """The same, as few rising runs."""
    runs: list[PlacedRun] = []
    after, before = -1, None
    for slot in sorted(places):
        place = places[slot]
        if slot == after and (place is before or place == before):
            runs[-1].last = slot
        else:
            runs.append(PlacedRun(slot, slot, *place))
        after, before = slot + 1, place
    return runs


def places_of(runs: Iterable[PlacedRun]) -> dict[int, Place]:
    """The inverse of `runs_of`."""
    places: dict[int, Place] = {}
    add_places(places, runs)
    return places


def ranges_of(slots: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """The same, of rising slots, as ranges of first and last."""
    ranges: list[tuple[int, int]] = []
    for slot in slots:
        if ranges and ranges[-1][1] == slot - 1:
            ranges[-1] = (ranges[-1][0], slot)
        else:
            ranges.append((slot, slot))
    return tuple(ranges)


encode_places = msgspec.msgpack.Encoder().encode
decode_places = msgspec.msgpack.Decoder(list[PlacedRun]).decode


def add_places(known: dict[int, Place], told: Iterable[PlacedRun]) -> bool:
    """The latest move of a slot counts. Whether anything is new. (All that have ever moved are told again and again,
    thousands of slots: what is known already makes nothing.)"""
    new = False
    for run in told:
        since = run.since
        place = Place(run.shard, since)
        for slot in range(run.first, run.last + 1):
            before = known.get(slot)
            if before is None or since > before[1]:
                known[slot] = place
                new = True
    return new


@lru_cache(KEYS_KEPT)
def slot_of(key: bytes) -> int:
    """0 <= slot < SLOTS."""
    begin = key.find(b"{")
    if begin >= 0:
        end = key.find(b"}", begin + 1)
        if end > begin + 1:
            return zlib.crc32(key[begin + 1 : end]) % SLOTS
    return zlib.crc32(key) % SLOTS


def is_everywhere(slots: bytes | None) -> bool:
    """Whether `ALL_SLOTS` is among them."""
    return slots is not None and slots[-2:] == ALL_SLOTS


def slots_of(transaction: Transaction) -> set[int]:
    """Of the keys that it names."""
    found = {slot_of(compare.key) for compare in compares_of(transaction)}
    for operation in operations_of(transaction):
        if not isinstance(operation, EVERYWHERE):
            found.update(_named(operation))
    return found


def _named(operation: Any) -> tuple[int, ...]:
    """The slots that an operation names which is not for everybody."""
    if isinstance(operation, LeasedPut):
        return slot_of(operation.key), slot_of(lease_key(operation.lease))
    if isinstance(operation, Revoke):
        return slot_of(lease_key(operation.lease)), *operation.slots
    return (slot_of(operation.key),)


class ShardMap:
    """Slot -> shard. Immutable; a changed map has a higher `version`.

    slots: one shard per slot. shards: all there are, rising; given are those that may have none. ValueError unless
    there are exactly SLOTS slots.
    """

    __slots__ = ("shards", "slots", "version")

    def __init__(self, version: int, slots: Sequence[GroupId], shards: Iterable[GroupId] = ()):
        if len(slots) != SLOTS:
            raise ValueError(f"a shard map has {SLOTS} slots, not {len(slots)}")
        if version < 1:
            raise ValueError(f"a shard map's version is at least 1, not {version}")
        self.version = version
        self.slots: tuple[GroupId, ...] = tuple(slots)
        self.shards: tuple[GroupId, ...] = tuple(sorted({*self.slots, *shards}))

    def shard_of(self, key: bytes) -> GroupId:
        """The shard that owns `key`."""
        if len(self.shards) == 1:
            return self.shards[0]
        return self.slots[slot_of(key)]

    def shards_of(self, transaction: Transaction) -> tuple[GroupId, ...]:
        """Every shard that takes part in `transaction`, sorted. A range or a Cut concerns all."""
        success = transaction.success
        if len(success) == 1 and not transaction.compare and not transaction.failure:
            operation: Any = success[0]
            if type(operation) not in _NOT_OF_ONE_SLOT:
                return (self.shard_of(operation.key),)
            if isinstance(operation, Move):
                return tuple(sorted((operation.source, operation.target)))
        return self._named_by(transaction)[1]

    def homes_of(self, transaction: Transaction) -> tuple[bytes | None, tuple[GroupId, ...]]:
        """The slots of its keys, two bytes each, rising, with `ALL_SLOTS` if it has a range or a Cut, and None without
        these if there is only one shard; and `shards_of`."""
        success = transaction.success
        if len(success) == 1 and not transaction.compare and not transaction.failure:
            operation: Any = success[0]
            if type(operation) not in _NOT_OF_ONE_SLOT:
                if len(self.shards) == 1:
                    return None, self.shards
                slot = slot_of(operation.key)
                return slot.to_bytes(2, "big"), (self.slots[slot],)
            if isinstance(operation, Move):
                return b"", tuple(sorted((operation.source, operation.target)))
        if len(self.shards) == 1:
            if any([isinstance(operation, EVERYWHERE) for operation in operations_of(transaction)]):
                return ALL_SLOTS, self.shards
            return None, self.shards
        slots, shards, everywhere = self._named_by(transaction)
        return struct.pack(f">{len(slots)}H", *sorted(slots)) + ALL_SLOTS * everywhere, shards

    def _named_by(self, transaction: Transaction) -> tuple[set[int], tuple[GroupId, ...], bool]:
        """The slots of the keys of a transaction that is no Move, `shards_of`, and whether it has a range or a Cut."""
        slots, everywhere = {slot_of(compare.key) for compare in compares_of(transaction)}, False
        operation: Any
        for operation in operations_of(transaction):
            if type(operation) not in _NOT_OF_ONE_SLOT:
                slots.add(slot_of(operation.key))
            elif isinstance(operation, EVERYWHERE):
                everywhere = True
            else:
                slots.update(_named(operation))
        shards = self.shards if everywhere else tuple(sorted({self.slots[slot] for slot in slots}))
        return slots, shards, everywhere

    def after(self, places: Places) -> ShardMap:
        """This map after these moves; its version tells the time of the last one."""
        if not places:
            return self
        slots, shards, latest = list(self.slots), {*self.shards}, ZERO
        for slot, (shard, since) in places.items():
            if slot < SLOTS:
                slots[slot] = shard
            else:
                shards.add(shard)
            latest = max(latest, since)
        return ShardMap(self.version + latest.time, slots, shards)

    @classmethod
    def even(cls, shards: Sequence[GroupId], version: int = 1) -> ShardMap:
        """Contiguous slot ranges of equal size (within one slot), in the given order of shards."""
        if not shards or len(set(shards)) != len(shards):
            raise ValueError("a shard map needs at least one shard, each named once")
        return cls(version, [shards[slot * len(shards) // SLOTS] for slot in range(SLOTS)])

    def to_json(self) -> dict[str, Any]:
        """{"version": 1, "ranges": [[first slot, last slot, shard], ...]}: every slot once, rising."""
        ranges: list[list[int]] = []
        for slot, shard in enumerate(self.slots):
            if ranges and ranges[-1][2] == shard:
                ranges[-1][1] = slot
            else:
                ranges.append([slot, slot, shard])
        return {"version": self.version, "ranges": ranges}

    @classmethod
    def from_json(cls, data: Any) -> ShardMap:
        """The inverse of `to_json`. ValueError, saying what is wrong, for anything else."""
        if not isinstance(data, dict) or set(data) != {"version", "ranges"}:
            raise ValueError("a shard map has exactly the fields version and ranges")
        if type(data["version"]) is not int or not isinstance(data["ranges"], list):
            raise ValueError("shard map: version is an integer and ranges is a list")
        slots: list[GroupId] = []
        for item in data["ranges"]:
            if not isinstance(item, list | tuple) or len(item) != 3 or any(type(n) is not int for n in item):
                raise ValueError(f"shard map: a range is [first slot, last slot, shard], not {item!r}")
            first, last, shard = item
            if first != len(slots) or not first <= last < SLOTS or shard < 0:
                raise ValueError(f"shard map: range {item!r} does not follow slot {len(slots) - 1} or is out of bounds")
            slots += [shard] * (last - first + 1)
        return cls(data["version"], slots)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardMap) and (self.version, self.slots) == (other.version, other.slots)

    def __hash__(self) -> int:
        return hash((self.version, self.slots))
