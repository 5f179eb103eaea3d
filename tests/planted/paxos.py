"""Bugs planted in the Paxos part, shown by a protocol that uses it."""

from __future__ import annotations

from collections.abc import Mapping

from multicast.parts.paxos import Accepted, Paxos, Promise, Values
from multicast.protocol import MulticastProtocol, Outbox
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.simulation.runner import Settings
from multicast.types import Ballot
from tests.planted import Planted


class PromiseNotSaved(Paxos):
    """A promise is given, and forgotten at a crash."""

    def _save_promise(self, out: Outbox) -> None:
        pass


class AcceptedNotSaved(Paxos):
    """Acceptances are only in memory."""

    def _save_entry(self, instance: int, out: Outbox) -> None:
        pass


class AcceptedBeforeSync(Paxos):
    """An acceptance is told before it is on disk."""

    def _send_accepted(self, message: Accepted, out: Outbox) -> None:
        out.send(self.members, message)


class OneIsEnough(Paxos):
    """Chosen without a quorum."""

    def _is_chosen(self, voters: set[int]) -> bool:
        return len(voters) >= max(1, self.quorum - 1)


class BallotsMixed(Paxos):
    """Acceptances of different ballots count together."""

    def _on_accepted(self, sender: int, accepted: Accepted) -> None:
        super()._on_accepted(sender, Accepted(Ballot(1, self.members[0]), accepted.instances))


class PromisesIgnored(Paxos):
    """A new leader begins with nothing that was accepted before."""

    def _choose(self, votes: list[Promise]) -> dict[int, tuple[Ballot, Values]]:
        return {}


class LowestBallotChosen(Paxos):
    """A new leader proposes what was accepted in the lowest ballot."""

    def _choose(self, votes: list[Promise]) -> dict[int, tuple[Ballot, Values]]:
        for vote in votes:
            vote.accepted = [(k, Ballot(-b.number, b.leader), values) for k, b, values in vote.accepted]
        return super()._choose(votes)


class NextPerValue(Paxos):
    """The draft's lines 28 and 29 as printed, inside the loop: the next instance is counted on per message (erratum
    4)."""

    def _send_accept(self, instance: int, values: Values, out: Outbox) -> None:
        super()._send_accept(instance, values, out)
        self._next += max(0, len(values) - 1)


class VotesWithoutMemory(Paxos):
    """A member whose disk was lost goes on as if nothing had been."""

    def on_start(self, values: Mapping[bytes, bytes], now: int, out: Outbox, lost: bool = False) -> None:
        super().on_start(values, now, out)


def _with(part: type[Paxos]) -> type[MulticastProtocol]:
    return type(part.__name__, (QuasiGenuine,), {"paxos_class": part, "__doc__": part.__doc__, "__module__": __name__})


ONE_GROUP = Settings(profile="faults", groups=1, replicas=3)

PLANTED = (
    Planted(_with(PromiseNotSaved)),
    Planted(_with(AcceptedNotSaved)),
    Planted(_with(AcceptedBeforeSync), ONE_GROUP),
    Planted(_with(OneIsEnough)),
    Planted(_with(BallotsMixed)),
    Planted(_with(PromisesIgnored)),
    Planted(_with(LowestBallotChosen)),
    Planted(_with(NextPerValue), shows="the quasi-genuine draft's lines 28 and 29, erratum 4"),
    Planted(_with(VotesWithoutMemory)),
)
