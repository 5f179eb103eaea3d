"""What a replica is asked, what it answers, and what replicas of different shards tell one another. Pure data."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from kvstore.api.model import OperationResult, Result, Transaction
from multicast.types import ZERO, GroupId, MessageId, Timestamp

ENVELOPE_VERSION = 1


class EnvelopeError(Exception):
    """An ordered message is not a transaction that this program understands; the text says why."""


class Envelope(msgspec.Struct, array_like=True, gc=False):
    """The payload of a multicast message."""

    version: int
    transaction: Transaction


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Envelope).decode


def encode_payload(transaction: Transaction) -> bytes:
    """The same transaction gives the same bytes."""
    return _encode(Envelope(ENVELOPE_VERSION, transaction))


def decode_payload(payload: bytes) -> Transaction:
    """The inverse of `encode_payload`. EnvelopeError for a newer version or anything else."""
    try:
        envelope = _decode(payload)
    except msgspec.MsgspecError as error:
        if len(payload) > 1 and payload[0] == 0x92 and payload[1] != ENVELOPE_VERSION:
            raise EnvelopeError(
                f"a transaction of format {payload[1]} was ordered and this program knows {ENVELOPE_VERSION}; "
                "use a newer release"
            ) from None
        raise EnvelopeError(f"an ordered message is not a transaction: {error}") from None
    if envelope.version > ENVELOPE_VERSION:
        raise EnvelopeError(
            f"a transaction of format {envelope.version} was ordered and this program knows {ENVELOPE_VERSION}; "
            "use a newer release"
        )
    return envelope.transaction


def read_id(message_id: MessageId) -> MessageId:
    """A UUIDv8 in place of a UUIDv7, for a request that only reads, in one shard, and that nobody can repeat, since its
    replica has made the id and tells it to nobody. So nothing is kept under it."""
    return b"%b%c%b" % (message_id[:6], 0x80 | message_id[6] & 0x0F, message_id[7:])


def is_read_id(message_id: MessageId) -> bool:
    """Whether `read_id` made it."""
    return message_id[6] >> 4 == 8


def request_digest(message_id: MessageId, payload: bytes, destinations: Sequence[GroupId]) -> bytes:
    """16 bytes that tell whether two messages with this id ask for the same thing; none if there is but one."""
    return b"" if is_read_id(message_id) else body_digest(payload, destinations)


def body_digest(payload: bytes, destinations: Sequence[GroupId]) -> bytes:
    """See `request_digest`."""
    return blake2b(payload + b"".join(d.to_bytes(2, "big") for d in destinations), digest_size=16).digest()


# -- a client's request and its answer --------------------------------------------------------------------------------


class Execute(msgspec.Struct, gc=False):
    """Execute this transaction exactly once under this id, a UUIDv7. Repetitions get the first result. Or read under an
    id that `read_id` made."""

    message_id: MessageId
    transaction: Transaction


class Answered(msgspec.Struct):
    """The transaction was ordered and executed; `result.failure` says if it was impossible and had no effect.

    repeated: this is the remembered result of an earlier request with the id. results_omitted: what it read was too
    large to be remembered and `result.results` is empty; ask again under a new id if it is needed.
    """

    result: Result
    repeated: bool = False
    results_omitted: bool = False


class Refused(msgspec.Struct):
    """No result. `outcome` "not_applied": what was asked in this request has no effect, now or later; "unknown": the
    transaction of this id may have had an effect, or may still have one.

    code: "invalid" (a limit is broken; the message names the field), "id_reused" (the id belongs to another body),
    "id_expired" (older than the window; if it was tried before, the result is no longer certain), "id_in_future",
    "overloaded", "expired" (it was ordered too late and had no effect; so late that an earlier result may have been
    forgotten, it is "id_expired" again), "timeout" (no answer in WAIT_US_MAX).
    """

    code: str
    message: str
    retryable: bool
    outcome: str


# -- between replicas -------------------------------------------------------------------------------------------------


class Vote(msgspec.Struct, array_like=True, gc=False):
    """What a shard knows that decides the fate of a transaction everywhere.

    holds: all its comparisons hold. failure, failure_key: why the branch cannot run here, if it cannot (success branch,
    then failure branch); empty otherwise.
    """

    holds: bool = True
    success_failure: str = ""
    success_key: bytes = b""
    failure_failure: str = ""
    failure_key: bytes = b""


class Part(msgspec.Struct, array_like=True, gc=False):
    """A shard's contribution to a multi-shard transaction: its execution signal and its vote."""

    id: MessageId
    digest: bytes
    vote: Vote


class Retained(Part, array_like=True, gc=False):
    """A part that somebody may still ask for, as a store keeps it, and where its transaction stands."""

    timestamp: Timestamp = ZERO
    destinations: tuple[GroupId, ...] = ()

    def part(self) -> Part:
        """What is told."""
        return Part(self.id, self.digest, self.vote)


class Parts(msgspec.Struct, array_like=True, tag=1):
    """Parts of one shard, pushed or pulled."""

    shard: GroupId
    parts: list[Part]


class PartRequest(msgspec.Struct, array_like=True, tag=2):
    """Send me your shard's parts of these transactions, or the result where the transaction is complete already."""

    ids: list[MessageId]


class ShardResult(msgspec.Struct, array_like=True, gc=False):
    """How a completed transaction ended, and what one shard read. status: of `kvstore.core.audit`.

    results: (index of the operation in the branch that ran, result), None if too large to be remembered. This is also
    what stands in the store beside a remembered id.
    """

    id: MessageId
    digest: bytes
    timestamp: Timestamp
    status: int
    succeeded: bool
    failure: str
    failure_key: bytes
    results: list[tuple[int, OperationResult]] | None


class ShardResults(msgspec.Struct, array_like=True, tag=3):
    """For the entry replica of these transactions."""

    shard: GroupId
    results: list[ShardResult]


class ResultRequest(msgspec.Struct, array_like=True, tag=4):
    """Send me your shard's results of these transactions, those that are completed and remembered."""

    ids: list[MessageId]


MESSAGES = (Parts, PartRequest, ShardResults, ResultRequest)
encode_shard_result = msgspec.msgpack.Encoder().encode
decode_shard_result = msgspec.msgpack.Decoder(ShardResult).decode
encode_retained = msgspec.msgpack.Encoder().encode
decode_retained = msgspec.msgpack.Decoder(Retained).decode
