"""Bugs planted in the quasi-genuine protocol and in the Paxos part that it uses, and after how many seeds they are
found.

The printed rules that the notes call wrong are among them: kept here, they fail; the mended ones do not.
"""

from __future__ import annotations

from typing import Any

import pytest

from multicast.parts.barriers import NEVER, Channel, Stamp, stamp_of
from multicast.parts.paxos import Accepted, Paxos, Promise, Values
from multicast.protocol import MulticastProtocol, Outbox
from multicast.protocols.quasi_genuine import Barrier, Base, QuasiGenuine
from multicast.simulation.runner import Settings, run_seed
from multicast.types import Ballot, GroupId, Timestamp

SEEDS_MAX = 200
FAULTS = Settings(profile="faults")


class NoOwnBarrier(QuasiGenuine):
    """Line 40 as printed: sendersTo(G) without G itself."""

    def _lowest_barrier(self) -> Stamp:
        others = [channel.barrier for group, channel in self.channels.items() if group != self.group]
        return min(others, default=(1 << 62, 0))


class StrictBarrier(QuasiGenuine):
    """Line 40 as printed: a barrier must be beyond the message, so that a message blocks itself."""

    def _passed(self, timestamp: Timestamp) -> bool:
        return stamp_of(timestamp) < self._floor


class OnlyRestampedInserted(QuasiGenuine):
    """Lines 29-37 as printed, indentation and all: only a message that is stamped anew is kept and forwarded."""

    def _next_stamp(self, stamp: Stamp) -> Stamp:
        following = super()._next_stamp(stamp)
        return following if following != stamp else NEVER

    def _receive(self, group: GroupId, number: int, item: Any) -> None:
        if item.stamp != NEVER:
            super()._receive(group, number, item)


class StampKept(QuasiGenuine):
    """Line 30 left out: what is decided too late keeps its stamp."""

    def _next_stamp(self, stamp: Stamp) -> Stamp:
        return stamp


class BarrierPassesMessages(QuasiGenuine):
    """A barrier counts although messages that precede it were lost."""

    def _covers(self, channel: Channel, upto: int) -> bool:
        return True


class ReceivedNotSaved(QuasiGenuine):
    """What is acknowledged is only in memory."""

    def _save_channel(self, group: GroupId, channel: Channel, out: Outbox) -> None:
        channel.unsaved.clear()


class BarrierAtProposal(QuasiGenuine):
    """A requested barrier is given before the null message is decided."""

    def _want(self, group: GroupId, stamp: Stamp) -> None:
        super()._want(group, stamp)
        self._early_barriers[group] = stamp

    def _answer_wants(self, out: Outbox) -> None:
        for group, stamp in self._early_barriers.items():
            if group != self.group:
                out.send(self.topology.groups[group], Barrier(stamp, self.base.numbers.get(group, 0)))
        self._early_barriers.clear()
        super()._answer_wants(out)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._early_barriers: dict[GroupId, Stamp] = {}


class DroppedTooEarly(QuasiGenuine):
    """Instances are dropped although destinations do not have their messages."""

    def _quorum_has(self, group: GroupId) -> int:
        return 1 << 60


class BaseNotSaved(QuasiGenuine):
    """Instances are dropped, and what they amounted to is forgotten at a crash."""

    def _save_base(self, base: Base, out: Outbox) -> None:
        pass


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


def _with(part: type[Paxos]) -> type[MulticastProtocol]:
    return type(part.__name__, (QuasiGenuine,), {"paxos_class": part, "__doc__": part.__doc__})


PROTOCOL_MUTANTS = [
    NoOwnBarrier,
    StrictBarrier,
    OnlyRestampedInserted,
    StampKept,
    BarrierPassesMessages,
    ReceivedNotSaved,
    BarrierAtProposal,
    DroppedTooEarly,
    BaseNotSaved,
]
PAXOS_MUTANTS = [
    PromiseNotSaved,
    AcceptedNotSaved,
    AcceptedBeforeSync,
    OneIsEnough,
    BallotsMixed,
    PromisesIgnored,
    LowestBallotChosen,
]
MUTANTS = [*PROTOCOL_MUTANTS, *map(_with, PAXOS_MUTANTS)]


def seeds_until_found(protocol: type[MulticastProtocol]) -> tuple[int, str] | None:
    for seed in range(SEEDS_MAX):
        outcome = run_seed(protocol, seed, FAULTS)
        if outcome.violations:
            return seed + 1, outcome.violations[0][0]
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_a_planted_bug_is_found(mutant: type[MulticastProtocol], capsys: pytest.CaptureFixture[str]) -> None:
    found = seeds_until_found(mutant)
    assert found, f"{mutant.__name__} survived {SEEDS_MAX} seeds: {mutant.__doc__}"
    with capsys.disabled():
        print(f"\n{mutant.__name__}: found after {found[0]} seeds by {found[1]}", end=" ")


@pytest.mark.parametrize(
    "options", [{}, {"liveness": "periodic"}, {"instances_max": "4"}], ids=["request", "periodic", "parallel"]
)
def test_without_a_planted_bug_nothing_is_found(options: dict[str, str]) -> None:
    settings = Settings(profile="faults", options=options)
    failed = {seed: run_seed(QuasiGenuine, seed, settings).violations for seed in range(300, 312)}
    assert not any(failed.values()), failed
