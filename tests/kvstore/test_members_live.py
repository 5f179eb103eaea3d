"""Replicas that are added to a live cluster and removed from it, while clients go on."""

from __future__ import annotations

import asyncio
import shutil
import signal
import threading
from pathlib import Path

import msgspec
import pytest

from kvstore import cluster, config, growing, identity, replacing
from kvstore.api.cluster import ClusterJson
from kvstore.cluster import ClusterError
from kvstore.config import ConfigError
from kvstore.process import Handle, running
from tests.kvstore.live import Replica, leader_of, make_cluster, running_cluster, wait_until
from workloads import bank

ACCOUNTS, SECONDS = 8, 60.0
"""Of the bank, which ends when enough was asked."""


def members_of(replica: Replica, shard: int) -> list[int]:
    return [member["id"] for member in replica("GET", "/v1/cluster").json["shards"][shard]["replicas"]]


def kill(directory: Path, replica_id: int) -> None:
    victim = Handle.of(config.replica_directory(directory, replica_id))
    assert victim is not None
    victim.send(signal.SIGKILL)
    assert victim.wait(60)
    victim.close()


def change_members_under_the_bank(directory: Path, protocol: str) -> None:
    """Add a replica, kill the leader, remove another old replica."""
    with running_cluster(directory, 2, 3, protocol) as replicas:
        made = config.load(directory)
        found: list[bank.Totals] = []
        changed = threading.Event()

        def transfer() -> None:
            urls, stop = [replica.url for replica in made.replicas], asyncio.Event()

            def enough(_: float, totals: bank.Totals) -> None:
                if changed.is_set() and totals.transfers:
                    stop.set()

            run = bank.run(
                urls, directory=directory, clients=2, accounts=ACCOUNTS, seconds=SECONDS, stop=stop, on_second=enough
            )
            found.append(asyncio.run(run)[0])

        transfers = threading.Thread(target=transfer)
        transfers.start()
        said: list[str] = []
        added = growing.add_replica(directory, 0, "127.0.0.1", "", None, said.append)
        try:
            assert added.replica.id == 6 and config.load(directory).epoch == 1
            wait_until(lambda: members_of(replicas[4], 0) == [0, 1, 2, 6])
            leader = leader_of(replicas[4], 0)
            kill(directory, leader)
            gone = next(replica for replica in (1, 2, 0) if replica != leader)
            growing.remove_replica(directory, gone, said.append)
            assert running(config.replica_directory(directory, gone)) is None
            assert f"replica {gone} was removed from its shard" in (
                config.replica_directory(directory, gone) / cluster.LOG_FILE
            ).read_text()
            left = [replica for replica in (0, 1, 2, 6) if replica != gone]
            wait_until(lambda: members_of(replicas[4], 0) == left)
            everybody = {str(one) for one in (*left, 3, 4, 5)}  # who was removed is missed by no alert
            wait_until(lambda: {*replicas[4]("GET", "/v1/cluster").json["replica"]["peers"]} == everybody - {"4"})
            changed.set()
            transfers.join()
            assert found[0].transfers > 0 and found[0].wrong_totals == 0
            with pytest.raises(ClusterError, match="id is not used again"):
                growing._have_changed(config.load(directory), 0, {"add": made.replica(gone)}, gone)
        finally:
            changed.set()
            cluster.stop_started(directory, [added], said.append)


@pytest.mark.parametrize("protocol", ["white_box"])
def test_members_change_under_the_bank(tmp_path: Path, protocol: str) -> None:
    change_members_under_the_bank(tmp_path, protocol)


