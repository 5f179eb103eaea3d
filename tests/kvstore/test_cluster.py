"""Processes of a cluster: start, kill, start again, stop; and everything that may be in the way."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from kvstore import cluster, config, identity
from kvstore.api.shard_map import ShardMap
from kvstore.cluster import ClusterError
from kvstore.cluster_cli import cluster_status
from kvstore.config import ConfigError
from kvstore.process import AlreadyRunning, Handle, ReplicaLock, check_port, running
from kvstore.status import statuses
from tests.kvstore.live import Replica, answered, leader_of, make_cluster, wait_until

SERVE_SECONDS = 90
HOLD = """
import pathlib, sys, time
from kvstore.process import ReplicaLock
lock = ReplicaLock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def stopped_afterwards(tmp_path: Path) -> Iterator[Path]:
    """A directory whose cluster is down after the test, come what may."""
    yield tmp_path
    with contextlib.suppress(ConfigError):
        for replica in config.load(tmp_path).replicas:
            handle = Handle.of(config.replica_directory(tmp_path, replica.id))
            if handle is not None:
                handle.send(signal.SIGKILL)
                assert handle.wait(60)
                handle.close()


def http(made: config.ClusterConfig, replica_id: int) -> Replica:
    replica = made.replica(replica_id)
    return Replica(replica.host, replica.http_port)


def reap(*started: cluster.Started) -> None:
    """Children that were stopped otherwise: collect them."""
    for one in started:
        one.process.wait()


