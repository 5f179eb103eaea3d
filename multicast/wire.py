"""What travels between processes: channels, message encoding, greetings, limits.

A link is one connection from a sender to a receiver. It opens with `Hello` one way and `Welcome` back (see
`multicast.session`). Then messages go one way and cumulative acknowledgements the other. A message is one byte of
channel (whose vocabulary it belongs to) and a msgpack array that begins with the type's tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

import msgspec

from multicast.protocol import PeerError
from multicast.records import Delivered
from multicast.types import ProcessId, Timestamp

WIRE_VERSION = 3
FRAME_BYTES_MAX = 64 * 1024 * 1024

PROTOCOL = 0
APPLICATION = 1
HOST = 2

MALFORMED = (msgspec.MsgspecError, ValueError, RecursionError)
"""What decoding raises of bytes that are no message. RecursionError: they are nested too deep, perhaps behind all that
one is to have."""


class Hello(msgspec.Struct, array_like=True):
    """Sender to receiver, first. `epoch` counts the sender's queue losses; `first` is the first sequence number it
    has. life, length: of its journal. place: see `multicast.runtime.fence.Places`. alike: see
    `multicast.protocol.Options`; empty, as older releases have it: not told."""

    version: int
    cluster: bytes
    sender: ProcessId
    receiver: ProcessId
    incarnation: int
    epoch: int
    first: int
    life: int = 0
    length: int = 0
    place: bytes = b""
    alike: dict[str, str] = {}


class Welcome(msgspec.Struct, array_like=True):
    """Receiver to sender: everything up to `received` is processed and flushed. `refusal`: why not, else empty; fenced:
    because of the sender's disk, which must not go on. life, length: of the receiver's journal."""

    version: int
    incarnation: int
    received: int
    refusal: str = ""
    fenced: bool = False
    life: int = 0
    length: int = 0


class CatchUpRequest(msgspec.Struct, array_like=True, tag=1, gc=False):
    """Send me your final deliveries from this position on."""

    position: int


class CatchUpReply(msgspec.Struct, array_like=True, tag=2, gc=False):
    """Consecutive final deliveries with what the peer knows of their outcomes. more: ask again for what follows."""

    deliveries: list[tuple[Delivered, bytes | None]]
    more: bool


class ClockProbe(msgspec.Struct, array_like=True, tag=3, gc=False):
    """What does your wall clock show? sent: the asker's own time, for its own use. See `multicast.discipline`."""

    sent: int


class ClockReading(msgspec.Struct, array_like=True, tag=4, gc=False):
    """This, in microseconds since 1970. sent: from the probe."""

    sent: int
    wall: int


class Gone(msgspec.Struct, array_like=True, tag=5, gc=False):
    """What you have asked for is no longer in my journal, which holds only deliveries after number `floor`."""

    floor: int


class SnapshotRequest(msgspec.Struct, array_like=True, tag=6, gc=False):
    """Send me what follows row `after` of your snapshot of this position. 0: of any; the first chunk of another one is
    an answer, too. timestamp: of the delivery at that position. See `multicast.snapshot`."""

    position: int
    timestamp: Timestamp
    after: bytes


class SnapshotChunk(msgspec.Struct, array_like=True, tag=7, gc=False):
    """Rows of a snapshot, the first of them following `after`, empty at the beginning. next: what to ask after for the
    rest; empty at the end. total: about how many rows there are in all."""

    bulk: ClassVar[bool] = True
    position: int
    timestamp: Timestamp
    after: bytes
    rows: list[tuple[bytes, bytes]]
    next: bytes
    total: int


HOST_MESSAGES = (CatchUpRequest, CatchUpReply, ClockProbe, ClockReading, Gone, SnapshotRequest, SnapshotChunk)


def tagged_union(types: Sequence[type]) -> Any:
    """The msgspec type for decoding any of these."""
    union: Any = types[0]
    for type_ in types[1:]:
        union = union | type_
    return union


@cache
def _decoder(types: tuple[type, ...]) -> msgspec.msgpack.Decoder[Any] | None:
    return msgspec.msgpack.Decoder(tagged_union(types)) if types else None


class Codec:
    """Encodes and decodes the messages of a protocol, an application and the host."""

    def __init__(self, protocol_messages: Sequence[type], application_messages: Sequence[type] = ()):
        self._encode = msgspec.msgpack.Encoder().encode
        vocabularies = (protocol_messages, application_messages, HOST_MESSAGES)
        self._decoders = [_decoder(tuple(types)) for types in vocabularies]

    def encode(self, channel: int, message: Any) -> bytes:
        return b"%c%b" % (channel, self._encode(message))

    def decode(self, data: bytes) -> tuple[int, Any]:
        """(channel, message). PeerError for what no correct peer sends."""
        if not data or data[0] >= len(self._decoders):
            raise PeerError(f"unknown channel {data[:1].hex() or 'in an empty message'}")
        decoder = self._decoders[data[0]]
        if decoder is None:
            raise PeerError(f"nobody listens on channel {data[0]}")
        try:
            return data[0], decoder.decode(memoryview(data)[1:])
        except MALFORMED as error:
            raise PeerError(f"malformed message on channel {data[0]}: {error}") from None
