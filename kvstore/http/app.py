"""The HTTP face of one replica.

Theory of operation. One handler (`HttpApi.handle`) parses, checks every limit, has the transaction ordered and executed
(`Node.execute`) and renders the result. There is no router and no middleware: keys are bytes that stand percent-encoded
in the raw path, and a request should cost little beside what ordering it costs. Whatever goes wrong is raised as
`Problem` and rendered in one place. Nothing is ordered before the whole request has been read and checked.

    PUT|GET|DELETE /v1/kv/{key}      raw bytes; ETag = version; If-Match, If-None-Match
    GET  /v1/kv?prefix=&limit=&page_token=
    POST /v1/txn                     JSON (kvstore.api.codec)
    GET  /v1/cluster, /livez, /readyz, /metrics
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import structlog
from aiohttp import web

from kvstore.api import codec
from kvstore.api.cluster import ClusterJson
from kvstore.api.model import (
    VALUE_BYTES_MAX,
    Compare,
    Delete,
    Get,
    InvalidTransaction,
    Operation,
    Put,
    Range,
    Result,
    Transaction,
    validate,
)
from kvstore.api.problem import NOT_APPLIED, UNKNOWN
from kvstore.config import Limits
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Answered, Refused
from kvstore.http import errors, request
from kvstore.http.budget import ByteBudget
from kvstore.http.errors import Problem
from kvstore.http.metrics import Metrics
from multicast.types import MessageId

KV = "/v1/kv/"
LINE_BYTES_MAX = 16 * 1024
"""Of the request line and of each header: a key of 400 bytes has 1200 characters percent-encoded."""

LINGER_SECONDS = 1.0
"""How long a refused body is still read, so that its sender gets to the answer."""

_BYTES = {"Content-Type": "application/octet-stream"}
_JSON = "application/json"
_log = structlog.get_logger("kvstore.http")


class Node(Protocol):
    """The replica behind the HTTP interface."""

    async def execute(self, message_id: MessageId, transaction: Transaction) -> Answered | Refused:
        """Have it ordered and executed. NO_ID: it only reads, and nobody can repeat it. Cancellable; then nobody knows
        the outcome."""

    def new_message_id(self) -> MessageId:
        """A fresh UUIDv7 by this replica's clock."""

    def unready(self) -> str:
        """Why requests cannot be served now; empty if they can."""

    def overload(self) -> str:
        """Why requests must wait although the replica works; empty if they need not."""

    def failure(self) -> str:
        """What ended this replica; empty while it lives."""

    def describe_cluster(self) -> ClusterJson:
        """The answer to `GET /v1/cluster`."""


