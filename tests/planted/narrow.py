"""Bugs of who comes to a limit that few small messages never meet: how much is asked for, told and sent again at once;
and a few of what is kept, and of who may begin."""

from __future__ import annotations

import msgspec

from kvstore.core.execution import Execution
from kvstore.core.reads import Reads
from kvstore.core.versions import Versions
from kvstore.core.watches import Watches
from kvstore.simulated.settings import Settings
from multicast.parts.instances import Instances
from multicast.parts.paxos import Paxos
from multicast.parts.retries import Retries
from multicast.parts.submissions import Submissions
from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.white_box import WhiteBox
from tests.planted import planted_in
from tests.planted.rewriting import rewrite
from tests.planted.store import Planted

NARROW = Settings(protocol="white_box", size="small", shards=2, narrow=True)
PAST = msgspec.structs.replace(NARROW, past=True)
WATCH = msgspec.structs.replace(NARROW, watch=True)
READS = msgspec.structs.replace(NARROW, reads=True)

# -- limits -----------------------------------------------------------------------------------------------------------


@rewrite("_expire", "self.congestion_window // 2, WINDOW_MIN)", "self.congestion_window // 2, 0)", part=Retries)
class RoomForNoQuestion(WhiteBox):
    """Who is not answered in time asks ever less at once, until it asks nothing any more."""


@rewrite("_on_lacked", "copies = resendable(found)",
         "copies = resendable([m for m in found if len(m.payload) <= RESENT_BYTES])", part=Submissions)  # fmt: skip
class LargeNotSentAgain(PrimCast):
    """A message that is larger than what is sent again at once is not sent again."""


@rewrite("tick", "out.send(to, Asked(some))", "out.send(to, Asked(some[: IDS_MAX - 1]))", part=Submissions)
class LastIsNotAskedAbout(FtSkeen):
    """Of as many as one question asks about the last is left out, each time."""


# -- what is kept, and who may begin ----------------------------------------------------------------------------------


@rewrite("_expire", "del self._asked[key]", "pass", part=Retries)
class UnansweredAreAsked(WhiteBox):
    """A question that was not answered in time takes the room of another one for ever."""


@rewrite("_on_accepted", "instance > before and", "", part=Paxos)
class VotesOnTheDecided(FtSkeen):
    """Who has accepted what is decided is noted, and kept for ever."""


@rewrite("truncate", "self.low = max(self.low, instance + 1)\n        self._dirty = True",
         "self.low = max(self.low, instance + 1)", part=Instances)  # fmt: skip
class DroppedNotNoted(FtSkeen):
    """What is dropped of the log is not noted on disk before something is decided."""


@rewrite("_on_chosen", "chosen.low > self.decided + 1", "chosen.low > self.decided + 2", part=Paxos)
class LacksOneForGood(FastCast):
    """Who lacks a single instance that the others have dropped asks for it for ever, and for no state."""


@rewrite("on_returned", "self.promised > bound:", "self.promised >= bound:", part="election")
class ReadmitsAtTheBound(WhiteBox):
    """Who has lost its disk is given the state of the ballot for which it may have voted."""


@rewrite("_confirm_by_quorum", "if self._counted != self.joined: return", "pass", part="leadership")
class JoinersOfAnother(WhiteBox):
    """Who has joined a later ballot is counted for the one that this process has joined."""


# -- limits of the store ----------------------------------------------------------------------------------------------


@rewrite("_read", "self._found(waiting, operation, more=True)",
         "self._found(waiting, operation, more=waiting.count == limit)")  # fmt: skip
class LargeEndsIt(Versions):
    """Of a range that ends early, as there is much in it, nobody is told that there is more."""


@rewrite("_answer", "Followed(found, upto or feed.upto)", "Followed(found, feed.upto)")
class EverythingWasTold(Watches):
    """Who is told of as much as one answer has room for does not hear of the rest."""


@rewrite("on_tick", "self._room = TURN_BYTES", "pass")
class OneTurnForAll(Reads):
    """When a turn is over no other one begins."""


@rewrite("told", "None if self.read_bytes > RESULT_BYTES_MAX else self.results", "self.results")
class TooMuchIsNothing(Execution):
    """Who has read too much is told that there is nothing."""


PLANTED = planted_in(__name__)
PLANTED_IN_STORE = (
    Planted("LargeEndsIt", "reads at versions", core=LargeEndsIt, settings=PAST),
    Planted("EverythingWasTold", "watches", core=EverythingWasTold, settings=WATCH),
    Planted("OneTurnForAll", "", core=OneTurnForAll, settings=READS),
    Planted("TooMuchIsNothing", "", core=TooMuchIsNothing, settings=NARROW),
)
