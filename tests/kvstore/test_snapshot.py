"""What no journal holds any more a replica takes from a peer as a snapshot."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from kvstore import committing, config, host, identity
from kvstore.api.model import Add, Delete, Get, Operation, Put, Transaction
from kvstore.core.messages import Answered
from kvstore.host import LiveReplica
from kvstore.storage import snapshot
from kvstore.storage.backend import DATA, META, PROTOCOL, MemoryBackend, NoSpace, ViewGone
from kvstore.storage.lmdb_backend import LmdbBackend
from kvstore.storage.store import DIGEST, Store
from multicast import checkpoint
from multicast.disk import DiskFull
from multicast.journal import Journal
from multicast.protocols.white_box import WhiteBox
from multicast.simulation.disk import SimulatedDisk
from multicast.snapshot import OF_PROTOCOL
from multicast.types import ZERO, Timestamp, Topology
from multicast.wire import SnapshotChunk, SnapshotRequest
from tests.kvstore.live import executed, make_cluster
from tests.multicast.live import eventually

VALUE = bytes(3000)
ROWS = 300


async def apply(replica: LiveReplica, *operations: Operation) -> Answered:
    answer = await executed(replica, replica.new_message_id(), Transaction((), operations))
    assert isinstance(answer, Answered)
    return answer


async def ready(replicas: list[LiveReplica]) -> None:
    await eventually(lambda: not any(replica.unready() for replica in replicas), "all are ready")


async def fill(replicas: list[LiveReplica], number: int) -> None:
    """Write more than two chunks hold, and delete some of it."""
    for first in range(0, ROWS, 50):
        puts = [Put(b"%d/%d" % (number, i), VALUE) for i in range(first, first + 50)]
        await apply(replicas[0], *puts, Delete(b"%d/%d" % (number, first)), Add(b"sum", 1))


async def drop(replicas: list[LiveReplica]) -> int:
    """The journals of these hold nothing any more of what is complete. Returns up to where."""
    reached = max(replica.status()["completed"] for replica in replicas)
    await eventually(lambda: all(replica._store.position >= reached for replica in replicas), "all is committed")
    for replica in replicas:
        replica._journal.skip_to(reached)
    return reached


def lose_disk(replicas: list[LiveReplica], tmp_path: Path) -> None:
    """The last one was stopped, and needs the whole history: nothing that its leader still has at hand will do."""
    shutil.rmtree(config.replica_directory(tmp_path, 2))
    identity.claim(tmp_path, replicas[2].config, 2, lost_disk=True)


async def restart(replicas: list[LiveReplica], tmp_path: Path) -> None:
    """The last one was stopped; the links to it forget what they would have sent."""
    await asyncio.gather(*(replica.stop() for replica in replicas[:2]))
    for n, old in enumerate(replicas):
        replicas[n] = LiveReplica(tmp_path, old.config, old.me.id)
    await asyncio.gather(*(replica.start() for replica in replicas))


async def same_state(replicas: list[LiveReplica]) -> None:
    def same() -> bool:
        reached = {replica.status()["completed"] for replica in replicas}
        return len(reached) == 1 and len({replica._store.state_digest() for replica in replicas}) == 1

    await eventually(same, "all replicas hold the same")


@pytest.mark.parametrize("protocol", ["white_box", "primcast"])
async def test_a_replica_without_its_disk_takes_a_snapshot_while_the_others_serve(
    tmp_path: Path, protocol: str
) -> None:
    made = make_cluster(tmp_path, 1, 3, protocol, commit_interval_ms=20)
    replicas = [LiveReplica(tmp_path, made, number) for number in range(3)]
    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        await ready(replicas)
        await fill(replicas, 0)
        dropped = await drop(replicas[:2])
        await replicas[2].stop()
        lose_disk(replicas, tmp_path)
        replicas[2] = LiveReplica(tmp_path, made, 2)
        _, *answers = await asyncio.gather(
            replicas[2].start(), *(apply(replicas[n % 2], Add(b"sum", 1)) for n in range(20))
        )
        assert len(answers) == 20
        await ready(replicas)
        assert replicas[2]._journal.floor >= dropped
        await same_state(replicas)
        await apply(replicas[2], Put(b"k", b"v"))
        await replicas[2].stop()
        replicas[2] = LiveReplica(tmp_path, made, 2)
        await replicas[2].start()
        await same_state(replicas)
    finally:
        await asyncio.gather(*(replica.stop() for replica in replicas))


async def test_who_takes_a_snapshot_knows_what_was_answered(tmp_path: Path) -> None:
    made = make_cluster(tmp_path, 1, 3, "white_box", commit_interval_ms=20)
    replicas = [LiveReplica(tmp_path, made, number) for number in range(3)]
    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        await ready(replicas)
        await fill(replicas, 0)
        await replicas[2].stop()
        again = replicas[0].new_message_id()
        add = Transaction((), (Add(b"sum", 1), Get(b"sum")))
        told = await executed(replicas[0], again, add)
        await fill(replicas, 1)
        await drop(replicas[:2])
        lose_disk(replicas, tmp_path)
        await restart(replicas, tmp_path)
        await eventually(lambda: replicas[2]._journal.floor > 0, "a snapshot is installed")
        await ready(replicas)
        repeated = await executed(replicas[2], again, add)
        assert isinstance(told, Answered) and isinstance(repeated, Answered) and repeated.result == told.result
        await same_state(replicas)
    finally:
        await asyncio.gather(*(replica.stop() for replica in replicas))


@pytest.mark.parametrize(("module", "step"), [(snapshot, "install"), (snapshot.Snapshots, "_take_over")])
async def test_a_crash_in_an_installation_is_made_good_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, step: str
) -> None:
    """Before the journal says it, and after that."""
    made = make_cluster(tmp_path, 1, 3, "white_box", commit_interval_ms=20)
    replicas = [LiveReplica(tmp_path, made, number) for number in range(3)]

    def dies(*_: object) -> None:
        raise OSError("it dies here")

    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        await ready(replicas)
        await replicas[2].stop()
        await fill(replicas, 0)
        await drop(replicas[:2])
        lose_disk(replicas, tmp_path)
        with monkeypatch.context() as planted:
            planted.setattr(module, step, dies)
            await restart(replicas, tmp_path)
            await eventually(lambda: bool(replicas[2].failure()), "it dies")
            assert "it dies here" in replicas[2].failure()
            await replicas[2].stop()
        replicas[2] = LiveReplica(tmp_path, made, 2)
        assert replicas[2]._store.position == replicas[2]._journal.floor > 0
        await replicas[2].start()
        await ready(replicas)
        await same_state(replicas)
    finally:
        await asyncio.gather(*(replica.stop() for replica in replicas))


@pytest.mark.parametrize(
    ("module", "step", "error"),
    [
        (LmdbBackend, "seal", NoSpace("no room")),
        (snapshot, "install", DiskFull(errno.EDQUOT, "no room")),
        (snapshot.Snapshots, "_take_over", NoSpace("no room")),
    ],
    ids=["seal", "journal", "state"],
)
async def test_a_snapshot_for_which_there_is_no_room_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, step: str, error: Exception
) -> None:
    """And who is to end does not wait."""
    monkeypatch.setattr(committing, "NO_SPACE_SECONDS", 0.01)
    made = make_cluster(tmp_path, 1, 3, "white_box", commit_interval_ms=20)
    replicas = [LiveReplica(tmp_path, made, number) for number in range(3)]
    done = getattr(module, step)
    tried: list[int] = []
    room: list[bool] = []

    def full(*given: Any) -> Any:
        tried.append(1)
        if not room:
            raise error
        return done(*given)

    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        await ready(replicas)
        await replicas[2].stop()
        await fill(replicas, 0)
        await drop(replicas[:2])
        lose_disk(replicas, tmp_path)
        with monkeypatch.context() as planted:
            planted.setattr(module, step, full)
            await restart(replicas, tmp_path)
            await eventually(lambda: len(tried) > 2, "it tries again")
            await replicas[2].stop()
            assert not replicas[2].failure()
            room.append(True)
            replicas[2] = LiveReplica(tmp_path, made, 2)
            await replicas[2].start()
        await ready(replicas)
        await same_state(replicas)
    finally:
        await asyncio.gather(*(replica.stop() for replica in replicas))


def commit(store: Store, position: int, value: bytes) -> Timestamp:
    """A value, with the delivery at this position."""
    timestamp = Timestamp(position, 0)
    store.write(b"k", value, timestamp)
    store.reached(position, timestamp)
    store.freeze(position)
    store.commit()
    store.thawed()
    return timestamp


def test_what_follows_on_a_snapshot_that_is_being_given_stays() -> None:
    backend = MemoryBackend()
    store, given = Store.open(backend), snapshot.Snapshots(backend)
    commit(store, 5, b"v")
    assert given.lowest(9) == 9
    assert given.read(1, SnapshotRequest(0, ZERO, b"")) is not None
    given.sweep()
    assert (given.lowest(9), given.lowest(3)) == (5, 3)
    given.sweep()
    assert given.lowest(9) == 9


def test_the_loop_does_not_wait_for_a_read_of_a_snapshot_from_a_slow_disk() -> None:
    backend = MemoryBackend()
    store, given = Store.open(backend), snapshot.Snapshots(backend)
    commit(store, 5, b"v")
    view, reading, goes_on = backend.view(), threading.Event(), threading.Event()

    def slow(table: str, key: bytes) -> bytes | None:
        reading.set()
        assert goes_on.wait(60)
        return backend.get(table, key)

    with patch.object(view, "get", slow), patch.object(backend, "view", lambda: view):
        reader = threading.Thread(target=given.read, args=(1, SnapshotRequest(0, ZERO, b"")))
        reader.start()
        assert reading.wait(60)
        sweeper = threading.Thread(target=given.sweep)
        sweeper.start()
        sweeper.join(1)
        waits = sweeper.is_alive()
        goes_on.set()
        for thread in (reader, sweeper):
            thread.join()
    assert not waits


@pytest.mark.parametrize("lmdb", [False, True])
def test_what_was_fetched_of_a_snapshot_by_an_earlier_life_takes_no_room(tmp_path: Path, lmdb: bool) -> None:
    backend = LmdbBackend(tmp_path) if lmdb else MemoryBackend()
    some = [(b"\0k", b"row"), (b"\x03" + DIGEST, bytes(16)), (OF_PROTOCOL + b"p", b"v")]
    assert snapshot.Snapshots(backend).stage(SnapshotChunk(9, Timestamp(9, 0), b"", some, b"\0k", 3))
    journal = Journal(SimulatedDisk(), b"c" * 16, 0, 0)
    protocol = WhiteBox(0, Topology.grid(1, 3), WhiteBox.specification.options(), random.Random(1))
    for _ in range(2):
        assert snapshot.Snapshots(backend).install(journal, protocol, b"", (1, "fsync"), 1) is None
        assert [backend.staged(table) for table in (DATA, META, PROTOCOL)] == [[], [], []]
    backend.close()


@pytest.mark.parametrize("key", [b"", b"\0", b"\x07k", b"\x03owner", b"\0" + bytes(512)])
def test_rows_that_no_correct_peer_sends_are_not_kept_and_end_nobody(tmp_path: Path, key: bytes) -> None:
    with contextlib.closing(LmdbBackend(tmp_path)) as backend:
        chunk = SnapshotChunk(9, Timestamp(9, 0), b"", [(b"\0k", b"row"), (key, b"v")], b"", 2)
        assert not snapshot.Snapshots(backend).stage(chunk)


def test_a_view_that_has_gone_meanwhile_is_swept_up_like_others(tmp_path: Path) -> None:
    """A map that grows ends views."""
    backend = LmdbBackend(tmp_path, map_size=1 << 20)
    store, given = Store.open(backend), snapshot.Snapshots(backend)
    first = commit(store, 5, b"v")
    assert given.read(1, SnapshotRequest(0, ZERO, b"")) is not None
    given.sweep()
    commit(store, 6, os.urandom(1 << 21))
    assert given.read(1, SnapshotRequest(5, first, b"\0k")) is None
    given.sweep()
    assert given.lowest(9) == 9
    again = given.read(1, SnapshotRequest(5, first, b"\0k"))
    assert again is not None and (again.position, again.after) == (6, b"")
    backend.close()


async def test_a_sweep_that_fails_is_not_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SWEEP_SECONDS", 0.005)
    replica = LiveReplica(tmp_path, make_cluster(tmp_path, 1, 1, "white_box"), 0)
    swept = []

    def sweep() -> None:
        swept.append(1)
        raise ViewGone("it was closed")

    monkeypatch.setattr(replica._snapshots, "sweep", sweep)
    asyncio.get_running_loop().set_exception_handler(lambda _, __: None)
    try:
        with contextlib.suppress(ViewGone):  # the first one is of the start
            await replica.start()
        await eventually(lambda: len(swept) > 2, "it is swept again and again")
    finally:
        await replica.stop()


async def test_a_lost_disk_comes_back_while_journals_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments go all the while, also what follows on a snapshot that is being fetched."""
    monkeypatch.setattr(checkpoint, "GROWTH_BYTES_MIN", 1 << 16)
    limits = {"segment_bytes_max": 1 << 20, "journal_keep_bytes": 2 << 20, "commit_interval_ms": 20}
    made = msgspec.structs.replace(make_cluster(tmp_path, 1, 3, "white_box", **limits), archive="none")
    replicas = [LiveReplica(tmp_path, made, number) for number in range(3)]
    written = 0

    async def write() -> None:
        nonlocal written
        written += 1
        value = written.to_bytes(4, "big") + os.urandom(100_000)
        await apply(replicas[written % 2], Put(b"k%d" % (written % 20), value), Add(b"sum", 1))

    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        await ready(replicas)
        while min(replica.status()["journal_floor"] for replica in replicas[:2]) < 5:
            await write()
            assert written < 400
        await replicas[2].stop()
        lose_disk(replicas, tmp_path)
        replicas[2] = LiveReplica(tmp_path, made, 2)
        await replicas[2].start()
        while replicas[2].unready() and written < 600:
            await write()
        await ready(replicas)
        assert replicas[2].status()["journal_floor"] > 5
        await same_state(replicas)
    finally:
        await asyncio.gather(*(replica.stop() for replica in replicas))
