"""Journal frames and segment headers."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast import records
from multicast.records import HEADER_BYTES, Damage, JournalError, SegmentHeader, decode_body, encode_record, scan
from multicast.types import AppMessage, Timestamp

MESSAGE = AppMessage(b"i" * 16, (0, 3), b"payload", 2)
CRC = zlib.crc32(b"payload")
EXAMPLES: list[Any] = [
    records.Started(7, 1, 0, {0: (0, 1, 2), 1: (3, 4, 5)}, "skeen", "fsync", 12),
    records.Stopped(5, 4, 13),
    records.Put(b"key", b"\0\xff"),
    records.Delete(b"key"),
    records.Submitted(b"i" * 16, (0, 3), 14),
    records.Delivered(9, Timestamp(2**64 - 1, 2**64 - 1), 2, True, MESSAGE, 15, 4),
    records.Delivered(0, Timestamp(1, 2), 1, False, MESSAGE, 15),
    records.Completed(9, b"outcome", 16),
    records.BatchEnd(2**40),
    records.Installed(2**40, Timestamp(5, 1), b"d" * 16, 3, 17),
    records.Base(b"rows"),
    records.Members({0: (0, 1, 2, 9), 1: (3, 4, 5)}, 2**40, 18),
    records.DeliveredReference(9, Timestamp(2**64 - 1, 3), 2, True, b"i" * 16, (0, 3), 2, 2**40, 7, CRC, 15, 4, b"n"),
    records.PutReference(
        b"key", [b"before ", b" between ", b""], [records.Place(2**40, 7, CRC), records.Place(9, 4, 0)]
    ),
]
HEADER = SegmentHeader(b"c" * 16, 3, 2**31 - 1, 7, 2**50)


def read(data: bytes) -> list[Any]:
    """Every record, and the Damage if there is one."""
    return [f if isinstance(f, Damage) else decode_body(f[1], f[2]) for f in scan(data, 0)]


def test_every_kind_of_record_comes_back() -> None:
    assert read(b"".join(map(encode_record, EXAMPLES))) == EXAMPLES
    assert {type(e) for e in EXAMPLES} == set(records._TYPES.values())


def test_references_are_filled_in_with_their_payloads() -> None:
    delivered, put = EXAMPLES[-2:]
    expected = records.Delivered(9, Timestamp(2**64 - 1, 3), 2, True, MESSAGE, 15, 4, b"n")
    assert delivered.filled_in(b"payload") == expected
    assert delivered.places == [records.Place(2**40, 7, CRC)]
    assert put.filled_in(b"payload", b"more") == records.Put(b"key", b"before payload between more")


def test_positions_and_kinds_are_told() -> None:
    data = b"h" * HEADER_BYTES + encode_record(EXAMPLES[2]) + encode_record(EXAMPLES[8])
    found = [(f[0], f[1]) for f in scan(data) if not isinstance(f, Damage)]
    assert found == [
        (HEADER_BYTES, records.PUT),
        (HEADER_BYTES + len(encode_record(EXAMPLES[2])), records.BATCH_END),
    ]


def test_scanning_stops_at_every_cut() -> None:
    whole = b"".join(map(encode_record, EXAMPLES))
    ends = [0]
    for example in EXAMPLES:
        ends.append(ends[-1] + len(encode_record(example)))
    for size in range(len(whole)):
        found = read(whole[:size])
        good = sum(1 for end in ends[1:] if end <= size)
        assert found[:good] == EXAMPLES[:good]
        if size in ends:
            assert len(found) == good
        else:
            assert found[good:] == [Damage(ends[good], "a record is cut short")]


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_is_noticed_where_it_is(at: int, bit: int) -> None:
    whole = bytearray(b"".join(map(encode_record, EXAMPLES)))
    at %= len(whole)
    whole[at] ^= 1 << bit
    found = read(bytes(whole))
    good = next(i for i, f in enumerate(found) if isinstance(f, Damage))
    assert found[:good] == EXAMPLES[:good]
    start = sum(len(encode_record(e)) for e in EXAMPLES[:good])
    assert start <= at < start + len(encode_record(EXAMPLES[good]))


def test_a_length_is_not_believed() -> None:
    (damage,) = read(b"\xff\xff\xff\xff" + bytes(100))
    assert damage == Damage(0, "impossible record length 4294967295")
    (damage,) = read(bytes(100))
    assert damage == Damage(0, "impossible record length 0")


def test_no_record_is_made_that_would_not_be_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = len(encode_record(records.Base(bytes(100)))) - records.FRAME_BYTES
    monkeypatch.setattr(records, "RECORD_BYTES_MAX", largest)
    assert [found for found in scan(encode_record(records.Base(bytes(100))), 0) if not isinstance(found, Damage)]
    with pytest.raises(AssertionError, match=f"a Base of {largest + 1} bytes; the limit is {largest}"):
        encode_record(records.Base(bytes(101)))


def test_a_record_of_an_unknown_or_malformed_kind_is_refused() -> None:
    with pytest.raises(JournalError, match="unknown record kind 99"):
        decode_body(99, b"")
    with pytest.raises(JournalError, match="malformed record of kind 3"):
        decode_body(records.PUT, b"\x91\x01")


def test_a_header_comes_back() -> None:
    data = HEADER.encode()
    assert len(data) == HEADER_BYTES
    assert SegmentHeader.decode(data + b"rest", "f") == HEADER


@pytest.mark.parametrize("at", range(HEADER_BYTES))
def test_a_damaged_header_is_refused_by_name(at: int) -> None:
    data = bytearray(HEADER.encode())
    data[at] ^= 0x40
    with pytest.raises(JournalError, match="seg-1: "):
        SegmentHeader.decode(bytes(data), "seg-1")


def test_a_newer_format_is_refused_in_one_sentence() -> None:
    data = bytearray(HEADER.encode())
    data[9] = records.FORMAT_VERSION + 1
    with pytest.raises(JournalError) as refused:
        SegmentHeader.decode(bytes(data), "seg-1")
    assert str(refused.value) == "seg-1: journal format 5 is newer than this program's 4; use a newer release"
