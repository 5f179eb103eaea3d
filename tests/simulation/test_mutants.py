"""Bugs planted in the protocols, each of one method, and after how many seeds the checkers find it.

A bug that the simulator does not find within `SEEDS_MAX` seeds is a bug of the simulator. To be quick, the tests begin
with a seed that found it before. `python -m tests.simulation.test_mutants` counts from seed 0 on, for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from multicast.protocol import MulticastProtocol, Outbox
from multicast.protocols.skeen import Propose, Skeen
from multicast.protocols.white_box import WhiteBox
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.runner import Settings, run_seed
from multicast.types import Ballot, GroupId, ProcessId

SEEDS_MAX = 200
FAULTS = Settings(profile="faults")


def _swap_lanes(out: Outbox) -> None:
    out.sends[:] = [(to, message, not durable) for to, message, durable in out.sends]


class ClockNotAdvanced(WhiteBox):
    """Line 14 left out: a leader stamps later messages below what its group has agreed on."""

    def _advance_clock(self, to: int) -> None:
        pass


class VectorsMixed(WhiteBox):
    """Line 17 without "matching": acknowledgements of different ballot vectors count together."""

    def _ack_key(self, vector: Any) -> Any:
        return None


class SlowOwnDeliver(WhiteBox):
    """No bug: a leader's own DELIVER takes as long as anybody's, so it may be deposed before it arrives."""

    def _send_deliver(self, entry: Any, position: int, out: Outbox) -> None:
        before = len(out.sends)
        super()._send_deliver(entry, position, out)
        ((to, deliver, _),) = out.sends[before:]
        others = tuple(p for p in to if p != self.self_id)
        out.sends[before:] = [(others, deliver, False), ((self.self_id,), deliver, True)]


class DeliveredKept(SlowOwnDeliver):
    """Line 44 as printed: `Delivered` survives a leader change. (With a DELIVER that comes back at once, as ours does,
    whatever was sent is also delivered, and the bug cannot show.)"""

    def _reset_delivered(self, entry: Any) -> None:
        entry.acks.clear()


class AcknowledgedBeforeSync(WhiteBox):
    """An ACCEPT_ACK leaves before what it vouches for is on disk."""

    def _send_acknowledgement(self, leaders: tuple[ProcessId, ...], message: Any, out: Outbox) -> None:
        out.send(leaders, message)


class LanesSwapped(WhiteBox):
    """What should wait for the disk does not, and the other way round."""

    def end_batch(self, now: int, out: Outbox) -> None:
        super().end_batch(now, out)
        _swap_lanes(out)


class EveryBallotCounts(WhiteBox):
    """Line 45 left out: ACCEPTED states of lower ballots contribute too."""

    def _on_new_leader_ack(self, sender: ProcessId, ack: Any, now: int, out: Outbox) -> None:
        ack.joined = Ballot(0, 0)
        super()._on_new_leader_ack(sender, ack, now, out)


class BallotsNotSaved(WhiteBox):
    """A promise is given, and forgotten at a crash."""

    def _save_ballots(self, out: Outbox) -> None:
        pass


class EntriesNotSaved(WhiteBox):
    """Acceptances are only in memory."""

    def _save_entry(self, entry: Any, out: Outbox) -> None:
        pass


class RemoteVoteEnough(WhiteBox):
    """Line 17 without quorums: the leader's own acknowledgement is enough for its group and for all others."""

    def _is_committed(self, entry: Any, vector: Any, acknowledged: set[ProcessId]) -> bool:
        held = [entry.accepts.get(g) for g in entry.message.destinations]
        return self.self_id in acknowledged and all(
            h is not None and h[0] == b for h, b in zip(held, vector, strict=True)
        )


class SkeenClockNotAdvanced(Skeen):
    """Fig. 1, line 15 left out."""

    def _advance_clock(self, to: int) -> None:
        pass


class SkeenProposedBeforeSync(Skeen):
    """A stamp is told before it is on disk."""

    def _propose(self, entry: Any, to: tuple[ProcessId, ...], again: bool, out: Outbox) -> None:
        out.send(to, Propose(entry.message, entry.stamps[self.group], again))


class SkeenImpatient(Skeen):
    """Delivers at its own stamp, without the others'."""

    def _commit_if_complete(self, message_id: bytes, entry: Any) -> None:
        self._queue.commit(message_id, entry.stamps[self.group])


class SkeenForgetsStamps(Skeen):
    """Stamps are only in memory."""

    def _save(self, entry: Any, out: Outbox) -> None:
        pass


class SkeenTellsEverybody(Skeen):
    """Sends proposals to all groups: not genuine."""

    def _propose(self, entry: Any, to: tuple[ProcessId, ...], again: bool, out: Outbox) -> None:
        strangers = [p for p in self.topology.processes if p not in to]
        super()._propose(entry, to, again, out)
        if strangers:
            super()._propose(entry, tuple(strangers), again, out)

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        groups: tuple[GroupId, ...] = message.message.destinations if hasattr(message, "message") else (self.group,)
        if self.group in groups:
            super().on_message(sender, message, now, out)


MUTANTS: dict[type[MulticastProtocol], int] = {
    ClockNotAdvanced: 1,
    VectorsMixed: 3,
    DeliveredKept: 43,
    AcknowledgedBeforeSync: 6,
    LanesSwapped: 26,
    EveryBallotCounts: 4,
    BallotsNotSaved: 1,
    EntriesNotSaved: 1,
    RemoteVoteEnough: 1,
    SkeenClockNotAdvanced: 1,
    SkeenProposedBeforeSync: 1,
    SkeenImpatient: 0,
    SkeenForgetsStamps: 1,
    SkeenTellsEverybody: 1,
}
"""Each with the first seed that found it when this was written."""


def _first_seed(protocol: type[MulticastProtocol], seeds: Iterable[int]) -> tuple[int, str] | None:
    for seed in seeds:
        outcome = run_seed(protocol, seed, FAULTS)
        if outcome.violations:
            return seed, outcome.violations[0][0]
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_a_planted_bug_is_found(mutant: type[MulticastProtocol], capsys: pytest.CaptureFixture[str]) -> None:
    found = _first_seed(mutant, [MUTANTS[mutant], *range(SEEDS_MAX)])
    assert found, f"{mutant.__name__} survived {SEEDS_MAX} seeds: {mutant.__doc__}"
    with capsys.disabled():
        print(f"\n{mutant.__name__}: found after {found[0] + 1} seeds by {found[1]}", end=" ")


def test_a_slow_delivery_to_oneself_is_no_bug() -> None:
    assert _first_seed(SlowOwnDeliver, range(40, 46)) is None


def test_a_disk_that_does_not_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedDisk, "sync", lambda self, name: None)
    assert any(run_seed(WhiteBox, seed, FAULTS).violations for seed in range(20))


@pytest.mark.parametrize("protocol", [WhiteBox, Skeen], ids=lambda p: p.__name__)
def test_without_a_planted_bug_nothing_is_found(protocol: type[MulticastProtocol]) -> None:
    failed = {seed: run_seed(protocol, seed, FAULTS).violations for seed in range(20)}
    assert not any(failed.values()), failed


if __name__ == "__main__":
    for mutant in MUTANTS:
        found = _first_seed(mutant, range(SEEDS_MAX))
        print(f"{mutant.__name__}: " + (f"found after {found[0] + 1} seeds by {found[1]}" if found else "NOT FOUND"))
