"""PrimCast with a deduplication window: what is forgotten, and what comes after that (deviation 9)."""

from __future__ import annotations

from typing import Any

import pytest

from multicast.parts.delivered import Known
from multicast.parts.sequence import Refill
from multicast.parts.stamps import EntryState, Stamp
from multicast.protocol import Outbox
from multicast.protocols.primcast import Ack, NewState
from multicast.types import Ballot, Timestamp
from tests.multicast.lockstep import START_US
from tests.multicast.test_primcast import SECOND, cluster, recorded


def test_ids_are_forgotten_after_twice_the_window() -> None:
    world = cluster(clock="hybrid", dedup_window_us=SECOND)
    for _ in range(6):
        for _ in range(10):
            world.submit(0, 0, 1)
        world.advance(SECOND)
    world.submit(0, 0, 1)
    world.advance(SECOND)
    assert all(len(world.protocol(p).log._known) <= 50 for p in range(6))


def test_a_copy_that_comes_after_its_id_was_forgotten_is_delivered_again_where_it_was() -> None:
    world = cluster(clock="hybrid", dedup_window_us=SECOND)
    old = world.message(0, 1)
    world.engines[0].submit(old)
    world._run(0)
    world.advance(SECOND)
    for _ in range(6):
        world.submit(0, 0)
        world.advance(SECOND)
    assert world.protocol(0).log.known(old.id) is None
    assert world.protocol(3).log.known(old.id) is not None
    world.engines[1].submit(old)
    world._run(1)
    world.advance(5 * SECOND)
    assert [world.delivered(p).count(old.id) for p in range(6)] == [2] * 3 + [1] * 3
    again = {at for p in range(3) for _, i, at in recorded(world, p) if i == old.id and at.time > START_US + SECOND}
    assert len(again) == 1


def test_who_joins_an_epoch_takes_up_nothing_that_it_has_delivered_and_forgotten() -> None:
    world = cluster(clock="hybrid", dedup_window_us=SECOND)
    old = world.submit(0, 0, 1)
    world.settle()
    world.cut = {(p, 0) for p in (3, 4, 5)}  # so that it does not learn that the message is settled
    for _ in range(6):
        world.submit(0, 0)
        world.advance(SECOND)
    assert world.protocol(0).entries[old].position and world.protocol(1).log.known(old) is None
    world.stand(0)
    world.settle()
    assert old not in world.protocol(1).entries and old not in world.protocol(2).entries
    new = world.submit(0, 0)
    world.settle()
    assert [world.delivered(p)[-1] for p in range(3)] == [new] * 3


def test_a_candidate_tells_what_it_has_delivered_of_the_t_that_it_chooses() -> None:
    world = cluster(clock="hybrid", dedup_window_us=SECOND)
    world.submit(0, 0, 1)
    late = world.submit(0, 0, 1)
    world.settle()
    candidate = world.protocol(0)
    vote = candidate.vote()
    for state in vote.entries:
        state.position = 0
    chosen = candidate.choose({1: vote})
    assert {state.message.id: state.position for state in chosen.entries}[late] == candidate.log.position == 2


