"""Bugs planted in reads that are not ordered: in positions and barriers, in collects, in ages."""

from __future__ import annotations

from kvstore.core.collects import Collects, _Collect
from kvstore.core.positions import Positions
from kvstore.core.reads import Reads
from kvstore.simulated.settings import Settings
from tests.planted.rewriting import rewrite
from tests.planted.store import Planted

AGES, STRICT = "ages of reads", "strict serializability"
LEADERS = Settings(protocol="white_box", size="small", reads=True)
BARRIERS = Settings(protocol="ft_skeen", size="small", reads=True)
DELETING = Settings(protocol="white_box", size="small", shards=2, reads=True, ranges=True)
SEVERAL = Settings(protocol="white_box", size="small", shards=2, reads=True)


@rewrite("advance", "if position > completed:", "if False:")
class CompletionNotAwaited(Reads):
    """What is complete is read, whatever must be."""


@rewrite(
    "on_position_request",
    "self.positions.ask(_Asked(sender, message))",
    "out.send((sender,), PositionTold(message.number, self._log.completed))",
)
class NobodyAsked(Reads):
    """A leader tells others what it has completed itself, and asks nobody whether it leads."""


@rewrite("_tell", "PositionTold(request.number, position)", "PositionTold(request.number, self._log.completed)")
class OwnPositionTold(Reads):
    """A leader tells others how far it has come itself."""


@rewrite("ask", "self._new.append(waiting)", "(self._open.waiting if self._open else self._new).append(waiting)")
class JoinsTheBarrier(Positions):  # type: ignore[type-arg]
    """What is asked while a barrier is under way is answered with it."""


@rewrite("_raise", "question.due = now + WAIT_US_MAX", "self._end(0)")
class BarrierNotAwaited(Positions):  # type: ignore[type-arg]
    """A barrier leaves, and nobody waits for it."""


@rewrite("on_told", "or question.number != message.number", "")
class LateAnswerTaken(Positions):  # type: ignore[type-arg]
    """What a leader has answered too late counts as its answer to the next question."""


@rewrite("_judge", "collect.held()", "True")
class SingleCollect(Collects):
    """Each shard is asked once."""


@rewrite("held", "found.digest != before.digest or", "")
class DifferencesOverlooked(_Collect):
    """What the shards find anew is not compared with what they have found."""


@rewrite("held", "found.deleted_at > before.position", "False")
class DeletedInBetween(_Collect):
    """What stands nowhere may have stood there between the two rounds."""


@rewrite("_add", "now - self._fresh_at < age_us", "now - self._fresh_at < 50 * age_us")
class AgeUnderstated(Reads):
    """What is served may be much older than it is said to be."""


@rewrite("_judge", "at = max(versions)", "at = min(versions)")
class StaleRangeOfTheLeast(Collects):
    """A stale range is read at a version that not all shards' fresh states are below."""


@rewrite("_next", "self._number = self._rng.getrandbits(48)", "self._number = 0")
class NumbersFromOneInEveryLife(Positions):
    """What a leader has answered to an earlier life of a replica is taken for the answer to a question of this one."""


@rewrite("on_found", "before.digest == message.digest", "True")
class ToldFromBefore(Collects):
    """What a shard does not tell any more is told from the round before."""


@rewrite("_judge", "if moved([one.places for one in found], collect.shards):", "if False:")
class RangeWithoutItsSlots(Collects):
    """A range is read of shards from which a slot has gone elsewhere."""


@rewrite("_begin_more", "and self._under_way[shards] < room", "")
class AllAskedAtOnce(Collects):
    """However much it is, all that is read of another shard is asked for at once."""


@rewrite("on_found", "self._over(collect, now, out)", "pass")
class NeverOver(Collects):
    """What is answered counts as under way, for good."""


@rewrite("_found", "request.known_at == log.completed", "request.known_at <= log.completed")
class UnchangedForEver(Reads):
    """A shard that has told what it has found is not looked at again."""


PLANTED_IN_STORE = (
    Planted("unchanged_for_ever", STRICT, core=UnchangedForEver, settings=SEVERAL),
    Planted("told_from_before", "", core=ToldFromBefore, settings=SEVERAL),
    Planted("all_asked_at_once", "", core=AllAskedAtOnce, settings=SEVERAL),
    Planted("never_over", "", core=NeverOver, settings=SEVERAL),
    Planted("range_without_its_slots", "", core=RangeWithoutItsSlots, settings=SEVERAL),
    Planted("completion_not_awaited", AGES, core=CompletionNotAwaited, settings=LEADERS),
    Planted("nobody_asked", AGES, core=NobodyAsked, settings=LEADERS),
    Planted("own_position_told", AGES, core=OwnPositionTold, settings=SEVERAL),
    Planted("joins_the_barrier", AGES, core=JoinsTheBarrier, settings=BARRIERS),
    Planted("barrier_not_awaited", AGES, core=BarrierNotAwaited, settings=BARRIERS),
    Planted("late_answer_taken", "lives", core=LateAnswerTaken, settings=SEVERAL),
    Planted("single_collect", STRICT, core=SingleCollect, settings=SEVERAL),
    Planted("differences_overlooked", STRICT, core=DifferencesOverlooked, settings=SEVERAL),
    Planted("deleted_in_between", STRICT, core=DeletedInBetween, settings=DELETING),
    Planted("age_understated", AGES, core=AgeUnderstated, settings=LEADERS),
    Planted("numbers_from_one_in_every_life", AGES, core=NumbersFromOneInEveryLife, settings=SEVERAL),
    Planted("stale_range_of_the_least", AGES, core=StaleRangeOfTheLeast, settings=SEVERAL),
)
