"""The transaction model: what a client asks for and what it is told. Pure data, shared by server and SDK.

A transaction is one-shot, as in etcd: if every comparison holds, the operations of `success` are applied, else those of
`failure`; all of it at one point of the total order, over as many shards as its keys need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeVar, cast, get_args

import msgspec

from multicast.types import ZERO, Timestamp

T = TypeVar("T")
R = TypeVar("R")

KEY_BYTES_MAX = 400
VALUE_BYTES_MAX = 1024 * 1024
BODY_BYTES_MAX = 4 * 1024 * 1024
OPERATIONS_MAX = 1024
"""Comparisons and operations of a transaction, in all its branches, nested ones among them."""
NESTING_MAX = 8
"""So deep transactions nest; one whose branches have none is 0 deep."""
TRIED_MAX = 8192
"""At most so many are its ways times its comparisons and operations: every shard tries all of them, at one go."""
WAYS_MAX = 64
"""So many ways a transaction with nested ones may end, if one of its operations can fail: see `kvstore.api.nesting`."""
SCAN_LIMIT_DEFAULT = 100
SCAN_LIMIT_MAX = 1000
RANGE_BYTES_MAX = 4 * 1024 * 1024
"""A Range ends early (`more`) once what a shard found has so many bytes; it returns at least one entry."""
RESULT_BYTES_MAX = 16 * 1024 * 1024
"""Of what one shard reads for one transaction; more is left out of the answer, which says so."""
BUNDLE_RESULT_BYTES_MAX = 16 * RESULT_BYTES_MAX
"""The same of all transactions that were ordered together."""
RANGE_KEYS_MAX = 10_000
"""So many keys one shard counts for a Range, and deletes for all DeleteRanges of one transaction."""
LEASE_KEYS_MAX = 1000
LEASE_ID_BYTES = 16
SCANNED_KEYS_MAX = 512_000
"""Of all ranges of one transaction, in one shard; a Revoke counts for REVOKED_KEYS, as it writes what it sees, and a
range after a DeleteRange for RANGE_KEYS_MAX more, for it passes what that has deleted."""
TRIED_KEYS_MAX = 2 * SCANNED_KEYS_MAX
"""The same in all ways together that every shard tries, where a transaction has nested ones: of DeleteRanges and
NoneNewers, which may fail."""
REVOKED_KEYS = 8 * LEASE_KEYS_MAX
NOTED_KEYS_MAX = 100_000
"""Of which the journal may tell for the transactions of one bundle, in one shard, beside those that they name, unless
it is only one: what a record has room for if their keys are as long as may be."""
NOTED_BYTES_MAX = 16 * 1024 * 1024
"""Of keys that one transaction has read in one shard the journal tells so many bytes."""
APPENDED_BYTES_MAX = 16 * 1024 * 1024
"""Of values that the Appends of one transaction write in one shard, each counted once, with what it was before."""
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

SLOTS = 16384
"""Keys belong to so many slots, see `kvstore.api.shard_map`."""

Consistency = Literal["linearizable", "snapshot", "stale"]
"""What a read may miss. linearizable: nothing that was answered before it was asked. snapshot: anything; it is the
state at one version of all its shards. stale: in each shard, what was answered less than an age before it was asked."""
CONSISTENCIES = get_args(Consistency)
AGE_MS_MAX = 3_600_000
"""Of a stale read."""

Target = Literal["value", "version", "create_version", "exists"]
Operator = Literal["==", "!=", "<", ">"]
TARGETS = get_args(Target)
OPERATORS = get_args(Operator)


class Compare(msgspec.Struct, array_like=True, gc=False):
    """target "value": `operand` is bytes, and an absent key satisfies nothing but "!=". "version", "create_version": a
    Timestamp; those of an absent key are (0, 0). "exists": bool, with "==" or "!="."""

    key: bytes
    target: str
    op: str
    operand: bytes | bool | Timestamp


class Get(msgspec.Struct, array_like=True, tag=1, gc=False):
    key: bytes


class Put(msgspec.Struct, array_like=True, tag=2, gc=False):
    key: bytes
    value: bytes


class Delete(msgspec.Struct, array_like=True, tag=3, gc=False):
    key: bytes


class Add(msgspec.Struct, array_like=True, tag=4, gc=False):
    """Adds to a decimal signed 64-bit integer; an absent key counts as 0. Anything else fails the whole transaction."""

    key: bytes
    delta: int


class Min(msgspec.Struct, array_like=True, tag=13, gc=False):
    """The lesser of such an integer and `value`; an absent key gets `value`."""

    key: bytes
    value: int


class Max(msgspec.Struct, array_like=True, tag=14, gc=False):
    """The greater of such an integer and `value`; an absent key gets `value`."""

    key: bytes
    value: int


Number = Add | Min | Max
NUMBERS = (Add, Min, Max)


def counted(operation: Number, before: int | None) -> int:
    """What becomes of an integer; None: the key is absent."""
    if isinstance(operation, Add):
        return (before or 0) + operation.delta
    if before is None:
        return operation.value
    return min(before, operation.value) if isinstance(operation, Min) else max(before, operation.value)


class Append(msgspec.Struct, array_like=True, tag=5, gc=False):
    """Appends bytes; an absent key counts as empty. Beyond the value limit the whole transaction fails, and beyond
    APPENDED_BYTES_MAX."""

    key: bytes
    value: bytes


class Range(msgspec.Struct, array_like=True, tag=6, gc=False):
    """The first `limit` keys that begin with `prefix`, are greater than `after`, not less than `start` and less than
    `end` (each empty: any); fewer when they are large, see RANGE_BYTES_MAX.

    reverse: the last ones, falling. keys_only: without values. count_only: how many there are, whatever the limit.
    lease: given, only keys that are attached to it, of now, rising, without values.
    """

    prefix: bytes
    limit: int
    after: bytes = b""
    start: bytes = b""
    end: bytes = b""
    reverse: bool = False
    keys_only: bool = False
    count_only: bool = False
    lease: bytes = b""


class Cut(msgspec.Struct, array_like=True, tag=8, gc=False):
    """Reads and writes nothing: every shard keeps its rows as they are once the message that carries this is complete,
    for a backup (`kvstore.storage.cut`). It stands alone in its transaction, see `CUT`."""


class Move(msgspec.Struct, array_like=True, tag=7, gc=False):
    """A step of moving these slots, ((first, last), ...) rising, from shard `source` to shard `target`: see
    `kvstore.core.moves`. It stands alone in its transaction, as the only operation of `success`."""

    source: int
    target: int
    slots: tuple[tuple[int, int], ...]


class DeleteRange(msgspec.Struct, array_like=True, tag=9, gc=False):
    """Deletes all keys that begin with `prefix`, are not less than `start` and less than `end` (each empty: any). More
    than RANGE_KEYS_MAX in one shard fail the whole transaction."""

    prefix: bytes
    start: bytes = b""
    end: bytes = b""


class LeasedPut(msgspec.Struct, array_like=True, tag=10, gc=False):
    """A Put that attaches the key to a lease: it goes when that goes (`kvstore.api.leases`). Without the lease the
    whole transaction fails, and if more than LEASE_KEYS_MAX keys of a shard would be attached to it."""

    key: bytes
    value: bytes
    lease: bytes


class Revoke(msgspec.Struct, array_like=True, tag=11, gc=False):
    """Deletes a lease and all keys that are attached to it, which are in these slots."""

    lease: bytes
    slots: tuple[int, ...]


class NoneNewer(msgspec.Struct, array_like=True, tag=12, gc=False):
    """Fails the whole transaction if any key that begins with `prefix`, is not less than `start` and less than `end`
    (each empty: any) was last written after `version`, as the keys were before the transaction; and if there are more
    than RANGE_KEYS_MAX in one shard. Of a deleted key nothing is known: compare the versions of those that were
    there."""

    prefix: bytes
    version: Timestamp
    start: bytes = b""
    end: bytes = b""


class Rule(msgspec.Struct, array_like=True, tag=16, gc=False):
    """Changes who may do what, in all shards: from here on `record` is what the role or the token of this name is;
    empty: there is none. See `kvstore.core.rights`. It stands alone in its transaction."""

    name: bytes
    record: bytes


class Txn(msgspec.Struct, array_like=True, tag=17, gc=False):
    """A transaction nested in a branch of another one, as etcd has them: in its place one of its branches runs. What it
    compares is what was there before the whole transaction."""

    compare: tuple[Compare, ...] = ()
    success: tuple[Operation, ...] = ()
    failure: tuple[Operation, ...] = ()


Keyed = Get | Put | Delete | Number | Append | LeasedPut
Simple = Keyed | Range | DeleteRange | Cut | Move | Revoke | NoneNewer | Rule
Operation = Simple | Txn
SILENT = (Put, LeasedPut, Revoke)
"""Of which no more can be told than that they were done."""
LEASED = (LeasedPut, Revoke)
"""They concern the shard of the lease, too."""
RANGES = (Range, DeleteRange, NoneNewer)
EVERYWHERE = (*RANGES, Cut, Move, Rule)
"""What concerns every shard that is asked: keys are hashed."""
FALLIBLE = (*NUMBERS, Append, DeleteRange, LeasedPut, NoneNewer)
"""What may be impossible, and then the whole transaction has no effect."""


def bounds(operation: Range | DeleteRange | NoneNewer) -> tuple[bytes, bytes]:
    """The least key that may be in it, and the least greater one that may not; that one is empty if there is none."""
    first, end, prefix = max(operation.prefix, operation.start), operation.end, operation.prefix.rstrip(b"\xff")
    if isinstance(operation, Range) and operation.after:
        first = max(first, operation.after + b"\0")
    past = prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b""
    return first, min(past, end) if past and end else past or end


def between(key: bytes, first: bytes, end: bytes) -> bool:
    """Whether it lies within what `bounds` returned."""
    return first <= key and (not end or key < end)


class Transaction(msgspec.Struct, array_like=True, gc=False):
    """Operations of one branch see the effects of earlier ones of the same branch. by: the id of the token of who asks
    for it, whose rights are to be checked; empty: he may do everything."""

    compare: tuple[Compare, ...] = ()
    success: tuple[Operation, ...] = ()
    failure: tuple[Operation, ...] = ()
    by: str = ""


def has_nested(transaction: Transaction | Txn) -> bool:
    """Whether there is a transaction in one of its branches."""
    success, failure = transaction.success, transaction.failure
    return (bool(success) and Txn in map(type, success)) or (bool(failure) and Txn in map(type, failure))


def nested_in(transaction: Transaction | Txn) -> Iterator[Txn]:
    """All that are nested in it: as they stand in `success`, then in `failure`, each before those that are in it."""
    for operation in (*transaction.success, *transaction.failure):
        if isinstance(operation, Txn):
            yield operation
            yield from nested_in(operation)


def simple(branch: tuple[Operation, ...]) -> tuple[Simple, ...]:
    """A branch that has no nested transactions."""
    return cast(tuple[Simple, ...], branch)


def operations_of(transaction: Transaction | Txn) -> tuple[Simple, ...]:
    """Of all its branches, and all branches of those that are nested in it."""
    if not has_nested(transaction):
        return simple((*transaction.success, *transaction.failure))
    every = [transaction, *nested_in(transaction)]
    return tuple([op for one in every for op in (*one.success, *one.failure) if not isinstance(op, Txn)])


def appends_in(transaction: Transaction) -> int:
    """How many Appends it has, in all its branches."""
    if len(transaction.success) == 1 and not transaction.failure:  # most are a put
        kind = type(transaction.success[0])
        if kind is not Txn:
            return int(kind is Append)
    return [type(op) for op in operations_of(transaction)].count(Append)


def compares_of(transaction: Transaction | Txn) -> tuple[Compare, ...]:
    """Of it and all that are nested in it."""
    if not has_nested(transaction):
        return transaction.compare
    return tuple([compare for one in (transaction, *nested_in(transaction)) for compare in one.compare])


CUT = Transaction(success=(Cut(),))


NO_LEASE = b""
OWN = b"\0\0"
"""With what the keys begin that are the store's own: no client can name one, and they come before all others."""
FIRST_KEY = b"\0\1"
"""The first key that a client's range can find."""


