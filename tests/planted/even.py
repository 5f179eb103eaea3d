"""Bugs in counting that only groups of an even size show: half of them taken for a majority."""

from __future__ import annotations

import msgspec

from multicast.membership import Views
from multicast.parts.delivered import DeliveredLog
from multicast.parts.group_clocks import GroupClocks
from multicast.parts.instances import Instances
from multicast.parts.learner import RemoteLearner
from multicast.parts.reign import Reign
from multicast.parts.rejoin import Rejoin
from multicast.parts.reminders import Reminders
from multicast.parts.stream import Stream
from multicast.parts.truncation import Truncation
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.white_box import WhiteBox
from tests.planted import SMALL, planted_in
from tests.planted.rewriting import rewrite

FOUR = msgspec.structs.replace(SMALL, replicas=4)


@rewrite("has_quorum", "is_majority(members, processes)", "2 * sum(p in processes for p in members) >= len(members)",
         part=Views)  # fmt: skip
class HalfAcknowledges(WhiteBox):
    """A message is committed by half of a group."""


@rewrite("has_quorum", "is_majority(members, processes)", "2 * sum(p in processes for p in members) >= len(members)",
         part=Views)  # fmt: skip
class HalfDecides(PrimCast):
    """A stamp is decided by half of a group."""


@rewrite("can_elect", "is_majority(self.counting[0], voters)",
         "2 * sum(p in voters for p in self.counting[0]) >= len(self.counting[0])", part=Views)  # fmt: skip
class HalfElects(WhiteBox):
    """Half of a group elects a leader."""


@rewrite("_reached_by_most_of", "reached_by_majority(self._watermarks.get(p, ZERO) for p in members)",
         "sorted([self._watermarks.get(p, ZERO) for p in members], reverse=True)[(len(members) + 1) // 2 - 1]",
         part=DeliveredLog)  # fmt: skip
class HalfHoldsIt(WhiteBox):
    """A watermark counts once half of a group has reached it."""


@rewrite("_reckon", "reached_by_majority(self._clocks.values())",
         "sorted(self._clocks.values(), reverse=True)[(len(self._clocks) + 1) // 2 - 1]", part=GroupClocks)  # fmt: skip
class HalfOfTheClocks(PrimCast):
    """What half of the clocks have reached is the quorum's clock."""


@rewrite("count", "len(voters) >= self._quorum", "len(voters) >= max(2, self._quorum - 1)", part=Instances)
class HalfAccepts(FtSkeen):
    """An instance is chosen by half of a group of four (and by two of five)."""


@rewrite("furthest", "len(recent) < self._quorum", "len(recent) < max(2, self._quorum - 1)", part=Reign)
class HalfTellsPositions(FtSkeen):
    """A new leader hears the positions of half of a group of four."""


@rewrite("_conclude", "quorum_of(len(self._others) + 1)", "quorum_of(len(self._others))", part=Rejoin)
class HalfRemembers(WhiteBox):
    """Who has lost its disk comes back when half of its group remembers."""


@rewrite("complete", ">= topology.quorum(group)", ">= (len(members) + 1) // 2", part=Reminders)
class HalfReminds(FtSkeen):
    """Who has lost its disk comes back when half of each group has reminded it."""


@rewrite("heard", "reached_by_majority(reached.values())",
         "sorted(reached.values(), reverse=True)[(len(reached) + 1) // 2 - 1]", part=Truncation)  # fmt: skip
class HalfHasApplied(FtSkeen):
    """Instances are dropped that only half of a group has applied, though others lack them."""


@rewrite("quorum_has", "self._topology.quorum(group) - 1", "(len(acks) + 1) // 2 - 1", part=Stream)
class HalfHasReceived(QuasiGenuine):
    """What half of a group has received is dropped."""


@rewrite("accepted", "len(voters) >= self.quorum", "len(voters) >= max(2, self.quorum - 1)", part=RemoteLearner)
class HalfIsLearned(QuasiGenuine):
    """What half of another group of four has accepted is taken for decided."""


PLANTED = planted_in(__name__)
PLANTED = tuple(bug._replace(settings=FOUR) for bug in PLANTED)
