"""Bugs planted in the quasi-genuine protocol: what is told too early, kept, saved too little, counted twice."""

from __future__ import annotations

from multicast.protocols.quasi_genuine import QuasiGenuine
from tests.planted import Planted
from tests.planted.quasi_genuine import PARALLEL
from tests.planted.rewriting import rewrite

# -- lanes, and what is saved -----------------------------------------------------------------------------------------


@rewrite("_begin_epoch", "out.send_durable(", "out.send(")
class EpochBeforeSync(QuasiGenuine):
    """Casts leave before the epoch that they carry is on disk."""


@rewrite("_begin_epoch", 'out.put(_EPOCH_KEY, epoch.to_bytes(8, "big"))', "pass")
class EpochNotSaved(QuasiGenuine):
    """The epoch is only in memory."""


@rewrite("_send_ack", "out.send_durable(", "out.send(")
class ReceiptBeforeSync(QuasiGenuine):
    """A receipt leaves before what it vouches for is on disk."""


@rewrite(
    "_save_channel", "out.put(_item_key(group, number), _encode(Item(stamp_of(timestamp), pending.message)))", "pass"
)
class ItemsNotSaved(QuasiGenuine):
    """Received messages are acknowledged and only in memory."""


@rewrite("_save_channel", "out.put(_channel_key(group), _encode((channel.received, channel.barrier)))", "pass")
class ChannelNotSaved(QuasiGenuine):
    """How much was received is only in memory."""


@rewrite("_receive", "if added and group != self.group and not saved:", "if False:")
class NothingToSave(QuasiGenuine):
    """Received messages are not remembered as unsaved."""


@rewrite(
    "_tell_receipts",
    "if group != self.group: self._save_channel(group, channel, out)",
    "if group != self.group and len(channel.unsaved) < 2: self._save_channel(group, channel, out)",
)
class ManyNotSaved(QuasiGenuine):
    """Of two messages received in one period neither is saved."""


@rewrite("_adopt", "self._save_base(state.base, out)", "pass")
class AdoptedBaseNotSaved(QuasiGenuine):
    """The base of an adopted state is only in memory."""


@rewrite("_adopt", "self._records.clear()", "pass")
class RecordsKept(QuasiGenuine):
    """After a state was adopted, instances from before it are dropped once more."""


@rewrite("_adopt", "for kept in self._outgoing.values(): kept.clear()", "pass")
class OutgoingKept(QuasiGenuine):
    """After a state was adopted, earlier messages to other groups have the numbers of later ones."""


@rewrite("adopt_if_due", "if self._position() < state.position:", "if False:", part="_transfer")
class AdoptedBehind(QuasiGenuine):
    """A state is adopted before what its owner had delivered is here."""


@rewrite("_adopt_channels", "if number > before[group]:", "if number > self.channels[group].received + 1:")
class AdoptedWithGaps(QuasiGenuine):
    """The first message that an adopted state brings is left out."""


@rewrite("_states", "if p.source != self.group", "if p.saved")
class StateOfSavedOnly(QuasiGenuine):
    """A state has only those waiting messages that are saved one by one."""


@rewrite("_states", "self._kept_base, channels", "self.base, channels")
class StateOfPresentBase(QuasiGenuine):
    """A state names the present base; own messages that wait are not in it."""


@rewrite(
    "_tell_receipts",
    "channel.acked = number self._send_ack(group, self.topology.groups[group], out)",
    "channel.acked = number + 1; self._send_ack(group, self.topology.groups[group], out)",
)
class ReceiptOneAhead(QuasiGenuine):
    """A receipt vouches for one message more than was received."""


# -- counting ---------------------------------------------------------------------------------------------------------


@rewrite("_quorum_has", "self.topology.quorum(group) - 1]", "self.topology.quorum(group) - 2]")
class OneReceiptLess(QuasiGenuine):
    """What one process less than a quorum has counts as received."""


@rewrite("_truncate", "after.instance > has[self.group] or", "")
class OwnGroupNotAsked(QuasiGenuine):
    """Instances are dropped though a quorum of the own group does not have them."""


@rewrite("_truncate", "(own is not None and own in self.waiting.items) or", "")
class OwnMessagesDropped(QuasiGenuine):
    """Instances are dropped though their messages for the own group wait."""


@rewrite("_truncate", "or any(after.numbers.get(group, 0) > has[group] for group in self._receivers)", "")
class OthersNotAsked(QuasiGenuine):
    """Instances are dropped though other groups do not have their messages."""


