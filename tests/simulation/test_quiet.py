"""Who is accused of saying too much when everything has long been done, and who is not."""

from __future__ import annotations

import random

import msgspec
import pytest

from multicast.application import Application
from multicast.protocol import MulticastProtocol, Options, Outbox
from multicast.simulation import quiet
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.network import Conditions
from multicast.simulation.world import World
from multicast.types import AppMessage, ProcessId, Topology, new_message_id
from tests.simulation.sequencer import Ordered, Sequencer

TIMEOUT_US = 20_000
LATER_US = 10_000


class Told(msgspec.Struct, array_like=True, tag=3):
    """I have delivered something."""


class Multicast(msgspec.Struct, array_like=True, tag=4):
    """Please order a message; its name says what it is like."""


class TellsLater(Sequencer):
    """Who has delivered something tells it once, after a while. often: again and again, as a `Multicast`."""

    specification = msgspec.structs.replace(Sequencer.specification, messages=(Told, Multicast, Ordered))
    often = False
    due: int | None = None

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        self.number += 1
        out.send(self.topology.processes, Ordered(self.number, message))

    def on_message(self, sender: ProcessId, message: object, now: int, out: Outbox) -> None:
        if isinstance(message, Ordered):
            self.deliver(message, out)
            self.due = now + LATER_US

    def on_tick(self, now: int, out: Outbox) -> int | None:
        if self.due is not None and now >= self.due:
            out.send([p for p in self.topology.processes if p != self.self_id], Multicast() if self.often else Told())
            self.due = now + LATER_US if self.often else None
        return self.due


class RepeatsItself(TellsLater):
    often = True


def _judged(protocol: type[MulticastProtocol], submitted: list[int]) -> World:
    """After messages at these instants."""
    topology = Topology.grid(1, 2)

    def make_process(
        pid: ProcessId, rng: random.Random, disk: SimulatedDisk
    ) -> tuple[MulticastProtocol, Application]:
        return protocol(pid, topology, Options(), rng), Application()

    world = World(topology, make_process, 1, Conditions.exact(100))
    world.start()
    for number, at in enumerate(submitted):
        message = AppMessage(new_message_id(world.now, number), (0,), b"x", 0)
        world.schedule(world.now + at, world.submit, 0, message)
    quiet.judge(world, Options(), TIMEOUT_US)
    assert [node.engine.position for node in world.nodes.values()] == [len(submitted)] * 2
    return world


WAIT_US = quiet._WAIT_TIMEOUTS * TIMEOUT_US


@pytest.fixture(autouse=True)
def in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "_SHARE", 1)


@pytest.mark.parametrize("submitted", [[1_000], [WAIT_US - 1_000], [1_000, WAIT_US * 2 - 1_000]])
def test_what_a_store_multicasts_itself_is_long_ago_before_anybody_is_judged(submitted: list[int]) -> None:
    assert _judged(TellsLater, submitted).violations == []
    assert {checker for checker, _ in _judged(RepeatsItself, submitted).violations} == {"quiet"}


@pytest.mark.parametrize(
    "submitted", [[WAIT_US + 1_000], [number * WAIT_US + 1_000 for number in range(quiet._WAITS_MAX)]]
)
def test_nobody_is_judged_while_something_is_multicast(submitted: list[int]) -> None:
    for protocol in (TellsLater, RepeatsItself):
        assert _judged(protocol, submitted).violations == []
