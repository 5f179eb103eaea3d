"""Every payload stands in the journal once: deliveries refer to what was put, and readers get them whole."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import multicast.reader
from multicast import recorder, records
from multicast.checkpoint import Checkpoints
from multicast.journal import Journal
from multicast.recorder import HEAD_BYTES, Recorder
from multicast.records import HEADER_BYTES, JournalError
from multicast.simulation.disk import SimulatedDisk
from multicast.types import FINAL, OPTIMISTIC, AppMessage, Timestamp

PAYLOAD = b"a payload that is worth a reference"


def message(number: int, payload: bytes = PAYLOAD) -> AppMessage:
    return AppMessage(number.to_bytes(16, "big"), (0, 1), payload, 5)


def delivery(position: int, of: AppMessage, stage: int = FINAL) -> records.Delivered:
    return records.Delivered(position, Timestamp(position, 0), stage, False, of, 7, None, b"note")


class Life:
    """A recorder whose batches go into a journal on a disk in memory."""

    def __init__(self, disk: SimulatedDisk | None = None, segment_bytes_max: int = 1 << 20, places_max: int = 100):
        self.disk = disk or SimulatedDisk()
        self.journal = Journal(self.disk, b"c" * 16, 0, 1, segment_bytes_max)
        self.recorder = Recorder(places_max, segment_bytes_max)
        self.recorder.offset = self.journal.end
        self.batches = 0

    def put(self, *carries: AppMessage, around: bytes = b"|") -> records.Put:
        value = around + around.join(m.payload for m in carries) + around
        self.recorder.change([(b"key", value, carries)])
        return records.Put(b"key", value)

    def write(self) -> bytes:
        """End the batch; returns it."""
        self.batches += 1
        batch = self.recorder.take(self.batches)
        self.journal.append(batch)
        self.journal.sync()
        return batch

    def found(self) -> list[records.Delivered]:
        """All deliveries of the journal."""
        return [record for _, record in self.journal.tail(0) if isinstance(record, records.Delivered)]


def kinds(batch: bytes) -> list[int]:
    return [one[1] for one in records.scan(batch, 0) if isinstance(one, tuple)]


def test_a_delivery_refers_to_what_was_put() -> None:
    life = Life()
    life.put(message(1))
    first = life.write()
    life.recorder.deliver(delivery(1, message(1)))
    second = life.write()
    assert PAYLOAD in first
    assert PAYLOAD not in second
    assert life.found() == [delivery(1, message(1))]
    assert life.journal.read_deliveries(1) == ([(delivery(1, message(1)), None)], False)


def test_in_one_batch_too_and_optimistically_before() -> None:
    life = Life()
    life.put(message(1))
    life.recorder.deliver(delivery(0, message(1), OPTIMISTIC))
    life.recorder.deliver(delivery(1, message(1)))
    assert life.write().count(PAYLOAD) == 1
    assert life.found() == [delivery(0, message(1), OPTIMISTIC), delivery(1, message(1))]


def test_what_is_put_again_is_not_written_again() -> None:
    life = Life()
    life.put(message(1), message(2, PAYLOAD[::-1]))
    first = life.write()
    life.put(message(2, PAYLOAD[::-1]), message(3, PAYLOAD + b"3"), message(1), around=b"--")
    second = life.write()
    assert kinds(second)[0] == records.PUT_REFERENCE
    assert len(second) < len(first)
    life.recorder.deliver(delivery(1, message(3, PAYLOAD + b"3")))
    assert PAYLOAD not in life.write(), "what is new in a put with references is found, too"
    puts = [record for _, record in life.journal.tail(0) if isinstance(record, records.Put)]
    assert [put.value for put in puts] == [
        b"|" + PAYLOAD + b"|" + PAYLOAD[::-1] + b"|",
        b"--" + PAYLOAD[::-1] + b"--" + PAYLOAD + b"3--" + PAYLOAD + b"--",
    ]
    assert life.found() == [delivery(1, message(3, PAYLOAD + b"3"))]


def test_a_checkpoint_has_whole_values() -> None:
    life = Life()
    life.put(message(1))
    life.put(message(1), around=b"+")
    life.write()
    Checkpoints(life.journal).advance()
    assert Checkpoints(life.journal).latest().values == {b"key": b"+" + PAYLOAD + b"+"}


def test_many_in_one_value_are_found_each() -> None:
    some = [message(n, (b"%03d" % n) * 10) for n in range(50)] + [message(50, b"")]
    life = Life()
    life.put(*some, around=b"0")
    for position, one in enumerate(reversed(some), 1):
        life.recorder.deliver(delivery(position, one))
    assert kinds(life.write()).count(records.DELIVERED_REFERENCE) == 50
    assert [d.message for d in life.found()] == some[::-1]


def test_a_payload_is_found_behind_what_begins_like_it() -> None:
    begins = bytes(HEAD_BYTES)
    one = message(1, begins + PAYLOAD)
    life = Life()
    life.put(one, around=begins + b"|")
    life.recorder.deliver(delivery(1, one))
    assert kinds(life.write()).count(records.DELIVERED_REFERENCE) == 1
    assert [d.message for d in life.found()] == [one]


def test_what_nobody_has_put_is_written_where_it_is_delivered() -> None:
    life = Life()
    life.put(message(1))
    life.recorder.deliver(delivery(1, message(2)))
    life.recorder.deliver(delivery(2, message(1)))
    life.recorder.deliver(delivery(3, message(1)))
    assert kinds(life.write())[1:-1] == [records.DELIVERED, records.DELIVERED_REFERENCE, records.DELIVERED]
    assert [d.message.id for d in life.found()] == [message(n).id for n in (2, 1, 1)]


def test_another_payload_under_the_same_id_is_not_referred_to() -> None:
    life = Life()
    life.put(message(1))
    life.recorder.deliver(delivery(1, message(1, PAYLOAD[::-1])))
    life.write()
    assert life.found() == [delivery(1, message(1, PAYLOAD[::-1]))]


def test_a_short_payload_is_cheaper_written_twice() -> None:
    short = message(1, PAYLOAD[: recorder.PAYLOAD_BYTES_MIN - 1])
    life = Life()
    life.put(short)
    life.recorder.deliver(delivery(1, short))
    assert kinds(life.write())[1] == records.DELIVERED


def test_so_many_places_are_remembered_and_the_latest() -> None:
    life = Life(places_max=10)
    life.put(*[message(n, PAYLOAD + b"%d" % n) for n in range(30)])
    for position in range(1, 31):
        life.recorder.deliver(delivery(position, message(position - 1, PAYLOAD + b"%d" % (position - 1))))
    found = kinds(life.write())[1:-1]
    assert found == [records.DELIVERED] * 20 + [records.DELIVERED_REFERENCE] * 10


def test_a_put_that_does_not_carry_what_it_says_is_a_bug() -> None:
    with pytest.raises(AssertionError, match=r"does not contain the payload of 0{31}2"):
        Recorder().change([(b"key", PAYLOAD, (message(1), message(2)))])


def test_a_reference_to_other_bytes_is_refused_and_named() -> None:
    for wrong in (1, 400, 2**60, -(2**60)):
        life = Life()
        life.recorder.reach = 2**62
        life.put(message(1))
        life.write()
        offset, length, crc = life.recorder._places[message(1).id]
        life.recorder._places[message(1).id] = records.Place(offset + wrong, length, crc)
        life.recorder.deliver(delivery(1, message(1)))
        life.write()
        expected = f"journal offset {offset + wrong}: other bytes than the record that ends at .* refers to"
        with pytest.raises(JournalError, match=expected):
            life.found()
        with pytest.raises(JournalError, match=expected):
            life.journal.read_deliveries(1)


def test_what_is_referred_to_and_later_damaged_is_noticed() -> None:
    life = Life()
    life.put(message(1))
    life.write()
    life.recorder.deliver(delivery(1, message(1)))
    data = life.disk._files["journal-00000000.seg"].data
    begin = len(data)
    life.write()
    data[data.find(PAYLOAD) + 3] ^= 1
    with pytest.raises(JournalError, match="other bytes than the record"):
        list(life.journal.tail(begin - HEADER_BYTES))


def test_an_old_segment_is_read_and_gets_no_new_records() -> None:
    """An older program would not understand them: it refuses the new segment."""
    disk = SimulatedDisk()
    old = records.SegmentHeader(b"c" * 16, 0, 1, 0, 0, version=1)
    written = b"".join(map(records.encode_record, (delivery(1, message(1)), records.BatchEnd(1))))
    disk.append("journal-00000000.seg", old.encode() + written)
    disk.sync("journal-00000000.seg")
    life = Life(disk)
    life.put(message(2))
    life.recorder.deliver(delivery(2, message(2)))
    life.write()
    assert disk.read("journal-00000000.seg") == old.encode() + written
    assert records.SegmentHeader.decode(disk.read("journal-00000001.seg"), "f").version == records.FORMAT_VERSION
    assert Life(disk).found() == [delivery(1, message(1)), delivery(2, message(2))]


def test_a_start_from_a_checkpoint_finds_payloads_before_it() -> None:
    life = Life()
    life.put(message(1))
    life.put(message(2, PAYLOAD + b"2"))
    life.recorder.deliver(delivery(1, message(1)))
    life.write()
    checkpoint = Checkpoints(life.journal).advance()
    life.recorder.deliver(delivery(2, message(2, PAYLOAD + b"2")))
    life.write()
    found = [r for _, r in checkpoint.recovery(life.journal, 0) if isinstance(r, records.Delivered)]
    assert found == [delivery(1, message(1)), delivery(2, message(2, PAYLOAD + b"2"))]


Step = tuple[str, Any]
steps: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("put"), st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)),
    st.tuples(st.just("deliver"), st.integers(0, 9)),
    st.tuples(st.just("write"), st.none()),
    st.tuples(st.just("restart"), st.booleans()),
)


@given(st.lists(steps, max_size=40), st.integers(0, 2**32))
def test_whatever_was_delivered_comes_back_whole(taken: list[Step], seed: int) -> None:
    with mock.patch.object(multicast.reader, "_PIECE_BYTES", 100):
        _check_life(taken, random.Random(seed))


def _check_life(taken: list[Step], rng: random.Random) -> None:
    messages = [message(n, rng.randbytes(rng.choice((3, 30, 3000)))) for n in range(10)]
    life = Life(segment_bytes_max=500, places_max=5)
    durable: list[Any] = []
    waiting: list[Any] = []
    position = 0
    for step, what in taken:
        if step == "put":
            waiting.append(life.put(*[messages[n] for n in what]))
        elif step == "deliver":
            position += 1
            waiting.append(delivery(position, messages[what]))
            life.recorder.deliver(waiting[-1])
        elif step == "write":
            life.write()
            durable += waiting
            waiting = []
        else:
            position -= sum(isinstance(one, records.Delivered) for one in waiting)
            waiting = []
            life.disk.crash(rng, power=what)
            life = Life(life.disk, 500, 5)
    assert [r for _, r in life.journal.tail(0) if not isinstance(r, records.BatchEnd)] == durable
    deliveries = life.found()
    for first in range(1, len(deliveries) + 1):
        assert [d for d, _ in life.journal.read_deliveries(first)[0]] == deliveries[first - 1 :]
