"""Bugs planted in what clients of a store seldom notice: an answer that comes late, or from another replica, what is
kept for nothing, and what a token may not read any more."""

from __future__ import annotations

from kvstore.core.bundler import Bundler
from kvstore.core.clients import Clients
from kvstore.core.collects import Collects
from kvstore.core.leases import Leases
from kvstore.core.log import Log
from kvstore.core.positions import Positions
from kvstore.core.reads import Reads
from kvstore.core.replica import Replica
from kvstore.core.requests import Waiting
from kvstore.core.versions import Versions
from kvstore.core.watches import Watches
from kvstore.simulated.settings import Settings
from tests.planted.rewriting import rewrite
from tests.planted.store import WINDOW, Planted

ANY = Settings(protocol="white_box", size="small")
SKEEN = Settings(protocol="skeen", size="small")
OLD = Settings(protocol="primcast", size="small", options={"dedup_window_us": "4000000"})
READS = Settings(protocol="white_box", size="small", reads=True)
SKEEN_READS = Settings(protocol="skeen", size="small", reads=True)
SKEEN_RANGES = Settings(protocol="skeen", size="small", shards=2, ranges=True)
THREE = Settings(protocol="white_box", size="small", shards=3, moves=True, late=True)
LEASES = Settings(protocol="white_box", size="small", leases=True)
PAST = Settings(protocol="white_box", size="small", replicas=3, past=True)
WATCHED = Settings(protocol="white_box", size="small", replicas=3, watch=True)
RULED = Settings(protocol="primcast", size="small", rights=True, reads=True)
RULED_SHARDS = Settings(protocol="white_box", size="small", shards=2, rights=True, reads=True)


@rewrite("completed", "or (self._peers.shard_of[origin] not in shards and shard == shards[0])", "")
class WritesAreNotReported(Clients):
    """Who asks a replica of another shard for a write waits until that replica asks what became of it."""


@rewrite("order", "if waiting.digest == digest:", "if waiting.digest == digest:\n            waiting.tokens.clear()")
class LastWhoAsksIsAnswered(Clients):
    """Who asks for what waits here already takes the place of whoever asked before."""


@rewrite("_refusal", "old = age > self._window_us and self._store.remembered(message_id) is None",
         "old = age > self._window_us")  # fmt: skip
class OldThoughRemembered(Clients):
    """Who repeats an old request is told that its id has expired, by who remembers the result."""


@rewrite("_forget", "self.store.forget_before(oldest)", "pass")
class IdsForEver(Replica):
    """Results are remembered for ever."""


@rewrite("advance", "if position > completed:", "if position >= completed:")
class WaitsForOneMore(Reads):
    """A read waits for one delivery more than it needs, which may not come."""


@rewrite("on_tick", "now - question.asked_at >= WAIT_US_MAX", "False")
class WaitsForWhatStands(Reads):
    """A read that must see what does not complete waits as long as that stands, and its client hears nothing."""


@rewrite("on_tick", "self._readable.remove(one)", "pass")
class RefusedAndAnswered(Reads):
    """A read that was refused, as it took too long, is answered besides once what it must see completes."""


@rewrite("_found", "if not request.whence and denied is None:", "if not request.whence:")
@rewrite("_found", "results = None if denied is not None or digest == request.known else",
         "results = None if digest == request.known else")  # fmt: skip
class FoundForAnybody(Reads):
    """What other replicas read for their clients they tell whatever the clients' rights are."""


@rewrite("_finish", "answer if denied is None else forbidden(denied)", "answer")
class PastForAnybody(Versions):
    """A read at a version that has waited is answered by the rights of when it came."""


@rewrite("_finish", "answer if denied is None else forbidden(denied)", "answer")
class WatchGoesOn(Watches):
    """Who waits for changes is told them though his rights were taken back."""


@rewrite("complete", "if item.later is None:", "if True:")
class NextCopyUnknown(Log):
    """When the first copy of an id is complete the second, which is open, is not known to the third."""


@rewrite("complete", "entry.items[-1].version", "entry.items[0].version")
class VersionOfTheFirst(Log):
    """A read is told the version of the first transaction of the last bundle, and has seen the others, too."""


@rewrite("_complete", "self.log.deleted_at = entry.position", "pass")
class DeletedUnnoticed(Replica):
    """What was deleted between two looks is not missed."""


