"""The sequence T of a group's proposed messages, as one process has it (PrimCast, Algorithm 1, lines 38, 43, 71, 72).

T has absolute places, 0, 1, 2, ... A place is empty if what was there had been installed here before, or if it
is settled and dropped, here or at the member from whom this process has its T. Who lacks in T what was dropped must not
deliver beyond it on its own: up to `reach`, the highest position of what was dropped, it installs deliveries from its
peers' journals.

A primary proposes for the next place. What it proposes for a later one waits: the channel has lost something, or a
payload is missing. A follower that finds its T shorter than its primary's was one heartbeat ago fetches the rest; so
does, at once, one that had no room for more proposals to wait, when it has placed those for which it had.

    message   from -> to             durable before it leaves
    Fetch     follower -> primary    -
    Refill    primary -> follower    the clock that it tells

Beside T's messages stand those that this process has only heard of. Durable: `m` + id -> each message of T.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from multicast.parts.delivered import KNOWN_PREFIX, DeliveredLog
from multicast.parts.history import History, Views
from multicast.parts.patience import Patience
from multicast.parts.portions import Assembly, Portion, split
from multicast.parts.stamps import Entry, EntryState, HasQuorum, Stamp
from multicast.parts.window import Window
from multicast.protocol import Outbox
from multicast.types import AppMessage, Ballot, GroupId, MessageId, ProcessId, Timestamp

_ENTRY_PREFIX = b"m"
STATE_KEY = b"c"
"""Under it a process keeps its clock, and T's length and reach."""


class Fetch(msgspec.Struct, array_like=True, tag=124, gc=False):
    """My T ends before place `length`, yours does not."""

    epoch: Ballot
    length: int


class Refill(Portion, array_like=True, tag=125, gc=False):
    """What T holds from place `first` to `length`; what is not there is settled, up to `reach`. clock: of the
    primary."""

    epoch: Ballot
    first: int
    clock: int
    length: int
    reach: int
    entries: list[EntryState]


class Sequence:
    """At a process of `group`. has_quorum: see `Topology`. early_max: how many proposals wait at most.

    entries: all messages that are not settled, in T or only heard of. length: T ends before this place. reach: see the
    module.
    """

    def __init__(self, group: GroupId, has_quorum: HasQuorum, early_max: int):
        self.entries: dict[MessageId, Entry] = {}
        self.length = 0
        self.reach = 0
        self._group = group
        self._has_quorum = has_quorum
        self._early_max = early_max
        self._places: dict[int, Entry] = {}
        self._expected: dict[int, Stamp] = {}
        self._dropped = self._primarys_length = 0
        self._assembly: Assembly[EntryState] = Assembly()
        self._patience = Patience()

    def __len__(self) -> int:
        """How many places hold something."""
        return len(self._places)

    def restore(self, values: Mapping[bytes, bytes], now: int) -> None:
        """From what is on disk."""
        for key, value in values.items():
            if key[:1] == _ENTRY_PREFIX:
                state = _decode(value)
                entry = self.pending(state.message.id, now)
                entry.take(state.message)
                entry.place, entry.epoch, entry.ts = state.place, state.epoch, state.ts
                self._put(entry)

    # -- messages -----------------------------------------------------------------------------------------------------

    def pending(self, message_id: MessageId, now: int) -> Entry:
        """The entry of a message that is not delivered; a new one also if an earlier copy of it was. (Then that one is
        settled: the group stamps again only what it has forgotten.)"""
        old = self.entries.get(message_id)
        if old is not None and not old.position:
            return old
        entry = self.entries[message_id] = Entry(message_id, self._group, now)
        if old is not None:
            self._leave_out(old)
            if old.message is not None:
                entry.take(old.message)
        return entry

    def place(self, entry: Entry, stamp: Stamp, out: Outbox) -> None:
        """T has this message at this place. Whatever T had there before is settled, and will be installed."""
        self._places.pop(entry.place, None)
        entry.put(stamp, self._has_quorum)
        self._put(entry)
        self._save(entry, out)

    def install(self, message: AppMessage, epoch: Ballot, ts: int, now: int, out: Outbox) -> Entry:
        """A message was delivered elsewhere, with this stamp."""
        entry = self.pending(message.id, now)
        entry.take(message)
        entry.epoch, entry.ts = epoch, ts
        self._save(entry, out)
        return entry

    def forget(self, entry: Entry, out: Outbox) -> None:
        """Nobody needs this message here any more: it is settled, or void."""
        if entry.position:
            self._leave_out(entry)
        self._places.pop(entry.place, None)
        del self.entries[entry.id]
        out.delete(_ENTRY_PREFIX + entry.id)

    def forget_earlier(self, entry: Entry, out: Outbox) -> None:
        """The delivered copy before this one is settled: it is on disk until this one is in T."""
        if entry.epoch is None:
            out.delete(_ENTRY_PREFIX + entry.id)

    def _put(self, entry: Entry) -> None:
        if entry.place >= 0:
            self._places[entry.place] = entry

    def _leave_out(self, entry: Entry) -> None:
        self._places.pop(entry.place, None)
        self.reach = max(self.reach, entry.position)

    def _save(self, entry: Entry, out: Outbox) -> None:
        out.put(_ENTRY_PREFIX + entry.id, _encode(state := entry.state()), carries=(state.message,))

    # -- a whole T ----------------------------------------------------------------------------------------------------

    def states(self) -> list[EntryState]:
        """All that T holds, and what was delivered of it at unknown places."""
        return [e.state() for e in self.entries.values() if e.epoch is not None and e.message is not None]

    def begin(self, kept: Iterable[MessageId], length: int, reach: int, out: Outbox) -> None:
        """Take over another T, of this length. It is empty until its messages, of which `kept` are here, are placed;
        messages that were delivered here stay, without a place."""
        self._places.clear()
        self.forget_proposals()
        self._primarys_length = 0
        self.length = length
        self.reach = max(self.reach, reach)
        given = set(kept)
        for entry in self.entries.values():
            entry.place = -1
            if not entry.position and entry.epoch is not None:
                entry.take_out()
                if entry.id not in given:
                    out.delete(_ENTRY_PREFIX + entry.id)

    # -- proposals ----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many proposals wait."""
        return len(self._expected)

    def expect(self, proposal: Stamp) -> None:
        """The primary proposes this. What is next never comes too early."""
        if proposal.place == self.length or (proposal.place > self.length and len(self._expected) < self._early_max):
            self._expected[proposal.place] = proposal
        else:
            self._dropped = max(self._dropped, proposal.place + 1)

    def next(self) -> Stamp | None:
        """The proposal for the next place, if it has come."""
        return self._expected.get(self.length)

    def extend(self, length: int) -> None:
        """All places before this one are filled, or empty for good."""
        if length - self.length > len(self._expected):  # who was away for long lacks millions of places
            self._expected = {place: proposal for place, proposal in self._expected.items() if place >= length}
        else:
            for place in range(self.length, length):
                self._expected.pop(place, None)
        self.length = max(self.length, length)

    def forget_proposals(self) -> None:
        """The epoch of the waiting proposals is over, and of the answers that have come in part."""
        self._expected.clear()
        self._dropped = 0
        self._assembly.clear()
        self._patience.over()

    # -- what was lost on the way -------------------------------------------------------------------------------------

    def fetch_dropped(self, primary: ProcessId, epoch: Ballot, out: Outbox) -> None:
        """What came too early, and was not kept, is due now if nothing waits any more."""
        if self._dropped > self.length and not self._expected:
            out.send((primary,), Fetch(epoch, self.length))
            self._dropped = 0

    def compare(self, primary: ProcessId, epoch: Ballot, length: int, out: Outbox) -> None:
        """The primary's T has this length: that of one heartbeat ago should be here by now, or the answer is on its
        way."""
        if self._primarys_length > self.length:
            if self._patience.asks():
                out.send((primary,), Fetch(epoch, self.length))
        else:
            self._patience.over()
        self._primarys_length = length

    def refill(self, fetch: Fetch, clock: int, portion_bytes: int) -> list[Refill]:
        """The answer to a follower whose T is short, in portions."""
        first = fetch.length
        if self.length - first > len(self._places):
            chosen = sorted((e for place, e in self._places.items() if place >= first), key=lambda e: e.place)
        else:
            chosen = [self._places[place] for place in range(first, self.length) if place in self._places]
        states = [entry.state() for entry in chosen]
        whole = Refill(fetch.epoch, first, clock, self.length, self.reach, states)
        return split(whole, lambda state: len(state.message.payload), portion_bytes)

    def missing(self, sender: ProcessId, refill: Refill) -> list[EntryState] | None:
        """What of this answer is to be placed here, once its last portion has come; then T is to be extended to its
        length."""
        entries = self._assembly.add(sender, refill.number, refill.count, refill.entries)
        if entries is None or refill.first > self.length or refill.length <= self.length:
            self._patience.comes()
            return None
        self._patience.over()
        self.reach = max(self.reach, refill.reach)
        return [state for state in entries if state.place >= self.length]

    def on_peer_reset(self, peer: ProcessId) -> None:
        """What was under way from this peer is lost."""
        self._assembly.forget(peer)
        self._patience.over()


