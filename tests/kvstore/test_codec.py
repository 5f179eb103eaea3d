"""The JSON of the HTTP interface: what the server writes is what clients read, and the other way round."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.api import answers, codec, problem
from kvstore.api.answers import MalformedAnswer, Page
from kvstore.api.forms import JSON, MSGPACK, Form, accepted, of_body
from kvstore.api.model import (
    NUMBERS,
    Add,
    Append,
    Compare,
    Delete,
    DeleteRange,
    Get,
    InvalidTransaction,
    KeyValue,
    Max,
    Min,
    Operation,
    OperationResult,
    Put,
    Range,
    Result,
    Transaction,
    Txn,
    TxnResult,
)
from kvstore.api.validation import validate
from kvstore.core.messages import Refused
from kvstore.http import errors
from multicast.types import ZERO, Timestamp
from tests.amounts import examples

VERSION = Timestamp(0x1234, 7)
TEXT_VERSION = str(VERSION)
ODD = b"\xff\x00"

_keys = st.binary(min_size=1, max_size=12)
_values = st.binary(max_size=12)
_versions = st.builds(Timestamp, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
_operations = st.one_of(
    st.builds(Get, _keys),
    st.builds(Put, _keys, _values),
    st.builds(Delete, _keys),
    st.builds(Add, _keys, st.integers(-(2**63), 2**63 - 1)),
    st.builds(Min, _keys, st.integers(-(2**63), 2**63 - 1)),
    st.builds(Max, _keys, st.integers(-(2**63), 2**63 - 1)),
    st.builds(Append, _keys, _values),
    st.builds(Range, _values, st.integers(1, 1000), _values, _values, _values, st.booleans(), st.booleans()),
    st.builds(Range, _values, st.just(100), _values, _values, _values, count_only=st.just(True)),
    st.builds(DeleteRange, _values, _values, _values),
)
_forms = st.sampled_from([JSON, MSGPACK])
_created = _versions.filter(lambda version: version != ZERO)
_leases = st.just(b"") | st.binary(min_size=16, max_size=16)
_compares = st.one_of(
    st.builds(Compare, _keys, st.just("value"), st.sampled_from(["==", "!=", "<", ">"]), _values),
    st.builds(Compare, _keys, st.just("version"), st.sampled_from(["==", "!=", "<", ">"]), _versions),
    st.builds(Compare, _keys, st.just("create_version"), st.sampled_from(["==", "!="]), _versions),
    st.builds(Compare, _keys, st.just("exists"), st.sampled_from(["==", "!="]), st.booleans()),
)
_few = st.lists(_compares, max_size=3).map(tuple)
_branch = st.lists(
    st.recursive(
        _operations,
        lambda one: st.builds(Txn, _few, st.lists(one, max_size=2).map(tuple), st.lists(one, max_size=2).map(tuple)),
        max_leaves=4,
    ),
    max_size=4,
).map(tuple)
_int64 = st.integers(-(2**63), 2**63 - 1)
_found = st.builds(KeyValue, _keys, _values, _versions, _created, _leases)


@st.composite
def _answered(draw: st.DrawFn) -> tuple[Transaction, Result]:
    """A transaction, and a result that it may have."""
    transaction = Transaction((), draw(_branch), draw(_branch))
    succeeded = draw(st.booleans())

    def result_of(operation: Operation) -> OperationResult:
        if isinstance(operation, Txn):
            holds = draw(st.booleans())
            branch = operation.success if holds else operation.failure
            return TxnResult(succeeded=holds, results=tuple(map(result_of, branch)))
        if isinstance(operation, Get):
            found = draw(st.none() | st.builds(KeyValue, st.just(operation.key), _values, _versions, _created, _leases))
            return OperationResult(found=found)
        if isinstance(operation, DeleteRange) or (isinstance(operation, Range) and operation.count_only):
            return OperationResult(value=draw(st.integers(0, 1 << 20)))
        if isinstance(operation, Range):
            values = st.just(b"") if operation.keys_only else _values
            found = st.builds(KeyValue, _keys, values, _versions, _created, _leases)
            return OperationResult(entries=draw(st.lists(found, max_size=3).map(tuple)), more=draw(st.booleans()))
        if isinstance(operation, NUMBERS):
            return OperationResult(value=draw(_int64))
        if isinstance(operation, Append):
            return OperationResult(length=draw(st.integers(0, 1 << 20)))
        return OperationResult(deleted=isinstance(operation, Delete) and draw(st.booleans()))

    branch = transaction.success if succeeded else transaction.failure
    return transaction, Result(succeeded, draw(_versions), tuple(map(result_of, branch)))


def same(a: Any, b: Any) -> bool:
    return msgspec.msgpack.encode(a) == msgspec.msgpack.encode(b)


@examples(50)
@given(st.builds(Transaction, _few, _branch, _branch), _forms)
def test_the_server_reads_the_transaction_that_was_meant(transaction: Transaction, form: Form) -> None:
    assert same(codec.parse_transaction(codec.transaction_body(transaction, form), form), transaction)


def nested(levels: int, op: str = "get") -> dict[str, Any]:
    inner = {"op": op, "key": "k"}
    for _ in range(levels):
        inner = {"op": "txn", "success": [inner]}
    return {"success": [inner]}


@examples(50)
@given(_answered(), _forms)
def test_the_client_reads_the_result_that_was_meant(answered: tuple[Transaction, Result], form: Form) -> None:
    transaction, result = answered
    body = answers.transaction_answer(transaction, result, False, "id", form)
    read, omitted = answers.parse_transaction_answer(body, transaction, form)
    assert same(read, result) and not omitted
    body = answers.transaction_answer(transaction, result, True, "id", form)
    read, omitted = answers.parse_transaction_answer(body, transaction, form)
    assert (read.succeeded, read.version, omitted) == (result.succeeded, result.version, True)


@given(st.builds(Page, _versions, st.lists(_found, max_size=3).map(tuple), st.sampled_from([None, "AWE"])), _forms)
def test_the_client_reads_the_page_that_was_meant(page: Page, form: Form) -> None:
    assert answers.parse_page(answers.page_answer(page, form=form), form=form) == page


@given(_versions, st.booleans(), _forms)
def test_the_client_reads_the_write_that_was_meant(version: Timestamp, deleted: bool, form: Form) -> None:
    assert answers.parse_write(answers.put_answer(str(version).encode(), b"id", form), form)[0] == version
    assert answers.parse_write(answers.delete_answer(str(version), deleted, "id", form), form) == (version, deleted)
    assert answers.parse_value(b"k", b"v", f'"{version}"', "", "") == KeyValue(b"k", b"v", version, version)


@pytest.mark.parametrize(
    "told",
    [
        errors.invalid("success[0].key", "missing"),
        errors.unavailable("overloaded", "full", problem.UNKNOWN),
        errors.timed_out(5, problem.UNKNOWN),
        errors.refused(Refused("id_reused", "another request", False, problem.NOT_APPLIED)),
        errors.internal(),
    ],
    ids=lambda told: told.code,
)
def test_the_client_reads_the_problem_that_was_meant(told: errors.Problem) -> None:
    body = told.response().body
    assert isinstance(body, bytes)
    read = problem.parse_problem(body)
    assert read is not None and (read.status, read.code, read.detail) == (told.status, told.code, told.detail)
    assert (read.retryable, read.outcome, read.field or "") == (told.retryable, told.outcome, told.field)


def test_how_requests_stand_on_the_wire() -> None:
    transaction = Transaction(
        (Compare(b"a", "value", "<", ODD), Compare(ODD, "version", "==", VERSION), Compare(b"a", "exists", "!=", True)),
        (Get(b"a"), Put(b"a", ODD), Delete(ODD), Add(b"a", -1), Append(b"a", b"x")),
        (Range(b"p", 5), Range(ODD, 1, b"q")),
    )
    assert json.loads(codec.transaction_body(transaction)) == {
        "compare": [
            {"key": "a", "target": "value", "op": "<", "value_b64": "/wA="},
            {"key_b64": "/wA=", "target": "version", "op": "==", "value": TEXT_VERSION},
            {"key": "a", "target": "exists", "op": "!=", "value": True},
        ],
        "success": [
            {"op": "get", "key": "a"},
            {"op": "put", "key": "a", "value_b64": "/wA="},
            {"op": "delete", "key_b64": "/wA="},
            {"op": "add", "key": "a", "delta": -1},
            {"op": "append", "key": "a", "value": "x"},
        ],
        "failure": [
            {"op": "range", "prefix": "p", "limit": 5},
            {"op": "range", "prefix_b64": "/wA=", "limit": 1, "after": "q"},
        ],
    }


def test_how_answers_stand_on_the_wire() -> None:
    found = KeyValue(b"a", ODD, VERSION)
    branch = (Get(b"a"), Get(ODD), Put(b"a", b""), Delete(b"a"), Add(b"a", 1), Append(b"a", b"x"), Range(b"", 1))
    results = (
        OperationResult(found=found), OperationResult(), OperationResult(), OperationResult(deleted=True),
        OperationResult(value=2), OperationResult(length=3), OperationResult(entries=(found,), more=True),
    )  # fmt: skip
    answer = answers.transaction_answer(Transaction((), branch), Result(True, VERSION, results), False, "id")
    entry = {"key": "a", "value_b64": "/wA=", "version": TEXT_VERSION}
    written = {"version": TEXT_VERSION}
    assert json.loads(answer) == {
        "succeeded": True,
        "version": TEXT_VERSION,
        "id": "id",
        "results": [
            entry, {"key_b64": "/wA=", "value": None}, written, {**written, "deleted": True},
            {**written, "value": 2}, {**written, "length": 3}, {"entries": [entry], "more": True},
        ],
    }  # fmt: skip
    page = {"version": TEXT_VERSION, "entries": [entry], "next_page_token": None}
    assert json.loads(answers.page_answer(Page(VERSION, (found,), None))) == page
    assert json.loads(answers.put_answer(b"v", b"id")) == {"version": "v", "id": "id"}
    assert json.loads(answers.delete_answer("v", False, "id")) == {"version": "v", "deleted": False, "id": "id"}


def test_bytes_stand_in_messagepack_as_they_are() -> None:
    transaction = Transaction((Compare(ODD, "value", "<", b"b"),), (Put(b"a", ODD), Range(ODD, 1)))
    body = msgspec.msgpack.decode(codec.transaction_body(transaction, MSGPACK))
    assert body["compare"] == [{"key": ODD, "target": "value", "op": "<", "value": b"b"}]
    assert body["success"] == [{"op": "put", "key": b"a", "value": ODD}, {"op": "range", "prefix": ODD, "limit": 1}]
    found = OperationResult(found=KeyValue(b"a", ODD, VERSION))
    result = Result(True, VERSION, (found,))
    answer = answers.transaction_answer(Transaction((), (Get(b"a"),)), result, False, "", MSGPACK)
    assert msgspec.msgpack.decode(answer)["results"] == [{"key": b"a", "value": ODD, "version": TEXT_VERSION}]
    named = MSGPACK.encode({"success": [{"op": "put", "key": "a", "value": "text"}]})
    assert same(codec.parse_transaction(named, MSGPACK), Transaction((), (Put(b"a", b"text"),)))


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        (b"\xc1", "body", "malformed"), (b"\x91" * 100_000, "body", "recursion"),
        (MSGPACK.encode([]), "body", "an object"),
        (MSGPACK.encode({"compare": [{1: 2}]}), "body", "no text"),
        (MSGPACK.encode({"sucess": []}), "sucess", "did you mean 'success'?"),
        (MSGPACK.encode({"success": [{"op": "get", "key_b64": "YQ=="}]}), "success[0].key_b64", "Expected `bytes"),
        (MSGPACK.encode({"success": [{"op": "get", "key": b""}]}), "success[0].key", "1 to 400 bytes"),
        (MSGPACK.encode({"success": [{"op": "add", "key": b"a", "delta": 2**63}]}), "success[0].delta", "64-bit"),
    ],
)  # fmt: skip
def test_malformed_messagepack_is_refused_by_name(body: bytes, field: str, says: str) -> None:
    with pytest.raises(InvalidTransaction) as refused:
        validate(codec.parse_transaction(body, MSGPACK))
    assert refused.value.field == field and says in refused.value.problem


MANY = 1_000_000


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (b"\x81\xa7success\xdd" + MANY.to_bytes(4, "big") + b"\xc0" * MANY, MSGPACK),
        (b"\x81\xa7success\x91\xdd" + MANY.to_bytes(4, "big") + b"\x80" * MANY, MSGPACK),
        (b'{"success": [' + b'{"op": "gat"},' * 10_000 + b'{"op": "gat"}]}', JSON),
        (b'{"success": [' + b'{"op": "get", "key": "a"},' * 10_000 + b'{"op": "txn"}]}', JSON),
        (b'{"success": [' + b'{"op": "txn"},' * 10_000 + b'{"op": "txn"}]}', JSON),
        (b'{"' + b"a" * MANY + b'": 1}', JSON),
    ],
    ids=["nothings", "empty maps", "wrong operations", "operations", "nested ones", "a name"],
)
def test_a_large_body_that_is_wrong_is_not_looked_at_part_by_part(body: bytes, form: Form) -> None:
    """Of a replica it would be the time of all others: of 4 MiB more than half a minute."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        with pytest.raises(InvalidTransaction) as refused:
            codec.parse_transaction(body, form)
    finally:
        sys.setprofile(None)
    assert calls < 1000 and len(refused.value.problem) < 1000


