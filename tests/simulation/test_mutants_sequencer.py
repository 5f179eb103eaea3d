"""Bugs planted in the sequencer, each of one method, and after how many seeds the checkers find it."""

from __future__ import annotations

from typing import Any

import pytest

from multicast.protocol import MulticastProtocol, Outbox, Saved
from multicast.protocols.sequencer import Missing, Ordered, Sequencer
from multicast.simulation.runner import Settings, run_seed
from multicast.types import AppMessage, ProcessId

SEEDS_MAX = 200
FAULTS = Settings(profile="faults")


class ToldBeforeSync(Sequencer):
    """An entry leaves before it is on disk."""

    def _on_please(self, message: AppMessage, now: int, out: Outbox) -> None:
        before = len(out.sends)
        super()._on_please(message, now, out)
        out.sends[before:] = [(to, sent, False) for to, sent, _ in out.sends[before:]]


class CopiesEntered(Sequencer):
    """A message that is asked for again gets a second entry."""

    def _on_please(self, message: AppMessage, now: int, out: Outbox) -> None:
        self._known.discard(message.id)
        super()._on_please(message, now, out)


class GapsAccepted(Sequencer):
    """A process delivers whatever comes, if it is ahead of what it has."""

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        if isinstance(message, Ordered) and message.number > self._delivered:
            self._delivered = message.number - 1
        super().on_message(sender, message, now, out)


class NothingMissing(Sequencer):
    """Nobody asks for what a restart of the sequencer lost."""

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        if not isinstance(message, Missing):
            super().on_message(sender, message, now, out)


class ForgetsItsLog(Sequencer):
    """After a restart the sequencer counts from 1 again."""

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        saved.values.clear()
        super().on_start(saved, now, out)


MUTANTS = [ToldBeforeSync, CopiesEntered, GapsAccepted, NothingMissing, ForgetsItsLog]


def _seeds_until_found(protocol: type[MulticastProtocol]) -> tuple[int, str] | None:
    for seed in range(SEEDS_MAX):
        outcome = run_seed(protocol, seed, FAULTS)
        if outcome.violations:
            return seed + 1, outcome.violations[0][0]
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_a_planted_bug_is_found(mutant: type[MulticastProtocol], capsys: pytest.CaptureFixture[str]) -> None:
    found = _seeds_until_found(mutant)
    assert found, f"{mutant.__name__} survived {SEEDS_MAX} seeds: {mutant.__doc__}"
    with capsys.disabled():
        print(f"\n{mutant.__name__}: found after {found[0]} seeds by {found[1]}", end=" ")


def test_without_a_planted_bug_nothing_is_found() -> None:
    failed = {seed: run_seed(Sequencer, seed, FAULTS).violations for seed in range(20)}
    assert not any(failed.values()), failed
