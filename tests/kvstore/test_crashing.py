"""A replica whose disk fails, or which dies, at any operation on a file: nothing that it told anybody is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from structlog.testing import capture_logs

from kvstore import committing, config, host, identity
from kvstore.api.model import Append, Get, Put, Transaction
from kvstore.backup import restore
from kvstore.core.messages import Answered
from kvstore.host import LiveReplica
from kvstore.storage.backend import StorageError
from kvstore.storage.lmdb_backend import LmdbBackend
from kvstore.storage.snapshot import Snapshots
from multicast import checkpoint
from multicast.journal import Journal
from multicast.records import BatchEnd, JournalError, Started, encode_record
from multicast.runtime import aside, writer
from multicast.runtime.disk import FileDisk
from multicast.segments import MARK
from multicast.snapshot import OF_PROTOCOL
from multicast.types import ZERO, MessageId
from multicast.wire import SnapshotChunk, SnapshotRequest
from tests.kvstore.backups import make_backup
from tests.kvstore.crashing import (
    DRAWN,
    ERROR,
    FATES,
    FULL,
    HALF,
    KEEPS,
    KILLED,
    LEAST,
    POWER,
    Crashing,
    Fault,
    plant,
    sensible,
)
from tests.kvstore.live import executed
from tests.multicast.live import eventually
from tests.planted.rewriting import rewritten
from tests.ports import free_base_port

CLEAR = (config.ConfigError, JournalError, StorageError, OSError)
"""What a start may raise, each with one line."""
SAID = (*(error.__name__ for error in CLEAR), "DiskFull", "NoSpace", "Died")
PUTS = 8
OPERATIONS = 250
"""About so many a run has."""
DRAWS, DRAWS_FULL, TRIES = 16, 40, 60
SECONDS = 20.0


Log = list[tuple[str, str]]


class Story:
    """What a client asks for, one transaction after the other, and what it was told of."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.ids: list[MessageId] = []
        self.values = [rng.randbytes(rng.choice((10, 700, 3000))) for _ in range(2 * PUTS)]
        self.told: set[int] = set()

    def transaction(self, number: int) -> Transaction:
        return Transaction((), (Put(b"k%d" % number, self.values[number]), Append(b"log", b"%d," % number)))

    def id_of(self, number: int, replica: LiveReplica) -> MessageId:
        while len(self.ids) <= number:
            self.ids.append(replica.new_message_id())
        return self.ids[number]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that happens now and then on a disk happens soon, and who waits for room does not wait long."""
    monkeypatch.setattr(checkpoint, "GROWTH_BYTES_MIN", 6_000)
    monkeypatch.setattr(checkpoint, "GROWTH_FACTOR", 0)
    monkeypatch.setattr(aside, "CHECKPOINT_AGAIN_BYTES", 1_000)
    monkeypatch.setattr(aside, "RETAIN_BYTES", 2_000)
    monkeypatch.setattr(aside, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(writer, "FULL_SECONDS", 0.01)
    monkeypatch.setattr(committing, "NO_SPACE_SECONDS", 0.01)
    monkeypatch.setattr(host, "ROOM_SECONDS", 0.02)


@pytest.fixture
def made() -> config.ClusterConfig:
    new = config.new_cluster(
        shards=1, replicas=1, protocol="white_box", cluster_id=os.urandom(16).hex(), base_port=free_base_port(1)
    )
    limits = msgspec.structs.replace(
        new.limits, segment_bytes_max=4_000, journal_keep_bytes=0, commit_bytes=5_000, commit_interval_ms=50
    )
    patience = {"heartbeat_us": 2_000, "election_timeout_us": 10_000}
    return msgspec.structs.replace(new, limits=limits, protocol_options=patience)


async def a_life(directory: Path, made: config.ClusterConfig, story: Story, upto: int) -> str:
    """Of the replica, in which what was not told yet is asked for; how it failed."""
    replica = LiveReplica(directory, made, 0)
    try:
        await replica.start()
        while replica.unready() and not replica.failure():
            await asyncio.sleep(0.001)
        for number in range(upto):
            if number not in story.told:
                asked = executed(replica, story.id_of(number, replica), story.transaction(number))
                if isinstance(await asyncio.wait_for(asked, SECONDS), Answered):
                    story.told.add(number)
                elif replica.failure():
                    break
    finally:
        await replica.stop()
    return replica.failure()


async def the_end(directory: Path, made: config.ClusterConfig, story: Story) -> None:
    """All is there that the client was told of, and, once the rest is asked for again, each of it once."""
    replica = LiveReplica(directory, made, 0)
    await replica.start()
    try:
        async with asyncio.timeout(SECONDS):
            while replica.unready():
                assert not replica.failure(), replica.failure()
                await asyncio.sleep(0.001)
            log = await found(replica, b"log")
            there = [int(number) for number in log.split(b",")[:-1]]
            assert there == list(range(len(there))) and story.told <= set(there), (there, story.told)
            for number in range(len(story.values)):
                asked = executed(replica, story.id_of(number, replica), story.transaction(number))
                assert isinstance(await asked, Answered)
                story.told.add(number)
            assert await found(replica, b"log") == b"".join(b"%d," % number for number in story.told)
            for number, value in enumerate(story.values):
                assert await found(replica, b"k%d" % number) == value
            await eventually(lambda: not left_over(directory), "nothing is left over")
    finally:
        await replica.stop()
    assert not replica.failure()


def left_over(directory: Path) -> list[Path]:
    """Files that are in nobody's way, and of no use."""
    found = [path for path in directory.rglob("*") if path.suffix in (".new", ".sum")]
    return [path for path in found if path.suffix == ".new" or not path.with_suffix(".seg").exists()]


