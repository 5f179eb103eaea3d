"""PrimCast with a deduplication window: what is forgotten, and what comes after that (deviation 9)."""

from __future__ import annotations

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
