"""Bugs of rules for answers that come late, and for who comes late, anew, or back without its disk. Tests of single
parts see them: most cost time, or do harm only if two more things go wrong."""

from __future__ import annotations

from multicast.parts.delivered import DeliveredLog
from multicast.parts.election import Election
from multicast.parts.leadership import Leadership
from multicast.protocols.white_box import WhiteBox
from tests.planted import planted_in
from tests.planted.rewriting import rewrite

# -- elections --------------------------------------------------------------------------------------------------------


@rewrite("_on_agreed", "agreed.question != self._question or", "", part=Election)
class AnswersAnyQuestion(WhiteBox):
    """That others missed the leader before it was heard again still counts."""


@rewrite("go", "self._question = self._unanswered = 0", "self._unanswered = 0", part=Election)
class AskedBeforeItWon(WhiteBox):
    """A leader stands again when the answers come to what it had asked as a candidate."""


@rewrite("hear", "and sender != self._self_id", "", part=Leadership)
class ReassuredByItself(WhiteBox):
    """A leader that knows of a higher ballot waits for as long as it orders messages."""


@rewrite("on_returned", "self.highest = max(self.highest, bound)", "pass", part=Election)
class StandsBelowBound(WhiteBox):
    """A leader that is asked for a ballot above `bound` stands for its next one, again and again."""


@rewrite("_on_heartbeat", "ballot > self.election.promised or", "", part=Leadership)
class MissesTheSecond(WhiteBox):
    """Who misses one election soon after another waits for long before it asks for the state."""


@rewrite("_on_heartbeat", "or now >= self._vote_again_at", "", part=Leadership)
class VotesOnceForAll(WhiteBox):
    """Who waits for a state does not ask again when the link has lost its question."""


@rewrite("promise", "self._voter.ended(now, out)", "pass", part=Election)
class EndsWithoutAWord(WhiteBox):
    """The user of an election is not told that its ballot has ended: White-Box votes at every heartbeat."""


@rewrite("_take_over", "self.leaders.learn(self.group, state.ballot)", "pass", part=Leadership)
class AsksTheLeaderBefore(WhiteBox):
    """Who joins a ballot late goes on asking the leader before about what it waits for."""


# -- who is new, and who has lost its disk ----------------------------------------------------------------------------


@rewrite("ended", "self._held = None", "pass", part=Leadership)
class NewJoinsWhatItGaveUp(WhiteBox):
    """Who is new holds a state until it has the deliveries, and joins it though it has promised a higher ballot."""


@rewrite("_return", "and not self.election.rejoin.may_join(self._held.ballot)", "and False", part=Leadership)
class HoldsWhatIsTooOld(WhiteBox):
    """Who may not join the state that it holds any more, since there are more members, waits for deliveries."""


@rewrite("_return", "self._deliveries.position < self.election.rejoin.reach or self._held is not None",
         "self._deliveries.position < self.election.rejoin.reach", part=Leadership)  # fmt: skip
class AsksForStateAgain(WhiteBox):
    """Who has a state in hand and lacks deliveries asks for it again and again."""


@rewrite("_on_heartbeat", "if heartbeat.position > self._deliveries.position:", "if False:", part=Leadership)
class FetchesNothingWhileItWaits(WhiteBox):
    """Who has lost its disk fetches deliveries only when it has a state."""


# -- stamps and deliveries --------------------------------------------------------------------------------------------


@rewrite("report", "mark = min(mark, self.watermark)", "pass", part=DeliveredLog)
class OwnGroupAhead(WhiteBox):
    """A process goes by what a quorum of its group has reached, not having reached it itself: what it delivers then is
    never settled, and it tells other groups what it does not hold."""


@rewrite("on_start", "self.clock.advance(self.log.timestamp.time)", "pass")
class StampsBelowTheRestored(WhiteBox):
    """The first leader of a restored group, which hears no votes, stamps below what was delivered before."""


@rewrite(
    "_accept_if_complete", "elif entry.phase != ACCEPTED or entry.local != local:", "elif entry.phase != ACCEPTED:"
)
class FirstStampStays(WhiteBox):
    """What is stamped twice in one ballot, since its leader dropped a late copy in between, keeps its first stamp."""


PLANTED = planted_in(__name__)
