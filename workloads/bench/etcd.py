"""Three nodes of etcd that are started for a while, and how requests to them look.

Requests go to the leader: through etcd's own JSON gateway (`/v3/kv/...`, keys and values in base64), so that both
stores are asked over HTTP/1.1 by the same load; or by gRPC, which costs etcd less than its gateway, and is what its
clients use. Reads are linearizable and every write is synced by a majority before it is answered: etcd's defaults.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import shutil
import subprocess
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from workloads.bench.clusters import ClusterFailed, uninterrupted
from workloads.bench.connection import Connection, request_bytes
from workloads.bench.grpc import GrpcConnection, call, field
from workloads.bench.load import Request
from workloads.ports import HTTP_PORT_OFFSET, free_base_port

NODES = 3
READY_SECONDS = 20.0
STOP_SECONDS = 10.0
_FILL_KEYS = 100
_KV = "/etcdserverpb.KV/"
_JSON = "Content-Type: application/json\r\n"


class NoEtcd(Exception):
    """There is no etcd on this machine; one line."""


def find_etcd() -> str:
    """Where the program is. NoEtcd says how to get it."""
    found = shutil.which("etcd")
    if found is None:
        raise NoEtcd("etcd is not installed here: apt-get install etcd-server (Debian), or put `etcd` on the PATH")
    return found


def version() -> str:
    """As it says. NoEtcd if it is not there."""
    done = subprocess.run([find_etcd(), "--version"], capture_output=True, text=True, timeout=10)
    return done.stdout.partition("\n")[0].removeprefix("etcd Version: ") or "unknown"


class EtcdStore:
    """Requests to the leader among `urls`. Every key belongs to the one shard."""

    def __init__(self, leader: str, urls: Sequence[str]):
        self.servers: tuple[str, ...] = (leader,)
        self.all_servers = tuple(urls)


    def connect(self, url: str) -> Connection:
        return Connection.open(url)

    def shard_of(self, key: str) -> int:
        return 0

    def get(self, key: str) -> Request:
        return _post("range", f'{{"key":"{_b64(key)}"}}')

    def put(self, key: str, value: str) -> Request:
        return _post("put", f'{{"key":"{_b64(key)}","value":"{_b64(value)}"}}')

    def transaction(self, keys: Sequence[str], value: str) -> Request:
        compares = [f'{{"key":"{_b64(key)}","target":"CREATE","result":"GREATER","create_revision":0}}' for key in keys]
        return _post("txn", f'{{"compare":[{",".join(compares)}],"success":[{_puts(keys, value)}]}}')

    def scan(self, key: str, limit: int) -> Request:
        begin, end = _range(key)
        return _post("range", f'{{"key":"{_b64(begin)}","range_end":"{_b64(end)}","limit":{limit}}}')

    async def fill(self, keys: Sequence[str], value: str) -> None:
        for start in range(0, len(keys), _FILL_KEYS):
            body = f'{{"success":[{_puts(keys[start : start + _FILL_KEYS], value)}]}}'
            await asyncio.to_thread(_ask, self.servers[0], "/v3/kv/txn", body)


class GrpcEtcdStore(EtcdStore):
    """The same by gRPC. The field numbers are those of etcd's `rpc.proto`."""

    def connect(self, url: str) -> Connection:
        return GrpcConnection.open(url)

    def get(self, key: str) -> Request:
        return 0, call(_KV + "Range", field(1, key.encode()))

    def put(self, key: str, value: str) -> Request:
        return 0, call(_KV + "Put", _put(key, value))

    def transaction(self, keys: Sequence[str], value: str) -> Request:
        greater, creation = field(1, 1), field(2, 1)
        compares = [field(1, greater + creation + field(3, key.encode()) + field(5, 0)) for key in keys]
        puts = [field(2, field(2, _put(key, value))) for key in keys]
        return 0, call(_KV + "Txn", b"".join(compares + puts))

    def scan(self, key: str, limit: int) -> Request:
        begin, end = _range(key)
        return 0, call(_KV + "Range", field(1, begin.encode()) + field(2, end.encode()) + field(3, limit))


