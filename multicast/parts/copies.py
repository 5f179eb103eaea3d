"""Deliveries of which two may be of one id: copies that several groups, or processes, have brought into one order.

A message may be multicast again through another process. All copies are ordered; the first one in the order is
delivered, the others are dropped: alike everywhere, since all destinations see all copies in one order. With a
deduplication window ids are remembered for two windows; a copy that is stamped later than that is delivered again,
expired, maybe before the first delivery is settled. Whichever is settled first lets the id be forgotten.

Durable, besides what parts.delivered keeps: `m` + id -> destinations, until the message is settled.
"""

from __future__ import annotations

import msgspec

from multicast.parts.delivered import DeliveredLog
from multicast.parts.window import Window
from multicast.protocol import Outbox
from multicast.types import AppMessage, GroupId, MessageId, Timestamp

_PREFIX = b"m"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[GroupId, ...]).decode


class CopiesLog(DeliveredLog):
    """The deliveries of one process."""

    def recover(self, values: dict[bytes, bytes], position: int) -> None:
        """From what was saved."""
        destinations = {k[1:]: _decode(v) for k, v in values.items() if k[:1] == _PREFIX and len(k) == 17}
        self.restore(values, position, lambda message_id, _: destinations.get(message_id))

    def delivered(self, message: AppMessage, timestamp: Timestamp, out: Outbox) -> None:
        """The next delivery, or installation."""
        self.add(message.id, message.destinations, timestamp, out)
        out.put(_PREFIX + message.id, _encode(message.destinations))

    def is_repeated(self, message_id: MessageId, timestamp: Timestamp) -> bool:
        """Whether a copy of this message was delivered not long before: everybody who delivered that one knows it for
        two windows. Later copies are delivered, expired."""
        known = self.known(message_id)
        return known is not None and not Window(self._window_us).is_new_copy(message_id, timestamp.time, known[0])

    def _settle(self, group: GroupId, out: Outbox) -> list[MessageId]:
        settled = super()._settle(group, out)
        for message_id in settled:
            out.delete(_PREFIX + message_id)
        return settled

    def _forget(self, message_id: MessageId, out: Outbox) -> None:
        if self.known(message_id) is not None:
            super()._forget(message_id, out)
