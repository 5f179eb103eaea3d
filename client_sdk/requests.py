"""What can be asked of the store: each request, ready to be sent, and what its answer means. No IO.

`AsyncClient` and `Client` have a method of the same name, arguments and documentation for each function here, which
sends the request and returns what the answer says. All take `timeout`: seconds within which it ends, with all its
retries; None: the client's own.
"""

from __future__ import annotations

import inspect
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote_from_bytes

import msgspec

from client_sdk import operations
from client_sdk.errors import InvalidRequest, ResultsForgotten, TransactionFailed
from client_sdk.operations import Compare, Operation, as_bytes, of_type
from kvstore.api import answers, codec
from kvstore.api.answers import MalformedAnswer, Outcome, Page
from kvstore.api.model import (
    AGE_MS_MAX,
    CONSISTENCIES,
    EVERYWHERE,
    RANGE_KEYS_MAX,
    Consistency,
    InvalidTransaction,
    KeyValue,
    Result,
    Revoke,
    Transaction,
    only_reads,
    validate,
)
from multicast.types import ZERO, MessageId, Timestamp, is_uuid7, new_message_id

T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Any])


class Answer(NamedTuple):
    """A successful answer, or 404 where the request allows it. read_at: where a read that has no id saw its shards,
    as `Kv-Read-At` says it. create_version, lease: of a key, as `Kv-Create-Version` and `Kv-Lease` say them."""

    status: int
    etag: str | None
    body: bytes
    read_at: str = ""
    create_version: str = ""
    lease: str = ""


ARGUMENTS = {
    "If-Match": "if_version",
    "If-None-Match": "if_absent",
    "Idempotency-Key": "message_id",
    "Kv-Lease": "lease",
    "query.from": "after",
    "query.limit": "page_size",
    "ttl_ms": "ttl",
    "query.prefix": "prefix",
    "query.start": "start",
    "query.end": "end",
    "query.version": "version",
    "query.consistency": "consistency",
    "query.max_age_ms": "max_age",
}
"""What a part of a request, as problems name it, is called here."""


class Request(Generic[T]):
    """One request, which may be sent any number of times.

    fields: header lines, each with its CRLF. parse: of the answer; MalformedAnswer if it is none. keys: what it
    touches, for the routing; None: possibly every shard. message_id None: a read, which can have no effect.
    sent_before: somebody may have sent it already. accepts: the statuses of success. only: the one replica to ask;
    None: whoever is best.
    """

    __slots__ = (
        "accepts", "body", "fields", "keys", "message_id", "method", "only", "parse", "path", "sent_before", "timeout",
    )  # fmt: skip

    def __init__(
        self,
        method: str,
        path: str,
        parse: Callable[[Answer], T],
        keys: Sequence[bytes] | None,
        timeout: float | None,
        *,
        fields: str = "",
        body: bytes | None = None,
        accepts: tuple[int, ...] = (200, 201),
        only: str | None = None,
    ):
        self.method = method
        self.path = path
        self.parse = parse
        self.keys = keys
        self.timeout = None if timeout is None else positive_seconds("timeout", timeout)
        self.fields = fields
        self.body = body
        self.accepts = accepts
        self.only = only
        self.message_id: MessageId | None = None
        self.sent_before = False

    def under(self, given: MessageId | None) -> Request[T]:
        """The same as a write, under this id or a new one. InvalidRequest if it is no UUIDv7."""
        if given is not None and not is_uuid7(of_type("message_id", given, bytes)):
            raise InvalidRequest("message_id: 16 bytes that are a UUIDv7", code="invalid", field="message_id")
        self.message_id = given or new_id()
        self.sent_before = given is not None
        self.fields += f"Idempotency-Key: {codec.id_text(self.message_id)}\r\n"
        return self


