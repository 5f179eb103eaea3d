"""Clusters of the store that are started for a while, in temporary directories."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from workloads.ports import free_base_port

UP_SECONDS = 90.0
DOWN_SECONDS = 60.0
START_SECONDS = 6.0
"""About what starting, filling and stopping a cluster takes."""


class ClusterFailed(Exception):
    """A cluster did not start or stop; one line."""


@contextlib.contextmanager
def fresh_cluster(protocol: str, shards: int, replicas: int) -> Iterator[Path]:
    """A running cluster in a temporary directory; stopped and removed at the end, also on SIGINT and SIGTERM.

    ClusterFailed says why it did not start.
    """
    with tempfile.TemporaryDirectory(prefix=f"kvstore-bench-{protocol}-") as text:
        directory = Path(text) / "cluster"
        run_kvstore(
            UP_SECONDS, "cluster", "init", str(directory), "--shards", str(shards), "--replicas", str(replicas),
            "--protocol", protocol, "--base-port", str(free_base_port(shards * replicas)),
        )  # fmt: skip
        try:
            run_kvstore(UP_SECONDS, "cluster", "up", str(directory), "--detach")
            yield directory
        except BaseException:
            with contextlib.suppress(ClusterFailed):  # the first failure is the one to tell
                _stop(directory)
            raise
        _stop(directory)


def _stop(directory: Path) -> None:
    """Stop its replicas. Once more if it fails: a machine that stands still makes it seem to hang."""
    with uninterrupted():
        try:
            run_kvstore(DOWN_SECONDS, "cluster", "down", str(directory))
        except ClusterFailed:
            run_kvstore(DOWN_SECONDS, "cluster", "down", str(directory))


def run_kvstore(limit: float, *arguments: str) -> None:
    """Run `kvstore ...`. In a session of its own: an interruption reaches this process, which then ends the other."""
    command = (sys.executable, "-m", "kvstore", *arguments)
    process: subprocess.Popen[str] | None = None
    try:
        with uninterrupted():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        _, said = process.communicate(timeout=limit)
    except BaseException as error:
        if process is not None:
            process.terminate()  # it stops what it has started
            process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise ClusterFailed(f"kvstore {' '.join(arguments[:2])}: not done within {limit:g} s") from None
        raise
    if process.returncode != 0:
        lines = said.strip().splitlines() or [f"exit status {process.returncode}"]
        raise ClusterFailed(f"kvstore {' '.join(arguments[:2])}: {lines[-1].removeprefix('error: ')[:300]}")


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Interruptions wait until the block ends: a process that is being started must be known before it can be stopped,
    and stopping is not to be cut short by a second Ctrl-C."""
    waiting: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: waiting.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[0])


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
