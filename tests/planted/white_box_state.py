"""Bugs planted in White-Box: what is told too early, kept too long, saved too little, counted twice."""

from __future__ import annotations

from multicast.parts.entries import Entries
from multicast.protocol import Outbox
from multicast.protocols.white_box import Multicast, WhiteBox
from multicast.types import ProcessId, created_us
from tests.planted import Planted, planted_in
from tests.planted.rewriting import rewrite

# -- lanes ------------------------------------------------------------------------------------------------------------


@rewrite("send_vote", "out.send_durable(", "out.send(", part="election")
class VoteBeforeSync(WhiteBox):
    """A vote leaves before the promise is on disk."""


@rewrite("_tell_joined", "out.send_durable(", "out.send(", part="leadership")
class JoinedBeforeSync(WhiteBox):
    """Who takes over a new state says so, the leader to itself too, before that is on disk. (It takes more than that to
    do harm: what is decided needs the acknowledgements of line 16, which wait for the disk and for the joining.)"""


@rewrite("start", "out.send_durable((self._self_id,)", "out.send((self._self_id,)", part="leadership")
class LeadsBeforeSync(WhiteBox):
    """The first leader begins before its first ballot is on disk, and may do so once more after a crash."""


@rewrite("campaign", "out.send_durable(", "out.send(", part="election")
class StandsBeforeSync(WhiteBox):
    """A candidate asks for votes before its own promise is on disk."""


# -- not saved --------------------------------------------------------------------------------------------------------


@rewrite("end_batch", "self.clock.save(out)", "self.clock._saved = self.clock.value")
class ClockNotSaved(WhiteBox):
    """The clock that an acknowledgement vouches for is only in memory."""


@rewrite("adopt", "self.clock.save(out)", "self.clock._saved = self.clock.value")
class AdoptedClockNotSaved(WhiteBox):
    """The clock that came with a new state is only in memory, and taken for saved."""


@rewrite("on_start", "self.clock.restore(values)", "pass")
class ClockForgotten(WhiteBox):
    """After a restart the clock goes on from the last delivery."""


@rewrite("adopt", "self._save_entry(self.entries.load(taken, now), out)", "self.entries.load(taken, now)")
class AdoptedNotSaved(WhiteBox):
    """What a new state brings is only in memory."""


@rewrite(
    "adopt",
    "entry.take(taken) self._save_entry(entry, out)",
    "entry.take(taken)",
)
class AdoptedChangesNotSaved(WhiteBox):
    """What a new state changes of a held message is only in memory."""


@rewrite("adopt", "                    out.delete(_ENTRY_PREFIX + message_id)", "                    pass")
class DroppedNotDeleted(WhiteBox):
    """What a new state leaves out is there again after a restart."""


@rewrite("_deliver_next", "if not saved:", "if False:")
class CommittedNotSaved(WhiteBox):
    """The place of a committed message is only in memory."""


@rewrite("_take_over", "self.keep(out)", "pass", part="leadership")
class JoinedNotSaved(WhiteBox):
    """The ballot that a process has joined is only in memory."""


@rewrite("promise", "self._voter.keep(out)", "pass", part="election")
class PromiseNotSaved(WhiteBox):
    """The ballot that a process has promised is only in memory."""


# -- votes and states -------------------------------------------------------------------------------------------------


@rewrite("_states", "e.phase >= ACCEPTED", "e.phase == ACCEPTED")
class CommittedLeftOut(WhiteBox):
    """A vote, or a new state, has no committed messages."""


@rewrite("choose", "if state.phase == COMMITTED or vote.joined == latest:", "if vote.joined == latest:")
class CommittedOfLatestOnly(WhiteBox):
    """What is committed counts only if it comes from the latest ballot. (What is committed was accepted by a quorum
    in its ballot or before, so the state of every later ballot has it, as accepted at the same stamp.)"""


