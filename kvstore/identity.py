"""Whose data lies in a replica's directory: `DIR/replicas/<id>/identity.json`.

`create` leaves it there before a replica's first start, so that a directory without it is known to be lost; `claim`
finds what is there to be this replica's own, before anything of it is read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

import msgspec

from kvstore.config import (
    CLUSTER_FILE,
    FORMAT,
    ClusterConfig,
    ConfigError,
    ReplicaConfig,
    decode,
    in_shell,
    json_text,
    replica_directory,
    save,
    write_atomically,
)
from multicast import registry
from multicast.parts.rejoin import can_return
from multicast.runtime.disk import make_directory
from multicast.types import GroupId, ProcessId

IDENTITY_FILE = "identity.json"
REMOVED = "replica {} was removed from its shard: it ends, and its directory is needed no more"
"""What it says then."""


class Identity(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """started: the replica has run, so its journal is not empty. lost_disk: it came back without its disk
    (`serve --lost-disk`) and began a new journal. slots: a digest of which shard had which slot at first. alike: the
    options by which all go alike (`multicast.protocol.Options`): what was delivered was judged by them. Empty, as older
    releases left them: they are taken from what the configuration says next."""

    format: int
    cluster_id: str
    replica: ProcessId
    shard: GroupId
    protocol: str
    started: bool = True
    lost_disk: bool = False
    slots: str = ""
    alike: dict[str, str] = {}


def create(directory: Path, config: ClusterConfig) -> Path:
    """Make `directory` with `cluster.json`, and the identities of all that have not run; the path. ConfigError: some of
    another cluster lie there that have: it is its `cluster.json` that is missing."""
    for home in sorted((directory / "replicas").glob("*")):
        found = read(home) if (home / IDENTITY_FILE).is_file() else None
        if found is not None and found.started and found.cluster_id != config.cluster_id:
            raise ConfigError(
                f"{home} is of a replica of cluster {found.cluster_id}, which has run: if its {CLUSTER_FILE} was lost, "
                "put it back, as another machine has it; for a new cluster take another directory; nothing was changed"
            )
    prepare(directory, config, config.replicas)
    return save(directory, config)


def prepare(directory: Path, config: ClusterConfig, new: Iterable[ReplicaConfig]) -> None:
    """Make the identities of those that have not run."""
    for replica in new:
        home = replica_directory(directory, replica.id)
        make_directory(str(home.absolute()))
        path = home / IDENTITY_FILE
        if not path.exists() or not read(home).started:
            write_atomically(path, json_text(_identity(config, replica.id, started=False)))


def claim(directory: Path, config: ClusterConfig, replica_id: ProcessId, lost_disk: bool = False) -> Path:
    """The replica's directory. ConfigError if it is somebody else's, or if what was in it is gone.

    lost_disk: that is known; the replica is to come back without it. Then its directory is made anew and marked, so
    that it is said once. ConfigError if the directory is intact, or the cluster cannot take such a replica back.
    """
    home = replica_directory(directory, replica_id)
    path = home / IDENTITY_FILE
    own = _identity(config, replica_id)
    if lost_disk:
        _check_lost_disk(home, config, replica_id)
    if not path.exists():
        if not lost_disk and not has_data(home):
            raise ConfigError(f"{home} is missing or empty: {lost_disk_remedy(directory, config, replica_id)}")
        make_directory(str(home.absolute()))
        write_atomically(path, json_text(msgspec.structs.replace(own, lost_disk=lost_disk)))
        return home
    found = read(home)
    if found.cluster_id != own.cluster_id:
        raise ConfigError(
            f"{home} belongs to cluster {found.cluster_id}, not to {own.cluster_id}; nothing in it was changed"
        )
    for name in ("replica", "shard", "protocol"):
        if getattr(found, name) != getattr(own, name) and (found.started or name == "replica"):
            raise ConfigError(
                f"{home} holds the data of {name} {getattr(found, name)}, but {CLUSTER_FILE} says "
                f"{getattr(own, name)}; nothing in it was changed"
            )
    if found.started and found.slots not in ("", own.slots):
        raise ConfigError(
            f"{home} began with another shard_map than {CLUSTER_FILE} has, and what lies in the shards goes by that:"
            " put back what was there (`kvstore cluster move-slots` moves slots); nothing in it was changed"
        )
    for name in sorted(found.alike.keys() & own.alike.keys()) if found.started else ():
        if found.alike[name] != own.alike[name]:
            raise ConfigError(
                f"{home} began with {_setting(name, found.alike[name])}, and {CLUSTER_FILE} has"
                f" {_setting(name, own.alike[name])}: what was delivered went by the first, at all replicas alike, so"
                " put that back; nothing in it was changed"
            )
    if not found.started and own != msgspec.structs.replace(found, started=True):
        write_atomically(path, json_text(msgspec.structs.replace(own, started=False)))  # changed before its first start
    if lost_disk and not found.lost_disk:
        found = msgspec.structs.replace(own, lost_disk=True)
        write_atomically(path, json_text(found))
    if found.started and not (found.slots and found.alike):
        with contextlib.suppress(OSError):  # on a full disk at a later start
            whole = msgspec.structs.replace(found, slots=own.slots, alike=own.alike)
            write_atomically(path, json_text(whole))
    return home


def read(home: Path) -> Identity:
    """Of a directory that has one."""
    path = home / IDENTITY_FILE
    found: Identity = decode(path.read_bytes(), Identity, str(path), FORMAT)
    return found


def mark_started(home: Path) -> None:
    """From now on an empty journal is a lost one. Durable on return."""
    found = read(home)
    if not found.started:
        write_atomically(home / IDENTITY_FILE, json_text(msgspec.structs.replace(found, started=True)))


def lost_disk_remedy(directory: Path, config: ClusterConfig, replica_id: ProcessId) -> str:
    """What to do about a replica whose data is gone."""
    problem = cannot_return(config, replica_id)
    if problem:
        return f"this replica has run before and its data is gone, and it cannot come back without it: {problem}"
    return (
        "what this replica has promised the others is gone, so it must not start as if it were new; if its disk is "
        f"lost, start it once with: kvstore serve --dir {in_shell(directory)} --replica {replica_id} --lost-disk"
    )


def _setting(option: str, value: str) -> str:
    """As the configuration has this option of protocols."""
    if option == "dedup_window_us":
        return f"dedup_window_ms = {int(value) // 1000}"
    return f"protocol_options.{option} = {value!r}"


def _identity(config: ClusterConfig, replica_id: ProcessId, started: bool = True) -> Identity:
    return Identity(
        format=FORMAT,
        cluster_id=config.cluster_id,
        replica=replica_id,
        shard=config.replica(replica_id).shard,
        protocol=config.protocol,
        started=started,
        slots=blake2b(msgspec.json.encode(config.map().slots), digest_size=16).hexdigest(),
        alike=config.options().told_alike(),
    )


def has_data(home: Path) -> bool:
    """Whether a journal or data lie there."""
    return any(path.is_file() for name in ("journal", "data") for path in (home / name).glob("*"))


def cannot_return(config: ClusterConfig, replica_id: ProcessId) -> str:
    """Why the cluster cannot take this replica back without its disk; empty if it can."""
    if not registry.load(config.protocol).specification.survives_lost_disk:
        return f"the protocol {config.protocol} does not survive the loss of a disk"
    shard = config.replica(replica_id).shard
    replicas = len(config.shards[shard])
    if not can_return(replicas):
        return f"shard {shard} has {replicas} replica(s), and without this one no majority is left that remembers"
    return ""


def _check_lost_disk(home: Path, config: ClusterConfig, replica_id: ProcessId) -> None:
    problem = cannot_return(config, replica_id)
    if problem:
        raise ConfigError(f"--lost-disk: {problem}")
    if has_data(home):
        raise ConfigError(
            f"--lost-disk: {home} holds a journal or data, which it would forget; start without this option, or, if it "
            "is damaged, move the directory away first; nothing in it was changed"
        )
