"""What a store is for the load, and ours: how requests look and where they go."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Protocol

from client_sdk import AsyncClient, Put
from client_sdk.routing import ClusterView
from multicast.types import new_message_id
from workloads.bench.connection import Connection, request_bytes
from workloads.bench.load import Request

TIMEOUT_MS = 5_000
_FILL_KEYS = 250


class Store(Protocol):
    """Makes requests; every one goes to the server that answers it soonest.

    servers: where clients connect to. all_servers: of these and their followers, for what it costs them.
    """

    servers: tuple[str, ...]
    all_servers: tuple[str, ...]

    def connect(self, url: str) -> Connection:
        """Open a connection to a server. OSError as usual."""

    def shard_of(self, key: str) -> int:
        """Which shard owns this key: the place of its leader among `servers`."""

    def get(self, key: str) -> Request:
        """A linearizable read."""

    def put(self, key: str, value: str) -> Request:
        """A write."""

    def transaction(self, keys: Sequence[str], value: str) -> Request:
        """Compare: each of these keys exists. Then: put them all."""

    def scan(self, key: str, limit: int) -> Request:
        """So many keys and their values: the first after this one, which has the form `folder/name`, in its folder."""

    async def fill(self, keys: Sequence[str], value: str) -> None:
        """Put all these keys."""


class KvStore:
    """Ours. with_ids: writes carry a fresh UUIDv7 each, as the SDK's do; without, the replica gives them one."""

    def __init__(self, view: ClusterView, client: AsyncClient, rng: random.Random, with_ids: bool = True):
        self.servers = tuple(view.urls[shard][0] for shard in sorted(view.urls))
        self.all_servers = tuple(url for shard in sorted(view.urls) for url in view.urls[shard])
        self._place = {shard: place for place, shard in enumerate(sorted(view.urls))}
        self._shard_map = view.shard_map
        self._client = client
        self._rng = rng
        self._with_ids = with_ids
        self._places: dict[str, int] = {}

    def connect(self, url: str) -> Connection:
        return Connection.open(url)

    def shard_of(self, key: str) -> int:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._place[self._shard_map.shard_of(key.encode())]
        return place

    def get(self, key: str) -> Request:
        return self.shard_of(key), request_bytes("GET", f"/v1/kv/{key}", f"X-Timeout-Ms: {TIMEOUT_MS}\r\n")

    def put(self, key: str, value: str) -> Request:
        return self.shard_of(key), request_bytes("PUT", f"/v1/kv/{key}", self._headers(), value.encode())

    def transaction(self, keys: Sequence[str], value: str) -> Request:
        compares = ",".join([f'{{"key":"{key}","target":"exists","op":"==","value":true}}' for key in keys])
        puts = ",".join([f'{{"op":"put","key":"{key}","value":"{value}"}}' for key in keys])
        return self._post(keys[0], f'{{"compare":[{compares}],"success":[{puts}],"failure":[]}}', self._headers())

    def scan(self, key: str, limit: int) -> Request:
        prefix, _, _ = key.rpartition("/")
        operation = f'{{"op":"range","prefix":"{prefix}/","after":"{key}","limit":{limit}}}'
        return self._post(key, f'{{"success":[{operation}]}}', f"X-Timeout-Ms: {TIMEOUT_MS}\r\n")

    def _post(self, key: str, body: str, headers: str) -> Request:
        headers += "Content-Type: application/json\r\n"
        return self.shard_of(key), request_bytes("POST", "/v1/txn", headers, body.encode())

    def _headers(self) -> str:
        if not self._with_ids:
            return f"X-Timeout-Ms: {TIMEOUT_MS}\r\n"
        text = new_message_id(time.time_ns() // 1000, self._rng.getrandbits(62)).hex()
        return (
            f"Idempotency-Key: {text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}\r\n"
            f"X-Timeout-Ms: {TIMEOUT_MS}\r\n"
        )

    async def fill(self, keys: Sequence[str], value: str) -> None:
        data = value.encode()
        for shard in range(len(self.servers)):
            own = [key.encode() for key in keys if self.shard_of(key) == shard]
            for start in range(0, len(own), _FILL_KEYS):
                puts = [Put(key, data) for key in own[start : start + _FILL_KEYS]]
                await self._client.txn(success=puts, timeout=30.0)
