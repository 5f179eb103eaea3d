"""Stamps and sequences of PrimCast, acknowledgements of White-Box, and payloads that never came, each by itself."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast.parts import accepts
from multicast.parts.delivered import DeliveredLog, Known
from multicast.parts.payloads import Payloads, Want
from multicast.parts.portions import split
from multicast.parts.sequence import Fetch, Refill, Sequence, SequenceHistory, decode_state, encode_state
from multicast.parts.stamps import Entry, Stamp
from multicast.parts.submissions import Copies
from multicast.parts.window import Window
from multicast.protocol import Outbox
from multicast.simulation.leftovers import held
from multicast.types import (
    ZERO,
    AppMessage,
    Ballot,
    GroupId,
    MessageId,
    ProcessId,
    Timestamp,
    Topology,
    created_us,
    new_message_id,
)

FIRST, SECOND = Ballot(1, 0), Ballot(2, 1)


def two(group: GroupId, ballot: Ballot, processes: Collection[ProcessId]) -> bool:
    return len(processes) >= 2


def message(*groups: int, number: int = 0, payload: bytes = b"x") -> AppMessage:
    return AppMessage(new_message_id(1_000_000, number), groups, payload, 0)


def entry(one: AppMessage, group: int = 0) -> Entry:
    made = Entry(one.id, group, 0)
    made.take(one)
    return made


# -- stamps ------------------------------------------------------------------------------------------------------------


def test_a_stamp_is_decided_by_a_quorum_in_one_epoch() -> None:
    made = entry(message(0, 1))
    for process, epoch in ((3, FIRST), (4, SECOND), (3, FIRST)):
        assert not made.acknowledge(process, 1, Stamp(made.id, 0, 7, epoch), two)
    assert made.silent(1, (3, 4, 5)) == [3, 5], "3 may have lost with its disk what it said in the first epoch"
    assert made.acknowledge(5, 1, Stamp(made.id, 0, 7, SECOND), two)
    assert made.is_decided(1, 7) and made.silent(1, (3, 4, 5)) == []


def test_who_has_acknowledged_a_stamp_is_asked_again_if_only_those_have_not_who_were_removed() -> None:
    made = entry(message(0, 1))
    assert not made.acknowledge(4, 1, Stamp(made.id, 0, 7, FIRST), two)
    assert made.silent(1, (3, 4)) == [3] and made.silent(1, (4,)) == [4]


def test_the_own_groups_stamp_is_the_one_that_t_has() -> None:
    made = entry(message(0))
    stamp = Stamp(made.id, 0, 7, FIRST)
    made.acknowledge(1, 0, stamp, two)
    assert not made.acknowledge(2, 0, stamp, two)
    made.put(stamp, two)
    assert made.is_decided(0, 7)


@given(st.dictionaries(st.integers(0, 3), st.integers(1, 9)), st.integers(1, 9))
def test_the_final_timestamp_is_the_highest_that_is_decided(decided: dict[int, int], own: int) -> None:
    made = entry(message(0, 1, 2, 3))
    made.put(Stamp(made.id, 0, own, FIRST), two)
    made.locals = {group: own if group == 0 else ts for group, ts in decided.items()}
    bound = made.decide(Window(0))
    stamps = [Timestamp(ts, group) for group, ts in made.locals.items()]
    assert bound == max([Timestamp(own, 0), *stamps])
    assert made.final == (bound if len(stamps) == 4 else None)


def test_a_late_stamp_is_final_alone_and_makes_the_others_void() -> None:
    window, made = Window(100), entry(message(0, 1))
    in_time, late = window.limit(made.id), window.limit(made.id) + 1
    made.locals = {1: late}
    assert made.is_void(in_time, window) and not made.is_void(late, window)
    made.put(Stamp(made.id, 0, late, FIRST), two)
    made.locals[0] = late
    assert made.decide(window) == made.final == Timestamp(late, 0)
    assert not Window(0).limit(made.id) < late


@pytest.mark.parametrize("highest", [1, 2])
def test_what_another_group_has_delivered_is_final_with_the_group_that_gave_it(highest: int) -> None:
    window, made = Window(100), entry(message(0, 1, 2))
    own, final = window.limit(made.id) - 9, Timestamp(window.limit(made.id), highest)
    made.put(Stamp(made.id, 0, own, FIRST), two)
    made.learn_final(3 - highest, final, window)
    assert made.decide(window) == final and made.final is None, "the own stamp is not decided"
    made.locals[0] = own
    assert made.decide(window) == made.final == final


def test_that_another_group_has_delivered_it_late_makes_a_stamp_void() -> None:
    window, made = Window(100), entry(message(0, 1, 2))
    limit = window.limit(made.id)
    made.learn_final(2, Timestamp(limit + 1, 2), window)
    assert made.is_void(limit, window) and not made.is_decided(1, limit)


def test_a_stamp_may_be_decided_once_it_is_known_who_belongs_to_its_epoch() -> None:
    made = entry(message(0, 1))
    for process in (3, 4):
        assert not made.acknowledge(process, 1, Stamp(made.id, 0, 7, FIRST), lambda *of: False)
    assert not made.recount(lambda *of: False)
    assert made.recount(two)
    assert made.is_decided(1, 7)
    assert not made.recount(two)


# -- sequences ---------------------------------------------------------------------------------------------------------


def restarted(out: Outbox) -> list[MessageId]:
    """What is there after a restart."""
    store = {key: value for key, value, _ in out.changes}
    sequence = Sequence(0, two, 10)
    sequence.restore({key: value for key, value in store.items() if value is not None}, 0)
    return [*sequence.entries]


def test_a_settled_message_of_which_a_later_copy_was_heard_is_not_pending_after_a_restart() -> None:
    sequence, out = Sequence(0, two, 10), Outbox()
    first, other = placed(sequence, [1, 2], out)
    sequence.entries[first].delivered(Timestamp(1, 0), 1)
    later = sequence.pending(first, 0)
    assert restarted(out) == [first, other]  # somebody may still ask for it
    sequence.forget_earlier(later, out)
    assert restarted(out) == [other]
    sequence.place(later, Stamp(first, 2, 9, FIRST), out)
    sequence.forget_earlier(later, out)
    assert {*restarted(out)} == {first, other}


def test_t_does_not_keep_a_delivered_copy_of_which_a_later_one_was_heard() -> None:
    sequence, out = Sequence(0, two, 10), Outbox()
    first, _ = placed(sequence, [1, 2], out)
    sequence.entries[first].delivered(Timestamp(1, 0), 1)
    assert (len(sequence), sequence.reach) == (2, 0)
    sequence.pending(first, 0)
    assert (len(sequence), sequence.reach) == (1, 1)


def placed(sequence: Sequence, numbers: list[int], out: Outbox) -> list[MessageId]:
    """These messages, at the places after the last; None of place 0 if a number is -1."""
    ids = []
    for number in numbers:
        made = sequence.pending(message(0, number=number).id, 0)
        made.take(message(0, number=number))
        sequence.place(made, Stamp(made.id, sequence.length, number, FIRST), out)
        sequence.extend(sequence.length + 1)
        ids.append(made.id)
    return ids


def test_a_follower_gets_what_its_t_lacks() -> None:
    out = Outbox()
    primary, follower = Sequence(0, two, 10), Sequence(0, two, 10)
    ids = placed(primary, [1, 2, 3, 4], out)
    placed(follower, [1], out)
    dropped = primary.entries[ids[1]]
    dropped.delivered(Timestamp(2, 0), 2)
    primary.forget(dropped, out)
    follower.compare(0, FIRST, 4, out)
    assert not out.sends, "it may be under way"
    follower.compare(0, FIRST, 4, out)
    ((_, fetch, _),) = out.sends
    assert fetch == Fetch(FIRST, 1)
    refills = primary.refill(fetch, 9, portion_bytes=0)
    assert len(refills) == 2
    assert follower.missing(0, refills[0]) is None
    missing = follower.missing(0, refills[1])
    assert missing is not None and [(s.message.id, s.place) for s in missing] == [(ids[2], 2), (ids[3], 3)]
    assert follower.reach == 2, "what is settled it must install"


def test_an_answer_to_an_earlier_life_leaves_no_hole() -> None:
    """T was longer when it asked, and not all of it was on disk: "longest T" may choose one with a hole."""
    primary, follower = Sequence(0, two, 10), Sequence(0, two, 10)
    placed(primary, [1, 2, 3], Outbox())
    placed(follower, [1], Outbox())
    [refill] = primary.refill(Fetch(FIRST, 2), 9, portion_bytes=100)
    assert follower.missing(0, refill) is None


def test_what_has_come_in_part_goes_with_its_epoch() -> None:
    primary, follower = Sequence(0, two, 10), Sequence(0, two, 10)
    placed(primary, [1, 2], Outbox())
    first, last = primary.refill(Fetch(FIRST, 0), 9, portion_bytes=0)
    assert follower.missing(0, first) is None
    follower.forget_proposals()
    assert held(follower, {"Assembly": ("_lists",)}) == {}, "nobody sends the rest any more"
    assert follower.missing(0, last) is None
    first, last = primary.refill(Fetch(FIRST, 0), 9, portion_bytes=0)
    assert follower.missing(0, first) is None
    assert len(follower.missing(0, last) or ()) == 2


def expecting(*places: int) -> Sequence:
    """With room for two, and these proposals."""
    sequence = Sequence(0, two, 2)
    for place in places:
        sequence.expect(Stamp(bytes([place]) * 16, place, place, FIRST))
    return sequence


def test_what_was_proposed_for_later_waits_for_its_turn() -> None:
    sequence = expecting(2, 1)
    assert sequence.waiting == 2 and sequence.next() is None
    placed(sequence, [5], Outbox())
    proposed = sequence.next()
    assert proposed is not None and proposed.place == 1
    sequence.extend(2)
    assert sequence.waiting == 1
    sequence = expecting(1, 0)
    sequence.extend(2)
    assert sequence.waiting == 0, "what came by another way waits no more, and leaves its room"


def test_what_is_next_is_kept_however_many_wait() -> None:
    proposed = expecting(2, 1, 0).next()
    assert proposed is not None and proposed.place == 0


def test_what_was_not_kept_is_fetched_once_when_nothing_waits() -> None:
    out = Outbox()
    sequence = expecting(0, 2, 3)
    sequence.extend(1)
    sequence.fetch_dropped(0, FIRST, out)
    assert not out.sends, "that for place 1 may be under way"
    sequence.extend(3)
    sequence.fetch_dropped(0, FIRST, out)
    sequence.fetch_dropped(0, FIRST, out)
    assert out.sends == [((0,), Fetch(FIRST, 3), False)]


def test_what_an_earlier_primary_proposed_is_not_fetched() -> None:
    out = Outbox()
    sequence = expecting(0, 1, 2)
    sequence.begin([], 0, 0, out)
    sequence.fetch_dropped(1, SECOND, out)
    assert not out.sends and not sequence.waiting


def test_another_t_keeps_what_was_delivered_beside_it() -> None:
    out = Outbox()
    sequence = Sequence(0, two, 10)
    first, second, third = placed(sequence, [1, 2, 3], out)
    sequence.entries[first].delivered(Timestamp(1, 0), 1)
    out.changes.clear()
    sequence.begin([second], 5, 0, out)
    assert (len(sequence), sequence.length) == (0, 5)
    assert [i for i, e in sequence.entries.items() if e.epoch is not None] == [first]
    assert out.changes == [(b"m" + third, None, ())]


def test_what_was_put_is_restored() -> None:
    out = Outbox()
    sequence, again = Sequence(0, two, 10), Sequence(0, two, 10)
    placed(sequence, [1, 2], out)
    again.restore({key: value for key, value, _ in out.changes if value is not None}, 0)
    assert again.states() == sequence.states() and len(again) == 2


def test_a_snapshot_brings_what_was_delivered_and_leaves_what_may_still_be() -> None:
    """Of T as it is here: delivered there meanwhile, there and stamped again since, nowhere, and too long ago."""
    window, out = Window(100), Outbox()
    delivered, again, pending, forgotten = range(4)
    own, there = Sequence(0, two, 10), Sequence(0, two, 10)
    base = created_us(message(0).id)
    stamps = {delivered: base + 5_000, again: base + 5_000, pending: base + 5_000, forgotten: base + 4_000}
    for number, ts in stamps.items():
        made = own.pending(message(0, number=number).id, 0)
        made.take(message(0, number=number))
        own.place(made, Stamp(made.id, number, ts, FIRST), out)
    mine = {key: value for key, value, _ in out.changes if value is not None}
    log = DeliveredLog(3, Topology.grid(2, 3), 1, window.us)
    for number, ts in ((again, base + 4_700), (delivered, base + 5_000)):
        made = there.install(message(0, number=number), FIRST, ts, 0, Outbox())
        made.delivered(Timestamp(ts, 0), log.add(made.id, (0,), Timestamp(ts, 0), Outbox()))
    history = SequenceHistory(log, there, window, lambda position: ())
    told = dict(history.given(2, Timestamp(base + 5_000, 0)))
    taken = history.taken({**mine, b"c": encode_state((base + 4_000, 4, 0))}, told, 2, Timestamp(base + 5_000, 0))
    keys = {number: b"m" + message(0, number=number).id for number in stamps}
    assert taken[keys[delivered]] == told[keys[delivered]] != mine[keys[delivered]]
    assert keys[again] in told and keys[again] not in taken and keys[pending] not in taken
    assert taken[keys[forgotten]] is None
    assert decode_state(taken[b"c"]) == (base + 5_000, 4, 1), "nothing below is stamped, what T lacks is installed"
    ahead = history.taken({b"c": encode_state((base + 6_000, 4, 0))}, told, 2, Timestamp(base + 5_000, 0))
    assert decode_state(ahead[b"c"] or b"")[0] == base + 6_000, "it may have told its clock"


def test_what_was_stamped_before_the_time_was_known_is_kept_when_a_snapshot_is_taken() -> None:
    """Another group may yet decide it at a timestamp beyond the snapshot's."""
    window, out, own = Window(100), Outbox(), Sequence(0, two, 10)
    made = own.pending(message(0, 1).id, 0)
    made.take(message(0, 1))
    own.place(made, Stamp(made.id, 0, 4, FIRST), out)
    mine = {key: value for key, value, _ in out.changes if value is not None}
    history = SequenceHistory(DeliveredLog(3, Topology.grid(2, 3), 1, 100), own, window, lambda position: ())
    for after, dropped in ((200, False), (201, True)):
        taken = history.taken(mine, {}, 2, Timestamp(created_us(made.id) + after, 0))
        assert (b"m" + made.id in taken) is dropped


