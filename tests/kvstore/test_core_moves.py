"""Slots that move: what a step hands over, and who serves what when it is done."""

from __future__ import annotations

import pytest

from kvstore.api.model import Add, Get, Move, OperationResult, Put, Range, Rule, Transaction
from kvstore.api.shard_map import PlacedRun, ShardMap, ranges_of, runs_of, slot_of
from kvstore.core.audit import APPLIED, EXPIRED, FAILED, MOVED, REPEATED, Given
from kvstore.core.bundles import NO_ID, encode_bundle, encode_transaction, version_of
from kvstore.core.messages import (
    Decided,
    Decisions,
    PartRequest,
    Parts,
    ResultRequest,
    ShardResult,
    ShardResults,
    ShardState,
    Vote,
    Wanted,
    decode_remembered,
    encode_remembered,
)
from kvstore.core.moves import Moves, moved
from kvstore.core.requests import REMEMBERED_WINDOWS, RESULT_RETRY_US
from kvstore.core.rights import Rights
from kvstore.core.state import PLACES
from kvstore.storage.backend import MemoryBackend
from kvstore.storage.store import Store
from multicast.types import ZERO, AppMessage, Timestamp, new_message_id
from tests.kvstore.one_replica import SHARDS as MAP_OF_THREE
from tests.kvstore.one_replica import WINDOW, Bench, key, result_of, write

MAP = ShardMap.even((0, 1))
KEYS = [key for key in (b"k%d" % i for i in range(40)) if MAP.shard_of(key) == 0][:6]
SLOTS = sorted(slot_of(key) for key in KEYS)
MOVE = Move(0, 1, tuple((slot, slot) for slot in SLOTS))


def at(time: int) -> Timestamp:
    return Timestamp(time, 0)


def remembered(time: int, key: bytes, status: int = APPLIED) -> tuple[bytes, bytes]:
    """An id, and what a shard keeps of a transaction of this key."""
    message_id = new_message_id(time, 1)
    result = ShardResult(message_id, b"digest", at(time), status, True, "", b"", [])
    return message_id, encode_remembered(result, slot_of(key).to_bytes(2, "big"))


class Two:
    """Source and target. given: by the steps so far."""

    def __init__(self, portion: int = 2000, window_us: int = 0):
        self.stores = [Store.open(MemoryBackend()) for _ in range(2)]
        self.moves = [Moves(shard, MAP, store, window_us) for shard, store in enumerate(self.stores)]
        self.moves[0].portion = self.moves[0].handed = portion
        self.given: list[Given] = []
        self.time = 100
        for i, owned in enumerate(KEYS):
            self.stores[0].write(owned, b"old", at(i + 1))

    def write(self, key: bytes, value: bytes | None) -> None:
        """By a transaction in the source."""
        self.time += 1
        self.stores[0].write(key, value, at(self.time))
        self.moves[0].wrote(key)

    def step(self, move: Move = MOVE) -> bool:
        """Whether there are more."""
        self.time += 1
        given = self.moves[move.source].give(move, at(self.time))
        assert given is not None
        for moves in self.moves:
            moves.step(move, given, at(self.time))
        self.given.append(given)
        return not given.last

    def handed(self) -> list[int]:
        """By each step: how many slots."""
        return [sum(last + 1 - first for first, last in given.slots) for given in self.given]

    def rows(self, shard: int) -> dict[bytes, tuple[bytes, Timestamp]]:
        return {row.key: row for row in self.stores[shard].scan(b"", b"", 1000)[0]}


def test_rows_go_with_their_versions_and_leave_nothing_behind() -> None:
    two = Two()
    before = two.rows(0)
    assert not two.step()
    assert two.rows(1) == before and two.rows(0) == {}
    assert two.stores[0].state_digest() == bytes(16) and all([store.floor > at(two.time) for store in two.stores])


def test_what_changes_after_it_was_given_is_given_again_deletions_too() -> None:
    two = Two(portion=2)
    assert two.step() and two.rows(1) == {}, "what is staged is invisible"
    two.write(KEYS[0], b"new")
    two.write(KEYS[1], None)
    expected = two.rows(0)
    while two.step():
        pass
    assert two.rows(1) == expected and KEYS[1] not in expected and expected[KEYS[0]].value == b"new"


