"""multicast/discipline.py: whose time is agreed on, and when a process does not believe its own clock."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from multicast.discipline import Discipline
from multicast.parts.timer import LeaderTimer

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
LIMIT = 500_000


class Bench:
    """Process 0 of `n`, whose clocks are `ahead` of its steady time."""

    def __init__(self, ahead: list[int]):
        self.ahead = ahead
        self.now = NOW
        self.one = Discipline(0, range(len(ahead)), LIMIT, SECOND)
        self.one.read(NOW, ahead[0])

    def hear(self, *peers: int, delay_us: int = 100, back_us: int = 100) -> None:
        sent = self.now
        asked = self.one.probe(sent)
        self.now += delay_us + back_us
        for peer in peers:
            assert peer in asked
            self.one.on_reading(peer, sent, sent + delay_us + self.ahead[peer], self.now)
        for peer in set(asked) - set(peers):
            self.one.on_peer_reset(peer)

    def pass_time(self, us: int = SECOND) -> None:
        self.now += us
        self.one.read(self.now, self.ahead[0])


def test_a_single_process_believes_itself() -> None:
    assert Bench([7]).one.correction == 7


def test_before_a_majority_has_answered_no_time_is_agreed_on() -> None:
    bench = Bench([0, 10, 20, 30, 40])
    assert bench.one.correction is None
    bench.hear(1)
    assert bench.one.correction is None
    bench.pass_time()
    bench.hear(2)
    assert bench.one.correction == 0


def test_a_clock_within_the_limit_is_used_as_it_is() -> None:
    bench = Bench([400_000, 0, 0])
    bench.hear(1, 2)
    assert (bench.one.correction, bench.one.off) == (400_000, False)


@pytest.mark.parametrize("ahead", [300 * SECOND, -300 * SECOND, 600_000, -86_400 * SECOND])
def test_a_clock_beyond_the_limit_is_replaced_by_the_agreed_time(ahead: int) -> None:
    bench = Bench([ahead, 5, 10])
    bench.hear(1, 2)
    assert bench.one.off
    assert bench.one.correction in (5, 10)


def test_a_clock_that_jumps_is_noticed_at_the_next_batch_and_when_it_is_right_again() -> None:
    bench = Bench([0, 0, 0])
    bench.hear(1, 2)
    bench.ahead[0] = 300 * SECOND
    bench.pass_time(1)
    assert (bench.one.correction, bench.one.off) == (0, True)
    bench.ahead[0] = 400_000
    bench.pass_time(1)
    assert bench.one.off, "not hither and thither at the limit"
    bench.ahead[0] = 200_000
    bench.pass_time(1)
    assert (bench.one.correction, bench.one.off) == (200_000, False)


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7])
def test_whoever_is_heard_a_minority_never_takes_the_agreed_time_beyond_all_right_clocks(n: int) -> None:
    """Every minority, far ahead or behind, every set of answers; from 2f + 1 of them on not below all right ones."""
    wrong_max = (n - 1) // 2
    for wrong in combinations(range(n), wrong_max):
        for ahead in (86_400 * SECOND, -86_400 * SECOND):
            clocks = [ahead if p in wrong else p * 100 for p in range(n)]
            for size in range(n):
                for heard in combinations(range(1, n), size):
                    bench = Bench(clocks)
                    bench.hear(*heard)
                    correction = bench.one.correction
                    assert (correction is None) == (size + 1 <= n // 2)
                    if correction is not None:
                        assert correction <= LIMIT
                    if size + 1 > 2 * wrong_max:
                        assert correction is not None and correction >= -LIMIT


def test_of_two_which_disagree_the_earlier_one_is_believed() -> None:
    fast, slow = Bench([300 * SECOND, 0]), Bench([0, 300 * SECOND])
    for bench in (fast, slow):
        bench.hear(1)
    assert (fast.one.correction, fast.one.off) == (0, True)
    assert (slow.one.correction, slow.one.off) == (0, False)


def test_a_clock_set_elsewhere_is_heard_of_and_an_answer_narrows_what_is_known() -> None:
    bench = Bench([0, 0, 0])
    bench.hear(1, 2, delay_us=100_000, back_us=300_000)
    assert sorted(bench.one._votes()) == [-100_000, -100_000, 0]
    bench.pass_time()
    bench.hear(1, 2, delay_us=10, back_us=10)
    assert sorted(bench.one._votes()) == [0, 0, 0]
    bench.pass_time()
    bench.hear(1, 2, delay_us=100_000, back_us=300_000)
    assert sorted(bench.one._votes()) == [0, 0, 0]
    bench.ahead[1] = 7 * SECOND
    bench.pass_time()
    bench.hear(1, delay_us=10, back_us=10)
    assert sorted(bench.one._votes()) == [0, 0, 7 * SECOND]


def test_an_answer_that_took_longer_than_the_limit_counts_for_nothing_and_is_asked_for_again() -> None:
    bench = Bench([0, 0])
    bench.hear(1, delay_us=LIMIT, back_us=1)
    assert bench.one.correction is None
    bench.hear(1)
    assert bench.one.correction == 0


def test_what_answers_no_open_probe_counts_for_nothing() -> None:
    bench = Bench([0, 0])
    bench.one.on_reading(1, NOW, NOW, NOW)
    assert bench.one.correction is None


def test_a_peer_that_owes_an_answer_is_not_asked_again_until_the_link_lost_its_memory() -> None:
    bench = Bench([0, 0])
    assert bench.one.probe(bench.now) == (1,)
    bench.pass_time(5 * SECOND)
    assert bench.one.probe(bench.now) == ()
    bench.one.on_peer_reset(1)
    bench.pass_time()
    assert bench.one.probe(bench.now) == (1,)


def test_whose_answer_may_be_lost_is_asked_again_at_once_by_who_knows_no_time() -> None:
    bench = Bench([0, 0, 0])
    assert bench.one.probe(bench.now) == (1, 2)
    bench.one.on_peer_reset(1)
    assert bench.one.wake_at is not None and bench.one.wake_at <= bench.now
    assert (bench.one.probe(bench.now), bench.one.probe(bench.now)) == ((1,), ())
    assert bench.one.on_reading(1, bench.now, bench.now, bench.now) and bench.one.correction == 0
    bench.one.on_peer_reset(2)
    assert bench.one.probe(bench.now) == ()


def test_a_process_that_was_stopped_begins_anew_one_that_was_cut_off_does_not() -> None:
    bench = Bench([0, 0, 0])
    bench.hear(1, 2)
    for _ in range(60):
        bench.pass_time()
    assert bench.one.correction == 0
    bench.pass_time(4 * SECOND)
    assert bench.one.correction is None


def test_followers_with_a_right_clock_stand_soon_against_a_leader_that_asks_to_be_relieved() -> None:
    right, off = LeaderTimer(SECOND, random.Random(1)), LeaderTimer(SECOND, random.Random(1))
    off.reluctant = True
    for timer in (right, off):
        timer.restart(0)
        timer.heard(100, True)
        timer.heard(50_000, True)
        timer.heard(60_000)
    assert 100_000 <= right.deadline <= 200_100
    assert off.deadline >= 60_000 + 4 * SECOND


def test_a_leader_may_take_back_that_it_asks_to_be_relieved_with_its_next_heartbeat() -> None:
    """It may hear a little later than its followers that another group's leader is one whom it reaches."""
    timer = LeaderTimer(SECOND, random.Random(1), heartbeat_us=400_000)
    timer.heard(100, True)
    assert not timer.due(450_000)
    timer.heard(450_000, False)
    assert timer.deadline >= 450_000 + SECOND


def test_a_leader_that_no_longer_asks_to_be_relieved_has_the_usual_patience_again() -> None:
    """Else a follower asks ever after whether others miss it, too."""
    timer = LeaderTimer(SECOND, random.Random(1))
    timer.restart(0)
    timer.heard(100, True)
    timer.heard(200_000)
    assert timer.due(200_000)
    timer.heard(250_000, False)
    timer.heard(900_000)
    assert timer.deadline >= 900_000 + SECOND
