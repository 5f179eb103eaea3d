"""Nested transactions: which operations run, and what of a result belongs where. Pure.

All comparisons, of nested transactions too, are of what was there before the whole transaction. So whether each nested
one holds is known before anything runs, wherever it stands: its *truths* say it, a byte each, 1 if all its comparisons
hold, in the order of `kvstore.api.model.nested_in`. They and whether the outermost one holds decide the *course*: the
operations that run, one after the other, with those of the chosen branch in the place of each nested transaction.
A transaction without nested ones has no truths, and its course is one of its branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvstore.api.model import (
    Operation,
    OperationResult,
    Simple,
    Transaction,
    Txn,
    TxnResult,
    has_nested,
    nested_in,
    simple,
)

HOLDS, FAILS = b"\1", b"\0"
"""A truth."""
EITHER = b"\2"
"""In place of one that does not matter, in a way in which nothing of its transaction runs."""


def all_hold(transaction: Transaction) -> bytes:
    """The truths where nothing is compared in vain."""
    return HOLDS * sum(1 for _ in nested_in(transaction)) if has_nested(transaction) else b""


def both(one: bytes, other: bytes) -> bytes:
    """The truths of what holds in one shard and in another one."""
    return bytes([a & b for a, b in zip(one, other, strict=True)])


def course(transaction: Transaction, succeeded: bool, truths: bytes) -> tuple[Simple, ...]:
    """The operations that run."""
    if not truths:
        return simple(transaction.success if succeeded else transaction.failure)
    found: list[Simple] = []
    _walk(transaction, succeeded, iter(truths), found)
    return tuple(found)


def _walk(transaction: Transaction | Txn, holds: bool, truths: Iterator[int], found: list[Simple] | None) -> None:
    """Take the truths of all that is in it; `found` gets what runs; None: nothing in it does."""
    for branch, runs in ((transaction.success, holds), (transaction.failure, not holds)):
        taken = found if runs else None
        for operation in branch:
            if isinstance(operation, Txn):
                _walk(operation, bool(next(truths)), truths, taken)
            elif taken is not None:
                taken.append(operation)


def ways(transaction: Transaction) -> Iterator[tuple[bool, bytes]]:
    """All ways in which it can end: each is whether it succeeds, and the truths, or EITHER. They are as many as
    `kvstore.api.validation` allows if an operation can fail; else there may be any number."""
    for truths in _ways(transaction):
        yield truths[0] == 1, truths[1:]


def _ways(transaction: Transaction | Txn) -> Iterator[bytes]:
    """Its own truth, and those of what is in it."""
    nothing = [EITHER * sum(1 for _ in nested_in(Txn(success=b))) for b in (transaction.success, transaction.failure)]
    for truths in _ways_of_branch(transaction.success):
        yield HOLDS + truths + nothing[1]
    for truths in _ways_of_branch(transaction.failure):
        yield FAILS + nothing[0] + truths


def _ways_of_branch(branch: Sequence[Operation]) -> list[bytes]:
    found = [b""]
    for operation in branch:
        if isinstance(operation, Txn):
            found = [before + after for before in found for after in _ways(operation)]
    return found


def is_way(way: tuple[bool, bytes], succeeded: bool, truths: bytes) -> bool:
    """Whether it is that of `ways` in which a transaction ends."""
    return way[0] == succeeded and all([a == b or a == EITHER[0] for a, b in zip(way[1], truths, strict=True)])


def in_their_places(
    transaction: Transaction, succeeded: bool, truths: bytes, results: tuple[OperationResult, ...]
) -> tuple[OperationResult, ...]:
    """One result per operation of the branch that ran. results: of the course, in its order."""
    return _placed(transaction, succeeded, iter(truths), iter(results)) if truths else results


def _placed(
    transaction: Transaction | Txn, holds: bool, truths: Iterator[int], results: Iterator[OperationResult]
) -> tuple[OperationResult, ...]:
    placed: list[OperationResult] = []
    for branch, runs in ((transaction.success, holds), (transaction.failure, not holds)):
        for operation in branch:
            if not isinstance(operation, Txn):
                if runs:
                    placed.append(next(results))
                continue
            inner = bool(next(truths))
            if runs:
                placed.append(TxnResult(succeeded=inner, results=_placed(operation, inner, truths, results)))
            else:
                _walk(operation, inner, truths, None)
    return tuple(placed)


def ran(
    transaction: Transaction | Txn, succeeded: bool, results: Sequence[OperationResult]
) -> Iterator[tuple[Simple, OperationResult]]:
    """Each operation that ran, in the order in which they did, and its result. results: of the branch that ran."""
    branch = transaction.success if succeeded else transaction.failure
    for operation, result in zip(branch, results, strict=True):
        if isinstance(operation, Txn):
            assert isinstance(result, TxnResult)
            yield from ran(operation, result.succeeded, result.results)
        else:
            yield operation, result
