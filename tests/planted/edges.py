"""Bugs planted in what few ask for: comparisons of versions, what a transaction sees of itself and is told of it, the
keys of a lease, pages of several shards, and all of a row besides its key and its version."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from kvstore.api.model import Compare, KeyValue
from kvstore.core.clients import Clients
from kvstore.core.collects import _Collect
from kvstore.core.execution import Execution
from kvstore.core.fates import Fate
from kvstore.core.leases import Leases
from kvstore.core.log import Log
from kvstore.core.moves import Moves
from kvstore.core.plans import LocalPlan
from kvstore.core.rights import Rights
from kvstore.core.versions import Versions
from kvstore.simulated.settings import Settings
from kvstore.storage.history import Past
from kvstore.storage.store import Store
from tests.planted.rewriting import rewrite
from tests.planted.store import Planted

EDGES = Settings(protocol="white_box", size="small", shards=1, edges=True)
PAGES = Settings(protocol="white_box", size="small", shards=2, edges=True, reads=True)
TWO_SHARDS = Settings(protocol="white_box", size="small", shards=2)
MOVES = Settings(protocol="white_box", size="small", shards=2, moves=True, leases=True)
LEASES = Settings(protocol="white_box", size="small", leases=True)
LEASED_SHARDS = Settings(protocol="white_box", size="small", shards=2, leases=True, edges=True)
BOUNDS = Settings(protocol="white_box", size="small", shards=2, bounds=True)
PAST = Settings(protocol="white_box", size="small", past=True)
BEHIND = Settings(protocol="primcast", size="small", edges=True, rights=True, ranges=True)
RIGHTS = Settings(protocol="white_box", size="small", shards=1, edges=True, rights=True)

_overridable = rewrite(
    "run", "_RUN[type(operation)](self, operation)", "getattr(self, _RUN[type(operation)].__name__)(operation)"
)


class CreatedWhenWritten(Execution):
    """Who compares when a key was created is told by when it was written."""

    def compare(self, compares: Sequence[Compare]) -> bool:
        return super().compare([replace(c, target=c.target.removeprefix("create_")) for c in compares])


class OneBundleOneVersion(Execution):
    """What was written by different transactions of one bundle compares as if it were of one version."""

    def compare(self, compares: Sequence[Compare]) -> bool:
        return super().compare([self._like(c) if c.target == "version" else c for c in compares])

    def _like(self, compare: Compare) -> Compare:
        row = self._before(compare.key)
        alike = row is not None and row.version.time == getattr(compare.operand, "time", -1)
        return replace(compare, operand=row.version) if row is not None and alike else compare


@_overridable
@rewrite("_count", "if not INT64_MIN <= value <= INT64_MAX:", "if value < INT64_MIN:")
class BeyondTheGreatest(Execution):
    """A number grows beyond 64 bits."""


@_overridable
@rewrite("_delete", "self._current(operation.key)", "self._before(operation.key)")
class DeletedWhatWas(Execution):
    """Who deletes what he has written is told whether it was there before that."""


@_overridable
@rewrite("_append", "OperationResult(length=len(value))", "OperationResult(length=len(operation.value))")
class LengthOfTheEnd(Execution):
    """Who appends is told how much he has appended."""


@rewrite("_current", "None if value is None else self._written(key, value)",
         "None if value is None else self._before(key) or self._written(key, value)")  # fmt: skip
class GetsWhatWas(Execution):
    """A transaction that has overwritten a key gets what was there before."""


@rewrite("_find", "found.sort(key=_key_of, reverse=reverse)", "found.sort(key=_key_of)")
class RisesAnyhow(Execution):
    """A falling range in which a transaction has written rises."""


@rewrite("_find_attached", "keys[: operation.limit]", "keys")
class AllOfALease(Execution):
    """Who asks for some keys of a lease gets all."""


@rewrite("answer", "if self.request.paged and", "if False and")
class TornPages(_Collect):
    """The first page of several shards is of no version, and the next ones are of an earlier one than that shows."""


@rewrite("voted", "(v.success_failure, v.success_key)", "(v.success_failure, v.failure_key)")
class AnotherReason(Fate):
    """Who is told that his transaction was impossible is told the key of what was not to run."""


@rewrite("_took", "_encoded(row, row.value)",
         "_encoded(msgspec.structs.replace(row, create_version=row.version), row.value)")  # fmt: skip
class CreatedByTheMove(Moves):
    """A key that has moved has been created when it was written last."""


@rewrite("_attach", "if before:", "if before and lease:")
class AttachedForEver(Store):
    """What is noted of a key that was attached to a lease stays when the key goes, or is written without one."""


@rewrite("on_found", "if not asked.asking:", "if False:")
class FirstOnesAreRead(Versions):
    """Of many keys at a version no more are read than are asked for at once."""


class PastIsNew(Past):
    """A key is read at a version as if it had been created when it was written."""

    def get(self, key: bytes) -> KeyValue | None:
        row = super().get(key)
        return None if row is None else replace(row, create_version=row.version)


@rewrite("_on_unknown", "if message.complete is not None and", "if False and")
class BehindIsForgetful(Clients):
    """Whoever has not come to a transaction yet counts as one who has forgotten what it read."""


@rewrite("_clock", "max(self._real_clock(now) or now, self._store.complete_to.time)", "self._real_clock(now) or now")
class OlderThanItsShard(Clients):
    """What a replica orders whose clock was set back comes too late, reads without an id among it."""


@rewrite("__init__", "self.completed = self.deleted_at = completed", "self.completed, self.deleted_at = completed, 0")
class NothingDeletedBefore(Log):
    """When a life begins nothing was ever deleted: who reads several shards misses what was just before that."""


@rewrite("_measure", "1000 *", "10_000 *")
class LivesTenTimes(Leases):
    """A lease that nobody renews goes ten times as late as its holder has asked."""


@rewrite("reaches_unnamed", "not _REACHING.isdisjoint", "not (_REACHING - {Revoke}).isdisjoint")
class RevokedUnnoticed(LocalPlan):
    """A vote is read though an earlier transaction may still revoke the lease of what it depends on."""


@rewrite("reaches_unnamed", "not _REACHING.isdisjoint", "not (_REACHING - {LeasedPut}).isdisjoint")
class AttachedUnnoticed(LocalPlan):
    """Whether a lease has room for a key is judged though an earlier transaction still attaches another one."""


@rewrite("step", "self._store.forget_past(at)", "move.source == self._shard and self._store.forget_past(at)")
class TargetKnowsThePast(Moves):
    """The target of a move tells what stood under a key before that as if nothing had, where that was overwritten."""


@rewrite("remembered_after", "(self._frozen, self._active)", "(self._active, self._frozen)")
class FirstWordCounts(Store):
    """What is remembered anew while the first of it is being written does not go with a slot."""


@rewrite("reaches_unnamed", "not _REACHING.isdisjoint", "not (_REACHING - {NoneNewer}).isdisjoint")
class NewerUnnoticed(LocalPlan):
    """Whether nothing in a range is newer is judged though an earlier transaction still writes there."""


@rewrite("permissions", "for role in token.roles]", "for role in token.roles[:1]]")
class FirstRoleCounts(Rights):
    """Whoever has several roles may do what the first one allows."""


@rewrite("denied", "access, first, end):", 'access, first, first + b"\\0"):')
class BeginsWithin(Rights):
    """Whoever may read a key may read any range that begins there."""


PLANTED_IN_STORE = (
    Planted("created_when_written", "serial execution", core=CreatedWhenWritten, settings=EDGES),
    Planted("one_bundle_one_version", "serial execution", core=OneBundleOneVersion, settings=EDGES),
    Planted("beyond_the_greatest", "serial execution", core=BeyondTheGreatest, settings=EDGES),
    Planted("deleted_what_was", "serial execution", core=DeletedWhatWas, settings=EDGES),
    Planted("length_of_the_end", "serial execution", core=LengthOfTheEnd, settings=TWO_SHARDS),
    Planted("gets_what_was", "serial execution", core=GetsWhatWas, settings=EDGES),
    Planted("rises_anyhow", "serial execution", core=RisesAnyhow, settings=EDGES),
    Planted("all_of_a_lease", "serial execution", core=AllOfALease, settings=EDGES),
    Planted("torn_pages", "reads at versions", core=TornPages, settings=PAGES),
    Planted("another_reason", "serial execution", core=AnotherReason, settings=TWO_SHARDS),
    Planted("created_by_the_move", "rows", core=CreatedByTheMove, settings=MOVES),
    Planted("attached_for_ever", "rows", store=AttachedForEver, settings=MOVES),
    Planted("behind_is_forgetful", "", core=BehindIsForgetful, settings=BEHIND),
    Planted("older_than_its_shard", "", core=OlderThanItsShard, settings=BEHIND),
    Planted("nothing_deleted_before", "books", core=NothingDeletedBefore, settings=TWO_SHARDS),
    Planted("lives_ten_times", "books", core=LivesTenTimes, settings=LEASES),
    Planted("revoked_unnoticed", "", core=RevokedUnnoticed, settings=LEASED_SHARDS),
    Planted("attached_unnoticed", "", core=AttachedUnnoticed, settings=LEASED_SHARDS),
    Planted("target_knows_the_past", "", core=TargetKnowsThePast, settings=MOVES),
    Planted("first_word_counts", "", store=FirstWordCounts, settings=MOVES),
    Planted("newer_unnoticed", "votes", core=NewerUnnoticed, settings=BOUNDS),
    Planted("past_is_new", "rows", core=PastIsNew, settings=PAST),
    Planted("first_ones_are_read", "idle", core=FirstOnesAreRead, settings=TWO_SHARDS),
    Planted("first_role_counts", "serial execution", core=FirstRoleCounts, settings=RIGHTS),
    Planted("begins_within", "serial execution", core=BeginsWithin, settings=RIGHTS),
)
