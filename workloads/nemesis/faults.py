"""What can go wrong with one replica. Each fault is a function: it happens, lasts for so many seconds, and is over.

Never are there more at once than protocols claim to survive: one in each shard, and the next there only when everybody
is back. A function raises `Wrong` if the replica did not do what it must.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from multicast import registry
from multicast.runtime.failpoints import POINTS, Faults
from workloads.nemesis.cluster import Cluster, Replica, until

END_SECONDS = 20.0
"""A replica that has to end by itself has done so by then."""
KILLED = -signal.SIGKILL
CLOCK_AHEAD_MS = (-300_000, -2_000, 2_000, 300_000)
FULL_BYTES = (0, 64 * 1024, 20 << 20)


class Wrong(Exception):
    """A replica did not do what it must; one sentence."""


class Scene(NamedTuple):
    """Where a fault happens: to whom, for how many seconds, by whose choices."""

    cluster: Cluster
    victim: Replica
    seconds: float
    rng: random.Random


class Fault(NamedTuple):
    """needs: of the protocol and the cluster; empty: nothing. "majority": more than one replica per shard. "disk": the
    protocol takes back members whose disk was lost, and a majority remembers."""

    name: str
    happen: Callable[[Scene], Awaitable[None]]
    needs: str = ""


async def kill(scene: Scene) -> None:
    """SIGKILL; later it is started again."""
    await scene.victim.kill()
    await asyncio.sleep(scene.seconds)
    await scene.victim.start()


async def restart(scene: Scene) -> None:
    """SIGTERM, which it must follow in good order, and a new start at once."""
    status = await scene.victim.stop()
    if status != 0:
        raise Wrong(f"replica {scene.victim.id} ended with status {status} when it was asked to stop")
    await scene.victim.start()


async def pause(scene: Scene) -> None:
    """SIGSTOP, then SIGCONT."""
    scene.victim.send(signal.SIGSTOP)
    try:
        await asyncio.sleep(scene.seconds)
    finally:
        scene.victim.send(signal.SIGCONT)


async def kill_at_a_point(scene: Scene) -> None:
    """Between persisting and sending."""
    point = scene.rng.choice(POINTS)
    await _ends(scene, Faults(kill=point, kill_at=scene.rng.randint(1, 5)), KILLED, f"killing at the point {point!r}")


async def isolate(scene: Scene) -> None:
    """It is cut off from everybody, both ways."""
    scene.cluster.network.isolate(scene.victim.id)
    await _heal(scene)


async def deafen(scene: Scene) -> None:
    """It hears nobody, and everybody hears it."""
    scene.cluster.network.deafen(scene.victim.id)
    await _heal(scene)


async def mute(scene: Scene) -> None:
    """Nobody hears it, and it hears everybody."""
    scene.cluster.network.mute(scene.victim.id)
    await _heal(scene)


async def delay(scene: Scene) -> None:
    """All that it sends and is sent comes late."""
    scene.cluster.network.slow(scene.victim.id, scene.rng.uniform(0.01, 0.1))
    await _heal(scene)


async def reset(scene: Scene) -> None:
    """Its connections break, several times."""
    for _ in range(scene.rng.randint(1, 5)):
        await scene.cluster.network.reset(scene.victim.id)
        await asyncio.sleep(scene.seconds / 5)


async def wrong_clock(scene: Scene) -> None:
    """Its wall clock jumps, and later back."""
    await _lasts(scene, Faults(clock_ahead_ms=scene.rng.choice(CLOCK_AHEAD_MS)))


async def slow_disk(scene: Scene) -> None:
    """Syncs of its journal and commits of its state take long."""
    await _lasts(scene, Faults(sync_ms=scene.rng.randint(10, 300), commit_ms=scene.rng.randint(10, 1000)))


async def hanging_disk(scene: Scene) -> None:
    """A sync of its journal takes seconds, and so does the next one."""
    await _lasts(scene, Faults(sync_ms=scene.rng.randint(2_000, 5_000)))


async def failing_journal(scene: Scene) -> None:
    """A sync of its journal fails."""
    await _ends(scene, Faults(sync_fails=True), 1, "a failing sync of its journal")


async def failing_state(scene: Scene) -> None:
    """A commit of its state fails."""
    await _ends(scene, Faults(commit_fails=True), 1, "a failing commit of its state")


async def failing_journal_without_log(scene: Scene) -> None:
    """What it logs cannot be written, either."""
    await _ends(scene, Faults(sync_fails=True, free_bytes=1 << 30), 1, "a failing sync of its journal")


async def full_disk(scene: Scene) -> None:
    """No room is left, or little, for the log neither. It must live on, and go on by itself when there is room."""
    await _lasts(scene, Faults(free_bytes=scene.rng.choice(FULL_BYTES)))


async def wiped_disk(scene: Scene) -> None:
    """Everything is gone. It must not start as a new one, and comes back when it is told that its disk was lost."""
    victim = scene.victim
    await victim.kill()
    shutil.rmtree(victim.home)
    await asyncio.sleep(scene.seconds)
    await victim.start()
    victim.may_end = True
    if await victim.ended(END_SECONDS) != 1:
        raise Wrong(f"replica {victim.id} started on an empty disk as if it were new")
    await victim.start("--lost-disk")


async def old_copy(scene: Scene) -> None:
    """Its disk is replaced by a copy of before. The others know better: it must end, and comes back as one that has
    lost its disk."""
    victim = scene.victim
    await victim.kill()
    copy = victim.view / "copy"
    shutil.copytree(victim.home, copy)
    await victim.start()
    if not await until(lambda: scene.cluster.is_whole(victim.shard), END_SECONDS):
        raise Wrong(f"shard {victim.shard} is not whole {END_SECONDS:g} s after a kill")
    await asyncio.sleep(scene.seconds)
    await victim.kill()
    shutil.rmtree(victim.home)
    copy.rename(victim.home)
    await victim.start()
    victim.may_end = True
    status = await victim.ended(END_SECONDS)
    if status is None:
        await victim.kill()
    shutil.rmtree(victim.home)
    await victim.start("--lost-disk")
    if status != 1:
        raise Wrong(f"replica {victim.id} went on with an old copy of its disk")


FAULTS = (
    Fault("kill -9", kill),
    Fault("restart", restart),
    Fault("pause", pause),
    Fault("kill at a point", kill_at_a_point),
    Fault("partition", isolate),
    Fault("hears nobody", deafen),
    Fault("nobody hears it", mute),
    Fault("delay", delay),
    Fault("resets", reset),
    Fault("wrong clock", wrong_clock, "majority"),
    Fault("slow disk", slow_disk),
    Fault("hanging disk", hanging_disk),
    Fault("failing journal", failing_journal),
    Fault("failing state", failing_state),
    Fault("failing journal and log", failing_journal_without_log),
    Fault("full disk", full_disk),
    Fault("wiped disk", wiped_disk, "disk"),
    Fault("old copy of a disk", old_copy, "disk"),
)


def survived(protocol: str, replicas: int) -> list[Fault]:
    """Those of FAULTS that this protocol claims to survive with so many replicas per shard."""
    specification = registry.load(protocol).specification
    has = {"": True, "majority": replicas > 2, "disk": replicas > 2 and specification.survives_lost_disk}
    return [fault for fault in FAULTS if has[fault.needs]]


async def _heal(scene: Scene) -> None:
    try:
        await asyncio.sleep(scene.seconds)
    finally:
        scene.cluster.network.heal(scene.victim.id)


async def _lasts(scene: Scene, faults: Faults) -> None:
    scene.victim.fail(faults)
    try:
        await asyncio.sleep(scene.seconds)
    finally:
        scene.victim.fail(Faults())


async def _ends(scene: Scene, faults: Faults, status: int, why: str) -> None:
    """The replica has to end by itself, with this exit status; later it is started again, and nothing is wrong."""
    victim = scene.victim
    victim.may_end = True
    victim.fail(faults)
    try:
        found = await victim.ended(END_SECONDS)
    finally:
        victim.fail(Faults())
    if found is None:
        await victim.kill()
    await asyncio.sleep(scene.seconds)
    await victim.start()
    if found != status:
        raise Wrong(f"replica {victim.id} {'lives on' if found is None else f'ended with status {found}'} after {why}")
