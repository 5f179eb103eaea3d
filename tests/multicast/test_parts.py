"""Shared parts against naive oracles."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast import registry
from multicast.parts.accepts import Entry, Quorums
from multicast.parts.clock import Clock
from multicast.parts.delivered import DeliveredLog, Watermark
from multicast.parts.pending import PendingQueue
from multicast.parts.timer import LeaderTimer
from multicast.protocol import Options, Outbox
from multicast.types import (
    ZERO,
    AppMessage,
    Ballot,
    Timestamp,
    Topology,
    created_us,
    is_uuid7,
    new_message_id,
    oldest_id,
)


class NaiveQueue:
    """The rule of Fig. 1, line 17, as printed."""

    def __init__(self) -> None:
        self.proposed: dict[bytes, Timestamp] = {}
        self.committed: dict[bytes, Timestamp] = {}

    def propose(self, i: bytes, local: Timestamp) -> None:
        self.proposed[i] = local

    def commit(self, i: bytes, final: Timestamp) -> None:
        self.proposed.pop(i, None)
        self.committed[i] = final

    def remove(self, i: bytes) -> None:
        self.proposed.pop(i, None)
        self.committed.pop(i, None)

    def pop(self) -> tuple[Timestamp, bytes] | None:
        for final, i in sorted((f, i) for i, f in self.committed.items()):
            if all(local > final for local in self.proposed.values()):
                del self.committed[i]
                return final, i
            return None
        return None


_ACTIONS = st.sampled_from(["propose", "commit", "remove", "pop"])


@given(st.lists(st.tuples(_ACTIONS, st.integers(0, 7), st.integers(0, 9))))
def test_the_pending_queue_does_what_the_figure_says(steps: list[tuple[str, int, int]]) -> None:
    queue, naive = PendingQueue(), NaiveQueue()
    for action, number, time in steps:
        message_id = bytes([number])
        stamp = Timestamp(time, number)
        if action == "propose" and message_id not in naive.committed:
            queue.propose(message_id, stamp)
            naive.propose(message_id, stamp)
        elif action == "commit" and message_id not in naive.committed:
            queue.commit(message_id, stamp)
            naive.commit(message_id, stamp)
        elif action == "remove":
            queue.remove(message_id)
            naive.remove(message_id)
        elif action == "pop":
            assert queue.pop() == naive.pop()
        assert len(queue) == len(naive.proposed) + len(naive.committed)


@given(st.sampled_from(["logical", "hybrid"]), st.lists(st.tuples(st.booleans(), st.integers(0, 100))))
def test_a_clock_never_stamps_at_or_below_what_it_passed(kind: str, steps: list[tuple[bool, int]]) -> None:
    clock, passed = Clock(kind), 0
    for stamp, value in steps:
        if stamp:
            stamped = clock.stamp(value)
            assert stamped > passed
            assert kind == "logical" or stamped >= value
            passed = stamped
        else:
            clock.advance(value)
            passed = max(passed, value)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), max_size=40), st.integers(1, 30))
def test_a_message_is_settled_exactly_when_quorums_of_all_destinations_passed_it(
    reports: list[tuple[int, int]], deliveries: int
) -> None:
    topology = Topology.grid(2, 3)
    log, out = DeliveredLog(0, topology, 100, 0), Outbox()
    groups = {}
    for n in range(1, deliveries + 1):
        message_id = n.to_bytes(16, "big")
        groups[message_id] = ((0,), (0, 1))[n % 2]
        log.add(message_id, groups[message_id], Timestamp(n, 0), out)
    marks = dict.fromkeys(range(6), 0)
    settled: set[bytes] = set()
    for process, mark in reports:
        marks[process] = max(marks[process], mark)
        settled.update(log.report(process, Timestamp(mark, 0), out))
        expected = {
            i
            for i, dest in groups.items()
            if marks[0] >= int.from_bytes(i, "big")
            and all(sum(marks[p] >= int.from_bytes(i, "big") for p in topology.groups[g]) >= 2 for g in dest)
        }
        assert settled == expected
    assert log.unsettled == deliveries - len(settled)
    assert {(i, int.from_bytes(i, "big")) for i in settled} == {(i, at.time) for i, at, _ in out.settlements}
    assert all(dest == groups[i] for i, _, dest in out.settlements)


@given(st.integers(1, 9), st.lists(st.integers(0, 9), max_size=9))
def test_a_watermark_is_the_last_delivery_that_is_on_disk(deliveries: int, flushes: list[int]) -> None:
    log, out = DeliveredLog(0, Topology.grid(1, 3), 100, 0), Outbox()
    for n in range(1, deliveries + 1):
        log.add(n.to_bytes(16, "big"), (0,), Timestamp(10 * n, 0), out)
    for position in sorted(min(p, deliveries) for p in flushes):
        log.durable(position, out)
        assert log.watermark == Timestamp(10 * position, 0)


def test_a_message_is_settled_once_its_latest_copy_is() -> None:
    log, out = DeliveredLog(0, Topology.grid(1, 3), 100, 1_000_000), Outbox()
    for n in (1, 10_000_000):
        log.add(b"m" * 16, (0,), Timestamp(n, 0), out)
    log.durable(2, out)
    assert log.report(1, Timestamp(1, 0), out) == []
    assert log.unsettled == 1
    assert log.report(1, Timestamp(10_000_000, 0), out) == [b"m" * 16]


def test_what_was_delivered_is_restored_from_what_was_put() -> None:
    topology = Topology.grid(1, 3)
    log, out = DeliveredLog(0, topology, 100, 0), Outbox()
    for n in range(1, 6):
        log.add(n.to_bytes(16, "big"), (0,), Timestamp(n, 0), out)
    log.end_batch(out)
    values = {k: v for k, v, _ in out.changes if v is not None}
    again = DeliveredLog(0, topology, 100, 0)
    again.restore(values, 5, lambda i, at: (0,) if i[-1] > 2 else None)
    assert (again.position, again.timestamp, again.unsettled) == (5, Timestamp(5, 0), 3)
    assert again.known((2).to_bytes(16, "big")) == (Timestamp(2, 0), 2)
    with pytest.raises(AssertionError, match="journal ends at 4"):
        DeliveredLog(0, topology, 100, 0).restore(values, 4, lambda i, at: None)


def test_another_group_hears_of_what_a_quorum_has_delivered() -> None:
    topology = Topology.grid(2, 3)
    log, out = DeliveredLog(0, topology, 1_000, 0, by_quorum=True), Outbox()
    log.add(b"m" * 16, (0, 1), Timestamp(1, 0), out)
    log.durable(1, out)
    log.tick(1_000, out)
    assert [(to, m.watermark) for to, m, _ in out.sends] == [((1, 2), Timestamp(1, 0))]
    log.report(2, Timestamp(1, 0), out)
    log.tick(2_000, out)
    assert [(to, m.watermark) for to, m, _ in out.sends[1:]] == [((3, 4, 5), Timestamp(1, 0))]


def test_who_waits_long_for_watermarks_asks_for_them_again_and_again() -> None:
    """Those who told theirs may have restarted since, or lost what they had sent."""
    log, out = DeliveredLog(0, Topology.grid(2, 2), 1_000, 0), Outbox()
    log.add(b"m" * 16, (0, 1), Timestamp(1, 0), out)
    log.durable(1, out)
    asked: list[tuple[int, tuple[int, ...]]] = []
    for now in range(0, 40_000, 1_000):
        out.sends.clear()
        log.tick(now, out)
        asked += [(now, tuple(to)) for to, told, _ in out.sends if told.ask]
    assert {to for _, to in asked} == {(1,), (2, 3)} and 4 <= len(asked) <= 8
    for peer in (1, 2, 3):
        log.report(peer, Timestamp(1, 0), out)
    out.sends.clear()
    assert log.tick(50_000, out) is None and out.sends == []


def test_the_id_of_a_late_copy_is_known_until_that_one_is_settled_too() -> None:
    second, identity = 1_000_000, b"m" * 16
    log, out = DeliveredLog(0, Topology.grid(1, 3), 100, second), Outbox()
    log.add(identity, (0,), Timestamp(second, 0), out)
    log.durable(1, out)
    assert log.report(1, Timestamp(second, 0), out) == [identity]
    late = Timestamp(max(created_us(identity), 9 * second), 0)
    log.add(identity, (0,), late, out)
    log._forget_old(late.time + 9 * second, out)
    assert log.known(identity) == (late, 2)
    log.durable(2, out)
    log.report(1, late, out)
    assert log.known(identity) is None


def test_the_id_of_a_late_copy_is_known_for_two_windows_though_the_first_one_was_overdue() -> None:
    second, identity = 1_000_000, b"m" * 16
    log, out = DeliveredLog(0, Topology.grid(1, 3), 100, second), Outbox()
    first, late = [Timestamp(created_us(identity) + after * second, 0) for after in (1, 9)]
    log.add(identity, (0,), first, out)
    log._forget_old(late.time, out)
    assert log.known(identity) == (first, 1), "it is not settled"
    log.add(identity, (0,), late, out)
    log.durable(2, out)
    log.report(1, late, out)
    assert log.unsettled == 0 and log.known(identity) == (late, 2)
    log._forget_old(late.time + 3 * second, out)
    assert log.known(identity) is None


def test_what_another_group_brings_back_is_remembered_for_another_two_windows() -> None:
    second, identity = 1_000_000, b"m" * 16
    log, out = DeliveredLog(0, Topology.grid(2, 1), 100, second), Outbox()
    now = created_us(identity) + 10 * second
    log.add(b"n" * 16, (0,), Timestamp(now, 0), out)
    log.durable(1, out)
    log.recall(identity, Timestamp(now - 9 * second, 1), out)
    log.tick(1, out)
    assert log.known(identity) is not None
    log._forget_old(now + second, out)
    assert log.known(identity) is None


def test_who_is_asked_by_another_group_tells_its_own_again_which_has_nothing_unsettled() -> None:
    """All of a group have restarted: what a quorum of it has reached none of them knows, until they tell each other."""
    topology, values = Topology.grid(2, 3), Outbox()
    before = DeliveredLog(0, topology, 1_000, 0, by_quorum=True)
    before.add(b"m" * 16, (0, 1), Timestamp(1, 0), values)
    before.end_batch(values)
    saved = {k: v for k, v, _ in values.changes if v is not None}
    logs = [DeliveredLog(p, topology, 1_000, 0, by_quorum=True) for p in (0, 1, 2)]
    outs = [Outbox(), Outbox(), Outbox()]
    for log, out in zip(logs, outs, strict=True):
        log.restore(saved, 1, lambda i, at: None)
        log.durable(1, out)
        log.tick(1_000, out)
        log.on_watermark(3, Watermark(ZERO, True), out)
        log.tick(2_000, out)
    for log, out in zip(logs, outs, strict=True):
        for to, told, _ in [sent for sent in out.sends if sent[0] != (3,)]:
            for receiver in to:
                logs[receiver].on_watermark(log._self_id, told, outs[receiver])
    outs[1].sends.clear()
    logs[1].on_watermark(3, Watermark(ZERO, True), outs[1])
    assert outs[1].sends[0][1].watermark == Timestamp(1, 0)


def test_watermarks_are_told_once_and_again_to_a_peer_that_lost_them() -> None:
    topology = Topology.grid(2, 1)
    log, out = DeliveredLog(0, topology, 1_000, 0), Outbox()
    log.add(b"m" * 16, (0, 1), Timestamp(1, 0), out)
    log.durable(1, out)
    log.tick(1_000, out)
    assert [(to, m.watermark) for to, m, _ in out.sends] == [((1,), Timestamp(1, 0))]
    out.sends.clear()
    log.tick(2_500, out)
    assert out.sends == []
    log.forget_reports(1)
    log.tick(4_000, out)
    assert len(out.sends) == 1
    assert log.on_watermark(1, Watermark(Timestamp(1, 0)), out) == [b"m" * 16]
    assert log.tick(9_000, out) is None


def test_a_timer_is_due_between_one_and_two_time_outs_of_silence() -> None:
    timer = LeaderTimer(1_000, random.Random(1))
    for start in range(0, 100_000, 7_000):
        timer.restart(start)
        assert start + 1_000 <= timer.deadline <= start + 2_000
        assert not timer.due(timer.deadline - 1)
        assert timer.due(timer.deadline)


@given(st.integers(0, 2**63), st.integers(0, 2**63), st.integers(0, 2**63), st.integers(0, 2**63))
def test_encoded_timestamps_sort_as_timestamps_do(a: int, b: int, c: int, d: int) -> None:
    one, two = Timestamp(a, b), Timestamp(c, d)
    assert (one < two) == (one.encode() < two.encode())
    assert Timestamp.decode(one.encode()) == one == Timestamp.parse(str(one))


@pytest.mark.parametrize("text", ["", "-", "1-", "-1", "x-1", "1-1-1", "01-1", "1" * 17 + "-0", "1_1-0", "1--1"])
def test_other_texts_are_not_versions(text: str) -> None:
    with pytest.raises(ValueError, match="not a version"):
        Timestamp.parse(text)


def test_message_ids_are_uuid7_and_sort_by_creation() -> None:
    times = [1_700_000_000_000_000, 1_700_000_000_000_300, 1_700_000_000_001_000, 1_700_000_009_000_000]
    ids = [new_message_id(t, random.Random(t).getrandbits(62)) for t in times]
    assert ids == sorted(ids)
    assert all(is_uuid7(i) for i in ids)
    assert [created_us(i) for i in ids] == [t // 1000 * 1000 for t in times]


def test_the_registry_names_the_nearest_protocol() -> None:
    assert {"skeen", "white_box"} <= set(registry.names())
    with pytest.raises(registry.UnknownProtocol, match="did you mean 'white_box'"):
        registry.load("whitebox")


def test_a_window_without_wall_clock_stamps_is_refused() -> None:
    with pytest.raises(ValueError, match="hybrid"):
        Options(dedup_window_us=1)


def test_a_process_cannot_belong_to_two_groups() -> None:
    with pytest.raises(ValueError, match="process 1 is in group 0 and in group 1"):
        Topology({0: [0, 1], 1: [1, 2]})


@given(st.integers(0, 1 << 50), st.integers(-5_000, 5_000), st.integers(0, (1 << 62) - 1))
def test_ids_sort_before_the_oldest_one_if_they_were_made_before_it(made: int, later: int, bits: int) -> None:
    message_id = new_message_id(made, bits)
    assert (message_id < oldest_id(made + later)) == (created_us(message_id) < made + later)


def test_other_groups_hear_a_watermark_once_a_quorum_has_reached_it() -> None:
    topology = Topology.grid(2, 3)
    log, out = DeliveredLog(0, topology, 100, 0, by_quorum=True), Outbox()
    log.add(b"m" * 16, (0, 1), Timestamp(5, 0), out)
    log.durable(1, out)
    log.tick(1_000, out)
    assert {to for to, _, _ in out.sends} == {(1, 2)}
    out.sends.clear()
    log.report(1, Timestamp(5, 0), out)
    log.tick(2_000, out)
    assert ((3, 4, 5), Watermark(Timestamp(5, 0))) in [(to, message) for to, message, _ in out.sends]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 2)), max_size=20), st.integers(1, 2))
def test_a_message_is_committed_when_quorums_and_oneself_have_acknowledged_the_ballots_that_are_held(
    acknowledgements: list[tuple[int, int]], held: int
) -> None:
    quorums, entry = Quorums(0, Topology.grid(2, 3), False), Entry(b"m" * 16, 0)
    entry.message = AppMessage(b"m" * 16, (0, 1), b"", 0)
    entry.hold(0, Ballot(1, 0), Timestamp(1, 0))
    entry.hold(1, Ballot(held, 3), Timestamp(1, 1))
    for number, (sender, second) in enumerate(acknowledgements, 1):
        committed = quorums.acknowledge(entry, sender, (Ballot(1, 0), Ballot(second, 3)))
        so_far = {p for p, ballot in acknowledgements[:number] if ballot == second}
        enough = 0 in so_far and all(len(so_far & members) >= 2 for members in ({0, 1, 2}, {3, 4, 5}))
        assert committed == (enough and second == held)
