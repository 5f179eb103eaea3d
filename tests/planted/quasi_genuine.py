"""Bugs planted in the quasi-genuine protocol. Lines are those of its Algorithms 1 to 3.

The printed rules that the notes call wrong are among them: kept here, they fail; the mended ones do not.
"""

from __future__ import annotations

from typing import Any

from multicast.parts.barriers import Barrier
from multicast.parts.learner import RemoteLearner
from multicast.protocol import Outbox
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.simulation.runner import Settings
from multicast.types import Ballot
from tests.planted import Planted, small
from tests.planted.rewriting import rewrite


@rewrite(
    "raise_lowest",
    "min(channel.barrier for channel in self.of.values())",
    "min((c.barrier for g, c in self.of.items() if g != self._group), default=(1 << 62, 0))",
    part="channels",
)
class NoOwnBarrier(QuasiGenuine):
    """Line 40 as printed: sendersTo(G) without G itself."""


@rewrite("pop", "stamp_of(head) > self._lowest_barrier", "stamp_of(head) >= self._lowest_barrier", part="channels")
class StrictBarrier(QuasiGenuine):
    """Line 40 as printed: a barrier must be beyond the message, so that a message blocks itself."""


@rewrite(
    "apply",
    "in value.message.destinations:",
    "in value.message.destinations if restamped else ():",
    part="stream",
)
class OnlyRestampedInserted(QuasiGenuine):
    """Lines 29-37 as printed, indentation and all: only a message that is stamped anew is kept and forwarded."""


@rewrite("apply", "(base.last[0], base.last[1] + 1) if restamped else stamp", "stamp", part="stream")
class StampKept(QuasiGenuine):
    """Line 30 left out: what is decided too late keeps its stamp."""


@rewrite("take", "if channel.received >= upto:", "if True:", part="channels")
class BarrierPassesMessages(QuasiGenuine):
    """A barrier counts although messages that precede it were lost."""


@rewrite("tell_receipts", "self._save(group, channel, out)", "channel.unsaved.clear()", part="channels")
class ReceivedNotSaved(QuasiGenuine):
    """What is acknowledged is only in memory."""


@rewrite(
    "want",
    "self._null = stamp",
    "self._null = stamp; self.promised_early = (*getattr(self, 'promised_early', ()), (group, stamp))",
    part="leader",
    after="_new_leader",
)
class BarrierAtProposal(QuasiGenuine):
    """A requested barrier is given before the null message is decided."""

    def _answer_wants(self, leader: Any, out: Outbox) -> None:
        for group, stamp in getattr(leader, "promised_early", ()):
            if group != self.group:
                out.send(self.topology.groups[group], Barrier(stamp, self.stream.number(group)))
        leader.promised_early = ()
        super()._answer_wants(leader, out)


@rewrite("quorum_has", "return acks[self._topology.quorum(group) - 1]", "return 1 << 60", part="stream")
class DroppedTooEarly(QuasiGenuine):
    """Instances are dropped although destinations do not have their messages."""


@rewrite("_save", "out.put(_KEY, _encode(self.kept))", "pass", part="stream")
class BaseNotSaved(QuasiGenuine):
    """Instances are dropped, and what they amounted to is forgotten at a crash."""


@rewrite(
    "add",
    "self._life, self._number, self._rtc, message)",
    "self._life, self._number, self._rtc - 100_000 * (self._number % 2 == 0), message)",
    part="_casts",
)
class StampsFall(QuasiGenuine):
    """Line 6: a sender's stamps are not rising."""


@rewrite("_begin_to_lead", "self.real_clock(now))", "-(1 << 62))")
@rewrite(
    "break_silence",
    "(max(told + threshold_us, real_clock - threshold_us), 0)",
    "(told + threshold_us, 0)",
    part="leader",
    after="_new_leader",
)
class StartsAtMinusInfinity(QuasiGenuine):
    """Algorithm 2, lines 3 and 8 as printed: the last barrier is at minus infinity, and so is one threshold later
    (erratum 7)."""


@rewrite(
    "follows",
    "return cast.life == last[0] and cast.number == last[1] + 1",
    "return last != (cast.life, cast.number)",
    part="stream",
)
@rewrite("follows", "return cast.number == 1", "return True", part="stream")
class GapsIgnored(QuasiGenuine):
    """A cast is taken although an earlier one of its sender is missing, and that one after it."""


class OneLearnedVote(QuasiGenuine):
    """Section 3.4: one acceptor is enough for a learner of another group."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for learner in self.learners.values():
            learner.quorum = 1


class AnyBallot(RemoteLearner[Any]):
    """Acceptances and proposals of different ballots count together."""

    def _follow(self, ballot: Ballot) -> bool:
        self.ballot = max(ballot, self.ballot)
        return True


class BallotsLearned(QuasiGenuine):
    """Section 3.4: a learner of another group counts what belongs to different ballots together."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.learners = {g: AnyBallot(learner.quorum) for g, learner in self.learners.items()}


@rewrite("_recollect", "self._casts.begin(self._own_last()[0] + 1, out)", "self._casts.begin(1, out)")
class EpochForgotten(QuasiGenuine):
    """A process that lost its disk begins with its first life again."""


DIRECT = small(direct_learners="true")
PARALLEL = small(direct_learners="true", parallel_consensus="true")
FEW = Settings(profile="faults", groups=3, replicas=3, messages=20)
PERIODIC = small(liveness="periodic")

PLANTED = (
    Planted(NoOwnBarrier, shows="line 40, erratum 1"),
    Planted(StrictBarrier, shows="line 40, erratum 2"),
    Planted(OnlyRestampedInserted, shows="lines 29-37, erratum 3"),
    Planted(StampKept, shows="line 30"),
    Planted(BarrierPassesMessages),
    Planted(ReceivedNotSaved),
    Planted(BarrierAtProposal),
    Planted(DroppedTooEarly, FEW),
    Planted(BaseNotSaved),
    Planted(StampsFall, shows="line 6"),
    Planted(StartsAtMinusInfinity, PERIODIC, shows="Algorithm 2, lines 3 and 8, erratum 7"),
    Planted(GapsIgnored, shows="FIFO order"),
    Planted(OneLearnedVote, DIRECT, shows="Section 3.4"),
    Planted(BallotsLearned, PARALLEL, shows="Section 3.4"),
    Planted(EpochForgotten),
)
