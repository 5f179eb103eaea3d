"""Bugs planted in the quasi-genuine protocol: what is told too early, kept, saved too little, counted twice."""

from __future__ import annotations

from collections.abc import Callable

from multicast.parts.casts import Casts
from multicast.protocols.quasi_genuine import QuasiGenuine
from tests.planted import Planted, small
from tests.planted.quasi_genuine import PARALLEL
from tests.planted.rewriting import T, rewrite

# -- lanes, and what is saved -----------------------------------------------------------------------------------------


@rewrite("begin", "out.send_durable(", "out.send(", part="_casts")
class EpochBeforeSync(QuasiGenuine):
    """Casts leave before the life that they carry is on disk."""


@rewrite("begin", 'out.put(_KEY, life.to_bytes(8, "big"))', "pass", part="_casts")
class EpochNotSaved(QuasiGenuine):
    """The life is only in memory."""


@rewrite("_send_ack", "out.send_durable(", "out.send(", part="channels")
class ReceiptBeforeSync(QuasiGenuine):
    """A receipt leaves before what it vouches for is on disk."""


@rewrite(
    "_save",
    "out.put(_item_key(group, number), item, carries=(pending.message,))",
    "pass",
    part="channels",
)
class ItemsNotSaved(QuasiGenuine):
    """Received messages are acknowledged and only in memory."""


@rewrite("_save", "out.put(_channel_key(group), _encode((channel.received, channel.barrier)))", "pass", part="channels")
class ChannelNotSaved(QuasiGenuine):
    """How much was received is only in memory."""


@rewrite("receive", "if added and group != self._group and not saved:", "if False:", part="channels")
class NothingToSave(QuasiGenuine):
    """Received messages are not remembered as unsaved."""


@rewrite("receive", "and group != self._group and not saved", "and group != self._group or not saved", part="channels")
class EverythingUnsaved(QuasiGenuine):
    """The own group's messages are remembered as unsaved, too, and nobody saves them."""


@rewrite(
    "tell_receipts",
    "if group != self._group: self._save(group, channel, out)",
    "if group != self._group and len(channel.unsaved) < 2: self._save(group, channel, out)",
    part="channels",
)
class ManyNotSaved(QuasiGenuine):
    """Of two messages received in one period neither is saved."""


@rewrite("adopt", "self._save(out)", "pass", part="stream")
class AdoptedBaseNotSaved(QuasiGenuine):
    """The base of an adopted state is only in memory."""


@rewrite("adopt", "self._records.clear()", "pass", part="stream")
class RecordsKept(QuasiGenuine):
    """After a state was adopted, instances from before it are dropped once more."""


@rewrite("adopt", "for kept in self._outgoing.values(): kept.clear()", "pass", part="stream")
class OutgoingKept(QuasiGenuine):
    """After a state was adopted, earlier messages to other groups have the numbers of later ones."""


@rewrite("adopt_if_due", "if self._position() < state.position:", "if False:", part="_transfer")
class AdoptedBehind(QuasiGenuine):
    """A state is adopted before what its owner had delivered is here."""


@rewrite("adopt", "if number > before[group]:", "if number > self.of[group].received + 1:", part="channels")
class AdoptedWithGaps(QuasiGenuine):
    """The first message that an adopted state brings is left out."""


@rewrite("state", "if p.source != self._group", "if p.saved", part="channels")
class StateOfSavedOnly(QuasiGenuine):
    """A state has only those waiting messages that are saved one by one."""


@rewrite("_states", "self.stream.kept, channels", "self.stream.base, channels")
class StateOfPresentBase(QuasiGenuine):
    """A state names the present base; own messages that wait are not in it."""


@rewrite(
    "tell_receipts",
    "channel.acked = number self._send_ack(channel, self._topology.groups[group], out)",
    "channel.acked = number + 1; self._send_ack(channel, self._topology.groups[group], out)",
    part="channels",
)
class ReceiptOneAhead(QuasiGenuine):
    """A receipt vouches for one message more than was received."""


# -- counting ---------------------------------------------------------------------------------------------------------


@rewrite("quorum_has", "self._topology.quorum(group) - 1]", "self._topology.quorum(group) - 2]", part="stream")
class OneReceiptLess(QuasiGenuine):
    """What one process less than a quorum has counts as received."""