def lease_key(lease: bytes) -> bytes:
    """The key of the row of this lease."""
    return OWN + b"lease/" + lease.hex().encode()


class KeyValue(msgspec.Struct, array_like=True, gc=False):
    """A key, its value and its version, as a read saw them.

    create_version: of what created the key, after which it was never absent; ZERO in results of earlier releases. A key
    that was last written by a release that did not keep it has its version there. lease: that the key is attached to,
    NO_LEASE if to none.
    """

    key: bytes
    value: bytes
    version: Timestamp
    create_version: Timestamp = ZERO
    lease: bytes = NO_LEASE


class OperationResult(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):
    """One per operation of the branch that ran, in its order.

    Get: `found` or None. Delete: `deleted`. Add, Min, Max: `value`, the new integer. Append: `length`, the new one in
    bytes. Range: `entries` in its order, `more` if there are further ones; of a count `value`, at least so many if
    `more`.
    DeleteRange: `value`, how many there were. Move: `more` if a further step is needed.
    """

    found: KeyValue | None = None
    deleted: bool = False
    value: int = 0
    length: int = 0
    entries: tuple[KeyValue, ...] = ()
    more: bool = False


class TxnResult(OperationResult, array_like=True, gc=False):
    """Of a Txn: which of its branches ran, and one result per operation of that, in its order."""

    succeeded: bool = False
    results: tuple[OperationResult, ...] = ()


