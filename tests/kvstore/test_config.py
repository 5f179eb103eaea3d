"""The configuration: what is wrong is refused in one line that names the place."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvstore import changing, config, identity
from kvstore.config import ConfigError

ID = "0123456789abcdef0123456789abcdef"


def made(**changes: Any) -> config.ClusterConfig:
    arguments = {"shards": 2, "replicas": 3, "protocol": "white_box", "cluster_id": ID, **changes}
    return config.new_cluster(**arguments)


def as_json(**changes: Any) -> dict[str, Any]:
    return json.loads(config.json_text(made())) | changes


def test_who_is_added_or_removed_stays_in_the_file() -> None:
    data = as_json(epoch=2)
    data["replicas"][1]["removed"] = True
    more = {"id": 6, "shard": 0, "host": "127.0.0.1", "peer_port": 7406, "http_port": 7506, "added": True}
    data["replicas"].append(more)
    cluster = config.parse(json.dumps(data).encode(), "cluster.json")
    assert cluster.shards == {0: (0, 2, 6), 1: (3, 4, 5)} and [r.id for r in cluster.present] == [0, 2, 3, 4, 5, 6]
    assert cluster.topology(0).groups == {0: (0, 1, 2), 1: (3, 4, 5)}, "all views begin with the same one"
    assert cluster.topology(0).spares == {0: (6,)} and cluster.topology(0).group_of[6] == 0
    data["replicas"].append({**more, "id": 1})
    assert "replicas[7].id: 1 is used twice" in refusal(data)


def refusal(data: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config.parse(data if isinstance(data, bytes) else json.dumps(data).encode(), "cluster.json")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    config.save(tmp_path, made())
    assert config.load(tmp_path) == made()
    assert [p.name for p in tmp_path.iterdir()] == ["cluster.json"]


def test_replicas_are_numbered_shard_by_shard_with_ports_from_the_base() -> None:
    cluster = made(base_port=9000)
    assert cluster.shards == {0: (0, 1, 2), 1: (3, 4, 5)}
    assert [(r.peer_port, r.http_port) for r in cluster.replicas][4] == (9004, 9104)
    assert cluster.topology(0).groups == {0: (0, 1, 2), 1: (3, 4, 5)}


def test_the_protocol_gets_the_hybrid_clock_and_the_window() -> None:
    options: Any = config.parse(json.dumps(as_json(protocol_options={"heartbeat_us": 5000})).encode(), "x").options()
    assert (options.clock, options.dedup_window_us, options.heartbeat_us) == ("hybrid", 120_000_000, 5000)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"protocl": "skeen"}, "protocl: unknown field; did you mean 'protocol'?"),
        ({"limits": {"body_byte_max": 1}}, "limits.body_byte_max: unknown field; did you mean 'body_bytes_max'?"),
        ({"limits": {"body_bytes_max": 10}}, "limits.body_bytes_max: from 1024 to 4194304, not 10"),
        ({"limits": {"body_bytes_max": "big"}}, "limits.body_bytes_max: Expected `int`, got `str`"),
        ({"limits": {"timeout_default_ms": 9000, "timeout_max_ms": 10}}, "timeout_default_ms: at most"),
        ({"protocol": "whitebox"}, "unknown protocol 'whitebox'; did you mean 'white_box'?"),
        ({"protocol": "skeen"}, "shard 0 has 3, but skeen is not fault-tolerant"),
        (
            {"protocol_options": {"heartbeat": 1}},
            "protocol_options.heartbeat: unknown field; did you mean 'heartbeat_us'?",
        ),
        ({"protocol_options": {"clock": "sun"}}, "protocol_options: clock is 'logical' or 'hybrid'"),
        ({"protocol_options": {"dedup_window_us": 1}}, "set dedup_window_ms at the top"),
        ({"durability": "none"}, "durability: one of fsync, os"),
        ({"dedup_window_ms": 0}, "dedup_window_ms: from 1000"),
        ({"cluster_id": "XY"}, "cluster_id: 32 lower-case hexadecimal digits"),
        ({"format": 2}, "format 2 is newer than this program's 1"),
        ({"format": 0}, "format: 0 is not known"),
        ({"replicas": []}, "replicas: at least one"),
        ({"shard_map": {"version": 1}}, "shard_map: "),
    ],
)
def test_a_mistake_is_named(change: dict[str, Any], says: str) -> None:
    assert says in refusal(as_json(**change))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("id", 1, "replicas[2].id: 1 is used twice"),
        ("peer_port", 0, "replicas[2].peer_port: from 1 to 65535, not 0"),
        ("peer_port", 7400, "replicas[2].peer_port: port 7400 is already replicas[0].peer_port"),
        ("host", "", "replicas[2].host: empty"),
        ("host", "0.0.0.0", "replicas[2].advertise: the address by which others reach it is needed"),
        ("advertise", "::", "replicas[2].advertise: the address"),
        ("prot", 1, "replicas[2].prot: unknown field"),
        ("shard", 7, "shard_map"),
    ],
)
def test_a_mistake_in_a_replica_is_named(field: str, value: Any, says: str) -> None:
    data = as_json()
    data["replicas"][2][field] = value
    if field == "shard":
        data["replicas"] = [r | {"shard": 7} if r["shard"] == 1 else r for r in data["replicas"]]
    assert says in refusal(data)


def test_replicas_of_several_machines_may_listen_alike_where_they_are_reached_apart() -> None:
    data = as_json()
    data["replicas"] = [
        replica | {"host": "0.0.0.0", "advertise": f"machine-{replica['id']}", "peer_port": 7400, "http_port": 7500}
        for replica in data["replicas"]
    ]
    found = config.parse(json.dumps(data).encode(), "x")
    assert [r.url for r in found.replicas][1:3] == ["http://machine-1:7500", "http://machine-2:7500"]
    assert config.ReplicaConfig(id=0, shard=0, host="::1", peer_port=1, http_port=2).url == "http://[::1]:2"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"format": 1}'])
def test_what_is_no_configuration_is_refused(data: bytes) -> None:
    assert refusal(data).startswith("cluster.json: ")


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`kvstore cluster init '.*/two words' \.\.\.` makes one"):
        config.load(tmp_path / "two words")


def test_a_file_that_was_lost_is_put_back_and_not_made(tmp_path: Path) -> None:
    """Another cluster's would be there then, for replicas that run or hold what was written."""
    cluster = made()
    identity.create(tmp_path, cluster)
    before = (tmp_path / config.CLUSTER_FILE).read_bytes()
    identity.mark_started(config.replica_directory(tmp_path, 1))
    (tmp_path / config.CLUSTER_FILE).unlink()
    with pytest.raises(ConfigError, match=r"does not exist; its replicas lie there: put it back"):
        config.load(tmp_path)
    other = msgspec.structs.replace(cluster, cluster_id="f" * 32)
    with pytest.raises(ConfigError, match=rf"replicas/1 is of .* cluster {cluster.cluster_id}, which has run"):
        identity.create(tmp_path, other)
    assert not (tmp_path / config.CLUSTER_FILE).exists()
    identity.create(tmp_path, cluster)
    assert (tmp_path / config.CLUSTER_FILE).read_bytes() == before


