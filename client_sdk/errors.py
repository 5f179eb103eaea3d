"""What can go wrong, as exceptions. The tree is drawn in the package docstring.

Every exception says in `outcome` what became of the request: "not_applied" (certainly without effect), or "unknown" (it
may have been applied, may be applied yet, or neither), or "applied" (of `ResultsForgotten` only).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvstore.api.problem import APPLIED, NOT_APPLIED, UNKNOWN
from multicast.types import ZERO, MessageId, Timestamp

NAMED_MAX = 3
"""So many keys the text of a Conflict names."""


class KvError(Exception):
    """Base of all exceptions of this package.

    code: the problem's `code` as the server named it, or "" where there was no answer. status: HTTP status, 0 without
    an answer. field: the argument that was refused, if the server named one. message_id: the id under which
    the request was sent; the same request may be sent again under it. None for reads.
    """

    outcome = NOT_APPLIED

    def __init__(
        self, detail: str, *, code: str = "", status: int = 0, field: str = "", message_id: MessageId | None = None
    ):
        super().__init__(detail)
        self.code = code
        self.status = status
        self.field = field
        self.message_id = message_id

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        text = super().__str__()
        if self.message_id is not None and self.outcome == UNKNOWN:
            text += f" (outcome unknown; id {uuid.UUID(bytes=self.message_id)})"
        return text


def _restored(kind: type[KvError], told: tuple[Any, ...], facts: dict[str, Any]) -> KvError:
    """From another process, as it was there, whatever arguments it was made of."""
    error = kind.__new__(kind, *told)
    error.__dict__.update(facts)
    return error


class InvalidRequest(KvError):
    """The request breaks a limit or makes no sense; the same request will never succeed. `field` names the part."""


class IdReused(InvalidRequest):
    """The message id was used before, for another request. Nothing of this one was applied."""


class Denied(KvError):
    """The cluster wants to know who asks, and does not know this token; or its holder may not do that. No effect."""


class ConditionFailed(KvError):
    """`if_version` or `if_absent` does not hold. Nothing was written."""


class TransactionFailed(KvError):
    """An operation was impossible, e.g. an add to a text; the whole transaction has no effect."""


class Lost(KvError):
    """A lease was not renewed in time, or was revoked: what it held, a lock or a leadership, may be another's."""


class Undecodable(KvError):
    """What a key holds is not what its codec reads."""


class Changed(NamedTuple):
    """A key that a transaction had read. Versions: ZERO where it was absent. found: None if it is not known."""

    key: bytes
    expected: Timestamp
    found: Timestamp | None

    def __str__(self) -> str:
        was, now = ("absent" if v == ZERO else f"version {v}" for v in (self.expected, self.found or self.expected))
        return f"{self.key!r} was {was}, {f'is now {now}' if self.found is not None else 'perhaps no longer'}"


class Conflict(KvError):
    """What an interactive transaction had read was changed before it committed. Nothing was written; run it again.
    changed: the keys to blame; where one has no version that was `found`, others may be. Of a range that was scanned,
    what has come into it; its beginning, with the version of the scan, where that is not known any more."""

    def __init__(self, changed: Sequence[Changed]):
        told = "; ".join(map(str, changed[:NAMED_MAX]))
        more = f"; and {len(changed) - NAMED_MAX} more" if len(changed) > NAMED_MAX else ""
        super().__init__(f"what was read has changed: {told}{more}", code="conflict")
        self.changed = tuple(changed)


class Expired(KvError):
    """The request came into the order too late for its id. It has no effect, and never will."""


class Compacted(KvError):
    """What stood at that version is no longer known. The text names the oldest version of which everything is."""


class Unavailable(KvError):
    """No replica took the request before its deadline. It certainly has no effect."""


class ClosedClient(KvError):
    """The client was closed. Nothing was sent."""


class ForeignLoop(KvError):
    """An `AsyncClient` belongs to the event loop in which it was first used, and a `Client` cannot be used by its own
    thread, in which `on_done` runs: it would wait for itself. Nothing was sent."""


class OutcomeUnknown(KvError):
    """The deadline passed while the request may have reached the cluster. Send it again under `message_id` to find out,
    within the cluster's deduplication window."""

    outcome = UNKNOWN


class ResultsForgotten(KvError):
    """The transaction was applied by an earlier attempt, whose answer was lost, and what it returned was too large for
    the cluster to remember. succeeded: which branch ran. version: its version."""

    outcome = APPLIED

    def __init__(self, succeeded: bool, version: Timestamp):
        super().__init__(f"applied as version {version}, but the results of its operations are no longer known")
        self.succeeded = succeeded
        self.version = version
