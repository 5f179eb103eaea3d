"""Load by locust: puts, gets and transfers over the HTTP interface, each request to the leader of a shard it touches.

    locust -f workloads/locustfile.py --headless -u 32 -r 32 -t 20s --host http://127.0.0.1:7500

`--host` is any replica. Nothing is retried: whatever is not a success counts as a failure, under the server's own code
and outcome, so the figures include what clients would feel. locust's exit status is 1 if anything failed.
"""

from __future__ import annotations

import random
import time
import urllib.request
import uuid
from typing import Any

import gevent
from locust import FastHttpUser, between, events, task

from client_sdk.routing import ClusterView, Router
from kvstore.api.codec import transaction_body
from kvstore.api.model import Add, Transaction
from kvstore.api.problem import parse_problem
from multicast.types import new_message_id

KEYS = 10_000
ACCOUNTS = 200
VALUE = b"v" * 100
REFRESH_SECONDS = 1.0
TIMEOUT_SECONDS = 5.0

_rng = random.Random(1)
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_routers: dict[str, Router] = {}


@events.test_start.add_listener
def forget_routes(**_: Any) -> None:
    """Each test begins with a look at the cluster that it is pointed at."""
    _routers.clear()


class StoreUser(FastHttpUser):
    """Puts and gets of random keys, and transfers between accounts that are mostly on two shards. No thinking time."""

    wait_time = between(0, 0)
    network_timeout = TIMEOUT_SECONDS
    connection_timeout = 1.0

    def on_start(self) -> None:
        """Learn of the shards and leaders, and keep looking."""
        if self.host not in _routers:
            _routers[self.host] = Router([self.host], _rng)
            self._look()
            gevent.spawn(self._keep_looking)
        self.router = _routers[self.host]

    @task(4)
    def put(self) -> None:
        """A write of 100 bytes."""
        key = self._key()
        self._send("PUT", f"/v1/kv/{key}", [key], "PUT /v1/kv/{key}", VALUE)

    @task(4)
    def get(self) -> None:
        """A linearizable read; an absent key is a good answer."""
        key = self._key()
        self._send("GET", f"/v1/kv/{key}", [key], "GET /v1/kv/{key}", None)

    @task(2)
    def transfer(self) -> None:
        """Two adds in one transaction."""
        source, target = (f"locust/account/{i}" for i in _rng.sample(range(ACCOUNTS), 2))
        body = transaction_body(Transaction(success=(Add(source.encode(), -1), Add(target.encode(), 1))))
        self._send("POST", "/v1/txn", [source, target], "POST /v1/txn transfer", body)

    def _key(self) -> str:
        return f"locust/{_rng.randrange(KEYS)}"

    def _send(self, method: str, path: str, keys: list[str], name: str, body: bytes | None) -> None:
        now = time.monotonic()
        url = self.router.candidates(self.router.shards_of([key.encode() for key in keys]), now)[0]
        headers = {"X-Timeout-Ms": str(int(TIMEOUT_SECONDS * 1000))}
        if method != "GET":
            message_id = new_message_id(time.time_ns() // 1000, _rng.getrandbits(62))
            headers["Idempotency-Key"] = str(uuid.UUID(bytes=message_id))
        if method == "POST":
            headers["Content-Type"] = "application/json"
        with self.client.request(
            method, url + path, data=body, headers=headers, name=name, catch_response=True
        ) as response:
            status = response.status_code
            if 200 <= status < 300 or (status == 404 and method == "GET"):
                response.success()
                return
            problem = parse_problem(response.content or b"")
            if problem is None:
                self.router.suspect(url, now)
                response.failure(f"no answer ({response.error or status})")
            else:
                response.failure(f"{status} {problem.code}, outcome {problem.outcome}")

    def _look(self) -> None:
        """Ask whoever answers for the view of the cluster; not part of the figures."""
        router = _routers[self.host]
        for url in router.candidates((), time.monotonic()):
            try:
                with _direct.open(f"{url}/v1/cluster", timeout=1.0) as answer:
                    router.learn(ClusterView.parse(answer.read()))
                return
            except (OSError, ValueError):
                router.suspect(url, time.monotonic())

    def _keep_looking(self) -> None:
        while self.environment.runner is not None and self.environment.runner.state not in ("stopping", "stopped"):
            gevent.sleep(REFRESH_SECONDS)
            self._look()
