"""What the interface says of itself: every operation is there, and answers nothing that the document does not name."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore import __version__
from kvstore.api import codec, model
from kvstore.api.forms import JSON, MSGPACK
from kvstore.api.model import KeyValue, OperationResult
from kvstore.api.openapi import document
from kvstore.api.routes import BYTES, ROUTES, Route
from kvstore.core.changes import CHANGED_BYTES_MAX
from kvstore.core.replica import CLOCK_AHEAD_US_MAX
from kvstore.http.calls import GZIP_BYTES
from kvstore.limits import MIB, Limits
from tests.amounts import examples
from tests.house import ROOT
from tests.kvstore.live import Replica, running_cluster
from tests.kvstore.test_http_app import VERSION, FakeNode, answered, done, serving

DOCUMENT = document(__version__)
OPERATIONS = [
    (path, method, operation) for path, methods in DOCUMENT["paths"].items() for method, operation in methods.items()
]


def test_the_page_names_every_operation_and_says_the_limits_as_they_are() -> None:
    page = " ".join((ROOT / "kvstore" / "HTTP.md").read_text().split())
    assert [name for name in codec._OPERATIONS if f"`{name}`" not in page] == []
    limits = Limits()
    for said in (
        f"Keys are 1 to {model.KEY_BYTES_MAX} bytes",
        f"any bytes up to {model.VALUE_BYTES_MAX // MIB} MiB",
        f"`limit` keys, {model.SCAN_LIMIT_DEFAULT} unless it is said, at most {model.SCAN_LIMIT_MAX:,}",
        f"more than {model.RANGE_KEYS_MAX:,} keys in it {model.RANGE_KEYS_MAX:,} are counted",
        f"At most {model.OPERATIONS_MAX:,} comparisons and operations",
        f"what its appends write in one shard is at most {model.APPENDED_BYTES_MAX // MIB} MiB",
        f"a transaction reads at most {model.RESULT_BYTES_MAX // MIB} MiB",
        f"A body has at most {limits.body_bytes_max // MIB} MiB",
        f"may look at {model.SCANNED_KEYS_MAX:,} keys of a shard",
        f"at most {model.WAYS_MAX} ways in which branches are taken",
        f"are at most {model.TRIED_MAX:,}",
        f"({limits.timeout_default_ms:,} unless it is said, at most {limits.timeout_max_ms:,})",
        f"more than {CLOCK_AHEAD_US_MAX // 1_000_000} seconds ahead of the replica's clock",
        f"At most {model.LEASE_KEYS_MAX:,} keys of a shard belong to one lease",
        f"changes more than {CHANGED_BYTES_MAX // MIB} MiB of keys and values",
    ):
        assert said in page


def test_the_first_page_names_what_is_open_to_everybody() -> None:
    page = " ".join((ROOT / "README.md").read_text().split())
    rights = page[page.index("A role allows to read") : page.index("Changes of rights")]
    assert {path for path in re.findall(r"`(/[\w/]+)`", rights) if path not in ("/metrics", "/v1/cluster")} == {
        route.path for route in ROUTES if route.access == "open"
    }
    assert "whoever has any token may ask what became of a write by its id" in rights
    assert [route.access for route in ROUTES if route.path == "/v1/txn/{id}"] == ["token"]


@pytest.fixture(scope="module")
def kv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with running_cluster(tmp_path_factory.mktemp("routes"), 1, 1, "skeen") as running:
        yield running[0]


def test_every_reference_of_the_document_leads_somewhere() -> None:
    text = json.dumps(DOCUMENT)
    for part in text.split('"$ref": "')[1:]:
        name = part.partition('"')[0].removeprefix("#/components/schemas/")
        assert name in DOCUMENT["components"]["schemas"]
    names = [operation["operationId"] for _, method, operation in OPERATIONS if method != "options"]
    assert len(set(names)) == len(names) == len(ROUTES) + sum(route.method == "GET" for route in ROUTES)


def test_it_describes_itself_and_is_found_by_parts(kv: Replica) -> None:
    assert kv("GET", "/v1/openapi.json").json == json.loads(json.dumps(DOCUMENT))
    cluster = kv("GET", "/v1/cluster").json
    assert kv("GET", "/v1/limits").json == cluster["limits"]
    (member,) = kv("GET", "/v1/cluster/members").json["replicas"]
    assert member == {**cluster["shards"][0]["replicas"][0], "shard": 0}
    shards = kv("GET", "/v1/cluster/shards").json
    assert shards == {"shard_map": cluster["shard_map"], "shards": cluster["shards"]}


def test_a_page_shows_every_operation_and_every_type_and_needs_nothing_else(kv: Replica) -> None:
    answer = kv("GET", "/v1/docs")
    shown = answer.body.decode()
    assert answer.status == 200 and answer.headers["Content-Type"] == "text/html; charset=utf-8"
    for route in ROUTES:
        assert f'<h2 id="{route.name}"><span class=method>{route.method}</span> {escape(route.path)}</h2>' in shown
    for reference in re.findall('href="#([^"]+)"', shown):
        assert f'id="{reference}"' in shown
    assert not re.search("<(script|link|img|iframe)", shown) and "http:" not in shown and "https:" not in shown


def test_every_operation_says_that_it_may_be_for_another_cluster(kv: Replica) -> None:
    for path, method, operation in OPERATIONS:
        if method != "options":
            assert "Kv-Cluster" in [parameter["name"] for parameter in operation["parameters"]], path
            answer = kv(method.upper(), path, Kv_Cluster="another")
            assert answer.status == 421 and "421" in operation["responses"], (path, method, answer)


def test_every_path_says_what_it_takes(kv: Replica) -> None:
    for path, methods in DOCUMENT["paths"].items():
        answer = kv("OPTIONS", path)
        assert answer.status == 204 and "Content-Length" not in answer.headers
        assert set(answer.headers["Allow"].lower().split(", ")) == set(methods)
        refused = kv("PATCH", path)
        assert refused.status == 405 and refused.headers["Allow"] == answer.headers["Allow"]


some_text = st.text(st.characters(min_codepoint=1, max_codepoint=0x2FF), max_size=9)
header_text = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=9)
SAMPLES: dict[str, list[str]] = {
    "Idempotency-Key": ["0197b3c2-7f00-7cc3-98c4-dc0c0c073981", "1"],
    "If-Match": ["*", '"1-1"', 'W/"1-1"', "x"],
    "If-None-Match": ["*", '"1-1", "2-2"', "x"],
    "X-Timeout-Ms": ["1", "500", "0", "-1"],
    "id": ["0197b3c2-7f00-7cc3-98c4-dc0c0c073981", "1"],
    "limit": ["1", "1000", "0", "x"],
    "page_token": ["AWE", "!"],
    "reverse": ["true", "false", "yes"], "keys_only": ["true", "false"],
    "count_only": ["true", "false"], "keys": ["true", "x"],
    "version": ["1-1", "x"], "from": ["0-0", "ffffffffffffff-0", "x"], "Last-Event-ID": ["0-0", "x"],
    "after": ["6b", "x"], "max_age_ms": ["0", "500", "-1"],
    "consistency": ["linearizable", "snapshot", "stale", "x"],
}  # fmt: skip
OPERATION = st.fixed_dictionaries(
    {"op": st.sampled_from(["get", "put", "delete", "add", "min", "max", "append", "range", "delete_range", "none"])},
    optional={
        "key": some_text | st.binary(max_size=9), "value": some_text | st.binary(max_size=9) | st.integers(),
        "prefix": some_text, "delta": st.integers() | some_text,
        "lease": st.sampled_from(["0197b3c2-7f00-7cc3-98c4-dc0c0c073981", "1"]),
        "limit": st.integers(-1, 1001), "reverse": st.booleans(), "count_only": st.booleans(), "end": some_text,
    },
)  # fmt: skip
PERMISSION = st.fixed_dictionaries(
    {"access": st.lists(st.sampled_from(["read", "write", "lease", "admin", "monitor", "none"]), max_size=3)},
    optional={name: some_text | st.integers() for name in ("key", "prefix", "start", "end")},
)
MEMBERS = st.fixed_dictionaries(
    {"id": st.integers(-1, 9) | some_text, "shard": st.integers(-1, 9), "host": some_text},
    optional={"peer_port": st.integers(-1, 70_000), "http_port": st.integers(-1, 70_000)},
)
ADMIN = st.fixed_dictionaries(
    {},
    optional={
        "permissions": st.lists(PERMISSION, max_size=3), "name": some_text, "roles": st.lists(some_text, max_size=2),
        "token": some_text, "add": MEMBERS, "remove": st.integers(-1, 9) | some_text, "source": st.integers(-1, 9),
        "target": st.integers(-1, 9), "slots": st.lists(st.lists(st.integers(-1, 9), max_size=3), max_size=2),
    },
)
BODIES = st.binary(max_size=20) | ADMIN | MEMBERS | st.fixed_dictionaries(
    {},
    optional={
        "success": st.lists(OPERATION, max_size=3), "failure": st.lists(OPERATION, max_size=2),
        "ttl_ms": st.sampled_from([1000, 999, "1000"]),
    },
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_no_answer_is_undocumented_and_none_is_our_mistake(kv: Replica, data: st.DataObject) -> None:
    path, method, operation = data.draw(st.sampled_from(OPERATIONS))
    query, headers = [], {}
    form = data.draw(st.sampled_from([JSON, MSGPACK]))
    if form.media_type in operation.get("requestBody", {}).get("content", ()):
        headers["Content_Type"] = form.media_type
    if data.draw(st.booleans()):
        headers["Accept"] = data.draw(st.sampled_from([JSON, MSGPACK])).media_type
    for parameter in operation.get("parameters", ()):
        name, place = parameter["name"], parameter["in"]
        some = header_text if place == "header" else some_text
        values = st.sampled_from(SAMPLES[name]) if name in SAMPLES else some
        if place == "path":
            path = path.replace(f"{{{name}}}", quote(data.draw(values), safe=""))
        elif data.draw(st.booleans()) and (name != "Kv-Cluster" or data.draw(st.integers(0, 9)) == 0):  # it ends all
            if place == "query":
                query.append(f"{name}={quote(data.draw(values), safe='')}")
            else:
                headers[name.replace("-", "_")] = data.draw(values)
    body = data.draw(BODIES) if method in ("put", "post") or data.draw(st.integers(0, 9)) == 0 else None
    if isinstance(body, dict):
        body = form.encode(body)
        if data.draw(st.integers(0, 9)) == 0:  # no UTF-8 in a text
            body = body.replace(b'":"', b'":"\xff', 1)
    answer = kv(method.upper(), path + ("?" + "&".join(query) if query else ""), body, **headers)
    assert str(answer.status) in operation["responses"] and answer.status != 500, (method, path, query, answer)
    told = operation["responses"][str(answer.status)].get("content", {})
    assert method == "head" or not told or answer.headers["Content-Type"].split(";")[0] in told


BOUNDED = [
    (path, method, operation, parameter)
    for path, method, operation in OPERATIONS
    for parameter in operation.get("parameters", ())
    if {"pattern", "minimum", "enum"} & parameter["schema"].keys() and path != "/v1/watch"
    and (parameter["name"], method) not in [(n, m) for n in ("If-Match", "If-None-Match") for m in ("get", "head")]
]  # fmt: skip


def allowed(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "pattern" in schema:
        return st.from_regex(re.compile(schema["pattern"], re.ASCII), fullmatch=True)
    return st.integers(schema["minimum"], schema["maximum"]).map(str)


def forbidden(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    if "enum" in schema:
        return st.text("abcst", min_size=1).filter(lambda text: text not in schema["enum"])
    if "pattern" in schema:
        text = allowed(schema).map(lambda text: text[:-1]) | st.text('0af-"*_', max_size=40)
        return text.filter(lambda text: text != "" and not re.fullmatch(schema["pattern"], text))
    return st.integers(max_value=schema["minimum"] - 1).map(str) | st.integers(schema["maximum"] + 1).map(str)


@examples(60, 150)
@given(st.data(), st.booleans())
def test_what_the_document_says_of_a_parameter_is_what_is_taken(kv: Replica, data: st.DataObject, good: bool) -> None:
    path, method, operation, parameter = data.draw(st.sampled_from(BOUNDED))
    name, place, schema = parameter["name"], parameter["in"], parameter["schema"]
    value = data.draw((allowed if good else forbidden)(schema))
    query: list[str] = []
    headers, body = ({"Content_Type": JSON.media_type}, b"{}") if "requestBody" in operation else ({}, None)
    if place == "query":
        query = [f"{name}={quote(value, safe='')}"]
        if name == "max_age_ms" or (name, value) == ("consistency", "stale"):
            query = ["consistency=stale", query[0] if name == "max_age_ms" else "max_age_ms=0"]
    elif place == "header":
        headers[name.replace("-", "_")] = value
    for other in operation["parameters"]:
        if other["in"] == "path":
            told = value if other is parameter else data.draw(allowed({"pattern": "^k$", **other["schema"]}))
            path = path.replace(f"{{{other['name']}}}", quote(told, safe=""))
    answer = kv(method.upper(), path + ("?" + "&".join(query) if query else ""), body, **headers)
    if good and method != "head" and answer.status == 400:
        contradicts = "before that version" in answer.json["detail"]  # another parameter
        assert contradicts or name not in answer.json.get("field", ""), (answer.json, value)
    assert good or answer.status == 400, (method, path, query, headers, answer)


def test_what_is_written_in_one_form_is_read_in_the_other(kv: Replica) -> None:
    """Bytes that are no text."""
    body = MSGPACK.encode({"success": [{"op": "put", "key": b"\xff\x00", "value": b"\xfe"}]})
    packed = {"Content_Type": MSGPACK.media_type, "Accept": MSGPACK.media_type}
    written = kv("POST", "/v1/txn", body, **packed)
    assert written.headers["Content-Type"] == MSGPACK.media_type
    version = msgspec.msgpack.decode(written.body)["version"]
    entry = {"version": version, "create_version": version}
    page = kv("GET", "/v1/kv?prefix=%ff", Accept=MSGPACK.media_type)
    assert msgspec.msgpack.decode(page.body)["entries"] == [{"key": b"\xff\x00", "value": b"\xfe", **entry}]
    assert kv("GET", "/v1/kv?prefix=%ff").json["entries"] == [{"key_b64": "/wA=", "value_b64": "/g==", **entry}]
    refused = kv("POST", "/v1/txn", b"\xc1", **packed)
    assert refused.status == 400 and refused.headers["Content-Type"] == "application/problem+json"


async def test_large_answers_are_compressed_for_those_who_take_that() -> None:
    async def execute(*_: Any) -> Any:
        return answered(OperationResult(entries=(KeyValue(b"k", b"v" * GZIP_BYTES, VERSION),)))

    async with serving(FakeNode(execute)) as client:
        _, plain_head, plain = await client("GET", "/v1/kv")
        _, head, body = await client("GET", "/v1/kv", Accept_Encoding="br, gzip")
        for told, taken in (("gzip;q=0", False), ("*, gzip; q=0.0", False), ("GZIP;q=0.1", True), ("*", True)):
            assert ("Content-Encoding" in (await client("GET", "/v1/kv", Accept_Encoding=told))[1]) is taken
    assert "Content-Encoding" not in plain_head and "Content-Encoding: gzip\r\n" in head
    assert gzip.decompress(body) == plain and len(body) < len(plain) / 10


async def test_only_pages_of_origins_that_were_named_may_read() -> None:
    async with serving(FakeNode(done), ("https://ours.example",)) as client:
        for origin, allowed in (("https://ours.example", True), ("https://other.example", False)):
            for method, path in (("GET", "/livez"), ("OPTIONS", "/v1/kv/a"), ("GET", "/v1/nothing")):
                _, head, _ = await client(method, path, Origin=origin)
                assert (f"Access-Control-Allow-Origin: {origin}\r\n" in head) is allowed
                assert ("Access-Control-Allow-Methods" in head) is (allowed and method == "OPTIONS")
        _, head, _ = await client("OPTIONS", "/v1/kv/a", Origin="https://ours.example")
        allowed_fields = next(line for line in head.splitlines() if line.startswith("Access-Control-Allow-Headers"))
        named = {parameter.name for route in ROUTES for parameter in route.parameters if parameter.place == "header"}
        named |= {"Authorization", "Content-Type", "Kv-Cluster", "X-Request-Id"}
        assert named <= set(re.split(", |: ", allowed_fields))
    async with serving(FakeNode(done)) as client:
        assert "Access-Control" not in (await client("GET", "/livez", Origin="https://ours.example"))[1]


@pytest.mark.parametrize("route", [route for route in ROUTES if route.method == "POST"], ids=lambda route: route.name)
async def test_a_page_of_somebody_else_does_nothing_with_the_requests_that_any_browser_sends(route: Route) -> None:
    """With a body of any type that needs no leave, or of none; from the same origin, or a named one, it may."""
    path = route.path.replace("{id}", "0197b3c2-7f00-7cc3-98c4-dc0c0c073981")
    async with serving(FakeNode(done), ("https://ours.example",)) as client:
        for origin in ("https://other.example", "null", "http://x:81"):
            answer = await client.problem("POST", path, b"{}", Content_Type="application/json", Origin=origin)
            assert (answer["status"], answer["field"], answer["outcome"]) == (403, "Origin", "not_applied")
        for origin in ("https://ours.example", "http://x"):
            assert (await client("POST", path, b"{", Content_Type="application/json", Origin=origin))[0] in (400, 413)


TYPED = [r for r in ROUTES if r.body not in (None, BYTES) and r.name not in ("move", "replaced")]


@pytest.mark.parametrize("route", TYPED, ids=lambda route: route.name)
async def test_a_body_says_that_it_is_of_a_form_that_pages_may_not_send_unasked(route: Route) -> None:
    async with serving(FakeNode(done)) as client:
        for told in ({}, {"Content_Type": "text/plain"}, {"Content_Type": "application/x-www-form-urlencoded"}):
            answer = await client.problem(route.method, route.path.replace("{name}", "a"), b"{}", **told)
            assert (answer["status"], answer["code"], answer["field"]) == (415, "unsupported_type", "Content-Type")