async def found(replica: LiveReplica, key: bytes) -> bytes:
    answer = await executed(replica, replica.new_message_id(), Transaction((), (Get(key),)))
    assert isinstance(answer, Answered), answer
    row = answer.result.results[0].found
    return row.value if row is not None else b""


def open_files() -> set[str]:
    """Of this process, but for what has no name and what only looks at this."""
    links = Path("/proc/self/fd").iterdir()
    return {os.readlink(link) for link in links if link.is_symlink() and "/w" in os.readlink(link)}


async def run(root: Path, made: config.ClusterConfig, seed: int, *faults: Fault) -> Log:
    """A replica that one fault after the other befalls, and two lives without any: in between the power goes. Returns
    the operations with the first fault."""
    root.mkdir()
    crashing, story, before = Crashing(root, seed), Story(seed), open_files()
    log: Log = []
    for number, fault in enumerate(faults):
        crashing.befall(fault)
        lives = (PUTS, 2 * PUTS) if not number else (2 * PUTS,)
        ended = await lives_of(crashing, made, story, lives)
        assert len(ended) <= 1 and all(end.startswith(SAID) for end in ended), ended
        log = log or crashing.log
        if crashing.dead:
            crashing = crashing.after()
    for _ in range(2):
        crashing.befall(Fault())
        assert not await lives_of(crashing, made, story, ())
        crashing.befall(Fault(fate=POWER))
        crashing.left(LEAST)
        crashing = crashing.after()
    crashing.end()
    assert open_files() <= before
    assert not [thread for thread in threading.enumerate() if thread.name == "journal-writer"]
    return log


async def lives_of(crashing: Crashing, made: config.ClusterConfig, story: Story, lives: Sequence[int]) -> list[str]:
    """The replica lives as often, until so many transactions are done; without any, once, in good order. Returns with
    which errors it ended."""
    ended = []
    with pytest.MonkeyPatch.context() as planted, capture_logs():
        plant(planted, crashing)
        for upto in lives:
            try:
                create(crashing.root, made)
                ended.append(await a_life(crashing.root, made, story, upto))
            except CLEAR as error:
                ended.append(f"{type(error).__name__}: {error}")
            if crashing.dead:
                break
        if not lives:
            create(crashing.root, made)
            await the_end(crashing.root, made, story)
    return [end for end in ended if end]


def create(directory: Path, made: config.ClusterConfig) -> None:
    """Unless that was done before."""
    if not (directory / config.CLUSTER_FILE).exists():
        identity.create(directory, made)


