"""Answers other than success, as exceptions (`kvstore.api.problem`)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvstore.api.http1 import PHRASES
from kvstore.api.model import RESULT_BYTES_MAX, OperationResult
from kvstore.api.problem import NOT_APPLIED, UNKNOWN, ProblemJson, encode_problem
from kvstore.core.messages import Answered, Refused
from kvstore.http.answers import Response

RETRY_AFTER_SECONDS = "1"

STATUS_OF_REFUSAL = {
    "invalid": 400,
    "forbidden": 403,
    "id_expired": 400,
    "id_in_future": 400,
    "unknown_or_forgotten": 404,
    "id_reused": 422,
    "expired": 409,
    "not_ready": 503,
    "overloaded": 503,
    "stopping": 503,
    "no_majority": 503,
    "full": 507,
    "timeout": 504,
    "compacted": 410,
    "future": 400,
}
DECIDED = ("expired",)
"""A refusal to tell an outcome that says it: the transaction had no effect. Any other one is of the moment."""


class Problem(Exception):
    """An answer other than success. Raised anywhere under a handler, rendered at the top. id: of the write, as text.
    request_id: of the call."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        retryable: bool = False,
        outcome: str = NOT_APPLIED,
        field: str = "",
        headers: dict[str, str] | None = None,
    ):
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.retryable = retryable
        self.outcome = outcome
        self.field = field
        self.id = self.request_id = ""
        self.headers = headers or {}

    def response(self) -> Response:
        body = ProblemJson(
            title=PHRASES[self.status],
            status=self.status,
            detail=self.detail,
            code=self.code,
            retryable=self.retryable,
            outcome=self.outcome,
            id=self.id or msgspec.UNSET,
            request_id=self.request_id or msgspec.UNSET,
            field=self.field or msgspec.UNSET,
        )
        headers = {"Content-Type": "application/problem+json", **self.headers}
        if self.status in (503, 507):
            headers["Retry-After"] = RETRY_AFTER_SECONDS
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return Response(self.status, lines.encode("ascii"), encode_problem(body))


def outcome_for(fields: Mapping[str, str]) -> str:
    """Of what is refused, now and for good, because of who asks: it has no effect; but under an id of its client's it
    may have been sent before, when he had the right to it. fields: of the request's head."""
    return UNKNOWN if "idempotency-key" in fields else NOT_APPLIED


def invalid(field: str, detail: str) -> Problem:
    """The request itself is wrong; it was not ordered."""
    return Problem(400, "invalid", f"{field}: {detail}" if field else detail, field=field)


def too_large(what: str, limit_bytes: int) -> Problem:
    """413. what: the subject of the sentence."""
    return Problem(413, "too_large", f"{what} has at most {limit_bytes} bytes", field="body")


def too_much_read() -> Problem:
    """422. What read alone has no result then that would be worth an answer."""
    most = f"more than result_bytes_max = {RESULT_BYTES_MAX} bytes of one shard"
    return Problem(422, "too_large", f"it reads {most}, or what it read was lost on its way: read it in parts")


def too_slow(least_bytes: int, seconds: float) -> Problem:
    """408: its request, or what has come of its body, takes room that others need."""
    detail = f"the body is not whole, and less than {least_bytes} bytes of it came within {seconds:g} s"
    return Problem(408, "body_too_slow", detail, retryable=True, field="body")


def unavailable(code: str, detail: str, outcome: str = NOT_APPLIED) -> Problem:
    """503: try again, here after a moment or at another replica at once."""
    return Problem(503, code, detail, retryable=True, outcome=outcome)


def full(detail: str) -> Problem:
    """507: nothing can be added here; another replica's disk may have room."""
    return Problem(507, "full", detail, retryable=True)


def timed_out(timeout_ms: int, outcome: str) -> Problem:
    """504: the time that the client gave is up."""
    return Problem(504, "timeout", f"no answer within {timeout_ms} ms", retryable=True, outcome=outcome)


def first_result(answered: Answered) -> OperationResult:
    """Of a write. Problem: it was done so long ago that what it found is no longer remembered."""
    if answered.results_omitted:
        detail = f"it was applied, as version {answered.result.version}, and what it found is no longer remembered"
        raise Problem(404, "unknown_or_forgotten", detail, outcome=UNKNOWN)
    return answered.result.results[0]


def internal() -> Problem:
    """Our own bug."""
    return Problem(500, "internal", "an error of this server; its log has more", outcome=UNKNOWN)


def refused(by: Refused, in_doubt: bool = False, fields: Mapping[str, str] | None = None) -> Problem:
    """A replica's refusal. in_doubt: of a read that was to tell of a write, which may have been done. fields: see
    `outcome_for`."""
    status, outcome = STATUS_OF_REFUSAL.get(by.code, 400), UNKNOWN if in_doubt else by.outcome
    if by.code == "forbidden" and fields is not None and not in_doubt:
        outcome = outcome_for(fields)
    return Problem(status, by.code, by.message, retryable=by.retryable, outcome=outcome)
