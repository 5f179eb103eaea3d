"""The JSON of the HTTP interface: transactions, and what answers them; both ways, for server and clients. Pure.

Keys and values are bytes. They stand in `key` and `value` where they are valid UTF-8, else, as base64 (RFC 4648, with
padding), in `key_b64` and `value_b64`; so in requests, so in answers.

    request    `transaction_body` -> `parse_transaction`
    answer     to a transaction `transaction_answer` -> `parse_transaction_answer`, to a scan `page_answer` ->
               `parse_page`, to a put or delete `put_answer`, `delete_answer` -> `parse_write`
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from kvstore.api.model import (
    INT64_MAX,
    INT64_MIN,
    SCAN_LIMIT_DEFAULT,
    Add,
    Append,
    Compare,
    Cut,
    Delete,
    Get,
    InvalidTransaction,
    KeyValue,
    Operation,
    OperationResult,
    Operator,
    Put,
    Range,
    Result,
    Target,
    Transaction,
    each,
)
from kvstore.fields import find_unknown, nearest
from multicast.types import MessageId, Timestamp


class MalformedAnswer(ValueError):
    """Not what a replica answers: it cannot be taken as success, nor as failure."""


# -- bytes ------------------------------------------------------------------------------------------------------------


def text_or_b64(name: str, data: bytes) -> dict[str, str]:
    """The member in which these bytes stand."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(data).decode()}