@rewrite(
    "_truncate",
    "self.base.numbers.get(group, 0) - last.numbers.get(group, 0):",
    "self.base.numbers.get(group, 0) - last.numbers.get(group, 0) - 1:",
)
class OneDroppedTooMany(QuasiGenuine):
    """With the instances one message too many is dropped."""


@rewrite("_on_ask", "low = upto - len(kept) + 1", "low = upto - len(kept)")
class RepairOneOff(QuasiGenuine):
    """The messages of a repair have the numbers of those before them."""


@rewrite(
    "_on_ask",
    "Repair(first, items, items[-1].stamp, first + len(items) - 1, low, True)",
    "Repair(first, items, self.base.last, first + len(items) - 1, low, True)",
)
class PartialRepairsBarrier(QuasiGenuine):
    """A part of a repair brings the barrier of the whole."""


@rewrite("_on_channel", "if number == channel.received + 1:", "if number > channel.received:")
class GapsTaken(QuasiGenuine):
    """Messages after a lost one are taken."""


@rewrite("_on_channel", "upto = message.first + len(message.items) - 1 if", "upto = message.first - 1 if")
class OrderedCoversLess(QuasiGenuine):
    """What comes with a barrier need not have been taken for it to count."""


@rewrite("_covers", "channel.received >= upto", "channel.received >= upto - 1")
class OneMissing(QuasiGenuine):
    """A barrier counts although the last message that precedes it was lost."""


@rewrite("_passed", "stamp_of(timestamp) <= self._floor", "stamp_of(timestamp) <= (self._floor[0], self._floor[1] + 1)")
class BarrierOneShort(QuasiGenuine):
    """A message is delivered when the barriers are one short of it."""


@rewrite("_receive", "if timestamp <= self.log.timestamp:", "if timestamp < self.log.timestamp:")
class LastDeliveryReceived(QuasiGenuine):
    """The last delivery is received again."""


@rewrite("_next_stamp", "return stamp if stamp > last", "return stamp if stamp >= last")
class EqualStamps(QuasiGenuine):
    """Two messages of a group may have one stamp."""


@rewrite(
    "_apply", "base.last = max(base.last, item.stamp)", "base.last = item.stamp if item.stamp == stamp else base.last"
)
class RestampedNotLast(QuasiGenuine):
    """A message that is stamped anew does not move the group's last stamp."""


@rewrite("_apply", "base.last = max(base.last, stamp)", "base.last = stamp")
class NullsLowerLast(QuasiGenuine):
    """A null message sets the last stamp back."""


@rewrite(
    "_apply",
    "base.casts[value.sender] = (value.epoch, value.number)",
    "base.casts.setdefault(value.sender, (value.epoch, value.number))",
)
class CastsNotCounted(QuasiGenuine):
    """Of each sender the group's log remembers the first cast only."""


@rewrite("_follows", "return cast.number == 1", "return True")
class AnyFirstCast(QuasiGenuine):
    """Of a sender's new life any cast may come first."""


@rewrite("_follows", "cast.epoch > last[0]", "cast.epoch != last[0]")
class OldLivesCasts(QuasiGenuine):
    """Casts of a sender's earlier life are taken after those of a later one."""


@rewrite("_forget_casts", "and epoch == self._epoch", "")
class CastsOfOldEpochsForgotten(QuasiGenuine):
    """A sender takes the decision on a cast of its earlier life for that on its present one."""


@rewrite(
    "_on_cast",
    "expected = self.base.casts if self.paxos.idle and not self._due else self._expected",
    "expected = self._expected",
)
class NeverReconsidered(QuasiGenuine):
    """A leader that has dropped a cast waits for the one after it for ever."""


# -- leaders ----------------------------------------------------------------------------------------------------------


@rewrite("_begin_to_lead", "self._expected = dict(self.base.casts)", "pass")
class ExpectedKept(QuasiGenuine):
    """A new leader expects the casts that it expected in an earlier ballot."""


@rewrite("_begin_to_lead", "self._null = NEVER", "pass")
class NullKept(QuasiGenuine):
    """A new leader counts on a null that it proposed in an earlier ballot."""


@rewrite("_begin_to_lead", "self._wanted.clear()", "pass")
class WantsKept(QuasiGenuine):
    """A new leader counts on wants that it had in an earlier ballot."""


@rewrite("_after_paxos", "self._held.clear()", "pass")
class HeldKept(QuasiGenuine):
    """Casts that a candidate held are kept over its defeat."""


@rewrite("_after_paxos", "self._due_nulls.clear()", "pass")
class DueNullsKept(QuasiGenuine):
    """A deposed leader counts on nulls that it had not proposed."""


