"""Bugs planted in the quasi-genuine protocol. Lines are those of its Algorithms 1 to 3.

The printed rules that the notes call wrong are among them: kept here, they fail; the mended ones do not.
"""

from __future__ import annotations

from typing import Any

from multicast.parts.barriers import NEVER, Base, Channel, Stamp, stamp_of
from multicast.parts.learner import RemoteLearner
from multicast.protocol import Outbox
from multicast.protocols.quasi_genuine import Barrier, Cast, QuasiGenuine
from multicast.simulation.runner import Settings
from multicast.types import AppMessage, Ballot, GroupId, Timestamp
from tests.planted import Planted, small


class NoOwnBarrier(QuasiGenuine):
    """Line 40 as printed: sendersTo(G) without G itself."""

    def _lowest_barrier(self) -> Stamp:
        others = [channel.barrier for group, channel in self.channels.items() if group != self.group]
        return min(others, default=(1 << 62, 0))


class StrictBarrier(QuasiGenuine):
    """Line 40 as printed: a barrier must be beyond the message, so that a message blocks itself."""

    def _passed(self, timestamp: Timestamp) -> bool:
        return stamp_of(timestamp) < self._floor


class OnlyRestampedInserted(QuasiGenuine):
    """Lines 29-37 as printed, indentation and all: only a message that is stamped anew is kept and forwarded."""

    def _next_stamp(self, base: Base, stamp: Stamp) -> Stamp:
        following = super()._next_stamp(base, stamp)
        return following if following != stamp else NEVER

    def _receive(self, group: GroupId, number: int, item: Any) -> None:
        if item.stamp != NEVER:
            super()._receive(group, number, item)


class StampKept(QuasiGenuine):
    """Line 30 left out: what is decided too late keeps its stamp."""

    def _next_stamp(self, base: Base, stamp: Stamp) -> Stamp:
        return stamp


class BarrierPassesMessages(QuasiGenuine):
    """A barrier counts although messages that precede it were lost."""

    def _covers(self, channel: Channel, upto: int) -> bool:
        return True


class ReceivedNotSaved(QuasiGenuine):
    """What is acknowledged is only in memory."""

    def _save_channel(self, group: GroupId, channel: Channel, out: Outbox) -> None:
        channel.unsaved.clear()


class BarrierAtProposal(QuasiGenuine):
    """A requested barrier is given before the null message is decided."""

    def _want(self, group: GroupId, stamp: Stamp) -> None:
        super()._want(group, stamp)
        self._early_barriers[group] = stamp

    def _answer_wants(self, out: Outbox) -> None:
        for group, stamp in self._early_barriers.items():
            if group != self.group:
                out.send(self.topology.groups[group], Barrier(stamp, self.base.numbers.get(group, 0)))
        self._early_barriers.clear()
        super()._answer_wants(out)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._early_barriers: dict[GroupId, Stamp] = {}


class DroppedTooEarly(QuasiGenuine):
    """Instances are dropped although destinations do not have their messages."""

    def _quorum_has(self, group: GroupId) -> int:
        return 1 << 60


class BaseNotSaved(QuasiGenuine):
    """Instances are dropped, and what they amounted to is forgotten at a crash."""

    def _save_base(self, base: Base, out: Outbox) -> None:
        pass


class StampsFall(QuasiGenuine):
    """Line 6: a sender's stamps are not rising."""

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        before = self._cast_number
        super().on_submit(message, now, out)
        if self._cast_number > before and self._cast_number % 2 == 0:
            self._casts[-1].rtc -= 100_000


class StartsAtMinusInfinity(QuasiGenuine):
    """Algorithm 2, lines 3 and 8 as printed: the last barrier is at minus infinity, and so is one threshold later
    (erratum 7)."""

    def _silent_at_first(self, now: int) -> int:
        return -(1 << 62)

    def _silent_since(self, told: int, now: int) -> Stamp:
        return (told + self.options.barrier_threshold_us, 0)


class GapsIgnored(QuasiGenuine):
    """A cast is taken although an earlier one of its sender is missing, and that one after it."""

    def _follows(self, last: tuple[int, int] | None, cast: Cast) -> bool:
        return last != (cast.epoch, cast.number)


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


class EpochForgotten(QuasiGenuine):
    """A process that lost its disk begins with its first epoch again."""

    def _begin_epoch(self, epoch: int, out: Outbox) -> None:
        super()._begin_epoch(1 if self.base.casts.get(self.self_id) else epoch, out)


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
