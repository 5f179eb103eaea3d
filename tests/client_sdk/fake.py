"""A cluster of nothing but HTTP: every replica serves one dictionary, and fails when told to."""

from __future__ import annotations

import asyncio
import operator
import uuid
from collections import deque
from types import TracebackType

import msgspec
from aiohttp import web

from kvstore.api import answers, codec
from kvstore.api.model import (
    Add,
    Append,
    Compare,
    Delete,
    Get,
    KeyValue,
    Operation,
    OperationResult,
    Put,
    Range,
    Result,
    TxnResult,
    only_reads,
)
from kvstore.api.model import Transaction as Txn
from kvstore.api.model import Txn as Nested
from kvstore.api.problem import NOT_APPLIED, UNKNOWN
from kvstore.api.shard_map import ShardMap
from kvstore.core.messages import Refused
from kvstore.http import errors, request
from multicast.types import ZERO, Timestamp
from tests.ports import free_ports

OPERATORS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt}


class FakeReplica:
    """`faults`: one per request, from the left, "" for none; see `FakeCluster.serve`. `seen`: (method, path, id)."""

    def __init__(self, cluster: FakeCluster, number: int):
        self.cluster = cluster
        self.number = number
        self.faults: deque[str] = deque()
        self.always = ""
        self.seen: list[tuple[str, str, str | None]] = []
        self.url = ""
        self.runner = web.ServerRunner(web.Server(self.handle), shutdown_timeout=0.05)
        self.port = 0

    async def start(self) -> None:
        """At a port that stays its own when it is stopped."""
        self.port = self.port or free_ports(1)[0]
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", self.port)
        await site.start()
        self.url = f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        await self.runner.cleanup()

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        body = await http.read()
        if http.path == "/v1/cluster":
            self.cluster.views += 1
            return web.json_response(self.cluster.describe(self.number))
        if http.path == "/metrics":
            return web.Response(text=self.cluster.metrics(self.number))
        self.seen.append((http.method, http.raw_path, http.headers.get("Idempotency-Key")))
        fault = self.faults.popleft() if self.faults else self.always
        try:
            return await self.cluster.serve(http, body, fault)
        except errors.Problem as problem:
            return problem_answer(problem)