@rewrite("truncate", "after.instance > has[self.group] or", "", part="stream")
class OwnGroupNotAsked(QuasiGenuine):
    """Instances are dropped though a quorum of the own group does not have them."""


@rewrite("truncate", "(own is not None and own in waiting) or", "", part="stream")
class OwnMessagesDropped(QuasiGenuine):
    """Instances are dropped though their messages for the own group wait."""


@rewrite("truncate", "or any(after.numbers.get(group, 0) > has[group] for group in self._receivers)", "", part="stream")
class OthersNotAsked(QuasiGenuine):
    """Instances are dropped though other groups do not have their messages."""


@rewrite(
    "truncate",
    "self.number(group) - last.numbers.get(group, 0):",
    "self.number(group) - last.numbers.get(group, 0) - 1:",
    part="stream",
)
class OneDroppedTooMany(QuasiGenuine):
    """With the instances one message too many is dropped."""


@rewrite("repair", "low = upto - len(kept) + 1", "low = upto - len(kept)", part="stream")
class RepairOneOff(QuasiGenuine):
    """The messages of a repair have the numbers of those before them."""


@rewrite(
    "repair",
    "Repair(first, items, items[-1].stamp, first + len(items) - 1, low, True)",
    "Repair(first, items, self.base.last, first + len(items) - 1, low, True)",
    part="stream",
)
class PartialRepairsBarrier(QuasiGenuine):
    """A part of a repair brings the barrier of the whole."""


@rewrite("take", "if number == channel.received + 1:", "if number > channel.received:", part="channels")
class GapsTaken(QuasiGenuine):
    """Messages after a lost one are taken."""


@rewrite("take", "upto = message.first + len(message.items) - 1 if", "upto = message.first - 1 if", part="channels")
class OrderedCoversLess(QuasiGenuine):
    """What comes with a barrier need not have been taken for it to count. (If what precedes it is here, it has just
    been taken.)"""


@rewrite("take", "if channel.received >= upto:", "if channel.received >= upto - 1:", part="channels")
class OneMissing(QuasiGenuine):
    """A barrier counts although the last message that precedes it was lost."""


@rewrite(
    "pop", "stamp_of(head) > self._lowest_barrier",
    "stamp_of(head) > (self._lowest_barrier[0], self._lowest_barrier[1] + 1)", part="channels"
)
class BarrierOneShort(QuasiGenuine):
    """A message is delivered when the barriers are one short of it."""


@rewrite("receive", "if timestamp <= self._log.timestamp:", "if timestamp < self._log.timestamp:", part="channels")
class LastDeliveryReceived(QuasiGenuine):
    """The last delivery is received again. (It is the first that waits, and dropped: what is delivered beyond is never
    delivered.)"""


@rewrite("apply", "restamped = stamp <= base.last", "restamped = stamp < base.last", part="stream")
class EqualStamps(QuasiGenuine):
    """Two messages of a group may have one stamp."""


@rewrite(
    "apply",
    "base.last = max(base.last, item.stamp)",
    "base.last = item.stamp if item.stamp == stamp else base.last",
    part="stream",
)
class RestampedNotLast(QuasiGenuine):
    """A message that is stamped anew does not move the group's last stamp."""


@rewrite("apply", "base.last = max(base.last, stamp)", "base.last = stamp", part="stream")
class NullsLowerLast(QuasiGenuine):
    """A null message sets the last stamp back."""


@rewrite(
    "apply",
    "base.casts[value.sender] = (value.life, value.number)",
    "base.casts.setdefault(value.sender, (value.life, value.number))",
    part="stream",
)
class CastsNotCounted(QuasiGenuine):
    """Of each sender the group's log remembers the first cast only."""


@rewrite("follows", "return cast.number == 1", "return True", part="stream")
class AnyFirstCast(QuasiGenuine):
    """Of a sender's new life any cast may come first."""


@rewrite("follows", "cast.life > last[0]", "cast.life != last[0]", part="stream")
class OldLivesCasts(QuasiGenuine):
    """Casts of a sender's earlier life are taken after those of a later one."""


@rewrite("forget", "and life == self._life", "", part="_casts")
class CastsOfOldEpochsForgotten(QuasiGenuine):
    """A sender takes the decision on a cast of its earlier life for that on its present one."""


