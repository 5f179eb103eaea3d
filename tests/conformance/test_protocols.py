"""Every protocol, in processes over TCP, with kills: 2 groups of 3 (1 without fault tolerance), judged by its journals.

A protocol is enrolled by being in `multicast/protocols`. Messages go to one group or both, from all processes, so also
from outside their destinations. Meanwhile, group by group, whoever leads is killed; a fault-tolerant protocol has to
deliver without it before it is started again. Then all are killed at once, and started. At the end every message of a
process that lived on must have been delivered, and of the others those that somebody else multicast anew, with the same
id.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import msgspec
import pytest

from multicast import registry
from multicast.protocol import Specification
from multicast.types import AppMessage, GroupId, MessageId, ProcessId, Topology, new_message_id
from tests import conftest
from tests.conformance import journals
from tests.conformance.cluster import Processes
from tests.conformance.journals import Submission
from tests.conformance.process import CLUSTER
from tests.house import ROOT

pytestmark = pytest.mark.timeout(120)

DESTINATIONS: tuple[tuple[GroupId, ...], ...] = ((0, 1), (0, 1), (0,), (1,))
PAYLOAD_BYTES = (0, 10, 200, 5_000)
PAUSE_S = 0.01
BURST = 2
MESSAGES_MAX = 3_000
WARM_UP = 30
"""Messages delivered before, between and after the kills."""


def options(specification: Specification) -> dict[str, str | int]:
    """As under the store, only that protocols lose patience twice as soon."""
    fields = msgspec.structs.fields(specification.options)
    halved = {f.name: f.default // 2 for f in fields if f.name.endswith("_us") and isinstance(f.default, int)}
    return {**halved, "clock": "hybrid", "dedup_window_us": 120_000_000}


class Load:
    """Multicasts, seeded, until `stop`. submissions: everything that was handed to a process."""

    def __init__(self, cluster: Processes, seed: str):
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.submissions: list[Submission] = []
        self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while len(self.submissions) < MESSAGES_MAX:
            for _ in range(self.rng.randint(1, 2 * BURST - 1)):
                if self.cluster.up:
                    self.multicast(self.rng.choice(DESTINATIONS))
            await asyncio.sleep(PAUSE_S)

    def multicast(self, destinations: tuple[GroupId, ...]) -> MessageId:
        """A new message from any process that runs; one of them does."""
        now_us = time.time_ns() // 1000
        origin = self.rng.choice(self.cluster.up)
        payload = self.rng.randbytes(self.rng.choice(PAYLOAD_BYTES))
        message = AppMessage(new_message_id(now_us, self.rng.getrandbits(62)), destinations, payload, origin)
        self.submit(origin, message)
        return message.id

    def submit(self, process: ProcessId, message: AppMessage) -> None:
        self.submissions.append(Submission(process, self.cluster.peers[process].life, message))
        self.cluster.submit(process, message)

    def again(self) -> None:
        """Somebody else multicasts half of what dead lives did, and a tenth of all the rest, under the same ids."""
        for sent in list(self.submissions):
            dead = self.cluster.peers[sent.process].life != sent.life
            if self.rng.random() < (0.5 if dead else 0.1):
                process = self.rng.choice(self.cluster.topology.processes)
                self.submit(process, msgspec.structs.replace(sent.message, origin=process))

    async def stop(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    @property
    def owed(self) -> dict[GroupId, set[MessageId]]:
        """What each group has to deliver: all from lives that last, and what any process has delivered already."""
        peers, groups = self.cluster.peers, self.cluster.topology.groups
        known = set().union(*(peer.delivered for peer in peers.values()))
        owed: dict[GroupId, set[MessageId]] = {group: set() for group in groups}
        for process, life, message in self.submissions:
            if peers[process].life == life or message.id in known:
                for group in message.destinations:
                    owed[group].add(message.id)
        return owed

    def finished(self) -> bool:
        """Whether every process has delivered all that its group owes, and no more than the others."""
        owed = self.owed
        return all(
            self.cluster.peers[p].delivered >= owed[group] and self.cluster.peers[p].position == most
            for group, members in self.cluster.topology.groups.items()
            for most in (max(self.cluster.peers[q].position for q in members),)
            for p in members
        )


async def kill_and_restart(cluster: Processes, load: Load, group: GroupId, survives: bool) -> None:
    """The leader of `group`. survives: the others go on without it."""
    members = cluster.topology.groups[group]
    victim = await cluster.leader(group)
    await cluster.kill(victim)
    if survives:
        alive = [cluster.peers[p] for p in members if p != victim]
        proofs = [load.multicast((group,)), load.multicast((0, 1))]
        await cluster.eventually(lambda: all(p.delivered.issuperset(proofs) for p in alive), "no leader, no delivery")
    await cluster.start(victim)
    back = cluster.peers[victim]
    there = max(cluster.peers[p].position for p in members)
    await cluster.eventually(lambda: back.position >= there, "catching up after a restart")


async def kill_and_restart_all(cluster: Processes) -> None:
    """As when the power fails: what was vouched for is on the disks."""
    reached = {group: max(cluster.peers[p].position for p in m) for group, m in cluster.topology.groups.items()}
    await asyncio.gather(*map(cluster.kill, cluster.topology.processes))
    await cluster.start(*cluster.topology.processes)
    back = [(peer, reached[cluster.topology.group_of[p]]) for p, peer in cluster.peers.items()]
    await cluster.eventually(lambda: all(p.position >= n for p, n in back), "what had been delivered before all died")


async def delivers(cluster: Processes, messages: int) -> None:
    """Wait for so many more deliveries at every process."""
    wanted = {p: peer.position + messages for p, peer in cluster.peers.items()}
    await cluster.eventually(lambda: all(cluster.peers[p].position >= n for p, n in wanted.items()), "more deliveries")


async def conforms(protocol: str, path: Path) -> list[Submission]:
    """Run it and judge it."""
    specification = registry.load(protocol).specification
    tolerant = specification.fault_tolerant
    topology = Topology.grid(2, 3 if tolerant else 1)
    async with Processes(path, topology, protocol, options(specification)) as cluster:
        await cluster.start(*topology.processes)
        load = Load(cluster, protocol)
        try:
            await delivers(cluster, WARM_UP)
            for group in topology.groups:
                await kill_and_restart(cluster, load, group, tolerant)
                await delivers(cluster, WARM_UP)
            await kill_and_restart_all(cluster)
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
    assert sum(h.lives for h in histories.values()) == 2 * len(topology.processes) + len(topology.groups)
    assert all(h.stopped for h in histories.values())
    assert any(topology.group_of[s.process] not in s.message.destinations for s in load.submissions)
    return load.submissions


@pytest.mark.parametrize("protocol", registry.names())
async def test_a_protocol_conforms(protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    submissions = await conforms(protocol, tmp_path)
    assert len(submissions) > 4 * WARM_UP
    with capsys.disabled():
        print(f"\n{protocol}: {len(submissions)} messages in {time.monotonic() - began:.1f} s", end=" ")


def test_every_file_is_enrolled() -> None:
    files = {path.stem for path in (ROOT / "multicast" / "protocols").glob("*.py")} - {"__init__"}
    assert set(registry.names()) == files


def test_nothing_is_left_running() -> None:
    left = conftest.left_behind(os.environ[conftest.MARK])
    assert not [line for line in left.values() if "tests.conformance.process" in line]
