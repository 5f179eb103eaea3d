"""Bugs of what is said to who has lost its disk, of what it comes back with, and of what a new leader begins with."""

from __future__ import annotations

from multicast.parts.sequence import Sequence
from multicast.protocols.primcast import PrimCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from tests.planted import planted_in
from tests.planted.rewriting import rewrite


@rewrite("choose", "clock = max(vote.clock for vote in votes.values())", "clock = latest.clock")
class ClockOfTheLongest(PrimCast):
    """A new primary begins above the clock of the voter whose T it takes, not above those of a quorum."""


@rewrite("_save_state", "if state != self._saved_state:", "if state[:2] != self._saved_state[:2]:")
class ReachNotSaved(PrimCast):
    """What T lacks of what was dropped is saved only when T or the clock has grown, too."""


@rewrite("missing", "self.reach = max(self.reach, refill.reach)", "pass", part=Sequence)
class RefilledWithoutReach(PrimCast):
    """What the primary has sent again is taken, and not what it lacks of what was dropped."""


@rewrite("_on_fetch", "out.send_durable(", "out.send(")
class RefillBeforeSync(PrimCast):
    """A primary tells its clock with what a follower lacked, before that is on disk."""


@rewrite("_adopt", "self._casts.forget(self._own_last(), now)", "pass")
class RepeatsWhatIsDecided(QuasiGenuine):
    """Who takes over a state in which its own casts are decided goes on to repeat them."""


@rewrite("_recollect", "self.channels.tell_receipts(self.stream.base.instance, out)", "pass")
class ReturnsUnsaved(QuasiGenuine):
    """Who lost its disk is a member again, and what it has received again is not on its disk."""


@rewrite("adopt", "self._queue = PendingQueue()", "pass")
class QueueOfTheEpochBefore(PrimCast):
    """What waited before, and is not in the T that is taken over, keeps what is stamped later waiting."""


@rewrite("confirmed", "self._acknowledge(entry)", "pass")
class AcknowledgesNothingAnew(PrimCast):
    """Line 81 left out: what an epoch begins with is acknowledged only to those who ask."""


PLANTED = planted_in(__name__)
