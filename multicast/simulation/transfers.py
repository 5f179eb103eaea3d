"""Who lacks a state asks all others of its group in turn, and keeps the latest that it was given.

Whoever was asked may be dead, and whoever gave a state, too, and its deliveries with it: then only another one's helps.
The harm in asking always the same one, or in keeping the first state, takes a death just then, for good. Like in
`invariants`, variables of protocols are known by name only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from multicast.simulation.checkers import Checker
from multicast.types import ProcessId, Topology

if TYPE_CHECKING:
    from multicast.simulation.scene import Node

Sends = list[tuple[tuple[ProcessId, ...], Any, bool]]

_IN_VAIN = 4
"""So many questions, one after the other, do not all go to the same one, if there are others."""


class Transfers(Checker):
    """Of every protocol with `parts.transfer`, or, as ToTo, states of its own."""

    watches_protocol = True

    def __init__(self, topology: Topology):
        super().__init__()
        self._asked: dict[ProcessId, list[ProcessId]] = {}
        self._portions: dict[ProcessId, dict[ProcessId, int]] = {}

    def on_life(self, node: Node) -> None:
        self._asked[node.pid] = []
        self._portions[node.pid] = {}

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        protocol: Any = node.protocol
        if handler == "on_peer_reset":
            self._portions[node.pid].pop(args[0], None)
        elif handler == "on_message" and type(args[1]).__name__ == "State":
            self._judge_kept(node, protocol, args[0], args[1])
        for to, message, _ in sends:
            if type(message).__name__ == "StateAsk":
                self._judge_turn(node, protocol, to)

    def _judge_turn(self, node: Node, protocol: Any, to: tuple[ProcessId, ...]) -> None:
        asked, group = self._asked[node.pid], protocol.topology.groups[protocol.group]
        asked += to
        del asked[:-_IN_VAIN]
        if len(asked) == _IN_VAIN and len(set(asked)) == 1 and len(group) > 2:
            self._wrong(node, f"asks process {to[0]} for its state again and again, of {group}")

    def _judge_kept(self, node: Node, protocol: Any, sender: ProcessId, state: Any) -> None:
        """A state that is whole, and is not taken over at once, waits for the deliveries before it."""
        if hasattr(protocol, "record"):
            record, view = protocol.record, protocol.view
            outside = view.me is None and record.stopped  # it may still learn how far the order has come
            lacks = not record.complete or (outside and any(map(int.__gt__, state.order.ordered, view.held)))
            if record.number == state.number and lacks and protocol._target is not state:
                self._wrong(node, f"does not keep the state that process {sender} gives it")
            return
        portions = self._portions[node.pid]
        if state.number not in (0, portions.get(sender)):
            return
        portions[sender] = state.number + 1
        if state.number < state.count - 1:
            return
        del portions[sender]
        waiting = getattr(protocol, "member", protocol)._transfer._waiting
        if waiting is not None and waiting[0] != sender:
            self._wrong(node, f"keeps the state of process {waiting[0]}; process {sender} has given a later one")

    def _wrong(self, node: Node, text: str) -> None:
        self.report("transfer", f"process {node.pid} {text}")
