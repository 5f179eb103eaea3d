"""The configuration of a cluster: `DIR/cluster.json`, one model, read alike by every replica and by the command line.

An unknown key, a wrong type and a broken limit are each one `ConfigError` that names the file and the place. Whatever
is written, is written beside and renamed: a reader never sees half a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec

from kvstore.api.shard_map import ShardMap
from kvstore.fields import find_unknown
from kvstore.limits import Limits
from kvstore.process import is_loopback
from multicast import registry
from multicast.protocol import Options
from multicast.types import GroupId, ProcessId, Topology

FORMAT = 1
CLUSTER_FILE = "cluster.json"
HTTP_PORT_OFFSET = 100
BASE_PORT = 7400
DURABILITIES = ("fsync", "os")
ALL_ADDRESSES = ("0.0.0.0", "::")
NO_ARCHIVE = "none"
CERTIFICATES = "certs"


class ConfigError(ValueError):
    """The configuration cannot be used; the text names the file, the key and the limit."""


class ReplicaConfig(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One replica: its shard, and where it listens for its peers and for HTTP.

    host: the address that it listens on; one of 0.0.0.0 and ::, for all. advertise: the address or name by which the
    others and clients reach it; empty: `host`. https: clients speak TLS to it. since: when it took the
    place of another machine, microseconds since 1970: a journal that began before is that one's. 0: it has not. added:
    it did not belong to the shard when the cluster began; removed: it does not belong to it any more. Its id is used
    for no other.
    """

    id: ProcessId
    shard: GroupId
    host: str
    advertise: str = ""
    peer_port: int
    http_port: int
    https: bool = False
    since: int = 0
    added: bool = False
    removed: bool = False

    @property
    def address(self) -> str:
        """By which others reach it."""
        return self.advertise or self.host

    @property
    def peer_address(self) -> tuple[str, int]:
        """By which its peers reach it."""
        return self.address, self.peer_port

    @property
    def url(self) -> str:
        scheme = "https" if self.https else "http"
        return f"{scheme}://{f'[{self.address}]' if ':' in self.address else self.address}:{self.http_port}"