def test_what_one_group_stamps_in_time_and_another_late_is_delivered_late_by_each_alone() -> None:
    world = cluster(clock="hybrid", dedup_window_us=SECOND)
    world.cut = {(p, q) for p in range(6) for q in range(6) if p // 3 != q // 3}
    m = world.submit(0, 0, 1)
    before = [world.protocol(p).leadership.joined for p in range(6)]
    for _ in range(3):
        other = world.submit(0, 0)
        world.advance(SECOND)
    assert world.delivered(0) == []
    world.cut = set()
    world.advance(10 * SECOND)
    assert [world.delivered(p).count(m) for p in range(6)] == [1] * 6
    assert world.delivered(0)[-1] == m and other in world.delivered(0)
    stamps = [at for p in range(6) for _, i, at in recorded(world, p) if i == m]
    assert len(set(stamps)) == 2 and min(stamps).time > START_US + SECOND
    assert world.protocol(0).leadership.joined > before[0] and world.protocol(3).leadership.joined == before[3]


def test_what_another_group_has_delivered_late_and_dropped_is_not_asked_of_it_for_ever() -> None:
    """This process has only heard of it, and nobody has the payload any more."""
    world = cluster(clock="hybrid", dedup_window_us=SECOND)
    process, m = world.protocol(0), world.message(0, 1)
    entry = process.t.pending(m.id, world.now)
    process._lack(entry, 3, world.now)
    process.on_message(3, Known(m.id, Timestamp(START_US + 3 * SECOND, 1)), world.now, Outbox())
    assert m.id not in process.entries
    world.advance(SECOND)
    assert not process._payloads._retries and not process._payloads._holders


def test_a_refill_may_hold_what_was_delivered_and_forgotten_here_and_was_sent_once_more() -> None:
    world = cluster(clock="hybrid", dedup_window_us=SECOND)
    inner, lost = world.protocol(1).on_message, (Ack, Refill)

    def on_message(sender: int, message: Any, now: int, out: Outbox) -> None:
        if sender or type(message) not in lost:  # else the link from the primary is reset just then
            inner(sender, message, now, out)

    world.protocol(1).on_message = on_message
    world.cut = {(p, 0) for p in (3, 4, 5)}  # so that the primary does not learn that the message is settled
    old = world.message(0, 1, origin=2)
    world.engines[2].submit(old)
    world._run(2)
    for _ in range(8):
        world.submit(2, 0)
        world.advance(SECOND)
    assert world.protocol(0).entries[old.id].position and world.protocol(1).log.known(old.id) is None
    lost = ()
    world.engines[2].submit(old)
    world._run(2)
    world.advance(5 * SECOND)
    assert world.protocol(1).t.length == world.protocol(0).t.length
    assert world.delivered(1) == world.delivered(2)


@pytest.mark.parametrize("down", [False, True])
def test_a_follower_that_hears_a_proposal_when_it_has_forgotten_the_delivery_does_not_stand_still(down: bool) -> None:
    world = cluster(clock="hybrid", dedup_window_us=SECOND)
    world.settle()
    world.cut = {(0, 1), (1, 0)}
    old = world.submit(0, 0, 1)
    for _ in range(8):
        world.submit(2, 0, 1)
        world.advance(SECOND)
        world.engines[1]._out.catch_up(2)  # it notices that it is behind
        world._run(1)
        world.advance(SECOND)
    one = world.protocol(1)
    assert one.log.position == 9 and one.log.known(old) is None and old not in one.entries
    if down:
        world.crash(2)
    world.cut = set()
    steps, step = [0], world.step

    def counted(sender: int, receiver: int) -> int:
        steps[0] += (moved := step(sender, receiver))
        assert steps[0] < 20_000, "they talk for ever"
        return moved

    world.step = counted
    world.advance(20 * SECOND)
    before = [world.protocol(p).log.position for p in (0, 1)]
    world.submit(0, 0)
    world.advance(SECOND)
    assert [world.protocol(p).log.position for p in (0, 1)] == [n + 1 for n in before] and before[0] == before[1]
    assert (entry := one.entries.get(old)) is None or entry.position


def test_what_is_left_out_of_a_new_t_is_left_on_no_disk() -> None:
    """It would be back in T after a restart."""
    world = cluster(clock="hybrid", dedup_window_us=SECOND)
    old = world.submit(0, 0, 1)
    world.settle()
    message, ts = world.journals[1][0].message, world.journals[1][0].timestamp.time
    for _ in range(8):
        world.submit(0, 0, 1)
        world.advance(SECOND)
    one, out = world.protocol(1), Outbox()
    assert one.log.known(old) is None and old not in one.entries
    epoch = one.leadership.joined
    entry = one.t.pending(old, world.now)
    entry.take(message)
    one._place(entry, Stamp(old, one.t.length, ts, epoch), world.now, out)
    later = Ballot(epoch.number + 1, 0)
    told = NewState(later, 0, [EntryState(message, one.t.length, later, ts)], one.clock.value, one.t.length + 1)
    one.adopt(told, world.now, out)
    disk = {key: value for key, value, _ in out.changes}
    assert one.entries[old].epoch is None and disk[b"m" + old] is None


def test_a_settled_delivery_leaves_the_disk_though_a_later_copy_was_heard_of() -> None:
    world = cluster(clock="hybrid", dedup_window_us=SECOND)
    old = world.submit(0, 0)
    world.settle()
    process, out = world.protocol(0), Outbox()
    assert process.entries[old].position
    process.t.pending(old, world.now)
    process._drop([old], out)
    assert (b"m" + old, None) in [(key, value) for key, value, _ in out.changes]
