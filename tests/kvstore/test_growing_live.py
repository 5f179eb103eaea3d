"""A shard that is added to a live cluster, and gets its share of the slots, while clients go on."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

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


def test_who_does_not_add_shards_says_so(tmp_path: Path) -> None:
    made = make_cluster(tmp_path, 1, 3, "ft_skeen")
    with pytest.raises(ConfigError, match="the protocol ft_skeen does not change the members of a shard"):
        growing.add_shard(tmp_path, 3, "127.0.0.1", "", None, str)
    assert config.load(tmp_path) == made
