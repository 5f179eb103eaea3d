"""How runs end: each ending finds what only it can find, and accuses nobody else."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from multicast import registry
from multicast.protocol import MulticastProtocol, Outbox
from multicast.records import Delivered
from multicast.simulation import drawing, faults, forgotten
from multicast.simulation.network import Conditions
from multicast.simulation.probe import Probe
from multicast.simulation.runner import Outcome, Run, Settings, run_seed
from multicast.simulation.scene import Scene
from multicast.simulation.world import World
from multicast.types import FINAL, AppMessage, Timestamp, Topology
from tests.planted.endings import SMALL, EverybodyAccepts
from tests.simulation.sequencer import Ordered, Sequencer

SEEDS = 30


@pytest.fixture(autouse=True)
def nothing_but_endings(monkeypatch: pytest.MonkeyPatch) -> None:
    for draw in ("draw", "draw_disk", "draw_gaps"):
        monkeypatch.setattr(faults, draw, lambda *arguments: [])
    monkeypatch.setattr(forgotten, "draw", lambda *arguments: ([], False))


def _first_failure(protocol: type[MulticastProtocol], since: int = 0) -> Outcome:
    for seed in range(since, SEEDS):
        outcome = run_seed(protocol, seed, SMALL)
        if outcome.violations:
            return outcome
    raise AssertionError(f"{SEEDS} seeds found nothing")


class Sluggish(Sequencer):
    """One process delivers everything, but only when its timer says so."""

    specification = msgspec.structs.replace(Sequencer.specification, latency=(2, 2))
    held: tuple[Ordered, ...] = ()
    due = 0

    def deliver(self, ordered: Ordered, out: Outbox) -> None:
        if self.self_id == 1:
            self.held = (*self.held, ordered)
        else:
            super().deliver(ordered, out)

    def on_tick(self, now: int, out: Outbox) -> int | None:
        self.due = self.due or now + 20_000
        if now >= self.due:
            self.due = now + 20_000
            for ordered in self.held:
                super().deliver(ordered, out)
            self.held = ()
        return self.due


def test_a_replica_that_delivers_by_a_timer_is_too_slow() -> None:
    calm = Settings(profile="calm", groups=1, replicas=3, messages=30)
    for protocol, failed in ((Sequencer, set()), (Sluggish, {"latency"})):
        assert {checker for checker, _ in run_seed(protocol, 0, calm).violations} == failed


def test_what_was_multicast_before_and_is_delivered_late_is_no_probe() -> None:
    topology = Topology.grid(1, 3)
    scene, probe = Scene(topology, bytes(16)), Probe(topology)
    early, late = (AppMessage(bytes([n]) * 16, (0,), b"", 0) for n in (1, 2))
    probe.expect((0,), ())
    probe.on_submit(scene.node(0), early)
    probe.expect((0,), ())
    probe.on_submit(scene.node(0), late)
    for pid, message, time in ((0, late, 200), (1, late, 200), (2, early, 100)):
        delivery = Delivered(1, Timestamp(time, 0), FINAL, False, message, 0)
        probe.on_deliver(scene.node(pid), delivery, False)
    assert probe.timestamp == Timestamp(200, 0)
    assert set(probe.delivered) == {0, 1} and probe.is_missing()


def test_a_late_copy_that_nobody_delivers_again_has_no_timestamp(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[bool] = []

    def copy(run: Run, sender: int, destinations: tuple[int, ...]) -> None:
        known = next(m for m in run.properties.messages.values() if m.destinations == destinations)
        copied.append(run.world.submit(sender, known))

    monkeypatch.setattr(Run, "multicast", copy)
    calm = Settings(profile="calm", groups=1, replicas=3, messages=30, options={"clock": "hybrid"})
    assert run_seed(registry.load("white_box"), 0, calm).violations == []
    assert copied and all(copied)


def test_a_clock_that_nobody_believes_does_not_put_off_the_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    def half_an_hour_behind(rng: random.Random, world: World) -> None:
        world.nodes[2].offset_us = -1_800_000_000

    monkeypatch.setattr(faults, "skew", half_an_hour_behind)
    settings = msgspec.structs.replace(SMALL, groups=1, options={"liveness": "periodic"})
    outcome = run_seed(registry.load("quasi_genuine"), 0, settings)
    assert outcome.violations == []
    assert outcome.simulated_us < 60_000_000


def test_nobody_is_accused_while_what_was_sent_before_the_end_of_the_faults_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slow_until_healed(rng: random.Random, world: World) -> None:
        for a, b in ((0, 3), (1, 4), (2, 5), (3, 0), (4, 1), (5, 2)):
            world.network.slow(a, b, 3_000_000)

    monkeypatch.setattr(faults, "skew", slow_until_healed)
    protocol = registry.load("primcast")
    assert [run_seed(protocol, seed, SMALL).violations for seed in (1, 2)] == [[], []]


@pytest.fixture
def short_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*arguments: Any) -> Conditions:
        return msgspec.structs.replace(conditions(*arguments), queue_frames_max=12)

    conditions = drawing.conditions
    monkeypatch.setattr(drawing, "conditions", short)


@pytest.mark.usefixtures("short_queues")
def test_nobody_is_accused_of_what_a_short_queue_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    def many(run: Run, sender: int, destinations: tuple[int, ...]) -> None:
        for _ in range(20):
            multicast(run, sender, destinations)

    multicast = Run.multicast
    monkeypatch.setattr(Run, "multicast", many)
    settings = Settings(profile="calm", size="small", groups=1, replicas=3, messages=5)
    for seed in range(3):
        run = Run(registry.load("fastcast"), seed, settings)
        assert run.execute().violations == []
        assert run.world.network.link(0, 1).session_out.frames_max == 12  # afterwards as before


@pytest.mark.full
@pytest.mark.usefixtures("short_queues")
def test_a_leader_stays_though_many_links_overflow_while_its_disk_is_slow() -> None:
    """Fourteen processes send more to it during one sync than a short queue takes. If it pulsed to all of them whenever
    one link has lost something, that would fill the others."""
    settings = Settings(profile="faults", size="small", groups=2, replicas=7, messages=5, options={"ask_first": "true"})
    outcome = run_seed(registry.load("toto"), 5, settings)
    assert outcome.violations == []
    assert "leaders_disk" in outcome.faults


@pytest.mark.parametrize("expected", [False, True])
def test_leaders_are_judged_unless_late_copies_are_to_come(monkeypatch: pytest.MonkeyPatch, expected: bool) -> None:
    monkeypatch.setattr(Run, "expects_copies", lambda self: expected)
    outcome = run_seed(registry.load("primcast"), 6, SMALL)
    assert ("other_restarts" in outcome.faults) is not expected


def test_copies_are_expected_until_the_last_one_was_sent() -> None:
    settings = Settings(profile="calm", size="small", messages=30, options={"dedup_window_us": "1000000"})
    run = Run(registry.load("primcast"), 0, settings)
    expected, known = {}, set[bytes]()
    submit = run.world.submit

    def sent(pid: int, message: AppMessage) -> bool:
        if message.id in known:
            expected[run.world.now] = run.expects_copies()
        known.add(message.id)
        return submit(pid, message)

    run.world.submit = sent  # type: ignore[method-assign]
    assert run.execute().violations == []
    run.world.run_for(3_000_000)
    assert expected and all(expected.values())
    assert not run.expects_copies()


def test_a_group_that_needs_everybody_is_found_by_a_minority_dead_for_good() -> None:
    outcome = _first_failure(EverybodyAccepts, since=5)
    assert outcome.faults == {"minority_dead": 1}
    assert "dead for good" in outcome.violations[0][1]


def test_a_protocol_that_keeps_nothing_is_found_by_the_restart_of_everything() -> None:
    outcome = _first_failure(Sequencer)
    assert outcome.violations


@pytest.mark.parametrize("name", ["primcast", "skeen"])
def test_who_keeps_its_promises_is_not_accused(name: str) -> None:
    protocol = registry.load(name)
    settings = SMALL if protocol.specification.fault_tolerant else Settings(profile="faults", groups=2, messages=40)
    outcomes = [run_seed(protocol, seed, settings) for seed in (0, 3)]
    assert [o.violations for o in outcomes if o.violations] == []
    met = {kind for o in outcomes for kind in o.faults}
    assert met & {"all_restarted", "all_staggered"}
    assert ("minority_dead" in met) == protocol.specification.fault_tolerant