def _bytes(name: str, text: str | None, b64: str | None) -> bytes:
    """What stands in `name` or `name_b64`, of which there is one."""
    if b64 is None:
        if text is None:
            raise InvalidTransaction(name, f"missing; give {name} or {name}_b64")
        return text.encode()
    if text is not None:
        raise InvalidTransaction(name, f"give {name} or {name}_b64, not both")
    try:
        return base64.b64decode(b64, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidTransaction(f"{name}_b64", "not base64 (RFC 4648, with padding)") from None


def id_text(message_id: MessageId) -> str:
    """The canonical text of a UUID."""
    text = message_id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


# -- requests ---------------------------------------------------------------------------------------------------------


class _Keyed(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="op"):
    key: str | None = None
    key_b64: str | None = None


class CompareJson(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    target: Target
    op: Operator
    key: str | None = None
    key_b64: str | None = None
    value: str | bool | None = None
    value_b64: str | None = None


class GetJson(_Keyed, tag="get"):
    pass


class PutJson(_Keyed, tag="put"):
    value: str | None = None
    value_b64: str | None = None


class DeleteJson(_Keyed, tag="delete"):
    pass


class AddJson(_Keyed, tag="add"):
    delta: int


class AppendJson(_Keyed, tag="append"):
    value: str | None = None
    value_b64: str | None = None


class RangeJson(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="op", tag="range"):
    prefix: str | None = None
    prefix_b64: str | None = None
    limit: int = SCAN_LIMIT_DEFAULT
    after: str | None = None
    after_b64: str | None = None


OperationJson = GetJson | PutJson | DeleteJson | AddJson | AppendJson | RangeJson
_OPERATIONS = ("get", "put", "delete", "add", "append", "range")


class TransactionJson(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    compare: list[CompareJson] = []
    success: list[OperationJson] = []
    failure: list[OperationJson] = []


_decode_transaction = msgspec.json.Decoder(TransactionJson).decode
encode = msgspec.json.Encoder().encode


def parse_transaction(body: bytes) -> Transaction:
    """The transaction in a request body. InvalidTransaction names the field that is wrong; limits are not checked."""
    try:
        parsed = _decode_transaction(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _explained(body, error) from None
    return Transaction(
        each("compare", _compare, parsed.compare),
        each("success", _operation, parsed.success),
        each("failure", _operation, parsed.failure),
    )


def _explained(body: bytes, error: Exception) -> InvalidTransaction:
    """Why this body is no transaction, as helpfully as can be."""
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as malformed:
        return InvalidTransaction("body", f"not JSON: {malformed}")
    if not isinstance(raw, dict):
        return InvalidTransaction("body", "a JSON object is needed")
    unknown = find_unknown(raw, TransactionJson)
    if unknown:
        return InvalidTransaction(unknown.path, str(unknown).removeprefix(f"{unknown.path}: "))
    for branch in ("success", "failure"):
        operations = raw.get(branch)
        for i, operation in enumerate(operations if isinstance(operations, list) else ()):
            op = operation.get("op") if isinstance(operation, dict) else None
            if isinstance(op, str) and op not in _OPERATIONS:
                near = nearest(op, _OPERATIONS)
                hint = f"did you mean {near!r}?" if near else f"one of {', '.join(_OPERATIONS)}"
                return InvalidTransaction(f"{branch}[{i}].op", f"unknown operation {op[:40]!r}; {hint}")
    text, _, place = str(error).partition(" - at `$")
    return InvalidTransaction(place.strip("`").lstrip(".") or "body", text)


def _compare(compare: CompareJson) -> Compare:
    key = _bytes("key", compare.key, compare.key_b64)
    value = compare.value
    operand: bytes | bool | Timestamp
    if compare.target == "exists":
        if type(value) is not bool or compare.value_b64 is not None:
            raise InvalidTransaction("value", "true or false")
        operand = value
    elif type(value) is bool:
        raise InvalidTransaction("value", f"a string, for target {compare.target!r}")
    elif compare.target == "version":
        try:
            operand = Timestamp.parse(value or "")
        except ValueError:
            raise InvalidTransaction("value", "a version, as answers have it") from None
    else:
        operand = _bytes("value", value, compare.value_b64)
    return Compare(key, compare.target, compare.op, operand)


def _operation(operation: OperationJson) -> Operation:
    if isinstance(operation, RangeJson):
        prefix, after = b"", b""
        if operation.prefix is not None or operation.prefix_b64 is not None:
            prefix = _bytes("prefix", operation.prefix, operation.prefix_b64)
        if operation.after is not None or operation.after_b64 is not None:
            after = _bytes("after", operation.after, operation.after_b64)
        return Range(prefix, operation.limit, after)
    key = _bytes("key", operation.key, operation.key_b64)
    if isinstance(operation, GetJson):
        return Get(key)
    if isinstance(operation, PutJson):
        return Put(key, _bytes("value", operation.value, operation.value_b64))
    if isinstance(operation, AddJson):
        if not INT64_MIN <= operation.delta <= INT64_MAX:
            raise InvalidTransaction("delta", "a signed 64-bit integer")
        return Add(key, operation.delta)
    if isinstance(operation, AppendJson):
        return Append(key, _bytes("value", operation.value, operation.value_b64))
    return Delete(key)


def transaction_body(transaction: Transaction) -> bytes:
    """The body of `POST /v1/txn`."""
    return encode(
        {
            "compare": [_compare_json(c) for c in transaction.compare],
            "success": [_operation_json(o) for o in transaction.success],
            "failure": [_operation_json(o) for o in transaction.failure],
        }
    )


def _compare_json(compare: Compare) -> dict[str, Any]:
    body: dict[str, Any] = {**text_or_b64("key", compare.key), "target": compare.target, "op": compare.op}
    operand = compare.operand
    if isinstance(operand, bytes):
        return body | text_or_b64("value", operand)
    return body | {"value": str(operand) if isinstance(operand, Timestamp) else operand}


def _operation_json(operation: Operation) -> dict[str, Any]:
    body: dict[str, Any] = {"op": type(operation).__name__.lower()}
    if isinstance(operation, Range):
        body |= {**text_or_b64("prefix", operation.prefix), "limit": operation.limit}
        return body | text_or_b64("after", operation.after) if operation.after else body
    if isinstance(operation, Cut):
        return body
    body |= text_or_b64("key", operation.key)
    if isinstance(operation, (Put, Append)):
        body |= text_or_b64("value", operation.value)
    elif isinstance(operation, Add):
        body["delta"] = operation.delta
    return body


def cut_answer(version: str, message_id: str) -> bytes:
    """The body that answers `POST /v1/backups`: under `version` the rows of every shard can be fetched."""
    return encode({"version": version, "id": message_id})


# -- answers ----------------------------------------------------------------------------------------------------------


class Page(msgspec.Struct, frozen=True):
    """Some entries of a scan, in key order: all as they were at one point of the order, `version`.

    next_page_token: where the next page begins; None after the last. Pages are different points of the order.
    """

    version: Timestamp
    entries: tuple[KeyValue, ...]
    next_page_token: str | None


class _EntryAnswer(msgspec.Struct):
    key: str | None = None
    key_b64: str | None = None
    value: str | None = None
    value_b64: str | None = None
    version: str = ""


class _ResultAnswer(msgspec.Struct):
    """One operation's result; `value` is a string after a get and an integer after an add."""

    value: str | int | None = None
    value_b64: str | None = None
    version: str = ""
    deleted: bool = False
    length: int = 0
    entries: list[_EntryAnswer] = []
    more: bool = False


class _TransactionAnswer(msgspec.Struct):
    succeeded: bool
    version: str
    results: list[_ResultAnswer]
    results_omitted: bool = False


class _PageAnswer(msgspec.Struct):
    version: str
    entries: list[_EntryAnswer]
    next_page_token: str | None = None


class _WriteAnswer(msgspec.Struct):
    version: str
    deleted: bool = True


_decode_transaction_answer = msgspec.json.Decoder(_TransactionAnswer).decode
_decode_page = msgspec.json.Decoder(_PageAnswer).decode
_decode_write = msgspec.json.Decoder(_WriteAnswer).decode


def put_answer(version: bytes, message_id: bytes) -> bytes:
    """The body that answers `PUT /v1/kv/KEY`."""
    return b'{"version":"%b","id":"%b"}' % (version, message_id)


def delete_answer(version: str, deleted: bool, message_id: str) -> bytes:
    """The body that answers `DELETE /v1/kv/KEY`."""
    return encode({"version": version, "deleted": deleted, "id": message_id})


def parse_write(body: bytes) -> tuple[Timestamp, bool]:
    """The answer to a put or delete: its version, and whether the key was there before a delete. MalformedAnswer."""
    try:
        answer = _decode_write(body)
        return Timestamp.parse(answer.version), answer.deleted
    except ValueError as error:
        raise MalformedAnswer(f"answer to a write: {error}") from error


def parse_etag(etag: str | None) -> Timestamp:
    """The version in an ETag header. MalformedAnswer."""
    try:
        return Timestamp.parse((etag or "").strip('"'))
    except ValueError as error:
        raise MalformedAnswer(f"ETag: {error}") from error


def entry_json(found: KeyValue) -> dict[str, Any]:
    """A key with its value and version."""
    return {**text_or_b64("key", found.key), **text_or_b64("value", found.value), "version": str(found.version)}


def _entry(answer: _EntryAnswer) -> KeyValue:
    key = _bytes("key", answer.key, answer.key_b64)
    return KeyValue(key, _bytes("value", answer.value, answer.value_b64), Timestamp.parse(answer.version))


def page_answer(page: Page) -> bytes:
    """The body that answers `GET /v1/kv`."""
    entries = [entry_json(found) for found in page.entries]
    return encode({"version": str(page.version), "entries": entries, "next_page_token": page.next_page_token})


def parse_page(body: bytes) -> Page:
    """The answer to a scan. MalformedAnswer."""
    try:
        answer = _decode_page(body)
        return Page(Timestamp.parse(answer.version), tuple(map(_entry, answer.entries)), answer.next_page_token)
    except ValueError as error:
        raise MalformedAnswer(f"answer to a scan: {error}") from error


def result_json(operation: Operation, result: OperationResult) -> dict[str, Any]:
    """The result of one operation, as it stands in `results`."""
    if isinstance(operation, Get):
        if result.found is None:
            return {**text_or_b64("key", operation.key), "value": None}
        return entry_json(result.found)
    if isinstance(operation, Delete):
        return {"deleted": result.deleted}
    if isinstance(operation, Add):
        return {"value": result.value}
    if isinstance(operation, Append):
        return {"length": result.length}
    if isinstance(operation, Range):
        return {"entries": [entry_json(f) for f in result.entries], "more": result.more}
    return {}


def _result(operation: Operation, answer: _ResultAnswer) -> OperationResult:
    if isinstance(operation, Get):
        if isinstance(answer.value, int):
            raise MalformedAnswer("a get answered with an integer")
        if answer.value is None and answer.value_b64 is None:
            return OperationResult()
        value = _bytes("value", answer.value, answer.value_b64)
        return OperationResult(found=KeyValue(operation.key, value, Timestamp.parse(answer.version)))
    if isinstance(operation, Add):
        if not isinstance(answer.value, int):
            raise MalformedAnswer("an add without its new value")
        return OperationResult(value=answer.value)
    if isinstance(operation, Range):
        return OperationResult(entries=tuple(map(_entry, answer.entries)), more=answer.more)
    return OperationResult(deleted=answer.deleted, length=answer.length)


def transaction_answer(transaction: Transaction, result: Result, omitted: bool, message_id: str) -> bytes:
    """The body that answers `POST /v1/txn`. omitted: the results of the operations are no longer known. message_id:
    empty for a read that has none."""
    branch: Sequence[Operation] = transaction.success if result.succeeded else transaction.failure
    answer: dict[str, Any] = {"succeeded": result.succeeded, "version": str(result.version)}
    if message_id:
        answer["id"] = message_id
    if omitted:
        answer["results_omitted"] = True
    answer["results"] = [] if omitted else [result_json(o, r) for o, r in zip(branch, result.results, strict=True)]
    return encode(answer)


def parse_transaction_answer(body: bytes, transaction: Transaction) -> tuple[Result, bool]:
    """What answers `transaction`, and whether the results of its operations are left out. MalformedAnswer."""
    try:
        answer = _decode_transaction_answer(body)
        version = Timestamp.parse(answer.version)
        if answer.results_omitted:
            return Result(answer.succeeded, version), True
        branch = transaction.success if answer.succeeded else transaction.failure
        if len(branch) != len(answer.results):
            raise MalformedAnswer(f"{len(branch)} operations, {len(answer.results)} results")
        results = tuple(_result(o, r) for o, r in zip(branch, answer.results, strict=True))
        return Result(answer.succeeded, version, results), False
    except ValueError as error:
        raise MalformedAnswer(f"answer to a transaction: {error}") from error
