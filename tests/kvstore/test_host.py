"""One live replica, without HTTP: what it commits to LMDB."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from structlog.testing import capture_logs

from kvstore import committing, config, host, identity
from kvstore.api.model import Get, Put, Transaction
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Answered, Refused
from kvstore.storage.lmdb_backend import LmdbBackend
from kvstore.storage.snapshot import Snapshots
from kvstore.storage.store import DIGEST
from multicast.membership import Membership
from multicast.runtime import writer
from multicast.runtime.failpoints import Failpoints, Faults
from multicast.types import Timestamp
from multicast.wire import SnapshotChunk
from tests.kvstore.live import executed, make_cluster
from tests.multicast.live import eventually
from tests.ports import free_base_port

STANDSTILL_NS = 50_000_000
PUT, GET = Transaction((), (Put(b"k", b"v"),)), Transaction((), (Get(b"k"),))


class Held(Failpoints):
    """Commits of the state wait until they are `opened`."""

    def __init__(self, path: Path):
        path.write_bytes(msgspec.json.encode(Faults(commit_ms=1)))
        super().__init__(path)
        self.opened = threading.Event()

    def wait(self, milliseconds: int, fails: bool) -> None:
        if milliseconds:
            assert self.opened.wait(60)


async def test_a_snapshot_that_waits_to_be_installed_stands_for_no_journal(tmp_path: Path) -> None:
    """It is of what all have had; what this replica has promised it does not tell."""
    made = make_cluster(tmp_path, 1, 1, "white_box")
    live = host.LiveReplica(tmp_path, made, 0)
    await live.start()
    await live.stop()
    home = config.replica_directory(tmp_path, 0)
    with closing(LmdbBackend(home / "data")) as backend:
        snapshots = Snapshots(backend)
        assert snapshots.stage(SnapshotChunk(9, Timestamp(9, 0), b"", [(b"\x03" + DIGEST, bytes(16))], b"", 0))
        assert snapshots.seal(1, 9, Timestamp(9, 0))
    shutil.rmtree(home / "journal")
    for _ in range(2):
        with pytest.raises(config.ConfigError, match="journal is empty"):
            host.LiveReplica(tmp_path, made, 0)


class Once(Failpoints):
    """Of an error the device tells once."""

    told = False

    def wait(self, milliseconds: int, fails: bool) -> None:
        first, self.told = fails and not self.told, fails or self.told
        super().wait(milliseconds, first)


@pytest.fixture
def standstills_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long this process stands still, to all its replicas it is a moment: nobody suspects anybody for that."""
    steady = time.clock_gettime_ns
    last: dict[int, tuple[int, int]] = {}

    def shown(clock: int) -> int:
        now = steady(clock)
        before, told = last.get(clock, (now, now))
        last[clock] = now, told + min(now - before, STANDSTILL_NS)
        return last[clock][1]

    monkeypatch.setattr("multicast.runtime.clock.time.clock_gettime_ns", shown)


async def test_reads_that_nobody_can_repeat_write_nothing_but_now_and_then_the_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "COMMIT_POSITIONS", 10)
    made = config.new_cluster(
        shards=1, replicas=1, protocol="sequencer", cluster_id="c0" * 16, base_port=free_base_port(1)
    )
    limits = msgspec.structs.replace(made.limits, commit_interval_ms=10)
    identity.create(tmp_path, msgspec.structs.replace(made, limits=limits))
    live = host.LiveReplica(tmp_path, config.load(tmp_path), 0)
    await live.start()
    try:
        assert isinstance(await executed(live, live.new_message_id(), PUT), Answered)
        await eventually(lambda: live._store.position == 1, "the put is committed")
        for _ in range(9):
            assert isinstance(await executed(live, NO_ID, GET), Answered)
            assert live.status()["write_buffer_bytes"] == 0
        assert live._store.position == 1
        assert isinstance(await executed(live, NO_ID, GET), Answered)
        await eventually(lambda: live._store.position == 11, "the position is committed")
    finally:
        await live.stop()


