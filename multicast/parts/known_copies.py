"""What a process of PrimCast knows under a message's id: whether it holds the message, and which copy it has delivered.

Theory of operation. Under one id there may be an entry (parts.sequence: in T, or only heard of) and a note that the
message was delivered (parts.delivered). With a deduplication window both may be there and be of different copies: the
message was delivered, its group forgot that, and a later copy was stamped anew (parts.stamps). A stamp tells the copies
apart, since nobody stamps a later copy before two windows have passed since the delivery (parts.window). All that the
protocol decides by "was this delivered?" or "is this missing?" is decided here, so that the copies are told apart in
one place.
"""

from __future__ import annotations

from collections.abc import Mapping

from multicast.parts.delivered import DeliveredLog
from multicast.parts.stamps import Entry, EntryState
from multicast.parts.window import Window
from multicast.types import AppMessage, GroupId, MessageId, Timestamp


class KnownCopies:
    """At a process of `group`. entries: all messages that are not settled. log: this process's deliveries."""

    def __init__(self, group: GroupId, entries: Mapping[MessageId, Entry], log: DeliveredLog, window: Window):
        self._group, self._entries, self._log, self._window = group, entries, log, window

    # -- delivered ----------------------------------------------------------------------------------------------------

    def delivered_at(self, message_id: MessageId) -> Timestamp | None:
        """When this process delivered a message of which it has no later copy."""
        entry, known = self._entries.get(message_id), self._log.known(message_id)
        return known[0] if known is not None and (entry is None or entry.position) else None

    def delivered_as(self, message_id: MessageId, ts: int) -> int:
        """The position at which the copy with this stamp was delivered here; 0 if it was not, as far as this process
        can still know."""
        known = self._log.known(message_id)
        return known[1] if known is not None and not self._window.is_new_copy(message_id, ts, known[0]) else 0

    def is_past(self, state: EntryState) -> bool:
        """Whether this process has delivered this message of a T, and settled and forgotten it since: for an id so old
        the stamp decides, as nothing is delivered before what T has below it."""
        return not state.position and self.is_forgotten(state.message.id, state.ts)

    def is_forgotten(self, message_id: MessageId, ts: int) -> bool:
        """See `is_past`."""
        stamp = Timestamp(ts, self._group)
        if stamp > self._log.timestamp or self._log.known(message_id) is not None:
            return False
        return self._log.may_have_forgotten(message_id, stamp)

    def destinations(self, message_id: MessageId, delivered_at: Timestamp) -> tuple[GroupId, ...] | None:
        """Of a message that was delivered then and is not settled (`DeliveredLog.restore`)."""
        entry = self._entries.get(message_id)
        if entry is None or entry.message is None or entry.ts > delivered_at.time:
            return None
        return self._window.needs(entry.message, delivered_at.time, self._group)

    def is_settled(self, entry: Entry) -> bool:
        """Whether this delivered message is, in all groups that have delivered the same copy."""
        assert entry.message is not None and entry.final is not None
        groups = self._window.needs(entry.message, entry.final.time, self._group)
        return self._log.is_settled(groups, entry.final)

    def settled_at(self, message_id: MessageId) -> Timestamp | None:
        """When a message was delivered that has been dropped here since; None if any copy of it is still held."""
        known = self._log.known(message_id)
        return known[0] if known is not None and message_id not in self._entries else None

    # -- held, or missing ---------------------------------------------------------------------------------------------

    def payload(self, message_id: MessageId) -> AppMessage | None:
        """The message, if this process has it."""
        entry = self._entries.get(message_id)
        return entry.message if entry is not None else None

    def lacks_payload(self, message_id: MessageId) -> bool:
        """Whether this process has heard of the message, and waits for it."""
        entry = self._entries.get(message_id)
        return entry is not None and entry.message is None

    def lacks_start(self, message_id: MessageId) -> bool:
        """Whether this process should be sent the message: it has neither it nor a delivery of it."""
        entry = self._entries.get(message_id)
        return self._log.known(message_id) is None if entry is None else not entry.position and entry.message is None

    def is_void(self, message_id: MessageId, ts: int) -> bool:
        """Whether another group has decided the message late, while the own stamp was in time (parts.stamps, b)."""
        entry = self._entries.get(message_id)
        return entry is not None and entry.is_void(ts, self._window)
