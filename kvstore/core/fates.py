"""How a transaction ends, as far as that is decided before it runs: alike in all of its shards. Pure.

Whoever knows it first has the word, in this order (`Replica` asks them):

1. the journal of this replica, or of a peer, which has seen it end: `recorded`;
2. the order: what came too late for its id is expired;
3. this shard's memory, where no other shard is asked, or another one has told how it ended: what came before under its
   id; and where no other shard is asked, whether its slots have gone;
4. a shard that has completed it, and has forgotten its votes: `told`;
5. the votes of all of its shards: `voted`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvstore.api.model import Transaction
from kvstore.api.nesting import all_hold, both, is_way
from kvstore.core.audit import APPLIED, FAILED, MISMATCH, MOVED, REPEATED, NestedOutcome, Outcome
from kvstore.core.messages import Decided, Vote
from kvstore.core.moves import moved
from kvstore.core.plans import LocalPlan
from multicast.types import GroupId


class Fate(NamedTuple):
    """How a transaction ends. status: of `kvstore.core.audit`. succeeded: which branch runs. failure, failure_key: why
    it is impossible, if it is, and at which key. truths: see `kvstore.api.nesting`."""

    status: int
    succeeded: bool = False
    failure: str = ""
    failure_key: bytes = b""
    truths: bytes = b""

    @staticmethod
    def recorded(outcome: Outcome) -> Fate:
        """As a journal has recorded it."""
        truths = outcome.truths if isinstance(outcome, NestedOutcome) else b""
        return Fate(outcome.status, outcome.succeeded, outcome.reason, outcome.reason_key, truths)

    @staticmethod
    def told(decided: Decided | None, digest: bytes) -> Fate:
        """As another shard tells it that has completed the transaction. digest: of what this shard was given under its
        id."""
        if decided is None:
            return SUCCEEDED
        if decided.digest != digest:
            return Fate(MISMATCH)
        if decided.status not in (APPLIED, FAILED):
            return Fate(decided.status)
        return Fate(decided.status, decided.succeeded, decided.failure, decided.failure_key, decided.truths)

    @staticmethod
    def voted(plan: LocalPlan, votes: Sequence[Vote], shards: tuple[GroupId, ...]) -> Fate:
        """As the votes of its shards have it together. votes: of those that object to something."""
        if not votes and not plan.nested:
            return SUCCEEDED
        if any([v.reused for v in votes]):
            return Fate(MISMATCH)
        if any([v.repeated for v in votes]):
            return Fate(REPEATED)
        if moved([v.places for v in votes], shards):
            return Fate(MOVED)
        succeeded = all([v.holds for v in votes])
        if plan.nested:
            return Fate.nested(plan.transaction, succeeded, votes)
        for v in votes:
            failure, key = (v.success_failure, v.success_key) if succeeded else (v.failure_failure, v.failure_key)
            if failure:
                return Fate(FAILED, succeeded, failure, key)
        return SUCCEEDED if succeeded else NOT_SUCCEEDED

    @staticmethod
    def nested(transaction: Transaction, succeeded: bool, votes: Sequence[Vote]) -> Fate:
        """For a transaction with nested ones, by the votes of those of its shards that object to something."""
        truths = all_hold(transaction)
        told = [vote.nested for vote in votes if vote.nested is not None]
        for nested in told:
            truths = both(truths, nested.truths)
        for nested in told:
            for way, why, key in nested.impossible:
                if is_way(way, succeeded, truths):
                    return Fate(FAILED, succeeded, why, key, truths)
        return Fate(APPLIED, succeeded, truths=truths)


SUCCEEDED, NOT_SUCCEEDED = Fate(APPLIED, True), Fate(APPLIED, False)