def test_ids_that_touched_the_slots_go_along_also_those_that_come_late() -> None:
    two = Two(portion=1)
    stranger = next(key for key in (b"x%d" % i for i in range(9)) if slot_of(key) not in SLOTS)
    early, other, refused = remembered(10, KEYS[0]), remembered(20, stranger), remembered(30, KEYS[1], MOVED)
    for message_id, record in (early, other, refused):
        two.stores[0].remember(message_id, record)
    while two.step():
        late = remembered(5, KEYS[2])
        two.stores[0].remember(*late)
        two.moves[0].remembers(late[0], decode_remembered(late[1]).slots)
        if two.time > 104:
            break
    while two.step():
        pass
    found = [two.stores[1].remembered(message_id) for message_id, _ in (early, late, other, refused)]
    assert found == [early[1], late[1], None, None]


def test_the_last_row_that_was_given_is_given_again_if_it_changes() -> None:
    two = Two(portion=1)
    assert two.step()
    two.write(min(KEYS), b"new")
    while two.step():
        pass
    assert two.rows(1)[min(KEYS)].value == b"new"


def test_the_last_id_that_was_looked_at_is_given_if_its_transaction_takes_effect_after_all() -> None:
    two = Two(portion=1)
    message_id, refused = remembered(10, KEYS[0], MOVED)
    two.stores[0].remember(message_id, refused)
    assert two.step()
    _, applied = remembered(10, KEYS[0])
    two.stores[0].remember(message_id, applied)
    two.moves[0].remembers(message_id, decode_remembered(applied).slots)
    while two.step():
        pass
    assert two.stores[1].remembered(message_id) == applied


def test_what_some_replica_may_have_forgotten_is_given_by_none() -> None:
    """Replicas forget at different instants, and all of a shard give the same; nor does it keep a move from ending."""
    window_us = 1_000_000
    two = Two(portion=1, window_us=window_us)
    assert two.step()
    old = [new_message_id(two.time + 1000 * i, i) for i in (1, 2)]
    for message_id in old:
        two.stores[0].remember(message_id, remembered(0, KEYS[0])[1])
        two.moves[0].leaving.ids_to = bytes([0xFF]) * 16
        two.moves[0].remembers(message_id, slot_of(KEYS[0]).to_bytes(2, "big"))
    two.time += REMEMBERED_WINDOWS * window_us + 10_000
    while two.step():
        assert two.time < 10 * window_us
    assert [two.stores[1].remembered(message_id) for message_id in old] == [None, None]


def test_a_move_goes_on_until_no_id_is_left_that_has_changed() -> None:
    two = Two(portion=2)
    assert two.step() and two.step()
    late = [remembered(time, KEYS[1]) for time in (1, 2, 3)]
    for message_id, record in late:
        two.stores[0].remember(message_id, record)
        two.moves[0].remembers(message_id, decode_remembered(record).slots)
    assert two.step() and two.handed() == [0, 0, 0], "one is left"
    while two.step():
        pass
    assert [two.stores[1].remembered(message_id) for message_id, _ in late] == [record for _, record in late]


def test_what_two_sources_give_at_a_time_does_not_mix() -> None:
    two = Two(portion=2)
    other = next(key for key in (b"x%d" % i for i in range(400)) if MAP.shard_of(key) == 1)
    two.stores[1].write(other, b"other", at(50))
    target = Moves(2, MAP, Store.open(MemoryBackend()), 0)
    from_0, from_1 = Move(0, 2, MOVE.slots), Move(1, 2, ((slot_of(other), slot_of(other)),))
    for move in (from_0, from_1, *[from_0] * 4):
        two.time += 1
        given = two.moves[move.source].give(move, at(two.time))
        assert given is not None
        for moves in (two.moves[move.source], target):
            moves.step(move, given, at(two.time))
        if move is from_1:
            assert [row.key for row in target._store.scan(b"", b"", 100)[0]] == [other]
    assert {row.key for row in target._store.scan(b"", b"", 100)[0]} == {other, *KEYS}


