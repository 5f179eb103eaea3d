"""What a process writes into its journal in one life: records, batch by batch, every payload once. Pure.

Theory of operation. What a process accepts it puts, payload and all, before it vouches for it. So when the message is
put again, or delivered, its payload stands in the journal already, and the record says where instead of repeating it.
Such a reference leads backwards, to a batch that is on disk if its own is, and never to before this life: a journal is
cut only at its end, between two lives. Nor does it lead far: old segments go. A payload whose place is not known is
written where it is needed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from multicast import records
from multicast.protocol import Change
from multicast.records import SEGMENT_BYTES_MAX, Place, encode_record
from multicast.types import FINAL, AppMessage, MessageId, ProcessId, Topology

PLACES_MAX = 16_384
"""How many payloads' places are remembered: of messages that were put and not finally delivered."""
PAYLOAD_BYTES_MIN = 24
"""A shorter payload is not worth a reference, which takes about half as much."""
HEAD_BYTES = 64
"""A payload is looked for by so many bytes, its first ones."""


class Recorder:
    """offset: the journal offset at the end of what was recorded. Recovery sets it to the end of what there was.
    reach: a reference leads no further back, bytes; the journal's `segment_bytes_max`. processes: of all groups, as the
    journal has them."""

    def __init__(self, places_max: int = PLACES_MAX, reach: int = SEGMENT_BYTES_MAX) -> None:
        self.offset = 0
        self.reach = reach
        self.processes: tuple[ProcessId, ...] = ()
        self._batch: list[bytes] = []
        self._places_max = places_max
        self._places: dict[MessageId, Place] = {}

    @property
    def empty(self) -> bool:
        """Whether the batch has no record yet."""
        return not self._batch

    def record(self, record: Any) -> bytes:
        """Add this record to the batch. Returns it as it stands at the batch's end."""
        data = encode_record(record)
        self._batch.append(data)
        self.offset += len(data)
        return data

    def members(self, topology: Topology, position: int, now: int) -> None:
        """The groups have these members from now on, after so many deliveries."""
        if topology.processes is not self.processes:
            if topology.processes != self.processes:
                self.record(records.Members(dict(topology.groups), position, now))
            self.processes = topology.processes

    def change(self, changes: Iterable[Change]) -> None:
        """Add what was put and deleted. What is recorded later can refer to it. AssertionError for a put that does not
        carry what it says."""
        for key, value, carries in changes:
            if value is None:
                self.record(records.Delete(key))
            elif carries:
                self._put(key, value, carries)
            else:
                self.record(records.Put(key, value))

    def _put(self, key: bytes, value: bytes, carries: Sequence[AppMessage]) -> None:
        """Leave out the payloads whose places are known, and remember the others'."""
        pieces: list[bytes] = []
        places: list[Place] = []
        new: list[AppMessage] = []
        begin = at = 0
        for message in carries:
            at = _find(value, message.payload, at)
            if at < 0:
                raise AssertionError(f"what was put does not contain the payload of {message.id.hex()}")
            end = at + len(message.payload)
            place = self._place(message)
            if place is not None:
                pieces.append(value[begin:at])
                places.append(place)
                begin = end
            elif end - at >= PAYLOAD_BYTES_MIN:
                new.append(message)
            at = end
        start = self.offset
        put = records.PutReference(key, [*pieces, value[begin:]], places) if places else records.Put(key, value)
        self._remember(start, self.record(put), new)

    def _remember(self, start: int, data: bytes, carries: list[AppMessage]) -> None:
        """These payloads stand in the record that begins at offset `start`, in this order."""
        at, known = 0, self._places
        for message in carries:
            at = _find(data, message.payload, at)
            length = len(message.payload)
            known.pop(message.id, None)
            known[message.id] = Place(start + at, length, zlib.crc32(message.payload))
            at += length
        while len(known) > self._places_max:
            del known[next(iter(known))]

    def _place(self, message: AppMessage) -> Place | None:
        """The place of this message's payload, if it is known; there may be another payload under the message's id."""
        place = self._places.get(message.id)
        if place is None or place.offset < self.offset - self.reach:
            return None
        if len(message.payload) != place.length or zlib.crc32(message.payload) != place.crc:
            return None
        return place

    def deliver(self, delivery: records.Delivered) -> None:
        """Add a delivery."""
        message = delivery.message
        place = self._place(message)
        if delivery.stage == FINAL:
            self._places.pop(message.id, None)
        if place is None:
            self.record(delivery)
            return
        self.record(
            records.DeliveredReference(
                delivery.position, delivery.timestamp, delivery.stage, delivery.expired, message.id,
                message.destinations, message.origin, *place, delivery.at, delivery.installed_from, delivery.note,
            )
        )  # fmt: skip

    def take(self, number: int) -> bytes:
        """The batch, closed with this number; the next one begins."""
        self.record(records.BatchEnd(number))
        batch = b"".join(self._batch)
        self._batch.clear()
        return batch


def _find(data: bytes, payload: bytes, start: int) -> int:
    """`data.find(payload, start)`, whose preparations take longer the longer the payload is: nearly always it stands
    where its first bytes do."""
    at = data.find(payload[:HEAD_BYTES], start)
    return at if at < 0 or data.startswith(payload, at) else data.find(payload, at + 1)
