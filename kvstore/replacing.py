"""A new replica in the place of one: new disk, perhaps another machine, the same id.

Theory of operation. To its shard the new one is the old one without its disk (`multicast.parts.rejoin`), so it needs
all others of its shard. Before the old one is ended, these are told of it (`POST /v1/replaced`): from then on they read
nothing of the old machine, whether it runs or returns, and the file from which they start says so, too. So what the old
one may still say to other shards is of ballots that its shard has begun before, as if it had said it before its disk
was lost. Replicas of other shards are told, too; one that is not reached refuses the old one as soon as the new one has
greeted it, and learns from that greeting where the new one is (`multicast.runtime.fence.Places`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvstore import certificates, changing, config, identity
from kvstore.cluster import (
    KILL_GRACE_SECONDS,
    ClusterError,
    Started,
    check_ports,
    fetch,
    is_ready,
    open_cluster,
    said,
    start,
    wait_ready,
)
from kvstore.config import ClusterConfig, ConfigError, ReplicaConfig
from kvstore.process import Handle, is_here, running
from kvstore.status import described, foreign
from multicast.runtime.disk import make_directory
from multicast.types import ProcessId

TELL_SECONDS = 10.0


class Unheard(ClusterError):
    """No other replica has heard of the new one: all is as it was."""


def replace_replica(
    directory: Path,
    replica_id: ProcessId,
    changes: Mapping[str, Any],
    to: Path,
    say: Callable[[str], None],
    insecure: bool = False,
) -> Started:
    """Returns when it is ready. changes: to its entry in `cluster.json`. to: the cluster's directory on the machine of
    the new one, which is this machine.

    ClusterError, ConfigError: why it cannot be; the same command may be given again. insecure: see `check_exposure`.
    """
    with changing.alone(directory):
        return _replace_replica(directory, replica_id, changes, to, say, insecure)


def _replace_replica(
    directory: Path, replica_id: ProcessId, changes: Mapping[str, Any], to: Path, say: Callable[[str], None],
    insecure: bool,
) -> Started:
    before = open_cluster(directory)
    old = before.member(replica_id)
    if problem := identity.cannot_return(before, replica_id):
        raise ConfigError(f"replica {replica_id} cannot be replaced: {problem}")
    new: ReplicaConfig = msgspec.structs.replace(old, **changes, since=time.time_ns() // 1000)
    if not insecure:
        config.check_exposure(before, new)
    after = before.with_replica(new)
    config.check(after, f"with another replica {replica_id}")
    if not is_here(new.host):
        raise ConfigError(f"{new.host} is no address of this machine, where the new one is to run; nothing was changed")
    _check_others(directory, before, old)
    runs = any(running(config.replica_directory(one, replica_id)) for one in (directory, to))
    check_ports(new, (old.peer_port, old.http_port) if runs else ())
    if to != directory:
        _make_place(to, before)
    if after.tls:
        certificates.bring(directory, to, after, new, say)
    changing.replace(directory, before, after)
    try:
        _tell(after, new, say)
    except Unheard:
        changing.replace(directory, after, before)
        raise
    _put_away(config.replica_directory(directory, replica_id), new.since, say)
    if to != directory:
        _put_away(config.replica_directory(to, replica_id), new.since, say)
        config.save(to, after)
    started = start(to, after, new, lost_disk=True, insecure=insecure)
    problems: list[str] = []
    wait_ready(to, msgspec.structs.replace(after, replicas=(new,)), [started], problems, say)
    if problems:
        raise ClusterError(problems[0])
    return started


def _check_others(directory: Path, known: ClusterConfig, old: ReplicaConfig) -> None:
    """Those of its shard; whoever was added on another machine has to be in the file, too."""
    others = [other for other in known.present if other.shard == old.shard and other.id != old.id]
    for other in others:
        if problem := foreign(known.cluster_id, other.url):
            raise ClusterError(f"{problem}, where replica {other.id} should be; nothing was changed")
        if not is_ready(other):
            raise ClusterError(
                f"replica {other.id} of shard {old.shard} is not ready, and a new replica {old.id} has to hear from all"
                " others of its shard: bring it back first; nothing was changed"
            )
    with contextlib.suppress(ClusterError):  # who does not answer will not be told, either
        shards = described([other.url for other in others]).shards
        members = {replica.id for shard in shards if shard.id == old.shard for replica in shard.replicas}
        for missing in sorted(members - {replica.id for replica in known.replicas}):
            raise ConfigError(
                f"{directory / config.CLUSTER_FILE} does not have replica {missing}, which belongs to shard {old.shard}"
                ": copy that file from the machine where it was added; nothing was changed"
            )


def _make_place(to: Path, known: ClusterConfig) -> None:
    """The directory of the cluster on the new one's machine, with what can be written there before the old one ends.
    ConfigError: it is another cluster's, whose replica of this id would be ended."""
    there = (to / config.CLUSTER_FILE).exists()
    if there and (other := config.load(to).cluster_id) != known.cluster_id:
        raise ConfigError(f"{to} is of cluster {other}, not of {known.cluster_id}; nothing was changed")
    make_directory(str((to / "replicas").absolute()))
    if not there:
        config.save(to, known)


def _put_away(home: Path, since: int, say: Callable[[str], None]) -> None:
    """End the old one, if it runs here, and keep its directory under another name."""
    handle = Handle.of(home)
    if handle is not None:
        handle.end(KILL_GRACE_SECONDS)
        handle.close()
    if home.exists():
        aside = home.with_name(f"{home.name}-replaced-{since}")
        os.rename(home, aside)
        say(f"what was in {home} is in {aside}")


def _tell(known: ClusterConfig, new: ReplicaConfig, say: Callable[[str], None]) -> None:
    """All other replicas, its shard first, all of whose must have heard. ClusterError; Unheard if none has."""
    body, heard = msgspec.json.encode(new), False
    others = [replica for replica in known.present if replica.id != new.id]
    for other in sorted(others, key=lambda replica: replica.shard != new.shard):
        problem = foreign(known.cluster_id, other.url)
        refused = bool(problem)
        try:
            if not problem:
                status, answer = fetch(f"{other.url}/v1/replaced", TELL_SECONDS, body)
                problem = "" if status == 200 else said(answer)
                refused = 400 <= status < 500
        except OSError as error:
            problem, refused = str(error), False
        heard = heard or not refused
        if problem and not heard:
            raise Unheard(f"replica {other.id} refuses the new replica {new.id}, and nothing was changed: {problem}")
        if problem and other.shard == new.shard:
            raise ClusterError(f"replica {other.id} was not told: {problem}; give the same command again")
        if problem:
            say(f"replica {other.id} was not told ({problem}): it will be when the new one reaches it")
