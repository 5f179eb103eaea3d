"""How much of a journal stays: closed segments go to the archive, and then away.

Theory of operation. What a segment holds is needed until it stands elsewhere. Its deliveries are: until the application
durably holds what they have led to. What the protocol has put is: until a checkpoint stands for it. All of it is, for
an audit: until the archive has it durably, if there is one. And a member that lags asks for deliveries: so the last
`keep_bytes` stay, and one that lags by more than those gets a snapshot instead. When nobody needs it any longer a
segment goes, oldest first (`Journal.drop`).

From then on the application's state is no longer something that can be made anew from the journal: a process that loses
it has lost its disk.

A copy in the archive is written beside, synced and renamed, so there is never half of one; after a crash it begins with
the first segment that is not there. A segment whose records are not as they were written is not copied: the archive
never has as whole what is damaged. That, or an archive that cannot be written, is a trouble, not a failure: nothing
goes until it is put right. An archive that could not be written is opened anew the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from multicast.disk import Disk
from multicast.journal import PAUSE_RECORDS, READ_BYTES, Journal
from multicast.records import JournalError

KEEP_BYTES = 256 * 1024 * 1024
"""By default so much of a journal stays for members that lag."""


class Retention:
    """How much of `journal` stays. keep_bytes: so much of its end does. open_archive(): the directory to which closed
    segments are copied; None: there is no archive. pause: see `Checkpoints`.

    ending: set by whoever waits for `advance` to return: it copies no further segment. All that an archive lacks which
    was away may take minutes.
    archives: whether there is an archive. archived: the journal offset up to which that is known to hold the journal.
    trouble: why it could not be written the last time, or what could not be read for it; or empty.
    """

    def __init__(
        self,
        journal: Journal,
        keep_bytes: int = KEEP_BYTES,
        open_archive: Callable[[], Disk] | None = None,
        pause: Callable[[], object] = lambda: None,
    ):
        self.keep_bytes = keep_bytes
        self.archives = open_archive is not None
        self.archived = 0
        self.trouble = ""
        self.ending = False
        self._journal = journal
        self._open_archive = open_archive
        self._archive: Disk | None = None
        self._pause = pause

    def advance(self, position: int, covered: int) -> None:
        """Archive the closed segments, and drop what nobody needs; in any thread, in one at a time. position: how many
        deliveries the application durably holds. covered: the journal offset of the last checkpoint.

        JournalError: a closed segment is damaged. OSError: of the journal's own disk.
        """
        journal = self._journal
        journal.seal(self._pause)
        limit = min(covered, journal.end - self.keep_bytes)
        if self._open_archive is not None:
            self._copy(self._open_archive)
            limit = min(limit, self.archived)
        journal.drop(position, limit)

    def _copy(self, open_archive: Callable[[], Disk]) -> None:
        """Copy every closed segment that the archive lacks, whatever it had before: it may have been made anew."""
        begin = self._journal.begin
        reached = min(self.archived, begin)
        try:
            if self._archive is None:
                self._archive = open_archive()
            there = set(self._archive.list())
            for name, end in self._journal.closed():
                if self.ending:
                    break
                if name not in there:
                    self._check(begin, end)
                    self._copy_one(self._archive, name)
                elif self._archive.size(name) != self._journal.disk.size(name):
                    raise OSError(f"{name} is in the archive, and it is not the same")
                begin = reached = end
        except (OSError, JournalError) as error:
            self.trouble = str(error)
            if isinstance(error, OSError):  # the directory may be another one by now, and what is renamed not synced
                self.close()
        else:
            self.trouble = ""
        self.archived = reached

    def _check(self, begin: int, end: int) -> None:
        """Read the records between these journal offsets. JournalError if they are not as they were written."""
        for number, _ in enumerate(self._journal.walk(begin, end)):
            if number % PAUSE_RECORDS == 0:
                self._pause()

    def _copy_one(self, archive: Disk, name: str) -> None:
        try:
            archive.replace(name, self._pieces(name))
        except OSError as error:
            raise OSError(f"{name} cannot be copied to the archive: {error}") from None

    def _pieces(self, name: str) -> Iterator[bytes]:
        disk = self._journal.disk
        for start in range(0, disk.size(name), READ_BYTES):
            yield disk.read(name, start, READ_BYTES)
            self._pause()

    def close(self) -> None:
        """Give the archive back."""
        if self._archive is not None:
            self._archive.close()
            self._archive = None
