"""What etcd's documentation says of its API (Interacting with etcd; etcd API; KV API guarantees, v3.6), as cases over
plain HTTP: what its users rely on holds here, or the case says what differs."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from kvstore.api.events import CHANGE, Event, EventReader
from multicast.types import Timestamp
from tests.kvstore.live import Answer, Replica, running_cluster, wait_until


class Store(Replica):
    """One replica of two shards' replicas, as a user of curl knows it."""

    def put(self, key: str, value: str, **headers: str) -> Timestamp:
        answer = self("PUT", f"/v1/kv/{quote(key)}", value.encode(), **headers)
        assert answer.status in (200, 201), answer.body
        return Timestamp.parse(answer.json["version"])

    def get(self, key: str, query: str = "") -> Answer:
        return self("GET", f"/v1/kv/{quote(key)}{query}")

    def keys(self, query: str) -> list[str]:
        return [entry["key"] for entry in self("GET", f"/v1/kv?{query}").json["entries"]]

    def done(self, success: list[Any], compare: list[Any] | None = None, failure: list[Any] | None = None) -> Any:
        answer = self.txn({"compare": compare or [], "success": success, "failure": failure or []})
        assert answer.status == 200, answer.body
        return answer.json

    def grant(self, ttl_ms: int) -> str:
        body = b'{"ttl_ms": %d}' % ttl_ms
        return str(self("POST", "/v1/leases", body, Content_Type="application/json").json["id"])

    def lease_of_a_second(self, *keys: str) -> str:
        """And these keys, attached before it was over; on a machine that stands still not to the first one."""
        lease = self.grant(1000)
        puts = [{"op": "put", "key": key, "value": "x", "lease": lease} for key in keys]
        return lease if self.txn({"success": puts}).status == 200 else self.lease_of_a_second(*keys)

    def watched(self, prefix: str, after: object) -> Iterator[Event]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request("GET", f"/v1/watch?prefix={prefix}&from={after}")
            answer, reader = connection.getresponse(), EventReader()
            while data := answer.read1():
                yield from [event for event in reader.feed(data) if event.kind == CHANGE]
        finally:
            connection.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running_cluster(tmp_path_factory.mktemp("etcd"), 2, 1, "white_box") as replicas:
        yield Store(replicas[0].host, replicas[0].port)


def put(key: str, value: str) -> dict[str, str]:
    return {"op": "put", "key": key, "value": value}


def get(key: str) -> dict[str, str]:
    return {"op": "get", "key": key}


def test_revisions_rise_with_every_change_and_all_that_a_transaction_writes_has_one(store: Store) -> None:
    versions = [store.put(f"rev/{number % 3}", str(number)) for number in range(6)]
    assert versions == sorted(set(versions))
    done = store.done([put("rev/0", "x"), put("rev/1", "x"), put("rev/9", "x")])
    entries = store("GET", "/v1/kv?prefix=rev/").json["entries"]
    assert {entry["version"] for entry in entries if entry["value"] == "x"} == {done["version"]}
    assert Timestamp.parse(done["version"]) > versions[-1]


def test_create_revision_stays_while_a_key_lives_and_begins_anew_when_it_is_created_again(store: Store) -> None:
    created, changed = store.put("create", "1"), store.put("create", "2")
    answer = store.get("create")
    assert (answer.headers["ETag"], answer.headers["Kv-Create-Version"]) == (f'"{changed}"', str(created))
    store("DELETE", "/v1/kv/create")
    again = store.put("create", "3")
    assert store.get("create").headers["Kv-Create-Version"] == str(again)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        pytest.param("start=r/b&end=r/d", "bc", id="half open: with the first, without the last"),
        pytest.param("prefix=r/", "abcd", id="prefix"),
        pytest.param("start=r/c", "cd", id="from a key on"),
        pytest.param("prefix=r/&limit=2", "ab", id="limit"),
        pytest.param("prefix=r/&reverse=true&limit=3", "dcb", id="order descending"),
        pytest.param("start=r/b&end=r/b", "", id="empty"),
    ],
)
def test_ranges(store: Store, query: str, found: str) -> None:
    store.done([put(f"r/{name}", name) for name in "abcd"])
    assert store.keys(f"{query}&end=r0" if "end" not in query else query) == [f"r/{name}" for name in found]


