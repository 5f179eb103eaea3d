"""The HTTP interface over a replica that misbehaves as told."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from kvstore.api.cluster import ClusterJson, ReplicaJson, ShardJson
from kvstore.api.http1 import Fields, Head
from kvstore.api.model import APPENDED_BYTES_MAX, RESULT_BYTES_MAX, KeyValue, OperationResult, Result, Transaction
from kvstore.api.shard_map import ShardMap
from kvstore.config import ConfigError, LogSettings, ReplicaConfig
from kvstore.core import messages
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Answered, Refused
from kvstore.core.rights import Rights
from kvstore.http.app import HttpApi
from kvstore.http.calls import REFUSAL_SECONDS, REFUSALS_PER_SECOND, Call
from kvstore.http.connection import ApiServer
from kvstore.http.metrics import Metrics
from kvstore.limits import Limits
from kvstore.members import Unfit, Wanted
from kvstore.storage.backend import MemoryBackend
from kvstore.storage.cut import Cut, decode_cut_rows
from kvstore.storage.store import Store
from multicast.types import MessageId, Timestamp, new_message_id
from tests.multicast.live import eventually

VERSION = Timestamp(0x1234, 7)
OLD_ID = "0197b3c2-7f00-7cc3-98c4-dc0c0c07398f"
Execute = Callable[[MessageId, Transaction], Awaitable[Answered | Refused]]


def answered(*results: OperationResult, succeeded: bool = True, omitted: bool = False) -> Answered:
    return Answered(Result(succeeded, VERSION, results), results_omitted=omitted)


class FakeNode:
    """A replica whose answers a test chooses."""

    def __init__(
        self, execute: Execute, not_ready: str = "", overloaded: str = "", broken: str = "", no_room: str = ""
    ):
        self._execute = execute
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self.not_ready = not_ready
        self.overloaded = overloaded
        self.no_room = no_room
        self.broken = broken
        self.kept: dict[Timestamp, Cut] = {}
        self.at: list[Timestamp | None] = []
        self.freshness: list[tuple[str, int]] = []

    def request(self, asked: Any, answer: Callable[[Answered | Refused], None]) -> int:
        assert isinstance(asked, messages.Execute), "nobody asks for outcomes here"
        self.at.append(asked.at)
        self.freshness.append((asked.consistency, asked.age_us))

        async def work() -> None:
            answer(await self._execute(asked.message_id, asked.transaction))

        token = len(self._under_way) + 1
        self._under_way[token] = asyncio.create_task(work())
        return token

    def forget(self, token: int) -> None:
        self._under_way[token].cancel()

    def new_message_id(self) -> MessageId:
        return new_message_id(1_700_000_000_000_000, 1)

    def unready(self) -> str:
        return self.not_ready

    def overload(self) -> str:
        return self.overloaded

    def full(self) -> str:
        return self.no_room

    def put_in_place(self, replica: ReplicaConfig) -> None:
        raise ConfigError("not here")

    def change_members(self, wanted: Wanted) -> bool:
        raise Unfit("not here")

    def cut(self, version: Timestamp) -> Cut | None:
        return self.kept.get(version)

    def failure(self) -> str:
        return self.broken

    def rights(self) -> Rights:
        return Rights(Store.open(MemoryBackend()))

    def describe_cluster(self) -> ClusterJson:
        shards = [ShardJson(id=0, replicas=[ReplicaJson(0, "http://x")])]
        return ClusterJson(cluster_id="00", self_id=0, shard_map=ShardMap.even([0]).to_json(), shards=shards)


async def never(message_id: MessageId, transaction: Transaction) -> Answered:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def done(message_id: MessageId, transaction: Transaction) -> Answered:
    return answered(OperationResult())


class Client:
    """One connection per request; (status, headers, body)."""

    def __init__(self, server: ApiServer, port: int):
        self.server = server
        self.api = server.api
        self.port = port

    async def __call__(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, str, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        named = {"Host": "x", "Content-Length": str(len(body)), "Connection": "close"}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        try:
            received = await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()
        top, _, content = received.partition(b"\r\n\r\n")
        return int(top.split()[1]), top.decode(), content

    async def problem(self, method: str, path: str, body: bytes = b"", **headers: str) -> dict[str, Any]:
        status, _, content = await self(method, path, body, **headers)
        found: dict[str, Any] = json.loads(content)
        assert found["status"] == status
        return found


@asynccontextmanager
async def serving(
    node: FakeNode, cors_origins: tuple[str, ...] = (), root: bytes = b"", log: LogSettings | None = None, **limits: int
) -> AsyncIterator[Client]:
    api = HttpApi(node, Limits(**limits), Metrics(dict), cors_origins, root, log)
    factory = ApiServer(api)
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
    try:
        yield Client(factory, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await factory.close(1.0)


def is_problem(found: dict[str, Any], **members: Any) -> bool:
    return {name: found[name] for name in members} == members


async def test_a_full_buffer_makes_requests_wait() -> None:
    async with serving(FakeNode(never, overloaded="the write buffer is full")) as client:
        status, head, body = await client("PUT", "/v1/kv/a", b"x")
        assert status == 503 and "Retry-After: 1" in head
        assert is_problem(json.loads(body), code="overloaded", retryable=True, outcome="not_applied")


async def test_what_is_too_much_is_refused_before_its_body_is_read_and_taken_again_afterwards() -> None:
    go = asyncio.Event()

    async def later(message_id: MessageId, transaction: Transaction) -> Answered:
        await go.wait()
        return answered(OperationResult())

    async with serving(FakeNode(later), in_flight_requests_max=3) as client:
        taken = [asyncio.create_task(client("PUT", f"/v1/kv/{i}", b"x")) for i in range(3)]
        await eventually(lambda: client.api.calls.admission.under_way == 3)
        status, head, body = await client("PUT", "/v1/kv/more", Content_Length="100")
        assert status == 503 and "Retry-After: 1" in head
        assert is_problem(json.loads(body), code="overloaded", retryable=True, outcome="not_applied")
        assert client.api.calls.metrics.refusals == {"open": 1}
        assert (await client("GET", "/livez"))[0] == 200  # who watches is always answered
        go.set()
        assert [(await one)[0] for one in taken] == [200] * 3
        assert (await client("PUT", "/v1/kv/more", b"x"))[0] == 200


async def test_who_is_refused_does_not_wait_for_the_end_of_a_long_turn_of_the_loop() -> None:
    """However many requests are read in it: a timer's turn comes only afterwards."""
    told: list[Call] = []
    async with serving(FakeNode(done)) as client:
        calls, caller = client.api.calls, Mock(answered=told.append)
        calls.admission.under_way_max = 0
        begin, came = time.monotonic(), [0.0, 0.001, REFUSAL_SECONDS + 0.001, REFUSAL_SECONDS + 0.002]
        for after in came:
            call = Call(calls, caller, Head("GET", "/v1/kv/a", 1, Fields(b"")))
            call.began = begin + after
            assert calls.refuses(call)
            assert len(told) == (3 if after > REFUSAL_SECONDS else 0)
        await eventually(lambda: len(told) == 4)
    assert [call.response.status for call in told if call.response] == [503] * 4


