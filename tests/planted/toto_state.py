"""Bugs planted in ToTo: what is told too early, kept too long, saved too little, counted twice."""

from __future__ import annotations

from multicast.parts.views import Gathering
from multicast.protocol import Outbox
from multicast.protocols.toto import Toto
from multicast.types import AppMessage
from tests.planted import Planted, planted_in
from tests.planted.rewriting import rewrite

# -- lanes, and what is saved -----------------------------------------------------------------------------------------


@rewrite("_tell", "out.send_durable(", "out.send(")
class ReceiptBeforeSync(Toto):
    """A receipt leaves before what it vouches for is on disk."""


@rewrite("_cast", "out.send_durable(", "out.send(")
class CastBeforeSync(Toto):
    """A cast leaves before it is on disk."""


@rewrite("_on_ask", "out.send_durable(", "out.send(")
class CopiesBeforeSync(Toto):
    """Copies of casts leave before those are on disk."""


@rewrite("_on_flush", "out.send_durable(", "out.send(")
class FlushedBeforeSync(Toto):
    """A member says that it has stopped before that is on disk."""


@rewrite("_on_copies", "if authors and not self.record.stopped:", "if False:")
class RestNotAsked(Toto):
    """What an answer lacks is not asked for until it is missed again."""


@rewrite("_retry", "{author: first for author, first, _", "{author: last for author, _, last")
@rewrite(
    "_retry",
    "author, first, _ in gaps if self._gaps.get(author) == first",
    "author, _, last in gaps if self._gaps.get(author) == last",
)
class GrowingGapNotAsked(Toto):
    """What is missing is asked for only once nothing more of its author is."""


@rewrite("_on_flush", "self._save_view(out)", "pass")
class StopNotSaved(Toto):
    """That a member has stopped is only in memory."""


@rewrite("_enter", "self._save_view(out)", "pass")
class ViewNotSaved(Toto):
    """The view that a process has entered is only in memory."""


@rewrite("_complete_if_due", "self._save_view(out)", "pass")
class CompletionNotSaved(Toto):
    """That all deliveries from before the view are here is only in memory."""


@rewrite("_drop", "out.put(_ORDER_KEY, _encode(saved))", "pass")
class OrderNotSaved(Toto):
    """How far the order has come when casts are dropped is only in memory."""


@rewrite("_drop", "self.time, view.base)", "self.record.time, view.base)")
class OrdersTimeNotSaved(Toto):
    """After a restart the order's time is that of the view's beginning."""


@rewrite("_enter", "for cast in self.view.everything(): out.delete(_cast_key(cast))", "pass")
class OldCastsKept(Toto):
    """Casts of the view before stay on disk."""


@rewrite("_enter", "out.delete(_ORDER_KEY)", "pass")
class OldOrderKept(Toto):
    """How far the order had come in the view before stays on disk."""


# -- counting ---------------------------------------------------------------------------------------------------------


@rewrite(
    "learn_from",
    "held = list(cast.past) held[k] = cast.number",
    "held = list(self.held)",
    part="view",
    after="_begin_view",
)
class AuthorHoldsWhatIHold(Toto):
    """The author of a cast is taken to hold what this member holds."""


@rewrite("arrive", "and self.precedes(first)", "", part="view", after="_begin_view")
class PastNotNeeded(Toto):
    """A cast is accepted before those that it follows."""


@rewrite("held_by_all", "[min(column) for column", "[sorted(column)[1] for column", part="view", after="_begin_view")
class HeldByAllButOne(Toto):
    """Casts are dropped though one member does not hold them."""


@rewrite(
    "learn",
    "column[self.quorum - 1] > self.safe[j]",
    "column[self.quorum - 2] > self.safe[j]",
    part="view",
    after="_begin_view",
)
class StableOneHolderEarly(Toto):
    """That a cast is safe is noticed one holder too early. (The value is still that of a majority.)"""


@rewrite("silent_about", "if last > covered and", "if last > covered + 1 and", part="view", after="_begin_view")
class SilentAboutTheLast(Toto):
    """The last cast of another member is not followed by an own one."""


@rewrite(
    "_finish",
    "if any(held < last for held, last in zip(view.held, new.cut, strict=True)): return False",
    "new.cut = list(map(min, view.held, new.cut))",
)
class FinishesWithLess(Toto):
    """Who lacks a part of the cut orders the rest without it."""


@rewrite("_finish", "for cast in (*self.coordinator.handed.values(), *new.casts): view.arrive(cast)", "pass")
class CutNotTaken(Toto):
    """The casts that come with a new view are not taken: who lacks them must come back through its group."""


@rewrite("_finish", "self._reveal(new.cut)", "pass")
class CutNotRevealed(Toto):
    """The rest of a view is ordered without what became safe last."""


@rewrite("_enter", "self._queue = deque(self._mine.values())", "pass")
class MineForgotten(Toto):
    """What was cast in a view and is not in its cut is not cast again."""


@rewrite("_enter", "early, self._early = self._early, []", "early, self._early = [], []")
class EarlyForgotten(Toto):
    """What came for a view before it was entered is forgotten. (As if it was lost on the way: it is asked for, or
    repeated.)"""