@pytest.mark.parametrize("trouble", ["no room", "the port is taken"])
async def test_who_has_not_come_to_write_anything_has_lost_nothing(tmp_path: Path, trouble: str) -> None:
    made = make_cluster(tmp_path, 1, 1, "white_box")
    (tmp_path / "faults").write_bytes(msgspec.json.encode(Faults(free_bytes=0 if trouble == "no room" else None)))
    first = host.LiveReplica(tmp_path, made, 0, Failpoints(tmp_path / "faults"))
    with socket.socket() as other, contextlib.suppress(OSError):
        if trouble != "no room":
            other.bind(made.replica(0).peer_address)
            other.listen()
        await first.start()
    await first.stop()
    again = host.LiveReplica(tmp_path, made, 0)
    await again.start()
    try:
        assert isinstance(await executed(again, again.new_message_id(), PUT), Answered)
    finally:
        await again.stop()


@pytest.mark.parametrize("fails", ["sync_fails", "commit_fails"])
async def test_after_an_error_of_the_disk_no_further_life_begins(tmp_path: Path, fails: str) -> None:
    """A snapshot is there, with which one would."""
    made, faults = make_cluster(tmp_path, 1, 1, "white_box"), tmp_path / "faults"
    live = host.LiveReplica(tmp_path, made, 0, Once(faults))
    await live.start()
    try:
        assert isinstance(await executed(live, live.new_message_id(), PUT), Answered)
        (tmp_path / "new").write_bytes(msgspec.json.encode(Faults(**{fails: True})))
        (tmp_path / "new").rename(faults)
        live._committer._freeze()
        live._on_snapshot(SnapshotChunk(9, Timestamp(9, 0), b"", [], b"", 0))
        await eventually(lambda: live._renewal is not None and live._renewal.done(), "the life has ended")
        assert live.failure() and live.unready() and live._host is None
    finally:
        await live.stop()


async def test_a_replica_whose_buffer_is_full_takes_no_more_and_the_others_go_on(tmp_path: Path) -> None:
    """Its commits take long; once they are done it has everything."""
    made = make_cluster(tmp_path, 1, 3, "white_box", buffer_bytes_max=1 << 20, commit_bytes=1 << 16)
    commits = Held(tmp_path / "faults")
    slow = host.LiveReplica(tmp_path, made, 2, commits)
    replicas = [*(host.LiveReplica(tmp_path, made, number) for number in (0, 1)), slow]
    held = []
    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        await eventually(lambda: not any(replica.unready() for replica in replicas), "all are ready")
        for number in range(30):
            put = Transaction((), (Put(b"k%d" % number, bytes(150_000)),))
            assert isinstance(await executed(replicas[0], replicas[0].new_message_id(), put), Answered)
            held.append(slow.status()["write_buffer_bytes"])
        await eventually(lambda: slow.overload(), "its buffer is full")
        assert slow.status()["completed"] < 30
        commits.opened.set()
        while slow.status()["completed"] < 30:
            held.append(slow.status()["write_buffer_bytes"])
            await eventually(lambda: slow.status()["completed"] == 30 or not slow.overload(), "it goes on")
            await asyncio.sleep(0)
        assert max(held) < 2 << 20
    finally:
        commits.opened.set()
        await asyncio.gather(*(replica.stop() for replica in replicas))


async def test_who_ends_during_a_slow_commit_ends_well_and_has_everything_at_the_next_start(tmp_path: Path) -> None:
    made = make_cluster(tmp_path, 1, 1, "white_box", stop_deadline_ms=100)
    commits = Held(tmp_path / "faults")
    replica = host.LiveReplica(tmp_path, made, 0, commits)
    ended, commit = threading.Event(), replica._store.commit

    def watched() -> None:
        try:
            commit()
        finally:
            ended.set()

    replica._store.commit = watched  # type: ignore[method-assign]
    await replica.start()
    assert isinstance(await executed(replica, replica.new_message_id(), PUT), Answered)
    with capture_logs() as lines:
        await replica.stop()
        commits.opened.set()
        await asyncio.to_thread(ended.wait, 60)
        await asyncio.sleep(0.01)
    said = [line["event"] for line in lines if line["log_level"] != "info"]
    assert said == ["stopped without the last commit to LMDB; the journal has everything"]
    replica = host.LiveReplica(tmp_path, made, 0)
    await replica.start()
    answer = await executed(replica, replica.new_message_id(), GET)
    assert isinstance(answer, Answered) and answer.result.results[0].found is not None
    await replica.stop()


