"""Reads at the leader of a group that acts by consensus (parts.group_member): `parts.reads`, and why it holds there.

A round is answered by who has promised nothing above the ballot. Let a process have delivered number q before the
leader of ballot b was asked, and let a be the ballot of the leader on whose word, or by whose command in the log, it
did.
- a > b: a's Begin was decided by then. One of the quorum that accepted it is asked whether b still stands, had promised
  a at least, and does not say so. (Who has lost its disk says nothing until it is a member again.)
- a < b: q's Assign is in the log before b's Begin, or void. A leader of a that is deposed and does not know it may
  have delivered it all the same while b reigned: in FastCast it knows global timestamps that b's leader has not heard.
  So b's leader answers only when all that was in the log and not delivered when its reign began is delivered here.
- a = b, and the leader delivers first: it had delivered q here, before it said so.
- a = b with `early_clock`, where members deliver by the log: q's Assign was proposed here. So the leader waits for all
  that it had in flight, or in the log and not delivered, when it was asked: its backlog.
"""

from __future__ import annotations

from multicast.parts.deadlines import Deadlines
from multicast.parts.group_member import GroupMember, MemberOptions
from multicast.parts.reads import LeaderReads
from multicast.types import Ballot, MessageId


class ReignReads(LeaderReads):
    """At one member. Call `begin`, too, when its reign begins."""

    def __init__(self, member: GroupMember, options: MemberOptions, deadlines: Deadlines):
        self.election = member.paxos.election
        self._member = member
        self._taken_over: list[MessageId] = []
        queue = (lambda: member.log.queue) if options.early_clock else None
        super().__init__(self, lambda: self._last(), options, deadlines, queue)

    @property
    def joined(self) -> Ballot:
        """See `parts.reads.Led`."""
        return self._member.reign.ballot

    def is_current(self, ballot: Ballot) -> bool:
        """See `parts.reads.Led`."""
        return ballot == self._member.paxos.promised and not self._member.paxos.amnesiac

    def begin(self) -> None:
        """From now on this process acts as the group's leader."""
        self._taken_over = self._member.log.queue.ids()

    def _last(self) -> int | None:
        """The last delivery; None until all that was taken over is delivered."""
        taken_over, queue = self._taken_over, self._member.log.queue
        while taken_over and taken_over[-1] not in queue:
            taken_over.pop()
        return self._member.deliveries.position if self._member.acting and not taken_over else None
