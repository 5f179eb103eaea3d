"""Real clusters of processes for tests, and the plainest HTTP client."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from client_sdk import new_id
from kvstore import cluster, config, identity
from kvstore.api.model import Transaction
from kvstore.core.messages import Answered, Execute, Refused
from kvstore.host import LiveReplica
from multicast.types import MessageId
from tests.ports import free_base_port


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Replica:
    """HTTP to one replica: a connection per request, the path sent as it is."""

    def __init__(self, host: str, port: int):
        self.host = host
        self.port = port

    def __call__(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """`headers` by name with _ for -, e.g. If_Match. Of what never ends, the beginning."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            streams = answer.headers["Content-Type"] == "text/event-stream"
            return Answer(answer.status, answer.headers, answer.read1() if streams else answer.read())
        finally:
            connection.close()

    def txn(self, transaction: Any, **headers: str) -> Answer:
        body = transaction if isinstance(transaction, bytes) else json.dumps(transaction).encode()
        return self("POST", "/v1/txn", body, **{"Content_Type": "application/json", **headers})

    def applied(self, transaction: Any) -> Answer:
        """The answer to a transaction, asked again under its id for as long as nobody leads (see `answered`)."""
        identity = str(uuid.UUID(bytes=new_id()))
        answer = answered(lambda: self.txn(transaction, Idempotency_Key=identity))
        assert answer.status == 200, answer
        return answer

    def raw(self, data: bytes, end: bool = False) -> bytes:
        """Send bytes, and return what comes until the server closes. end: close our side before."""
        with socket.create_connection((self.host, self.port), timeout=60) as connection:
            connection.sendall(data)
            if end:
                connection.shutdown(socket.SHUT_WR)
            pieces = []
            while piece := connection.recv(65536):
                pieces.append(piece)
            return b"".join(pieces)


def make_cluster(directory: Path, shards: int, replicas: int, protocol: str, **limits: int) -> config.ClusterConfig:
    """`cluster.json` on free ports."""
    made = config.new_cluster(
        shards=shards,
        replicas=replicas,
        protocol=protocol,
        cluster_id=os.urandom(16).hex(),
        base_port=free_base_port(shards * replicas),
    )
    if limits:
        data = json.loads(config.json_text(made))
        data["limits"] |= limits
        made = config.parse(json.dumps(data).encode(), "test")
    identity.create(directory, made)
    return made


@contextmanager
def running_cluster(
    directory: Path, shards: int, replicas: int, protocol: str, **limits: int
) -> Iterator[list[Replica]]:
    """A ready cluster; stopped at the end."""
    made = make_cluster(directory, shards, replicas, protocol, **limits)
    said: list[str] = []
    try:
        started = cluster.up(directory, said.append)
    except cluster.NotAll as error:
        cluster.stop_started(directory, error.started, said.append)
        raise
    try:
        yield [Replica(r.host, r.http_port) for r in made.replicas]
    finally:
        cluster.stop_started(directory, started, said.append)


async def executed(replica: LiveReplica, message_id: MessageId, transaction: Transaction) -> Answered | Refused:
    """What a replica in this process answers."""
    answer: asyncio.Future[Answered | Refused] = asyncio.get_running_loop().create_future()
    replica.request(Execute(message_id, transaction), answer.set_result)
    return await answer


def wait_until(holds: Callable[[], bool], seconds: float = 60.0, pause_s: float = 0.02) -> None:
    """Return once `holds()`; fail after `seconds`. pause_s: from one look to the next."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        pause.wait(pause_s)


def answered(ask: Callable[[], Answer]) -> Answer:
    """The answer, as soon as it is another one than that nobody leads, or led in time: on a slow machine that may be so
    for a while. It may be asked for several times."""
    answers: list[Answer] = []

    def is_one() -> bool:
        answers.append(ask())
        return answers[-1].status not in (503, 504)

    wait_until(is_one)
    return answers[-1]


def leader_of(replica: Replica, shard: int) -> int:
    """Whom this replica takes for the leader, as soon as it knows of one: a busy machine may have just changed it."""
    known: list[int | None] = []

    def is_known() -> bool:
        known.append(replica("GET", "/v1/cluster").json["shards"][shard]["leader"])
        return known[-1] is not None

    wait_until(is_known)
    assert known[-1] is not None
    return known[-1]
