"""What is multicast to see how soon it is delivered (`multicast.simulation.endings`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from multicast.records import Delivered
from multicast.simulation.observe import Observer
from multicast.types import FINAL, ZERO, AppMessage, GroupId, MessageId, ProcessId, Topology

if TYPE_CHECKING:
    from multicast.simulation.scene import Node


class Probe(Observer):
    """Who has delivered the latest probe, when, and at which timestamp. Nothing new is multicast meanwhile, so its
    destinations tell it. A late copy of what is known may be, which nobody delivers again; and who is removed may
    deliver only now what was before.

    members: who must deliver it. sent: its messages; a store may try again with another one."""

    def __init__(self, topology: Topology) -> None:
        self.destinations: tuple[GroupId, ...] = ()
        self.members: list[ProcessId] = []
        self.sent: set[MessageId] = set()
        self.delivered: dict[ProcessId, int] = {}
        self.timestamp = ZERO
        self._topology = topology

    def expect(self, destinations: tuple[GroupId, ...], dead: Collection[ProcessId]) -> None:
        self.destinations, self.sent, self.delivered = destinations, set(), {}
        self.members = [p for p in self._topology.members(destinations) if p not in dead]

    def is_missing(self) -> bool:
        """Whether one of its members has not delivered it."""
        return any(pid not in self.delivered for pid in self.members)

    def on_submit(self, node: Node, message: AppMessage) -> None:
        if message.destinations == self.destinations:
            self.sent.add(message.id)

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        ours = delivery.message.id in self.sent and node.pid in self.members
        if ours and delivery.stage == FINAL and not replay:
            self.delivered.setdefault(node.pid, node.world.now)
            self.timestamp = delivery.timestamp
