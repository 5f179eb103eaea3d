"""Which shard owns a key: hash slots, as in Redis Cluster. Pure; the SDK routes by the same code.

A key's slot is CRC-32 of its tag modulo `SLOTS`. The tag is the text inside the first `{...}` of the key if that is not
empty, else the whole key: keys with one tag live in one shard.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from kvstore.api.model import EVERYWHERE, Transaction
from multicast.types import GroupId

SLOTS = 16384


def slot_of(key: bytes) -> int:
    """0 <= slot < SLOTS."""
    begin = key.find(b"{")
    if begin >= 0:
        end = key.find(b"}", begin + 1)
        if end > begin + 1:
            return zlib.crc32(key[begin + 1 : end]) % SLOTS
    return zlib.crc32(key) % SLOTS


class ShardMap:
    """Slot -> shard. Immutable; a changed map has a higher `version`.

    slots: one shard per slot. ValueError unless there are exactly SLOTS.
    """

    __slots__ = ("shards", "slots", "version")

    def __init__(self, version: int, slots: Sequence[GroupId]):
        if len(slots) != SLOTS:
            raise ValueError(f"a shard map has {SLOTS} slots, not {len(slots)}")
        if version < 1:
            raise ValueError(f"a shard map's version is at least 1, not {version}")
        self.version = version
        self.slots: tuple[GroupId, ...] = tuple(slots)
        self.shards: tuple[GroupId, ...] = tuple(sorted(set(self.slots)))

    def shard_of(self, key: bytes) -> GroupId:
        """The shard that owns `key`."""
        if len(self.shards) == 1:
            return self.shards[0]
        return self.slots[slot_of(key)]

    def shards_of(self, transaction: Transaction) -> tuple[GroupId, ...]:
        """Every shard that takes part in `transaction`, sorted. A range or a Cut concerns all."""
        found = set()
        for compare in transaction.compare:
            found.add(self.shard_of(compare.key))
        for branch in (transaction.success, transaction.failure):
            for operation in branch:
                if isinstance(operation, EVERYWHERE):
                    return self.shards
                found.add(self.shard_of(operation.key))
        return tuple(sorted(found))

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
