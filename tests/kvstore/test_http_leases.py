"""Leases over HTTP, in front of one shard that executes at once."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from kvstore.api.model import Put, Result, Transaction, lease_key
from kvstore.core.execution import Execution, merge_results, vote
from kvstore.core.messages import Answered, Refused
from kvstore.core.plans import LocalPlan
from kvstore.storage.backend import MemoryBackend
from kvstore.storage.store import Store
from multicast.types import MessageId, Timestamp
from tests.kvstore.test_http_app import Client, FakeNode, serving

JSON_BODY = {"Content_Type": "application/json"}
UNKNOWN = "0197b3c2-7f00-7cc3-98c4-dc0c0c07398f"


class Shard:
    """Of what it executes. before: what happens right before the next one."""

    def __init__(self) -> None:
        self.store = Store.open(MemoryBackend())
        self.time = 0
        self.before: list[Transaction] = []

    async def execute(self, message_id: MessageId, transaction: Transaction) -> Answered:
        if len(transaction.compare) == 1 and self.before:
            self.run(self.before.pop())
        return Answered(self.run(transaction))

    def run(self, transaction: Transaction) -> Result:
        self.time += 1
        version, plan = Timestamp(self.time, 0), LocalPlan(transaction)
        found, _ = vote(plan, self.store)
        if found.success_failure:
            return Result(True, version, (), found.success_failure)
        execution = Execution(self.store, version)
        execution.run(plan.course(found.holds))
        for key, value in execution.writes.items():
            self.store.write(key, value, version, lease=execution.leases.get(key, b""))
        branch = transaction.success if found.holds else transaction.failure
        return Result(found.holds, version, merge_results(branch, [execution.results]))


async def grant(client: Client, ttl_ms: int = 1000, **headers: str) -> str:
    status, _, body = await client("POST", "/v1/leases", b'{"ttl_ms": %d}' % ttl_ms, **JSON_BODY, **headers)
    assert status == 201
    return str(json.loads(body)["id"])


async def test_leases_are_listed_page_by_page() -> None:
    shard = Shard()
    async with serving(FakeNode(shard.execute)) as client:
        assert json.loads((await client("GET", "/v1/leases"))[2]) == {"leases": []}
        assert (await client("PUT", "/v1/kv/a", b"1"))[0] == 200
        granted = sorted([await grant(client, 1000 + n) for n in range(3)])
        status, _, body = await client("GET", "/v1/leases?limit=2")
        page = json.loads(body)
        assert status == 200 and page["more"] and [one["id"] for one in page["leases"]] == granted[:2]
        assert page["leases"][0].keys() == {"id", "ttl_ms", "version", "left_ms"}
        rest = json.loads((await client("GET", f"/v1/leases?after={granted[1]}"))[2])
        assert [one["id"] for one in rest["leases"]] == granted[2:] and "more" not in rest
        for query in ("after=x", "limit=0", "limit=1001", "prefix=a"):
            assert (await client("GET", f"/v1/leases?{query}"))[0] == 400


async def test_a_lease_is_granted_renewed_looked_at_and_revoked_with_its_keys() -> None:
    shard = Shard()
    async with serving(FakeNode(shard.execute)) as client:
        lease = await grant(client, Idempotency_Key=UNKNOWN)
        assert lease == UNKNOWN, "the id of a lease is that of its grant"
        assert (await client("PUT", "/v1/kv/a", b"1", Kv_Lease=lease))[0] == 200
        _, head, _ = await client("GET", "/v1/kv/a")
        assert f"Kv-Lease: {lease}" in head and "Kv-Create-Version: 2-0" in head
        status, _, body = await client("POST", f"/v1/leases/{lease}/renew")
        assert status == 200 and json.loads(body)["ttl_ms"] == 1000
        renewed = json.loads(body)["version"]
        assert json.loads((await client("GET", f"/v1/leases/{lease}"))[2])["version"] == renewed
        assert (await client("DELETE", f"/v1/leases/{lease}"))[0] == 200
        assert (await client("GET", "/v1/kv/a"))[0] == 404
        for method, path in (("GET", ""), ("POST", "/renew"), ("DELETE", "")):
            assert (await client(method, f"/v1/leases/{lease}{path}"))[0] == 404


async def test_a_lease_names_the_keys_that_are_attached_to_it_if_that_is_asked() -> None:
    async with serving(FakeNode(Shard().execute)) as client:
        lease, other = await grant(client, Idempotency_Key=UNKNOWN), await grant(client)
        for key, to in (("b", lease), ("a", lease), ("%ff", lease), ("c", other), ("b2", lease)):
            assert (await client("PUT", f"/v1/kv/{key}", b"1", Kv_Lease=to))[0] == 200
        assert (await client("PUT", "/v1/kv/b2", b"taken off"))[0] == 200
        told = json.loads((await client("GET", f"/v1/leases/{lease}?keys=true"))[2])
        names = [entry.get("key", entry.get("key_b64")) for entry in told["keys"]]
        assert names == ["a", "b", "/w=="] and told["more"] is False and "value" not in told["keys"][0]
        assert "keys" not in json.loads((await client("GET", f"/v1/leases/{lease}"))[2])
        assert (await client("GET", f"/v1/leases/{lease}?keys=yes"))[0] == 400


async def test_a_lease_that_is_renewed_while_it_is_revoked_is_revoked() -> None:
    shard = Shard()
    async with serving(FakeNode(shard.execute)) as client:
        lease = await grant(client)
        key = lease_key(bytes.fromhex(lease.replace("-", "")))
        row = shard.store.get(key)
        assert row is not None
        shard.before = [Transaction(success=(Put(key, row.value),))] * 2
        assert (await client("DELETE", f"/v1/leases/{lease}"))[0] == 200
        assert shard.store.get(key) is None and shard.before == []


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_what_an_answer_does_not_tell_of_a_lease_is_read_again(method: str) -> None:
    """A repetition is told no large results, and the row of a lease with many keys is large."""
    shard, path = Shard(), f"/v1/leases/{UNKNOWN}" + "/renew" * (method == "POST")
    refusals: list[Refused] = []

    async def execute(message_id: MessageId, transaction: Transaction) -> Answered | Refused:
        if refusals and not message_id:
            return refusals.pop()
        answer = await shard.execute(message_id, transaction)
        large = transaction.compare and any(one.found for one in answer.result.results)
        return Answered(replace(answer.result, results=()), True, True) if large else answer

    async with serving(FakeNode(execute)) as client:
        lease = await grant(client, Idempotency_Key=UNKNOWN)
        row = shard.store.get(lease_key(bytes.fromhex(lease.replace("-", ""))))
        assert row is not None
        if method == "DELETE":  # it is renewed before it is revoked
            shard.before = [Transaction(success=(Put(row.key, row.value),))]
        else:
            refusals.append(Refused("no_majority", "", True, "not_applied"))
            assert (await client.problem(method, path))["outcome"] == "unknown"
        status, _, body = await client(method, path)
        assert status == 200 and (method == "DELETE" or json.loads(body)["ttl_ms"] == 1000)
        assert (shard.store.get(row.key) is None) == (method == "DELETE")


async def test_a_look_at_a_lease_that_was_lost_on_its_way_is_taken_again() -> None:
    shard, lost = Shard(), [Answered(Result(True, Timestamp(1, 1)), results_omitted=True)]

    async def execute(message_id: MessageId, transaction: Transaction) -> Answered:
        return lost.pop() if lost and not message_id else await shard.execute(message_id, transaction)

    async with serving(FakeNode(execute)) as client:
        lease = await grant(client)
        status, _, body = await client("GET", f"/v1/leases/{lease}?keys=true")
    assert status == 200 and json.loads(body)["keys"] == [] and not lost


async def test_a_put_with_a_lease_that_is_not_there_writes_nothing() -> None:
    shard = Shard()
    async with serving(FakeNode(shard.execute)) as client:
        found = await client.problem("PUT", "/v1/kv/a", b"1", Kv_Lease=UNKNOWN)
        assert found["status"] == 422 and "no such lease" in found["detail"]
        body = json.dumps({"success": [{"op": "put", "key": "a", "value": "1", "lease": UNKNOWN}]}).encode()
        assert (await client("POST", "/v1/txn", body, Content_Type="application/json"))[0] == 422
        assert shard.store.get(b"a") is None


@pytest.mark.parametrize("body", [b'{"ttl_ms":999}', b'{"ttl_ms":86400001}', b'{"ttl_ms":"1"}', b"{}", b'{"ttl":1}'])
async def test_a_time_to_live_is_from_a_second_to_a_day(body: bytes) -> None:
    async with serving(FakeNode(Shard().execute)) as client:
        assert (await client.problem("POST", "/v1/leases", body, **JSON_BODY))["status"] == 400
        assert "body: it is empty" in (await client.problem("POST", "/v1/leases", b"", **JSON_BODY))["detail"]
        found = await client.problem("POST", "/v1/leases", b'{"ttl_m":1000}', **JSON_BODY)
        assert found["detail"].endswith("'ttl_ms'?")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "x", 400), ("DELETE", "x", 400), ("POST", f"{UNKNOWN}/renew/x", 405), ("POST", UNKNOWN, 405),
     ("PUT", UNKNOWN, 405), ("GET", f"{UNKNOWN}?x=1", 400)],
)  # fmt: skip
async def test_what_names_no_lease_is_refused(method: str, path: str, status: int) -> None:
    async with serving(FakeNode(Shard().execute)) as client:
        assert (await client.problem(method, f"/v1/leases/{path}"))["status"] == status


async def test_the_keys_of_the_store_itself_can_neither_be_named_nor_found() -> None:
    shard = Shard()
    async with serving(FakeNode(shard.execute)) as client:
        key = lease_key(bytes.fromhex((await grant(client)).replace("-", ""))).decode()
        for operation in ({"op": "put", "key": key, "value": "1"}, {"op": "get", "key": key}):
            body = json.dumps({"success": [operation]}).encode()
            found = await client.problem("POST", "/v1/txn", body, Content_Type="application/json")
            assert (found["status"], found["field"]) == (400, "success[0].key")
        assert (await client.problem("DELETE", "/v1/kv/%00%00lease%2Fx"))["status"] == 400
        body = json.dumps({"success": [{"op": "put", "key": "\0", "value": "1"}]}).encode()  # no range would find it
        found = await client.problem("POST", "/v1/txn", body, Content_Type="application/json")
        assert (found["status"], found["field"]) == (400, "success[0].key")
        assert (await client.problem("PUT", "/v1/kv/%00", b"1"))["status"] == 400
        assert (await client("PUT", "/v1/kv/%00%01", b"1"))[0] == 200
        assert len(json.loads((await client("GET", "/v1/kv"))[2])["entries"]) == 1
        assert (await client("DELETE", "/v1/kv/%00%01"))[0] == 200
        assert json.loads((await client("GET", "/v1/kv"))[2])["entries"] == []
        assert (await client("DELETE", "/v1/kv?prefix="))[0] == 200
        ranges = [{"op": "range", "prefix": ""}, {"op": "delete_range", "prefix": "\0"}]
        body = json.dumps({"success": ranges}).encode()
        _, _, answer = await client("POST", "/v1/txn", body, Content_Type="application/json")
        results = json.loads(answer)["results"]
        assert results[0]["entries"] == [] and results[1]["deleted"] == 0
        assert shard.store.get(key.encode()) is not None
