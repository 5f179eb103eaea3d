"""Bugs of who asks, and whom; of what is settled, and when; of what has come in part; and of what is told and kept."""

from __future__ import annotations

from typing import Any

import msgspec

from kvstore.core.clients import Clients
from kvstore.core.collects import _Collect
from kvstore.core.fates import Fate
from kvstore.core.leases import Leases
from kvstore.core.lookups import Lookups
from kvstore.core.positions import Positions
from kvstore.core.signals import Signals
from kvstore.core.watches import Watches
from kvstore.simulated.settings import DRAWN, Settings
from multicast.checkpoint import Checkpoints
from multicast.parts.causal import EarlyDelivery, Votes
from multicast.parts.founding import FoundedGroups
from multicast.parts.group_member import GroupMember
from multicast.parts.leadership import Leadership
from multicast.parts.rejoin import Rejoin
from multicast.parts.stream import Base, Stream
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.toto import Toto
from multicast.protocols.white_box import WhiteBox
from tests.planted import planted_in
from tests.planted.rewriting import rewrite
from tests.planted.store import Planted

SMALL = Settings(protocol="white_box", size="small", shards=2)
_ANYTHING: dict[str, Any] = dict.fromkeys(DRAWN) | {"narrow": False}
THREE = Settings(protocol="white_box", size="small", shards=3, clients=3, seconds=1.0, **_ANYTHING)
TWO = Settings(protocol="white_box", size="small", shards=2, replicas=3, clients=3, seconds=1.5)
READS = msgspec.structs.replace(SMALL, reads=True)
WATCH = msgspec.structs.replace(SMALL, watch=True)
LEASES = msgspec.structs.replace(SMALL, leases=True)
NESTED = msgspec.structs.replace(SMALL, nested=True)
MOVES = msgspec.structs.replace(SMALL, moves=True)
WANDERING = msgspec.structs.replace(SMALL, moves=True, late=True, seconds=2.0)
SHORT_WINDOWS = msgspec.structs.replace(SMALL, moves=True, stragglers=True)
GROWS = msgspec.structs.replace(SMALL, grows=True)

# -- what is settled --------------------------------------------------------------------------------------------------


@rewrite("_settle_up_to", "set(shards) <= set(destinations)", "set(shards) & set(destinations)")
class SettledForSome(Signals):
    """What was found at the start is settled by any later transaction that has one of its shards."""


@rewrite("forget_before", "self._store.drop_part(message_id)", "pass")
class PartsStayInTheStore(Signals):
    """Parts that are kept longer are forgotten with the results of their time, and stay in the store."""


# -- who is asked -----------------------------------------------------------------------------------------------------


@rewrite("_pull", "self._pulls += 1", "pass")
class PullsFromOne(Signals):
    """Parts are asked for of the same replica each time."""


@rewrite("_ask_for_results", "waiting.attempt + 1, now", "1, now")
class ResultsOfOne(Clients):
    """Results are asked for of the same replica each time but the first."""


@rewrite("add", "asked.tokens.append(token)", "asked.tokens = [token]")
class LastLookupIsTold(Lookups):
    """Of those who look up the same id at once the last one is told."""


@rewrite("on_readable", "self._unknown += question.waiting", "pass")
class UnknownIsDropped(Positions):
    """Reads for which the protocol knows no position are forgotten."""


@rewrite("end_batch", "if self._open is not None or not (self._new or self._unknown):", """if self._open is not None:
        self._open.waiting += self._new
        self._new = []
    if self._open is not None or not (self._new or self._unknown):""")  # fmt: skip
class JoinsOpenQuestion(Positions):
    """A read goes by the answer to a question that was asked before it came."""


@rewrite("_vote", "found.places = item.places", "pass")
class PlacesNotInVotes(Signals):
    """A shard does not tell the others which slots of a transaction it has given away, or taken."""


# -- what clients are told --------------------------------------------------------------------------------------------


@rewrite("version", "(self.before or self.found)", "self.found")
class VersionOfTheSecondRound(_Collect):
    """Who reads several shards is told the version to which they have come in the second round."""


@rewrite("_tell_progress", "Followed([], client.at)", "Followed([], self._feed.upto if self._feed else client.at)")
class ProgressOfTheFeed(Watches):
    """Who is told nothing for long is told that this is all up to where the feed has come."""


@rewrite("_on_result", "result.timestamp > waiting.moved_at", "not waiting.moved_at.time")
class MovedOnce(Clients):
    """Who was sent elsewhere once is not sent elsewhere again."""


@rewrite("on_tick", "self._versions, self._due, self._at = None, [], None", "self._due, self._at = [], None")
class MeasuredInAnEarlierReign(Leases):
    """Leases that a leader has measured when it led before are never due when it leads again."""


@rewrite("recorded", 'outcome.truths if isinstance(outcome, NestedOutcome) else b""', 'b""')
class TruthsNotRecorded(Fate):
    """Which nested transactions hold is not taken from the journal."""