def test_count_only_keys_only_and_more(store: Store) -> None:
    store.done([put(f"c/{name}", name) for name in "abcd"])
    assert store("GET", "/v1/kv?prefix=c/&count_only=true").json["count"] == 4
    page = store("GET", "/v1/kv?prefix=c/&keys_only=true&limit=3").json
    assert page["next_page_token"] and all("value" not in entry for entry in page["entries"])


def test_an_old_revision_is_read_as_it_was_though_it_was_changed_and_deleted(store: Store) -> None:
    first = store.put("past", "1")
    second = store.put("past", "2")
    store("DELETE", "/v1/kv/past")
    assert store.get("past").status == 404
    assert [store.get("past", f"?version={at}").body for at in (first, second)] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("compare", "holds"),
    [
        ({"target": "value", "op": "==", "value": "v"}, True),
        ({"target": "value", "op": ">", "value": "u"}, True),
        ({"target": "value", "op": "<", "value": "v"}, False),
        ({"target": "value", "op": "!=", "value": "v"}, False),
        ({"target": "version", "op": "==", "value": "V"}, True),
        ({"target": "version", "op": ">", "value": "V"}, False),
        ({"target": "version", "op": "==", "value": "0-0"}, False),
        ({"target": "create_version", "op": "==", "value": "V"}, True),
        ({"target": "create_version", "op": "<", "value": "V"}, False),
        ({"target": "version", "op": "==", "value": "0-0", "key": "compared/none"}, True),
        ({"target": "create_version", "op": "==", "value": "0-0", "key": "compared/none"}, True),
        ({"target": "value", "op": "==", "value": "", "key": "compared/none"}, False),
    ],
    ids=str,
)
def test_compare_targets(store: Store, compare: dict[str, str], holds: bool) -> None:
    store("DELETE", "/v1/kv/compared")
    version = store.put("compared", "v")
    asked = {"key": "compared"} | compare | ({"value": str(version)} if compare["value"] == "V" else {})
    assert store.done([get("compared")], [asked])["succeeded"] is holds


def test_all_comparisons_must_hold_and_one_branch_runs_as_a_whole(store: Store) -> None:
    store.put("user1", "bad")
    bad = {"key": "user1", "target": "value", "op": "==", "value": "bad"}
    absent = {"key": "user2", "target": "exists", "op": "==", "value": False}
    done = store.done([{"op": "delete", "key": "user1"}, put("user2", "x")], [bad, absent], [get("user1")])
    assert done["succeeded"] and store.get("user1").status == 404
    done = store.done([put("user1", "no")], [bad, absent], [put("user1", "good"), get("user1")])
    assert not done["succeeded"] and done["results"][1]["value"] == "good"
    assert store.done([get("user1")])["succeeded"], "no comparison: the first branch"
    failed = store.txn({"success": [put("user1", "lost"), {"op": "add", "key": "user2", "delta": 1}]})
    assert failed.status == 422 and store.get("user1").body == b"good", "all or nothing"


def test_a_nested_transaction_compares_the_state_before_the_whole_one(store: Store) -> None:
    """In etcd, too, all comparisons on the way are evaluated before anything is applied."""
    store.done([put("nest/a", "1")])
    absent = {"key": "nest/b", "target": "exists", "op": "==", "value": False}
    inner = {"op": "txn", "compare": [absent], "success": [get("nest/b")], "failure": [put("nest/b", "wrong")]}
    done = store.done([put("nest/b", "2"), inner])
    told = done["results"][1]
    assert told["succeeded"] and told["results"][0]["value"] == "2", "it sees what was written before it"
    again = store.done([inner, {"op": "delete", "key": "nest/a"}])
    assert not again["results"][0]["succeeded"] and again["results"][1]["deleted"]
    assert store.get("nest/b").body == b"wrong"


def test_a_key_may_be_written_twice_in_a_transaction_which_etcd_refuses(store: Store) -> None:
    store.done([put("twice", "1"), put("twice", "2")])
    assert store.get("twice").body == b"2"


def test_delete_by_range_says_how_many(store: Store) -> None:
    store.done([put(f"d/{name}", name) for name in "abc"])
    assert store("DELETE", "/v1/kv?prefix=d/&start=d/b").json["deleted"] == 2
    assert store("DELETE", "/v1/kv?prefix=d/nobody").json["deleted"] == 0 and store.keys("prefix=d/") == ["d/a"]


