"""The bodies of requests: transactions, as clients write them and the server reads them, in either form. Pure.

A transaction is written by `transaction_body` and read by `parse_transaction`; answers are in `kvstore.api.answers`.
"""

from __future__ import annotations

from typing import Annotated, Any, get_args

import msgspec

from kvstore.api import forms
from kvstore.api.forms import JSON, Form, Member
from kvstore.api.leases import TTL_MS_MAX, TTL_MS_MIN
from kvstore.api.model import (
    EVERYWHERE,
    INT64_MAX,
    INT64_MIN,
    LEASE_ID_BYTES,
    NESTING_MAX,
    OPERATIONS_MAX,
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
    Max,
    Min,
    Move,
    NoneNewer,
    Operation,
    Operator,
    Put,
    Range,
    Revoke,
    Target,
    Transaction,
    Txn,
    each,
)
from kvstore.fields import find_unknown, nearest
from multicast.types import MessageId, Timestamp

# -- bytes ------------------------------------------------------------------------------------------------------------


def bytes_of(name: str, text: str | None, data: bytes | None, default: bytes | None = None) -> bytes:
    """What stands in `name` or `name_b64`, of which there is one; `default` if there is none."""
    try:
        found = forms.bytes_of(name, text, data)
    except ValueError as error:
        raise InvalidTransaction(name, str(error)) from None
    found = default if found is None else found
    if found is None:
        raise InvalidTransaction(name, f"missing; give {name} or {name}_b64")
    return found


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
    key_b64: bytes | None = None