@pytest.mark.usefixtures("standstills_are_short")
async def test_a_leader_whose_buffer_is_full_refuses_requests_and_stays(tmp_path: Path) -> None:
    """Its commit takes longer than anybody's patience with a leader whom nobody seems to obey."""
    limits = {"buffer_bytes_max": 2 << 20, "commit_bytes": 1 << 16}
    patience = {"heartbeat_us": 30_000, "election_timeout_us": 300_000}
    made = msgspec.structs.replace(make_cluster(tmp_path, 1, 3, "white_box", **limits), protocol_options=patience)
    commits = Held(tmp_path / "faults")
    slow = host.LiveReplica(tmp_path, made, 0, commits)
    replicas = [slow, *(host.LiveReplica(tmp_path, made, number) for number in (1, 2))]
    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        await eventually(lambda: not any(replica.unready() for replica in replicas), "all are ready")
        await eventually(lambda: slow.status()["role"] == "leader", "it leads")
        before = [replica.status()["leader_changes"] for replica in replicas]
        number = 0
        while not slow.overload():
            number += 1
            put = Transaction((), (Put(b"k%d" % number, bytes(100_000)),))
            assert isinstance(await executed(slow, slow.new_message_id(), put), Answered)
        assert not slow._committer.held and slow._host is not None
        begun = slow._host.now()
        await eventually(lambda: slow._host.now() > begun + 1_000_000, "their patience would be over")
        commits.opened.set()
        await eventually(lambda: not slow.overload(), "it takes requests again")
        assert isinstance(await executed(slow, slow.new_message_id(), PUT), Answered)
        assert [replica.status()["leader_changes"] for replica in replicas] == before
    finally:
        commits.opened.set()
        await asyncio.gather(*(replica.stop() for replica in replicas))


@pytest.mark.parametrize("free_bytes", [0, 1 << 20, 20 << 20], ids=["none", "little", "some"])
async def test_a_full_disk_stops_its_replica_and_no_other_until_there_is_room(tmp_path: Path, free_bytes: int) -> None:
    """The leader's. With some room left it takes nothing that adds, and stands."""
    made = make_cluster(tmp_path, 1, 3, "white_box")
    file = tmp_path / "faults"
    replicas = [host.LiveReplica(tmp_path, made, number, Failpoints(file)) for number in range(3)]
    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        await eventually(lambda: not any(replica.unready() for replica in replicas), "all are ready")
        await eventually(lambda: any(one.status()["role"] == "leader" for one in replicas), "one leads")
        leader = next(replica for replica in replicas if replica.status()["role"] == "leader")
        others = [replica for replica in replicas if replica is not leader]
        leader._failpoints = full = Failpoints(tmp_path / "full")
        leader._disk._failpoints = full
        (tmp_path / "full").write_bytes(msgspec.json.encode(Faults(free_bytes=free_bytes)))
        full._fill_log = lambda _: None  # type: ignore[method-assign]
        await eventually(lambda: leader.full() != "", "it sees that its disk is full")
        if free_bytes < made.limits.disk_stop_bytes:
            await eventually(lambda: "its disk is full" in leader.unready(), "it stands still")
            assert isinstance(await executed(leader, leader.new_message_id(), PUT), Refused)
            await eventually(lambda: any(one.status()["role"] == "leader" for one in others), "another leads")
        answer = await executed(others[0], others[0].new_message_id(), PUT)
        assert isinstance(answer, Answered)
        (tmp_path / "full").unlink()
        await eventually(lambda: not leader.unready() and not leader.full(), "there is room again")
        await eventually(lambda: leader.status()["completed"] == 1, "it has what it missed")
    finally:
        await asyncio.gather(*(replica.stop() for replica in replicas))