def serve(directory: Path, replica_id: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a replica that is expected to refuse to start."""
    command = [sys.executable, "-m", "kvstore", "serve", "--dir", str(directory), "--replica", str(replica_id)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SERVE_SECONDS, check=False)


def refusal(ran: subprocess.CompletedProcess[str]) -> str:
    """The one line of a replica that refused to start."""
    errors = [line for line in ran.stderr.splitlines() if line.startswith("error: ")]
    assert ran.returncode == 1 and len(errors) == 1 and "Traceback" not in ran.stderr, ran.stderr
    return errors[0]


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ([f"this replica fetches a snapshot from replica 1: {rows} of 9 rows" for rows in range(9)], ""),
        (["this replica fetches a snapshot from replica 1: 5 of 9 rows"] * 9, "after 60 s: .*: 5 of 9 rows"),
        ([f"this replica is new and fetches what its shard has: {n} deliveries so far" for n in range(9)], ""),
        ([f"this replica is being readmitted: {n} deliveries so far" for n in range(9)], "after 60 s"),
        ([f"shard 0 has had no leader for {seconds}.0 s" for seconds in range(9)], "after 60 s: shard 0 has had no"),
    ],
)
def test_who_fetches_what_its_shard_has_is_waited_for_as_long_as_that_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: list[str], problem: str
) -> None:
    """By a clock of half a minute for each look; and nobody else for longer than a minute."""
    made, looks, problems = make_cluster(tmp_path, 1, 3, "white_box"), iter([*says, ""]), list[str]()
    now = 0.0

    def pause(_: float) -> None:
        nonlocal now
        now += 31.0

    monkeypatch.setattr(cluster, "running", lambda home: 7 if home.name == "0" else None)
    monkeypatch.setattr(cluster, "why_not_ready", lambda _: next(looks))
    monkeypatch.setattr(cluster.time, "monotonic", lambda: now)
    monkeypatch.setattr(cluster.time, "sleep", pause)
    alone = msgspec.structs.replace(made, replicas=made.replicas[:1])
    assert cluster.wait_ready(tmp_path, alone, [], problems, str) == []
    assert len(problems) == bool(problem) and re.search(problem, "".join(problems))


def test_a_killed_replica_comes_back_and_nothing_acknowledged_is_lost(
    stopped_afterwards: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = stopped_afterwards
    made = make_cluster(directory, 1, 3, "white_box")
    started = cluster.up(directory, said.append)
    assert len(started) == 3
    wait_until(lambda: [line.state for line in statuses(directory)] == ["ready"] * 3)
    for i in range(20):
        assert answered(lambda i=i: http(made, i % 3)("PUT", f"/v1/kv/k{i}", b"%d" % i)).status == 200

    leader = statuses(directory)[leader_of(http(made, 0), 0)]
    assert leader.pid is not None
    os.kill(leader.pid, signal.SIGKILL)
    wait_until(lambda: running(config.replica_directory(directory, leader.id)) is None)
    assert statuses(directory)[leader.id].state == "down"
    other = http(made, (leader.id + 1) % 3)
    wait_until(lambda: other("PUT", "/v1/kv/after", b"x").status == 200)
    rest = [line.id for line in statuses(directory) if line.id != leader.id]
    with pytest.raises(ClusterError, match=f"replica {rest[0]} stays as it is: replica .* is not ready"):
        cluster.restart(directory, said.append, only=rest)

    (again,) = cluster.up(directory, said.append)
    assert again.replica.id == leader.id
    back = http(made, leader.id)
    for i in range(20):
        assert answered(lambda i=i: back("GET", f"/v1/kv/k{i}")).body == b"%d" % i
    assert answered(lambda: back("GET", "/v1/kv/after")).body == b"x"

    monkeypatch.setattr(cluster, "HTTP_SECONDS", 60.0)  # so long the others may take to be ready
    before = {line.id: line.pid for line in statuses(directory)}
    (anew,) = cluster.restart(directory, said.append, only=[rest[0]])
    changed = [line.id for line in statuses(directory) if line.pid != before[line.id]]
    assert changed == [anew.replica.id] == [rest[0]]
    said.clear()
    assert cluster.down(directory, said.append) is True
    reap(*started, again, anew)
    assert [line.state for line in statuses(directory)] == ["down"] * 3
    assert sum("stopped" in line for line in said) == 3
    assert cluster.down(directory, said.append) is True and said[-1] == "no replica is running"


def test_a_stopped_replica_leaves_an_up_to_date_lmdb(stopped_afterwards: Path, said: list[str]) -> None:
    directory = stopped_afterwards
    made = make_cluster(directory, 1, 1, "skeen")
    for life in range(2):
        started = cluster.up(directory, said.append)
        assert http(made, 0)("PUT", f"/v1/kv/k{life}", b"x").status == 200
        position = statuses(directory)[0].position
        assert cluster.down(directory, said.append) is True
        reap(*started)
    log = (directory / "replicas" / "0" / "log").read_text()
    recovered = [line for line in log.splitlines() if '"event": "recovered"' in line]
    assert position == 2 and '"from_lmdb": 1' in recovered[1] and '"position": 1' in recovered[1]


@pytest.mark.parametrize(("text", "problem"), [(None, "does not exist"), ("{", "cluster.json: ")])
def test_replicas_are_stopped_though_nobody_can_read_what_they_belong_to(
    stopped_afterwards: Path, said: list[str], text: str | None, problem: str
) -> None:
    """Their pid files say who they are; a stale one names nobody, and neither does another directory beside them."""
    directory = stopped_afterwards
    made = make_cluster(directory, 1, 3, "white_box")
    (directory / "replicas" / "other").mkdir()
    file = directory / config.CLUSTER_FILE
    homes = [config.replica_directory(directory, replica.id) for replica in made.replicas]
    with subprocess.Popen([sys.executable, "-c", HOLD, str(homes[1])], stdout=subprocess.PIPE) as held:
        assert held.stdout is not None and held.stdout.readline() == b"held\n"
        (homes[0] / "pid").write_text(f"{os.getpid()}\n")
        whole = file.read_bytes()
        file.unlink() if text is None else file.write_text(text)
        try:
            assert cluster.down(directory, said.append)
        finally:
            held.kill()
            file.write_bytes(whole)
    assert problem in said[0] and said[1:] == [f"replica 1 (process {held.pid}) stopped"]
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        cluster.down(directory, said.append)


def test_where_a_file_lies_in_the_place_of_a_directory_no_replica_runs(tmp_path: Path) -> None:
    """And the commands about the others go on."""
    make_cluster(tmp_path, 1, 3, "white_box")
    home = config.replica_directory(tmp_path, 1)
    shutil.rmtree(home)
    home.write_text("")
    assert [line.state for line in statuses(tmp_path)] == ["down"] * 3
    assert cluster.down(tmp_path, lambda _: None)


def test_status_says_why_a_replica_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_cluster(tmp_path, 1, 1, "skeen")
    told = {"ready": False, "role": "leader", "position": 7, "disk_free_bytes": 48 << 20}
    answers = {
        "/v1/cluster": (200, {"cluster_id": made.cluster_id, "self": 0, "replica": told}),
        "/readyz": (503, {"code": "not_ready", "detail": "its disk is full"}),
    }

    def fetch(url: str) -> tuple[int, bytes]:
        status, answer = answers[url.removeprefix(made.replica(0).url)]
        return status, json.dumps(answer).encode()

    monkeypatch.setattr("kvstore.status.fetch", fetch)
    assert cluster_status(str(tmp_path)) == 1
    printed = capsys.readouterr()
    assert " 48M " in printed.out and printed.err == "replica 0 is not ready: its disk is full\n"
    monkeypatch.setattr("kvstore.status.running", lambda _: 7)
    monkeypatch.setattr("kvstore.status.fetch", Mock(side_effect=OSError("its certificate is not trusted")))
    assert cluster_status(str(tmp_path)) == 1
    assert capsys.readouterr().err == "replica 0 is not answering: its certificate is not trusted\n"
    monkeypatch.setattr("kvstore.status.fetch", Mock(return_value=(200, b"<html>")))
    assert cluster_status(str(tmp_path)) == 1
    assert capsys.readouterr().err.startswith("replica 0 is not answering: it is no replica of this cluster that")
    monkeypatch.setattr("kvstore.status.running", lambda _: None)
    assert cluster_status(str(tmp_path)) == 1 and capsys.readouterr().err == ""


def test_of_a_replica_whose_log_is_gone_the_exit_status_is_told(tmp_path: Path) -> None:
    with subprocess.Popen(["sh", "-c", "exit 3"]) as process:
        process.wait()
    made = make_cluster(tmp_path, 1, 1, "skeen")
    assert cluster.Started(made.replicas[0], process, tmp_path / "absent", 0).last_words().startswith("exit status 3, ")


def test_a_replica_that_was_removed_while_the_command_was_killed_says_so(tmp_path: Path) -> None:
    """Its shard knows, `cluster.json` does not, and its last line is that it has stopped."""
    made, log = make_cluster(tmp_path, 1, 1, "white_box"), tmp_path / "log"
    lines = [{"event": identity.REMOVED.format(0), "level": "info"}, {"replica": 0, "event": "stopped"}]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert "`kvstore cluster remove-replica`" in cluster.Started(made.replicas[0], process, log, 0).last_words()


def test_a_log_that_has_become_large_is_put_aside_at_the_next_start(
    stopped_afterwards: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_cluster(stopped_afterwards, 1, 1, "skeen")
    log = config.replica_directory(stopped_afterwards, 0) / cluster.LOG_FILE
    aside = log.with_name("log.1")
    monkeypatch.setattr(cluster, "LOG_BYTES_MAX", 4000)
    for size, goes in ((10, False), (5000, True), (6000, True)):
        log.write_bytes(b"x" * size)
        started = cluster.up(stopped_afterwards, said.append)
        assert log.read_bytes().startswith(b"x" * size) is not goes and started[0].last_words()
        assert (aside.stat().st_size if aside.exists() else 0) == (size if goes else 0)
        cluster.down(stopped_afterwards, said.append)
        reap(*started)


def test_foreground_stops_what_it_started(stopped_afterwards: Path) -> None:
    directory = stopped_afterwards
    make_cluster(directory, 1, 1, "skeen")
    command = [sys.executable, "-m", "kvstore", "cluster", "up", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        assert "is ready" in lines[0] and "Ctrl-C" in lines[1]
        pid = running(directory / "replicas" / "0")
        process.send_signal(signal.SIGINT)
        assert process.wait(SERVE_SECONDS) == 0
    assert pid is not None and running(directory / "replicas" / "0") is None


def test_a_change_goes_on_though_nobody_reads_what_it_says(stopped_afterwards: Path) -> None:
    """`kvstore cluster up DIR --detach | grep -q ready` starts a cluster, and does not stop it again."""
    make_cluster(stopped_afterwards, 1, 1, "skeen")
    for command in (["up", "--detach"], ["restart"]):
        reads, writes = os.pipe()
        os.close(reads)
        arguments = [sys.executable, "-m", "kvstore", "cluster", *command, str(stopped_afterwards)]
        subprocess.run(arguments, stdout=writes, timeout=SERVE_SECONDS, check=False)
        os.close(writes)
        assert statuses(stopped_afterwards)[0].state == "ready", command


def test_what_an_interrupted_restart_has_stopped_runs_again(stopped_afterwards: Path, said: list[str]) -> None:
    make_cluster(stopped_afterwards, 1, 1, "skeen")
    (one,) = cluster.up(stopped_afterwards, said.append)
    before = statuses(stopped_afterwards)[0].pid
    command = [sys.executable, "-m", "kvstore", "cluster", "restart", str(stopped_afterwards)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and "stopped" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(SERVE_SECONDS) == 130
    reap(one)
    wait_until(lambda: statuses(stopped_afterwards)[0].state == "ready")
    assert statuses(stopped_afterwards)[0].pid != before


def test_a_restart_ends_no_replica_that_would_refuse_to_start_again(
    stopped_afterwards: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_cluster(stopped_afterwards, 1, 1, "skeen")
    (one,) = cluster.up(stopped_afterwards, said.append)
    monkeypatch.setenv("KVSTORE_LIMITS_HISTORY_MS", "many")
    with pytest.raises(ConfigError, match="replica 0 stays as it is: KVSTORE_LIMITS_HISTORY_MS"):
        cluster.restart(stopped_afterwards, said.append)
    assert one.process.poll() is None and cluster.is_ready(made.replica(0))
    cluster.stop_started(stopped_afterwards, [one], said.append)


def test_two_processes_never_serve_one_replica(stopped_afterwards: Path, said: list[str]) -> None:
    directory = stopped_afterwards
    make_cluster(directory, 1, 1, "skeen")
    (one,) = cluster.up(directory, said.append)
    assert f"in use by process {one.process.pid}" in refusal(serve(directory))
    assert statuses(directory)[0].pid == one.process.pid
    (directory / config.CLUSTER_FILE).unlink()  # who has started it stops it all the same
    cluster.stop_started(directory, [one], said.append)
    assert one.process.returncode == 0


def test_a_stale_pid_file_is_nobody_even_if_the_number_lives(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text(f"{os.getpid()}\n")
    assert running(tmp_path) is None and Handle.of(tmp_path) is None
    lock = ReplicaLock(tmp_path)
    assert running(tmp_path) == os.getpid()
    with pytest.raises(AlreadyRunning, match=f"in use by process {os.getpid()}"):
        ReplicaLock(tmp_path)
    lock.release()
    assert running(tmp_path) is None


@pytest.mark.parametrize("kind", ["peer", "http"])
def test_a_busy_port_is_named_with_its_owner(stopped_afterwards: Path, said: list[str], kind: str) -> None:
    directory = stopped_afterwards
    replica = make_cluster(directory, 1, 1, "skeen").replica(0)
    port = replica.peer_port if kind == "peer" else replica.http_port
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(
            ClusterError, match=f"replica 0: .*port {port} on 127.0.0.1 is in use by process {os.getpid()} "
        ):
            cluster.up(directory, said.append)
        assert f"port {port} on 127.0.0.1 is in use by process {os.getpid()} (" in refusal(serve(directory))
    check_port("127.0.0.1", port, "port")
    assert statuses(directory)[0].state == "down"


def test_whatever_can_start_starts_and_the_rest_is_named(stopped_afterwards: Path) -> None:
    """One of three in a shard cannot, nor can the only one of another; the command says so and fails."""
    directory = stopped_afterwards
    made = make_cluster(directory, 1, 3, "white_box")
    identity = directory / "replicas" / "2" / "identity.json"
    identity.write_text(identity.read_text().replace(made.cluster_id, "0" * 32))
    command = [sys.executable, "-m", "kvstore", "cluster", "up", str(directory), "--detach"]
    with socket.create_server(("127.0.0.1", made.replica(1).peer_port)):
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SERVE_SECONDS, check=False)
    assert ran.returncode == 1
    for told in ("replica 1: peer port", "replica 2: ", "belongs to cluster 000", "replica 0 runs and is not ready"):
        assert told in ran.stderr
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SERVE_SECONDS, check=False)
    assert (ran.returncode, "replica 1: " in ran.stderr, "replica 2: " in ran.stderr) == (1, False, True)
    wait_until(lambda: [line.state for line in statuses(directory)] == ["ready", "ready", "down"])
    assert answered(lambda: http(made, 0)("PUT", "/v1/kv/k", b"x")).status == 200


def test_replicas_of_other_machines_are_left_to_them(stopped_afterwards: Path, said: list[str]) -> None:
    """192.0.2.1 is nobody's (RFC 5737)."""
    made = make_cluster(stopped_afterwards, 1, 3, "white_box")
    away = msgspec.structs.replace(made.replicas[2], host="192.0.2.1")
    config.save(stopped_afterwards, made.with_replica(away))
    started = cluster.up(stopped_afterwards, said.append)
    assert [one.replica.id for one in started] == [0, 1] and said[0] == "of other machines: replica 2 (192.0.2.1)"
    wait_until(lambda: [line.state for line in statuses(stopped_afterwards)] == ["ready", "ready", "not answering"])
    cluster.stop_started(stopped_afterwards, started, said.append)


@pytest.mark.parametrize("older", [False, True])
def test_whose_slots_were_moved_by_hand_is_refused(tmp_path: Path, older: bool) -> None:
    """What lies in the shards goes by where slots were at first. older: of a release that did not note that."""
    made = make_cluster(tmp_path, 2, 1, "white_box")
    by_hand = msgspec.structs.replace(made, shard_map=ShardMap.even([1, 0]).to_json())
    identity.claim(tmp_path, by_hand, 0)  # before the first start anything may be changed
    identity.claim(tmp_path, made, 0)
    home = config.replica_directory(tmp_path, 0)
    identity.mark_started(home)
    if older:
        noted = msgspec.structs.replace(identity.read(home), slots="")
        config.write_atomically(home / identity.IDENTITY_FILE, config.json_text(noted))
        identity.claim(tmp_path, made, 0)
    before = (home / identity.IDENTITY_FILE).read_bytes()
    with pytest.raises(ConfigError, match="began with another shard_map than"):
        identity.claim(tmp_path, by_hand, 0)
    assert identity.claim(tmp_path, made, 0) == home and (home / identity.IDENTITY_FILE).read_bytes() == before


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize(
    ("protocol", "change", "said"),
    [
        ("white_box", {"dedup_window_ms": 1000}, "dedup_window_ms = 120000, and .* dedup_window_ms = 1000:"),
        ("toto", {"protocol_options": {"phi": 2}}, "protocol_options.phi = '0', and .* protocol_options.phi = '2':"),
        ("quasi_genuine", {"protocol_options": {"senders": "0<0"}}, "protocol_options.senders = '', and .*'0<0':"),
    ],
)
def test_who_would_go_by_another_option_than_the_others_is_refused(
    tmp_path: Path, older: bool, protocol: str, change: dict[str, Any], said: str
) -> None:
    """It would call writes too late that others have applied, and read without them (linearizable reads, too), or order
    otherwise. older: of a release that did not note it."""
    made = make_cluster(tmp_path, 1, 3, protocol)
    shorter = msgspec.structs.replace(made, **change)
    identity.claim(tmp_path, shorter, 0)  # before the first start anything may be changed
    identity.claim(tmp_path, made, 0)
    home = config.replica_directory(tmp_path, 0)
    identity.mark_started(home)
    if older:
        noted = msgspec.structs.replace(identity.read(home), alike={})
        config.write_atomically(home / identity.IDENTITY_FILE, config.json_text(noted))
        identity.claim(tmp_path, made, 0)
    before = (home / identity.IDENTITY_FILE).read_bytes()
    with pytest.raises(ConfigError, match=f"began with {said}"):
        identity.claim(tmp_path, shorter, 0)
    assert identity.claim(tmp_path, made, 0) == home and (home / identity.IDENTITY_FILE).read_bytes() == before


def test_the_directory_of_another_cluster_is_refused_untouched(stopped_afterwards: Path, said: list[str]) -> None:
    directory = stopped_afterwards
    made = make_cluster(directory, 1, 1, "skeen")
    started = cluster.up(directory, said.append)
    assert http(made, 0)("PUT", "/v1/kv/k", b"x").status == 200
    cluster.stop_started(directory, started, said.append)
    home = directory / "replicas" / "0"
    before = {p: p.read_bytes() for p in home.rglob("*") if p.is_file() and p.name != "lock.mdb"}
    (directory / config.CLUSTER_FILE).unlink()
    with pytest.raises(ConfigError, match=f"cluster {made.cluster_id}, which has run"):
        make_cluster(directory, 1, 1, "skeen")
    config.save(directory, msgspec.structs.replace(made, cluster_id=os.urandom(16).hex()))
    with pytest.raises(ClusterError, match=f"belongs to cluster {made.cluster_id}"):
        cluster.up(directory, said.append)
    assert "belongs to cluster" in refusal(serve(directory))
    (home / "identity.json").unlink()
    assert f"belongs to cluster {made.cluster_id}" in refusal(serve(directory))
    shutil.move(home / "journal", directory / "journal")
    assert made.cluster_id in refusal(serve(directory))
    shutil.rmtree(home / "journal")
    shutil.move(directory / "journal", home / "journal")
    after = {p: p.read_bytes() for p in home.rglob("*") if p.is_file() and p.name != "lock.mdb"}
    changed = {p.name for p in before if after[p] != before[p]}
    assert changed <= {"identity.json", "log", "pid"}


def test_a_damaged_journal_is_refused_in_one_line(stopped_afterwards: Path, said: list[str]) -> None:
    directory = stopped_afterwards
    made = make_cluster(directory, 1, 1, "skeen")
    started = cluster.up(directory, said.append)
    for i in range(10):
        http(made, 0)("PUT", f"/v1/kv/k{i}", b"x")
    cluster.stop_started(directory, started, said.append)
    (segment,) = (directory / "replicas" / "0" / "journal").glob("*.seg")
    good = segment.read_bytes()
    segment.write_bytes(good[:500] + bytes([good[500] ^ 1]) + good[501:])
    assert segment.name in refusal(serve(directory))
    segment.write_bytes(good[:-50])
    with pytest.raises(ClusterError, match=rf"replica 0 ended while starting: .*{segment.name}"):
        cluster.up(directory, said.append)
    segment.write_bytes(good)
    started = cluster.up(directory, said.append)
    assert http(made, 0)("GET", "/v1/kv/k9").body == b"x"
    cluster.stop_started(directory, started, said.append)


def test_beyond_loopback_a_replica_starts_only_when_told_that_it_is_insecure(tmp_path: Path) -> None:
    where = {"host": "0.0.0.0", "advertise": "localhost"}
    made = config.new_cluster(shards=1, replicas=2, protocol="white_box", cluster_id="0" * 32, **where)
    identity.create(tmp_path, made)
    said = "is to listen on 0.0.0.0 without TLS"
    assert said in refusal(serve(tmp_path)) and "start the replica with --insecure" in refusal(serve(tmp_path))
    with pytest.raises(ConfigError, match=said):
        cluster.up(tmp_path, print)
    assert [path.name for path in (tmp_path / "replicas" / "0").iterdir()] == ["identity.json"]


def test_a_machine_without_replicas_is_told_so(tmp_path: Path) -> None:
    made = config.new_cluster(shards=1, replicas=2, protocol="white_box", cluster_id="0" * 32, host="192.0.2.1")
    identity.create(tmp_path, made)
    with pytest.raises(ClusterError, match=r"all replicas are of other machines: replica 0 \(192.0.2.1"):
        cluster.up(tmp_path, print, insecure=True)


def test_a_cluster_listens_in_one_place_and_is_reached_by_another_name(tmp_path: Path, said: list[str]) -> None:
    """The replicas reach one another by it, too: a majority must, before one is ready."""
    made = make_cluster(tmp_path, 1, 3, "white_box")
    data = json.loads(config.json_text(made))
    data["replicas"] = [replica | {"advertise": "localhost"} for replica in data["replicas"]]
    config.save(tmp_path, config.parse(json.dumps(data).encode(), "test"))
    started = cluster.up(tmp_path, said.append)
    try:
        told = http(made, 0)("GET", "/v1/cluster").json["shards"][0]["replicas"]
        assert [replica["url"] for replica in told] == [f"http://localhost:{r.http_port}" for r in made.replicas]
        assert all("at http://localhost:" in line for line in said)
        assert answered(lambda: http(made, 1)("PUT", "/v1/kv/a", b"1")).status == 200
    finally:
        cluster.stop_started(tmp_path, started, said.append)
