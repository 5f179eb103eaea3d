"""Keys to shards."""

import zlib

import pytest

from kvstore.api.model import Compare, Get, Move, Put, Range, Transaction
from kvstore.api.shard_map import SLOTS, ShardMap, slot_of


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