def test_what_both_know_of_an_id_goes_together() -> None:
    """Its effect, not that a copy had none, the slots that it touched and what was read of each."""
    two = Two()
    both, again, too_late = new_message_id(10, 1), new_message_id(20, 1), new_message_id(30, 1)
    slots = [slot_of(KEYS[0]).to_bytes(2, "big"), slot_of(KEYS[1]).to_bytes(2, "big")]
    for shard, store in enumerate(two.stores):
        read = [(shard, OperationResult(value=shard))]
        applied = ShardResult(both, b"", at(10), APPLIED, True, "", b"", read)
        store.remember(both, encode_remembered(applied, slots[shard]))
        status = REPEATED if shard else APPLIED
        copy = ShardResult(again, b"", at(20 + shard), status, True, "", b"", [])
        store.remember(again, encode_remembered(copy, slots[0]))
        late = ShardResult(too_late, b"", at(30 + shard), MOVED if shard else EXPIRED, True, "", b"", [])
        store.remember(too_late, encode_remembered(late, slots[0]))
    assert not two.step()
    joined = decode_remembered(two.stores[1].remembered(both) or b"")
    assert joined.slots == b"".join(sorted(slots))
    assert joined.results == [(0, OperationResult(value=0)), (1, OperationResult(value=1))]
    for message_id in (again, too_late):
        assert two.stores[1].remembered(message_id) == two.stores[0].remembered(message_id)


def test_only_who_asks_none_of_the_right_shards_is_told_moved() -> None:
    two = Two()
    source, target = two.moves
    put = Transaction(success=(Put(KEYS[0], b"v"),))
    assert source.owns(KEYS[0]) and not moved([source.told(put)], (0,))
    two.step()
    assert not source.owns(KEYS[0]) and target.owns(KEYS[0])
    assert moved([source.told(put)], (0,)) and not moved([target.told(put)], (1,))
    assert not moved([source.told(put), target.told(put)], (0, 1)) and moved([source.told(put), []], (0, 2))
    assert source.map.shard_of(KEYS[0]) == 1 and source.map.version > MAP.version
    stranger = Moves(2, MAP, Store.open(MemoryBackend()), 0)
    assert stranger.learn(runs_of(target.places)) and stranger.map == source.map
    assert not stranger.learn(runs_of(target.places)) and stranger.told(put) == []


def test_who_gave_a_slot_does_not_object_where_it_went_on() -> None:
    """From 0 to 1, then from 1 to 2: who asks 0, for another key, and 2 is right."""
    two = Two()
    two.step()
    slot, put = slot_of(KEYS[0]), Transaction(success=(Put(KEYS[0], b"v"),))
    third = Moves(2, MAP, Store.open(MemoryBackend()), 0)
    onwards = Move(1, 2, ((slot, slot),))
    given = two.moves[1].give(onwards, at(500))
    assert given is not None
    for moves in (two.moves[1], third):
        moves.step(onwards, given, at(500))
    gave, passed_on, has = [moves.told(put) for moves in (*two.moves, third)]
    assert not moved([gave, has], (0, 2)) and not moved([has], (2,))
    assert moved([gave, passed_on], (0, 1)) and moved([gave], (0,))


def test_what_does_not_belong_to_the_source_is_not_given() -> None:
    two = Two()
    two.step()
    assert two.moves[0].give(MOVE, at(500)) is None
    assert two.moves[1].give(Move(1, 0, MOVE.slots), at(500)) is not None


def test_slots_are_handed_over_in_portions_and_each_is_served_by_one_shard() -> None:
    two = Two(portion=2)
    before = two.rows(0)
    while two.step():
        assert len({*two.rows(0)} & {*two.rows(1)}) == 0 and two.rows(0) | two.rows(1) == before
        assert [two.moves[0].owns(key) for key in KEYS] == [key in two.rows(0) for key in KEYS]
        assert [two.moves[1].owns(key) for key in KEYS] == [key in two.rows(1) for key in KEYS]
    assert two.handed()[:2] == [0, 0] and max(two.handed()) <= 4 and two.rows(1) == before
    assert [dict(store.notes(b"")).keys() for store in two.stores] == [{PLACES}, {PLACES}]


