"""What the members of a ToTo view owe it: who has stopped adds nothing to it, and only who is complete says so.

A flush counts on both: what a member says that it holds when it stops is all that it will ever hold of the view, and
who speaks for its group has all deliveries from before it. Variables of the protocol are known by name only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from multicast.simulation.logs import Decisions, Sends
from multicast.types import ProcessId, Topology

if TYPE_CHECKING:
    from multicast.simulation.scene import Node


class Views(Decisions):
    """See the module."""

    def __init__(self, topology: Topology):
        super().__init__(topology)
        self._stopped: dict[ProcessId, tuple[int, list[int]]] = {}
        self._states: dict[ProcessId, dict[int, int]] = {}
        self._complete: dict[ProcessId, bool] = {}

    def on_life(self, node: Node) -> None:
        super().on_life(node)
        self._stopped.pop(node.pid, None)
        self._complete.pop(node.pid, None)
        self._states[node.pid] = {}

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        super().on_handled(node, handler, args, sends)
        protocol: Any = node.protocol
        record, pid = protocol.record, node.pid
        if handler == "on_message" and type(args[1]).__name__ == "State":
            told, number = self._states[pid], args[1].number
            told[number] = min(told.get(number, args[1].position), args[1].position)
        lately = record.complete and not self._complete.get(pid, True)
        if lately and protocol.log.position < (said := self._states[pid].get(record.number, 0)):
            self._wrong(node, f"is complete at delivery {protocol.log.position}, a complete member was at {said}")
        self._complete[pid] = record.complete
        number, held = self._stopped.get(pid, (0, []))
        member = protocol.view.me is not None  # others may take over how far the order has come
        if record.stopped and member and number == record.number and held != protocol.view.held:
            self._wrong(node, f"holds {protocol.view.held}, and had stopped with {held}")
        if record.stopped:
            self._stopped[pid] = record.number, list(protocol.view.held)
        for _, message, _ in sends:
            kind = type(message).__name__
            if kind == "State" and not record.complete:
                self._wrong(node, "tells its state, and lacks deliveries from before the view")
            elif kind == "Flushed" and message.view == record.number and message.complete > record.complete:
                self._wrong(node, "says that it lacks no deliveries from before the view")

    def _wrong(self, node: Node, text: str) -> None:
        record: Any = node.protocol.record  # type: ignore[attr-defined]
        self.report("view", f"process {node.pid} in view {record.number} {text}")
