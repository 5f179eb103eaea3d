"""Journals of live replicas end: what LMDB, a checkpoint and the archive hold leaves the replica's own disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kvstore import config, host, identity
from kvstore.api.model import Get, Put, Transaction
from kvstore.core.messages import Answered
from multicast import checkpoint
from multicast.records import JournalError
from tests.kvstore.live import executed, make_cluster
from tests.multicast.live import eventually


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A checkpoint now and then, of little."""
    monkeypatch.setattr(checkpoint, "GROWTH_BYTES_MIN", 1 << 16)

    yield


def made(directory: Path, archive: str) -> config.ClusterConfig:
    limits = {"segment_bytes_max": 1 << 20, "journal_keep_bytes": 0, "commit_interval_ms": 20}
    cluster = make_cluster(directory, 1, 1, "white_box", **limits)
    cluster = msgspec.structs.replace(cluster, archive=archive)
    identity.create(directory, cluster)
    return cluster


async def write(live: host.LiveReplica, first: int, count: int) -> None:
    """Values that hardly fit together into a segment."""
    for number in range(first, first + count):
        put = Transaction((), (Put(b"k%d" % (number % 7), number.to_bytes(4, "big") + os.urandom(300_000)),))
        assert isinstance(await executed(live, live.new_message_id(), put), Answered)


async def started(directory: Path, cluster: config.ClusterConfig) -> host.LiveReplica:
    live = host.LiveReplica(directory, cluster, 0)
    await live.start()
    await eventually(lambda: not live.unready(), "it is ready")
    return live


def segments(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("journal-*.seg"))


@pytest.mark.parametrize("archive", ["archive", "none"])
async def test_a_journal_ends_and_a_restart_goes_on_from_there(tmp_path: Path, archive: str) -> None:
    cluster = made(tmp_path, archive)
    live = await started(tmp_path, cluster)
    try:
        first = 0
        while live.status()["journal_floor"] < 8:
            await write(live, first, 4)
            first += 4
            assert first < 400
    finally:
        await live.stop()
    journal = tmp_path / "replicas" / "0" / "journal"
    assert "journal-00000000.seg" not in segments(journal)
    folders = list((tmp_path / "archive" / "replicas" / "0").glob("journal-*"))
    if archive == "none":
        assert not (tmp_path / "archive").exists()
    else:
        assert segments(folders[0])[0] == "journal-00000000.seg"
        assert {*segments(folders[0]), *segments(journal)} == {
            f"journal-{number:08d}.seg" for number in range(1 + int(segments(journal)[-1][8:16]))
        }
    live = await started(tmp_path, cluster)
    try:
        found = await executed(live, live.new_message_id(), Transaction((), (Get(b"k0"),)))
        assert isinstance(found, Answered)
        await write(live, first, 8)
        assert live.status()["position"] > first
        assert not live.status().get("archive_trouble")
    finally:
        await live.stop()


async def test_an_archive_without_room_is_told_and_nothing_goes_until_there_is(tmp_path: Path) -> None:
    cluster = made(tmp_path, "archive")
    (tmp_path / "archive").write_text("in the way")
    live = await started(tmp_path, cluster)
    try:
        await write(live, 0, 16)
        await eventually(lambda: live.status()["archive_trouble"] != "", "the trouble is told")
        assert live.status()["journal_floor"] == 0 and not live.unready()
        (tmp_path / "archive").unlink()
        first = 16
        while not live.status()["journal_floor"]:
            await write(live, first, 4)
            first += 4
            assert first < 400
        assert live.status()["archive_trouble"] == ""
    finally:
        await live.stop()


async def test_who_stands_still_for_want_of_an_archive_goes_on_when_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be archived has filled the disk."""
    monkeypatch.setattr(host, "SWEEP_SECONDS", 0.05)
    cluster, full = made(tmp_path, "archive"), False
    (tmp_path / "archive").write_text("in the way")
    live = await started(tmp_path, cluster)
    monkeypatch.setattr(host, "free_bytes", lambda *_: 0 if full and not live.status()["journal_floor"] else 1 << 40)
    try:
        await write(live, 0, 16)
        await eventually(lambda: live.status()["archive_trouble"] != "", "the trouble is told")
        full = True
        await eventually(lambda: "stands still" in live.unready(), "it stands still")
        (tmp_path / "archive").unlink()
        await eventually(lambda: not live.unready(), "it goes on")
        await write(live, 16, 1)
    finally:
        await live.stop()


async def test_from_then_on_a_lost_state_is_a_lost_disk(tmp_path: Path) -> None:
    cluster = made(tmp_path, "none")
    live = await started(tmp_path, cluster)
    try:
        first = 0
        while not live.status()["journal_floor"]:
            await write(live, first, 4)
            first += 4
    finally:
        await live.stop()
    data = tmp_path / "replicas" / "0" / "data"
    data.rename(tmp_path / "away")
    live = host.LiveReplica(tmp_path, cluster, 0)
    with pytest.raises(JournalError, match=r"only deliveries after \d+, and the application .* --lost-disk"):
        await live.start()
    await live.stop()
