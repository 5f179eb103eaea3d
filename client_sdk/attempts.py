"""How a request is made: its attempts, and what is certain when the time is over.

A write gets its id (a UUIDv7) before its first attempt and keeps it through every retry: the cluster applies an id once
and answers every repetition with the first result, so a retry is always safe. An attempt goes to the best replica that
`routing.Router` knows. It is repeated, elsewhere, when the connection failed, when nothing intelligible came back in
`attempt_timeout`, or when the server's problem says `retryable`; never otherwise. If it is unanswered for a while, it
is made at another replica as well (`hedging`); the first answer that decides counts.

When `timeout` has passed, the client says what is certain: `Unavailable` if no attempt can have had an effect, else
`OutcomeUnknown`. What an earlier, unanswered attempt did is decided only by an answer that came out of the order itself
(a result, a failed condition, an expired id), or by a refusal that every replica would give at any time: not by one of
the moment, such as that a token is known no more. An id that the caller brings may have been sent before.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_before_delay, wait_random_exponential

from client_sdk import requests, watching
from client_sdk.connections import (
    CONNECT_TIMEOUT_SECONDS,
    Begun,
    Connection,
    Connections,
    NotConnected,
    Received,
    Transport,
    Untrusted,
)
from client_sdk.errors import (
    ClosedClient,
    Compacted,
    ConditionFailed,
    Denied,
    Expired,
    ForeignLoop,
    IdReused,
    InvalidRequest,
    KvError,
    OutcomeUnknown,
    ResultsForgotten,
    TransactionFailed,
    Unavailable,
)
from client_sdk.hedging import Hedges
from client_sdk.observing import Observed, OnDone
from client_sdk.requests import ARGUMENTS, Answer, Request, positive_seconds
from client_sdk.routing import ClusterView, Router
from kvstore.api.answers import MalformedAnswer
from kvstore.api.cluster import LimitsJson
from kvstore.api.events import ENDED, LAGGED, Event
from kvstore.api.problem import UNKNOWN, parse_problem
from kvstore.api.rights import id_of
from multicast.types import Timestamp

T = TypeVar("T")

ANSWER_GRACE_SECONDS = 0.25
REFRESH_PAUSE_SECONDS = 0.1
WATCH_PAUSE_SECONDS, WATCH_PAUSE_SECONDS_MAX = 0.05, 1.0
"""Before a watch goes on elsewhere."""
_NO_TIME = 0.001
"""With less than that left nobody is asked."""

ABSENT = ("not_found", "unknown_or_forgotten")
"""What a 404 says that is an answer; another one may come from something that is no replica."""
DECIDED = {"failed": TransactionFailed, "expired": Expired, "id_reused": IdReused, "compacted": Compacted}
"""Problems that come out of the order: they also say what became of earlier attempts under the same id, if any."""

OF_THE_MOMENT = ("id_expired", "id_in_future")
"""Refusals that are not retryable but say nothing of attempts made at another time; as those for want of a right."""

_backoff = wait_random_exponential(multiplier=0.02, max=1.0)


class _Again(Exception):
    """This attempt did not decide it; the next one may. pause: seconds that the server asked for."""

    def __init__(self, detail: str, code: str = "", status: int = 0, pause: float = 0.0):
        super().__init__(detail)
        self.code = code
        self.status = status
        self.pause = pause


def _wait(state: RetryCallState) -> float:
    """With a random share: those who were refused together should not come back together."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.pause if isinstance(error, _Again) else 0.0
    return asked * random.uniform(1.0, 2.0) + float(_backoff(state))


class _Call:
    """One request and what its attempts have shown so far. deadline: of the loop's clock. url: the replica that is
    asked, or has answered. maybe_sent: by an attempt that is over. hedged: the connections of hedges, which may still
    be made. strangers: who had no certificate that is trusted, or was of another cluster. seen: what `on_done` will be
    told of it."""

    __slots__ = ("deadline", "hedged", "maybe_sent", "request", "seen", "strangers", "tried", "url")

    seen: Observed

    def __init__(self, request: Request[Any], deadline: float):
        self.request = request
        self.deadline = deadline
        self.maybe_sent = request.sent_before
        self.hedged: tuple[Connection, ...] = ()
        self.tried: set[str] = set()
        self.url = ""
        self.strangers: set[str] = set()

    @property
    def in_doubt(self) -> bool:
        """Whether an attempt may have been received."""
        return self.maybe_sent or any(connection.made for connection in self.hedged)

    def give_up(
        self, detail: str, code: str = "", status: int = 0, unsent: type[KvError] = Unavailable, field: str = ""
    ) -> KvError:
        """The exception for a call that ends without an answer that decides it. unsent: its class if no attempt can
        have had an effect."""
        kind = OutcomeUnknown if self.in_doubt and self.request.message_id is not None else unsent
        return kind(detail, code=code, status=status, field=field, message_id=self.request.message_id)


