"""A new cluster from a backup.

Theory of operation. The new cluster begins with the cut: to each of its replicas the cut is the first delivery, which
has had its effect, with the rows of the backup, at their versions, for its outcome (`multicast.install`). So stamps and
clocks go on above the cut, a replica that loses its disk gets the rows from others, and whoever has read a version
before may go by it. Ids are forgotten: a request that was under way when the cluster was lost may be asked again and
takes effect again. The cluster has an id of its own; replicas of the old one do not take it for theirs.

In the journals the rows stand as the *base* (`kvstore.core.audit.Base`): to the audit they are written by somebody
before the first transaction. Nothing is said of what was before.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from kvstore import config, identity
from kvstore.api.model import CUT
from kvstore.backup.files import MANIFEST, BackupError, Manifest, ShardManifest, made_beside, read_rows, verify
from kvstore.config import ClusterConfig, ReplicaConfig
from kvstore.core.audit import (
    APPLIED,
    AUDIT_VERSION,
    BASE_VERSION,
    WRITTEN_BYTES_KEPT,
    Base,
    Based,
    Outcome,
    Outcomes,
    encode_base,
    encode_outcomes,
)
from kvstore.core.bundles import NO_ID, encode_bundle, encode_transaction
from kvstore.core.rows import decode_row, origin_of
from kvstore.core.state import ATTACHED
from kvstore.disk import open_disk
from kvstore.storage.backend import DATA, META, NOTES, Backend, Changes
from kvstore.storage.store import meta_of, owner_of
from multicast import install, records, registry
from multicast.protocol import MulticastProtocol
from multicast.types import FINAL, AppMessage, Timestamp, new_message_id

RESTORED_FROM = "restored-from.json"
"""In the new cluster's directory: the manifest of the backup."""
_FIRST = 1
"""The cut is delivery number 1."""
_CLOCK_BEHIND_US_MAX = 1_000_000


def restore(backup: Path, directory: Path, made: ClusterConfig, progress: Callable[[str], None]) -> Manifest:
    """Make `directory`, with a cluster of configuration `made`, which `configuration` has made for this backup; none
    of its replicas runs afterwards. BackupError, ConfigError: nothing is left behind."""
    if directory.exists():  # which is said before all of the backup is read
        raise BackupError(f"{directory} exists already; nothing was changed")
    manifest = verify(backup, progress)
    _check_clock(manifest)
    with made_beside(directory) as beside:
        identity.create(beside, made)
        first = _cut(made, Timestamp.parse(manifest.timestamp))
        by_id = {shard.id: shard for shard in manifest.shards}
        for replica in made.replicas:
            _Seeding(backup, beside, made, replica, first, by_id[replica.shard]).run()
            progress(f"replica {replica.id} of shard {replica.shard}: {by_id[replica.shard].rows} rows")
        shutil.copyfile(backup / MANIFEST, beside / RESTORED_FROM)
    return manifest


def configuration(manifest: Manifest, *, protocol: str, **options: Any) -> ClusterConfig:
    """For `restore`: the shards and slots of the backup. protocol: empty: that of the backup. options: the others of
    `config.new_cluster`. ConfigError, BackupError."""
    shards, protocol = [shard.id for shard in manifest.shards], protocol or manifest.protocol
    _check_protocol(config.new_cluster(shards=1, replicas=1, protocol=protocol, cluster_id=manifest.cluster_id))
    made = config.new_cluster(shards=len(shards), protocol=protocol, cluster_id=uuid.uuid4().hex, **options)
    members = tuple(msgspec.structs.replace(replica, shard=shards[replica.shard]) for replica in made.replicas)
    return fitted(manifest, msgspec.structs.replace(made, replicas=members))