@rewrite(
    "take_cast",
    "max(self._expected.get(sender, _NONE), casts.get(sender, _NONE))",
    "self._expected.get(sender, casts.get(sender, _NONE))",
    part="leader",
    after="_new_leader",
)
class NeverReconsidered(QuasiGenuine):
    """Once a leader has proposed a cast, it does not see how far the log has come with an earlier leader's."""


@rewrite("take_cast", "max(real_clock + self._ahead_max_us, self._rtc.get(sender, 0))",
         "real_clock + self._ahead_max_us", part="leader", after="_new_leader")  # fmt: skip
class StampsFallBack(QuasiGenuine):
    """A leader whose clock has gone back gives a sender's next cast a lower stamp, with which it comes first."""


# -- leaders ----------------------------------------------------------------------------------------------------------


def kept(name: str) -> Callable[[T], T]:
    """A new leader goes on with this of what it knew in an earlier ballot."""
    begun = "self._deadlines.restart("
    return rewrite(
        "_begin_to_lead",
        begun,
        f"leader.{name} = vars(self).get('former', leader).{name}; self.former = leader; {begun}",
    )


@kept("_expected")
class ExpectedKept(QuasiGenuine):
    """A new leader expects the casts that it expected in an earlier ballot."""


@kept("_null")
class NullKept(QuasiGenuine):
    """A new leader counts on a null that it proposed in an earlier ballot."""


@kept("wanted")
class WantsKept(QuasiGenuine):
    """A new leader counts on wants that it had in an earlier ballot."""


@rewrite("_after_paxos", "self._held.clear()", "pass")
class HeldKept(QuasiGenuine):
    """Casts that a candidate held are kept over its defeat. (They only take room: a cast counts if it is its sender's
    next one, whenever it is taken.)"""


@kept("_due_nulls")
class DueNullsKept(QuasiGenuine):
    """A deposed leader counts on nulls that it had not proposed."""


@rewrite("_after_paxos", "self.leader = None", "self.former, self.leader = self.leader, None")
@rewrite(
    "_new_leader",
    "return self.leader",
    "self.leader = vars(self).get('former') or self.leader; return self.leader",
)
class AnnouncesOn(QuasiGenuine):
    """A deposed leader goes on from what it has announced."""


@rewrite(
    "_answer_wants",
    "if leader.answers(group) and",
    "if (leader.answers(group) or leader.wanted.drop(group, leader._null)) and",
)
class WantsDroppedAtProposal(QuasiGenuine):
    """Who wants a barrier is answered when the null is proposed, with the barrier of before."""


@rewrite("_send_barrier", "self.stream.number(group)", "0")
class BarrierWithoutNumber(QuasiGenuine):
    """A barrier does not say how many messages precede it."""


@rewrite(
    "_send_barrier",
    "Barrier(self.stream.base.last,",
    "Barrier(max(self.stream.base.last, self.leader._null if self.leader else (0, 0)),",
)
class BarrierOfProposal(QuasiGenuine):
    """A barrier promises what a null will promise when it is decided."""


@rewrite("_hint", "self._send_barrier(group, stream.behind(group), out)", "pass")
class NoHints(QuasiGenuine):
    """Destinations that do not have everything hear nothing."""


@rewrite("_ask_if_blocked", "if channel.barrier >= stamp:", "if True:", part="channels")
class NobodyAsked(QuasiGenuine):
    """Who is blocked asks nobody."""


@rewrite("_ask_if_blocked", "self.ask_in_turn(group, now, out)", "pass", part="channels")
class OthersNotAskedIfBlocked(QuasiGenuine):
    """Who is blocked by another group asks nobody there."""


# -- after the loss of a disk -----------------------------------------------------------------------------------------


@rewrite("_recollect", "not behind and not lacking and", "not behind and")
class ReturnsLacking(QuasiGenuine):
    """Who lost its disk returns without the messages that it had acknowledged."""


@rewrite("_recollect", "not behind and not lacking and told.complete and", "not behind and not lacking and")
class ReturnsUnreminded(QuasiGenuine):
    """Who lost its disk returns before a quorum of every group has said what it had."""


@rewrite("_recollect", "self._own_last()[0] + 1", "self._own_last()[0]")
class SameEpoch(QuasiGenuine):
    """Who lost its disk goes on in the last life that its group's log knows."""


@rewrite("begin", "for cast in self._queue: cast.life = life", "pass", part="_casts")
class CastsOfNoEpoch(QuasiGenuine):
    """What was submitted before the return carries no life."""


