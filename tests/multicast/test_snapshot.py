"""Fetching a snapshot: what is asked of whom, and when. Whole ones are in the simulator, and in tests/kvstore."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import pytest

from multicast.batch import Batch
from multicast.protocol import Outbox
from multicast.protocols.white_box import WhiteBox
from multicast.snapshot import CHUNK_BYTES, KEPT_US, OF_PROTOCOL, PACE, PAUSE_US, RETRY_US, ROWS_AT_ONCE, Snapshots
from multicast.types import ZERO, ProcessId, Timestamp, Topology
from multicast.wire import Gone, SnapshotChunk, SnapshotRequest

AT = Timestamp(9, 0)
FIRST = SnapshotChunk(9, AT, b"", [(b"\x00a", b"1")], b"\x00a", 2)
REST = SnapshotChunk(9, AT, b"\x00a", [(b"\x00b", b"2")], b"", 2)


class Fetching:
    """Process 2 of three, which has completed 4 deliveries. asked: whom, and for what."""

    def __init__(self) -> None:
        protocol = WhiteBox(2, Topology.grid(1, 3), WhiteBox.specification.options(), random.Random(1))
        self.asked: list[tuple[ProcessId, object]] = []
        self.away: set[ProcessId] = set()
        self.completed = 4
        self.part = Snapshots(protocol, self.away, lambda: self.completed, lambda *one: self.asked.append(one))
        self.part.enabled = True

    def hear(self, peer: ProcessId, message: object, now: int = 0) -> list[SnapshotChunk]:
        """What is to be staged."""
        batch = Batch(1)
        self.part.on_message(peer, message, now, batch)
        return batch.staging

    def stage(self, chunks: Sequence[SnapshotChunk], now: int = 0) -> None:
        for chunk in chunks:
            self.part.staged(chunk, True, now)


@pytest.fixture
def fetching() -> Fetching:
    found = Fetching()
    found.hear(0, Gone(7))
    return found


def test_who_has_what_is_gone_asks_for_nothing() -> None:
    fetching = Fetching()
    fetching.hear(0, Gone(4))
    assert fetching.asked == [] and fetching.part.status() is None


def test_chunk_follows_chunk_at_a_limited_pace(fetching: Fetching) -> None:
    large = msgspec.structs.replace(FIRST, rows=[(b"\x00a", bytes(CHUNK_BYTES))])
    fetching.stage(fetching.hear(0, large))
    pause = CHUNK_BYTES * 1_000_000 // PACE
    assert fetching.part.tick(pause - 1) is not None and len(fetching.asked) == 1
    fetching.part.tick(pause + 1)
    assert fetching.asked == [(0, SnapshotRequest(0, ZERO, b"")), (0, SnapshotRequest(9, AT, b"\x00a"))]
    fetching.stage(fetching.hear(0, REST))
    assert fetching.part.status() is None and fetching.part.source == 0


def test_a_silent_giver_is_left_for_another_who_begins_anew(fetching: Fetching) -> None:
    fetching.stage(fetching.hear(0, FIRST))
    fetching.part.tick(1)
    fetching.part.tick(1 + RETRY_US)
    assert fetching.asked[1:] == [(peer, SnapshotRequest(9, AT, b"\x00a")) for peer in (0, 1)]
    assert fetching.hear(0, REST) == [] and fetching.hear(1, msgspec.structs.replace(REST, position=12)) == []
    assert fetching.hear(1, msgspec.structs.replace(FIRST, position=12)) != []


def test_givers_whose_answers_take_long_are_waited_for(fetching: Fetching) -> None:
    """Longer than the patience with which one begins: the queue that bulk waits for is full."""
    due: list[tuple[int, ProcessId, bytes]] = []
    now, told = 0, 0
    while fetching.part.status() is not None and now < 30 * RETRY_US:
        for peer, request in fetching.asked[told:]:
            assert isinstance(request, SnapshotRequest)
            due.append((now + RETRY_US * 3 // 2, peer, request.after))
        told = len(fetching.asked)
        for at, peer, after in due:
            if at == now:
                fetching.stage(fetching.hear(peer, REST if after else FIRST, now), now)
        now += RETRY_US // 4
        fetching.part.tick(now)
    assert fetching.part.source is not None and told <= 5


def test_a_silent_giver_is_left_for_a_stranger_that_has_what_is_missing(fetching: Fetching) -> None:
    """All members that are known here have been removed while one of them gave its snapshot: the stranger was added."""
    fetching.stage(fetching.hear(0, FIRST))
    fetching.part.tick(1)
    fetching.away.update((0, 1))
    fetching.hear(5, Gone(12), 2)
    fetching.part.tick(RETRY_US)
    assert fetching.asked[1:] == [(0, SnapshotRequest(9, AT, b"\x00a"))], "whoever was asked may still answer"
    fetching.part.tick(1 + RETRY_US)
    assert fetching.asked[2:] == [(5, SnapshotRequest(9, AT, b"\x00a"))]
    assert fetching.hear(5, msgspec.structs.replace(FIRST, position=12)) != []


def test_a_chunk_that_could_not_be_kept_is_asked_for_again(fetching: Fetching) -> None:
    for chunk in fetching.hear(0, FIRST):
        fetching.part.staged(chunk, False, 0)
    assert fetching.part.tick(RETRY_US - 1) == RETRY_US and len(fetching.asked) == 1
    fetching.part.tick(RETRY_US)
    assert fetching.asked[1] == (1, SnapshotRequest(9, AT, b""))


def test_a_snapshot_whose_first_chunk_could_not_be_kept_is_asked_for_from_its_begin(fetching: Fetching) -> None:
    """What is staged is still the begin of the one before it: on that the rest of another must not follow."""
    fetching.stage(fetching.hear(0, FIRST))
    fetching.part.tick(1)
    fetching.away.add(0)
    fetching.part.tick(1 + RETRY_US)
    other = msgspec.structs.replace(FIRST, position=12)
    assert fetching.hear(1, other) == [other]
    fetching.part.staged(other, False, 2)
    fetching.part.tick(2 + RETRY_US)
    assert fetching.asked[-1] == (1, SnapshotRequest(12, AT, b""))
    assert fetching.hear(1, msgspec.structs.replace(REST, position=12)) == []


def test_what_is_about_to_be_sealed_is_not_staged_over(fetching: Fetching) -> None:
    """Before the host ends this life, another peer may say that what is missing is gone, and give its first chunk."""
    fetching.stage(fetching.hear(0, FIRST))
    fetching.part.tick(10_000_000)
    fetching.stage(fetching.hear(0, REST))
    asked = len(fetching.asked)
    fetching.hear(1, Gone(8))
    assert fetching.hear(1, SnapshotChunk(11, AT, b"", [(b"\x00a", b"3")], b"", 1)) == []
    assert len(fetching.asked) == asked
    fetching.completed = 9  # another way: then nothing is sealed
    fetching.hear(1, Gone(12))
    assert len(fetching.asked) == asked + 1


def test_who_catches_up_another_way_stops_fetching(fetching: Fetching) -> None:
    fetching.stage(fetching.hear(0, FIRST))
    fetching.completed = 9
    assert fetching.part.tick(10 * RETRY_US) is None and len(fetching.asked) == 1 and fetching.part.status() is None


class Given:
    """A history of three chunks; counts how often it is gone through."""

    def __init__(self) -> None:
        self.times = 0

    def given(self, position: int, timestamp: Timestamp) -> Iterable[tuple[bytes, bytes]]:
        self.times += 1
        return [(bytes([number]), bytes(CHUNK_BYTES)) for number in (2, 0, 1)]

    def taken(
        self, own: Mapping[bytes, bytes], given: Mapping[bytes, bytes], position: int, timestamp: Timestamp
    ) -> Mapping[bytes, bytes | None]:
        return {}


def test_a_giver_goes_through_its_history_once_for_each_peer_and_position() -> None:
    giving, history = Fetching(), Given()
    giving.part._protocol.history = history
    after, times = OF_PROTOCOL, []
    for number in range(3):
        giving.hear(0, SnapshotRequest(4, AT, after))
        giving.hear(1, SnapshotRequest(3, AT, after))
        chunk = giving.asked[-2][1]
        assert isinstance(chunk, SnapshotChunk) and [key for key, _ in chunk.rows] == [OF_PROTOCOL + bytes([number])]
        after = chunk.next
        times.append(history.times)
    assert times == [2, 2, 2]
    giving.hear(0, SnapshotRequest(3, AT, OF_PROTOCOL))
    assert history.times == 3, "of another position"
    giving.part.tick(KEPT_US + 1)
    giving.hear(0, SnapshotRequest(3, AT, OF_PROTOCOL), KEPT_US + 2)
    assert history.times == 4, "nobody has asked for so long"


def test_rows_of_the_protocol_are_made_ready_little_by_little() -> None:
    """Of 400,000 ids that are remembered it took half a second, in which their giver did nothing else."""
    protocol = WhiteBox(2, Topology.grid(1, 3), WhiteBox.specification.options(), random.Random(1))
    sent: list[object] = []
    count = 3 * ROWS_AT_ONCE
    part = Snapshots(protocol, set(), lambda: count, lambda peer, chunk: sent.append(chunk))
    part.enabled = True
    for n in range(1, count + 1):
        protocol.log.add(n.to_bytes(16, "big"), (0,), Timestamp(n, 0), Outbox())
    history, taken = protocol.history, 0
    assert history is not None

    class Counting:
        def given(self, position: int, timestamp: Timestamp) -> Iterable[tuple[bytes, bytes]]:
            nonlocal taken
            for row in history.given(position, timestamp):
                taken += 1
                yield row

        taken = history.taken

    protocol.history = Counting()
    at = Timestamp(count, 0)
    expected = {OF_PROTOCOL + key: value for key, value in history.given(count, at)}
    request = SnapshotRequest(count, at, OF_PROTOCOL)
    part.on_message(0, request, 0, Batch(1))
    turns = [taken]
    for now in range(0, 5 * PAUSE_US, PAUSE_US // 2):
        protocol.log.add((count + 1 + now).to_bytes(16, "big"), (0,), Timestamp(count + 1 + now, 0), Outbox())
        wake = part.tick(now)
        assert sent or (wake is not None and wake <= now + PAUSE_US)
        if now == PAUSE_US:
            part.on_message(0, request, now, Batch(1))  # once more: it is on its way
        turns.append(taken)
    assert taken == len(expected) and max(b - a for a, b in itertools.pairwise(turns)) == turns[0] == ROWS_AT_ONCE
    rows: dict[bytes, bytes] = {}
    while sent:
        [chunk] = sent
        assert isinstance(chunk, SnapshotChunk)
        rows |= chunk.rows
        sent.clear()
        if chunk.next:
            part.on_message(0, SnapshotRequest(count, at, chunk.next), 0, Batch(1))
    assert rows == expected and taken == len(expected)