class FakeCluster:
    """2 shards of `replicas` each. Replica 0 of each shard says that it leads."""

    def __init__(self, replicas: int = 2):
        self.shard_map = ShardMap.even([0, 1])
        self.replicas = [FakeReplica(self, i) for i in range(2 * replicas)]
        self.leaders: dict[int, int | None] = {0: 0, 1: replicas}
        self.rows: dict[bytes, tuple[bytes, Timestamp]] = {}
        self.first_answers: dict[str, tuple[bytes, web.Response]] = {}
        self.applied = 0
        self.forgotten_succeeded = True
        self.slow = asyncio.Event()
        """Set when slow answers are there."""
        self.views = 0
        self.time = 0

    async def __aenter__(self) -> FakeCluster:
        for replica in self.replicas:
            await replica.start()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for replica in self.replicas:
            await replica.stop()

    @property
    def urls(self) -> list[str]:
        return [replica.url for replica in self.replicas]

    @property
    def paths(self) -> set[str]:
        """Of all that was asked."""
        return {path for replica in self.replicas for _, path, _ in list(replica.seen)}

    def leader(self, key: bytes) -> FakeReplica:
        number = self.leaders[self.shard_map.shard_of(key)]
        assert number is not None
        return self.replicas[number]

    def describe(self, number: int) -> dict[str, object]:
        size = len(self.replicas) // 2
        return {
            "cluster_id": "00" * 16,
            "protocol": "fake",
            "durability": "none",
            "self": number,
            "replica": {"id": number, "role": "leader", "fdatasync_us": {"p50": 500, "p99": 900}},
            "shard_map": self.shard_map.to_json(),
            "shards": [
                {
                    "id": shard,
                    "leader": self.leaders[shard],
                    "replicas": [
                        {"id": r.number, "url": r.url} for r in self.replicas[shard * size : shard * size + size]
                    ],
                }
                for shard in (0, 1)
            ],
        }

    def metrics(self, number: int) -> str:
        """As if every change had been one bundle, and every request had taken a millisecond of processor time."""
        numbers = {
            "process_cpu_seconds_total": len(self.replicas[number].seen) / 1000,
            "kvstore_journal_sync_p50_seconds": 0.0005,
            "process_resident_memory_bytes": 2**20,
            "kvstore_journal_written_bytes_total": 100 * len(self.replicas[number].seen),
            "kvstore_bundles_total": self.applied,
            "kvstore_bundled_transactions_total": 3 * self.applied,
        }
        return "".join(f"# TYPE {name} gauge\n{name} {value}\n" for name, value in numbers.items())

    async def serve(self, http: web.BaseRequest, body: bytes, fault: str) -> web.StreamResponse:
        """Faults: reset_before, reset_after (before and after it is applied), hang, hang_after, slow, garbage, page (no
        problem), not_ready, overloaded, timeout, late (applied, then a 504), expired, id_expired, forbidden,
        forgotten."""
        if fault == "hang":
            await asyncio.sleep(30)
        if fault == "not_ready" or fault == "overloaded":
            raise errors.unavailable(fault, f"faked {fault}")
        if fault == "timeout":
            raise errors.timed_out(1, UNKNOWN)
        if fault in ("expired", "id_expired", "forbidden"):
            raise errors.refused(Refused(fault, f"faked {fault}", False, NOT_APPLIED))
        if fault == "page":
            return web.Response(status=502, text="<html>bad gateway</html>")
        if fault != "reset_before":
            answer = self.answer(http, body)
        if fault in ("reset_before", "reset_after"):
            assert http.transport is not None
            http.transport.abort()
        if fault == "hang_after":
            await asyncio.sleep(30)
        if fault == "slow":
            await self.slow.wait()
        if fault == "late":
            raise errors.timed_out(1, UNKNOWN)
        if fault == "forgotten":
            succeeded = self.forgotten_succeeded
            return web.json_response({"succeeded": succeeded, "version": "7-0", "results_omitted": True, "results": []})
        if fault == "garbage":
            return web.Response(text='{"version": ')
        return answer

    def answer(self, http: web.BaseRequest, body: bytes) -> web.Response:
        key_header = http.headers.get("Idempotency-Key")
        digest = f"{http.method} {http.raw_path} ".encode() + body
        if key_header in self.first_answers:
            first, answer = self.first_answers[key_header]
            if first != digest:
                raise errors.refused(Refused("id_reused", "the id belongs to another request", False, NOT_APPLIED))
            return web.Response(status=answer.status, headers=answer.headers, body=answer.body)
        try:
            answer = self.execute_http(http, body, key_header or "")
        except errors.Problem as problem:
            answer = problem_answer(problem)
        if key_header:
            self.first_answers[key_header] = (digest, answer)
        return answer

    def execute_http(self, http: web.BaseRequest, body: bytes, message_id: str) -> web.Response:
        txn = codec.parse_transaction(body) if http.path == "/v1/txn" else None
        reads = http.method == "GET" or (txn is not None and only_reads(txn))
        assert reads or uuid.UUID(message_id).version == 7
        if txn is not None:
            return json_answer(answers.transaction_answer(txn, self.execute(txn), False, message_id))
        raw_path, _, query = http.raw_path.partition("?")
        if raw_path == "/v1/kv":
            wanted, _, _ = request.scan_of(query)
            result = self.execute(Txn(success=(wanted,)))
            page = result.results[0]
            token = request.page_token(page.entries[-1].key, None) if page.more else None
            text = answers.page_answer(answers.Page(result.version, page.entries, token))
            return json_answer(text)
        key = request.key_of(raw_path, "", "/v1/kv/")
        if http.method == "GET":
            found = self.execute(Txn(success=(Get(key),))).results[0].found
            if found is None:
                raise errors.Problem(404, "not_found", "no such key")
            return web.Response(body=found.value, headers={"ETag": f'"{found.version}"'})
        operation: Operation = Put(key, body) if http.method == "PUT" else Delete(key)
        result = self.execute(Txn(request.conditions_of(http.headers, key), (operation,)))
        if not result.succeeded:
            field = "If-None-Match" if "If-None-Match" in http.headers else "If-Match"
            raise errors.Problem(412, "precondition_failed", f"{field} does not hold", field=field)
        deleted = result.results[0].deleted
        return json_answer(msgspec.json.encode({"version": str(result.version), "id": message_id, "deleted": deleted}))

    def execute(self, txn: Txn) -> Result:
        self.time += 1
        version = Timestamp(self.time, 0)
        succeeded, branch = self.branch(txn)
        for operation in branch:
            before = self.rows.get(operation.key, (b"0", ZERO))[0] if isinstance(operation, Add) else b"0"
            if not before.removeprefix(b"-").isdigit():
                raise errors.Problem(422, "failed", "not an integer", field="success[0]")
        if any(not isinstance(operation, Get | Range) for operation in branch):
            self.applied += 1
        return Result(succeeded, version, tuple(self.operate(operation, version) for operation in branch))

    def branch(self, txn: Txn | Nested) -> tuple[bool, tuple[Operation, ...]]:
        succeeded = all(map(self.holds, txn.compare))
        return succeeded, txn.success if succeeded else txn.failure

    def holds(self, compare: Compare) -> bool:
        value, version = self.rows.get(compare.key, (None, ZERO))
        if compare.target == "exists":
            return OPERATORS[compare.op](value is not None, compare.operand)
        if compare.target == "version":
            return OPERATORS[compare.op](version, compare.operand)
        return compare.op == "!=" if value is None else OPERATORS[compare.op](value, compare.operand)

    def operate(self, operation: Operation, version: Timestamp) -> OperationResult:
        """What a nested transaction compares nothing may have written before it."""
        if isinstance(operation, Nested):
            succeeded, branch = self.branch(operation)
            return TxnResult(succeeded=succeeded, results=tuple(self.operate(one, version) for one in branch))
        if isinstance(operation, Range):
            keys = sorted(k for k in self.rows if k.startswith(operation.prefix) and k > operation.after)
            entries = tuple(KeyValue(k, *self.rows[k]) for k in keys[: operation.limit])
            return OperationResult(entries=entries, more=len(keys) > operation.limit)
        key, row = operation.key, self.rows.get(operation.key)
        if isinstance(operation, Get):
            return OperationResult(found=KeyValue(key, *row) if row else None)
        if isinstance(operation, Delete):
            return OperationResult(deleted=self.rows.pop(key, None) is not None)
        if isinstance(operation, Add):
            value = int(row[0] if row else b"0") + operation.delta
            self.rows[key] = (b"%d" % value, version)
            return OperationResult(value=value)
        text = (row[0] if row else b"") + operation.value if isinstance(operation, Append) else operation.value
        self.rows[key] = (text, version)
        return OperationResult(length=len(text) if isinstance(operation, Append) else 0)


def problem_answer(problem: errors.Problem) -> web.Response:
    status, lines, body, _ = problem.response()
    headers = dict(line.split(": ", 1) for line in lines.decode().splitlines())
    return web.Response(status=status, headers=headers, body=body)


def json_answer(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