class HttpApi:
    """Handles requests for `node`. `stop` ends the open ones."""

    def __init__(self, node: Node, limits: Limits, metrics: Metrics):
        self.node = node
        self.limits = limits
        self.metrics = metrics
        self.stopping = False
        self.budget = ByteBudget(limits.in_flight_bytes_max)
        self._open: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._routes: dict[str, dict[str, Callable[..., Awaitable[web.Response]]]] = {
            "/v1/kv": {"GET": self._scan},
            "/v1/txn": {"POST": self._txn},
            "/v1/cluster": {"GET": self._cluster},
            "/livez": {"GET": self._livez},
            "/readyz": {"GET": self._readyz},
            "/metrics": {"GET": self._metrics},
        }
        self._kv_routes = {"GET": self._get, "HEAD": self._get, "PUT": self._put, "DELETE": self._delete}

    async def handle(self, req: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        began = time.perf_counter()
        path, _, query = _origin_form(req.raw_path).partition("?")
        route = KV if path.startswith(KV) else path
        try:
            handler = self._handler(route, req.method)
            response = await handler(req, path, query)
        except Problem as problem:
            response = problem.response()
            if problem.status == 413 or self.stopping:
                response.force_close()
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            _log.exception("our own error", route=route, method=req.method)
            response = errors.internal().response()
        self.metrics.observe(req.method, route, response.status, time.perf_counter() - began)
        return response

    def _handler(self, route: str, method: str) -> Callable[..., Awaitable[web.Response]]:
        methods = self._kv_routes if route == KV else self._routes.get(route)
        if methods is None:
            raise Problem(404, "unknown_path", f"known are {KV}{{key}}, {', '.join(self._routes)}")
        handler = methods.get(method)
        if handler is None:
            allow = ", ".join(methods)
            detail = f"{method[:20]} is not possible here, only {allow}"
            raise Problem(405, "method_not_allowed", detail, headers={"Allow": allow})
        return handler

    # -- single keys --------------------------------------------------------------------------------------------------

    async def _get(self, req: web.BaseRequest, path: str, query: str) -> web.Response:
        key = request.key_of(path, query, KV)
        result = await self._read(req, Get(key))
        found = result.results[0].found
        if found is None:
            raise Problem(404, "not_found", "no such key")
        etag = f'"{found.version}"'
        match, none_match = req.headers.get("If-Match"), req.headers.get("If-None-Match")
        if match is not None and not request.names_etag(match, etag):
            raise Problem(412, "precondition_failed", "If-Match: the key has another version", headers={"ETag": etag})
        if none_match is not None and request.names_etag(none_match, etag):
            return web.Response(status=304, headers={"ETag": etag})
        return web.Response(body=found.value, headers={**_BYTES, "ETag": etag})

    async def _put(self, req: web.BaseRequest, path: str, query: str) -> web.Response:
        key = request.key_of(path, query, KV)
        conditions = request.conditions_of(req, key)
        message_id = request.message_id_of(req)
        async with self._deadline(req) as call:
            value = await call.body_of(req, "a value", min(VALUE_BYTES_MAX, self.limits.body_bytes_max))
            result, text_id = await self._write_key(call, message_id, key, conditions, Put(key, value))
        version = str(result.version)
        created = any(c.target == "exists" and c.operand is False for c in conditions)
        return web.Response(
            body=codec.put_answer(version, text_id),
            status=201 if created else 200,
            headers={"Content-Type": _JSON, "ETag": f'"{version}"', "Idempotency-Key": text_id},
        )

    async def _delete(self, req: web.BaseRequest, path: str, query: str) -> web.Response:
        key = request.key_of(path, query, KV)
        conditions = request.conditions_of(req, key)
        message_id = request.message_id_of(req)
        async with self._deadline(req) as call:
            await call.body_of(req, "the body of a DELETE", 0)
            result, text_id = await self._write_key(call, message_id, key, conditions, Delete(key))
        body = codec.delete_answer(str(result.version), result.results[0].deleted, text_id)
        return web.Response(body=body, headers={"Content-Type": _JSON, "Idempotency-Key": text_id})

    async def _write_key(
        self,
        call: _Call,
        message_id: MessageId | None,
        key: bytes,
        conditions: tuple[Compare, ...],
        operation: Operation,
    ) -> tuple[Result, str]:
        """(result, id) of a write whose conditions hold; else 412 with the present version."""
        failure = (Get(key),) if conditions else ()
        answered, text_id = await self._write(call, message_id, Transaction(conditions, (operation,), failure))
        result = answered.result
        if not result.succeeded:
            headers = {"Idempotency-Key": text_id}
            detail = "If-Match or If-None-Match does not hold"
            if not answered.results_omitted:
                found = result.results[0].found
                detail += f": its version is {found.version}" if found else ": there is no such key"
                if found:
                    headers["ETag"] = f'"{found.version}"'
            raise Problem(412, "precondition_failed", detail, headers=headers)
        return result, text_id

    # -- several keys -------------------------------------------------------------------------------------------------

    async def _scan(self, req: web.BaseRequest, path: str, query: str) -> web.Response:
        result = await self._read(req, request.scan_of(query))
        entries, more = result.results[0].entries, result.results[0].more
        token = request.page_token(entries[-1].key) if more and entries else None
        body = codec.page_answer(codec.Page(result.version, entries, token))
        return web.Response(body=body, headers={"Content-Type": _JSON})

    async def _txn(self, req: web.BaseRequest, path: str, query: str) -> web.Response:
        if query:
            raise errors.invalid("query", "a transaction takes none")
        if not _is_json(req.headers.get("Content-Type", "")):
            detail = f"Content-Type: application/json is needed, not {req.headers.get('Content-Type', 'none')[:60]!r}"
            raise Problem(415, "unsupported_type", detail, field="Content-Type")
        message_id = request.message_id_of(req)
        async with self._deadline(req) as call:
            body = await call.body_of(req, "the body", self.limits.body_bytes_max)
            try:
                transaction = codec.parse_transaction(body)
                validate(transaction)
            except InvalidTransaction as error:
                raise errors.invalid(error.field, error.problem) from None
            answered, text_id = await self._write(call, message_id, transaction)
        return web.Response(
            body=codec.transaction_answer(transaction, answered.result, answered.results_omitted, text_id),
            headers={"Content-Type": _JSON, "Idempotency-Key": text_id},
        )

    # -- ordering -----------------------------------------------------------------------------------------------------

    def _deadline(self, req: web.BaseRequest) -> _Call:
        timeout_ms = request.timeout_ms_of(req, self.limits.timeout_default_ms, self.limits.timeout_max_ms)
        return _Call(self, timeout_ms)

    async def _read(self, req: web.BaseRequest, operation: Operation) -> Result:
        """A read of its own, whole: if what another shard read was lost on its way, it is read again."""
        async with self._deadline(req) as call:
            while True:
                answered = await self._execute(call, NO_ID, Transaction((), (operation,)))
                if not answered.results_omitted:
                    return answered.result

    async def _write(self, call: _Call, given: MessageId | None, transaction: Transaction) -> tuple[Answered, str]:
        """(answer, id as text). The id goes out with every answer, good or bad."""
        message_id = given or self.node.new_message_id()
        text_id = call.text_id = request.id_text(message_id)
        return await self._execute(call, message_id, transaction), text_id

    async def _execute(self, call: _Call, message_id: MessageId, transaction: Transaction) -> Answered:
        if self.stopping:
            raise errors.unavailable("stopping", "this replica is stopping")
        unready = self.node.unready()
        if unready:
            raise errors.unavailable("not_ready", unready)
        if len(self._open) > self.limits.in_flight_requests_max:
            detail = f"more than in_flight_requests_max = {self.limits.in_flight_requests_max} requests are open"
            raise errors.unavailable("overloaded", detail)
        overload = self.node.overload()
        if overload:
            raise errors.unavailable("overloaded", overload)
        call.ordered = _writes(transaction)
        answer = await self.node.execute(message_id, transaction)
        if isinstance(answer, Refused):
            raise errors.refused(answer.code, answer.message, answer.retryable, answer.outcome)
        failure = answer.result.failure
        if failure:
            [(name, text)] = codec.text_or_b64("key", answer.result.failure_key).items()
            raise Problem(422, "failed", f"{failure} ({name} {text!r})")
        return answer

    # -- people and machines who watch --------------------------------------------------------------------------------

    async def _cluster(self, req: web.BaseRequest, path: str, query: str) -> web.Response:
        return web.Response(body=codec.encode(self.node.describe_cluster()), headers={"Content-Type": _JSON})

    async def _livez(self, req: web.BaseRequest, path: str, query: str) -> web.Response:
        failure = self.node.failure()
        if failure:
            raise Problem(503, "failed", failure, outcome=UNKNOWN)
        return web.Response(text="ok\n")

    async def _readyz(self, req: web.BaseRequest, path: str, query: str) -> web.Response:
        unready = "this replica is stopping" if self.stopping else self.node.unready()
        if unready:
            raise errors.unavailable("not_ready", unready)
        return web.Response(text="ok\n")

    async def _metrics(self, req: web.BaseRequest, path: str, query: str) -> web.Response:
        body, content_type = self.metrics.render()
        return web.Response(body=body, headers={"Content-Type": content_type})

    # -- stopping -----------------------------------------------------------------------------------------------------

    async def drain(self, deadline_seconds: float) -> int:
        """Take no more requests and wait for the open ones; what is open at the deadline is answered "unknown".

        Returns how many were."""
        self.stopping = True
        if self._open:
            self._idle.clear()
            try:
                await asyncio.wait_for(self._idle.wait(), deadline_seconds)
            except TimeoutError:
                left = list(self._open)
                for timeout in left:
                    timeout.reschedule(0)
                await self._idle.wait()
                return len(left)
        return 0

    def opened(self, timeout: asyncio.Timeout) -> None:
        self._open.add(timeout)

    def closed(self, timeout: asyncio.Timeout) -> None:
        self._open.discard(timeout)
        if self.stopping and not self._open:
            self._idle.set()


class _Call:
    """The time that one request has, from before its body is read; and what is known of its fate when time is up."""

    __slots__ = ("api", "ordered", "taken", "text_id", "timeout", "timeout_ms")

    def __init__(self, api: HttpApi, timeout_ms: int):
        self.api = api
        self.timeout_ms = timeout_ms
        self.ordered = False
        self.taken = 0
        self.text_id = ""
        self.timeout = asyncio.timeout(timeout_ms / 1000)

    async def __aenter__(self) -> _Call:
        await self.timeout.__aenter__()
        self.api.opened(self.timeout)
        return self

    async def body_of(self, req: web.BaseRequest, what: str, limit_bytes: int) -> bytes:
        """See `request.body_of`; before it is read there must be room for it."""
        length = req.content_length
        if length is None or length <= limit_bytes:
            self.taken = await self.api.budget.take(limit_bytes if length is None else length)
        return await request.body_of(req, what, limit_bytes)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.api.closed(self.timeout)
        if self.taken:
            self.api.budget.give(self.taken)
        try:
            await self.timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            outcome = UNKNOWN if self.ordered else NOT_APPLIED
            if self.api.stopping:
                error = errors.unavailable("stopping", "this replica is stopping", outcome)
            else:
                error = errors.timed_out(self.timeout_ms, outcome)
            self._name_id(error)
            raise error from None
        self._name_id(error)

    def _name_id(self, error: BaseException | None) -> None:
        if self.text_id and isinstance(error, Problem):
            error.headers.setdefault("Idempotency-Key", self.text_id)


def _origin_form(raw_path: str) -> str:
    """The path and query of a request target, which through a proxy may be a whole URL (RFC 9112, Section 3.2.2)."""
    if raw_path.startswith("/"):
        return raw_path
    _, _, rest = raw_path.partition("://")
    return "/" + rest.partition("/")[2]


def _is_json(content_type: str) -> bool:
    media, _, parameters = content_type.lower().partition(";")
    charset = parameters.strip().removeprefix("charset=").strip('"') if "charset=" in parameters else "utf-8"
    return media.strip() == _JSON and charset in ("utf-8", "utf8", "us-ascii")


def _writes(transaction: Transaction) -> bool:
    """Whether it can change anything: if not, its outcome is never in doubt."""
    return any(type(o) not in (Get, Range) for o in (*transaction.success, *transaction.failure))


class _Connection(web.RequestHandler):
    """What is no HTTP at all, is answered as a problem too."""

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        if status == 400:
            detail = " ".join((message or "not an HTTP request").split())[:200]
            response = Problem(400, "invalid", detail).response()
        else:
            response = errors.internal().response()
        response.force_close()
        return response


class ApiServer(web.Server):
    """Protocol factory for `loop.create_server`."""

    def __init__(self, api: HttpApi):
        super().__init__(api.handle)

    def __call__(self) -> web.RequestHandler:
        return _Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            auto_decompress=False,
            keepalive_timeout=75.0,
            lingering_time=LINGER_SECONDS,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
        )
