"""The JSON of requests: transactions, as clients write them and the server reads them. Pure.

Keys and values are bytes. They stand in `key` and `value` where they are valid UTF-8, else, as base64 (RFC 4648, with
padding), in `key_b64` and `value_b64`; so in requests, so in answers.

A transaction is written by `transaction_body` and read by `parse_transaction`; answers are in `kvstore.api.answers`.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

import msgspec

from kvstore.api.model import (
    EVERYWHERE,
    INT64_MAX,
    INT64_MIN,
    LEASE_ID_BYTES,
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
    LeasedPut,
    Move,
    Operation,
    Operator,
    Put,
    Range,
    Revoke,
    Target,
    Transaction,
    each,
)
from kvstore.fields import find_unknown, nearest
from multicast.types import MessageId, Timestamp

# -- bytes ------------------------------------------------------------------------------------------------------------


def text_or_b64(name: str, data: bytes) -> dict[str, str]:
    """The member in which these bytes stand."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(data).decode()}


def bytes_of(name: str, text: str | None, b64: str | None, default: str | None = None) -> bytes:
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


def lease_of(text: str) -> MessageId:
    """The id of a lease; the inverse of `id_text`."""
    try:
        lease = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        lease = b""
    if len(lease) != LEASE_ID_BYTES:
        raise InvalidTransaction("lease", f"the id of a lease, as its grant told it, not {text[:60]!r}")
    return lease


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
    """lease: to which the key shall be attached."""

    value: str | None = None
    value_b64: str | None = None
    lease: str | None = None


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
    LeasedPut: "put", Cut: "cut", Revoke: "revoke",
}  # fmt: skip
_OPERATIONS = tuple([name for kind, name in _OPERATION_NAMES.items() if kind not in (LeasedPut, Cut, Revoke)])


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
    key = bytes_of("key", compare.key, compare.key_b64)
    value = compare.value
    operand: bytes | bool | Timestamp
    if compare.target == "exists":
        if type(value) is not bool or compare.value_b64 is not None:
            raise InvalidTransaction("value", "true or false")
        operand = value
    elif type(value) is bool:
        raise InvalidTransaction("value", f"a string, for target {compare.target!r}")
    elif compare.target in ("version", "create_version"):
        try:
            operand = Timestamp.parse(value or "")
        except ValueError:
            raise InvalidTransaction("value", "a version, as answers have it") from None
    else:
        operand = bytes_of("value", value, compare.value_b64)
    return Compare(key, compare.target, compare.op, operand)


def _operation(operation: OperationJson) -> Operation:
    if isinstance(operation, PutJson):  # nearly always, hence first
        key = bytes_of("key", operation.key, operation.key_b64)
        value = bytes_of("value", operation.value, operation.value_b64)
        return Put(key, value) if operation.lease is None else LeasedPut(key, value, lease_of(operation.lease))
    if isinstance(operation, RangeJson):
        prefix, start, end = _bounds(operation)
        after = bytes_of("after", operation.after, operation.after_b64, "")
        flags = operation.reverse, operation.keys_only, operation.count_only
        return Range(prefix, operation.limit, after, start, end, *flags)
    if isinstance(operation, DeleteRangeJson):
        return DeleteRange(*_bounds(operation))
    key = bytes_of("key", operation.key, operation.key_b64)
    if isinstance(operation, GetJson):
        return Get(key)
    if isinstance(operation, AddJson):
        if not INT64_MIN <= operation.delta <= INT64_MAX:
            raise InvalidTransaction("delta", "a signed 64-bit integer")
        return Add(key, operation.delta)
    if isinstance(operation, AppendJson):
        return Append(key, bytes_of("value", operation.value, operation.value_b64))
    return Delete(key)


def _bounds(operation: _Bounded) -> tuple[bytes, bytes, bytes]:
    prefix = bytes_of("prefix", operation.prefix, operation.prefix_b64, "")
    start = bytes_of("start", operation.start, operation.start_b64, "")
    return prefix, start, bytes_of("end", operation.end, operation.end_b64, "")


class LeaseJson(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/leases`: after so many milliseconds without a renewal, at the earliest, it expires."""

    ttl_ms: int


_decode_lease = msgspec.json.Decoder(LeaseJson).decode


def parse_ttl_ms(body: bytes) -> int:
    """The body of `POST /v1/leases`. InvalidTransaction names the field that is wrong."""
    try:
        return _decode_lease(body).ttl_ms
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text, _, place = str(error).partition(" - at `$")
        raise InvalidTransaction(place.strip("`").lstrip(".") or "body", text) from None


class MoveJson(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/moves`: slots, [first, last] rising, that go from shard `source` to shard `target`."""

    source: int
    target: int
    slots: tuple[tuple[int, int], ...]


_decode_move = msgspec.json.Decoder(MoveJson).decode


def parse_move(body: bytes) -> Transaction:
    """The step of a move in the body of `POST /v1/moves`. InvalidTransaction names the field that is wrong; limits are
    not checked."""
    try:
        move = _decode_move(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text, _, place = str(error).partition(" - at `$")
        raise InvalidTransaction(place.strip("`").lstrip(".") or "body", text) from None
    return Transaction(success=(Move(move.source, move.target, move.slots),))


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
    if isinstance(operation, (*EVERYWHERE, Revoke)):
        return body
    body |= text_or_b64("key", operation.key)
    if isinstance(operation, LeasedPut):
        body["lease"] = id_text(operation.lease)
    if isinstance(operation, (Put, LeasedPut, Append)):
        body |= text_or_b64("value", operation.value)
    elif isinstance(operation, Add):
        body["delta"] = operation.delta
    return body
