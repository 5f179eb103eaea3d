"""Journal records: what a replica writes, and all that an audit reads. Pure: bytes in, bytes out.

A journal is a sequence of segment files. A segment is a header (`SegmentHeader`) and records one after another:

    length u32 | crc32 u32 | kind u8 | body          big-endian; length and CRC cover kind and body

Bodies are msgpack arrays (structs below). A *journal offset* counts record bytes from the first record of the first
segment on, headers not counted; the header tells the offset at which its segment begins. Records come in batches,
each closed by a `BatchEnd`: a batch is wholly there or not at all.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from multicast.types import AppMessage, GroupId, MessageId, ProcessId, Timestamp

FORMAT_VERSION = 4
"""1 had no references, 2 no installations, 3 no bases."""
RECORD_BYTES_MAX = 64 * 1024 * 1024
SEGMENT_BYTES_MAX = 64 * 1024 * 1024
"""The size of a segment, by default."""

_MAGIC = b"AMCJRNL\n"
_HEADER = struct.Struct(">8sHHIQQ16sI")  # magic, version, group, process, segment, base offset, cluster id, crc
HEADER_BYTES = _HEADER.size
_FRAME = struct.Struct(">II")
FRAME_BYTES = _FRAME.size

STARTED = 1
STOPPED = 2
PUT = 3
DELETE = 4
SUBMITTED = 5
DELIVERED = 6
COMPLETED = 7
BATCH_END = 8
DELIVERED_REFERENCE = 9
PUT_REFERENCE = 10
INSTALLED = 11
BASE = 12
MEMBERS = 13

DELIVERIES = (DELIVERED, DELIVERED_REFERENCE)
CHANGES = (PUT, DELETE, PUT_REFERENCE)
REFERENCES = (DELIVERED_REFERENCE, PUT_REFERENCE)
"""Kinds of records from which a payload is left out that stands before them in the same journal."""


class JournalError(Exception):
    """The journal cannot be used; the text says why, where, and what to do."""


REMEDY = (
    "it must not run without what it has promised: if this cannot be put right, its disk counts as lost;"
    " move this replica's directory away and start it once with --lost-disk"
)


class SegmentHeader(msgspec.Struct, frozen=True):
    """The first bytes of a segment. `base` is the journal offset of its first record; `version` its format."""

    cluster: bytes
    group: GroupId
    process: ProcessId
    segment: int
    base: int
    version: int = FORMAT_VERSION

    def encode(self) -> bytes:
        body = _HEADER.pack(_MAGIC, self.version, self.group, self.process, self.segment, self.base, self.cluster, 0)[
            :-4
        ]
        return body + zlib.crc32(body).to_bytes(4, "big")

    @staticmethod
    def is_whole(data: bytes) -> bool:
        """Whether these are the first bytes of a segment, and as they were written."""
        end = HEADER_BYTES - 4
        return zlib.crc32(data[:end]).to_bytes(4, "big") == data[end:HEADER_BYTES]

    @classmethod
    def decode(cls, data: bytes, name: str) -> SegmentHeader:
        """JournalError, naming the file, if these are not the first bytes of a segment that we can read."""
        if len(data) < HEADER_BYTES or data[:8] != _MAGIC:
            raise JournalError(f"{name}: not a journal segment")
        _, version, group, process, segment, base, cluster, _ = _HEADER.unpack_from(data)
        if version > FORMAT_VERSION:
            raise JournalError(
                f"{name}: journal format {version} is newer than this program's {FORMAT_VERSION}; use a newer release"
            )
        if not cls.is_whole(data):
            raise JournalError(f"{name}: the segment header is damaged")
        return cls(cluster, group, process, segment, base, version)

    def check_owner(self, name: str, cluster: bytes, group: GroupId, process: ProcessId) -> None:
        """JournalError, naming the file, unless it is of this process."""
        if self.cluster != cluster:
            raise JournalError(
                f"{name} belongs to cluster {self.cluster.hex()}, not to {cluster.hex()}; use the directory of this"
                " cluster"
            )
        if (self.group, self.process) != (group, process):
            raise JournalError(
                f"{name} belongs to process {self.process} of group {self.group}, not to process {process} of group"
                f" {group}; use the directory of this process"
            )


class Started(msgspec.Struct, array_like=True, gc=False):
    """A life begins. incarnation: unique per life. at: the host's clock, microseconds."""

    incarnation: int
    process: ProcessId
    group: GroupId
    members: dict[GroupId, tuple[ProcessId, ...]]
    protocol: str
    durability: str
    at: int


