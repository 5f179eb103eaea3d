"""What happens to a cluster while it multicasts, step by step, and `play`, which judges the run by its journals."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from multicast import registry
from multicast.types import GroupId, ProcessId, Topology
from tests.conformance import journals
from tests.conformance.cluster import Processes
from tests.conformance.journals import Submission
from tests.conformance.load import PAYLOAD_BYTES, Load, delivers, options
from tests.conformance.process import CLUSTER

WARM_UP = 30
"""Messages delivered before, between and after the faults."""
PROBES = 30
ROUNDS = 5
SLOWER_MAX = 10
"""By so much a replica may deliver later than the quickest of its group, in the median. One that lives on retries or on
catching up is slower by a hundred."""

Scene = Callable[[Processes, Load], Awaitable[None]]


async def play(
    protocol: str,
    path: Path,
    topology: Topology,
    scene: Scene,
    changed: dict[str, str | int] | None = None,
    payload_bytes: Sequence[int] = PAYLOAD_BYTES,
    proxied: bool = False,
) -> list[Submission]:
    """Run it under load, let everything that is owed be delivered, and judge it. changed: options of the protocol that
    are not as under the store."""
    given = {**options(registry.load(protocol).specification), **(changed or {})}
    async with Processes(path, topology, protocol, given, proxied) as cluster:
        await cluster.start(*topology.processes)
        load = Load(cluster, f"{protocol} {sorted((changed or {}).items())}", payload_bytes)
        try:
            await delivers(cluster, WARM_UP)
            await scene(cluster, load)
            await delivers(cluster, WARM_UP)
        finally:
            await load.stop()
        load.again()
        await cluster.eventually(load.finished, "all that is owed, everywhere")
        assert not any(peer.refused for peer in cluster.peers.values())
        await cluster.stop()
        histories = {p: journals.read(cluster.directory(p), CLUSTER, topology, p) for p in topology.processes}
    assert journals.check(topology, histories, load.submissions) == []
    assert {p: h.lives for p, h in histories.items()} == {p: peer.life for p, peer in cluster.peers.items()}
    assert all(h.stopped for h in histories.values())
    assert not any(d.expired for h in histories.values() for d in h.deliveries), "all was multicast just now"
    assert len(topology.groups) == 1 or any(
        topology.group_of[s.process] not in s.message.destinations for s in load.submissions
    )
    return load.submissions


# -- steps ------------------------------------------------------------------------------------------------------------


async def goes_on(cluster: Processes, load: Load, without: Sequence[ProcessId]) -> None:
    """Everybody else delivers something new, in each group and in all of them."""
    to_all = load.multicast(load.everywhere, without)
    proofs = {group: {to_all, load.multicast((group,), without)} for group in load.everywhere}
    rest = [(peer, proofs[cluster.topology.group_of[p]]) for p, peer in cluster.peers.items() if p not in without]
    await cluster.eventually(lambda: all(p.delivered >= owed for p, owed in rest), f"going on without {without}")


async def catches_up(cluster: Processes, *processes: ProcessId) -> None:
    """These have what their groups have by now."""
    groups, group_of = cluster.topology.groups, cluster.topology.group_of
    owed = [(cluster.peers[p], max(cluster.peers[q].position for q in groups[group_of[p]])) for p in processes]
    await cluster.eventually(lambda: all(peer.position >= n for peer, n in owed), f"{processes} catch up")


async def kill_and_restart(cluster: Processes, load: Load, victims: Sequence[ProcessId], survives: bool) -> None:
    """survives: the others go on meanwhile."""
    await asyncio.gather(*map(cluster.kill, victims))
    if survives:
        await goes_on(cluster, load, victims)
    await cluster.start(*victims)
    await catches_up(cluster, *victims)


async def kill_leaders(cluster: Processes, load: Load) -> None:
    """One group's after the other's."""
    survives = registry.load(cluster.protocol).specification.fault_tolerant
    for group in cluster.topology.groups:
        await kill_and_restart(cluster, load, [await cluster.leader(group)], survives)
        await delivers(cluster, WARM_UP)


async def kill_all(cluster: Processes, load: Load) -> None:
    """As when the power fails: what was vouched for is on the disks."""
    reached = {group: max(cluster.peers[p].position for p in m) for group, m in cluster.topology.groups.items()}
    await asyncio.gather(*map(cluster.kill, cluster.topology.processes))
    await cluster.start(*cluster.topology.processes)
    back = [(peer, reached[cluster.topology.group_of[p]]) for p, peer in cluster.peers.items()]
    await cluster.eventually(lambda: all(p.position >= n for p, n in back), "what had been delivered before all died")


async def kill_in_catch_up(cluster: Processes, load: Load, victim: ProcessId) -> None:
    """Killed again as soon as it has a part of what it missed."""
    peer, members = cluster.peers[victim], cluster.topology.groups[cluster.topology.group_of[victim]]
    await cluster.kill(victim)
    behind = peer.position
    others = [cluster.peers[p] for p in members if p != victim]
    await cluster.eventually(lambda: min(p.position for p in others) > behind + 200, "the others are far ahead")
    starting = asyncio.create_task(cluster.start(victim))
    await cluster.eventually(lambda: peer.life > 1 and peer.position > behind, "it catches up")
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await cluster.kill(victim)
    await cluster.start(victim)
    await catches_up(cluster, victim)


async def isolate(cluster: Processes, load: Load, victim: ProcessId) -> None:
    """Cut off both ways, until the others have gone on and it is missed; then let back."""
    cluster.network.isolate(victim)
    await goes_on(cluster, load, [victim])
    cluster.network.heal()
    await catches_up(cluster, victim)


async def cut_one_way(cluster: Processes, load: Load, victim: ProcessId, to_it: bool) -> None:
    """It hears nobody, or nobody hears it, while fifty messages are multicast. Progress is owed afterwards."""
    (cluster.network.deafen if to_it else cluster.network.mute)(victim)
    sent = len(load.submissions)
    await cluster.eventually(lambda: len(load.submissions) >= sent + 50, "fifty messages")
    cluster.network.heal()
    await goes_on(cluster, load, [])


async def part_leaders(cluster: Processes, load: Load) -> None:
    """Those of two groups have no connection any more, and all others have: what is for both is delivered, by both. One
    of them leads on; others pass on what each of the two multicasts to the other one's group alone."""
    leaders = [await cluster.leader(0), await cluster.leader(1)]
    await cluster.network.sever(*leaders)
    await goes_on(cluster, load, [])
    topology = cluster.topology
    apart = [[p for p in topology.processes if p != leader] for leader in leaders]
    passed_on = [(1 - side, load.multicast((1 - side,), apart[side])) for side in (0, 1)]
    owed = [(cluster.peers[p], message_id) for group, message_id in passed_on for p in topology.groups[group]]
    await cluster.eventually(lambda: all(i in peer.delivered for peer, i in owed), "what others pass on")
    cluster.network.heal()
    await goes_on(cluster, load, [])


