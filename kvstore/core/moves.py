"""Slots that move from one shard to another, under traffic. Pure.

Theory of operation. A move is a sequence of *steps*: transactions of one `Move`, each alone in its bundle, ordered as
any other between the source and the target, by whatever protocol. The source's part of a step brings the next portion
of what it has (`Given`): rows of the slots, in key order, and remembered ids of transactions that touched the slots, in
id order. The target *stages* the rows, where no transaction sees them. What the source changes at or before what it has
given already is *dirty*, and given again, deletions too, in slot order. A step after which nothing is left to give of
the next slots *hands them over*, in slot order: as many as have about a portion of rows, at least one. So a move ends
also if more is written between two steps than one step gives, but for one slot. With it their rows leave the source
and stand in the target, with the versions that they had, and these slots are the target's, as if they had been moved
alone; what the source changes of the others is still dirty. The step that hands over the last slot is the last. So no
step is longer than a portion takes, but for a single slot that has more rows. Who moves slots repeats steps until the
last; so a move goes on whoever dies, and a step of another move of the source begins that one anew, with the slots that
the source still has. Whoever gives a move up says so by steps of no slots: of what its source and its target have kept
for it each takes a portion away, as a move of many rows would else have to before it begins. What a step does is a
function of the logs of its two shards, and of nothing else: the source's part is of its state right before the step,
and what is delivered after a step is looked at only when the step is complete.

Who serves a slot. Each shard knows by its own log which slots it has given, to whom, and which it took (`places`).
A transaction goes to the shards that own its keys by a map that some replica knows; one with a Range to all there are.
With its vote each of them tells which slots of these keys it has given or taken, and when. The latest move of a slot
counts: if it leads to a shard that was not asked, the transaction was *moved*, and has no effect in any of its shards.
    That is so exactly if a slot's owner was not asked. For let k be a key of the transaction, and e the shard that
    owned k's slot by the map. Nobody knows of a move before it is complete somewhere, and then it is delivered in both
    shards (see signals); the transaction was multicast after that. So e owned the slot at some point of its log before
    the transaction, and if nobody tells of the slot it still does. Else let x be where the latest move that is told
    of has led. If x was asked it owns the slot: had it given it away below the transaction, it would tell of that, and
    that is later. And if the owner was asked, it has the slot by the slot's latest move of all, and tells of it. (What
    a shard that gave the slot says alone is not enough: it does not hear of the moves that follow.)
    Only one shard owns a slot: the places of its moves in the order are points of both logs, so below a move's
    timestamp the source serves, above it the target.
Maps only help to find the shards: replicas tell one another what their shards have given and taken, the latest move of
a slot counts, and who is told *moved* asks again, under the same id, when the map is another one. A transaction with a
Range, a Cut or a Rule has all slots: it goes to all shards that its replica knows, and those at first are always among
them, so that what holds of a key holds of each slot.

Shards that were added (`multicast.parts.founding`). With the first move to it, which may be of no slots, such a shard
gets a slot that is its own (`own_slot`), and is known by that: nothing but steps of moves goes to it before, and from
then on whatever has all slots, by whoever has not heard of it, too. With that move it gets the rights of the source, as
they are at the step's place in the order; a change of them goes to all shards that have begun, or has no effect. So
every shard judges by the same ones.

What was overwritten stays where it was: from a move on both shards read at no version before it (`forget_past`), so
that a read at a version of all shards finds each row once.

Once. A transaction's digest is of its body and of where its keys were at first, which no move changes. With a slot go
the remembered ids that touched it; so whoever owns a key of a repetition, wherever that was served the first time,
knows the id. A shard that knows it votes *repeated* (and *reused* if it is of another body), so that the shards that
know nothing of it leave it alone, wherever slots have gone: who only hears later how it ended, of one who remembers the
first time, calls it the same. What a shard has read of a range it tells itself; so a shard that was added says of a
transaction with one, that it does not know, that it has nothing of the first time, and never that there was none: those
that were there at first know. What was moved has had no effect, and its id may be used again. As long as a copy of
an id is in the log, what the next one is called is open; votes on it wait (`kvstore.core.log`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from kvstore.api.model import (
    RANGE_BYTES_MAX,
    RANGES,
    RESULT_BYTES_MAX,
    SLOTS,
    Cut,
    KeyValue,
    Move,
    OperationResult,
    Rule,
    Transaction,
    move_of,
    operations_of,
)
from kvstore.api.shard_map import (
    Place,
    PlacedRun,
    ShardMap,
    add_places,
    decode_places,
    encode_places,
    is_everywhere,
    own_slot,
    places_of,
    ranges_of,
    runs_of,
    slot_of,
    slots_of,
)
from kvstore.core.audit import APPLIED, FAILED, MOVED, Given, MovedRow
from kvstore.core.bundles import last_version
from kvstore.core.messages import Remembered, decode_remembered
from kvstore.core.requests import forgotten_before
from kvstore.core.rights import Rights
from kvstore.core.rows import decode_row, encode_row
from kvstore.core.state import PLACES, State
from multicast.types import ZERO, GroupId, MessageId, Timestamp

PORTION = 2000
"""Rows, and ids, that one step looks at; about RANGE_BYTES_MAX of rows, as much of those that were given before, and as
much of those that are handed over."""

DIRTY_PORTIONS = 4
"""So many portions of rows that have changed are looked at, to find those of the first slots."""

LEAVING = b"leaving"
GIVEN, DIRTY, DIRTY_ID, STAGED = b"g", b"d", b"i", b"s"
"""With these begin the keys of notes. In the source: slot, key -> the length of its value, of rows that were given;
rows and ids that have changed since. In the target: source, slot, key -> row, of what it has staged."""
OLD = b"old"
"""The key of a note in the source: what it has of given rows and of changes is of a move that was given up."""
_EVERY_SLOT = (*RANGES, Cut, Rule)
_ALL = b"\xff" * 401
"""Greater than any key or id: all has been looked at."""


class Leaving(msgspec.Struct, array_like=True):
    """A move that this shard is the source of, and how far it has come. slots_to: the last slot handed over."""

    target: GroupId
    slots: tuple[tuple[int, int], ...]
    rows_to: bytes = b""
    ids_to: bytes = b""
    slots_to: int = -1


class Moves:
    """What one shard knows of moves, by its log; notes in `store` keep it. first_map: where everything was at first,
    alike everywhere. map: where everything is, and which shards have begun, as far as this replica has heard. places:
    of the slots that this shard has given or taken; runs: the same. leaving: the move that this shard is the source of,
    until it is done. portion, handed: see PORTION; handed: of rows that are handed over; the simulation draws both."""

    def __init__(self, shard: GroupId, shard_map: ShardMap, store: State, window_us: int):
        self.portion = self.handed = PORTION
        self.first_map = self.map = shard_map
        self._shard = shard
        self._store = store
        self._window_us = window_us
        note = store.note(PLACES)
        self.places = places_of(decode_places(note)) if note else {}
        self.runs = runs_of(self.places)
        self._rights = Rights(store)
        self._known: dict[int, Place] = {}
        self.leaving: Leaving | None = None
        self._leaving_slots: frozenset[int] = frozenset()
        note = store.note(LEAVING)
        self._set_leaving(msgspec.msgpack.decode(note, type=Leaving) if note else None)
        self.learn(self.runs)

    @property
    def joined_later(self) -> bool:
        """Whether this shard was added to the first ones."""
        return self._shard not in self.first_map.shards

    def status(self) -> dict[str, Any]:
        """leaving: the move that this shard is the source of. staged_from: of which sources it has rows that are not
        its own yet. old: it keeps something of a move that it was the source of and that was given up. JSON-ready."""
        store, leaving = self._store, self.leaving
        staged = self.map.shards if store.notes(STAGED, 1) else ()
        return {
            "leaving": leaving and {"target": leaving.target, "slots": leaving.slots, "slots_to": leaving.slots_to},
            "staged_from": [shard for shard in staged if store.notes(_staged(shard), 1)],
            "old": store.note(OLD) is not None,
        }

    # -- who serves what ----------------------------------------------------------------------------------------------

    def owns(self, key: bytes) -> bool:
        """Whether this shard owns the key, at this place of the log."""
        slot = slot_of(key)
        return self._has(slot) if self.places else self.first_map.slots[slot] == self._shard

    def _has(self, slot: int) -> bool:
        place = self.places.get(slot)
        return (self.first_map.slots[slot] if place is None else place.shard) == self._shard

    def gave_all(self, transaction: Transaction, slots: bytes | None) -> bool:
        """Whether this shard, to which a transaction was sent, has none of the slots of its keys any more. slots: see
        `ShardMap.homes_of`; with a range all shards have a part in it."""
        if not self.places or is_everywhere(slots) or move_of(transaction) is not None:
            return False
        return not any([self._has(slot) for slot in slots_of(transaction)])

    def lacks_some(self, transaction: Transaction) -> bool:
        """Whether a slot of the keys that it names is not this shard's, at this place of the log. (Others may have told
        that it is: their logs are further.)"""
        return self.map is not self.first_map and not all([self._has(slot) for slot in slots_of(transaction)])

    def told(self, transaction: Transaction) -> list[PlacedRun]:
        """Of the slots of a transaction's keys, those that this shard has given or taken, and where its log says they
        are."""
        places = self.places
        if not places:
            return []
        if any([isinstance(op, _EVERY_SLOT) for op in operations_of(transaction)]):
            return self.runs
        return runs_of({slot: places[slot] for slot in slots_of(transaction) if slot in places})

    def leads_beyond(self, shards: Collection[GroupId]) -> bool:
        """Whether, by this shard's log, a slot has gone to none of these shards."""
        return any([run.shard not in shards for run in self.runs])

    def learn(self, runs: list[PlacedRun]) -> bool:
        """What some shard has given and taken. Returns whether the map has changed."""
        changed = add_places(self._known, runs)
        if changed:
            self.map = self.first_map.after(self._known)
        return changed

    # -- the source ---------------------------------------------------------------------------------------------------

    def give(self, move: Move, timestamp: Timestamp) -> Given | None:
        """What the step at `timestamp` gives, of the state right before it; None if this shard does not own all of the
        slots that are still to be handed over."""
        leaving, slots, first = self.leaving, _expanded(move.slots), True
        if leaving is not None and leaving.target == move.target:
            first = slots not in (self._leaving_slots, _expanded(leaving.slots))
        if leaving is None or first:
            leaving = Leaving(move.target, move.slots)
        slots = _remaining(leaving)
        if not all([self._has(slot) for slot in slots]):
            return None
        rows, clean_to = ({}, SLOTS) if first else self._given_again()
        dirty_ids = [] if first else self._store.notes(DIRTY_ID, self.portion)
        rows_to, ids_to = (leaving.rows_to, leaving.ids_to) if slots else (_ALL, _ALL)
        if rows_to != _ALL:
            found, more = self._store.scan(rows_to + b"\0" if rows_to else b"", b"", self.portion)
            rows |= {row.key: _moved_row(row) for row in found if slot_of(row.key) in slots}
            rows_to = found[-1].key if more else _ALL
        # Replicas do not forget at one instant: what any of them may have forgotten is not told.
        kept = self._kept(timestamp)
        ids = [(key[1:], self._store.remembered(key[1:])) for key, _ in dirty_ids if key[1:] >= kept]
        if ids_to != _ALL:
            some = self._store.remembered_after(max(ids_to, kept), self.portion)
            ids += [(id_, record) for id_, record in some if _touches(decode_remembered(record), slots)]
            ids_to = some[-1][0] if len(some) == self.portion else _ALL
        left = len(dirty_ids) == self.portion or rows_to != _ALL or ids_to != _ALL
        told = [(id_, _without_ranges(record)) for id_, record in ids if record is not None]
        knows = move.target in self.first_map.shards or own_slot(move.target) in self.places
        end = 0 if left else min(self._handed_before(), clean_to)
        handed = sorted([slot for slot in slots if slot < end])
        last = not left and len(handed) == len(slots)
        rules = self._rights.given() if (handed or last) and not knows else []
        return Given([rows[key] for key in sorted(rows)], told, rows_to, ids_to, first, last, rules, ranges_of(handed))

    def _given_again(self) -> tuple[dict[bytes, MovedRow], int]:
        """Rows that have changed since they were given: about a portion, and of the first slot all of them, unless they
        are far too many. And the slot below which nothing else has changed."""
        noted = self._store.notes(DIRTY, DIRTY_PORTIONS * self.portion)
        found = sorted([(slot_of(key[1:]), key[1:]) for key, _ in noted])
        all_known = len(noted) < DIRTY_PORTIONS * self.portion
        rows: dict[bytes, MovedRow] = {}
        size = 0
        for slot, key in found:
            full = len(rows) == self.portion or size > RANGE_BYTES_MAX
            if full and (slot > found[0][0] or size > RESULT_BYTES_MAX):
                return rows, slot if all_known else 0
            row = rows[key] = self._row(key)
            size += len(row.value or b"")
        return rows, SLOTS if all_known else 0

    def _handed_before(self) -> int:
        """The slots below this one are handed over with this step: they have about a portion of the given rows, or are
        one slot."""
        first, size = None, 0
        if self._store.note(OLD):
            return SLOTS
        for many, (key, length) in enumerate(self._store.notes(GIVEN, self.handed + 1)):
            slot = int.from_bytes(key[1:3], "big")
            first = slot if first is None else first
            if many == self.handed or size > RANGE_BYTES_MAX:
                return max(slot, first + 1)
            size += int.from_bytes(length, "big")
        return SLOTS

    def _kept(self, timestamp: Timestamp) -> MessageId:
        """The lowest id that no replica may have forgotten at this timestamp."""
        return forgotten_before(timestamp, self._window_us) if self._window_us else b""

    def _row(self, key: bytes) -> MovedRow:
        row = self._store.get(key)
        return MovedRow(key, ZERO, None) if row is None else _moved_row(row)

    def wrote(self, key: bytes) -> None:
        """A transaction has written this key."""
        leaving = self.leaving
        if leaving is not None and key <= leaving.rows_to and slot_of(key) in self._leaving_slots:
            self._store.set_note(DIRTY + key, b"1")

    def remembers(self, message_id: MessageId, slots: bytes | None) -> None:
        """The result of a transaction is remembered. slots: see `ShardMap.homes_of`."""
        leaving = self.leaving
        if leaving is not None and message_id <= leaving.ids_to and _among(slots, self._leaving_slots):
            self._store.set_note(DIRTY_ID + message_id, b"1")

    # -- a step takes effect ------------------------------------------------------------------------------------------

    def step(self, move: Move, given: Given, timestamp: Timestamp) -> None:
        """A step takes effect, in the source or in the target."""
        at = last_version(timestamp)
        if move.source == self._shard:
            self._gave(move, given, at)
        else:
            self._took(move, given, at)
        if given.slots or given.last:
            self._store.forget_past(at)
            place = Place(move.target, timestamp)
            new = dict.fromkeys(_expanded(given.slots), place)
            if move.target not in self.first_map.shards:
                new[own_slot(move.target)] = place
            self.places |= new
            self.runs = runs_of(self.places)
            self._store.set_note(PLACES, encode_places(self.runs))
            self.learn(runs_of(new))

    def _gave(self, move: Move, given: Given, at: Timestamp) -> None:
        store = self._store
        if given.first:
            left = self._clear(bool(move.slots), GIVEN, DIRTY, DIRTY_ID)
            store.set_note(OLD, b"1" if left else None)
        for row in given.rows:
            length = None if row.value is None else len(row.value).to_bytes(4, "big")
            store.set_note(DIRTY + row.key, None)
            store.set_note(_slotted(GIVEN, row.key), length)
        for message_id, _ in given.ids:
            store.set_note(DIRTY_ID + message_id, None)
        kept = DIRTY_ID + self._kept(at)
        for key, _ in store.notes(DIRTY_ID, self.portion):
            if key < kept:
                store.set_note(key, None)
        for key, _ in store.notes(GIVEN, below=_after(GIVEN, given.slots)) if given.slots else ():
            store.place(key[3:], None, at)
            store.set_note(key, None)
        if given.last:
            if move.slots:
                self._clear(True, DIRTY, DIRTY_ID)
            self._set_leaving(None)
            store.set_note(LEAVING, None)
            return
        slots_to = -1 if given.first or self.leaving is None else self.leaving.slots_to
        slots_to = given.slots[-1][1] if given.slots else slots_to
        self._set_leaving(Leaving(move.target, move.slots, given.rows_to, given.ids_to, slots_to))
        store.set_note(LEAVING, msgspec.msgpack.encode(self.leaving))

    def _took(self, move: Move, given: Given, at: Timestamp) -> None:
        store, staged = self._store, _staged(move.source)
        if given.first:
            self._clear(bool(move.slots), staged)
        for row in given.rows:
            store.set_note(_slotted(staged, row.key), None if row.value is None else _encoded(row, row.value))
        for message_id, record in given.ids:
            own = store.remembered(message_id)
            joined = record if own is None else _joined(own, record)
            if joined is not None:
                store.remember(message_id, joined)
                self.remembers(message_id, decode_remembered(joined).slots)
        if given.rules:
            self._rights.take(given.rules)
        for key, kept in store.notes(staged, below=_after(staged, given.slots)) if given.slots else ():
            name = key[len(staged) + 2 :]
            store.place(name, decode_row(name, kept), at)
            store.set_note(key, None)

    def _clear(self, whole: bool, *prefixes: bytes) -> bool:
        """Delete notes with these prefixes: all, or a portion. Returns whether some may be left."""
        for prefix in prefixes:
            found = self._store.notes(prefix, 0 if whole else self.portion)
            for key, _ in found:
                self._store.set_note(key, None)
            if len(found) == self.portion and not whole:
                return True
        return False

    def _set_leaving(self, leaving: Leaving | None) -> None:
        self.leaving = leaving
        self._leaving_slots = _remaining(leaving) if leaving is not None else frozenset()