class SequenceHistory(History[Entry]):
    """Of T, in a snapshot: what was delivered, without its places, as if it was installed one by one. Who takes it
    keeps later copies. What it had in T for so long that its group may have forgotten the delivery, it drops. Nobody
    who has its T delivers, without these deliveries, beyond what T lacks of them (`reach`); more need not be in
    anybody's journal but that of who gave it."""

    def __init__(self, log: DeliveredLog, t: Sequence, window: Window, views: Views):
        super().__init__(log, t.entries, _ENTRY_PREFIX, _encode_delivered, views, self._is_copy_after)
        self._window = window

    def _is_copy_after(self, value: bytes, delivered: Timestamp) -> bool:
        state = _decode(value)
        return self._window.is_new_copy(state.message.id, state.ts, delivered)

    def taken(
        self, own: Mapping[bytes, bytes], given: Mapping[bytes, bytes], position: int, timestamp: Timestamp
    ) -> Mapping[bytes, bytes | None]:
        taken: dict[bytes, bytes | None] = {**super().taken(own, given, position, timestamp)}
        for key, value in own.items():
            known = KNOWN_PREFIX + key[1:]
            if key[:1] != _ENTRY_PREFIX or known in given or known in own:
                continue
            if self._window.may_be_forgotten(key[1:], _decode(value).ts, timestamp):
                taken[key] = None
        held = {_decode(v).position for k, v in taken.items() if k[:1] == _ENTRY_PREFIX and v is not None}
        lacking = next(p for p in range(position, -1, -1) if p not in held)
        clock, length, reach = decode_state(own[STATE_KEY]) if STATE_KEY in own else (0, 0, 0)
        taken[STATE_KEY] = encode_state((max(clock, timestamp.time), length, max(reach, lacking)))
        return taken


def _encode_delivered(entry: Entry) -> bytes:
    return _encode(msgspec.structs.replace(entry.state(), place=-1))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(EntryState).decode
encode_state = msgspec.msgpack.Encoder().encode
decode_state = msgspec.msgpack.Decoder(tuple[int, int, int]).decode
