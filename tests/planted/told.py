"""Planted bugs of what clients are told besides what they asked for: whose an id is, and what a version holds."""

from __future__ import annotations

from kvstore.core.clients import Clients
from kvstore.core.collects import _Collect
from kvstore.core.lookups import Lookups
from kvstore.core.moves import Moves
from kvstore.core.reads import Reads
from kvstore.core.shards import Shards
from kvstore.simulated.settings import Settings
from tests.planted.rewriting import rewrite
from tests.planted.store import Planted

SMALL = Settings(protocol="white_box", size="small", shards=2)
MOVES = Settings(protocol="white_box", size="small", shards=2, moves=True, piecemeal=True)
READS = Settings(protocol="white_box", size="small", shards=2, reads=True)


@rewrite("order", "if waiting.digest == digest:", "if True:")
class WaitsWithAnother(Clients):
    """Whoever uses an id for something else while its first use waits here is given the answer of that."""


@rewrite("_on_result", "if waiting.is_another(shard, result):", "if False:")
class AnothersResult(Clients):
    """Who waits for a request is told what became of another one under its id, in a shard that is none of its own."""


@rewrite("on_results", "silent.discard(sender)", "silent.add(sender)")
class RefusersAreSilent(Lookups):
    """Who knows nothing of an id, or has refused another request under it, counts as one who has not answered."""


@rewrite("version", "return min([", "return max([")
class GreatestIsTold(_Collect):
    """Who reads several shards is told the version to which the one that is furthest has come."""


@rewrite("_read", "self._store.complete_to)", "max([self._store.complete_to, *[e.timestamp for e in log.entries]]))")
class PendingIsTold(Reads):
    """Who reads one shard is told that he has seen what is delivered there, and not complete."""


@rewrite("_remember", "if len(record) > RESULT_BYTES_KEPT:", "if len(record) < RESULT_BYTES_KEPT:")
class SmallResultsAreLost(Clients):
    """What was read is remembered only if it is too large for that."""


@rewrite("give", "slots = _remaining(leaving)",
         "slots = _remaining(leaving) | ({leaving.slots_to} & _expanded(leaving.slots))")  # fmt: skip
class HandedOverIsLeft(Moves):
    """Who moves slots is refused after some were handed over: the last of these counts as one that is left."""


@rewrite("on_tick", "for shard in set(self._lacks()) if self._is_silent(shard, now)", "for shard in set(self._lacks())")
class WaitsForWhomItHears(Shards):
    """A shard that waits for the part of another one says that it is in trouble: clients are refused for a while."""


PLANTED_IN_STORE = (
    Planted("waits_with_another", "answers", core=WaitsWithAnother, settings=SMALL),
    Planted("anothers_result", "", core=AnothersResult, settings=SMALL),
    Planted("refusers_are_silent", "", core=RefusersAreSilent, settings=SMALL),
    Planted("greatest_is_told", "reads at versions", core=GreatestIsTold, settings=READS),
    Planted("pending_is_told", "reads at versions", core=PendingIsTold, settings=READS),
    Planted("small_results_are_lost", "memory", core=SmallResultsAreLost, settings=SMALL),
    Planted("waits_for_whom_it_hears", "asked", core=WaitsForWhomItHears, settings=SMALL),
    Planted("handed_over_is_left", "moves", core=HandedOverIsLeft, settings=MOVES),
)