def _moved_row(row: KeyValue) -> MovedRow:
    return MovedRow(row.key, row.version, row.value, row.create_version, row.lease)


def _encoded(row: MovedRow, value: bytes) -> bytes:
    """The bytes of a row as it is staged."""
    created = row.version if row.create_version == ZERO else row.create_version
    return encode_row(row.version.encode(), created.encode(), row.lease, value)


def moved(told: Iterable[list[PlacedRun]], shards: Collection[GroupId]) -> bool:
    """Whether a transaction that was sent to these shards has a key that none of them owns. told: see `Moves.told`, by
    each of them."""
    told = [*told]
    if all([run.shard in shards for runs in told for run in runs]):
        return False  # nearly always: not slot by slot, of which a range has thousands
    places: dict[int, Place] = {}
    for runs in told:
        add_places(places, runs)
    return any([place.shard not in shards for place in places.values()])


def _expanded(ranges: tuple[tuple[int, int], ...]) -> frozenset[int]:
    return frozenset([slot for first, last in ranges for slot in range(first, last + 1)])


def _remaining(leaving: Leaving) -> frozenset[int]:
    """The slots that are still to be handed over. (Slots that were handed over may have come back by another move: they
    do not belong to this one any more.)"""
    return frozenset([slot for slot in _expanded(leaving.slots) if slot > leaving.slots_to])