class Result(msgspec.Struct, array_like=True, gc=False):
    """The outcome of an executed transaction. `version`: its timestamp, and that of everything that it wrote.

    failure: empty, or why the whole transaction had no effect although it was ordered, e.g. an Add to a text;
    `failure_key` says where.
    """

    succeeded: bool
    version: Timestamp
    results: tuple[OperationResult, ...] = ()
    failure: str = ""
    failure_key: bytes = b""


def only_reads(transaction: Transaction) -> bool:
    """Whether it may be asked for without an id."""
    if transaction.compare or transaction.failure:
        return False
    return all([type(op) in (Get, Range) for op in transaction.success])


def has_range(transaction: Transaction) -> bool:
    """Whether it reads all keys with some prefix."""
    return any([type(op) is Range for op in operations_of(transaction)])


def move_of(transaction: Transaction) -> Move | None:
    """The Move that this transaction is."""
    if len(transaction.success) == 1:
        operation = transaction.success[0]
        if type(operation) is Move:
            return operation
    return None


def adds(transaction: Transaction) -> bool:
    """Whether it may make the data larger."""
    for operation in operations_of(transaction):
        if type(operation) in (Put, LeasedPut, *NUMBERS) or (type(operation) is Append and operation.value):
            return True
    return False


class InvalidTransaction(ValueError):
    """It is no transaction, or it breaks a limit. `field` names the offending part, e.g. `success[3].key`."""

    def __init__(self, field: str, problem: str):
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def each(name: str, treat: Callable[[T], R], items: Iterable[T]) -> tuple[R, ...]:
    """`treat` of all; what it raises about a field of one is raised with that one's place, e.g. `success[3].key`."""
    treated: list[R] = []
    for item in items:
        try:
            treated.append(treat(item))
        except InvalidTransaction as error:
            raise InvalidTransaction(f"{name}[{len(treated)}].{error.field}", error.problem) from None
    return tuple(treated)
