"""Slots that move: what a step hands over, and who serves what when it is done."""

from __future__ import annotations

from kvstore.api.model import Get, Move, OperationResult, Put, Transaction
from kvstore.api.shard_map import PlacedRun, ShardMap, runs_of, slot_of
from kvstore.core.audit import APPLIED, MOVED, REPEATED
from kvstore.core.bundles import NO_ID, encode_bundle, encode_transaction
from kvstore.core.messages import Parts, ShardResult, Vote, decode_remembered, encode_remembered
from kvstore.core.moves import Moves, moved
from kvstore.storage.backend import MemoryBackend
from kvstore.storage.store import Store
from multicast.types import ZERO, AppMessage, Timestamp, new_message_id
from tests.kvstore.one_replica import Bench, key, write

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
    """Source and target. given: by the last step."""

    def __init__(self, portion: int = 2000):
        self.stores = [Store.open(MemoryBackend()) for _ in range(2)]
        self.moves = [Moves(shard, MAP, store, 0) for shard, store in enumerate(self.stores)]
        self.moves[0].portion = portion
        self.time = 100
        for i, owned in enumerate(KEYS):
            self.stores[0].write(owned, b"old", at(i + 1))

    def write(self, key: bytes, value: bytes | None) -> None:
        """By a transaction in the source."""
        self.time += 1
        self.stores[0].write(key, value, at(self.time))
        self.moves[0].wrote(key)

    def step(self) -> bool:
        """Whether there are more."""
        self.time += 1
        given = self.moves[0].give(MOVE, at(self.time))
        assert given is not None
        for moves in self.moves:
            moves.step(MOVE, given, at(self.time))
        return not given.last

    def rows(self, shard: int) -> dict[bytes, tuple[bytes, Timestamp]]:
        return {row.key: row for row in self.stores[shard].scan(b"", b"", 1000)[0]}


def test_rows_go_with_their_versions_and_leave_nothing_behind() -> None:
    two = Two()
    before = two.rows(0)
    assert not two.step()
    assert two.rows(1) == before and two.rows(0) == {}
    assert two.stores[0].state_digest() == bytes(16)


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


def test_what_both_know_of_an_id_goes_together() -> None:
    """Its effect, not that a copy had none, the slots that it touched and what was read of each."""
    two = Two()
    both, again = new_message_id(10, 1), new_message_id(20, 1)
    slots = [slot_of(KEYS[0]).to_bytes(2, "big"), slot_of(KEYS[1]).to_bytes(2, "big")]
    for shard, store in enumerate(two.stores):
        read = [(shard, OperationResult(value=shard))]
        applied = ShardResult(both, b"", at(10), APPLIED, True, "", b"", read)
        store.remember(both, encode_remembered(applied, slots[shard]))
        status = REPEATED if shard else APPLIED
        copy = ShardResult(again, b"", at(20 + shard), status, True, "", b"", [])
        store.remember(again, encode_remembered(copy, slots[0]))
    assert not two.step()
    joined = decode_remembered(two.stores[1].remembered(both) or b"")
    assert joined.slots == b"".join(sorted(slots))
    assert joined.results == [(0, OperationResult(value=0)), (1, OperationResult(value=1))]
    assert two.stores[1].remembered(again) == two.stores[0].remembered(again)


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


def test_a_restart_finds_how_far_a_move_has_come() -> None:
    two = Two(portion=2)
    two.step()
    without = two.moves[0].give(MOVE, at(500))
    two.moves = [Moves(shard, MAP, store, 0) for shard, store in enumerate(two.stores)]
    two.moves[0].portion = 2
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
    part = Move(0, 1, MOVE.slots[:1])
    for _ in range(9):
        given = two.moves[0].give(part, at(two.time + 1))
        assert given is not None
        two.time += 1
        for moves in two.moves:
            moves.step(part, given, at(two.time))
        if given.last:
            break
    expected = {key for key in KEYS if slot_of(key) == SLOTS[0] and key != KEYS[0]}
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


def test_where_a_slot_went_on_counts_not_where_it_was_given() -> None:
    """From 0 to 1, and from 1 to 2, which tells so."""
    bench = Bench()
    slot = slot_of(key(0))
    bench.part(1, bench.deliver(Transaction(success=(Move(0, 1, ((slot, slot),)),))))
    payload = encode_bundle([(bench.new_id(), encode_transaction(write(key(0), key(0, 1))))])
    asked = bench.order(AppMessage(bench.new_id(), (0, 2), payload, 0))
    bench.part(2, asked, Vote(places=[PlacedRun(slot, slot, 2, at(bench.now + 10))]))
    assert bench.statuses()[-1] == APPLIED
    assert bench.store.get(key(0)) is None and bench.store.get(key(0, 1)) is not None
