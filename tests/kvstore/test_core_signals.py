"""One replica alone: parts pushed, pulled, kept and settled, and what must not come from others."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import msgspec
import pytest

import kvstore.core.messages
from kvstore.api.model import Add, Compare, Get, Put, Transaction, Txn
from kvstore.api.shard_map import PlacedRun, slot_of
from kvstore.core.audit import APPLIED, EXPIRED, MISMATCH, MOVED, REPEATED, Read
from kvstore.core.bundles import NO_ID, decode_bundle, version_of
from kvstore.core.messages import Decided, Decisions, Part, PartRequest, Parts, Remembered, ShardResults, Vote, Wanted
from kvstore.core.requests import REMEMBERED_WINDOWS
from kvstore.core.signals import PULLS_BEFORE_FETCH
from multicast.protocol import PeerError
from multicast.records import Delivered
from multicast.types import ZERO, AppMessage, Timestamp, Topology, new_message_id
from tests.kvstore.one_replica import NOW, WINDOW, Bench, key, write

BOTH = write(key(0), key(1))


def test_the_leader_pushes_its_part_to_all_replicas_of_the_other_shards():
    bench = Bench()
    delivery = bench.deliver(BOTH)
    ((to, parts),) = bench.sent(Parts)
    assert to == (3, 4, 5) and parts.shard == 0
    assert [(part.id, part.timestamp, part.votes) for part in parts.parts] == [
        (delivery.message.id, delivery.timestamp, [])
    ]
    follower = Bench(1)
    follower.deliver(BOTH)
    assert follower.sent(Parts) == []


def test_a_part_waits_for_bundles_of_other_shards_but_not_for_a_subset():
    bench = Bench()
    blocking = write(key(0), key(2))
    first = bench.deliver(blocking)
    second = bench.deliver(blocking)
    ((to, parts),) = bench.sent(Parts)
    assert to == (6, 7, 8) and len(parts.parts) == 2
    bench.deliver(BOTH)
    bench.part(2, first)
    assert bench.sent(Parts) == []
    bench.part(2, second)
    ((to, _),) = bench.sent(Parts)
    assert to == (3, 4, 5)


def test_a_part_waits_for_those_who_write_what_one_of_its_votes_depends_on():
    bench = Bench()
    first = bench.deliver_bundle((bench.new_id(), BOTH), (bench.new_id(), write(key(0, 1), key(1))))
    bench.sent(Parts)
    add = Transaction(success=(Add(key(0, 1), 1), Add(key(1), 1)))
    bench.deliver_bundle((bench.new_id(), write(key(0, 2), key(1))), (bench.new_id(), add))
    assert bench.sent(Parts) == []
    bench.part(1, first)
    ((_, parts),) = bench.sent(Parts)
    (part,) = parts.parts
    assert part.votes[0] is None and "not a decimal integer" in part.votes[1].success_failure


def test_what_a_vote_has_compared_is_not_read_again_and_told_once():
    bench = Bench()
    a, absent, other = key(0), key(0, 1), key(0, 2)
    put = bench.deliver(Transaction(success=(Put(a, b"1"),)))
    exists = [Compare(one, "exists", "==", one == a) for one in (absent, a)]
    transfer = Transaction((*exists, Compare(key(1), "exists", "==", True)), (Get(other), Get(a), Put(absent, b"")))
    with patch.object(bench.store, "get", wraps=bench.store.get) as get:
        delivery = bench.deliver(transfer)
        assert [call.args[0] for call in get.mock_calls] == [absent, a]
        bench.part(1, delivery, Vote(False))
        assert [call.args[0] for call in get.mock_calls] == [absent, a]
        bench.part(1, bench.deliver(transfer))
        assert [call.args[0] for call in get.mock_calls] == [absent, a] * 2 + [other, a]
    _, failed, done = bench.outcomes()
    compared = (Read(absent, ZERO), Read(a, version_of(put.timestamp, 0)))
    assert failed.reads == compared and done.reads == (*compared, Read(other, ZERO))


def test_signalling_at_delivery_does_not_wait():
    bench = Bench(signals="delivery")
    bench.deliver(write(key(0), key(2)))
    bench.deliver(BOTH)
    assert {to for to, _ in bench.sent(Parts)} == {(3, 4, 5), (6, 7, 8)}


def test_parts_may_come_before_the_delivery():
    bench, other = Bench(), Bench(3)
    ahead = other.deliver(BOTH)
    bench.part(1, ahead)
    bench.order(ahead.message)
    assert len(bench.outcomes()) == 1


# -- pulled -----------------------------------------------------------------------------------------------------------


def test_parts_are_pulled_after_a_while_from_one_replica_after_the_other():
    bench = Bench(part_retry_us=1000)
    delivery = bench.deliver(BOTH)
    assert bench.tick() == NOW + 1000
    asked = []
    for _ in range(4):
        bench.tick(1000)
        asked += bench.sent(PartRequest)
    assert [to for to, _ in asked] == [(3,), (4,), (5,), (3,)]
    assert [wanted.id for wanted in asked[0][1].wanted] == [delivery.message.id]
    assert bench.replica.status()["parts_pulled"] == 4


def test_outcomes_that_others_forgot_are_fetched_in_the_own_shard():
    bench, other = Bench(part_retry_us=1000), Bench(1)
    delivery = bench.deliver(BOTH)
    for _ in range(PULLS_BEFORE_FETCH - 1):
        bench.tick(1000)
    assert bench.out.fetches == []
    bench.tick(1000)
    assert bench.out.fetches and set(bench.out.fetches) <= {1, 2}
    other.part(1, other.order(delivery.message))
    ((_, record),) = other.out.completions
    bench.replica.on_outcome(1, record, bench.now, bench.out)
    assert bench.out.completions == [(1, record)] and bench.store.get(key(0)) is not None


@pytest.mark.parametrize("replicas", [2, 3, 4, 5, 7])
def test_all_peers_of_the_own_shard_are_asked_in_turn(replicas):
    """Some of them may never come back."""
    bench = Bench(topology=Topology.grid(3, replicas), part_retry_us=1000)
    bench.deliver(BOTH)
    for _ in range(PULLS_BEFORE_FETCH * (replicas - 1)):
        bench.tick(1000)
    assert sorted(bench.out.fetches) == list(range(1, replicas))


# -- kept -------------------------------------------------------------------------------------------------------------


def test_a_part_is_told_again_until_the_bundle_is_settled():
    bench = Bench()
    delivery = bench.deliver(BOTH)
    ((_, pushed),) = bench.sent(Parts)
    pull = pull_of(delivery)
    for complete in (False, True):
        if complete:
            bench.part(1, delivery)
        bench.hear(4, pull)
        assert bench.sent(Parts) == [((4,), pushed)]
    bench.settle(delivery)
    assert bench.store.part(delivery.message.id) is None
    bench.hear(4, pull)
    assert bench.sent(Parts) == [] and bench.sent(Decisions)


def pull_of(delivery: Delivered) -> PartRequest:
    ids = [bundled.id for bundled in decode_bundle(delivery.message)]
    return PartRequest([Wanted(delivery.message.id, delivery.timestamp, ids)])


def test_how_a_settled_bundle_ended_does_instead_of_its_parts():
    """All who had its outcome in one shard may have lost their disks, one after the other."""
    there, here = Bench(3), Bench()
    transaction = Transaction((Compare(key(1), "exists", "==", True),), (Put(key(0), b"yes"),), (Add(key(0), 7),))
    read = Transaction(success=(Get(key(0)), Get(key(1))))
    for delivery in (there.deliver(transaction), there.deliver_bundle((NO_ID, read), (NO_ID, read))):
        there.part(0, delivery)
        there.settle(delivery)
        waiting = here.order(delivery.message)
        completed = len(here.out.completions)
        there.hear(1, pull_of(waiting))
        ((to, decisions),) = there.sent(Decisions)
        assert to == (1,)
        here.hear(4, decisions)
        assert len(here.out.completions) == completed + 1
    assert [(o.status, o.succeeded) for o in here.outcomes()] == [(APPLIED, False), (APPLIED, True), (APPLIED, True)]
    assert here.store.get(key(0)).value == b"7"


def test_what_ended_elsewhere_under_this_id_with_another_body_was_a_misuse_here():
    bench = Bench()
    delivery = bench.deliver(BOTH)
    bench.hear(4, Decisions(1, delivery.message.id, [Decided(REPEATED, True, "", b"", b"another body")]))
    assert bench.statuses() == [MISMATCH] and bench.store.get(key(0)) is None


def test_a_read_without_an_id_that_was_moved_is_not_told_as_if_it_were_applied():
    there, here = Bench(3), Bench()
    delivery = there.deliver_bundle((NO_ID, Transaction(success=(Get(key(0)), Get(key(1))))))
    slot = slot_of(key(0))
    there.part(0, delivery, Vote(places=[PlacedRun(slot, slot, 2, delivery.timestamp)]))
    there.settle(delivery)
    there.hear(1, pull_of(here.order(delivery.message)))
    ((_, decisions),) = there.sent(Decisions)
    here.hear(4, decisions)
    assert there.statuses() == here.statuses() == [MOVED]


def test_nothing_is_told_of_a_bundle_that_has_not_come_yet_or_whose_results_are_forgotten():
    bench, other = Bench(), Bench()
    ahead = other.deliver(BOTH)
    bench.hear(4, pull_of(ahead))
    delivery = bench.deliver(BOTH)
    bench.part(1, delivery)
    bench.settle(delivery)
    bench.store.forget_before(bytes([255]) * 16)
    bench.hear(4, pull_of(delivery))
    assert bench.sent(Decisions) == [] and bench.sent(Parts)


def test_parts_travel_in_as_many_messages_as_they_take(monkeypatch: pytest.MonkeyPatch):
    """A vote names a key for each way in which a nested transaction is impossible, and there are many ways."""
    monkeypatch.setattr(kvstore.core.messages, "RESULT_BYTES_MAX", 300_000)
    nested = [Txn((Compare(key(0, 9), "exists", "==", False),)) for _ in range(5)]
    bench = Bench()
    blocking = bench.deliver(write(key(0), key(2)))
    bench.sent(Parts)
    held = []
    for at in range(4):
        own = key(0, 10 + at)
        impossible = Transaction(success=(Put(own, b"no number"), Add(own, 1), Put(key(1), b""), *nested))
        held.append(bench.deliver_bundle(*[(bench.new_id(), impossible) for _ in range(64)]))
    assert bench.sent(Parts) == []
    bench.part(2, blocking)
    pushed = bench.sent(Parts)
    bench.hear(4, PartRequest([wanted for one in held for wanted in pull_of(one).wanted]))
    pulled = bench.sent(Parts)
    assert [len(parts.parts) for _, parts in pushed] == [2, 2]
    assert pulled == [((4,), parts) for _, parts in pushed]
    assert 200_000 < len(msgspec.msgpack.encode(pushed[0][1])) < 300_000


def test_settled_before_it_is_complete_here_leaves_nothing_behind():
    bench = Bench()
    early, late = bench.deliver(BOTH), bench.deliver(BOTH)
    bench.settle(late)
    for delivery in (early, late):
        bench.part(1, delivery)
    assert [message_id for message_id, _ in bench.store.parts()] == [early.message.id]


def test_parts_whose_settlement_was_lost_in_a_crash_go_with_the_next_one():
    """Settled, but not committed when the replica died: nobody says so again."""
    bench = Bench()
    all_three = write(key(0), key(1), key(2))
    lost = bench.deliver(BOTH)
    wider = bench.deliver(all_three)
    waiting = bench.deliver(BOTH)
    bench.part(1, lost)
    for shard in (1, 2):
        bench.part(shard, wider)
    assert bench.store.part(lost.message.id) and bench.store.part(wider.message.id)
    bench.restart_replica()
    later = bench.deliver(BOTH)
    for delivery in (waiting, later):
        bench.part(1, delivery)
    assert {i for i, _ in bench.store.parts()} == {d.message.id for d in (lost, wider, waiting, later)}
    bench.settle(later)
    assert {i for i, _ in bench.store.parts()} == {wider.message.id}


def test_parts_whose_settlement_was_lost_in_a_crash_go_with_a_bundle_that_has_no_part():
    """All of it has expired. It is settled like any other."""
    bench = Bench()
    lost = bench.deliver(BOTH)
    bench.part(1, lost)
    bench.restart_replica()
    expired = bench.order(AppMessage(bench.new_id(), (0, 1), lost.message.payload, 0), expired=True)
    assert bench.statuses()[-1] == EXPIRED and bench.store.part(lost.message.id) is not None
    bench.settle(expired)
    assert bench.store.part(lost.message.id) is None


@pytest.mark.parametrize("restarted", [False, True])
def test_a_bundle_is_settled_while_a_late_copy_of_it_is_not(restarted):
    """The copy has expired, and stands behind one that waits; which may be found when a life begins."""
    bench = Bench()
    first = bench.deliver(BOTH)
    bench.part(1, first)
    waits = bench.deliver(BOTH)
    copy = bench.order(first.message, expired=True)
    if restarted:
        bench.restart_replica()
    bench.settle(first)
    assert bench.store.part(first.message.id) is None
    bench.part(1, waits)
    assert bench.store.part(waits.message.id) is not None, "only the first is settled"
    bench.settle(copy)
    assert (bench.store.part(waits.message.id) is None) == restarted


def test_of_what_was_complete_when_a_life_began_late_copies_of_parts_are_not_kept():
    """Nobody would take them; and who asks for such a bundle is told how it ended."""
    bench = Bench()
    delivery = bench.deliver(BOTH)
    bench.part(1, delivery)
    bench.settle(delivery)
    bench.restart_replica()
    bench.part(1, delivery)
    assert bench.replica.signals._early == {}
    bench.hear(4, pull_of(delivery))
    assert [told.id for _, told in bench.sent(Decisions)] == [delivery.message.id]


def test_who_is_far_behind_does_not_look_through_all_that_came_early_at_each_delivery():
    """One look takes a microsecond for each: with thousands of them it caught up more slowly than others came."""
    with patch("kvstore.core.signals.EARLY_MANY", 10):
        bench = Bench(1)
        signals, later = bench.replica.signals, Timestamp(2 * NOW, 0)

        def come(many: int) -> None:
            signals.on_parts(Parts(1, [Part(bench.new_id(), later, []) for _ in range(many)]))

        def looks(deliveries: int) -> int:
            found = []
            for _ in range(deliveries):
                found.append(signals._early)
                bench.deliver(write(key(0)))
            return sum(before is not after for before, after in pairwise([*found, signals._early]))

        come(15)
        assert looks(20) == 1 and len(signals._early) == 15
        come(15)
        assert looks(20) == 0
        come(1)
        assert looks(20) == 1 and len(signals._early) == 31


def test_who_is_told_parts_of_what_is_not_delivered_to_it_for_long_keeps_a_number_of_them():
    """A replica that fetches a snapshot is told all of them: a gigabyte in a few minutes."""
    with patch("kvstore.core.signals.EARLY_MAX", 100):
        bench = Bench(1)
        signals, later = bench.replica.signals, Timestamp(2 * NOW, 0)
        parts = [Part(bench.new_id(), later, []) for _ in range(1000)]
        for many, part in enumerate(parts, 1):
            signals.on_parts(Parts(1, [part]))
            assert min(many, 50) <= len(signals._early) <= 100
        kept = list(signals._early)
        assert kept == [part.id for part in parts[-len(kept) :]]


# -- what must not come -----------------------------------------------------------------------------------------------


def test_a_part_from_a_replica_of_another_shard_is_the_peers_error():
    bench = Bench()
    with pytest.raises(PeerError, match="Parts of shard 1"):
        bench.hear(6, Parts(1, []))
    with pytest.raises(PeerError, match="ShardResults of shard 2"):
        bench.hear(3, ShardResults(2, []))


def test_a_part_with_votes_on_other_transactions_is_the_peers_error():
    bench = Bench()
    delivery = bench.deliver(BOTH)
    with pytest.raises(PeerError, match="2 votes on 1 transaction"):
        bench.part(1, delivery, None, Vote(holds=False))


@pytest.mark.parametrize("settled", ["later", "after a restart", "before it is complete here"])
def test_who_asks_how_a_copy_ended_is_told_that_of_this_one(settled):
    """Of what ended as moved what was voted on it, whatever has come since of an earlier copy, with slots."""
    bench = Bench()
    message_id, slot = bench.new_id(), slot_of(key(1))
    moved = bench.deliver(BOTH, message_id)
    if settled == "before it is complete here":
        bench.settle(moved)
    bench.part(1, moved, Vote(places=[PlacedRun(slot, slot, 2, Timestamp(bench.now + 10, 0))]))
    applied = bench.order(AppMessage(bench.new_id(), (0, 2), moved.message.payload, 0))
    bench.part(2, applied)
    if settled == "after a restart":
        bench.restart_replica()
    bench.sent(Parts)
    for delivery in (moved, applied):
        bench.settle(delivery)
        bench.hear(4, PartRequest([Wanted(delivery.message.id, delivery.timestamp, [message_id])]))
    assert [part.id for _, message in bench.sent(Parts) for part in message.parts] == [moved.message.id]
    assert [d.status for _, message in bench.sent(Decisions) for d in message.decided] == [APPLIED]
    bench.now += 2 * REMEMBERED_WINDOWS * WINDOW
    bench.deliver(write(key(0)))
    assert bench.store.part(moved.message.id) is None, "it is forgotten with the results of its time"


def test_the_version_of_a_copy_is_not_taken_for_the_timestamp_of_the_next_one():
    """Under the quasi-genuine protocol tie-breaks may be as large as what a version adds to a timestamp."""
    bench, message_id = Bench(), new_message_id(NOW, 7)
    first, second = Timestamp(NOW, 1), Timestamp(NOW, 1 << 16)
    assert version_of(first, 0) == second
    bench.deliver(BOTH)
    record = Remembered(b"", b"", version_of(first, 0), APPLIED, True, None, [])
    bench.store.remember(message_id, record.encoded())
    for timestamp in (first, second):
        bench.hear(4, PartRequest([Wanted(bench.new_id(), timestamp, [message_id])]))
    assert [d.status for _, message in bench.sent(Decisions) for d in message.decided] == [APPLIED, REPEATED]


def test_nothing_is_told_of_reads_without_ids_that_have_not_come_yet():
    """Of one that was, and had no ill effect, nothing is remembered, either."""
    bench = Bench()
    bench.hear(4, PartRequest([Wanted(bench.new_id(), Timestamp(bench.now + 10, 0), [NO_ID])]))
    assert bench.sent(Decisions) == [] and bench.sent(Parts) == []
