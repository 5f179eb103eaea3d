"""Every checker of the simulator finds the bug that it is there for; the protocol without the bug passes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from multicast.protocol import Outbox
from multicast.simulation.runner import Outcome, Settings, run_seed
from multicast.types import AppMessage, ProcessId, Timestamp
from tests.simulation.sequencer import Ordered, Please, Sequencer

CALM = Settings(profile="calm", groups=1, replicas=3, messages=30)


class Inventive(Sequencer):
    """Delivers a message that nobody multicast."""

    def deliver(self, ordered: Ordered, out: Outbox) -> None:
        if ordered.number == 5:
            old = ordered.message
            out.deliver(AppMessage(bytes(16), old.destinations, b"", old.origin), Timestamp(ordered.number, 0))
        else:
            super().deliver(ordered, out)


class Forger(Sequencer):
    """Changes a payload."""

    def deliver(self, ordered: Ordered, out: Outbox) -> None:
        if ordered.number == 5:
            old = ordered.message
            ordered = Ordered(5, AppMessage(old.id, old.destinations, old.payload + b"!", old.origin))
        super().deliver(ordered, out)


class Stutterer(Sequencer):
    """Delivers a message twice, at rising timestamps."""

    def deliver(self, ordered: Ordered, out: Outbox) -> None:
        out.deliver(ordered.message, Timestamp(2 * ordered.number, 0))
        if ordered.number == 5:
            out.deliver(ordered.message, Timestamp(2 * ordered.number + 1, 0))


class Dissenter(Sequencer):
    """One process swaps two deliveries."""

    held: Ordered | None = None

    def deliver(self, ordered: Ordered, out: Outbox) -> None:
        if self.self_id == 2 and ordered.number == 5:
            self.held = ordered
        else:
            super().deliver(ordered, out)
            if self.held is not None:
                super().deliver(self.held, out)
                self.held = None


class Backwards(Sequencer):
    """Timestamps fall once, everywhere alike."""

    def timestamp(self, ordered: Ordered) -> Timestamp:
        return Timestamp(1 if ordered.number == 5 else ordered.number + 1, 0)


class Forgetful(Sequencer):
    """The sequencer forgets one message, whose sender lives."""

    def order(self, ordered: Ordered, out: Outbox) -> None:
        if ordered.number == 5:
            self.number -= 1
        else:
            super().order(ordered, out)


class Deaf(Sequencer):
    """One process stops to deliver."""

    def deliver(self, ordered: Ordered, out: Outbox) -> None:
        if self.self_id != 1 or ordered.number < 5:
            super().deliver(ordered, out)


class Gossip(Sequencer):
    """Says to be genuine, but tells everybody everything."""

    specification = msgspec.structs.replace(Sequencer.specification, genuine=True)


class Crasher(Sequencer):
    """Has a bug that raises."""

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        if isinstance(message, Please) and self.number == 5:
            raise AssertionError("six is too many")
        super().on_message(sender, message, now, out)


class TwoOrders(Sequencer):
    """Each group has its own sequencer and numbers from one: timestamps clash, and so do orders across groups."""

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        for group in message.destinations:
            out.send((self.topology.groups[group][0],), Please(message))

    def order(self, ordered: Ordered, out: Outbox) -> None:
        out.send(self.topology.groups[self.group], ordered)


def _found(outcome: Outcome) -> set[str]:
    return {checker for checker, _ in outcome.violations}


def test_a_correct_sequencer_passes() -> None:
    for seed in range(10):
        assert run_seed(Sequencer, seed, CALM).violations == []


@pytest.mark.parametrize(
    ("bug", "checker"),
    [
        (Inventive, "validity"),
        (Forger, "validity"),
        (Stutterer, "integrity"),
        (Dissenter, "agreement"),
        (Backwards, "order"),
        (Forgetful, "liveness"),
        (Deaf, "liveness"),
        (Crasher, "exception"),
    ],
)
def test_each_property_has_a_bug_that_breaks_it(bug: type[Sequencer], checker: str) -> None:
    assert checker in _found(run_seed(bug, 1, CALM))


def test_a_protocol_that_tells_everybody_is_not_genuine() -> None:
    settings = Settings(profile="calm", groups=4, replicas=1, messages=30)
    found = [seed for seed in range(20) if "genuineness" in _found(run_seed(Gossip, seed, settings))]
    assert found, "no seed shows that processes outside the destinations take part"


def test_orders_that_contradict_each_other_form_a_cycle_whatever_the_timestamps_say() -> None:
    settings = Settings(profile="calm", groups=3, replicas=1, messages=100)
    found = any("global order" in _found(run_seed(TwoOrders, seed, settings)) for seed in range(20))
    assert found, "no seed shows a cycle across groups"


def test_what_a_sequencer_forgets_at_a_crash_is_found() -> None:
    settings = Settings(profile="faults", groups=1, replicas=3, messages=100)
    found = any(run_seed(Sequencer, seed, settings).violations for seed in range(40))
    assert found, "a sequencer that keeps nothing on disk survived every crash"
