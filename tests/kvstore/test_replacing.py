"""A replica gets a new disk and a new address under load; the machine in whose place it is does not come back."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from structlog.testing import capture_logs

from kvstore import certificates, cluster, config, identity, members, replacing
from kvstore.api.cluster import ClusterJson, ReplicaJson, ShardJson
from kvstore.cluster import ClusterError
from kvstore.config import ConfigError, ReplicaConfig
from kvstore.host import LiveReplica
from kvstore.members import note
from kvstore.process import Handle
from multicast.membership import Membership
from multicast.runtime.clock import wall_us
from multicast.runtime.greeting import encode_greeting
from multicast.wire import Hello
from tests.kvstore.live import Replica, answered, make_cluster, wait_until
from tests.kvstore.test_lost_disk import Load
from tests.kvstore.test_snapshot import ready
from tests.multicast.live import eventually
from tests.ports import free_base_port


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Of a cluster that is down after the test."""
    yield tmp_path / "cluster"
    for home in tmp_path.glob("*/replicas/*"):
        handle = Handle.of(home)
        if handle is not None:
            handle.send(signal.SIGKILL)
            assert handle.wait(60)
            handle.close()


def test_a_replica_is_replaced_under_load(directory: Path) -> None:
    made = make_cluster(directory, 1, 3, "white_box")
    said: list[str] = []
    started = cluster.up(directory, said.append)
    load = Load([Replica(r.host, r.http_port) for r in made.replicas])
    base = free_base_port(2)
    try:
        load.wait_for(20)
        changes = {"peer_port": base, "http_port": base + 1}
        started.append(replacing.replace_replica(directory, 0, changes, directory, said.append))
        load.wait_for(20)
    finally:
        load.stop()
    after = config.load(directory)
    assert (after.replica(0).peer_port, after.replica(0).http_port) == (base, base + 1)
    told = Replica(made.replica(2).host, made.replica(2).http_port)("GET", "/v1/cluster").json
    assert after.replica(0).url in [replica["url"] for replica in told["shards"][0]["replicas"]]
    back = Replica(after.replica(0).host, after.replica(0).http_port)
    for key, value in load.acknowledged.items():
        assert answered(lambda key=key: back("GET", f"/v1/kv/{key}")).body == value, key
    assert list(directory.glob("replicas/0-replaced-*/journal"))
    assert said[-1].startswith("replica 0 of shard 0 is ready")
    cluster.down(directory, said.append)
    for one in started:
        one.process.wait()


async def test_the_machine_that_was_replaced_is_refused_also_by_who_never_heard_of_it(tmp_path: Path) -> None:
    """It runs on all the while, and thinks that it is a member."""
    made = make_cluster(tmp_path, 1, 3, "white_box")
    replicas = [LiveReplica(tmp_path, made, number) for number in range(3)]
    elsewhere, after = tmp_path / "elsewhere", made
    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        await ready(replicas)
        base = free_base_port(2)
        new = msgspec.structs.replace(made.replica(0), peer_port=base, http_port=base + 1, since=wall_us())
        after = made.with_replica(new)
        for replica in replicas[1:]:
            replica.put_in_place(new)
        elsewhere.mkdir()
        config.save(elsewhere, after)
        identity.claim(elsewhere, after, 0, lost_disk=True)
        replicas.append(LiveReplica(elsewhere, after, 0))
        await replicas[3].start()
        await ready(replicas[1:])
        await eventually(lambda: bool(replicas[0].failure()), "the old one has ended")
        assert "another one has taken its place; leave this one off" in replicas[0].failure()
        assert config.load(tmp_path) == after
        await asyncio.gather(*(replica.stop() for replica in replicas))
        replicas = [LiveReplica(tmp_path, after, number) for number in (1, 2)]
        await asyncio.gather(*(replica.start() for replica in replicas))
        config.save(tmp_path, made)
        replicas.append(LiveReplica(tmp_path, made, 0))
        await replicas[2].start()
        await eventually(lambda: bool(replicas[2].failure()), "the old one has ended")
        assert "another one has taken its place" in replicas[2].failure()
        await replicas.pop().stop()
        with pytest.raises(ConfigError, match="in whose place another one was put"):
            LiveReplica(tmp_path, after, 0)
    finally:
        await asyncio.gather(*(replica.stop() for replica in replicas))


