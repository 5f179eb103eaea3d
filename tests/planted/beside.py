"""Bugs planted beside the ordering itself: in taking over, in asking again, in receipts, in what a disk is read for."""

from __future__ import annotations

from multicast.parts.behind import Behind
from multicast.parts.casts import Casts
from multicast.parts.channels import Channels
from multicast.parts.group_log import GroupLog
from multicast.parts.paxos import Paxos
from multicast.parts.payloads import Payloads
from multicast.parts.stream import Stream
from multicast.parts.views import Gathering
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.skeen import Skeen
from multicast.protocols.toto import Toto
from multicast.protocols.white_box import WhiteBox
from tests.planted import planted_in
from tests.planted.rewriting import rewrite


@rewrite("_begin_to_lead", "self._retries.add(entry.id, now)", "pass")
class TakenOverNotAskedAbout(WhiteBox):
    """A new leader does not ask for what it lacks of messages that it has taken over."""


@rewrite("_begin_to_lead", "self._queue.propose(entry.id, entry.local)", "pass")
class TakenOverBlocksNothing(WhiteBox):
    """What a new leader has taken over as accepted does not hold up what is above it."""


@rewrite("_begin_to_lead", "self._queue.commit(entry.id, entry.final)", "pass")
class TakenOverNotDelivered(WhiteBox):
    """A new leader does not deliver what it has taken over as committed."""


@rewrite("_deliver_next", "deliver.position != self.log.position + 1", "deliver.position <= self.log.position")
class DeliversWithGaps(WhiteBox):
    """A follower delivers whatever its leader announces next, should it lack what is before."""


@rewrite("on_start", "entry.local <= known[0]", "entry.local < known[0]")
class DeliveredIsPending(WhiteBox):
    """After a restart what was delivered at the own stamp is not delivered."""


@rewrite("late", "if self.joined == self.election.promised:", "if False:", part="leadership")
class LateVotersNotServed(WhiteBox):
    """Who votes late is not given the state."""


@rewrite("_on_refill", "self.clock.advance(state.ts)", "pass")
class RefillsMoveNoClock(PrimCast):
    """The clock may be below the stamps of what was fetched."""


@rewrite("_on_want", "if message is not None:", "if False:", part=Payloads)
class WantsNotServed(PrimCast):
    """Who lacks a payload does not get it."""


@rewrite("confirmed", "self._proposable = [", "self._proposable = [] and [")
class UnproposedForgotten(PrimCast):
    """A new primary does not propose what came before its epoch."""


@rewrite("drop", "if entry.position and entry.logged:", "if entry.position:", part=GroupLog)
class UnloggedDropped(FtSkeen):
    """What is settled goes before its Assign is applied, and is then assigned anew."""


@rewrite("_takes", "or sender == self.self_id", "", part=Paxos)
class OwnInstancesNotTaken(FtSkeen):
    """A leader does not take what it has proposed itself, if that is far ahead."""


@rewrite("vote", "if k > after", "if k > self.decided", part=Paxos)
class DecidedLeftOut(FtSkeen):
    """A promise leaves out what is decided here, though the candidate does not know it."""


@rewrite("_fetch", "out.catch_up(self._rng.choice(list(self._told)))", "pass", part=Behind)
class BehindForGood(FtSkeen):
    """Who hears by the others' watermarks that it is behind fetches nothing."""


@rewrite("_on_watermark", "self._behind.notice(sender, told.watermark, now)", "pass")
class FollowsItsLeaderAlone(WhiteBox):
    """A follower learns of deliveries from its leader, or not at all."""


@rewrite("_on_watermark", "self._behind.notice(sender, told.watermark, now)", "pass")
class FollowsItsPrimaryAlone(PrimCast):
    """The same of PrimCast."""


@rewrite(
    "tell_receipts", "number = instance if group == self._group else channel.received", "number = channel.received",
    part=Channels,
)  # fmt: skip
class OwnReceiptOfMessages(QuasiGenuine):
    """To the own group the number of messages is told instead of that of instances."""


@rewrite(
    "truncate", "after.numbers.get(group, 0) > has[group]", "after.numbers.get(group, 0) > has[group] + 1", part=Stream
)
class DroppedOneEarly(QuasiGenuine):
    """A message is dropped when a quorum of its group has the one before it."""


@rewrite("adopt", "channel.received = max(channel.received, count)", "pass", part=Channels)
class StatesBarrierAlone(QuasiGenuine):
    """Of a peer's state the barrier of a channel is taken over, and not how many messages precede it."""


@rewrite("forget", "self._sent = max(self._sent - 1, 0)", "pass", part=Casts)
class WindowOfCastsFull(QuasiGenuine):
    """What is decided counts as sent and undecided: later casts leave when they are repeated."""


@rewrite("on_start", "self._commit_if_complete(message_id, entry)", "pass")
class CompleteNotCommitted(Skeen):
    """After a restart nothing is done with a message whose stamps are all known."""


@rewrite("_commit_if_complete", "if entry.final.time <= self._clock_on_disk:", "if True:")
class ClockNotOnDisk(Skeen):
    """A message is delivered before the clock that has passed it is on disk."""


@rewrite("_drop", "[min(a, b) for a, b in", "[a for a, b in")
class UnorderedDropped(Toto):
    """Casts that all members hold are dropped before they are ordered."""


@rewrite("among", "or (kept and all(map(int.__le__, kept, r.held)))", "or True", part=Gathering)
class OutsidersCount(Toto):
    """Who is outside the view counts in a flush, though the casts that it lacks are dropped."""


@rewrite("_on_state_ask", "r.instance, r.time, self.log.position", "r.instance, self.time, self.log.position")
class PresentTimeGiven(Toto):
    """Who comes back begins the view with the time that the order has reached in it."""


PLANTED = planted_in(__name__)
