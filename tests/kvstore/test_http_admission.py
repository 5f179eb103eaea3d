"""How many requests are taken: an arithmetic of instants, here of a server that answers in order at a steady rate."""

from __future__ import annotations

from collections import deque

import pytest

from kvstore.http.admission import BURST, LEAST, TARGET_SECONDS, Admission

OPEN_MAX = 4096


class Server:
    """Answers `rate` requests a second, one after the other, each at least `least_seconds` after it came; so many come
    as a test says. waits: of those answered, seconds."""

    def __init__(self, rate: float, least_seconds: float = 0.005):
        self.admission = Admission(OPEN_MAX)
        self.rate = rate
        self.now = 1.0
        self.waits: list[float] = []
        self.refused = 0
        self._least = least_seconds
        self._queue: deque[tuple[float, float]] = deque()
        """(when it came, when it will be answered)"""
        self._free_at = 0.0

    def come(self) -> bool:
        """One request comes; whether it is taken."""
        self._answer_until(self.now)
        if not self.admission.takes(self.now):
            self.refused += 1
            return False
        self.admission.begin(self.now)
        self._free_at = max(self._free_at, self.now) + 1 / self.rate
        self._queue.append((self.now, max(self._free_at, self.now + self._least)))
        return True

    def run(self, arrivals: float, seconds: float) -> None:
        """So many come in each second."""
        for _ in range(int(arrivals * seconds)):
            self.now += 1 / arrivals
            self.come()

    def finish(self) -> None:
        self._answer_until(float("inf"))

    def _answer_until(self, until: float) -> None:
        while self._queue and self._queue[0][1] <= until:
            came, at = self._queue.popleft()
            self.now = max(self.now, at)
            self.admission.end(came, at, served=True)
            self.waits.append(at - came)


@pytest.mark.parametrize("rate", [800, 3000, 8000])
def test_past_capacity_those_who_are_taken_are_answered_in_time_and_as_many_as_before(rate: int) -> None:
    server = Server(rate)
    server.run(3 * rate, 8.0)
    server.finish()
    late = [wait for wait in server.waits if wait > 2 * TARGET_SECONDS]
    assert len(late) < BURST  # before it was known how many can be answered
    assert len(server.waits) > 0.95 * rate * 8.0 and server.refused > 1.5 * rate * 8.0


def test_what_can_be_answered_in_time_is_taken() -> None:
    server = Server(3000)
    for _ in range(5):
        server.run(2000, 2.0)
        server.now += 10.0
        assert all([server.come() for _ in range(BURST)])
        server.now += 1.0
    assert not server.refused


def test_after_too_much_everything_is_taken_again() -> None:
    server = Server(2000)
    server.run(6000, 4.0)
    refused = server.refused
    server.run(1000, 10.0)
    assert server.refused == refused > 0 and server.admission.limit == BURST


def test_who_answers_nothing_takes_the_least_and_who_goes_on_takes_more() -> None:
    admission = Admission(OPEN_MAX)
    for _ in range(LEAST + 200):
        assert admission.takes(1.0)  # it is too early to say
        admission.begin(1.0)
    assert not admission.takes(2.0) and admission.limit == LEAST
    for _ in range(300):
        admission.end(1.0, 2.05, served=True)
    assert admission.takes(2.05)


def test_what_takes_its_time_anyhow_is_not_throttled_further_and_further() -> None:
    slow = Server(100_000, least_seconds=2 * TARGET_SECONDS)
    for _ in range(20):
        assert all([slow.come() for _ in range(LEAST)])
        slow.finish()
    assert not slow.refused


def test_refusals_of_the_replica_say_nothing_of_what_it_can_answer() -> None:
    admission = Admission(OPEN_MAX)
    for step in range(1000):
        admission.begin(step / 100)
        admission.end(step / 100 - 1.0, step / 100, served=False)
    assert admission.limit == BURST and admission.under_way == 0


def test_a_limit_on_what_is_open_holds_as_well() -> None:
    admission = Admission(2)
    admission.begin(1.0)
    assert admission.takes(1.0)
    admission.begin(1.0)
    assert not admission.takes(1.0)
