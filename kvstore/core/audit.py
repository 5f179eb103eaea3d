"""What the journals and client histories say of transactions: the schema that the audit reads. Pure.

The `record` of a journal's `Completed` is an `Outcomes`, as msgpack: what became of each transaction of a bundle. A
client history is a file of JSON lines, each a `HistoryEvent`: one "invoke", and at most one of "ok", "fail" (certainly
no effect) or "info" (unknown) per operation. Values in a history are texts: `value_text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from kvstore.api.model import (
    FIRST_KEY,
    NO_LEASE,
    NUMBERS,
    SILENT,
    Add,
    Append,
    Compare,
    Cut,
    Delete,
    DeleteRange,
    Get,
    LeasedPut,
    Max,
    Min,
    Move,
    NoneNewer,
    Operation,
    OperationResult,
    Put,
    Range,
    Revoke,
    Rule,
    Transaction,
    Txn,
    TxnResult,
    bounds,
    operations_of,
)
from kvstore.api.model import SLOTS as SLOTS  # of which what moves hand over tells
from kvstore.api.model import lease_key as lease_key  # by which histories call leases
from kvstore.core.bundles import version_of
from multicast.types import ZERO, MessageId, Timestamp

AUDIT_VERSION = 2
"""1 was one transaction's: `_Single`."""
MOVE_VERSION = 3
"""The format of outcomes of a step of a move."""
NESTED_VERSION = 4
"""The format of outcomes of a bundle in which a transaction has nested ones."""

BASE_VERSION = 1

APPLIED = 1
EXPIRED = 2
FAILED = 3
MISMATCH = 4
REPEATED = 5
MOVED = 6

VALUE_BYTES_KEPT = 256
"""Longer values stand in a history as their BLAKE2b-16 digest."""

WRITTEN_BYTES_KEPT = 32
"""The same limit for a journal, which has the values themselves elsewhere."""


class Read(msgspec.Struct, array_like=True, gc=False):
    """What was read here, by a comparison or an operation. version (0, 0): the key was absent."""

    key: bytes
    version: Timestamp


class Write(msgspec.Struct, array_like=True, gc=False):
    """What was written here; its version is the transaction's. value None: deleted. digest: the value is only that."""

    key: bytes
    value: bytes | None
    digest: bool = False

    @classmethod
    def of(cls, key: bytes, value: bytes | None) -> Write:
        """With a digest in place of a value of more than WRITTEN_BYTES_KEPT."""
        if value is None or len(value) <= WRITTEN_BYTES_KEPT:
            return cls(key, value)
        return cls(key, blake2b(value, digest_size=16).digest(), True)


class Outcome(msgspec.Struct, array_like=True, gc=False):
    """A replica's account of one transaction, on its own shard.

    id: its client's, empty if it is a read that nobody can repeat. status: APPLIED; EXPIRED (delivered later than its
    id allows: no effect); FAILED (an operation was impossible: no effect); MISMATCH (the id was used before with
    another body: no effect); REPEATED (it was delivered before: no effect, and its result is that of the first time);
    MOVED (one of its slots was given to a shard that was not asked: no effect, and the id may be used again).
    succeeded: which branch ran. reads: versions from before this transaction only, one per key. reason, reason_key: why
    FAILED, and at which key.
    """

    id: MessageId
    status: int
    succeeded: bool
    reads: tuple[Read, ...] = ()
    writes: tuple[Write, ...] = ()
    reason: str = ""
    reason_key: bytes = b""


class MovedRow(msgspec.Struct, array_like=True, gc=False):
    """A row as its shard has it; value None: it was deleted since it was given. create_version: ZERO: `version`, as in
    journals of earlier releases."""

    key: bytes
    version: Timestamp
    value: bytes | None
    create_version: Timestamp = ZERO
    lease: bytes = NO_LEASE


class Given(msgspec.Struct, array_like=True, gc=False):
    """What one step of a move gives. rows: of the slots. ids: (id, what is remembered beside it), of transactions
    that touched the slots. rows_to, ids_to: up to where this shard's rows and ids have been given. first: what earlier
    steps gave does not count. slots: those that are the target's from this step on, ranges of first and last. last: all
    have been handed over. rules: with the first slots of a shard that was added, or a move of none: (name, record) of
    all rights.
    """

    rows: list[MovedRow]
    ids: list[tuple[MessageId, bytes]]
    rows_to: bytes
    ids_to: bytes
    first: bool
    last: bool
    rules: list[tuple[bytes, bytes]] = []
    slots: tuple[tuple[int, int], ...] = ()


