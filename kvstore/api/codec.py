"""The JSON of the HTTP interface: transactions, and what answers them; both ways, for server and clients. Pure.

Keys and values are bytes. They stand in `key` and `value` where they are valid UTF-8, else, as base64 (RFC 4648, with
padding), in `key_b64` and `value_b64`; so in requests, so in answers.

    request    `transaction_body` -> `parse_transaction`
    answer     to a transaction `transaction_answer` -> `parse_transaction_answer`, to a scan `page_answer` ->
               `parse_page` or, if it counts, `count_answer` -> `parse_count`, to a put or delete `put_answer`,
               `delete_answer` -> `parse_write`
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from kvstore.api.model import (
    EVERYWHERE,
    INT64_MAX,
    INT64_MIN,
    RANGES,
    SCAN_LIMIT_DEFAULT,
    Add,
    Append,
    Compare,
    Cut,
    Delete,
    DeleteRange,
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


def _bytes(name: str, text: str | None, b64: str | None, default: str | None = None) -> bytes:
    """What stands in `name` or `name_b64`, of which there is one; `default` if there is none."""
    if b64 is None:
        text = default if text is None else text
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


class _Bounded(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="op"):
    prefix: str | None = None
    prefix_b64: str | None = None
    start: str | None = None
    start_b64: str | None = None
    end: str | None = None
    end_b64: str | None = None


class RangeJson(_Bounded, tag="range"):
    limit: int = SCAN_LIMIT_DEFAULT
    after: str | None = None
    after_b64: str | None = None
    reverse: bool = False
    keys_only: bool = False
    count_only: bool = False


class DeleteRangeJson(_Bounded, tag="delete_range"):
    pass


OperationJson = GetJson | PutJson | DeleteJson | AddJson | AppendJson | RangeJson | DeleteRangeJson
_OPERATION_NAMES: dict[type[Operation], str] = {
    Get: "get", Put: "put", Delete: "delete", Add: "add", Append: "append", Range: "range", DeleteRange: "delete_range",
    Cut: "cut",
}  # fmt: skip
_OPERATIONS = tuple([name for kind, name in _OPERATION_NAMES.items() if kind is not Cut])


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
        prefix, start, end = _bounds(operation)
        after = _bytes("after", operation.after, operation.after_b64, "")
        flags = operation.reverse, operation.keys_only, operation.count_only
        return Range(prefix, operation.limit, after, start, end, *flags)
    if isinstance(operation, DeleteRangeJson):
        return DeleteRange(*_bounds(operation))
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


def _bounds(operation: _Bounded) -> tuple[bytes, bytes, bytes]:
    prefix = _bytes("prefix", operation.prefix, operation.prefix_b64, "")
    start = _bytes("start", operation.start, operation.start_b64, "")
    return prefix, start, _bytes("end", operation.end, operation.end_b64, "")


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


def operation_name(operation: Operation) -> str:
    """As `op` says it."""
    return _OPERATION_NAMES[type(operation)]


def _operation_json(operation: Operation) -> dict[str, Any]:
    body: dict[str, Any] = {"op": operation_name(operation)}
    if isinstance(operation, RANGES):
        for name in ("prefix", "start", "end", "after"):
            bound = getattr(operation, name, b"")
            body |= text_or_b64(name, bound) if bound else {}
        if isinstance(operation, Range):
            body["limit"] = operation.limit
            body |= {name: True for name in ("reverse", "keys_only", "count_only") if getattr(operation, name)}
    if isinstance(operation, EVERYWHERE):
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

    next_page_token: where the next page begins; None after the last. It is of the same version, unless the cluster
    keeps no history.
    """

    version: Timestamp
    entries: tuple[KeyValue, ...]
    next_page_token: str | None


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of the transaction of an id: the body that answers `GET /v1/txn/ID`.

    outcome: "applied", with the branch that ran and its version; or "not_applied", with the problem's code and detail.
    """

    id: str
    outcome: str
    succeeded: bool | None = None
    version: str = ""
    code: str = ""
    detail: str = ""


class EntryAnswer(msgspec.Struct):
    key: str | None = None
    key_b64: str | None = None
    value: str | None = None
    value_b64: str | None = None
    version: str = ""


class ResultAnswer(msgspec.Struct):
    """One operation's result; `value` is a string after a get and an integer after an add, `deleted` a number after a
    delete_range."""

    value: str | int | None = None
    value_b64: str | None = None
    version: str = ""
    deleted: bool | int = False
    length: int = 0
    entries: list[EntryAnswer] = []
    more: bool = False
    count: int = 0


class TransactionAnswer(msgspec.Struct):
    succeeded: bool
    version: str
    results: list[ResultAnswer]
    results_omitted: bool = False
    id: str = ""


class PageAnswer(msgspec.Struct):
    version: str
    entries: list[EntryAnswer]
    next_page_token: str | None = None


class CountAnswer(msgspec.Struct):
    version: str
    count: int
    more: bool


class WriteAnswer(msgspec.Struct):
    version: str
    deleted: bool | int = True
    id: str = ""


class CutAnswer(msgspec.Struct):
    version: str
    id: str


_decode_outcome = msgspec.json.Decoder(Outcome).decode
_decode_transaction_answer = msgspec.json.Decoder(TransactionAnswer).decode
_decode_page = msgspec.json.Decoder(PageAnswer).decode
_decode_count = msgspec.json.Decoder(CountAnswer).decode
_decode_write = msgspec.json.Decoder(WriteAnswer).decode


def put_answer(version: bytes, message_id: bytes) -> bytes:
    """The body that answers `PUT /v1/kv/KEY`."""
    return b'{"version":"%b","id":"%b"}' % (version, message_id)


def delete_answer(version: str, deleted: bool | int, message_id: str) -> bytes:
    """The body that answers `DELETE /v1/kv/KEY`, and `DELETE /v1/kv`. deleted: whether it was there; how many were."""
    return encode({"version": version, "deleted": deleted, "id": message_id})


def parse_write(body: bytes) -> tuple[Timestamp, bool | int]:
    """The answer to a put or delete: its version, and of a delete whether the key was there before, or how many were.
    MalformedAnswer."""
    try:
        answer = _decode_write(body)
        return Timestamp.parse(answer.version), answer.deleted
    except ValueError as error:
        raise MalformedAnswer(f"answer to a write: {error}") from error


def parse_outcome(body: bytes) -> Outcome:
    """What became of a transaction. MalformedAnswer."""
    try:
        return _decode_outcome(body)
    except ValueError as error:
        raise MalformedAnswer(f"answer to a question for an outcome: {error}") from error


def parse_etag(etag: str | None) -> Timestamp:
    """The version in an ETag header. MalformedAnswer."""
    try:
        return Timestamp.parse((etag or "").strip('"'))
    except ValueError as error:
        raise MalformedAnswer(f"ETag: {error}") from error


def entry_json(found: KeyValue, keys_only: bool = False) -> dict[str, Any]:
    """A key with its value and version."""
    value = {} if keys_only else text_or_b64("value", found.value)
    return {**text_or_b64("key", found.key), **value, "version": str(found.version)}


def _entries(answers: list[EntryAnswer], keys_only: bool) -> tuple[KeyValue, ...]:
    default = "" if keys_only else None
    return tuple(
        [
            KeyValue(
                _bytes("key", answer.key, answer.key_b64),
                _bytes("value", answer.value, answer.value_b64, default),
                Timestamp.parse(answer.version),
            )
            for answer in answers
        ]
    )


def page_answer(page: Page, keys_only: bool = False) -> bytes:
    """The body that answers `GET /v1/kv`."""
    entries = [entry_json(found, keys_only) for found in page.entries]
    return encode({"version": str(page.version), "entries": entries, "next_page_token": page.next_page_token})


def parse_page(body: bytes, keys_only: bool = False) -> Page:
    """The answer to a scan. MalformedAnswer."""
    try:
        answer = _decode_page(body)
        entries = _entries(answer.entries, keys_only)
        return Page(Timestamp.parse(answer.version), entries, answer.next_page_token)
    except ValueError as error:
        raise MalformedAnswer(f"answer to a scan: {error}") from error


def count_answer(version: Timestamp, count: int, more: bool) -> bytes:
    """The body that answers `GET /v1/kv?count_only=true`. more: there are more than were counted."""
    return encode({"version": str(version), "count": count, "more": more})


def parse_count(body: bytes) -> tuple[int, bool]:
    """How many there are, and whether there are more. MalformedAnswer."""
    try:
        answer = _decode_count(body)
    except ValueError as error:
        raise MalformedAnswer(f"answer to a count: {error}") from error
    return answer.count, answer.more


def result_json(operation: Operation, result: OperationResult, version: str) -> dict[str, Any]:
    """The result of one operation, as it stands in `results`. version: the transaction's."""
    if isinstance(operation, Get):
        if result.found is None:
            return {**text_or_b64("key", operation.key), "value": None}
        return entry_json(result.found)
    if isinstance(operation, Range):
        if operation.count_only:
            return {"count": result.value, "more": result.more}
        return {"entries": [entry_json(f, operation.keys_only) for f in result.entries], "more": result.more}
    written: dict[str, Any] = {}
    if isinstance(operation, Delete):
        written["deleted"] = result.deleted
    elif isinstance(operation, Add):
        written["value"] = result.value
    elif isinstance(operation, Append):
        written["length"] = result.length
    elif isinstance(operation, DeleteRange):
        written["deleted"] = result.value
    return written | {"version": version}


def _result(operation: Operation, answer: ResultAnswer) -> OperationResult:
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
        entries = _entries(answer.entries, operation.keys_only)
        return OperationResult(entries=entries, more=answer.more, value=answer.count)
    if isinstance(operation, DeleteRange):
        return OperationResult(value=int(answer.deleted))
    return OperationResult(deleted=bool(answer.deleted), length=answer.length)


def transaction_answer(transaction: Transaction, result: Result, omitted: bool, message_id: str) -> bytes:
    """The body that answers `POST /v1/txn`. omitted: the results of the operations are no longer known. message_id:
    empty for a read that has none."""
    branch: Sequence[Operation] = transaction.success if result.succeeded else transaction.failure
    version = str(result.version)
    answer: dict[str, Any] = {"succeeded": result.succeeded, "version": version}
    if message_id:
        answer["id"] = message_id
    if omitted:
        answer["results_omitted"] = True
    results = () if omitted else zip(branch, result.results, strict=True)
    answer["results"] = [result_json(o, r, version) for o, r in results]
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
