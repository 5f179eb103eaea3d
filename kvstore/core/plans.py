"""What of a transaction concerns one shard. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kvstore.api.model import (
    EVERYWHERE,
    LEASED,
    NUMBERS,
    SILENT,
    Append,
    Compare,
    Delete,
    DeleteRange,
    LeasedPut,
    NoneNewer,
    Put,
    Revoke,
    Simple,
    Transaction,
    has_nested,
    lease_key,
    nested_in,
    operations_of,
    simple,
)
from kvstore.api.nesting import course
from kvstore.api.shard_map import slot_of


class Attach(NamedTuple):
    """What a LeasedPut is to the shard of the lease. key: of the lease's row; slot: of the key that is attached."""

    key: bytes
    slot: int


class Release(NamedTuple):
    """What a Revoke is to one of its shards. key: of the lease's row in its own shard, else empty."""

    lease: bytes
    key: bytes


_WRITING = frozenset((Put, Delete, *NUMBERS, Append, LeasedPut, Attach))
_READ_BEFORE_WRITTEN = frozenset((*NUMBERS, Append, Attach))
_REACHING = frozenset((DeleteRange, LeasedPut, NoneNewer, Revoke))
_LEASED = frozenset(LEASED)
_SILENT = frozenset(SILENT)
_OF_ALL = frozenset((*EVERYWHERE, Revoke))
Indexed = list[tuple[int, Simple | Attach | Release]]


class LocalPlan:
    """The comparisons and operations of a transaction that one shard owns; ranges, Cuts and Moves are everybody's.

    owns: whether the shard owns a key; None: it owns all of them. nested: whether there are nested transactions.
    compares: of the outermost one. limited: what its Appends write has a limit (LIMITED_VERSION of
    `kvstore.core.bundles`).
    """

    __slots__ = ("_failure", "_owns", "_success", "compares", "limited", "nested", "transaction")

    def __init__(self, transaction: Transaction, owns: Callable[[bytes], bool] | None = None, limited: bool = False):
        self.transaction = transaction
        self.limited = limited
        self.compares: tuple[Compare, ...] = transaction.compare
        self._owns = owns
        self._success: Indexed | None = None
        self._failure: Indexed | None = None
        self.nested = has_nested(transaction)
        if owns is not None and self.compares:
            self.compares = tuple([c for c in self.compares if owns(c.key)])

    def course(self, succeeded: bool, truths: bytes = b"") -> Indexed:
        """(index in the transaction's course, operation)."""
        if truths:
            return self._local(course(self.transaction, succeeded, truths))
        if succeeded:
            if self._success is None:
                self._success = self._local(simple(self.transaction.success))
            return self._success
        if self._failure is None:
            self._failure = self._local(simple(self.transaction.failure))
        return self._failure

    def inner_compares(self) -> list[tuple[Compare, ...]]:
        """The comparisons of each nested transaction (`kvstore.api.model.nested_in`)."""
        owns = self._owns or _owns_all
        return [tuple([c for c in txn.compare if owns(c.key)]) for txn in nested_in(self.transaction)]

    def every_operation(self) -> Indexed:
        """The operations of all branches; their indexes mean nothing."""
        if self.nested:
            return self._local(operations_of(self.transaction))
        return [*self.course(True), *self.course(False)]

    def _local(self, branch: tuple[Any, ...]) -> Indexed:
        owns = self._owns
        if not branch:
            return []
        if not _LEASED.isdisjoint(map(type, branch)):
            return [(i, op) for i, asked in enumerate(branch) for op in _parts(asked, owns or _owns_all)]
        if owns is None:
            return list(enumerate(branch))
        return [(i, op) for i, op in enumerate(branch) if type(op) in _OF_ALL or owns(op.key)]

    def condition_keys(self) -> set[bytes]:
        """The keys whose values decide the vote. If the vote depends on keys that the transaction does not name
        (`reaches_unnamed`), so do the values of these."""
        keys = {compare.key for compare in self.compares}
        if self.nested:
            keys.update([compare.key for compares in self.inner_compares() for compare in compares])
        op: Any
        for _, op in self.every_operation():
            if type(op) in _READ_BEFORE_WRITTEN:
                keys.add(op.key)
        return keys

    def written_keys(self) -> set[bytes]:
        """Every key that any branch may write. If a branch writes keys that the transaction does not name, it may be
        any other key, too."""
        every: list[tuple[int, Any]] = self.every_operation()
        return {op.key for _, op in every if type(op) in _WRITING}

    def reaches_unnamed(self) -> bool:
        """Whether any branch may delete, count, or judge keys that it does not name."""
        return not _REACHING.isdisjoint(map(type, operations_of(self.transaction)))

    def reads_something(self, succeeded: bool, truths: bytes) -> bool:
        """Whether this shard has read something: then it knows more of what ran than that its Puts were done."""
        return any([type(op) not in _SILENT for _, op in self.course(succeeded, truths)])


def _owns_all(key: bytes) -> bool:
    return True


def _parts(asked: Simple, owns: Callable[[bytes], bool]) -> list[Simple | Attach | Release]:
    """What an operation is to the shard that owns these of its keys."""
    if isinstance(asked, LeasedPut):
        home = lease_key(asked.lease)
        attach = [Attach(home, slot_of(asked.key))] if owns(home) else []
        return [*attach, asked] if owns(asked.key) else [*attach]
    if isinstance(asked, Revoke):
        home = lease_key(asked.lease)
        return [Release(asked.lease, home if owns(home) else b"")]
    return [asked] if isinstance(asked, EVERYWHERE) or owns(asked.key) else []


def voting_keys(transaction: Transaction) -> set[bytes]:
    """The keys, of all shards, whose values decide what becomes of a transaction."""
    return LocalPlan(transaction).condition_keys()