class NestedOutcome(Outcome, array_like=True, gc=False):
    """Of a transaction with nested ones. truths: see `kvstore.api.nesting`; empty where it was not asked what holds."""

    truths: bytes = b""


class MoveOutcome(Outcome, array_like=True, gc=False):
    """Of a step of moving `slots` from shard `source` to shard `target`. given: as the source gave it, and the target
    took it; None if the step was impossible. With the slots that a step hands over go their rows as they were given
    last, by this step or earlier ones from the first on: they leave the source and stand in the target, with their
    versions."""

    source: int = -1
    target: int = -1
    slots: tuple[tuple[int, int], ...] = ()
    given: Given | None = None


class Outcomes(msgspec.Struct, array_like=True, gc=False):
    """Of the transactions of one bundle, in their order. version: AUDIT_VERSION. timestamp: the message's.
    state_digest: None, or a digest of the shard's whole state after the bundle (kept every N positions)."""

    version: int
    timestamp: Timestamp
    outcomes: list[Outcome]
    state_digest: bytes | None = None

    def version_at(self, index: int) -> Timestamp:
        """The version of transaction `index`: of what it wrote."""
        return version_of(self.timestamp, index) if self.version > 1 else self.timestamp


class _MoveOutcomes(msgspec.Struct, array_like=True, gc=False):
    """Format MOVE_VERSION: of a bundle that is a step of a move."""

    version: int
    timestamp: Timestamp
    outcomes: list[MoveOutcome]
    state_digest: bytes | None = None


class _NestedOutcomes(msgspec.Struct, array_like=True, gc=False):
    """Format NESTED_VERSION: some of them are NestedOutcomes, the others have no truths."""

    version: int
    timestamp: Timestamp
    outcomes: list[NestedOutcome]
    state_digest: bytes | None = None


class _Single(msgspec.Struct, array_like=True, gc=False):
    """Format 1: of a message that was one transaction, whose id was the message's."""

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


class Based(NamedTuple):
    """A row that a shard held from the beginning, for it was restored from a backup. version: as it was there; value,
    digest: as in `Write`."""

    key: bytes
    version: Timestamp
    value: bytes
    digest: bool = False


class Base(msgspec.Struct, array_like=True, gc=False):
    """The `record` of a journal's `Base`: some of these rows. version: BASE_VERSION."""

    version: int
    rows: list[Based]


class Asked(msgspec.Struct, omit_defaults=True):
    """What a client asked for. compare: [key, target, operator, operand], a version as its text. success, failure:
    ["get", key], ["put", key, value], to attach it also the key of the lease's row, ["revoke", that key], ["delete",
    key], ["add", key, n], ["min", key, n], ["max", key, n], ["append", key, value], and "range", "keys" (no values),
    "count" or "delete_range" with a prefix, and, if there are any, two bounds: ["range", prefix, start, end]. Of a
    nested transaction ["txn", what it asks for].
    """

    compare: list[list[str | bool]] = []
    success: list[list[str | int | Asked]] = []
    failure: list[list[str | int | Asked]] = []


Told = list[str | int | bool | dict[str, str | None] | list[Any] | None]
"""What a client was told, per operation of the branch that ran: of a get the value or null, of an add, min or max the
new integer, of an append the new length in bytes, of a delete whether there was something, of a range key -> value, of
keys key -> version, in their order, and MORE if there are further ones, of a count and a delete_range how many, else
null, as of a count that did not count all. Of a nested transaction a list: whether it succeeded, and the same of its
branch. Of a change that a watch tells: key -> value, null if it was deleted."""

MORE = ""
"""Stands in place of a key; no key is empty."""


