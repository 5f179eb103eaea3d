"""Requests from their head to their answer: the time and the memory that each may take, and what is known of its fate.

A body may arrive up to `OWN_BYTES` at its connection's own expense, within `OWN_SECONDS`, for its request is one of
those that may be open. Of a larger one what has come takes room among those that arrive: whoever announces much and
sends nothing holds nothing, and who stops sending is refused, because what he has sent is held. Once a body is whole it
waits for room among those that are ordered, which no unfinished one can take.

How many may be under way, from their whole body to their answer, says `kvstore.http.admission`; it is asked before
anything is done for a request.
"""

from __future__ import annotations

import asyncio
import gzip
import math
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from kvstore.api import forms
from kvstore.api.forms import Form
from kvstore.api.http1 import Head, origin_form
from kvstore.api.model import Compare, Consistency, Transaction
from kvstore.api.problem import NOT_APPLIED, UNKNOWN
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Refused
from kvstore.http import errors
from kvstore.http.admission import Admission
from kvstore.http.answers import Response, takes_gzip
from kvstore.http.budget import Arrivals, ByteBudget
from kvstore.http.errors import Problem
from kvstore.http.metrics import Metrics
from kvstore.http.record import Record
from kvstore.limits import Limits
from multicast.logs import structlog
from multicast.types import MessageId, Timestamp

OWN_BYTES = 64 * 1024
"""What a connection may hold of a body, or of further requests, without having asked for room."""
OWN_SECONDS = 5.0
"""How long a body may take to become whole, or larger than that."""
LEAST_BYTES, LEAST_SECONDS = 32 * 1024, 1.0
"""Of a body that holds room at least so much has to come in so many seconds."""
DEADLINE_GRAIN_SECONDS = 0.002
REFUSAL_SECONDS, REFUSALS_PER_SECOND = 0.02, 10_000
"""Refusals leave this often, together, and so many, within a turn of the loop, too: clients that ask again at once,
whatever `Retry-After` says, shall not have most of our time. One takes about 20 us."""
UNSENT_BYTES_MAX = 256 * 1024 * 1024
"""Of answers that clients do not take; while it is more no request for data is served."""
REFUSED = (503, 507)
"""Statuses of what was not served though nothing is wrong with it."""
GZIP_BYTES = 16 * 1024
"""Answers of so many bytes are compressed for those who accept it."""
CORS = (
    b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n"
    b"Access-Control-Expose-Headers: ETag, Idempotency-Key, Kv-Create-Version, Kv-Lease, Kv-Read-At\r\n"
)

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,64}")
_log = structlog.get_logger("kvstore.http")


class Caller(Protocol):
    """The connection behind a call."""

    def answered(self, call: Call) -> None:
        """Its response is there."""

    def go_on(self) -> None:
        """There is room for the body that it reads."""

    def send_continue(self, call: Call) -> None:
        """Tell the client that its body is waited for."""

    def push(self, data: bytes, last: bool) -> None:
        """More of the answer that streams."""

    @property
    def clogged(self) -> bool:
        """Whether the client does not take what was written."""

    def abort(self) -> None:
        """End the connection."""

    @property
    def address(self) -> str:
        """The client's; empty if it is not known."""


class Stream(Protocol):
    """What makes an answer that goes on."""

    def ready(self) -> None:
        """Its head has been written, or what followed is taken: more may come."""

    def gone(self) -> None:
        """The client has gone."""

    def stop(self) -> None:
        """The server stops."""


