"""What can be asked of the store: each request, ready to be sent, and what its answer means. No IO.

`client_sdk.keyspace` has those about keys. `AsyncClient` and `Client` have a method of the same name, arguments and
documentation for each function here and there, which sends the request and returns what the answer says. All take
`timeout`: seconds within which it ends, with all its retries; None: the client's own.
"""

from __future__ import annotations

import inspect
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from client_sdk.errors import InvalidRequest
from client_sdk.operations import of_type
from kvstore.api import answers, codec
from kvstore.api.answers import MalformedAnswer, Outcome
from kvstore.api.leases import TTL_MS_MAX, TTL_MS_MIN
from multicast.types import MessageId, Timestamp, is_uuid7, new_message_id

JSON_BODY = "Content-Type: application/json\r\n"
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
        """The same request as a write, under this id or a new one. InvalidRequest if it is no UUIDv7."""
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


def documented_by(make: Callable[..., Any], returns: str = "") -> Callable[[M], M]:
    """For methods of clients: the name, documentation and arguments of the function that makes their request, or of
    another client's method. returns: the type, if it is another one than that of the request's answer."""

    def document(method: M) -> M:
        method.__name__ = make.__name__
        method.__doc__ = method.__doc__ or make.__doc__
        signature = inspect.signature(make)
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        others = [one for name, one in signature.parameters.items() if name != "self"]
        told = returns or str(signature.return_annotation).removeprefix("Request[").removesuffix("]")
        documented = signature.replace(parameters=[own, *others], return_annotation=told)
        method.__signature__ = documented  # type: ignore[attr-defined]
        return method

    return document


class Lease(NamedTuple):
    """A lease. ttl: seconds after a renewal before which it does not expire. version: of its last renewal. left: about
    how many seconds are left of that, by the clock of the replica that was asked. keys: the first thousand that are
    attached to it, where they were asked for."""

    id: bytes
    ttl: float
    version: Timestamp
    left: float
    keys: tuple[bytes, ...] | None = None


def grant_lease(ttl: float, *, message_id: MessageId | None = None, timeout: float | None = None) -> Request[Lease]:
    """A lease that expires, and with it all keys that are attached to it, `ttl` seconds after its last renewal at the
    earliest: 1 second to a day."""
    ttl_ms = 1000 * of_type("ttl", ttl, int, float)
    if not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX:
        detail = f"ttl: from {TTL_MS_MIN // 1000} to {TTL_MS_MAX // 1000} seconds, not {ttl:g}"
        raise InvalidRequest(detail, code="invalid", field="ttl")
    body = msgspec.json.encode({"ttl_ms": round(ttl_ms)})
    return Request("POST", "/v1/leases", _lease, None, timeout, fields=JSON_BODY, body=body).under(message_id)


def leases_after(after: bytes, limit: int, *, timeout: float | None = None) -> Request[tuple[list[Lease], bool]]:
    """The first `limit` leases with greater ids than `after` (empty: of all), and whether there are more."""

    def parse(answer: Answer) -> tuple[list[Lease], bool]:
        told = answers.parse_leases(answer.body)
        return [_told_lease(one) for one in told.leases], told.more

    query = f"?limit={limit}" + (f"&after={codec.id_text(after)}" if after else "")
    return Request("GET", f"/v1/leases{query}", parse, None, timeout)


def renew_lease(lease_id: bytes, *, timeout: float | None = None) -> Request[Lease | None]:
    """Let the lease's time to live begin anew; None if it has gone."""
    path = lease_path(lease_id) + "/renew"
    return Request("POST", path, lease_or_none, None, timeout, accepts=(200, 404), body=b"").under(None)


def revoke_lease(lease_id: bytes, *, timeout: float | None = None) -> Request[bool]:
    """End a lease, and delete all keys that are attached to it, at one point of the order. Returns whether it was
    there; a repetition after an attempt of unknown outcome may say that it was not."""
    path = lease_path(lease_id)
    return Request("DELETE", path, lambda answer: answer.status == 200, None, timeout, accepts=(200, 404)).under(None)


def lease_path(lease_id: bytes) -> str:
    """TypeError if that is no id."""
    return f"/v1/leases/{codec.id_text(of_type('lease_id', lease_id, bytes))}"


def lease_or_none(answer: Answer) -> Lease | None:
    """What the answer says of a lease; None: that it has gone."""
    return None if answer.status == 404 else _lease(answer)


def _lease(answer: Answer) -> Lease:
    return _told_lease(answers.parse_lease(answer.body))


def _told_lease(told: answers.LeaseAnswer) -> Lease:
    try:
        found = codec.lease_of(told.id), Timestamp.parse(told.version)
    except ValueError as error:
        raise MalformedAnswer(f"answer about a lease: {error}") from error
    return Lease(found[0], told.ttl_ms / 1000, found[1], told.left_ms / 1000, told.attached())


def outcome(message_id: MessageId, *, timeout: float | None = None) -> Request[Outcome | None]:
    """What became of the write with this id; None if no replica remembers one. (It may be under way, or not have been
    sent yet.)"""
    if not is_uuid7(of_type("message_id", message_id, bytes)):
        raise InvalidRequest("message_id: 16 bytes that are a UUIDv7", code="invalid", field="message_id")

    def parse(answer: Answer) -> Outcome | None:
        return None if answer.status == 404 else answers.parse_outcome(answer.body)

    path = f"/v1/txn/{codec.id_text(message_id)}"
    return Request("GET", path, parse, (), timeout, accepts=(200, 404))


def cluster(url: str | None = None, *, timeout: float | None = None) -> Request[dict[str, Any]]:
    """What the replica at `url`, or any that answers, says at `GET /v1/cluster`, as it is."""

    def parse(answer: Answer) -> dict[str, Any]:
        try:
            return msgspec.json.decode(answer.body, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise MalformedAnswer(f"not a JSON object: {error}") from error

    return Request("GET", "/v1/cluster", parse, (), timeout, only=url)