class Stopped(msgspec.Struct, array_like=True, gc=False):
    """A life ended in good order. delivered, completed: positions reached."""

    delivered: int
    completed: int
    at: int


class Put(msgspec.Struct, array_like=True, gc=False):
    key: bytes
    value: bytes


class Delete(msgspec.Struct, array_like=True, gc=False):
    key: bytes


class Submitted(msgspec.Struct, array_like=True, gc=False):
    """This process multicast a message."""

    id: MessageId
    destinations: tuple[GroupId, ...]
    at: int


class Delivered(msgspec.Struct, array_like=True, gc=False):
    """A delivery. position: counts final ones; 0 for an optimistic one. expired: its timestamp is later than its id's
    creation plus the deduplication window: it must have no effect. installed_from: None, or the peer whose journal it
    came from. note: what the protocol wants to know of it when it installs it elsewhere."""

    position: int
    timestamp: Timestamp
    stage: int
    expired: bool
    message: AppMessage
    at: int
    installed_from: ProcessId | None = None
    note: bytes = b""


class Place(NamedTuple):
    """Where a payload stands in a journal: `length` bytes from journal offset `offset` on, whose CRC-32 is `crc`."""

    offset: int
    length: int
    crc: int


class DeliveredReference(msgspec.Struct, array_like=True, gc=False):
    """A `Delivered` without its message's payload; offset, length, crc: its `Place`. The other fields are those of
    `Delivered` and of its message."""

    position: int
    timestamp: Timestamp
    stage: int
    expired: bool
    id: MessageId
    destinations: tuple[GroupId, ...]
    origin: ProcessId
    offset: int
    length: int
    crc: int
    at: int
    installed_from: ProcessId | None = None
    note: bytes = b""

    @property
    def places(self) -> list[Place]:
        return [Place(self.offset, self.length, self.crc)]

    def filled_in(self, payload: bytes) -> Delivered:
        """The record that it stands for, given the payload that stands at its place."""
        message = AppMessage(self.id, self.destinations, payload, self.origin)
        return Delivered(
            self.position, self.timestamp, self.stage, self.expired, message, self.at, self.installed_from, self.note
        )


class PutReference(msgspec.Struct, array_like=True, gc=False):
    """A `Put` without payloads that its value contains: one between each two of these pieces, from these places."""

    key: bytes
    pieces: list[bytes]
    places: list[Place]

    def filled_in(self, *payloads: bytes) -> Put:
        """The record that it stands for, given the payloads that stand at its places."""
        rest = [part for pair in zip(payloads, self.pieces[1:], strict=True) for part in pair]
        return Put(self.key, b"".join([self.pieces[0], *rest]))


class Completed(msgspec.Struct, array_like=True, gc=False):
    """The outcome of a delivery; `record` is the application's (the store's: `kvstore.core.audit`)."""

    position: int
    record: bytes
    at: int


class Installed(msgspec.Struct, array_like=True, gc=False):
    """From here on this replica holds what its group had after delivery number `position`, at `timestamp`, taken from
    `peer` as a snapshot (`multicast.snapshot`): what it lacks before that it never delivers. digest: of the
    application's state then."""

    position: int
    timestamp: Timestamp
    digest: bytes
    peer: ProcessId
    at: int


class Base(msgspec.Struct, array_like=True, gc=False):
    """Some of what the application held from the beginning: its group began with a state that others had made
    (`multicast.install`). `record` is the application's (the store's: `kvstore.core.audit`)."""

    record: bytes


class Members(msgspec.Struct, array_like=True, gc=False):
    """From here on this process knows these members of the groups, who may have changed (`multicast.membership`), after
    so many deliveries."""

    groups: dict[GroupId, tuple[ProcessId, ...]]
    position: int
    at: int


