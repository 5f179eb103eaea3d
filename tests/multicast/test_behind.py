"""Who is behind its group fetches what it misses, and nothing else."""

from __future__ import annotations

import random

from multicast.parts.behind import Behind
from multicast.parts.deadlines import Deadlines
from multicast.parts.delivered import DeliveredLog
from multicast.protocol import Outbox
from multicast.types import ProcessId, Timestamp, Topology

PERIOD = 100
GROUPS = Topology.grid(2, 4)


class Bench:
    """Process 0 of group 0."""

    def __init__(self) -> None:
        self.log = DeliveredLog(0, GROUPS, PERIOD, 0)
        self.deadlines = Deadlines({})
        self.part = Behind(0, GROUPS, self.log, PERIOD, random.Random(1), self.deadlines)

    def told(self, member: ProcessId, time: int, own: int, now: int) -> None:
        self.log.timestamp = Timestamp(own, 0)
        self.part.notice(member, Timestamp(time, 0), now)

    def fetched(self, own: int, now: int) -> list[ProcessId]:
        self.log.timestamp = Timestamp(own, 0)
        out = Outbox()
        self.deadlines.run(now, out)
        return out.catch_ups


def test_what_is_delivered_within_a_period_is_not_fetched() -> None:
    bench = Bench()
    assert bench.fetched(0, 0) == []
    for now in range(10, 50 * PERIOD, 10):  # somebody is always a little ahead
        bench.told(1, now, now - 30, now)
        assert bench.fetched(now - 30, now) == []


def test_what_was_told_a_period_ago_and_is_not_here_is_fetched_until_it_is() -> None:
    bench = Bench()
    bench.told(1, 7, 5, 1_000)
    assert bench.fetched(5, 1_000 + PERIOD - 1) == []
    assert bench.fetched(5, 1_000 + PERIOD) == [1]
    assert bench.fetched(6, 1_000 + 2 * PERIOD) == [1]
    assert bench.fetched(7, 1_000 + 3 * PERIOD) == []
    assert bench.part.wake_at == 0


def test_not_only_the_first_one_to_tell_is_asked() -> None:
    bench = Bench()
    for member, time in ((1, 9), (2, 9), (3, 2)):
        bench.told(member, time, 2, 0)
    asked = {peer for turn in range(1, 21) for peer in bench.fetched(2, turn * PERIOD)}
    assert asked == {1, 2}


def test_what_other_groups_have_delivered_is_not_missing_here() -> None:
    bench = Bench()
    bench.told(4, 9, 2, 0)
    assert bench.fetched(2, 10 * PERIOD) == [] and bench.part.wake_at == 0
