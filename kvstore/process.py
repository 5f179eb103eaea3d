"""Processes of replicas: who runs, who holds a port, how one is asked to end. Linux.

A running replica holds a lock (flock) on its pid file for as long as it lives; the kernel takes it back however the
process ends. So a pid file without a lock is stale, whatever process may have that number now.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import ipaddress
import os
import select
import signal
import socket
import time
from pathlib import Path

PID_FILE = "pid"
LOCK_TRIES = 20
LOCK_PAUSE_SECONDS = 0.05
HEAP_BLOCK_BYTES = 512 * 1024
"""More than asyncio reads at once (256 KiB), which would cost a map each time; less than what is read of a segment."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""malloc.h"""


class AlreadyRunning(Exception):
    """Another process runs this replica."""


class ReplicaLock:
    """Held by the process that runs the replica in `home`. AlreadyRunning if another one holds it."""

    def __init__(self, home: Path):
        self._path = home / PID_FILE
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        for attempt in range(LOCK_TRIES):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt:  # `running` looks by taking the lock for an instant: ask again before giving up
                    time.sleep(LOCK_PAUSE_SECONDS)
        else:
            pid = _read_pid(self._path)
            os.close(self._file)
            raise AlreadyRunning(f"{home} is in use by process {pid or '(unknown)'}")
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Empty the pid file and give the lock back."""
        os.ftruncate(self._file, 0)
        os.close(self._file)


def _read_pid(path: Path) -> int | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    return int(text) if text.strip().isdigit() else None


def running(home: Path) -> int | None:
    """The pid of the process that runs the replica in `home`; None if none does."""
    path = home / PID_FILE
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_pid(path)
    finally:
        os.close(file)
    return None


class Handle:
    """A running replica's process, safe against the reuse of its number (pidfd). None from `of` if none runs."""

    def __init__(self, pid: int, descriptor: int):
        self.pid = pid
        self._descriptor = descriptor

    @classmethod
    def of(cls, home: Path) -> Handle | None:
        pid = running(home)
        if pid is None:
            return None
        try:
            handle = cls(pid, os.pidfd_open(pid))
        except ProcessLookupError:
            return None
        if running(home) != pid:  # it ended in between, and the descriptor may be somebody else's
            handle.close()
            return None
        return handle

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after at most so long."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(max(0, int(seconds * 1000))))

    def end(self, seconds: float) -> None:
        """SIGTERM, and SIGKILL if it has not ended after so long: it may stand still."""
        self.send(signal.SIGTERM)
        if not self.wait(seconds):
            self.send(signal.SIGKILL)
            self.wait(seconds)

    def close(self) -> None:
        os.close(self._descriptor)


def port_user(host: str, port: int) -> str:
    """Who listens there, for an error message: `process 123 (python3 -m http.server)`, or `another process`."""
    inodes = _listening_inodes(port)
    for pid in os.listdir("/proc") if inodes else ():
        if not pid.isdigit():
            continue
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{descriptor}") in inodes:
                        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                        return f"process {pid} ({line.strip()[:100]})"
    return "another process"


def _listening_inodes(port: int) -> set[str]:
    """Sockets in state LISTEN (0A) on this port, as /proc names them."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{fields[9]}]")
    return found


def is_loopback(host: str) -> bool:
    """Whether who listens there listens for this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_here(host: str) -> bool:
    """Whether this machine has the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            return not (error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror))
    return True


class PortBusy(Exception):
    """Somebody else listens on a port that we need."""


def check_port(host: str, port: int, what: str) -> None:
    """PortBusy, naming the port and who has it, if it cannot be bound now. OSError for an address that is not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortBusy(f"{what} {port} on {host} is in use by {port_user(host, port)}") from None
            raise OSError(error.errno, f"{what} {port} on {host}: {error.strerror}") from None


def keep_heap_compact() -> None:
    """Have glibc map blocks of HEAP_BLOCK_BYTES and more, each by itself, whatever was freed before (mallopt(3)). By
    default it raises that mark to the size of each one that is freed, and then the heap grows for hours, with holes of
    large buffers between what stays. And there is one heap, not one for each thread: threads work now and then, one or
    the other, and each would keep what the largest work took. Other libraries need not know of it."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, HEAP_BLOCK_BYTES)
        ctypes.CDLL(None).mallopt(_M_TRIM_THRESHOLD, 2 * HEAP_BLOCK_BYTES)  # it would follow the mark
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