def fitted(manifest: Manifest, given: ClusterConfig) -> ClusterConfig:
    """This configuration for `restore`: with an id of its own, if its id is that of the backup, and with all replicas
    as they are at the beginning. ConfigError, BackupError."""
    shards = [shard.id for shard in manifest.shards]
    if sorted(given.shards) != sorted(shards):
        raise BackupError(
            f"the backup has the shards {', '.join(map(str, shards))}, and the configuration"
            f" {', '.join(map(str, given.shards))}: they must be the same"
        )
    same = given.cluster_id == manifest.cluster_id
    made = msgspec.structs.replace(
        given,
        cluster_id=uuid.uuid4().hex if same else given.cluster_id,
        epoch=0,
        added_shards=(),
        replicas=tuple(msgspec.structs.replace(replica, added=False, since=0) for replica in given.present),
        shard_map=manifest.shard_map,
        dedup_window_ms=manifest.dedup_window_ms,
    )
    config.check(made, "the new cluster")
    _check_protocol(made)
    return made


def _check_protocol(made: ClusterConfig) -> None:
    if _protocol(made, made.replicas[0]).history is None:
        raise BackupError(
            f"the protocol {made.protocol} cannot begin with a state that others have made; white_box and primcast can:"
            " choose one, with --protocol or in the file of --config"
        )


def _check_clock(manifest: Manifest) -> None:
    """Stamps above the cut would be ahead of everybody's ids, and these expired."""
    behind = Timestamp.parse(manifest.timestamp).time - time.time_ns() // 1000
    if behind > _CLOCK_BEHIND_US_MAX:
        raise BackupError(
            f"this machine's clock is {behind / 1e6:.1f} s behind the time of the backup, and a cluster's time does not"
            " go back; set the clock first"
        )


def _protocol(made: ClusterConfig, replica: ReplicaConfig) -> MulticastProtocol:
    """One that never runs."""
    return registry.load(made.protocol)(replica.id, made.topology(replica.id), made.options(), random.Random(0))


def _cut(made: ClusterConfig, timestamp: Timestamp) -> records.Delivered:
    """The new cluster's first delivery."""
    now = time.time_ns() // 1000
    message_id = new_message_id(now, random.SystemRandom().getrandbits(62))
    payload = encode_bundle([(NO_ID, encode_transaction(CUT))])
    message = AppMessage(message_id, tuple(made.shards), payload, made.replicas[0].id)
    return records.Delivered(_FIRST, timestamp, FINAL, False, message, now)


class _Seeding:
    """The disk of one replica. shard: of which it has the rows."""

    def __init__(
        self, backup: Path, directory: Path, made: ClusterConfig, replica: ReplicaConfig, first: records.Delivered,
        shard: ShardManifest,
    ):  # fmt: skip
        self._backup, self._shard = backup, shard
        self._made, self._replica, self._first = made, replica, first
        self._home = config.replica_directory(directory, replica.id)

    def run(self) -> None:
        """Data and journal, and that it is not new any more."""
        made, replica, digest = self._made, self._replica, bytes.fromhex(self._shard.digest)
        with contextlib.ExitStack() as opened:
            _, journal, backend = open_disk(made, replica, self._home, opened)
            outcomes = Outcomes(AUDIT_VERSION, self._first.timestamp, [Outcome(NO_ID, APPLIED, True)], digest)
            outcome = encode_outcomes(outcomes)
            bases = self._bases(backend)
            install.begin(journal, _protocol(made, replica), self._first, outcome, bases, made.durability)
            meta = meta_of(owner_of(made.cluster, replica.id), _FIRST, self._first.timestamp.encode(), digest)
            backend.apply(Changes({META: {**meta}}, b""))
        identity.mark_started(self._home)

    def _bases(self, backend: Backend) -> Iterator[records.Base]:
        """For the journal, each once the data has it."""
        for rows in read_rows(self._backup, self._shard):
            attached = {ATTACHED + lease + key: b"1" for key, row in rows if (lease := origin_of(row)[1])}
            backend.apply(Changes({DATA: dict(rows), NOTES: {**attached}}, b""))
            yield records.Base(encode_base(Base(BASE_VERSION, [_based(key, row) for key, row in rows])))


def _based(key: bytes, row: bytes) -> Based:
    found = decode_row(key, row)
    version, value = found.version, found.value
    if len(value) > WRITTEN_BYTES_KEPT:
        return Based(key, version, blake2b(value, digest_size=16).digest(), True)
    return Based(key, version, value)