def test_what_changes_while_others_are_handed_over_is_given_again() -> None:
    two = Two(portion=2)
    while not two.rows(1):
        two.step()
    last, deleted = sorted(KEYS, key=slot_of)[-1:-3:-1]
    two.write(last, b"new")
    two.write(deleted, None)
    expected = two.rows(0) | two.rows(1)
    while two.step():
        pass
    assert two.rows(1) == expected and deleted not in expected and expected[last].value == b"new"


def test_a_slot_goes_whole() -> None:
    """However many rows it has."""
    two, crowd = Two(portion=2), [b"{%b}%d" % (KEYS[0], i) for i in range(9)]
    for one in crowd:
        two.write(one, b"v")
    expected = two.rows(0)
    while two.step():
        assert len(two.rows(1).keys() & crowd) in (0, 9)
    assert two.rows(1) == expected and two.rows(0) == {}


def test_a_slot_that_comes_back_while_others_are_handed_over_stays() -> None:
    two = Two(portion=2)
    while not two.rows(1):
        two.step()
    back, other = sorted(two.rows(1))[:2]
    slot = slot_of(back)
    while two.step(Move(1, 0, ((slot, slot),))):
        pass
    two.write(back, b"new")
    while two.step():
        pass
    assert {key: row.value for key, row in two.rows(0).items()} == {back: b"new"}
    assert two.rows(1).keys() == {*KEYS} - {back} and two.moves[0].owns(back) and not two.moves[0].owns(other)


def test_who_asks_for_what_is_left_of_a_move_goes_on_with_it() -> None:
    two = Two(portion=2)
    while not two.rows(1):
        two.step()
    left = Move(0, 1, tuple((slot, slot) for slot in SLOTS if slot not in two.moves[0].places))
    while two.step(left):
        pass
    assert [given.first for given in two.given] == [True] + [False] * 4
    assert two.rows(1).keys() == {*KEYS} and two.moves[0].give(MOVE, at(two.time + 1)) is None


def test_a_restart_finds_how_far_a_move_has_come() -> None:
    two = Two(portion=2)
    two.step()
    without = two.moves[0].give(MOVE, at(500))
    two.moves = [Moves(shard, MAP, store, 0) for shard, store in enumerate(two.stores)]
    two.moves[0].portion = two.moves[0].handed = 2
    assert two.moves[0].give(MOVE, at(500)) == without
    two.write(KEYS[0], b"new")
    expected = two.rows(0)
    while two.step():
        pass
    assert two.rows(1) == expected
    assert [Moves(shard, MAP, store, 0).owns(KEYS[0]) for shard, store in enumerate(two.stores)] == [False, True]


def test_another_move_of_the_source_begins_anew() -> None:
    two = Two(portion=2)
    two.step()
    two.write(KEYS[0], None)
    part = Move(0, 1, MOVE.slots[-1:])
    while two.step(part):
        pass
    expected = {key for key in KEYS if slot_of(key) == SLOTS[-1] and key != KEYS[0]}
    assert set(two.rows(1)) == expected and ZERO not in [row.version for row in two.rows(1).values()]


# -- one replica of the source ----------------------------------------------------------------------------------------


def test_what_was_to_be_read_before_the_move_is_read_where_it_is_now() -> None:
    bench = Bench(leader_reads=True)
    bench.request(Transaction(success=(Get(key(0)),)), NO_ID)
    bench.tick()
    (token,) = bench.out.reads
    slot = slot_of(key(0))
    step = bench.deliver(Transaction(success=(Move(0, 1, ((slot, slot),)),)))
    bench.part(1, step)
    bench.replica.on_readable(token, 1, bench.now, bench.out)
    (read,) = bench.multicast()
    assert bench.answers() == [] and read.destinations == (1,)


def test_a_shard_that_knows_an_id_tells_those_that_may_not() -> None:
    bench = Bench()
    both = write(key(0), key(1))
    message_id = bench.new_id()
    bench.part(1, bench.deliver(both, message_id))
    bench.sent(Parts)
    bench.deliver(both, message_id)
    ((_, parts),) = bench.sent(Parts)
    assert parts.parts[0].votes == [Vote(repeated=True)]


