"""The judgement itself: a good history passes, and each damage done to it is called by its name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from multicast.records import Delivered
from multicast.types import FINAL, AppMessage, ProcessId, Timestamp, Topology
from tests.conformance.journals import History, Submission, check

TOPOLOGY = Topology.grid(2, 3)
DESTINATIONS = ((0, 1), (0,), (1,), (0, 1), (0, 1))
Histories = dict[ProcessId, History]


def message(number: int) -> AppMessage:
    return AppMessage(bytes(15) + bytes([number]), DESTINATIONS[number], b"payload %d" % number, number % 6)


SUBMISSIONS = [Submission(number % 6, 1, message(number)) for number in range(len(DESTINATIONS))]


def delivered(position: int, number: int, time: int | None = None) -> Delivered:
    stamp = Timestamp(number + 1 if time is None else time, 0)
    return Delivered(position, stamp, FINAL, False, message(number), at=0)


def good() -> Histories:
    """Every process delivers what is for its group, in the order of the numbers."""
    histories = {}
    for process, group in TOPOLOGY.group_of.items():
        numbers = [n for n, groups in enumerate(DESTINATIONS) if group in groups]
        histories[process] = History(1, True, [delivered(i, n) for i, n in enumerate(numbers, 1)])
    return histories


def swapped(histories: Histories) -> None:
    """One process delivers two messages the other way round."""
    log = histories[4].deliveries
    log[2], log[3] = delivered(3, 4, 4), delivered(4, 3, 5)


def in_a_cycle(histories: Histories) -> None:
    """One group delivers two common messages the other way round, all its processes alike."""
    for process in TOPOLOGY.groups[1]:
        log = histories[process].deliveries
        log[2], log[3] = delivered(3, 4, 4), delivered(4, 3, 5)


def with_a_gap(histories: Histories) -> None:
    del histories[2].deliveries[1]


def short(histories: Histories) -> None:
    """One process lacks the end."""
    histories[2].deliveries.pop()


def in_one_group_only(histories: Histories) -> None:
    """A group never delivers the last message, which the other one has."""
    for process in TOPOLOGY.groups[1]:
        histories[process].deliveries.pop()


def nowhere(histories: Histories) -> None:
    """The last message is lost, though its sender lives."""
    for history in histories.values():
        history.deliveries.pop()


def twice(histories: Histories) -> None:
    for process in TOPOLOGY.groups[0]:
        histories[process].deliveries.append(delivered(5, 1, 9))


def invented(histories: Histories) -> None:
    histories[0].deliveries[0].message = AppMessage(b"i" * 16, (0, 1), b"", 0)


def altered(histories: Histories) -> None:
    histories[5].deliveries[0].message = AppMessage(message(0).id, (0, 1), b"else", 0)


def misaddressed(histories: Histories) -> None:
    for process in TOPOLOGY.groups[1]:
        histories[process].deliveries.append(delivered(5, 1, 9))


def stamped_twice(histories: Histories) -> None:
    for process in TOPOLOGY.groups[1]:
        histories[process].deliveries[3] = delivered(4, 4, 7)


def test_a_good_history_passes() -> None:
    assert check(TOPOLOGY, good(), SUBMISSIONS) == []


def test_what_only_a_dead_life_multicast_may_be_missing() -> None:
    histories = good()
    nowhere(histories)
    lost = SUBMISSIONS[-1]
    histories[lost.process] = histories[lost.process]._replace(lives=2)
    assert check(TOPOLOGY, histories, SUBMISSIONS) == []


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (swapped, "agreement"),
        (in_a_cycle, "global order"),
        (with_a_gap, "integrity"),
        (short, "liveness"),
        (in_one_group_only, "agreement"),
        (nowhere, "liveness"),
        (twice, "integrity"),
        (invented, "validity"),
        (altered, "validity"),
        (misaddressed, "validity"),
        (stamped_twice, "agreement"),
    ],
    ids=lambda value: value.__name__ if callable(value) else value,
)
def test_a_planted_damage_is_called_by_its_name(damage: Callable[[Histories], None], name: str) -> None:
    histories = good()
    damage(histories)
    assert name in {violation.split(":")[0] for violation in check(TOPOLOGY, histories, SUBMISSIONS)}
