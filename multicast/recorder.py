"""What a process writes into its journal in one life: records, batch by batch, every payload once. Pure.

Theory of operation. What a process accepts it puts, payload and all, before it vouches for it. So when the message is
delivered its payload stands in the journal already, and the record of the delivery says where instead of repeating it.
Such a reference leads backwards, to a batch that is on disk if its own is, and never to before this life: a journal is
cut only at its end, between two lives. A payload whose place is not known is written where it is needed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from multicast import records
from multicast.protocol import Change
from multicast.records import encode_record
from multicast.types import FINAL, AppMessage, MessageId

PLACES_MAX = 16_384
"""The places of so many payloads are remembered: of messages that were put and not finally delivered."""
PAYLOAD_BYTES_MIN = 24
"""A shorter payload is not worth a reference, which takes about half as much."""


class Recorder:
    """offset: the journal offset at the end of what was recorded. Recovery sets it to the end of what there was."""

    def __init__(self, places_max: int = PLACES_MAX) -> None:
        self.offset = 0
        self._batch: list[bytes] = []
        self._places_max = places_max
        self._places: dict[MessageId, tuple[int, int]] = {}

    @property
    def empty(self) -> bool:
        """Whether the batch has no record yet."""
        return not self._batch

    def record(self, record: Any) -> None:
        """Add this record to the batch."""
        data = encode_record(record)
        self._batch.append(data)
        self.offset += len(data)

    def change(self, changes: Iterable[Change]) -> None:
        """Add what was put and deleted. Deliveries that are recorded later can refer to it. AssertionError for a put
        that does not carry what it says."""
        for key, value, carries in changes:
            if value is None:
                self.record(records.Delete(key))
            else:
                self.record(records.Put(key, value))
                if carries:
                    self._remember(value, carries)

    def _remember(self, value: bytes, carries: Sequence[AppMessage]) -> None:
        """The value stands at the end of the last record."""
        start, at, places = self.offset - len(value), 0, self._places
        for message in carries:
            payload = message.payload
            at = value.find(payload, at)
            if at < 0:
                raise AssertionError(f"what was put does not contain the payload of {message.id.hex()}")
            if len(payload) >= PAYLOAD_BYTES_MIN:
                places.pop(message.id, None)
                places[message.id] = (start + at, zlib.crc32(payload))
            at += len(payload)
        while len(places) > self._places_max:
            del places[next(iter(places))]

    def deliver(self, delivery: records.Delivered) -> None:
        """Add a delivery."""
        message = delivery.message
        offset, crc = self._places.get(message.id, (0, 0))
        if delivery.stage == FINAL:
            self._places.pop(message.id, None)
        if not offset or zlib.crc32(message.payload) != crc:  # another payload was put under this id
            self.record(delivery)
            return
        self.record(
            records.DeliveredReference(
                delivery.position, delivery.timestamp, delivery.stage, delivery.expired, message.id,
                message.destinations, message.origin, offset, len(message.payload), crc, delivery.at,
                delivery.installed_from, delivery.note,
            )
        )  # fmt: skip

    def take(self, number: int) -> bytes:
        """The batch, with this number at its end; the next one begins."""
        self.record(records.BatchEnd(number))
        batch = b"".join(self._batch)
        self._batch.clear()
        return batch
