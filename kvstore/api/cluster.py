"""The JSON of `GET /v1/cluster`: what one replica knows of its cluster, and of itself."""

from __future__ import annotations

from typing import Any

import msgspec

from kvstore.api.model import (
    APPENDED_BYTES_MAX,
    KEY_BYTES_MAX,
    OPERATIONS_MAX,
    RANGE_BYTES_MAX,
    RESULT_BYTES_MAX,
    SCAN_LIMIT_MAX,
    VALUE_BYTES_MAX,
)
from multicast.types import GroupId, ProcessId

FETCHES = "fetches"
"""In why a replica is not ready: it takes what its shard has, and says how much so far. That may take long."""


class ReplicaJson(msgspec.Struct):
    """url: of its HTTP interface."""

    id: ProcessId
    url: str


class ShardJson(msgspec.Struct, kw_only=True):
    """leader: the replica that this one takes for it; None if it knows none."""

    id: GroupId
    leader: ProcessId | None = None
    replicas: list[ReplicaJson]


class LimitsJson(msgspec.Struct, kw_only=True):
    """Of requests. range_bytes_max: a page of a scan ends early when a shard has found so much. result_bytes_max: what
    one transaction may read of one shard; of more nothing is told: a transaction that wrote has `results_omitted`, what
    only reads is 422. appended_bytes_max: what its appends may write in one shard; beyond it fails. timeout_max_ms: the
    longest that `X-Timeout-Ms` may ask for."""

    key_bytes_max: int = KEY_BYTES_MAX
    value_bytes_max: int = VALUE_BYTES_MAX
    operations_max: int = OPERATIONS_MAX
    scan_limit_max: int = SCAN_LIMIT_MAX
    range_bytes_max: int = RANGE_BYTES_MAX
    result_bytes_max: int = RESULT_BYTES_MAX
    appended_bytes_max: int = APPENDED_BYTES_MAX
    body_bytes_max: int = 0
    timeout_max_ms: int = 60_000


class MemberJson(ReplicaJson):
    """shard: the one that it belongs to."""

    shard: GroupId


class MembersJson(msgspec.Struct):
    replicas: list[MemberJson]


class ShardsJson(msgspec.Struct):
    """shard_map: `ShardMap.to_json`."""

    shard_map: Any
    shards: list[ShardJson]


EMPTY, CLAIMED, BEGUN = "empty", "claimed", "begun"


class FoundingJson(msgspec.Struct):
    """state: how far this replica is with its beginning: EMPTY, CLAIMED or BEGUN (`kvstore.founding`)."""

    cluster_id: str
    replica: ProcessId
    state: str


class ClusterJson(msgspec.Struct, kw_only=True):
    """shard_map: `ShardMap.to_json`. replica: numbers and words about the one that answers. A client needs no more than
    has no default here."""

    cluster_id: str
    protocol: str = ""
    durability: str = ""
    self_id: ProcessId = msgspec.field(name="self", default=-1)
    shard_map: Any
    dedup_window_ms: int = 0
    limits: LimitsJson = msgspec.field(default_factory=LimitsJson)
    shards: list[ShardJson]
    replica: dict[str, Any] = {}


decode_cluster = msgspec.json.Decoder(ClusterJson).decode