@pytest.mark.parametrize(
    ("change", "met"),
    [
        ({}, True),
        ({"id": 8}, False),
        ({"shard": 1}, True),
        ({"shard": 2}, False),
        ({"added": False}, False),
        ({"removed": True}, False),
        ({"peer_port": 0}, False),
        ({"id": 1, "since": 1}, False),
        (None, False),
    ],
)
async def test_of_an_unknown_one_that_greets_what_it_says_of_itself_must_fit(tmp_path, change, met) -> None:
    made = make_cluster(tmp_path, 2, 3, "white_box")
    replica = LiveReplica(tmp_path, made, 0)
    base = free_base_port(2)
    own = ReplicaConfig(id=7, shard=0, host="127.0.0.2", peer_port=base, http_port=base + 1, added=True)
    place = b"{" if change is None else note(msgspec.structs.replace(own, **change))
    try:
        greeting = Hello(3, made.cluster, 7, 0, 1, 0, 1, place=place)
        await replica.start()
        with capture_logs():
            reader, writer = await asyncio.open_connection("127.0.0.1", made.replica(0).peer_port)
            writer.write(encode_greeting(greeting))
            welcome = await reader.read(1000)
            writer.close()
        assert (b"process 7 is not a member of this cluster" in welcome) is not met
        assert list(replica.status()["peers"]) == [*map(str, range(1, 6)), *(["7"] if met else [])]
        assert config.load(tmp_path) == replica.config == made
    finally:
        await replica.stop()


async def test_who_was_not_told_learns_from_the_new_one_where_it_is(tmp_path: Path) -> None:
    """As if it had been cut off meanwhile. What nobody could mean is noted nowhere, and costs no link."""
    made = make_cluster(tmp_path, 1, 3, "white_box")
    files = {number: tmp_path / f"machine-{number}" for number in range(3)}
    for directory in files.values():
        directory.mkdir()
        identity.create(directory, made)
    replicas = [LiveReplica(files[number], made, number) for number in range(3)]
    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        await ready(replicas)
        base = free_base_port(2)
        new = msgspec.structs.replace(made.replica(0), peer_port=base, http_port=base + 1, since=wall_us())
        after = made.with_replica(new)
        replicas[1].put_in_place(new)
        await replicas.pop(0).stop()
        (elsewhere := tmp_path / "elsewhere").mkdir()
        config.save(elsewhere, after)
        identity.claim(elsewhere, after, 0, lost_disk=True)
        replicas.append(LiveReplica(elsewhere, after, 0))
        await replicas[-1].start()
        await ready(replicas)
        assert replicas[1].config == config.load(files[2]) == after
        later = new.since + 1
        for place in (b"{}", b"\xff", members.note(msgspec.structs.replace(new, id=1, since=later)),
                      members.note(msgspec.structs.replace(new, shard=7, since=later))):  # fmt: skip
            replicas[1]._told_of_place(0, place)
        assert replicas[1].config == config.load(files[2]) == after
    finally:
        await asyncio.gather(*(replica.stop() for replica in replicas))


@pytest.mark.parametrize(
    ("replica_id", "changes"), [(0, {"since": 9}), (1, {"since": 9, "shard": 7}), (1, {"since": 6})]
)
def test_what_cannot_be_put_in_place_is_refused(tmp_path: Path, replica_id: int, changes: dict[str, int]) -> None:
    """Itself, one of another shard, one that was replaced before."""
    made = make_cluster(tmp_path, 1, 3, "white_box")
    made = made.with_replica(msgspec.structs.replace(made.replica(1), since=7))
    config.save(tmp_path, made)
    replica = LiveReplica(tmp_path, made, 0)
    with pytest.raises(ConfigError, match="it cannot be put in the place"):
        replica.put_in_place(msgspec.structs.replace(made.replica(replica_id), **changes))
    replica.put_in_place(msgspec.structs.replace(made.replica(1), since=8))
    assert config.load(tmp_path).replica(1).since == replica.config.replica(1).since == 8
    replica._store.close()


