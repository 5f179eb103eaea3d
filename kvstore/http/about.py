"""The handlers of what tells people and machines about the cluster and its interface."""

from __future__ import annotations

from kvstore import __version__
from kvstore.api import codec
from kvstore.api.cluster import BEGUN, FoundingJson, MemberJson, MembersJson, ShardsJson
from kvstore.api.docs_page import page
from kvstore.api.openapi import document
from kvstore.http.access import AccessControl
from kvstore.http.answers import JSON, Response
from kvstore.http.calls import Call
from kvstore.http.node import Node

PLAIN = ("ready", "role", "position")
"""What a replica tells of itself to everybody who has a token."""


class About:
    """At one replica; each method is the handler of the route of its name."""

    def __init__(self, node: Node, access: AccessControl):
        self._node = node
        self._access = access

    def cluster(self, call: Call) -> None:
        """The rest of what this replica tells of itself is for those who may see its metrics, too."""
        known = self._node.describe_cluster()
        if not self._access.observes(call.by):
            known.replica = {name: known.replica[name] for name in PLAIN if name in known.replica}
        call.answer(Response(200, JSON, codec.encode(known)))

    def members(self, call: Call) -> None:
        shards = self._node.describe_cluster().shards
        members = [MemberJson(r.id, r.url, shard.id) for shard in shards for r in shard.replicas]
        call.answer(Response(200, JSON, codec.encode(MembersJson(members))))

    def shards(self, call: Call) -> None:
        cluster = self._node.describe_cluster()
        call.answer(Response(200, JSON, codec.encode(ShardsJson(cluster.shard_map, cluster.shards))))

    def limits(self, call: Call) -> None:
        call.answer(Response(200, JSON, codec.encode(self._node.describe_cluster().limits)))

    def openapi(self, call: Call) -> None:
        call.answer(Response(200, JSON, codec.encode(document(__version__))))

    def docs(self, call: Call) -> None:
        call.answer_large(b"Content-Type: text/html; charset=utf-8\r\n", page(document(__version__)))

    def founding(self, call: Call) -> None:
        known = self._node.describe_cluster()
        call.answer(Response(200, JSON, codec.encode(FoundingJson(known.cluster_id, known.self_id, BEGUN))))
