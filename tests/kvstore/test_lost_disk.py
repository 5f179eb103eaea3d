"""A replica whose directory is gone: it does not start as a new one, but comes back when told so, under load."""

from __future__ import annotations

import http.client
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_sdk import Client
from kvstore import cluster, config
from kvstore.process import Handle
from kvstore.status import statuses
from tests.kvstore.live import Replica, answered, make_cluster, wait_until

SHARD = 3
FED = re.compile(r"being readmitted, which takes all others: [1-9]\d* deliveries so far$")


class Load:
    """A thread that writes key after key, through whichever replica answers. acknowledged: what was."""

    def __init__(self, replicas: list[Replica]):
        self.acknowledged: dict[str, bytes] = {}
        self._replicas = replicas
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            key, value = f"k{count}", str(count).encode()
            try:
                if self._replicas[count % len(self._replicas)]("PUT", f"/v1/kv/{key}", value).status == 200:
                    self.acknowledged[key] = value
            except (OSError, http.client.HTTPException):  # it dies, perhaps in the midst of an answer
                self._stop.wait(0.01)

    def wait_for(self, more: int) -> None:
        target = len(self.acknowledged) + more
        wait_until(lambda: len(self.acknowledged) >= target)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Of a cluster that is down after the test."""
    yield tmp_path
    for replica in config.load(tmp_path).replicas:
        handle = Handle.of(config.replica_directory(tmp_path, replica.id))
        if handle is not None:
            handle.send(signal.SIGKILL)
            assert handle.wait(60)
            handle.close()


def refusal(directory: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "kvstore", "serve", "--dir", str(directory), "--replica", "1", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return line


def has_acknowledged(replica: Replica, peer: int) -> bool:
    """Whether this peer has said of all that was sent to it that it is on its disk, and how long its journal is now."""
    status = replica("GET", "/v1/cluster").json["replica"]
    return bool(status["peers"][str(peer)]["queued"] == 0)


def role_of(replica: Replica) -> str:
    """Empty where it says nothing yet."""
    try:
        return str(replica("GET", "/v1/cluster").json["replica"]["role"])
    except OSError:
        return ""


def kill(started: cluster.Started) -> None:
    started.process.kill()
    started.process.wait()


def test_a_replica_comes_back_without_its_disk(directory: Path) -> None:
    """One is killed and loses everything; it comes back under load. Then another dies, and nothing acknowledged is
    lost."""
    made = make_cluster(directory, 1, SHARD, "white_box")
    said: list[str] = []
    started = cluster.up(directory, said.append)
    load = Load([Replica(r.host, r.http_port) for r in made.replicas])
    try:
        load.wait_for(100)
        kill(started[1])
        shutil.rmtree(config.replica_directory(directory, 1))
        assert "--lost-disk" in refusal(directory)
        load.wait_for(20)
        back = Replica(made.replica(1).host, made.replica(1).http_port)
        started[2].process.send_signal(signal.SIGSTOP)  # without its answer nobody is readmitted
        try:
            started[1] = cluster.start(directory, made, made.replica(1), lost_disk=True)
            wait_until(lambda: role_of(back) == "rejoining")
            wait_until(lambda: FED.search(cluster.why_not_ready(made.replica(1))) is not None)
        finally:
            started[2].process.send_signal(signal.SIGCONT)
        wait_until(lambda: statuses(directory)[1].state == "ready")
        load.wait_for(20)
        kill(started[0])
        load.wait_for(20)
    finally:
        load.stop()
    wait_until(lambda: [line.state for line in statuses(directory)] == ["down", "ready", "ready"])
    for key, value in load.acknowledged.items():
        assert answered(lambda key=key: back("GET", f"/v1/kv/{key}")).body == value, key
    cluster.stop_started(directory, started, said.append)
    assert "holds a journal or data" in refusal(directory, "--lost-disk")
    started = cluster.up(directory, said.append)
    cluster.stop_started(directory, started, said.append)


def test_an_empty_journal_of_a_replica_that_has_run_is_refused_with_its_state_and_without(directory: Path) -> None:
    made = make_cluster(directory, 1, SHARD, "white_box")
    said: list[str] = []
    started = cluster.up(directory, said.append)
    urls = [replica.url for replica in made.replicas]
    with Client(urls, timeout=60) as store:
        store.put("key", "value")
    cluster.stop_started(directory, started, said.append)
    home = config.replica_directory(directory, 1)
    shutil.rmtree(home / "journal")
    assert "journal is empty: " in refusal(directory)
    shutil.rmtree(home / "data")
    assert "journal is empty: " in refusal(directory)


def test_an_old_copy_of_a_disk_is_refused_by_those_who_know_more(directory: Path) -> None:
    made = make_cluster(directory, 1, SHARD, "white_box")
    said: list[str] = []
    started = cluster.up(directory, said.append)
    home, copy = config.replica_directory(directory, 1), directory / "copy"
    try:
        kill(started[1])
        shutil.copytree(home, copy)
        started[1] = cluster.up(directory, said.append)[0]
        replica = Replica(made.replica(0).host, made.replica(0).http_port)
        for number in range(5):
            wait_until(lambda number=number: replica("PUT", f"/v1/kv/k{number}", b"x").status == 200)
        wait_until(lambda: statuses(directory)[1].position == statuses(directory)[0].position)
        others = [Replica(made.replica(other).host, made.replica(other).http_port) for other in (0, 2)]
        wait_until(lambda: all(has_acknowledged(other, 1) for other in others))
        kill(started[1])
        shutil.rmtree(home)
        copy.rename(home)
        told = refusal(directory)
        assert "is an old copy" in told and "--lost-disk" in told
        wait_until(lambda: replica("PUT", "/v1/kv/after", b"x").status == 200)  # perhaps it led
    finally:
        cluster.down(directory, said.append)
        for one in started:
            one.process.wait()