class TimeOfOwnGroup(Toto):
    """The order's time moves for the own group's messages only."""

    def _deliver(self, message: AppMessage, stamp: int, out: Outbox) -> None:
        before = self.time
        super()._deliver(message, stamp, out)
        if self.group not in message.destinations:
            self.time = before


@rewrite("_deliver", "timestamp <= self.log.timestamp", "timestamp < self.log.timestamp")
class LastDeliveryAgain(Toto):
    """Who comes back comes to what it installed last once more. (It knows that as delivered.)"""


# -- changes of views -------------------------------------------------------------------------------------------------


@rewrite("_take", "if not self.record.stopped:", "if True:")
class TakesAfterFlush(Toto):
    """A member that has stopped still takes casts."""


@rewrite("_speak", "if view.me is None or self.record.stopped:", "if view.me is None:")
class SpeaksAfterFlush(Toto):
    """A member that has stopped still casts."""


@rewrite("_on_state_ask", "if r.complete:", "if True:")
class IncompleteHelps(Toto):
    """Who lacks deliveries from before the view tells its position as if it had them."""


@rewrite("_complete_if_due", "self.log.position < state.position:", "self.log.position < state.position - 1:")
class ComesBackOneShort(Toto):
    """Who comes back goes on one delivery too early."""


@rewrite("_complete_if_due", "self.time = state.time", "pass")
class ComesBackWithOldTime(Toto):
    """Who comes back goes on with the time that it had."""


@rewrite("_complete_if_due", "out.put(_ORDER_KEY, _encode(state.order))", "pass")
class OrderOutsideNotSaved(Toto):
    """How far the order has come, as who is outside the view was told, is only in memory."""


@rewrite("_on_state", "and (not self.record.complete or self._is_ahead(state.order))", "")
class StateTakenTwice(Toto):
    """Who is complete takes a state that it had asked for."""


@rewrite("enter", "self.handed.clear()", "pass", part="coordinator")
class HandedKept(Toto):
    """What was handed out in a view is handed out in the next one, too, as if it were of that."""


@rewrite("_next_messages", "and (not messages or size + len(self._queue[0].payload) <= most)", "")
class CastOfAnySize(Toto):
    """All that waits leaves in one cast."""


@rewrite("_may_propose", "self.paxos.leading and", "")
class ProposesUnled(Toto):
    """A coordinator that was deposed goes on with its flush."""


@rewrite("_on_flush", "record.complete))", "True))")
class SaysComplete(Toto):
    """Who lacks deliveries from before the view says that it has them."""


@rewrite("_on_new_view", "if new.number <= self.record.number:", "if new.number < self.record.number:")
class SecondDecisionCounts(Toto):
    """Of two decisions for one view the later counts."""


@rewrite(
    "propose_if_ready",
    "if not gathering.suffices or any(p in gathering.members and p not in gathering.replies for p in alive):",
    "if not gathering.replies:",
    part="coordinator",
)
class FewAnswersAreEnough(Toto):
    """A coordinator goes on when anybody has answered the flush."""


@rewrite("coordinate", "if alive == members and", "if len(alive) == len(members) and", part="coordinator")
class AnotherOfSameNumber(Toto):
    """A view is not changed if as many are alive as are members."""


@rewrite("coordinate", "not self._stop_seen and", "", part="coordinator")
class StopNotSeen(Toto):
    """A coordinator does not notice that a member has stopped."""


@rewrite(
    "lead",
    'self._move("lead") self.gathering = None',
    "self.state = WATCHING if self.gathering is None else FLUSHING",
    part="coordinator",
)
class GatheringKept(Toto):
    """A coordinator goes on with the answers that it had in an earlier ballot."""


@rewrite("lead", 'self._move("lead")', 'self.state == PROPOSED or self._move("lead")', part="coordinator")
class ProposedBefore(Toto):
    """A coordinator counts on the view that it proposed in an earlier ballot."""


@rewrite(
    "cut",
    "max(r.held[k] for r in self.replies.values())",
    "sorted(r.held[k] for r in self.replies.values())[len(self.replies) // 2]",
    part=Gathering,
)
class CutOfMajority(Toto):
    """The cut is what half of those who answered hold."""


@rewrite(
    "held_by_all",
    "min(r.held[k] for r in staying.values())",
    "sorted(r.held[k] for r in staying.values())[len(staying) // 2]",
    part=Gathering,
)
class FloorTooHigh(Toto):
    """What most who answered hold is not given with the new view."""


@rewrite("is_quorum", "return all(", "return any(", part=Gathering)
class QuorumOfOneGroup(Toto):
    """A quorum of one group is enough for a flush."""


@rewrite(
    "suffices",
    "self.is_quorum(p for p, r in self.replies.items() if r.complete)",
    "self.is_quorum(self.replies)",
    part=Gathering,
)
class IncompleteCount(Toto):
    """Who lacks deliveries from before the view counts for a flush."""


@rewrite("add", "reply.view == self.number and", "", part=Gathering)
class RepliesOfAnyView(Toto):
    """Answers to the flush of an earlier view count."""


@rewrite("lacking", "range(low + 1, high + 1)", "range(low + 1, high)", part=Gathering)
class LastMissingNotAsked(Toto):
    """The last of the casts that some lack is not collected."""


HARMLESS = tuple(map(Planted, (StableOneHolderEarly, LastDeliveryAgain, EarlyForgotten)))
PLANTED = planted_in(__name__, HARMLESS)
