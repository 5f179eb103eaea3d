"""Reading the records of a journal, each with the payloads that it refers to."""

from __future__ import annotations

import zlib
from collections import deque
from typing import Any, Protocol

from multicast import records
from multicast.records import REMEDY, JournalError

_PIECES, _PIECE_BYTES = 4, 256 * 1024
"""How many pieces of the journal a `Reader` keeps, and their size."""


class Readable(Protocol):
    """A journal, as its `Reader` sees it."""

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from journal offset `offset` on: fewer at the end of a segment, none before `begin`."""


class Reader:
    """Decodes the records of a journal for somebody who goes through it. It keeps what it has read last: payloads stand
    close to one another where deliveries do."""

    def __init__(self, journal: Readable):
        self._journal = journal
        self._pieces: deque[tuple[int, bytes]] = deque(maxlen=_PIECES)

    def decode(self, end: int, kind: int, body: memoryview) -> Any:
        """The record of this kind that ends at journal offset `end`; for a reference what it stands for. JournalError
        if it is malformed, or if what it refers to does not stand there."""
        record = records.decode_body(kind, body)
        if kind not in records.REFERENCES:
            return record
        payloads = []
        for place in record.places:
            payload = self._read(place.offset, place.length, end)
            if len(payload) != place.length or zlib.crc32(payload) != place.crc:
                raise JournalError(
                    f"journal offset {place.offset}: other bytes than the record that ends at {end} refers to; {REMEDY}"
                )
            payloads.append(payload)
        return record.filled_in(*payloads)

    def _read(self, offset: int, length: int, end: int) -> bytes:
        """The bytes that stand there; none if that is not before offset `end`."""
        if not 0 <= offset <= offset + length <= end:
            return b""
        for start, data in self._pieces:
            if start <= offset and offset + length <= start + len(data):
                return data[offset - start : offset - start + length]
        data = self._journal.read(offset, max(length, _PIECE_BYTES))
        self._pieces.appendleft((offset, data))
        return data[:length]