def moving(*keys: bytes) -> Transaction:
    """A step from shard 0 to shard 1."""
    slots = sorted(slot_of(key) for key in keys)
    return Transaction(success=(Move(0, 1, tuple((slot, slot) for slot in slots)),))


def asked_of_two(bench: Bench, message_id: bytes, *keys: bytes) -> AppMessage:
    """A write that goes to shards 0 and 2, by a map that knows more."""
    return AppMessage(bench.new_id(), (0, 2), encode_bundle([(message_id, encode_transaction(write(*keys)))]), 0)


def gone_to_two(key: bytes, bench: Bench) -> Vote:
    """Of a shard that had this key's slot."""
    return Vote(places=[PlacedRun(slot_of(key), slot_of(key), 2, at(bench.now + 10))])


def test_where_a_slot_went_on_counts_not_where_it_was_given() -> None:
    """From 0 to 1, and from 1 to 2, which tells so, or tells how it ended there."""
    bench = Bench()
    bench.part(1, bench.deliver(moving(key(0))))
    voted = bench.order(asked_of_two(bench, bench.new_id(), key(0), key(0, 1)))
    bench.part(2, voted, gone_to_two(key(0), bench))
    told = bench.order(asked_of_two(bench, bench.new_id(), key(0), key(0, 2)))
    digest = bench.replica.log.entries[0].items[0].digest
    bench.hear(6, Decisions(2, told.message.id, [Decided(APPLIED, True, "", b"", digest)]))
    assert bench.statuses()[-2:] == [APPLIED, APPLIED]
    assert [bench.store.get(one) is not None for one in (key(0), key(0, 1), key(0, 2))] == [False, True, True]


def test_a_third_copy_waits_for_the_second_where_the_first_was_moved() -> None:
    bench = Bench()
    message_id = bench.new_id()
    first = bench.deliver(write(key(0), key(1)), message_id)
    second, third = [bench.order(asked_of_two(bench, message_id, key(0), key(1))) for _ in range(2)]
    bench.sent(Parts)
    bench.part(1, first, gone_to_two(key(1), bench))
    ((_, parts),) = bench.sent(Parts)
    assert [part.id for part in parts.parts] == [second.message.id]
    bench.part(2, second)
    ((_, parts),) = bench.sent(Parts)
    assert parts.parts[0].votes == [Vote(repeated=True)]
    bench.part(2, third)
    assert bench.statuses() == [MOVED, APPLIED, REPEATED]


def test_who_is_told_moved_asks_where_it_is_and_not_the_same_shards_again() -> None:
    bench = Bench()
    bench.request(write(key(0), key(1)))
    (message,) = bench.multicast()
    bench.part(1, bench.order(message), gone_to_two(key(1), bench))
    assert bench.statuses() == [MOVED] and bench.multicast() == [] and bench.answers() == []
    bench.hear(3, ShardState(1, False, [], gone_to_two(key(1), bench).places))
    assert [again.destinations for again in bench.multicast()] == [(0, 2)]


def test_who_knows_the_first_time_calls_it_repeated_wherever_slots_have_gone() -> None:
    """All come to the same, also who only hears how it ended, of one who remembers no more than the first time."""
    bench = Bench()
    both, message_id = write(key(0), key(1)), bench.new_id()
    bench.part(1, bench.deliver(both, message_id))
    digest = decode_remembered(bench.store.remembered(message_id)).digest
    bench.part(1, bench.deliver(both, message_id), gone_to_two(key(1), bench))
    told = bench.deliver(both, message_id)
    bench.hear(3, Decisions(1, told.message.id, [Decided(REPEATED, False, "", b"", digest)]))
    assert bench.statuses() == [APPLIED, REPEATED, REPEATED]
    alone = bench.new_id()
    for _ in range(2):
        bench.deliver(write(key(0)), alone)
        bench.part(1, bench.deliver(moving(key(0)))) if bench.replica.moves.owns(key(0)) else None
    assert bench.statuses()[-3:] == [APPLIED, APPLIED, REPEATED]