def with_another_shard(made: config.ClusterConfig) -> config.ClusterConfig:
    """What a replica knows that was told of a second shard, and was started before it was added."""
    heard = [msgspec.structs.replace(made.replica(2), id=i, shard=1, http_port=i, peer_port=i + 3) for i in (3, 4, 5)]
    topology = SimpleNamespace(processes=range(6), note_of=lambda process: members.note(heard[process - 3]))
    return members.with_new(made, cast(Membership, topology))


def test_a_replica_of_an_added_shard_is_replaced_also_for_who_was_started_before(tmp_path: Path) -> None:
    made = make_cluster(tmp_path, 1, 3, "white_box")
    replica = LiveReplica(tmp_path, made, 0)
    replica.config = with_another_shard(made)
    new = msgspec.structs.replace(replica.config.replica(4), http_port=99, since=8)
    replica.put_in_place(new)
    stored = config.load(tmp_path)
    assert stored.replica(4) == replica.config.replica(4) == new
    assert stored.added_shards == (1,) and stored.topology(0).groups == made.topology(0).groups
    with pytest.raises(ConfigError, match="no replica 6"):
        replica.put_in_place(msgspec.structs.replace(new, id=6))
    replica._store.close()


def test_a_shard_that_is_heard_of_in_this_life_is_no_first_one(tmp_path: Path) -> None:
    made = make_cluster(tmp_path, 1, 3, "white_box")
    known = with_another_shard(made)
    assert known.shards[1] == (3, 4, 5) and known.added_shards == (1,)
    assert known.map().shards == (0,) and known.topology(0).groups == made.topology(0).groups



def secured(directory: Path) -> config.ClusterConfig:
    """A cluster with an authority of its own."""
    made = config.new_cluster(
        shards=1, replicas=3, protocol="white_box", cluster_id=os.urandom(16).hex(), base_port=free_base_port(3),
        tls=config.CERTIFICATES,
    )  # fmt: skip
    identity.create(directory, made)
    certificates.make(directory, made, str)
    return made


def test_the_new_one_has_a_certificate_for_its_new_name_on_its_machine(directory: Path, tmp_path: Path) -> None:
    made = secured(directory)
    started = cluster.up(directory, str)
    elsewhere, base = tmp_path / "elsewhere", free_base_port(2)
    changes = {"peer_port": base, "http_port": base + 1, "advertise": "localhost"}
    started.append(replacing.replace_replica(directory, 0, changes, elsewhere, str))
    assert started[-1].replica.url.startswith("https://localhost:")
    wait_until(lambda: cluster.is_ready(started[-1].replica))
    brought = {path.name for path in (elsewhere / config.CERTIFICATES).iterdir()}
    assert brought == {"ca.pem", "replica-0.pem", "replica-0.key"}
    assert config.load(elsewhere).cluster_id == made.cluster_id
    cluster.stop_started(directory, started, str)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"advertise": "localhost"}, "put replica-0.pem and replica-0.key into .*certs, for localhost, 127.0.0.1, re"),
        ({"host": "192.0.2.7"}, "192.0.2.7 is no address of this machine, .*; nothing was changed"),
    ],
)
def test_what_the_new_one_needs_is_looked_for_before_the_old_one_is_ended(
    directory: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], says: str
) -> None:
    made = secured(directory)
    (directory / config.CERTIFICATES / certificates.AUTHORITY_KEY).unlink()
    monkeypatch.setattr(replacing, "is_ready", lambda _: True)
    with pytest.raises(ConfigError, match=says):
        replacing.replace_replica(directory, 0, changes, directory, str)
    assert config.load(directory) == made and (directory / "replicas" / "0").is_dir()


