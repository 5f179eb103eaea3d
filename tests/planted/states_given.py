"""Planted bugs of who lacks a state, a quorum, or what it should know of a leader: what does harm only if somebody dies
for good just then."""

from __future__ import annotations

import msgspec

from multicast.parts.coordinator import Coordinator
from multicast.parts.delivered import DeliveredLog
from multicast.parts.detector import FailureDetector
from multicast.parts.group_clocks import GroupClocks
from multicast.parts.group_log import GroupLog
from multicast.parts.rejoin import Rejoin
from multicast.parts.transfer import StateTransfer
from multicast.parts.truncation import Truncation
from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.toto import Toto
from multicast.protocols.white_box import WhiteBox
from tests.planted import SMALL, Planted, planted_in
from tests.planted.rewriting import rewrite

# -- states -----------------------------------------------------------------------------------------------------------


@rewrite("_on_state", "state.number == self.record.number and (",
         "state.number == self.record.number and self._target is None and (")  # fmt: skip
class FirstStateKept(Toto):
    """Who comes back keeps the first state that it is given, though its giver may be dead, and its deliveries with
    it."""


@rewrite("_ask_for_state", "self._state_turn += 1", "pass")
class AsksOneForItsState(Toto):
    """Who comes back asks always the same member of its group."""


@rewrite("_on_state", "if items is not None:", "if items is not None and self._waiting is None:", part=StateTransfer)
class FirstStateKeptInFtSkeen(FtSkeen):
    """The same as in ToTo."""


@rewrite("_on_state", "if items is not None:", "if items is not None and self._waiting is None:", part=StateTransfer)
class FirstStateKeptInQuasiGenuine(QuasiGenuine):
    """The same as in ToTo."""


@rewrite("ask", "self._state_turn += 1", "pass", part=StateTransfer)
class AsksOneForItsLog(FastCast):
    """The same as in ToTo."""


@rewrite("next_peer", "self._turn += 1", "self._turn += 1; self._state_turn += 1", part=StateTransfer)
class OneTurnForAll(QuasiGenuine):
    """Questions for deliveries and for states take turns together: of two peers each gets one kind only."""


@rewrite("restore", "Entry(state.message, state.local, state.logged)", "Entry(state.message, state.local, True)",
         part=GroupLog)  # fmt: skip
class InstalledAsLogged(FtSkeen):
    """What was installed before its Assign came counts as logged after a restart."""


# -- views ------------------------------------------------------------------------------------------------------------


@rewrite("coordinate", "if not gathering.is_quorum(alive): return", "pass", part=Coordinator)
class FlushesWithoutQuorum(Toto):
    """A view is flushed though no quorum of every group lives, with whom it could end."""


@rewrite("_complete_if_due", "self.record.time = state.time", "pass")
class TimeOfTheViewForgotten(Toto):
    """Who comes back keeps in memory only at which time the view began: after a restart its time is another one."""


@rewrite("_enter", "truncate(min(self.record.instance,", "truncate(min(record.instance,")
class DecisionDropped(Toto):
    """Who enters a view drops the decision that made it: a group of which nobody has heard it could never enter."""


@rewrite("_on_alive", "alive.view == self.record.number", "alive.view <= self.record.number")
class LivesInThePast(Toto):
    """Who knows only an earlier view counts as living: its coordinator waits for the answers of one who has none."""


@rewrite("_enter", "deque(self._mine.values())", "deque(m for m in self._mine.values() if m in self._queue)")
class CastOnlyOnce(Toto):
    """What a member has cast in a view whose cut lacks it is not cast again, if it was not waiting to be."""


@rewrite("hear", "self._stop_seen = self._stop_seen or alive.stopped", "pass", part=Coordinator)
class OthersFlushLeft(Toto):
    """A coordinator that has not stopped itself does not go on with a flush that another one has begun."""


@rewrite("_is_ahead", "outside and any(", "outside and all(")
class SeldomAhead(Toto):
    """Who is outside a stopped view takes over how far the order has come only if it has, for every member."""


# -- what counts no more, or still ------------------------------------------------------------------------------------


@rewrite("restore", "self._forgotten = (self.timestamp.time - 2 * self._window_us) // self._bucket_us", "pass",
         part=DeliveredLog)  # fmt: skip
class ForgottenIsForgotten(WhiteBox):
    """After a restart a process does not know that it has forgotten old deliveries."""


@rewrite("begin", "self.leader_clock, self._report = leader_clock, (0, 0)", "self.leader_clock = leader_clock",
         part=GroupClocks)  # fmt: skip
class EarlierPrimarysClock(PrimCast):
    """What an earlier primary has told of its clock counts once T is as long as its was."""


@rewrite("heard", "min(quorum, spare, reached[self._self_id])", "min(spare, reached[self._self_id])", part=Truncation)
class DroppedWithoutQuorum(FtSkeen):
    """A member drops instances that it has applied and most have not, if they lack many."""


# -- who leads --------------------------------------------------------------------------------------------------------


@rewrite("_on_doubt", "elif self._resigning == election.promised:", "elif self._resigning is not None:",
         part=FailureDetector)  # fmt: skip
class ResignationOfAnother(WhiteBox):
    """That an earlier leader asked to be relieved counts against the one that came after it."""


@rewrite("_conclude", "amnesiacs.items() <= self._amnesiacs.items()", "amnesiacs.keys() <= self._amnesiacs.keys()",
         part=Rejoin)  # fmt: skip
class LivesOfTheForgetful(PrimCast):
    """An answer of who has lost its disk counts though that began a new life since it was known to have."""


@rewrite("on_returned", "reached, self._life)", "reached, 0)", part=Rejoin)
class NoLifeNamed(WhiteBox):
    """Who has lost its disk names no life of its own to another one that has."""


FIVE = msgspec.structs.replace(SMALL, replicas=5)
TIGHT = msgspec.structs.replace(SMALL, size="tight")
WORLDS = {LivesOfTheForgetful: FIVE, NoLifeNamed: FIVE, DroppedWithoutQuorum: TIGHT}
PLANTED = tuple(Planted(bug.protocol, WORLDS.get(bug.protocol, SMALL)) for bug in planted_in(__name__))