def drawn(rng: random.Random) -> list[Fault]:
    """One fault, and perhaps others at the starts that follow."""
    upto = [OPERATIONS, rng.choice((30, OPERATIONS // 2)), 30][: rng.randint(1, 3)]
    return [Fault(rng.randrange(at), rng.choice(FATES), rng.choice(KEEPS)) for at in upto]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.full] * (seed >= DRAWS)) for seed in range(DRAWS_FULL)]
)
async def test_nothing_is_lost_that_was_told(tmp_path: Path, made: config.ClusterConfig, seed: int) -> None:
    await run(tmp_path / "replica", made, seed, *drawn(random.Random(seed)))


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("fate", "keeps"), [(f, k) for f in FATES for k in (KEEPS if f == POWER else (LEAST,))])
async def test_at_no_operation(tmp_path: Path, made: config.ClusterConfig, fate: str, keeps: str) -> None:
    for at in range(OPERATIONS):
        await run(tmp_path / f"{at}", made, at, Fault(at, fate, keeps))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["mark", "owner"])
async def test_who_finds_no_room_for_a_mark_goes_on(tmp_path: Path, made: config.ClusterConfig, name: str) -> None:
    """It says too little until the next one."""
    log = await run(tmp_path / "well", made, 0, Fault())
    places = [at for at, (kind, file) in enumerate(log) if kind == "pwrite" and file.endswith(name)]
    for at in random.Random(name).sample(places, min(3, len(places))):
        (tmp_path / f"{at}").mkdir()
        crashing = Crashing(tmp_path / f"{at}")
        crashing.befall(Fault(at, FULL))
        ended = await lives_of(crashing, made, Story(0), (PUTS, 2 * PUTS))
        assert not ended or not crashing.log[at][1].endswith(name)
        crashing.end()


@pytest.mark.usefixtures("small")
async def test_a_restored_cluster_is_on_disk(tmp_path: Path, made: config.ClusterConfig) -> None:
    manifest = make_backup(tmp_path / "backup", {b"k": b"v"})
    port = made.replicas[0].http_port
    new = restore.configuration(manifest, protocol="", replicas=1, base_port=port, durability="fsync")
    (tmp_path / "root").mkdir()
    crashing = Crashing(tmp_path / "root")
    with pytest.MonkeyPatch.context() as planted, capture_logs():
        plant(planted, crashing)
        restore.restore(tmp_path / "backup", crashing.root / "new", new, lambda _: None)
    replica = LiveReplica(crashing.left(LEAST) / "new", new, 0)
    await replica.start()
    try:
        await eventually(lambda: not replica.unready(), "it is ready")
        assert await found(replica, b"k") == b"v"
    finally:
        await replica.stop()
        crashing.end()


def lived(crashing: Crashing, *numbers: int) -> list[int]:
    """A life that finds in its journal what is returned, and writes these batches, as far as it comes."""

    def batch(number: int) -> bytes:
        return encode_record(Started(number, 0, 0, {0: (0,)}, "p", "fsync", number)) + encode_record(BatchEnd(number))

    with pytest.MonkeyPatch.context() as planted:
        plant(planted, crashing)
        with closing(FileDisk(crashing.root / "journal")) as files:
            journal = Journal(files, bytes(16), 0, 0)
            found = [record.incarnation for _, record in journal.tail(0) if isinstance(record, Started)]
            with contextlib.suppress(OSError):
                for number in numbers:
                    journal.append(batch(number))
                    journal.sync()
            return found


def test_what_could_not_be_synced_is_not_found_by_the_next_life(tmp_path: Path) -> None:
    """The system shows it, and says that it is synced; after a loss of power it is not there."""
    crashing = Crashing(tmp_path)
    crashing.befall(Fault(12, ERROR))
    assert lived(crashing, 1, 2) == []
    assert crashing.log[12] == ("sync", "journal/journal-00000000.seg")
    crashing.befall(Fault())
    assert lived(crashing, 3) == [1]
    crashing.befall(Fault(fate=POWER))
    crashing.left(LEAST)
    crashing = crashing.after()
    assert lived(crashing) == [1, 3]
    crashing.end()