def test_what_was_moved_and_then_came_too_late_was_too_late() -> None:
    bench = Bench()
    bench.request(write(key(0), key(1)))
    (message,) = bench.multicast()
    bench.part(1, bench.order(message), gone_to_two(key(1), bench))
    bench.order(AppMessage(bench.new_id(), (0, 1), message.payload, 0), expired=True)
    assert bench.statuses() == [MOVED, EXPIRED]
    assert [answer.code for answer in bench.answers()] == ["expired"]


def test_who_gave_its_slots_away_does_not_say_of_a_late_copy_that_none_had_an_effect() -> None:
    """One that was sent where they are now may have had one; whoever asked is told to look there."""
    bench = Bench()
    bench.part(1, bench.deliver(moving(key(0))))
    message_id = bench.request(write(key(0)))
    (elsewhere,) = bench.multicast()
    assert elsewhere.destinations == (1,)
    payload = elsewhere.payload
    for expired in (False, True):
        bench.order(AppMessage(bench.new_id(), (0,), payload, 0), expired=expired)
        assert bench.answers() == []
        bench.hear(4, ResultRequest([message_id], True))
        assert [to for to, results in bench.sent(ShardResults) if results.results] == []
    assert bench.statuses()[-2:] == [MOVED, EXPIRED]


def test_nor_does_it_if_the_copy_went_to_the_new_owner_too() -> None:
    """By the old map both were asked, for one key each. Who still has a key knows whatever touched it."""
    for keys, known in ((key(0), key(1)), False), ((key(0), key(0, 1), key(1)), True):
        bench = Bench()
        bench.part(1, bench.deliver(moving(key(0))))
        message_id = bench.new_id()
        payload = encode_bundle([(message_id, encode_transaction(write(*keys)))])
        bench.order(AppMessage(bench.new_id(), (0, 1), payload, 0), expired=True)
        bench.hear(4, ResultRequest([message_id], True))
        ((_, told),) = [(to, m) for to, m in bench.sent(ShardResults) if to == (4,)]
        assert ([r.status for r in told.results], told.unknown) == (([EXPIRED], []) if known else ([], [message_id]))


def test_what_had_an_effect_before_its_slots_went_is_remembered_whatever_comes_late() -> None:
    bench = Bench()
    message_id = bench.new_id()
    first = bench.deliver(write(key(0)), message_id)
    bench.part(1, bench.deliver(moving(key(0))))
    bench.order(AppMessage(bench.new_id(), (0,), first.message.payload, 0), expired=True)
    bench.hear(4, ResultRequest([message_id], True))
    assert [[r.status for r in m.results] for to, m in bench.sent(ShardResults) if to == (4,)] == [[APPLIED]]


def test_a_step_may_end_by_what_its_target_says_but_not_by_what_its_source_does() -> None:
    """What it gives only the source's part tells; unless there is nothing."""
    source, target, late = Bench(), Bench(3), Bench(3)
    message_id, unowned = source.new_id(), "move: not all of these slots are the source's"
    applied = source.deliver(moving(key(0)), message_id)
    digest = source.replica.log.entries[0].items[0].digest
    source.hear(3, Decisions(1, applied.message.id, [Decided(APPLIED, True, "", b"", digest)]))
    assert source.statuses() == [APPLIED] and not source.replica.moves.owns(key(0))
    ends = Decided(APPLIED, True, "", b"", digest), Decided(FAILED, True, unowned, b"", digest)
    for bench, decided in zip((target, late), ends, strict=True):
        step = bench.deliver(moving(key(0)), message_id)
        bench.hear(0, Decisions(0, step.message.id, [decided]))
    assert target.statuses() == [] and late.statuses() == [FAILED]


def test_what_a_step_gives_is_kept_also_if_all_is_settled_before_it_is_complete_here() -> None:
    bench = Bench()
    message_id = bench.new_id()
    step = bench.deliver(moving(key(0)), message_id)
    bench.settle(step)
    bench.part(1, step)
    bench.sent(Parts)
    bench.hear(3, PartRequest([Wanted(step.message.id, step.timestamp, [message_id])]))
    ((_, parts),) = bench.sent(Parts)
    assert parts.parts[0].votes[0].given is not None


