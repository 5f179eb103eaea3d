"""A replica as a process, killed at each named point, and with devices that fail: nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kvstore import config, identity
from multicast.runtime.failpoints import COMMITTED, COMMITTING, POINTS, Faults
from tests.kvstore.live import Replica, make_cluster, wait_until

KILLED = -9


class Process:
    """The one replica of a cluster, again and again."""

    def __init__(self, directory: Path):
        made = make_cluster(directory, 1, 1, "white_box", commit_interval_ms=50)
        self.directory = directory
        self.replica = Replica(made.replicas[0].host, made.replicas[0].http_port)
        self.log = directory / "log"
        self.running: subprocess.Popen[bytes] | None = None

    def fail(self, faults: Faults) -> None:
        beside = self.directory / "faults.new"
        beside.write_bytes(msgspec.json.encode(faults))
        os.replace(beside, self.directory / "faults")

    def start(self, stderr: int | None = None) -> None:
        command = [sys.executable, "-m", "kvstore", "serve", "--dir", str(self.directory), "--replica", "0"]
        with open(self.log, "ab") as log:
            self.running = subprocess.Popen(
                [*command, "--failpoints", str(self.directory / "faults")], stdout=log, stderr=stderr or log
            )
        wait_until(self._ready)

    def _ready(self) -> bool:
        assert self.running is not None and self.running.poll() is None, self.log.read_text()
        try:
            return self.replica("GET", "/readyz").status == 200
        except OSError:
            return False

    def add(self) -> bool:
        """Whether one more was acknowledged."""
        operation = {"op": "add", "key": "count", "delta": 1}
        try:
            return self.replica.txn({"success": [operation]}).status == 200
        except (OSError, http.client.HTTPException):
            return False

    def end(self) -> int:
        """Wait until it has ended by itself; its exit status."""
        assert self.running is not None
        return self.running.wait(60)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path)
    yield process
    if process.running is not None:
        process.running.kill()
        process.running.wait()


def test_killed_at_each_point_it_has_what_it_acknowledged(process: Process) -> None:
    acknowledged = attempted = 0
    process.start()
    for point in POINTS:
        process.fail(Faults(kill=point, kill_at=2 if point in (COMMITTING, COMMITTED) else 20))
        assert process.running is not None
        while process.running.poll() is None:
            attempted += 1
            acknowledged += process.add()
        assert process.running.returncode == KILLED
        process.fail(Faults())
        process.start()
        counted = int(process.replica("GET", "/v1/kv/count").body)
        assert acknowledged <= counted <= attempted, point
        acknowledged = attempted = counted


@pytest.mark.parametrize("faults", [Faults(sync_fails=True), Faults(commit_fails=True)], ids=["journal", "state"])
def test_a_failing_sync_ends_the_process_though_its_log_cannot_be_written(process: Process, faults: Faults) -> None:
    process.start()
    assert process.add()
    process.fail(msgspec.structs.replace(faults, free_bytes=1 << 30))  # on a full disk, as far as the log goes
    process.add()
    assert process.end() == 1


def test_a_log_that_nobody_reads_keeps_nobody_from_serving_and_from_ending(process: Process) -> None:
    """A pipe that is full: whatever is written to it waits for ever."""
    reader, writer = os.pipe()
    process.start(writer)
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x")
    os.set_blocking(writer, True)
    process.fail(Faults(sync_ms=1100))
    assert process.add()  # a slow request, which is logged
    process.fail(Faults())
    assert process.add()
    process.fail(Faults(sync_fails=True))
    process.add()
    assert process.end() == 1
    os.close(reader)
    os.close(writer)


def test_who_does_not_want_to_wait_for_a_disk_that_hangs_says_it_twice(process: Process) -> None:
    process.start()
    process.fail(Faults(sync_ms=10))  # so that the loop does not wait for the next one itself
    assert process.add() and process.running is not None
    process.fail(Faults(sync_ms=30_000))
    waiting = threading.Thread(target=process.add)
    waiting.start()
    wait_until(lambda: process.replica("GET", "/readyz").status == 503)
    process.running.send_signal(signal.SIGINT)
    wait_until(lambda: b'"stopping"' in process.log.read_bytes())
    assert process.running.poll() is None
    process.running.send_signal(signal.SIGINT)
    assert process.end() == -signal.SIGINT
    waiting.join()


def test_failpoints_are_for_loopback_only(tmp_path: Path) -> None:
    identity.create(tmp_path, config.new_cluster(
        shards=1, replicas=1, protocol="white_box", cluster_id="0" * 32, host="192.0.2.1"
    ))  # fmt: skip
    command = [sys.executable, "-m", "kvstore", "serve", "--dir", str(tmp_path), "--replica", "0"]
    command += ["--insecure", "--failpoints", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, "must be on a loopback address" in done.stderr) == (1, True)
