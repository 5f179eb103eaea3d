"""Copies of a message, before and after its id is forgotten, where groups act by consensus."""

from __future__ import annotations

import pytest

from multicast.parts.delivered import Known
from multicast.parts.group_log import State
from multicast.protocol import Outbox, Saved
from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from multicast.types import AppMessage, Ballot, MessageId, Timestamp, new_message_id
from tests.multicast.lockstep import START_US, Lockstep
from tests.multicast.test_replicated import SECOND, cluster, logs


def _leader_that_lacks_a_stamp() -> tuple[Lockstep, MessageId]:
    """Process 3, which leads group 1, has not heard when group 0 stamped the message, and cannot read any journal. All
    others have delivered it, and group 0 has forgotten it."""
    world = cluster(FastCast, early_clock=True, clock="hybrid", dedup_window_us=SECOND // 10)
    world.reading, world.cut = False, {(0, 3)}
    m = world.submit(1, 0, 1)
    for process in (1, 4):
        world.advance(SECOND)
        world.submit(process, 0)
        world.submit(process, 1)
    world.advance(SECOND // 2)
    assert [m in world.delivered(p) for p in range(6)] == [True, True, True, False, True, True]
    assert world.protocol(0).log.known(m) is None
    world.lose_link(0, 3)
    world.cut = set()
    return world, m


def test_a_leader_does_not_take_the_stamp_of_a_late_copy_for_one_of_what_its_group_has_delivered() -> None:
    world, m = _leader_that_lacks_a_stamp()
    world.advance(2 * SECOND)
    assert world.delivered(0).count(m) == 2, "it has asked group 0, where the message was unknown"
    assert world.delivered(3) == []
    world.reading = True
    world.advance(5 * SECOND)
    assert logs(world)[3] == logs(world)[4] == logs(world)[5]
    assert m in world.delivered(3)
    assert any(world.protocol(p).member.acting for p in (3, 4, 5))


def test_what_another_group_says_to_have_delivered_late_is_in_doubt_too() -> None:
    world, m = _leader_that_lacks_a_stamp()
    world.cut = {(0, 3)}
    out, leader = Outbox(), world.protocol(3)
    leader.on_message(1, Known(m, Timestamp(world.now, 0)), world.now, out)
    assert leader.member.entry_of(m).final is None
    assert not leader.member.entry_of(m).concluded
    leader.end_batch(world.now, out)
    leader.on_tick(world.now + leader.options.heartbeat_us, out)
    assert not leader.member.acting


def test_what_a_group_has_stamped_in_time_and_another_one_late_is_delivered_late_in_both() -> None:
    """Group 0 does not hear of any of it for longer than the window."""
    world = cluster(FastCast, early_clock=True, clock="hybrid", dedup_window_us=SECOND // 10)
    world.cut = {(a, b) for a in range(6) for b in range(6) if a // 3 != b // 3}
    submitted = [world.submit(3 + k % 3, 0, 1) for k in range(9)]
    world.advance(SECOND)
    world.cut = set()
    world.advance(3 * SECOND)
    assert [sorted(world.delivered(p)) for p in range(6)] == [sorted(submitted)] * 6
    assert logs(world)[3] == logs(world)[4] == logs(world)[5]
    assert world.protocol(3).member.acting
    assert world.protocol(3).member.reign.ballot.number <= 3, "it stands for election once for many"
    assert not world.protocol(3).doubts


def test_who_has_stamped_a_late_copy_late_itself_has_no_doubts_and_stands_for_no_election() -> None:
    """Else whoever repeats an old message has a group elect its leader anew each time."""
    world = cluster(FastCast, early_clock=True, clock="hybrid", dedup_window_us=SECOND // 10)
    old = world.message(0, 1)
    for _ in range(2):
        world.engines[0].submit(old)
        world._run(0)
        for _ in range(3):
            world.advance(SECOND)
            world.submit(0, 0, 1)
    assert [world.delivered(p).count(old.id) for p in range(6)] == [2] * 6
    assert [world.protocol(p).member.reign.ballot.number for p in range(6)] == [1] * 6


@pytest.mark.parametrize("copies", [1, 3])
def test_after_a_restart_it_is_known_which_deliveries_the_log_of_another_one_has(copies: int) -> None:
    """Copies of one message came from a journal before the log; then another message, which the other one lacks."""
    out, message = Outbox(), AppMessage(new_message_id(START_US, 1), (0,), b"x", 0)
    world = cluster(FtSkeen, groups=1, clock="hybrid", dedup_window_us=SECOND)
    later = AppMessage(new_message_id(START_US + 20 * SECOND, 2), (0,), b"y", 0)
    locals_ = [Timestamp(START_US + 5 * k * SECOND, 0) for k in range(1, copies + 1)]
    last = Timestamp(START_US + 21 * SECOND, 0)
    for position, local in enumerate([*locals_, last], 1):
        one = later if local == last else message
        world.protocol(2).on_install(position, one, local, local.encode(), world.now, out)
    world.protocol(2).end_batch(world.now, out)
    saved = {key: value for key, value, _ in out.changes if value is not None}
    log = cluster(FtSkeen, groups=1, clock="hybrid", dedup_window_us=SECOND).protocol(2).member.log
    log.restore(Saved(saved, copies + 1, first=False))
    assert sorted(entry.local for entry in log.entries.values() if not entry.logged) == [*locals_, last]
    log.adopt(State(copies, 9, last.time, Ballot(1, 0), [], [], 0, 1), Outbox())
    assert [entry.local for entry in log.entries.values() if not entry.logged] == [last]
    assert log.state(1)[0].unlogged == [last]