async def test_refusals_leave_at_no_higher_rate_than_is_good_for_the_others() -> None:
    told: list[Call] = []
    async with serving(FakeNode(done)) as client:
        calls, caller = client.api.calls, Mock(answered=told.append)
        calls.admission.under_way_max = 0
        begin, most = time.monotonic(), int(REFUSALS_PER_SECOND * REFUSAL_SECONDS)
        for number in range(3 * most):
            call = Call(calls, caller, Head("GET", "/v1/kv/a", 1, Fields(b"")))
            call.began = begin + (number > 2 * most) * REFUSAL_SECONDS * 1.01
            calls.refuses(call)
        assert most <= len(told) <= 1.02 * most
        await eventually(lambda: len(told) == 3 * most)


async def test_on_a_full_disk_what_adds_is_refused_and_the_rest_goes_on() -> None:
    async with serving(FakeNode(done, no_room="the disk is full")) as client:
        status, head, body = await client("PUT", "/v1/kv/a", b"x")
        assert status == 507 and "Retry-After: 1" in head
        assert is_problem(json.loads(body), code="full", retryable=True, outcome="not_applied")
        assert [(await client(method, "/v1/kv/a"))[0] for method in ("DELETE", "GET")] == [200, 404]


async def test_a_replica_that_is_not_ready_takes_nothing_but_tells_so() -> None:
    async with serving(FakeNode(never, not_ready="this replica is recovering")) as client:
        for method, path in (("GET", "/readyz"), ("GET", "/v1/kv/a"), ("GET", "/v1/kv"), ("DELETE", "/v1/kv/a")):
            found = await client.problem(method, path)
            assert is_problem(found, code="not_ready", retryable=True, outcome="not_applied"), path
        assert (await client("GET", "/livez"))[0] == (await client("GET", "/v1/cluster"))[0] == 200


