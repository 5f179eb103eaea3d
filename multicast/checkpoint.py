"""What a protocol has saved, up to an offset of its journal: a start reads that, and of the journal only the rest.

Theory of operation. A checkpoint stands for the beginning of a journal. It is a file beside the journal and in its
format: a segment whose base is the offset up to which it stands, with one `Put` for each key that was put and not
deleted before that, and a `BatchEnd`. The next one is made of it and of what was synced since, once that has grown to
be worth it; so both a start and all checkpoints together cost a fixed multiple of what is saved and of what is
written. Two files take turns. The one that was not finished before a crash lacks its end: then the other counts, and
without either the whole journal.

It knows nothing of what the application has made of deliveries. That is the application's to keep: it says at its start
how many deliveries it holds already (`Application.position`), and gets those that follow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from multicast import records
from multicast.journal import PAUSE_RECORDS, Journal
from multicast.reader import Reader
from multicast.records import REMEDY, JournalError, SegmentHeader, encode_record
from multicast.segments import position_of

GROWTH_BYTES_MIN = 16 * 1024 * 1024
"""A checkpoint is worth making once the journal has grown by so much,"""
GROWTH_FACTOR = 2
"""and by so many times the size of the last one."""

_FILES = ("checkpoint-0", "checkpoint-1")


class Checkpoint(NamedTuple):
    """values: what was put and not deleted up to journal offset `offset`. bytes, file: its size, and where it is."""

    values: dict[bytes, bytes]
    offset: int
    bytes: int
    file: str

    @property
    def next_offset(self) -> int:
        """The journal offset from which on another checkpoint is worth making."""
        return self.offset + max(GROWTH_BYTES_MIN, GROWTH_FACTOR * self.bytes)

    def recovery(self, journal: Journal, position: int) -> Iterator[tuple[int, Any]]:
        """What stands for the whole journal at `Engine.recover`: the checkpoint; what is later; and of what is earlier,
        deliveries and outcomes at least from number `position` on. JournalError: see `Journal.walk`; or the journal
        begins after what this and an application that holds `position` deliveries stand for, or ends before that."""
        if self.offset < journal.begin:
            raise JournalError(
                f"neither of {' and '.join(_FILES)} is whole and stands for what was dropped of the journal, which"
                f" begins at offset {journal.begin}; {REMEDY}"
            )
        if position < journal.floor:
            raise JournalError(
                f"the journal holds only deliveries after {journal.floor}, and the application no more than the first"
                f" {position}; {REMEDY}"
            )
        for key, value in self.values.items():
            yield self.offset, records.Put(key, value)
        if self.offset:
            yield self.offset, records.BatchEnd(0)
        reader = Reader(journal)
        last = journal.floor
        for end, kind, body in journal.walk(min(self.offset, journal.offset_before(position))):
            if kind in records.DELIVERIES:
                last = max(last, position_of(body))
                if position_of(body) <= position:
                    continue  # what it refers to may have gone
            if end > self.offset or kind in (*records.DELIVERIES, records.COMPLETED):
                yield end, reader.decode(end, kind, body)
        if last < position:
            raise JournalError(
                f"the journal ends at delivery {last}, and the application holds {position}: the end of the journal is"
                f" gone; {REMEDY}"
            )


class Checkpoints:
    """The checkpoints of `journal`. pause: called every few hundred records, so that a thread that makes one lets
    others work. Nobody else may make any: the one that counts is read once, and remembered."""

    def __init__(self, journal: Journal, pause: Callable[[], object] = lambda: None):
        self._journal = journal
        self._pause = pause
        self._latest: Checkpoint | None = None
        self._unfinished = ""
        """The file that is being written, or could not be: until it is synced it may be readable and not on disk."""

    def latest(self) -> Checkpoint:
        """The checkpoint that counts; an empty one, at offset 0, if there is none. JournalError if it is another
        process's, or stands for more than the journal holds."""
        if self._latest is None:
            self._latest = self._read_latest()
        return self._latest

    def _read_latest(self) -> Checkpoint:
        names = self._journal.disk.list()
        found = [self._read(name) for name in _FILES if name in names and name != self._unfinished]
        last = max(filter(None, found), key=lambda one: one.offset, default=Checkpoint({}, 0, 0, _FILES[1]))
        end = self._journal.end
        if last.offset > end:
            raise JournalError(f"the journal ends at offset {end}, before {last.file}'s {last.offset}; {REMEDY}")
        return last

    def advance(self) -> Checkpoint:
        """Make a checkpoint of all that is synced by now; perhaps in another thread than the one that appends and
        syncs. OSError, JournalError: the one before still counts."""
        offset, name = self._journal.synced, _FILES[self.latest().file == _FILES[0]]
        values = self._go_on(offset)
        self._unfinished = name
        try:
            size = self._write(name, offset, values)
        except OSError:  # what is written of it takes room, and may be lost though it can be read
            with contextlib.suppress(OSError):
                self._journal.disk.truncate(name, 0)
            raise
        self._latest, self._unfinished = Checkpoint(values, offset, size, name), ""
        return self._latest

    def saved(self) -> dict[bytes, bytes]:
        """What is put and not deleted in all that is synced by now."""
        return self._go_on(self._journal.synced)

    def _go_on(self, offset: int) -> dict[bytes, bytes]:
        """The values at journal offset `offset`, made of the latest checkpoint, which is forgotten, and of what follows
        it."""
        before, self._latest = self.latest(), None
        values = before.values
        reader = Reader(self._journal)
        for number, (end, kind, body) in enumerate(self._journal.walk(before.offset, offset)):
            if kind in records.CHANGES:
                self._apply(values, reader.decode(end, kind, body))
            if number % PAUSE_RECORDS == 0:
                self._pause()
        return values

    def _apply(self, values: dict[bytes, bytes], record: Any) -> None:
        if type(record) is records.Put:
            values[record.key] = record.value
        else:
            values.pop(record.key, None)

    def _write(self, name: str, offset: int, values: dict[bytes, bytes]) -> int:
        """Returns its size."""
        journal, disk = self._journal, self._journal.disk
        if name in disk.list():
            disk.truncate(name, 0)
        pieces = [SegmentHeader(journal.cluster, journal.group, journal.process, 0, offset).encode()]
        for number, (key, value) in enumerate(values.items()):
            pieces.append(encode_record(records.Put(key, value)))
            if number % PAUSE_RECORDS == 0:
                disk.append(name, b"".join(pieces))
                pieces.clear()
                self._pause()
        disk.append(name, b"".join([*pieces, encode_record(records.BatchEnd(0))]))
        disk.sync(name)
        return disk.size(name)

    def _read(self, name: str) -> Checkpoint | None:
        """None if it was not finished. JournalError if it is another process's."""
        data = self._journal.disk.read(name)
        try:
            header = SegmentHeader.decode(data, name)
        except JournalError:
            return None
        journal = self._journal
        header.check_owner(name, journal.cluster, journal.group, journal.process)
        values: dict[bytes, bytes] = {}
        finished = False
        for number, found in enumerate(records.scan(data)):
            if isinstance(found, records.Damage):
                return None
            _, kind, body = found
            finished = kind == records.BATCH_END
            if not finished:
                self._apply(values, records.decode_body(kind, body))
            if number % PAUSE_RECORDS == 0:
                self._pause()
        return Checkpoint(values, header.base, len(data), name) if finished else None