def _put(key: str, value: str) -> bytes:
    return field(1, key.encode()) + field(2, value.encode())


def _range(key: str) -> tuple[str, str]:
    """The keys of this one's folder after it: from, and up to without."""
    folder, _, _ = key.rpartition("/")
    return key + "\0", folder + chr(ord("/") + 1)


def _post(what: str, body: str) -> Request:
    return 0, request_bytes("POST", f"/v3/kv/{what}", _JSON, body.encode())


def _b64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _puts(keys: Sequence[str], value: str) -> str:
    encoded = _b64(value)
    return ",".join([f'{{"request_put":{{"key":"{_b64(key)}","value":"{encoded}"}}}}' for key in keys])


def _ask(url: str, path: str, body: str = "{}") -> Any:
    """The answer to a POST. ClusterFailed for a refusal, OSError if nobody answers."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=5.0)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        told = answer.read()
    except http.client.HTTPException as error:
        raise ClusterFailed(f"etcd: {error!r}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise ClusterFailed(f"etcd: {path}: {answer.status} {told[:200].decode('utf-8', 'replace')}")
    return msgspec.json.decode(told)


# -- nodes -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def fresh_etcd(store: type[EtcdStore] = EtcdStore) -> Iterator[EtcdStore]:
    """Three nodes, asked as `store` does, in a temporary directory; stopped and removed at the end, whatever happens.
    NoEtcd or ClusterFailed say why they did not start."""
    program = find_etcd()
    base = free_base_port(NODES)
    with tempfile.TemporaryDirectory(prefix="kvstore-bench-etcd-") as text, contextlib.ExitStack() as stack:
        nodes = [_start(stack, program, Path(text), base, number) for number in range(NODES)]
        urls = [_client_url(base, number) for number in range(NODES)]
        yield store(_wait_for_leader(urls, nodes, Path(text)), urls)


def _client_url(base: int, number: int) -> str:
    return f"http://127.0.0.1:{base + HTTP_PORT_OFFSET + number}"


def _start(
    stack: contextlib.ExitStack, program: str, directory: Path, base: int, number: int
) -> subprocess.Popen[bytes]:
    """One node, in a session of its own: an interruption reaches this process, which then ends it."""
    peers = [f"http://127.0.0.1:{base + i}" for i in range(NODES)]
    url = _client_url(base, number)
    command = [
        program, "--name", f"n{number}", "--data-dir", str(directory / f"n{number}"), "--logger", "zap",
        "--listen-client-urls", url, "--advertise-client-urls", url,
        "--listen-peer-urls", peers[number], "--initial-advertise-peer-urls", peers[number],
        "--initial-cluster", ",".join(f"n{i}={peer}" for i, peer in enumerate(peers)),
        "--initial-cluster-state", "new", "--initial-cluster-token", directory.name,
    ]  # fmt: skip
    with open(directory / f"log{number}", "wb") as log, uninterrupted():
        node = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        stack.callback(_stop, node)
    return node


def _stop(node: subprocess.Popen[bytes]) -> None:
    with uninterrupted():
        node.terminate()
        try:
            node.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()


def _wait_for_leader(urls: Sequence[str], nodes: Sequence[subprocess.Popen[bytes]], directory: Path) -> str:
    """The leader's URL, once all nodes know one."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        for number, node in enumerate(nodes):
            if node.poll() is not None:
                words = (directory / f"log{number}").read_text(errors="replace").strip().splitlines()
                raise ClusterFailed(f"etcd node {number} ended: {words[-1][:300] if words else node.returncode}")
        with contextlib.suppress(OSError, ClusterFailed):
            told = [_ask(url, "/v3/maintenance/status") for url in urls]
            leaders = {one.get("leader") for one in told}
            if len(leaders) == 1 and None not in leaders:
                return next(u for u, one in zip(urls, told, strict=True) if one["header"]["member_id"] in leaders)
        time.sleep(0.05)
    raise ClusterFailed(f"etcd has no leader after {READY_SECONDS:g} s")
