"""Bugs of who asks, or is asked: not on, not in time, again for what is answered; and of what is dropped meanwhile."""

from __future__ import annotations

from multicast.parts.channels import Channels
from multicast.parts.paxos import Paxos
from multicast.parts.retries import Retries
from multicast.parts.stream import Stream
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.skeen import Skeen
from tests.planted import planted_in
from tests.planted.rewriting import rewrite


@rewrite("_on_chosen", "out.send((sender,), Fetch(self.decided + 1))", "pass", part=Paxos)
class OneFetchATurn(FtSkeen):
    """Who is given a portion of the decisions asks for the next one when its timer acts: who is far behind comes no
    nearer."""


@rewrite("take", "if message.more: self._ask(channel, sender, now, out)", "pass", part=Channels)
class OneRepairATurn(QuasiGenuine):
    """So it is with what is lacking from another group."""


@rewrite("watch", "if head != self._head:", "if head != self._head or len(self.waiting) > 1:", part=Channels)
class BlockedPutOff(QuasiGenuine):
    """Who is blocked by one message does not ask as long as others come."""


@rewrite("drop", "bisect_right(stamps, barrier)", "bisect_left(stamps, barrier)", part="leader.wanted",
         after="_new_leader")  # fmt: skip
class AnsweredWantKept(QuasiGenuine):
    """A want for just the barrier that was told counts as unanswered: it is told again at every occasion, and a
    periodic leader is silent."""


@rewrite("decide", "timestamp_of(items[-1].stamp, group)", "timestamp_of(items[0].stamp, group)", part=Stream)
class FirstOwnDelivered(QuasiGenuine):
    """An instance is dropped when the first of its messages for the own group is delivered: the others are gone after
    a restart."""


@rewrite("_on_ask", "elif self.paxos.promised.leader != self.self_id:", "elif False:")
class AskedInVain(QuasiGenuine):
    """Who does not lead does not tell its leader that another group waits for a barrier: who asks must find the leader
    by asking one after the other."""


@rewrite("_forget_strays", "if self.member.entry_of(message_id) is None:", "if True:")
class WaitedForTooLong(FtSkeen):
    """The stamps of a message that waits for long are forgotten, though it is there: nobody tells the own group's
    again, and it never gets its timestamp."""


@rewrite("due", "min(2 ** (self._times[key] - 1), _PAUSE_MAX)", "2 ** (self._times[key] - 1)", part=Retries)
class PausesGrow(Skeen):
    """The pauses between two questions double without end: after a long outage everything waits for as long again."""


@rewrite("_recollect", "self._casts.begin(self._own_last()[0] + 1, out)",
         "self._casts.begin(self._own_last()[0], out)")  # fmt: skip
class SameLifeAgain(QuasiGenuine):
    """Who has lost its disk goes on in the life that its group remembers: what it casts is taken for a repetition."""


@rewrite("_save", "pending.saved = True", "pass", part=Channels)
class SavedForEver(QuasiGenuine):
    """What was saved on its own stays on disk when it is delivered, until the next restart."""


@rewrite("behind", "self._acks[p] < number)", "self._acks[p] < number - 1)", part=Stream)
class LastNotHinted(QuasiGenuine):
    """Who lacks just the last message for its group is told no barrier again: if that was lost, it never hears of
    it."""


PLANTED = planted_in(__name__)