class LogSettings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What a replica logs. slow_request_ms: a request that took longer; 0: none. admin: who changed the cluster or its
    rights, or made a backup. writes: who wrote which keys; off by default, for it is a line per write."""

    slow_request_ms: int = 1_000
    admin: bool = True
    writes: bool = False


class ClusterConfig(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """epoch: how often replicas or shards were added, or replicas removed, since. added_shards: those shards.
    durability: "fsync", or "os": acknowledged writes survive the process, not the machine.
    dedup_window_ms: how long after its creation a transaction's id may still take effect; for the cluster's life.
    archive: where journals go, file by file, when a replica no longer needs them: a directory (relative to that of
    `cluster.json`), which the audit reads; or "none": they are deleted. Empty: they stay where they are, and grow.
    tls: the directory of certificates (`kvstore.certificates`), relative to that of `cluster.json`; empty: no TLS.
    root: the SHA-256, in hexadecimal, of the token that may do everything; empty: nobody needs a token.
    cors_origins: of web pages that may use the HTTP interface, such as "https://example.org"; none by default."""

    format: int
    cluster_id: str
    epoch: int = 0
    protocol: str
    protocol_options: dict[str, Any] = {}
    durability: str = "fsync"
    dedup_window_ms: int = 120_000
    archive: str = ""
    tls: str = ""
    root: str = ""
    cors_origins: tuple[str, ...] = ()
    shard_map: dict[str, Any]
    added_shards: tuple[GroupId, ...] = ()
    replicas: tuple[ReplicaConfig, ...]
    limits: Limits = Limits()
    log: LogSettings = LogSettings()

    @property
    def cluster(self) -> bytes:
        """The cluster id as it stands in journals and greetings: 16 bytes."""
        return bytes.fromhex(self.cluster_id)

    @property
    def present(self) -> tuple[ReplicaConfig, ...]:
        """The replicas that are not removed."""
        return tuple(replica for replica in self.replicas if not replica.removed)

    @property
    def shards(self) -> dict[GroupId, tuple[ProcessId, ...]]:
        """Shard -> its replicas, in the order of the file."""
        return _by_shard(self.present)

    def topology(self, of: ProcessId) -> Topology:
        """The topology with which this replica begins: the first shards, its own, and the replicas that were added to
        these."""
        known = [r for r in self.replicas if r.shard not in self.added_shards or r.shard == self.replica(of).shard]
        return Topology(_by_shard(r for r in known if not r.added), _by_shard(r for r in known if r.added))

    def map(self) -> ShardMap:
        first = {replica.shard for replica in self.replicas} - {*self.added_shards}
        known = ShardMap.from_json(self.shard_map)
        return ShardMap(known.version, known.slots, first)

    def options(self) -> Options:
        """The protocol's options: those of the file, the hybrid clock, and the deduplication window."""
        given = {"clock": "hybrid", **self.protocol_options, "dedup_window_us": self.dedup_window_ms * 1000}
        return msgspec.convert(given, registry.load(self.protocol).specification.options)

    def replica(self, replica_id: ProcessId) -> ReplicaConfig:
        """ConfigError if there is no such replica."""
        for replica in self.replicas:
            if replica.id == replica_id:
                return replica
        raise ConfigError(f"no replica {replica_id} in this cluster; it has {_listed([r.id for r in self.replicas])}")

    def member(self, replica_id: ProcessId) -> ReplicaConfig:
        """ConfigError if there is no such replica, or not any more."""
        replica = self.replica(replica_id)
        if replica.removed:
            raise ConfigError(f"replica {replica_id} was removed from its shard, and its id is not used again")
        return replica

    def named(self, text: str) -> ReplicaConfig:
        """The replica with this id, or by whose address, or the first part of it, it is called. ConfigError."""
        if text.isdigit():
            return self.replica(int(text))
        found = [r for r in self.replicas if text in (r.address, r.address.partition(".")[0])]
        if len(found) != 1:
            addresses = ", ".join(sorted({r.address for r in self.replicas}))
            raise ConfigError(f"{text[:100]!r} is the address of {len(found)} replicas; they have {addresses}")
        return found[0]

    def with_replica(self, replica: ReplicaConfig) -> ClusterConfig:
        """The same configuration with this replica in place of the one with its id, or as a new one. If its shard is
        not known here, that shard was added: the first shards are in every file."""
        by_id = {one.id: one for one in self.replicas} | {replica.id: replica}
        known = {*self.added_shards, *[one.shard for one in self.replicas]}
        added = self.added_shards if replica.shard in known else (*self.added_shards, replica.shard)
        return msgspec.structs.replace(self, replicas=tuple(by_id.values()), added_shards=added)


def _by_shard(replicas: Iterable[ReplicaConfig]) -> dict[GroupId, tuple[ProcessId, ...]]:
    shards: dict[GroupId, list[ProcessId]] = {}
    for replica in replicas:
        shards.setdefault(replica.shard, []).append(replica.id)
    return {shard: tuple(shards[shard]) for shard in sorted(shards)}


def _listed(ids: list[int]) -> str:
    if len(ids) > 3 and ids == list(range(ids[0], ids[0] + len(ids))):
        return f"{ids[0]} to {ids[-1]}"
    return ", ".join(map(str, ids))


