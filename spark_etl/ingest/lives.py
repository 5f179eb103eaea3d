"""Whether the lives of a process are all begun as they should be: by the record that says so."""

from __future__ import annotations

from multicast import records
from multicast.records import FRAME_BYTES, HEADER_BYTES, JournalError

NO_BEGINNING = "a life begins here without the record that it started: that record is missing"
_STOPPED = 2**63 - 1


class Lives:
    """Follows a journal's batches: their numbers rise within a life, whose first batch says that it started.

    batch: the number of the last one; _STOPPED: the life has ended; -1: there was none yet. begin: the byte at which
    the present one begins. unsure: it holds something unreadable.
    """

    def __init__(self, batch: int, offset: int):
        self.batch = batch if batch or offset else -1
        self.begin = HEADER_BYTES
        self.unsure = False
        self._started = self._stopped = False

    def lacks_beginning(self, at: int, kind: int, body: memoryview) -> bool:
        """Whether the record at byte `at` ends the first batch of a life that never started."""
        if kind == records.STARTED:
            self._started, self._stopped = True, False
        elif kind == records.STOPPED:
            self._stopped = True
        if kind != records.BATCH_END:
            return False
        number = self._number(body)
        lacks = not self._started and not self.unsure and (number <= self.batch or self.batch < 0)
        self.batch = _STOPPED if self._stopped else number
        self.begin = at + FRAME_BYTES + 1 + len(body)
        self.unsure = self._started = self._stopped = False
        return lacks

    def _number(self, body: memoryview) -> int:
        """Of the batch that ends."""
        try:
            end: records.BatchEnd = records.decode_body(records.BATCH_END, body)
        except JournalError:
            self.unsure = True
        return max(self.batch, 0) if self.unsure else end.batch
