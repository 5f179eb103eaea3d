"""The papers' latencies and message counts are measured, and a protocol that has others is noticed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from multicast import registry
from multicast.application import Application
from multicast.parts import barriers
from multicast.parts.barrier_leader import BarrierLeader
from multicast.parts.clock import Clock
from multicast.parts.instances import Instances
from multicast.protocol import MulticastProtocol, Options, Outbox
from multicast.protocols.primcast import PrimCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.skeen import Skeen
from multicast.protocols.white_box import WhiteBox
from multicast.records import Delivered
from multicast.simulation.latency import published
from multicast.simulation.latency.average import average
from multicast.simulation.latency.consensus import Consensus
from multicast.simulation.latency.schedule import (
    DELTA_US,
    EARLIEST_US,
    START_US,
    WARM_UP_US,
    Conflict,
    Model,
    Schedule,
    play,
)
from multicast.simulation.latency.search import Search
from multicast.simulation.latency.table import Plan, Row, consensus_row, rows
from multicast.simulation.latency.table import row as row_of
from multicast.simulation.network import Conditions
from multicast.simulation.observe import Observer
from multicast.simulation.scene import EPOCH_US, Node
from multicast.simulation.world import World
from multicast.types import FINAL, AppMessage, ProcessId, Topology, new_message_id
from tests.planted.rewriting import rewrite
from tests.simulation.conftest import Done

QUICK = Plan(effort=0.01, seed=2)
"""The search goes on until it has reached what is published."""
SOON = {
    "white_box": Plan(effort=0.01, seed=1), "primcast": Plan(effort=0.01, seed=9), "skeen": Plan(effort=0.003, seed=2),
    "ft_skeen": Plan(effort=0.003, seed=5), "fastcast": Plan(effort=0.003, seed=7),
    "quasi_genuine": Plan(effort=0.003, seed=7),
}  # fmt: skip
"""Seeds that reach it sooner."""
SOONER = Plan(effort=0.002, seed=2)
THOROUGH = Plan(effort=0.1, seed=41)
LEAST = Plan(effort=1e-4, seed=7)
"""Where what a message does alone is looked at."""


def measured(
    protocol: type[MulticastProtocol], options: Mapping[str, str] | None = None, plan: Plan = QUICK
) -> list[Row]:
    return list(rows(protocol, options or {}, plan))


def measure(name: str, options: dict[str, str], skew: float = 0.0, plan: Plan = QUICK) -> Row:
    """One published variant."""
    protocol = registry.load(name)
    for one in published.table((skew,)):
        if (one.protocol, one.options, one.skew) == (name, options, skew):
            return row_of(protocol, one, plan)
    raise AssertionError(f"nothing is published of {name} with {options}")


# -- the papers' figures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [QUICK, pytest.param(THOROUGH, marks=pytest.mark.full)], ids=["quick", "thorough"])
@pytest.mark.parametrize(
    ("name", "options", "figures"),
    [
        ("skeen", {}, (2, 2, 4, 4)),
        ("white_box", {}, (3, 4, 5, 6)),
        ("white_box", {"leaders_in_quorum": "true"}, (3, 4, 5, 6)),
        ("primcast", {}, (3, 3, 5, 5)),
        pytest.param("quasi_genuine", {}, (7, 7, 11, 11), marks=pytest.mark.full),
        ("skeen", {"coordinator": "true"}, (3, 3, 6, 6)),
        ("ft_skeen", {}, (6, 7, 12, None)),
        pytest.param("ft_skeen", {"early_clock": "true"}, (6, 6, 10, None), marks=pytest.mark.full),
        pytest.param("fastcast", {}, (4, 5, 8, None), marks=pytest.mark.full),
        pytest.param("fastcast", {"early_clock": "true"}, (4, 4, 6, None), marks=pytest.mark.full),
    ],
)
def test_latencies_are_the_papers(
    name: str, options: dict[str, str], figures: tuple[float, float, float, float | None], plan: Plan
) -> None:
    row = measure(name, options, plan=SOON[name] if plan is QUICK else plan)
    assert tuple(row.paper[field] for field in list(row.paper)[:4]) == figures
    found = (row.collision_free_first, row.collision_free_all, row.failure_free_first, row.failure_free_all)
    for value, figure in zip(found, figures, strict=True):
        assert figure is None or value == pytest.approx(figure, abs=0.01)
    assert row.match, row.against
    if name == "primcast":
        bumps_are_counted_apart(row)


def bumps_are_counted_apart(row: Row) -> None:
    for count in row.counts:
        k, n = count.destinations, count.replicas
        assert count.messages - count.by_kind.get("Bump", 0) == k * n + k * k * n * n
    assert any(count.by_kind.get("Bump") for count in row.counts)


@pytest.mark.parametrize(("skew", "figure"), [pytest.param(0.0, 4.0, marks=pytest.mark.full), (0.4, 4.8)])
def test_a_hybrid_clock_shortens_the_convoy_by_what_clocks_are_worth(skew: float, figure: float) -> None:
    row = measure("primcast", {"clock": "hybrid"}, skew, Plan(effort=0.003, seed=7))
    assert row.failure_free_all == pytest.approx(figure, abs=0.01)
    assert row.match, row.against


@pytest.mark.parametrize("replicas", [3, 5, 7])
def test_consensus_takes_two_delays(replicas: int) -> None:
    row = consensus_row(replicas)
    assert (row.collision_free_first, row.collision_free_all) == (2, 2)
    assert row.messages == replicas + replicas**2
    assert row.match, row.against


def test_a_message_to_one_group_may_be_quicker() -> None:
    row = measured(WhiteBox, {"leaders_in_quorum": "true"}, Plan(groups=1, effort=0.01))[0]
    assert row.failure_free_first is not None and row.failure_free_first < 4.5
    assert row.match, row.against


def test_of_what_nobody_published_nothing_is_asserted() -> None:
    row = measured(Skeen, {"clock": "hybrid"}, Plan(effort=0.02))[0]
    assert set(row.paper.values()) == {None}
    assert row.match


@pytest.mark.parametrize("one", published.table(), ids=lambda p: f"{p.protocol}{p.options}")
def test_every_published_variant_is_offered(one: published.Published) -> None:
    assert published.offered(registry.load(one.protocol), one)


# -- planted mistakes --------------------------------------------------------------------------------------------------


@rewrite("_accept_if_complete", "self.clock.advance(entry.highest.time)", "pass")
class LateClock(WhiteBox):
    """The clock moves when m is committed, not when its stamps are accepted."""

    def _send_deliver(self, entry: Any, position: int, out: Outbox) -> None:
        self.clock.advance(entry.final.time)
        super()._send_deliver(entry, position, out)


class Mute(WhiteBox):
    """Nobody delivers."""

    def _send_deliver(self, entry: Any, position: int, out: Outbox) -> None:
        entry.sent = True


class Chatty(WhiteBox):
    """Everything is multicast twice."""

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        super().on_submit(message, now, out)
        super().on_submit(message, now, out)


class TooGood(Skeen):
    """A convoy that is shorter than the paper's: the clock is a real one."""

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        self._clock = Clock("hybrid")