@rewrite("_after_paxos", "self._ahead_base = None", "pass")
class AnnouncesOn(QuasiGenuine):
    """A deposed leader goes on from what it has announced."""


@rewrite(
    "_answer_wants",
    "if self._wanted.drop(group, self.base.last):",
    "if self._wanted.drop(group, max(self.base.last, self._null)):",
)
class WantsDroppedAtProposal(QuasiGenuine):
    """Who wants a barrier is answered when the null is proposed, with the barrier of before."""


@rewrite("_send_barrier", "self.base.numbers.get(group, 0)", "0")
class BarrierWithoutNumber(QuasiGenuine):
    """A barrier does not say how many messages precede it."""


@rewrite("_send_barrier", "Barrier(self.base.last,", "Barrier(max(self.base.last, self._null),")
class BarrierOfProposal(QuasiGenuine):
    """A barrier promises what a null will promise when it is decided."""


@rewrite("_hint", "self._send_barrier(group, behind, out)", "pass")
class NoHints(QuasiGenuine):
    """Destinations that do not have everything hear nothing."""


@rewrite("_ask_if_blocked", "self._ask_in_turn(group, channel, stamp, now, out)", "pass")
class NobodyAsked(QuasiGenuine):
    """Who is blocked asks nobody."""


# -- after the loss of a disk -----------------------------------------------------------------------------------------


@rewrite("_recollect", "not behind and not lacking and", "not behind and")
class ReturnsLacking(QuasiGenuine):
    """Who lost its disk returns without the messages that it had acknowledged."""


@rewrite("_recollect", "not behind and not lacking and told.complete and", "not behind and not lacking and")
class ReturnsUnreminded(QuasiGenuine):
    """Who lost its disk returns before a quorum of every group has said what it had."""


@rewrite(
    "_recollect", "self.base.casts.get(self.self_id, (0, 0))[0] + 1", "self.base.casts.get(self.self_id, (0, 0))[0]"
)
class SameEpoch(QuasiGenuine):
    """Who lost its disk goes on in the last epoch that its group's log knows."""


@rewrite("_recollect", "for cast in self._casts: cast.epoch = self._epoch", "pass")
class CastsOfNoEpoch(QuasiGenuine):
    """What was submitted before the return carries no epoch."""


@rewrite("_remind", "number = max(self._acks[sender], dropped)", "number = self._acks[sender]")
class DroppedNotReminded(QuasiGenuine):
    """Who lost its disk is not told what has been dropped."""


@rewrite("_remind", "number = max(self._acks[sender], dropped)", "number = dropped")
class ReceiptsNotReminded(QuasiGenuine):
    """Who lost its disk is not told what it had acknowledged."""


# -- direct learners --------------------------------------------------------------------------------------------------


@rewrite("_is_chosen", ">= self.quorum", ">= self.quorum - 1", part="learners")
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
    "_was_announced",
    "same = self._announced.popleft() == (instance, values)",
    "same = self._announced.popleft()[0] == instance",
)
class AnythingAnnounced(QuasiGenuine):
    """A leader takes whatever is decided for what it announced."""


LEARNING = (OneVoteLess, KnownKept, ChosenKept, OneGapLearned, AnythingAnnounced, AnnouncesOn)
PLANTED = (
    *map(
        Planted,
        (
            EpochBeforeSync, EpochNotSaved, ReceiptBeforeSync, ItemsNotSaved, ChannelNotSaved, NothingToSave,
            ManyNotSaved, AdoptedBaseNotSaved, RecordsKept, OutgoingKept, AdoptedBehind, AdoptedWithGaps,
            StateOfSavedOnly, StateOfPresentBase, ReceiptOneAhead, OneReceiptLess, OwnGroupNotAsked,
            OwnMessagesDropped, OthersNotAsked, OneDroppedTooMany, RepairOneOff, PartialRepairsBarrier,
            GapsTaken, OrderedCoversLess, OneMissing, BarrierOneShort, LastDeliveryReceived,
            EqualStamps, RestampedNotLast, NullsLowerLast, CastsNotCounted, AnyFirstCast, OldLivesCasts,
            CastsOfOldEpochsForgotten, NeverReconsidered, ExpectedKept, NullKept, WantsKept, HeldKept, DueNullsKept,
            WantsDroppedAtProposal, BarrierWithoutNumber, BarrierOfProposal, NoHints, NobodyAsked, ReturnsLacking,
            ReturnsUnreminded, SameEpoch, CastsOfNoEpoch, DroppedNotReminded, ReceiptsNotReminded,
        ),
    ),
    *(Planted(kind, PARALLEL) for kind in LEARNING),
)  # fmt: skip