def test_a_watch_from_a_revision_is_ordered_reliable_atomic_and_resumable(store: Store) -> None:
    """etcd's four guarantees of watches."""
    before = store.put("w/a", "0")
    done = store.done([put("w/a", "1"), put("w/b", "1"), put("elsewhere", "1")])
    store("DELETE", "/v1/kv/w/a")
    store.put("w/c", "3")
    events = store.watched("w/", before)
    told = [next(events) for _ in range(3)]
    events.close()
    assert [event.version for event in told] == sorted(event.version for event in told)
    assert (str(told[0].version), sorted(told[0].changes)) == (done["version"], [(b"w/a", b"1"), (b"w/b", b"1")])
    assert list(told[1].changes) == [(b"w/a", None)]
    resumed = store.watched("w/", told[1].version)
    assert next(resumed) == told[2]
    resumed.close()


def test_keys_go_with_their_lease_when_it_expires_or_is_revoked(store: Store) -> None:
    before, revoked = store.put("l/4", "x"), store.grant(60_000)
    store.put("l/3", "x", Kv_Lease=revoked)
    store.put("l/4", "x", Kv_Lease=revoked)
    store.put("l/4", "without a lease")
    expires = store.lease_of_a_second("l/1", "l/2")
    assert store("GET", f"/v1/leases/{revoked}").json["ttl_ms"] == 60_000
    assert store("DELETE", f"/v1/leases/{revoked}").status == 200
    wait_until(lambda: store("GET", f"/v1/leases/{expires}").status == 404)
    assert store.keys("prefix=l/") == ["l/4"]
    events = store.watched("l/", before)
    deletions = (event for event in events if not any(change.value for change in event.changes))
    gone = sorted(sorted(change.key for change in next(deletions).changes) for _ in range(2))
    events.close()
    assert gone == [[b"l/1", b"l/2"], [b"l/3"]], "each lease's keys at once"
    assert store("POST", f"/v1/leases/{expires}/renew", b"").status == 404
    assert store("PUT", "/v1/kv/l/5", b"x", Kv_Lease=expires).status == 422


def test_the_recipe_of_a_lock_whose_token_fences(store: Store) -> None:
    """A key of one's own, attached to a lease, created if absent; the lowest create version has it; who goes is
    followed by the next, with a greater one. So is an election, whose value is what the leader says."""
    names = {who: store.grant(60_000) for who in ("one", "two")}
    for who, lease in names.items():
        key = f"{{mutex}}/{lease}"
        done = store.done(
            [{"op": "put", "key": key, "value": who, "lease": lease}],
            [{"key": key, "target": "create_version", "op": "==", "value": "0-0"}],
        )
        assert done["succeeded"]

    def holder() -> tuple[str, Timestamp]:
        entries = store("GET", "/v1/kv?prefix=%7Bmutex%7D/").json["entries"]
        first = min(entries, key=lambda entry: Timestamp.parse(entry["create_version"]))
        return first["value"], Timestamp.parse(first["create_version"])

    who, token = holder()
    assert who == "one"
    assert store("DELETE", f"/v1/leases/{names['one']}").status == 200
    follower, later = holder()
    assert follower == "two" and later > token
    guard = {"key": f"{{mutex}}/{names['one']}", "target": "create_version", "op": "==", "value": str(token)}
    assert not store.done([put("guarded", "late")], [guard])["succeeded"], "who lost it is refused"


def test_a_guard_of_a_range_is_what_a_comparison_with_range_end_is(store: Store) -> None:
    version = store.put("guarded/1", "x")
    guard = {"op": "none_newer", "prefix": "guarded/", "version": str(version)}
    assert store.txn({"success": [guard, put("sum", "1")]}).status == 200
    store.put("guarded/2", "x")
    refused = store.txn({"success": [guard, put("sum", "2")]})
    assert (refused.status, refused.json["code"]) == (422, "failed") and store.get("sum").body == b"1"
    assert store.txn({"success": [{**guard, "version": "x"}]}).status == 400


def test_a_repetition_has_one_effect_which_etcd_leaves_to_the_client(store: Store) -> None:
    once = {"success": [{"op": "add", "key": "n", "delta": 1}]}
    first = store.txn(once)
    again = store.txn(once, Idempotency_Key=first.headers["Idempotency-Key"])
    assert again.json == first.json and store.get("n").body == b"1"
