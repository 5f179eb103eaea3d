"""Who may change a cluster's `cluster.json`, and when: one operator's command at a time on a machine; and nobody
overwrites what it has not read.

A command that adds, removes, replaces or restarts takes long; it holds a lock (flock) on a file beside `cluster.json`
until it is done, and the kernel takes the lock back however its process ends. So does one that moves slots, on a file
of its own, for meanwhile a replica may have to be replaced; of two moves of one shard each step would begin the other
one anew. Replicas write the file, too, when they are told of another replica; so every writer checks that the file
still says what it said when it was read, under a second lock that is held for that moment only. Neither lock protects
against a command on another machine, which has a `cluster.json` of its own; there the shard decides, which takes one
change at a time.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvstore.config import CLUSTER_FILE, ClusterConfig, ConfigError, give, load, save

COMMAND_LOCK, MOVE_LOCK, FILE_LOCK = ".changing", ".moving", ".cluster.json.lock"


@contextmanager
def alone(directory: Path, lock: str = COMMAND_LOCK) -> Iterator[None]:
    """For a command that changes the cluster, or with MOVE_LOCK moves slots. ConfigError: another one does, or there is
    no such directory."""
    try:
        file = _open(directory, lock)
    except FileNotFoundError as error:
        raise ConfigError(f"{directory}: {error.strerror}") from None
    except OSError as error:
        raise ConfigError(f"{directory / lock}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(file, 20, 0).decode(errors="replace").strip()
            raise ConfigError(
                f"{directory}: another command{f' (process {other})' if other else ''} is changing this cluster: wait"
                " until it is done, then give this one again; nothing was changed"
            ) from None
        os.ftruncate(file, 0)
        with suppress(OSError):  # a full disk, say: it is only for the error of others
            os.pwrite(file, b"%d\n" % os.getpid(), 0)
        yield
        os.ftruncate(file, 0)
    finally:
        os.close(file)


def _open(directory: Path, lock: str) -> int:
    """The file of a lock, which the replicas' user may have to open after root has. He is given only what was made
    here: in his directory there may be links to files that are not his. OSError."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        file = os.open(directory / lock, flags | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return os.open(directory / lock, flags)
    give(file, os.stat(directory))
    return file


def update(
    directory: Path, change: Callable[[ClusterConfig], ClusterConfig], first: ClusterConfig | None = None
) -> ClusterConfig:
    """Write what `change` makes of what `cluster.json` says now, and return that. first: where there is none yet, of
    this. ConfigError."""
    file = _open(directory, FILE_LOCK)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        now = first if first is not None and not (directory / CLUSTER_FILE).exists() else load(directory)
        after = change(now)
        save(directory, after)
        return after
    finally:
        os.close(file)


def replace(directory: Path, before: ClusterConfig, after: ClusterConfig) -> None:
    """Write `after`, if `cluster.json` still says `before`. ConfigError: it does not."""

    def checked(now: ClusterConfig) -> ClusterConfig:
        if now != before:
            raise ConfigError(
                f"{directory / CLUSTER_FILE} has been changed since this command read it: look at what it says now, and"
                " give the command again"
            )
        return after

    update(directory, checked)
