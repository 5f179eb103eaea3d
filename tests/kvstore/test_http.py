"""The HTTP interface of a real cluster: two shards of one replica each, running Skeen's protocol."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kvstore.api.shard_map import ShardMap
from multicast.types import new_message_id
from tests.kvstore.live import Answer, Replica, running_cluster, wait_until

BODY_BYTES_MAX = 2_000_000
IN_FLIGHT = 64


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Replica]]:
    directory = tmp_path_factory.mktemp("http")
    limits = {"body_bytes_max": BODY_BYTES_MAX, "in_flight_requests_max": IN_FLIGHT}
    with running_cluster(directory, 2, 1, "skeen", **limits) as running:
        yield running


@pytest.fixture
def kv(replicas: list[Replica]) -> Replica:
    return replicas[0]


@pytest.fixture
def key() -> str:
    """A key of this test alone."""
    return f"k-{uuid.uuid4().hex}"


def new_id(age_seconds: float = 0.0) -> str:
    now_us = time.time_ns() // 1000 - int(age_seconds * 1_000_000)
    return str(uuid.UUID(bytes=new_message_id(now_us, int.from_bytes(os.urandom(8), "big"))))


def problem(answer: Answer, status: int, code: str, **members: Any) -> dict[str, Any]:
    """Check that this is a problem of that kind; its members."""
    assert answer.headers["Content-Type"] == "application/problem+json"
    found: dict[str, Any] = answer.json
    expected = {"status": status, "code": code, "type": "about:blank", "outcome": "not_applied", **members}
    assert {name: found.get(name) for name in expected} == expected, found
    assert answer.status == status and found["title"] and found["detail"]
    return found


def two_keys() -> tuple[str, str]:
    """Keys of both shards."""
    shard_map, found = ShardMap.even((0, 1)), {}
    while len(found) < 2:
        key = f"t-{uuid.uuid4().hex}"
        found[shard_map.shard_of(key.encode())] = key
    return found[0], found[1]


# -- single keys ------------------------------------------------------------------------------------------------------


def test_a_value_comes_back_as_it_was_put_from_any_replica(replicas: list[Replica], key: str) -> None:
    value = bytes(range(256)) * 10
    put = replicas[0]("PUT", f"/v1/kv/{key}", value)
    assert put.status == 200 and put.headers["ETag"] == f'"{put.json["version"]}"'
    assert put.headers["Idempotency-Key"] == put.json["id"] and uuid.UUID(put.json["id"]).version == 7
    for replica in replicas:
        got = replica("GET", f"/v1/kv/{key}")
        assert (got.status, got.body, got.headers["ETag"]) == (200, value, put.headers["ETag"])
        assert got.headers["Content-Type"] == "application/octet-stream"


def test_an_absent_key_is_a_problem(kv: Replica, key: str) -> None:
    problem(kv("GET", f"/v1/kv/{key}"), 404, "not_found", retryable=False)


def test_an_empty_value_is_a_value(kv: Replica, key: str) -> None:
    assert kv("PUT", f"/v1/kv/{key}", b"").status == 200
    assert (kv("GET", f"/v1/kv/{key}").status, kv("GET", f"/v1/kv/{key}").body) == (200, b"")


@pytest.mark.parametrize(
    ("path", "same"),
    [("a%2Fb{}", "a/b{}"), ("%c3%a9{}", "%C3%A9{}"), ("//{}//", "%2F%2f{}%2F/"), ("a%20b+c{}", "a%20b%2Bc{}")],
)
def test_a_key_may_be_escaped_or_not(kv: Replica, key: str, path: str, same: str) -> None:
    assert kv("PUT", f"/v1/kv/{path.format(key)}", b"x").status == 200
    assert kv("GET", f"/v1/kv/{same.format(key)}").body == b"x"


def test_keys_are_any_bytes(kv: Replica, key: str) -> None:
    assert kv("PUT", f"/v1/kv/{key}%ff%00%FE", b"\xff").status == 200
    assert kv("GET", f"/v1/kv/{key}%FF%00%fe").body == b"\xff"
    entry = kv("GET", f"/v1/kv?prefix={key}").json["entries"][0]
    assert base64.b64decode(entry["key_b64"]) == key.encode() + b"\xff\0\xfe" and "key" not in entry
    assert base64.b64decode(entry["value_b64"]) == b"\xff"
    problem(kv("GET", f"/v1/kv/{key}%ff%00%fe%ff"), 404, "not_found")


def test_delete_says_whether_there_was_something(kv: Replica, key: str) -> None:
    kv("PUT", f"/v1/kv/{key}", b"x")
    assert kv("DELETE", f"/v1/kv/{key}").json["deleted"] is True
    assert kv("DELETE", f"/v1/kv/{key}").json["deleted"] is False
    assert kv("GET", f"/v1/kv/{key}").status == 404


def test_head_is_get_without_the_value(kv: Replica, key: str) -> None:
    kv("PUT", f"/v1/kv/{key}", b"12345")
    head = kv("HEAD", f"/v1/kv/{key}")
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", "5")


# -- conditions -------------------------------------------------------------------------------------------------------


def test_if_none_match_star_creates_once(kv: Replica, key: str) -> None:
    first = kv("PUT", f"/v1/kv/{key}", b"1", If_None_Match="*")
    assert first.status == 201
    second = kv("PUT", f"/v1/kv/{key}", b"2", If_None_Match="*")
    found = problem(second, 412, "precondition_failed", field="If-None-Match")
    version = first.headers["ETag"].strip('"')
    assert found["detail"] == f"If-None-Match does not hold: the key has version {version}"
    assert second.headers["ETag"] == first.headers["ETag"]
    assert kv("GET", f"/v1/kv/{key}").body == b"1"


def test_if_match_writes_only_over_that_version(kv: Replica, key: str) -> None:
    first = kv("PUT", f"/v1/kv/{key}", b"1").headers["ETag"]
    second = kv("PUT", f"/v1/kv/{key}", b"2", If_Match=first)
    assert second.status == 200
    problem(kv("PUT", f"/v1/kv/{key}", b"3", If_Match=first), 412, "precondition_failed")
    problem(kv("DELETE", f"/v1/kv/{key}", If_Match=first), 412, "precondition_failed")
    assert kv("GET", f"/v1/kv/{key}").body == b"2"
    assert kv("DELETE", f"/v1/kv/{key}", If_Match=second.headers["ETag"]).json["deleted"] is True
    problem(kv("PUT", f"/v1/kv/{key}", b"4", If_Match="*"), 412, "precondition_failed")


def test_a_get_with_a_known_version_is_not_sent_again(kv: Replica, key: str) -> None:
    etag = kv("PUT", f"/v1/kv/{key}", b"1").headers["ETag"]
    for header in (etag, f'"0-0", W/{etag}', "*"):
        answer = kv("GET", f"/v1/kv/{key}", If_None_Match=header)
        assert (answer.status, answer.body, answer.headers["ETag"]) == (304, b"", etag)
    assert kv("GET", f"/v1/kv/{key}", If_None_Match='"0-0"').status == 200
    problem(kv("GET", f"/v1/kv/{key}", If_Match='"0-0"'), 412, "precondition_failed")


@pytest.mark.parametrize(
    ("etag", "says"),
    [
        ('W/"1-1"', "a weak ETag"),
        ('"1-1", "1-2"', "one ETag or *"),
        ("1-1", "in double quotes"),
        ('"yesterday"', "no ETag of this server"),
        ("", "in double quotes"),
    ],
)
def test_an_if_match_that_cannot_work_is_refused(kv: Replica, key: str, etag: str, says: str) -> None:
    found = problem(kv("PUT", f"/v1/kv/{key}", b"1", If_Match=etag), 400, "invalid", field="If-Match")
    assert says in found["detail"]


# -- exactly once -----------------------------------------------------------------------------------------------------


def test_a_repeated_write_answers_with_the_first_result(replicas: list[Replica], key: str) -> None:
    identity = new_id()
    add = {"success": [{"op": "add", "key": key, "delta": 5}]}
    first = replicas[0].txn(add, Idempotency_Key=identity)
    assert first.status == 200 and first.json["results"][0]["value"] == 5
    for replica in (*replicas, *replicas):
        again = replica.txn(add, Idempotency_Key=identity)
        assert (again.status, again.json) == (200, first.json)
    assert replicas[0]("GET", f"/v1/kv/{key}").body == b"5"


def test_an_id_belongs_to_one_request(replicas: list[Replica], key: str) -> None:
    identity = new_id()
    assert replicas[0]("PUT", f"/v1/kv/{key}", b"1", Idempotency_Key=identity).status == 200
    for replica in replicas:
        answer = replica("PUT", f"/v1/kv/{key}", b"2", Idempotency_Key=identity)
        problem(answer, 422, "id_reused", retryable=False)
        assert answer.headers["Idempotency-Key"] == answer.json["id"] == identity
    assert replicas[0]("GET", f"/v1/kv/{key}").body == b"1"


def test_what_became_of_a_write_is_told_by_every_replica(replicas: list[Replica], key: str) -> None:
    replicas[0]("PUT", f"/v1/kv/{key}", b"text")
    applied = replicas[0]("PUT", f"/v1/kv/{key}", b"more").json
    failing = new_id()
    replicas[0].txn({"success": [{"op": "add", "key": key, "delta": 1}]}, Idempotency_Key=failing)
    for replica in replicas:
        told = replica("GET", f"/v1/txn/{applied['id']}")
        assert (told.status, told.json) == (200, {**applied, "outcome": "applied", "succeeded": True})
        told = replica("GET", f"/v1/txn/{failing}")
        assert (told.status, told.json["outcome"], told.json["code"]) == (200, "not_applied", "failed")
        problem(replica("GET", f"/v1/txn/{new_id()}"), 404, "unknown_or_forgotten", outcome="unknown")
        problem(replica("GET", "/v1/txn/1"), 400, "invalid", field="id")


NO_UUID7 = ("1", "5a2a58ce-8db4-41cd-964a-f4c35aeef4d5", "0197b3c2-7f00-7cc3-98c4-dc0c0c07398", "")


@pytest.mark.parametrize("text", NO_UUID7)
def test_an_id_that_is_no_uuid7_is_refused_with_one_that_is(kv: Replica, key: str, text: str) -> None:
    found = problem(kv("PUT", f"/v1/kv/{key}", b"1", Idempotency_Key=text), 400, "invalid", field="Idempotency-Key")
    assert kv("GET", f"/v1/kv/{key}").status == 404
    [example] = re.findall(r"for example ([0-9a-f-]{36})", found["detail"])
    assert kv("PUT", f"/v1/kv/{key}", b"1", Idempotency_Key=example).json["id"] == example


def test_an_id_may_be_quoted_and_in_capitals(kv: Replica, key: str) -> None:
    identity = new_id()
    answer = kv("PUT", f"/v1/kv/{key}", b"1", Idempotency_Key=f'"{identity.upper()}"')
    assert (answer.status, answer.headers["Idempotency-Key"]) == (200, identity)


def test_an_id_that_is_too_old_or_from_the_future_is_refused(kv: Replica, key: str) -> None:
    old = kv("PUT", f"/v1/kv/{key}", b"1", Idempotency_Key=new_id(age_seconds=3600))
    assert old.status == 400 and old.json["code"] == "id_expired"
    future = kv("PUT", f"/v1/kv/{key}", b"1", Idempotency_Key=new_id(age_seconds=-3600))
    problem(future, 400, "id_in_future")
    assert kv("GET", f"/v1/kv/{key}").status == 404


# -- transactions -----------------------------------------------------------------------------------------------------


def test_a_transaction_over_both_shards(replicas: list[Replica]) -> None:
    a, b = two_keys()
    transaction = {
        "compare": [{"key": a, "target": "exists", "op": "==", "value": False}],
        "success": [
            {"op": "put", "key": a, "value": "é"},
            {"op": "put", "key_b64": base64.b64encode(b.encode()).decode(), "value_b64": "/w=="},
            {"op": "get", "key": a},
            {"op": "get", "key": b},
            {"op": "append", "key": a, "value": "!"},
            {"op": "delete", "key": f"{a}-absent"},
            {"op": "get", "key": f"{a}-absent"},
        ],
        "failure": [{"op": "get", "key": b}, {"op": "add", "key": f"{b}-n", "delta": -7}],
    }
    first = replicas[0].txn(transaction).json
    version = first["version"]
    assert first["succeeded"] is True and first["results"] == [
        {"version": version},
        {"version": version},
        {"key": a, "value": "é", "version": version, "create_version": version},
        {"key": b, "value_b64": "/w==", "version": version, "create_version": version},
        {"length": 3, "version": version},
        {"deleted": False, "version": version},
        {"key": f"{a}-absent", "value": None},
    ]
    second = replicas[1].txn(transaction).json
    assert second["succeeded"] is False
    assert second["results"] == [
        {"key": b, "value_b64": "/w==", "version": version, "create_version": version},
        {"value": -7, "version": second["version"]},
    ]
    third = (
        replicas[1]
        .txn(
            {
                "compare": [
                    {"key": a, "target": "version", "op": "==", "value": version},
                    {"key": a, "target": "value", "op": ">", "value": "a"},
                    {"key": b, "target": "value", "op": "==", "value_b64": "/w=="},
                ],
                "success": [{"op": "range", "prefix": a, "limit": 1}],
            }
        )
        .json
    )
    both = {"version": version, "create_version": version}
    assert third["results"] == [{"entries": [{"key": a, "value": "é!", **both}], "more": False}]


def test_an_impossible_operation_fails_the_whole_transaction(kv: Replica) -> None:
    a, b = two_keys()
    kv("PUT", f"/v1/kv/{a}", b"text")
    answer = kv.txn({"success": [{"op": "put", "key": b, "value": "x"}, {"op": "add", "key": a, "delta": 1}]})
    assert a in problem(answer, 422, "failed", retryable=False)["detail"]
    assert kv("GET", f"/v1/kv/{b}").status == 404


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        (b"{", "body", "not JSON"),
        ({"success": [{"op": "get", "key": "a", "key_b64": "YQ=="}]}, "success[0].key", "not both"),
        ({"success": [{"op": "range", "prefix": "a", "limit": 0}]}, "success[0].limit", "from 1 to 1000"),
    ],
)
def test_a_malformed_transaction_is_refused_by_name(kv: Replica, body: Any, field: str, says: str) -> None:
    found = problem(kv.txn(body), 400, "invalid", retryable=False, field=field)
    assert says in found["detail"]


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16"]
)
def test_a_transaction_of_another_content_type_is_refused(kv: Replica, content_type: str) -> None:
    problem(kv.txn(b"{}", Content_Type=content_type), 415, "unsupported_type", field="Content-Type")


def test_compressed_bodies_are_refused(kv: Replica, key: str) -> None:
    answer = kv("PUT", f"/v1/kv/{key}", b"1", Content_Encoding="gzip")
    problem(answer, 415, "unsupported_type", field="Content-Encoding")


# -- scans ------------------------------------------------------------------------------------------------------------


def test_pages_of_a_scan_cover_both_shards_in_key_order(replicas: list[Replica], key: str) -> None:
    names = [f"{key}+ {i:02}" for i in range(25)]
    puts = [{"op": "put", "key": name, "value": name[-2:]} for name in names]
    version = replicas[0].txn({"success": puts}).json["version"]
    path, seen, versions = f"/v1/kv?prefix={key}%2B+&limit=10", [], []
    token: str | None = ""
    while token is not None:
        page = replicas[1]("GET", path + (f"&page_token={token}" if token else "")).json
        seen += page["entries"]
        versions.append(page["version"])
        token = page["next_page_token"]
    both = {"version": version, "create_version": version}
    assert seen == [{"key": name, "value": name[-2:], **both} for name in names]
    assert len(versions) == 3 and len(set(versions)) == 1


def test_all_pages_of_a_scan_of_a_bank_under_transfers_add_up(replicas: list[Replica], key: str) -> None:
    accounts = [f"{key}-{i:02}" for i in range(12)]
    replicas[0].txn({"success": [{"op": "put", "key": account, "value": "100"} for account in accounts]})
    done, moved, scans = threading.Event(), [0, 0], list[list[int]]()

    def transfer(teller: int) -> None:
        rng = random.Random(teller)
        while not done.is_set():
            source, target = rng.sample(accounts, 2)
            adds = [{"op": "add", "key": source, "delta": -1}, {"op": "add", "key": target, "delta": 1}]
            moved[teller] += replicas[teller].txn({"success": adds}).status == 200

    def scan() -> list[int]:
        values: list[int] = []
        token: str | None = ""
        while token is not None:
            page = replicas[1]("GET", f"/v1/kv?prefix={key}&limit=3" + (f"&page_token={token}" if token else "")).json
            values += [int(entry["value"]) for entry in page["entries"]]
            token = page["next_page_token"]
        return values

    def enough() -> bool:
        """Scans while both transfer."""
        scans.append(scan())
        return len(scans) >= 25 and min(moved) > 0 and scans[0] != scans[-1]

    with ThreadPoolExecutor(2) as pool:
        tellers = [pool.submit(transfer, teller) for teller in range(2)]
        try:
            wait_until(enough, pause_s=0.0)
        finally:
            done.set()
        for teller in tellers:
            teller.result()
    assert {(len(values), sum(values)) for values in scans} == {(12, 1200)}


def test_what_was_overwritten_or_deleted_can_be_read_at_its_version_through_any_replica(
    replicas: list[Replica], key: str
) -> None:
    first = replicas[0]("PUT", f"/v1/kv/{key}", b"old").json["version"]
    second = replicas[0]("PUT", f"/v1/kv/{key}", b"new").json["version"]
    deleted = replicas[0]("DELETE", f"/v1/kv/{key}").json["version"]
    for replica in replicas:
        for version, value in ((first, b"old"), (second, b"new")):
            found = replica("GET", f"/v1/kv/{key}?version={version}")
            assert (found.status, found.body, found.headers["ETag"]) == (200, value, f'"{version}"')
            page = replica("GET", f"/v1/kv?prefix={key}&version={version}").json
            assert page["version"] == version and [e["value"] for e in page["entries"]] == [value.decode()]
        problem(replica("GET", f"/v1/kv/{key}?version={deleted}"), 404, "not_found")
        assert replica("GET", f"/v1/kv?prefix={key}&version={deleted}").json["entries"] == []


def test_a_shard_in_which_nothing_happens_is_read_at_the_version_of_another_one(replicas: list[Replica]) -> None:
    """Nobody writes there; while somebody waits its replica moves it on."""
    one, other = two_keys()
    replicas[0]("PUT", f"/v1/kv/{one}", b"1")
    for busy, idle in ((one, other), (other, one)):
        version = replicas[0]("PUT", f"/v1/kv/{busy}", b"2").json["version"]
        for replica in replicas:
            assert replica("GET", f"/v1/kv/{idle}?version={version}").status == (200 if idle == one else 404)


def test_a_version_that_nobody_can_have_given_is_refused(kv: Replica, key: str) -> None:
    problem(kv("GET", f"/v1/kv/{key}?version={2**63:x}-1"), 400, "future")


def test_a_range_by_bounds_in_either_direction_page_by_page(replicas: list[Replica], key: str) -> None:
    names = [f"{key}{i:02}" for i in range(12)]
    replicas[0].txn({"success": [{"op": "put", "key": name, "value": "v"} for name in names]})
    for more, expected in (("", names[3:10]), ("&reverse=true", names[9:2:-1]), ("&keys_only=true", names[3:10])):
        path, seen = f"/v1/kv?start={names[3]}&end={names[10]}&limit=3{more}", []
        token: str | None = ""
        while token is not None:
            page = replicas[1]("GET", path + (f"&page_token={token}" if token else "")).json
            seen += page["entries"]
            token = page["next_page_token"]
        assert [entry["key"] for entry in seen] == expected
        assert all(("value" in entry) is ("keys_only" not in more) for entry in seen)
    counted = replicas[0]("GET", f"/v1/kv?prefix={key}&start={names[7]}&count_only=true").json
    assert (counted["count"], counted["more"]) == (5, False)


def test_a_range_is_deleted_in_all_shards_at_once_and_once(replicas: list[Replica], key: str) -> None:
    names = [f"{key}{i:02}" for i in range(12)]
    replicas[0].txn({"success": [{"op": "put", "key": name, "value": "v"} for name in names]})
    repeat = {"Idempotency-Key": new_id()}
    first = replicas[0]("DELETE", f"/v1/kv?prefix={key}&end={names[10]}", **repeat)
    assert (first.status, first.json["deleted"], first.headers["Idempotency-Key"]) == (200, 10, first.json["id"])
    assert replicas[1]("DELETE", f"/v1/kv?prefix={key}&end={names[10]}", **repeat).json == first.json
    assert [e["key"] for e in replicas[1]("GET", f"/v1/kv?prefix={key}").json["entries"]] == names[10:]
    answer = replicas[1].txn({"success": [{"op": "delete_range", "prefix": key}, {"op": "range", "prefix": key}]})
    assert [result.get("deleted", result.get("entries")) for result in answer.json["results"]] == [2, []]


@pytest.mark.parametrize("query", ["", "limit=3", "prefx=a", f"start={'a' * 401}"])
def test_a_deletion_that_names_no_range_deletes_nothing(kv: Replica, key: str, query: str) -> None:
    kv("PUT", f"/v1/kv/{key}", b"here")
    problem(kv("DELETE", f"/v1/kv?{query}"), 400, "invalid")
    assert kv("GET", f"/v1/kv/{key}").body == b"here"


def test_a_page_of_large_values_ends_early_and_none_is_left_out(replicas: list[Replica], key: str) -> None:
    value = b"v" * 1_000_000
    for i in range(14):
        assert replicas[i % 2]("PUT", f"/v1/kv/{key}-{i:02}", value).status == 200
    seen: list[str] = []
    token: str | None = ""
    while token is not None:
        page = replicas[0]("GET", f"/v1/kv?prefix={key}" + (f"&page_token={token}" if token else "")).json
        assert 1 <= len(page["entries"]) < 14
        seen += [entry["key"] for entry in page["entries"]]
        token = page["next_page_token"]
    assert seen == [f"{key}-{i:02}" for i in range(14)]


def test_reads_beyond_all_measure_are_left_out_and_the_answer_says_so(replicas: list[Replica], key: str) -> None:
    replicas[0]("PUT", f"/v1/kv/{key}", b"v" * 1_000_000)
    reads = [{"op": "get", "key": key}] * 20
    for replica in replicas:
        answer = replica.txn({"success": [*reads, {"op": "add", "key": f"{key}-n", "delta": 1}]}).json
        assert (answer["succeeded"], answer["results_omitted"], answer["results"]) == (True, True, [])
    assert replicas[0]("GET", f"/v1/kv/{key}-n").body == b"2"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "query.limit"),
        ("limit=1001", "query.limit"),
        ("limit=ten", "query.limit"),
        ("limit=1&limit=2", "query.limit"),
        ("prefx=a", "query.prefx"),
        ("prefix=%zz", "query.prefix"),
        (f"prefix={'a' * 401}", "query.prefix"),
        ("page_token=!!", "query.page_token"),
        ("page_token=AAAA", "query.page_token"),
        ("prefix=b&page_token=AWE", "query.page_token"),
        ("end=a&page_token=AWE", "query.page_token"),
        ("reverse=yes", "query.reverse"),
        ("keys_only=true&count_only=true", "query.count_only"),
    ],
)
def test_a_malformed_scan_is_refused_by_name(kv: Replica, query: str, field: str) -> None:
    problem(kv("GET", f"/v1/kv?{query}"), 400, "invalid", field=field)


# -- limits, paths, headers -------------------------------------------------------------------------------------------


def test_the_longest_key_and_value_fit_and_no_longer_ones(kv: Replica) -> None:
    longest = "%41" * 400
    assert kv("PUT", f"/v1/kv/{longest}", b"v" * 1_048_576).status == 200
    assert len(kv("GET", f"/v1/kv/{longest}").body) == 1_048_576
    assert kv("DELETE", f"/v1/kv/{longest}").status == 200
    found = problem(kv("PUT", f"/v1/kv/{longest}%41", b"1"), 400, "invalid", field="key")
    assert "1 to 400 bytes, this one 401" in found["detail"]
    problem(kv("PUT", "/v1/kv/", b"1"), 400, "invalid", field="key")
    answer = kv("PUT", "/v1/kv/big", b"v" * 1_048_577)
    assert "1048576" in problem(answer, 413, "too_large", field="body")["detail"]
    problem(kv.txn(b" " * (BODY_BYTES_MAX + 1)), 413, "too_large", field="body")
    assert kv("GET", "/v1/kv/big").status == 404


def test_a_chunked_body_is_cut_off_at_the_limit(kv: Replica) -> None:
    head = b"PUT /v1/kv/chunked HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    answer = kv.raw(head + b"".join(b"10000\r\n" + b"v" * 65536 + b"\r\n" for _ in range(17)) + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ") and b'"code":"too_large"' in answer
    assert kv.raw(head + b"3\r\nabc\r\n0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert kv("GET", "/v1/kv/chunked").body == b"abc"


def test_a_body_that_never_ends_writes_nothing(kv: Replica, key: str) -> None:
    kv.raw(f"PUT /v1/kv/{key} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf".encode(), end=True)
    assert kv("GET", f"/v1/kv/{key}").status == 404


def test_a_client_that_asks_first_is_told_to_go_on(kv: Replica, key: str) -> None:
    head = f"PUT /v1/kv/{key} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\n"
    answer = kv.raw(f"{head}Content-Length: 1\r\n\r\nx".encode())
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
    assert kv.raw(f"{head}Content-Length: 2000000\r\n\r\n".encode()).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("data", [b"nonsense\r\n\r\n", b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_what_is_no_http_is_a_problem_too(kv: Replica, data: bytes) -> None:
    answer = kv.raw(data)
    assert answer.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 ")) and b"application/problem+json" in answer
    assert b"Traceback" not in answer


@pytest.mark.parametrize("path", ["a%", "a%4", "a%zz"])
def test_a_broken_escape_is_refused(kv: Replica, path: str) -> None:
    problem(kv("GET", f"/v1/kv/{path}"), 400, "invalid", field="key")


def test_a_question_mark_in_a_key_must_be_escaped(kv: Replica, key: str) -> None:
    problem(kv("PUT", f"/v1/kv/{key}?x=1", b"1"), 400, "invalid", field="query")
    assert kv("PUT", f"/v1/kv/{key}%3Fx=1", b"1").status == 200


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "60001", "soon", "", "99999999999"])
def test_a_timeout_that_makes_no_sense_is_refused(kv: Replica, key: str, text: str) -> None:
    for answer in (
        kv("GET", f"/v1/kv/{key}", X_Timeout_Ms=text),
        kv("PUT", f"/v1/kv/{key}", b"1", X_Timeout_Ms=text),
        kv.txn({"success": [{"op": "get", "key": key}]}, X_Timeout_Ms=text),
    ):
        problem(answer, 400, "invalid", field="X-Timeout-Ms")


def test_a_slow_body_runs_into_the_timeout_and_is_not_applied(kv: Replica, key: str) -> None:
    head = f"PUT /v1/kv/{key} HTTP/1.1\r\nHost: x\r\nX-Timeout-Ms: 50\r\nContent-Length: 100\r\n\r\nhalf"
    answer = kv.raw(head.encode())
    assert answer.startswith(b"HTTP/1.1 504 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["outcome"] == "not_applied"


def test_unknown_paths_and_methods_are_named(kv: Replica) -> None:
    assert "openapi.json" in problem(kv("GET", "/v2/kv"), 404, "unknown_path")["detail"]
    answer = kv("POST", "/v1/kv/a", b"x")
    problem(answer, 405, "method_not_allowed")
    assert answer.headers["Allow"] == "DELETE, GET, HEAD, OPTIONS, PUT"


def test_too_many_requests_at_once_are_told_to_wait(kv: Replica) -> None:
    with ThreadPoolExecutor(IN_FLIGHT * 3) as pool:
        answers = list(pool.map(lambda i: kv("PUT", f"/v1/kv/busy{i}", b"x"), range(IN_FLIGHT * 6)))
    refused = [a for a in answers if a.status != 200]
    for answer in refused:
        problem(answer, 503, "overloaded", retryable=True)
        assert int(answer.headers["Retry-After"]) >= 1
    written = kv("GET", "/v1/kv?prefix=busy&limit=1000").json["entries"]
    assert len(written) == len(answers) - len(refused)


# -- for people and machines who watch --------------------------------------------------------------------------------


def test_the_cluster_describes_itself(replicas: list[Replica]) -> None:
    views = [replica("GET", "/v1/cluster").json for replica in replicas]
    members = "cluster_id protocol durability self shard_map dedup_window_ms limits shards replica"
    assert list(views[0]) == members.split() and list(views[0]["shards"][0]) == ["id", "leader", "replicas"]
    assert [v["self"] for v in views] == [0, 1] and views[0]["cluster_id"] == views[1]["cluster_id"]
    view = views[1]
    assert (view["protocol"], view["durability"], view["dedup_window_ms"]) == ("skeen", "fsync", 120_000)
    assert ShardMap.from_json(view["shard_map"]).shards == (0, 1)
    urls = [f"http://{r.host}:{r.port}" for r in replicas]
    assert view["shards"] == [{"id": i, "leader": i, "replicas": [{"id": i, "url": url}]} for i, url in enumerate(urls)]
    assert view["limits"]["body_bytes_max"] == BODY_BYTES_MAX and view["limits"]["key_bytes_max"] == 400
    assert view["replica"]["shard"] == 1 and view["replica"]["completed"] <= view["replica"]["position"]
    assert view["replica"]["fdatasync_us"]["p50"] > 0


def test_health(kv: Replica) -> None:
    assert kv("GET", "/livez").status == kv("GET", "/readyz").status == 200


def test_metrics_count_requests_and_show_the_status(kv: Replica, key: str) -> None:
    kv("PUT", f"/v1/kv/{key}", b"x")
    text = kv("GET", "/metrics").body.decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines['kvstore_http_requests_total{method="PUT",route="kv",status="200"}']) >= 1
    assert float(lines['kvstore_http_request_seconds_count{method="PUT",route="kv"}']) >= 1
    assert float(lines["kvstore_delivered_total"]) >= 1 and float(lines["kvstore_ready"]) == 1
    assert key not in text
