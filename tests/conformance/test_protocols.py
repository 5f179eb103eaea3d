"""Every protocol, in processes over TCP, with faults: groups of 3 (1 without fault tolerance), judged by its journals.

A protocol is enrolled by being in `multicast/protocols`. Messages go to one group or to all, from all processes, so
also from outside their destinations. Meanwhile things happen (`scenes`). At the end every message of a process that
lived on must have been delivered, and of the others those that somebody else multicast anew, with the same id.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path

import msgspec
import pytest

from multicast import registry
from multicast.types import Topology
from tests import conftest
from tests.conformance.cluster import Processes
from tests.conformance.load import Load, delivers
from tests.conformance.scenes import (
    WARM_UP,
    as_quick_as_ever,
    catches_up,
    cut_one_way,
    follower,
    goes_on,
    isolate,
    kill_all,
    kill_and_restart,
    kill_in_catch_up,
    kill_leaders,
    part_leaders,
    play,
    suspend,
    wrong_clocks,
)
from tests.house import ROOT

pytestmark = pytest.mark.timeout(600)

ALWAYS = ("white_box", "primcast", "quasi_genuine")
"""Killed by default, as each comes back from its journal in its own way; all the others with --full."""
ON_A_BAD_NETWORK = ALWAYS[:1]
"""By default: links are the same for all of them."""
TOLERANT = [name for name in registry.names() if registry.load(name).specification.fault_tolerant]


def some(always: Collection[str]) -> list[object]:
    """Parameters of a test: all protocols, but for these in the full run only."""
    return [name if name in always else pytest.param(name, marks=pytest.mark.full) for name in registry.names()]


def grid(protocol: str, groups: int = 2, replicas: int = 3) -> Topology:
    """One process per group where nobody may be missing."""
    return Topology.grid(groups, replicas if protocol in TOLERANT else 1)


async def kills(cluster: Processes, load: Load) -> None:
    """Each group's leader, so that the ballot is not the first; a follower, in that ballot; then everybody at once. Who
    was restarted delivers as soon as the others."""
    await kill_leaders(cluster, load)
    if cluster.protocol in TOLERANT:
        await kill_and_restart(cluster, load, [await follower(cluster, 0)], survives=True)
        await as_quick_as_ever(cluster, load)
    await kill_all(cluster, load)


async def bad_network(cluster: Processes, load: Load) -> None:
    """Cuts at followers and leaders, both ways and one way; slow links; broken connections; processes that stand
    still; two leaders that never reach one another; clocks five minutes off. Who has been away delivers by itself again
    at the end."""
    tolerant = cluster.protocol in TOLERANT
    for group in cluster.topology.groups:
        leader = await cluster.leader(group)
        if tolerant:
            await isolate(cluster, load, await follower(cluster, group))
            await isolate(cluster, load, await cluster.leader(group))
            await suspend(cluster, load, await cluster.leader(group))
        await cut_one_way(cluster, load, leader, to_it=group % 2 == 0)
        await cluster.network.reset()
        await delivers(cluster, WARM_UP)
    cluster.network.slow(await cluster.leader(0), 0.02)
    await delivers(cluster, WARM_UP)
    cluster.network.heal()
    if tolerant:
        await part_leaders(cluster, load)
    await wrong_clocks(cluster, load)
    await as_quick_as_ever(cluster, load)


async def two_of_five(cluster: Processes, load: Load) -> None:
    """A leader and a follower of one group die; another group's follower dies while it catches up."""
    leader = await cluster.leader(0)
    victims = [leader, await follower(cluster, 0)]
    await kill_and_restart(cluster, load, victims, survives=True)
    await kill_in_catch_up(cluster, load, await follower(cluster, 1))
    both = [await cluster.leader(1), await cluster.leader(2)]
    await kill_and_restart(cluster, load, both, survives=True)
    await as_quick_as_ever(cluster, load)


async def large(cluster: Processes, load: Load) -> None:
    """A replica that was away fetches megabytes."""
    victim = (cluster.topology.groups[0])[-1]
    await cluster.kill(victim)
    if cluster.protocol in TOLERANT:
        await goes_on(cluster, load, [victim])
    await cluster.start(victim)
    await catches_up(cluster, victim)


def options_once() -> list[tuple[str, dict[str, str | int]]]:
    """(protocol, one option that is not as in the other runs), for every option with other values to choose from."""
    runs: list[tuple[str, dict[str, str | int]]] = []
    for name in registry.names():
        kind = registry.load(name).specification.options
        for field in msgspec.structs.fields(kind):
            drawn = {str(v).lower() if isinstance(v, bool) else v for v in kind.drawn.get(field.name, ())}
            values = drawn | ({"true", "false"} if isinstance(field.default, bool) else set())
            default = str(field.default).lower() if isinstance(field.default, bool) else field.default
            runs += [(name, {field.name: value}) for value in sorted(values, key=str) if value != default]
        runs.append((name, {"clock": "logical", "dedup_window_us": 0}))
    return runs


@pytest.mark.parametrize("protocol", some(ALWAYS))
async def test_a_protocol_survives_kills(protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    submissions = await play(protocol, tmp_path, grid(protocol), kills)
    assert len(submissions) > 4 * WARM_UP
    with capsys.disabled():
        print(f"\n{protocol}: {len(submissions)} messages in {time.monotonic() - began:.1f} s", end=" ")


@pytest.mark.parametrize("protocol", some(ON_A_BAD_NETWORK))
async def test_a_protocol_survives_a_bad_network(protocol: str, tmp_path: Path) -> None:
    await play(protocol, tmp_path, grid(protocol), bad_network, proxied=True)


@pytest.mark.full
@pytest.mark.parametrize("protocol", TOLERANT)
async def test_a_protocol_survives_two_of_five(protocol: str, tmp_path: Path) -> None:
    await play(protocol, tmp_path, Topology.grid(3, 5), two_of_five)


@pytest.mark.full
@pytest.mark.parametrize("protocol", registry.names())
async def test_payloads_of_a_megabyte(protocol: str, tmp_path: Path) -> None:
    await play(protocol, tmp_path, grid(protocol), large, payload_bytes=(0, 200, 200, 200, 200, 200, 200, 1_000_000))


@pytest.mark.full
@pytest.mark.parametrize(("protocol", "changed"), options_once())
async def test_every_option_once(protocol: str, changed: dict[str, str | int], tmp_path: Path) -> None:
    await play(protocol, tmp_path, grid(protocol), kill_leaders, changed)


def test_every_file_is_enrolled() -> None:
    files = {path.stem for path in (ROOT / "multicast" / "protocols").glob("*.py")} - {"__init__"}
    assert set(registry.names()) == files
    assert files.issuperset(ALWAYS)


def test_nothing_is_left_running() -> None:
    left = conftest.left_behind(os.environ[conftest.MARK])
    assert not [line for line in left.values() if "tests.conformance.process" in line]
