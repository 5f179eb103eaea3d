"""A backup, or a restore, in which something goes wrong: a replica hangs, a request is lost, the disk is full, another
command is as far. It succeeds all the same, or says what it was and leaves nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from kvstore import config, growing, identity
from kvstore.api.model import Get, Put, Transaction
from kvstore.backup import files, restore, take
from kvstore.backup.files import BackupError, read_manifest, verify
from kvstore.cluster import fetch
from kvstore.core.messages import Answered
from kvstore.host import LiveReplica
from tests.kvstore import backups
from tests.kvstore.live import executed, make_cluster
from tests.ports import free_base_port

VALUES = {b"k%d" % number: b"v" * number for number in range(20)}


def nothing(text: str) -> None:
    pass


async def fill(replica: LiveReplica) -> None:
    puts = Transaction((), tuple(Put(key, value) for key, value in VALUES.items()))
    assert isinstance(await executed(replica, replica.new_message_id(), puts), Answered)


@pytest.mark.parametrize("hangs_before", [True, False])
async def test_a_replica_that_hangs_is_waited_for_and_then_another_one_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs_before: bool
) -> None:
    """Or not waited for at all, if it has not said that it is ready."""
    monkeypatch.setattr(take, "FETCH_SECONDS", 0.3)
    monkeypatch.setattr(take, "LACK_SECONDS", 0.1)
    made = make_cluster(tmp_path / "old", 1, 3, "white_box")
    asked: list[str] = []
    described = take.described

    def hanging(url: str, seconds: float = 0.3, *rest: Any) -> tuple[int, bytes]:
        if url == f"{hangs}/readyz" and not hangs_before:
            return 200, b"ready"
        asked.append(url)
        return fetch(url, seconds, *rest)

    def with_hanging(*arguments: Any) -> Any:
        known = described(*arguments)
        known.shards[0].leader, known.shards[0].replicas[1].url = 0, hangs
        return known

    monkeypatch.setattr(take, "fetch", hanging)
    monkeypatch.setattr(take, "described", with_hanging)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hangs = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with backups.serving(tmp_path / "old", made) as replicas:
            await fill(replicas[0])
            await asyncio.to_thread(take.take, str(tmp_path / "old"), tmp_path / "b", nothing)
    assert verify(tmp_path / "b", nothing).shards[0].rows == len(VALUES)
    assert sum(url.startswith(f"{hangs}/v1/backups/") for url in asked) == (not hangs_before)


async def test_whichever_request_fails_there_is_a_backup_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is lost, or its answer; or what answers is something else."""
    monkeypatch.setattr(take, "PAUSE_SECONDS", 0.0)
    made = make_cluster(tmp_path / "old", 1, 2, "white_box")
    source, count, fails_at, whole = str(tmp_path / "old"), 0, 0, 0

    def lost(*arguments: Any) -> tuple[int, bytes]:
        raise ConnectionResetError

    def answer_lost(*arguments: Any) -> tuple[int, bytes]:
        fetch(*arguments)
        raise TimeoutError

    def something_else(*arguments: Any) -> tuple[int, bytes]:
        return 200, b"<html>"

    def failing(*arguments: Any) -> tuple[int, bytes]:
        nonlocal count
        count += 1
        return (fate if count == fails_at else fetch)(*arguments)

    fate = fetch
    monkeypatch.setattr(take, "fetch", failing)
    async with backups.serving(tmp_path / "old", made) as replicas:
        await fill(replicas[0])
        for fate in (lost, answer_lost, something_else):  # noqa: B007
            fails_at, count = 1, 1
            while count >= fails_at:
                count = 0
                await asyncio.to_thread(take.take, source, tmp_path / "b", nothing)
                assert verify(tmp_path / "b", nothing).shards[0].rows == len(VALUES)
                shutil.rmtree(tmp_path / "b")
                fails_at, whole = fails_at + 1, whole + 1
    assert os.listdir(tmp_path) == ["old"] and whole >= 3 * 4


