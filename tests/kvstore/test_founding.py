"""A replica with an empty directory begins with all others, or comes back without its disk; it never invents itself."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import pytest

from client_sdk import Client
from kvstore import config, founding, identity
from kvstore.api.cluster import BEGUN, CLAIMED, EMPTY
from kvstore.cluster import is_ready
from kvstore.config import ConfigError, replica_directory
from kvstore.founding import next_step, state_of
from tests.house import ROOT
from tests.kvstore.live import wait_until
from tests.ports import free_base_port

Rule = Callable[[str, Sequence[str | None]], str]
World = tuple[tuple[str, str | None, bool], tuple[str, str | None, bool]]
"""Of two replicas: how far it is, what it was told last of the other in this life, whether the other has heard it."""


def following(world: World, rule: Rule) -> Iterator[World]:
    """What may happen next. AssertionError: who was heard begins as if he were new."""
    for i in (0, 1):
        (own, told, heard), (other, _, _) = world[i], world[1 - i]
        step = rule(own, [told])
        assert not (step == CLAIMED and heard), world
        begins = own == CLAIMED and step == BEGUN
        mine = {CLAIMED: CLAIMED, BEGUN: BEGUN}.get(step if own != BEGUN else "", own)
        asked = ((own, other, heard), world[1 - i])
        silent = ((own, None, heard), world[1 - i])
        stepped = ((mine, None if begins else told, heard), world[1 - i])
        wiped = ((EMPTY, None, heard), (*world[1 - i][:2], False))
        for one, another in (asked, silent, stepped, wiped):
            both = one[0] == another[0] == BEGUN
            pair = (*one[:2], one[2] or both), (*another[:2], another[2] or both)
            yield pair if i == 0 else (pair[1], pair[0])


def all_worlds(rule: Rule) -> set[World]:
    begin: World = ((EMPTY, None, False), (EMPTY, None, False))
    found, new = {begin}, [begin]
    while new:
        for world in following(new.pop(), rule):
            if world not in found:
                found.add(world)
                new.append(world)
    return found


def test_whoever_was_heard_never_begins_anew_whatever_is_lost_and_whoever_is_down() -> None:
    worlds = all_worlds(next_step)
    assert any(one[0] == other[0] == BEGUN for one, other in worlds) and len(worlds) > 30


def test_a_rule_that_does_not_wait_for_those_who_are_down_is_noticed() -> None:
    def hasty(own: str, told: Sequence[str | None]) -> str:
        return next_step(own, [state or CLAIMED for state in told])

    with pytest.raises(AssertionError):
        all_worlds(hasty)


def three() -> config.ClusterConfig:
    return config.new_cluster(
        shards=1, replicas=3, protocol="white_box", cluster_id="0" * 32, base_port=free_base_port(3)
    )  # fmt: skip


async def reached(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        with suppress(OSError):
            return await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.01)


async def test_all_begin_together_and_who_is_emptied_afterwards_comes_back_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = three()
    monkeypatch.setattr(founding, "ASK_SECONDS", 0.02)
    config.save(tmp_path, made)
    ask = founding._ask

    def ask_also_who_has_begun(cluster: config.ClusterConfig, other: config.ReplicaConfig) -> str | None:
        """Who has begun answers as a replica, which nobody is here."""
        return ask(cluster, other) or (CLAIMED if state_of(tmp_path, other) == CLAIMED else None)

    monkeypatch.setattr(founding, "_ask", ask_also_who_has_begun)
    lost = await asyncio.gather(*(founding.wait_to_begin(tmp_path, made, me, None) for me in made.replicas))
    assert lost == [False] * 3 and [state_of(tmp_path, me) for me in made.replicas] == [CLAIMED] * 3
    for me in made.replicas[:2]:
        identity.mark_started(replica_directory(tmp_path, me.id))
    emptied = made.replicas[2]
    shutil.rmtree(replica_directory(tmp_path, emptied.id))
    monkeypatch.setattr(founding, "_ask", lambda _, other: state_of(tmp_path, other))
    assert await founding.wait_to_begin(tmp_path, made, emptied, None)
    assert state_of(tmp_path, emptied) == EMPTY


async def test_whoever_asks_in_the_last_moment_is_not_left_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is who cannot be answered, as what lies in the directory cannot be read just then."""
    made, told = three(), dict[int, str | None]()
    config.save(tmp_path, made)
    monkeypatch.setattr(founding, "ASK_SECONDS", 0.02)
    monkeypatch.setattr(founding, "_ask", lambda _, other: told.get(other.id))
    waiting = asyncio.create_task(founding.wait_to_begin(tmp_path, made, made.replicas[0], None))
    unlucky, unlucky_writer = await reached(made.replicas[0].http_port)
    reader, writer = await reached(made.replicas[0].http_port)
    writer.write(b"GET /v1/founding HTTP/1.1")
    with monkeypatch.context() as patched:
        patched.setattr(founding._Answers, "to", lambda *_: (_ for _ in ()).throw(ConfigError("unreadable")))
        unlucky_writer.write(b"GET /v1/founding HTTP/1.1\r\n")
        assert await asyncio.wait_for(unlucky.read(), 1) == b"" and not caplog.records
    told[1] = founding.BEGUN
    assert await asyncio.wait_for(waiting, 5)
    with suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 1) == b""
    for one in (writer, unlucky_writer):
        one.close()