@rewrite("outranks", "return other.final is None and state.local > other.local", "return True", part=Entries)
class AcceptedOverCommitted(WhiteBox):
    """Of a message that one voter has committed and another accepted, the latter counts. (All its stamps are accepted
    by quorums: it is committed once more at the same timestamp.)"""


@rewrite("choose", "not self.views.can_elect(votes)", "len(votes) < self.quorum - 1", part="election")
class OneVoteLess(WhiteBox):
    """A candidate needs one vote less than a quorum."""


@rewrite(
    "choose",
    "if votes[ahead].position > self._position():",
    "if votes[ahead].position > self._position() + 1:",
    part="election",
)
class OneDeliveryBehind(WhiteBox):
    """A candidate may be one delivery behind its voters."""


@rewrite("choose", "max(vote.clock for vote in votes.values())", "self.clock.value")
class VotersClocksIgnored(WhiteBox):
    """A new leader goes on with its own clock."""


@rewrite("adopt", "self.clock.advance(state.clock)", "pass")
class LeadersClockIgnored(WhiteBox):
    """A ballot is joined with the own clock."""


@rewrite("_on_vote", "vote.ballot != self.promised or", "", part="election")
class OldVotesCount(WhiteBox):
    """Votes for a candidate's earlier ballots count."""


@rewrite("_on_new_leader", "if asked.ballot <= self.promised:", "if asked.ballot < self.promised:", part="election")
class VotesTwice(WhiteBox):
    """A process votes for a ballot again that it has promised."""


@rewrite("_on_new_state", "own.state is PROMISED and ballot == own.promised:", "own.state is PROMISED:",
         part="leadership")  # fmt: skip
class JoinsWhatItGaveUp(WhiteBox):
    """A state that comes late is joined although a higher ballot is promised by now: its process accepts in a ballot
    whose end it has vouched for."""


@rewrite("_confirm_by_quorum", "(enough or self.joined.number == FIRST_NUMBER)", "True", part="leadership")
class LeadsAlone(WhiteBox):
    """A new leader does not wait until a quorum has its state. (That does harm once members change.)"""


@rewrite("_confirm_by_quorum", "self._self_id in self._joiners and", "", part="leadership")
class OwnStateNotCounted(WhiteBox):
    """A new leader begins when a quorum has its state, its own disk perhaps not. (As `JoinedBeforeSync`; and a process
    that is restarted is no elect any more.)"""


@rewrite("on_joined", "if joined.ballot == self._counted:", "if True:", part="leadership")
class StaleStateAcks(WhiteBox):
    """Who has joined an earlier ballot counts as one who has this state. (As `LeadsAlone`.)"""


@rewrite("on_joined", "self._joiners = set()", "pass", part="leadership")
class StateAcksKept(WhiteBox):
    """Who has joined an earlier ballot of this leader is counted in the next one. (As `LeadsAlone`.)"""


@rewrite("forget", "self._lists.pop(sender, None)", "pass", part="election._assembly")
class LostPortionForgotten(WhiteBox):
    """A state is complete though a portion of it was lost with the link."""


@rewrite("on_peer_reset", "self._assembly.forget(peer)", "pass", part="election")
class ResetPortionCompleted(WhiteBox):
    """What comes after a reset completes what came before it."""


@rewrite("add", "if number == count - 1", "if number >= count - 2", part="election._assembly")
class LastPortionLeftOut(WhiteBox):
    """A state is complete without its last portion."""


@rewrite("adopt", "self._queue = PendingQueue()", "pass")
class QueueKept(WhiteBox):
    """What was pending in an earlier reign still is."""


@rewrite("adopt", "self._early.clear()", "pass")
class EarlyKept(WhiteBox):
    """DELIVERs of an earlier ballot that could not be carried out are in a later one. (What was committed stays so, in
    its place: a DELIVER is true whenever it is carried out.)"""


@rewrite("adopt", "entry.begin_anew()", "entry.sent = False")
class AcknowledgementsKept(WhiteBox):
    """Acknowledgements are kept over a change of leaders."""


