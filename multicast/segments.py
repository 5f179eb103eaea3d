"""What a journal keeps beside its segments: where it begins, and what is in each closed segment. Pure.

Theory of operation. A journal ends where it was last written, and begins with its oldest segment: older ones have gone,
for what they held stands elsewhere. The *floor*, a small file, says which one is the oldest; it is durable before the
first of the older ones goes. So a segment that is missing was dropped if the floor says so, and is damage otherwise.

A closed segment never changes. What opening and dropping want to know of it is written beside it, in its *summary*,
once it is closed. That is a copy of what the segment says: where it is missing or damaged, the segment is read.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeVar

import msgspec

from multicast import records

FLOOR, MARK = "floor", "mark"
SEGMENT_NAME = re.compile(r"journal-(\d{8})\.seg")

_FILE_NAME = re.compile(r"journal-(\d{8})\.(?:seg|sum)")
_CRC_BYTES = 4
_T = TypeVar("_T")


def segment_name(number: int) -> str:
    """The file of the segment with this number; 0 is the first."""
    return f"journal-{number:08d}.seg"


def summary_name(number: int) -> str:
    """The file of the summary of this segment."""
    return f"journal-{number:08d}.sum"


def below(oldest: int, names: Iterable[str]) -> list[str]:
    """Which of these are files of segments, or summaries, with a lower number, the oldest first."""
    return sorted(name for name in names if (m := _FILE_NAME.fullmatch(name)) and int(m[1]) < oldest)


class Floor(msgspec.Struct, array_like=True, frozen=True):
    """Where a journal begins: with segment number `segment`, at journal offset `base`.

    position: the highest final delivery of which something was in what was dropped, or that of a snapshot. life: the
    incarnation of the process that began the journal, 0 if there was neither."""

    segment: int = 0
    base: int = 0
    position: int = 0
    life: int = 0


class Summary(msgspec.Struct, array_like=True, frozen=True):
    """The summary of a closed segment, from journal offset `base` to `end`.

    last: the highest final delivery in it, 0 if it has none. refers: the lowest journal offset to which a reference in
    it leads; `base` if none leads out of it. delivered: the highest final delivery that is such a reference; put: the
    journal offset at the end of the last put that is one; 0 if there is none. positions, offsets: where some of its
    deliveries begin (`Journal`).
    """

    base: int
    end: int
    last: int
    refers: int
    delivered: int
    put: int
    positions: list[int]
    offsets: list[int]


class Segment(msgspec.Struct, frozen=True):
    """A segment that is there. refers: as in its summary, or lower; of one that is still written to, also for what may
    be written into it."""

    number: int
    base: int
    version: int
    refers: int
    summary: Summary | None = None


class _Position(msgspec.Struct, array_like=True, gc=False):
    """The first field of `Delivered`, to find out which delivery it is without building the rest."""

    position: int


_position = msgspec.msgpack.Decoder(_Position).decode


def position_of(body: memoryview) -> int:
    """The position of a delivery or an outcome; 0 for an optimistic delivery."""
    return _position(body).position


class Survey:
    """Gathers, over all records of a segment from journal offset `base` on, what its summary says."""

    def __init__(self, base: int):
        self._base = self.refers = base
        self.last = self.delivered = self.put = 0

    def see(self, end: int, kind: int, body: memoryview) -> None:
        """The next record, which ends at journal offset `end`."""
        if kind in records.DELIVERIES:
            self.last = max(self.last, position_of(body))
        if kind not in records.REFERENCES:
            return
        lowest = min(place.offset for place in records.decode_body(kind, body).places)
        if lowest < self._base:
            self.refers = min(self.refers, lowest)
            if kind == records.PUT_REFERENCE:
                self.put = end
            else:
                self.delivered = max(self.delivered, position_of(body))

    def summary(self, end: int, positions: list[int], offsets: list[int]) -> Summary:
        """The summary of the segment, which ends at journal offset `end`."""
        return Summary(
            self._base, end, self.last, self.refers, self.delivered, self.put, positions, offsets
        )


def droppable(found: list[Segment], floor: int, position: int, offset: int) -> tuple[int, int]:
    """How many of these segments, oldest first, may be dropped (`Journal.drop`), and the floor after that. floor: the
    present one. A delivery that refers to what is dropped counts as dropped, too."""
    count = 0
    for segment, after in pairwise(found):
        if segment.summary is None or after.base > offset or segment.summary.last > position:
            break
        count += 1
    while count:
        last = max(floor, *(segment.summary.last for segment in found[:count] if segment.summary))
        refer = [segment for segment in found[count:] if segment.refers < found[count].base]
        known = [segment.summary for segment in refer if segment.summary]
        if len(known) == len(refer) and all(summary.put <= offset for summary in known):
            last = max([last, *(summary.delivered for summary in known)])
            if last <= position:
                return count, last
        count -= 1
    return 0, floor


def encode_mark(offset: int) -> bytes:
    """What the mark says of this journal offset."""
    data = offset.to_bytes(8, "big")
    return data + zlib.crc32(data).to_bytes(_CRC_BYTES, "big")


def decode_mark(data: bytes) -> int:
    """The journal offset; 0, which protects nothing, if it was being written when the power went."""
    offset = int.from_bytes(data[:8], "big")
    return offset if data == encode_mark(offset) else 0


def encode(content: Floor | Summary) -> bytes:
    """The content of the file, with its checksum."""
    data = msgspec.msgpack.encode(content)
    return data + zlib.crc32(data).to_bytes(_CRC_BYTES, "big")


def decode(data: bytes, content: type[_T]) -> _T | None:
    """What the file says; None if these are not the bytes of such a file."""
    body, crc = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    if zlib.crc32(body).to_bytes(_CRC_BYTES, "big") != crc:
        return None
    try:
        return msgspec.msgpack.decode(body, type=content)
    except msgspec.MsgspecError:
        return None
