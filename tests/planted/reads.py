"""Bugs planted in reads at a leader: each lets one be answered with a position that is too old.

All but `OwnPosition` and `DeposedAsks` are also staged, in tests/multicast/test_reads.py.
"""

from __future__ import annotations

from multicast.protocols.white_box import WhiteBox
from tests.planted import planted_in
from tests.planted.rewriting import rewrite
from tests.planted.white_box import SlowOwnDeliver


@rewrite("_answer", "has_quorum(rounds[0].ballot, rounds[0].members)", "True", part="_reads")
class NobodyAsked(WhiteBox):
    """A leader takes its own word for it that it leads."""


@rewrite(
    "read",
    "self._waiting.append(token)",
    "(self._rounds[-1].tokens if self._rounds else self._waiting).append(token)",
    part="_reads",
)
class JoinsTheRound(WhiteBox):
    """What is asked while a round is under way is answered with it."""


@rewrite("_fresh_from", "entry.phase >= ACCEPTED and not entry.sent", "False")
class TakeoverNotAwaited(WhiteBox):
    """A new leader answers before it has announced what it took over."""


@rewrite("_fresh_from", "return self._announced", "return self.log.position")
class OwnPosition(SlowOwnDeliver):
    """A leader notes what it has delivered itself, not what it has announced. (With a DELIVER that comes back at once,
    as ours does, nobody delivers sooner, and the bug cannot show.)"""


@rewrite("_on_confirm", "self._leadership.is_current(asked.ballot)", "True", part="_reads")
class AnybodyConfirms(WhiteBox):
    """Who has promised another ballot says that this one still stands, and so does who has no memory."""


@rewrite("_on_confirmed", "and asked.ballot == confirmed.ballot", "", part="_reads")
class ConfirmsAnyBallot(WhiteBox):
    """What a member has confirmed to an earlier life of a leader, which counted from one, too, counts in this one."""


@rewrite("_on_confirm", "is_current(asked.ballot)", "joined == asked.ballot", part="_reads")
class ConfirmsAfterPromise(WhiteBox):
    """Who has promised another ballot, but has not joined it yet, says that this one still stands. (In White-Box that
    alone does no harm: what is delivered in a ballot, and was not announced before, was acknowledged by a quorum that
    had joined it.)"""


@rewrite(
    "_on_confirm",
    "self._leadership.is_current(asked.ballot)",
    'self._leadership.is_current(asked.ballot) or self._leadership.election.state == "rejoining"',
    part="_reads",
)
class AmnesiacConfirms(WhiteBox):
    """Who has no memory of its promises says that a ballot still stands."""


@rewrite(
    "end_batch",
    "leads = self._leadership.election.state is LEADER",
    "leads = self._leadership.joined.leader == self._leadership._self_id",
    part="_reads",
)
class DeposedAsks(WhiteBox):
    """A leader that has promised another ballot counts its own word, too."""


@rewrite("_on_confirmed", "asked.number <= confirmed.number and", "", part="_reads")
class EarlierRoundConfirms(WhiteBox):
    """Who has confirmed an earlier round counts for what is asked later, too."""


PLANTED = planted_in(__name__)