@pytest.mark.parametrize("restarted", [False, True])
def test_what_a_step_gives_is_kept_while_its_target_may_wait_for_it_however_long(restarted: bool) -> None:
    """And then as long as results are remembered."""
    bench = Bench()
    step = bench.deliver(moving(key(0)))
    bench.part(1, step)

    def much_later() -> bool:
        """Whether it is still there."""
        bench.now += 2 * REMEMBERED_WINDOWS * WINDOW
        bench.deliver(write(key(0, 1)))
        return bench.store.part(step.message.id) is not None

    assert much_later()
    if restarted:
        bench.restart_replica()
    bench.settle(step)
    assert bench.store.part(step.message.id) is not None, "one replica of the target may be behind"
    assert not much_later()


def test_what_was_given_under_a_low_stamp_is_as_old_as_its_message() -> None:
    """The first stamps of a cluster may be low."""
    bench = Bench()
    payload = encode_bundle([(bench.new_id(), encode_transaction(moving(key(0))))])
    step = bench.order(AppMessage(bench.new_id(), (0, 1), payload, 0), at=2)
    bench.part(1, step)
    bench.settle(step)
    bench.now += REMEMBERED_WINDOWS * WINDOW // 2
    bench.deliver(write(key(0, 1)))
    assert bench.store.part(step.message.id) is not None


def test_parts_of_what_waits_behind_a_step_go_when_they_are_settled() -> None:
    """At once, or, if a life began meanwhile, with what is settled later."""
    bench = Bench()
    step = bench.deliver(moving(key(0)))
    settled = bench.deliver(write(key(0, 1), key(1)))
    bench.settle(settled)
    for delivery in (step, settled):
        bench.part(1, delivery)
    assert bench.store.part(settled.message.id) is None
    step, doubtful = bench.deliver(moving(key(0, 2))), bench.deliver(write(key(0, 1), key(1)))
    bench.restart_replica()
    for delivery in (step, doubtful, bench.deliver(write(key(0, 1), key(1)))):
        bench.part(1, delivery)
    assert bench.store.part(doubtful.message.id) is not None
    bench.settle(bench.delivered[-1][0])
    assert bench.store.part(doubtful.message.id) is None


def test_a_shard_that_was_added_begins_with_a_move_of_no_slots_that_brings_it_all_rights() -> None:
    stores = {shard: Store.open(MemoryBackend()) for shard in (0, 1, 2)}
    moves = {shard: Moves(shard, MAP, store, 0) for shard, store in stores.items()}
    for name, record in ((b"role/some", b"1"), (b"token/ann", b"2"), (b"token/bob", b"3"), (b"token/bob", b"")):
        Rights(stores[0]).change(Rule(name, record))
    stores[0].write(KEYS[0], b"stays", at(1))
    begin = Move(0, 2, ())
    given = moves[0].give(begin, at(5))
    assert given is not None and given.last and given.rows == []
    for shard in (0, 2):
        moves[shard].step(begin, given, at(5))
    assert Rights(stores[2]).given() == [(b"role/some", b"1"), (b"token/ann", b"2")]
    assert moves[0].map.shards == (0, 1, 2) and moves[0].owns(KEYS[0]) and stores[0].get(KEYS[0]) is not None
    for everywhere in (Rule(b"token/ann", b""), Range(b"", 10)):
        told = moves[0].told(Transaction(success=(everywhere,)))
        assert moved([told], (0, 1)) and not moved([told], (0, 1, 2))
    assert not moves[0].told(write(KEYS[0])), "whoever has keys need not ask it"
    moves[1].learn(moves[0].told(Transaction(success=(Range(b"", 10),))))
    assert moves[1].map.shards == (0, 1, 2), "others hear of it"
    again = moves[0].give(Move(0, 2, ((SLOTS[0], SLOTS[0]),)), at(6))
    assert again is not None and again.last and again.rules == [], "it has them"