class Attempts:
    """Makes requests, for one event loop. See `AsyncClient` for the arguments."""

    def __init__(
        self, router: Router, timeout: float, attempt_timeout: float, refresh: float, authority: Path | None = None,
        token: str | None = None, transport: Transport | None = None, on_done: OnDone | None = None,
    ):  # fmt: skip
        self.timeout = positive_seconds("timeout", timeout)
        self._router = router
        self.attempt_timeout = positive_seconds("attempt_timeout", attempt_timeout)
        self._refresh_every = positive_seconds("refresh", refresh)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._connections = Connections(authority, transport)
        self._fields = _authorization(os.environ.get("KVSTORE_TOKEN", "") if token is None else token)
        if router.cluster_id:
            self._fields += f"Kv-Cluster: {router.cluster_id}\r\n"
        self.hedges = Hedges()
        self.on_done = on_done
        self._refreshing: asyncio.Task[bool] | None = None
        self._refreshed_at = float("-inf")

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        self._own_loop()
        self._closed = True
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        await self.hedges.close()
        await self._connections.close()

    async def run(self, request: Request[T]) -> T:
        """Make `request` until its outcome is certain, or its time over."""
        seconds = self.timeout if request.timeout is None else request.timeout
        call = _Call(request, self._own_loop().time() + seconds)
        with Observed(self.on_done, request.method, request.path) as call.seen:
            if self._view_is_old() and not self._closed:
                await self._renew_view(call.deadline)
            try:
                return await self._attempt(request, call)
            except _Again as error:
                return await self._repeat(request, call, seconds, error)

    async def watch(
        self, query: str, after: Timestamp | None, progress: bool, seconds: float | None
    ) -> AsyncIterator[Event]:
        """The events of `GET /v1/watch`, by one replica after the other. seconds: for how long no replica may serve it;
        this begins where a stream ends, since a program that takes events slowly asks nobody meanwhile."""
        loop, patience = self._own_loop(), self.timeout if seconds is None else positive_seconds("timeout", seconds)
        call, pause = _Call(requests.cluster(), loop.time() + patience), WATCH_PAUSE_SECONDS
        while not self._closed:
            url, why, last = self._untried(self._router.anybody(loop.time()), call), "the stream ended", ""
            served = False
            left = max(call.deadline - loop.time(), _NO_TIME)
            begins, fields = min(self.attempt_timeout + ANSWER_GRACE_SECONDS, left), self._fields
            try:
                told = watching.events(self._connections, url, query, fields, after, begins)
                async with aclosing(told) as stream:
                    async for event in stream:
                        self._router.trust(url)
                        last, after, pause = event.kind, event.version, WATCH_PAUSE_SECONDS
                        served |= last != ENDED
                        if watching.is_told(event, progress):
                            yield event
            except watching.Refused as error:
                error.raise_if_final()
                why = str(error)
            except (OSError, TimeoutError, MalformedAnswer) as error:
                why = str(error) or "no answer"
            if served:
                call.deadline = loop.time() + patience
            if last != LAGGED:  # which says nothing against the replica
                self._failed(url, why)
            await asyncio.sleep(min(pause, max(call.deadline - loop.time(), 0)))
            if not served and call.deadline - loop.time() < _NO_TIME:
                raise call.give_up(f"nobody serves the watch for {patience:g} s; at last {url}: {why}")
            pause = min(2 * pause, WATCH_PAUSE_SECONDS_MAX)
        raise call.give_up("the client was closed", unsent=ClosedClient)

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        """The running loop: the first one is the client's."""
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise ForeignLoop("this client belongs to another event loop: make one for each loop, or use `Client`")
        return loop

    async def _repeat(self, request: Request[T], call: _Call, seconds: float, first: _Again) -> T:
        """The attempts after the first one; most requests need none."""
        retrying = AsyncRetrying(
            stop=stop_before_delay(call.deadline - asyncio.get_running_loop().time()),
            wait=_wait,
            retry=retry_if_exception_type(_Again),
            reraise=True,
        )
        made = iter([first])

        async def attempt() -> T:
            for error in made:
                raise error
            return await self._attempt(request, call)

        try:
            return await retrying(attempt)
        except _Again as last:
            raise call.give_up(f"not answered in {seconds:g} s; at last: {last}", last.code, last.status) from last

    async def _attempt(self, request: Request[T], call: _Call) -> T:
        if self._closed:
            raise call.give_up("the client was closed", unsent=ClosedClient)
        url = call.url = self._choose(request, call)
        call.seen.attempts += 1
        try:
            received = await self._exchange(url, call, None if request.only else partial(self._begun, call))
            url = call.url
            if _succeeds(request, received):
                self._router.trust(url)
                return _read(request, received)
        except NotConnected as error:
            if isinstance(error, Untrusted):
                self._met_stranger(call, url, str(error))
            raise self._failed(url, f"no connection to {url}: {error}") from error
        except (OSError, TimeoutError, MalformedAnswer) as error:
            call.maybe_sent = True
            raise self._failed(url, f"{url}: {error or type(error).__name__}") from error
        self._raise_problem(call, url, received)

    def _choose(self, request: Request[Any], call: _Call) -> str:
        """The best replica that this call has not tried."""
        now = asyncio.get_running_loop().time()
        shards = self._router.shards_of(request.keys or (), everything=request.keys is None)
        urls = [request.only] if request.only else self._router.candidates(shards, now)
        return self._untried(urls, call)

    def _untried(self, urls: list[str], call: _Call) -> str:
        """The best of these that this call has not tried; when it has tried all, the best."""
        if call.tried.issuperset(urls):
            call.tried.clear()
        url = next(u for u in urls if u not in call.tried)
        call.tried.add(url)
        return url

    async def _again(self, call: _Call) -> Received | None:
        """A second attempt beside an unanswered one: see `Hedges`. Whatever is answered, once connected the request was
        sent twice."""
        first, url = call.url, self._choose(call.request, call)
        if url == first:
            return None
        call.seen.attempts += 1
        call.seen.hedges += 1
        try:
            received = await self._exchange(url, call, partial(self._hedge_begun, call))
        except (OSError, TimeoutError):
            return None
        decides = received.status == 412 or _code(received.body) in DECIDED
        if not decides and not _tells_all(call.request, received):
            return None
        if call.url == first:
            call.url = url
            self._router.suspect(first, asyncio.get_running_loop().time())
        return received

    async def _exchange(self, url: str, call: _Call, begun: Begun | None = None) -> Received:
        request = call.request
        remaining = max(call.deadline - asyncio.get_running_loop().time(), 0.001)
        told = min(self.attempt_timeout, remaining)
        told_max_ms = self._router.view.timeout_max_ms if self._router.view else LimitsJson().timeout_max_ms
        told_ms = max(1, int(min(told * 1000, told_max_ms)))
        fields = f"{request.fields}{self._fields}X-Timeout-Ms: {told_ms}\r\n"
        seconds = min(told + ANSWER_GRACE_SECONDS, remaining)
        exchange = self._connections.exchange
        return await exchange(url, request.method, request.path, fields, request.body, seconds, begun)

    def _met_stranger(self, call: _Call, url: str, detail: str, code: str = "", status: int = 0) -> None:
        """It gives up when there is nobody else; who does not answer may be one of ours that comes back."""
        call.strangers.add(url)
        if call.strangers.issuperset(self._router.candidates((), 0.0)):
            raise call.give_up(f"{url}: {detail}", code, status)

    def _begun(self, call: _Call, answer: asyncio.Future[Received], connection: Connection) -> None:
        self.hedges.watch(answer, connection.retire, partial(self._again, call))

    def _hedge_begun(self, call: _Call, answer: asyncio.Future[Received], connection: Connection) -> None:
        call.hedged += (connection,)

    def _failed(self, url: str, detail: str, code: str = "", status: int = 0, pause: float = 0.0) -> _Again:
        self._router.suspect(url, asyncio.get_running_loop().time())
        self._start_refresh()
        return _Again(detail, code, status, pause)

    def _raise_problem(self, call: _Call, url: str, received: Received) -> NoReturn:
        """Raise what an answer other than success says."""
        status, fields, body = received
        problem = parse_problem(body)
        if problem is None:
            call.maybe_sent = True
            raise self._failed(url, f"{url} answered {status} without a problem description", "", status)
        field, detail = problem.field or "", problem.detail or problem.title
        if field in ARGUMENTS:
            detail, field = detail.replace(field, ARGUMENTS[field], 1), ARGUMENTS[field]
        if status == 500 and problem.request_id:
            detail += f" (as request {problem.request_id})"
        facts: dict[str, Any] = {
            "code": problem.code,
            "status": status,
            "field": field,
            "message_id": call.request.message_id,
        }
        if problem.code in DECIDED:
            raise DECIDED[problem.code](detail, **facts)
        if status == 412:
            raise ConditionFailed(detail, **facts)
        if status in (401, 403) or problem.code in OF_THE_MOMENT:
            unsent = InvalidRequest if problem.code in OF_THE_MOMENT else Denied
            raise call.give_up(detail, problem.code, status, unsent, field)
        call.maybe_sent |= problem.outcome == UNKNOWN
        if problem.code == "other_cluster":
            self._met_stranger(call, url, detail, problem.code, status)
        if problem.retryable:
            pause = _seconds(fields.get("retry-after")) if problem.code == "overloaded" else 0.0
            raise self._failed(url, f"{url}: {detail}", problem.code, status, pause)
        if problem.outcome == UNKNOWN or status >= 500:
            raise call.give_up(detail, problem.code, status)
        raise InvalidRequest(detail, **facts)

    # --- the view of the cluster -----------------------------------------------------------------------------------

    def _view_is_old(self) -> bool:
        now = asyncio.get_running_loop().time()
        return self._router.view is None or now - self._refreshed_at > self._refresh_every

    async def _renew_view(self, deadline: float) -> None:
        """Ask for the view; in the background, if there is one already."""
        now = asyncio.get_running_loop().time()
        if now - self._refreshed_at > self._refresh_every:
            self._start_refresh()
        if self._router.view is None and self._refreshing is not None:
            # Not needed for correctness: without a view the seeds are asked. So it gets one attempt's time at most, and
            # half of the call's.
            await asyncio.wait([self._refreshing], timeout=min(self.attempt_timeout, (deadline - now) / 2))

    def _start_refresh(self) -> None:
        now = asyncio.get_running_loop().time()
        running = self._refreshing is not None and not self._refreshing.done()
        if not running and not self._closed and now - self._refreshed_at > REFRESH_PAUSE_SECONDS:
            self._refreshed_at = now
            self._refreshing = asyncio.create_task(self._refresh())

    async def _refresh(self) -> bool:
        """Ask one replica after the other for the view, until one answers; whether one did."""
        loop = asyncio.get_running_loop()
        for url in self._router.candidates((), loop.time()):
            call = _Call(requests.cluster(), loop.time() + CONNECT_TIMEOUT_SECONDS)
            try:
                received = await self._exchange(url, call)
                if received.status == 200:
                    self._router.learn(ClusterView.parse(received.body))
                    return True
            except (OSError, TimeoutError, ValueError):
                pass
            self._router.suspect(url, loop.time())
        return False


