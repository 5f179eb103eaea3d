"""What clients for values that a `Codec` makes into bytes give and take: see `with_codec` of the clients."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypedDict, TypeVar

from client_sdk.codecs import Codec
from kvstore.api.events import Event
from kvstore.api.model import Consistency, KeyValue
from multicast.types import MessageId, Timestamp

V = TypeVar("V")


class Entry(NamedTuple, Generic[V]):
    """A key and its value; the rest as in `KeyValue`."""

    key: bytes
    value: V
    version: Timestamp
    create_version: Timestamp
    lease: bytes


class Update(NamedTuple, Generic[V]):
    """What a watch tells of one key. value: None if it was deleted. version: of the transaction."""

    key: bytes
    value: V | None
    version: Timestamp


class Reading(TypedDict, total=False):
    """See `get` of the clients."""

    version: Timestamp
    consistency: Consistency
    max_age: float
    timeout: float


class Writing(TypedDict, total=False):
    """See `put` of the clients."""

    if_version: Timestamp
    if_absent: bool
    lease: bytes
    message_id: MessageId
    timeout: float


class Scanning(Reading, total=False):
    """See `scan` of the clients."""

    start: bytes | str
    end: bytes | str
    reverse: bool
    page_size: int


class Watching(TypedDict, total=False):
    """See `watch` of the clients."""

    key: bytes | str
    start: bytes | str
    end: bytes | str
    after: Timestamp
    timeout: float


class Values(Generic[V]):
    """Reads what clients get."""

    def __init__(self, codec: Codec[V]):
        self.codec = codec

    def entry(self, found: KeyValue) -> Entry[V]:
        """Undecodable."""
        value = self.codec.read(found.key, found.value)
        return Entry(found.key, value, found.version, found.create_version, found.lease)

    def updates(self, event: Event) -> list[Update[V]]:
        """Undecodable."""
        read = self.codec.read
        return [Update(k, None if data is None else read(k, data), event.version) for k, data in event.changes]