async def test_a_failed_replica_is_not_alive() -> None:
    async with serving(FakeNode(never, broken="OSError: no space left")) as client:
        assert is_problem(await client.problem("GET", "/livez"), status=503, detail="OSError: no space left")


async def test_the_outcome_of_a_late_write_is_unknown_and_that_of_a_late_read_is_not_in_doubt() -> None:
    async with serving(FakeNode(never)) as client:
        late = {"X_Timeout_Ms": "20"}
        write = await client.problem("PUT", "/v1/kv/a", b"x", **late)
        assert is_problem(write, status=504, code="timeout", retryable=True, outcome="unknown")
        read = await client.problem("GET", "/v1/kv/a", **late)
        assert is_problem(read, status=504, code="timeout", retryable=True, outcome="not_applied")
        reading = b'{"success": [{"op": "get", "key": "a"}]}'
        txn = await client.problem("POST", "/v1/txn", reading, Content_Type="application/json", **late)
        assert is_problem(txn, status=504, outcome="not_applied")


async def test_every_answer_to_a_write_names_its_id() -> None:
    async def refuse(message_id: MessageId, transaction: Transaction) -> Refused:
        return Refused("expired", "too late", False, "not_applied")

    identity = "0197b3c2-7f00-7cc3-98c4-dc0c0c07398f"
    for execute in (refuse, done, never):
        async with serving(FakeNode(execute)) as client:
            _, head, _ = await client("PUT", "/v1/kv/a", b"x", Idempotency_Key=identity, X_Timeout_Ms="50")
            assert f"Idempotency-Key: {identity}" in head


@pytest.mark.parametrize(
    ("code", "status"), [("invalid", 400), ("id_reused", 422), ("expired", 409), ("overloaded", 503), ("timeout", 504)]
)
async def test_a_refusal_is_passed_on(code: str, status: int) -> None:
    async def refuse(message_id: MessageId, transaction: Transaction) -> Refused:
        return Refused(code, "because", True, "unknown")

    async with serving(FakeNode(refuse)) as client:
        found = await client.problem("DELETE", "/v1/kv/a")
        assert is_problem(found, status=status, code=code, detail="because", retryable=True, outcome="unknown")


@pytest.mark.parametrize(
    ("query", "freshness"),
    [
        ("", ("linearizable", 0)),
        ("?consistency=linearizable", ("linearizable", 0)),
        ("?consistency=snapshot", ("snapshot", 0)),
        ("?consistency=stale&max_age_ms=1500", ("stale", 1_500_000)),
    ],
)
async def test_a_read_says_how_fresh_it_must_be(query: str, freshness: tuple[str, int]) -> None:
    node = FakeNode(never)
    body = json.dumps({"success": [{"op": "get", "key": "a"}]}).encode()
    async with serving(node) as client:
        for method, path, sent in (("GET", "/v1/kv/a", b""), ("GET", "/v1/kv", b""), ("POST", "/v1/txn", body)):
            headers = {"X_Timeout_Ms": "1"} | ({"Content_Type": "application/json"} if sent else {})
            status, _, _ = await client(method, path + query, sent, **headers)
            assert status == 504
    assert node.freshness == [freshness] * 3


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("consistency=eventual", "query.consistency"),
        ("consistency=stale", "query.max_age_ms"),
        ("consistency=snapshot&max_age_ms=1", "query.max_age_ms"),
        ("consistency=stale&max_age_ms=-1", "query.max_age_ms"),
        ("consistency=stale&max_age_ms=3600001", "query.max_age_ms"),
        ("consistency=snapshot&version=0-0", "query.consistency"),
        ("consistancy=snapshot", "query.consistancy"),
    ],
)
async def test_what_says_it_wrongly_is_refused(query: str, field: str) -> None:
    async with serving(FakeNode(never)) as client:
        for path in ("/v1/kv/a", "/v1/kv"):
            assert is_problem(await client.problem("GET", f"{path}?{query}"), code="invalid", field=field)


