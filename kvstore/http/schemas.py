"""The JSON of `POST /v1/txn` and of answers, to and from the transaction model.

Keys and values are bytes: `key` and `value` where they are valid UTF-8, else `key_b64` and `value_b64`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from kvstore.api.model import (
    INT64_MAX,
    INT64_MIN,
    Add,
    Append,
    Compare,
    Delete,
    Found,
    Get,
    Operation,
    OperationResult,
    Put,
    Range,
    Transaction,
)
from kvstore.core.messages import Answered
from kvstore.fields import find_unknown, nearest
from kvstore.http.errors import Problem, invalid
from kvstore.http.request import SCAN_LIMIT_DEFAULT
from multicast.types import Timestamp


class _Keyed(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="op"):
    key: str | None = None
    key_b64: str | None = None


class CompareJson(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    target: Literal["value", "version", "exists"]
    op: Literal["==", "!=", "<", ">"]
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


_decode = msgspec.json.Decoder(TransactionJson).decode
encode = msgspec.json.Encoder().encode


def parse_transaction(body: bytes) -> Transaction:
    """The transaction in a request body. `Problem` 400 names the field that is wrong. Limits are not checked here."""
    try:
        parsed = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _explained(body, error) from None
    return Transaction(
        tuple([_compare(f"compare[{i}]", c) for i, c in enumerate(parsed.compare)]),
        tuple([_operation(f"success[{i}]", o) for i, o in enumerate(parsed.success)]),
        tuple([_operation(f"failure[{i}]", o) for i, o in enumerate(parsed.failure)]),
    )


def _explained(body: bytes, error: Exception) -> Problem:
    """Why this body is no transaction, as helpfully as can be."""
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as malformed:
        return invalid("body", f"not JSON: {malformed}")
    if not isinstance(raw, dict):
        return invalid("body", "a JSON object is needed")
    unknown = find_unknown(raw, TransactionJson)
    if unknown:
        return invalid(unknown.path, str(unknown).removeprefix(f"{unknown.path}: "))
    for branch in ("success", "failure"):
        operations = raw.get(branch)
        for i, operation in enumerate(operations if isinstance(operations, list) else ()):
            op = operation.get("op") if isinstance(operation, dict) else None
            if isinstance(op, str) and op not in _OPERATIONS:
                near = nearest(op, _OPERATIONS)
                hint = f"did you mean {near!r}?" if near else f"one of {', '.join(_OPERATIONS)}"
                return invalid(f"{branch}[{i}].op", f"unknown operation {op[:40]!r}; {hint}")
    text, _, place = str(error).partition(" - at `$")
    return invalid(place.strip("`").lstrip(".") or "body", text)


def _bytes(field: str, name: str, text: str | None, b64: str | None) -> bytes:
    """Exactly one of `name` and `name_b64`."""
    if b64 is None:
        if text is None:
            raise invalid(f"{field}.{name}", f"missing; give {name} or {name}_b64")
        return text.encode()
    if text is not None:
        raise invalid(f"{field}.{name}", f"give {name} or {name}_b64, not both")
    try:
        return base64.b64decode(b64, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"{field}.{name}_b64", "not base64 (RFC 4648, with padding)") from None


def _compare(field: str, compare: CompareJson) -> Compare:
    key = _bytes(field, "key", compare.key, compare.key_b64)
    value = compare.value
    operand: bytes | bool | Timestamp
    if compare.target == "exists":
        if type(value) is not bool or compare.value_b64 is not None:
            raise invalid(f"{field}.value", "true or false")
        operand = value
    elif type(value) is bool:
        raise invalid(f"{field}.value", f"a string, for target {compare.target!r}")
    elif compare.target == "version":
        try:
            operand = Timestamp.parse(value or "")
        except ValueError:
            raise invalid(f"{field}.value", "a version, as answers have it") from None
    else:
        operand = _bytes(field, "value", value, compare.value_b64)
    return Compare(key, compare.target, compare.op, operand)


def _operation(field: str, operation: OperationJson) -> Operation:
    if isinstance(operation, RangeJson):
        prefix, after = b"", b""
        if operation.prefix is not None or operation.prefix_b64 is not None:
            prefix = _bytes(field, "prefix", operation.prefix, operation.prefix_b64)
        if operation.after is not None or operation.after_b64 is not None:
            after = _bytes(field, "after", operation.after, operation.after_b64)
        return Range(prefix, operation.limit, after)
    key = _bytes(field, "key", operation.key, operation.key_b64)
    if isinstance(operation, GetJson):
        return Get(key)
    if isinstance(operation, PutJson):
        return Put(key, _bytes(field, "value", operation.value, operation.value_b64))
    if isinstance(operation, AddJson):
        if not INT64_MIN <= operation.delta <= INT64_MAX:
            raise invalid(f"{field}.delta", "a signed 64-bit integer")
        return Add(key, operation.delta)
    if isinstance(operation, AppendJson):
        return Append(key, _bytes(field, "value", operation.value, operation.value_b64))
    return Delete(key)


def text_or_b64(name: str, data: bytes) -> tuple[str, str]:
    """(member name, string) under which these bytes stand in JSON."""
    try:
        return name, data.decode()
    except UnicodeDecodeError:
        return f"{name}_b64", base64.b64encode(data).decode()


def entry_json(found: Found) -> dict[str, Any]:
    """A key with its value and version."""
    return dict([text_or_b64("key", found.key), text_or_b64("value", found.value), ("version", str(found.version))])


def transaction_answer(transaction: Transaction, answered: Answered, message_id: str) -> bytes:
    """The body that answers `POST /v1/txn`."""
    result = answered.result
    branch: Sequence[Operation] = transaction.success if result.succeeded else transaction.failure
    answer: dict[str, Any] = {"succeeded": result.succeeded, "version": str(result.version), "id": message_id}
    if answered.results_omitted:
        answer["results_omitted"] = True
        answer["results"] = []
    else:
        answer["results"] = [result_json(o, r) for o, r in zip(branch, result.results, strict=True)]
    return encode(answer)


def result_json(operation: Operation, result: OperationResult) -> dict[str, Any]:
    """The result of one operation, as it stands in `results`."""
    if isinstance(operation, Get):
        if result.found is None:
            return dict([text_or_b64("key", operation.key), ("value", None)])
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
