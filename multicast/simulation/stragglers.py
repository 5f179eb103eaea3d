"""A fault of several steps: a message comes again when all but one have forgotten it.

With a deduplication window, somebody who has delivered a message hears nothing for two windows, while the others go on
and forget it; then the message is multicast again. The first of its group who delivers it anew hears, and is heard by,
nobody from that instant, and the one who still knows the first copy is back: it may be elected, or asked. What a group
delivers must not depend on who of it knows what (parts.entries).
"""

from __future__ import annotations

import random

from multicast.protocol import Options, Specification
from multicast.records import Delivered
from multicast.simulation.casualties import Casualties
from multicast.simulation.fault import Fault
from multicast.simulation.observe import Observer
from multicast.simulation.scene import Node
from multicast.simulation.world import World
from multicast.types import FINAL, AppMessage, ProcessId, Topology, created_us, new_message_id

SHARE = 0.4
"""Of the runs of bare protocols whose windows pass in time."""
ALONE_SHARE = 0.6
"""Of those, nothing else happens."""
_SPAN_MIN = 3
"""So many windows must pass in a run."""
_MEANWHILE = 40
"""So many messages, at most, are multicast while who is left behind is away."""
_AWAY_US = 600_000
"""So long who delivers alone is away."""


def draw(
    rng: random.Random, topology: Topology, options: Options, span_us: int, specification: Specification,
    share: float = SHARE,
) -> Fault | None:
    """In this share of the runs. lasts_us: how long who knows it is away at least. amount_us: how long somebody may
    deliver the copy alone. sends: it comes through who multicast it first. again: so many copies."""
    window_us = options.dedup_window_us
    groups = [members for members in topology.groups.values() if len(members) > 2]
    if not window_us or _SPAN_MIN * window_us > span_us or not groups or not specification.fault_tolerant:
        return None
    if rng.random() >= share:
        return None
    latest = span_us - _SPAN_MIN * window_us
    return Fault(
        "straggler", rng.randrange(latest + 1), 2 * window_us + rng.randrange(1 + window_us // 2),
        rng.choice(groups), amount_us=rng.choice((2_000, 10_000, 40_000)), sends=rng.random() < 0.5,
        then=rng.choice(("power", "pause", "cut", "cut")), again=rng.choice((1, 2, 2, 3)),
    )  # fmt: skip


class Stragglers(Observer):
    """Lets it happen in a world, of which it is an observer. payload: of messages that are multicast meanwhile to the
    same groups: only deliveries make their replicas forget, and clients may wait for whoever hears nothing. None: there
    are enough."""

    def __init__(self, fault: Fault, rng: random.Random, payload: bytes | None = None):
        self._payload = payload
        self._fault = fault
        self._rng = rng
        self._casualties: Casualties | None = None
        self._world: World | None = None
        self._straggler: ProcessId | None = None
        self._message: AppMessage | None = None
        self._begun = self._expecting = False

    def plan(self, casualties: Casualties) -> None:
        """It begins in time."""
        self._casualties, self._world = casualties, casualties.world
        casualties.after(self._fault.at_us, self._begin)

    def _begin(self) -> None:
        self._begun = True

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        if not self._begun or replay or delivery.stage != FINAL or node.pid not in self._fault.processes:
            return
        if self._message is None:
            self._leave_behind(node.pid, delivery)
        elif self._expecting and delivery.message.id == self._message.id and node.pid != self._straggler:
            self._expecting = False
            self._world_after(0, self._take_away, node.pid)

    def _leave_behind(self, pid: ProcessId, delivery: Delivered) -> None:
        casualties = self._casualties
        assert casualties is not None and self._world is not None
        if casualties.over or casualties.leader(pid) == pid or not casualties.may_die(pid):
            return
        self._straggler, self._message = pid, delivery.message
        casualties.count(self._fault)
        ahead = max(0, created_us(delivery.message.id) - delivery.timestamp.time)
        self._world_after(0, self._cut, pid, True)
        away_us = self._fault.lasts_us + ahead
        self._world_after(away_us, self._come_again, self._fault.again)
        if self._payload is not None:
            for number in range(1, _MEANWHILE):
                self._world_after(number * away_us // _MEANWHILE, self._go_on)

    def _world_after(self, us: int, then: object, *arguments: object) -> None:
        assert self._casualties is not None
        self._casualties.after(us, then, *arguments)  # type: ignore[arg-type]

    def _cut(self, pid: ProcessId, off: bool) -> None:
        assert self._world is not None
        pairs = [(a, b) for p in self._world.topology.processes if p != pid for a, b in ((p, pid), (pid, p))]
        if off:
            self._world.network.block(pairs)
        else:
            self._world.network.unblock(pairs)

    def _there(self) -> list[ProcessId]:
        assert self._world is not None
        return [p for p in self._world.topology.processes if p != self._straggler and self._world.nodes[p].up]

    def _go_on(self) -> None:
        """One of the messages meanwhile."""
        world, message, there = self._world, self._message, self._there()
        assert world is not None and message is not None and self._payload is not None
        if there:
            identity = new_message_id(world.now, self._rng.getrandbits(62))
            via = self._rng.choice(there)
            world.submit(via, AppMessage(identity, message.destinations, self._payload, via))

    def _come_again(self, copies: int) -> None:
        """Through somebody who is not away, if anybody is up."""
        world, message, there = self._world, self._message, self._there()
        assert world is not None and message is not None
        self._expecting = True
        for _ in range(copies if there else 0):
            via = message.origin if self._fault.sends and message.origin in there else self._rng.choice(there)
            world.submit(via, AppMessage(message.id, message.destinations, message.payload, via))
        self._world_after(self._fault.amount_us, self._give_up)

    def _give_up(self) -> None:
        if self._expecting:
            self._expecting = False
            assert self._straggler is not None
            self._cut(self._straggler, False)

    def _take_away(self, alone: ProcessId) -> None:
        """Who has delivered the copy; the straggler is back."""
        casualties, straggler = self._casualties, self._straggler
        assert casualties is not None and straggler is not None
        self._cut(straggler, False)
        if self._fault.then == "cut":
            casualties.cut_off((alone,), _AWAY_US)
        else:
            casualties.hit(alone, self._fault.then, _AWAY_US)
