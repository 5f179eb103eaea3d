"""What a process vouches for is on disk before it is told, and no message overtakes an earlier one of its link.

The two promises about lanes in `multicast.protocol`: one is the protocol's (a message of `Specification.vouching` is
`send_durable`, and nobody sends it who has lost its disk and is not a member again), the other the engine's (what is
`send_durable` leaves when everything that was put before is on disk; a link is first in, first out). They are checked
where messages are sent and where they leave, whatever comes of it: a crash that shows the harm must hit the few
instants between a message and the sync that it did not wait for.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from multicast.parts.ballots import Vote
from multicast.protocol import Bulk, Specification
from multicast.simulation.checkers import Checker
from multicast.types import ProcessId
from multicast.wire import PROTOCOL

if TYPE_CHECKING:
    from multicast.simulation.scene import Node

_TOLD_BY_MEMBERS = ("State", "Reminder")
"""What a process says of what others count on: not so who has lost its disk. It need not wait for the disk."""


class Vouching(Checker):
    """See the module. Large states (`Bulk`) may be overtaken, and signs of life overtake."""

    watches_protocol = True

    def __init__(self, specification: Specification) -> None:
        super().__init__()
        self._vouching = frozenset(specification.vouching)
        told = specification.messages if specification.survives_lost_disk else ()
        self._told = frozenset(kind for kind in told if kind.__name__ in _TOLD_BY_MEMBERS)
        overtakes = [kind for kind in specification.messages if getattr(kind, "overtakes", False)]
        self._overtaking = {kind.__struct_config__.tag for kind in overtakes}  # type: ignore[attr-defined]
        self._links: dict[ProcessId, dict[ProcessId, deque[tuple[type, int]]]] = {}
        self._own: dict[ProcessId, dict[type, deque[int]]] = {}

    def on_life(self, node: Node) -> None:
        self._links[node.pid] = {}
        self._own[node.pid] = {}

    def on_handled(
        self, node: Node, handler: str, args: tuple[Any, ...], sends: list[tuple[tuple[ProcessId, ...], Any, bool]]
    ) -> None:
        told = args[1] if handler == "on_message" and args[0] == node.pid else None
        if type(told) in self._vouching and self._own[node.pid][type(told)].popleft() > node.flushed:
            text = f"process {node.pid} counts its own {type(told).__name__} before what was put is on disk"
            self.report("vouching", text)
        if not sends:
            return
        links, unsynced = self._links[node.pid], _unsynced(node, bool(args[-1].changes))
        for to, message, durable in sends:
            kind = type(message)
            if not durable and kind in self._vouching:
                self.report("vouching", f"process {node.pid} sends {kind.__name__} without waiting for the disk")
            if kind in self._vouching | self._told and not _may_vouch(node, message):
                self.report("vouching", f"process {node.pid} sends {kind.__name__}, but has lost its disk")
            if node.pid in to and kind in self._vouching:
                self._own[node.pid].setdefault(kind, deque()).append(unsynced if durable else 0)
            if getattr(kind, "bulk", False) or getattr(kind, "overtakes", False):
                continue
            for peer in to:
                if peer != node.pid:
                    links.setdefault(peer, deque()).append((kind, unsynced if durable else 0))

    def on_frame(self, sender: ProcessId, to: tuple[ProcessId, ...], frame: bytes) -> None:
        if frame[0] != PROTOCOL or frame[2] in self._overtaking or isinstance(frame, Bulk) or self.world is None:
            return
        node = self.world.nodes[sender]
        for peer in to:
            kind, unsynced = self._links[sender][peer].popleft()
            if kind.__struct_config__.tag != frame[2]:  # type: ignore[attr-defined]
                self.report("vouching", f"process {sender} lets something overtake {kind.__name__} to process {peer}")
            elif unsynced > node.flushed:
                self.report("vouching", f"{kind.__name__} leaves process {sender} before what was put is on disk")


def _may_vouch(node: Node, message: Any) -> bool:
    """Who is new in its group may promise, and say that it has nothing."""
    protocol = node.protocol
    return protocol.is_member() or (isinstance(message, Vote) and not message.entries and protocol.promises())


def _unsynced(node: Node, changes: bool) -> int:
    """The number of the last batch that has anything that was put so far; 0 if all is on disk."""
    engine = node.engine
    last = node.ran + 1 if changes or not engine.recorder.empty else engine._last_journaled
    return last if last > node.flushed else 0