def test_the_form_is_what_the_headers_name() -> None:
    assert of_body("application/json") is of_body("Application/JSON; charset=utf-8") is JSON
    assert of_body("application/msgpack") is MSGPACK and of_body("text/plain") is of_body("") is None
    assert of_body("application/json; charset=latin-1") is None
    assert accepted("text/html, application/msgpack;q=0.9, application/json") is MSGPACK
    assert accepted("application/json, application/msgpack") is accepted("*/*") is accepted("") is JSON


def test_how_a_problem_stands_on_the_wire() -> None:
    members: dict[str, Any] = {
        "type": "about:blank", "title": "Bad Request", "status": 400, "detail": "key: empty", "code": "invalid",
        "retryable": False, "outcome": "not_applied", "field": "key",
    }  # fmt: skip
    assert json.loads(errors.invalid("key", "empty").response().body or b"") == members
    members |= {"title": "Service Unavailable", "status": 503, "detail": "full", "code": "overloaded"}
    members["retryable"] = True
    del members["field"]
    assert json.loads(errors.unavailable("overloaded", "full").response().body or b"") == members


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        (b"", "body", "it is empty"),
        (b"{", "body", "not JSON"),
        (b"\xff\xfe", "body", "not JSON"),
        (b"[]", "body", "an object"),
        (b"[" * 10_000, "body", "not JSON"),
        ({}, "transaction", "no comparison and no operation"),
        ({"sucess": []}, "sucess", "did you mean 'success'?"),
        ({"success": [{"op": "put", "key": "a", "valu": "b"}]}, "success[0].valu", "did you mean 'value'?"),
        ({"success": [{"op": "puts", "key": "a"}]}, "success[0].op", "did you mean 'put'?"),
        ({"success": [{"key": "a"}]}, "success[0]", "op"),
        ({"success": [{"op": "get"}]}, "success[0].key", "give key or key_b64"),
        ({"success": [{"op": "get", "key": "a", "key_b64": "YQ=="}]}, "success[0].key", "not both"),
        ({"success": [{"op": "get", "key_b64": "a"}]}, "success[0].key_b64", "Invalid base64"),
        ({"success": [{"op": "get", "key": ""}]}, "success[0].key", "1 to 400 bytes, this one 0"),
        ({"success": [{"op": "get", "key": "é" * 201}]}, "success[0].key", "1 to 400 bytes, this one 402"),
        ({"success": [{"op": "put", "key": "a"}]}, "success[0].value", "missing"),
        ({"success": [{"op": "put", "key": "a", "value": 7}]}, "success[0].value", "Expected"),
        ({"success": [{"op": "add", "key": "a", "delta": 2**63}]}, "success[0].delta", "64-bit"),
        ({"success": [{"op": "min", "key": "a", "value": -(2**63) - 1}]}, "success[0].value", "64-bit"),
        ({"success": [{"op": "max", "key": "a", "value": "1"}]}, "success[0].value", "Expected `int`"),
        ({"success": [{"op": "add", "key": "a", "delta": 1.5}]}, "success[0].delta", "Expected `int`"),
        ({"success": [{"op": "range", "prefix": "a", "limit": 0}]}, "success[0].limit", "from 1 to 1000"),
        ({"compare": [{"key": "a", "target": "value", "op": "~", "value": "b"}]}, "compare[0].op", "one of ==, "),
        ({"compare": [{"key": "a", "target": "mod", "op": "<", "value": "b"}]}, "compare[0].target", "one of val"),
        (
            {"compare": [{"key": "a", "target": "exists", "op": "==", "value": "b"}]},
            "compare[0].value",
            "true or false",
        ),
        ({"compare": [{"key": "a", "target": "exists", "op": "<", "value": True}]}, "compare[0].op", "== or !="),
        ({"compare": [{"key": "a", "target": "version", "op": "==", "value": "x"}]}, "compare[0].value", "a version"),
        ({"success": [{"op": "get", "key": "a"}] * 1025}, "transaction", "at most 1024"),
        ({"success": [{"op": "put", "value": ""}]}, "success[0].key", "missing"),
        ({"success": [{"op": "get", "key_b64": "Y!=="}]}, "success[0].key_b64", "Invalid base64"),
        ({"success": [{"op": "range", "prefix": "a", "prefix_b64": "YQ=="}]}, "success[0].prefix", "not both"),
        ({"success": [{"op": "range", "limit": 1001}]}, "success[0].limit", "from 1 to 1000"),
        ({"failure": [{"op": "txn", "success": [{"op": "puts"}]}]}, "failure[0].success[0].op", "did you mean 'put'?"),
        ({"failure": [{"op": "txn", "sucess": []}]}, "failure[0].sucess", "did you mean 'success'?"),
        ({"success": [{"op": "txn", "failure": [{"op": "get"}]}]}, "success[0].failure[0].key", "give key or key_b64"),
        ({"success": [{"op": "txn", "success": 7}]}, "success[0].success", "Expected"),
        (nested(9), "success[0]." * 9 + "op", "at most 8 deep"),
        (nested(450), "body", "at most 8 deep"),
        (nested(450, "puts"), "body", "at most 8 deep"),
        (b'{"success":[{"op":"txn","success":[' * 50_000, "body", "not JSON"),
    ],
)
def test_a_malformed_transaction_is_refused_by_name(body: Any, field: str, says: str) -> None:
    with pytest.raises(InvalidTransaction) as refused:
        validate(codec.parse_transaction(body if isinstance(body, bytes) else json.dumps(body).encode()))
    assert refused.value.field == field and says in refused.value.problem


