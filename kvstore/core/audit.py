"""What the journals and client histories say of transactions: the schema that the audit reads. Pure.

The `record` of a journal's `Completed` is an `Outcome`, as msgpack. A client history is a file of JSON lines, each a
`HistoryEvent`: one "invoke", and at most one of "ok", "fail" (certainly no effect) or "info" (unknown) per operation.
"""

from __future__ import annotations

import msgspec

from multicast.types import MessageId, Timestamp

AUDIT_VERSION = 1

APPLIED = 1
EXPIRED = 2
FAILED = 3
MISMATCH = 4

VALUE_BYTES_KEPT = 256
"""Longer values are kept as their BLAKE2b-16 digest."""


class Read(msgspec.Struct, array_like=True, gc=False):
    """What was read here, by a comparison or an operation. version (0, 0): the key was absent."""

    key: bytes
    version: Timestamp


class Write(msgspec.Struct, array_like=True, gc=False):
    """What was written here; its version is the transaction's. value None: deleted. digest: the value is only that."""

    key: bytes
    value: bytes | None
    digest: bool = False


class Outcome(msgspec.Struct, array_like=True, gc=False):
    """A replica's account of one transaction, on its own shard.

    status: APPLIED; EXPIRED (delivered later than its id allows: no effect); FAILED (an operation was impossible: no
    effect); MISMATCH (the id was used before with another body: no effect).
    succeeded: which branch ran. reads: versions from before this transaction only, one per key. state_digest: None, or
    a digest of the shard's whole state after this transaction (kept every N positions). reason, reason_key: why FAILED,
    and at which key.
    """

    version: int
    id: MessageId
    timestamp: Timestamp
    status: int
    succeeded: bool
    reads: tuple[Read, ...]
    writes: tuple[Write, ...]
    state_digest: bytes | None = None
    reason: str = ""
    reason_key: bytes = b""


class HistoryEvent(msgspec.Struct, omit_defaults=True):
    """One line of a client history.

    process: the client's own sequential thread of operations. type: "invoke", "ok", "fail" or "info". at_us: that
    client's monotonic clock, microseconds; all clients of one file share the clock. id: the transaction's id as a UUID
    string. f: what it was ("transfer", "read_all", "put", ...). version: the version in the answer. value: whatever the
    workload adds (for read_all: key -> integer).
    """

    process: int
    type: str
    at_us: int
    id: str
    f: str = ""
    version: str = ""
    succeeded: bool | None = None
    reads: dict[str, str] = {}
    value: dict[str, int] | None = None
    error: str = ""


encode_outcome = msgspec.msgpack.Encoder().encode
decode_outcome = msgspec.msgpack.Decoder(Outcome).decode