def test_a_directory_keeps_who_belongs_to_its_cluster_and_takes_all_else_as_it_is_given(tmp_path: Path) -> None:
    given, other = tmp_path / "given.json", tmp_path / "other.json"
    made = config.new_cluster(shards=1, replicas=3, protocol="white_box", cluster_id="0" * 32)
    given.write_bytes(config.json_text(made))
    assert founding.adopt(tmp_path / "home", given) == made
    moved = msgspec.structs.replace(made.replicas[1], host="127.0.0.7", since=1)
    config.save(tmp_path / "home", made.with_replica(moved))
    guarded = msgspec.structs.replace(made, root="ab" * 32)
    given.write_bytes(config.json_text(guarded))
    assert founding.adopt(tmp_path / "home", given) == guarded.with_replica(moved)
    other.write_bytes(config.json_text(msgspec.structs.replace(made, cluster_id="1" * 32)))
    with pytest.raises(ConfigError, match=f"is of cluster {'0' * 32}, and .*other.json of {'1' * 32}"):
        founding.adopt(tmp_path / "home", other)


def test_who_waits_for_others_does_not_end_by_the_signal_to_read_certificates_again(tmp_path: Path) -> None:
    made = config.new_cluster(
        shards=1, replicas=3, protocol="white_box", cluster_id=os.urandom(16).hex(), base_port=free_base_port(3)
    )  # fmt: skip
    (tmp_path / "given.json").write_bytes(config.json_text(made))
    command = [sys.executable, "-m", "kvstore", "serve", "--dir", str(tmp_path / "0"), "--replica", "0"]
    command += ["--bootstrap", str(tmp_path / "given.json")]
    environment, said = {**os.environ, "PYTHONPATH": str(ROOT)}, tmp_path / "said"
    with said.open("wb") as log, subprocess.Popen(command, env=environment, stderr=log) as waiting:
        try:
            wait_until(lambda: "waiting for others" in said.read_text())
            waiting.send_signal(signal.SIGHUP)
            wait_until(lambda: waiting.poll() is not None or "read certificates again" in said.read_text())
            assert waiting.poll() is None
        finally:
            waiting.kill()


def test_one_command_is_right_at_the_first_start_and_after_the_loss_of_a_disk(tmp_path: Path) -> None:
    """Each on a machine of its own, which has nothing but the configuration."""
    port = free_base_port(3)
    cluster_id = os.urandom(16).hex()
    made = config.new_cluster(shards=1, replicas=3, protocol="white_box", cluster_id=cluster_id, base_port=port)
    (tmp_path / "given.json").write_bytes(config.json_text(made))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(replica: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "kvstore", "serve", "--dir", str(tmp_path / str(replica))]
        command += ["--replica", str(replica), "--bootstrap", str(tmp_path / "given.json")]
        return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    with ExitStack() as ended:
        running = []
        for replica in range(3):
            running.append(ended.enter_context(start(replica)))
            ended.callback(running[-1].kill)
        wait_until(lambda: all(map(is_ready, made.replicas)), 60)
        with Client(made.replicas[0].url, timeout=60) as client:
            client.put("a", "1")
            running[2].kill()
            running[2].wait()
            shutil.rmtree(tmp_path / "2")
            ended.enter_context(again := start(2))
            ended.callback(again.kill)
            wait_until(lambda: is_ready(made.replicas[2]), 60)
            assert identity.read(replica_directory(tmp_path / "2", 2)).lost_disk
            found = client.get("a")
            assert found is not None and found.value == b"1"