async def wrong_clocks(cluster: Processes, load: Load) -> None:
    """Each group's leader, one after the other, five minutes ahead or behind, longer than clocks take to be compared;
    everybody goes on, it too."""
    for group in cluster.topology.groups:
        leader = await cluster.leader(group)
        cluster.set_clock(leader, 300_000_000 if group % 2 == 0 else -300_000_000)
        began = time.monotonic()
        while time.monotonic() - began < 2.5:
            await delivers(cluster, WARM_UP)
        await goes_on(cluster, load, [])
        cluster.set_clock(leader, 0)


async def suspend(cluster: Processes, load: Load, victim: ProcessId) -> None:
    """SIGSTOP until the others have gone on, then SIGCONT."""
    cluster.peers[victim].pause()
    await goes_on(cluster, load, [victim])
    cluster.peers[victim].resume()
    await catches_up(cluster, victim)


async def as_quick_as_ever(cluster: Processes, load: Load) -> None:
    """Nothing else is multicast: every replica delivers about as soon as the quickest of its group, in one of a few
    rounds: whoever lives on retries does not in any, whom a busy machine lets wait does soon."""
    await load.stop()
    await cluster.eventually(load.quiet, "nothing is under way")
    for _ in range(ROUNDS):
        slow = await _slow(cluster, load)
        if not slow:
            break
    assert not slow, slow
    load.resume()


async def _slow(cluster: Processes, load: Load) -> list[str]:
    """Who is slower than it may be, and by how much."""
    took: dict[ProcessId, list[float]] = {p: [] for p in cluster.topology.processes}
    for _ in range(PROBES):
        began = time.monotonic()
        probe = load.multicast(load.everywhere)
        await cluster.eventually(lambda: all(probe in p.heard for p in cluster.peers.values()), "a probe")  # noqa: B023
        for process, peer in cluster.peers.items():
            took[process].append(peer.heard[probe] - began)
    medians = {process: statistics.median(times) for process, times in took.items()}
    found = []
    for members in cluster.topology.groups.values():
        quickest = min(medians[p] for p in members)
        slow = {p: round(1000 * medians[p], 1) for p in members if medians[p] > SLOWER_MAX * quickest}
        if slow:
            found.append(f"ms, where the quickest of the group takes {1000 * quickest:.1f}: {slow}")
    return found


async def follower(cluster: Processes, group: GroupId) -> ProcessId:
    """One of the group that does not lead it."""
    leader = await cluster.leader(group)
    return next(p for p in cluster.topology.groups[group] if p != leader)