def new_cluster(
    *,
    shards: int,
    replicas: int,
    protocol: str,
    cluster_id: str,
    base_port: int = BASE_PORT,
    host: str = "127.0.0.1",
    advertise: str = "",
    durability: str = "fsync",
    archive: str = "archive",
    tls: str = "",
    machines: Sequence[str] = (),
    names: str = "",
) -> ClusterConfig:
    """A cluster of `shards` x `replicas`. Replica i: peer port base + i, HTTP port base + 100 + i. All are on one
    machine; or of every shard the first replica is on the first of `machines`, and so on: their addresses, on which the
    replicas listen unless `host` is one of ALL_ADDRESSES; or each has a machine of its own, by these `names`, and the
    same ports: {id}, {shard} and {member}, its place in the shard, stand in them."""
    count = shards * replicas
    if shards < 1 or replicas < 1:
        raise ConfigError(f"a cluster has at least one shard of one replica, not {shards} of {replicas}")
    if count > HTTP_PORT_OFFSET:
        raise ConfigError(f"at most {HTTP_PORT_OFFSET} replicas on one machine, not {count}")
    if machines and len(set(machines)) != replicas:
        raise ConfigError(f"machines: {replicas} different ones for {replicas} replicas per shard, not {machines}")
    if machines and names:
        raise ConfigError("machines or names: give one of them")
    addresses = [machines[i % replicas] if machines else "" for i in range(count)]
    if names:
        try:
            addresses = [names.format(id=i, shard=i // replicas, member=i % replicas) for i in range(count)]
        except (LookupError, ValueError, AttributeError):
            raise ConfigError(f"names: {{id}}, {{shard}} and {{member}} may stand in them, not {names!r}") from None
    config = ClusterConfig(
        format=FORMAT,
        cluster_id=cluster_id,
        protocol=protocol,
        durability=durability,
        archive=archive,
        tls=tls,
        shard_map=ShardMap.even(tuple(range(shards))).to_json(),
        replicas=tuple(
            ReplicaConfig(
                id=i,
                shard=i // replicas,
                host=addresses[i] if addresses[i] and host not in ALL_ADDRESSES else host,
                advertise=addresses[i] if addresses[i] and host in ALL_ADDRESSES else advertise,
                peer_port=base_port + (0 if names else i),
                http_port=base_port + HTTP_PORT_OFFSET + (0 if names else i),
                https=bool(tls),
            )
            for i in range(count)
        ),
    )
    check(config, "the new cluster")
    return config


def in_shell(path: Path) -> str:
    """As a command has it that a message tells."""
    return quote(str(path))


def load(directory: Path) -> ClusterConfig:
    """Read and check `directory/cluster.json`. ConfigError says what is wrong with it."""
    path = directory / CLUSTER_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        remedy = f"`kvstore cluster init {in_shell(directory)} ...` makes one"
        if (directory / "replicas").is_dir():
            remedy = "its replicas lie there: put it back, as another machine or a copy has it"
        raise ConfigError(f"{path} does not exist; {remedy}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    return parse(data, str(path))


def parse(data: bytes, source: str) -> ClusterConfig:
    """A checked configuration. ConfigError begins with `source`."""
    config: ClusterConfig = decode(data, ClusterConfig, source, FORMAT)
    check(config, source)
    return config


def decode(data: bytes, model_type: type[Any], source: str, newest: int) -> Any:
    """A JSON object of a format up to `newest`. ConfigError begins with `source`."""
    try:
        raw = json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{source}: not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: a JSON object is needed")
    version = raw.get("format")
    if isinstance(version, int) and version > newest:
        raise ConfigError(f"{source}: format {version} is newer than this program's {newest}; use a newer release")
    unknown = find_unknown(raw, model_type)
    if unknown:
        raise ConfigError(f"{source}: {unknown}")
    try:
        return msgspec.convert(raw, model_type)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_readable(error)}") from None


def _readable(error: msgspec.ValidationError) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.limits.x`", place first."""
    text, _, place = str(error).partition(" - at `$")
    return f"{place.strip('`').lstrip('.')}: {text}" if place else text


def check(config: ClusterConfig, source: str) -> None:
    """Whatever types cannot say. ConfigError names the first thing that is wrong."""

    def fail(problem: str) -> None:
        raise ConfigError(f"{source}: {problem}")

    if config.format != FORMAT:
        fail(f"format: {config.format} is not known; this program writes {FORMAT}")
    if not re.fullmatch("[0-9a-f]{32}", config.cluster_id):
        fail(f"cluster_id: 32 lower-case hexadecimal digits, not {config.cluster_id[:40]!r}")
    if not re.fullmatch("([0-9a-f]{64})?", config.root):
        fail("root: the SHA-256 of a token, 64 lower-case hexadecimal digits")
    if config.durability not in DURABILITIES:
        fail(f"durability: one of {', '.join(DURABILITIES)}, not {config.durability!r}")
    if not 1_000 <= config.dedup_window_ms <= 86_400_000:
        fail(f"dedup_window_ms: from 1000 to 86400000, not {config.dedup_window_ms}")
    if problem := config.limits.problem():
        fail(problem)
    if not 0 <= config.log.slow_request_ms <= 600_000:
        fail(f"log.slow_request_ms: from 0 to 600000, not {config.log.slow_request_ms}")
    _check_replicas(config, fail)
    _check_protocol(config, fail)


def _check_replicas(config: ClusterConfig, fail: Any) -> None:
    if not config.replicas:
        fail("replicas: at least one is needed")
    seen_ids: set[int] = set()
    ports: dict[tuple[str, int], str] = {}
    for i, replica in enumerate(config.replicas):
        place = f"replicas[{i}]"
        if not 0 <= replica.id < 2**31:
            fail(f"{place}.id: from 0 to {2**31 - 1}, not {replica.id}")
        if replica.id in seen_ids:
            fail(f"{place}.id: {replica.id} is used twice")
        seen_ids.add(replica.id)
        if not 0 <= replica.shard < 2**16:
            fail(f"{place}.shard: from 0 to 65535, not {replica.shard}")
        if replica.https and not config.tls:
            fail(f"{place}.https: there are no certificates, for `tls` is not set")
        if not replica.host:
            fail(f"{place}.host: empty")
        if replica.address in ALL_ADDRESSES:
            fail(f"{place}.advertise: the address by which others reach it is needed, for {replica.address} is none")
        for name, port in (("peer_port", replica.peer_port), ("http_port", replica.http_port)):
            if not 1 <= port <= 65535:
                fail(f"{place}.{name}: from 1 to 65535, not {port}")
            if (replica.address, port) in ports:
                fail(f"{place}.{name}: port {port} is already {ports[replica.address, port]}")
            ports[replica.address, port] = f"{place}.{name}"
    try:
        mapped = set(config.map().shards)
    except (ValueError, KeyError, TypeError) as error:
        fail(f"shard_map: {error}")
    missing = sorted(mapped - set(config.shards))
    if missing:
        fail(f"shard_map: shard {missing[0]} has no replica")


def _check_protocol(config: ClusterConfig, fail: Any) -> None:
    try:
        specification = registry.load(config.protocol).specification
    except registry.UnknownProtocol as error:
        fail(f"protocol: {error}")
    if "dedup_window_us" in config.protocol_options:
        fail("protocol_options.dedup_window_us: set dedup_window_ms at the top instead")
    unknown = find_unknown(config.protocol_options, specification.options, "protocol_options")
    if unknown:
        fail(str(unknown))
    try:
        config.options()
    except (msgspec.ValidationError, ValueError) as error:
        text = _readable(error) if isinstance(error, msgspec.ValidationError) else str(error)
        fail(f"protocol_options: {text}")
    if not specification.fault_tolerant:
        for shard, members in config.shards.items():
            if len(members) != 1:
                fail(
                    f"replicas: shard {shard} has {len(members)}, but {config.protocol} is not fault-tolerant: "
                    "it runs with one replica per shard"
                )


def check_exposure(config: ClusterConfig, replica: ReplicaConfig) -> None:
    """ConfigError if this replica listens for others than this machine, and that without TLS."""
    if not is_loopback(replica.host) and not (config.tls and replica.https):
        raise ConfigError(
            f"replica {replica.id} is to listen on {replica.host} without TLS: whoever is on the way reads and writes "
            "everything; `kvstore cluster init --tls` makes a cluster with it; where it is not needed, start the "
            "replica with --insecure"
        )


def save(directory: Path, config: ClusterConfig) -> Path:
    """Write `directory/cluster.json`; the path."""
    path = directory / CLUSTER_FILE
    write_atomically(path, json_text(config))
    return path


def json_text(value: Any) -> bytes:
    """Indented JSON, for files that people read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def write_atomically(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Durable on return; a reader sees the old content or the new. OSError names the file; nothing stays beside it.
    mode: of a new file, from its first byte on, less what the process's umask takes away. A file that is replaced keeps
    its mode and whose it is, and a new one is whose the directory is, as far as this process may give it away: what
    root's commands write, replicas that run as another user have to read."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        beside.unlink(missing_ok=True)
        with open(beside, "xb", opener=partial(os.open, mode=mode)) as file:
            file.write(data)
            _leave(file.fileno(), path)
            file.flush()
            os.fsync(file.fileno())
        rename(beside, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError):
            error.filename = str(path)
        raise


def _leave(file: int, path: Path) -> None:
    """See `write_atomically`."""
    try:
        before = os.stat(path)
    except FileNotFoundError:
        before = os.stat(path.parent)
    else:
        with contextlib.suppress(PermissionError):
            os.fchmod(file, stat.S_IMODE(before.st_mode))
    give(file, before)


def give(file: int, whose: os.stat_result) -> None:
    """An open file that root's command has made, to the owner of that one, or of that directory."""
    if os.geteuid() == 0 != whose.st_uid:
        with contextlib.suppress(PermissionError):
            os.fchown(file, whose.st_uid, whose.st_gid)


def rename(beside: Path, path: Path) -> None:
    """Give a file, or a directory, this name. Durable on return."""
    os.replace(beside, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def replica_directory(directory: Path, replica_id: ProcessId) -> Path:
    """Everything that one replica keeps."""
    return directory / "replicas" / str(replica_id)