class NoRealClock(PrimCast):
    """A hybrid clock that only counts."""

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        self.clock = Clock("logical")


@pytest.mark.parametrize(
    ("protocol", "options", "plan", "fields"),
    [
        (LateClock, {}, SOONER, ["failure_free_first: 5.999, the paper has 5", "failure_free_all: 6.999, the"]),
        (Mute, {}, LEAST, ["collision_free_first: not delivered"]),
        (Chatty, {}, LEAST, ["messages: 34, the paper has 32", "messages for k = 1, n = 3: 11 (Multicast 2, "]),
        (TooGood, {}, Plan(effort=0.005, seed=7), ["failure_free_first: "]),
        (NoRealClock, {"clock": "hybrid"}, SOON["primcast"], ["failure_free_all: 4.999, the paper has 4"]),
    ],
)
def test_another_latency_is_noticed(
    protocol: type[MulticastProtocol], options: dict[str, str], plan: Plan, fields: list[str]
) -> None:
    one = next(p for p in published.table((0.0,)) if (p.protocol, p.options) == (protocol.specification.name, options))
    row = row_of(protocol, one, plan)
    assert not row.match
    assert all(any(line.startswith(field) for line in row.against) for field in fields), row.against


@rewrite("count", "len(voters) >= self._quorum", "bool(voters)", part=Instances)
class QuickConsensus(Consensus):
    """The first acceptance decides."""


def test_another_consensus_latency_is_noticed() -> None:
    assert consensus_row(3, QuickConsensus).against


class NewestWantOnly(barriers.Wants):
    """The newest request for a barrier makes the older ones forgotten."""

    def reached(self, group: int, barrier: barriers.Stamp) -> bool:
        return group in self and self._stamps[group][-1] <= barrier


class Starving(QuasiGenuine):
    def _new_leader(self) -> BarrierLeader:
        leader = super()._new_leader()
        leader.wanted = NewestWantOnly()
        return leader


def test_under_load_every_request_for_a_barrier_is_answered() -> None:
    topology, options = Topology.grid(2, 3), QuasiGenuine.specification.options()
    assert average(Model(QuasiGenuine, topology, options), 2.0, 1) == pytest.approx(9.0, abs=0.15)
    assert average(Model(Starving, topology, options), 2.0, 1, samples=1) == float("inf")


# -- the search, the stage, the command --------------------------------------------------------------------------------


def test_a_search_is_repeatable_and_its_schedule_shows_what_it_says() -> None:
    model = Model(Skeen, Topology.grid(3, 1), Skeen.specification.options())
    one, other = (Search(model, (0, 1), 5, effort=0.02).run() for _ in range(2))
    assert one == other
    assert play(model, one.worst_first, Skeen.specification.housekeeping).first == one.first
    assert play(model, one.worst_every, Skeen.specification.housekeeping).every == one.every
    assert one.worst_first.lines()[0].startswith("m: multicast by process")