@rewrite("adopt", "if entry.position and not self.entries.replaces(taken, entry):", "if False:")
class DeliveredTakenBack(WhiteBox):
    """A state that is taken over takes back what was delivered here."""


@rewrite(
    "is_past",
    "return state.final is None or state.final <= log.timestamp",
    "return state.final is None or state.final < log.timestamp",
    part=Entries,
)
class LastDeliveryAgain(WhiteBox):
    """The last delivery, when its entry is gone, is taken from a new state as if it were new."""


@rewrite("is_past", "may_have_forgotten(state.message.id,", "may_have_forgotten(bytes(16),", part=Entries)
class ForgottenByItsStamp(WhiteBox):
    """Whether an accepted message is old is told by its stamp, which may be of a leader that does not know the time."""


@rewrite("_begin_to_lead", "self._announced = self.log.position", "pass")
class PositionsGoOn(WhiteBox):
    """A new leader numbers deliveries from where it had been in an earlier reign."""


# -- normal operation -------------------------------------------------------------------------------------------------


@rewrite(
    "_on_accept",
    "if entry.hold(accept.group, accept.ballot, accept.local):",
    "entry.accepts[accept.group] = (accept.ballot, accept.local)\n    if True:",
)
class OlderAcceptCounts(WhiteBox):
    """An ACCEPT of a deposed leader takes the place of its successor's."""


@rewrite(
    "_on_accept",
    "if entry.hold(accept.group, accept.ballot, accept.local):",
    "if accept.group not in entry.accepts and entry.hold(accept.group, accept.ballot, accept.local):",
)
class FirstAcceptCounts(WhiteBox):
    """The first ACCEPT of a group stays, whatever its later leaders say."""


@rewrite("_accept_if_complete", "or not self.election.takes_part", "")
class AcceptsAfterPromise(WhiteBox):
    """Who has promised a ballot goes on acknowledging in the one before."""


@rewrite(
    "_accept_if_complete",
    "self.clock.advance(entry.highest.time)",
    "self.clock.advance(local.time)",
)
class OwnStampMovesClock(WhiteBox):
    """Line 14 with the own group's stamp only."""


@rewrite("_is_committed", "if held is None or held[0] != ballot:", "if held is None:", part="quorums")
class StampsOfAnyBallot(WhiteBox):
    """Line 17 with the stamps of whichever ACCEPTs came last."""


@rewrite(
    "_has_quorum",
    "self._topology.has_quorum(group, ballot, acknowledged)",
    "sum(p in acknowledged for p in self._topology.groups[group]) >= self._topology.quorum(group) - 1",
    part="quorums",
)
class OneAcknowledgementLess(WhiteBox):
    """A message is committed with one acknowledgement less than a quorum in each group."""


@rewrite("_is_committed", "message is None or self._self_id not in acknowledged", "message is None", part="quorums")
class LeaderNotAmongThem(WhiteBox):
    """Line 17 without "itself among them"."""


@rewrite("_is_committed", "for group, ballot in of)", "for group, ballot in list(of)[-1:])", part="quorums")
class LastGroupsQuorumOnly(WhiteBox):
    """A quorum of the last destination group is enough."""


@rewrite(
    "_on_accept_ack",
    "entry.final = entry.highest",
    "entry.final = max(entry.accepts.values())[1]",
)
class StampOfHighestBallot(WhiteBox):
    """The final timestamp is the stamp of the group whose ballot is the highest."""


@rewrite("_on_deliver", "not self.election.takes_part or ", "")
class DeliversAfterPromise(WhiteBox):
    """Who has promised a higher ballot still delivers on the word of the leader before. (As `EarlyKept`.)"""


@rewrite(
    "_on_deliver",
    "if not self.election.takes_part or self.leadership.joined != deliver.ballot:",
    "if not self.election.takes_part or self.leadership.joined > deliver.ballot or deliver.ballot.leader != sender:",
)
class DeliversBeforeJoining(WhiteBox):
    """A DELIVER of a ballot that this process has not joined yet is carried out. (As `EarlyKept`.)"""


