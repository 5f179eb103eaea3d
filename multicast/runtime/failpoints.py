"""Faults on demand, for tests of a replica as a process: what its clock shows, what its disk does, where it dies.

A file of JSON, `Faults`, says what is wrong at the moment. It is read again whenever it has been replaced, so whoever
tests a running process changes it by renaming another file over it. No file: nothing is wrong.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from multicast.runtime.clock import wall_us
from multicast.runtime.disk import FileDisk

APPENDED, SYNCED, MARKED, SENT, COMMITTING, COMMITTED = POINTS = (
    "appended", "synced", "marked", "sent", "committing", "committed",
)  # fmt: skip
"""Where a process can be killed: a batch is written to the journal; it is synced; the mark says so, and nothing that
waited for it has left; all of that has left; a commit of the state is about to be written; it is on disk, and the
process does not know."""


_LOG = 2
"""Standard error."""


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """clock_ahead_ms: by so much the wall clock is ahead. sync_ms, commit_ms: so much longer a sync of the journal, a
    commit of the state takes. sync_fails, commit_fails: with an error of the device. free_bytes: what is left on the
    disk, the log's too; None: what there is. kill: die by SIGKILL at this one of POINTS, when it is reached for the
    `kill_at`th time from now on."""

    clock_ahead_ms: int = 0
    sync_ms: int = 0
    sync_fails: bool = False
    commit_ms: int = 0
    commit_fails: bool = False
    free_bytes: int | None = None
    kill: str = ""
    kill_at: int = 1


class Failpoints:
    """What is wrong now, by the file at `path`."""

    def __init__(self, path: Path):
        self._path = path
        self._reading = threading.Lock()
        self._read_of: tuple[int, int] | None = None
        self._faults = Faults()
        self._reached = 0
        self._written = 0
        self._standard_error = -1

    @property
    def faults(self) -> Faults:
        """ValueError if the file is not one of faults."""
        found: tuple[int, int] | None = None
        with contextlib.suppress(FileNotFoundError):
            stat = self._path.stat()
            found = stat.st_ino, stat.st_mtime_ns
        if found != self._read_of:
            with self._reading:
                self._faults = msgspec.json.decode(self._path.read_bytes(), type=Faults) if found else Faults()
                self._read_of, self._reached, self._written = found, 0, 0
                self._fill_log(self._faults.free_bytes is not None)
        return self._faults

    def wall(self) -> int:
        """The wall clock, microseconds since 1970."""
        return wall_us() + self.faults.clock_ahead_ms * 1000

    def reached(self, point: str) -> None:
        """One of POINTS: does not return if the process is to die here."""
        faults = self.faults
        if faults.kill == point:
            self._reached += 1
            if self._reached >= faults.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def free_bytes(self, there: int) -> int:
        """Of the `there` bytes that the disk has left, those that may be used."""
        free = self.faults.free_bytes
        return there if free is None else min(there, max(0, free - self._written))

    def write(self, size: int) -> None:
        """OSError if so much does not fit any more."""
        free = self.faults.free_bytes
        if free is not None and self._written + size > free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._written += size

    def wait(self, milliseconds: int, fails: bool) -> None:
        """A sync of the device: it takes so much longer, and fails or not."""
        time.sleep(milliseconds / 1000)
        if fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _fill_log(self, full: bool) -> None:
        """Have the log's file, which is standard error, on a full disk, or no longer."""
        if full and self._standard_error < 0:
            self._standard_error = os.dup(_LOG)
            device = os.open("/dev/full", os.O_WRONLY)
            os.dup2(device, _LOG)
            os.close(device)
        elif not full and self._standard_error >= 0:
            os.dup2(self._standard_error, _LOG)
            os.close(self._standard_error)
            self._standard_error = -1


class FailingDisk:
    """A journal's disk with these faults."""

    def __init__(self, disk: FileDisk, failpoints: Failpoints):
        self._disk = disk
        self._failpoints = failpoints
        self.list, self.size, self.read = disk.list, disk.size, disk.read
        self.truncate, self.remove, self.close = disk.truncate, disk.remove, disk.close

    def free_bytes(self) -> int:
        """So much room seems to be left."""
        return self._failpoints.free_bytes(self._disk.free_bytes())

    def append(self, name: str, data: bytes) -> None:
        self._failpoints.write(len(data))
        self._disk.append(name, data)
        self._failpoints.reached(APPENDED)

    def sync(self, name: str) -> None:
        faults = self._failpoints.faults
        self._failpoints.wait(faults.sync_ms, faults.sync_fails)
        self._disk.sync(name)
        self._failpoints.reached(SYNCED)

    def replace(self, name: str, pieces: Iterable[bytes]) -> None:
        faults = self._failpoints.faults
        data = b"".join(pieces)
        self._failpoints.write(len(data))
        self._failpoints.wait(faults.sync_ms, faults.sync_fails)
        self._disk.replace(name, (data,))

    def write_small(self, name: str, data: bytes) -> None:
        self._disk.write_small(name, data)
        self._failpoints.reached(MARKED)
