"""Which copy of a message White-Box holds under its id.

With a deduplication window a message that was delivered and is settled may be forgotten, and come again later
(parts.delivered). Such a *later copy* is another message under the same id. It is stamped, accepted, committed and
delivered (expired) as any other, also by processes that still know the first one: whoever refused it would have to know
that it is committed nowhere. A leader that knows the first one does not begin a later copy, but takes part in that of
others.

To which copy a stamp or a state belongs, the stamp says: no leader stamps a later copy before two windows have passed
since the delivery (parts.window); one that knows the first copy, and takes part in a later one, sets its clock forward
for that, which may be far behind the others'. A later copy takes the place of the first one

- in a state that a new leader chooses: who knows the first one only as delivered may hide the later one, which perhaps
  is committed;
- at a follower, on its own leader's word, in a state or an ACCEPT;
- on the word of another group, when the first one is settled here. Before, somebody may still ask for it, and who
  stamps it again may be a deposed leader.

The first one is not lost by that: it is in the journals of a quorum. It does not take the place of a later copy, when
it is fetched from one of them.
"""

from __future__ import annotations

from multicast.parts.accepts import ACCEPTED, COMMITTED, START, Entry, EntryState, decode_entry
from multicast.parts.delivered import DeliveredLog
from multicast.parts.window import Window
from multicast.types import GroupId, MessageId, Timestamp


class Entries(dict[MessageId, Entry]):
    """What one process holds of messages that are not settled, or of later copies."""

    def __init__(self, log: DeliveredLog, window: Window):
        super().__init__()
        self._log = log
        self._window = window

    def load(self, state: EntryState, now: int) -> Entry:
        """The entry of a message as the own disk, or a new leader's state, has it."""
        entry = self[state.message.id] = Entry(state.message.id, now)
        entry.take(state)
        return entry

    def destinations(self, message_id: MessageId, delivered: Timestamp) -> tuple[GroupId, ...] | None:
        """See `DeliveredLog.restore`."""
        entry = self.get(message_id)
        if entry is None or entry.message is None or (entry.local is not None and entry.local > delivered):
            return None
        return entry.message.destinations

    def delivered_at(self, message_id: MessageId) -> Timestamp | None:
        """When this process delivered a message of which it has no later copy."""
        if (known := self._log.known(message_id)) is None:
            return None
        entry = self.get(message_id)
        return None if entry is not None and self.is_copy_after(entry, known[0]) else known[0]

    def known_until(self, message_id: MessageId) -> int:
        """A stamp up to this one would be taken for one of a copy that was delivered here before; 0: none was."""
        known = self._log.known(message_id)
        return self._window.known_until(message_id, known[0]) if known is not None else 0

    def of_stamp(self, message_id: MessageId, stamp: Timestamp, own: bool, now: int) -> Entry | Timestamp:
        """The entry to which an ACCEPT belongs, of the own group or another one. If it belongs to a copy that was
        delivered here and needs nothing any more: the timestamp of that delivery."""
        entry, window = self.get(message_id), self._window
        if entry is not None and not (own and entry.phase == COMMITTED and entry.local != stamp and window.us):
            return entry
        known = self._log.known(message_id)
        delivered = entry.final if entry is not None else known[0] if known is not None else None
        if delivered is not None and not window.is_new_copy(message_id, stamp.time, delivered):
            return delivered
        copy = Entry(message_id, now)
        if entry is not None:
            assert delivered is not None
            copy.message = entry.message
            for group, (ballot, other) in entry.accepts.items():
                if window.is_new_copy(message_id, other.time, delivered):
                    copy.accepts[group] = ballot, other
        self[message_id] = copy
        return copy

    def is_copy_after(self, entry: Entry, delivered: Timestamp) -> bool:
        """Whether it is not delivered yet, and a later copy of what was delivered at that time."""
        if entry.position or not self._window.us:
            return False
        stamps = [stamp for _, stamp in entry.accepts.values()]
        if entry.local is not None:
            stamps.append(entry.local)
        return any([self._window.is_new_copy(entry.id, stamp.time, delivered) for stamp in stamps])

    def is_of_later(self, message_id: MessageId, stamp: Timestamp | None, delivered: Timestamp | None) -> bool:
        """Whether a stamp, if there is one, is of a later copy of what was delivered at that time. (If not, it is of
        what was delivered, if perhaps by another stamp of a later ballot.)"""
        if stamp is None or delivered is None:
            return False
        return self._window.is_new_copy(message_id, stamp.time, delivered)

    # -- states -------------------------------------------------------------------------------------------------------

    def outranks(self, state: EntryState, other: EntryState) -> bool:
        """Of two states of one id in votes (line 51), whether the first counts: that of a later copy, else what is
        committed. Of two stamps of one ballot the higher is that of a later copy."""
        if other.final is not None and self._is_later(state, other.final):
            return True
        if state.final is None:
            return other.final is None and state.local > other.local
        return not self._is_later(other, state.final)

    def replaces(self, state: EntryState | None, entry: Entry) -> bool:
        """Whether a state that is taken over has a later copy of what is committed here."""
        return state is not None and entry.final is not None and self._is_later(state, entry.final)

    def put_later(self, value: bytes, delivered: Timestamp) -> bool:
        """See `History`."""
        return self._is_later(decode_entry(value), delivered)

    def _is_later(self, state: EntryState, delivered: Timestamp) -> bool:
        return self._window.is_new_copy(state.message.id, state.local.time, delivered)

    def is_past(self, state: EntryState) -> bool:
        """Whether this process has delivered the message already, although it holds no entry for it any more.

        An accepted stamp below the last delivery proves nothing: the message's final timestamp may still be above. Only
        for an id so old that this process may have forgotten it, the stamp decides; should the message not have been
        delivered after all, its window is over: stamped anew it is delivered expired, as it would have been anyway."""
        log = self._log
        if state.phase == COMMITTED:
            return state.final is None or state.final <= log.timestamp
        known = log.known(state.message.id)
        if known is not None:
            return state.local <= known[0]
        if len(state.message.destinations) == 1:
            return state.local <= log.timestamp  # its final timestamp
        return state.local <= log.timestamp and log.may_have_forgotten(state.message.id, state.local)

    def abandoned(self, before: int, follows: bool) -> list[MessageId]:
        """What nothing was heard of since, and was never accepted here, or, at a follower, was a late copy."""
        old = [entry for entry in self.values() if entry.seen_at < before and not entry.position]
        late = [e.id for e in old if follows and e.phase == ACCEPTED and self.is_past(e.state())]
        return [e.id for e in old if e.phase == START] + late

    def is_dropped_copy(self, entry: Entry) -> bool:
        """An earlier leader dropped this message, as White-Box's deviation 7 says, and the group delivered beyond it;
        this one had it from a follower. (Was it delivered, this leader had delivered it in its place.)"""
        assert entry.final is not None
        return entry.final.time > self._window.limit(entry.id) and entry.final <= self._log.timestamp
