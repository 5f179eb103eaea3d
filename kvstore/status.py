"""How the replicas of a cluster are: what each says of itself, asked by its directory or by the address of one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from kvstore.api.cluster import ClusterJson, decode_cluster
from kvstore.cluster import ClusterError, fetch, open_cluster, said
from kvstore.config import CLUSTER_FILE, ClusterConfig, replica_directory
from kvstore.process import is_here, running
from multicast.wire import MALFORMED

ASKED_AT_ONCE = 32
_NO_ANSWER = (OSError, *MALFORMED, KeyError, TypeError)
"""Nobody, or another program: whatever that says."""


class ReplicaStatus(msgspec.Struct):
    """One line of `kvstore cluster status`. pid: of the process on this machine. state: "ready", "not ready", "not
    answering", "denied" (it wants a token, or another one), or "down": it is known that no process runs. why: it is not
    ready, or denies it, as it says itself; or it does not answer."""

    id: int
    shard: int
    url: str
    pid: int | None
    state: str
    role: str
    position: int | None
    details: dict[str, Any] = {}
    why: str = ""


def _directory_of(target: str | Path) -> Path | None:
    """None: it is no directory, but addresses."""
    known = ":" not in str(target) or (Path(target) / CLUSTER_FILE).exists()
    return Path(target) if known else None


def urls_of(target: str | Path) -> list[str]:
    """Of the replicas that may be asked first: those of a cluster's directory, or these: URLs or host:port, with
    commas. ConfigError."""
    directory = _directory_of(target)
    if directory is not None:
        return [replica.url for replica in open_cluster(directory).present]
    parts = [part.strip() for part in str(target).split(",")]
    return [(part if "://" in part else f"http://{part}").rstrip("/") for part in parts]


def cluster_of(target: str | Path) -> str:
    """The id of the cluster that has this directory; empty for addresses, behind which any may be. ConfigError."""
    directory = _directory_of(target)
    return open_cluster(directory).cluster_id if directory is not None else ""


def described(urls: Sequence[str], cluster_id: str = "") -> ClusterJson:
    """What the first that answers says of its cluster. cluster_id: of which it has to be, for at the same addresses
    another one's replicas may run; empty: of any. ClusterError."""
    why = "there is no replica"
    for url in urls:
        try:
            status, body = fetch(f"{url}/v1/cluster")
            told = decode_cluster(body) if status == 200 else None
            if told is not None and cluster_id in ("", told.cluster_id):
                return told
            why = f"{url}: {said(body)}" if told is None else _foreign(url, told.cluster_id)
        except _NO_ANSWER as error:
            why = f"{url}: {error}"
    raise ClusterError(f"no replica says what its cluster is: {why}")


def foreign(cluster_id: str, url: str) -> str:
    """What is wrong if a replica of another cluster answers there; else empty, also if nobody does."""
    with contextlib.suppress(*_NO_ANSWER):
        status, body = fetch(f"{url}/v1/cluster")
        other = decode_cluster(body).cluster_id if status == 200 else cluster_id
        if other != cluster_id:
            return _foreign(url, other)
    return ""


def _foreign(url: str, cluster_id: str) -> str:
    return f"at {url} is a replica of another cluster, {cluster_id}"


def statuses(target: str | Path) -> list[ReplicaStatus]:
    """Every replica, whether it runs or not: of the cluster with this directory, or one of whose replicas' addresses
    this is. ClusterError, ConfigError."""
    directory = _directory_of(target)
    if directory is not None:
        config = open_cluster(directory)
        asked = [partial(_local, directory, config, replica.id) for replica in config.present]
    else:
        urls = urls_of(target)
        told = described(urls)
        asked = [
            partial(_asked, told.cluster_id, ReplicaStatus(r.id, shard.id, r.url, None, "not answering", "", None))
            for shard in told.shards
            for r in shard.replicas
        ]
    with ThreadPoolExecutor(ASKED_AT_ONCE) as together:
        return [line.result() for line in [together.submit(ask) for ask in asked]]


def _local(directory: Path, config: ClusterConfig, replica_id: int) -> ReplicaStatus:
    """A process of another machine is not seen, but may answer."""
    replica = config.replica(replica_id)
    pid = running(replica_directory(directory, replica_id))
    line = _asked(config.cluster_id, ReplicaStatus(replica_id, replica.shard, replica.url, pid, "down", "", None))
    if line.state == "down" and (pid is not None or not is_here(replica.host)):
        line.state = "not answering"
    line.why = "" if line.state == "down" else line.why
    return line


def _asked(cluster_id: str, line: ReplicaStatus) -> ReplicaStatus:
    line.why = "it is no replica of this cluster that answers there"
    try:
        status, body = fetch(f"{line.url}/v1/cluster")
        if status in (401, 403):
            line.state, line.why = "denied", f"{said(body)}: KVSTORE_TOKEN, or --token-file FILE before the command"
            return line
        answer = msgspec.json.decode(body)
        if answer["cluster_id"] == cluster_id and answer["self"] == line.id:
            line.details, line.why = answer["replica"], ""
            line.state = "ready" if line.details["ready"] else "not ready"
            line.role, line.position = line.details["role"], line.details["position"]
            if line.state == "not ready":
                status, body = fetch(f"{line.url}/readyz")
                line.why = "" if status == 200 else said(body)
    except OSError as error:
        line.why = str(error)
    except _NO_ANSWER:
        pass
    return line


def lags(replicas: Sequence[ReplicaStatus]) -> list[int | None]:
    """How many deliveries each is behind the one of its shard that has come furthest; None: it does not answer."""
    first: dict[int, int] = {}
    for replica in replicas:
        first[replica.shard] = max(first.get(replica.shard, 0), replica.position or 0)
    return [None if r.position is None else first[r.shard] - r.position for r in replicas]