@rewrite("_deliver_next", "note=deliver.local.encode()", "note=deliver.final.encode()")
class NoteLost(WhiteBox):
    """A delivery is journaled without the own group's stamp: who installs it takes the final timestamp for that."""


@rewrite("on_install", "self._queue.remove(message.id)", "pass")
class InstalledStaysPending(WhiteBox):
    """What a leader has installed from a peer's journal still is in its queue."""


@rewrite(
    "on_install",
    "if self.election.state is LEADER and entry.phase in (PROPOSED, ACCEPTED) and (copied or entry.local != local):",
    "if False:",
)
class DeposedGoesOn(WhiteBox):
    """A leader whose group has delivered under another stamp does not step down."""


@rewrite("on_install", "(copied or entry.local != local)", "entry.local != local")
class DeposedByACopyGoesOn(WhiteBox):
    """A leader that installs what it has stamped, and of which another group has stamped a later copy since, does not
    step down: what follows it delivers at positions that its group has given to others."""


@rewrite("_delivered", "entry.accepts.clear()", "pass")
class AcceptsKept(WhiteBox):
    """ACCEPTs are kept after the delivery. (They only take memory.)"""


@rewrite("_on_known", "if known.final > self.log.timestamp:", "if False:")
class DroppedOnWord(WhiteBox):
    """A leader drops what another group has delivered, though its own has not come so far."""


@rewrite("abandoned", "e.phase == START", "e.phase <= ACCEPTED", part=Entries)
class AcceptedSwept(WhiteBox):
    """What was accepted and is old is forgotten."""


@rewrite("_retry", "out.send(to, Stamps(", "out.send((self.self_id,), Stamps(")
class RetriesAtHome(WhiteBox):
    """A leader asks after its messages at itself only."""


@rewrite(
    "start",
    "self.election.restore(promised, now, self.joined.leader == self._self_id)",
    "self.election.restore(promised, now, self.joined.leader == self._self_id); "
    "led = self.joined.leader == self._self_id and self.joined == self.election.promised; "
    "self.election.state, self.election.takes_part = (LEADER, True) if led else (PROMISED, False)",
    part="leadership",
)
class LeadsAgain(WhiteBox):
    """A restarted leader goes on in its ballot."""


@rewrite(
    "_on_heartbeat",
    "out.send((sender,), Nack(self.election.promised))",
    "self.election.detector.heard(now)",
    part="leadership",
)
class ReassuredAfterPromise(WhiteBox):
    """Who has promised another ballot is kept from campaigning by heartbeats of the old leader."""


@rewrite("_on_heartbeat", "if ballot > self.election.promised or now >= self._vote_again_at:", "if False:",
         part="leadership")  # fmt: skip
class NeverLate(WhiteBox):
    """Who has missed an election never joins its leader."""


class RefusedInOneGroup(WhiteBox):
    """The leader of one group does not stamp what comes too late."""

    def _on_multicast(self, sender: ProcessId, multicast: Multicast, now: int, out: Outbox) -> None:
        message = multicast.message
        window = self.options.dedup_window_us
        late = window and now > created_us(message.id) + window
        if not late or self.group % 2 == 0 or message.id in self.entries or self.log.known(message.id):
            super()._on_multicast(sender, multicast, now, out)


# -- garbage ----------------------------------------------------------------------------------------------------------


@rewrite("_reached_by_most_of", "reached_by_majority(self._watermarks.get(p, ZERO) for p in members)",
         "sorted([self._watermarks.get(p, ZERO) for p in members], reverse=True)[len(members) // 2 - 1]",
         part="log")  # fmt: skip
class OneMarkIsEnough(WhiteBox):
    """A message is settled when one process less than a quorum has it."""


@rewrite("_settle", "reached = min(self._group_watermarks[g] for g in groups)",
         "reached = self._group_watermarks[group]", part="log")  # fmt: skip