async def test_a_replica_whose_directory_is_taken_away_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is to write again."""

    def gone(*_: object) -> int:
        raise FileNotFoundError("No such file or directory")

    replica = host.LiveReplica(tmp_path, make_cluster(tmp_path, 1, 1, "white_box"), 0)
    await replica.start()
    try:
        monkeypatch.setattr(host, "free_bytes", gone)
        await asyncio.wait_for(replica.failed, 20)
        assert "No such file or directory" in replica.failure()
    finally:
        await replica.stop()


async def test_room_is_wanted_where_the_data_lies_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_cluster(tmp_path, 1, 1, "white_box")
    replica = host.LiveReplica(tmp_path, made, 0)
    there = os.statvfs
    left = [1 << 30]

    def elsewhere(path: Path) -> object:
        assert path == config.replica_directory(tmp_path, 0) / "data"
        return SimpleNamespace(f_bavail=left[0] // there(path).f_frsize, f_frsize=there(path).f_frsize)

    monkeypatch.setattr("kvstore.disk.os.statvfs", elsewhere)
    try:
        await replica.start()
        assert isinstance(await executed(replica, replica.new_message_id(), PUT), Answered)
        left[0] = 20 << 20
        await eventually(lambda: replica.full() != "", "it sees that there is little room")
        left[0] = 1 << 20
        await eventually(lambda: "its disk is full" in replica.unready(), "it stands still")
        left[0] = 1 << 30
        await eventually(lambda: not replica.unready() and not replica.full(), "there is room again")
    finally:
        await replica.stop()


@pytest.mark.usefixtures("standstills_are_short")
async def test_who_leads_while_his_disk_hangs_makes_room_for_another_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow one is none that hangs."""
    monkeypatch.setattr(writer, "HANGS_US", 60_000_000)
    monkeypatch.setattr(writer, "QUICK_US", 0)  # all replicas share the loop: none may write in it
    patience = {"heartbeat_us": 50_000, "election_timeout_us": 300_000}
    made = msgspec.structs.replace(make_cluster(tmp_path, 1, 3, "white_box"), protocol_options=patience)
    replicas = [host.LiveReplica(tmp_path, made, number, Failpoints(tmp_path / str(number))) for number in range(3)]
    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        await eventually(lambda: not any(replica.unready() for replica in replicas), "all are ready")
        await eventually(lambda: any(one.status()["role"] == "leader" for one in replicas), "one leads")
        leader = next(replica for replica in replicas if replica.status()["role"] == "leader")
        others = [replica for replica in replicas if replica is not leader]
        faults = tmp_path / str(leader.me.id)
        faults.write_bytes(msgspec.json.encode(Faults(sync_ms=60)))
        for _ in range(3):
            assert isinstance(await executed(leader, leader.new_message_id(), PUT), Answered)
        assert leader.status()["role"] == "leader" and not leader.unready() and not leader.status()["disk_hangs"]
        monkeypatch.setattr(writer, "HANGS_US", 400_000)
        beside = tmp_path / "beside"
        beside.write_bytes(msgspec.json.encode(Faults(sync_ms=3_000)))
        beside.replace(faults)
        asked = asyncio.create_task(executed(leader, leader.new_message_id(), PUT))
        await eventually(lambda: "hangs" in leader.unready() and leader.status()["disk_hangs"], "it says so")
        await eventually(lambda: any(one.status()["role"] == "leader" for one in others), "another leads")
        assert isinstance(await executed(others[0], others[0].new_message_id(), PUT), Answered)
        faults.unlink()
        await eventually(lambda: not leader.unready() and not leader.status()["disk_hangs"], "it is back")
        await eventually(lambda: leader.status()["completed"] == others[0].status()["completed"], "it has all")
        await asked
    finally:
        await asyncio.gather(*(replica.stop() for replica in replicas))


@pytest.mark.parametrize("removed", [False, True])
async def test_a_replica_that_only_the_file_names_is_asked_for_the_view(tmp_path: Path, removed: bool) -> None:
    """All others may be gone before they could tell that it was added."""
    made = make_cluster(tmp_path, 2, 1, "white_box")
    port = free_base_port(2)
    added = config.ReplicaConfig(
        id=2, shard=0, host="127.0.0.1", peer_port=port, http_port=port + 1, added=True, removed=removed
    )
    for one in (0, 1):
        replica = host.LiveReplica(tmp_path, made.with_replica(added), one)
        topology = replica._protocol.topology
        assert isinstance(topology, Membership) and topology.strangers(0) == ([] if removed else [2])
        await replica.stop()
