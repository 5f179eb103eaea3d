"""Bugs planted in PrimCast: what is told too early, kept too long, saved too little, counted twice."""

from __future__ import annotations

from multicast.protocols.primcast import PrimCast
from tests.planted import Planted, planted_in, small
from tests.planted.rewriting import rewrite


@rewrite("end_batch", "out.send_durable(self.election.members, Bump", "out.send(self.election.members, Bump")
class BumpBeforeSync(PrimCast):
    """A bump leaves before the clock that it tells is on disk."""


@rewrite("beat", "out.send_durable(", "out.send(")
class HeartbeatBeforeSync(PrimCast):
    """A heartbeat leaves before the clock that it tells is on disk."""


@rewrite("beat", "self._told_clock", "self.clock.value")
@rewrite("beat", "out.send_durable(", "out.send(")
class HeartbeatTellsUnsavedClock(PrimCast):
    """A heartbeat tells the clock as it is, saved or not, and does not wait for the disk."""


@rewrite("_tell_joined", "out.send_durable(", "out.send(", part="leadership")
class AcceptBeforeSync(PrimCast):
    """A process says that it has joined an epoch before that is on disk."""


@rewrite("send_vote", "out.send_durable(", "out.send(", part="election")
class PromiseBeforeSync(PrimCast):
    """A promise leaves before it is on disk."""


@rewrite("campaign", "out.send_durable(", "out.send(", part="election")
class StandsBeforeSync(PrimCast):
    """A candidate asks for promises before its own is on disk."""


@rewrite("_save_state", "out.put(STATE_KEY, _encode(state))", "pass")
class ClockNotSaved(PrimCast):
    """Clock, length of T and reach are only in memory."""


@rewrite("_take_over", "self.keep(out)", "pass", part="leadership")
class JoinedNotSaved(PrimCast):
    """The epoch that a process has joined is only in memory."""


@rewrite("begin", "out.delete(_ENTRY_PREFIX + entry.id)", "pass", part="t")
class DroppedNotDeleted(PrimCast):
    """What a new state leaves out is there again after a restart."""


@rewrite("ended", "self.t.forget_proposals()", "pass")
@rewrite("begin", "self.forget_proposals()", "pass", part="t")
class ProposalsKept(PrimCast):
    """Proposals of an earlier primary that could not be appended are kept after a promise."""


@rewrite("end_batch", "self.t.fetch_dropped(self.leadership.joined.leader, self.leadership.joined, out)", "pass")
class DroppedNotFetched(PrimCast):
    """Proposals for which there was no room are missed only after two heartbeats."""


@rewrite("expect", "proposal.place == self.length or", "", part="t")
class NextIsTooEarly(PrimCast):
    """Proposals for later places keep the next one out."""


@rewrite("_on_ack", "self.leadership.is_current(ack.epoch)", "ack.epoch == self.leadership.joined")
class ProposalsTakenAfterPromise(PrimCast):
    """Who has promised an epoch goes on appending what the primary of the one before proposes."""


@rewrite("adopt", "self.clock.advance(state.clock)", "pass")
class JoinersClock(PrimCast):
    """A process joins an epoch with its own clock, and says so."""


@rewrite("begin", "self.reach = max(self.reach, reach)", "pass", part="t")
class JoinersReach(PrimCast):
    """A process joins an epoch and delivers on its own though its T lacks what is settled."""


@rewrite("_return_if_caught_up", "max(state.reach, self.election.rejoin.reach)", "state.reach", part="leadership")
class RejoinersReach(PrimCast):
    """Who lost its disk joins without what others had reached."""


@rewrite("_return_if_caught_up", "max(state.reach, self.election.rejoin.reach)", "self.election.rejoin.reach",
         part="leadership")  # fmt: skip
class RejoinersStatesReach(PrimCast):
    """Who lost its disk joins without what the new state leaves out."""


@rewrite("_on_returned", "self.clocks.forget(sender)", "pass")
class ClocksRemembered(PrimCast):
    """The clock that a process told before it lost its disk counts on."""


@rewrite("_on_returned", "self.log.forget_watermark(sender)", "pass")
class MarksRemembered(PrimCast):
    """The watermark that a process told before it lost its disk counts on."""


@rewrite("_told_to", "if self._by_quorum and group != own_group else", "if False else", part="log")
class ToldAlone(PrimCast):
    """A process tells other groups its own watermark, before a quorum of its group has reached it."""


@rewrite("choose", "max(vote.clock for vote in votes.values())", "self.clock.value")
class PromisersClocksIgnored(PrimCast):
    """A new primary begins with its own clock."""


