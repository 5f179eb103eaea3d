"""What a process of PrimCast knows under an id, of a first copy and of a later one."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from multicast.parts.delivered import LAST_KEY, DeliveredLog
from multicast.parts.known_copies import KnownCopies
from multicast.parts.stamps import Entry
from multicast.parts.window import Window
from multicast.protocol import Outbox
from multicast.types import AppMessage, Ballot, MessageId, Timestamp, Topology, new_message_id

WINDOW_US = 1_000
CREATED = 10_000_000
M = AppMessage(new_message_id(CREATED, 1), (0, 1), b"payload", 0)
SOON, LATE = CREATED + 100, CREATED + 100_000_000
"""Stamps of a first copy, and of one that was stamped when all had forgotten that."""


class Case(NamedTuple):
    copies: KnownCopies
    entries: dict[MessageId, Entry]
    log: DeliveredLog


def case() -> Case:
    entries: dict[MessageId, Entry] = {}
    log = DeliveredLog(0, Topology.grid(2, 1), 1_000, WINDOW_US, True)
    return Case(KnownCopies(0, entries, log, Window(WINDOW_US)), entries, log)


def held(one: Case, ts: int = 0, message: AppMessage | None = M) -> Entry:
    """An entry of the message; with a stamp, in T."""
    entry = one.entries[M.id] = Entry(M.id, 0, 0)
    if message is not None:
        entry.take(message)
    if ts:
        entry.epoch, entry.place, entry.ts = Ballot(1, 0), 0, ts
    return entry


def delivered(one: Case, entry: Entry | None = None) -> None:
    """The first copy, as the first delivery; `entry` is still held, if there is one."""
    position = one.log.add(M.id, M.destinations, Timestamp(SOON, 1), Outbox())
    if entry is not None:
        entry.delivered(Timestamp(SOON, 1), position)


def test_of_what_nobody_has_told_everything_is_missing() -> None:
    copies = case().copies
    assert copies.lacks_start(M.id) and not copies.lacks_payload(M.id) and copies.payload(M.id) is None
    assert copies.delivered_at(M.id) is None and copies.delivered_as(M.id, SOON) == 0


def test_what_was_only_heard_of_lacks_its_payload() -> None:
    one = case()
    held(one, message=None)
    assert one.copies.lacks_payload(M.id) and one.copies.lacks_start(M.id)
    one.entries[M.id].take(M)
    assert not one.copies.lacks_payload(M.id) and not one.copies.lacks_start(M.id)
    assert one.copies.payload(M.id) == M


def test_what_was_delivered_is_known_until_it_is_dropped_and_after() -> None:
    one = case()
    delivered(one, held(one, SOON))
    assert one.copies.delivered_at(M.id) == Timestamp(SOON, 1) and one.copies.delivered_as(M.id, SOON) == 1
    assert one.copies.settled_at(M.id) is None and not one.copies.lacks_start(M.id)
    assert one.copies.destinations(M.id, Timestamp(SOON, 1)) == (0, 1)
    assert not one.copies.is_settled(one.entries[M.id])
    del one.entries[M.id]
    assert one.copies.settled_at(M.id) == Timestamp(SOON, 1) and not one.copies.lacks_start(M.id)
    assert one.copies.destinations(M.id, Timestamp(SOON, 1)) is None


def test_what_was_delivered_and_forgotten_is_past_by_its_stamp() -> None:
    """Of a vote that was told before: a new leader took it into T again."""
    one = case()
    delivered(one)
    state = held(one, SOON).state()
    assert not one.copies.is_past(state), "it is known"
    one.log.restore({LAST_KEY: Timestamp(LATE, 0).encode() + (2).to_bytes(8, "big")}, 2, lambda *_: None)
    one.log._known.clear()
    assert one.copies.is_past(state) and not one.copies.is_past(msgspec.structs.replace(state, position=1))
    assert not one.copies.is_past(msgspec.structs.replace(state, ts=LATE + 1)), "a later copy"


def test_a_later_copy_is_not_what_was_delivered() -> None:
    one = case()
    delivered(one)
    held(one, LATE)
    assert one.copies.delivered_at(M.id) is None and one.copies.settled_at(M.id) is None
    assert one.copies.delivered_as(M.id, LATE) == 0 and one.copies.delivered_as(M.id, SOON) == 1
    assert one.copies.destinations(M.id, Timestamp(SOON, 1)) is None
