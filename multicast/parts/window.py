"""The deduplication window: which stamps of a message are late. See `Options.dedup_window_us` and parts.delivered."""

from __future__ import annotations

from multicast.types import AppMessage, GroupId, MessageId, Timestamp, created_us

NEVER = 1 << 63
"""Above every stamp."""


class Window:
    """us: for how many microseconds after its creation a message can still be stamped in time; 0: for ever."""

    __slots__ = ("us",)

    def __init__(self, us: int):
        self.us = us

    def limit(self, message_id: MessageId) -> int:
        """The last stamp of this message that is in time."""
        return created_us(message_id) + self.us if self.us else NEVER - 1

    def is_late(self, message_id: MessageId, ts: int) -> bool:
        """Whether a delivery of this message with this stamp, or at this final time, is expired."""
        return ts > self.limit(message_id)

    def needs(self, message: AppMessage, ts: int, group: GroupId) -> tuple[GroupId, ...]:
        """The groups whose stamps make the final timestamp where that of `group`, one's own, is `ts`."""
        return (group,) if self.is_late(message.id, ts) else message.destinations

    def is_new_copy(self, message_id: MessageId, ts: int, final: Timestamp) -> bool:
        """Whether a group that stamps this message so has forgotten its delivery at `final` (parts.delivered)."""
        return self.us > 0 and ts > self.known_until(message_id, final)

    def known_until(self, message_id: MessageId, final: Timestamp) -> int:
        """No stamp up to this one is of a copy that came after the delivery at `final` was forgotten."""
        return max(final.time, created_us(message_id)) + 2 * self.us

    def may_be_forgotten(self, message_id: MessageId, ts: int, reached: Timestamp) -> bool:
        """Whether who has delivered so far may have delivered this message, with this stamp, and forgotten that. Its
        stamp alone does not say it: who stamps without knowing the time stamps low, and other groups do not."""
        return self.us > 0 and max(ts, created_us(message_id)) < reached.time - 2 * self.us
