"""The waiting messages of a barrier protocol, large states in portions, and who may send to whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast.parts.barriers import (
    Wants,
    all_promise,
    parse_senders,
    senders_to,
    stamp_of,
    timestamp_of,
)
from multicast.parts.channels import Pending, WaitingMessages
from multicast.parts.copies import CopiesLog
from multicast.parts.portions import Assembly, portions
from multicast.protocol import Outbox
from multicast.types import AppMessage, Timestamp, Topology, new_message_id

STAMPS = st.tuples(st.integers(0, 2**50), st.integers(0, 2**40), st.integers(0, 2**16 - 1))


def message(number: int) -> AppMessage:
    return AppMessage(bytes([number]) * 16, (0,), b"", 0)


@given(STAMPS, STAMPS)
def test_timestamps_are_ordered_by_time_sequence_group(a: tuple[int, int, int], b: tuple[int, int, int]) -> None:
    first, second = timestamp_of(a[:2], a[2]), timestamp_of(b[:2], b[2])
    assert (first < second) == (a < b)
    assert stamp_of(first) == a[:2]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 5))))
def test_waiting_messages_come_out_as_from_a_sorted_list(steps: list[tuple[bool, int, int]]) -> None:
    waiting, naive = WaitingMessages(), {}
    for adding, time, number in steps:
        if adding:
            timestamp = timestamp_of((time, 0), 1)
            added = waiting.add(timestamp, Pending(1, 1, message(number), False))
            assert added == (timestamp not in naive)
            naive.setdefault(timestamp, number)
        elif naive:
            timestamp, pending = waiting.pop()
            assert timestamp == min(naive)
            assert pending.message == message(naive.pop(timestamp))
        assert waiting.head == min(naive, default=None)
        assert len(waiting) == len(naive)
        assert all((message(n).id in waiting) == (n in naive.values()) for n in range(6))


@given(st.lists(st.integers(0, 1_000), max_size=12))
def test_portions_are_bounded_and_come_together_again(sizes: list[int]) -> None:
    parts = portions(sizes, lambda size: size, 1_000)
    assert all(sum(part[:-1]) <= 1_000 for part in parts)
    assembly: Assembly[int] = Assembly()
    for number, part in enumerate(parts[:-1]):
        assert assembly.add(1, number, len(parts), list(part)) is None
    assert assembly.add(1, len(parts) - 1, len(parts), list(parts[-1])) == sizes


def test_portions_after_a_lost_one_are_worthless() -> None:
    assembly: Assembly[int] = Assembly()
    assert assembly.add(1, 1, 2, [7]) is None
    assembly.add(1, 0, 2, [1])
    assembly.forget(1)
    assert assembly.add(1, 1, 2, [2]) is None


def test_by_default_everybody_may_send_to_everybody() -> None:
    assert senders_to(Topology.grid(3, 1), "") == {0: (1, 2), 1: (0, 2), 2: (0, 1)}


def test_senders_are_read_from_the_option() -> None:
    assert parse_senders("0<1,2 1<0,1 2<") == {0: (1, 2), 1: (0,), 2: ()}
    assert senders_to(Topology.grid(3, 1), "0<1") == {0: (1,), 1: (), 2: ()}


@pytest.mark.parametrize(("delivered", "later", "repeated"), [(10, 12, True), (10, 13, False), (4, 7, True)])
def test_a_copy_is_dropped_for_two_windows_after_a_delivery_or_its_creation(
    delivered: int, later: int, repeated: bool
) -> None:
    """In seconds; the message was made at 5."""
    log = CopiesLog(0, Topology.grid(1, 1), 100_000, 1_000_000)
    copy = new_message_id(5_000_000, 1)
    assert not log.is_repeated(copy, Timestamp(delivered * 1_000_000, 0))
    log.add(copy, (0,), Timestamp(delivered * 1_000_000, 0), Outbox())
    assert log.is_repeated(copy, Timestamp(later * 1_000_000, 0)) == repeated


@pytest.mark.parametrize("text", ["0", "0<x", "<1", "0<1 0<2", "-1<0", "0<1;2"])
def test_malformed_senders_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="senders is like"):
        parse_senders(text)


def test_senders_of_unknown_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="senders names group 7; the groups are 0, 1"):
        senders_to(Topology.grid(2, 1), "0<7")


@pytest.mark.parametrize(
    ("senders", "promise"),
    [
        ("", True),
        ("0<1 1<0 2<", True),
        ("0< 1< 2<", True),
        ("0<1 1< 2<", False),
        ("0<1 1<0,2 2<1", False),
        ("0<2 1<2 2<", False),
        ("0<1,2 1<0,2 2<0,1", True),
    ],
)
def test_delivery_waits_for_all_promises_if_common_messages_join_only_groups_that_may_send_to_each_other(
    senders: str, promise: bool
) -> None:
    assert all_promise(senders_to(Topology.grid(3, 1), senders)) == promise


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 30))))
def test_wants_are_answered_as_soon_as_the_barrier_reaches_them(steps: list[tuple[bool, int, int]]) -> None:
    wants, naive = Wants(), set[tuple[int, int]]()
    for adds, group, rtc in steps:
        if adds:
            wants.add(group, (rtc, 0))
            naive.add((group, rtc))
            continue
        for one in sorted({g for g, _ in naive}):
            answered = {(g, wanted) for g, wanted in naive if g == one and wanted <= rtc}
            assert wants.reached(one, (rtc, 0)) == bool(answered)
            assert wants.drop(one, (rtc, 0)) == bool(answered)
            naive -= answered
            assert (one in wants) == any(g == one for g, _ in naive)
    assert set(wants.groups()) == {g for g, _ in naive}