class BatchEnd(msgspec.Struct, array_like=True, gc=False):
    """What stands before it was appended and synced as one: a replica that finds records after the last one cuts
    them."""

    batch: int


_TYPES: dict[int, type] = {
    STARTED: Started,
    STOPPED: Stopped,
    PUT: Put,
    DELETE: Delete,
    SUBMITTED: Submitted,
    DELIVERED: Delivered,
    COMPLETED: Completed,
    BATCH_END: BatchEnd,
    DELIVERED_REFERENCE: DeliveredReference,
    PUT_REFERENCE: PutReference,
    INSTALLED: Installed,
    BASE: Base,
    MEMBERS: Members,
}
_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[int, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(type_) for kind, type_ in _TYPES.items()
}
_TRUNCATED = "Input data was truncated"
_KIND_BYTES = {type_: bytes([kind]) for kind, type_ in _TYPES.items()}


def encode_record(record: Any) -> bytes:
    """The record as it stands in a journal, with length and checksum. AssertionError if none so large is read again."""
    body = _KIND_BYTES[type(record)] + _encode(record)
    if len(body) > RECORD_BYTES_MAX:
        raise AssertionError(f"a {type(record).__name__} of {len(body)} bytes; the limit is {RECORD_BYTES_MAX}")
    return _FRAME.pack(len(body), zlib.crc32(body)) + body


def decode_body(kind: int, body: bytes | memoryview) -> Any:
    """The record of one of the structs above. JournalError if it is of no kind that we know or malformed."""
    decoder = _decoders.get(kind)
    if decoder is None:
        raise JournalError(f"unknown record kind {kind}")
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise JournalError(f"malformed record of kind {kind}: {error}") from None


class Damage(msgspec.Struct, frozen=True):
    """Where scanning a segment stopped short of its end. at: byte position in the file."""

    at: int
    reason: str


def scan(data: bytes | memoryview, start: int = HEADER_BYTES) -> Iterator[tuple[int, int, memoryview] | Damage]:
    """(position in the file, kind, body) of every good record from byte `start` on; at the first bad one, a Damage,
    last."""
    view = memoryview(data)
    at, end = start, len(view)
    while at < end:
        if end - at < FRAME_BYTES + 1:
            yield Damage(at, "a record is cut short")
            return
        length, crc = _FRAME.unpack_from(view, at)
        if length < 1 or length > RECORD_BYTES_MAX:
            yield Damage(at, f"impossible record length {length}")
            return
        if end - at - FRAME_BYTES < length:
            yield Damage(at, "a record is cut short")
            return
        body = view[at + FRAME_BYTES : at + FRAME_BYTES + length]
        if zlib.crc32(body) != crc:
            yield Damage(at, "a record's checksum does not match")
            return
        yield at, body[0], body[1:]
        at += FRAME_BYTES + length


def batch_after(data: bytes, damaged: int) -> bool:
    """Whether the end of a batch stands anywhere behind the record at byte `damaged`. Then what is damaged was once
    whole: an append is cut short at its end, it does not lose its middle. If that record is what is cut short, all that
    follows is of it, whatever a client has made it look like."""
    start = damaged + 1
    if _is_cut_short(data, damaged):
        return False
    at = data.find(bytes([BATCH_END, 0x91]), start)
    while at >= 0:
        frame = at - FRAME_BYTES
        length = int.from_bytes(data[frame : frame + 4], "big")
        if frame >= start and 3 <= length <= 11 and len(data) - at >= length:
            crc = int.from_bytes(data[frame + 4 : at], "big")
            body = data[at : at + length]
            if zlib.crc32(body) == crc:
                return True
        at = data.find(bytes([BATCH_END, 0x91]), at + 1)
    return False


def _is_cut_short(data: bytes, at: int) -> bool:
    """Whether these are the first bytes of a record. One that is whole, and whose length is not, ends earlier."""
    try:
        msgspec.msgpack.decode(memoryview(data)[at + FRAME_BYTES + 1 :])
    except (msgspec.DecodeError, RecursionError) as error:
        return str(error) == _TRUNCATED and int.from_bytes(data[at : at + 4], "big") > len(data) - at - FRAME_BYTES
    return False