class SettledInOneGroup(WhiteBox):
    """A message is settled when it is in the group that has just told its watermark."""


@rewrite("durable", "queue[0][0] <= position", "queue[0][0] <= position + 1", part="log")
class MarkOneAhead(WhiteBox):
    """The watermark is one delivery ahead of what is on disk."""


@rewrite("durable", "queue[0][0] <= position", "True", part="log")
class MarkBeforeSync(WhiteBox):
    """The watermark is the last delivery, on disk or not."""


@rewrite("_remember", "self._settled_known.discard(message_id)", "pass", part="log")
class LateCopyForgotten(WhiteBox):
    """The id of a late copy is forgotten before that one is settled, since the first one is."""


@rewrite("restore", "self._track(message_id, groups, timestamp)", "self._settled_known.add(message_id)", part="log")
class UnsettledForgotten(WhiteBox):
    """After a restart all that was delivered before counts as settled."""


@rewrite("_settle", "while queue and queue[0][0] <= reached", "while queue and queue[0][0] >= reached", part="log")
class SettledTheWrongWay(WhiteBox):
    """What is above the watermarks is settled."""


# -- after the loss of a disk -----------------------------------------------------------------------------------------


@rewrite("_conclude", "self.bound = max(ballots)", "self.bound = min(ballots)", part="election.rejoin")
class LowestBound(WhiteBox):
    """Who lost its disk joins above the lowest ballot that it hears of."""


@rewrite(
    "_conclude",
    "self.reach = max(a.reached for a in self._answers.values())",
    "self.reach = 0",
    part="election.rejoin",
)
class NoReach(WhiteBox):
    """Who lost its disk does not fetch first what others reached."""


@rewrite("on_highest", "or answer.question != self._question ", "", part="election.rejoin")
class StaleAnswers(WhiteBox):
    """Who lost its disk takes answers to the questions of an earlier life."""


@rewrite(
    "_conclude",
    "if any(p not in self._answers for p in self._others):",
    "if len(self._answers) < quorum_of(len(self._others) + 1):",
    part="election.rejoin",
)
class QuorumOfAnswers(WhiteBox):
    """Who lost its disk does not wait for the answers of all others, but of a quorum."""


@rewrite("may_join", "ballot > self.bound", "ballot >= self.bound", part="election.rejoin")
class JoinsAtBound(WhiteBox):
    """Who lost its disk joins the very ballot in which it may have voted."""


@rewrite(
    "restore",
    "self.amnesiac = is_new or saved.lost or kind is not None",
    "self.amnesiac = is_new or saved.lost",
    part="election.rejoin",
)
class MemberByRestart(WhiteBox):
    """Who lost its disk and is restarted takes part as if it had never lost it."""


@rewrite("on_returned", "returned, self.highest,", "returned, self._voter.joined,", part="election")
class JoinedIsHighest(WhiteBox):
    """Who lost its disk hears of joined ballots only, not of promised ones."""


@rewrite("_return_if_caught_up", "max(state.reach, self.election.rejoin.reach)", "self.election.rejoin.reach",
         part="leadership")  # fmt: skip
class RejoinsBehindState(WhiteBox):
    """Who lost its disk joins with what others reached, without all that the new leader has delivered."""


HARMLESS = (
    Planted(CommittedOfLatestOnly), Planted(AcceptedOverCommitted), Planted(EarlyKept), Planted(DeliversAfterPromise),
    Planted(AcceptsKept), Planted(OwnStateNotCounted), Planted(DeliversBeforeJoining),
)  # fmt: skip
@rewrite("adopt", "if entry.phase >= ACCEPTED:", "if entry.phase > ACCEPTED:")
class DroppedStaysAccepted(WhiteBox):
    """What a new leader's state lacks is still accepted on disk, and told as part of that state after a restart."""


PLANTED = planted_in(__name__, HARMLESS)