class CompareJson(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    target: Target
    op: Operator
    key: str | None = None
    key_b64: bytes | None = None
    value: str | bool | None = None
    value_b64: bytes | None = None


class GetJson(_Keyed, tag="get"):
    pass


class PutJson(_Keyed, tag="put"):
    """lease: to which the key shall be attached."""

    value: str | None = None
    value_b64: bytes | None = None
    lease: str | None = None


class DeleteJson(_Keyed, tag="delete"):
    pass


class AddJson(_Keyed, tag="add"):
    delta: int


class MinJson(_Keyed, tag="min"):
    value: int


class MaxJson(_Keyed, tag="max"):
    value: int


class AppendJson(_Keyed, tag="append"):
    value: str | None = None
    value_b64: bytes | None = None


class _Bounded(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="op"):
    prefix: str | None = None
    prefix_b64: bytes | None = None
    start: str | None = None
    start_b64: bytes | None = None
    end: str | None = None
    end_b64: bytes | None = None


class RangeJson(_Bounded, tag="range"):
    limit: int = SCAN_LIMIT_DEFAULT
    after: str | None = None
    after_b64: bytes | None = None
    reverse: bool = False
    keys_only: bool = False
    count_only: bool = False


class DeleteRangeJson(_Bounded, tag="delete_range"):
    pass


class NoneNewerJson(_Bounded, tag="none_newer"):
    """version: after which no key of the range may have been written."""

    version: str


class TxnJson(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="op", tag="txn"):
    """A nested transaction: in its place one of its branches runs. It compares what was there before the whole one."""

    compare: list[CompareJson] = []
    success: list[OperationJson] = []
    failure: list[OperationJson] = []


OperationJson = (
    GetJson | PutJson | DeleteJson | AddJson | MinJson | MaxJson | AppendJson | RangeJson | DeleteRangeJson
    | NoneNewerJson | TxnJson
)  # fmt: skip
_OPERATION_NAMES: dict[type[Operation], str] = {
    Get: "get", Put: "put", Delete: "delete", Add: "add", Min: "min", Max: "max", Append: "append",
    Range: "range", DeleteRange: "delete_range",
    LeasedPut: "put", Cut: "cut", Revoke: "revoke", NoneNewer: "none_newer", Txn: "txn",
}  # fmt: skip
_OPERATIONS = tuple([name for kind, name in _OPERATION_NAMES.items() if kind not in (LeasedPut, Cut, Revoke)])


class TransactionJson(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    compare: list[CompareJson] = []
    success: list[OperationJson] = []
    failure: list[OperationJson] = []


encode = JSON.encode
EXPLAINED_BYTES_MAX = 16 * 1024
"""Of a body that is wrong and larger msgspec alone says what is."""
Malformed = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding a body raises, whatever somebody sent."""


def parse_transaction(body: bytes, form: Form = JSON) -> Transaction:
    """The transaction in a request body. InvalidTransaction names the field that is wrong; limits are not checked."""
    try:
        return _parsed(body, form)
    except RecursionError:
        raise InvalidTransaction("body", f"transactions nest at most {NESTING_MAX} deep") from None


def _parsed(body: bytes, form: Form) -> Transaction:
    try:
        parsed = form.decode_request(body, TransactionJson)
    except Malformed as error:
        raise _explained(body, form, TransactionJson, error) from None
    _count(parsed, 0)
    return Transaction(*_parts(parsed))


def _count(parsed: TransactionJson | TxnJson, before: int) -> int:
    """Its comparisons and operations, and so many before. Of far too many none is looked at any closer."""
    count = before + len(parsed.compare) + len(parsed.success) + len(parsed.failure)
    for operation in (*parsed.success, *parsed.failure) if count <= OPERATIONS_MAX else ():
        if isinstance(operation, TxnJson):
            count = _count(operation, count)
    if count > OPERATIONS_MAX:
        raise InvalidTransaction("transaction", f"at most {OPERATIONS_MAX} comparisons and operations")
    return count


def _parts(
    parsed: TransactionJson | TxnJson,
) -> tuple[tuple[Compare, ...], tuple[Operation, ...], tuple[Operation, ...]]:
    return (
        each("compare", _compare, parsed.compare),
        each("success", _operation, parsed.success),
        each("failure", _operation, parsed.failure),
    )


def _explained(body: bytes, form: Form, kind: type[msgspec.Struct], error: Exception) -> InvalidTransaction:
    """Why this body is none of this kind, as helpfully as can be: of a large one that would take long."""
    if not body:
        return InvalidTransaction("body", "it is empty; an object is needed")
    if len(body) > EXPLAINED_BYTES_MAX and isinstance(error, msgspec.ValidationError):
        return _misplaced(error)
    try:
        raw = form.decode_any(body)
    except Malformed as malformed:
        return InvalidTransaction("body", f"not {form.name}: {malformed}")
    if not isinstance(raw, dict):
        return InvalidTransaction("body", "an object is needed")
    unknown = find_unknown(raw, kind)
    if unknown:
        return InvalidTransaction(unknown.path, str(unknown).removeprefix(f"{unknown.path}: "))
    return _unknown_operation(raw) or _misplaced(error)


def _unknown_operation(raw: dict[str, Any], place: str = "") -> InvalidTransaction | None:
    """The first one; raw: a transaction, found at `place`."""
    for branch in ("success", "failure"):
        operations = raw.get(branch)
        for i, operation in enumerate(operations if isinstance(operations, list) else ()):
            op = operation.get("op") if isinstance(operation, dict) else None
            here, found = f"{place}{branch}[{i}].", None
            if op == "txn":
                found = _unknown_operation(operation, here)
            elif isinstance(op, str) and op not in _OPERATIONS:
                near = nearest(op, _OPERATIONS)
                hint = f"did you mean {near!r}?" if near else f"one of {', '.join(_OPERATIONS)}"
                found = InvalidTransaction(f"{here}op", f"unknown operation {op[:40]!r}; {hint}")
            if found:
                return found
    return None


_TOLD_MAX = 300
"""So much of what msgspec says is told: names may be as long as the body."""
_NO_WORD = "Invalid enum value "
_WORDS = {"op": get_args(Operator), "target": get_args(Target)}


def _misplaced(error: Exception) -> InvalidTransaction:
    """What msgspec says, and where."""
    text, _, place = str(error).partition(" - at `$")
    place = place.strip("`").lstrip(".")
    words = _WORDS.get(place.rpartition(".")[2])
    if words and text.startswith(_NO_WORD):
        text = f"one of {', '.join(words)}, not {text.removeprefix(_NO_WORD)[:40]}"
    return InvalidTransaction(place or "body", text[:_TOLD_MAX])


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
        operand = _version(value or "", "value")
    else:
        operand = bytes_of("value", value, compare.value_b64)
    return Compare(key, compare.target, compare.op, operand)


def _version(text: str, name: str = "version") -> Timestamp:
    try:
        return Timestamp.parse(text)
    except ValueError:
        raise InvalidTransaction(name, "a version, as answers have it") from None


def _operation(operation: OperationJson) -> Operation:
    if isinstance(operation, PutJson):  # nearly always, hence first
        key = bytes_of("key", operation.key, operation.key_b64)
        value = bytes_of("value", operation.value, operation.value_b64)
        return Put(key, value) if operation.lease is None else LeasedPut(key, value, lease_of(operation.lease))
    if isinstance(operation, RangeJson):
        prefix, start, end = _bounds(operation)
        after = bytes_of("after", operation.after, operation.after_b64, b"")
        flags = operation.reverse, operation.keys_only, operation.count_only
        return Range(prefix, operation.limit, after, start, end, *flags)
    if isinstance(operation, DeleteRangeJson):
        return DeleteRange(*_bounds(operation))
    if isinstance(operation, NoneNewerJson):
        prefix, start, end = _bounds(operation)
        return NoneNewer(prefix, _version(operation.version), start, end)
    if isinstance(operation, TxnJson):
        return Txn(*_parts(operation))
    key = bytes_of("key", operation.key, operation.key_b64)
    if isinstance(operation, GetJson):
        return Get(key)
    if isinstance(operation, AddJson):
        if not INT64_MIN <= operation.delta <= INT64_MAX:
            raise InvalidTransaction("delta", "a signed 64-bit integer")
        return Add(key, operation.delta)
    if isinstance(operation, MinJson | MaxJson):
        if not INT64_MIN <= operation.value <= INT64_MAX:
            raise InvalidTransaction("value", "a signed 64-bit integer")
        return (Min if isinstance(operation, MinJson) else Max)(key, operation.value)
    if isinstance(operation, AppendJson):
        return Append(key, bytes_of("value", operation.value, operation.value_b64))
    return Delete(key)


def _bounds(operation: _Bounded) -> tuple[bytes, bytes, bytes]:
    prefix = bytes_of("prefix", operation.prefix, operation.prefix_b64, b"")
    start = bytes_of("start", operation.start, operation.start_b64, b"")
    return prefix, start, bytes_of("end", operation.end, operation.end_b64, b"")


class LeaseJson(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/leases`: after so many milliseconds without a renewal, at the earliest, it expires."""

    ttl_ms: Annotated[int, msgspec.Meta(extra_json_schema={"minimum": TTL_MS_MIN, "maximum": TTL_MS_MAX})]


def parse_ttl_ms(body: bytes, form: Form = JSON) -> int:
    """The body of `POST /v1/leases`. InvalidTransaction names the field that is wrong."""
    try:
        ttl_ms: int = form.decode_request(body, LeaseJson).ttl_ms
    except Malformed as error:
        raise _explained(body, form, LeaseJson, error) from None
    return ttl_ms


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
    except Malformed as error:
        raise _misplaced(error) from None
    return Transaction(success=(Move(move.source, move.target, move.slots),))


def transaction_body(transaction: Transaction, form: Form = JSON) -> bytes:
    """The body of `POST /v1/txn`."""
    return form.encode(_transaction_json(transaction, form.member))


def _transaction_json(transaction: Transaction | Txn, member: Member) -> dict[str, Any]:
    return {
        "compare": [_compare_json(c, member) for c in transaction.compare],
        "success": [_operation_json(o, member) for o in transaction.success],
        "failure": [_operation_json(o, member) for o in transaction.failure],
    }


def _compare_json(compare: Compare, member: Member) -> dict[str, Any]:
    body: dict[str, Any] = {**member("key", compare.key), "target": compare.target, "op": compare.op}
    operand = compare.operand
    if isinstance(operand, bytes):
        return body | member("value", operand)
    return body | {"value": str(operand) if isinstance(operand, Timestamp) else operand}


def operation_name(operation: Operation) -> str:
    """As `op` says it."""
    return _OPERATION_NAMES[type(operation)]


def _operation_json(operation: Operation, member: Member) -> dict[str, Any]:
    body: dict[str, Any] = {"op": operation_name(operation)}
    if isinstance(operation, Txn):
        return body | _transaction_json(operation, member)
    if isinstance(operation, RANGES):
        for name in ("prefix", "start", "end", "after"):
            bound = getattr(operation, name, b"")
            body |= member(name, bound) if bound else {}
        if isinstance(operation, Range):
            body["limit"] = operation.limit
            body |= {name: True for name in ("reverse", "keys_only", "count_only") if getattr(operation, name)}
        if isinstance(operation, NoneNewer):
            body["version"] = str(operation.version)
    if isinstance(operation, (*EVERYWHERE, Revoke)):
        return body
    body |= member("key", operation.key)
    if isinstance(operation, LeasedPut):
        body["lease"] = id_text(operation.lease)
    if isinstance(operation, (Put, LeasedPut, Append)):
        body |= member("value", operation.value)
    elif isinstance(operation, Add):
        body["delta"] = operation.delta
    elif isinstance(operation, Min | Max):
        body["value"] = operation.value
    return body
