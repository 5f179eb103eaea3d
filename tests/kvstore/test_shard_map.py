"""Keys to shards."""

import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.api import shard_map
from kvstore.api.model import Compare, Get, Move, Put, Range, Transaction
from kvstore.api.shard_map import (
    SLOTS,
    Place,
    PlacedRun,
    ShardMap,
    add_places,
    places_of,
    runs_of,
    slot_of,
)
from kvstore.core import moves
from kvstore.core.audit import Given
from kvstore.storage.backend import MemoryBackend
from kvstore.storage.store import Store
from multicast.types import Timestamp


def test_keys_with_one_tag_share_a_slot():
    assert slot_of(b"{user7}/name") == slot_of(b"{user7}/mail") == slot_of(b"user7")


@pytest.mark.parametrize("key", [b"{}x", b"{x", b"x}", b"}{"])
def test_without_a_tag_the_whole_key_counts(key):
    assert slot_of(key) == zlib.crc32(key) % SLOTS


def test_an_even_map_gives_every_shard_its_part():
    shards = ShardMap.even([0, 1, 2])
    counts = [shards.slots.count(s) for s in (0, 1, 2)]
    assert sum(counts) == SLOTS and max(counts) - min(counts) <= 1


@pytest.mark.parametrize("shards", [[0], [0, 1]])
def test_a_step_of_a_move_is_at_home_in_its_two_shards_however_many_there_were_at_first(shards):
    """Who asks for it and who executes it have to call it the same: by that they know its id again."""
    step = Transaction(success=(Move(0, 1, ((0, 1),)),))
    made = ShardMap.even(shards)
    assert made.homes_of(step) == (b"", (0, 1)) and made.shards_of(step) == (0, 1)


def test_json_round_trip():
    shards = ShardMap.even([4, 2, 9], version=7)
    assert ShardMap.from_json(shards.to_json()) == shards


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"version": 1}, "exactly the fields"),
        ({"version": 1, "ranges": [[0, 5, 0], [7, SLOTS - 1, 1]]}, "does not follow slot 5"),
        ({"version": 1, "ranges": [[0, 5, 0]]}, "not 6"),
        ({"version": 1, "ranges": [["0", 5, 0]]}, "a range is"),
        ({"version": 0, "ranges": [[0, SLOTS - 1, 0]]}, "at least 1"),
        ([], "exactly the fields"),
    ],
)
def test_a_malformed_map_is_refused(data, complaint):
    with pytest.raises(ValueError, match=complaint):
        ShardMap.from_json(data)


def test_the_shards_of_a_transaction_are_those_of_all_its_keys():
    shards = ShardMap.even([0, 1])
    low, high = (next(b"k%d" % i for i in range(99) if shards.shard_of(b"k%d" % i) == s) for s in (0, 1))
    assert shards.shards_of(Transaction(success=(Put(low, b""),))) == (0,)
    assert shards.shards_of(Transaction((Compare(high, "exists", "==", True),), (Get(low),))) == (0, 1)
    assert shards.shards_of(Transaction(success=(Get(high),), failure=(Get(low),))) == (0, 1)
    assert shards.shards_of(Transaction(success=(Range(b"k", 3),))) == (0, 1)


some_runs = st.lists(
    st.builds(
        lambda first, many, shard, time: PlacedRun(first, min(first + many, SLOTS + 2), shard, Timestamp(time, 0)),
        st.one_of(st.integers(0, 6), st.integers(SLOTS - 3, SLOTS + 2)), st.integers(0, 5), st.integers(0, 3),
        st.integers(1, 5),
    )
)  # fmt: skip


@given(st.lists(some_runs, max_size=4))
def test_of_all_that_is_told_of_a_slot_the_latest_move_counts(told):
    known, naive = {}, {}
    for runs in told:
        before = dict(naive)
        for run in runs:
            for slot in range(run.first, run.last + 1):
                if slot not in naive or run.since > naive[slot].since:
                    naive[slot] = Place(run.shard, run.since)
        assert add_places(known, runs) == (naive != before)
    assert known == naive and places_of(runs_of(known)) == naive
    for one, other in itertools.pairwise(runs_of(known)):
        assert one.last + 1 < other.first or (one.shard, one.since) != (other.shard, other.since), "as few as can be"
    first = ShardMap.even([0, 1])
    after = first.after(known)
    assert after.slots == tuple(naive[s].shard if s in naive else first.slots[s] for s in range(SLOTS))
    assert after.shards == tuple(sorted({*after.slots, 0, 1, *[place.shard for place in naive.values()]}))
    assert after.version == 1 + max((place.since.time for place in naive.values()), default=0)


def test_a_step_of_a_move_and_who_hears_of_it_make_nothing_of_the_moves_before(monkeypatch):
    """Of which there may be thousands, and all replicas hear of all of them four times a second."""
    made = 0

    class Counted(Place):
        def __new__(cls, *arguments):
            nonlocal made
            made += 1
            return Place(*arguments)

    monkeypatch.setattr(shard_map, "Place", Counted)
    monkeypatch.setattr(moves, "Place", Counted)
    source, other = [moves.Moves(s, ShardMap.even([0, 1]), Store.open(MemoryBackend()), 0) for s in (0, 2)]
    counts = []
    for number in range(20):
        first = 100 * number
        given_ = Given([], [], moves._ALL, moves._ALL, False, False, [], ((first, first + 99),))
        made = 0
        source.step(Move(0, 1, given_.slots), given_, Timestamp(1000 + number, 0))
        other.learn(source.runs)
        counts.append(made)
    assert max(counts) <= 2 + 20 and other.map == source.map
