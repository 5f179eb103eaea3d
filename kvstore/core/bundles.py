"""Bundles: what is ordered as one multicast message, many transactions with the same destinations. Pure data.

A message's payload is a *bundle*. Its transactions take effect one after the other, at the message's place in the
order: the version of each is the message's timestamp and its index in the bundle (`version_of`). Each keeps the id that
its client gave it; a read that nobody can repeat, because the replica itself has asked for it, has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b

import msgspec

from kvstore.api.model import APPENDED_BYTES_MAX, VALUE_BYTES_MAX, Transaction, appends_in, has_nested, move_of
from multicast.membership import payload_of
from multicast.types import AppMessage, GroupId, MessageId, Timestamp

BUNDLE_VERSION = 4
"""1 was a single transaction, whose id was the message's and whose version was its timestamp. 2 had ranges by prefix
only, and none that delete; it is read as 3."""
CREATES_VERSION = 4
"""What 1 to 3 write tells no create version: an older release has executed it without, and replicas of both must have
the same rows."""
NESTED_VERSION = 5
"""Of a bundle in which a transaction has nested ones; any other one is of BUNDLE_VERSION, which older releases read."""
LIMITED_VERSION = 6
"""Of one in which the Appends of a transaction might write more than APPENDED_BYTES_MAX, with nested ones or without:
then it fails. Older releases knew no such limit, and what they have ordered is executed without. And of a step of a
move, of which older releases would give other rows."""

NO_ID: MessageId = b""
"""The id of a read that nobody can repeat: nothing is remembered under it."""

BUNDLE_TRANSACTIONS_MAX = 1024
_INDEX_BITS = 16
_SINGLE = b"\x92\x01"
_WITHOUT_BY = b"\x93"
"""How an array of three begins: before transactions had `by` they ended without it, and so do those that have none."""


class EnvelopeError(Exception):
    """An ordered message is no bundle that this program understands; the text says why."""


class Bundled(msgspec.Struct, array_like=True, gc=False):
    """One transaction of a bundle. id: its client's, or NO_ID. body: the encoded `Transaction`."""

    id: MessageId
    body: msgspec.Raw


class _Bundle(msgspec.Struct, array_like=True, gc=False):
    version: int
    transactions: list[Bundled]


class _Envelope(msgspec.Struct, array_like=True, gc=False):
    version: int
    body: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode
_decode_bundle = msgspec.msgpack.Decoder(_Bundle).decode
_decode_envelope = msgspec.msgpack.Decoder(_Envelope).decode
_decode_transaction = msgspec.msgpack.Decoder(Transaction).decode


def encode_transaction(transaction: Transaction) -> bytes:
    """The bytes of a transaction; the same transaction gives the same bytes."""
    encoded = _encode(transaction)
    return encoded if transaction.by else _WITHOUT_BY + encoded[1:-1]


def format_for(transactions: Iterable[Transaction]) -> int:
    """The version of a bundle of these."""
    version = BUNDLE_VERSION
    for transaction in transactions:
        if appends_in(transaction) > APPENDED_BYTES_MAX // VALUE_BYTES_MAX or move_of(transaction) is not None:
            return LIMITED_VERSION
        if has_nested(transaction):
            version = NESTED_VERSION
    return version


def encode_bundle(transactions: Sequence[tuple[MessageId, bytes]], version: int = BUNDLE_VERSION) -> bytes:
    """The payload of a message. transactions: (id or NO_ID, of `encode_transaction`). version: see `format_for`."""
    return _encode(_Bundle(version, [Bundled(i, msgspec.Raw(body)) for i, body in transactions]))


EMPTY = encode_bundle([(NO_ID, encode_transaction(Transaction()))])
"""The payload of a message that does nothing, in its place in the order."""


def decode_bundle(message: AppMessage) -> list[Bundled]:
    """The inverse of `encode_bundle`, at least one; also of what was ordered as a single transaction, or comes with a
    change of members. EnvelopeError for a newer version or anything else."""
    payload = message.payload
    version = payload[1] if len(payload) > 1 and payload[0] == 0x92 else 0
    if not version:
        payload = payload_of(message)
    if LIMITED_VERSION < version < 0x80:
        raise EnvelopeError(
            f"a bundle of format {version} was ordered and this program knows {LIMITED_VERSION}; use a newer release"
        )
    try:
        if version == 1:
            body = _decode_envelope(payload).body
            return [Bundled(NO_ID if is_unnamed(message.id) else message.id, body)]
        found = _decode_bundle(payload).transactions
    except msgspec.MsgspecError as error:
        raise EnvelopeError(f"an ordered message is not a bundle of transactions: {error}") from None
    if not 0 < len(found) <= BUNDLE_TRANSACTIONS_MAX:
        raise EnvelopeError(f"a bundle of {len(found)} transactions, not 1 to {BUNDLE_TRANSACTIONS_MAX}")
    return found


def decode_transaction(bundled: Bundled) -> Transaction:
    """EnvelopeError if it is none."""
    try:
        return _decode_transaction(bundled.body)
    except msgspec.MsgspecError as error:
        raise EnvelopeError(f"an ordered message is not a bundle of transactions: {error}") from None


def version_of(timestamp: Timestamp, index: int) -> Timestamp:
    """The version of what transaction `index` of a bundle delivered at `timestamp` writes: unique, and ordered as
    transactions are."""
    return Timestamp(timestamp.time, timestamp.tiebreak << _INDEX_BITS | index)


def last_version(timestamp: Timestamp) -> Timestamp:
    """The greatest version that anything delivered at this timestamp can have."""
    return version_of(timestamp, (1 << _INDEX_BITS) - 1)


def timestamp_of(version: Timestamp) -> Timestamp:
    """When the bundle was delivered in which something wrote this version."""
    return Timestamp(version.time, version.tiebreak >> _INDEX_BITS)


def unnamed_id(message_id: MessageId, index: int) -> MessageId:
    """The id by which a transaction without one of its own is known meanwhile: a UUIDv8, of its message and its
    index."""
    return b"%b%c%b%b" % (message_id[:6], 0x80 | message_id[6] & 0x0F, message_id[7:14], index.to_bytes(2, "big"))


def is_unnamed(message_id: MessageId) -> bool:
    """Whether this is an `unnamed_id`."""
    return message_id[6] >> 4 == 8


def is_single(payload: bytes) -> bool:
    """Whether this is a single transaction of format 1; its version is the message's timestamp."""
    return payload[:2] == _SINGLE


def format_of(message: AppMessage) -> int:
    """The version of a bundle that `decode_bundle` has read."""
    payload = message.payload
    return (payload if payload[0] == 0x92 else payload_of(message))[1]


def request_digest(body: bytes | msgspec.Raw, destinations: tuple[GroupId, ...]) -> bytes:
    """16 bytes that tell whether two transactions with one id ask for the same thing. body: see `Bundled`."""
    return blake2b(b"".join((_SINGLE, body, _encoded(destinations))), digest_size=16).digest()


@lru_cache(maxsize=1024)
def _encoded(destinations: tuple[GroupId, ...]) -> bytes:
    return b"".join([group.to_bytes(2, "big") for group in destinations])