def test_who_has_the_t_of_one_that_took_a_snapshot_installs_no_more_of_it_than_t_lacks() -> None:
    """What is not settled may be in no other journal than those of who gave the snapshot and who took it."""
    log, there = DeliveredLog(3, Topology.grid(2, 3), 1, 0), Sequence(0, two, 10)
    for number in range(4):
        made = there.install(message(0, number=number), FIRST, number + 1, 0, Outbox())
        made.delivered(Timestamp(number + 1, 0), log.add(made.id, (0,), Timestamp(number + 1, 0), Outbox()))
    history = SequenceHistory(log, there, Window(0), lambda position: ())
    for settled, reach in ((None, 0), (0, 1), (2, 3)):
        if settled is not None:
            there.forget(there.entries[message(0, number=settled).id], Outbox())
        told = dict(history.given(4, Timestamp(4, 0)))
        assert decode_state(history.taken({}, told, 4, Timestamp(4, 0))[b"c"] or b"") == (4, 0, reach)


# -- acknowledgements of vectors ---------------------------------------------------------------------------------------


@given(
    st.sets(st.integers(0, 5)), st.booleans(), st.sampled_from([Ballot(1, 3), Ballot(2, 4)]), st.sets(st.integers(0, 1))
)
def test_a_message_is_committed_as_line_17_says(
    acknowledged: set[int], leaders: bool, other: Ballot, held: set[int]
) -> None:
    topology = Topology.grid(2, 3)
    quorums, made = accepts.Quorums(0, topology, leaders), accepts.Entry(b"m" * 16, 0)
    made.message = message(0, 1)
    vector = (FIRST, other)
    for group, ballot in ((0, FIRST), (1, Ballot(1, 3))):
        if group in held:
            made.hold(group, ballot, Timestamp(group, group))
    committed = [quorums.acknowledge(made, process, vector) for process in sorted(acknowledged)]
    expected = (
        0 in acknowledged
        and all(len(acknowledged & set(topology.groups[g])) >= 2 for g in (0, 1))
        and held == {0, 1}
        and other == Ballot(1, 3)
        and (not leaders or 3 in acknowledged)
    )
    assert (committed or [False])[-1] == expected
    if other == Ballot(1, 3) and held == {0, 1}:
        lacking = set(topology.processes) - acknowledged
        assert lacking & {0} <= set(quorums.silent(made, [0, other.leader].__getitem__, False)) <= lacking | {3}


