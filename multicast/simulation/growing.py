"""A group that is added to a simulated world while the others work (`multicast.parts.founding`).

Its processes are started, on empty disks; then somebody asks any process of the first group to multicast that there is
one more, and again, until one of these knows it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from multicast.membership import Founding, GroupIs, founding_payload
from multicast.protocol import Specification
from multicast.simulation.checkers import Checker
from multicast.simulation.fault import Fault
from multicast.simulation.scene import Node
from multicast.simulation.world import World
from multicast.types import AppMessage, GroupId, ProcessId, Topology, new_message_id

_AT_NEW = 0.6
"""So many of the faults hit the group that is added."""
_NAMED = 0.7
"""Of those whose disks are lost so many have a file that names all processes: they link to those of the new group
before anybody has told them of it."""


def topology_of(world: Topology, process: ProcessId) -> Topology:
    """With which this process begins: of who may be added it knows only those of its own group, as a live one does; and
    of groups that are to be added (their members are `spares`) only its own."""
    group = world.group_of[process]
    spares = {g: some for g, some in world.spares.items() if g in world.groups and g == group}
    groups = world.groups if group in world.groups else {**world.groups, group: world.spares[group]}
    return Topology(groups, spares)


def strike(
    rng: random.Random, topology: Topology, members: Sequence[ProcessId], span_us: int, specification: Specification
) -> list[Fault]:
    """Faults of who is in the group that is added, and of others when it is: within `span_us` after half of that."""
    faults: list[Fault] = []
    kinds = ("crash", "power", "pause", "partition", *("lost_disk",) * (3 * specification.survives_lost_disk))
    everybody = (*topology.processes, *members)
    for _ in range(rng.choice((1, 2, 3, 5))):
        victim = rng.choice(members if rng.random() < _AT_NEW else topology.processes)
        lasts_us = rng.choice((2_000, 20_000, 200_000, 1_000_000))
        kind, at = rng.choice(kinds), span_us // 2 + 1 + rng.randrange(span_us // 2)
        peers = tuple(p for p in everybody if p != victim)
        faults.append(Fault(kind, at, rng.randint(lasts_us // 2, lasts_us), (victim,), peers))
    return faults


class Growth(Checker):
    """Of one run. It reports what is sent to a process of a group that the sender does not know.

    group: the new one. payload: what the application is given with the message. announced: somebody of the first group
    knows.
    """

    watches_protocol = watches_sends = True

    def __init__(self, rng: random.Random, group: GroupId, patience_us: int, payload: bytes = b""):
        super().__init__()
        self._rng = rng
        self.group = group
        self._patience_us = patience_us
        self._payload = payload
        self.announced = False

    @property
    def _there(self) -> World:
        assert self.world is not None
        return self.world

    def plan(self, at_us: int) -> None:
        """So much later it begins."""
        self._there.schedule(self._there.now + at_us, self._begin)

    def _begin(self) -> None:
        world = self._there
        members = world.topology.spares[self.group]
        world.topology.add_group(GroupIs(self.group, members, {}))
        for process in members:
            world.restart(process)
        self._try()

    def _try(self) -> None:
        world = self._there
        nodes = [world.nodes[p] for p in world.topology.groups[min(world.topology.groups)]]
        ready = [node for node in nodes if node.up]
        self.announced = any(self.group in node.protocol.topology.groups for node in ready)
        if self.announced:
            return
        if ready:
            origin = self._rng.choice(ready)
            identity = new_message_id(world.now, self._rng.getrandbits(62))
            group = origin.protocol.group
            founded = GroupIs(self.group, world.topology.spares[self.group], {})
            payload = founding_payload(Founding(founded, self._payload))
            world.submit(origin.pid, AppMessage(identity, (group,), payload, origin.pid))
        world.schedule(world.now + self._patience_us, self._try)

    def on_life(self, node: Node) -> None:
        topology = self._there.topology
        if node.lost and self.group in topology.groups and node.pid not in topology.groups[self.group]:
            named = random.Random(f"{self._there.seed}/file {node.pid}/{node.life}").random() < _NAMED
            node.met = topology.processes if named else node.met

    def on_handled(
        self, node: Node, handler: str, args: tuple[Any, ...], sends: list[tuple[tuple[ProcessId, ...], Any, bool]]
    ) -> None:
        known, group_of = node.protocol.topology.groups, self._there.topology.group_of
        for to, message, _ in sends:
            if any(group_of.get(p) not in known for p in to if p >= 0):
                self.report("groups", f"process {node.pid} sends {type(message).__name__} to a group it does not know")