@rewrite("vouched_by", "return max(self._acks[sender], dropped)", "return self._acks[sender]", part="stream")
class DroppedNotReminded(QuasiGenuine):
    """Who lost its disk is not told what has been dropped."""


@rewrite("vouched_by", "return max(self._acks[sender], dropped)", "return dropped", part="stream")
class ReceiptsNotReminded(QuasiGenuine):
    """Who lost its disk is not told what it had acknowledged."""


# -- direct learners --------------------------------------------------------------------------------------------------


@rewrite("accepted", ">= self.quorum", ">= self.quorum - 1", part="learners")
class OneVoteLess(QuasiGenuine):
    """A learner of another group needs one vote less than a quorum."""


@rewrite("_follow", "self.known = self._last = 0", "self._last = 0", part="learners")
class KnownKept(QuasiGenuine):
    """A learner takes what was known in one ballot for known in the next."""


@rewrite("_follow", "self._chosen.clear()", "pass", part="learners")
class ChosenKept(QuasiGenuine):
    """A learner takes what was chosen in one ballot for chosen in the next."""


@rewrite(
    "_take",
    "while self.known + 1 in self._chosen:",
    "while self.known + 1 in self._chosen or self.known + 2 in self._chosen:",
    part="learners",
)
class OneGapLearned(QuasiGenuine):
    """A learner passes over one instance that it has not heard of."""


@rewrite(
    "was_announced",
    "announced.popleft() == (instance, values)",
    "announced.popleft()[0] == instance",
    part="leader",
    after="_new_leader",
)
class AnythingAnnounced(QuasiGenuine):
    """A leader takes whatever is decided for what it announced. If that is something else, a higher ballot has decided
    it, and this leader has fetched it without knowing that it is deposed: it goes on to announce, and to say up to
    where all is decided as it announced it, and whoever still learns from it believes that."""


@rewrite("_wanted", "self.waiting.last", "self.waiting.head", part="channels")
class OneAtATime(QuasiGenuine):
    """Who is blocked asks for no more than lets the first message go, and so anew for each that follows."""


@rewrite("forget", "max(self._sent - 1, 0)", "self._sent - 1", part=Casts)
class SentBelowNone(QuasiGenuine):
    """More casts are decided than were sent again: a sender ends whose casts were late, and not lost."""


@rewrite("_on_forgot", "watermark = max(watermark, self.log.watermark)", "pass")
class RemindsOfWhatItWasTold(QuasiGenuine):
    """Who has restarted reminds a member of its group of nothing, and that one returns with less than it had told."""


LEARNING = (OneVoteLess, KnownKept, ChosenKept, OneGapLearned, AnnouncesOn, AnythingAnnounced)
PLANTED = (
    *map(
        Planted,
        (
            EpochBeforeSync, EpochNotSaved, ReceiptBeforeSync, ItemsNotSaved, ChannelNotSaved, NothingToSave,
            EverythingUnsaved, ManyNotSaved, AdoptedBaseNotSaved, RecordsKept, OutgoingKept, AdoptedBehind,
            AdoptedWithGaps,
            StateOfSavedOnly, StateOfPresentBase, ReceiptOneAhead, OneReceiptLess, OwnGroupNotAsked,
            OwnMessagesDropped, OthersNotAsked, OneDroppedTooMany, RepairOneOff, PartialRepairsBarrier,
            GapsTaken, OneMissing, BarrierOneShort, EqualStamps, RestampedNotLast, NullsLowerLast,
            CastsNotCounted, AnyFirstCast, OldLivesCasts,
            CastsOfOldEpochsForgotten, NeverReconsidered, StampsFallBack, ExpectedKept, NullKept, WantsKept,
            WantsDroppedAtProposal, BarrierWithoutNumber, BarrierOfProposal, NoHints, NobodyAsked,
            OthersNotAskedIfBlocked, ReturnsLacking, ReturnsUnreminded, SameEpoch, CastsOfNoEpoch,
            DroppedNotReminded, ReceiptsNotReminded, OneAtATime, SentBelowNone,
            RemindsOfWhatItWasTold,
        ),
    ),
    *(Planted(kind, PARALLEL) for kind in LEARNING),
    Planted(DueNullsKept, small(optimistic="true")),
)  # fmt: skip
HARMLESS = (*map(Planted, (OrderedCoversLess, LastDeliveryReceived, HeldKept)),)
