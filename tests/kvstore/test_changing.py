"""One operator's command changes a cluster at a time, and none writes over what it has not read; real processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvstore import changing, cli, cluster, config, growing, replacing
from kvstore.config import ConfigError
from kvstore.identity import create
from tests.ports import free_base_port

HOLD = """
import sys, pathlib
from kvstore import changing
with changing.alone(pathlib.Path(sys.argv[1]), *sys.argv[2:]):
    print("held", flush=True)
    sys.stdin.read()
"""
COUNT = """
import sys, pathlib, msgspec
from kvstore import changing
for _ in range(40):
    changing.update(pathlib.Path(sys.argv[1]), lambda now: msgspec.structs.replace(now, epoch=now.epoch + 1))
"""

ADOPT = """
import sys, pathlib
from kvstore.founding import adopt
for _ in range(60):
    adopt(*map(pathlib.Path, sys.argv[1:]))
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a cluster of which nothing runs."""
    made = config.new_cluster(
        shards=1, replicas=3, protocol="white_box", cluster_id="ab" * 16, base_port=free_base_port(3)
    )
    create(tmp_path, made)
    return tmp_path


def python(*arguments: str) -> subprocess.Popen[str]:
    """A process that we talk to."""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def command(*arguments: str) -> tuple[int, str]:
    """`kvstore ...`: its exit status, and its last line on standard error."""
    done = subprocess.run([sys.executable, "-m", "kvstore", *arguments], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr.strip().splitlines()[-1]


def test_of_two_commands_at_a_time_the_second_changes_nothing_and_says_who_is_first(directory: Path) -> None:
    before = (directory / config.CLUSTER_FILE).read_bytes()
    first = python("-c", HOLD, str(directory))
    assert first.stdout is not None and first.stdout.readline() == "held\n"
    try:
        for asked in (
            lambda: growing.add_replica(directory, 0, "127.0.0.1", "", None, str),
            lambda: growing.add_shard(directory, 3, "127.0.0.1", "", None, str),
            lambda: growing.remove_replica(directory, 2, str),
            lambda: replacing.replace_replica(directory, 1, {}, directory, str),
            lambda: cluster.restart(directory, str),
        ):
            with pytest.raises(ConfigError, match=f"another command .process {first.pid}. is changing this cluster"):
                asked()
        status, said = command("cluster", "remove-replica", str(directory), "2")
        assert status == 1 and f"another command (process {first.pid}) is changing this cluster" in said, said
        status, said = command("certs", str(directory), "--renew")
        assert status == 1 and f"another command (process {first.pid}) is changing this cluster" in said, said
    finally:
        first.kill()  # the kernel takes its lock back
        first.communicate()
    assert (directory / config.CLUSTER_FILE).read_bytes() == before
    with changing.alone(directory):
        changing.update(directory, lambda now: msgspec.structs.replace(now, epoch=7))
    assert config.load(directory).epoch == 7


def test_of_two_commands_that_move_slots_the_second_moves_nothing(directory: Path) -> None:
    """Each step of one would begin the other one anew, and neither would end. Meanwhile a replica may be replaced."""
    first = python("-c", HOLD, str(directory), changing.MOVE_LOCK)
    assert first.stdout is not None and first.stdout.readline() == "held\n"
    try:
        for asked in (
            lambda: growing.move_slots(directory, 0, 1, [(0, 9)], str),
            lambda: growing.give_up(directory, 0, 1, str),
        ):
            with pytest.raises(ConfigError, match=f"another command .process {first.pid}. is changing this cluster"):
                asked()
        with changing.alone(directory):
            pass
    finally:
        first.kill()
        first.communicate()


def test_processes_that_write_it_at_a_time_lose_nothing(
    directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Among them a replica that is started with the file of all machines, which takes its members from its own."""
    given = tmp_path_factory.mktemp("given") / "cluster.json"
    given.write_bytes((directory / config.CLUSTER_FILE).read_bytes())
    writers = [python("-c", COUNT, str(directory)) for _ in range(3)]
    writers.append(python("-c", ADOPT, str(directory), str(given)))
    for writer in writers:
        _, said = writer.communicate(timeout=60)
        assert writer.returncode == 0, said
    assert config.load(directory).epoch == 3 * 40


def test_what_was_changed_since_it_was_read_is_not_written_over(directory: Path) -> None:
    before = config.load(directory)
    by_hand = msgspec.structs.replace(before, dedup_window_ms=60_000)
    config.save(directory, by_hand)
    with pytest.raises(ConfigError, match="has been changed since this command read it"):
        changing.replace(directory, before, msgspec.structs.replace(before, epoch=1))
    assert config.load(directory) == by_hand
    changing.replace(directory, by_hand, before)
    assert config.load(directory) == before


@pytest.mark.parametrize("asked", [["add-replica", "0"], ["add-shard"]])
def test_a_port_that_is_said_is_not_passed_over(directory: Path, asked: list[str]) -> None:
    before = (directory / config.CLUSTER_FILE).read_bytes()
    status, said = command("cluster", asked[0], str(directory), *asked[1:], "--peer-port", "7999")
    assert status == 1 and "--peer-port and --http-port: give both of them, or none" in said
    assert (directory / config.CLUSTER_FILE).read_bytes() == before


def test_a_full_disk_is_named_with_the_file_and_nothing_is_left(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before, names = (directory / config.CLUSTER_FILE).read_bytes(), {*os.listdir(directory)}
    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(SystemExit) as ended:
        cli.main(["auth", "root", str(directory)])
    told = capsys.readouterr().err
    assert ended.value.code == 1 and f"No space left on device: {directory / config.CLUSTER_FILE}" in told
    assert (directory / config.CLUSTER_FILE).read_bytes() == before
    assert {*os.listdir(directory)} - names == {changing.COMMAND_LOCK, changing.FILE_LOCK}


def test_of_two_commands_that_make_a_cluster_in_one_place_one_does(tmp_path: Path) -> None:
    there = tmp_path / "run"
    made = [
        python("-m", "kvstore", "cluster", "init", str(there), "--shards", "1", "--replicas", str(number))
        for number in (1, 3)
    ]
    said = [process.communicate(timeout=60) for process in made]
    ends = [process.returncode for process in made]
    assert sorted(ends) == [0, 1], said
    winner = ends.index(0)
    lost = said[1 - winner][1]
    assert "exists already; nothing was changed" in lost or "another command" in lost
    assert len(config.load(there).replicas) == (1, 3)[winner] == len(list((there / "replicas").iterdir()))


def test_who_makes_a_cluster_only_if_there_is_none_finds_that_another_command_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After it has looked, and before it would make one."""
    made = config.new_cluster(
        shards=1, replicas=1, protocol="white_box", cluster_id="ab" * 16, base_port=free_base_port(1)
    )
    new_cluster = config.new_cluster

    def meanwhile(**asked: Any) -> config.ClusterConfig:
        create(tmp_path, made)
        return new_cluster(**asked)

    monkeypatch.setattr(config, "new_cluster", meanwhile)
    with pytest.raises(SystemExit) as ended:
        cli.main(["cluster", "init", str(tmp_path), "--once"])
    assert ended.value.code == 0
    assert f"cluster {'ab' * 16} as it was" in capsys.readouterr().out
    assert config.load(tmp_path) == made