class HistoryEvent(msgspec.Struct, omit_defaults=True):
    """One line of a client history.

    process: the client's own sequential thread of operations. type: "invoke", "ok", "fail" or "info"; "watch": of a
    watch, see `WATCH_EVENTS`. at_us: that client's monotonic clock, microseconds; all clients of one file share the
    clock. id: the transaction's id as a UUID string; of a read that was asked without one, any other. f: what it was
    ("transfer", "read_all", "put", ...). version: the version in the answer. value: whatever the workload adds (for
    read_all: key -> integer). asked: of an "invoke"; told: of an "ok". Without them what was written and read cannot be
    compared. shard, position: of an "ok" of a read that was asked without an id and stands in no journal: the shard,
    and how many of its deliveries the read saw. position 0: it was ordered, and its version tells which transaction it
    is. consistency, age_us: of an "invoke" of a read that may miss something (`kvstore.api.model.Consistency`); empty:
    linearizable. places: of an "ok" of such a read, or of one of several shards, that stands in no journal: shard ->
    how many of its deliveries were seen. at: instead, the version at which all shards were read. cluster: of one line
    of a file, the first that is of no watch: the id of the cluster that was asked, 32 hexadecimal digits.
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
    asked: Asked | None = None
    told: Told | None = None
    shard: int = -1
    position: int = 0
    consistency: str = ""
    age_us: int = 0
    places: dict[int, int] = {}
    at: str = ""
    cluster: str = ""


WATCH_EVENTS = ("begin", "change", "progress", "end")
"""`f` of the lines of one watch, which share its id. begin: it was asked for, of [["watch", first, end]] in
`asked.success` (see `kvstore.api.model.bounds`), after `version` if it names one. change: of the transaction `version`
it was told `told`. progress: of everything up to `version`. end: nothing more, because of `error`."""


def watch_asked(first: bytes, end: bytes) -> Asked:
    """Of the first line of a watch. UnicodeDecodeError if a bound is no text."""
    return Asked(success=[["watch", first.decode(), end.decode()]])


def watch_told(changes: Sequence[tuple[bytes, bytes | None]]) -> Told:
    """Of a change. UnicodeDecodeError if a key is no text."""
    return [{key.decode(): None if value is None else value_text(value) for key, value in changes}]


def value_text(value: bytes) -> str:
    """ "=" and the value; "#" and its BLAKE2b-16 digest if it is long, or no text."""
    if len(value) <= VALUE_BYTES_KEPT:
        try:
            return "=" + value.decode()
        except UnicodeDecodeError:
            pass
    return "#" + blake2b(value, digest_size=16).hexdigest()


def asked(
    compare: Sequence[Compare] = (), success: Sequence[Operation] = (), failure: Sequence[Operation] = ()
) -> Asked | None:
    """For a history; None if a key is no text, or what is asked depends on leases of which no journal tells."""
    transaction = Transaction(success=tuple(success), failure=tuple(failure))
    if any([_is_untold(op) for op in operations_of(transaction)]):
        return None
    try:
        return _asked(compare, success, failure)
    except UnicodeDecodeError:
        return None


def _is_untold(operation: Operation) -> bool:
    return isinstance(operation, Range) and bool(operation.lease)


def _asked(compare: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]) -> Asked:
    return Asked([_compare(c) for c in compare], [_operation(o) for o in success], [_operation(o) for o in failure])


def range_bounds(words: Sequence[str]) -> tuple[bytes, bytes]:
    """`kvstore.api.model.bounds` of a range as `asked` has it: none finds the store's own keys."""
    prefix, start, end = [word.encode() for word in (*words[1:], "", "")[:3]]
    return bounds(Range(prefix, 1, start=max(start, FIRST_KEY), end=end))


def _compare(c: Compare) -> list[str | bool]:
    operand = value_text(c.operand) if isinstance(c.operand, bytes) else c.operand
    return [c.key.decode(), c.target, c.op, operand if isinstance(operand, bool) else str(operand)]


