"""The asynchronous client.

How a request is made. A write gets its id (a UUIDv7) before its first attempt and keeps it through every retry: the
cluster applies an id once and answers every repetition with the first result, so a retry is always safe. An attempt
goes to the best replica that `routing.Router` knows. It is repeated, elsewhere, when the connection failed, when
nothing intelligible came back in `attempt_timeout`, or when the server's problem says `retryable`; never otherwise.
When `timeout` has passed, the client says what is certain: `Unavailable` if no attempt can have had an effect, else
`OutcomeUnknown`. What an earlier, unanswered attempt did is settled only by an answer that came out of the order itself
(a result, a failed condition, an expired id), or by a refusal that every replica would give at any time. An id that the
caller brings may have been sent before.
"""

from __future__ import annotations

import asyncio
import io
import random
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import quote_from_bytes

import aiohttp
import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_before_delay, wait_random_exponential
from yarl import URL

from client_sdk import codec
from client_sdk.codec import MalformedAnswer, Page
from client_sdk.errors import (
    UNKNOWN,
    ConditionFailed,
    Conflict,
    Expired,
    IdReused,
    InvalidRequest,
    KvError,
    OutcomeUnknown,
    TransactionFailed,
    Unavailable,
)
from client_sdk.interactive import InteractiveTransaction
from client_sdk.routing import ClusterView, Router, find_urls
from kvstore.api.model import (
    Compare,
    Found,
    InvalidTransaction,
    Operation,
    Range,
    Result,
    Transaction,
    validate,
)
from multicast.types import ZERO, MessageId, Timestamp, is_uuid7, new_message_id

T = TypeVar("T")

TIMEOUT_SECONDS = 10.0
ATTEMPT_TIMEOUT_SECONDS = 2.0
REFRESH_SECONDS = 2.0
CONNECT_TIMEOUT_SECONDS = 1.0
ANSWER_GRACE_SECONDS = 0.25
REFRESH_PAUSE_SECONDS = 0.1
LARGE_BODY_BYTES = 1 << 20

SETTLED = {"failed": TransactionFailed, "expired": Expired, "id_reused": IdReused}
"""Problems that come out of the order: they also say what became of earlier attempts under the same id."""

OF_THE_MOMENT = ("id_expired", "id_in_future")
"""Refusals that are not retryable but say nothing of attempts made at another time."""

_backoff = wait_random_exponential(multiplier=0.02, max=1.0)


class Answer(NamedTuple):
    """A successful answer, or 404 where the request allows it."""

    status: int
    etag: str | None
    body: bytes


class _Again(Exception):
    """This attempt did not settle it; the next one may. pause: seconds that the server asked for."""

    def __init__(self, detail: str, code: str = "", status: int = 0, pause: float = 0.0):
        super().__init__(detail)
        self.code = code
        self.status = status
        self.pause = pause


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.pause if isinstance(error, _Again) else 0.0
    return asked + float(_backoff(state))


class _Call:
    """One request and what its attempts have shown so far.

    message_id None: a read, which can have no effect. only: the one replica to ask; None: whoever is best.
    """

    __slots__ = (
        "accepts",
        "body",
        "deadline",
        "headers",
        "maybe_sent",
        "message_id",
        "method",
        "only",
        "path",
        "tried",
    )

    def __init__(
        self,
        method: str,
        path: str,
        *,
        message_id: MessageId | None = None,
        headers: dict[str, str] | None = None,
        sent_before: bool = False,
        body: bytes | None = None,
        accepts: tuple[int, ...] = (200, 201),
        only: str | None = None,
    ):
        self.method = method
        self.path = path
        self.message_id = message_id
        self.headers = dict(headers or ())
        self.body = body
        self.accepts = accepts
        self.only = only
        self.deadline = 0.0
        self.maybe_sent = sent_before
        self.tried: set[str] = set()
        if message_id is not None:
            self.headers["Idempotency-Key"] = str(uuid.UUID(bytes=message_id))

    def give_up(self, detail: str, code: str = "", status: int = 0) -> KvError:
        """The exception for a call that ends without an answer that settles it."""
        kind = OutcomeUnknown if self.maybe_sent and self.message_id is not None else Unavailable
        return kind(detail, code=code, status=status, message_id=self.message_id)


def as_bytes(text: bytes | str) -> bytes:
    """Keys and values may be given as text; they are its UTF-8 bytes."""
    return text.encode() if isinstance(text, str) else text


def _key_path(key: bytes) -> str:
    # Dots too: "." and ".." as whole segments would be resolved away on the road.
    return "/v1/kv/" + quote_from_bytes(key, safe="/-_~" if b"." not in key else "").replace(".", "%2E")