def test_too_many_replicas_for_the_ports() -> None:
    with pytest.raises(ConfigError, match="at most 100 replicas"):
        made(shards=51, replicas=2)


def test_the_data_of_another_cluster_is_refused(tmp_path: Path) -> None:
    identity.create(tmp_path, made())
    assert identity.claim(tmp_path, made(), 1) == config.replica_directory(tmp_path, 1)
    with pytest.raises(ConfigError, match=f"belongs to cluster {ID}, not to {'f' * 32}"):
        identity.claim(tmp_path, made(cluster_id="f" * 32), 1)


def test_the_data_of_another_protocol_is_refused(tmp_path: Path) -> None:
    identity.create(tmp_path, made(replicas=1))
    identity.mark_started(identity.claim(tmp_path, made(replicas=1), 1))
    with pytest.raises(ConfigError, match=r"protocol white_box, but cluster\.json says skeen"):
        identity.claim(tmp_path, made(replicas=1, protocol="skeen"), 1)


def test_the_data_of_another_replica_is_refused(tmp_path: Path) -> None:
    identity.create(tmp_path, made())
    (config.replica_directory(tmp_path, 2) / identity.IDENTITY_FILE).unlink()
    identity.claim(tmp_path, made(), 1).rename(config.replica_directory(tmp_path, 2))
    with pytest.raises(ConfigError, match="holds the data of replica 1"):
        identity.claim(tmp_path, made(), 2)


def test_before_its_first_start_a_replica_may_change_its_protocol(tmp_path: Path) -> None:
    identity.create(tmp_path, made(replicas=1))
    home = identity.claim(tmp_path, made(replicas=1, protocol="skeen"), 1)
    assert identity.read(home).protocol == "skeen" and not identity.read(home).started