@rewrite("choose", "max(vote.reach for vote in votes.values())", "self.t.reach")
class PromisersReachIgnored(PrimCast):
    """A new primary does not know what is settled among its voters."""


@rewrite("choose", "if votes[ahead].position > self._position():", "if False:", part="election")
class CandidateBehind(PrimCast):
    """A candidate does not deliver first what its voters have."""


@rewrite("choose", "not self.views.can_elect(votes)", "len(votes) < self.quorum - 1", part="election")
class OnePromiseLess(PrimCast):
    """A candidate needs one promise less than a quorum."""


@rewrite("_on_vote", "vote.ballot != self.promised or", "", part="election")
class OldPromisesCount(PrimCast):
    """Promises for a candidate's earlier epochs count."""


@rewrite("_confirm_by_quorum", "enough = self.election.views.can_begin(self.joined, self._joiners)",
         "enough = len(self._joiners) >= self.election.quorum - 1", part="leadership")  # fmt: skip
class OneAcceptLess(PrimCast):
    """An epoch begins when one process less than a quorum has accepted it."""


@rewrite("on_joined", "self._joiners = set()", "pass", part="leadership")
class AcceptsOfAnyEpoch(PrimCast):
    """Who has accepted an earlier epoch counts as one who has accepted this one."""


@rewrite("_on_stamp", "stamp, self.topology.has_quorum)",
         "stamp, lambda group, epoch, held: len(held) >= self.topology.quorum(group) - 1)")  # fmt: skip
class OneAcknowledgementLess(PrimCast):
    """A stamp is decided with one acknowledgement less than a quorum."""


@rewrite("acknowledge", "or (group == self.group and self.ts != stamp.ts)", "", part="t.entries", after="_take_start")
class NotItsOwnStamp(PrimCast):
    """A quorum's stamp counts as the own group's though T has another."""


@rewrite("_on_ack", "if not own: self.clock.advance(stamp.ts)", "if not own: pass")
class OthersStampsMoveNoClock(PrimCast):
    """Line 49 left out."""


@rewrite("_append", "self.clock.advance(stamp.ts)", "pass")
class ProposalsMoveNoClock(PrimCast):
    """Line 44 left out."""


@rewrite("_append_proposals", "if entry.message is not None and entry.digest != proposal.digest:", "if False:")
class OtherPayloadTaken(PrimCast):
    """A follower appends its own copy of a message, whatever the primary's is."""


@rewrite("missing", "self.reach = max(self.reach, refill.reach)", "pass", part="t")
class RefillsReach(PrimCast):
    """After a refill a process delivers on its own though its T lacks what is settled."""


@rewrite("_reply", "or entry.is_delivered_before(self.leadership.joined.view)", "")
class RemovedOnesAcknowledgement(PrimCast):
    """Who has delivered in an earlier view repeats its acknowledgement, which alone is no majority of that view."""


@rewrite("on_peer_reset", "self.t.on_peer_reset(peer)", "pass")
class ResetRefillCompleted(PrimCast):
    """What comes after a reset completes the answer to a Fetch that was under way before it."""


@rewrite("missing", "or refill.first > self.length", "", part="t")
class RefillsBeyondT(PrimCast):
    """What was asked for in an earlier life, of whose T the end was not on disk, makes a hole in T."""


@rewrite(
    "_on_refill",
    "self._extend(refill.length, refill.clock)",
    "self._extend(self.t.length + len(missing), refill.clock)",
)
class RefillsLength(PrimCast):
    """After a refill T is as long as what it brought, without what is settled."""


@rewrite("_leave_out", "self.reach = max(self.reach, entry.position)", "pass", part="t")
class DroppedOutOfReach(PrimCast):
    """What is settled and dropped does not count for the reach that states carry."""


@rewrite("heard", "heartbeat.clock, heartbeat.length)", "heartbeat.clock, self.t.length)")
class HeartbeatsLengthIgnored(PrimCast):
    """A heartbeat's clock counts though a part of T was lost on the way."""


@rewrite("compare", "if self._primarys_length > self.length:", "if False:", part="t")
class NothingFetched(PrimCast):
    """Nobody asks for a part of T that was lost on the way."""


@rewrite("refill", "self.reach, states", "0, states", part="t")
class RefillWithoutReach(PrimCast):
    """A refill does not say that something is settled."""


@rewrite(
    "on_start", "clock, self.t.length, self.t.reach = self._saved_state", "clock, self.t.length, _ = self._saved_state"
)
class ReachForgotten(PrimCast):
    """After a restart a process delivers on its own though its T lacks what is settled."""


