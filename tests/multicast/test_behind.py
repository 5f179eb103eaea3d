"""Who is behind its group fetches what it misses, and nothing else."""

from __future__ import annotations

import random

from multicast.parts.behind import Behind
from multicast.protocol import Outbox
from multicast.types import ProcessId, Timestamp

PERIOD = 100


def at(time: int) -> Timestamp:
    return Timestamp(time, 0)


def fetched(part: Behind, own: int, now: int) -> list[ProcessId]:
    out = Outbox()
    part.tick(at(own), now, out)
    return out.catch_ups


def test_what_is_delivered_within_a_period_is_not_fetched() -> None:
    part = Behind(PERIOD, random.Random(1))
    assert part.tick(at(0), 0, Outbox()) is None
    for now in range(10, 50 * PERIOD, 10):  # somebody is always a little ahead
        part.notice(1, at(now), at(now - 30), now)
        assert fetched(part, now - 30, now) == []


def test_what_was_told_a_period_ago_and_is_not_here_is_fetched_until_it_is() -> None:
    part = Behind(PERIOD, random.Random(1))
    part.notice(1, at(7), at(5), 1_000)
    assert fetched(part, 5, 1_000 + PERIOD - 1) == []
    assert fetched(part, 5, 1_000 + PERIOD) == [1]
    assert fetched(part, 6, 1_000 + 2 * PERIOD) == [1]
    assert fetched(part, 7, 1_000 + 3 * PERIOD) == []
    assert part.wake_at == 0


def test_not_only_the_first_one_to_tell_is_asked() -> None:
    part = Behind(PERIOD, random.Random(1))
    for member, time in ((1, 9), (2, 9), (3, 2)):
        part.notice(member, at(time), at(2), 0)
    asked = {peer for turn in range(1, 21) for peer in fetched(part, 2, turn * PERIOD)}
    assert asked == {1, 2}