def test_nobody_is_added_while_the_shard_would_wait_for_who_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would need the new one, which has nothing yet. Nothing is left of the attempt, and the shard goes on."""
    with running_cluster(tmp_path, 1, 3, "white_box") as replicas:
        before = config.load(tmp_path)
        kill(tmp_path, 2)
        wait_until(lambda: not replicas[0]("GET", "/v1/cluster").json["replica"]["peers"]["2"]["connected"])
        wait_until(lambda: not replicas[1]("GET", "/v1/cluster").json["replica"]["peers"]["2"]["connected"])
        with monkeypatch.context() as patch:
            patch.setattr(growing, "CHANGE_SECONDS", 0.0)
            with pytest.raises(growing.Unchanged, match=r"4 replicas, for these take no part in it now: 2\b"):
                growing.add_replica(tmp_path, 0, "127.0.0.1", "", None, str)
        assert config.load(tmp_path) == before
        assert running(config.replica_directory(tmp_path, 3)) is None
        wait_until(lambda: replicas[0]("PUT", "/v1/kv/key", b"value").status == 200)
        again = cluster.up(tmp_path, str)
        try:
            again.append(growing.add_replica(tmp_path, 0, "127.0.0.1", "", None, str))
            wait_until(lambda: members_of(replicas[0], 0) == [0, 1, 2, 3])
        finally:
            cluster.stop_started(tmp_path, again, str)


def test_of_a_refused_replica_nothing_is_left_and_another_shard_may_have_the_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_cluster(tmp_path, 2, 3, "white_box")
    home = config.replica_directory(tmp_path, 6)
    asked = []

    def refuse(known: config.ClusterConfig, shard: int, *_: object) -> None:
        assert running(home) is not None
        asked.append(shard)
        raise growing.Unchanged(f"shard {shard} was not changed")

    monkeypatch.setattr(growing, "_have_changed", refuse)
    monkeypatch.setattr(growing, "_told_by", lambda *_: ClusterJson(cluster_id="", shard_map={}, shards=[]))
    for shard in (0, 1):
        with pytest.raises(growing.Unchanged, match=f"shard {shard} was not changed"):
            growing.add_replica(tmp_path, shard, "127.0.0.1", "", None, str)
        assert config.load(tmp_path) == made and not home.exists()
    assert asked == [0, 1]
    (home / "journal").mkdir(parents=True)
    (home / "journal" / "journal-00000000.seg").touch()
    with pytest.raises(ConfigError, match=r"replicas/6 has data, .* begin there: move it; nothing was changed"):
        growing.add_replica(tmp_path, 0, "127.0.0.1", "", None, str)
    with pytest.raises(ConfigError, match=r"replicas/6 has data, .* begin there: move it; nothing was changed"):
        growing.add_shard(tmp_path, 1, "127.0.0.1", "", None, str)
    assert config.load(tmp_path) == made and home.is_dir()


def test_who_does_not_change_members_says_so(tmp_path: Path) -> None:
    made = make_cluster(tmp_path, 1, 3, "ft_skeen")
    with pytest.raises(ConfigError, match="the protocol ft_skeen does not change the members of a shard"):
        growing.add_replica(tmp_path, 0, "127.0.0.1", "", None, str)
    with pytest.raises(ConfigError, match="the protocol ft_skeen does not change the members of a shard"):
        growing.remove_replica(tmp_path, 0, str)
    assert config.load(tmp_path) == made


@pytest.mark.parametrize(("first", "says"), [(200, "shard 0 may have been changed"), (401, "shard 0 was not changed")])
def test_of_what_was_begun_nobody_says_that_it_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, says: str
) -> None:
    """One has taken it, and the next one wants a token."""
    made = make_cluster(tmp_path, 1, 3, "white_box")
    answers = iter([(first, b'{"done": false, "detail": "no"}'), (401, b'{"detail": "a token"}')])
    monkeypatch.setattr(growing, "fetch", lambda *_, **__: next(answers))
    with pytest.raises(ClusterError, match=says) as refused:
        growing._have_changed(made, 0, {"remove": 2})
    assert isinstance(refused.value, growing.Unchanged) is (first == 401)


def test_a_removed_replica_is_neither_restarted_nor_replaced(tmp_path: Path) -> None:
    made = make_cluster(tmp_path, 1, 3, "white_box")
    gone = made.with_replica(msgspec.structs.replace(made.replica(1), removed=True))
    config.save(tmp_path, gone)
    with pytest.raises(ConfigError, match="replica 1 was removed from its shard"):
        cluster.restart(tmp_path, str, only=[1])
    with pytest.raises(ConfigError, match="replica 1 was removed from its shard"):
        replacing.replace_replica(tmp_path, 1, {}, tmp_path, str)
    assert config.load(tmp_path) == gone and config.replica_directory(tmp_path, 1).is_dir()


def test_a_removed_replica_that_stands_still_ends_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two of them one is ended with the cluster, for whoever removed it did not wait."""
    monkeypatch.setattr(growing, "KILL_GRACE_SECONDS", 0.5)
    with running_cluster(tmp_path, 1, 3, "white_box"):
        made = config.load(tmp_path)
        homes = [config.replica_directory(tmp_path, replica.id) for replica in made.replicas]
        handle = Handle.of(homes[2])
        assert handle is not None
        handle.send(signal.SIGSTOP)
        growing.remove_replica(tmp_path, 2, str)
        assert handle.wait(60) and running(homes[2]) is None
        handle.close()
        now = config.load(tmp_path)
        config.save(tmp_path, now.with_replica(msgspec.structs.replace(now.replica(1), removed=True)))
        assert cluster.down(tmp_path, str) and running(homes[1]) is None


