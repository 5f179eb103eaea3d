"""How a member comes back that has lost its disk: it takes part again when nothing depends on what it has forgotten.

A member that lost its disk (an *amnesiac*) does not know what it has promised and acknowledged. Were it to vote at
once, a quorum could decide against what an earlier quorum, with its help, has decided. `Rejoin` is the part of its
return that protocols share.

What a protocol must do:
  - An amnesiac vouches for nothing: no promise, no vote, no acknowledgement, no stamp, no clock; it does not lead.
  - A candidate has its ballot on disk before it asks for votes.
  - A ballot begins with a state formed from the votes of a quorum of the group.
  - `on_returned` gives a bound: who leads a ballot up to it begins a higher one; who leads a higher one sends its state
    to the asker.
  - With the state of a ballot above `bound` in its hands, and all of the group's history up to `reach` and up to what
    that state leaves out, the amnesiac joins that ballot and calls `finish`, all in one batch, and then acknowledges.

Steps:
  1. A marker on disk, so that a restart does not make it a member again.
  2. Returned(question) to all other members, until each has answered Highest(question, ballot, reached). `ballot` is
     the highest that the other has promised or campaigned for; none, if it is itself an amnesiac.
  3. Answers count if a quorum of them names ballots, and those without one come from amnesiacs that were known as such
     before the question was asked; otherwise it asks everybody once more.
  4. `bound` is the highest ballot of the answers, `reach` the greatest `reached`. The amnesiac fetches the history up
     to `reach`, so that the group's short pause comes last, then repeats Returned(question, bound) until it is given
     the state of a ballot above `bound`.

Why no forgotten promise matters. Let the amnesiac p have voted for ballot Y of candidate c (p itself, perhaps) before
its loss.
  - If c is no amnesiac, its answer is at least Y: it had Y on disk before it asked p, which was before p asked it.
  - If c is an amnesiac and Y began before c's loss, a quorum V had voted for Y by then, p among them. The question was
    asked after c's loss. A quorum answers it with ballots; it has a member in common with V besides p, which voted
    for Y before it answered: its answer is at least Y.
  - If Y did not begin before c's loss, p's old vote for it never counts: c has forgotten that it campaigned, and should
    it campaign for the same number again, then after its own return, for which p has answered it, and links are FIFO.
(Who has voted for Y, lost its disk, and returned is in a ballot above Y, by the same argument.) So whatever p has
forgotten concerns ballots up to `bound`: until its return it says nothing in any of them, after it it acts in higher
ones only. To the others it looks like a slow member that keeps its promises.

Why no forgotten acknowledgement matters. Let a quorum Q have acknowledged something in a ballot <= bound, p in Q. Every
ballot above is begun by a quorum Q' of which p is no member until it has returned. Let a be the number of amnesiacs, p
among them: Q without amnesiacs has at least q - a members, Q' has q, both among the n - a others, and 2q > n, so they
have one in common, which remembers. In particular the ballot with which p returns begins with all that p helped to
decide, and with p's joining it is on p's disk again. For ballots above that one p is like anybody else.

Why `reach`. What p durably had of the history (its deliveries) others may have counted on to forget their copies. Who
led when p was told of them has them, or has told another who votes; so they lie below what the others reach when they
answer or what the new state leaves out.

Limits. At most a minority of a group may be without memory or down at once; if it is more, no quorum without amnesiacs
exists, and the group stands still rather than forget. The amnesiac waits until it has heard from *all* others, since
the one that is silent may be the candidate that has its vote; others that are amnesiacs count as heard. A group of one
or two has no quorum without the amnesiac: `can_return`.

Who is new in the group (multicast.membership) joins it in the same way, but has no past to ask for. It promises ballots
and tells its highest one as any member does, so the group is not without a quorum until it has all history: it has
acknowledged nothing, so its votes hold nothing, and no quorum for anything had it as a member.
"""

from __future__ import annotations

import random

import msgspec

from multicast.membership import Views
from multicast.protocol import Outbox, Saved
from multicast.types import Ballot, ProcessId, quorum_of

MARKER_KEY = b"R"
_NEW = b"new"
_NO_PAST = Ballot(0, 0)


class Returned(msgspec.Struct, array_like=True, tag=102, gc=False):
    """My disk is gone. bound None: tell me your highest ballot. Otherwise: I have all answers, and wait for the state
    of a ballot above `bound`. question: differs from all that I asked before, in any life."""

    question: int
    bound: Ballot | None


class Highest(msgspec.Struct, array_like=True, tag=103, gc=False):
    """The highest ballot that I have promised or campaigned for, and how much of the history I have. ballot None: my
    disk is gone, too; life: then it differs in every life."""

    question: int
    ballot: Ballot | None
    reached: int
    life: int


MESSAGES = (Returned, Highest)


def can_return(replicas: int) -> bool:
    """Whether a group of this size has a quorum without one of its members."""
    return replicas - 1 >= quorum_of(replicas)


