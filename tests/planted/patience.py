"""Bugs of who has patience with whom: the leader of a group is missed unless it says something itself; and what comes
slowly is not asked for again."""

from __future__ import annotations

from multicast.parts.channels import Channels
from multicast.parts.detector import FailureDetector
from multicast.parts.election import Election
from multicast.parts.leadership import Leadership
from multicast.parts.paxos import Paxos
from multicast.parts.sequence import Sequence
from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.white_box import WhiteBox
from tests.planted import planted_in
from tests.planted.rewriting import rewrite


@rewrite("obey", "if sender != self._self_id:", "if True:", part=Election)
class ObeysItself(FastCast):
    """A leader that has heard of a higher ballot takes its own proposals for a sign of life."""


@rewrite("_on_doubt", "if misses and election.promises:", "self.heard(now)\n    if misses and election.promises:",
         part=FailureDetector)  # fmt: skip
class DoubtReassures(PrimCast):
    """Who is asked whether it misses the leader has new patience with it."""


@rewrite("pulse", "self._unanswered <= self._unanswered_max and not self.disk_hangs", "not self.disk_hangs",
         part=FailureDetector)  # fmt: skip
class ObeyedByNobody(PrimCast):
    """A leader whom all hear, and who hears nobody, says for ever that it is obeyed."""


@rewrite("_on_pulse", "None if pulse.obeyed else pulse.ballot", "None", part=FailureDetector)
class FollowsWhomNobodyObeys(FastCast):
    """Who hears its leader follows it, though that says that nobody answers."""


@rewrite("_fetch_if_behind", "and self._patience.asks()", "", part=Paxos)
class FetchesInEachHeartbeat(FastCast):
    """Who lacks decisions asks for them in every heartbeat, though they are on their way."""


@rewrite("compare", "if self._patience.asks():", "if True:", part=Sequence)
class RefilledInEachHeartbeat(PrimCast):
    """Whose T is short asks for the rest in every heartbeat, though it is on its way."""


@rewrite("take", "if channel.received > before or not message.more:", "if True:", part=Channels)
class AsksOnForCopies(QuasiGenuine):
    """Who gets a portion of a repair twice asks twice for the next one."""


@rewrite("take", "if channel.is_cut_off:", "if False:", part=Channels)
class WaitsForWhatIsOfNoUse(QuasiGenuine):
    """A portion of a repair came that begins too late, and the next is waited for, also when a state has come."""


# -- elections that take longer than patience -------------------------------------------------------------------------


@rewrite("_join", "self.election.wait(now)", "self.election.detector.wait(now)", part=Leadership)
class ImpatientOnceItHasJoined(WhiteBox):
    """However many ballots came to nothing: who has joined one has the usual patience until its leader leads."""


@rewrite("go", "if after is LEADER:", "if self.takes_part:", part=Election)
class JoiningIsBeginning(WhiteBox):
    """Who joins a ballot takes it for one that has begun, and patience does not grow."""


@rewrite("settle", "self.detector.settle()", "pass", part=Election)
class PatientForEver(FtSkeen):
    """After many ballots it has eight times the usual patience also with a leader that leads, and goes on to."""


@rewrite("settle", "self._barren = 0", "pass", part=Election)
class AllWereBarren(FtSkeen):
    """A ballot that has begun counts among those that have not."""


@rewrite("_on_vote", "self.detector.heard(now)", "pass", part=Election)
class VotesAreNotHeard(PrimCast):
    """A candidate loses patience while votes come, in portions."""


@rewrite("_on_new_state", "own.detector.heard(now)", "pass", part=Leadership)
class StatesAreNotHeard(WhiteBox):
    """Who is given a state loses patience while that comes, in portions."""


PLANTED = planted_in(__name__)
