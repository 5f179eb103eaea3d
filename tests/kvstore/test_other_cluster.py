"""Where the replicas of a cluster should be, those of another one run: after a restore, say, to the same ports. No
command about the one changes the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from client_sdk import Client, Unavailable
from kvstore import cluster, config, growing, identity, replacing
from kvstore.backup import take
from kvstore.cluster import ClusterError
from kvstore.http.access import AccessControl
from kvstore.http.errors import Problem
from tests.kvstore.live import Replica, running_cluster
from tests.ports import free_base_port

SAYS = "is a replica of another cluster, "


def ignore(text: str) -> None:
    pass


def test_no_command_about_a_cluster_changes_the_one_that_runs_at_its_addresses(tmp_path: Path) -> None:
    old, base = tmp_path / "old", free_base_port(4)
    commands: list[Callable[[], object]] = [
        lambda: growing.move_slots(old, 0, 1, [(0, 9)], ignore),
        lambda: growing.give_up(old, 0, 1, ignore),
        lambda: growing.add_replica(old, 0, "127.0.0.1", "", (base, base + 1), ignore),
        lambda: growing.add_shard(old, 1, "127.0.0.1", "", (base, base + 1), ignore),
        lambda: growing.remove_replica(old, 1, ignore),
        lambda: replacing.replace_replica(old, 2, {"peer_port": base + 2, "http_port": base + 3}, old, ignore),
        lambda: take.take(str(old), tmp_path / "backup", ignore),
    ]
    with running_cluster(tmp_path / "new", 2, 3, "white_box") as replicas:

        def known() -> Any:
            told = replicas[0]("GET", "/v1/cluster").json
            return told["shard_map"], told["shards"]

        before = known()
        made = msgspec.structs.replace(config.load(tmp_path / "new"), cluster_id="ab" * 16)
        identity.create(old, made)
        for command in commands:
            with pytest.raises(ClusterError, match=SAYS):
                command()
            assert config.load(old) == made
        assert known() == before and not (tmp_path / "backup").exists()


def test_a_client_of_a_cluster_asks_no_other_one(tmp_path: Path) -> None:
    """Not to read, either; and it does not try for as long as it would wait for a replica that hangs."""
    with running_cluster(tmp_path / "new", 1, 3, "white_box") as replicas:
        identity.create(tmp_path / "old", msgspec.structs.replace(config.load(tmp_path / "new"), cluster_id="ab" * 16))
        with Client(tmp_path / "new", timeout=60) as ours, Client(tmp_path / "old", timeout=60) as theirs:
            assert ours.put("a", "1") and ours.get("a")
            new = config.load(tmp_path / "new")
            says, url = f"of cluster {new.cluster_id}, not of ab", new.replicas[0].url
            asks: list[Callable[[], object]] = [lambda: theirs.put("a", "2"), lambda: theirs.get("a")]
            for ask in [*asks, lambda: next(theirs.watch(timeout=2))]:
                with pytest.raises(Unavailable, match=says):
                    ask()
            with Client(url, cluster_id="ab", timeout=60) as named, pytest.raises(Unavailable, match=says):
                named.get("a")
            with pytest.raises(ValueError, match="cluster_id: not the id of a cluster"):
                Client(url, cluster_id="a\r\nb")
            assert ours.get("a").value == b"1"  # type: ignore[union-attr]
        answer = replicas[0]("GET", "/v1/kv/a", Kv_Cluster="ab")
        assert (answer.status, answer.json["code"], answer.json["retryable"]) == (421, "other_cluster", True)


def test_one_of_ours_that_is_down_is_waited_for_beside_one_of_another_cluster(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "other", 1, 1, "white_box"):
        other = config.load(tmp_path / "other").replicas[0]
        down = f"http://127.0.0.1:{free_base_port(1)}"
        says = pytest.raises(Unavailable, match="not answered in 2 s")
        with Client([other.url, down], cluster_id="ab", timeout=2) as ours, says:
            ours.put("a", "1")


def test_who_asks_for_other_clusters_does_not_make_the_replica_describe_its_own_each_time() -> None:
    described: list[int] = []

    def describe() -> Any:
        described.append(1)
        return SimpleNamespace(cluster_id="ab")

    access = AccessControl(b"", lambda: pytest.fail("nobody's rights are asked for"), describe)
    for asked in ("cd", "ef", "ab", "cd"):
        call: Any = SimpleNamespace(head=SimpleNamespace(fields=SimpleNamespace(values={"kv-cluster": asked})))
        with nullcontext() if asked == "ab" else pytest.raises(Problem, match=f"of cluster ab, not of {asked}"):
            access.check_cluster(call)
    assert described == [1]


def test_who_is_of_another_cluster_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the machine that is to be removed, say, and is used for something else already."""
    told: list[str] = []

    def telling(url: str, seconds: float = 2.0, body: bytes | None = None, headers: Any = None) -> tuple[int, bytes]:
        if body is None:
            return cluster.fetch(url, seconds, body, headers)
        told.append(url.partition("/v1")[0])
        return 200, b'{"done": %b, "more": false}' % (b"true" if len(told) % 2 == 0 else b"false")

    monkeypatch.setattr(growing, "fetch", telling)
    monkeypatch.setattr(replacing, "fetch", telling)
    with running_cluster(tmp_path / "ours", 1, 1, "white_box"), running_cluster(tmp_path / "other", 1, 1, "white_box"):
        ours, other = config.load(tmp_path / "ours"), config.load(tmp_path / "other")
        theirs = msgspec.structs.replace(other.replicas[0], id=1, added=True)
        made = ours.with_replica(theirs)
        growing._have_changed(made, 0, {"remove": 1})
        growing._move(made, 0, 1, (), lambda: False)
        assert told == [ours.replicas[0].url] * 3
        third = msgspec.structs.replace(theirs, id=2, http_port=theirs.http_port + 1)
        with pytest.raises(ClusterError, match=f"replica 1 was not told: .*{SAYS}"):
            replacing._tell(made.with_replica(third), third, ignore)
        assert Replica("127.0.0.1", theirs.http_port)("GET", "/v1/cluster").status == 200
        assert told == [ours.replicas[0].url] * 4