class AsyncClient:
    """A client of one cluster, for one event loop. Use it with `async with`, or `await close()` at the end.

    target: a base URL, several with commas or as a list, or the directory of a local cluster.
    timeout: seconds within which a request, with all its retries, is settled one way or the other; every method takes
        its own. Keep it well below the cluster's deduplication window (2 minutes by default).
    attempt_timeout: seconds after which an attempt that was not answered is repeated elsewhere. It is also what the
        server is told in `X-Timeout-Ms`.
    refresh: seconds after which the view of the cluster (shard map, leaders) is renewed in the background; failures
        renew it at once.
    ValueError if `target` is no URL and no cluster.
    """

    def __init__(
        self,
        target: str | Path | Sequence[str],
        *,
        timeout: float = TIMEOUT_SECONDS,
        attempt_timeout: float = ATTEMPT_TIMEOUT_SECONDS,
        refresh: float = REFRESH_SECONDS,
        rng: random.Random | None = None,
    ):
        if timeout <= 0 or attempt_timeout <= 0 or refresh <= 0:
            raise ValueError("timeout, attempt_timeout and refresh are positive numbers of seconds")
        self.router = Router(find_urls(target), rng or random.Random())
        self._timeout = timeout
        self._attempt_timeout = attempt_timeout
        self._refresh_every = refresh
        self._session: aiohttp.ClientSession | None = None
        self._refreshing: asyncio.Task[bool] | None = None
        self._refreshed_at = float("-inf")

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. Idempotent; the client is of no use afterwards."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    # --- requests --------------------------------------------------------------------------------------------------

    async def get(self, key: bytes | str, *, timeout: float | None = None) -> Found | None:
        """The key's value and version; None if it is absent. Linearizable."""
        name = as_bytes(key)
        call = _Call("GET", _key_path(name), accepts=(200, 404))

        def parse(answer: Answer) -> Found | None:
            return None if answer.status == 404 else Found(name, answer.body, codec.parse_etag(answer.etag))

        return await self._run(call, (name,), parse, timeout)

    async def put(
        self,
        key: bytes | str,
        value: bytes | str,
        *,
        if_version: Timestamp | None = None,
        if_absent: bool = False,
        message_id: MessageId | None = None,
        timeout: float | None = None,
    ) -> Timestamp:
        """Write, and return the new version. ConditionFailed unless the key has `if_version` (or is absent, for
        `if_absent`). `message_id`: to repeat a request whose outcome is unknown."""
        name = as_bytes(key)
        call = _Call(
            "PUT",
            _key_path(name),
            message_id=self._id(message_id),
            sent_before=message_id is not None,
            headers=_conditions(if_version, if_absent),
            body=as_bytes(value),
        )
        return await self._run(call, (name,), lambda answer: codec.parse_write(answer.body)[0], timeout)

    async def delete(
        self,
        key: bytes | str,
        *,
        if_version: Timestamp | None = None,
        message_id: MessageId | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Delete; whether the key was there. ConditionFailed unless it has `if_version`."""
        name = as_bytes(key)
        call = _Call(
            "DELETE",
            _key_path(name),
            message_id=self._id(message_id),
            sent_before=message_id is not None,
            headers=_conditions(if_version, False),
        )
        return await self._run(call, (name,), lambda answer: codec.parse_write(answer.body)[1], timeout)

    async def txn(
        self,
        compare: Sequence[Compare] = (),
        success: Sequence[Operation] = (),
        failure: Sequence[Operation] = (),
        *,
        message_id: MessageId | None = None,
        timeout: float | None = None,
    ) -> Result:
        """If every comparison holds, do all of `success`, else all of `failure`; atomically, over any number of shards.

        Which branch ran is `Result.succeeded`. InvalidRequest before anything is sent if a limit is broken.
        """
        transaction = Transaction(tuple(compare), tuple(success), tuple(failure))
        try:
            validate(transaction)
        except InvalidTransaction as error:
            raise InvalidRequest(str(error), code="invalid", field=error.field) from None
        call = _Call(
            "POST",
            "/v1/txn",
            message_id=self._id(message_id),
            sent_before=message_id is not None,
            headers={"Content-Type": "application/json"},
            body=codec.transaction_body(transaction),
        )
        keys: list[bytes] | None = [c.key for c in transaction.compare]
        for operation in (*transaction.success, *transaction.failure):
            if isinstance(operation, Range):
                keys = None
                break
            assert keys is not None
            keys.append(operation.key)
        return await self._run(call, keys, lambda answer: codec.parse_transaction(answer.body, transaction), timeout)

    async def scan_pages(
        self, prefix: bytes | str = b"", *, page_size: int = 100, timeout: float | None = None
    ) -> AsyncIterator[Page]:
        """The keys that begin with `prefix`, in order, page by page. Each page is one point of the order, and a later
        page a later one: what is written meanwhile may be seen or not. `timeout` is for each page."""
        token: str | None = None
        while True:
            path = f"/v1/kv?prefix={quote_from_bytes(as_bytes(prefix), safe='')}&limit={page_size}"
            if token is not None:
                path += f"&page_token={quote_from_bytes(token.encode(), safe='')}"
            page = await self._run(_Call("GET", path), None, lambda answer: codec.parse_page(answer.body), timeout)
            yield page
            token = page.next_page_token
            if token is None:
                return

    async def scan(
        self, prefix: bytes | str = b"", *, page_size: int = 100, timeout: float | None = None
    ) -> AsyncIterator[Found]:
        """The entries of `scan_pages`, one by one."""
        async for page in self.scan_pages(prefix, page_size=page_size, timeout=timeout):
            for entry in page.entries:
                yield entry

    async def cluster(self, url: str | None = None, *, timeout: float | None = None) -> dict[str, Any]:
        """What the replica at `url`, or any that answers, says at `GET /v1/cluster`, as it is."""
        call = _Call("GET", "/v1/cluster", only=url)
        return await self._run(call, (), lambda answer: _json_object(answer.body), timeout)

    # --- interactive transactions ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def transaction(self, *, timeout: float | None = None) -> AsyncIterator[InteractiveTransaction]:
        """One attempt at an interactive transaction; commits where the block ends, unless it raised.

        Conflict if something that was read has changed since. See `interactive.InteractiveTransaction`.
        """
        transaction = InteractiveTransaction(self, timeout)
        yield transaction
        await transaction.commit()

    async def transact(
        self, function: Callable[[InteractiveTransaction], Awaitable[T]], *, timeout: float | None = None
    ) -> T:
        """Run `function` in an interactive transaction, again after each Conflict, until it commits; its return value.

        `function` must be fit to run several times. After `timeout` seconds the last Conflict is raised. An
        OutcomeUnknown is raised at once: running again could do the work twice.
        """
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        async for attempt in AsyncRetrying(**conflict_policy(deadline)):
            with attempt:
                async with self.transaction(timeout=deadline - time.monotonic()) as transaction:
                    result = await function(transaction)
        return result

    # --- attempts --------------------------------------------------------------------------------------------------

    def _id(self, given: MessageId | None) -> MessageId:
        if given is None:
            return new_message_id(time.time_ns() // 1000, secrets.randbits(62))
        if not is_uuid7(given):
            raise InvalidRequest("message_id: 16 bytes that are a UUIDv7", code="invalid", field="message_id")
        return given

    async def _run(
        self, call: _Call, keys: Sequence[bytes] | None, parse: Callable[[Answer], T], timeout: float | None
    ) -> T:
        """Make `call` until it is settled. keys: what it touches, for the routing; None: possibly every shard."""
        seconds = self._timeout if timeout is None else timeout
        loop = asyncio.get_running_loop()
        call.deadline = loop.time() + seconds
        await self._keep_view_fresh(call.deadline)
        retrying = AsyncRetrying(
            stop=stop_before_delay(call.deadline - loop.time()),
            wait=_wait,
            retry=retry_if_exception_type(_Again),
            reraise=True,
        )
        try:
            return await retrying(self._attempt, call, keys, parse)
        except _Again as last:
            raise call.give_up(f"not settled in {seconds:g} s; at last: {last}", last.code, last.status) from last

    async def _attempt(self, call: _Call, keys: Sequence[bytes] | None, parse: Callable[[Answer], T]) -> T:
        loop = asyncio.get_running_loop()
        shards = self.router.shards_of(keys or (), everything=keys is None)
        urls = [call.only] if call.only else self.router.candidates(shards, loop.time())
        if call.tried.issuperset(urls):
            call.tried.clear()
        url = next(u for u in urls if u not in call.tried)
        call.tried.add(url)
        try:
            status, headers, body = await self._exchange(url, call)
            if status in call.accepts and (status != 404 or _code(body) == "not_found"):
                self.router.trust(url)
                return parse(Answer(status, headers.get("ETag"), body))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise self._failed(url, f"no connection to {url}: {error}") from error
        except (aiohttp.ClientError, OSError, TimeoutError, MalformedAnswer) as error:
            call.maybe_sent = True
            raise self._failed(url, f"{url}: {error or type(error).__name__}") from error
        self._raise_problem(call, url, status, headers, body)

    async def _exchange(self, url: str, call: _Call) -> tuple[int, Any, bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_SECONDS),
            )
            # aiohttp repeats a PUT or DELETE by itself when a kept connection breaks. Then an attempt that may have had
            # an effect would hide behind the refusal of its repetition. There is no public switch.
            self._session._retry_connection = False
        remaining = max(call.deadline - asyncio.get_running_loop().time(), 0.001)
        told = min(self._attempt_timeout, remaining)
        # aiohttp warns of large bodies that are bytes: it would write them in one go.
        body = io.BytesIO(call.body) if call.body and len(call.body) > LARGE_BODY_BYTES else call.body
        told_max_ms = self.router.view.timeout_max_ms if self.router.view else int(told * 1000)
        call.headers["X-Timeout-Ms"] = str(max(1, min(int(told * 1000), told_max_ms)))
        async with (
            asyncio.timeout(min(told + ANSWER_GRACE_SECONDS, remaining)),
            self._session.request(
                call.method, URL(url + call.path, encoded=True), headers=call.headers, data=body
            ) as response,
        ):
            return response.status, response.headers, await response.read()

    def _failed(self, url: str, detail: str, code: str = "", status: int = 0, pause: float = 0.0) -> _Again:
        self.router.suspect(url, asyncio.get_running_loop().time())
        self._start_refresh()
        return _Again(detail, code, status, pause)

    def _raise_problem(self, call: _Call, url: str, status: int, headers: Any, body: bytes) -> NoReturn:
        """Every answer that is no success ends here."""
        problem = codec.parse_problem(body)
        if problem is None:
            call.maybe_sent = True
            raise self._failed(url, f"{url} answered {status} without a problem description", "", status)
        facts: dict[str, Any] = {
            "code": problem.code,
            "status": status,
            "field": problem.field,
            "message_id": call.message_id,
        }
        detail = problem.detail or problem.title
        if problem.code in SETTLED:
            raise SETTLED[problem.code](detail, **facts)
        if status == 412:
            raise ConditionFailed(detail, **facts)
        if problem.code in OF_THE_MOMENT:
            raise call.give_up(detail, problem.code, status) if call.maybe_sent else InvalidRequest(detail, **facts)
        call.maybe_sent |= problem.outcome == UNKNOWN
        if problem.retryable:
            pause = _seconds(headers.get("Retry-After")) if problem.code == "overloaded" else 0.0
            raise self._failed(url, f"{url}: {detail}", problem.code, status, pause)
        if problem.outcome == UNKNOWN or status >= 500:
            raise call.give_up(detail, problem.code, status)
        raise InvalidRequest(detail, **facts)

    # --- the view of the cluster -----------------------------------------------------------------------------------

    async def _keep_view_fresh(self, deadline: float) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._refreshed_at > self._refresh_every:
            self._start_refresh()
        if self.router.view is None and self._refreshing is not None:
            # Not needed for correctness: without a view the seeds are asked. So it gets one attempt's time at most.
            await asyncio.wait([self._refreshing], timeout=min(self._attempt_timeout, deadline - now))

    def _start_refresh(self) -> None:
        now = asyncio.get_running_loop().time()
        running = self._refreshing is not None and not self._refreshing.done()
        if not running and now - self._refreshed_at > REFRESH_PAUSE_SECONDS:
            self._refreshed_at = now
            self._refreshing = asyncio.create_task(self._refresh())

    async def _refresh(self) -> bool:
        """Ask one replica after the other for the view, until one answers; whether one did."""
        loop = asyncio.get_running_loop()
        for url in self.router.candidates((), loop.time()):
            call = _Call("GET", "/v1/cluster")
            call.deadline = loop.time() + CONNECT_TIMEOUT_SECONDS
            try:
                status, _, body = await self._exchange(url, call)
                if status == 200:
                    self.router.learn(ClusterView.parse(body))
                    return True
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
                pass
            self.router.suspect(url, loop.time())
        return False


def conflict_policy(deadline: float) -> dict[str, Any]:
    """tenacity's arguments for running a transaction again after a Conflict, until `deadline` (monotonic clock)."""
    return {
        "stop": stop_before_delay(deadline - time.monotonic()),
        "wait": wait_random_exponential(multiplier=0.01, max=0.5),
        "retry": retry_if_exception_type(Conflict),
        "reraise": True,
    }


def _conditions(if_version: Timestamp | None, if_absent: bool) -> dict[str, str]:
    if if_absent or if_version == ZERO:
        return {"If-None-Match": "*"}
    return {} if if_version is None else {"If-Match": f'"{if_version}"'}


def _code(body: bytes) -> str:
    problem = codec.parse_problem(body)
    return problem.code if problem else ""


def _seconds(text: str | None) -> float:
    return float(text) if text and text.isdecimal() else 0.0


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise MalformedAnswer(f"not a JSON object: {error}") from error
