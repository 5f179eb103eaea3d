"""Sessions: exactly once and in order while both ends live, and an honest word when something is lost."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast.protocol import Bulk, PeerError
from multicast.session import Receiver, Sender


class Link:
    """A sender and a receiver joined by connections that carry bytes in order until they break.

    pushed, got: numbers in the frames, in order. flushing: what the receiver has accepted and not yet flushed.
    """

    def __init__(self, frames_max: int = 1000, bytes_max: int = 1 << 20):
        self.limits = (frames_max, bytes_max)
        self.sender = Sender(frames_max, bytes_max)
        self.receiver = Receiver()
        self.incarnations = [1, 1]
        self.forward: deque[tuple[int, bytes]] | None = None
        self.backward: deque[int] = deque()
        self.pushed = 0
        self.got: list[int] = []
        self.resets: list[str] = []

    def push(self, kind: type[bytes] = bytes) -> None:
        self.pushed += 1
        frame = kind(b"%d" % self.pushed)
        sequence = self.sender.push(frame)
        if sequence is None:
            if self.sender.losses == 1:
                self.resets.append("overflow")
            self.disconnect()
        elif sequence and self.forward is not None:
            self.forward.append((sequence, frame))

    def connect(self) -> None:
        if self.forward is not None:
            return
        hello = (self.incarnations[0], self.sender.epoch, self.sender.first)
        received, lost = self.receiver.greet(*hello)
        if lost:
            self.resets.append("lost")
        frames, restarted = self.sender.resume(self.incarnations[1], received)
        if restarted:
            self.resets.append("restarted")
        self.forward, self.backward = deque(frames), deque()

    def disconnect(self) -> None:
        """What is under way is gone."""
        self.forward, self.backward = None, deque()

    def arrive(self) -> None:
        if self.forward:
            sequence, frame = self.forward.popleft()
            if self.receiver.accept(sequence):
                self.got.append(int(frame))

    def flush(self) -> None:
        self.receiver.flushed = self.receiver.seen
        if self.forward is not None:
            self.backward.append(self.receiver.flushed)

    def push_bulk(self) -> None:
        self.push(Bulk)

    def acknowledge(self) -> None:
        if self.backward:
            released = self.sender.acknowledged(self.backward.popleft())
            assert self.forward is not None
            self.forward += released

    def restart_sender(self) -> None:
        self.disconnect()
        self.sender = Sender(*self.limits)
        self.incarnations[0] += 1

    def restart_receiver(self) -> None:
        self.disconnect()
        self.receiver = Receiver()
        self.incarnations[1] += 1

    def drain(self) -> None:
        """No more faults: everything arrives, is flushed and acknowledged."""
        self.connect()
        while True:
            while self.forward:
                self.arrive()
            self.flush()
            while self.backward:
                self.acknowledge()
            if not self.forward:
                break


STEPS = ("push", "arrive", "arrive", "flush", "acknowledge", "connect", "disconnect")


@given(st.lists(st.sampled_from(STEPS), max_size=200))
def test_frames_come_exactly_once_and_in_order_whatever_breaks(steps: list[str]) -> None:
    link = Link()
    for step in steps:
        getattr(link, step)()
        assert link.got == list(range(1, len(link.got) + 1))
    link.drain()
    assert link.got == list(range(1, link.pushed + 1))
    assert link.sender.queued == 0
    assert link.resets == []


@given(st.lists(st.sampled_from((*STEPS, "push", "push")), max_size=200))
def test_an_overflow_loses_what_was_queued_and_both_ends_are_told(steps: list[str]) -> None:
    link = Link(frames_max=5)
    for step in steps:
        getattr(link, step)()
        assert link.sender.queued <= 5
    link.drain()
    assert link.got == sorted(set(link.got)), "in order, none twice"
    overflows = link.resets.count("overflow")
    greeted_before = link.resets.count("lost")
    assert len(link.got) == link.pushed if not overflows else len(link.got) < link.pushed
    assert greeted_before <= overflows
    assert link.receiver.epoch == link.sender.epoch >= overflows


@given(st.lists(st.sampled_from((*STEPS, "restart_receiver")), max_size=200))
def test_a_receiver_that_restarts_misses_nothing_that_it_had_not_flushed(steps: list[str]) -> None:
    link = Link()
    durable: set[int] = set()
    lives = 1
    for step in steps:
        if step == "restart_receiver":
            durable |= set(link.got[: sum(1 for n in link.got if n <= link.receiver.flushed)])
            link.got, lives = [], lives + 1
        getattr(link, step)()
        if link.got:
            assert link.got == list(range(link.got[0], link.got[0] + len(link.got)))
            assert set(range(1, link.got[0])) <= durable
    link.drain()
    assert durable | set(link.got) == set(range(1, link.pushed + 1))
    assert link.resets.count("restarted") <= lives - 1


@given(st.lists(st.sampled_from((*STEPS, "restart_sender")), max_size=200))
def test_a_sender_that_restarts_begins_anew_and_the_receiver_is_told(steps: list[str]) -> None:
    link = Link()
    for step in steps:
        getattr(link, step)()
        assert link.got == sorted(set(link.got)), "in order, none twice"
    link.drain()
    assert link.receiver.incarnation == link.incarnations[0]
    assert link.sender.queued == 0
    assert "restarted" not in link.resets
    assert link.resets.count("lost") <= link.incarnations[0] - 1


def test_the_sender_hears_of_a_restarted_receiver_once() -> None:
    link = Link()
    link.connect()
    link.restart_receiver()
    link.connect()
    link.disconnect()
    link.connect()
    assert link.resets == ["restarted"]


def test_the_receiver_hears_of_a_restarted_sender_once() -> None:
    link = Link()
    link.connect()
    link.restart_sender()
    link.connect()
    link.disconnect()
    link.connect()
    assert link.resets == ["lost"]


@given(st.lists(st.sampled_from((*STEPS[1:], "push_bulk", "push_bulk", "push_bulk")), max_size=200))
def test_bulk_of_any_size_comes_through_a_small_queue_in_order(steps: list[str]) -> None:
    link = Link(frames_max=6)
    for step in steps:
        getattr(link, step)()
        assert link.sender.queued <= 3
    link.drain()
    assert link.got == list(range(1, link.pushed + 1))
    assert link.resets == []


def test_bulk_that_would_fit_waits_behind_bulk_that_does_not() -> None:
    sender = Sender(bytes_max=400)
    assert [sender.push(frame) for frame in (bytes(50), Bulk(bytes(90)), Bulk(b"x"))] == [1, 0, 0]
    assert [len(frame) for _, frame in sender.acknowledged(1)] == [90, 1]


def test_what_is_no_bulk_overtakes_bulk_that_waits_and_has_most_of_the_queue() -> None:
    link = Link(frames_max=6)
    link.connect()
    for kind in (Bulk, bytes, Bulk, Bulk, Bulk, bytes, bytes, bytes):
        link.push(kind)
    link.drain()
    assert link.got == [1, 2, 6, 7, 8, 3, 4, 5] and link.resets == []
    for _ in range(7):
        link.push()
    link.push_bulk()
    assert link.resets == ["overflow"]


def test_an_overflow_is_told_once_and_whatever_overflows_while_the_peer_is_away_when_it_is_back() -> None:
    link = Link(frames_max=1)
    for _ in range(6):
        link.push()
    assert link.resets == ["overflow"]
    link.drain()
    assert link.resets == ["overflow", "lost", "restarted"] and link.got == []
    link.push()
    link.disconnect()
    link.push()
    link.drain()
    assert link.resets == ["overflow", "lost", "restarted", "overflow", "lost"]


def test_who_restarts_is_told_that_what_it_asked_for_may_be_gone_with_a_queue() -> None:
    link = Link(frames_max=1)
    link.drain()
    link.restart_receiver()
    link.push()
    link.push()
    link.drain()
    assert link.resets == ["overflow", "lost", "restarted"] and link.got == []


def test_bulk_that_waits_is_gone_with_the_queue() -> None:
    sender = Sender(frames_max=2)
    assert [sender.push(Bulk(b"x")) for _ in range(3)] == [1, 0, 0]
    assert [sender.push(b"y"), sender.push(b"y")] == [2, None]
    assert sender.resume(1, 2) == ([], False)


def test_a_queue_is_bounded_by_bytes_too() -> None:
    sender = Sender(frames_max=100, bytes_max=10)
    assert sender.push(b"12345") == 1
    assert sender.push(b"12345") == 2
    assert sender.push(b"") == 3
    assert sender.push(b"1") is None
    assert (sender.queued, sender.epoch, sender.first) == (0, 1, 4)
    assert sender.push(b"1234567890") == 4


def test_an_acknowledgement_of_what_was_never_sent_is_a_peers_error() -> None:
    sender = Sender()
    sender.push(b"x")
    sender.acknowledged(1)
    with pytest.raises(PeerError, match="acknowledged frame 2 before it was sent"):
        sender.acknowledged(2)


def test_a_gap_is_a_peers_error() -> None:
    receiver = Receiver()
    receiver.greet(1, 0, 1)
    assert receiver.accept(1)
    assert not receiver.accept(1)
    with pytest.raises(PeerError, match="frame 3 after frame 1"):
        receiver.accept(3)


def test_a_frame_that_was_seen_but_not_flushed_is_not_claimed() -> None:
    receiver = Receiver()
    receiver.greet(1, 0, 1)
    receiver.accept(1)
    receiver.accept(2)
    receiver.flushed = 1
    assert receiver.greet(1, 0, 2) == (1, False)
    assert not receiver.accept(2), "it is under way in this life"
