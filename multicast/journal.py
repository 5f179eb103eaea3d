"""The journal of one replica: segments of records on a disk, appended batch by batch, read back at the next start.

Theory of operation. Every batch is appended as one piece and vouched for only after `sync` has returned. So whatever a
crash leaves behind the last whole batch was never vouched for, and opening cuts it. Anything else that is not as
written (an earlier damage, a missing file) may be a lost promise: opening refuses, and changes nothing. Two things
tell the one from the other. A segment is synced before the next one is created, so only the last can be torn. And the
`mark`, a file of a few bytes, says up to where `sync` has returned: it is exact after the death of a process, and at
most too low after a loss of power, because it is not itself synced.

The formats of segments and records are in `multicast.records`. Appending and reading may happen in different threads;
appending and syncing are one thread's.
"""

from __future__ import annotations

import errno
import re
import threading
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import msgspec

from multicast import records
from multicast.records import FRAME_BYTES, HEADER_BYTES, Delivered, JournalError, SegmentHeader
from multicast.types import GroupId, ProcessId

SEGMENT_BYTES_MAX = 64 * 1024 * 1024
READ_BYTES = 1024 * 1024
"""How much is read from the disk at a time, and how far behind a delivery its outcome is looked for."""
INDEX_BYTES = 64 * 1024
"""One delivery per so many bytes of journal is remembered with its offset."""

_PIECES, _PIECE_BYTES = 4, 256 * 1024
"""Of the journal, that a `Reader` keeps."""
_CUT_SHORT = "a record is cut short"
_MARK = "mark"
_MARK_BYTES = 12
_SEGMENT_NAME = re.compile(r"journal-(\d{8})\.seg")
REMEDY = (
    "it must not run without what it has promised: if this cannot be put right, its disk counts as lost;"
    " move this replica's directory away and start it once with --lost-disk"
)


class Disk(Protocol):
    """A flat directory of files. Every method may raise OSError; then nobody knows what was written."""

    def list(self) -> list[str]:
        """The names of all files, in any order."""

    def size(self, name: str) -> int:
        """Bytes. FileNotFoundError if there is no such file."""

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Up to `length` bytes (None: all) from byte `start` on; fewer at the end. FileNotFoundError."""

    def append(self, name: str, data: bytes) -> None:
        """Add to the end of a file, creating it. Durable only after `sync`."""

    def sync(self, name: str) -> None:
        """Return when everything appended to this file, and the file's existence, is on disk."""

    def truncate(self, name: str, size: int) -> None:
        """Cut a file to `size` bytes. Durable on return."""

    def write_small(self, name: str, data: bytes) -> None:
        """Make at most 16 bytes the whole content of a file, at once and not durably; its length never changes."""

    def close(self) -> None:
        """Give the directory back. Nothing else may be called afterwards."""


class DiskFull(OSError):
    """There is no room for an append. It was taken back: nothing is lost, and it may be tried again."""


class _Segment(NamedTuple):
    name: str
    base: int
    version: int


class _Position(msgspec.Struct, array_like=True, gc=False):
    """The first field of `Delivered`, to find out which delivery it is without building the rest."""

    position: int


_position = msgspec.msgpack.Decoder(_Position).decode


def segment_name(number: int) -> str:
    """The file of the segment with this number; 0 is the first."""
    return f"journal-{number:08d}.seg"


