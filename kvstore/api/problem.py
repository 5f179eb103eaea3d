"""Errors as `application/problem+json` (RFC 9457).

Beside the standard members each has `code` (for programs), `retryable` (the same request may work later), `outcome`
("applied", "not_applied", "unknown": what became of the write, as it was asked for here: where a replica cannot take it
now, 503 or 507, an earlier request under its id may have been applied), the write's `id`, if it has one by then,
`request_id`, by which the replica's log calls it (the request's `X-Request-Id`, if it had one), and, where a part of
the request is to blame, `field`.

    400 invalid, id_expired, id_in_future,       408 body_too_slow       503 overloaded, not_ready, no_majority,
        future                                   409 expired                 stopping, failed
    401 unauthenticated                          403 forbidden
    404 not_found, unknown_path,                 410 compacted           504 timeout
        unknown_or_forgotten                     412 precondition_failed 507 full
    405 method_not_allowed                       413 too_large           500 internal
    415 unsupported_type                         422 failed, id_reused,
    421 other_cluster                                too_large
"""

from __future__ import annotations

import msgspec

APPLIED = "applied"
NOT_APPLIED = "not_applied"
UNKNOWN = "unknown"


class ProblemJson(msgspec.Struct, kw_only=True):
    """The body of an answer other than success. Whoever reads one takes the worst for what is missing."""

    type: str = "about:blank"
    title: str = ""
    status: int = 0
    detail: str = ""
    code: str = ""
    retryable: bool = False
    outcome: str = UNKNOWN
    id: str | msgspec.UnsetType = msgspec.UNSET
    request_id: str | msgspec.UnsetType = msgspec.UNSET
    field: str | msgspec.UnsetType = msgspec.UNSET


encode_problem = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ProblemJson).decode


def parse_problem(body: bytes) -> ProblemJson | None:
    """The problem in the body of an error answer; None if there is none, as in a proxy's page."""
    try:
        problem = _decode(body)
    except ValueError:
        return None
    return problem if problem.code else None
