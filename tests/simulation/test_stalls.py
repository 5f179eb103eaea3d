"""Who stands still for long after all is healed is accused, and nobody else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from multicast import registry
from multicast.protocol import MulticastProtocol
from multicast.records import Delivered
from multicast.simulation.runner import Run, Settings
from multicast.simulation.scene import Scene
from multicast.simulation.stalls import STALL_TIMEOUTS, Stalls
from multicast.simulation.world import World
from multicast.types import FINAL, AppMessage, Ballot, GroupId, ProcessId, Timestamp, Topology
from tests.planted.toto import AsksSeldom, WaitsForTheDeaf

TIMEOUT = 1_000
ENOUGH = STALL_TIMEOUTS * TIMEOUT


class Rig:
    """Two groups of three; whatever is asked is submitted at once, and delivered when the test says so."""

    def __init__(self) -> None:
        self.scene = Scene(Topology.grid(2, 3), bytes(16))
        for node in self.scene.nodes.values():
            node.up = True
        self.sent: dict[GroupId, AppMessage] = {}
        self.stalls = Stalls(cast(World, self.scene), self, random.Random(0), TIMEOUT)

    def multicast(self, sender: ProcessId, destinations: tuple[GroupId, ...]) -> None:
        message = AppMessage(bytes([len(self.sent) + 1]) * 16, destinations, b"", sender)
        self.sent[destinations[0]] = message
        self.stalls.on_submit(self.scene.node(sender), message)

    def deliver(self, pid: ProcessId, message: AppMessage) -> None:
        self.stalls.on_deliver(self.scene.node(pid), Delivered(1, Timestamp(1, 0), FINAL, False, message, 0), False)

    @property
    def accused(self) -> list[str]:
        return [text for checker, text in self.scene.violations if checker == "stall"]


def test_every_group_is_asked_by_one_of_its_own_and_accused_if_nothing_fresh_is_delivered_in_time() -> None:
    rig = Rig()
    rig.stalls.ask((0, 3))
    assert {g: rig.scene.topology.group_of[m.origin] for g, m in rig.sent.items()} == {0: 0, 1: 1}
    assert not {m.origin for m in rig.sent.values()} & {0, 3}
    rig.scene.now += ENOUGH
    rig.deliver(0, rig.sent[0])
    rig.scene.now += 1
    assert rig.stalls.is_waiting()
    rig.stalls.judge("now")
    assert len(rig.accused) == 1 and "group 1 delivers nothing fresh" in rig.accused[0]
    assert not rig.stalls.is_waiting()


def test_a_copy_of_what_is_known_is_nothing_fresh() -> None:
    rig = Rig()
    old = AppMessage(b"o" * 16, (0,), b"", 1)
    rig.stalls.on_submit(rig.scene.node(1), old)
    rig.stalls._asking[1] = 0
    rig.stalls.on_submit(rig.scene.node(1), old)
    rig.deliver(0, old)
    assert rig.stalls.is_waiting() and not rig.accused


def test_where_something_is_owed_nobody_may_stand_still_for_long() -> None:
    rig = Rig()
    since = rig.scene.now
    rig.scene.now += ENOUGH
    rig.stalls.watch(since)
    assert not rig.accused
    rig.deliver(4, AppMessage(b"m" * 16, (1,), b"", 4))
    rig.scene.now += ENOUGH
    rig.stalls.watch(since)
    assert not rig.accused
    rig.scene.now += 1
    rig.stalls.watch(since)
    rig.stalls.watch(since)
    assert len(rig.accused) == 1


def _stalled(
    protocol: type[MulticastProtocol], deafens: bool, monkeypatch: pytest.MonkeyPatch, seeds: Sequence[int] = range(8)
) -> list[str]:
    """What is found in few seeds."""
    init = Stalls.__init__

    def always(self: Stalls, *arguments: object) -> None:
        init(self, *arguments)  # type: ignore[arg-type]
        self.deafens = deafens

    monkeypatch.setattr(Stalls, "__init__", always)
    settings = Settings(
        profile="faults", size="small", groups=2, replicas=3, messages=20, options={"ask_first": "true"}
    )
    for seed in seeds:
        run = Run(protocol, seed, settings)
        found = [text for checker, text in run.execute().violations if checker == "stall"]
        if found:
            return found
    return []


def test_who_waits_for_a_member_that_is_heard_and_does_not_hear_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _stalled(WaitsForTheDeaf, True, monkeypatch, range(3, 11))
    assert found and "does not reach process" in found[0]


def test_who_asks_again_after_a_long_time_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _stalled(AsksSeldom, False, monkeypatch)


@pytest.mark.parametrize("protocol", ["toto", "primcast"])
def test_who_goes_on_is_not_accused(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _stalled(registry.load(protocol), True, monkeypatch, range(2))


class _AllHeard:
    """A world in which nothing happens but what `deafen` does to it: who does not reach whom, and who has died."""

    def __init__(self, leader: ProcessId, ask_first: bool) -> None:
        self.topology = Topology.grid(2, 3)
        election = SimpleNamespace(promised=Ballot(2, leader))
        protocol = SimpleNamespace(election=election, options=SimpleNamespace(ask_first=ask_first))
        self.nodes = {pid: SimpleNamespace(protocol=protocol, up=True) for pid in self.topology.processes}
        self.network = SimpleNamespace(block=self.blocked, unblock=lambda links: None)
        self.done: list[tuple[ProcessId, ...]] = []
        self.now = 0

    def blocked(self, links: list[tuple[ProcessId, ProcessId]]) -> None:
        self.done += links

    def belongs(self, pid: ProcessId) -> bool:
        return pid in self.topology.group_of

    def crash(self, pid: ProcessId) -> None:
        self.done.append((pid,))

    def restart(self, pid: ProcessId) -> None:
        """It is up again."""

    def run_for(self, us: int) -> None:
        self.now += us

    def run_while(self, condition: object, limit_us: int) -> bool:
        return False


@pytest.mark.parametrize("ask_first", [True, False])
def test_nobody_is_deaf_to_a_leader_of_all_whose_own_group_he_would_then_hear_too_little_of(ask_first: bool) -> None:
    leader = 3
    dying: set[GroupId] = set()
    for seed in range(20):
        world = _AllHeard(leader, ask_first)
        nobody = cast(Rig, SimpleNamespace(multicast=lambda *_: None))
        stalls = Stalls(cast(World, world), nobody, random.Random(seed), 1)
        if stalls.deafen():
            (of, _), (died,) = world.done
            assert of == leader
            dying.add(world.topology.group_of[died])
        else:
            assert not world.done
    assert dying == ({0, 1} if ask_first else {0})
