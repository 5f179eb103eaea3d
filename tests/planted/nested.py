"""Bugs planted in nested transactions."""

from __future__ import annotations

from kvstore.api.model import Delete, Put
from kvstore.api.nesting import FAILS, HOLDS
from kvstore.core.execution import Execution, _holds
from kvstore.core.fates import Fate
from kvstore.core.plans import LocalPlan
from kvstore.core.replica import Replica
from kvstore.core.requests import Waiting
from kvstore.core.rights import Rights
from kvstore.simulated.settings import Settings
from tests.planted.rewriting import rewrite
from tests.planted.store import Planted

NESTED = Settings(protocol="white_box", size="small", nested=True)
ONE_SHARD = Settings(protocol="white_box", size="small", shards=1, nested=True)
RULED = Settings(protocol="white_box", profile="calm", size="small", nested=True, rights=True)
MOVED = Settings(protocol="white_box", size="small", shards=2, nested=True, moves=True)


@rewrite("voted", "plan.transaction, succeeded, votes)", "plan.transaction, succeeded, votes[:1])")
class FirstShardDecidesWithin(Fate):
    """What nested transactions compare in other shards than the first is not asked."""


@rewrite("voted", "succeeded, votes)", "succeeded, votes)._replace(status=APPLIED)")
class ImpossibleWithinIsApplied(Fate):
    """What is impossible in one shard, in the way in which a transaction ends, is done in the others."""


class ComparedAfterwards(Execution):
    """Nested transactions compare what is there after the Puts and Deletes before them."""

    def judge(self, plan: LocalPlan) -> tuple[bool, bytes]:
        holds, truths = super().judge(plan)
        if not truths:
            return holds, truths
        branch = plan.transaction.success if holds else plan.transaction.failure
        after = Execution(self._state, self._timestamp)
        after.run([(i, op) for i, op in enumerate(branch) if isinstance(op, Put | Delete)])
        found = [all([_holds(c, after._current(c.key)) for c in compares]) for compares in plan.inner_compares()]
        return holds, b"".join([HOLDS if one else FAILS for one in found])


@rewrite(
    "_execute", "plan.course(fate.succeeded, fate.truths)",
    "plan.course(fate.succeeded, bytes([1 - truth for truth in fate.truths]))",
)  # fmt: skip
class OtherBranchWithin(Replica):
    """Of nested transactions the other branch is executed."""


@rewrite("condition_keys", "if self.nested:", "if False:")
class ComparedWithinNotWaitedFor(LocalPlan):
    """A vote on what nested transactions compare is read though an earlier transaction still writes the key."""


@rewrite("every_operation", "if self.nested:", "if False:")
class WrittenWithinNotWaitedFor(LocalPlan):
    """Of what nested transactions write, and of numbers in them, those who come after know nothing."""


@rewrite("reaches_unnamed", "operations_of(self.transaction)", "simple(self.transaction.success)")
class ReachedWithinNotWaitedFor(LocalPlan):
    """A nested transaction that deletes a range, or attaches a key to a lease, names all that it touches."""


@rewrite("_complete", "told, fate.truths)", "execution.told)")
class TruthsForgotten(Replica):
    """Beside an id it is not remembered which nested transactions held."""


@rewrite("answer", "result.succeeded, result.truths ran", "result.succeeded, bytes(len(result.truths)); ran")
class ToldOfAnotherBranch(Waiting):
    """A client is told of nested transactions as if nothing had held."""


@rewrite(
    "denied", "for operation in operations_of(transaction):",
    "for operation in [op for op in (*transaction.success, *transaction.failure) if type(op) in _NEEDS]:",
)  # fmt: skip
class WithinUnchecked(Rights):
    """What nested transactions do is allowed to all."""


@rewrite("denied", "for compare in compares_of(transaction):", "for compare in transaction.compare:")
class ComparedWithinUnchecked(Rights):
    """Nested transactions tell of keys that the client may not read."""


PLANTED_IN_STORE = (
    Planted("first_shard_decides_within", "serial execution", core=FirstShardDecidesWithin, settings=NESTED),
    Planted("impossible_within_is_applied", "", core=ImpossibleWithinIsApplied, settings=NESTED),
    Planted("compared_afterwards", "serial execution", core=ComparedAfterwards, settings=ONE_SHARD),
    Planted("other_branch_within", "serial execution", OtherBranchWithin, settings=NESTED),
    Planted("compared_within_not_waited_for", "", core=ComparedWithinNotWaitedFor, settings=NESTED),
    Planted("written_within_not_waited_for", "", core=WrittenWithinNotWaitedFor, settings=NESTED),
    Planted("reached_within_not_waited_for", "", core=ReachedWithinNotWaitedFor, settings=NESTED),
    Planted("truths_forgotten", "", TruthsForgotten, settings=NESTED),
    Planted("told_of_another_branch", "", core=ToldOfAnotherBranch, settings=NESTED),
    Planted("within_unchecked", "serial execution", core=WithinUnchecked, settings=RULED),
    Planted("compared_within_unchecked", "serial execution", core=ComparedWithinUnchecked, settings=RULED),
)