def _staged(source: GroupId) -> bytes:
    """The prefix of the notes of rows that are staged from this source."""
    return STAGED + source.to_bytes(4, "big")


def _slotted(prefix: bytes, key: bytes) -> bytes:
    return prefix + slot_of(key).to_bytes(2, "big") + key


def _after(prefix: bytes, slots: tuple[tuple[int, int], ...]) -> bytes:
    """Greater than what `_slotted` makes of keys of these slots, and less than of keys of later ones."""
    return prefix + (slots[-1][1] + 1).to_bytes(2, "big")


def _slots(slots: bytes) -> list[int]:
    return [int.from_bytes(slots[at : at + 2], "big") for at in range(0, len(slots), 2)]


def _among(slots: bytes | None, wanted: frozenset[int]) -> bool:
    return slots is None or is_everywhere(slots) or any([slot in wanted for slot in _slots(slots)])


def _without_ranges(record: bytes) -> bytes:
    """The remembered record without results of ranges, which the source tells itself."""
    remembered = decode_remembered(record)
    if remembered.results is None or not is_everywhere(remembered.slots):
        return record
    return msgspec.structs.replace(remembered, results=[]).encoded()


def _touches(remembered: Remembered, slots: frozenset[int]) -> bool:
    return remembered.status != MOVED and _among(remembered.slots, slots)


def _joined(own: bytes, given: bytes) -> bytes | None:
    """What the target remembers of an id that both shards know; None: what it remembers already."""
    mine, other = decode_remembered(own), decode_remembered(given)
    effective = (APPLIED, FAILED)
    if mine.status == MOVED or (other.status in effective and mine.status not in effective):
        return given
    if (mine.status, mine.timestamp) != (other.status, other.timestamp):
        return None
    results: dict[int, OperationResult] | None = dict(mine.results or ())
    for index, result in other.results or ():
        if results is not None and results.setdefault(index, result) != result:
            results = None
    if mine.results is None or other.results is None:
        results = None
    slots = None
    if mine.slots is not None and other.slots is not None:
        slots = b"".join([s.to_bytes(2, "big") for s in sorted({*_slots(mine.slots), *_slots(other.slots)})])
    found = None if results is None else sorted(results.items())
    return msgspec.structs.replace(mine, slots=slots, results=found).encoded()