@rewrite("_take", "deleted |= deletes", "pass")
class DeletedInTheSameBundle(Bundler):
    """Shards vote on a transaction before a range that stands before it in the bundle is deleted."""


@rewrite("answer", "if len(pieces) < len(self.results):", "if self.repeated:")
class RepetitionIsToldLess(Waiting):
    """Who repeats a request is told that it was applied, and not what it has read."""


@rewrite("_asked", ".union(*[result.shards for result in self.results.values()])", "")
class ShardsItKnewAreEnough(Waiting):
    """Who asked when it had not heard of a shard is told what the others have found of a copy that went there, too."""


@rewrite("add", "if real and version.time > real + self._ahead_us_max:", "if False:")
class WaitsForTheFuture(Versions):
    """Who asks for a version an hour ahead is let wait, and the shard is moved on all the while."""


@rewrite("add", "if asked.after is not None and real and asked.after.time > real + self._ahead_us_max:", "if False:")
class FollowsTheFuture(Watches):
    """The same of a watch."""


@rewrite("_refusal", "if -age > self._clock_ahead_us_max: # What", "if False: # What")
class IdsOfTomorrow(Clients):
    """An id of a clock that is an hour ahead is taken: it is remembered for so much longer."""


@rewrite("on_tick", "heappush(due, _Due(now + RETRY_US, lease, version))", "pass")
class RevokedOnce(Leases):
    """A lease whose revocation was refused, or lost, is never revoked."""


@rewrite("on_found", "if len(known) < quorum_of(len(replicas)):", "if not known:")
class OneHasCompacted(Versions):
    """A version is called compacted when one replica does not know it any more."""


@rewrite("_on_compacted", "if len(known) < quorum_of(len(replicas)):", "if not known:")
class OneHasCompactedChanges(Watches):
    """Who watches is told that what follows is compacted when one replica does not know it any more."""


@rewrite("_new_round", "self._number = self._rng.getrandbits(48)", "self._number = 0")
class WatchesNumberedAnew(Watches):
    """The rounds of watches have the numbers that they had in the life before."""


@rewrite("_begin", "self._number = self._rng.getrandbits(48)", "self._number = 0")
class VersionsNumberedAnew(Versions):
    """The same of reads at a version."""


@rewrite("_begin", "self._number = self._rng.getrandbits(48)", "self._number = 0")
class CollectsNumberedAnew(Collects):
    """The same of reads of several shards."""


@rewrite("_next", "self._number = self._rng.getrandbits(48)", "self._number = 0")
class PositionsNumberedAnew(Positions):
    """The same of the questions how far a read must wait."""


def _core(settings: Settings, checker: str, *kinds: type) -> list[Planted]:
    return [Planted(kind.__name__, checker, core=kind, settings=settings) for kind in kinds]


PLANTED_IN_STORE = (
    *_core(SKEEN, "latency", WritesAreNotReported),
    *_core(ANY, "asked", LastWhoAsksIsAnswered),
    *_core(OLD, "repetitions", OldThoughRemembered),
    Planted("IdsForEver", "memory", IdsForEver, settings=WINDOW),
    *_core(ANY, "repetitions", RepetitionIsToldLess),
    *_core(ANY, "answers", ShardsItKnewAreEnough),
    *_core(LEASES, "books", RevokedOnce),
    *_core(PAST, "reads at versions", OneHasCompacted),
    *_core(WATCHED, "watches", OneHasCompactedChanges),
    *_core(READS, "idle", WaitsForOneMore),
    *_core(READS, "", WaitsForWhatStands, RefusedAndAnswered),
    *_core(ANY, "idle", WaitsForTheFuture, FollowsTheFuture, IdsOfTomorrow),
    *_core(THREE, "books", NextCopyUnknown),
    *_core(WATCHED, "lives", WatchesNumberedAnew),
    *_core(PAST, "lives", VersionsNumberedAnew),
    *_core(READS, "lives", CollectsNumberedAnew, PositionsNumberedAnew),
    Planted("DeletedUnnoticed", "books", DeletedUnnoticed, settings=READS),
    *_core(SKEEN_RANGES, "books", DeletedInTheSameBundle),
    *_core(SKEEN_READS, "reads at versions", VersionOfTheFirst),
    *_core(RULED, "rights", PastForAnybody),
    *_core(RULED_SHARDS, "rights", WatchGoesOn, FoundForAnybody),
)