@rewrite("told", "decided.failure_key, decided.truths)", "decided.failure_key)")
class TruthsNotTold(Fate):
    """Nor from another shard."""


# -- what has come in part, and what links lose -----------------------------------------------------------------------


@rewrite("on_peer_reset", "self._transfer.forget(peer)", "pass", part=GroupMember)
class PortionsOfBrokenLinks(FtSkeen):
    """Portions of a state that came before a link was reset are put together with those of another one."""


@rewrite("link_reset", "self._vote_again_at = now", "pass", part=Leadership)
class StateNotAskedAgain(WhiteBox):
    """A state that was lost with a link is asked for after a very long time."""


@rewrite("_conclude", "self._answers.clear()", "pass", part=Rejoin)
class AnswersToTheFirstQuestion(WhiteBox):
    """Who has lost its disk, and must ask once more, takes the answers that it has for those to the second question."""


@rewrite("_learn", 'out.put(_PREFIX + group.group.to_bytes(2, "big"), _encode(group))', "pass", part=FoundedGroups)
class FoundedNotSaved(WhiteBox):
    """Who learns of an added group does not keep that on disk."""


@rewrite("advance", "_FILES[self.latest().file == _FILES[0]]", "_FILES[0]")
class OverTheOneThatCounts(Checkpoints):
    """All checkpoints are written to one file: while one is made there is none."""


@rewrite("_write", "disk.truncate(name, 0)", "pass")
class BehindTheOldOne(Checkpoints):
    """A checkpoint is written behind the one that its file held."""


@rewrite("finish", "out.delete(MARKER_KEY)", "pass", part=Rejoin)
class MarkerStays(WhiteBox):
    """Who has come back after the loss of its disk has lost it again in its next life."""


# -- a group's decisions ----------------------------------------------------------------------------------------------


@rewrite("adopt", "self.base = base.copy()", "self.base = base", part=Stream)
class AdoptedBaseGoesOn(QuasiGenuine):
    """What is taken over of a peer's log counts as dropped up to where the log has come since."""


@rewrite("restore", "self.base = self.kept.copy()", "self.base = self.kept", part=Stream)
class RestoredBaseGoesOn(QuasiGenuine):
    """The same with what is found at the start."""


@rewrite("copy", "dict(self.casts)", "self.casts", part=Base)
class CastsShared(QuasiGenuine):
    """What was decided of each sender counts for what the log amounted to before."""


# -- orders of a causal DAG -------------------------------------------------------------------------------------------


@rewrite("sources", "sorted(self.votes)", "self.votes")
class VotesAsTheyCame(Votes):
    """Sources are in the order in which they have become candidates."""


@rewrite("_next_activation", "self.early = 0", "pass")
class EarlyForGood(EarlyDelivery):
    """What was ordered early in an activation stays so in the next one."""


class SourcesAsTheyCame(Toto):
    """Sources are ordered as they have become candidates, and not by their processes."""

    order_class = type("SourcesAsTheyCame", (EarlyDelivery,), {"votes_class": VotesAsTheyCame})


class EarlyInTheNextActivation(Toto):
    """What was ordered early in one activation counts as ordered in the next one."""

    order_class = EarlyForGood


@rewrite("learn", "self.wanted[j] = number", "pass", part="view", after="_begin_view")
class HeldByOthersNotWanted(Toto):
    """Casts of which a receipt tells are not missed."""


@rewrite("holders", ">= span[1]", "> span[1]", part="view", after="_begin_view")
class HoldersOfMore(Toto):
    """A cast is asked for of members that hold the next one, too."""


PLANTED = tuple(bug for bug in planted_in(__name__) if bug.protocol is not FoundedNotSaved)


def _in_store(settings: Settings, checker: str, *kinds: type) -> list[Planted]:
    return [Planted(kind.__name__, checker, core=kind, settings=settings) for kind in kinds]


PLANTED_IN_STORE = (
    *_in_store(THREE, "memory", SettledForSome),
    *_in_store(SHORT_WINDOWS, "memory", PartsStayInTheStore),
    *_in_store(TWO, "asked", PullsFromOne, ResultsOfOne),
    *_in_store(SMALL, "", LastLookupIsTold),
    *_in_store(READS, "", UnknownIsDropped, JoinsOpenQuestion, VersionOfTheSecondRound),
    *_in_store(WATCH, "watches", ProgressOfTheFeed),
    *_in_store(MOVES, "votes", PlacesNotInVotes),
    *_in_store(WANDERING, "", MovedOnce),
    *_in_store(LEASES, "books", MeasuredInAnEarlierReign),
    *_in_store(NESTED, "", TruthsNotRecorded, TruthsNotTold),
    *_in_store(SMALL, "recovery", OverTheOneThatCounts),
    *_in_store(SMALL, "", BehindTheOldOne),
    Planted("FoundedNotSaved", "memory", settings=GROWS, protocol=FoundedNotSaved),
)