class Rejoin:
    """At one member, in both roles: the amnesiac's, and that of those who answer one.

    period_us: how often the amnesiac repeats itself. amnesiac: it is one, and must not vouch for anything. bound: it
    may join ballots above this one; None until all others have answered. reach: how much of the history it must have
    before it joins.
    """

    def __init__(self, views: Views, self_id: ProcessId, period_us: int, rng: random.Random):
        self.amnesiac = False
        self.bound: Ballot | None = None
        self.reach = 0
        self._views = views
        self._self_id = self_id
        self._period_us = period_us
        self._rng = rng
        self._life = self._question = 0
        self._answers: dict[ProcessId, Highest] = {}
        self._amnesiacs: dict[ProcessId, int] = {}
        self._repeat_at = 0

    @property
    def _others(self) -> tuple[ProcessId, ...]:
        return tuple(p for p in self._views.everybody if p != self._self_id)

    # -- the amnesiac -------------------------------------------------------------------------------------------------

    def restore(self, saved: Saved, now: int, out: Outbox) -> bool:
        """The first call of a life. Returns whether this process is an amnesiac: then nothing that it finds on its disk
        says anything about promises. A process that is new, and does not belong to the first view, has promised nothing
        and need not ask."""
        kind = saved.values.get(MARKER_KEY)
        is_new = kind == _NEW or (saved.first and self._self_id not in self._views.of[0])
        self.amnesiac = is_new or saved.lost or kind is not None
        if self.amnesiac:
            out.put(MARKER_KEY, _NEW if is_new else b"")
            self.bound = _NO_PAST if is_new else None
            self._life = self._question = now << 8 | self._rng.getrandbits(8)
            self._repeat_at = now
        return self.amnesiac

    def on_highest(self, sender: ProcessId, answer: Highest, now: int) -> bool:
        """An answer. Returns whether it was the last one: from then on `bound` and `reach` are known."""
        if not self.amnesiac or answer.question != self._question or self.bound is not None:
            return False
        self._answers[sender] = answer
        return self._conclude(now)

    def _conclude(self, now: int) -> bool:
        """Find `bound` and `reach`, once all others have answered."""
        if any(p not in self._answers for p in self._others):
            return False
        ballots = [a.ballot for a in self._answers.values() if a.ballot is not None]
        amnesiacs = {p: a.life for p, a in self._answers.items() if a.ballot is None}
        if not amnesiacs.items() <= self._amnesiacs.items() or len(ballots) < quorum_of(len(self._others) + 1):
            self._amnesiacs = amnesiacs
            self._answers.clear()
            self._question += 1
            return False
        self.bound = max(ballots)
        self.reach = max(a.reached for a in self._answers.values())
        self._repeat_at = now
        return True

    def tick(self, now: int, out: Outbox) -> int | None:
        """Repeat the question. Returns the next instant, or None. Once `bound` is known, to be called only while the
        history up to `reach` is here and the state of a ballot above `bound` is not."""
        if not self.amnesiac:
            return None
        if now >= self._repeat_at:
            self._repeat_at = now + self._period_us
            if self.bound is None:
                silent = [p for p in self._others if p not in self._answers]
                if silent:
                    out.send(silent, Returned(self._question, None))
                else:
                    self._conclude(now)
            else:
                out.send(self._others, Returned(self._question, self.bound))
        return self._repeat_at

    @property
    def is_new(self) -> bool:
        """Whether it was never a member: then it has forgotten nothing."""
        return self.amnesiac and self.bound == _NO_PAST

    def ask_more(self) -> None:
        """Ask again: the group has members that were not known when the answers came."""
        if self.amnesiac and self.bound != _NO_PAST:
            self.bound = None

    def may_join(self, ballot: Ballot) -> bool:
        """Whether an amnesiac may take over a state of this ballot; not if it knows the view and does not belong to it.
        True for any other process, which goes by other rules."""
        if self.amnesiac and self._self_id not in self._views.of.get(ballot.view, (self._self_id,)):
            return False
        return not self.amnesiac or (self.bound is not None and ballot > self.bound)

    def finish(self, out: Outbox) -> None:
        """Be a member again: the state of a ballot above `bound` is being put, in this batch."""
        if self.amnesiac:
            self.amnesiac = False
            self._answers.clear()
            out.delete(MARKER_KEY)

    # -- the others ---------------------------------------------------------------------------------------------------

    def on_returned(
        self, sender: ProcessId, message: Returned, highest: Ballot, reached: int, out: Outbox
    ) -> Ballot | None:
        """Answer an amnesiac. Returns its bound if it has all answers: see the module for what to do then."""
        if message.bound is None:
            ballot = None if self.amnesiac and not self.is_new else highest
            out.send((sender,), Highest(message.question, ballot, reached, self._life))
            return None
        return None if self.amnesiac else message.bound
