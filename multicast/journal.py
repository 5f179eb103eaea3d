"""The journal of one replica: segments of records on a disk, appended batch by batch, read back at the next start.

Theory of operation. Every batch is appended as one piece and vouched for only after `sync` has returned. So whatever a
crash leaves behind the last whole batch was never vouched for, and opening cuts it. Anything else that is not as
written (an earlier damage, a missing file) may be a lost promise: opening refuses, and changes nothing. Two things
tell the one from the other. A segment is synced before the next one is created, so only the last can be torn. And the
`mark`, a file of a few bytes, says up to where `sync` has returned: it is exact after the death of a process, and at
most too low after a loss of power, because it is not itself synced.

Closed segments may go, the oldest first (`drop`): then the journal begins later, and the `floor` says where. Opening
reads the last segment and the summaries of the others (`multicast.segments`).

The formats of segments and records are in `multicast.records`. Appending and reading may happen in different threads;
appending and syncing are one thread's.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from multicast import records, segments
from multicast.disk import NO_ROOM, Disk, DiskFull
from multicast.reader import Reader
from multicast.records import FRAME_BYTES, HEADER_BYTES, REMEDY, Delivered, JournalError, SegmentHeader
from multicast.segments import (
    SEGMENT_NAME,
    Floor,
    Segment,
    Summary,
    Survey,
    below,
    droppable,
    position_of,
    segment_name,
    summary_name,
)
from multicast.types import GroupId, ProcessId

READ_BYTES = 1024 * 1024
"""How much is read from the disk at a time, and how far behind a delivery its outcome is looked for; and how much of
outcomes is found at a time."""
INDEX_BYTES = 64 * 1024
"""One delivery per so many bytes of journal is remembered with its offset."""
PAUSE_RECORDS = 500
"""Records that are read between two pauses, where a thread lets others work."""

_CUT_SHORT = "a record is cut short"


class Gone(Exception):
    """What was asked for is no longer in the journal, which holds the final deliveries after number `floor`."""

    def __init__(self, floor: int):
        super().__init__(f"the journal holds only deliveries after {floor}")
        self.floor = floor


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
        segment_bytes_max: int = records.SEGMENT_BYTES_MAX,
    ):
        self.disk = disk
        self.cluster = cluster
        self.group = group
        self.process = process
        self.segment_bytes_max = segment_bytes_max
        self.cut_bytes = self._own = 0
        self._floor = self._read_floor()
        self.end = self._floor.base
        self._segments: list[Segment] = []
        self._positions: list[int] = []
        self._offsets: list[int] = []
        self._lock = threading.Lock()
        self._broken = False
        self._synced = self._read_mark()
        self._open()

    # -- opening ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        names = self.disk.list()
        numbers = sorted(int(m[1]) for m in map(SEGMENT_NAME.fullmatch, names) if m)
        oldest = self._floor.segment
        there = [number for number in numbers if number >= oldest]
        if oldest and not there:
            raise JournalError(f"{segment_name(oldest)} is missing; {REMEDY}")
        cut: tuple[str, int] | None = None
        for index, number in enumerate(there, oldest):
            if number != index:
                raise JournalError(f"{segment_name(index)} is missing; {REMEDY}")
            cut = self._open_segment(number, last=number == there[-1]) or cut
        if self.end < self._synced:
            last = self._segments[-1].number if self._segments else oldest
            where = f"{segment_name(last)}, byte {self._file_position(self.end)}"
            raise JournalError(
                f"{where}: the journal ends {self._synced - self.end} bytes before what this replica has promised;"
                f" {REMEDY}"
            )
        if cut:
            self.disk.truncate(*cut)
        self._own = self.end  # this life writes behind it
        if self.end > self._synced:
            self.sync()
        self._remove(below(oldest, names))

    def _file_position(self, offset: int) -> int:
        """This journal offset, as a position in the last segment."""
        return HEADER_BYTES + max(0, offset - (self._segments[-1].base if self._segments else 0))

    def _open_segment(self, number: int, last: bool) -> tuple[str, int] | None:
        """Check one segment and index it. Returns what to cut: (name, size to keep)."""
        name = segment_name(number)
        if not last and self._open_closed(name, number):
            return None
        data = self.disk.read(name)
        if last and not SegmentHeader.is_whole(data) and not data[HEADER_BYTES:].strip(b"\0"):
            self.cut_bytes = len(data)  # it was being created: its header is synced before anything follows
            return (name, 0)
        header = SegmentHeader.decode(data, name)
        self._check_header(header, name, number)
        base, survey = self.end, Survey(self.end)
        good = HEADER_BYTES
        deliveries: list[tuple[int, int]] = []
        damage: records.Damage | None = None
        for found in records.scan(data):
            if isinstance(found, records.Damage):
                damage = found
                break
            at, kind, body = found
            survey.see(base + at + FRAME_BYTES + 1 + len(body) - HEADER_BYTES, kind, body)
            if kind in records.DELIVERIES:
                deliveries.append((position_of(body), at))
            elif kind == records.BATCH_END:
                good = at + FRAME_BYTES + 1 + len(body)
        for position, at in deliveries:
            if at < good:
                self._remember(position, base + at - HEADER_BYTES)
        self.end += good - HEADER_BYTES
        self._segments.append(Segment(number, base, header.version, survey.refers))
        if good == len(data):
            return None
        at = damage.at if damage else good
        reason = damage.reason if damage else "records without the end of their batch"
        if not last or (damage and records.batch_after(data, damage.at)):
            raise JournalError(f"{name}, byte {at}: {reason}, and more of the journal follows; {REMEDY}")
        self.cut_bytes = len(data) - good
        return (name, good)

    def _open_closed(self, name: str, number: int) -> bool:
        """Take a closed segment as its summary says; False if it has none, or one that does not fit."""
        try:
            summary = segments.decode(self.disk.read(summary_name(number)), Summary)
        except FileNotFoundError:
            return False
        header = SegmentHeader.decode(self.disk.read(name, 0, HEADER_BYTES), name)
        self._check_header(header, name, number)
        if summary is None or (summary.base, self.disk.size(name)) != (
            header.base,
            HEADER_BYTES + summary.end - summary.base,
        ):
            return False
        self._segments.append(Segment(number, header.base, header.version, summary.refers, summary))
        self._positions += summary.positions
        self._offsets += summary.offsets
        self.end = summary.end
        return True

    def _check_header(self, header: SegmentHeader, name: str, number: int) -> None:
        header.check_owner(name, self.cluster, self.group, self.process)
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

    @property
    def begin(self) -> int:
        """The journal offset at which it begins."""
        return self._floor.base

    @property
    def floor(self) -> int:
        """The highest final delivery of which something has been dropped: those after it are here. 0 at first."""
        return self._floor.position

    def life(self) -> int | None:
        """The incarnation of the process that began it; None while it is empty."""
        if self._floor.life:
            return self._floor.life
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
        """An offset at which a record begins, before which nothing is written of final delivery number `position` and
        all after it that are here."""
        with self._lock:
            index = bisect_right(self._positions, position)
            return self._offsets[index - 1] if index else self.begin

    def read_deliveries(
        self, position: int, bytes_max: int = READ_BYTES
    ) -> tuple[list[tuple[Delivered, bytes | None]], bool]:
        """Final deliveries from number `position` on, about `bytes_max` of them, with their outcomes as far as they
        stand close behind; and whether the journal holds more. For `Batch.reads`. Gone if `position` is not above the
        floor."""
        while True:
            begin = self.begin
            if position <= self.floor:
                raise Gone(self.floor)
            try:
                return self._read_deliveries(position, bytes_max)
            except (FileNotFoundError, JournalError):
                if self.begin == begin:
                    raise  # else what was being read was dropped

    def _read_deliveries(self, position: int, bytes_max: int) -> tuple[list[tuple[Delivered, bytes | None]], bool]:
        start = self.offset_before(position)
        reader = Reader(self)
        found: dict[int, Delivered] = {}
        outcomes: dict[int, bytes] = {}
        size, told, more, stop = 0, 0, False, 0
        for end, kind, body in self.walk(start):
            if kind in records.DELIVERIES and not more:
                if position_of(body) >= position:
                    if size >= bytes_max:
                        more, stop = True, end + READ_BYTES
                    else:
                        delivered: Delivered = reader.decode(end, kind, body)
                        found[delivered.position] = delivered
                        size += max(len(body), len(delivered.message.payload))
            elif kind == records.COMPLETED and position_of(body) in found:
                completed: records.Completed = records.decode_body(kind, body)
                outcomes[completed.position] = completed.record
                told += len(completed.record)
                if told >= READ_BYTES:  # what has no outcome yet comes with the next ones
                    found, more = {number: found[number] for number in found if number <= completed.position}, True
            if more and (end >= stop or len(outcomes) == len(found)):
                break
        return [(delivered, outcomes.get(number)) for number, delivered in found.items()], more

    def walk(self, offset: int, end: int | None = None) -> Iterator[tuple[int, int, memoryview]]:
        """(journal offset at its end, kind, body) of every record from `offset`, where one begins, to `end`, by default
        as it is now. JournalError if the journal was damaged since it was opened, or begins later; FileNotFoundError if
        what is read is dropped meanwhile."""
        with self._lock:
            found_segments, end = list(self._segments), self.end if end is None else end
            if offset < self.begin:
                raise JournalError(f"the journal begins at offset {self.begin}, and {offset} is needed; {REMEDY}")
        index = max(0, bisect_right([s.base for s in found_segments], offset) - 1)
        for at_segment in range(index, len(found_segments)):
            if offset >= end:
                return
            base = found_segments[at_segment].base
            name = segment_name(found_segments[at_segment].number)
            stop = min(end, found_segments[at_segment + 1].base) if at_segment + 1 < len(found_segments) else end
            length = READ_BYTES
            while offset < stop:
                length = min(length, stop - offset)
                data, used = self.disk.read(name, HEADER_BYTES + offset - base, length), 0
                if not data:
                    raise JournalError(f"{name}, byte {HEADER_BYTES + offset - base}: the file ends; {REMEDY}")
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
        """Up to `length` bytes from journal offset `offset` on: fewer at the end of a segment, none before `begin`."""
        with self._lock:
            index = bisect_right([s.base for s in self._segments], offset) - 1
            if index < 0:
                return b""
            base = self._segments[index].base
            end = self._segments[index + 1].base if index + 1 < len(self._segments) else self.end
            name = segment_name(self._segments[index].number)
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
            self.disk.append(segment_name(self._segments[-1].number), data)
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._give_up(self.end)
                raise
            self._take_back(self.end)
            self._broken = False
            raise DiskFull(error.errno, error.strerror) from None
        with self._lock:
            if not self._offsets or self.end - self._offsets[-1] >= INDEX_BYTES:
                self._index(data)
            self.end += len(data)
        self._broken = False

    def _take_back(self, end: int) -> None:
        """Cut what was written behind journal offset `end`: in the last segment, or all of a new one."""
        new = segment_name(self._next_number())
        if new in self.disk.list():
            self.disk.truncate(new, 0)
        elif self._segments:
            self.disk.truncate(segment_name(self._segments[-1].number), self._file_position(end))

    def _give_up(self, end: int) -> None:
        """An error of the device: what could not be synced can still be read, and the next sync may say that it is
        there. Nobody finds it any more; but what lives before have written, which may be vouched for, stays."""
        end = max(end, self._own)
        with contextlib.suppress(OSError), self._lock:
            self._take_back(end)
            self.end = end

    def _next_number(self) -> int:
        return self._segments[-1].number + 1 if self._segments else self._floor.segment

    def _index(self, data: bytes) -> None:
        for found in records.scan(data, 0):
            if isinstance(found, records.Damage):
                raise AssertionError(f"appended a batch that cannot be read: {found.reason}")
            at, kind, body = found
            if kind in records.DELIVERIES:
                position = position_of(body)
                if position:
                    self._remember(position, self.end + at)
                    return

    def _roll(self) -> None:
        """Begin a new segment; everything before it is on disk."""
        if self._segments:
            self.disk.sync(segment_name(self._segments[-1].number))
        number = self._next_number()
        name = segment_name(number)
        self.disk.append(name, SegmentHeader(self.cluster, self.group, self.process, number, self.end).encode())
        self.disk.sync(name)
        with self._lock:
            refers = self.end - self.segment_bytes_max  # the reach of a `Recorder`
            self._segments.append(Segment(number, self.end, records.FORMAT_VERSION, refers))

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
            try:
                self.disk.sync(segment_name(self._segments[-1].number))
            except OSError:
                self._give_up(self._synced)
                raise
        try:
            self.disk.write_small(segments.MARK, segments.encode_mark(end))
        except OSError as error:
            if error.errno not in NO_ROOM:  # else it is too low until the next one
                raise
        self._synced, self._broken = end, False

    def close(self) -> None:
        """Give the disk back. What was not synced is not promised."""
        self._broken = True
        self.disk.close()

    # -- letting go ---------------------------------------------------------------------------------------------------

    def closed(self) -> list[tuple[str, int]]:
        """(file, journal offset at its end) of every segment but the last."""
        with self._lock:
            return [(segment_name(segment.number), after.base) for segment, after in pairwise(self._segments)]

    def seal(self, pause: Callable[[], object] = lambda: None) -> None:
        """Write the summaries of closed segments that have none; in any thread, but in one at a time, as `drop`.
        pause: see `Checkpoints`. JournalError if one is damaged; OSError: nothing is lost."""
        with self._lock:
            found = list(pairwise(self._segments))
        for segment, after in found:
            if segment.summary is None:
                survey = Survey(segment.base)
                for number, (end, kind, body) in enumerate(self.walk(segment.base, after.base)):
                    survey.see(end, kind, body)
                    if number % PAUSE_RECORDS == 0:
                        pause()
                self._summarize(segment, after.base, survey)

    def _summarize(self, segment: Segment, end: int, survey: Survey) -> None:
        with self._lock:
            first, last = bisect_left(self._offsets, segment.base), bisect_left(self._offsets, end)
            index = self._positions[first:last], self._offsets[first:last]
        summary = survey.summary(end, *index)
        self.disk.replace(summary_name(segment.number), (segments.encode(summary),))
        known = Segment(segment.number, segment.base, segment.version, survey.refers, summary)
        with self._lock:
            self._segments[segment.number - self._floor.segment] = known

    def drop(self, position: int, offset: int) -> int:
        """Remove the oldest segments that have a summary (`seal`), as far as they end by journal offset `offset` and
        hold nothing of a delivery after `position`, nor of a put that is written after `offset`. Returns how many have
        gone. `position` is not below the floor then."""
        life = self.life()
        with self._lock:
            found = list(self._segments)
        count, last = droppable(found, self.floor, position, offset)
        if not count or life is None:
            return 0
        oldest = found[count]
        self._raise_floor(Floor(oldest.number, oldest.base, last, life))
        self._remove(below(oldest.number, self.disk.list()))
        return count

    def skip_to(self, position: int) -> None:
        """Deliveries up to number `position` count as dropped, be they here or not: a snapshot stands for them."""
        self._raise_floor(Floor(self._floor.segment, self.begin, max(self.floor, position), self.life() or 0))

    def _raise_floor(self, floor: Floor) -> None:
        self.disk.replace(segments.FLOOR, (segments.encode(floor),))
        with self._lock:
            gone = bisect_left(self._offsets, floor.base)
            count = floor.segment - self._floor.segment
            del self._segments[:count], self._positions[:gone], self._offsets[:gone]
            self._floor = floor

    def _remove(self, names: list[str]) -> None:
        """These files; the floor is above them."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self.disk.remove(name)

    def _read_floor(self) -> Floor:
        try:
            floor = segments.decode(self.disk.read(segments.FLOOR), Floor)
        except FileNotFoundError:
            return Floor()
        if floor is None:
            raise JournalError(f"{segments.FLOOR} is damaged: it says where the journal begins; {REMEDY}")
        return floor

    def _read_mark(self) -> int:
        """What the mark says; 0 if there is none."""
        try:
            return segments.decode_mark(self.disk.read(segments.MARK))
        except FileNotFoundError:
            return 0
