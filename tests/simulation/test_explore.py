"""The explorer exhausts small runs of the real protocols, and finds planted bugs by the shortest way."""

from __future__ import annotations

from typing import Any

import pytest

from multicast.protocol import MulticastProtocol
from multicast.protocols.sequencer import Sequencer
from multicast.protocols.skeen import Skeen
from multicast.protocols.white_box import WhiteBox
from multicast.simulation.explore import Explored, explore
from multicast.simulation.model import Action, Bounds, Model
from multicast.types import Topology
from tests.planted.skeen import ClockNotAdvanced
from tests.planted.white_box import RemoteVoteEnough


def run(
    protocol: type[MulticastProtocol],
    groups: int,
    replicas: int,
    destinations: tuple[tuple[int, ...], ...],
    options: dict[str, Any] | None = None,
    **more: Any,
) -> Explored:
    topology = Topology.grid(groups, replicas)
    senders = tuple(topology.processes[i % len(topology.processes)] for i in range(len(destinations)))
    bounds = Bounds(destinations=destinations, senders=senders, **more)
    return explore(protocol, topology, protocol.specification.options(**(options or {})), bounds)


class StampsForgotten(Skeen):
    """Stamps are only in memory."""

    def _save(self, entry: Any, out: Any) -> None:
        pass


class SecondAccept(Skeen):
    """Never proposes for what it did not multicast itself."""

    def _propose(self, entry: Any, to: tuple[int, ...], again: bool, out: Any) -> None:
        if entry.message.origin == self.self_id:
            super()._propose(entry, to, again, out)


@pytest.mark.parametrize(
    ("protocol", "groups", "replicas", "messages"),
    [(Skeen, 2, 1, 2), (Skeen, 2, 1, 3), pytest.param(WhiteBox, 1, 3, 2, marks=pytest.mark.full), (Sequencer, 2, 1, 2)],
)
def test_small_runs_are_exhausted(
    protocol: type[MulticastProtocol], groups: int, replicas: int, messages: int
) -> None:
    explored = run(protocol, groups, replicas, (tuple(range(groups)),) * messages)
    assert explored.exhausted and not explored.violation, explored.violation
    assert explored.states > 10 and explored.ends >= 1


def test_crashes_of_skeen_are_survived_in_every_order() -> None:
    explored = run(Skeen, 2, 1, ((0, 1), (1,)), crashes=1)
    assert explored.exhausted and not explored.violation, explored.violation


def test_a_clock_that_does_not_advance_is_found_by_the_shortest_way() -> None:
    explored = run(ClockNotAdvanced, 2, 1, ((0, 1), (1,), (0,)))
    assert "delivery at" in explored.violation
    assert len(explored.schedule) == 5
    assert explored.schedule[0] == "process 0 multicasts m1 to groups 0, 1"


def test_a_stamp_that_a_crash_takes_away_is_found() -> None:
    explored = run(StampsForgotten, 2, 1, ((0, 1), (1,), (0,)), crashes=1)
    assert explored.violation.startswith("order: two messages")
    assert "process 1 crashes" in explored.schedule and "process 1 restarts" in explored.schedule


def test_leaders_change_where_a_timer_may_expire() -> None:
    still, changing = (run(WhiteBox, 1, 2, ((0,),), {"ask_first": False}, timeouts=n) for n in (0, 1))
    assert changing.exhausted and not changing.violation, changing.violation
    assert changing.states > still.states


@pytest.mark.full
def test_a_leader_that_trusts_itself_is_found_by_a_deposed_one() -> None:
    explored = run(RemoteVoteEnough, 1, 3, ((0,), (0,)), {"ask_first": False}, timeouts=1)
    assert explored.violation.startswith("order: two messages")
    assert "process 1: a timer expires" in explored.schedule


def test_what_never_ends_is_found_as_unfinished() -> None:
    explored = run(SecondAccept, 2, 1, ((0, 1),))
    assert "nothing more happens" in explored.violation


def test_it_stops_at_the_limit_and_says_so() -> None:
    explored = run(WhiteBox, 2, 3, ((0, 1), (0, 1)), states_max=200)
    assert not explored.exhausted and explored.states >= 200 and not explored.violation


def test_pruning_loses_no_state() -> None:
    """The same states as a search that prunes nothing."""
    topology = Topology.grid(2, 1)
    bounds = Bounds(destinations=((0, 1), (0, 1)), senders=(0, 1))

    def model(path: tuple[Action, ...]) -> Model:
        made = Model(Skeen, topology, Skeen.specification.options(), bounds)
        for action in path:
            made.do(action)
        return made

    seen, todo = set(), [()]
    while todo:
        path = todo.pop()
        here = model(path)
        if (fingerprint := here.fingerprint()) not in seen:
            seen.add(fingerprint)
            todo += [(*path, action) for action in here.enabled()]
    assert run(Skeen, 2, 1, ((0, 1), (0, 1))).states == len(seen)
