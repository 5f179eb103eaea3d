"""Which shards can take transactions, by what their leaders say."""

from __future__ import annotations

from unittest.mock import patch

from kvstore.api.model import Delete, DeleteRange, Get, Put, Transaction
from kvstore.api.shard_map import PlacedRun, ShardMap
from kvstore.core.audit import APPLIED, MOVED
from kvstore.core.messages import ShardState, Vote
from kvstore.core.moves import Moves, moved
from kvstore.core.peers import Peers
from kvstore.core.shards import SILENT_US, TELL_US, Shards
from kvstore.storage.backend import MemoryBackend
from kvstore.storage.store import Store
from multicast.application import ApplicationOutbox
from multicast.types import Timestamp, Topology
from tests.kvstore.one_replica import Bench

TOPOLOGY = Topology({0: [0, 1], 1: [2], 2: [3]})
PUT, DELETE, READ = (
    Transaction((), (operation,)) for operation in (Put(b"k", b"v"), Delete(b"k"), Get(b"k"))
)  # fmt: skip


class One:
    """Replica 0. leads, followed, lacks, full: what it finds of itself."""

    def __init__(self) -> None:
        self.leads = self.followed = True
        self.lacks: set[int] = set()
        self.full = False
        self.out = ApplicationOutbox()
        peers = Peers(0, TOPOLOGY, lambda shard: 0 if self.leads else 1)
        moves = Moves(0, ShardMap.even((0, 1, 2)), Store.open(MemoryBackend()), 0)
        self.shards = Shards(peers, moves, lambda: self.followed, lambda: self.lacks, lambda: self.full)
        self.shards.start(0)

    def told(self, now: int) -> list[ShardState]:
        """What it tells then."""
        self.out.sends.clear()
        self.shards.on_tick(now, self.out)
        return [state for to, state in self.out.sends if to == (1, 2, 3)]

    def refused(self, *shards: int, now: int, transaction: Transaction = PUT) -> str:
        refusal = self.shards.refusal(shards, transaction, now)
        assert refusal is None or (refusal.retryable and refusal.outcome == "not_applied")
        return refusal.message if refusal is not None else ""


def test_only_a_leader_with_a_majority_tells() -> None:
    one = One()
    assert one.told(0) == [ShardState(0, False, [])] and one.told(1) == []
    one.leads = False
    assert one.told(TELL_US) == []
    one.leads, one.followed = True, False
    assert one.told(2 * TELL_US) == []
    one.followed = True
    assert len(one.told(3 * TELL_US)) == 1


def test_a_new_leader_tells_at_once() -> None:
    """Its shard may have been silent for so long that it is taken for dead."""
    one = One()
    one.leads = one.followed = False
    assert one.told(0) == one.told(1) == []
    one.leads = True
    assert one.told(2) == []
    one.followed = True
    assert one.told(3) == [ShardState(0, False, [])] and one.told(4) == one.told(TELL_US) == []
    assert one.shards.on_tick(TELL_US, one.out) == 3 + TELL_US and len(one.told(3 + TELL_US)) == 1


def test_a_shard_that_is_not_heard_of_is_refused_and_no_other_one() -> None:
    one = One()
    assert not one.refused(0, 1, now=SILENT_US), "everybody is given the time to be heard"
    one.shards.on_state(ShardState(2, False, []), SILENT_US)
    one.told(SILENT_US)
    now = SILENT_US + 1
    assert one.refused(0, 1, now=now) == one.refused(1, 2, now=now)
    text = "shard 1 has no majority, or cannot be reached: its leader was not heard for 3.0 s"
    assert text in one.refused(0, 1, now=now)
    assert not one.refused(0, 2, now=now)
    one.shards.on_state(ShardState(1, False, []), now)
    assert not one.refused(0, 1, now=now)


def test_a_shard_that_waits_for_a_dead_one_says_so_and_is_refused() -> None:
    one = One()
    one.lacks = {1, 2}
    now = SILENT_US + 1
    one.shards.on_state(ShardState(2, False, []), now)
    assert one.told(now) == [ShardState(0, False, [1])]
    assert "shard 0 waits for shard 1" in one.refused(0, now=now)
    one.shards.on_state(ShardState(2, False, [1]), now)
    assert "shard 2 waits for shard 1" in one.refused(2, now=now)
    one.shards.on_state(ShardState(1, False, []), now)
    one.told(now + TELL_US)
    assert not one.refused(0, now=now + TELL_US)


def test_a_full_shard_takes_deletes_and_reads() -> None:
    one = One()
    one.full = True
    one.told(0)
    assert "full" in one.refused(0, now=0) and one.shards.refusal((0,), PUT, 0).code == "full"  # type: ignore[union-attr]
    assert not one.refused(0, now=0, transaction=DELETE) and not one.refused(0, now=0, transaction=READ)
    assert not one.refused(1, now=0)


def test_where_thousands_of_slots_are_nobody_counts_again_and_again() -> None:
    """A leader tells it four times a second, and with a range each shard does so in its vote: slot by slot that took
    twelve milliseconds, for each scan, when a shard had been added."""
    bench, since = Bench(3), Timestamp(1000, 0)
    gone = [PlacedRun(0, 5000, 2, since)]
    bench.hear(0, ShardState(0, False, [], gone))
    assert bench.replica.moves.map.slots[:5001] == (2,) * 5001
    with patch("kvstore.core.moves.add_places", side_effect=AssertionError("slot by slot")):
        bench.hear(0, ShardState(0, False, [], [PlacedRun(0, 5000, 2, since)]))
        ranged = bench.deliver(Transaction(success=(DeleteRange(b"k"),)))
        for shard, places in ((0, gone), (2, gone)):
            bench.part(shard, ranged, Vote(places=places))
        assert bench.statuses() == [APPLIED]
    later = Timestamp(2000, 0)
    bench.hear(0, ShardState(0, False, [], [PlacedRun(0, 4999, 2, since), PlacedRun(5000, 5000, 1, later)]))
    assert bench.replica.moves.map.slots[4999:5001] == (2, 1)


def test_a_range_that_went_past_a_shard_which_was_added_is_moved() -> None:
    bench = Bench(3)
    ranged = bench.deliver(Transaction(success=(DeleteRange(b"k"),)))
    places = [PlacedRun(0, 9, 2, Timestamp(1, 0)), PlacedRun(7, 7, 3, Timestamp(2, 0))]
    for shard in (0, 2):
        bench.part(shard, ranged, Vote(places=places))
    assert bench.statuses() == [MOVED]
    assert not moved([[], []], (0,)) and not moved([], (0,))