class Call:
    """One request. `response` is None until it is answered.

    holder: the id of its token, empty if no token was shown; by: the same, but empty for a holder who may do
    everything. recorded: see `Record.kind`. deadline: `time.monotonic` seconds; inf before `Calls.open`. ordered:
    whether it may have had an effect. text_id: of a write, once it has one. body_bytes_max, then: set while the body is
    waited for, see `read_body`. undecided: whether it may use the route is not decided yet.
    """

    # What a handler keeps between the head of a request, its body and its outcome.
    key: bytes
    conditions: tuple[Compare, ...]
    transaction: Transaction
    message_id: MessageId = NO_ID
    at: Timestamp | None = None
    freshness: tuple[Consistency, int] = ("linearizable", 0)
    paged = False
    what: str
    body_bytes_max: int
    timeout_ms: int

    response: Response | None = None
    closes = False
    ordered = False
    token = 0
    text_id = ""
    stream: Stream | None = None
    by = holder = recorded = ""
    undecided = False
    _refused = False
    then: Callable[[Call, bytes], None] | None = None
    deadline = math.inf
    _request_id = ""
    _under_way_since = 0.0
    _ordering = 0
    _turn: asyncio.Task[int] | None = None
    _come = _come_before = 0
    _stuck = False
    _pace: asyncio.TimerHandle | None = None

    def __init__(self, calls: Calls, caller: Caller, head: Head):
        self.calls = calls
        self.caller = caller
        self.head = head
        self.began = time.monotonic()
        target = head.target
        self.path, _, self.query = (target if target[0] == "/" else origin_form(target)).partition("?")
        self.route = self.path

    @property
    def form(self) -> Form:
        """The form of its answer, unless that is a problem."""
        return forms.accepted(self.head.fields.values.get("accept", ""))

    @property
    def concurrent(self) -> bool:
        """Whether what follows it on its connection need not wait for it."""
        return self.head.fields.values.get("x-concurrent") == "1"

    @property
    def request_id(self) -> str:
        """What its client calls it (X-Request-Id), or we do."""
        given = self.head.fields.values.get("x-request-id", "")
        self._request_id = self._request_id or (given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8))
        return self._request_id

    @property
    def address(self) -> str:
        """Of its client; empty if it is not known."""
        return self.caller.address

    @property
    def goes_on(self) -> bool:
        """Whether its answer has no end."""
        return self.stream is not None

    # -- answering ----------------------------------------------------------------------------------------------------

    def step(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call `function(self, *arguments)`, unless the request is answered already; if anything goes wrong, that is
        the answer."""
        if self.response is not None:
            return
        try:
            function(self, *arguments)
        except Problem as problem:
            self.fail(problem)
        except Exception:
            _log.exception("our own error", route=self.route, method=self.head.method, request_id=self.request_id)
            self.fail(errors.internal())

    def fail(self, problem: Problem) -> None:
        """Answer with a problem. The id of a write goes out with every answer, good or bad."""
        problem.request_id = self.request_id
        if self.text_id:
            problem.id = self.text_id
            problem.headers.setdefault("Idempotency-Key", self.text_id)
        self.closes = problem.status in (408, 413)
        if problem.status in REFUSED:
            self.calls.metrics.refused(problem.code)
        self.answer(problem.response())

    def answer_large(self, headers: bytes, body: bytes) -> None:
        """Success, compressed if the client likes that and it is worth its while; not by the event loop, which would
        stand still meanwhile."""
        if len(body) < GZIP_BYTES or not takes_gzip(self.head.fields.values.get("accept-encoding", "")):
            self.answer(Response(200, headers, body))
            return
        headers += b"Content-Encoding: gzip\r\nVary: Accept-Encoding\r\n"
        work = asyncio.get_running_loop().run_in_executor(None, gzip.compress, body, 1)
        work.add_done_callback(lambda done: self.step(lambda call: call.answer(Response(200, headers, done.result()))))

    def answer(self, response: Response) -> None:
        """The end of this call."""
        if self.response is None:
            if self.calls.cors_origins and (origin := self.calls.origin_of(self)):
                response = response._replace(headers=response.headers + CORS % origin.encode())
            self.response = response
            self.leave()
            if self.stream is not None and not response.streams:
                self.stream.gone()
            seconds = time.monotonic() - self.began
            self.calls.metrics.observe(self.head.method, self.route, response.status, seconds)
            self.calls.record.ended(self, response.status, seconds)
            self.caller.answered(self)

    def time_up(self) -> None:
        """Its time is over: answer so."""
        if self.token:
            self.calls.forget(self.token)
        outcome = UNKNOWN if self.ordered else NOT_APPLIED
        if self.calls.stopping:
            self.fail(errors.unavailable("stopping", "this replica is stopping", outcome))
        else:
            self.fail(errors.timed_out(self.timeout_ms, outcome))

    def may_be_old(self, refused: Refused) -> bool:
        """Whether it was refused by rights that may have been extended since. True at most once."""
        again = refused.code == "forbidden" and not self._refused
        self._refused = True
        return again

    def under_way(self) -> None:
        """Everything is here: from now on it is the replica that its client waits for. Idempotent."""
        if not self._under_way_since:
            self._under_way_since = time.monotonic()
            self.calls.admission.begin(self._under_way_since)

    def leave(self) -> None:
        """Give back what the call has taken: it is answered, or its client has gone before all of it was read."""
        self.calls.close(self)
        if self._under_way_since:
            served = self.response is not None and self.response.status not in REFUSED
            self.calls.admission.end(self._under_way_since, time.monotonic(), served)
            self._under_way_since = 0.0
        if self._ordering:
            self.calls.ordering.give(self._ordering)
            self._ordering = 0
        if self.then is not None:  # its body was waited for
            self.then = None
            self._arrived()
            if self._turn is not None:
                self._turn.cancel()

    # -- its body -----------------------------------------------------------------------------------------------------

    def read_body(self, what: str, bytes_max: int, then: Callable[[Call, bytes], None]) -> None:
        """Have the body read, and go on with it once it is whole and there is room for it.

        what: the subject of the sentence that refuses a larger one."""
        self.what, self.body_bytes_max = what, bytes_max
        fields = self.head.fields
        if fields.length is not None and fields.length > bytes_max:
            raise errors.too_large(what, bytes_max)
        if fields.values.get("content-encoding", "identity").lower() != "identity":
            detail = "Content-Encoding: bodies are taken as they are"
            raise Problem(415, "unsupported_type", detail, field="Content-Encoding")
        self.then = then
        if self.head.expects_continue:
            self.caller.send_continue(self)

    @property
    def waits_for_room(self) -> bool:
        return self._turn is not None or self._stuck

    def body_grew(self, size: int) -> None:
        """So much of the body has come, and it is not whole: more is read when there is room for this."""
        if size <= OWN_BYTES:
            if self._pace is None:
                self._pace = asyncio.get_running_loop().call_later(OWN_SECONDS, self._stalled, OWN_BYTES, OWN_SECONDS)
            return
        first, self._come = not self._come, size
        self._stuck = not self.calls.arriving.grow(self, size, self._may_arrive)
        if first:
            self._end_pace()
            self._keep_pace()

    def _may_arrive(self) -> None:
        self._stuck = False
        self.caller.go_on()

    def _keep_pace(self) -> None:
        """Again and again, until it is whole: enough of it must have come, unless it was we who did not read."""
        if self._pace is not None and not self._stuck and self._come - self._come_before < LEAST_BYTES:
            self._stalled(LEAST_BYTES, LEAST_SECONDS)
            return
        self._come_before = 0 if self._stuck else self._come
        self._pace = asyncio.get_running_loop().call_later(LEAST_SECONDS, self._keep_pace)

    def _stalled(self, least_bytes: int, seconds: float) -> None:
        self._pace = None
        self.fail(errors.too_slow(least_bytes, seconds))

    def _end_pace(self) -> None:
        if self._pace is not None:
            self._pace.cancel()
            self._pace = None

    def _arrived(self) -> None:
        """The body holds no more room among those that arrive."""
        self._end_pace()
        if self._come:
            self.calls.arriving.leave(self)

    def body_read(self, body: bytes) -> None:
        """The whole body is here. From now on the call may wait, and it is not its client who is waited for."""
        self._end_pace()
        self.under_way()
        if self.calls.ordering.take_now(len(body)):
            self._ordering = len(body)
            self._go_on(body)
        else:
            self._take(self.calls.ordering, len(body), partial(self._may_be_ordered, body))

    def _may_be_ordered(self, body: bytes, size: int) -> None:
        self._ordering = size
        self._go_on(body)

    def _go_on(self, body: bytes) -> None:
        self._arrived()
        then, self.then = self.then, None
        assert then is not None
        self.step(then, body)

    def _take(self, budget: ByteBudget, size: int, granted: Callable[[int], None]) -> None:
        """Wait in line."""

        def done(turn: asyncio.Task[int]) -> None:
            if turn.cancelled():
                return
            if self.then is None:  # answered in this very turn of the loop
                budget.give(turn.result())
                return
            self._turn = None
            granted(turn.result())

        self._turn = asyncio.get_running_loop().create_task(budget.take(size))
        self._turn.add_done_callback(done)


class Calls:
    """The open calls of one server: their deadlines, the room for their bodies, and their end.

    forget(token): nobody waits for that answer of the replica any longer. record: of those that are answered.
    """

    def __init__(
        self, limits: Limits, metrics: Metrics, forget: Callable[[int], None], record: Record,
        cors_origins: Sequence[str] = (),
    ):  # fmt: skip
        self.record = record
        self.cors_origins = frozenset(cors_origins)
        self.metrics = metrics
        self.forget = forget
        self.stopping = False
        self.admission = metrics.admission = Admission(limits.in_flight_requests_max)
        many = f"in_flight_requests_max = {limits.in_flight_requests_max} requests are open"
        self._too_many = errors.unavailable("overloaded", many).response()
        late = "more requests wait here than have lately been answered in time"
        self._too_late = errors.unavailable("overloaded", late).response()
        much = "too many bytes of answers wait here for clients that do not take them"
        self._too_much = errors.unavailable("overloaded", much).response()
        self.unsent_bytes: Callable[[float], int] = lambda now: 0
        """How many bytes these are now; whoever has the connections says it."""
        self._refused: deque[tuple[Call, Response]] = deque()
        self._refused_at = 0.0
        """When some of them were answered last, or the first of them came."""
        self._refusing: asyncio.TimerHandle | None = None
        self.arriving = Arrivals(limits.in_flight_bytes_max)
        self.ordering = ByteBudget(limits.in_flight_bytes_max)
        self.streams: dict[Stream, None] = {}
        self._open: dict[Call, None] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self._idle = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def origin_of(self, call: Call) -> str:
        """The origin of a page that may see the answer; empty if none may."""
        origin = call.head.fields.values.get("origin", "")
        return origin if origin in self.cors_origins else ""

    def check_page(self, call: Call) -> None:
        """Problem: it comes from a web page of somebody else. (Any browser sends such a request, to whatever its
        network reaches.)"""
        origin = call.head.fields.values.get("origin")
        if origin is None or origin in self.cors_origins:
            return
        if origin.partition("://")[2] != call.head.fields.values.get("host", ""):
            detail = f"Origin: cors_origins in cluster.json does not name {origin[:100]!r}"
            raise Problem(403, "forbidden", detail, field="Origin")

    def refuses(self, call: Call) -> bool:
        """Whether too many calls are under way already; if so, this one is soon answered with that."""
        if len(self._open) >= self.admission.under_way_max:
            reason, response = "open", self._too_many
        elif self.unsent_bytes(call.began) > UNSENT_BYTES_MAX:
            reason, response = "unsent", self._too_much
        elif self.admission.takes(call.began):
            return False
        else:
            reason, response = "late", self._too_late
        self.metrics.refused(reason)
        if not self._refused:
            self._refused_at = call.began
        self._refused.append((call, response))
        if self._refusing is None:
            self._refusing = asyncio.get_running_loop().call_later(REFUSAL_SECONDS, self._refuse_in_time)
        if call.began - self._refused_at >= REFUSAL_SECONDS:  # the timer's turn comes when all have been read
            self._refuse(call.began)
        return True

    def _refuse_in_time(self) -> None:
        self._refusing = None
        self._refuse(time.monotonic())
        if self._refused and self._refusing is None:
            self._refusing = asyncio.get_running_loop().call_later(REFUSAL_SECONDS, self._refuse_in_time)

    def _refuse(self, now: float) -> None:
        """Answer those that have been refused, or as many of them as the time since the last ones allows."""
        most = math.ceil((now - self._refused_at) * REFUSALS_PER_SECOND)
        self._refused_at = now
        for _ in range(min(len(self._refused), most)):
            call, response = self._refused.popleft()
            call.answer(response)

    def open(self, call: Call, timeout_ms: int) -> None:
        """From now on it has so much time."""
        call.timeout_ms = timeout_ms
        call.deadline = call.began + timeout_ms / 1000
        self._open[call] = None
        if call.deadline < self._alarm_at:
            self._set_alarm(call.deadline)

    def close(self, call: Call) -> None:
        """The call is over. Idempotent."""
        self._open.pop(call, None)
        if self.stopping and not self._open:
            self._idle.set()

    def _set_alarm(self, at: float) -> None:
        """One timer for all, armed no later than the first deadline. An earlier one stays: it looks again."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = asyncio.get_running_loop().call_at(at, self._on_alarm)

    def _on_alarm(self) -> None:
        now = time.monotonic()
        self._alarm, self._alarm_at = None, math.inf
        for call in [c for c in self._open if c.deadline <= now]:
            call.time_up()
        if self._open:
            self._set_alarm(max(min(c.deadline for c in self._open), now + DEADLINE_GRAIN_SECONDS))

    async def drain(self, deadline_seconds: float) -> int:
        """Wait for the open calls; what is open at the deadline is answered "unknown". Returns how many were."""
        self.stopping = True
        for stream in list(self.streams):
            stream.stop()
        if self._open:
            self._idle.clear()
            try:
                await asyncio.wait_for(self._idle.wait(), deadline_seconds)
            except TimeoutError:
                left = list(self._open)
                for call in left:
                    call.time_up()
                return len(left)
        return 0
