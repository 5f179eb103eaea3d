"""Before somebody is refused for want of rights, his replica learns of those that were ordered meanwhile, once."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from kvstore.api import rights
from kvstore.api.cluster import ClusterJson, ReplicaJson, ShardJson
from kvstore.api.model import OperationResult, Rule
from kvstore.api.rights import Permission, Role, Token
from kvstore.api.shard_map import ShardMap
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Follow, Followed
from kvstore.core.rights import ROLE, TOKEN, Rights, encode, forbidden
from kvstore.http import latest
from kvstore.storage.backend import MemoryBackend
from kvstore.storage.store import Store
from multicast.types import ZERO
from tests.kvstore.test_http_app import OLD_ID, Client, FakeNode, answered, done, is_problem, serving
from tests.multicast.live import eventually

ROOT_DIGEST = rights.digest_of(rights.token_of(rights.ROOT, bytes(32)))
ANN = rights.token_of("a" * 16, bytes(32))
BEARER = {"Authorization": f"Bearer {ANN}"}
KNOWN = [
    Rule(TOKEN + b"a" * 16, encode(Token("ann", rights.digest_of(ANN), ("some",)))),
    Rule(ROLE + b"some", encode(Role((Permission("read"), Permission("write"), Permission("monitor"))))),
]


class Behind(FakeNode):
    """Learns of so many of the rules with every read of its own."""

    def __init__(self, *rules: Rule, shard_map: ShardMap | None = None) -> None:
        super().__init__(done)
        self.missing = list(rules)
        self.known = Rights(Store.open(MemoryBackend()))
        self.asked = 0
        self.waits: asyncio.Event | None = None
        self.shard_map = shard_map or ShardMap.even([0])

    def rights(self) -> Rights:
        return self.known

    def describe_cluster(self) -> ClusterJson:
        shards = [ShardJson(id=0, replicas=[ReplicaJson(0, "http://x")])]
        return ClusterJson(cluster_id="00", self_id=0, shard_map=self.shard_map.to_json(), shards=shards)

    def forget(self, token: int) -> None:
        if token in self._under_way:
            super().forget(token)

    def request(self, asked: Any, answer: Callable[[Any], None]) -> int:
        by = asked.by if isinstance(asked, Follow) else asked.transaction.by
        if by or asked.message_id != NO_ID:
            if isinstance(asked, Follow) and asked.live:
                return 1
            denied = self.known.denied_range(by, b"", b"")
            followed = Followed([], ZERO) if isinstance(asked, Follow) else answered(OperationResult())
            answer(followed if denied is None else forbidden(denied))
            return 1
        self.asked += 1

        async def work() -> None:
            if self.waits is not None:
                await self.waits.wait()
            for rule in self.missing:
                self.known.change(rule)
            self.missing.clear()
            answer(answered(OperationResult()))

        self._under_way[1] = asyncio.create_task(work())
        return 1


async def ask(client: Client, method: str = "PUT", path: str = "/v1/kv/a", body: bytes = b"v") -> int:
    return (await client(method, path, body, **BEARER))[0]


@pytest.mark.parametrize("known", [0, 1], ids=["an unknown token", "a missing role"])
@pytest.mark.parametrize("request_", [("PUT", "/v1/kv/a"), ("GET", "/v1/watch"), ("GET", "/metrics")], ids=str)
async def test_what_was_given_through_another_replica_counts_at_once(known: int, request_: tuple[str, str]) -> None:
    node = Behind(*KNOWN[known:])
    for rule in KNOWN[:known]:
        node.known.change(rule)
    async with serving(node, root=ROOT_DIGEST) as client:
        if request_[1] != "/v1/watch":
            assert await ask(client, *request_, body=b"v" * (request_[0] == "PUT")) == 200
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
            writer.write(f"GET /v1/watch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ANN}\r\n\r\n".encode())
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
        assert node.asked == 1


async def test_rights_are_listed_as_they_were_left_wherever_that_was() -> None:
    async with serving(Behind(*KNOWN)) as client:
        told = json.loads((await client("GET", "/v1/admin/rights"))[2])
    assert [one["name"] for one in told["tokens"]] == ["ann"] and list(told["roles"]) == ["some"]


async def test_those_who_come_together_cause_one_read_and_are_refused_if_there_is_nothing_new() -> None:
    node = Behind()
    node.waits = asyncio.Event()
    async with serving(node, root=ROOT_DIGEST) as client:
        first = asyncio.create_task(ask(client))
        await eventually(lambda: node.asked == 1)
        more = [asyncio.create_task(ask(client, "GET", body=b"")) for _ in range(5)]
        await eventually(lambda: len(client.api._latest._waiting) == 5)
        node.waits.set()
        assert [await first, *[await one for one in more]] == [401] * 6
        assert node.asked == 2


async def test_who_cannot_be_judged_is_told_to_ask_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest, "WAIT_SECONDS", 0.01)
    node = Behind()
    node.waits = asyncio.Event()
    async with serving(node, root=ROOT_DIGEST) as client:
        found = await client.problem("GET", "/v1/kv/a", **BEARER)
        assert is_problem(found, status=504, code="timeout", retryable=True, outcome="not_applied")
        node.not_ready = "it starts"
        found = await client.problem("GET", "/v1/kv/a", **BEARER)
        assert is_problem(found, status=503, code="not_ready", retryable=True)
        node.not_ready, node.shard_map = "", ShardMap.even([1])
        assert is_problem(await client.problem("GET", "/v1/kv/a", **BEARER), status=503, code="not_ready")


async def test_what_a_replica_tells_of_itself_is_for_those_who_may_monitor() -> None:
    node = Behind()
    for rule in (KNOWN[0], Rule(ROLE + b"some", encode(Role((Permission("read"),))))):
        node.known.change(rule)
    shown = {"role": "leader", "keys": 7}
    async with serving(node, root=ROOT_DIGEST) as client:

        async def told() -> Any:
            return (await client("GET", "/v1/cluster", **BEARER))[2]

        node.describe_cluster = lambda: ClusterJson(cluster_id="00", shard_map=None, shards=[], replica=dict(shown))  # type: ignore[method-assign]
        assert b'"replica":{"role":"leader"}' in await told()
        node.known.change(KNOWN[1])
        assert b'"replica":{"role":"leader","keys":7}' in await told()


async def test_a_watch_whose_client_has_gone_before_his_token_was_known_does_not_begin() -> None:
    """It would be told everything for ever, and what it is told be kept."""
    node = Behind(*KNOWN)
    node.waits = asyncio.Event()
    async with serving(node, root=ROOT_DIGEST) as client:
        _, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(f"GET /v1/watch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ANN}\r\n\r\n".encode())
        await eventually(lambda: node.asked == 1)
        reset_at_its_end = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset_at_its_end)
        writer.transport.abort()
        await eventually(lambda: not client.server.connections)
        node.waits.set()
        await eventually(lambda: not node.missing)
        assert await ask(client) == 200
        assert not client.api.calls.streams


@pytest.mark.parametrize("known", [0, 1, 2], ids=["an unknown token", "a missing role", "a missing right"])
async def test_who_has_lost_his_right_and_repeats_a_write_is_not_told_that_it_was_not_applied(known: int) -> None:
    """It may have been, when he had it; without an id of his own there was no such time."""
    node = Behind()
    for rule in (KNOWN[0], Rule(ROLE + b"some", encode(Role((Permission("monitor"),)))))[:known]:
        node.known.change(rule)
    async with serving(node, root=ROOT_DIGEST) as client:
        for path, method in (("/v1/kv/a", "PUT"), ("/v1/backups", "POST")):
            for named, outcome in (({}, "not_applied"), ({"Idempotency_Key": OLD_ID}, "unknown")):
                told = await client.problem(method, path, **BEARER, **named)
                assert told["status"] in (401, 403) and told["outcome"] == outcome