def test_a_key_stays_attached_to_its_lease_where_it_goes() -> None:
    two, lease = Two(), new_message_id(1, 1)
    two.stores[0].write(KEYS[0], b"leased", at(two.time), lease=lease)
    assert not two.step()
    assert two.rows(1)[KEYS[0]].lease == lease and two.stores[1].attached(lease) == [KEYS[0]]


def test_what_one_move_brings_another_one_takes_along() -> None:
    """Of two slots of a transaction one comes by a move, while another one is about to go by the next."""
    store, window_us = Store.open(MemoryBackend()), 0
    moves = Moves(1, MAP_OF_THREE, store, window_us)
    moves.portion = moves.handed = 1
    own = [key(1, number) for number in range(3)]
    for number, one in enumerate(own):
        store.write(one, b"v", at(number + 1))
    goes_on = Move(1, 2, tuple(sorted((slot_of(one), slot_of(one)) for one in own)))
    given = moves.give(goes_on, at(10))
    assert given is not None and not given.last and given.ids == []
    moves.step(goes_on, given, at(10))
    message_id, record = remembered(5, own[0])
    comes = Move(0, 1, ((slot_of(key(0)), slot_of(key(0))),))
    moves.step(comes, Given([], [(message_id, record)], b"", b"", True, False), at(11))
    ids = []
    for time in range(12, 20):
        given = moves.give(goes_on, at(time))
        assert given is not None
        moves.step(goes_on, given, at(time))
        ids += [one for one, _ in given.ids]
        if given.last:
            break
    assert ids == [message_id]


def test_a_late_copy_where_a_slot_has_come_is_too_late() -> None:
    bench = Bench(3)
    step = bench.deliver(moving(key(0)))
    slots = ranges_of([slot_of(key(0))])
    bench.part(0, step, Vote(given=Given([], [], b"", b"", True, True, [], slots)))
    assert bench.replica.moves.owns(key(0))
    message_id = bench.new_id()
    payload = encode_bundle([(message_id, encode_transaction(write(key(0))))])
    bench.order(AppMessage(bench.new_id(), (1,), payload, 0), expired=True)
    bench.hear(4, ResultRequest([message_id]))
    assert [r.status for to, m in bench.sent(ShardResults) if to == (4,) for r in m.results] == [EXPIRED]


def test_who_sent_a_late_copy_where_its_slots_were_is_told_what_is_known_of_the_first() -> None:
    bench = Bench()
    message_id = bench.new_id()
    first = bench.deliver(write(key(0)), message_id)
    bench.part(1, bench.deliver(moving(key(0))))
    bench.sent(ShardResults)
    bench.order(AppMessage(bench.new_id(), (0,), first.message.payload, 4), expired=True)
    assert [[r.status for r in m.results] for to, m in bench.sent(ShardResults) if to == (4,)] == [[APPLIED]]


def test_who_is_told_once_more_that_it_was_moved_tries_nothing() -> None:
    bench = Bench()
    transaction = write(key(0), key(1))
    message_id = bench.request(transaction)
    (message,) = bench.multicast()
    delivery = bench.order(message)
    bench.part(1, delivery, gone_to_two(key(1), bench))
    bench.hear(3, ShardState(1, False, [], gone_to_two(key(1), bench).places))
    assert len(bench.multicast()) == 1
    again = result_of(transaction, message_id, version_of(delivery.timestamp, 0), None, MOVED)
    bench.hear(4, ShardResults(1, [again]))
    bench.tick(RESULT_RETRY_US)
    assert bench.multicast() == []


def test_a_peers_outcome_behind_a_step_is_that_of_its_own_delivery() -> None:
    bench, other = Bench(), Bench()
    for one in (bench, other):
        one.store.write(key(0, 1), b"text", at(1))
    impossible = Transaction(success=(Add(key(0, 1), 1),))
    other.part(1, other.deliver(moving(key(0))))
    other.deliver(write(key(0, 2)))
    other.deliver(impossible)
    step = bench.deliver(moving(key(0)))
    bench.deliver(write(key(0, 2)))
    bench.deliver(impossible)
    bench.replica.on_outcome(3, other.out.completions[2][1], bench.now, bench.out)
    bench.part(1, step)
    assert bench.statuses() == [APPLIED, APPLIED, FAILED]