async def test_writes_are_neither_old_nor_new() -> None:
    body = json.dumps({"success": [{"op": "put", "key": "a", "value": "1"}]}).encode()
    async with serving(FakeNode(never)) as client:
        found = await client.problem("POST", "/v1/txn?consistency=snapshot", body, Content_Type="application/json")
        assert is_problem(found, code="invalid", field="query.consistency")


async def test_our_own_bug_is_a_500_without_its_innards() -> None:
    class Bursting(FakeNode):
        def request(self, *arguments: Any) -> int:
            raise RuntimeError("innards")

    async with serving(Bursting(never)) as client:
        status, _, body = await client("PUT", "/v1/kv/a", b"x")
        assert status == 500 and b"innards" not in body
        assert is_problem(json.loads(body), code="internal", outcome="unknown")


async def test_a_read_that_was_lost_on_its_way_is_read_again() -> None:
    found = OperationResult(found=KeyValue(b"a", b"value", VERSION))
    answers = [answered(omitted=True), answered(found)]

    async def execute(message_id: MessageId, transaction: Transaction) -> Answered:
        return answers.pop(0)

    async with serving(FakeNode(execute)) as client:
        assert (await client("GET", "/v1/kv/a"))[2] == b"value"
    assert answers == []


async def test_a_read_of_too_much_is_refused_and_a_write_says_what_it_leaves_out() -> None:
    async def execute(message_id: MessageId, transaction: Transaction) -> Answered:
        return answered(omitted=True)

    reads = [{"op": "get", "key": "a"}, {"op": "get", "key": "b"}]
    async with serving(FakeNode(execute)) as client:
        body = json.dumps({"success": reads}).encode()
        found = await client.problem("POST", "/v1/txn", body, Content_Type="application/json")
        assert found["status"] == 422 and is_problem(found, code="too_large", outcome="not_applied")
        assert f"result_bytes_max = {RESULT_BYTES_MAX}" in found["detail"]
        body = json.dumps({"success": [*reads, {"op": "put", "key": "a", "value": "v"}]}).encode()
        status, _, body = await client("POST", "/v1/txn", body, Content_Type="application/json")
        assert status == 200 and json.loads(body)["results_omitted"] is True
        limits = json.loads((await client("GET", "/v1/limits"))[2])
        assert limits["result_bytes_max"] == RESULT_BYTES_MAX and limits["range_bytes_max"] < RESULT_BYTES_MAX
        assert limits["appended_bytes_max"] == APPENDED_BYTES_MAX


@pytest.mark.parametrize("path", ["/v1/kv/a", "/v1/kv?prefix=a"])
async def test_a_deletion_so_long_ago_that_nobody_knows_what_it_found_says_so(path: str) -> None:
    async def execute(message_id: MessageId, transaction: Transaction) -> Answered:
        return answered(omitted=True)

    async with serving(FakeNode(execute)) as client:
        problem = await client.problem("DELETE", path)
    assert is_problem(problem, status=404, code="unknown_or_forgotten", outcome="unknown")
    assert str(VERSION) in problem["detail"]


async def test_an_impossible_condition_is_told_even_if_the_version_was_lost() -> None:
    async def execute(message_id: MessageId, transaction: Transaction) -> Answered:
        return answered(succeeded=False, omitted=True)

    async with serving(FakeNode(execute)) as client:
        found = await client.problem("PUT", "/v1/kv/a", b"x", If_None_Match="*")
        detail, field = "If-None-Match does not hold", "If-None-Match"
        assert is_problem(found, code="precondition_failed", detail=detail, field=field)


