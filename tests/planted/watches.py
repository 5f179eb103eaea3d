"""Bugs planted in what watches are told."""

from __future__ import annotations

from kvstore.core.changes import Changes
from kvstore.core.watches import Watches
from kvstore.simulated.settings import Settings
from kvstore.storage.snapshot import Snapshots
from kvstore.storage.store import Store
from tests.planted.rewriting import rewrite
from tests.planted.store import Planted

CHECK = "watches"
SMALL = Settings(protocol="white_box", size="small", watch=True)
TIGHT = Settings(protocol="white_box", size="tight", watch=True)
MOVING = Settings(protocol="white_box", size="small", watch=True, moves=True)
RANGES = Settings(protocol="white_box", size="small", watch=True, ranges=True)


@rewrite("_answer", "if complete_to < asked.wanted and not held:", "if False:")
@rewrite("_answer", "transactions, upto, complete_to)", "transactions, max(upto, asked.wanted), complete_to)")
class ToldBeforeComplete(Changes):
    """A shard says that it has told everything up to a version before it is complete up to there."""


@rewrite("on_told", "min(asked.upto, told.upto)", "max(asked.upto, told.upto)")
class NotWaitedForAShard(Watches):
    """What the shards tell is released up to where the first of them is."""


@rewrite("_take", "client.starts or client.after >= feed.begin", "client.starts or client.after >= ZERO")
@rewrite("_answer", "if client.at < feed.begin:", "if False:")
class LostBeforeTheBuffer(Watches):
    """Who begins before what is in the buffer is told only what is in it."""


@rewrite("_take", "client.starts or client.after >= feed.begin", "client.starts or live or client.after >= feed.begin")
@rewrite("_answer", "if client.at < feed.begin:", "if False:")
class LagNotTold(Watches):
    """Who has fallen behind the buffer goes on with what is in it."""


@rewrite("_go_on", "self._new_round(feed.upto,", "self._new_round(feed.begin,")
class ToldAgain(Watches):
    """A round of the feed brings what the one before it brought, too."""


@rewrite("_release", "client.at = feed.upto", "client.at = feed.upto._replace(time=feed.upto.time + 1000)")
class ProgressBeforeRelease(Watches):
    """A quiet client is told that it has seen everything of another millisecond."""


@rewrite("_put", "return bool(before[1] or row)", "return bool(row)")
class DeletionsNotTold(Store):
    """A deletion is no change."""


@rewrite("place", "if row is None:", "if self._active.log.append((at.encode(), key)) or row is None:")
class MoveTold(Store):
    """A row that comes or goes with a move is told as a change."""


@rewrite("changes_from", "self._backend.get(META, NOTED) or", "bytes(16) or")
class FloorOfChangesNotMoved(Store):
    """What was dropped is passed over in silence."""


@rewrite("_take_over", "meta | anew(last_version(sealed.timestamp))", "meta")
class OldChangesAfterSnapshot(Snapshots):
    """Who was given a snapshot tells changes as if it had those before it."""


@rewrite("_trim", "feed.bytes -= _size(changes)", "pass")
class RoomNotGivenBack(Watches):
    """When the buffer has been full once it holds nothing any more."""


@rewrite("on_told", "if len(asked.shards) < len(self._peers.replicas):", "if False:")
class AddedNotAsked(Watches):
    """What a shard that was added meanwhile has changed is not told."""


@rewrite("_release", "at = bisect_left(keys, client.first)", "at = 0")
class FirstKeyDecides(Watches):
    """A release whose first key is out of a client's bounds is no news for him."""


@rewrite("_hurry", "if feed.asked is not None and feed.asked.news:", "if False:")
class WaitsForNews(Watches):
    """Who begins waits until there is news."""


@rewrite("on_told", "attempts + behind", "attempts")
class BehindForGood(Watches):
    """A replica that is behind is asked again and again."""


@rewrite("_begin_anew", "_Feed(max(self._store.complete_to, known),", "_Feed(self._store.complete_to,")
class BeginsWhereItStoodStill(Watches):
    """A watch in a shard that has stood still for long begins there, however much others have forgotten since."""


@rewrite("_begin_anew", "known), now + PACE_US)", "known), now + PACE_US); self._feed.begin = known")
class HasWhatWasBefore(Watches):
    """A buffer that begins anew seems to have what its own shard had by then, and who goes on there is not told it."""


@rewrite("_release", "client.after <= feed.upto", "(client.starts or client.after <= feed.upto)")
class BeginsUnreached(Watches):
    """Who begins is told a version that not all shards have reached: what is written then may get an earlier one."""


@rewrite("on_told", "max(asked.complete, told.complete)", "min(asked.complete or told.complete, told.complete)")
class BeginsAtTheLeast(Watches):
    """Who begins does so where the shard was that is furthest behind."""


@rewrite("advance", "(now < due and self._store.complete_to == self._looked_to)", "now < due")
class LooksOnlyAtTheEnd(Changes):
    """A shard tells what has changed when whoever asks has waited for as long as anybody does."""


@rewrite("_answer", "if complete_to < asked.wanted and not held:", "if complete_to < asked.wanted:")
class HeldForGood(Changes):
    """Who wants to hear of a version that a shard does not come to is looked at again and again, and not answered."""


@rewrite("_answer", "if large is not None:", "if False:")
class EndsAtWhatIsLarge(Changes):
    """A transaction that is too large for a message is passed over in silence."""


def _planted(*kinds: type, settings: Settings = SMALL) -> list[Planted]:
    return [
        Planted(kind.__name__, CHECK, store=kind, settings=settings) if issubclass(kind, Store)
        else Planted(kind.__name__, CHECK, core=kind, settings=settings) for kind in kinds
    ]  # fmt: skip


PLANTED_IN_STORE = (
    *_planted(
        ToldBeforeComplete, NotWaitedForAShard, LostBeforeTheBuffer, LagNotTold, ToldAgain, ProgressBeforeRelease,
        FloorOfChangesNotMoved, OldChangesAfterSnapshot,
    ),
    *(Planted(kind.__name__, "", core=kind, settings=SMALL) for kind in (
        AddedNotAsked, RoomNotGivenBack, FirstKeyDecides, WaitsForNews, BehindForGood, BeginsWhereItStoodStill,
        HasWhatWasBefore, BeginsUnreached, BeginsAtTheLeast, EndsAtWhatIsLarge,
    )),
    Planted(LooksOnlyAtTheEnd.__name__, "idle", core=LooksOnlyAtTheEnd, settings=SMALL),
    Planted(HeldForGood.__name__, "idle", core=HeldForGood, settings=TIGHT),
    *_planted(DeletionsNotTold, settings=RANGES),
    *_planted(MoveTold, settings=MOVING),
)  # fmt: skip
