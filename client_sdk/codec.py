"""Transactions and answers as the JSON of the HTTP interface. Pure.

Keys and values are bytes. In JSON they are `key` and `value` where they are valid UTF-8, and `key_b64` and `value_b64`
(RFC 4648 base64) otherwise; so in requests, so in answers.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from client_sdk.errors import ResultsForgotten
from kvstore.api.model import (
    Add,
    Append,
    Compare,
    Found,
    Get,
    Operation,
    OperationResult,
    Put,
    Range,
    Result,
    Transaction,
)
from multicast.types import Timestamp


class MalformedAnswer(ValueError):
    """Not what a replica answers: it cannot be taken as success, nor as failure."""


class _Entry(msgspec.Struct):
    key: str | None = None
    key_b64: str | None = None
    value: str | None = None
    value_b64: str | None = None
    version: str | None = None


class _ResultJson(msgspec.Struct):
    """One operation's result; `value` is a string after a get and an integer after an add."""

    key: str | None = None
    key_b64: str | None = None
    value: str | int | None = None
    value_b64: str | None = None
    version: str | None = None
    deleted: bool = False
    length: int = 0
    entries: list[_Entry] = []
    more: bool = False


class _TransactionAnswer(msgspec.Struct):
    succeeded: bool
    version: str
    results: list[_ResultJson]
    results_omitted: bool = False


class _PageAnswer(msgspec.Struct):
    version: str
    entries: list[_Entry]
    next_page_token: str | None = None


class _WriteAnswer(msgspec.Struct):
    version: str
    deleted: bool = True


class Problem(msgspec.Struct):
    """RFC 9457, with the server's own members."""

    title: str = ""
    status: int = 0
    detail: str = ""
    code: str = ""
    retryable: bool = False
    outcome: str = "unknown"
    field: str = ""


class Page(msgspec.Struct, frozen=True):
    """Some entries of a scan, in key order: all as they were at one point of the order, `version`.

    next_page_token: where the next page begins; None after the last. Pages are different points of the order.
    """

    version: Timestamp
    entries: tuple[Found, ...]
    next_page_token: str | None


_transaction_answer = msgspec.json.Decoder(_TransactionAnswer).decode
_page_answer = msgspec.json.Decoder(_PageAnswer).decode
_write_answer = msgspec.json.Decoder(_WriteAnswer).decode
_problem = msgspec.json.Decoder(Problem).decode
_encode = msgspec.json.Encoder().encode


def _text(name: str, data: bytes) -> dict[str, Any]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(data).decode()}


def _bytes(text: str | None, b64: str | None) -> bytes | None:
    if b64 is not None:
        return base64.b64decode(b64, validate=True)
    return None if text is None else text.encode()


def _compare_json(compare: Compare) -> dict[str, Any]:
    body = {**_text("key", compare.key), "target": compare.target, "op": compare.op}
    operand = compare.operand
    if isinstance(operand, bytes):
        return body | _text("value", operand)
    return body | {"value": str(operand) if isinstance(operand, Timestamp) else operand}


def _operation_json(operation: Operation) -> dict[str, Any]:
    kind = type(operation)
    if isinstance(operation, Range):
        body = {"op": "range", **_text("prefix", operation.prefix), "limit": operation.limit}
        return body | _text("after", operation.after) if operation.after else body
    body = {"op": kind.__name__.lower(), **_text("key", operation.key)}
    if isinstance(operation, Put | Append):
        body |= _text("value", operation.value)
    elif isinstance(operation, Add):
        body["delta"] = operation.delta
    return body


def transaction_body(transaction: Transaction) -> bytes:
    """The body of `POST /v1/txn`."""
    return _encode(
        {
            "compare": [_compare_json(c) for c in transaction.compare],
            "success": [_operation_json(o) for o in transaction.success],
            "failure": [_operation_json(o) for o in transaction.failure],
        }
    )


def _found(entry: _Entry) -> Found:
    key = _bytes(entry.key, entry.key_b64)
    value = _bytes(entry.value, entry.value_b64)
    if key is None or value is None or entry.version is None:
        raise MalformedAnswer("an entry without key, value or version")
    return Found(key, value, Timestamp.parse(entry.version))


def _result(operation: Operation, answer: _ResultJson) -> OperationResult:
    if isinstance(operation, Get):
        if isinstance(answer.value, int):
            raise MalformedAnswer("a get answered with an integer")
        value = _bytes(answer.value, answer.value_b64)
        if value is None:
            return OperationResult()
        if answer.version is None:
            raise MalformedAnswer("a get without a version")
        return OperationResult(found=Found(operation.key, value, Timestamp.parse(answer.version)))
    if isinstance(operation, Add):
        if not isinstance(answer.value, int):
            raise MalformedAnswer("an add without its new value")
        return OperationResult(value=answer.value)
    if isinstance(operation, Range):
        return OperationResult(entries=tuple(map(_found, answer.entries)), more=answer.more)
    return OperationResult(deleted=answer.deleted, length=answer.length)


def parse_transaction(body: bytes, transaction: Transaction) -> Result:
    """The answer to `transaction`. MalformedAnswer if it is not one; ResultsForgotten if it says so."""
    try:
        answer = _transaction_answer(body)
        if answer.results_omitted:
            raise ResultsForgotten(answer.succeeded, Timestamp.parse(answer.version))
        branch = transaction.success if answer.succeeded else transaction.failure
        if len(branch) != len(answer.results):
            raise MalformedAnswer(f"{len(branch)} operations, {len(answer.results)} results")
        results = tuple(_result(o, r) for o, r in zip(branch, answer.results, strict=True))
        return Result(answer.succeeded, Timestamp.parse(answer.version), results)
    except ValueError as error:
        raise MalformedAnswer(f"answer to a transaction: {error}") from error


def parse_page(body: bytes) -> Page:
    """The answer to a scan. MalformedAnswer if it is not one."""
    try:
        answer = _page_answer(body)
        return Page(Timestamp.parse(answer.version), tuple(map(_found, answer.entries)), answer.next_page_token)
    except ValueError as error:
        raise MalformedAnswer(f"answer to a scan: {error}") from error


def parse_write(body: bytes) -> tuple[Timestamp, bool]:
    """The answer to a put or delete: its version, and whether the key was there before a delete."""
    try:
        answer = _write_answer(body)
        return Timestamp.parse(answer.version), answer.deleted
    except ValueError as error:
        raise MalformedAnswer(f"answer to a write: {error}") from error


def parse_etag(etag: str | None) -> Timestamp:
    """The version in an ETag header."""
    try:
        return Timestamp.parse((etag or "").strip('"'))
    except ValueError as error:
        raise MalformedAnswer(f"ETag: {error}") from error


def parse_problem(body: bytes) -> Problem | None:
    """The problem of an error answer; None if it is none, e.g. a proxy's page."""
    try:
        problem = _problem(body)
    except ValueError:
        return None
    return problem if problem.code else None