def _operation(operation: Operation) -> list[str | int | Asked]:
    if isinstance(operation, Txn):
        return ["txn", _asked(operation.compare, operation.success, operation.failure)]
    if isinstance(operation, Get):
        return ["get", operation.key.decode()]
    if isinstance(operation, Put):
        return ["put", operation.key.decode(), value_text(operation.value)]
    if isinstance(operation, Delete):
        return ["delete", operation.key.decode()]
    if isinstance(operation, Add):
        return ["add", operation.key.decode(), operation.delta]
    if isinstance(operation, Min | Max):
        return ["min" if isinstance(operation, Min) else "max", operation.key.decode(), operation.value]
    if isinstance(operation, Append):
        return ["append", operation.key.decode(), value_text(operation.value)]
    if isinstance(operation, LeasedPut):
        return ["put", operation.key.decode(), value_text(operation.value), lease_key(operation.lease).decode()]
    if isinstance(operation, Revoke):
        return ["revoke", lease_key(operation.lease).decode()]
    if isinstance(operation, Cut | Rule):
        return ["cut" if isinstance(operation, Cut) else "rule"]
    if isinstance(operation, Move):
        return ["move", operation.source, operation.target]
    what, version = "delete_range", tuple[str, ...]()
    if isinstance(operation, NoneNewer):
        what, version = "none_newer", (str(operation.version),)
    if isinstance(operation, Range):
        what = "count" if operation.count_only else "keys" if operation.keys_only else "range"
    start, end = operation.start.decode(), operation.end.decode()
    if isinstance(operation, Range) and operation.after:
        start = max(start, operation.after.decode() + "\0")
    return [what, operation.prefix.decode(), *version, *((start, end) if start or end else ())]


def told(branch: Sequence[Operation], results: Sequence[OperationResult]) -> Told | None:
    """For a history; None if a key is no text. `branch`: the one that ran."""
    try:
        return [_told(operation, result) for operation, result in zip(branch, results, strict=True)]
    except UnicodeDecodeError:
        return None


def _told(operation: Operation, result: OperationResult) -> Any:
    if isinstance(operation, Txn):
        assert isinstance(result, TxnResult)
        branch = operation.success if result.succeeded else operation.failure
        return [result.succeeded, *[_told(*each) for each in zip(branch, result.results, strict=True)]]
    if isinstance(operation, NoneNewer):
        return None
    if isinstance(operation, Get):
        return None if result.found is None else value_text(result.found.value)
    if isinstance(operation, (*SILENT, Cut, Move, Rule)):
        return None
    if isinstance(operation, Delete):
        return result.deleted
    if isinstance(operation, NUMBERS):
        return result.value
    if isinstance(operation, Append):
        return result.length
    if isinstance(operation, DeleteRange) or operation.count_only:
        return None if result.more else result.value
    more = {MORE: ""} if result.more else {}
    if operation.keys_only:
        return {entry.key.decode(): str(entry.version) for entry in result.entries} | more
    return {entry.key.decode(): value_text(entry.value) for entry in result.entries} | more


encode_base = msgspec.msgpack.Encoder().encode
decode_base = msgspec.msgpack.Decoder(Base).decode
encode_outcomes = msgspec.msgpack.Encoder().encode


def encode_single(message_id: MessageId, timestamp: Timestamp, o: Outcome, state_digest: bytes | None) -> bytes:
    """The record of a message of format 1, ordered before an upgrade: its version is its timestamp."""
    reads, writes = o.reads, o.writes
    return encode_outcomes(
        _Single(1, message_id, timestamp, o.status, o.succeeded, reads, writes, state_digest, o.reason, o.reason_key)
    )


_decode_outcomes = msgspec.msgpack.Decoder(Outcomes).decode
_decode_moves = msgspec.msgpack.Decoder(_MoveOutcomes).decode
_decode_nested = msgspec.msgpack.Decoder(_NestedOutcomes).decode
_decode_single = msgspec.msgpack.Decoder(_Single).decode


def decode_outcomes(record: bytes) -> Outcomes:
    """The inverse of `encode_outcomes`; also of format 1. msgspec.MsgspecError if it is neither."""
    if record[1:2] == b"\x03":
        moves = _decode_moves(record)
        return Outcomes(moves.version, moves.timestamp, [*moves.outcomes], moves.state_digest)
    if record[1:2] == b"\x04":
        nested = _decode_nested(record)
        return Outcomes(nested.version, nested.timestamp, [*nested.outcomes], nested.state_digest)
    if record[1:2] != b"\x01":
        return _decode_outcomes(record)
    s = _decode_single(record)
    outcome = Outcome(s.id, s.status, s.succeeded, s.reads, s.writes, s.reason, s.reason_key)
    return Outcomes(1, s.timestamp, [outcome], s.state_digest)