@pytest.mark.parametrize("gone", [2, 3])
def test_who_was_down_when_it_was_removed_is_told_by_whoever_it_greets(tmp_path: Path, gone: int) -> None:
    """One of the first, or one that was added: who has begun a life since has no address of that in its file."""
    with running_cluster(tmp_path / "run", 1, 3, "white_box") as replicas:
        directory = tmp_path / "run"
        added = [growing.add_replica(directory, 0, "127.0.0.1", "", None, str)] if gone == 3 else []
        own = tmp_path / "own"
        own.mkdir()
        (own / "cluster.json").write_bytes((directory / "cluster.json").read_bytes())
        (own / "replicas").symlink_to(directory / "replicas")
        kill(directory, gone)
        cluster.stop_started(directory, added, str)
        growing.remove_replica(directory, gone, str)
        after = config.load(directory)
        for replica in after.present:
            kill(directory, replica.id)  # whoever lives on has a link to the removed one
        started = [cluster.start(directory, after, replica) for replica in after.present]
        try:
            wait_until(lambda: all(cluster.is_ready(one.replica) for one in started))
            wait_until(lambda: members_of(replicas[0], 0) == [one for one in range(3) if one != gone])
            started.append(cluster.start(own, config.load(own), config.load(own).replica(gone)))
            assert started[-1].process.wait(60) in (0, 1), "it is told, or refused, whichever comes first"
            assert f"{gone} was removed from its" in started[-1].log.read_text()
        finally:
            cluster.stop_started(directory, started, str)


def test_who_comes_back_with_an_older_file_meets_those_who_were_added_since(tmp_path: Path) -> None:
    """All whom that names are gone; its disk is lost, too. Two are replaced while it is there."""
    directory, own = tmp_path / "run", tmp_path / "own"
    own.mkdir()
    with running_cluster(directory, 1, 3, "white_box") as replicas:
        made = config.load(directory)
        (own / "cluster.json").write_bytes((directory / "cluster.json").read_bytes())
        (own / "replicas").symlink_to(directory / "replicas")
        started = []
        try:
            for gone in (1, 2):
                started.append(growing.add_replica(directory, 0, "127.0.0.1", "", None, str))
                growing.remove_replica(directory, gone, str)
            assert replicas[0]("PUT", "/v1/kv/key", b"value").status == 200
            kill(directory, 0)
            shutil.rmtree(config.replica_directory(directory, 0))
            identity.claim(own, made, 0, lost_disk=True)
            started.append(cluster.start(own, made, made.replica(0)))
            wait_until(lambda: cluster.is_ready(started[-1].replica))
            wait_until(lambda: members_of(replicas[0], 0) == [0, 3, 4])
            assert replicas[0]("GET", "/v1/kv/key").body == b"value"
        finally:
            cluster.stop_started(directory, started, str)


@pytest.mark.parametrize("protocol", ["white_box", "primcast"])
def test_a_shard_that_was_away_while_another_one_was_replaced_hears_of_it_from_who_is_new(
    tmp_path: Path, protocol: str
) -> None:
    """Its file is of before; all whom that names there are gone, and nobody else could tell."""
    directory, own = tmp_path / "run", tmp_path / "own"
    own.mkdir()
    with running_cluster(directory, 2, 1, protocol) as replicas:
        made = config.load(directory)
        (own / "cluster.json").write_bytes((directory / "cluster.json").read_bytes())
        (own / "replicas").symlink_to(directory / "replicas")
        kill(directory, 1)
        started = []
        try:
            started.append(growing.add_replica(directory, 0, "127.0.0.1", "", None, str))
            growing.remove_replica(directory, 0, str)
            started.append(cluster.start(own, made, made.replica(1)))
            wait_until(lambda: cluster.is_ready(started[-1].replica))
            wait_until(lambda: members_of(replicas[1], 0) == [2])
            keys = {made.map().shard_of(b"key-%d" % n): f"key-{n}" for n in range(50)}
            both = {"success": [{"op": "put", "key": keys[shard], "value": "both"} for shard in (0, 1)]}
            assert replicas[1].applied(both).status == 200
        finally:
            cluster.stop_started(directory, started, str)
