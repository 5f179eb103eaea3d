"""What runs meet: multicasts without end, and what every group owes because of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import msgspec

from multicast.protocol import Specification
from multicast.types import AppMessage, GroupId, MessageId, ProcessId, new_message_id
from tests.conformance.cluster import Processes
from tests.conformance.journals import Submission

PAYLOAD_BYTES = (0, 10, 200, 5_000)
PAUSE_S = 0.02
BURST = 2
MESSAGES_MAX = 60_000
OUTSTANDING_MAX = 300
"""Of one group: with more the load waits. What died with its sender counts, too; that is little."""


def options(specification: Specification) -> dict[str, str | int]:
    """As under the store, only that protocols lose patience twice as soon."""
    fields = msgspec.structs.fields(specification.options)
    halved = {f.name: f.default // 2 for f in fields if f.name.endswith("_us") and isinstance(f.default, int)}
    return {**halved, "clock": "hybrid", "dedup_window_us": 120_000_000}


class Load:
    """Multicasts to all groups, or to one of them, seeded, until `stop`. submissions: everything that was handed to a
    process. payload_bytes: the sizes to draw from."""

    def __init__(self, cluster: Processes, seed: str, payload_bytes: Sequence[int] = PAYLOAD_BYTES):
        self.cluster = cluster
        self.everywhere = tuple(cluster.topology.groups)
        self._destinations = [self.everywhere, self.everywhere, *((group,) for group in self.everywhere)]
        self._payload_bytes = payload_bytes
        self.rng = random.Random(seed)
        self.submissions: list[Submission] = []
        self._sent = dict.fromkeys(self.everywhere, 0)
        self.resume()

    def resume(self) -> None:
        """Go on after `stop`."""
        self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while len(self.submissions) < MESSAGES_MAX:
            for _ in range(self.rng.randint(1, 2 * BURST - 1)):
                if self.cluster.up and self.outstanding < OUTSTANDING_MAX:
                    self.multicast(self.rng.choice(self._destinations))
            await asyncio.sleep(PAUSE_S)

    @property
    def outstanding(self) -> int:
        """How many messages some group has yet to deliver."""
        peers, groups = self.cluster.peers, self.cluster.topology.groups
        return max(self._sent[g] - max(peers[p].position for p in members) for g, members in groups.items())

    def multicast(self, destinations: tuple[GroupId, ...], apart: Sequence[ProcessId] = ()) -> MessageId:
        """A new message from any process that runs, apart from these; one does."""
        now_us = time.time_ns() // 1000
        origin = self.rng.choice([process for process in self.cluster.up if process not in apart])
        payload = self.rng.randbytes(self.rng.choice(self._payload_bytes))
        message = AppMessage(new_message_id(now_us, self.rng.getrandbits(62)), destinations, payload, origin)
        self.submit(origin, message)
        for group in destinations:
            self._sent[group] += 1
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

    def quiet(self) -> bool:
        """Whether every process has delivered what its group owes."""
        owed, groups = self.owed, self.cluster.topology.groups
        return all(self.cluster.peers[p].delivered >= owed[g] for g, members in groups.items() for p in members)

    def finished(self) -> bool:
        """Whether every process has delivered all that its group owes, and no more than the others."""
        owed = self.owed
        return all(
            self.cluster.peers[p].delivered >= owed[group] and self.cluster.peers[p].position == most
            for group, members in self.cluster.topology.groups.items()
            for most in (max(self.cluster.peers[q].position for q in members),)
            for p in members
        )


async def delivers(cluster: Processes, messages: int) -> None:
    """Wait for so many more deliveries at every process."""
    wanted = {p: peer.position + messages for p, peer in cluster.peers.items()}
    await cluster.eventually(lambda: all(cluster.peers[p].position >= n for p, n in wanted.items()), "more deliveries")
