"""Bugs planted in the Paxos part, shown by a protocol that uses it."""

from __future__ import annotations

from multicast.parts.instances import Instances
from multicast.parts.paxos import Paxos
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.simulation.runner import Settings
from tests.planted import Planted
from tests.planted.rewriting import rewrite

ONE_GROUP = Settings(profile="faults", groups=1, replicas=3)


@rewrite("keep", "out.put(_PROMISED_KEY, _encode(self.promised))", "pass", part=Paxos)
class PromiseNotSaved(QuasiGenuine):
    """A promise is given, and forgotten at a crash."""


@rewrite("_keep", "out.put(_key(instance), _encode(entry), carries=self.carried(values))", "pass", part=Instances)
class AcceptedNotSaved(QuasiGenuine):
    """Acceptances are only in memory."""


@rewrite("end_batch", "out.send_durable(", "out.send(", part=Paxos)
class AcceptedBeforeSync(QuasiGenuine):
    """An acceptance is told before it is on disk."""


@rewrite("count", ">= self._quorum", ">= max(1, self._quorum - 1)", part=Instances)
class OneIsEnough(QuasiGenuine):
    """Chosen without a quorum."""


@rewrite(
    "_on_accepted",
    "for instance in accepted.instances:",
    "accepted.ballot = Ballot(1, self.members[0])\n    for instance in accepted.instances:",
    part=Paxos,
)
class BallotsMixed(QuasiGenuine):
    """Acceptances of different ballots count together."""


@rewrite("won", "best = self._choose(list(votes.values()))", "best = {}", part=Paxos)
class PromisesIgnored(QuasiGenuine):
    """A new leader begins with nothing that was accepted before."""


@rewrite("_choose", "ballot > best[instance][0]", "ballot < best[instance][0]", part=Paxos)
class LowestBallotChosen(QuasiGenuine):
    """A new leader proposes what was accepted in the lowest ballot."""


@rewrite(
    "_send_accept",
    "if self.proposals is not None:",
    "self._next += max(0, len(values) - 1)\n    if self.proposals is not None:",
    part=Paxos,
)
class NextPerValue(QuasiGenuine):
    """The draft's lines 28 and 29 as printed, inside the loop: the next instance is counted on per message (erratum
    4)."""


@rewrite("accept", "if instance > self.decided:", "if True:", part=Instances)
class DecidedTakenBack(FtSkeen):
    """What is decided is replaced by what a deposed leader, which this member still obeys, proposed in its place."""


@rewrite("on_start", "lost=lost", "lost=False", part=Paxos)
class VotesWithoutMemory(QuasiGenuine):
    """A member whose disk was lost goes on as if nothing had been."""


@rewrite("beat", "entry is not None and entry[0] == self.promised", "entry is not None", part=Paxos)
class OldBatchAgain(FtSkeen):
    """A new leader repeats what it had accepted in an older ballot, in its own: it may have chosen another value, and
    some accept the one, some the other."""


@rewrite("decide_next", "entry is None or entry[0] < ballot", "entry is None or entry[0] != ballot", part=Instances)
class ChosenInItsBallotOnly(FtSkeen):
    """What was chosen, and accepted in a higher ballot before it could be decided, is not decided."""


@rewrite("truncate", "range(self.low, instance + 1)", "range(self.low, instance)", part=Instances)
class LastDroppedIsKept(FtSkeen):
    """Of instances that go together the last one stays for ever."""


@rewrite("jump", "self._taken.clear()", "pass", part=Instances)
class GivenAfterAJump(FtSkeen):
    """What was decided before a state that has it was taken over is applied to that."""


PLANTED = (
    Planted(LastDroppedIsKept),
    Planted(GivenAfterAJump),
    Planted(ChosenInItsBallotOnly),
    Planted(PromiseNotSaved),
    Planted(AcceptedNotSaved),
    Planted(AcceptedBeforeSync, ONE_GROUP),
    Planted(OneIsEnough),
    Planted(BallotsMixed),
    Planted(PromisesIgnored),
    Planted(LowestBallotChosen),
    Planted(NextPerValue, shows="the quasi-genuine draft's lines 28 and 29, erratum 4"),
    Planted(DecidedTakenBack),
    Planted(VotesWithoutMemory),
    Planted(OldBatchAgain),
)