def test_an_older_ballots_stamp_does_not_take_the_place_of_a_later_ones() -> None:
    made = accepts.Entry(b"m" * 16, 0)
    assert made.hold(0, SECOND, Timestamp(5, 0)) and not made.hold(0, FIRST, Timestamp(9, 0))
    assert made.highest == Timestamp(5, 0)


# -- payloads ----------------------------------------------------------------------------------------------------------


def test_a_payload_is_asked_for_where_it_was_heard_of_last_until_it_is_here() -> None:
    lacking = {b"m" * 16}
    payloads = Payloads(
        1_000, random.Random(1), payload=lambda _: None, lacks=lacking.__contains__, settled_at=lambda _: None
    )
    assert payloads.lack(b"m" * 16, 1, 0) and not payloads.lack(b"m" * 16, 2, 10)
    out = Outbox()
    wake = payloads.tick(1_000, out)
    assert out.sends == [((2,), Want([b"m" * 16]), False)]
    lacking.clear()
    out.sends.clear()
    payloads.tick(wake, out)
    assert out.sends == [] and payloads.lack(b"m" * 16, 1, wake)


@pytest.mark.parametrize("lacks, told", [(True, []), (False, [((2,), Known(b"m" * 16, ZERO), False)])])
def test_who_has_forgotten_of_what_it_told_says_so(lacks: bool, told: list[Any]) -> None:
    payloads = Payloads(
        1_000, random.Random(1), payload=lambda _: None, lacks=lambda _: lacks, settled_at=lambda _: None
    )
    out = Outbox()
    payloads.handlers[Want].call(2, Want([b"m" * 16]), 0, out)
    assert out.sends == told


@pytest.mark.parametrize("here", [True, False])
def test_who_is_asked_for_a_payload_sends_it_or_says_that_it_is_settled(here: bool) -> None:
    one = message(0)
    payloads = Payloads(
        1_000,
        random.Random(1),
        payload=lambda _: one if here else None,
        lacks=lambda _: False,
        settled_at=lambda _: Timestamp(3, 0),
    )
    out = Outbox()
    payloads.handlers[Want].call(2, Want([one.id]), 0, out)
    assert out.sends == [((2,), Copies([one]) if here else Known(one.id, Timestamp(3, 0)), False)]


# -- portions ----------------------------------------------------------------------------------------------------------


def test_a_large_message_travels_in_portions() -> None:
    sequence = Sequence(0, two, 10)
    placed(sequence, [1, 2, 3], Outbox())
    whole = Refill(FIRST, 0, 0, 3, 0, sequence.states())
    portions = split(whole, lambda state: len(state.message.payload), 150)
    assert [(p.number, p.count, len(p.entries)) for p in portions] == [(0, 2, 2), (1, 2, 1)]
    assert split(whole, lambda state: 0, 10_000) == [whole]