@pytest.mark.parametrize(
    ("place", "says"), [("other", "is of cluster .*; nothing was changed"), ("file", "Not a dir|File ex")]
)
def test_where_the_new_one_cannot_be_the_old_one_stays_and_so_do_others(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, says: str
) -> None:
    """Another cluster's directory, by mistake: its replica of that id would be ended, and its file overwritten."""
    made, other = make_cluster(directory, 1, 3, "white_box"), make_cluster(tmp_path / "other", 1, 3, "white_box")
    (tmp_path / "file").touch()
    monkeypatch.setattr(replacing, "is_ready", lambda _: True)
    with pytest.raises((ConfigError, OSError), match=says):
        replacing.replace_replica(directory, 0, {}, tmp_path / place, str)
    assert config.load(directory) == made and (directory / "replicas" / "0").is_dir()
    assert config.load(tmp_path / "other") == other and (tmp_path / "other" / "replicas" / "0").is_dir()


def test_the_ports_of_the_new_one_are_looked_at_before_the_old_one_is_ended(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_cluster(directory, 1, 3, "white_box")
    monkeypatch.setattr(replacing, "is_ready", lambda _: True)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ClusterError, match=f"replica 0: HTTP port {port} on 127.0.0.1 is in use by process"):
            replacing.replace_replica(directory, 0, {"http_port": port}, directory, str)
    assert config.load(directory) == made and (directory / "replicas" / "0").is_dir()


@pytest.mark.parametrize(("answers", "changed"), [([400], False), ([200, 400], True), ([503], True)])
def test_the_old_one_stays_until_all_others_of_its_shard_have_heard(
    directory: Path, monkeypatch: pytest.MonkeyPatch, answers: list[int], changed: bool
) -> None:
    """Whom nobody has heard of is not in the file, either."""
    made = make_cluster(directory, 2, 3, "white_box")
    told: list[str] = []

    def fetch(url: str, *_: object) -> tuple[int, bytes]:
        told.append(url)
        return answers[len(told) - 1], b"no"

    monkeypatch.setattr(replacing, "is_ready", lambda _: True)
    monkeypatch.setattr(replacing, "fetch", fetch)
    says = "give the same command again" if changed else "replica 3 refuses .* replica 5, and nothing was changed: no"
    with pytest.raises(ClusterError, match=says):
        replacing.replace_replica(directory, 5, {}, directory, str)
    assert told == [f"{made.replica(one).url}/v1/replaced" for one in (3, 4)[: len(answers)]]
    assert (config.load(directory) != made) is changed and (directory / "replicas" / "5").is_dir()


def test_where_the_file_is_older_than_a_replica_of_the_shard_nothing_is_changed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one would be neither told nor looked at, and may be down."""
    made = make_cluster(directory, 1, 3, "white_box")
    shard = ShardJson(id=0, leader=0, replicas=[ReplicaJson(i, "") for i in range(4)])
    told = ClusterJson(cluster_id=made.cluster_id, shard_map={}, shards=[shard])
    monkeypatch.setattr(replacing, "is_ready", lambda _: True)
    monkeypatch.setattr(replacing, "described", lambda _: told)
    with pytest.raises(ConfigError, match=r"cluster.json does not have replica 3, which belongs to shard 0: copy"):
        replacing.replace_replica(directory, 2, {}, directory, str)
    assert config.load(directory) == made and (directory / "replicas" / "2").is_dir()


def test_without_all_others_of_the_shard_nothing_is_changed(directory: Path) -> None:
    made = make_cluster(directory, 1, 3, "white_box")
    with pytest.raises(ClusterError, match=r"replica 0 of shard 0 is not ready.*nothing was changed"):
        replacing.replace_replica(directory, 1, {}, directory, print)
    assert config.load(directory) == made and (directory / "replicas" / "1").is_dir()


def test_a_protocol_that_does_not_survive_a_lost_disk_refuses(directory: Path) -> None:
    made = make_cluster(directory, 1, 1, "skeen")
    with pytest.raises(ConfigError, match="cannot be replaced: the protocol skeen does not survive"):
        replacing.replace_replica(directory, 0, {}, directory, print)
    assert config.load(directory) == made
