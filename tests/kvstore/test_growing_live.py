"""A shard that is added to a live cluster, and gets its share of the slots, while clients go on."""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvstore import cluster, config, growing
from kvstore.api.shard_map import SLOTS, ShardMap
from kvstore.cluster import ClusterError
from kvstore.config import ConfigError
from kvstore.process import Handle
from tests.kvstore.live import Replica, answered, leader_of, make_cluster, running_cluster, wait_until
from tests.ports import free_base_port

ACCOUNTS = [f"account/{i}" for i in range(20)]


def total(kv: Replica) -> int:
    """Of all accounts, by a range over all shards."""
    answer = answered(lambda: kv("GET", "/v1/kv?prefix=account/&limit=100"))
    assert answer.status == 200, answer
    return sum(int(entry["value"]) for entry in answer.json["entries"])


def slots_of(replica: Replica) -> dict[int, int]:
    owners = ShardMap.from_json(replica("GET", "/v1/cluster").json["shard_map"]).slots
    return {shard: owners.count(shard) for shard in set(owners)}


def grow_under_transfers(directory: Path, protocol: str) -> None:
    """Add a shard, kill the leader of the first one, move half of the slots."""
    with running_cluster(directory, 1, 3, protocol) as replicas:
        replicas[0].applied({"success": [{"op": "put", "key": a, "value": "100"} for a in ACCOUNTS]})
        done = threading.Event()
        seen: list[int] = []

        def transfer() -> None:
            for i in range(10_000):
                if done.is_set():
                    return
                kv, one, other = replicas[i // 11 % 3], ACCOUNTS[i % 20], ACCOUNTS[(7 * i + 1) % 20]
                operations = [{"op": "add", "key": one, "delta": -1}, {"op": "add", "key": other, "delta": 1}]
                with suppress(OSError):  # it was killed
                    status = kv.txn({"success": operations}).status
                    assert status in (200, 503, 504), status
                    if i % 10 == 0:
                        seen.append(total(kv))

        said: list[str] = []
        base = free_base_port(3)
        ports = base, base + config.HTTP_PORT_OFFSET
        shard, started = 0, []
        transfers = threading.Thread(target=transfer)
        transfers.start()
        try:
            shard, started = growing.add_shard(directory, 3, "127.0.0.1", "", ports, said.append)
            assert shard == 1 and [one.replica.id for one in started] == [3, 4, 5]
            assert slots_of(replicas[1]) == {0: SLOTS} and config.load(directory).added_shards == (1,)
            leader = leader_of(replicas[0], 0)
            victim = Handle.of(config.replica_directory(directory, leader))
            assert victim is not None
            victim.send(signal.SIGKILL)
            assert victim.wait(60)
            victim.close()
            growing.rebalance(directory, shard, said.append)
            some = len(seen)
            wait_until(lambda: len(seen) > some + 2 or not transfers.is_alive())
            done.set()
            transfers.join()
            assert len(seen) > some and set(seen) == {2000}
            new = Replica("127.0.0.1", started[1].replica.http_port)
            wait_until(lambda: slots_of(new) == {0: SLOTS // 2, 1: SLOTS // 2})
            assert total(new) == 2000
            started_again = cluster.start(directory, config.load(directory), config.load(directory).replica(leader))
            try:
                wait_until(lambda: cluster.is_ready(started_again.replica))
                assert total(replicas[leader]) == 2000, "who was down meanwhile knows the shard"
            finally:
                cluster.stop_started(directory, [started_again], said.append)
        finally:
            done.set()
            transfers.join()
            cluster.stop_started(directory, started, said.append)


def test_a_shard_is_added_under_transfers_and_the_death_of_a_leader(tmp_path: Path) -> None:
    grow_under_transfers(tmp_path, "white_box")


def test_after_a_failure_the_same_command_goes_on_with_the_same_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which it knows by its slots, whatever the failure: a shard stays for ever."""
    started: list[cluster.Started] = []
    said: list[str] = []

    def start(*arguments: Any, **options: Any) -> cluster.Started:
        started.append(cluster.start(*arguments, **options))
        return started[-1]

    def fail(*_: object) -> None:
        raise ClusterError("not known to be moved")

    def add(even: bool) -> int:
        return growing.add_shard(tmp_path, 1, "127.0.0.1", "", None, said.append, even=even)[0]

    monkeypatch.setattr(growing, "start", start)
    with running_cluster(tmp_path, 1, 1, "white_box") as replicas:
        try:
            with monkeypatch.context() as patch, pytest.raises(ClusterError, match="not known"):
                patch.setattr(growing, "rebalance", fail)
                add(even=True)
            assert slots_of(replicas[0]) == {0: SLOTS}
            assert add(even=False) == 1 and "shard 1 was begun before: this goes on with it" in said
            growing.move_slots(tmp_path, 0, 1, [(SLOTS - 9, SLOTS - 1)], said.append)
            cluster.stop_started(tmp_path, started, said.append)
            assert add(even=True) == 1 and len(started) == 2, "it was down, and is there again"
            assert config.load(tmp_path).added_shards == (1,)
            wait_until(lambda: slots_of(replicas[0]) == {0: SLOTS // 2, 1: SLOTS // 2})
            assert add(even=True) == 2, "nothing was left to be done"
        finally:
            cluster.stop_started(tmp_path, started, said.append)


def test_a_machine_with_an_older_file_gives_nobody_the_id_of_another(tmp_path: Path) -> None:
    """Nor a new shard the number of one that another machine has added."""
    here, there = tmp_path / "here", tmp_path / "there"
    base = free_base_port(8)
    with running_cluster(here, 2, 1, "white_box") as replicas:
        there.mkdir()
        config.save(there, config.load(here))
        started = []
        try:
            for i, (directory, shard) in enumerate([(here, 0), (there, 1)]):
                ports = base + 2 * i, base + 2 * i + 1
                started.append(growing.add_replica(directory, shard, "127.0.0.1", "", ports, str))
            assert [one.replica.id for one in started] == [2, 3]
            for i, directory in enumerate([here, there], start=2):
                ports = base + 2 * i, base + 2 * i + 1
                shard, founders = growing.add_shard(directory, 1, "127.0.0.1", "", ports, str)
                started += founders
                assert shard == i and [one.replica.id for one in founders] == [i + 2]
            shards = replicas[0]("GET", "/v1/cluster").json["shards"]
            members = {shard["id"]: [replica["id"] for replica in shard["replicas"]] for shard in shards}
            assert members == {0: [0, 2], 1: [1, 3], 2: [4], 3: [5]}
            wait_until(lambda: all(cluster.is_ready(replica) for replica in config.load(here).present))
        finally:
            cluster.stop_started(here, started, str)


def test_of_a_shard_that_cannot_start_nothing_is_left(tmp_path: Path) -> None:
    """The next one may have other ports."""
    with running_cluster(tmp_path, 1, 1, "white_box"):
        made, base = config.load(tmp_path), free_base_port(4)
        says = f"replica 2: peer port {base + 1} on 127.0.0.1 is in use"
        with socket.create_server(("127.0.0.1", base + 1)), pytest.raises(ClusterError, match=says):
            growing.add_shard(tmp_path, 2, "127.0.0.1", "", (base, base + 2), str)
        assert config.load(tmp_path) == made
        assert sorted(path.name for path in (tmp_path / "replicas").iterdir()) == ["0"]
        shard, started = growing.add_shard(tmp_path, 1, "127.0.0.1", "", (base + 1, base + 2), str)
        cluster.stop_started(tmp_path, started, str)
        assert shard == 1


def test_of_a_replica_whose_command_was_interrupted_before_its_shard_was_told_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: cluster.Started) -> None:
        raise KeyboardInterrupt

    with running_cluster(tmp_path, 1, 1, "white_box"):
        made, base = config.load(tmp_path), free_base_port(2)
        monkeypatch.setattr(growing, "_wait_alive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            growing.add_replica(tmp_path, 0, "127.0.0.1", "", (base, base + 1), str)
        assert config.load(tmp_path) == made
        assert sorted(path.name for path in (tmp_path / "replicas").iterdir()) == ["0"]


def test_next_ports_are_free_of_all_others() -> None:
    made = config.new_cluster(shards=1, replicas=3, protocol="white_box", cluster_id="ab" * 16, base_port=1000)
    made = made.with_replica(msgspec.structs.replace(made.replica(1), peer_port=1103, http_port=1104))
    assert growing._next_ports(made, 3) == (1105, 1205)


def test_who_does_not_add_shards_says_so(tmp_path: Path) -> None:
    made = make_cluster(tmp_path, 1, 3, "ft_skeen")
    with pytest.raises(ConfigError, match="the protocol ft_skeen does not change the members of a shard"):
        growing.add_shard(tmp_path, 3, "127.0.0.1", "", None, str)
    assert config.load(tmp_path) == made