class Journal:
    """The journal of `process`, a member of `group`, on `disk`.

    cluster: 16 bytes. segment_bytes_max: a batch that begins beyond this goes into a new segment.
    Opening raises `JournalError`: one line that says what is wrong, in which file, at which byte, and what to do.

    cut_bytes: what opening removed of an unfinished batch. end: the journal offset at the end.
    """

    def __init__(
        self,
        disk: Disk,
        cluster: bytes,
        group: GroupId,
        process: ProcessId,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
    ):
        self.disk = disk
        self.cluster = cluster
        self.group = group
        self.process = process
        self.segment_bytes_max = segment_bytes_max
        self.cut_bytes = 0
        self.end = 0
        self._segments: list[_Segment] = []
        self._positions: list[int] = []
        self._offsets: list[int] = []
        self._lock = threading.Lock()
        self._broken = False
        self._synced = self._read_mark()
        self._open()

    # -- opening ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        numbers = sorted(int(m[1]) for m in map(_SEGMENT_NAME.fullmatch, self.disk.list()) if m)
        cut: tuple[str, int] | None = None
        for index, number in enumerate(numbers):
            if number != index:
                raise JournalError(f"{segment_name(index)} is missing; {REMEDY}")
            cut = self._open_segment(number, last=number == numbers[-1]) or cut
        if self.end < self._synced:
            where = f"{self._segments[-1].name}, byte {self._file_position()}" if self._segments else segment_name(0)
            raise JournalError(
                f"{where}: the journal ends {self._synced - self.end} bytes before what this replica has promised;"
                f" {REMEDY}"
            )
        if cut:
            self.disk.truncate(*cut)
        if self.end > self._synced:
            self.sync()

    def _file_position(self) -> int:
        return HEADER_BYTES + self.end - self._segments[-1].base

    def _open_segment(self, number: int, last: bool) -> tuple[str, int] | None:
        """Check one segment and index it. Returns what to cut: (name, size to keep)."""
        name = segment_name(number)
        data = self.disk.read(name)
        if last and (len(data) < HEADER_BYTES or not data.strip(b"\0")):
            self.cut_bytes = len(data)  # it was being created: its header is synced before anything follows
            return (name, 0)
        header = SegmentHeader.decode(data, name)
        self._check_header(header, name, number)
        self._segments.append(_Segment(name, self.end, header.version))
        good = HEADER_BYTES
        deliveries: list[tuple[int, int]] = []
        damage: records.Damage | None = None
        for found in records.scan(data):
            if isinstance(found, records.Damage):
                damage = found
                break
            at, kind, body = found
            if kind in records.DELIVERIES:
                deliveries.append((_position(body).position, at))
            elif kind == records.BATCH_END:
                good = at + FRAME_BYTES + 1 + len(body)
        for position, at in deliveries:
            if at < good:
                self._remember(position, self.end + at - HEADER_BYTES)
        self.end += good - HEADER_BYTES
        if good == len(data):
            return None
        at = damage.at if damage else good
        reason = damage.reason if damage else "records without the end of their batch"
        if not last or (damage and _batch_after(data, damage.at + 1)):
            raise JournalError(f"{name}, byte {at}: {reason}, and more of the journal follows; {REMEDY}")
        self.cut_bytes = len(data) - good
        return (name, good)

    def check_owner(self, header: SegmentHeader, name: str) -> None:
        """JournalError unless a file that begins so is of this process."""
        if header.cluster != self.cluster:
            raise JournalError(
                f"{name} belongs to cluster {header.cluster.hex()}, not to {self.cluster.hex()};"
                " use the directory of this cluster"
            )
        if (header.group, header.process) != (self.group, self.process):
            raise JournalError(
                f"{name} belongs to process {header.process} of group {header.group}, not to process {self.process}"
                f" of group {self.group}; use the directory of this process"
            )

    def _check_header(self, header: SegmentHeader, name: str, number: int) -> None:
        self.check_owner(header, name)
        if (header.segment, header.base) != (number, self.end):
            raise JournalError(
                f"{name} says that it is segment {header.segment} from offset {header.base} on, but what precedes it"
                f" ends at {self.end}; {REMEDY}"
            )

    def _remember(self, position: int, offset: int) -> None:
        """Index the final delivery whose record begins at `offset`, unless one close before it is."""
        if position and (not self._offsets or offset - self._offsets[-1] >= INDEX_BYTES):
            self._offsets.append(offset)
            self._positions.append(position)

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def synced(self) -> int:
        """The journal offset up to which `sync` has returned; a batch ends there."""
        return self._synced

    def life(self) -> int | None:
        """The incarnation of the process that began it; None while it is empty."""
        for _, kind, body in self.walk(0):
            if kind == records.STARTED:
                return int(records.decode_body(kind, body).incarnation)
        return None

    def tail(self, offset: int) -> Iterator[tuple[int, Any]]:
        """(journal offset at its end, record) of every record from `offset`, where one begins; a delivery has its
        payload, wherever that stands. JournalError: see `walk` and `Reader.decode`."""
        reader = Reader(self)
        for end, kind, body in self.walk(offset):
            yield end, reader.decode(end, kind, body)

    def offset_before(self, position: int) -> int:
        """A record begins there, and final delivery number `position` and all after it are written behind it."""
        with self._lock:
            index = bisect_right(self._positions, position)
            return self._offsets[index - 1] if index else 0

    def read_deliveries(
        self, position: int, bytes_max: int = READ_BYTES
    ) -> tuple[list[tuple[Delivered, bytes | None]], bool]:
        """Final deliveries from number `position` on, about `bytes_max` of them, with their outcomes as far as they
        stand close behind; and whether the journal holds more. For `Batch.reads`."""
        start = self.offset_before(position)
        reader = Reader(self)
        found: dict[int, Delivered] = {}
        outcomes: dict[int, bytes] = {}
        size, more, stop = 0, False, 0
        for end, kind, body in self.walk(start):
            if kind in records.DELIVERIES and not more:
                if _position(body).position >= position:
                    if size >= bytes_max:
                        more, stop = True, end + READ_BYTES
                    else:
                        delivered: Delivered = reader.decode(end, kind, body)
                        found[delivered.position] = delivered
                        size += max(len(body), len(delivered.message.payload))
            elif kind == records.COMPLETED and _position(body).position in found:
                completed: records.Completed = records.decode_body(kind, body)
                outcomes[completed.position] = completed.record
            if more and (end >= stop or len(outcomes) == len(found)):
                break
        return [(delivered, outcomes.get(number)) for number, delivered in found.items()], more

    def walk(self, offset: int, end: int | None = None) -> Iterator[tuple[int, int, memoryview]]:
        """(journal offset at its end, kind, body) of every record from `offset`, where one begins, to `end`, by default
        as it is now. JournalError if the journal was damaged since it was opened."""
        with self._lock:
            segments, end = list(self._segments), self.end if end is None else end
        index = max(0, bisect_right([s.base for s in segments], offset) - 1)
        for number in range(index, len(segments)):
            name, base, _ = segments[number]
            stop = min(end, segments[number + 1].base) if number + 1 < len(segments) else end
            length = READ_BYTES
            while offset < stop:
                length = min(length, stop - offset)
                data = self.disk.read(name, HEADER_BYTES + offset - base, length)
                used = 0
                for found in records.scan(data, 0):
                    if isinstance(found, records.Damage):
                        used = found.at
                        if length == stop - offset or found.reason != _CUT_SHORT:
                            at = HEADER_BYTES + offset - base + used
                            raise JournalError(f"{name}, byte {at}: {found.reason}; {REMEDY}")
                        break
                    at, kind, body = found
                    used = at + FRAME_BYTES + 1 + len(body)
                    yield offset + used, kind, body
                length = READ_BYTES if used else length * 2
                offset += used

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from journal offset `offset` on; fewer at the end of a segment."""
        with self._lock:
            index = bisect_right([s.base for s in self._segments], offset) - 1
            name, base, _ = self._segments[index]
            end = self._segments[index + 1].base if index + 1 < len(self._segments) else self.end
        return self.disk.read(name, HEADER_BYTES + offset - base, min(length, end - offset))

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(self, data: bytes) -> None:
        """Append whole batches (`Batch.journal`, or several of them joined). DiskFull: as if it had not been tried. Any
        other OSError: this journal is unusable."""
        if self._broken:
            raise JournalError("the journal failed before; open it again")
        self._broken = True
        try:
            last = self._segments[-1] if self._segments else None
            if last is None or self.end - last.base >= self.segment_bytes_max or last.version < records.FORMAT_VERSION:
                self._roll()
            self.disk.append(self._segments[-1].name, data)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self._take_back()
            raise DiskFull(error.errno, error.strerror) from None
        with self._lock:
            if not self._offsets or self.end - self._offsets[-1] >= INDEX_BYTES:
                self._index(data)
            self.end += len(data)
        self._broken = False

    def _take_back(self) -> None:
        """Cut what an append has written for which there was no room: in the last segment, or all of a new one."""
        new = segment_name(len(self._segments))
        if new in self.disk.list():
            self.disk.truncate(new, 0)
        elif self._segments:
            self.disk.truncate(self._segments[-1].name, self._file_position())
        self._broken = False

    def _index(self, data: bytes) -> None:
        for found in records.scan(data, 0):
            if isinstance(found, records.Damage):
                raise AssertionError(f"appended a batch that cannot be read: {found.reason}")
            at, kind, body = found
            if kind in records.DELIVERIES:
                position = _position(body).position
                if position:
                    self._remember(position, self.end + at)
                    return

    def _roll(self) -> None:
        """Begin a new segment; everything before it is on disk."""
        if self._segments:
            self.disk.sync(self._segments[-1].name)
        number = len(self._segments)
        name = segment_name(number)
        self.disk.append(name, SegmentHeader(self.cluster, self.group, self.process, number, self.end).encode())
        self.disk.sync(name)
        with self._lock:
            self._segments.append(_Segment(name, self.end, records.FORMAT_VERSION))

    def sync(self, to_disk: bool = True) -> None:
        """Return when all that was appended is durable, and say so in the mark. OSError: this journal is unusable.

        to_disk: False leaves it to the operating system: durable then means that it survives this process.
        """
        if self._broken:
            raise JournalError("the journal failed before; open it again")
        if self.end == self._synced:
            return
        end, self._broken = self.end, True
        if to_disk:
            self.disk.sync(self._segments[-1].name)
        mark = end.to_bytes(8, "big")
        self.disk.write_small(_MARK, mark + zlib.crc32(mark).to_bytes(4, "big"))
        self._synced, self._broken = end, False

    def close(self) -> None:
        """Give the disk back. What was not synced is not promised."""
        self._broken = True
        self.disk.close()

    def _read_mark(self) -> int:
        """0 if there is none, or if it was being written when the power went: then it protects nothing."""
        try:
            data = self.disk.read(_MARK)
        except FileNotFoundError:
            return 0
        if len(data) != _MARK_BYTES or zlib.crc32(data[:8]).to_bytes(4, "big") != data[8:]:
            return 0
        return int.from_bytes(data[:8], "big")


class Reader:
    """Decodes the records of a journal for somebody who goes through it. It keeps what it has read last: payloads stand
    close to one another where deliveries do."""

    def __init__(self, journal: Journal):
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
        """What stands there; nothing if that is not before offset `end`."""
        if not 0 <= offset <= offset + length <= end:
            return b""
        for start, data in self._pieces:
            if start <= offset and offset + length <= start + len(data):
                return data[offset - start : offset - start + length]
        data = self._journal.read(offset, max(length, _PIECE_BYTES))
        self._pieces.appendleft((offset, data))
        return data[:length]


def _batch_after(data: bytes, start: int) -> bool:
    """Whether the end of a batch stands anywhere from byte `start` on. Then what is damaged before it was once whole:
    an append is cut short at its end, it does not lose its middle."""
    at = data.find(bytes([records.BATCH_END, 0x91]), start)
    while at >= 0:
        frame = at - FRAME_BYTES
        length = int.from_bytes(data[frame : frame + 4], "big")
        if frame >= start and 3 <= length <= 11 and len(data) - at >= length:
            crc = int.from_bytes(data[frame + 4 : at], "big")
            body = data[at : at + length]
            if zlib.crc32(body) == crc:
                return True
        at = data.find(bytes([records.BATCH_END, 0x91]), at + 1)
    return False