async def test_who_does_not_know_all_shards_yet_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes back after a shard was added, say; and not asked, if another one is ready."""
    made = make_cluster(tmp_path / "old", 2, 1, "white_box")
    described, asked = take.described, list[list[str]]()
    progress: list[str] = []

    def behind(urls: list[str], *rest: str) -> Any:
        known = described(urls, *rest)
        asked.append(urls)
        if len(asked) == 2:
            known.shards.pop()
        return known

    monkeypatch.setattr(take, "described", behind)
    async with backups.serving(tmp_path / "old", made) as replicas:
        await fill(replicas[0])
        await asyncio.to_thread(growing.move_slots, tmp_path / "old", 0, 1, [(0, 9)], nothing)
        await asyncio.to_thread(take.take, str(tmp_path / "old"), tmp_path / "b", progress.append)
        monkeypatch.setattr(take, "_serving", lambda _: {made.replicas[1].url})
        shutil.rmtree(tmp_path / "b")
        await asyncio.to_thread(take.take, str(tmp_path / "old"), tmp_path / "b", nothing)
    assert progress[1] == "not every replica knows shard 1 yet: another cut is made"
    assert sum(shard.rows for shard in verify(tmp_path / "b", nothing).shards) == len(VALUES)
    assert asked[-1] == [made.replicas[1].url, made.replicas[0].url]


@pytest.mark.parametrize("status", [401, 403])
def test_who_may_not_make_a_backup_is_told_at_once(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    asked: list[str] = []

    def refusing(url: str, *_: Any) -> tuple[int, bytes]:
        asked.append(url)
        return status, b"not you"

    monkeypatch.setattr(take, "fetch", refusing)
    with pytest.raises(BackupError, match="no cut was made: http://one: not you"):
        take._cut(["http://one", "http://other"])
    assert len(asked) == 1


async def test_a_full_disk_is_not_taken_for_a_failure_of_the_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_cluster(tmp_path / "old", 1, 1, "white_box")
    progress: list[str] = []

    def full(path: Path, mode: str) -> Any:
        return open("/dev/full", "wb")

    async with backups.serving(tmp_path / "old", made) as replicas:
        await fill(replicas[0])
        monkeypatch.setattr(files, "open", full, raising=False)
        with pytest.raises(BackupError, match=r"shard-0.rows: No space left on device$"):
            await asyncio.to_thread(take.take, str(tmp_path / "old"), tmp_path / "b", progress.append)
    assert len(progress) == 1 and progress[0].startswith("cut at")
    assert os.listdir(tmp_path) == ["old"]


async def test_of_two_backups_to_one_place_the_later_one_leaves_the_other_as_it_is(tmp_path: Path) -> None:
    made = make_cluster(tmp_path / "old", 1, 1, "white_box")

    def other(_: str) -> None:
        (tmp_path / "b").mkdir(exist_ok=True)
        (tmp_path / "b" / "other").touch()

    async with backups.serving(tmp_path / "old", made) as replicas:
        await fill(replicas[0])
        with pytest.raises(BackupError, match="b exists already, since a moment ago; it was not changed"):
            await asyncio.to_thread(take.take, str(tmp_path / "old"), tmp_path / "b", other)
    assert os.listdir(tmp_path / "b") == ["other"] and sorted(os.listdir(tmp_path)) == ["b", "old"]


async def test_what_a_restore_has_left_that_was_killed_is_not_in_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may have the same number: in a container they all do."""
    backups.make_backup(tmp_path / "other", {b"other%d" % number: b"x" for number in range(20)})
    backups.make_backup(tmp_path / "wanted", VALUES)
    made = config.new_cluster(
        shards=1, replicas=1, protocol="white_box", cluster_id="cd" * 16, base_port=free_base_port(1)
    )

    class Killed(BaseException):
        pass

    def killed(home: Path) -> None:
        raise Killed

    def run(backup: str) -> None:
        fitted = restore.fitted(read_manifest(tmp_path / backup), made)
        restore.restore(tmp_path / backup, tmp_path / "new", fitted, nothing)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(identity, "mark_started", killed)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        run("other")
    run("wanted")
    async with backups.serving(tmp_path / "new", config.load(tmp_path / "new")) as replicas:
        reads = tuple(Get(key) for key in (*VALUES, b"other0", b"other1"))
        answer = await executed(replicas[0], replicas[0].new_message_id(), Transaction((), reads))
        assert isinstance(answer, Answered)
        assert {one.found.key: one.found.value for one in answer.result.results if one.found} == VALUES
