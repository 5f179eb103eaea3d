"""What the HTTP interface needs of the replica behind it; `kvstore.host.LiveReplica` is one."""

from __future__ import annotations

from typing import Protocol

from kvstore.api.cluster import ClusterJson
from kvstore.config import ReplicaConfig
from kvstore.core.messages import Execute, Follow, Lookup, Told
from kvstore.core.rights import Rights
from kvstore.members import Wanted
from kvstore.storage.cut import Cut
from multicast.types import MessageId, Timestamp


class Node(Protocol):
    """The replica behind the HTTP interface."""

    def request(self, asked: Execute | Lookup | Follow, answer: Told) -> int:
        """`answer` is called once, possibly before this returns. Returns what `forget` takes, not 0."""

    def forget(self, token: int) -> None:
        """Nobody waits for that answer any longer: it is not called. Nobody knows the outcome."""

    def new_message_id(self) -> MessageId:
        """A fresh UUIDv7 by this replica's clock."""

    def unready(self) -> str:
        """Why requests cannot be served now; empty if they can."""

    def overload(self) -> str:
        """Why requests must wait although the replica works; empty if they need not."""

    def full(self) -> str:
        """Why nothing can be added to the data; empty if it can."""

    def put_in_place(self, replica: ReplicaConfig) -> None:
        """It takes the place of the one with its id. ConfigError if it cannot."""

    def cut(self, version: Timestamp) -> Cut | None:
        """What this replica keeps of its shard for the backup with this version; None if it keeps nothing."""

    def rights(self) -> Rights:
        """Of its shard, as this replica knows them now."""

    def failure(self) -> str:
        """What ended this replica; empty while it lives."""

    def change_members(self, wanted: Wanted) -> bool:
        """Add a replica to this one's shard, or remove one. Whether nothing is left to be done. Unfit, TooFew."""

    def describe_cluster(self) -> ClusterJson:
        """The answer to `GET /v1/cluster`."""
