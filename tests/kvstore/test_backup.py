"""A backup is one point of the order; what is not as it was written is refused; a new cluster begins with it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore import certificates, cli, config, identity
from kvstore.api.model import CUT, Add, Cut, Delete, Get, InvalidTransaction, Operation, Put, Transaction
from kvstore.api.validation import validate
from kvstore.backup import restore, take
from kvstore.backup.files import MANIFEST, BackupError, Manifest, read_manifest, rows_file, verify, write_manifest
from kvstore.core.messages import Answered
from kvstore.core.rows import encode_row, origin_of
from kvstore.host import LiveReplica
from kvstore.storage import cut
from kvstore.storage.backend import MemoryBackend
from kvstore.storage.store import Store
from multicast.types import Timestamp
from tests.kvstore import backups
from tests.kvstore.live import executed, make_cluster
from tests.multicast.live import eventually
from tests.ports import free_base_port

VALUES = {b"k%d" % number: b"v" * number for number in range(20)}
ACCOUNTS = [b"account/%d" % number for number in range(8)]


def nothing(text: str) -> None:
    pass


def restored(backup: Path, directory: Path, replicas: int = 3, protocol: str = "") -> config.ClusterConfig:
    manifest = read_manifest(backup)
    made = restore.configuration(
        manifest, replicas=replicas, protocol=protocol, base_port=free_base_port(replicas * len(manifest.shards)),
        host="127.0.0.1", advertise="", durability="fsync", archive="archive",
    )  # fmt: skip
    restore.restore(backup, directory, made, nothing)
    return made


async def apply(replica: LiveReplica, *operations: Operation) -> Answered:
    answer = await executed(replica, replica.new_message_id(), Transaction((), operations))
    assert isinstance(answer, Answered), answer
    return answer


async def total(replica: LiveReplica) -> int:
    read = await apply(replica, *(Get(account) for account in ACCOUNTS))
    return sum(int(one.found.value) for one in read.result.results if one.found)


def test_a_new_cluster_has_its_name_on_disk_before_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backups.make_backup(tmp_path / "backup", VALUES)
    fsync, synced = os.fsync, []

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), (tmp_path / "new").exists()))

    monkeypatch.setattr(config.os, "fsync", watched)
    restored(tmp_path / "backup", tmp_path / "new", replicas=1)
    assert (str(tmp_path), True) in synced


# -- the cut ----------------------------------------------------------------------------------------------------------

keys = st.sampled_from([b"a", b"b", b"c"])
writes = st.tuples(keys, st.one_of(st.none(), st.binary(max_size=3)))
steps = st.lists(st.one_of(writes, st.sampled_from(["freeze", "commit", "cut"])))


@given(steps)
def test_a_cut_is_what_the_store_held_when_its_delivery_was_complete(drawn: list[object]) -> None:
    store = Store.open(MemoryBackend())
    rows: dict[bytes, bytes] = {}
    expected: dict[Timestamp, dict[bytes, bytes]] = {}
    for number, step in enumerate(drawn, 1):
        at = Timestamp(number, 0)
        if step == "freeze":
            store.freeze(number - 1)
        elif step == "commit":
            store.commit()
            store.thawed()
        elif step == "cut" and len(expected) < cut.CUTS_MAX:
            store.cut(at)
            expected[at] = dict(rows)
        elif isinstance(step, tuple):
            store.write(*step, at)
            before = rows.pop(step[0], None)
            if step[1] is not None:
                created = origin_of(before)[0] if before else at.encode()
                rows[step[0]] = encode_row(at.encode(), created, b"", step[1])
        store.reached(number, at)
    for version, held in expected.items():
        kept = store.cuts.find(version)
        assert kept is not None and (kept.position, kept.timestamp) == (version.time, version)
        assert list(kept.rows(b"")) == sorted(held.items())
        assert dict(kept.rows(b"a")) == {key: row for key, row in held.items() if key > b"a"}


@given(steps, st.sampled_from([1, 2, 256]))
def test_a_cut_has_what_stood_there_at_every_earlier_version_that_the_history_knows(
    drawn: list[object], looked_max: int
) -> None:
    store = Store.open(MemoryBackend(), history_us=8)
    rows: dict[bytes, bytes] = {}
    stood: dict[Timestamp, dict[bytes, bytes]] = {}
    for number, step in enumerate(drawn, 1):
        at = Timestamp(number, 0)
        if step == "freeze":
            store.freeze(number - 1)
        elif step == "commit":
            store.commit()
            store.thawed()
        elif isinstance(step, tuple):
            store.write(*step, at)
            before = rows.pop(step[0], None)
            if step[1] is not None:
                created = origin_of(before)[0] if before else at.encode()
                rows[step[0]] = encode_row(at.encode(), created, b"", step[1])
        elif step == "cut" and len(store.cuts._kept) < cut.CUTS_MAX:
            store.cut(at)
        store.reached(number, at)
        stood[at] = dict(rows)
    for made, kept in store.cuts._kept.items():
        for version, held in stood.items():
            if version > made:
                continue
            if version.time >= made.time - 8:
                assert list(kept.rows_at(version, b"", looked_max)) == sorted(held.items())
                assert dict(kept.rows_at(version, b"a")) == {key: row for key, row in held.items() if key > b"a"}
            else:
                with pytest.raises(cut.Compacted):
                    kept.rows_at(version, b"")


def test_a_cut_is_read_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "PORTION_BYTES", 100)
    store = Store.open(MemoryBackend())
    at = Timestamp(5, 0)
    for number in range(20):
        store.write(b"%02d" % number, bytes(20), at)
    store.cut(at)
    store.reached(1, at)
    kept = store.cuts.find(at)
    assert kept is not None
    found, after, portions = [], b"", 0
    while after or not portions:
        read = cut.decode_cut_rows(cut.encode_cut_rows(kept.read(after)))
        assert read.digest == store.state_digest()
        found += read.rows
        after, portions = read.next, portions + 1
    assert [key for key, _ in found] == [b"%02d" % number for number in range(20)] and portions > 4


def test_a_cut_that_nobody_reads_goes() -> None:
    store = Store.open(MemoryBackend())
    read, unread = Timestamp(1, 0), Timestamp(2, 0)
    for number, at in enumerate((read, unread), 1):
        store.cut(at)
        store.reached(number, at)
    store.cuts.sweep()
    assert store.cuts.find(read) is not None
    store.cuts.sweep()
    assert store.cuts.find(read) is not None and store.cuts.find(unread) is None


def test_a_cut_stands_alone() -> None:
    validate(CUT)
    for transaction in (Transaction(success=(Cut(), Cut())), Transaction(failure=(Cut(),))):
        with pytest.raises(InvalidTransaction, match="a cut stands alone"):
            validate(transaction)


# -- files ------------------------------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def change(target: Path, edit: Callable[[Manifest], object], summed: bool = True) -> None:
    manifest = read_manifest(target)
    edit(manifest)
    if summed:
        write_manifest(target, manifest)
    else:
        (target / MANIFEST).write_bytes(msgspec.json.encode(manifest))


def other_rows(target: Path) -> None:
    """Of shard 0 as if they were those of shard 1, with sizes and checksums to match."""
    shutil.copyfile(target / rows_file(0), target / rows_file(1))

    def edit(manifest: Manifest) -> None:
        manifest.shards[1] = msgspec.structs.replace(manifest.shards[0], id=1)

    change(target, edit)


def set_rows(manifest: Manifest) -> None:
    manifest.shards[0].rows += 1


def set_position(manifest: Manifest) -> None:
    manifest.shards[0].position += 1


def set_format(manifest: Manifest) -> None:
    manifest.format = 3


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda target: flip(target / "shard-0.rows", 30), r"shard-0.rows, byte 0: a frame's checksum does not match"),
        (lambda target: flip(target / "shard-1.rows", 0), r"shard-1.rows, byte 0: no frame begins here"),
        (lambda target: os.truncate(target / "shard-0.rows", 60), r"shard-0.rows, byte \d+: it is cut short"),
        (lambda target: os.truncate(target / "shard-0.rows", 0), r"shard-0.rows: it is not the file of which"),
        (lambda target: (target / "shard-1.rows").unlink(), r"shard-1.rows: No such file"),
        (lambda target: (target / MANIFEST).unlink(), r"manifest.json: No such file.*: this is no backup, or not a wh"),
        (lambda target: flip(target / MANIFEST, 5), r"manifest.json: damaged"),
        (lambda target: change(target, set_position, summed=False), r"manifest.json: damaged: its checksum does not"),
        (lambda target: change(target, set_format), r"manifest.json: format 3 is not known; this program reads 1 to 2"),
        (lambda target: change(target, set_rows), r"shard-0.rows: its rows are not those of which manifest.json has"),
        (lambda target: change(target, lambda manifest: manifest.shards.pop()), r"manifest.json: shard 1 has slots"),
        (other_rows, r"shard-1.rows: row 0 belongs to shard 0 by its key"),
    ],
)
def test_what_is_not_as_it_was_written_is_refused(tmp_path: Path, damage: Callable[[Path], object], said: str) -> None:
    backups.make_backup(tmp_path / "backup", VALUES, shards=2)
    assert sum(shard.rows for shard in verify(tmp_path / "backup", nothing).shards) == len(VALUES)
    made = restore.configuration(
        read_manifest(tmp_path / "backup"), replicas=1, protocol="", base_port=7400, host="127.0.0.1", advertise="",
        durability="fsync", archive="none",
    )  # fmt: skip
    damage(tmp_path / "backup")
    for read in (verify, lambda *_: restore.restore(tmp_path / "backup", tmp_path / "new", made, nothing)):
        with pytest.raises(BackupError, match=said):
            read(tmp_path / "backup", nothing)
    assert [path.name for path in tmp_path.iterdir()] == ["backup"]


# -- a new cluster ----------------------------------------------------------------------------------------------------


def test_nothing_that_exists_is_overwritten(tmp_path: Path) -> None:
    backups.make_backup(tmp_path / "backup", VALUES)
    restored(tmp_path / "backup", tmp_path / "new", replicas=1)
    said: list[str] = []
    with pytest.raises(BackupError, match="new exists already; nothing was changed"):
        restore.restore(tmp_path / "backup", tmp_path / "new", config.load(tmp_path / "new"), said.append)
    assert said == [], "it was not read first"
    with pytest.raises(BackupError, match="backup exists already; nothing was changed"):
        take.take(str(tmp_path / "new"), tmp_path / "backup", nothing)


def test_a_protocol_that_cannot_begin_with_a_state_refuses(tmp_path: Path) -> None:
    backups.make_backup(tmp_path / "backup", VALUES)
    for replicas in (1, 3):  # before that skeen runs with one
        with pytest.raises(BackupError, match=r"the protocol skeen cannot begin with a state .* with --protocol"):
            restored(tmp_path / "backup", tmp_path / "new", replicas=replicas, protocol="skeen")


def shell(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 0


def test_a_new_cluster_is_of_several_machines_and_has_tls_if_so_it_is_said(tmp_path: Path) -> None:
    backups.make_backup(tmp_path / "backup", VALUES, shards=2)
    options = ("--replicas", "2", "--machines", "127.0.0.2, 127.0.0.3", "--host", "0.0.0.0", "--tls")
    shell("restore", str(tmp_path / "backup"), str(tmp_path / "new"), *options)
    made = config.load(tmp_path / "new")
    assert [replica.address for replica in made.replicas] == ["127.0.0.2", "127.0.0.3"] * 2
    for replica in made.replicas:
        assert replica.https and certificates.Certificates(tmp_path / "new", made, replica).clients is not None
    shell("restore", str(tmp_path / "backup"), str(tmp_path / "named"), "--names", "kv-{shard}-{member}")
    assert config.load(tmp_path / "named").replicas[5].address == "kv-1-2"


async def test_the_old_configuration_is_good_for_the_new_cluster(tmp_path: Path) -> None:
    """All but the id, and who came and went."""
    manifest = backups.make_backup(tmp_path / "backup", VALUES)
    old = make_cluster(tmp_path / "old", 1, 3, "white_box", history_ms=7_000)
    members = [msgspec.structs.replace(old.replicas[i], removed=i == 0, added=i == 2, since=i) for i in range(3)]
    old = msgspec.structs.replace(old, cluster_id=manifest.cluster_id, epoch=2, replicas=tuple(members))
    file = config.save(tmp_path / "old", old)
    shell("restore", str(tmp_path / "backup"), str(tmp_path / "new"), "--config", str(file))
    made = config.load(tmp_path / "new")
    assert made.cluster_id != old.cluster_id and made.limits == old.limits and made.epoch == 0
    assert [(r.id, r.url, r.added) for r in made.replicas] == [(r.id, r.url, False) for r in old.replicas[1:]]
    async with backups.serving(tmp_path / "new", made) as replicas:
        read = await apply(replicas[0], *(Get(key) for key in VALUES))
        assert {one.found.key: one.found.value for one in read.result.results if one.found} == VALUES
    two = make_cluster(tmp_path / "two", 2, 1, "white_box")
    with pytest.raises(BackupError, match="has the shards 0, and the configuration 0, 1: they must be the same"):
        restore.fitted(manifest, two)
    assert restore.fitted(manifest, old).cluster_id != restore.fitted(manifest, old).cluster_id


def test_time_does_not_go_back(tmp_path: Path) -> None:
    later = Timestamp(time.time_ns() // 1000 + 3_600_000_000, 0)
    backups.make_backup(tmp_path / "backup", VALUES, timestamp=later)
    with pytest.raises(BackupError, match=r"this machine's clock is 3\d\d\d\.\d s behind"):
        restored(tmp_path / "backup", tmp_path / "new", replicas=1)


@pytest.mark.parametrize("protocol", ["white_box", "primcast"])
async def test_a_new_cluster_has_the_rows_at_their_versions_and_goes_on_above(tmp_path: Path, protocol: str) -> None:
    later = Timestamp(time.time_ns() // 1000 + 500_000, 3)
    backups.make_backup(tmp_path / "backup", VALUES, timestamp=later)
    made = restored(tmp_path / "backup", tmp_path / "new", protocol=protocol)
    async with backups.serving(tmp_path / "new", made) as replicas:
        written = await apply(replicas[0], Put(b"k0", b"new"))
        assert written.result.version > later
        read = await apply(replicas[1], *(Get(key) for key in sorted(VALUES)[1:]))
        for number, one in enumerate(read.result.results, 1):
            assert one.found is not None and one.found.value == VALUES[one.found.key]
            assert one.found.version == backups.version(number)
        await replicas[2].stop()
        shutil.rmtree(config.replica_directory(tmp_path / "new", 2))
        identity.claim(tmp_path / "new", made, 2, lost_disk=True)
        replicas[2] = LiveReplica(tmp_path / "new", made, 2)
        await replicas[2].start()
        await eventually(lambda: not replicas[2].unready(), "the replica without its disk is ready")
        await eventually(
            lambda: len({replica._store.state_digest() for replica in replicas}) == 1, "all replicas hold the same"
        )


async def test_a_backup_is_of_an_earlier_version_while_the_history_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut, "PORTION_BYTES", 100)
    made = make_cluster(tmp_path / "old", 2, 3, "white_box", commit_interval_ms=20)
    source = str(tmp_path / "old")
    async with backups.serving(tmp_path / "old", made) as replicas:
        await apply(replicas[0], *(Put(account, b"100") for account in ACCOUNTS), *(Put(k, VALUES[k]) for k in VALUES))
        then = Timestamp(0, 0)
        for number in range(40):
            moved = await apply(replicas[0], Add(ACCOUNTS[number % 7], -1), Add(ACCOUNTS[1 + number % 7], 1))
            then = moved.result.version if number == 20 else then
        held = await apply(replicas[1], *(Get(account) for account in ACCOUNTS))
        await apply(replicas[1], *(Delete(key) for key in [*VALUES, ACCOUNTS[0]]), Put(b"later", b"x"))
        manifest = await asyncio.to_thread(take.take, source, tmp_path / "b", nothing, str(then))
        assert manifest.version == str(then) and manifest.timestamp > str(held.result.version)
        assert verify(tmp_path / "b", nothing) == manifest
        later = str(Timestamp(then.time + 10**12, 0))
        for at, said in ((later, "nothing has been written at"), ("x", "not a version")):
            with pytest.raises(BackupError, match=said):
                await asyncio.to_thread(take.take, source, tmp_path / "none", nothing, at)
        with pytest.raises(BackupError, match=r"compacted: shard [01]: .*the oldest version of which every"):
            await asyncio.to_thread(take.take, source, tmp_path / "none", nothing, str(Timestamp(1, 0)))
    assert not (tmp_path / "none").exists()
    made = restored(tmp_path / "b", tmp_path / "new", replicas=1)
    async with backups.serving(tmp_path / "new", made) as replicas:
        read = await apply(replicas[0], *(Get(key) for key in [*VALUES, *ACCOUNTS, b"later"]))
        found = {one.found.key: one.found for one in read.result.results if one.found}
        assert {key: found[key].value for key in VALUES} == VALUES and b"later" not in found
        assert sum(int(found[account].value) for account in ACCOUNTS) == 100 * len(ACCOUNTS)
        assert max(one.version for one in found.values()) == then
        assert read.result.version > held.result.version


async def test_a_backup_under_transfers_has_one_total_though_a_leader_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut, "PORTION_BYTES", 100)
    made = make_cluster(tmp_path / "old", 2, 3, "white_box", commit_interval_ms=20)
    over = asyncio.Event()

    async def transfer(replicas: list[LiveReplica], number: int) -> None:
        while not over.is_set():
            source, target = ACCOUNTS[number], ACCOUNTS[(number + 3) % len(ACCOUNTS)]
            replica = replicas[1 + number % 2]
            await executed(
                replica, replica.new_message_id(), Transaction((), (Add(source, -1), Add(target, 1)))
            )

    async with backups.serving(tmp_path / "old", made) as replicas:
        await apply(replicas[1], *(Put(account, b"100") for account in ACCOUNTS), *(Put(k, VALUES[k]) for k in VALUES))
        clients = [asyncio.create_task(transfer(list(replicas), number)) for number in range(4)]
        progress: list[str] = []
        back_up = asyncio.to_thread(take.take, str(tmp_path / "old"), tmp_path / "b", progress.append)
        taking = asyncio.create_task(back_up)
        await eventually(lambda: bool(progress), "the cut is made")
        await replicas.pop(0).stop()
        manifest = await taking
        over.set()
        await asyncio.gather(*clients)
    assert verify(tmp_path / "b", nothing) == manifest
    made = restored(tmp_path / "b", tmp_path / "new", replicas=1)
    async with backups.serving(tmp_path / "new", made) as replicas:
        assert await total(replicas[0]) == 100 * len(ACCOUNTS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_restore_that_is_interrupted_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    backups.make_backup(tmp_path / "backup", VALUES)
    code = "import os, signal; from kvstore import cli, identity\n"
    code += "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # who runs the tests may be told to ignore it
    code += f"identity.mark_started = lambda home: os.kill(os.getpid(), {number:d})\n"
    code += f"cli.main(['restore', {str(tmp_path / 'backup')!r}, {str(tmp_path / 'new')!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130 and "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == ["backup"]