async def test_a_stopping_replica_finishes_what_it_can_and_admits_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that it has for that is over when everything else is seen."""
    loop, release = asyncio.get_running_loop(), asyncio.Event()
    clock, patient = loop.time, {"X_Timeout_Ms": "60000"}
    waiting: set[bytes] = set()

    async def execute(message_id: MessageId, transaction: Transaction) -> Answered:
        key = transaction.success[0].key  # type: ignore[union-attr]
        waiting.add(key)
        await (release.wait() if key == b"soon" else asyncio.Event().wait())
        return answered(OperationResult())

    async with serving(FakeNode(execute)) as client:
        soon = asyncio.create_task(client("PUT", "/v1/kv/soon", b"x", **patient))
        stuck = asyncio.create_task(client("PUT", "/v1/kv/stuck", b"x", **patient))
        async with asyncio.timeout(60):
            while len(waiting) < 2:
                await asyncio.sleep(0.01)
            draining = asyncio.create_task(client.api.calls.drain(20.0))
            await asyncio.sleep(0)
            refused = await client.problem("PUT", "/v1/kv/new", b"x")
            assert is_problem(refused, code="stopping", retryable=True, outcome="not_applied")
            assert (await client("GET", "/readyz"))[0] == 503
            release.set()
            assert (await soon)[0] == 200
            monkeypatch.setattr(loop, "time", lambda: clock() + 21.0)
            status, _, body = await stuck
            assert status == 503 and is_problem(json.loads(body), code="stopping", outcome="unknown")
            assert await draining == 1


async def test_a_read_of_one_shard_says_where_it_was_read_and_needs_no_id() -> None:
    ids = []

    async def read(message_id: MessageId, transaction: Transaction) -> Answered:
        ids.append(message_id)
        found = KeyValue(b"a", b"v", VERSION)
        return Answered(Result(True, VERSION, (OperationResult(found=found),)), shard=3, position=17)

    async with serving(FakeNode(read)) as client:
        body = json.dumps({"success": [{"op": "get", "key": "a"}]}).encode()
        line = f"Kv-Read-At: 3/17/{VERSION}\r\n"
        status, head, content = await client("GET", "/v1/kv/a")
        assert (status, content) == (200, b"v") and line in head
        status, head, content = await client("POST", "/v1/txn", body, Content_Type="application/json")
        assert status == 200 and line in head and "Idempotency-Key" not in head and "id" not in json.loads(content)
        assert ids == [NO_ID, NO_ID]


async def test_an_ordered_transaction_says_no_place() -> None:
    async with serving(FakeNode(done)) as client:
        status, head, _ = await client("PUT", "/v1/kv/a", b"x")
        assert status == 200 and "Kv-Read-At" not in head


async def test_the_rows_of_a_cut_are_fetched_by_its_version() -> None:
    node = FakeNode(done)
    store = Store.open(MemoryBackend(), history_us=10)
    store.write(b"a", b"1", VERSION)
    store.write(b"b", b"2", VERSION)
    store.cut(VERSION)
    store.reached(7, VERSION)
    kept = store.cuts.find(VERSION)
    assert kept is not None
    node.kept[VERSION] = kept
    async with serving(node) as client:
        status, _, body = await client("POST", "/v1/backups")
        assert (status, json.loads(body)["version"]) == (200, str(VERSION))
        status, _, body = await client("GET", f"/v1/backups/{VERSION}?after={b'a'.hex()}")
        found = decode_cut_rows(body)
        assert (status, found.rows, found.position) == (200, [(b"b", VERSION.encode() + b"2")], 7)
        for path, expected in (
            (f"/v1/backups/{VERSION}0", 404),
            ("/v1/backups/x", 400),
            (f"/v1/backups/{VERSION}?after=x", 400),
            (f"/v1/backups/{VERSION}?from=61", 400),
            (f"/v1/backups/{VERSION}?at={Timestamp(1, 0)}", 410),
            (f"/v1/backups/{VERSION}?at={Timestamp(VERSION.time + 1, 0)}", 400),
            (f"/v1/backups/{VERSION}?at=x", 400),
        ):
            assert (await client.problem("GET", path))["status"] == expected, path
        kept.close()
        assert (await client.problem("DELETE", "/v1/backups"))["status"] == 405


async def test_what_is_no_text_is_a_400() -> None:
    of_json = {"Content_Type": "application/json"}
    async with serving(FakeNode(done)) as client:
        for path in ("/v1/replaced", "/v1/cluster/members", "/v1/moves", "/v1/leases", "/v1/admin/tokens"):
            for body in (b'{"host": "\xff"}', b'{"add": {"host": "\xff"}, "name": "\xff"}', b"[" * 1000):
                assert (await client.problem("POST", path, body, **of_json))["status"] == 400, (path, body)


async def test_what_cannot_be_put_in_place_is_a_400() -> None:
    async with serving(FakeNode(done)) as client:
        for body in (b"{}", json.dumps({"id": 1, "shard": 0, "host": "h", "peer_port": 1, "http_port": 2}).encode()):
            assert (await client.problem("POST", "/v1/replaced", body))["code"] == "invalid"


OLD = Timestamp(0x1000, 1)


async def found(message_id: MessageId, transaction: Transaction) -> Answered:
    """The page that was asked for, and more."""
    entry = KeyValue(b"b", b"1", OLD)
    return answered(OperationResult(found=entry, entries=(entry,), more=True))


async def test_what_is_asked_for_at_a_version_is_read_there() -> None:
    node = FakeNode(found)
    async with serving(node) as client:
        assert (await client("GET", f"/v1/kv/b?version={OLD}"))[0] == 200
        assert (await client("GET", f"/v1/kv?version={OLD}"))[0] == 200
        assert (await client("GET", "/v1/kv/b"))[0] == 200
        for path in ("/v1/kv/b?version=now", "/v1/kv?version=", "/v1/kv/b?version=1"):
            assert is_problem(await client.problem("GET", path), status=400, field="query.version")
        for method in ("PUT", "DELETE"):
            assert is_problem(await client.problem(method, f"/v1/kv/b?version={OLD}"), status=400, field="query")
    assert node.at == [OLD, OLD, None]


async def test_all_pages_are_of_the_version_of_the_first() -> None:
    node = FakeNode(found)
    async with serving(node) as client:
        token = json.loads((await client("GET", "/v1/kv?limit=1"))[2])["next_page_token"]
        second = json.loads((await client("GET", f"/v1/kv?page_token={token}"))[2])
        assert second["version"] == str(VERSION)
        await client("GET", f"/v1/kv?page_token={token}&version={VERSION}")
        other = await client.problem("GET", f"/v1/kv?page_token={token}&version={OLD}")
        assert is_problem(other, status=400, field="query.version")
    assert node.at == [None, VERSION, VERSION]


async def test_a_page_that_was_read_at_a_leader_says_at_which_version_the_next_one_is() -> None:
    async def read(message_id: MessageId, transaction: Transaction) -> Answered:
        page = OperationResult(entries=(KeyValue(b"b", b"1", OLD),), more=True)
        return Answered(Result(True, Timestamp(0, 0), (page,)), shard=0, position=7, seen=VERSION)

    node = FakeNode(read)
    async with serving(node) as client:
        page = json.loads((await client("GET", "/v1/kv?limit=1"))[2])
        assert page["version"] == str(VERSION)
        await client("GET", f"/v1/kv?page_token={page['next_page_token']}")
    assert node.at == [None, VERSION]


async def test_without_a_history_every_page_is_of_another_version() -> None:
    node = FakeNode(found)
    async with serving(node, history_ms=0) as client:
        token = json.loads((await client("GET", "/v1/kv?limit=1"))[2])["next_page_token"]
        assert (await client("GET", f"/v1/kv?page_token={token}"))[0] == 200
    assert node.at == [None, None]


async def test_what_is_too_old_is_called_compacted() -> None:
    async def refuse(message_id: MessageId, transaction: Transaction) -> Refused:
        return Refused("compacted", f"the oldest version is {VERSION}", False, "not_applied")

    async with serving(FakeNode(refuse)) as client:
        problem = await client.problem("GET", f"/v1/kv/b?version={OLD}")
        assert is_problem(problem, status=410, code="compacted", retryable=False, outcome="not_applied")
        assert str(VERSION) in problem["detail"]


@pytest.mark.parametrize("code", ["overloaded", "stopping", "no_majority", "not_ready"])
async def test_who_cannot_tell_an_outcome_does_not_say_that_nothing_was_done(code: str) -> None:
    """Whoever asks for one does so because he does not know: any other word would be taken for the answer."""

    class Busy(FakeNode):
        def request(self, asked: Any, answer: Callable[[Answered | Refused], None]) -> int:
            assert isinstance(asked, messages.Lookup)
            answer(Refused(code, "not now", True, "not_applied"))
            return 1

    node = Busy(never, not_ready="it starts" if code == "not_ready" else "")
    async with serving(node) as client:
        client.api.calls.stopping = code == "stopping"
        found = await client.problem("GET", f"/v1/txn/{OLD_ID}")
        assert is_problem(found, status=503, code=code, retryable=True, outcome="unknown", id=OLD_ID)


async def test_an_outcome_that_was_ordered_is_told() -> None:
    class Knows(FakeNode):
        def request(self, asked: Any, answer: Callable[[Answered | Refused], None]) -> int:
            answer(Refused("expired", "too late", False, "not_applied"))
            return 1

    async with serving(Knows(never)) as client:
        status, _, body = await client("GET", f"/v1/txn/{OLD_ID}")
        assert status == 200 and is_problem(json.loads(body), outcome="not_applied", code="expired", id=OLD_ID)
