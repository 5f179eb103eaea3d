"""Bugs planted in the rights of those who hold tokens."""

from __future__ import annotations

from kvstore.core.moves import Moves
from kvstore.core.reads import Reads
from kvstore.core.replica import Replica
from kvstore.core.rights import Rights
from kvstore.simulated.settings import Settings
from tests.planted.moves import CALM
from tests.planted.rewriting import rewrite
from tests.planted.store import Planted


@rewrite("_execute", "if plan.transaction.by and", "if False and")
class CheckedAtEntryOnly(Replica):
    """A transaction that its entry replica allowed takes effect though the token was taken back before it."""


@rewrite("_serve", "denied = self._rights.denied(request.transaction)", "denied = None")
class WaitingReadsUnchecked(Reads):
    """A read that was allowed when it was asked is answered though the token was taken back while it waited."""


@rewrite("permissions", "if note is not None", "if True")
class LostRoleRaises(Rights):
    """Whoever has a role that is no more stops the shard."""


@rewrite("denied", "for operation in operations_of(transaction):", "for operation in transaction.success:")
class FailureUnchecked(Rights):
    """What a transaction does if its comparisons do not hold is allowed to all."""


@rewrite("denied", "for compare in compares_of(transaction):", "for compare in ():")
class ComparisonsUnchecked(Rights):
    """Comparisons tell of keys that the client may not read."""


READ = Settings(protocol="primcast", size="small", rights=True, reads=True)
RULED = Settings(
    protocol="white_box", profile="calm", size="small", shards=1, clients=4, seconds=1.0, rights=True, grows=True,
    moves=True,
)  # fmt: skip


@rewrite("_took", "if given.rules:", "if False:")
class NewShardKnowsNoRights(Moves):
    """A shard that was added judges without the rights that were there before it."""


@rewrite("give", "rules = self._rights.given() if (handed or last) and not knows else []",
         "rules = self._rights.given() if first and not knows else []")  # fmt: skip
class RightsOfTheFirstStep(Moves):
    """A shard that was added gets the rights of its first move's first step: what changes until it begins passes it
    by."""


@rewrite("give", "move.target in self.first_map.shards or own_slot(move.target) in self.places",
         "move.target in self.map.shards")  # fmt: skip
class RightsByHearsay(Moves):
    """Who has heard of a shard that was added gives it no rights, and others of the same source do."""


@rewrite("told", "any([isinstance(op, _EVERY_SLOT)", "any([not isinstance(op, Rule) and isinstance(op, _EVERY_SLOT)")
class RuleWithoutTheNewShard(Moves):
    """Rights change by whoever has not heard of a shard that was added, without that."""


@rewrite("_execute", "known is None and fate.status in (APPLIED, FAILED):", "known is None and fate.status == APPLIED:")
class ToldWhyImpossible(Replica):
    """Who has no right to a transaction is told why it would be impossible in another shard."""


PLANTED_IN_STORE = (
    Planted("checked_at_entry_only", "", CheckedAtEntryOnly, settings=CALM),
    Planted("waiting_reads_unchecked", "", core=WaitingReadsUnchecked, settings=READ),
    Planted("lost_role_raises", "", core=LostRoleRaises, settings=CALM),
    Planted("failure_unchecked", "", core=FailureUnchecked, settings=CALM),
    Planted("comparisons_unchecked", "", core=ComparisonsUnchecked, settings=CALM),
    Planted("new_shard_knows_no_rights", "", core=NewShardKnowsNoRights, settings=RULED),
    Planted("told_why_impossible", "", ToldWhyImpossible, settings=CALM),
    Planted("rights_of_the_first_step", "", core=RightsOfTheFirstStep, settings=RULED),
    Planted("rights_by_hearsay", "", core=RightsByHearsay, settings=RULED),
    Planted("rule_without_the_new_shard", "", core=RuleWithoutTheNewShard, settings=RULED),
)