def test_who_cannot_sync_what_lives_before_have_written_leaves_it_alone(tmp_path: Path) -> None:
    """They may have vouched for it: the mark is too low, after a loss of power."""
    crashing = Crashing(tmp_path)
    assert lived(crashing, 1, 2) == []
    (tmp_path / "journal" / MARK).unlink()
    crashing.befall(Fault(3, ERROR))
    with pytest.raises(OSError):
        lived(crashing, 3)
    assert crashing.log[3] == ("sync", "journal/journal-00000000.seg")
    crashing.befall(Fault())
    assert lived(crashing) == [1, 2]
    crashing.end()


class Planted(NamedTuple):
    """In a method these words instead of those; found by one of these fates at, or so soon after, an operation that is
    called so."""

    kind: type
    method: str
    old: str
    new: str
    at: str
    fates: tuple[str, ...] = (POWER,)
    keeps: str = LEAST
    after: tuple[int, ...] = (0, 0, 1, 2)


_JOURNAL = "replicas/0/journal/journal-"
PLANTED = {
    "a batch is not synced": Planted(FileDisk, "sync", "os.fdatasync(descriptor)", "pass", "sync"),
    "a new file's name is not synced": Planted(FileDisk, "sync", "os.fsync(self._directory)", "pass", "sync"),
    "renamed before it is synced": Planted(FileDisk, "_write_beside", "os.fsync(descriptor)", "pass", "rename"),
    "the mark before the data": Planted(
        Journal,
        "sync",
        "end, self._broken = self.end, True",
        "end, self._broken = self.end, True; self.disk.write_small(segments.MARK, segments.encode_mark(end))",
        "pwrite",
        keeps=DRAWN,
    ),
    "answered before it is synced": Planted(Journal, "sync", "if to_disk:", "if False:", "pwrite"),
    "a commit ahead of the journal": Planted(
        committing.Committer, "on_flushed", "number >= self._frozen_at", "number >= 0", "commit"
    ),
    "the first segments go before the floor": Planted(
        Journal,
        "drop",
        "oldest = found[count]",
        "oldest = found[count]; self._remove([segment.number for segment in found[:count]])",
        "unlink",
        (KILLED, POWER),
    ),
    "a checkpoint is not synced": Planted(checkpoint.Checkpoints, "_write", "disk.sync(name)", "pass", "unlink"),
    "what an append has written that found no room stays": Planted(
        Journal,
        "append",
        "self._take_back(self.end)\n            self._broken",
        "self._broken",
        f"write {_JOURNAL}",
        (HALF,),
        after=(0,),
    ),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", PLANTED)
async def test_such_bugs_are_found(
    tmp_path: Path, made: config.ClusterConfig, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    bug, rng = PLANTED[name], random.Random(name)
    log = await run(tmp_path / "well", made, 0, Fault())
    places = [at for at, operation in enumerate(log) if " ".join(operation).startswith(bug.at)]
    monkeypatch.setattr(bug.kind, bug.method, rewritten(bug.kind, bug.method, bug.old, bug.new))
    for number in range(TRIES):
        fault = Fault(rng.choice(places or range(OPERATIONS)) + rng.choice(bug.after), rng.choice(bug.fates), bug.keeps)
        try:
            await run(tmp_path / f"{number}", made, number, fault)
        except (AssertionError, *CLEAR):
            return
    pytest.fail("it was not found")


async def with_a_snapshot(root: Path, made: config.ClusterConfig, story: Story) -> tuple[Path, list[SnapshotChunk]]:
    """A replica with half of the story, and a snapshot of all of it."""
    behind, ahead = root / "behind", root / "ahead"
    with capture_logs():
        create(behind, made)
        await a_life(behind, made, story, PUTS)
        shutil.copytree(behind, ahead)
        await a_life(ahead, made, story, 2 * PUTS)
        giver = LiveReplica(ahead, made, 0)
        await giver.start()
        await eventually(lambda: giver._store.position == giver.status()["completed"], "all is committed")
        request, chunks = SnapshotRequest(0, ZERO, b""), []
        while not request.after.startswith(OF_PROTOCOL):
            chunk = giver._snapshots.read(1, request)
            assert chunk is not None
            chunks.append(chunk)
            request = SnapshotRequest(chunk.position, chunk.timestamp, chunk.next)
        given = giver._protocol.history.given(request.position, request.timestamp)
        rows = [(OF_PROTOCOL + key, value) for key, value in given]
        chunks.append(SnapshotChunk(request.position, request.timestamp, OF_PROTOCOL, rows, b"", 0))
        await giver.stop()
    return behind, chunks


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("fates", [FATES, *(pytest.param([fate], marks=pytest.mark.full) for fate in FATES)])
async def test_a_snapshot_is_installed_whatever_befalls_that(
    tmp_path: Path, made: config.ClusterConfig, fates: Sequence[str]
) -> None:
    story, rng = Story(0), random.Random(str(fates))
    root, chunks = await with_a_snapshot(tmp_path, made, story)
    with closing(LmdbBackend(config.replica_directory(root, 0) / "data")) as backend:
        taker = Snapshots(backend)
        assert all(taker.stage(chunk) for chunk in chunks)
        assert taker.seal(1, chunks[-1].position, chunks[-1].timestamp)
    log = opened(Crashing(shutil.copytree(root, tmp_path / "well")), made, Fault())
    assert ("rename", "replicas/0/journal/floor") in log and [kind for kind, _ in log].count("commit") == 1
    for at, (kind, _) in enumerate(log):
        crashing = Crashing(shutil.copytree(root, tmp_path / f"{at}"), at)
        fate = rng.choice([fate for fate in fates if sensible(kind, fate)] or [POWER])
        with contextlib.suppress(CLEAR):
            opened(crashing, made, Fault(at, fate, rng.choice(KEEPS)))
        crashing = crashing.after() if crashing.dead else crashing
        crashing.befall(Fault())
        assert not await lives_of(crashing, made, story, ())
        crashing.end()


@pytest.mark.usefixtures("small")
async def test_who_finds_no_room_to_install_a_snapshot_waits_for_some(
    tmp_path: Path, made: config.ClusterConfig
) -> None:
    root, chunks = await with_a_snapshot(tmp_path, made, Story(0))
    log = await renewed(Crashing(shutil.copytree(root, tmp_path / "well")), made, chunks, -1)
    for at in [at for at, operation in enumerate(log) if needs_room_only(operation)]:
        await renewed(Crashing(shutil.copytree(root, tmp_path / f"{at}")), made, chunks, at)


def needs_room_only(operation: tuple[str, str]) -> bool:
    """Of the installation: nothing is lost if it finds none."""
    return operation[0] != "sync" and operation[1].endswith(("floor.new", "data.mdb"))


async def renewed(crashing: Crashing, made: config.ClusterConfig, chunks: list[SnapshotChunk], at: int) -> Log:
    """A replica begins another life with this snapshot, and finds no room at this operation. What that takes."""
    with pytest.MonkeyPatch.context() as planted, capture_logs():
        plant(planted, crashing)
        replica = LiveReplica(crashing.root, made, 0)
        await replica.start()
        try:
            await eventually(lambda: not replica.unready(), "it is ready")
            assert all(replica._snapshots.stage(chunk) for chunk in chunks) and replica._host is not None
            replica._host.engine.snapshots.source = 1
            crashing.befall(Fault(at, FULL))
            replica._on_snapshot(chunks[-1])
            await eventually(lambda: replica._renewal is not None and replica._renewal.done(), "it begins again")
            if at < 0 or any(map(needs_room_only, crashing.log[at : at + 1])):
                assert not replica.failure() and replica._store.position == chunks[-1].position
            return crashing.log
        finally:
            await replica.stop()
            crashing.end()


def opened(crashing: Crashing, made: config.ClusterConfig, fault: Fault) -> Log:
    """What that takes, with this fault."""
    crashing.befall(fault)
    with pytest.MonkeyPatch.context() as planted, capture_logs():
        plant(planted, crashing)
        with closing(Opened(crashing.root, made, 0)):
            return crashing.log


class Opened(LiveReplica):
    """One that does not live."""

    def close(self) -> None:
        self._store.close()
        self._journal.close()