def test_a_missing_directory_is_refused_with_the_remedy(tmp_path: Path) -> None:
    identity.create(tmp_path, made())
    shutil.rmtree(config.replica_directory(tmp_path, 1))
    with pytest.raises(ConfigError, match=r"is missing or empty: .* --replica 1 --lost-disk$"):
        identity.claim(tmp_path, made(), 1)
    home = identity.claim(tmp_path, made(), 1, lost_disk=True)
    assert identity.read(home).lost_disk and identity.claim(tmp_path, made(), 1) == home


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        (made(replicas=1, protocol="skeen"), "the protocol skeen does not survive the loss of a disk"),
        (made(replicas=1), "shard 0 has 1 replica"),
    ],
)
def test_who_cannot_come_back_is_told_why(tmp_path: Path, cluster: config.ClusterConfig, why: str) -> None:
    with pytest.raises(ConfigError, match=f"its data is gone, and it cannot come back without it: {why}"):
        identity.claim(tmp_path, cluster, 0)
    with pytest.raises(ConfigError, match=f"--lost-disk: {why}"):
        identity.claim(tmp_path, cluster, 0, lost_disk=True)


def test_every_shard_is_spread_over_the_same_machines() -> None:
    machines = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]

    def made(**options: Any) -> list[tuple[str, str]]:
        new = config.new_cluster(shards=2, replicas=3, protocol="white_box", cluster_id="0" * 32, **options)
        return [(replica.host, replica.address) for replica in new.replicas]

    assert made(machines=machines) == 2 * [(address, address) for address in machines]
    assert made(machines=machines, host="0.0.0.0") == 2 * [("0.0.0.0", address) for address in machines]
    for wrong in (machines[:2], ["10.0.0.1", "10.0.0.1", "10.0.0.2"]):
        with pytest.raises(config.ConfigError, match="machines: 3 different ones for 3 replicas per shard"):
            made(machines=wrong)


def test_who_is_added_makes_nobody_new_who_has_lost_its_disk(tmp_path: Path) -> None:
    cluster = made()
    identity.create(tmp_path, cluster)
    shutil.rmtree(config.replica_directory(tmp_path, 1))
    added = msgspec.structs.replace(cluster.replica(0), id=6, peer_port=1006, http_port=1106, added=True)
    identity.prepare(tmp_path, cluster.with_replica(added), [added])
    assert not identity.read(config.replica_directory(tmp_path, 6)).started
    with pytest.raises(ConfigError, match="is missing or empty"):
        identity.claim(tmp_path, cluster, 1)


def test_a_shard_that_was_added_is_none_of_the_first() -> None:
    new = [{"id": 6, "shard": 2, "host": "127.0.0.1", "peer_port": 7406, "http_port": 7506}]
    data = as_json(added_shards=[2])
    data["replicas"] += new
    cluster = config.parse(json.dumps(data).encode(), "cluster.json")
    assert cluster.shards == {0: (0, 1, 2), 1: (3, 4, 5), 2: (6,)} and cluster.map().shards == (0, 1)
    assert cluster.topology(0).groups == {0: (0, 1, 2), 1: (3, 4, 5)}, "of that one it hears"
    assert cluster.topology(6).groups == cluster.shards


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "replica-0.key"
    config.write_atomically(path, b"1", 0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    config.write_atomically(path, b"2", 0o600)
    assert path.stat().st_mode & 0o777 == 0o640 and path.read_bytes() == b"2"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_a_command_of_root_writes_is_the_replicas_users_as_what_was_there(tmp_path: Path) -> None:
    def whose(path: Path) -> tuple[int, int]:
        found = path.stat()
        return found.st_uid, found.st_gid

    identity.create(tmp_path, made())
    os.chown(tmp_path / config.CLUSTER_FILE, 1234, 5678)
    with changing.alone(tmp_path):  # root's own directory: nothing is given away
        assert whose(tmp_path / changing.COMMAND_LOCK) == (0, 0)
    (tmp_path / changing.COMMAND_LOCK).unlink()
    os.chown(tmp_path, 1234, 5678)
    with changing.alone(tmp_path):
        changing.update(tmp_path, lambda now: msgspec.structs.replace(now, root="0" * 64))
    config.write_atomically(tmp_path / "new", b"")
    written = (config.CLUSTER_FILE, changing.COMMAND_LOCK, changing.FILE_LOCK, "new")
    assert {name: whose(tmp_path / name) for name in written} == dict.fromkeys(written, (1234, 5678))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_whoever_has_the_directory_is_not_given_what_he_has_linked_there(tmp_path: Path, link: Any) -> None:
    directory, secret = tmp_path / "his", tmp_path / "secret"
    identity.create(directory, made())
    os.chown(directory, 1234, 5678)
    secret.write_bytes(b"root's")
    link(secret, directory / changing.COMMAND_LOCK)
    beside = directory / f".{config.CLUSTER_FILE}.{os.getpid()}.new"
    link(secret, beside)
    with suppress(ConfigError), changing.alone(directory):
        pass
    config.write_atomically(directory / config.CLUSTER_FILE, b"{}")
    found = secret.stat()
    assert (found.st_uid, found.st_gid) == (0, 0)
    if link is os.symlink:
        assert secret.read_bytes() == b"root's"