@given(st.binary(max_size=200), _forms)
def test_no_answer_makes_the_parsers_fail_in_another_way(body: bytes, form: Form) -> None:
    to_none = partial(answers.parse_transaction_answer, transaction=Transaction())
    for parse in (answers.parse_page, answers.parse_write, to_none):
        with pytest.raises(MalformedAnswer):
            parse(body, form=form)
    assert problem.parse_problem(body) is None


@pytest.mark.parametrize(
    "result",
    [
        "", '{"value":5}', '{"value":"v"}', '{"value_b64":"?","version":"1-0"}', '{"value":"v","version":"x"}',
        '{"value":"v","value_b64":"dg==","version":"1-0"}',
    ],
)  # fmt: skip
def test_an_answer_that_does_not_fit_the_request_is_malformed(result: str) -> None:
    body = f'{{"succeeded":true,"version":"1-0","results":[{result}]}}'.encode()
    with pytest.raises(MalformedAnswer):
        answers.parse_transaction_answer(body, Transaction(success=(Get(b"k"),)))


@pytest.mark.parametrize(
    "entry", ['{"key":"k","version":"1-0"}', '{"value":"v","version":"1-0"}', '{"key":"k","value":""}']
)
def test_an_entry_has_key_value_and_version(entry: str) -> None:
    with pytest.raises(MalformedAnswer):
        answers.parse_page(f'{{"version":"1-0","entries":[{entry}]}}'.encode())
