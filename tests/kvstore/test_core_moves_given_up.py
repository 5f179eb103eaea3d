"""A move of slots that is given up leaves nothing behind, and no delivery takes long for it. Whoever was told of one
asks for no more than is missing."""

from __future__ import annotations

import pytest

from kvstore.api.model import Get, Move, OperationResult, Transaction
from kvstore.api.shard_map import PlacedRun, ranges_of, slot_of
from kvstore.core.audit import APPLIED, Given
from kvstore.core.bundles import version_of
from kvstore.core.messages import Refused, ResultRequest, ShardResults, ShardState, Vote
from kvstore.core.requests import RESULT_RETRY_US
from kvstore.core.state import PLACES
from multicast.types import Timestamp
from tests.kvstore.one_replica import Bench, key, result_of, write
from tests.kvstore.test_core_moves import KEYS, MOVE, SLOTS, Two, gone_to_two, moving


def staged(two: Two) -> int:
    """So many rows the target has that it does not show."""
    return len(two.stores[1].notes(b"s"))


def test_a_move_that_is_given_up_goes_from_both_by_portions() -> None:
    """However many rows it has staged: no delivery takes more than a portion of them away."""
    two = Two(portion=3)
    two.moves[1].portion = two.moves[1].handed = 3
    before, nothing = two.rows(0), Move(0, 1, ())
    assert two.step()
    for one in two.moves:
        one.portion = one.handed = 2
    two.write(KEYS[0], b"new")
    expected = two.rows(0)
    assert staged(two) == 3 and two.moves[1].status()["staged_from"] == [0]
    assert two.moves[0].status()["leaving"] == {"target": 1, "slots": MOVE.slots, "slots_to": -1}
    assert not two.step(nothing)
    assert staged(two) == 1 and two.moves[0].status() == {"leaving": None, "staged_from": [], "old": True}
    while two.moves[0].status()["old"]:
        two.step(nothing)
    nothing_left = {"leaving": None, "staged_from": [], "old": False}
    assert [moves.status() for moves in two.moves] == [nothing_left] * 2
    assert [set(dict(store.notes(b""))) for store in two.stores] == [{PLACES}] * 2
    assert two.rows(0) == expected and two.rows(1) == {}
    while two.step():
        pass
    assert two.rows(0) == {} and two.rows(1) == expected and two.rows(1).keys() == before.keys()


@pytest.mark.parametrize("given_up", [0, 1, 2])
def test_a_move_may_begin_before_another_one_has_gone_wholly(given_up: int) -> None:
    two = Two(portion=2)
    two.moves[1].portion = two.moves[1].handed = 2
    for _ in range(2):
        two.step()
    for _ in range(given_up):
        two.step(Move(0, 1, ()))
    assert staged(two) == 4 - 2 * given_up and two.moves[0].status()["old"] == (given_up > 0)
    two.write(KEYS[0], None)
    part = Move(0, 1, MOVE.slots[2:])
    while two.step(part):
        pass
    assert set(two.rows(1)) == {key for key in KEYS if slot_of(key) in SLOTS[2:]} - {KEYS[0]}
    assert all(two.moves[0].owns(key) == (slot_of(key) in SLOTS[:2]) for key in KEYS)
    assert not two.moves[0].status()["old"] and staged(two) == 0


def test_who_was_told_moved_and_then_of_an_effect_asks_for_the_rest_and_orders_nothing() -> None:
    bench = Bench()
    transaction = Transaction(success=(Get(key(0)), Get(key(1))))
    message_id = bench.request(transaction, bench.new_id())
    (message,) = bench.multicast()
    delivery = bench.order(message)
    bench.part(1, delivery, gone_to_two(key(1), bench))
    bench.sent(ResultRequest)
    done = result_of(transaction, message_id, version_of(Timestamp(bench.now + 9, 0), 0), [(1, OperationResult())])
    bench.hear(6, ShardResults(2, [done]))
    bench.tick(RESULT_RETRY_US)
    assert bench.multicast() == [] and bench.sent(ResultRequest) != []


@pytest.mark.parametrize("overloaded", [False, True])
def test_who_asks_elsewhere_and_is_refused_does_not_say_that_nothing_will_be_done(overloaded: bool) -> None:
    """It was another copy that was moved, and its own comes when the slot is back."""
    bench = Bench()
    message_id = bench.request(write(key(0)))
    (own,) = bench.multicast()
    bench.part(1, bench.deliver(moving(key(0))))
    bench.hear(3, ShardState(1, not overloaded, [], []))
    bench.deliver(write(key(0)), message_id, origin=4)
    for message in bench.multicast():
        bench.replica.on_refused(message, "too much", bench.now, bench.out)
    (refused,) = bench.answers()
    slots = ranges_of([slot_of(key(0))])
    back = bench.deliver(Transaction(success=(Move(1, 0, slots),)))
    bench.part(1, back, Vote(given=Given([], [], b"", b"", True, True, [], slots)))
    bench.order(own)
    assert isinstance(refused, Refused) and refused.code == ("overloaded" if overloaded else "full")
    assert bench.statuses()[-1] == APPLIED and refused.outcome == "unknown"


def test_who_is_told_moved_again_asks_where_it_is_by_then() -> None:
    """The slot came back while the request was on its way to where it had gone."""
    bench, moved_to_one = Bench(), key(1)
    bench.request(write(key(0), moved_to_one))
    (first,) = bench.multicast()
    gone = gone_to_two(moved_to_one, bench)
    bench.part(1, bench.order(first), gone)
    bench.hear(3, ShardState(1, False, [], gone.places))
    (second,) = bench.multicast()
    slot = slot_of(moved_to_one)
    back = Vote(places=[PlacedRun(slot, slot, 1, Timestamp(bench.now + 1_000, 0))])
    bench.part(2, bench.order(second), back)
    bench.hear(6, ShardState(2, False, [], back.places))
    (third,) = bench.multicast()
    assert [one.destinations for one in (first, second, third)] == [(0, 1), (0, 2), (0, 1)]
