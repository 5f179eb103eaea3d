"""What a replica's journal says of the bundles that it completes. Pure; the schema is in `kvstore.core.audit`."""

from __future__ import annotations

from kvstore.api.model import Move
from kvstore.core.audit import (
    APPLIED,
    AUDIT_VERSION,
    EXPIRED,
    FAILED,
    MISMATCH,
    MOVE_VERSION,
    MOVED,
    NESTED_VERSION,
    REPEATED,
    Given,
    MoveOutcome,
    NestedOutcome,
    Outcome,
    Outcomes,
    Read,
    Write,
    encode_outcomes,
    encode_single,
)
from kvstore.core.bundles import is_single
from kvstore.core.execution import Execution
from kvstore.core.fates import Fate
from kvstore.core.log import Entry
from multicast.types import GroupId, MessageId

STATUS_NAMES = {
    APPLIED: "applied",
    EXPIRED: "expired",
    FAILED: "failed",
    MISMATCH: "mismatch",
    MOVED: "moved",
    REPEATED: "repeated",
}


def account(entry: Entry, outcomes: list[Outcome], state_digest: bytes | None) -> bytes:
    """The record of a bundle's outcomes, for the journal."""
    message = entry.message
    if entry.move is not None:
        return encode_outcomes(Outcomes(MOVE_VERSION, entry.timestamp, outcomes, state_digest))
    if is_single(message.payload):
        return encode_single(message.id, entry.timestamp, outcomes[0], state_digest)
    version = NESTED_VERSION if NestedOutcome in map(type, outcomes) else AUDIT_VERSION
    return encode_outcomes(Outcomes(version, entry.timestamp, outcomes, state_digest))


def given_by(entry: Entry, move: Move, known: Outcomes | None, shard: GroupId) -> Given:
    """What a step of a move gives: as the journal says, or as the source's part does."""
    if known is not None:
        outcome = known.outcomes[0]
        given = outcome.given if isinstance(outcome, MoveOutcome) else None
    else:
        part = entry.own_part if move.source == shard else entry.parts.get(move.source)
        vote = part.vote(0) if part is not None else None
        given = vote.given if vote is not None else None
    if given is None:
        raise AssertionError(f"delivery {entry.position}, a step of a move, brings nothing")
    return given


def outcome_of(message_id: MessageId, fate: Fate, execution: Execution) -> Outcome:
    """The outcome of one transaction, for the journal."""
    writes = tuple([Write.of(key, value) for key, value in execution.writes.items()])
    reads = tuple([Read(key, version) for key, version in found]) if (found := execution.reads) else ()
    status, succeeded, failure, failure_key, truths = fate
    if truths:
        return NestedOutcome(message_id, status, succeeded, reads, writes, failure, failure_key, truths)
    return Outcome(message_id, status, succeeded, reads, writes, failure, failure_key)


def outcome_of_step(message_id: MessageId, fate: Fate, move: Move, given: Given | None) -> MoveOutcome:
    """The outcome of a step of a move."""
    status, succeeded, failure, failure_key, _ = fate
    return MoveOutcome(
        message_id, status, succeeded, (), (), failure, failure_key, move.source, move.target, move.slots, given
    )