def new_id() -> MessageId:
    """An id for a write, a UUIDv7: it may take effect as long as the cluster's deduplication window is open."""
    return new_message_id(time.time_ns() // 1000, secrets.randbits(62))


def positive_seconds(name: str, seconds: float) -> float:
    """TypeError if that is no number, ValueError if it is not positive."""
    if not of_type(name, seconds, int, float) > 0:
        raise ValueError(f"{name}: a positive number of seconds, not {seconds}")
    return seconds


def documented_by(make: Callable[..., Request[Any]]) -> Callable[[M], M]:
    """For methods of clients: the name, documentation and arguments of the function that makes their request."""

    def document(method: M) -> M:
        method.__name__, method.__doc__ = make.__name__, make.__doc__
        signature = inspect.signature(make)
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        method.__signature__ = signature.replace(parameters=[own, *signature.parameters.values()])  # type: ignore[attr-defined]
        return method

    return document


def get(
    key: bytes | str,
    *,
    version: Timestamp | None = None,
    consistency: Consistency = "linearizable",
    max_age: float | None = None,
    timeout: float | None = None,
) -> Request[KeyValue | None]:
    """The key's value and version; None if it is absent. Where `version` is given, as it was when that was written, by
    whatever transaction: Compacted if that is too long ago.

    consistency: what it may miss. "linearizable": nothing that was answered before it was asked. "snapshot": anything;
    it costs no message. "stale": what was answered less than `max_age` seconds before it was asked."""
    name = as_bytes("key", key)
    query = _freshness(version, consistency, max_age)
    path = _key_path(name) + ("?" + "&".join(query) if query else "")

    def parse(answer: Answer) -> KeyValue | None:
        if answer.status == 404:
            return None
        return answers.parse_value(name, answer.body, answer.etag, answer.create_version, answer.lease)

    return Request("GET", path, parse, (name,), timeout, accepts=(200, 404))


def put(
    key: bytes | str,
    value: bytes | str,
    *,
    if_version: Timestamp | None = None,
    if_absent: bool = False,
    lease: bytes | None = None,
    message_id: MessageId | None = None,
    timeout: float | None = None,
) -> Request[Timestamp]:
    """Write, and return the new version. ConditionFailed unless the key has `if_version` (or is absent, for
    `if_absent`). `lease`: the id of one; the key goes when that goes; TransactionFailed if it has gone already. Without
    it the key is attached to none. `message_id`: to repeat a request whose outcome is unknown."""
    name, data = as_bytes("key", key), as_bytes("value", value)
    fields = _conditions(if_version, if_absent)
    if lease is not None:
        fields += f"Kv-Lease: {codec.id_text(of_type('lease', lease, bytes))}\r\n"

    def parse(answer: Answer) -> Timestamp:
        return answers.parse_write(answer.body)[0]

    request = Request("PUT", _key_path(name), parse, (name,), timeout, fields=fields, body=data)
    return request.under(message_id)


def delete(
    key: bytes | str,
    *,
    if_version: Timestamp | None = None,
    message_id: MessageId | None = None,
    timeout: float | None = None,
) -> Request[bool]:
    """Delete; whether the key was there. ConditionFailed unless it has `if_version`."""
    name, fields = as_bytes("key", key), _conditions(if_version, False)

    def parse(answer: Answer) -> bool:
        return bool(answers.parse_write(answer.body)[1])

    return Request("DELETE", _key_path(name), parse, (name,), timeout, fields=fields).under(message_id)


def delete_range(
    prefix: bytes | str | None = None,
    *,
    start: bytes | str | None = None,
    end: bytes | str | None = None,
    message_id: MessageId | None = None,
    timeout: float | None = None,
) -> Request[int]:
    """Delete all keys that begin with `prefix`, are not less than `start` and less than `end`, at one instant; how many
    there were. One of these must be given: an empty prefix is everything. TransactionFailed, and nothing is deleted,
    if there are more than RANGE_KEYS_MAX in one shard."""
    if prefix is None and start is None and end is None:
        raise InvalidRequest("prefix, start, end: give one of them", code="invalid", field="prefix")

    def parse(answer: Answer) -> int:
        return int(answers.parse_write(answer.body)[1])

    path = "/v1/kv?" + bounds_query(prefix or b"", start or b"", end or b"")
    return Request("DELETE", path, parse, None, timeout).under(message_id)


def txn(
    compare: Sequence[Compare] = (),
    success: Sequence[Operation] = (),
    failure: Sequence[Operation] = (),
    *,
    message_id: MessageId | None = None,
    consistency: Consistency = "linearizable",
    max_age: float | None = None,
    timeout: float | None = None,
) -> Request[Result]:
    """If every comparison holds, do all of `success`, else all of `failure`; atomically, over any number of shards.

    Which branch ran is `Result.succeeded`. What only reads has no id unless one is given, and then need not be ordered;
    `consistency` and `max_age` are of that alone, and as in `get`: a snapshot is of one version in all shards, a stale
    read takes each shard by itself. InvalidRequest before anything is sent if a limit is broken.
    """
    asked = operations.transaction(compare, success, failure)
    return transaction(asked, message_id=message_id, consistency=consistency, max_age=max_age, timeout=timeout)


def transaction(
    asked: Transaction,
    *,
    message_id: MessageId | None = None,
    consistency: Consistency = "linearizable",
    max_age: float | None = None,
    timeout: float | None = None,
) -> Request[Result]:
    """`txn` of what the server knows."""
    try:
        validate(asked)
    except InvalidTransaction as error:
        raise InvalidRequest(str(error), code="invalid", field=error.field) from None

    def parse(answer: Answer) -> Result:
        result, omitted = answers.parse_transaction_answer(answer.body, asked)
        if omitted:
            raise ResultsForgotten(result.succeeded, result.version)
        return result

    query, reads = _freshness(None, consistency, max_age), message_id is None and only_reads(asked)
    if query and not reads:
        raise InvalidRequest("consistency: of what only reads, without an id", code="invalid", field="consistency")
    body, fields, keys = codec.transaction_body(asked), "Content-Type: application/json\r\n", _keys(asked)
    path = "/v1/txn" + ("?" + "&".join(query) if query else "")
    request = Request("POST", path, parse, keys, timeout, fields=fields, body=body)
    return request if reads else request.under(message_id)


class Lease(NamedTuple):
    """A lease. ttl: seconds from a renewal until it may expire. version: of its last renewal. left: seconds until it
    may expire, about, by the clock of the replica that was asked."""

    id: bytes
    ttl: float
    version: Timestamp
    left: float


def grant_lease(ttl: float, *, message_id: MessageId | None = None, timeout: float | None = None) -> Request[Lease]:
    """A lease that expires, and with it all keys that are attached to it, `ttl` seconds after its last renewal at the
    earliest: 1 second to a day."""
    body = msgspec.json.encode({"ttl_ms": round(1000 * positive_seconds("ttl", ttl))})
    return Request("POST", "/v1/leases", _lease, None, timeout, body=body).under(message_id)


def lease(lease_id: bytes, *, timeout: float | None = None) -> Request[Lease | None]:
    """What is known of it; None if it has gone."""
    return Request("GET", _lease_path(lease_id), _lease_or_none, None, timeout, accepts=(200, 404))


def renew_lease(lease_id: bytes, *, timeout: float | None = None) -> Request[Lease | None]:
    """Let it begin anew; None if it has gone."""
    path = _lease_path(lease_id) + "/renew"
    return Request("POST", path, _lease_or_none, None, timeout, accepts=(200, 404), body=b"").under(None)


def revoke_lease(lease_id: bytes, *, timeout: float | None = None) -> Request[bool]:
    """Let it go, and with it all keys that are attached to it, at one point of the order. Whether it was there; a
    repetition after an attempt of unknown outcome may say that it was not."""
    path = _lease_path(lease_id)
    return Request("DELETE", path, lambda answer: answer.status == 200, None, timeout, accepts=(200, 404)).under(None)


def _lease_path(lease_id: bytes) -> str:
    return f"/v1/leases/{codec.id_text(of_type('lease_id', lease_id, bytes))}"


def _lease_or_none(answer: Answer) -> Lease | None:
    return None if answer.status == 404 else _lease(answer)


def _lease(answer: Answer) -> Lease:
    told = answers.parse_lease(answer.body)
    try:
        found = codec.lease_of(told.id), Timestamp.parse(told.version)
    except ValueError as error:
        raise MalformedAnswer(f"answer about a lease: {error}") from error
    return Lease(found[0], told.ttl_ms / 1000, found[1], told.left_ms / 1000)


def outcome(message_id: MessageId, *, timeout: float | None = None) -> Request[Outcome | None]:
    """What became of the write of this id; None if no replica remembers one. It may be under way, or be sent yet."""
    if not is_uuid7(of_type("message_id", message_id, bytes)):
        raise InvalidRequest("message_id: 16 bytes that are a UUIDv7", code="invalid", field="message_id")

    def parse(answer: Answer) -> Outcome | None:
        return None if answer.status == 404 else answers.parse_outcome(answer.body)

    path = f"/v1/txn/{codec.id_text(message_id)}"
    return Request("GET", path, parse, (), timeout, accepts=(200, 404))


def page(
    prefix: bytes | str,
    *,
    start: bytes | str = b"",
    end: bytes | str = b"",
    reverse: bool = False,
    keys_only: bool = False,
    page_size: int,
    token: str | None,
    version: Timestamp | None = None,
    consistency: Consistency = "linearizable",
    max_age: float | None = None,
    timeout: float | None,
) -> Request[Page]:
    """The keys that begin with `prefix`, are not less than `start` and less than `end`, in order: the first so many, or
    those from where `token` says."""
    path = f"/v1/kv?{bounds_query(prefix, start, end)}&limit={of_type('page_size', page_size, int)}"
    for name, flag in (("reverse", reverse), ("keys_only", keys_only)):
        path += f"&{name}=true" if of_type(name, flag, bool) else ""
    if token is not None:
        path += f"&page_token={quote_from_bytes(token.encode(), safe='')}"
    path = "&".join([path, *_freshness(version, consistency, max_age)])
    return Request("GET", path, lambda answer: answers.parse_page(answer.body, keys_only), None, timeout)


def count(
    prefix: bytes | str = b"",
    *,
    start: bytes | str = b"",
    end: bytes | str = b"",
    consistency: Consistency = "linearizable",
    max_age: float | None = None,
    timeout: float | None = None,
) -> Request[int]:
    """How many keys begin with `prefix`, are not less than `start` and less than `end`; `consistency` and `max_age` as
    in `get`. TransactionFailed if there are more than RANGE_KEYS_MAX in one shard: count the pages of a scan."""

    def parse(answer: Answer) -> int:
        found, more = answers.parse_count(answer.body)
        if more:
            raise TransactionFailed(f"more than {RANGE_KEYS_MAX} keys in a shard", code="failed")
        return found

    parts = [bounds_query(prefix, start, end), "count_only=true", *_freshness(None, consistency, max_age)]
    return Request("GET", "/v1/kv?" + "&".join(parts), parse, None, timeout)


def cluster(url: str | None = None, *, timeout: float | None = None) -> Request[dict[str, Any]]:
    """What the replica at `url`, or any that answers, says at `GET /v1/cluster`, as it is."""

    def parse(answer: Answer) -> dict[str, Any]:
        try:
            return msgspec.json.decode(answer.body, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise MalformedAnswer(f"not a JSON object: {error}") from error

    return Request("GET", "/v1/cluster", parse, (), timeout, only=url)


def _freshness(version: Timestamp | None, consistency: Consistency, max_age: float | None) -> list[str]:
    """Of a query. InvalidRequest if that makes no sense."""
    if of_type("consistency", consistency, str) not in CONSISTENCIES:
        text = f"consistency: one of {', '.join(CONSISTENCIES)}, not {consistency!r}"
        raise InvalidRequest(text, code="invalid", field="consistency")
    if (consistency == "stale") != (max_age is not None):
        raise InvalidRequest("max_age: a stale read has one, and no other", code="invalid", field="max_age")
    parts = [] if version is None else [f"version={of_type('version', version, Timestamp)}"]
    if consistency != "linearizable":
        parts.append(f"consistency={consistency}")
    if max_age is not None:
        age_ms = of_type("max_age", max_age, int, float) * 1000
        if not 0 <= age_ms <= AGE_MS_MAX:
            text = f"max_age: from 0 to {AGE_MS_MAX / 1000:g} seconds, not {max_age}"
            raise InvalidRequest(text, code="invalid", field="max_age")
        parts.append(f"max_age_ms={int(age_ms)}")
    return parts


def bounds_query(prefix: bytes | str, start: bytes | str, end: bytes | str) -> str:
    """The query that says these bounds."""
    """The part of a query that says which keys."""
    parts = [f"prefix={quote_from_bytes(as_bytes('prefix', prefix), safe='')}"]
    for name, bound in (("start", start), ("end", end)):
        if bound or not isinstance(bound, bytes | str):
            parts.append(f"{name}={quote_from_bytes(as_bytes(name, bound), safe='')}")
    return "&".join(parts)


def _key_path(key: bytes) -> str:
    # Dots too: "." and ".." as whole segments would be resolved away on the road.
    return "/v1/kv/" + quote_from_bytes(key, safe="/-_~" if b"." not in key else "").replace(".", "%2E")


def _conditions(if_version: Timestamp | None, if_absent: bool) -> str:
    if if_version is not None:
        of_type("if_version", if_version, Timestamp)
    if of_type("if_absent", if_absent, bool) and if_version is not None:
        raise InvalidRequest("if_version and if_absent: give one of them", code="invalid", field="if_absent")
    if if_absent or if_version == ZERO:
        return "If-None-Match: *\r\n"
    return "" if if_version is None else f'If-Match: "{if_version}"\r\n'


def _keys(transaction: Transaction) -> list[bytes] | None:
    """What it touches; None: with a range, possibly everything."""
    keys = [compare.key for compare in transaction.compare]
    for operation in (*transaction.success, *transaction.failure):
        if isinstance(operation, (*EVERYWHERE, Revoke)):
            return None
        keys.append(operation.key)
    return keys