@rewrite(
    "on_start", "clock, self.t.length, self.t.reach = self._saved_state", "clock, _, self.t.reach = self._saved_state"
)
class LengthForgotten(PrimCast):
    """After a restart T begins at its first place."""


@rewrite("on_start", "self.clock.advance(clock)", "pass")
class ClockForgotten(PrimCast):
    """After a restart the clock goes on from the last delivery."""


@rewrite(
    "start",
    "self.election.restore(promised, now, self.joined.leader == self._self_id)",
    "self.election.restore(promised, now, self.joined.leader == self._self_id); "
    "led = self.joined.leader == self._self_id and self.joined == self.election.promised; "
    "self.election.state, self.election.takes_part = (LEADER, True) if led else (PROMISED, False)",
    part="leadership",
)
class LeadsAgain(PrimCast):
    """A restarted primary goes on in its epoch."""


@rewrite("on_start", "entry.ts <= known[0].time", "entry.ts < known[0].time")
class DeliveredIsPending(PrimCast):
    """After a restart what was delivered at the own group's stamp is pending again."""


@rewrite("_deliver_ready", "not self.election.takes_part or", "")
class DeliversAfterPromise(PrimCast):
    """Who has promised an epoch goes on delivering. (What is decided stays so. The clocks that it counts were
    told in the epoch before, by members that had not promised another: the next one begins at or above what a quorum of
    these had told.)"""


@rewrite("_deliver_ready", "note=_encode((entry.epoch, entry.ts))", "note=_encode((entry.epoch, final.time))")
class NoteLost(PrimCast):
    """A delivery is journaled without the own group's stamp: who installs it takes the final timestamp for that."""


@rewrite("on_install", "self._queue.remove(message.id)", "pass")
class InstalledStaysPending(PrimCast):
    """What is installed from a peer's journal still is in the queue."""


@rewrite("_append_proposals", "self.copies.delivered_as(proposal.id, proposal.ts) or", "")
class DeliveredAppended(PrimCast):
    """What was delivered is appended to T again."""


@rewrite("_is_behind", "or 0 < state.position <= self.log.position", "")
class ForgottenTakenUp(PrimCast):
    """Who joins an epoch takes for undelivered what it has delivered and forgotten, and waits for what nobody tells it
    any more."""


@rewrite("choose", "s.position or copies.delivered_as(s.message.id, s.ts)", "s.position")
class VotersDeliveriesAlone(PrimCast):
    """A candidate does not tell what it has delivered of the T that it chooses."""


@rewrite("confirmed", "if entry.epoch is not None and", "if False and")
@rewrite("_retry", "asked.setdefault(missing, []).append(self._stamp(entry))", "pass")
class NotToldAgain(PrimCast):
    """Acknowledgements are told once."""


@rewrite("adopt", "self.clocks.begin(state.ballot, self.t.length, state.clock)", "pass")
class ClocksNotBegun(PrimCast):
    """Clocks that are told in an epoch are not counted from its beginning."""


@rewrite("_reckon", "reached_by_majority(self._clocks.values())",
         "sorted(self._clocks.values(), reverse=True)[len(self._clocks) // 2 - 1]", part="clocks")  # fmt: skip
class OneClockLess(PrimCast):
    """What one clock less than a quorum has reached is the quorum's clock."""


@rewrite("report", "if epoch > self.epoch:", "if False:", part="clocks")
class FutureClocksCount(PrimCast):
    """A clock told in a later epoch counts in this one."""


@rewrite("report", "if epoch == self.epoch and sender == epoch.leader:", "if sender == epoch.leader:", part="clocks")
class OldLeadersClock(PrimCast):
    """The clock of an earlier primary counts as the present one's."""


@rewrite("begin", "self.leader_clock, self._report = leader_clock, (0, 0)", "self._report = (0, 0)", part="clocks")
class LeaderClockKept(PrimCast):
    """The clock of the primary before counts as that of the new one."""


@rewrite("extend", "if self._report[1] <= self.length:", "if self._report[1] <= self.length + 1:", part="clocks")
class OnePlaceShort(PrimCast):
    """A primary's clock counts though the last place of T is missing."""


HARMLESS = (Planted(DeliversAfterPromise),)
WINDOW = Planted(ForgottenTakenUp, small(clock="hybrid", dedup_window_us="100000"))
PLANTED = (*planted_in(__name__, (*HARMLESS, WINDOW)), WINDOW)