def _authorization(token: str) -> str:
    """The line of a request's head; empty without a token."""
    if token and not id_of(token):
        raise ValueError("token: not a token, as `kvstore token create` prints one")
    return f"Authorization: Bearer {token}\r\n" if token else ""


def _succeeds(request: Request[Any], received: Received) -> bool:
    status = received.status
    return status in request.accepts and (status != 404 or _code(received.body) in ABSENT)


def _read(request: Request[T], received: Received) -> T:
    """What a success says. MalformedAnswer, or what the request's own `parse` makes of it."""
    status, fields, body = received
    more = [fields.get(name, "") for name in ("kv-read-at", "kv-create-version", "kv-lease")]
    try:
        return request.parse(Answer(status, fields.get("etag"), body, *more))
    except MalformedAnswer:
        raise
    except ValueError as error:
        raise MalformedAnswer(f"not what a replica answers: {error}") from error


def _tells_all(request: Request[Any], received: Received) -> bool:
    """Whether it is a success. Who was asked a second time may have forgotten results that the first will tell."""
    if not _succeeds(request, received):
        return False
    try:
        _read(request, received)
    except (MalformedAnswer, ResultsForgotten):
        return False
    except KvError:
        pass
    return True


def _code(body: bytes) -> str:
    problem = parse_problem(body)
    return problem.code if problem else ""


def _seconds(text: str | None) -> float:
    return float(text) if text and text.isdecimal() else 0.0