class _When(Observer):
    def __init__(self) -> None:
        self.delivered: dict[tuple[ProcessId, bytes], int] = {}

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        if delivery.stage == FINAL:
            self.delivered[node.pid, delivery.message.payload] = node.world.now - EPOCH_US - START_US


def _in_world(model: Model, schedule: Schedule) -> dict[ProcessId, int]:
    """When m is delivered if the same schedule is played with engines, journals and encoded messages."""
    counters: dict[tuple[ProcessId, ProcessId, str], int] = {}

    def script(sender: ProcessId, receiver: ProcessId, message: Any) -> int:
        if world.now < EPOCH_US + START_US + EARLIEST_US:
            return DELTA_US
        link = (sender, receiver, type(message).__name__)
        counters[link] = counters.get(link, -1) + 1
        return schedule.delays_us.get((*link, counters[link]), DELTA_US)

    def make(pid: ProcessId, rng: random.Random, disk: Any) -> tuple[MulticastProtocol, Application]:
        return model.protocol(pid, model.topology, model.options, rng), Application()

    when = _When()
    world = World(model.topology, make, 0, Conditions.exact(DELTA_US), observers=[when], script=script)
    for pid, us in schedule.skew_us.items():
        world.node(pid).offset_us = us
    world.start()
    number = 0

    def later(at_us: int, sender: ProcessId, destinations: tuple[int, ...], payload: bytes) -> None:
        nonlocal number
        number += 1
        message = AppMessage(new_message_id(EPOCH_US, number), destinations, payload, sender)
        world.at(EPOCH_US + at_us, lambda: world.submit(sender, message) and None)

    for group, count in sorted(schedule.ahead.items()):
        for _ in range(count):
            later(WARM_UP_US, model.topology.groups[group][0], (group,), b"")
    for conflict in schedule.conflicts:
        later(START_US + conflict.at_us, conflict.sender, conflict.destinations, b"")
    later(START_US, schedule.sender, schedule.destinations, b"m")
    world.run_until(EPOCH_US + START_US + 30 * DELTA_US)
    return {pid: at for (pid, payload), at in when.delivered.items() if payload == b"m"}


@pytest.mark.parametrize(
    "name", ["skeen", "white_box", "primcast", pytest.param("quasi_genuine", marks=pytest.mark.full)]
)
def test_the_simulated_world_agrees_on_the_worst_schedule(name: str) -> None:
    protocol = registry.load(name)
    topology = Topology.grid(3, 3 if protocol.specification.fault_tolerant else 1)
    model = Model(protocol, topology, protocol.specification.options())
    found = Search(model, (0, 1), 3, effort=0.02, conflicts=2).run()
    delivered = _in_world(model, found.worst_every)
    assert set(delivered) == set(topology.members((0, 1)))
    assert max(delivered.values()) / DELTA_US == found.every


def test_a_schedule_is_said_in_words() -> None:
    schedule = Schedule(
        sender=4, destinations=(0, 1), conflicts=(Conflict(1_999, 0, (0,)),), ahead={1: 2, 0: 0},
        skew_us={3: -250}, delays_us={(4, 0, "Start", 0): 0},
    )  # fmt: skip
    assert schedule.lines() == [
        "m: multicast by process 4 at 0 to groups 0,1",
        "conflicting: by process 0 at 1.999 to groups 0",
        "group 1 has ordered 2 messages before",
        "clock of process 3 is -0.25",
        "Start number 1 from process 4 to process 0 takes 0",
        "every other message takes 1, to oneself 0",
    ]


def test_the_command_prints_the_table_and_writes_rows(simulate: Callable[..., Done], tmp_path: Path) -> None:
    path = tmp_path / "latency.json"
    done = simulate(
        "latency", "--protocol", "white_box", "--groups", "1", "--replicas", "5", "--seed", "9", "--effort", "0.001",
        "--schedules", "--json", str(path),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "k + 2k²n + kn" in done.stdout
    assert "worst for first:" in done.stdout
    result = json.loads(path.read_text())
    assert [row["options"]["leaders_in_quorum"] for row in result] == [False, True]
    for row in result:
        assert row["match"] is True
        assert set(row["paper"]) == {
            "collision_free_first", "collision_free_all", "failure_free_first", "failure_free_all", "messages"
        }  # fmt: skip
        assert {key: row[key] for key in ("destinations", "replicas", "messages")} == {
            "destinations": 1, "replicas": 5, "messages": 16
        }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--groups", "0"), "--groups is from 1 to"),
        (("--replicas", "4"), "--replicas is odd"),
        (("--effort", "0"), "--effort is above 0"),
        (("--skew", "3"), "--skew is from 0 to 2"),
        (("--skew", "0.0001"), "in steps of 1/1000"),
        (("--seed", "-1"), "--seed is from 0"),
    ],
)
def test_bad_usage_is_one_clear_line(simulate: Callable[..., Done], arguments: tuple[str, ...], text: str) -> None:
    done = simulate("latency", "--protocol", "skeen", *arguments)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert text in done.stderr
