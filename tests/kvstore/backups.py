"""Backups for tests: made by hand, and clusters whose replicas all live in this process, with HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from kvstore.api.shard_map import ShardMap
from kvstore.backup.files import FORMAT, Manifest, RowWriter, write_manifest
from kvstore.config import ClusterConfig
from kvstore.host import LiveReplica
from kvstore.http.app import HttpApi
from kvstore.http.connection import ApiServer
from kvstore.http.metrics import Metrics
from kvstore.storage.store import row_digest
from multicast.types import Timestamp
from tests.multicast.live import eventually

CUT = Timestamp(1_700_000_000_000_000, 7)


def version(number: int) -> Timestamp:
    """The number-th one before the cut."""
    return Timestamp(CUT.time - 1000 - number, 0)


def make_backup(target: Path, values: Mapping[bytes, bytes], shards: int = 1, timestamp: Timestamp = CUT) -> Manifest:
    """Of these keys, the number-th of which has version `version(number)`."""
    target.mkdir()
    shard_map = ShardMap.even(range(shards))
    told = []
    for shard in range(shards):
        numbered = enumerate(sorted(values))
        rows = [(k, version(n).encode() + values[k]) for n, k in numbered if shard_map.shard_of(k) == shard]
        writer = RowWriter(target, shard)
        for row in rows:
            writer.add([row])
        digest = sum(row_digest(*row) for row in rows) % 2**128
        told.append(writer.finish(100 + shard, digest.to_bytes(16, "big")))
    manifest = Manifest(
        format=FORMAT, cluster_id="0" * 32, protocol="white_box", version=str(timestamp), timestamp=str(timestamp),
        dedup_window_ms=120_000, shard_map=shard_map.to_json(), shards=told,
    )  # fmt: skip
    write_manifest(target, manifest)
    return manifest


@asynccontextmanager
async def serving(directory: Path, made: ClusterConfig) -> AsyncIterator[list[LiveReplica]]:
    """All replicas of a cluster, ready."""
    replicas = [LiveReplica(directory, made, replica.id) for replica in made.replicas]
    servers = []
    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        for replica in replicas:
            server = ApiServer(HttpApi(replica, made.limits, Metrics(replica.status)))
            listening = asyncio.get_running_loop().create_server(server, replica.me.host, replica.me.http_port)
            servers.append((server, await listening))
        await eventually(lambda: not any(replica.unready() for replica in replicas), "all are ready")
        yield replicas
    finally:
        for server, listening_at in servers:
            listening_at.close()
            await server.close(0)
        await asyncio.gather(*(replica.stop() for replica in replicas))
